"""SCD-PFL: stochastic block coordinate descent (Algorithm SCD-PFL)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Open, Setting, fill, size_of_batch
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static


class Plan(NamedTuple):
    """Whether this iteration moves w (else β)."""

    w: Any


class Message(NamedTuple):
    """∇_w f̂_m on the sampled rows."""

    gradient: Pytree


@record
class SCD(Algorithm):
    """With probability p_w: w −= (η/p_w) mean ∇_w f̂_m; else β_m −= (η/p_β) p_m ∇_β f̂_m."""

    eta: Open = None
    p_w: Open = None
    batch: int | None = static(default=1)
    name = "scd"

    def complete(self, setting: Setting) -> tuple[SCD, str | None]:
        """p_w = 𝓛^w/(𝓛^w+𝓛^β) or by cost, η = 1/(2𝓛), of the batch where its noise is known."""
        return fill(self, stepsizes.scd(setting.constants, p_w=self.p_w, n=setting.rows, batch=self.batch)), None

    def init(self, w0: Pytree) -> Pytree:
        """Start at w0."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Pytree:
        """Start at β0."""
        return beta0

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """The block's coin."""
        return Plan(randomness.coin(randomness.of(stream, k), self.p_w))

    def client(
        self, plan: Plan, shared: Pytree, private: Pytree, oracle: GradientOracle, key: Key
    ) -> tuple[Pytree, Message]:
        """A sampled gradient in the drawn block."""
        sample = oracle.sample(key, self.batch)
        gradient = branch(plan.w, lambda: oracle.gradient_w(shared, private, sample), lambda: tree.zeros(shared))
        step = -self.eta / (1 - self.p_w)
        moved = branch(
            plan.w,
            lambda: private,
            lambda: tree.combine((1.0, private), (step, oracle.gradient_beta(shared, private, sample))),
        )
        return moved, Message(gradient)

    def server(self, plan: Plan, shared: Pytree, mean: Message) -> Pytree:
        """w moves only when its coin fell."""
        return tree.select(plan.w, tree.combine((1.0, shared), (-self.eta / self.p_w, mean.gradient)), shared)

    def sends(self, plan: Plan) -> Message:
        """Only a w-iteration sends."""
        return Message(plan.w)

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """One batch in the drawn block."""
        each = size_of_batch(self.batch, rows)
        return Evaluations(jnp.where(plan.w, each, 0), jnp.where(plan.w, 0, each))

    def model(self, shared: Pytree) -> Pytree:
        """w."""
        return shared

    def personal(self, private: Pytree) -> Pytree:
        """β_m."""
        return private
