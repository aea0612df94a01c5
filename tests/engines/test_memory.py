"""What a run needs is counted right, compared with what is free, and told with its arithmetic."""

from __future__ import annotations

import re
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from twofold import engines, kernels
from twofold.algorithms import Algorithm
from twofold.engines import memory, streamed
from twofold.engines.schedule import Schedule, footprint
from twofold.engines.simulate import SimulateGroups
from twofold.solver import complete

CLIENTS, ROWS, FEATURES, CLASSES = 40, 3, 5, 4
BETA = FEATURES * CLASSES * 8


def problem() -> tw.Problem:
    rng = np.random.default_rng(0)
    everyone = [(rng.normal(size=(ROWS, FEATURES)), rng.integers(0, CLASSES, ROWS)) for _ in range(CLIENTS)]
    return tw.Problem(
        tw.objectives.mixture(tw.losses.softmax(CLASSES, l2=0.1), lam=0.5), tw.Clients.from_list(everyone)
    )


def need_of(method: Algorithm, whole: tw.Problem) -> memory.Need:
    return memory.need(whole, footprint(method, whole), method)


def need(name: str) -> memory.Need:
    return need_of(complete(problem(), name)[0], problem())


def choice(method: Algorithm, whole: tw.Problem, seeds: int = 1) -> tuple[type[engines.Engine], dict[str, Any]]:
    """Which engine a run gets, and what it is told besides."""
    shapes = footprint(method, whole)
    made: Any = engines.choose("simulate", Schedule(method, whole, shapes.parts, [0]), shapes, seeds)
    if not isinstance(made, partial):
        return made, {}
    return made.func, {name: value for name, value in made.keywords.items() if name not in ("need", "schedule")}


@pytest.mark.parametrize(("name", "sequences"), [("lsgd", 1), ("acd", 2), ("asvrcd", 4)])
def test_state_is_as_many_sequences_as_the_method_has(name: str, sequences: int):
    found = need(name)
    assert found.state == CLIENTS * sequences * BETA
    label = problem().clients.y.dtype.itemsize
    assert found.data == CLIENTS * ROWS * (8 * FEATURES + label)


def test_unequal_clients_are_counted_with_their_padding():
    rng = np.random.default_rng(0)
    everyone = [(rng.normal(size=(n, FEATURES)), np.zeros(n)) for n in (2, 7, 4)]
    whole = tw.Problem(tw.objectives.local(tw.losses.squared(l2=0.1)), tw.Clients.from_list(everyone))
    assert need_of(complete(whole, "acd")[0], whole).data == 3 * 7 * (FEATURES + 1) * 8


def test_a_fifth_of_what_is_free_is_left_to_others(monkeypatch: pytest.MonkeyPatch):
    found = need("acd")
    monkeypatch.setattr(memory, "LARGE", 0)
    whole = found.at_once(CLIENTS)
    for free, fits in ((int(whole / 0.8) + 2, True), (int(whole / 0.8) - 2, False)):
        monkeypatch.setattr(kernels, "free_memory", lambda free=free: free)
        assert memory.fits(found, 1) == fits


def wide_net(key: jax.Array, x: jax.Array) -> tuple[Any, Any]:
    return {"hidden": jax.random.normal(key, (FEATURES, 2000)), "out": jnp.zeros((2000, CLASSES))}, ()


def test_a_run_with_a_net_holds_what_was_predicted(monkeypatch: pytest.MonkeyPatch):
    """Arrays on the device are everyone's data and own net; a record is one copy of all nets, and takes no second one to make."""
    net = tw.losses.net((wide_net, lambda params, state, x, key, train: (x @ params["hidden"] @ params["out"], state)))
    ditto = tw.methods.ditto(net, lr=0.01, batch=2)
    whole = ditto.problem(problem().clients)
    found, fetch, measured = need_of(ditto.algorithm, whole), engines.Streamed.fetch, []
    assert found.state == found.record == CLIENTS * 2000 * (FEATURES + CLASSES) * 8
    before = sum(array.nbytes for array in jax.live_arrays())

    def watched(engine: engines.Streamed, *given: Any) -> Any:
        device = sum(array.nbytes for array in jax.live_arrays()) - before
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        point = fetch(engine, *given)
        measured.append((device, tracemalloc.get_traced_memory()[1] - held))
        return point

    monkeypatch.setattr(engines.Streamed, "fetch", watched)
    tracemalloc.start()
    try:
        tw.solve(whole, ditto.algorithm, rounds=1, record=(), engine="streamed", chunk=1)
    finally:
        tracemalloc.stop()
    for device, record in measured:
        assert device == pytest.approx(found.data + found.state, rel=0.2)
        assert record == pytest.approx(found.record, rel=0.2)
    assert len(measured) == 2  # the start and the end


class Small(nn.Module):
    """Convolutions and one wide layer."""

    units: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.max_pool(nn.relu(nn.Conv(8, (5, 5))(x)), (2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        x = nn.relu(nn.Dense(self.units)(x.reshape(len(x), -1)))
        return nn.Dense(CLASSES)(x)


@pytest.mark.parametrize(("name", "units"), [("fedavg", 50), ("fedavg", 400), ("fedper", 400), ("ditto", 400)])
def test_a_round_of_a_convolutional_net_takes_what_was_predicted(
    name: str, units: int, monkeypatch: pytest.MonkeyPatch
):
    """A client's turn as XLA has laid it out, and all arrays that are alive when it ends, with one client at a time."""
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(12, 16, 16, 1)), rng.integers(0, CLASSES, 12)) for _ in range(4)]
    head = {"head": "Dense_1"} if name == "fedper" else {}
    named = tw.methods.REGISTRY[name](tw.losses.net(Small(units)), batch=6, **head)
    whole = named.problem(tw.Clients.from_list(rows))
    found, turn, alive, laid_out = need_of(named.algorithm, whole), streamed._turn, list[int](), list[Any]()
    w = sum(8 * leaf.size for leaf in jax.tree.leaves(whole.abstract_start[0]))
    assert found.models == memory.MODELS * w
    before = sum(array.nbytes for array in jax.live_arrays())

    def watched(*given: Any, **named: Any) -> Any:
        if not laid_out:
            laid_out.append(turn.lower(*given, **named).compile().memory_analysis())
        done = turn(*given, **named)
        alive.append(sum(array.nbytes for array in jax.live_arrays()) - before)
        return done

    monkeypatch.setattr(streamed, "_turn", watched)
    monkeypatch.setattr(kernels, "workers", lambda count: 1)
    tw.solve(whole, named.algorithm, rounds=2, record=(), engine="streamed", chunk=1)
    held = (
        found.data + found.state + found.models + 3 * w
    )  # three in `working`: the turn's w, and what it gives (w and the message)
    assert held == pytest.approx(max(alive), rel=0.02)
    most = max(alive) + laid_out[0].temp_size_in_bytes
    assert found.at_once(1) - found.record == pytest.approx(most, rel=0.2)  # the record is on the host


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch):
    def have(count: int) -> None:
        monkeypatch.setattr(kernels, "free_memory", lambda: int(count / memory.SHARE) + 1)
        monkeypatch.setattr(memory, "LARGE", 0)

    return have


@pytest.mark.usefixtures("few_slots")
def test_everyone_at_once_where_it_fits_and_in_turns_where_not(little):
    whole, (method, _) = problem(), complete(problem(), "acd")
    found = need_of(method, whole)
    little(found.at_once(CLIENTS))
    assert choice(method, whole) == (engines.Simulate, {})
    assert choice(method, whole, seeds=2)[0] is engines.Streamed
    little(found.at_once(3))
    engine, how = choice(method, whole)
    assert engine is engines.Streamed
    assert memory.choose_chunk(found, None, how["state"]) == 3
    expected = tw.solve(whole, method, rounds=5, engine="messages")
    np.testing.assert_allclose(tw.solve(whole, method, rounds=5).beta, expected.beta, rtol=0, atol=1e-12)


def test_what_does_not_fit_is_told_with_its_arithmetic(little):
    found = need("acd")
    little(found.data + found.state // 2)
    with pytest.raises(ValueError, match=r"40 clients with 144 B of data and 320 B of private state each are 5\.76 kB \+ "
                       r"12\.8 kB, .* Keep the private state elsewhere: state=\"host\" or state=\"disk\"\."):  # fmt: skip
        tw.solve(problem(), "acd", rounds=1)
    assert tw.solve(problem(), "acd", rounds=1, state="disk").status == "budget"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"chunk": 0}, "chunk is a number of clients ≥ 1, got chunk=0"),
        ({"state": "cloud"}, "Private state is kept on one of device, host, disk, not on 'cloud'"),
        (
            {"chunk": 2, "engine": "messages"},
            "chunk= and state= are for the engines simulate and streamed, not for messages",
        ),
    ],
)
def test_mistakes_are_one_sentence(options: dict, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        tw.solve(problem(), "acd", rounds=1, **options)


@pytest.mark.parametrize(
    ("method", "rows", "long"),
    [
        (tw.algorithms.LSGD(eta=0.1, epochs=1, batch=10), 1000, True),  # a hundred steps
        (tw.algorithms.LSGD(eta=0.1, epochs=1, batch=10), 20, False),
        (tw.algorithms.LSGD(eta=0.1, tau=2), 1000, False),
        (tw.algorithms.ACD(), 20, False),
        (tw.algorithms.ACD(), 15_000, True),  # all rows, in every iteration
        (tw.algorithms.ASVRCD(rho=0.001, p_w=0.5), 1000, False),  # all rows, but rarely
    ],
)
def test_who_has_much_to_do_between_two_rounds_has_a_core_of_its_own(method, rows: int, long: bool):
    rng = np.random.default_rng(0)
    everyone = [(rng.normal(size=(rows, 300)), rng.integers(0, 10, rows)) for _ in range(3)]
    objective = tw.objectives.multitask(tw.losses.softmax(10, l2=0.1), lam=0.5)
    whole = tw.Problem(objective, tw.Clients.from_list(everyone))
    chosen = complete(whole, method)[0]
    assert choice(chosen, whole) == ((engines.Streamed, {"chunk": 1}) if long else (engines.Simulate, {}))
    assert choice(chosen, whole, seeds=2)[0] is engines.Simulate


def test_what_depends_on_the_machine_is_asked_of_kernels_by_name():
    """Nowhere else; the paper's experiments and the benchmarks say on which machine they ran, which decides nothing."""
    asks = re.compile(
        r"on_cpu|default_backend|\bdevices\(|local_device|memory_stats|cpu_count|affinity|psutil|\.platform\b"
    )
    home = Path(tw.__file__).parent
    asking = {
        file
        for file in home.rglob("*.py")
        if asks.search(file.read_text(encoding="utf-8").replace("kernels.devices()", ""))
    }
    assert {file.name for file in asking if home / "paper" not in file.parents} == {"kernels.py"}


@pytest.mark.parametrize(
    ("seeds", "cores", "groups"), [(2, 4, 1), (3, 2, 1), (4, 2, 2), (6, 2, 2), (6, 4, 3), (30, 8, 6)]
)
def test_many_seeds_are_spread_over_the_cores(seeds: int, cores: int, groups: int, monkeypatch: pytest.MonkeyPatch):
    """In equal groups of at least two, at most one for each core."""
    monkeypatch.setattr(kernels, "cores", lambda: cores)
    whole, (method, _) = problem(), complete(problem(), "acd")
    expected = (engines.Simulate, {}) if groups == 1 else (SimulateGroups, {"groups": groups})
    assert choice(method, whole, seeds) == expected


def test_many_clients_take_turns_in_the_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "cores", lambda: 2)  # chunks are dealt out evenly, so their size depends on it

    def chosen(clients: int) -> tuple:
        x, y = np.ones((clients, 300), np.float32), np.zeros(clients, int)
        everyone = tw.Clients(x, y, np.ones(clients, np.int32))
        whole = tw.Problem(tw.objectives.local(tw.losses.softmax(10, l2=0.1)), everyone)
        method = complete(whole, "acd")[0]
        need = need_of(method, whole)
        return choice(method, whole)[0], memory.choose_chunk(need, None, "device") * need.working

    assert chosen(20)[0] is engines.Simulate
    made, working = chosen(1000)
    assert made is engines.Streamed
    assert memory.CHUNK / 2 < working <= memory.CHUNK


def test_clients_of_a_device_take_turns_where_that_pays(monkeypatch: pytest.MonkeyPatch):
    found = need("asvrcd")
    assert memory.turns(found, [40, 7], 1) is None  # all of it is little
    monkeypatch.setattr(memory, "SPREAD", 47 * found.working)
    monkeypatch.setattr(memory, "CHUNK", 2 * 6 * found.working)
    assert memory.turns(found, [40, 7], 1) == (7, 2)
    assert memory.turns(found, [40, 7], 2) == (14, 3)
    assert memory.turns(found, [40, 7], 12) == (40, 7)
    assert memory.turns(found, [40, 6], 1) is None
    assert memory.turns(need("l2sgd_plus"), [10_000, 7], 1) is None  # a turn would copy its tables
    monkeypatch.setattr(kernels, "on_cpu", lambda: False)
    assert memory.turns(found, [40, 7], 1) is None
