"""# Landmines: rare classes, judged by the ranking

Two kinds of ground, fifteen fields with two hundred radar echoes each, and six in a hundred are mines. Where a class is
that rare, the share of right answers says nothing: always "no mine" is right 94 times in a hundred. What counts is whether
mines are ranked above stones: the area under the ROC curve. One model for two kinds of ground fails; a weak pull together helps
most where a field alone does worst. The data is made up, in the shape of the landmine data of
multi-task learning.
"""

import numpy as np
from sklearn.metrics import roc_auc_score

import twofold as tw
from twofold import looks, plots

rng = np.random.default_rng(2)
kinds = rng.normal(0, 1.2, (2, 9))  # what gives a mine away, on grass and on sand


def field(kind: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(200, 9))
    score = x @ (kinds[kind] + rng.normal(0, 0.25, 9)) + rng.normal(0, 2, 200)
    return x, (score > np.quantile(score, 0.94)).astype(int)


clients = tw.Clients.from_list([field(m % 2) for m in range(15)])
train, test = clients.split(0.6, seed=0, stratify=True)
loss = tw.losses.logistic(l2=0.01, intercept=True)
areas = {}
for name, objective in {
    "one for all": tw.objectives.traditional(loss),
    "alone": tw.objectives.local(loss),
    "drawn together": tw.objectives.mixture(loss, lam=0.03),
}.items():
    problem = tw.Problem(objective, train)
    result = tw.solve(problem, "profile", rounds=40)
    model = tw.Model.of(problem, result)
    areas[name] = [roc_auc_score(test[m].y, model.predict_proba(m, test[m].x)[:, 1]) for m in range(15)]
    print(f"{name:14} mean area {np.mean(areas[name]):.3f}, worst field {np.min(areas[name]):.3f}")

figure = plots._figure((6.4, 3.0))
axes = figure.add_subplot()
for place, (name, values) in enumerate(areas.items()):
    axes.scatter(
        values,
        np.full(15, place) + rng.uniform(-0.15, 0.15, 15),
        s=22,
        color=list(looks.COLOURS.values())[place],
        label=name,
    )
    axes.plot([np.mean(values)] * 2, [place - 0.3, place + 0.3], color="black")
axes.set_yticks(range(3), list(areas))
axes.set_xlabel("area under the ROC curve, one dot per field")
