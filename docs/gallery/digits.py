"""# Digits: who knows only two

Twenty people have ten labelled images each, of two digits only (scikit-learn's digits). One model for all of them has to tell
ten digits apart, and a model trained alone has seen ten images. A model that is partly shared and partly one's own is right more
often than either. `twofold demo` is the long version, with the strength chosen on further images.
"""

import twofold as tw
from twofold import plots
from twofold.data import partition

digits = tw.data.load("digits")
parts = partition.by_labels(digits.y, clients=20, labels_per_client=2, train=10, test=60, seed=0)
train, test = (tw.Clients.from_list(rows, names=parts.names) for rows in parts.take(digits.x, digits.y))

loss = tw.losses.softmax(10, l2=0.01, intercept=True)
objectives = {
    "mixture, λ = 0.1": tw.objectives.mixture(loss, lam=0.1),
    "private bias": tw.objectives.weight_sharing(loss, "weight"),
}
found = tw.evaluate.compare(loss, train, test, objectives, algorithm="acd", rounds=150, record=())
print(found)
baselines = ["shared model alone", "each client alone"]
picture = plots.clients(
    found, "digits.svg", title="Right answers of every client, on images held out", baselines=baselines
)
