"""AL2SGD+: accelerated L2SGD+ for the mixture (Hanzely, Hanzely, Horváth, Richtárik 2020, Algorithm 3)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from twofold import tree
from twofold.algorithms import rated
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.fields import known
from twofold.algorithms.variance_reduction import Triple, coins, mix, move
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes_newer
from twofold.tree import Pytree, record, static

__all__ = ["AL2SGDPlus", "Message", "Plan", "Shared"]


class Plan(NamedTuple):
    """The coins for an averaging step and a refresh, and whether the mean of the x_m must be asked for."""

    w: jax.Array
    refresh: jax.Array
    first: jax.Array


class Shared(NamedTuple):
    """The latest known mean of the personal models, and the means of y, z, v and p_m∇f'_m(v), as far as they are known."""

    w: Pytree
    means: Triple


class Message(NamedTuple):
    """x_m for averaging, and the new v_m on a refresh, both personal models; with `carry` also z_m, and p_m∇f'_m at the new v_m."""

    point: Pytree
    reference: Pytree


@record
class AL2SGDPlus(Algorithm):
    """x = θ₁z + θ₂v + (1−θ₁−θ₂)y; y⁺ = x − ηg; z⁺ = νz + (1−ν)x − γg; v⁺ = y with probability ρ, all of them in β.

    local (1−p): g = p_m[(∇f'_j(x) − ∇f'_j(v))/(1−p) + ∇f'_m(v) + Ψ];
    mean (p):    g = p_m[λ(x − mean x)/p − (1/p − 1)Ψ + ∇f'_m(v)], with Ψ = λ(v − mean v).
    Together they are an unbiased estimator of ∇(f + ψ), whose variance vanishes as x and v converge: L-Katyusha, linear for any p
    and ρ (`stepsizes_newer`). It solves the mixture only, and **its message is the personal model**. With equal weights, where all
    but ∇f'_m(v) cancels in the mean of g, means stay known through averaging steps in a row, and only the first sends (`carry`).
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), 0.5), clients)
    >>> tw.solve(problem, "al2sgd_plus", rounds=3).ledger.rounds
    3
    """

    eta: float | None = None  # η, the step of y
    p_w: float | None = None  # p, the probability of an averaging step
    rho: float | None = None  # ρ, the probability of a new reference point, which costs a full gradient and a round
    theta1: float | None = None  # θ₁, the weight of z in x
    theta2: float | None = None  # θ₂, the weight of v in x
    gamma: float | None = None  # γ, the step of z
    nu: float | None = None  # ν, how much of itself z keeps in a step
    lam: float | None = None  # λ, the strength of the mixture's penalty
    batch: int | None = static(default=1)  # rows in one sampled gradient; None takes all rows
    carry: bool | None = static(default=None)  # send in the first of averaging steps in a row only; equal weights only
    name = "al2sgd_plus"
    needs = "mixture"
    rate = rated.al2sgd_plus

    def complete(self, facts: Facts) -> tuple[AL2SGDPlus, str | None]:
        """p, ρ, η, θ, γ and ν of L-Katyusha on f + ψ, for the batch and the sampling in force."""
        assert facts.loss is not None and facts.lam is not None  # `needs` holds
        noise, weights, own = facts.constants.noise_beta, facts.each().weights, (self.p_w, self.rho, self.eta)
        values = stepsizes_newer.al2sgd_plus(facts.loss, weights, facts.lam, *own, batch=self.batch, noise=noise)
        return fill(self, values), values["note"]

    def init(self, w0: Pytree) -> Shared:
        """Start at w0; the first iteration computes the mean of the β0."""
        return Shared(w0, Triple(w0, w0, w0, w0))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Triple:
        """y = z = v = β0; the first iteration computes the gradient at v, and what is in its place makes its step empty."""
        pull = oracle.weight * known(self.lam)[0]
        return Triple(beta0, beta0, beta0, tree.combine((pull, tree.scale(oracle.scale, w0)), (-pull, beta0)))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the coins for an averaging step and for a refresh; iteration 0 only refreshes, and its step is empty."""
        now, before = (coins(stream, abs(i), *known(self.p_w, self.rho)) for i in (k, k - 1))
        return Plan(now.w & (k > 0), now.refresh, now.w & (k > 0) & ~(before.w & (k > 1) & bool(self.carry)))

    def client(
        self, plan: Plan, shared: Shared, private: Triple, oracle: GradientOracle, key: Key
    ) -> tuple[Triple, Message]:
        """A step with all of g except the mean of the x_m, which `receive` adds, and the refresh."""
        (p, lam), t, weight = known(self.p_w, self.lam), private, oracle.weight
        x, sample = mix(t, *known(self.theta1, self.theta2)), oracle.sample(key, self.batch)
        pull = tree.scale(lam, tree.subtract(t.v, tree.scale(oracle.scale, shared.means.v)))

        def slope(at: Pytree, rows: object = None) -> Pytree:
            return oracle.gradient_beta(tree.unscale(oracle.scale, at), at, rows)  # at w = β there is no penalty

        own = branch(
            plan.w,
            lambda: tree.combine((weight * lam / p, x), (-weight * (1 / p - 1), pull)),
            lambda: tree.combine((1 / (1 - p), slope(x, sample)), (-1 / (1 - p), slope(t.v, sample)), (weight, pull)),
        )
        y, z = move(t, x, tree.combine((1.0, own), (1.0, t.full)), *known(self.eta, self.nu, self.gamma))
        v, full = branch(plan.refresh, lambda: (t.y, slope(t.y)), lambda: (t.v, t.full))
        parts = ((x, t.z), (t.y, full)) if self.carry else ((x,), (t.y,))
        return Triple(y, z, v, full), Message(*(tree.unscale(oracle.scale, part) for part in parts))

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """Store the means that were sent, and take a step with those that stay known."""
        (x, *_), (v, *_), t = mean.point, mean.reference, shared.means
        if self.carry:
            x, z = tree.select(plan.first, mean.point, (mix(t, *known(self.theta1, self.theta2)), t.z))
            moved = move(t._replace(z=z), x, t.full, *known(self.eta, self.nu, self.gamma))
            y, z = tree.select(plan.w, moved, (t.y, t.z))
            t = Triple(y, z, t.v, tree.select(plan.refresh, mean.reference[1], t.full))
        v, w = tree.select(plan.refresh, (v, v), (t.v, shared.w))
        return Shared(tree.select(plan.w, x, w), t._replace(v=v))

    def receive(self, plan: Plan, shared: Shared, private: Triple, oracle: GradientOracle) -> Triple:
        """Add the part of g with the mean of the x_m."""
        (eta, p, gamma, lam), t = known(self.eta, self.p_w, self.gamma, self.lam), private
        towards = tree.scale(jnp.where(plan.w, oracle.weight * lam / p, 0.0), tree.scale(oracle.scale, shared.w))
        return t._replace(y=tree.combine((1.0, t.y), (eta, towards)), z=tree.combine((1.0, t.z), (gamma, towards)))

    def sends(self, plan: Plan) -> Message:
        """x_m is sent where its mean is not known, y_m on a refresh."""
        return Message(plan.first, plan.refresh)

    def evaluations(self, plan: Plan, rows: int | jax.Array) -> Evaluations:
        """Two batches in a local iteration, and all rows on a refresh."""
        each = jnp.where(plan.w, 0, 2 * size_of_batch(self.batch, rows)) + jnp.where(plan.refresh, rows, 0)
        return Evaluations(0 * each, each)

    def model(self, shared: Shared) -> Pytree:
        """The latest known mean of the personal models."""
        return shared.w

    def personal(self, private: Triple) -> Pytree:
        """The sequence y."""
        return private.y
