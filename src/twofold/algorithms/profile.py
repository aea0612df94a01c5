"""Profile: each client minimises over its own β, and the server minimises the remaining function of w in very few rounds."""
# pyright: standard

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import jax
import jax.numpy as jnp

from twofold.algorithms import rated_clients
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill
from twofold.algorithms.linear import symmetric
from twofold.algorithms.lsgd import Plan
from twofold.algorithms.newton import Inner, Message, Outer, Private, choose, minimise_beta, profile_hessian
from twofold.algorithms.search import Search, advance, begin
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.tree import Pytree, record, select, size, static

__all__ = ["Message", "Plan", "Private", "Profile"]


@record
class Profile(Algorithm):
    """min_w Σ p_m φ_m(w) with φ_m(w) = min_β f_m(w, β): β never leaves a client, and w takes only the rounds of L-BFGS or Newton.

    By the envelope theorem ∇φ_m(w) = ∇_w f_m(w, β*(w)), and ∇²φ_m = H_ww − H_wβ H_ββ⁻¹ H_βw. One iteration is one round: each
    client takes `steps` safeguarded Newton steps over β at the trial w and sends φ_m, ∇φ_m and, with `outer="newton"`, ∇²φ_m
    (d(d+1)/2 numbers). The server accepts the trial or shortens its step. The method reports the last accepted w with the β_m that
    belong to it, so F never rises, up to rounding.

    `outer="auto"` is Newton if w and β have at most 200 entries each, else L-BFGS with `memory` pairs. `inner="auto"` forms H_ββ for
    up to 100 entries (200 with Newton), else takes `products` conjugate gradient steps in each Newton step. `steps` is 2, and 3 with
    matrices (two steps of 3 products need about as many rounds as three of 6 on all problems of docs/realdata.md, for under half
    of the passes). **No bound of the inner error is certified**: β_m is what these steps leave. Values and certificates are those of
    the pair (w, β_m); if β_m was too far off for a good direction, the shorter next step comes with a better β_m.
    A Hessian counts as one gradient of every row for each of its columns, and a Hessian product as one gradient of every row.

    >>> import numpy as np, twofold as tw
    >>> rng = np.random.default_rng(0)
    >>> clients = tw.Clients.from_list([(rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for _ in range(4)])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, "profile", tol=1e-10)
    >>> result.status, result.ledger.rounds
    ('converged', 3)
    """

    L_w: float | None = None
    outer: Outer = static(default="auto")
    inner: Inner = static(default="auto")
    memory: int = static(default=20)
    steps: int | None = static(default=None)
    products: int = static(default=3)
    sizes: tuple[int, int] | None = static(default=None)
    name = "profile"
    may_skip_messages = False
    rate = rated_clients.profile

    def __post_init__(self) -> None:
        if min(self.memory, self.steps or 1, self.products) < 1 or self.steps == 0:
            raise InputError(f"Profile needs all of these ≥ 1: {self.memory=}, {self.steps=}, {self.products=}.")
        for name, allowed in (("outer", get_args(Outer)), ("inner", get_args(Inner))):
            if getattr(self, name) not in allowed:
                raise InputError(f"Profile's {name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")

    def is_complete(self) -> bool:
        """Never, because the choices depend on the size of the problem."""
        return False

    def complete(self, facts: Facts) -> tuple[Profile, str | None]:
        """A first step of 1/L^w, and the solvers that suit the number of parameters."""
        return fill(self.sized(facts), {"L_w": max(facts.constants.L_w, 1e-12)}), None

    def sized(self, facts: Facts) -> Profile:
        """The method with its solvers chosen, which does not need the constants."""
        outer, inner = choose(self.outer, self.inner, *facts.sizes, facts.convex)
        steps = self.steps or (3 if inner == "matrix" and not facts.quadratic else 2)
        return dataclasses.replace(self, outer=outer, inner=inner, steps=steps, sizes=facts.sizes)

    def init(self, w0: Pytree) -> Search:
        """The first trial is w0 itself."""
        return begin(w0, self.memory if self.outer == "lbfgs" else None)

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """Start at β0, undamped."""
        return Private(beta0, beta0, jnp.zeros((), jnp.result_type(float)))

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """There are no coins, only the round number."""
        return Plan(jnp.asarray(k, jnp.int32))

    def client(
        self, plan: Plan, shared: Search, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """Minimise over β at the trial w, from the β of the last accepted w; send the value and derivatives in w."""
        w, products = shared.trial, None if self.inner == "matrix" else self.products
        beta, damping = minimise_beta(
            oracle, w, private.beta, private.damping, steps=self.steps or 2, products=products
        )
        if size(w) == 0:
            return Private(private.beta, beta, damping), Message((), w, ())
        value, gradient = oracle.value_and_gradient_w(w, beta)
        hessian = profile_hessian(oracle, w, beta) if self.outer == "newton" else ()
        return Private(private.beta, beta, damping), Message(value, gradient, hessian)

    def server(self, plan: Plan, shared: Search, mean: Message) -> Search:
        """Accept the trial or not, and choose the next trial."""
        if size(shared.w) == 0:
            return shared
        curvature = symmetric(mean.hessian, size(shared.w)) if self.outer == "newton" else None
        return advance(shared, mean.value, mean.gradient, curvature, jnp.asarray(self.L_w))

    def receive(self, plan: Plan, shared: Search, private: Private, oracle: GradientOracle) -> Private:
        """If the trial was accepted, its β becomes the client's current β."""
        return private._replace(beta=select(shared.accepted, private.trial, private.beta))

    def sends(self, plan: Plan) -> Message:
        """Every round sends all parts."""
        return Message(*3 * (jnp.ones_like(plan.k, dtype=bool),))

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """∇φ takes one gradient in w, ∇²φ one in both blocks per column, and a step in β one gradient and one Hessian."""
        d, b = self.sizes or (0, 0)
        step = 1 + (b if self.inner == "matrix" else self.products)
        of_w, of_beta = 1, (1 + (self.steps or 2) * step if b else 0)
        if self.outer == "newton":
            of_w, of_beta = of_w + d, of_beta + (d + b if d and b else 0)
        each = jnp.broadcast_to(rows, jnp.broadcast_shapes(jnp.shape(plan.k), jnp.shape(rows)))
        return Evaluations(of_w * each, of_beta * each)

    def model(self, shared: Search) -> Pytree:
        """The last accepted w."""
        return shared.w

    def personal(self, private: Private) -> Pytree:
        """β_m at the last accepted w."""
        return private.beta
