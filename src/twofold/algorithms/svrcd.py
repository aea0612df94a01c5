"""SVRCD-PFL: variance-reduced block coordinate descent (Algorithm SVRCD-PFL, with the subtraction it lost)."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Setting, fill, size_of_batch
from twofold.algorithms.fields import known
from twofold.algorithms.oracle import Drawn
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["SVRCD", "Anchored", "Message", "Plan", "coins", "counts", "estimate", "message"]

_Point: TypeAlias = tuple[Pytree, Pytree]  # (w, β)


class Plan(NamedTuple):
    """The coins of an iteration: whether its sample is for w (or else β), and whether the reference point moves."""

    w: jax.Array
    refresh: jax.Array


class Anchored(NamedTuple):
    """One block's iterate y, reference point v, and ∇F(v) in that block."""

    y: Pytree
    v: Pytree
    full: Pytree


class Message(NamedTuple):
    """∇_w f̂_m(now) − ∇_w f̂_m(v) on one sample, and the full ∇_w f_m at the new reference point; each is optional."""

    difference: Pytree
    full: Pytree


def coins(stream: jax.Array, k: int | jax.Array, p_w: float, rho: float) -> Plan:
    """Toss the w-coin and the ρ-coin of iteration k.

    Iteration 0 always refreshes. There y = v and no gradient is known yet, so its step is empty: it is the start-up
    round that brings the first full gradient.

    >>> from twofold import randomness
    >>> from twofold.algorithms.svrcd import coins
    >>> stream = randomness.common(randomness.root(0))
    >>> [bool(coins(stream, k, p_w=0.5, rho=0.0).refresh) for k in range(3)]
    [True, False, False]
    """
    key = randomness.of(stream, k)
    refresh = cast(jax.Array, randomness.coin(randomness.at(key, 1), rho) | (jnp.asarray(k) == 0))
    return Plan(randomness.coin(randomness.at(key, 0), p_w), refresh)


def message(
    plan: Plan, point: _Point, anchor: _Point, fresh: _Point, oracle: GradientOracle, sample: Drawn | None
) -> tuple[Message, Pytree]:
    """Give the message, and the β-part of the sampled difference (zero if w was drawn).

    The difference is taken between `point` and the reference point `anchor`. A refresh sends the full gradient at
    `fresh`, the reference point from now on.

    >>> import numpy as np
    >>> import twofold as tw
    >>> from twofold.algorithms.svrcd import Plan, message
    >>> from twofold.problem import Oracle
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2))])
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared()), clients)
    >>> oracle = Oracle(problem.objective, 1.0, problem.member(0))
    >>> zero, one = ((), np.zeros(2)), ((), np.ones(2))
    >>> sent, own = message(Plan(w=False, refresh=False), one, zero, one, oracle, None)
    >>> own.tolist()
    [0.5, 0.5]
    """
    difference = branch(
        plan.w,
        lambda: tree.subtract(
            oracle.gradient_w(point[0], point[1], sample), oracle.gradient_w(anchor[0], anchor[1], sample)
        ),
        lambda: tree.zeros(point[0]),
    )
    own = branch(
        plan.w,
        lambda: tree.zeros(point[1]),
        lambda: tree.subtract(
            oracle.gradient_beta(point[0], point[1], sample), oracle.gradient_beta(anchor[0], anchor[1], sample)
        ),
    )
    full = branch(plan.refresh, lambda: oracle.gradient_w(*fresh), lambda: tree.zeros(point[0]))
    return Message(difference, full), own


def estimate(drawn: jax.Array, difference: Pytree, full: Pytree, probability: float) -> Pytree:
    """Estimate a block's gradient without bias: difference/p + ∇F(v), or ∇F(v) alone if the block was not drawn.

    >>> import jax.numpy as jnp
    >>> from twofold.algorithms.svrcd import estimate
    >>> [float(estimate(jnp.asarray(drawn), jnp.asarray(1.0), jnp.asarray(3.0), 0.25)) for drawn in (True, False)]
    [7.0, 3.0]
    """
    return tree.select(drawn, tree.combine((1 / probability, difference), (1.0, full)), full)


def counts(plan: Plan, batch: int | None, rows: ArrayLike) -> Evaluations:
    """Count single-row gradients: two batches in the drawn block, and all rows in both blocks on a refresh.

    >>> import jax.numpy as jnp
    >>> from twofold.algorithms.svrcd import Plan, counts
    >>> [int(n) for n in counts(Plan(w=jnp.asarray(True), refresh=jnp.asarray(True)), batch=1, rows=10)]
    [12, 10]
    """
    pair, everything = 2 * jnp.asarray(size_of_batch(batch, rows)), jnp.where(plan.refresh, rows, 0)
    return Evaluations(jnp.where(plan.w, pair, 0) + everything, jnp.where(plan.w, 0, pair) + everything)


@record
class SVRCD(Algorithm):
    """y −= η·g with g = (∇f̂(y) − ∇f̂(v))/p + ∇F(v) in the drawn block and ∇F(v) in the other; v⁺ = y with probability ρ.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> objective = tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5)
    >>> problem = tw.Problem(objective, tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, tw.algorithms.SVRCD(), rounds=3, record=())
    >>> round(result.algorithm.rho, 3), result.ledger.rounds
    (0.052, 3)
    """

    eta: float | None = None
    """η, the step size."""
    p_w: float | None = None
    """The probability that an iteration's sample is for w."""
    rho: float | None = None
    """ρ, the probability that the reference point moves, which costs a full gradient."""
    batch: int | None = static(default=1)
    """Rows in one sampled gradient; None takes all rows."""
    optimal: Literal["w", "beta"] = static(default="w")
    """The block whose number of gradients theory's ρ makes optimal."""
    name = "svrcd"

    def complete(self, setting: Setting) -> tuple[SVRCD, str | None]:
        """η = 1/(6𝓛), of the batch where its noise is known; ρ for the optimal number of ∇_w, of ∇_β, or by cost."""
        c, n = setting.constants, setting.rows
        values = stepsizes.svrcd(c, n, optimal=self.optimal, p_w=self.p_w, rho=self.rho, batch=self.batch)
        return fill(self, values), None

    def init(self, w0: Pytree) -> Anchored:
        """y = v = w0; the first iteration brings ∇_wF(v)."""
        return Anchored(w0, w0, tree.zeros(w0))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Anchored:
        """y = v = β0."""
        return Anchored(beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """The w-coin and the ρ-coin."""
        p_w, rho = known(self.p_w, self.rho)
        return coins(stream, k, p_w, rho)

    def client(
        self, plan: Plan, shared: Anchored, private: Anchored, oracle: GradientOracle, key: Key
    ) -> tuple[Anchored, Message]:
        """The message, this client's own step, and its own reference point."""
        eta, p_w = known(self.eta, self.p_w)
        now, anchor = (shared.y, private.y), (shared.v, private.v)
        sent, own = message(plan, now, anchor, now, oracle, oracle.sample(key, self.batch))
        gradient = estimate(~plan.w, own, private.full, 1 - p_w)
        v, full = branch(
            plan.refresh, lambda: (private.y, oracle.gradient_beta(*now)), lambda: (private.v, private.full)
        )
        return Anchored(tree.combine((1.0, private.y), (-eta, gradient)), v, full), sent

    def server(self, plan: Plan, shared: Anchored, mean: Message) -> Anchored:
        """The same step on w."""
        eta, p_w = known(self.eta, self.p_w)
        gradient = estimate(plan.w, mean.difference, shared.full, p_w)
        v, full = tree.select(plan.refresh, (shared.y, mean.full), (shared.v, shared.full))
        return Anchored(tree.combine((1.0, shared.y), (-eta, gradient)), v, full)

    def sends(self, plan: Plan) -> Message:
        """The difference with the w-coin, the full gradient with the ρ-coin."""
        return Message(plan.w, plan.refresh)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """Two batches in the drawn block, and all rows of both blocks on a refresh."""
        return counts(plan, self.batch, rows)

    def model(self, shared: Anchored) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Anchored) -> Pytree:
        """The sequence y."""
        return private.y
