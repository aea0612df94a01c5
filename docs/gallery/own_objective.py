"""# An objective of your own

People agree on what makes a film good, and differ in how strict they are: one taste w for all, one threshold β for each. Write
one client's loss as a mean over its rows, in plain w and β; twofold does the rest. Smoothness is measured. Strong convexity is
never guessed, so here we say it, `constants(mu=…)`; with it, steps and the end of the run are certified.
"""

import jax.numpy as jnp
import numpy as np

import twofold as tw


def liked(w, beta, batch):
    x, y = batch
    score = x @ w + beta
    return jnp.mean(jnp.logaddexp(0.0, score) - y * score) + 0.005 * (w @ w + beta**2)


rng = np.random.default_rng(0)
strictness = rng.normal(0, 2, 12)
films = [rng.normal(size=(40, 5)) for _ in strictness]
rows = [(x, (x @ np.ones(5) + s + rng.logistic(size=40) > 0).astype(float)) for x, s in zip(films, strictness)]

problem = tw.Problem(tw.objectives.custom(liked, w0=np.zeros(5), beta0=np.zeros(())), tw.Clients.from_list(rows))
known = problem.constants(mu=0.01 / problem.M)
result = tw.solve(problem, "acd", tol=1e-3, constants=known, record=["loss", "bound"])
print(result.status, "after", result.ledger.rounds, "rounds")
print("taste", np.round(result.w, 2))
print("correlation of found and true strictness", np.round(np.corrcoef(result.beta, strictness)[0, 1], 3))
figure = tw.plot(result, y="bound", title="A certified gap for a loss of one's own")
