"""One contract for all engines: the ledger of `simulate`, and its iterates to 1e-10, so the same coins and sampled rows.

What a ledger claims is derived from `sends`; the engine of messages counts what really happens, and both must agree.
"""

from __future__ import annotations

import dataclasses
import gc
import io
from functools import cache
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
from twofold.engines import messages, schedule, sides
from twofold.errors import ContractError
from twofold.oracle import Member
from twofold.problem import Problem
from twofold.solver import complete
from twofold.theory.stepsizes import pl_schedule
from twofold.tree import record

# --- what is run ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _few_slots(few_slots: None) -> None:
    """See there."""


def clients(loss: str, weights: str | None = None) -> tw.Clients:
    """Unequal clients, but of two sizes only: the engine of messages compiles its gradients for each.

    And four of them: two at a time are twice the same program, where the streamed engine would need another for a last one
    alone. (In buckets it does have one.)
    """
    return make_clients(loss, weights, sizes=(7, 12, 7, 12))


METRICS = ("matrix", "diagonal", "scale")


def problem(kind: str = "mixture") -> Problem:
    """A small problem of some kind; made once in each precision, so that its constants are found once."""
    return _problem(kind, jax.config.jax_enable_x64)


@cache
def _problem(kind: str, _x64: bool) -> Problem:
    loss, everyone = LOSSES["logistic"], clients("logistic")
    mixture, with_bias = tw.objectives.mixture(loss, lam=0.5), tw.losses.softmax(3, l2=0.25, intercept=True)
    return {
        "mixture": lambda: Problem(mixture, everyone),
        "not_rescaled": lambda: Problem(mixture, everyone, rescale=False),
        "weighted_by_rows": lambda: Problem(mixture, clients("logistic", weights="rows")),
        **{kind: lambda kind=kind: Problem(mixture, everyone, precondition=kind) for kind in METRICS},
        "bucketed": lambda: Problem(mixture, everyone, buckets=[[0], [1, 3, 2]]),
        "traditional": lambda: Problem(tw.objectives.traditional(loss), everyone),
        "flix": lambda: Problem(tw.objectives.flix(LOSSES["softmax"], alpha=ALPHAS[:4]), clients("softmax")),
        "local": lambda: Problem(tw.objectives.local(loss), everyone),
        "adaptive_each": lambda: Problem(tw.objectives.adaptive(loss, alpha=ALPHAS[:4], Lambda=0.5), everyone),
        "weight_sharing": lambda: Problem(tw.objectives.weight_sharing(loss, split=2), everyone),
        "softmax": lambda: Problem(tw.objectives.mixture(with_bias, lam=0.5), clients("softmax")),
        "softmax_local": lambda: Problem(tw.objectives.local(tw.losses.softmax(4, l2=0.25)), clients("softmax")),
        "pytree": lambda: Problem(tw.objectives.weight_sharing(with_bias, split="bias"), clients("softmax")),
    }[kind]()


VARIANTS: dict[str, Algorithm] = {
    "lsgd": LSGD(average=True, tau=2, batch=3),
    "lsgd-epochs": LSGD(eta=pl_schedule(0.1, 5.0, 3), epochs=2, batch=5),
    "acd": ACD(),
    "scd": SCD(batch=3),
    "ascd": ASCD(batch=None),
    "svrcd": SVRCD(rho=0.2),
    "asvrcd": ASVRCD(rho=0.2, batch=3),
    "hybrid": Hybrid(first=2),
    "l2sgd_plus": L2SGDPlus(batch=3),
    "pfedme": PFedMe(local_rounds=2, inner_steps=2, batch=3, delta=0.5),
    "profile": Profile(steps=2),
    "profile-products": Profile(outer="lbfgs", inner="products", products=3, L_w=1e-3),  # some trials are refused
    "fedprox": FedProx(tau=2),
    "scaffnew": Scaffnew(batch=3),
    "scafflix": Scafflix(),
    "al2sgd_plus": AL2SGDPlus(rho=0.2),
    "saga": SAGA(inner=2),
}
"""Every method, with what changes its course: one row, a few, all; steps, epochs; an average, a schedule."""
# All questions to one method come one after the other, as long as its programs are at hand.
every_variant = pytest.mark.parametrize("variant", VARIANTS, scope="module")


def home(variant: str) -> str:
    """The kind of problem that a method meets in every engine: shared and private parts of unequal shapes, where it may."""
    return "weight_sharing" if VARIANTS[variant].needs is None else "mixture"


OTHER_PROBLEMS = [
    ("traditional", "lsgd"), ("local", "asvrcd"), ("not_rescaled", "asvrcd"), ("bucketed", "l2sgd_plus"),
    ("weighted_by_rows", "al2sgd_plus"), ("adaptive_each", "acd"), ("pytree", "acd"), ("flix", "scafflix"),
    *((metric, "acd") for metric in METRICS),
]  # fmt: skip
"""A method sees a problem through its gradients: one method meets each of the other kinds."""
FEW = ("lsgd", "pfedme", "profile", "fedprox", "saga")
"""Methods of which every iteration is a round."""


def iterations(variant: str) -> int:
    return 48 if variant == "hybrid" else 6 if variant.startswith(FEW) else 12  # the hybrid's two halves


def made(whole: Problem, variant: str, participation: Any = None) -> Algorithm:
    """A variant with what theory says, but where both blocks take turns, with a round in every other iteration."""
    method = VARIANTS[variant]
    if whole.has_shared and whole.has_private and getattr(method, "p_w", 0.0) is None:
        method = dataclasses.replace(method, p_w=0.5)  # type: ignore[call-arg]
    return complete(whole, method, participation=participation)[0]


def run(kind: str, variant: str, engine: str, **options: Any) -> Any:
    """A short run that starts off the origin."""
    whole = problem(kind)
    method = made(whole, variant, options.get("participation"))
    start = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1, leaf.dtype), whole.start)
    options = {"iterations": iterations(variant), "seed": 3, "start": start, "engine": engine} | options
    return tw.solve(whole, method, **options)


def assert_same_iterates(one: Any, other: Any, atol: float = 1e-10) -> None:
    """Equal parameters and equal recorded losses, up to rounding."""
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=0, atol=atol), (one.w, one.beta), (other.w, other.beta))
    assert_allclose(one.history["loss"], other.history["loss"], rtol=0, atol=atol)


def assert_same_course(one: Any, other: Any) -> None:
    """Equal rounds, bytes and gradients at every record, and equal ledgers."""
    for column in ("round", "iteration", "bytes", "gradients_w", "gradients_beta"):
        assert_array_equal(one.history[column], other.history[column], err_msg=column)
    assert one.ledger.as_dict() == other.ledger.as_dict()


@cache
def simulated(kind: str, variant: str) -> Any:
    """What every other engine is compared with."""
    return run(kind, variant, "simulate")


class Comparison:
    """One engine against `simulate`: subclasses name theirs."""

    engine: str

    def compare(self, kind: str, variant: str, **options: Any) -> None:
        expected = simulated(kind, variant)
        found = run(kind, variant, self.engine, **options)
        assert_same_course(found, expected)
        assert_same_iterates(found, expected)
        self.inspect(found)

    def inspect(self, result: Any) -> None:
        """What this engine alone can tell about a run."""


class Contract(Comparison):
    """What every engine owes, in full."""

    @every_variant
    def test_every_method_has_the_course_of_simulate(self, variant: str):
        self.compare(home(variant), variant)

    @pytest.mark.parametrize(("kind", "variant"), OTHER_PROBLEMS)
    def test_every_kind_of_problem_has_the_course_of_simulate(self, kind: str, variant: str):
        self.compare(kind, variant)

    def test_many_seeds_are_so_many_runs(self):
        many = run("weight_sharing", "asvrcd", self.engine, seeds=[3, 8])
        for seed, one in zip([3, 8], many, strict=True):
            alone = run("weight_sharing", "asvrcd", self.engine, seed=seed)
            assert_same_course(one, alone)
            assert_same_iterates(one, alone)

    def test_both_stages_have_the_course_of_simulate(self):
        whole = Problem(tw.objectives.multitask(LOSSES["logistic"], lam=0.5, Lambda=np.inf), clients("logistic"))
        expected, found = (tw.solve(whole, "acd", iterations=8, engine=name) for name in ("simulate", self.engine))
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
        result = run("weight_sharing", "asvrcd", "messages", iterations=24)
        self.inspect(result)
        assert 0 < result.ledger.rounds < 24
        assert result.history["bytes"][-1] == result.ledger.bytes_up + result.ledger.bytes_down


class TestStreamed(Comparison):
    """Clients that take turns, two at a time, with their state kept in any place, have the course of all at once."""

    engine = "streamed"

    @every_variant
    def test_every_method(self, variant: str):
        self.compare(home(variant), variant, chunk=2, state="host")

    @pytest.mark.parametrize(
        ("kind", "variant"),
        [("traditional", "lsgd"), ("local", "asvrcd"), ("weighted_by_rows", "al2sgd_plus"), ("adaptive_each", "acd"),
         ("pytree", "acd"), *((metric, "acd") for metric in METRICS),
         # Here chunks work on transposed weights, square ones and others.
         ("softmax", "l2sgd_plus"), ("softmax", "profile-products"), ("softmax_local", "lsgd-epochs")],
    )  # fmt: skip
    def test_every_kind_of_problem(self, kind: str, variant: str):
        self.compare(kind, variant, chunk=2, state="host")

    @pytest.mark.parametrize(("state", "chunk"), [("device", 2), ("disk", 2), ("host", 1), ("device", 99)])
    def test_every_place_and_chunk(self, state: str, chunk: int):
        self.compare("bucketed", "l2sgd_plus", chunk=chunk, state=state)

    @pytest.mark.parametrize("variant", ["lsgd-epochs", "profile", "fedprox", "saga"])
    def test_methods_that_always_send_do_every_iteration_where_nothing_is_shared(self, variant: str):
        """There rounds never come, and twelve iterations lie between two records."""
        kind, options = "local", {"iterations": 12, "every": 5}
        expected = run(kind, variant, "messages", **options)
        for more in ({"chunk": 2}, {"engine": "simulate"}):
            found = run(kind, variant, **({"engine": "streamed"} | options | more))
            assert_same_course(found, expected)
            assert_same_iterates(found, expected)

    def test_every_chunk_is_in_the_mean(self):
        self.compare("weight_sharing", "lsgd", chunk=1, state="device")

    def test_as_many_clients_at_a_time_as_features(self):
        """Their biases together have the shape of weights, but are none to transpose."""
        self.compare("softmax", "lsgd", chunk=3, state="device")

    def test_metrics_stopping_and_seeds(self):
        whole, options = problem("weight_sharing"), {"rounds": 12, "every": 3}
        record = {
            "loss": "loss", "gradient_norm": "gradient_norm", "bound": "bound",
            "spread": lambda w, beta: jnp.std(beta[:, 0] - w[0]),
        }  # fmt: skip
        expected, found = (
            tw.solve(whole, "acd", record=record, seeds=[1, 2], **options, **more) for more in ({}, {"chunk": 2})
        )
        for one, other in zip(found, expected, strict=True):
            assert_same_course(one, other)
            for column in record:
                assert_allclose(one.history[column], other.history[column], rtol=1e-10, atol=1e-14)
        halfway = float(np.max(expected.column("loss")[:, 2]))
        stopped = tw.solve(whole, "acd", record=record, seeds=[1, 2], **options, target=halfway, chunk=2)
        assert [run.status for run in stopped] == ["converged"] * 2
        assert all(run.ledger.rounds == 6 for run in stopped)

    def test_precision_is_that_of_whoever_asks(self):
        """Precision belongs to a thread in JAX, and chunks run in threads of their own."""
        with jax.enable_x64(False):
            expected, found = (tw.solve(problem(), LSGD(eta=0.1), rounds=9, **more) for more in ({}, {"chunk": 2}))
        assert expected.beta.dtype == found.beta.dtype == np.float32
        assert_same_iterates(found, expected, atol=1e-5)

    def test_divergence_gives_the_last_finite_iterate(self):
        run = tw.solve(problem(), LSGD(eta=1e9), rounds=50, chunk=2)
        assert run.status == "diverged"
        assert np.isfinite(run.w).all() and np.isfinite(run.beta).all()


# --- simulate: many seeds, and other precision ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hybrid", "l2sgd_plus"])
def test_many_seeds_at_once_equal_single_seeds(name: str):
    seeds = [0, 5, 11]
    many = run(home(name), name, "simulate", seeds=seeds)
    for one, seed in zip(many, seeds, strict=True):
        single = run(home(name), name, "simulate", seed=seed)
        assert one.seed == single.seed
        assert_same_course(one, single)
        assert_same_iterates(one, single)


@pytest.mark.parametrize("name", ["lsgd-epochs", "l2sgd_plus"])
def test_float32_has_the_coins_rows_and_ledger_of_float64(name: str):
    double = simulated(home(name), name)
    with jax.enable_x64(False):
        single = run(home(name), name, "simulate")
    assert single.w.dtype == np.float32
    assert double.w.dtype == np.float64
    for column in ("round", "iteration"):
        assert_array_equal(single.history[column], double.history[column])
    half = {"bytes_up": double.ledger.bytes_up // 2, "bytes_down": double.ledger.bytes_down // 2}
    assert single.ledger.as_dict() == double.ledger.as_dict() | half
    assert_same_iterates(single, double, atol=1e-5)


def test_iterations_in_pieces_are_iterations_in_one_go():
    """Other records cut a run into other stretches; the iterates know nothing of it."""
    whole = run("weight_sharing", "asvrcd", "simulate", every=10_000)
    pieces = run("weight_sharing", "asvrcd", "simulate", every=1, target=0.0)
    assert len(pieces.history["loss"]) > len(whole.history["loss"]) == 2
    jax.tree.map(assert_array_equal, (pieces.w, pieces.beta), (whole.w, whole.beta))


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_kept_iterates_are_handed_out_without_a_copy(seeds: list[int]):
    """They may be hundreds of times as large as one of them, and are asked for after every stretch."""
    whole = problem()
    engine = engines.Simulate(complete(whole, "acd")[0], whole, seeds, whole.starts(seeds), 3)
    kept = engine.first()
    assert jax.tree.leaves(kept)[0].shape[:2] == (3 + 1, len(seeds))
    assert engine.first() is kept


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
        self.clients = [sides.ClientSide(method, whole, m, seed, w, beta) for m, beta in enumerate(betas)]
        self.server = sides.ServerSide(method, seed, w, np.array(whole.clients.weights))
        # The shape of a message the server knows without its clients: here from somebody else's client.
        stranger = sides.ClientSide(method, _strangers(whole), 0, seed, w, betas[0])
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


def reachable(start: object) -> list[object]:
    """Everything that an object holds, directly or through what it holds; not the code that it is made of."""
    code = (type, type(gc), type(reachable), type(len), type(Wire.step), type(reachable.__code__))
    seen, queue = {id(start): start}, [start]
    while queue:
        for item in gc.get_referents(queue.pop()):
            if id(item) not in seen and not isinstance(item, code):
                seen[id(item)] = item
                queue.append(item)
    return list(seen.values())


@every_variant
def test_bytes_of_sent_parts_are_all_that_passes(variant: str, built: list[messages.Messages]):
    whole = problem(home(variant))
    method = made(whole, variant)
    wire = Wire(whole, jax.tree.map(jnp.asarray, method), seed=3)
    for k in range(steps := min(iterations(variant), 12)):
        wire.step(k)
    expected = tw.solve(whole, method, iterations=steps, seed=3, engine="messages")
    jax.tree.map(assert_array_equal, wire.end, (expected.w, expected.beta))
    assert sum(array.size for packet in wire.packets for array in packet) == whole.M * expected.ledger.floats_up > 0

    if home(variant) == "weight_sharing":  # no packet has the shape of a private part
        shared, private = (leaf.shape for leaf in whole.start)
        assert (shared, private) == ((2,), (whole.M, 1))
        more = {()} if variant.startswith(("hybrid", "profile")) else set()  # the size of ∇_β f_m, and min_β f_m
        more |= {(3,)} if variant == "profile" else set()  # and half of its Hessian in w
        assert {array.shape for packet in wire.packets for array in packet} == {shared} | more

    # The server holds nothing of its clients. The search does find them where they are.
    (happened,) = built[0].runs
    private_things = (sides.ClientSide, sides.CountingOracle, Member, Problem, tw.Clients)
    assert not [item for item in reachable(happened.server) if isinstance(item, private_things)]
    assert {type(item) for item in reachable(happened.clients[0])} >= {sides.CountingOracle, Member}


def test_l2sgd_plus_sends_the_personal_model_and_says_so():
    whole = problem("mixture")
    w, beta = whole.start
    method = jax.tree.map(jnp.asarray, L2SGDPlus(eta=0.1, p_w=1.0, lam=0.5))
    client = sides.ClientSide(method, whole, 0, 3, w, beta[0] + 0.7)
    (sent,) = client.send(0)
    assert_array_equal(sent * whole.scale, client.personal())
    assert "its message is the personal model" in L2SGDPlus.__doc__


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
    honest, cheat = (complete(whole, method)[0] for method in (SCD(p_w=0.5), Cheat(p_w=0.5)))
    start = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1), whole.start)
    found, expected = (tw.solve(whole, method, iterations=10, start=start, **options) for method in (cheat, honest))
    assert expected.ledger.rounds > 2
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
        ContractError, match=r"^Coarse.client sends numbers of type float32; a message must consist of float64\.$"
    ):
        tw.solve(problem(), Coarse(), iterations=1, engine="messages")


# --- participation ------------------------------------------------------------------------------------------------------

BY_ROUND = [[], [0, 2], [3], [0, 1, 2, 3]]  # nobody at all in the first


WHO = [2, 0.6, (0.3, 0.9, 1.0, 0.5), lambda k: BY_ROUND[k % 4], tw.Participation(2, weights="normalised")]


@pytest.mark.parametrize(
    ("who", "name"), [*((who, "lsgd") for who in WHO), (0.6, "pfedme"), ((0.3, 0.9, 1.0, 0.5), "saga")]
)
def test_every_engine_has_the_same_participants(who: Any, name: str):
    expected = run("bucketed", name, "simulate", participation=who)
    for options in ({"engine": "messages"}, {"engine": "streamed", "chunk": 2, "state": "host"}):
        found = run("bucketed", name, participation=who, **options)
        assert_same_course(found, expected)
        assert_same_iterates(found, expected)


@record
class Wanderer(LSGD):
    """An LSGD that sends in every third iteration only, and whose clients also do something on receipt."""

    name = "wanderer"

    def server(self, plan: Any, shared: Any, mean: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(plan.k % 3 == 0, a, b), mean, shared)

    def receive(self, plan: Any, shared: Any, private: Any, oracle: Any) -> Any:
        return private._replace(beta=jax.tree.map(lambda leaf: 0.9 * leaf + 0.01 * oracle.weight, private.beta))

    def sends(self, plan: Any) -> Any:
        return jax.tree.map(lambda flag: flag & (plan.k % 3 == 0), super().sends(plan))


@pytest.mark.parametrize("who", [None, lambda k: BY_ROUND[k % 4]], ids=["everyone", "some"])
def test_a_method_that_always_sends_but_does_not_is_right_in_every_engine(who: Any):
    """`may_skip_messages` is a hint for speed: silent iterations are done by all who take part in them, absent or not declared."""
    assert not Wanderer.may_skip_messages
    whole = problem("bucketed")
    start = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1), whole.start)
    ran = [
        tw.solve(whole, Wanderer(eta=0.1, tau=2), iterations=11, every=3, start=start, participation=who, **options)
        for options in ({}, {"engine": "messages"}, {"chunk": 2, "state": "host"}, {"engine": "sharded"})
    ]
    for found in ran[1:]:
        assert_same_course(found, ran[0])
        assert_same_iterates(found, ran[0])
    assert ran[0].ledger.rounds == 4


# --- a state that can be given out and taken back ------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [("mixture", "lsgd"), ("bucketed", "l2sgd_plus")])
def test_any_engine_goes_on_from_the_state_of_any_other(kind: str, name: str):
    whole = problem(kind)
    method, _ = complete(whole, VARIANTS[name])
    method, nowhere = jax.tree.map(jnp.asarray, method), np.ones(4, np.int32)
    shapes = schedule.footprint(method, whole)
    streamed = engines.choose("streamed", schedule.Schedule(method, whole, shapes.parts, [3]), shapes, chunk=2)
    makers = [engines.Simulate, engines.Messages, streamed, engines.Sharded]

    def made(make: Any) -> Any:
        return make(method, whole, [3], [whole.start], 0)

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
