"""pFedMe: personalised federated learning with Moreau envelopes (Dinh et al. 2020, Algorithm 1)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Open, Setting, fill, size_of_batch
from twofold.control import repeat
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static


class Plan(NamedTuple):
    """The round's number; there are no coins."""

    k: Any


class Message(NamedTuple):
    """w_m after the local rounds."""

    w: Pytree


@record
class PFedMe(Algorithm):
    """R local rounds: θ ≈ argmin f̂_m(θ) + (λ/2)‖θ − w_m‖² by K gradient steps, w_m −= ηλ(w_m − θ); then w ← mean.

    It solves the mixture only (by its Moreau envelope in w). The server keeps (1−δ)w + δ·mean; δ is the paper's β.
    With R = 1, all rows and many inner steps this is gradient descent on the envelope; otherwise it stops at a distance
    from the optimum that its inner accuracy, its sampling and its local drift allow.
    """

    eta: Open = None
    inner_eta: Open = None
    lam: Open = None
    delta: float = 1.0
    local_rounds: int = static(default=20)
    inner_steps: int = static(default=5)
    batch: int | None = static(default=20)
    name = "pfedme"
    may_skip_messages = False
    works_with_some = True
    needs = "mixture"

    def __post_init__(self) -> None:
        if self.local_rounds < 1 or self.inner_steps < 1:
            raise InputError(
                f"pFedMe needs local_rounds and inner_steps ≥ 1: {self.local_rounds=}, {self.inner_steps=}."
            )

    def complete(self, setting: Setting) -> tuple[PFedMe, str | None]:
        """η = 1/(λR), inner step 1/(𝓛'+λ)."""
        values = stepsizes.pfedme(setting.lam, setting.loss, self.local_rounds)
        return fill(self, {**values, "lam": setting.lam}), None

    def init(self, w0: Pytree) -> Pytree:
        """Start at w0."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Pytree:
        """θ = β0."""
        return beta0

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """No coins."""
        return Plan(jnp.asarray(k, jnp.int32))

    def client(
        self, plan: Plan, shared: Pytree, private: Pytree, oracle: GradientOracle, key: Key
    ) -> tuple[Pytree, Message]:
        """The local rounds, from the shared w and the client's own θ."""

        def local_round(r: Any, state: tuple) -> tuple:
            w, theta = state
            sample = oracle.sample(randomness.at(key, r), self.batch)

            def inner(_: Any, theta: Pytree) -> Pytree:
                step = -self.inner_eta / oracle.weight  # the oracle's gradient carries p_m; the inner problem does not
                return tree.combine((1.0, theta), (step, oracle.gradient_beta(w, theta, sample)))

            theta = repeat(self.inner_steps, inner, theta)
            pull = tree.subtract(w, tree.unscale(oracle.scale, theta))
            return tree.combine((1.0, w), (-self.eta * self.lam, pull)), theta

        w, theta = repeat(self.local_rounds, local_round, (shared, private))
        return theta, Message(w)

    def server(self, plan: Plan, shared: Pytree, mean: Message) -> Pytree:
        """(1−δ)w + δ·mean."""
        return tree.combine((1 - self.delta, shared), (self.delta, mean.w))

    def absent(self, plan: Plan, shared: Pytree) -> Message:
        """Who does not move stays at w."""
        return Message(shared)

    def sends(self, plan: Plan) -> Message:
        """Every round sends."""
        return Message(jnp.ones_like(plan.k, dtype=bool))

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """R·K batches in β; the pull on w needs no data."""
        each = jnp.asarray(self.local_rounds * self.inner_steps * size_of_batch(self.batch, rows))
        each = jnp.broadcast_to(each, jnp.broadcast_shapes(jnp.shape(plan.k), each.shape))
        return Evaluations(jnp.zeros_like(each), each)

    def model(self, shared: Pytree) -> Pytree:
        """w."""
        return shared

    def personal(self, private: Pytree) -> Pytree:
        """θ_m."""
        return private
