"""One contract for all engines: the same coins, sampled rows and ledger as `simulate`, and the same iterates to 1e-10.

What a ledger claims is derived from `sends`; the engine of messages counts what really happens, and both must agree.
"""

from __future__ import annotations

import dataclasses
import gc
import io
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from problems import ALPHAS, LOSSES
from problems import clients as make_clients
from twofold import engines
from twofold.algorithms import (
    ACD,
    ASCD,
    ASVRCD,
    LSGD,
    SAGA,
    SCD,
    SVRCD,
    AL2SGDPlus,
    Algorithm,
    FedProx,
    Hybrid,
    L2SGDPlus,
    PFedMe,
    Profile,
    Scafflix,
    Scaffnew,
)  # fmt: skip
from twofold.engines import messages
from twofold.errors import ContractError
from twofold.oracle import Member
from twofold.problem import Problem
from twofold.solver import complete
from twofold.theory.stepsizes import pl_schedule
from twofold.tree import record, static

# --- an algorithm that writes down its coins and the rows it draws ----------------------------------------------------


class Tape:
    """Every coin and every draw of a run, each under its key: an engine may take its clients in any order."""

    def __init__(self) -> None:
        self.notes: set = set()

    def note(self, kind: str, *values: Any) -> None:
        def write(*values: Any) -> None:
            *key, last = (tuple(np.ravel(value).tolist()) for value in values)
            self.notes.add((kind, *key, tuple(x for x in last if x != -1)))

        jax.debug.callback(write, *values)

    def read(self) -> set:
        jax.effects_barrier()
        notes, self.notes = self.notes, set()
        return notes


TAPE = Tape()
"""One for all: a tape is part of a compiled program, and another one would be another program."""


class SpyOracle:
    """A client's oracle, which notes what is drawn from it."""

    def __init__(self, oracle: Any, tape: Tape) -> None:
        self._oracle, self._tape = oracle, tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name)

    def sample(self, key: Any, size: int | None, uniform: bool = False) -> Any:
        sample = self._oracle.sample(key, size, uniform)
        if sample is not None:
            self._tape.note("rows", key.words, key.number, sample.index)
        return sample

    def order(self, key: Any) -> Any:
        order = self._oracle.order(key)
        self._tape.note(
            "order", key.words, key.number, jnp.where(jnp.arange(len(order)) < self._oracle.count, order, -1)
        )
        return order

    def slice(self, order: Any, start: Any, size: int) -> Any:
        sample = self._oracle.slice(order, start, size)
        self._tape.note("slice", jnp.where(sample.weight > 0, sample.index, -1))
        return sample


@record
class Spy(Algorithm):
    """Another algorithm, noting the coins that each client acts on in each iteration."""

    inner: Algorithm
    tape: Tape = static()
    name = "spy"

    @property
    def may_skip_messages(self) -> bool:
        return self.inner.may_skip_messages

    @property
    def works_with_some(self) -> bool:
        return self.inner.works_with_some

    def complete(self, setting: Any) -> Any:
        return self, None

    def absent(self, plan: Any, shared: Any) -> Any:
        return self.inner.absent(plan, shared)

    def client(self, plan: Any, shared: Any, private: Any, oracle: Any, key: Any) -> Any:
        self.tape.note("coins", key.words, key.number, *jax.tree.leaves(plan))
        return self.inner.client(plan, shared, private, SpyOracle(oracle, self.tape), key)

    def init(self, w0: Any) -> Any:
        return self.inner.init(w0)

    def init_private(self, w0: Any, beta0: Any, oracle: Any) -> Any:
        return self.inner.init_private(w0, beta0, oracle)

    def plan(self, stream: Any, k: Any) -> Any:
        return self.inner.plan(stream, k)

    def server(self, plan: Any, shared: Any, mean: Any) -> Any:
        return self.inner.server(plan, shared, mean)

    def receive(self, plan: Any, shared: Any, private: Any, oracle: Any) -> Any:
        return self.inner.receive(plan, shared, private, oracle)

    def sends(self, plan: Any) -> Any:
        return self.inner.sends(plan)

    def evaluations(self, plan: Any, rows: Any) -> Any:
        return self.inner.evaluations(plan, rows)

    def model(self, shared: Any) -> Any:
        return self.inner.model(shared)

    def personal(self, private: Any) -> Any:
        return self.inner.personal(private)


# --- what is run ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _few_slots(few_slots: None) -> None:
    """See there."""


def clients(loss: str, weights: str | None = None) -> tw.Clients:
    """Unequal clients, but of three sizes only: the engine of messages compiles its gradients for each.

    And four of them: two at a time are twice the same program, where the streamed engine would need another for a last one
    alone. (In buckets it does have one.)
    """
    return make_clients(loss, weights, sizes=(7, 15, 7, 12))


def problem(kind: str = "mixture") -> Problem:
    """A small problem of some kind, made anew."""
    loss, everyone = LOSSES["logistic"], clients("logistic")
    mixture, with_bias = tw.objectives.mixture(loss, lam=0.5), tw.losses.softmax(3, l2=0.25, intercept=True)
    return {
        "mixture": lambda: Problem(mixture, everyone),
        "not_rescaled": lambda: Problem(mixture, everyone, rescale=False),
        "weighted_by_rows": lambda: Problem(mixture, clients("logistic", weights="rows")),
        "bucketed": lambda: Problem(mixture, everyone, buckets=[[0], [1, 3, 2]]),
        "traditional": lambda: Problem(tw.objectives.traditional(loss), everyone),
        "flix": lambda: Problem(tw.objectives.flix(LOSSES["softmax"], alpha=ALPHAS[:4]), clients("softmax")),
        "local": lambda: Problem(tw.objectives.local(loss), everyone),
        "adaptive_each": lambda: Problem(tw.objectives.adaptive(loss, alpha=ALPHAS[:4], Lambda=0.5), everyone),
        "weight_sharing": lambda: Problem(tw.objectives.weight_sharing(LOSSES["softmax"], split=2), clients("softmax")),
        "softmax": lambda: Problem(tw.objectives.mixture(with_bias, lam=0.5), clients("softmax")),
        "softmax_local": lambda: Problem(tw.objectives.local(tw.losses.softmax(4, l2=0.25)), clients("softmax")),
        "pytree": lambda: Problem(tw.objectives.weight_sharing(with_bias, split="bias"), clients("softmax")),
    }[kind]()


VARIANTS: dict[str, Algorithm] = {
    "lsgd": LSGD(),
    "lsgd-batch3": LSGD(batch=3, tau=2),
    "lsgd-full": LSGD(batch=None, tau=3),
    "lsgd-epochs": LSGD(epochs=1, batch=4),
    "lsgd-epochs-full": LSGD(epochs=2, batch=None),
    "lsgd-average": LSGD(average=True, tau=2, batch=3),
    "lsgd-epochs-average": LSGD(average=True, epochs=2, batch=5),
    "lsgd-schedule": LSGD(eta=pl_schedule(0.1, 5.0, 3), tau=3),
    "acd": ACD(),
    "scd": SCD(),
    "scd-batch3": SCD(batch=3),
    "scd-full": SCD(batch=None),
    "ascd": ASCD(),
    "ascd-batch3": ASCD(batch=3),
    "ascd-full": ASCD(batch=None),
    "svrcd": SVRCD(rho=0.2),
    "svrcd-batch3": SVRCD(rho=0.2, batch=3),
    "svrcd-full": SVRCD(rho=0.2, batch=None),
    "asvrcd": ASVRCD(rho=0.2),
    "asvrcd-batch3": ASVRCD(rho=0.2, batch=3),
    "asvrcd-full": ASVRCD(rho=0.2, batch=None),
    "asvrcd-beta": ASVRCD(optimal="beta"),
    "hybrid": Hybrid(first=2),
    "l2sgd_plus": L2SGDPlus(),
    "l2sgd_plus-batch3": L2SGDPlus(batch=3),
    "l2sgd_plus-full": L2SGDPlus(batch=None),
    "pfedme": PFedMe(local_rounds=2, inner_steps=2, batch=1),
    "pfedme-batch3": PFedMe(local_rounds=2, inner_steps=3, batch=3, delta=0.5),
    "profile": Profile(steps=2),
    "profile-lbfgs": Profile(outer="lbfgs", steps=2, memory=3),
    "profile-products": Profile(outer="lbfgs", inner="products", products=3),
    "profile-too_far": Profile(outer="lbfgs", steps=1, L_w=1e-3),  # some trials are refused
    "pfedme-full": PFedMe(local_rounds=1, inner_steps=2, batch=None),
    "fedprox": FedProx(tau=2),
    "scaffnew": Scaffnew(),
    "scaffnew-batch3": Scaffnew(batch=3),
    "scafflix": Scafflix(),
    "al2sgd_plus": AL2SGDPlus(),
    "al2sgd_plus-full": AL2SGDPlus(batch=None, rho=0.2),
    "saga": SAGA(inner=2),
}
"""Every method, with everything that changes its course."""
ONE_OF_EACH = ("lsgd", "acd", "scd", "ascd", "svrcd", "asvrcd", "hybrid", "profile", "fedprox", "scaffnew", "scafflix",
               "al2sgd_plus", "saga",
               "l2sgd_plus",
               "pfedme")  # fmt: skip
OTHER_PROBLEMS = [
    *((kind, name) for kind in ("traditional", "local") for name in ("lsgd", "acd", "asvrcd")),
    ("not_rescaled", "asvrcd"),  # a method sees a problem through its gradients: a few methods meet every kind
    *(("bucketed", name) for name in ("lsgd-epochs", "asvrcd", "l2sgd_plus")),
    *(("weighted_by_rows", name) for name in ("lsgd-average", "asvrcd", "pfedme")),
    ("adaptive_each", "acd"),
    *((kind, "asvrcd") for kind in ("weight_sharing", "pytree")),
    *((kind, "profile") for kind in ("traditional", "local", "weighted_by_rows", "pytree")),
    ("bucketed", "profile-lbfgs"),
    ("flix", "scafflix"),
    ("weighted_by_rows", "al2sgd_plus"),
]
ITERATIONS = {"lsgd": 6, "pfedme": 6, "profile": 6, "fedprox": 6, "saga": 6}


def made(whole: Problem, variant: str, participation: Any = None) -> Algorithm:
    """A variant with what theory says, but where both blocks take turns, with a round in every other iteration."""
    method = VARIANTS[variant]
    if whole.has_shared and whole.has_private and getattr(method, "p_w", 0.0) is None:
        method = dataclasses.replace(method, p_w=0.5)  # type: ignore[call-arg]
    return complete(whole, method, participation=participation)[0]


def run(kind: str, variant: str, engine: str, **options: Any) -> tuple[Any, set]:
    """A short run that starts off the origin, and what its coins and draws were."""
    whole = problem(kind)
    method = made(whole, variant, options.get("participation"))
    start = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1, leaf.dtype), whole.start)
    iterations = ITERATIONS.get(variant.split("-", maxsplit=1)[0], 12)
    options = {"iterations": iterations, "seed": 3, "start": start, "engine": engine} | options
    TAPE.read()
    return tw.solve(whole, Spy(method, TAPE), **options), TAPE.read()


def assert_same_iterates(one: Any, other: Any, atol: float = 1e-10) -> None:
    """Equal parameters and equal recorded losses, up to rounding."""
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=0, atol=atol), (one.w, one.beta), (other.w, other.beta))
    assert_allclose(one.history["loss"], other.history["loss"], rtol=0, atol=atol)


def assert_same_course(one: Any, other: Any) -> None:
    """Equal rounds, bytes and gradients at every record, and equal ledgers."""
    for column in ("round", "iteration", "bytes", "gradients_w", "gradients_beta"):
        assert_array_equal(one.history[column], other.history[column], err_msg=column)
    assert one.ledger.as_dict() == other.ledger.as_dict()


class Comparison:
    """One engine against `simulate`: subclasses name theirs."""

    engine: str

    def compare(self, kind: str, variant: str, **options: Any) -> None:
        expected, drawn = run(kind, variant, "simulate")
        found, drawn_here = run(kind, variant, self.engine, **options)
        assert len(drawn) >= expected.ledger.iterations
        # Where clients step together, one that is done with its epoch goes on with no rows, in vain.
        assert drawn_here | {("slice", ())} == drawn | {("slice", ())}
        assert_same_course(found, expected)
        assert_same_iterates(found, expected)
        self.inspect(found)

    def inspect(self, result: Any) -> None:
        """What this engine alone can tell about a run."""


class Contract(Comparison):
    """What every engine owes, in full."""

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_every_method_has_the_course_of_simulate(self, variant: str):
        self.compare("mixture", variant)

    @pytest.mark.parametrize(("kind", "variant"), OTHER_PROBLEMS)
    def test_every_kind_of_problem_has_the_course_of_simulate(self, kind: str, variant: str):
        self.compare(kind, variant)

    def test_many_seeds_are_so_many_runs(self):
        many, _ = run("mixture", "asvrcd", self.engine, seeds=[3, 8])
        for seed, one in zip([3, 8], many, strict=True):
            alone, _ = run("mixture", "asvrcd", self.engine, seed=seed)
            assert_same_course(one, alone)
            assert_same_iterates(one, alone)

    def test_both_stages_have_the_course_of_simulate(self):
        whole = Problem(tw.objectives.multitask(LOSSES["logistic"], lam=0.5, Lambda=np.inf), clients("logistic"))
        expected, found = (tw.solve(whole, "asvrcd", iterations=20, engine=name) for name in ("simulate", self.engine))
        assert_same_course(found, expected)
        assert_same_iterates(found, expected)


class TestMessages(Contract):
    """The engine of messages counts what happens: floats that leave a client, gradients that it evaluates."""

    engine = "messages"

    @pytest.fixture(autouse=True)
    def _built(self, built: list[messages.Messages]) -> None:
        self.built = built

    def inspect(self, result: Any) -> None:
        (happened,), ledger = self.built[-1].runs, result.ledger
        assert happened.rounds == ledger.rounds
        assert_array_equal(happened.floats, np.full(len(happened.clients), ledger.floats_up))
        assert (ledger.floats_down, ledger.bytes_up) == (ledger.floats_up, 8 * ledger.floats_up)
        counted = np.stack([ledger.gradients_w, ledger.gradients_beta], axis=1)
        assert_array_equal([client.evaluated for client in happened.clients], counted)
        assert counted.sum(axis=1).min() > 0

    def test_silent_iterations_pass_nothing(self):
        result, _ = run("mixture", "asvrcd", "messages", iterations=60)
        self.inspect(result)
        assert 0 < result.ledger.rounds < 60
        assert result.history["bytes"][-1] == result.ledger.bytes_up + result.ledger.bytes_down


class TestStreamed(Comparison):
    """Clients that take turns, two at a time, with their state kept in any place, have the course of all at once."""

    engine = "streamed"

    @pytest.mark.parametrize("variant", ONE_OF_EACH)
    def test_every_method(self, variant: str):
        self.compare("mixture", variant, chunk=2, state="host")

    @pytest.mark.parametrize(
        ("kind", "variant"),
        [("local", "lsgd"), ("local", "acd"), ("traditional", "lsgd-epochs"), ("bucketed", "l2sgd_plus"),
         ("weighted_by_rows", "lsgd-average"), ("adaptive_each", "asvrcd"), ("pytree", "asvrcd"),
         # Here chunks work on transposed weights, square ones and others.
         ("softmax", "asvrcd"), ("softmax", "l2sgd_plus"), ("softmax", "pfedme"), ("softmax_local", "lsgd-epochs-average"),
         ("softmax", "profile"), ("softmax", "profile-products")],
    )  # fmt: skip
    def test_every_kind_of_problem(self, kind: str, variant: str):
        self.compare(kind, variant, chunk=2, state="host")

    @pytest.mark.parametrize(
        ("state", "chunk", "variant"),
        [*((*where, "l2sgd_plus") for where in (("device", 2), ("disk", 2), ("host", 1), ("device", 5), ("device", 99))),
         ("disk", 2, "lsgd")],
    )  # fmt: skip
    def test_every_place_and_chunk(self, state: str, chunk: int, variant: str):
        self.compare("bucketed", variant, chunk=chunk, state=state)

    def test_more_chunks_than_are_added_in_one_call(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(engines.streamed, "TERMS", 2)
        self.compare("mixture", "lsgd", chunk=1, state="device")

    def test_as_many_clients_at_a_time_as_features(self):
        """Their biases together have the shape of weights, but are none to transpose."""
        self.compare("softmax", "lsgd", chunk=3, state="device")

    def test_metrics_stopping_and_seeds(self):
        whole, options = problem("bucketed"), {"rounds": 12, "every": 3}
        record = {
            "loss": "loss", "gradient_norm": "gradient_norm", "spread": lambda w, beta: jnp.std(beta[:, 0] - w[0]),
        }  # fmt: skip
        expected, found = (
            tw.solve(whole, "acd", record=record, seeds=[1, 2], **options, **more) for more in ({}, {"chunk": 2})
        )
        for one, other in zip(found, expected, strict=True):
            assert_same_course(one, other)
            for column in record:
                assert_allclose(one.history[column], other.history[column], rtol=1e-10)
        stopped = tw.solve(whole, "acd", tol=1e-9, chunk=2)
        assert stopped.status == "converged"
        assert_same_course(stopped, tw.solve(whole, "acd", tol=1e-9))

    def test_precision_is_that_of_whoever_asks(self):
        """Precision belongs to a thread in JAX, and chunks run in threads of their own."""
        with jax.enable_x64(False):
            expected, found = (tw.solve(problem(), "asvrcd", rounds=9, **more) for more in ({}, {"chunk": 2}))
        assert expected.beta.dtype == found.beta.dtype == np.float32
        assert_same_iterates(found, expected, atol=1e-5)

    def test_divergence_gives_the_last_finite_iterate(self):
        run = tw.solve(problem(), LSGD(eta=1e9), rounds=50, chunk=2)
        assert run.status == "diverged"
        assert np.isfinite(run.w).all() and np.isfinite(run.beta).all()


# --- simulate: many seeds, and other precision ------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["lsgd", "acd", "asvrcd", "hybrid", "l2sgd_plus", "pfedme"])
def test_many_seeds_at_once_equal_single_seeds(variant: str):
    seeds = [0, 5, 11]
    many, drawn = run("mixture", variant, "simulate", seeds=seeds)
    alone = [run("mixture", variant, "simulate", seed=seed) for seed in seeds]
    assert drawn == set().union(*(tape for _, tape in alone))
    for one, (single, _) in zip(many, alone, strict=True):
        assert one.seed == single.seed
        assert_same_course(one, single)
        assert_same_iterates(one, single)


@pytest.mark.parametrize("variant", ["scd", "asvrcd", "hybrid", "l2sgd_plus", "pfedme", "lsgd-epochs"])
def test_float32_has_the_coins_rows_and_ledger_of_float64(variant: str):
    double, drawn = run("mixture", variant, "simulate")
    with jax.enable_x64(False):
        single, drawn_in_single = run("mixture", variant, "simulate")
    assert single.w.dtype == np.float32
    assert double.w.dtype == np.float64
    assert drawn_in_single == drawn
    for column in ("round", "iteration"):
        assert_array_equal(single.history[column], double.history[column])
    half = {"bytes_up": double.ledger.bytes_up // 2, "bytes_down": double.ledger.bytes_down // 2}
    assert single.ledger.as_dict() == double.ledger.as_dict() | half
    assert_same_iterates(single, double, atol=1e-4)


def test_iterations_in_pieces_are_iterations_in_one_go():
    """Other records cut a run into other stretches; the iterates know nothing of it."""
    whole, _ = run("mixture", "asvrcd", "simulate", every=10_000)
    pieces, _ = run("mixture", "asvrcd", "simulate", every=1, target=-1.0)
    assert len(pieces.history["loss"]) > len(whole.history["loss"]) == 2
    jax.tree.map(assert_array_equal, (pieces.w, pieces.beta), (whole.w, whole.beta))


# --- the private part never leaves ------------------------------------------------------------------------------------


def through_bytes(packet: list[np.ndarray]) -> list[np.ndarray]:
    """A packet written out as bytes and read back: nothing but its numbers can come through."""
    file = io.BytesIO()
    np.savez(file, *packet)
    with np.load(io.BytesIO(file.getvalue()), allow_pickle=False) as read:
        return [read[name] for name in read.files]


class Wire:
    """The two sides of the engine of messages, with nothing but bytes between them."""

    def __init__(self, whole: Problem, method: Algorithm, seed: int) -> None:
        self.whole = whole
        w = jax.tree.map(lambda leaf: leaf / whole.scale, whole.start[0])
        betas = [jax.tree.map(lambda leaf, m=m: leaf[m], whole.start[1]) for m in range(whole.M)]
        self.clients = [messages.ClientSide(method, whole, m, seed, w, beta) for m, beta in enumerate(betas)]
        self.server = messages.ServerSide(method, seed, w, np.array(whole.clients.weights))
        # The shape of a message the server knows without its clients: here from somebody else's client.
        stranger = messages.ClientSide(method, _strangers(whole), 0, seed, w, betas[0])
        stranger.send(0)
        self._shape = stranger.shape
        self.packets: list[list[np.ndarray]] = []

    def step(self, k: int) -> None:
        packets = {m: through_bytes(client.send(k)) for m, client in enumerate(self.clients)}
        self.packets += packets.values()
        answer = through_bytes(self.server.mean(k, packets, None))
        self.server.finish(k, answer, self._shape)
        for client in self.clients:
            client.receive(answer, self._shape)

    @property
    def end(self) -> tuple[Any, Any]:
        w = jax.tree.map(lambda leaf: self.whole.scale * leaf, self.server.model())
        return w, jax.tree.map(lambda *leaves: jnp.stack(leaves), *[client.personal() for client in self.clients])


def _strangers(whole: Problem) -> Problem:
    return Problem(whole.objective, whole.clients.map(lambda x, y: (np.ones_like(x), y)))


WIRED = [*(("mixture", name) for name in ONE_OF_EACH), ("weight_sharing", "lsgd-average"), ("weight_sharing", "svrcd")]


@pytest.mark.parametrize(("kind", "variant"), WIRED)
def test_bytes_of_sent_parts_are_all_that_passes(kind: str, variant: str):
    whole = problem(kind)
    method = made(whole, variant)
    wire = Wire(whole, jax.tree.map(jnp.asarray, method), seed=3)
    for k in range(5):
        wire.step(k)
    expected = tw.solve(whole, method, iterations=5, seed=3, engine="messages")
    jax.tree.map(assert_array_equal, wire.end, (expected.w, expected.beta))
    assert sum(array.size for packet in wire.packets for array in packet) == whole.M * expected.ledger.floats_up > 0


@pytest.mark.parametrize(
    "variant", [*(name for name in ONE_OF_EACH if VARIANTS[name].needs is None), "lsgd-average", "asvrcd-full"]
)
def test_no_packet_has_the_shape_of_a_private_part(variant: str):
    whole = problem("weight_sharing")  # two rows of the model are shared, one is private
    method = made(whole, variant)
    wire = Wire(whole, jax.tree.map(jnp.asarray, method), seed=3)
    for k in range(5 if variant.startswith(("lsgd", "fedprox", "saga")) else 12):
        wire.step(k)
    shared, private = (leaf.shape for leaf in whole.start)
    assert (shared, private) == ((2, 3), (whole.M, 1, 3))
    more = {()} if variant.startswith(("hybrid", "profile")) else set()  # the size of ∇_β f_m, and min_β f_m
    more |= {(21,)} if variant == "profile" else set()  # and half of its Hessian in w
    assert {array.shape for packet in wire.packets for array in packet} == {shared} | more


def test_l2sgd_plus_sends_the_personal_model_and_says_so():
    whole = problem("mixture")
    w, beta = whole.start
    method = jax.tree.map(jnp.asarray, L2SGDPlus(eta=0.1, p_w=1.0, lam=0.5))
    client = messages.ClientSide(method, whole, 0, 3, w, beta[0] + 0.7)
    (sent,) = client.send(0)
    assert_array_equal(sent * whole.scale, client.personal())
    assert "its message is the personal model" in L2SGDPlus.__doc__


def reachable(start: object) -> list[object]:
    """Everything that an object holds, directly or through what it holds; not the code that it is made of."""
    code = (type, type(gc), type(reachable), type(len), type(Tape.note), type(reachable.__code__))
    seen, queue = {id(start): start}, [start]
    while queue:
        for item in gc.get_referents(queue.pop()):
            if id(item) not in seen and not isinstance(item, code):
                seen[id(item)] = item
                queue.append(item)
    return list(seen.values())


@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_the_server_holds_nothing_of_its_clients(variant: str, built: list[messages.Messages]):
    whole = problem("mixture")
    tw.solve(whole, VARIANTS[variant], iterations=3, engine="messages")
    (happened,) = built[0].runs
    private = (messages.ClientSide, messages.CountingOracle, Member, Problem, tw.Clients)
    assert not [item for item in reachable(happened.server) if isinstance(item, private)]
    # The search does find them where they are.
    assert {type(item) for item in reachable(happened.clients[0])} >= {messages.CountingOracle, Member}


class CheatMessage(NamedTuple):
    """What SCD sends, and what it does not send."""

    gradient: Any
    beta: Any


@record
class Cheat(SCD):
    """An SCD that puts β_m where nothing is ever sent from, and whose server would like to use it."""

    name = "cheat"

    def client(self, plan: Any, shared: Any, private: Any, oracle: Any, key: Any) -> Any:
        moved, message = super().client(plan, shared, private, oracle, key)
        return moved, CheatMessage(message.gradient, private)

    def server(self, plan: Any, shared: Any, mean: Any) -> Any:
        return jax.tree.map(jnp.add, super().server(plan, shared, mean), mean.beta)

    def sends(self, plan: Any) -> Any:
        return CheatMessage(plan.w, jnp.zeros_like(plan.w))


@pytest.mark.parametrize("options", [{"engine": "messages"}, {}, {"chunk": 2}])
def test_a_part_that_is_not_sent_does_not_arrive(options: dict[str, Any]):
    whole = problem("mixture")
    honest, cheat = (complete(whole, method)[0] for method in (SCD(), Cheat()))
    start = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1), whole.start)
    found, expected = (tw.solve(whole, one, iterations=10, start=start, **options) for one in (cheat, honest))
    assert_array_equal(found.w, expected.w)


@record
class Coarse(SCD):
    """An SCD that sends half precision."""

    name = "coarse"

    def client(self, plan: Any, shared: Any, private: Any, oracle: Any, key: Any) -> Any:
        moved, message = super().client(plan, shared, private, oracle, key)
        return moved, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), message)


def test_a_message_of_another_precision_is_refused():
    with pytest.raises(
        ContractError, match=r"^Coarse.client sends numbers of type float32; a message is made of float64\.$"
    ):
        tw.solve(problem(), Coarse(), iterations=1, engine="messages")


# --- participation ------------------------------------------------------------------------------------------------------

BY_ROUND = [[0, 2], [], [3], [0, 1, 2, 3]]


WHO = [2, 0.6, (0.3, 0.9, 1.0, 0.5), lambda k: BY_ROUND[k % 4], tw.Participation(2, weights="normalised")]


@pytest.mark.parametrize(
    ("who", "variant"),
    [*((who, "lsgd-average") for who in WHO), *((who, name) for who in WHO[1:3] for name in ("pfedme", "saga"))],
)
def test_every_engine_has_the_same_participants(who: Any, variant: str):
    expected, drawn = run("bucketed", variant, "simulate", participation=who)
    for options in ({"engine": "messages"}, {"engine": "streamed", "chunk": 2, "state": "host"}):
        found, drawn_here = run("bucketed", variant, participation=who, **options)
        if options["engine"] == "messages":  # the others take everyone along and keep what those present have done
            assert drawn_here < drawn
        assert_same_course(found, expected)
        assert_same_iterates(found, expected)


# --- a state that can be given out and taken back ------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["lsgd-average", "asvrcd", "l2sgd_plus", "scafflix", "al2sgd_plus", "saga"])
def test_any_engine_goes_on_from_the_state_of_any_other(variant: str):
    whole = problem("bucketed")
    method, _ = complete(whole, VARIANTS[variant])
    method, nowhere = jax.tree.map(jnp.asarray, method), np.ones(4, np.int32)
    makers = [engines.Simulate, engines.Messages, partial(engines.Streamed, chunk=2), engines.Sharded]

    def made(make: Any) -> Any:
        return make(method, whole, [3], whole.start, 0)

    def end(engine: Any) -> Any:
        return engine.fetch(engine.advance(4, 4, np.array([1, 1, 1, 0])), 0, 0)

    first = [made(make) for make in makers]
    for engine in first:
        engine.advance(0, 4, nowhere)
    states = [engine.state() for engine in first]
    expected = end(first[0])
    for state in states[1:]:
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=0, atol=1e-12), state, states[0])
    for make, state in zip(makers, [*states[1:], states[0]], strict=True):
        engine = made(make)
        engine.restore(state)
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=0, atol=1e-12), end(engine), expected)
