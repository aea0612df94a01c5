"""# Schools: exam scores

139 London schools with 22 to 251 pupils each, 27 features, an exam score: the data that multi-task learning grew up with. It
is used where `TWOFOLD_DATA` names a folder that has it; elsewhere the same is shown on made-up data of the same shape, and
the first line of the output says which. Thirty schools are enough to see it: one model for all is too stiff, one for each
school alone has too few pupils, and drawing them together is better than both.
"""

import os

import numpy as np

import twofold as tw
from twofold import plots

try:
    data = tw.data.load("school", folder=os.environ["TWOFOLD_DATA"])
except (KeyError, tw.TwofoldError):  # not here: made-up schools of the same shape
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(139), rng.integers(22, 251, 139))
    x = (rng.random((len(owner), 27)) < 0.3).astype(float)
    taste = rng.normal(0, 2, 27) + rng.normal(0, 1.2, (139, 27))
    y = 20 + np.sum(x * taste[owner], axis=1) + rng.normal(0, 8, len(owner))
    data = tw.data.Dataset(x, y, "Made-up schools.", owner)
print(data.provenance)

names = list(dict.fromkeys(np.asarray(data.owner).tolist()))[:30]
some = np.isin(data.owner, names)
clients = tw.Clients.from_groups(data.x[some], data.y[some], np.asarray(data.owner)[some])
train, test = clients.split(0.25, seed=0)
loss = tw.losses.squared(l2=0.01, intercept=True)
found = tw.evaluate.compare(
    loss, train, test, {"drawn together": tw.objectives.mixture(loss, lam=0.3)}, algorithm="profile", rounds=60
)
print(found)
picture = plots.clients(
    found,
    "schools.svg",
    title="Minus the squared error of every school",
    baselines=["shared model alone", "each client alone"],
)
