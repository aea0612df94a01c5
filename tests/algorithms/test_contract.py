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


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (NotARecord(), r"^NotARecord is not a frozen record: write @tree.record above the class\.$"),
        (OtherMessage(), r"^OtherMessage: a message is a .* client returned a Message of 1 and sends a tuple of 2\.$"),
        (NotABool(), r"^NotABool.sends must return one bool for each part, got int32 of shape \(\)\.$"),
        (Growing(), r"^Growing.client: the new private state must be like init_private's, but has the structure .*, not "),
        (Narrow(), r"^Narrow.server: the new shared state must be like init's, but has an array of shape and type "),
        (Branching(), r"^Branching: its functions must be ones that JAX can trace; use jnp.where or control.branch in place"),
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
