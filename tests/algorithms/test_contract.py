"""The contract of an algorithm: any pure plan and any sends are counted right, and what breaks it gets one sentence."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import plain
import twofold as tw
from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations
from twofold.errors import ContractError


class Plan(NamedTuple):
    k: Any
    coins: Any


class Message(NamedTuple):
    gradient: Any


@tree.record
class Descent(Algorithm):
    """Gradient descent on w that speaks in every third iteration, with nine coins that decide nothing."""

    eta: float = 0.1
    name = "descent"

    def complete(self, facts: Any) -> Any:
        return self, None

    def init(self, w0: Any) -> Any:
        return w0

    def init_private(self, w0: Any, beta0: Any, oracle: Any) -> Any:
        return beta0

    def plan(self, stream: Any, k: Any) -> Plan:
        key = randomness.of(stream, k)
        return Plan(
            jnp.asarray(k, jnp.int32), jnp.stack([randomness.coin(randomness.at(key, i), 0.5) for i in range(9)])
        )

    def client(self, plan: Any, shared: Any, private: Any, oracle: Any, key: Any) -> Any:
        return private, Message(oracle.gradient_w(shared, private))

    def server(self, plan: Any, shared: Any, mean: Any) -> Any:
        return tree.combine((1.0, shared), (-self.eta, mean.gradient))

    def sends(self, plan: Any) -> Message:
        return Message(plan.k % 3 == 0)

    def evaluations(self, plan: Any, rows: Any) -> Evaluations:
        return Evaluations(jnp.where(plan.k % 3 == 0, rows, 0), jnp.zeros_like(plan.k))

    def model(self, shared: Any) -> Any:
        return shared

    def personal(self, private: Any) -> Any:
        return private


@tree.record
class Ninth(Descent):
    """Speaks with the ninth coin."""

    def sends(self, plan: Any) -> Message:
        return Message(plan.coins[8])


@tree.record
class Real(Descent):
    """Speaks where a real number of the plan is large."""

    def plan(self, stream: Any, k: Any) -> Any:
        return Plan(jnp.asarray(k, jnp.int32), jnp.sin(jnp.asarray(k, jnp.result_type(float))))

    def sends(self, plan: Any) -> Message:
        return Message(plan.coins > 0.5)


def problem() -> tw.Problem:
    return tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.1)), plain.clients("logistic", (5, 7)))


ENGINES = [{"engine": "simulate"}, {"engine": "streamed", "chunk": 1}, {"engine": "messages"}, {"engine": "sharded"}]


@pytest.mark.parametrize("options", ENGINES, ids=[each["engine"] for each in ENGINES])
@pytest.mark.parametrize("method", [Descent(), Ninth(), Real()], ids=lambda method: type(method).__name__)
def test_ledger_rounds_and_records_follow_sends(method: Descent, options: dict[str, Any]):
    whole, count = problem(), 12
    stream = randomness.common(randomness.root(4))
    speaks = np.array([bool(method.sends(method.plan(stream, k)).gradient) for k in range(count)])
    assert 0 < speaks.sum() < count
    found = tw.solve(whole, method, iterations=count, seed=4, **options)
    assert found.ledger.rounds == speaks.sum()
    assert found.ledger.floats_up == speaks.sum() * whole.start[0].size
    last = [] if speaks[-1] else [count]  # the end is recorded, too
    assert_array_equal(found.history["iteration"], [0, *(np.flatnonzero(speaks) + 1), *last])
    w = np.zeros(3)
    for spoken in speaks:
        w = w - method.eta * np.asarray(whole.gradient_w(w, ())) * spoken
    assert_allclose(found.w, w, atol=1e-14)
    if type(method) is Descent:
        assert_array_equal(found.ledger.gradients_w, speaks.sum() * np.array([5, 7]))


def test_rounds_stop_where_sends_says():
    found = tw.solve(problem(), Descent(), rounds=3)
    assert (found.ledger.rounds, found.ledger.iterations) == (3, 7)


class NotARecord(Descent):
    pass


@tree.record
class OtherMessage(Descent):
    def sends(self, plan: Any) -> Any:
        return (plan.k % 3 == 0, plan.k % 3 == 0)


@tree.record
class NotABool(Descent):
    def sends(self, plan: Any) -> Any:
        return Message(plan.k)


@tree.record
class Growing(Descent):
    def client(self, plan: Any, shared: Any, private: Any, oracle: Any, key: Any) -> Any:
        return (private, private), Message(shared)


@tree.record
class Narrow(Descent):
    def server(self, plan: Any, shared: Any, mean: Any) -> Any:
        return shared[:2]


@tree.record
class Branching(Descent):
    def sends(self, plan: Any) -> Any:
        return Message(jnp.asarray(True)) if plan.k % 3 == 0 else Message(jnp.asarray(False))


def broken(name: str, **functions: Any) -> Descent:
    """A Descent with other functions, or other fields."""
    fields = {key: type(value) for key, value in functions.items() if key in ("kind", "eta")}
    return tree.record(type(name, (Descent,), {**functions, "__annotations__": fields}))()


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (NotARecord(), r"^NotARecord is not a frozen record: write @tree.record above the class\.$"),
        (OtherMessage(), r"^OtherMessage: a message is a .* client returned a Message of 1 and sends a tuple of 2\.$"),
        (NotABool(), r"^NotABool.sends must return one bool for each part, got int32 of shape \(\)\.$"),
        (Growing(), r"^Growing.client: the new private state must be like init_private's, but has the structure .*, not "),
        (Narrow(), r"^Narrow.server: the new shared state must be like init's, but has an array of shape and type "),
        (Branching(), r"^Branching: its functions must be ones that JAX can trace; use jnp.where or control.branch in place"),
        (broken("NumPys", server=lambda self, plan, shared, mean: np.asarray(shared) - mean.gradient),
         r"^NumPys: its functions must be ones that JAX can trace; .* and jax.numpy in place of numpy\. The numpy.ndarray conv"),
        (broken("OneCount", evaluations=lambda self, plan, rows: rows),
         r"^OneCount.evaluations must return Evaluations\(w, beta\), .*, got an array of shape \(2,\)\.$"),
        (broken("ThreeCounts", evaluations=lambda self, plan, rows: (rows, rows, rows)),
         r"^ThreeCounts.evaluations must return .*, got a tuple of 3\.$"),
        (broken("LongCounts", evaluations=lambda self, plan, rows: (jnp.zeros(3), rows)),
         r"^LongCounts.evaluations must return .*, got an array of shape \(3,\) and an array of shape \(2,\)\.$"),
        (broken("OtherBeta", personal=lambda self, private: jnp.ones(3)),
         r"^OtherBeta.personal: the β that it reports must be like the problem's, but has the structure .*, not "),
        (broken("OtherW", model=lambda self, shared: shared[:2]),
         r"^OtherW.model: the w that it reports must be like the problem's, but has an array of shape and type \(\(2,\), "),
        (broken("NoState", client=lambda self, plan, shared, private, oracle, key: shared),
         r"^NoState.client must return a pair \(new private state, message\), got an array of shape \(3,\)\.$"),
        (broken("ThreeThings", client=lambda self, plan, shared, private, oracle, key: (private, shared, shared)),
         r"^ThreeThings.client must return a pair \(new private state, message\), got a tuple of 3\.$"),
        (broken("Bare", client=lambda self, plan, shared, private, oracle, key: (private, shared)),
         r"^Bare: a message is a .*; client returned an array of shape \(3,\) and sends a Message of 1\.$"),
        (broken("Nothing", client=lambda self, plan, shared, private, oracle, key: (private, Message(None))),
         r"^Nothing.client must send arrays in every part of its message, got None in 'gradient': where a part is not sent, "),
        (broken("Words", plan=lambda self, stream, k: Plan(jnp.asarray(k), "first")),
         r"^Words.plan must return arrays and numbers, in any nesting, but has a str: 'first'\.$"),
        (broken("WordsKept", init_private=lambda self, w0, beta0, oracle: ["mine"]),
         r"^WordsKept.init_private must return arrays and numbers, in any nesting, but has a str: 'mine'\.$"),
        (broken("Field", kind="plain"), r"^Field: kind='plain' is not a number: declare the field as kind = tree.static"),
        (broken("Open", eta=None),
         r"^Open.complete left eta=None: it must fill in every field that is None; one that may stay None is declared "),
        (broken("Alone", eta=None, complete=lambda self, facts: self),
         r"^Alone.complete must return a pair \(method, note or None\), got an Alone\.$"),
        (broken("Noted", eta=None, complete=lambda self, facts: (None, "done")),
         r"^Noted.complete must return a method first, got None\.$"),
        (broken("Absent", works_with_some=True), r"^Absent works with some clients \(works_with_some\), so it needs absent\.$"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)  # fmt: skip
def test_what_breaks_the_contract_gets_a_sentence(method: Descent, sentence: str):
    with pytest.raises(ContractError, match=sentence):
        tw.solve(problem(), method, rounds=3)


def test_a_missing_method_gets_a_sentence():
    class Half(Algorithm):
        name = "half"

    with pytest.raises(
        ContractError, match=r"^Half has no client, complete, evaluations, init, .*: see the contract in"
    ):
        tree.record(Half)()


FUNCTIONS = sorted(Algorithm.__abstractmethods__ & vars(Descent).keys())


def test_other_arguments_get_a_sentence_when_the_class_is_made():
    with pytest.raises(ContractError, match=r"^Hasty\.plan must take \(stream, k\), but takes \(k\)\.$"):
        broken("Hasty", plan=lambda self, k: k)
    with pytest.raises(
        ContractError, match=r"^Late\.receive must take \(plan, shared, private, oracle\), but takes \(plan, shared, "
    ):
        broken("Late", receive=lambda self, plan, shared, private, oracle, key: private)
    broken(
        "Wider", plan=lambda self, stream, k, more=None: Descent().plan(stream, k)
    )  # can be called as the contract says


def test_a_class_of_its_own_kind_gets_a_sentence():
    plain: Any = type("Plain", (), {"name": "plain", **{each: vars(Descent)[each] for each in FUNCTIONS}})()
    with pytest.raises(
        ContractError, match=r"^Plain is not an Algorithm: derive it from twofold\.algorithms\.Algorithm\.$"
    ):
        tw.solve(problem(), plain, rounds=3)


def test_client_is_traced_once():
    """The check of its shapes and the loop have it from one trace, however often the loop calls it."""
    traced = []

    @tree.record
    class Counted(Descent):
        def client(self, plan: Any, shared: Any, private: Any, oracle: Any, key: Any) -> Any:
            traced.append(key)
            return Descent.client(self, plan, shared, private, oracle, key)

    tw.solve(problem(), Counted(), rounds=30)
    assert len(traced) == 1
    assert dataclasses.fields(Counted)
