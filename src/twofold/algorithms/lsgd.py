"""LSGD-PFL: local SGD on w, SGD on β (Algorithm LSGD-PFL). One engine iteration is one communication round."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import tree
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Setting, fill, size_of_batch
from twofold.algorithms.fields import Schedule, known
from twofold.algorithms.local import Average, Plan, batches
from twofold.algorithms.oracle import Drawn
from twofold.control import repeat
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["LSGD", "Message", "Private", "Schedule"]

_Local: TypeAlias = tuple[Pytree, Pytree, Average | tuple[()]]  # w_m, β_m, and their running average or ()


class Private(NamedTuple):
    """β_m, and, if `average` is set, the running average of (w_m, β_m)."""

    beta: Pytree
    average: Average | tuple[()]


class Message(NamedTuple):
    """w_m after the local steps, and its running average if `average` is set; shared is the last mean of both."""

    w: Pytree
    average: Pytree


@record
class LSGD(Algorithm):
    """τ local steps (w_m, β_m) −= η(∇_w f̂_m, p_m∇_β f̂_m), then w = mean of the w_m.

    The β-step carries the 1/M that the printed algorithm lost; Theorem local's step size assumes it.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, tw.algorithms.LSGD(tau=2), rounds=3, record=())
    >>> result.ledger.rounds, result.ledger.gradients_w.tolist()
    (3, [6, 6, 6])
    """

    eta: float | Schedule | None = None  # η: a number, or a function of the local step's number
    tau: int = static(default=5)  # τ, the local steps in one round
    batch: int | None = static(default=1)  # rows in one sampled gradient; None takes all rows
    epochs: int | None = static(default=None)  # reshuffled passes over each client's own rows, instead of τ steps
    average: bool = static(default=False)  # report the average with weights (1−ημ)^(−k−1), which sends a second w
    mu: float | None = None  # μ, which only the average needs
    name = "lsgd"
    may_skip_messages = False
    works_with_some = True

    def __post_init__(self) -> None:
        if self.tau < 1 or (self.batch is not None and self.batch < 1) or (self.epochs is not None and self.epochs < 1):
            raise InputError(f"LSGD needs tau, batch and epochs ≥ 1: {self.tau=}, {self.batch=}, {self.epochs=}.")
        if self.average and callable(self.eta):
            raise InputError("LSGD's weighted average is defined for a constant step: give a number as eta.")

    def is_complete(self) -> bool:
        """It needs a step size, and μ for the weighted average only."""
        return self.eta is not None and (self.mu is not None or not self.average)

    def complete(self, setting: Setting) -> tuple[LSGD, str | None]:
        """Theorem local's step, with the bound 1/(4L^w) for τ = 1, and 1/(4𝓛(b)) where the noise is known."""
        steps = self.tau if self.epochs is None else self.epochs * int(self._steps_per_epoch(math.ceil(setting.rows)))
        values = stepsizes.lsgd(setting.constants, steps, self.batch)
        # Only the average needs μ. Left open otherwise, a step from theory and one of the user's own are one program.
        return fill(self, {**values, "mu": setting.constants.mu} if self.average else values), None

    def _steps_per_epoch(self, rows: int | jax.Array) -> int | jax.Array:
        return 1 if self.batch is None else -(-rows // self.batch)

    def init(self, w0: Pytree) -> Message:
        """Start at w0."""
        return Message(w0, w0 if self.average else ())

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """Start at β0."""
        return Private(beta0, Average.of_nothing((w0, beta0)) if self.average else ())

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """No coins."""
        return Plan(jnp.asarray(k, jnp.int32))

    def client(
        self, plan: Plan, shared: Message, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """The local steps, from the shared w."""

        def step(number: jax.Array, sample: Drawn | None, state: _Local) -> _Local:
            w, beta, average = state
            eta = self.eta(number) if callable(self.eta) else known(self.eta)[0]
            if average:
                average = average.add((w, beta), 1 - eta * known(self.mu)[0])
            of_w, of_beta = oracle.gradients(w, beta, sample)
            return tree.combine((1.0, w), (-eta, of_w)), tree.combine((1.0, beta), (-eta, of_beta)), average

        passes, each = (1, self.tau) if self.epochs is None else (self.epochs, self._steps_per_epoch(oracle.count))
        first = plan.k * passes * each

        def go_through(e: jax.Array, state: _Local) -> _Local:
            draw = batches(oracle, key, self.batch, None if self.epochs is None else e)
            return repeat(each, lambda i, state: step(first + e * each + i, draw(i), state), state)

        w, beta, average = repeat(passes, go_through, (shared.w, private.beta, private.average))
        return Private(beta, average), Message(w, average.mean[0] if average else ())

    def server(self, plan: Plan, shared: Message, mean: Message) -> Message:
        """w is the mean of the w_m."""
        return Message(mean.w, mean.average)

    def absent(self, plan: Plan, shared: Message) -> Message:
        """Who does not move stays at w."""
        return Message(shared.w, shared.average)

    def sends(self, plan: Plan) -> Message:
        """Every round sends."""
        return Message(*2 * (jnp.ones_like(plan.k, dtype=bool),))

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """τ batches; with epochs every row once per epoch."""
        each = self.tau * size_of_batch(self.batch, rows) if self.epochs is None else self.epochs * rows
        return Evaluations(*2 * (each + jnp.zeros_like(plan.k),))

    def model(self, shared: Message) -> Pytree:
        """w, or its weighted average."""
        return shared.average if self.average else shared.w

    def personal(self, private: Private) -> Pytree:
        """β_m, or its weighted average."""
        return private.average.mean[1] if private.average else private.beta
