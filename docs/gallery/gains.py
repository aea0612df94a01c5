"""# Who gains, and who is hurt?

A mean over clients hides those who would be better off on their own. `tw.evaluate.report` trains two more models, one shared by
all and one for each client alone, and holds every client's personal model against both on rows that were held out. Thirty shops
predict whether a customer comes back. Most of them resemble each other; five do not, and have many rows. With a strong pull towards
the shared centre these five pay for the others. The intervals come from a paired bootstrap: a client counts as surely helped, or
surely hurt, only if its whole interval lies on one side of zero.
"""

import numpy as np

import twofold as tw

rng = np.random.default_rng(0)
common = rng.normal(size=6)
shops, names = [], []
for shop in range(30):
    odd = shop >= 25
    rows = 400 if odd else int(rng.integers(24, 60))
    taste = -common if odd else common + 0.3 * rng.normal(size=6)
    x = rng.normal(size=(rows, 6))
    shops.append((x, (x @ taste + rng.logistic(size=rows) > 0).astype(int)))
    names.append(f"{'odd' if odd else 'shop'} {shop}")

train, test = tw.Clients.from_list(shops, names=names).split(0.5, seed=0)
problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.01), lam=1.0), train)
found = tw.evaluate.report(problem, tw.solve(problem), test)
print(found)
print("hurt, compared with being alone:", ", ".join(found.hurt("alone")) or "nobody")

weaker = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.01), lam=0.03), train)
again = tw.evaluate.report(weaker, tw.solve(weaker), test)
print("with a pull of 0.03 instead of 1:", ", ".join(again.hurt("alone")) or "nobody")

picture = found.draw("gains.svg")
