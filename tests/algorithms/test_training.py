"""Every method with a learning rate, step by step, beside a loop in plain NumPy that is written from the papers.

The net has one hidden layer of tanh and a softmax; its gradient is worked out by hand. A loop shares with twofold only the order
of the rows in each batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from twofold import randomness
from twofold.algorithms import LSGD, PerFedAvg, Scaffold
from twofold.engines import messages
from twofold.solver.participation import Attendance

COUNTS, BATCH, ROUNDS, SEED = (7, 4, 11), 3, 3, 5
INPUTS, HIDDEN, CLASSES, RIDGE = 4, 5, 3, 0.01
APART = 1 << 30
"""FedRep's head and Ditto's personal model have batches of their own: those of this number of the round's key."""

Model = dict[str, Any]  # "hidden" and "out"


def begin(key: jax.Array, x: jax.Array) -> tuple[Any, Any]:
    one, two = jax.random.split(key)
    return {"hidden": jax.random.normal(one, (INPUTS, HIDDEN)), "out": jax.random.normal(two, (HIDDEN, CLASSES))}, ()


def apply(params: Any, state: Any, x: jax.Array, key: Any, train: bool) -> tuple[jax.Array, Any]:
    return jnp.tanh(x @ params["hidden"]) @ params["out"], state


LOSS = tw.losses.net((begin, apply), l2=RIDGE)
OBJECTIVES = {
    "alone": lambda: tw.objectives.local(LOSS),
    "traditional": lambda: tw.objectives.traditional(LOSS),
    "body": lambda: tw.objectives.weight_sharing(LOSS, split="hidden"),
    "head": lambda: tw.objectives.weight_sharing(LOSS, split="out"),
    "mixture": lambda: tw.objectives.mixture(LOSS, lam=0.7),
    "blended": lambda: tw.objectives.blended(LOSS, alpha=0.3),
    "maml": lambda: tw.objectives.maml(LOSS, alpha=0.2),
}
KEPT: dict[str, tw.Problem] = {}


def problem(kind: str) -> tw.Problem:
    """Three unequal clients that count by their rows."""
    if kind not in KEPT:
        rng = np.random.default_rng(0)
        rows = [(rng.normal(size=(n, INPUTS)), np.r_[:CLASSES, rng.integers(0, CLASSES, n - CLASSES)]) for n in COUNTS]
        KEPT[kind] = tw.Problem(OBJECTIVES[kind](), tw.Clients.from_list(rows, weights="rows"))
    return KEPT[kind]


# --- the net by hand, and the batches ---------------------------------------------------------------------------------


def slope(v: Model, x: np.ndarray, y: np.ndarray) -> Model:
    """∇f'(v) of the mean cross-entropy over some rows, plus the ridge."""
    h = np.tanh(x @ v["hidden"])
    scores = h @ v["out"]
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    into = x.T @ (p @ v["out"].T * (1 - h**2))
    return {"hidden": into + RIDGE * v["hidden"], "out": h.T @ p + RIDGE * v["out"]}


def plus(v: Model, *terms: tuple[float, Model]) -> Model:
    return {name: v[name] + sum(a * other[name] for a, other in terms) for name in v}


def minus(v: Model, other: Model) -> Model:
    return plus(v, (-1.0, other))


class Round:
    """One client's rows in one round."""

    def __init__(self, m: int, k: int) -> None:
        data = problem("traditional").clients[m]
        self.m, self.k, self.x, self.y = m, k, np.asarray(data.x), np.asarray(data.y)
        self.key = randomness.of(randomness.private(randomness.root(SEED), m), k)

    def batches(self, passes: int = 1, size: int = BATCH, *, apart: bool = False, drop: bool = False) -> list[Any]:
        """Every batch of so many reshuffled passes, as pairs (x, y); the last of a pass may be shorter, or dropped."""
        key, found = randomness.at(self.key, APART) if apart else self.key, []
        for e in range(passes):
            order = np.asarray(randomness.shuffle(randomness.at(key, e), len(self.y), len(self.y)))
            cut = [order[i : i + size] for i in range(0, len(order), size)]
            whole = [part for part in cut if len(part) == size] if drop else cut
            found += [(self.x[part], self.y[part]) for part in whole or cut]
        return found

    def draws(self, steps: int, size: int) -> list[Any]:
        """So many batches drawn with replacement."""
        rows = [np.asarray(randomness.rows(randomness.at(self.key, i), len(self.y), size)) for i in range(steps)]
        return [(self.x[part], self.y[part]) for part in rows]


Local = Callable[[Round, Any, Any], tuple[Any, Any]]
"""What a client does in a round: from w and what is its own to w_m and what is its own."""


def of_client(stacked: Any, m: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[m]), stacked)


def go_through(kind: str, local: Local, own: Callable[[Any], Any] = lambda beta: beta) -> tuple[Any, list[Any]]:
    """Three rounds: every client from the same w, then w = Σ p_m w_m."""
    w, beta = problem(kind).starts([SEED])[0]
    w, mine = jax.tree.map(np.asarray, w), [own(of_client(beta, m)) for m in range(len(COUNTS))]
    shares = np.array(COUNTS) / sum(COUNTS)
    for k in range(ROUNDS):
        found = [local(Round(m, k), w, mine[m]) for m in range(len(COUNTS))]
        mine = [each for _, each in found]
        w = jax.tree.map(lambda *leaves: np.tensordot(shares, np.stack(leaves), axes=1), *(w_m for w_m, _ in found))
    return w, mine


def both(w: Model, beta: Model) -> Model:
    return {**w, **beta}


def parts(gradient: Model, w: Model, beta: Model) -> tuple[Model, Model]:
    return {name: gradient[name] for name in w}, {name: gradient[name] for name in beta}


# --- steps, plain and of optimisers ------------------------------------------------------------------------------------


Steps = Callable[[Model, dict[str, Any]], Model]
"""What a step adds to a model, from its gradient and a memory."""


def sgd(rate: float) -> Steps:
    """−rate·g."""
    return lambda gradient, memory: {name: -rate * leaf for name, leaf in gradient.items()}


def momentum(gradient: Model, memory: dict[str, Any]) -> Model:
    """Heavy ball: t = g + 0.9t, and a step of −0.1·t."""
    memory["t"] = plus(gradient, (0.9, memory["t"])) if "t" in memory else gradient
    return {name: -0.1 * leaf for name, leaf in memory["t"].items()}


def adam(gradient: Model, memory: dict[str, Any]) -> Model:
    """Kingma & Ba 2015, Algorithm 1, with a rate of 0.05."""
    zero = {name: np.zeros_like(leaf) for name, leaf in gradient.items()}
    t = memory["t"] = memory.get("t", 0) + 1
    m = memory["m"] = {n: 0.9 * memory.get("m", zero)[n] + 0.1 * g for n, g in gradient.items()}
    v = memory["v"] = {n: 0.999 * memory.get("v", zero)[n] + 0.001 * g**2 for n, g in gradient.items()}
    return {n: -0.05 * (m[n] / (1 - 0.9**t)) / (np.sqrt(v[n] / (1 - 0.999**t)) + 1e-8) for n in gradient}


SLOW, MIDDLE, QUICK = sgd(0.15), sgd(0.4), sgd(0.9)


def halved(update: Steps) -> Steps:
    """Half of what another step adds."""
    return lambda gradient, memory: {name: 0.5 * leaf for name, leaf in update(gradient, memory).items()}


def with_memory(kind: str, local: Callable[..., tuple[Model, Any]], keep: bool) -> tuple[Any, list[Any]]:
    """A loop whose clients have a memory for each of two blocks, which goes on or begins anew in every round."""

    def one(r: Round, w: Model, own: Any) -> tuple[Model, Any]:
        mine, memories = own
        memories = memories if keep else ({}, {})
        w, mine = local(r, w, mine, *memories)
        return w, (mine, memories)

    w, own = go_through(kind, one, own=lambda beta: (beta, ({}, {})))
    return w, [mine for mine, _ in own]


# --- the methods, from the papers -------------------------------------------------------------------------------------


def fedavg(
    lr: Callable[[int], float] = lambda k: 0.4, take: Callable[[Round], list[Any]] = lambda r: r.batches()
) -> Any:
    """McMahan et al. 2017, Algorithm 1: local SGD, then the mean by numbers of rows."""

    def local(r: Round, w: Model, own: Any) -> tuple[Model, Any]:
        for batch in take(r):
            w = plus(w, (-lr(r.k), slope(w, *batch)))
        return w, own

    return go_through("traditional", local)


def fedprox() -> Any:
    """Li et al. 2020: local SGD on f' + (ρ/2)‖w − w^t‖²."""

    def local(r: Round, w: Model, own: Any) -> tuple[Model, Any]:
        sent = w
        for batch in r.batches(2):
            w = plus(w, (-0.4, slope(w, *batch)), (-0.4 * 0.3, minus(w, sent)))
        return w, own

    return go_through("traditional", local)


def descend(v: Model, batches: list[Any], lr: float) -> Model:
    """Plain SGD."""
    for batch in batches:
        v = plus(v, (-lr, slope(v, *batch)))
    return v


def alone() -> Any:
    """Everyone's own SGD; nothing is averaged."""

    def local(r: Round, w: Any, own: Model) -> tuple[Any, Model]:
        return w, descend(own, r.batches(), 0.4)

    return go_through("alone", local)


def tuned(models: list[Model]) -> Any:
    """Two more passes of everyone alone, with the batches of a first round; there is no w any more."""
    return (), [descend(own, Round(m, 0).batches(2), 0.3) for m, own in enumerate(models)]


def finetuned() -> Any:
    """FedAvg, then everyone alone."""
    w, _ = fedavg()
    return tuned([w] * len(COUNTS))


def fedbabu() -> Any:
    """Oh et al. 2022: the head stays as it began; then everyone trains its whole net."""
    w, heads = shared_in_part("body", 0.0)
    return tuned([both(w, head) for head in heads])


def shared_in_part(kind: str, lr_beta: float = 0.15) -> Any:
    """FedPer (Arivazhagan et al. 2019), LG-FedAvg (Liang et al. 2020), FedBN (Li et al. 2021): SGD on all, one part is averaged."""

    def local(r: Round, w: Model, beta: Model) -> tuple[Model, Model]:
        for batch in r.batches():
            of_w, of_beta = parts(slope(both(w, beta), *batch), w, beta)
            w, beta = plus(w, (-0.4, of_w)), plus(beta, (-lr_beta, of_beta))
        return w, beta

    return go_through(kind, local)


def pfedme() -> Any:
    """Dinh et al. 2020, Algorithm 1: on each batch three steps on f(θ) + (λ/2)‖θ − w‖², from the last θ; then w −= ηλ(w − θ)."""

    def local(r: Round, w: Model, theta: Model) -> tuple[Model, Model]:
        for batch in r.batches(2):
            for _ in range(3):
                theta = plus(theta, (-0.2, slope(theta, *batch)), (-0.2 * 0.7, minus(theta, w)))
            w = plus(w, (-0.5 * 0.7, minus(w, theta)))
        return w, theta

    return go_through("mixture", local)


def fedrep(of_w: Steps = MIDDLE, of_head: Steps = SLOW, keep: bool = False) -> Any:
    """Collins et al. 2021, Algorithm 1: the head for some passes, then the body with that head."""

    def local(r: Round, w: Model, beta: Model, for_w: Any, for_head: Any) -> tuple[Model, Model]:
        for batch in r.batches(2, apart=True):
            beta = plus(beta, (1.0, of_head(parts(slope(both(w, beta), *batch), w, beta)[1], for_head)))
        for batch in r.batches():
            w = plus(w, (1.0, of_w(parts(slope(both(w, beta), *batch), w, beta)[0], for_w)))
        return w, beta

    return with_memory("body", local, keep)


def ditto(of_w: Steps = MIDDLE, of_own: Steps = SLOW, keep: bool = False) -> Any:
    """Li et al. 2021, Algorithm 1: v_k −= η(∇F_k(v_k) + λ(v_k − w^t)), beside FedAvg from w^t."""

    def local(r: Round, w: Model, v: Model, for_w: Any, for_own: Any) -> tuple[Model, Model]:
        sent = w
        for batch in r.batches(2, apart=True):
            v = plus(v, (1.0, of_own(plus(slope(v, *batch), (0.6, minus(v, sent))), for_own)))
        for batch in r.batches():
            w = plus(w, (1.0, of_w(slope(w, *batch), for_w)))
        return w, v

    return with_memory("mixture", local, keep)


def apfl(of_w: Steps = MIDDLE, of_own: Steps = QUICK, of_a: float = 0.9, keep: bool = False) -> Any:
    """Deng et al. 2020, Algorithm 1, with a = 1 − α for the weight of the own model; a moves with the first batch of a round."""

    def local(r: Round, w: Model, own: Any, for_w: Any, for_own: Any) -> tuple[Model, Any]:
        v, a = own["model"], 1 - own["alpha"]
        for i, batch in enumerate(r.batches(2)):
            mixed = plus({name: a * v[name] for name in v}, (1 - a, w))
            of_mixed = slope(mixed, *batch)
            if i == 0:
                apart = minus(v, w)
                new = a - of_a * sum(np.sum(of_mixed[name] * apart[name]) for name in v)
            own_slope = {name: a * leaf for name, leaf in of_mixed.items()}
            w, v = plus(w, (1.0, of_w(slope(w, *batch), for_w))), plus(v, (1.0, of_own(own_slope, for_own)))
            if i == 0:
                a = min(max(new, 0.0), 1.0)
        return w, {"model": v, "alpha": 1 - a}

    return with_memory("blended", local, keep)


def perfedavg(hessian: str) -> Any:
    """Fallah et al. 2020, Algorithm 1 with the approximations (FO) and (HF): w −= β·g, g at w − α∇f(w; D) on rows D'."""
    alpha, delta, lr, size = 0.2, 1e-2, 0.4, 2

    def local(r: Round, w: Model, own: Any) -> tuple[Model, Any]:
        for x, y in r.batches(2, 2 * size, drop=True):
            inner, outer = (x[:size], y[:size]), (x[size:], y[size:])
            g = slope(plus(w, (-alpha, slope(w, *inner))), *outer)
            if hessian == "free":
                ahead, behind = (slope(plus(w, (sign * delta, g)), *inner) for sign in (1, -1))
                g = plus(g, (-alpha / (2 * delta), minus(ahead, behind)))
            w = plus(w, (-lr, g))
        return w, own

    return go_through("maml", local)


def scaffold(present: Any = None, factors: Any = None) -> tuple[Model, list[Model], Model]:
    """Karimireddy et al. 2020, Algorithm 1, option II; with p_m for 1/N. Also gives all c_i and c."""
    start = jax.tree.map(np.asarray, problem("traditional").starts([SEED])[0][0])
    everyone, shares = range(len(COUNTS)), np.array(COUNTS) / sum(COUNTS)
    present = np.ones((ROUNDS, len(COUNTS)), bool) if present is None else present
    factors = np.ones((ROUNDS, len(COUNTS))) if factors is None else factors
    x, c = start, minus(start, start)
    c_i = [c for _ in everyone]
    for k in range(ROUNDS):
        moves, changes = [], []
        for m in np.flatnonzero(present[k]):
            y, taken = x, Round(m, k).batches(2)
            for batch in taken:
                y = plus(y, (-0.4, slope(y, *batch)), (0.4, c_i[m]), (-0.4, c))
            new = plus(c_i[m], (-1.0, c), (1 / (0.4 * len(taken)), minus(x, y)))
            moves.append((shares[m] * factors[k, m], minus(y, x)))
            changes.append((shares[m], minus(new, c_i[m])))  # c stays the mean of the c_i: without factors
            c_i[m] = new
        x, c = plus(x, *moves), plus(c, *changes)
    return x, c_i, c


def optimised_by(update: Steps, keep: bool) -> Any:
    """FedPer whose steps are an optimiser's."""

    def local(r: Round, w: Model, beta: Model, for_w: Any, for_beta: Any) -> tuple[Model, Model]:
        for batch in r.batches():
            of_w, of_beta = parts(slope(both(w, beta), *batch), w, beta)
            w, beta = plus(w, (1.0, update(of_w, for_w))), plus(beta, (1.0, halved(update)(of_beta, for_beta)))
        return w, beta

    return with_memory("body", local, keep)


# --- both beside each other -------------------------------------------------------------------------------------------


class Case(NamedTuple):
    kind: str
    method: Any
    by_hand: Callable[[], Any]


def optimised(optimizer: Any, update: Any, keep: bool) -> Case:
    method = LSGD(lr=1.0, lr_beta=0.5, optimizer=optimizer, keep=keep, batch=BATCH, epochs=1)
    return Case("body", method, lambda: optimised_by(update, keep))


def of(name: str, by_hand: Callable[[], Any], **settings: Any) -> Case:
    """A method of `tw.methods`, and the loop that it must equal."""
    method = tw.methods.REGISTRY[name](LOSS, **{"lr": 0.4, "batch": BATCH, **settings})
    return Case("", method, by_hand)


NAMED = {
    "local": of("local", alone),
    "fedavg": of("fedavg", fedavg),
    "finetuned": of("finetuned", finetuned, finetune_epochs=2, finetune_lr=0.3),
    "fedprox": of("fedprox", fedprox, prox=0.3, epochs=2),
    "scaffold": of("scaffold", scaffold, epochs=2),
    "fedper": of("fedper", lambda: shared_in_part("body"), head="out", lr_beta=0.15),
    "lg_fedavg": of("lg_fedavg", lambda: shared_in_part("head"), head="out", lr_beta=0.15),
    "fedrep": of("fedrep", fedrep, head="out", lr_beta=0.15, head_epochs=2),
    "fedbn": of("fedbn", lambda: shared_in_part("body", 0.4), norms="out"),
    "fedbabu": of("fedbabu", fedbabu, head="out", finetune_epochs=2, finetune_lr=0.3),
    "ditto": of("ditto", ditto, lam=0.6, lr_beta=0.15, own_epochs=2),
    "apfl": of("apfl", apfl, alpha=0.3, lr_beta=0.9, epochs=2),
    "pfedme": of("pfedme", pfedme, lam=0.7, lr=0.5, inner_lr=0.2, inner_steps=3, epochs=2),
    "per_fedavg": of("per_fedavg", lambda: perfedavg("none"), alpha=0.2, batch=2, epochs=2),
}
HEAVY: dict[str, Any] = {"lr": 1.0, "lr_beta": 0.5, "optimizer": optax.sgd(0.1, momentum=0.9)}
CASES = {
    **NAMED,
    "fedavg drawn": Case("traditional", LSGD(lr=0.4, batch=2, tau=4), lambda: fedavg(take=lambda r: r.draws(4, 2))),
    "fedavg whole": Case("traditional", LSGD(lr=0.4, batch=None, tau=2), lambda: fedavg(take=lambda r: 2 * [(r.x, r.y)])),
    "fedavg by round": Case(
        "traditional", LSGD(lr=lambda k: 0.6 / (1 + k), batch=BATCH, epochs=1), lambda: fedavg(lambda k: 0.6 / (1 + k))
    ),
    "fedavg drop_last": Case(
        "traditional", LSGD(lr=0.4, batch=5, epochs=2, drop_last=True), lambda: fedavg(take=lambda r: r.batches(2, 5, drop=True))
    ),
    "per_fedavg free": Case(
        "maml", PerFedAvg(lr=0.4, alpha=0.2, batch=2, epochs=2, hessian="free", delta=1e-2), lambda: perfedavg("free")
    ),
    "momentum kept": optimised(optax.sgd(0.1, momentum=0.9), momentum, keep=True),
    "momentum reset": optimised(optax.sgd(0.1, momentum=0.9), momentum, keep=False),
    "adam kept": optimised(optax.adam(0.05), adam, keep=True),
    "adam reset": optimised(optax.adam(0.05), adam, keep=False),
    "apfl momentum": of(
        "apfl", lambda: apfl(momentum, halved(momentum), 0.7, keep=True), alpha=0.3, epochs=2, lr_alpha=0.7, **HEAVY, keep=True
    ),
    "fedrep momentum": of(
        "fedrep", lambda: fedrep(momentum, halved(momentum), keep=True), head="out", head_epochs=2, **HEAVY, keep=True
    ),
    "ditto momentum": of("ditto", lambda: ditto(momentum, halved(momentum)), lam=0.6, own_epochs=2, **HEAVY),
}  # fmt: skip
OWN_RATE = [name for name in NAMED if name not in ("scaffold", "pfedme")]
"""The methods that take an optimizer, whose own rate must then decide."""
EXPECTED: dict[str, Any] = {}


def expected(name: str) -> Any:
    if name not in EXPECTED:
        EXPECTED[name] = CASES[name].by_hand()
    return EXPECTED[name]


def assert_as_by_hand(found: tw.Result, w: Any, own: list[Any] | None) -> None:
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=0, atol=1e-10), found.w, w)
    for m, each in enumerate(own or ()):
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=0, atol=1e-10), of_client(found.beta, m), each)


def moved(end: Any, start: Any) -> bool:
    """Whether every array has moved, but for single numbers."""
    pairs = zip(jax.tree.leaves(end), jax.tree.leaves(start), strict=True)
    return all(np.abs(a - b).max() > 1e-2 for a, b in pairs if np.ndim(a))


def counted(happened: Any, ledger: Any) -> None:
    """The ledger says what the messages and the oracles of all clients really counted."""
    assert happened.rounds == ledger.rounds
    assert_array_equal(happened.floats, np.broadcast_to(ledger.floats_up, happened.floats.shape))
    real = np.array([client.evaluated for client in happened.clients])
    assert_array_equal(real, np.stack([ledger.gradients_w, ledger.gradients_beta], axis=1))
    assert real.sum(axis=1).min() > 0


@pytest.mark.parametrize("engine", ["simulate", "messages"])
@pytest.mark.parametrize("name", CASES)
def test_every_method_is_its_paper(name: str, engine: str, built: list[messages.Messages]):
    kind, method, _ = CASES[name]
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": SEED, "record": (), "engine": engine}
    if isinstance(method, tw.methods.Method):
        found = method.fit(problem("traditional").clients, **options)
    else:
        found = tw.solve(problem(kind), method, **options)
    w, own = expected(name)[:2]
    w0, beta0 = found.problem.starts([SEED])[0]
    assert moved(w, w0)
    if not found.problem.has_private:
        own = None
    else:
        assert all(moved(own[m], of_client(beta0, m)) for m in range(len(COUNTS)))
    assert_as_by_hand(found, w, own)
    if engine == "messages" and getattr(method, "after", None) is None:  # the ledger of two runs is their sum
        counted(built[-1].runs[0], found.ledger)


@pytest.mark.parametrize("name", OWN_RATE)
def test_the_rate_of_an_optimizer_is_the_rate_of_the_steps(name: str):
    """SGD at 0.4 in optax is SGD at 0.4: no other rate comes on top of it."""
    settings = {"head": "out"} if name in ("fedper", "lg_fedavg", "fedrep", "fedbabu") else {}
    settings |= {"norms": "out"} if name == "fedbn" else {}
    plain, optimised = (
        tw.methods.REGISTRY[name](LOSS, batch=BATCH, **settings, **rate).fit(
            problem("traditional").clients, 2, record=()
        )
        for rate in ({"lr": 0.4}, {"optimizer": optax.sgd(0.4), **({"lr_alpha": 0.4} if name == "apfl" else {})})
    )
    start = jax.tree.leaves(plain.problem.starts([0])[0])
    assert max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves((plain.w, plain.beta)), start, strict=True)) > 1e-2
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-12), (plain.w, plain.beta), (optimised.w, optimised.beta))


@pytest.mark.parametrize("weights", [optax.adamw(1.0, weight_decay=1.0), optax.chain(optax.clip(1e-9), optax.sgd(1.0))])
def test_no_optimizer_touches_the_share_of_apfl(weights: Any):
    """Weight decay would draw α to zero, and clipping would stop it; with the same models its step is the plain one."""
    clients, settings = problem("traditional").clients, {"lr_alpha": 0.05, "batch": None}
    apart = tw.methods.apfl(LOSS, lr=0.4, **settings).fit(
        clients, 1, record=()
    )  # w and v begin as the same, where α has no slope
    plain = tw.methods.apfl(LOSS, lr=0.0, **settings).fit(clients, 1, start=(apart.w, apart.beta), record=())
    found = tw.methods.apfl(LOSS, optimizer=weights, **settings).fit(clients, 1, start=(apart.w, apart.beta), record=())
    assert np.abs(plain.beta["alpha"] - apart.beta["alpha"]).min() > 1e-4
    assert_allclose(found.beta["alpha"], plain.beta["alpha"], atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "blamed"),
    [
        ({"lr": 1e9}, ": your lr = 1e\\+09 is too large, most likely: try a tenth of it"),
        ({"lr": lambda k: 1e9 + k}, "your lr = 1e\\+09 in round 0 is too large"),
        ({"optimizer": optax.sgd(1e9)}, ": the rate of your optimizer is too large"),
        ({"lr": 2.0, "optimizer": optax.sgd(1e9)}, "the rate of your optimizer or your lr = 2 is too large"),
    ],
)
def test_who_diverges_is_told_that_it_was_the_rate(settings: Any, blamed: str, monkeypatch: pytest.MonkeyPatch):
    clients = problem("traditional").clients
    monkeypatch.setattr(tw.Problem, "constants", lambda *_, **__: pytest.fail("constants of a net, for a message"))
    found = tw.methods.fedavg(LOSS, batch=BATCH, **settings).fit(clients, 5)
    assert found.status == "diverged" and re.search(blamed, found.message)


def test_pfedme_of_a_net_that_diverges_names_its_rates(monkeypatch: pytest.MonkeyPatch):
    clients = problem("traditional").clients
    monkeypatch.setattr(tw.Problem, "constants", lambda *_, **__: pytest.fail("constants of a net, for a message"))
    found = tw.methods.pfedme(LOSS, lr=0.1, inner_lr=1e9, batch=BATCH).fit(clients, 5)
    assert found.status == "diverged" and "eta = 0.1 or inner_eta = 1e+09 is too large" in found.message


def test_no_method_of_the_list_is_without_a_loop_of_its_own():
    assert NAMED.keys() == tw.methods.REGISTRY.keys()


# --- the course of what is fine-tuned at the end ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["finetuned", "fedbabu"])
def test_fine_tuning_goes_on_where_the_rounds_ended(name: str):
    method, told = NAMED[name].method, list[Any]()
    train = problem("traditional").clients
    test = tw.Clients.from_list([(train[m].x[::2], train[m].y[::2]) for m in range(train.M)])
    rounds = tw.solve(method.problem(train), method.algorithm, rounds=4, test=test)
    found = method.fit(train, 4, test=test, callbacks=told.append)
    assert found.history["round"].tolist() == [0, 1, 2, 3, 4, 4] and found.ledger.rounds == 4
    assert found.history["iteration"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.history["stage"].tolist() == [1, 1, 1, 1, 1, 2]
    for column in ("loss", "test_accuracy", "gradients_w", "gradients_beta", "bytes"):
        assert_array_equal(found.history[column][:-1], rounds.history[column])
        assert_array_equal([record[column] for record in told], found.history[column])
    assert found.history["gradients_beta"][-1] > rounds.history["gradients_beta"][-1]
    assert np.all(np.diff(found.history["seconds"]) >= 0)
    pooled = np.average(tw.evaluate(found.problem, found, test).personal, weights=test.counts)
    assert_allclose(found.history["test_accuracy"][-1], pooled)
    assert found.best.value == found.history["test_accuracy"].max()
    assert found.best.round == found.history["round"][int(np.argmax(found.history["test_accuracy"]))]
    best = np.average(tw.evaluate(found.problem, found.at_best(), test).personal, weights=test.counts)
    assert_allclose(best, found.best.value)


def test_a_best_round_before_fine_tuning_stays_the_best():
    """The test labels are what the shared model of round 2 says: nobody can do better later."""
    train = problem("traditional").clients
    method = tw.methods.finetuned(LOSS, lr=0.3, batch=BATCH)
    right = tw.solve(method.problem(train), method.algorithm, rounds=2).w
    test = tw.Clients.from_list([(one.x, LOSS.predictions(right, one.x)) for one in train])
    found = method.fit(train, 4, test=test)
    assert found.history["test_accuracy"][-1] < 1 == found.best.value and found.best.round == 2
    assert tw.evaluate(found.problem, found.at_best(), test).personal.tolist() == [1.0] * train.M


def test_how_the_rounds_ended_is_how_a_fine_tuned_run_ended(tmp_path: Path):
    train = problem("traditional").clients
    with tw.track.CSV(tmp_path / "run.csv") as log:
        found = tw.methods.finetuned(LOSS, lr=0.0, finetune_lr=0.1).fit(
            train, 9, validation=train, patience=2, callbacks=log
        )
    assert found.status == "converged" and "validation_accuracy has not improved for 2 records" in found.message
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 1 + len(found.history["round"]) == 5
    wild = tw.methods.finetuned(LOSS, lr=1e9, batch=BATCH).fit(train, 5)
    assert wild.status == "diverged" and wild.message.endswith("there was no fine-tuning")


# --- who takes part ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [2, (0.9, 0.5, 0.7)])
def test_scaffolds_control_variate_stays_the_mean_of_everyones(who: Any, built: list[messages.Messages]):
    """Means are divided by the chance to take part; if c were, too, it would be no mean, and the run would end elsewhere."""
    whole, method = problem("traditional"), NAMED["scaffold"].method.algorithm
    chosen = Attendance(who, method, whole, [SEED])
    present, factors = chosen.present(0, ROUNDS)[:, 0], chosen.factors(0, ROUNDS)[:, 0]
    assert not present.all() and present.any(axis=1).all()
    x, c_i, c = scaffold(present, factors)
    mean = plus(minus(c, c), *zip(whole.clients.weights, c_i, strict=True))
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-14), c, mean)
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": SEED, "record": (), "participation": who}
    assert_as_by_hand(tw.solve(whole, method, **options), x, None)
    found = tw.solve(whole, method, engine="messages", **options)
    assert_as_by_hand(found, x, None)
    happened = built[-1].runs[0]
    counted(happened, found.ledger)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-10), happened.server.shared.control, c)


def test_scaffold_with_absent_clients_ends_at_the_optimum():
    rng = np.random.default_rng(1)
    clients = tw.Clients.from_list([(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in (5, 8, 6)], weights="rows")
    whole = tw.Problem(tw.objectives.traditional(tw.losses.squared(l2=0.1)), clients)
    method = Scaffold(lr=0.05, batch=None, tau=3, epochs=None)
    found = tw.solve(whole, method, rounds=1500, record=(), participation=(0.9, 0.5, 0.7))
    assert_allclose(found.w, whole.optimum().w, atol=1e-8)


def test_scaffold_must_know_how_probably_clients_take_part():
    with pytest.raises(tw.TwofoldError, match="scaffold needs to know how probably each client takes part"):
        tw.solve(problem("traditional"), Scaffold(lr=0.1), rounds=1, participation=lambda k: [0])


def test_ditto_with_absent_clients_is_the_same_in_both_engines(built: list[messages.Messages]):
    whole, method = problem("mixture"), NAMED["ditto"].method.algorithm
    table = [[0, 1], [1], [2, 0]]
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": SEED, "record": (), "participation": lambda k: table[k]}
    expected, found = (tw.solve(whole, method, engine=engine, **options) for engine in ("simulate", "messages"))
    assert_as_by_hand(found, expected.w, [of_client(expected.beta, m) for m in range(len(COUNTS))])
    assert_array_equal(found.ledger.gradients_w, np.array(COUNTS) * [2, 2, 1])
    assert_array_equal(found.ledger.gradients_beta, 2 * np.array(COUNTS) * [2, 2, 1])
    counted(built[-1].runs[0], found.ledger)


def test_clients_that_take_turns_have_the_same_course():
    kind, method, _ = CASES["momentum kept"]
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": SEED, "record": (), "engine": "streamed"}
    found = tw.solve(problem(kind), method, chunk=2, state="host", **options)
    assert_as_by_hand(found, *expected("momentum kept"))


# --- a checkpoint in the middle ---------------------------------------------------------------------------------------


def noisy_begin(key: jax.Array, x: jax.Array) -> tuple[Any, Any]:
    return begin(key, x)[0], {"mean": jnp.zeros(HIDDEN), "var": jnp.ones(HIDDEN)}


def noisy(params: Any, state: Any, x: jax.Array, key: Any, train: bool) -> tuple[jax.Array, Any]:
    """BatchNorm and dropout on the hidden layer."""
    h = x @ params["hidden"]
    if train:
        new = {"mean": 0.9 * state["mean"] + 0.1 * h.mean(axis=0), "var": 0.9 * state["var"] + 0.1 * h.var(axis=0)}
        h = (h - h.mean(axis=0)[None]) / jnp.sqrt(h.var(axis=0) + 1e-5)[None]
        h = jnp.where(jax.random.bernoulli(key, 0.8, h.shape), h / 0.8, 0.0)
        return jnp.tanh(h) @ params["out"], new
    return jnp.tanh((h - state["mean"][None]) / jnp.sqrt(state["var"] + 1e-5)[None]) @ params["out"], state


class NoisyNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden, self.out = nnx.Linear(INPUTS, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, CLASSES, rngs=rngs)
        self.norm, self.drop = nnx.BatchNorm(HIDDEN, momentum=0.9, rngs=rngs), nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(jnp.tanh(self.drop(self.norm(self.hidden(x)))))


class NoisyEqx(eqx.Module):
    hidden: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        one, two = jax.random.split(key)
        self.hidden, self.out = eqx.nn.Linear(INPUTS, HIDDEN, key=one), eqx.nn.Linear(HIDDEN, CLASSES, key=two)
        self.norm, self.drop = eqx.nn.BatchNorm(HIDDEN, axis_name="batch", mode="batch"), eqx.nn.Dropout(0.2)

    def __call__(self, x: Any, state: Any, key: Any = None) -> Any:
        h, state = self.norm(self.hidden(x), state)
        return self.out(jnp.tanh(self.drop(h, key=key))), state


NOISY: dict[str, Any] = {
    "functions": (noisy_begin, noisy),
    "nnx": NoisyNnx,
    "equinox": eqx.nn.make_with_state(NoisyEqx)(jax.random.key(0)),
}


@pytest.mark.parametrize(("engine", "who"), [("simulate", {}), ("messages", {}), ("simulate", {"participation": 2})])
@pytest.mark.parametrize("kind", NOISY)
def test_state_dropout_and_optimiser_survive_a_checkpoint(kind: str, engine: str, who: dict[str, Any], tmp_path: Path):
    objective = tw.objectives.weight_sharing(tw.losses.net(NOISY[kind]), split="hidden")
    whole = tw.Problem(objective, problem("traditional").clients)
    method = LSGD(optimizer=optax.adam(0.05), keep=True, batch=BATCH, epochs=1)
    options: dict[str, Any] = {"seed": SEED, "engine": engine, **who}
    once = tw.solve(whole, method, rounds=4, **options)
    tw.solve(whole, method, rounds=2, checkpoint=tmp_path, checkpoint_every=1, **options)
    again = tw.solve(whole, method, rounds=4, checkpoint=tmp_path, checkpoint_every=1, **options)
    jax.tree.map(assert_array_equal, (again.w, again.beta), (once.w, once.beta))
    first = whole.starts([SEED])[0][1]["state"]  # BatchNorm's statistics, which are everyone's own, have moved
    assert (
        max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (once.beta["state"], first)), strict=True)) > 1e-3
    )
    assert_array_equal(again.history["loss"], once.history["loss"])
    fresh = tw.solve(whole, method, rounds=2, **options)
    forgetful = tw.solve(
        whole, method, rounds=2, start=fresh, **options
    )  # neither Adam's memory nor the round's number
    pairs = zip(jax.tree.leaves(forgetful.w), jax.tree.leaves(once.w), strict=True)
    assert max(np.abs(one - other).max() for one, other in pairs) > 1e-3  # a bias before BatchNorm never moves
