"""# Patients: a table with strings, categories and missing values

A voice clinic follows 24 patients. Each visit is a row of a data frame: an age, a sex, two measures of the voice (one of them
often missing), and a score to predict. Every patient is a client, and the rows of a client stay where they are.
(Means, category names and gradients do leave: see *What a message reveals*.) How much should one patient learn
from the others? `tw.tune` finds out by cross-validation inside every patient's own rows, and says by how much it pays.
"""

import numpy as np
import pandas as pd

import twofold as tw
from twofold import plots

rng = np.random.default_rng(0)
tables = []
for patient in range(24):
    visits = int(rng.integers(12, 40))
    own = rng.normal(0, [1.0, 0.6], 2)  # how this patient differs from the others
    jitter, noise = rng.normal(size=visits), rng.normal(size=visits)
    table = pd.DataFrame(
        {"patient": f"p{patient:02}", "age": rng.integers(45, 80), "sex": rng.choice(["f", "m"])}, range(visits)
    )
    table["jitter"], table["noise"] = 0.01 * jitter, np.where(rng.random(visits) < 0.2, np.nan, 50 + 10 * noise)
    table["score"] = 20 + 4 * own[0] + (2 + own[1]) * jitter + noise + rng.normal(0, 1.5, visits)
    tables.append(table)
visits = pd.concat(tables)

clients = tw.Clients.from_frame(visits, client="patient", target="score", standardize="pooled")
train, test = clients.split(0.4, seed=0)
loss = tw.losses.squared(l2=0.01, intercept=True)
tuned = tw.tune(tw.objectives.mixture(loss, lam=1.0), train, per_client=False)
print(tuned)

found = tw.evaluate.compare(loss, train, test, {"personal": tuned.objective}, algorithm="profile", rounds=50)
print(found)
picture = plots.clients(found, "patients.svg", title="Squared error of every patient, on visits held out")
