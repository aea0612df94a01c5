"""# Landmines: rare classes, judged by the ranking

Two kinds of ground, fifteen fields with two hundred radar echoes each, and six in a hundred are mines. Where a class is
that rare, the share of right answers says nothing: always "no mine" is right 94 times in a hundred. What counts is whether
mines are ranked above stones: the area under the ROC curve. One model for two kinds of ground fails. Fields that are weakly drawn
together do far better, and no worse than fields alone, as far as so few mines can tell. The data is made up, in the shape of the
landmine data of multi-task learning.
"""

import numpy as np

import twofold as tw

rng = np.random.default_rng(2)
kinds = rng.normal(0, 1.2, (2, 9))  # what gives a mine away, on grass and on sand


def field(kind: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(200, 9))
    score = x @ (kinds[kind] + rng.normal(0, 0.25, 9)) + rng.normal(0, 2, 200)
    return x, (score > np.quantile(score, 0.94)).astype(int)


clients = tw.Clients.from_list([field(m % 2) for m in range(15)])
train, test = clients.split(0.6, seed=0, stratify=True)
loss = tw.losses.logistic(l2=0.01, intercept=True)
problem = tw.Problem(tw.objectives.mixture(loss, lam=0.03), train)
found = tw.evaluate.report(problem, tw.solve(problem), test, metric="roc_auc")
print(found)
picture = found.draw("landmines.svg")
