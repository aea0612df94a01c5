"""# A flax net with a private head

Any function of parameters and rows can be the loss. Here it is a small net written in flax: its first layer is shared by all
clients and the last one is everybody's own (FedPer's split). Nets are not convex, so theory has no step sizes for them: the
step is set by hand, and nothing is certified.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import twofold as tw


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, name="head")(nn.tanh(nn.Dense(8, name="body")(x)))[:, 0]


net = Net()
start = jax.tree.map(np.asarray, net.init(jax.random.key(0), jnp.zeros((1, 4)))["params"])


def squared(params, x, y):
    return jnp.mean((net.apply({"params": params}, x) - y) ** 2)


rng = np.random.default_rng(0)
hidden = rng.normal(size=(4, 3))  # features that all clients have in common, and weights of one's own


def client() -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(60, 4))
    return x, np.tanh(x @ hidden) @ rng.normal(0.5, 1.0, 3) + 0.1 * rng.normal(size=60)


train, test = tw.Clients.from_list([client() for _ in range(6)]).split(0.5)
loss = tw.losses.custom(
    squared, init=start, l2=1e-3, L=10.0, calL=10.0, predict=lambda params, x: net.apply({"params": params}, x)
)
runs = {}
for name, objective in {
    "one net for all": tw.objectives.traditional(loss),
    "private head": tw.objectives.weight_sharing(loss, "body"),
}.items():
    problem = tw.Problem(objective, train)
    runs[name] = tw.solve(problem, tw.algorithms.LSGD(eta=0.1, tau=5, batch=None), rounds=120)
    print(f"{name:16} squared error on held-out rows {-tw.evaluate(problem, runs[name], test).mean:.3f}")
figure = tw.plot(runs, title="A net in flax, with and without a private head")
