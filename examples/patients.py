"""From a table with strings, categories and gaps to one honest model per patient.

python examples/patients.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import twofold as tw


def patients(seed: int = 0, count: int = 24, visits: int = 40) -> pd.DataFrame:
    """Make the visits of some patients to a clinic: how a drug does depends on the patient, and not everything is written down."""
    rng = np.random.default_rng(seed)
    who = np.repeat([f"patient {i:02d}" for i in range(count)], visits)
    age = np.repeat(rng.normal(62, 11, count), visits)
    dose = rng.gamma(4.0, 25.0, len(who))  # milligrams
    drug = rng.choice(["levodopa", "agonist", "none"], len(who))
    own = np.repeat(rng.normal(0.0, 1.2, count), visits)  # what each patient makes of the dose
    score = (0.3 + own) * (dose - 100) / 50 + (drug != "none") - 0.02 * (age - 62) + rng.logistic(size=len(who))
    table = pd.DataFrame({"patient": who, "age": age, "dose": dose, "drug": pd.Categorical(drug)})
    table["sleep"] = np.where(rng.random(len(who)) < 0.2, np.nan, rng.normal(7, 1, len(who)))
    table["mood"] = np.where(rng.random(len(who)) < 0.1, None, rng.choice(["low", "fair", "good"], len(who)))
    return table.assign(motion=np.where(score > 0, "better", "worse"))


def main() -> None:
    """Five lines: read, hold out, choose the strength, solve, look at who gains."""
    table = patients()

    clients = tw.Clients.from_frame(table, client="patient", target="motion", standardize="pooled")
    train, test = clients.split(test=0.3, stratify=True)
    tuned = tw.tune(tw.objectives.mixture(tw.losses.logistic(l2=1e-3, intercept=True), lam=1.0), train)
    result = tuned.solve()
    grades = tw.evaluate(result.problem, result, test)

    print(clients.schema, "\n")
    print(tuned, "\n")
    print(grades)

    # The same with scikit-learn's own words.
    from twofold.sklearn import PersonalizedClassifier, WithinClients

    model = PersonalizedClassifier(client="patient")
    x, y = table.drop(columns="motion"), table["motion"]
    for rows, held_out in WithinClients(4).split(x, y, groups=x["patient"]):
        score = model.fit(x.iloc[rows], y.iloc[rows]).score(x.iloc[held_out], y.iloc[held_out])
        print(f"right answers on rows held out: {score:.3f} ({model.strength_ = })")
        break


if __name__ == "__main__":
    main()
