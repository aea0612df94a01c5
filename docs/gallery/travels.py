"""# A model that travels, and a client that comes later

`result.save` writes the model with all that is needed to use it: columns, scaling, labels, clients' names. `tw.load` reads it in a place where
nobody's rows are. One client's part can be cut out and handed to that client. A newcomer with a few rows gets a model of its own: w
stays as it is, and its β is found to a certified gap. The first newcomer takes a second or two, for compiling; the next ones milliseconds.
"""

import numpy as np
from matplotlib.figure import Figure

import twofold as tw

rng = np.random.default_rng(1)
common = rng.normal(size=4)


def client(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(rows, 4))
    return x, x @ (common + rng.normal(0, 0.3, 4)) + 0.3 * rng.normal(size=rows)


names = [f"clinic {m}" for m in range(8)]
problem = tw.Problem(
    tw.objectives.mixture(tw.losses.squared(l2=0.01), lam=0.3),
    tw.Clients.from_list([client(40) for _ in names], names=names),
)
result = tw.solve(problem)
result.save("everyone")

model = tw.load("everyone")
print(model)
model.only("clinic 3").save("for-clinic-3")
print(tw.load("for-clinic-3"))

x, y = client(500)  # a ninth clinic, which took no part
errors = {}
for few in (2, 4, 8, 16, 32):
    newcomer = model.adapt(x[:few], y[:few])
    errors[few] = float(np.mean((newcomer.predict(x[100:]) - y[100:]) ** 2))
print({few: round(error, 3) for few, error in errors.items()})

figure = Figure((6.4, 3.2), layout="constrained")
axes = figure.add_subplot()
axes.plot(list(errors), list(errors.values()), marker="o", label="its own β, w from the others")
axes.axhline(float(np.mean((model.predict_new(x[100:]) - y[100:]) ** 2)), linestyle="--", color="grey", label="w alone")
axes.set(xlabel="rows that the newcomer has", ylabel="squared error on its other rows", xscale="log")
axes.legend(frameon=False)
