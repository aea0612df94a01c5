"""Scafflix: Scaffnew with a step size for each client (Yi, Condat, Richtárik 2023)."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from twofold import randomness, tree
from twofold.algorithms import rated_clients
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.fields import known
from twofold.algorithms.scaffnew import Message, Private, local_step, meet
from twofold.algorithms.scd import Plan
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.theory import stepsizes_newer
from twofold.tree import Pytree, record, static

__all__ = ["Scafflix"]


@record
class Scafflix(Algorithm):
    """w_m −= η_m(∇_w f_m − h_m); with probability p they become w = Σ (p_m/η_m)w_m / Σ p_m/η_m, h_m += (p/η_m)(w − w_m).

    β_m −= η_m p_m∇_β f_m as in Scaffnew. On `objectives.flix` this is the method of its paper, whose h_i is h_m/α_m here and whose
    γ_i is α_m²η_m. Proven, with β or without (`stepsizes_newer.scafflix`): linear convergence as for Scaffnew, with κ = max L_m/μ_m,
    the condition number of the worst single client. The server must know every client's L_m, and a message is w_m/η_m.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> objective = tw.objectives.flix(tw.losses.logistic(l2=0.1), alpha=0.5)
    >>> problem = tw.Problem(objective, tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, "scafflix", tol=1e-6)
    >>> result.status, result.algorithm.steps.shape
    ('converged', (3,))
    """

    steps: NDArray[np.float64] | None = None
    """η_m, the step size of each client."""
    mass: float | None = None
    """Σ p_m/η_m; theory computes it from the clients' weights."""
    p_w: float | None = None
    """p, the probability of a round after a local step."""
    batch: int | None = static(default=None)
    """Rows in one sampled gradient; None takes all rows."""
    name = "scafflix"
    corrects = frozenset[str]()
    rate = rated_clients.rounds_of_clients(stepsizes_newer.scafflix, "steps")

    def complete(self, facts: Facts) -> tuple[Scafflix, str | None]:
        """η_m = 1/L_m, and p = √(min η_m μ_m)."""
        values = stepsizes_newer.scafflix(facts.constants, facts.each(), self.batch, self.p_w)
        if self.steps is not None:
            steps, weights = np.asarray(self.steps, np.float64), facts.each().weights
            if steps.shape != weights.shape or not np.all(steps > 0):
                raise InputError(
                    f"Scafflix needs a step > 0 for each of {len(weights)} clients, got steps={self.steps!r}."
                )
            values["mass"] = float(weights @ (1 / steps))
        return fill(self, values), values["note"]

    def _step(self, oracle: GradientOracle) -> jax.Array:
        """This client's η_m."""
        if self.steps is None:
            known(None)
        return jnp.asarray(self.steps)[oracle.position]

    def init(self, w0: Pytree) -> Pytree:
        """The last mean of the w_m."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """All clients start at w0 with h_m = 0."""
        return Private(w0, tree.zeros(w0), beta0)

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the coin that decides whether there is a round."""
        (p_w,) = known(self.p_w)
        return Plan(randomness.coin(randomness.of(stream, k), p_w))

    def client(
        self, plan: Plan, shared: Pytree, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """A local step, in every iteration."""
        step = self._step(oracle)
        moved = local_step(private, oracle, key, self.batch, step)
        return moved, Message(tree.scale(1 / step, moved.w))

    def server(self, plan: Plan, shared: Pytree, mean: Message) -> Pytree:
        """In a round, the mean of the w_m with weights p_m/η_m."""
        (mass,) = known(self.mass)
        return tree.select(plan.w, tree.scale(1 / mass, mean.w), shared)

    def receive(self, plan: Plan, shared: Pytree, private: Private, oracle: GradientOracle) -> Private:
        """The mean becomes the new w_m, and the control variate is updated by the difference."""
        (p_w,) = known(self.p_w)
        return meet(plan, shared, private, p_w / self._step(oracle))

    def sends(self, plan: Plan) -> Message:
        """w_m/η_m is sent if there is a round."""
        return Message(plan.w)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """A batch, or all rows, in both blocks."""
        return Evaluations(*2 * (size_of_batch(self.batch, rows) + jnp.zeros_like(plan.w, dtype=jnp.int32),))

    def model(self, shared: Pytree) -> Pytree:
        """The last mean."""
        return shared

    def personal(self, private: Private) -> Pytree:
        """β_m."""
        return private.beta
