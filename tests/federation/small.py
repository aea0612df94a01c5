"""A small federation in one process, and the same run by hand."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twofold as tw
from twofold import randomness
from twofold.engines.sides import ClientSide, ServerSide
from twofold.federation import Coordinator, Identity, InProcess, Node, Patience, Seat, Study
from twofold.federation.account import Account, started
from twofold.federation.tells import TELLS
from twofold.result import Result

NAMES = ("north", "east", "south", "west")
QUICK = Patience(poll=0.0, again=0.01, look=0.0, limit=2.0)


@functools.cache
def problem(kind: str = "mixture") -> tw.Problem:
    made = tw.data.synthetic.mixture(sigma_h=0.3, clients=4, rows=9, features=3)
    loss = tw.losses.logistic(l2=0.1)
    objective = {
        "mixture": lambda: tw.objectives.mixture(loss, lam=0.5),
        "residual": lambda: tw.objectives.residual(loss, shared=[0, 1], private=[2]),
        "weight_sharing": lambda: tw.objectives.weight_sharing(loss, 2),
        "multitask": lambda: tw.objectives.multitask(loss, lam=0.5),
        "traditional": lambda: tw.objectives.traditional(loss),
        "adaptive": lambda: tw.objectives.adaptive(loss, alpha=0.5),
        "blended": lambda: tw.objectives.blended(loss),
        "maml": lambda: tw.objectives.maml(loss, alpha=0.1),
        "flix": lambda: tw.objectives.flix(loss, alpha=0.5),
    }[kind]()
    return tw.Problem(objective, tw.Clients.from_list(made.clients, names=NAMES), sampling="uniform")


@functools.cache
def identities() -> dict[str, Identity]:
    return {name: Identity.new() for name in NAMES}


def study(
    algorithm: Any = "lsgd",
    kind: str = "mixture",
    rounds: int = 5,
    keys: bool = False,
    salt: bool = False,
    **sections: Any,
) -> Study:
    method = tw.algorithms.REGISTRY[algorithm]() if isinstance(algorithm, str) else algorithm
    listed = {name: who.public.line for name, who in identities().items()} if keys else {}
    sections = {"masks": {"on": False}, "tell": {"salt": salt}, "round": {"record": 1}} | sections
    return Study.of(problem(kind), method, rounds=rounds, seed=3, keys=listed, **sections)


def node(agreed: Study, name: str, folder: Path, kind: str = "mixture", **options: Any) -> Node:
    mine = problem(kind).clients[name]
    who = identities()[name] if agreed.keys else None
    options.setdefault("tells", TELLS)
    return Node(Seat(agreed, name, mine.x, mine.y), folder / name, identity=who, **options)


class Small:
    """A coordinator and its four nodes."""

    def __init__(self, agreed: Study, folder: Path, fault: Any = None, kind: str = "mixture", **options: Any) -> None:
        self.study, self.folder, self.kind, self.options = agreed, folder, kind, options
        self.grid = InProcess([self.node(name) for name in agreed.names], fault)

    def node(self, name: str) -> Node:
        return node(self.study, name, self.folder, self.kind, **self.options)

    def restart(self, name: str) -> None:
        """As after kill -9: nothing is left but the folder."""
        place = next(n for n, old in self.grid.all.items() if old.name == name)
        self.grid.all[place] = self.node(name)
        self.grid.marks[place] += "+"

    def coordinator(self, **options: Any) -> Coordinator:
        self.server = Coordinator(self.study, self.grid, self.folder / "server", **{"patience": QUICK} | options)
        return self.server

    def run(self, **options: Any) -> Result:
        return self.coordinator(**options).run()

    def beta(self) -> np.ndarray:
        found = {who.name: who.model()[1] for who in self.grid.all.values()}
        return jax.tree.map(lambda *leaves: np.stack(leaves), *(found[name] for name in self.study.names))


def by_hand(agreed: Study, method: Any, kind: str, absent: dict[int, set[int]], kept: bool) -> tuple[Any, Any]:
    """w and β of a run in which some messages are lost: the mean of those present, or with everyone's last one kept."""
    whole, method = problem(kind), jax.tree.map(jnp.asarray, method)
    w, betas = started(whole)
    sides = [ClientSide(method, whole, m, agreed.seed, w, betas[m]) for m in range(whole.M)]
    server = ServerSide(method, agreed.seed, w, whole.clients.weights)
    common, weights = randomness.common(randomness.root(agreed.seed)), np.asarray(whole.clients.weights)
    last: dict[tuple[int, str], np.ndarray] = {}
    r = k = 0
    while r < agreed.rounds:
        packets = [side.send(k) for side in sides]
        flags = [bool(flag) for flag in method.sends(method.plan(common, jnp.int32(k)))]
        names = [i for i, flag in enumerate(flags) if flag for _ in jax.tree.leaves(sides[0].shape[i])]
        mean = []
        if any(flags):
            r += 1
            here = [m for m in range(whole.M) if m not in absent.get(r, ())]
            for place, part in enumerate(names):
                for m in here:
                    last[m, part] = packets[m][place]
                some = range(whole.M) if kept else here
                share = 1.0 if kept else weights[here].sum()
                zero = np.zeros_like(packets[0][place])
                mean.append(sum(weights[m] / share * last.get((m, part), zero) for m in some))
        shape = sides[0].shape
        server.finish(k, mean, shape)
        for side in sides:
            side.receive(mean, shape)
        k += 1
    beta = np.stack([np.asarray(side.personal()) for side in sides])
    return np.asarray(whole.scale * server.model()), beta


def account(agreed: Study, method: Any) -> Account:
    from twofold.engines.schedule import footprint

    contract = {"rows": [9] * 4, "told": [0] * 4, "epsilon": [0] * 4}
    return Account(agreed, method, footprint(method, agreed.stand_in).parts, contract)
