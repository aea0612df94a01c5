"""SVRCD-PFL: variance-reduced block coordinate descent (Algorithm SVRCD-PFL, with the subtraction it lost)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Open, Setting, fill, size_of_batch
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static


class Plan(NamedTuple):
    """Whether this iteration's sample is for w (else β), and whether the reference point moves."""

    w: Any
    refresh: Any


class Anchored(NamedTuple):
    """One block's iterate y, reference point v, and ∇F(v) in that block."""

    y: Pytree
    v: Pytree
    full: Pytree


class Message(NamedTuple):
    """∇_w f̂_m(now) − ∇_w f̂_m(v) on one sample, and the full ∇_w f_m at the new reference point: each optional."""

    difference: Pytree
    full: Pytree


def coins(stream: jax.Array, k: Any, p_w: Any, rho: Any) -> Plan:
    """The w-coin and the ρ-coin of iteration k.

    Iteration 0 always refreshes: with y = v and no gradient known yet its step is empty, so it is just the start-up round.
    """
    key = randomness.of(stream, k)
    refresh = randomness.coin(randomness.at(key, 1), rho) | (jnp.asarray(k) == 0)
    return Plan(randomness.coin(randomness.at(key, 0), p_w), refresh)


def message(
    plan: Plan, point: Any, anchor: Any, fresh: Any, oracle: GradientOracle, sample: Any
) -> tuple[Message, Pytree]:
    """The message, and the β-part of the sampled difference (zero where the other block was drawn)."""
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


def estimate(drawn: Any, difference: Pytree, full: Pytree, probability: Any) -> Pytree:
    """The unbiased estimate difference/p + ∇F(v) of a block's gradient; ∇F(v) alone where the block was not drawn."""
    return tree.select(drawn, tree.combine((1 / probability, difference), (1.0, full)), full)


def counts(plan: Plan, batch: int | None, rows: Any) -> Evaluations:
    """Two batches in the drawn block, and all rows of both blocks on a refresh."""
    pair, everything = 2 * jnp.asarray(size_of_batch(batch, rows)), jnp.where(plan.refresh, rows, 0)
    return Evaluations(jnp.where(plan.w, pair, 0) + everything, jnp.where(plan.w, 0, pair) + everything)


@record
class SVRCD(Algorithm):
    """y −= η·g with g = (∇f̂(y) − ∇f̂(v))/p + ∇F(v) in the drawn block and ∇F(v) in the other; v⁺ = y with probability ρ."""

    eta: Open = None
    p_w: Open = None
    rho: Open = None
    batch: int | None = static(default=1)
    optimal: Literal["w", "beta"] = static(default="w")
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

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """The w-coin and the ρ-coin."""
        return coins(stream, k, self.p_w, self.rho)

    def client(
        self, plan: Plan, shared: Anchored, private: Anchored, oracle: GradientOracle, key: Key
    ) -> tuple[Anchored, Message]:
        """The message, this client's own step, and its own reference point."""
        now, anchor = (shared.y, private.y), (shared.v, private.v)
        sent, own = message(plan, now, anchor, now, oracle, oracle.sample(key, self.batch))
        gradient = estimate(~plan.w, own, private.full, 1 - self.p_w)
        v, full = branch(
            plan.refresh, lambda: (private.y, oracle.gradient_beta(*now)), lambda: (private.v, private.full)
        )
        return Anchored(tree.combine((1.0, private.y), (-self.eta, gradient)), v, full), sent

    def server(self, plan: Plan, shared: Anchored, mean: Message) -> Anchored:
        """The same step on w."""
        gradient = estimate(plan.w, mean.difference, shared.full, self.p_w)
        v, full = tree.select(plan.refresh, (shared.y, mean.full), (shared.v, shared.full))
        return Anchored(tree.combine((1.0, shared.y), (-self.eta, gradient)), v, full)

    def sends(self, plan: Plan) -> Message:
        """The difference with the w-coin, the full gradient with the ρ-coin."""
        return Message(plan.w, plan.refresh)

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """Two batches in the drawn block, and all rows of both blocks on a refresh."""
        return counts(plan, self.batch, rows)

    def model(self, shared: Anchored) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Anchored) -> Pytree:
        """The sequence y."""
        return private.y
