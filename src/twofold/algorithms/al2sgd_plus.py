"""AL2SGD+: accelerated L2SGD+ for the mixture (Hanzely, Hanzely, Horváth, Richtárik 2020, Algorithm 3)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import tree
from twofold.algorithms import rated
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.fields import known
from twofold.algorithms.svrcd import Plan, coins
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes_newer
from twofold.tree import Pytree, record, static

__all__ = ["AL2SGDPlus", "Message", "Private", "Shared"]


class Shared(NamedTuple):
    """The latest known mean of the personal models, and the mean of the reference points v_m."""

    w: Pytree
    reference: Pytree


class Private(NamedTuple):
    """The sequences y and z, the reference point v, p_m∇f'_m(v), and Ψ_m = λ(v_m − mean v)."""

    y: Pytree
    z: Pytree
    v: Pytree
    full: Pytree
    pull: Pytree


class Message(NamedTuple):
    """x_m in an averaging iteration, and the new reference point y_m on a refresh; both are personal models."""

    point: Pytree
    reference: Pytree


@record
class AL2SGDPlus(Algorithm):
    """x = θ₁z + θ₂v + (1−θ₁−θ₂)y; y⁺ = x − ηg; z⁺ = νz + (1−ν)x − γg; v⁺ = y with probability ρ, all of them in β.

    local (1−p): g = p_m[(∇f'_j(x) − ∇f'_j(v))/(1−p) + ∇f'_m(v) + Ψ];
    mean (p):    g = p_m[λ(x − mean x)/p − (1/p − 1)Ψ + ∇f'_m(v)], with Ψ = λ(v − mean v).
    Together they are an unbiased estimator of ∇(f + ψ), whose variance vanishes as x and v converge. This is L-Katyusha, with a
    linear rate for any p and ρ (`stepsizes_newer`). It solves the mixture only, and **its message is the personal model**.
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
    nu: float | None = None  # ν = 1 − γμ, the momentum
    lam: float | None = None  # λ, the strength of the mixture's penalty
    batch: int | None = static(default=1)  # rows in one sampled gradient; None takes all rows
    name = "al2sgd_plus"
    needs = "mixture"
    rate = rated.al2sgd_plus

    def complete(self, facts: Facts) -> tuple[AL2SGDPlus, str | None]:
        """p, ρ, η, θ, γ and ν of L-Katyusha on f + ψ."""
        assert facts.loss is not None and facts.lam is not None  # `needs` holds
        values = stepsizes_newer.al2sgd_plus(facts.loss, facts.each().weights, facts.lam, self.p_w, self.rho, self.eta)
        return fill(self, values), values["note"]

    def init(self, w0: Pytree) -> Shared:
        """Start at w0; the first iteration computes the mean of the β0."""
        return Shared(w0, w0)

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """y = z = v = β0; the first iteration computes the gradient at v."""
        return Private(beta0, beta0, beta0, tree.zeros(beta0), tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the coins for an averaging step and for a refresh; iteration 0 only refreshes, and its step is empty."""
        plan = coins(stream, k, *known(self.p_w, self.rho))
        return Plan(plan.w & (k > 0), plan.refresh)

    def client(
        self, plan: Plan, shared: Shared, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """A step with all of g except the mean of the x_m, which `receive` adds, and the refresh."""
        theta1, theta2, nu = known(self.theta1, self.theta2, self.nu)
        eta, p, gamma, lam = known(self.eta, self.p_w, self.gamma, self.lam)
        (y, z, v, full, pull), weight = private, oracle.weight
        x, sample = tree.combine((theta1, z), (theta2, v), (1 - theta1 - theta2, y)), oracle.sample(key, self.batch)

        def slope(at: Pytree, rows: object = None) -> Pytree:
            return oracle.gradient_beta(tree.unscale(oracle.scale, at), at, rows)  # at w = β there is no penalty

        own = branch(
            plan.w,
            lambda: tree.combine((weight * lam / p, x), (-weight * (1 / p - 1), pull)),
            lambda: tree.combine((1 / (1 - p), slope(x, sample)), (-1 / (1 - p), slope(v, sample)), (weight, pull)),
        )
        g = tree.combine((1.0, own), (1.0, full))
        new_y, new_z = tree.combine((1.0, x), (-eta, g)), tree.combine((nu, z), (1 - nu, x), (-gamma, g))
        v, full = branch(plan.refresh, lambda: (y, slope(y)), lambda: (v, full))
        return Private(new_y, new_z, v, full, pull), Message(*(tree.unscale(oracle.scale, at) for at in (x, y)))

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """Store the means that were sent."""
        newest, reference = tree.select(plan.refresh, Shared(mean.reference, mean.reference), shared)
        return Shared(tree.select(plan.w, mean.point, newest), reference)

    def receive(self, plan: Plan, shared: Shared, private: Private, oracle: GradientOracle) -> Private:
        """Add the part of g with the mean of the x_m, and compute Ψ at a new reference point."""
        eta, p, gamma, lam = known(self.eta, self.p_w, self.gamma, self.lam)
        y, z, v, full, pull = private
        towards = tree.scale(oracle.weight * lam / p, tree.scale(oracle.scale, shared.w))
        moved = tree.combine((1.0, y), (eta, towards)), tree.combine((1.0, z), (gamma, towards))
        y, z = tree.select(plan.w, moved, (y, z))
        away = tree.scale(lam, tree.subtract(v, tree.scale(oracle.scale, shared.reference)))
        return Private(y, z, v, full, tree.select(plan.refresh, away, pull))

    def sends(self, plan: Plan) -> Message:
        """x_m is sent in an averaging iteration, y_m on a refresh."""
        return Message(plan.w, plan.refresh)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """Two batches in a local iteration, and all rows on a refresh."""
        each = jnp.where(plan.w, 0, 2 * size_of_batch(self.batch, rows)) + jnp.where(plan.refresh, rows, 0)
        return Evaluations(0 * each, each)

    def model(self, shared: Shared) -> Pytree:
        """The latest known mean of the personal models."""
        return shared.w

    def personal(self, private: Private) -> Pytree:
        """The sequence y."""
        return private.y
