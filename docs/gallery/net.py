"""# A convolutional net: FedAvg, FedPer and Ditto

Fifteen people, thirty labelled images each, three digits each (scikit-learn's digits), and a small convolutional net in flax. One
net for all must tell ten digits apart; FedPer shares all layers but the last; Ditto gives everybody a net of its own, drawn to
the shared one. The report compares both with one shared net and with nets trained alone, and says who is hurt: here some would be
better off alone than with FedPer. A net is not convex: learning rates are set by hand, and nothing is certified.
"""

import flax.linen as nn

import twofold as tw
from twofold.data import partition


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), name="conv")(x.reshape(-1, 8, 8, 1)))
        x = nn.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        return nn.Dense(10, name="head")(nn.relu(nn.Dense(32, name="body")(x)))


digits = tw.data.load("digits")
parts = partition.by_labels(digits.y, clients=15, labels_per_client=3, train=30, test=60, seed=0)
train, test = (tw.Clients.from_list(rows, names=parts.names) for rows in parts.take(digits.x, digits.y))

methods = {
    "FedAvg": tw.methods.fedavg(CNN(), lr=0.1),
    "alone": tw.methods.local(CNN(), lr=0.1),
    "FedPer": tw.methods.fedper(CNN(), head="head", lr=0.1),
    "Ditto": tw.methods.ditto(CNN(), lam=0.1, lr=0.1),
}
runs = {name: method.fit(train, rounds=30, test=test, every=5) for name, method in methods.items()}
for name, run in runs.items():
    best, last = 100 * run.best.value, 100 * run.history["test_accuracy"][-1]
    print(f"{name:7} best round {run.best.round:3}, {best:.1f} % of all test images right; last round {last:.1f} %")

baselines = {"shared": runs["FedAvg"], "alone": runs["alone"]}
for name in ("FedPer", "Ditto"):
    found = tw.evaluate.report(runs[name].problem, runs[name], test, baselines=baselines)
    for other, gain in found.gains.items():
        mean, low, high = (f"{100 * value:+.1f}" for value in gain.mean)
        print(f"\n{name} over {other}: {mean} points on average ({low} to {high});", end=" ")
        print(f"surely helped {gain.helped.sum()}, surely hurt {gain.hurt.sum()}")
        print("  surely hurt:", ", ".join(map(str, found.hurt(other))) or "nobody")
figure = tw.plot(runs, x="iterations", y="test_accuracy", title="Right answers on images held out")
