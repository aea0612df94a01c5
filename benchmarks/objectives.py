"""Which objective when: all of them on the exam scores of 139 schools, whose table stands in docs/choosing.md.

python benchmarks/objectives.py        (school.mat is taken from TWOFOLD_DATA, or downloaded)
"""

from __future__ import annotations

import twofold as tw


def main() -> None:
    """Three quarters of every school's pupils for training, one quarter for the grades."""
    school = tw.data.load("school")
    clients = tw.Clients.from_groups(school.x, school.y, school.owner)
    train, test = clients.split(0.25, seed=0)
    loss = tw.losses.squared(l2=0.01, intercept=True)
    objectives = {
        "mixture, λ = 0.3": tw.objectives.mixture(loss, lam=0.3),
        "multitask, λ = 0.3": tw.objectives.multitask(loss, lam=0.3),
        "adaptive, α = 0.5": tw.objectives.adaptive(loss, alpha=0.5),
        "private intercept": tw.objectives.weight_sharing(loss, private="bias"),
        "residual": tw.objectives.residual(loss),
    }
    print(tw.evaluate.compare(loss, train, test, objectives, algorithm="profile", rounds=40, record=()))


if __name__ == "__main__":
    main()
