"""LSGD-PFL: local SGD on w, SGD on β (Algorithm LSGD-PFL). One engine iteration is one communication round."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from twofold import tree
from twofold.algorithms import rated
from twofold.algorithms.base import Facts, GradientOracle, fill
from twofold.algorithms.descent import rule, trained
from twofold.algorithms.fields import Schedule, known
from twofold.algorithms.local import Average, Plan, batches
from twofold.algorithms.oracle import Drawn
from twofold.algorithms.training import Training, refuse_both
from twofold.control import repeat
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["LSGD", "Message", "Private", "Schedule"]

_Local: TypeAlias = tuple[Pytree, Pytree, Average | tuple[()]]  # w_m, β_m, and their running average or ()


class Private(NamedTuple):
    """β_m, the running average of (w_m, β_m) if `average` is set, and the optimiser's state if it is kept between rounds."""

    beta: Pytree
    average: Average | tuple[()]
    memory: Pytree = ()


class Message(NamedTuple):
    """w_m after the local steps, and its running average if `average` is set; the shared state is the last mean of both."""

    w: Pytree
    average: Pytree


@record
class LSGD(Training):
    """τ local steps (w_m, β_m) −= η(∇_w f̂_m, p_m∇_β f̂_m), then w = mean of the w_m.

    The β-step has the factor 1/M that the printed algorithm lost; Theorem local's step size assumes it. On `traditional` this is
    FedAvg, on `weight_sharing` it is FedPer and LG-FedAvg.

    With a learning rate instead, `LSGD(lr=0.005)`, steps are plain gradient steps on real parameters: w_m −= lr·∇_w f̂_m and
    β_m −= lr_beta·∇_β f̂_m (lr_beta = lr by default), without p_m and without scaling. `optimizer` is any optax optimiser for these.
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
    mu: float | None = None  # μ; only the average needs it
    name = "lsgd"
    corrects = frozenset[str]()
    rate = rated.lsgd

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average and callable(self.eta):
            raise InputError("LSGD's weighted average is defined only for a constant step size: give a number as eta.")
        refuse_both(self, self.eta is not None or self.average)

    def is_complete(self) -> bool:
        """Whether a step size or a learning rate is set, and μ if the weighted average needs it."""
        return self.is_plain or (self.eta is not None and (self.mu is not None or not self.average))

    def complete(self, facts: Facts) -> tuple[LSGD, str | None]:
        """Theorem local's step unless a learning rate is set, with the bound 1/(4L^w) for τ = 1, or 1/(4𝓛(b)) if the noise is known."""
        if self.is_plain:
            return self, None
        steps = self.tau if self.epochs is None else self.epochs * int(self._steps_per_epoch(math.ceil(facts.rows)))
        c = facts.constants if self.epochs is None else facts.constants.reshuffled
        # Only the average needs μ. Otherwise it stays None, so that theory's step and the user's share a compiled program.
        return fill(self, stepsizes.lsgd(c, steps, self.batch) | ({"mu": c.mu} if self.average else {})), None

    def _steps_per_epoch(self, rows: int | jax.Array) -> int | jax.Array:
        return 1 if self.batch is None else -(-rows // self.batch)

    def init(self, w0: Pytree) -> Message:
        """Start at w0."""
        return Message(w0, w0 if self.average else ())

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """Start at β0."""
        memory = rule(self, 0).begin(*oracle.outward(w0, beta0)) if self.keep else ()
        return Private(beta0, Average.of_nothing((w0, beta0)) if self.average else (), memory)

    def client(
        self, plan: Plan, shared: Message, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """The local steps, from the shared w."""
        if self.is_plain:
            w, beta, memory = trained(self, plan, oracle.outward(shared.w, private.beta), private.memory, oracle, key)
            w, beta = oracle.inward(w, beta)
            return Private(beta, (), memory), Message(w, ())

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
        """An absent client counts as staying at w."""
        return Message(shared.w, shared.average)

    def sends(self, plan: Plan) -> Message:
        """Every round sends."""
        return Message(jnp.ones_like(plan.k, dtype=bool), jnp.ones_like(plan.k, dtype=bool))

    def model(self, shared: Message) -> Pytree:
        """w, or its weighted average."""
        return shared.average if self.average else shared.w

    def personal(self, private: Private) -> Pytree:
        """β_m, or its weighted average."""
        return private.average.mean[1] if private.average else private.beta
