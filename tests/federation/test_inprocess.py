"""Every method as a federation of four nodes in this process: same coins and ledger, iterates as by the engine of messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from federation.small import Small, by_hand, node, problem, study
from twofold.algorithms import REGISTRY
from twofold.errors import InputError
from twofold.federation import Coordinator, Gone, InProcess, Study
from twofold.federation import wire as wires
from twofold.federation.masks import Masks

METHODS = [
    (name, kind) for name in REGISTRY for kind in ("mixture", "residual") if REGISTRY[name].needs in (None, kind)
]
SHARED = ("rounds", "iterations", "floats_up", "floats_down", "bytes_up", "bytes_down", "gradients_w", "gradients_beta")


@pytest.mark.parametrize(("name", "kind"), METHODS)
def test_a_federation_is_the_engine_of_messages(name: str, kind: str, tmp_path: Path, few_slots: None):
    small = Small(study(name, kind, rounds=4), tmp_path, kind=kind)
    found = small.run()
    expected = tw.solve(problem(kind), found.algorithm, rounds=4, seed=3, engine="messages")
    assert_allclose(found.w, expected.w, rtol=0, atol=1e-12)
    assert_allclose(small.beta(), expected.beta, rtol=0, atol=1e-12)
    assert_allclose(found.history["loss"], expected.history["loss"], rtol=0, atol=1e-12)
    ledgers = [result.ledger.as_dict() for result in (found, expected)]
    assert {k: ledgers[0][k] for k in SHARED} == {k: ledgers[1][k] for k in SHARED}
    for column in ("round", "iteration", "bytes", "gradients_w", "gradients_beta"):
        assert_array_equal(found.history[column], expected.history[column])
    assert found.beta is None


def test_clients_of_unequal_weight_and_size_and_two_classes_of_parameters(tmp_path: Path):
    """Importance sampling, an intercept, classes, weights, unequal sizes: a seat is the same as a place in the whole problem."""
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, 3)), rng.integers(0, 3, n)) for n in (5, 8, 8)]
    clients = tw.Clients.from_list(rows, names=["a", "b", "c"], weights=[1, 2, 3])
    objective = tw.objectives.multitask(tw.losses.softmax(classes=3, l2=0.1, intercept=True), lam=0.5)
    whole = tw.Problem(objective, clients)
    agreed = Study.of(whole, tw.algorithms.SCD(), rounds=4, masks={"on": False})
    agreed = Study(agreed.document)  # what a file would give
    from twofold.federation import Node, Seat

    nodes = [Node(Seat(agreed, n, clients[n].x, clients[n].y), tmp_path / str(n)) for n in clients.names]
    found = Coordinator(agreed, InProcess(nodes), tmp_path / "server").run()
    expected = tw.solve(whole, found.algorithm, rounds=4)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=0, atol=1e-12), found.w, expected.w)
    for m, each in enumerate(nodes):
        jax.tree.map(lambda a, b, m=m: assert_allclose(a, b[m], rtol=0, atol=1e-12), each.model()[1], expected.beta)
    assert whole.sampling == "importance"


# --- what passes --------------------------------------------------------------------------------------------------------


def test_nothing_passes_but_what_is_due(tmp_path: Path):
    """Every byte that passed is searched: for each β on the way, each row and label, and for names of folders."""
    small = Small(study("asvrcd", "weight_sharing", rounds=5), tmp_path, kind="weight_sharing")
    small.run()
    passed = b"".join(content for _, _, content in small.grid.carried)
    whole = problem("weight_sharing")
    assert str(tmp_path).encode() not in passed
    numbers = np.concatenate([np.frombuffer(passed[i:][: len(passed[i:]) // 8 * 8], "<f8") for i in range(8)])
    secret = np.concatenate([small.beta().ravel(), np.asarray(whole.clients.x).ravel()])
    assert not np.isin(secret[secret != 0], numbers).any()
    answers = [wires.opened("x", content) for way, _, content in small.grid.carried if way == "up"]
    rounds = [a for a in answers if a.about["kind"] == "round"]
    assert {k for a in answers for k in a.about} <= {
        "v", "study", "name", "kind", "round", "t", "seconds", "x64", "tells", "told",
    }  # fmt: skip
    assert {n for a in rounds for n in a.arrays} <= {"report", "difference.0", "full.0", "w.0"}
    sent = sum(a.nbytes for answer in rounds for n, a in answer.arrays.items() if n != "report")
    assert sent == 4 * small.server.account.course.floats[0, small.server.account.end] * 8


def test_one_plain_message_of_the_mixture_is_beta(tmp_path: Path):
    """∇_w f = sλ(sw − β): whoever knows w reads β in it. This is what masks are for."""
    small = Small(study("acd", rounds=4), tmp_path)
    small.coordinator(stop_after=3)
    with pytest.raises(tw.TwofoldError, match="on purpose"):
        small.server.run()
    whole, who = problem(), small.grid.all[100]
    state = who._load()
    w = who.algorithm
    x = jax.tree.map(lambda y, z: (1 - w.theta) * y + w.theta * z, state.shared.y, state.shared.z)
    point = jax.tree.map(lambda y, z: (1 - w.theta) * y + w.theta * z, *_before_begin(who))
    found = whole.scale * np.asarray(x) - state.sent["gradient.0"] / (whole.scale * 0.5)
    assert_allclose(found, point, rtol=0, atol=1e-14)


def _before_begin(who: Any) -> tuple[Any, Any]:
    """β's own y and z when the last message was made, told by the node itself: a w-iteration has y⁺ = x for β."""
    private = who._load().private
    eta_nu = float(who.algorithm.eta * who.algorithm.nu)
    x = np.asarray(private.y)
    z = np.asarray(private.z) * (1 + eta_nu) - eta_nu * x
    y = (x - float(who.algorithm.theta) * z) / (1 - float(who.algorithm.theta))
    return y, z


# --- masks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "missing"), [("acd", "wait"), ("asvrcd", "skip"), ("lsgd", "skip")])
def test_masks_change_nothing_but_what_the_server_sees(
    name: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rounds = {"record": 1, "missing": missing, "deadline": 30.0}
    agreed = study(name, keys=True, round=rounds, masks={"on": True})
    masked = Small(agreed, tmp_path / "masked")
    found = masked.run()
    expected = tw.solve(problem(), found.algorithm, rounds=5, seed=3, engine="messages")
    assert_allclose(found.w, expected.w, rtol=0, atol=1e-11)
    assert_allclose(masked.beta(), expected.beta, rtol=0, atol=1e-11)
    assert_allclose(found.history["loss"], expected.history["loss"], rtol=0, atol=1e-11)
    # The same in the open: fixed point and no masks. Equal to the last bit.
    monkeypatch.setattr(Masks, "between", lambda self, size, said: np.zeros(size, np.uint64))
    plain = Small(agreed, tmp_path / "plain")
    same = plain.run()
    assert_array_equal(found.w, same.w)
    assert_array_equal(masked.beta(), plain.beta())


def test_parts_find_their_place_behind_masks(tmp_path: Path):
    """Profile's message has three parts, whose names are not in the order of the alphabet."""
    small = Small(study("profile", keys=True, masks={"on": True}, round={}, rounds=3), tmp_path)
    found = small.run()
    expected = tw.solve(problem(), found.algorithm, rounds=3, seed=3, engine="messages", record=())
    assert_allclose(found.w, expected.w, rtol=0, atol=1e-9)


def test_a_masked_server_stores_sums_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nobody's message is in anything that the server kept or saw, in fixed point or as it was; the sums are."""
    small = Small(study("acd", keys=True, round={"record": 1}, masks={"on": True}), tmp_path)
    messages: list[np.ndarray] = []
    sealed = type(small.grid.all[100])._sealed

    def spy(self: Any, raw: Any, *rest: Any) -> Any:
        messages.extend(raw.values())
        return sealed(self, raw, *rest)

    monkeypatch.setattr("twofold.federation.node.Node._sealed", spy)
    small.run()
    stored = b"".join(path.read_bytes() for path in sorted((tmp_path / "server").rglob("*")) if path.is_file())
    seen = b"".join(content for way, _, content in small.grid.carried if way == "up")
    words = np.concatenate(
        [np.frombuffer(both[i:][: len(both[i:]) // 8 * 8], "<u8") for both in (stored, seen) for i in range(8)]
    )
    alone = np.concatenate(messages).ravel()
    alone = alone[alone != 0]
    fixed = np.rint(alone * 0.25 * 2.0**44).astype(np.int64).view(np.uint64)
    assert not np.isin(alone.view(np.uint64), words).any()
    assert not np.isin(fixed, words).any()
    means = np.concatenate([line.mean["gradient.0"] for line in small.server.log])
    assert np.isin(means.view(np.uint64), words).all()
    # One masked vector looks like noise: half of all bits are set.
    answers = [wires.opened("x", c) for way, _, c in small.grid.carried if way == "up"]
    noise = np.concatenate([a.arrays["masked"] for a in answers if "masked" in a.arrays])
    bits = np.unpackbits(noise.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 4 * 0.5 / np.sqrt(64 * noise.size)


def test_a_node_is_salted_and_the_server_cannot_follow(tmp_path: Path):
    plain = Small(study("lsgd", keys=True), tmp_path / "plain")
    salted = Small(study("lsgd", keys=True, salt=True), tmp_path / "salted")
    one, other = plain.run(), salted.run()
    assert np.abs(one.w - other.w).max() > 1e-6
    assert one.ledger.as_dict()["gradients_w"] == other.ledger.as_dict()["gradients_w"]


# --- absent clients -----------------------------------------------------------------------------------------------------


def losing(absent: dict[int, set[int]], deaf: bool) -> Any:
    """Some clients' answers to some rounds never arrive; a deaf one does not even hear the question."""

    def fault(who: Any, content: bytes) -> list[bytes | Gone]:
        about = wires.opened("x", content).about
        gone = who.seat.position in absent.get(about.get("round", 0), ()) and about["kind"] == "round"
        if gone and deaf:
            return []
        answer = who.handle(content)
        return [] if gone else [answer]

    return fault


@pytest.mark.parametrize(
    ("name", "kept", "masks", "deaf"),
    [
        ("lsgd", False, True, True),
        ("lsgd", False, False, False),
        ("scd", False, False, True),
        ("acd", True, False, True),
        ("acd", True, True, False),
        ("asvrcd", True, True, True),
        ("asvrcd", True, False, False),
    ],
)
def test_absent_clients_are_as_by_hand(name: str, kept: bool, masks: bool, deaf: bool, tmp_path: Path):
    absent = {2: {1}, 3: {1}, 5: {3}, 6: {0}}
    rounds = {"missing": "skip", "deadline": 0.0, "record": 2}
    agreed = _skip(name, masks, rounds)
    small = Small(agreed, tmp_path, losing(absent, deaf))
    found = small.run(patience=small_patience())
    w, beta = by_hand(agreed, found.algorithm, "mixture", absent, kept)
    assert_allclose(found.w, w, rtol=0, atol=1e-10 if masks else 1e-12)
    assert_allclose(small.beta(), beta, rtol=0, atol=1e-10 if masks else 1e-12)
    everything = int(np.max(found.ledger.floats_down))
    lost = np.array([sum(m in who for who in absent.values()) for m in range(4)])
    sizes = np.diff(small.server.account.course.floats[0])[small.server.account.times]
    gone = [sum(sizes[r - 1] for r, who in absent.items() if m in who) for m in range(4)]
    assert lost.sum() == 4
    assert_array_equal(found.ledger.floats_up, everything - np.array(gone))


def _skip(name: str, masks: bool, rounds: dict[str, Any]) -> Study:
    method = tw.algorithms.REGISTRY[name]()
    base = study(method, rounds=7, keys=masks, masks={"on": masks})
    return Study(base.document | {"round": rounds})


def small_patience() -> Any:
    from twofold.federation import Patience

    return Patience(poll=0.0, again=60.0, look=60.0, limit=60.0)


def test_too_few_are_not_a_sum(tmp_path: Path):
    agreed = _skip("lsgd", True, {"missing": "skip", "deadline": 0.0})
    small = Small(agreed, tmp_path, losing({2: {0, 1}}, deaf=True))
    from twofold.federation import Patience, Stopped

    with pytest.raises(Stopped, match="round 2: north, east did not answer"):
        small.run(patience=Patience(poll=0.0, again=60.0, look=60.0, limit=0.2))


def test_a_node_opens_one_sum_a_round(tmp_path: Path):
    """A server that lies about who is there could else unmask one message as the difference of two sums."""
    agreed = _skip("lsgd", True, {"missing": "skip", "deadline": 0.0})
    questions: list[tuple[Any, bytes]] = []

    def fault(who: Any, content: bytes) -> list[bytes | Gone]:
        if wires.opened("x", content).about["kind"] == "open":
            questions.append((who, content))
        return [who.handle(content)]

    with pytest.raises(tw.TwofoldError, match="on purpose"):
        Small(agreed, tmp_path, fault).run(patience=small_patience(), stop_after=2)
    who, content = questions[-1]
    about, arrays = wires.opened("x", content)
    assert "refused" not in wires.opened("x", who.handle(content)).about  # the same question, the same answer
    other = wires.sealed(wires.Note(about | {"here": [0, 1, 2] if who.seat.position < 3 else [1, 2, 3]}, arrays))
    assert "a second sum of round" in wires.opened("x", who.handle(other)).about["refused"]


# --- before the first round ---------------------------------------------------------------------------------------------


def test_constants_rounded_outwards_give_smaller_steps_and_fewer_digits(tmp_path: Path):
    exact = Small(study("scd", rounds=2), tmp_path / "exact").run()
    coarse = Small(study("scd", rounds=2), tmp_path / "coarse", digits=1).run()
    assert 0 < coarse.algorithm.eta <= exact.algorithm.eta
    who = node(study("scd"), "north", tmp_path / "x", digits=1)
    told = who.seat.told(("constants", "rows"), 1)
    truth = who.seat.told(("constants", "rows"))
    assert told["L"][0] >= truth["L"][0] and told["mu"][0] <= truth["mu"][0] and told["rows"] >= truth["rows"]
    assert all(len(f"{v:g}".replace(".", "").strip("0")) <= 1 for v in (*told["L"], *told["calL"]))


def test_with_an_agreed_bound_nothing_is_told(tmp_path: Path):
    longest = max(np.linalg.norm(np.asarray(problem().clients.x), axis=1))
    agreed = study("scd", rounds=2, tell={"norm": float(longest) + 1, "rows": 9})
    found = Small(agreed, tmp_path, tells=()).run()
    assert found.ledger.reported.tolist() == [0, 0, 0, 0]
    with pytest.raises(InputError, match="a row has the norm"):
        node(study("scd", tell={"norm": 0.1, "rows": 9}), "north", tmp_path / "y")
    with pytest.raises(InputError, match="'north' tells no constants"):
        Small(study("scd", tell={"rows": 9}), tmp_path / "z", tells=()).run()


def test_what_is_told_is_counted(tmp_path: Path):
    agreed = study("scd", rounds=3)
    assert Small(agreed, tmp_path / "a").run().ledger.reported.tolist() == [4 + 4] * 4  # μ', L', 𝓛', n, and four losses
    quiet = Small(agreed, tmp_path / "b", tells=("constants", "rows")).run()
    assert quiet.ledger.reported.tolist() == [4] * 4
    assert len(quiet.history["loss"]) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"stop": {}}, "needs \\[stop\\] rounds"),
        ({"colour": 1}, "A study has no key 'colour'"),
        ({"round": {"missing": "hope"}}, "'wait' or 'skip'"),
        ({"masks": {"on": True}}, "'north' has none"),
        ({"loss": {"name": "logisti"}}, "did you mean logistic"),
        ({"objective": {"name": "mixture"}}, "does not fit mixture"),
        ({"algorithm": {"name": "saga"}, "round": {"missing": "skip"}}, "not known to be right for saga"),
        ({"client": [{"name": "a"}, {"name": "a"}]}, "the same name"),
        ({"version": 7}, "version 7"),
    ],
)
def test_a_bad_study_file_gets_a_sentence(change: dict[str, Any], sentence: str):
    document = study().document | change
    with pytest.raises(InputError, match=sentence):
        getattr(Study(document), "objective")  # noqa: B009  (what is read is what is checked)
