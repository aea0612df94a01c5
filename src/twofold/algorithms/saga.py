"""SAGA over clients: only some take part in a round, and the server keeps the mean of all clients' last gradients."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from twofold import tree
from twofold.algorithms import rated_clients
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill
from twofold.algorithms.fields import known
from twofold.algorithms.lsgd import Plan
from twofold.control import repeat
from twofold.randomness import Key
from twofold.theory import stepsizes_newer
from twofold.tree import Pytree, record, static

__all__ = ["SAGA", "Message", "Private", "Shared"]


class Shared(NamedTuple):
    """w, and the mean of all clients' memories h_m."""

    w: Pytree
    memory: Pytree


class Private(NamedTuple):
    """β_m, and h_m, this client's gradient in the server's mean."""

    beta: Pytree
    memory: Pytree


class Message(NamedTuple):
    """∇_w f_m − h_m."""

    difference: Pytree


@record
class SAGA(Algorithm):
    """w −= η[mean h + Σ_present (p_m/q_m)(∇_w f_m − h_m)]; a participant first minimises over its β_m, and renews its h_m.

    Made for `solve(..., participation=…)`: absent clients cost speed but not accuracy. A participant takes `inner` accelerated steps
    β_m −= ∇_β f_m/L^β with momentum, then sends; if the q_m differ, it moves h_m min q/q_m of the way: one message serves both sums.
    Proven for exact elimination of β_m, or no β: linear convergence at 1 − min{ημ, min q_m/2} (`stepsizes_newer.saga` has η).

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=4, rows=8, features=2)
    >>> loss, clients = tw.losses.logistic(l2=0.1), tw.Clients.from_list(made.clients)
    >>> problem = tw.Problem(tw.objectives.mixture(loss, lam=0.5), clients)
    >>> result = tw.solve(problem, "saga", participation=2, tol=1e-6)
    >>> result.status, result.algorithm.q
    ('converged', 0.5)
    """

    eta: float | None = None  # η, the step size
    q: float | NDArray[np.float64] | None = None  # q_m, one for all or one each; from `participation=`
    L_beta: float | None = None  # the largest smoothness of any f_m in β, for the local steps
    momentum: float | None = None  # (√κ−1)/(√κ+1), κ the condition number in β, for the local steps
    inner: int | None = static(default=None)  # local steps; theory's reduce f_m(w, β_m) − min_β f_m(w, β) to a tenth
    name = "saga"
    corrects = frozenset({"absence"})
    may_skip_messages = False
    works_with_some = True
    needs_unbiased = True
    rate = rated_clients.saga

    def is_complete(self) -> bool:
        """Never, because q always comes from the run's participation."""
        return False

    def complete(self, facts: Facts) -> tuple[SAGA, str | None]:
        """η, κ and the number of local steps, for the probabilities of this run."""
        q = 1.0 if facts.participation is None else facts.participation
        values = stepsizes_newer.saga(facts.constants, facts.each(), q, self.inner)
        return fill(dataclasses.replace(self, q=None), values), values["note"]

    def init(self, w0: Pytree) -> Shared:
        """Start at w0, with an empty memory."""
        return Shared(w0, tree.zeros(w0))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """Start at β0, with an empty memory."""
        return Private(beta0, tree.zeros(w0))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """There are no coins, only the round number."""
        return Plan(jnp.int32(k))

    def client(
        self, plan: Plan, shared: Shared, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """Local steps on β_m, then the gradient in w minus the remembered one."""
        beta = self._eliminate(shared.w, private.beta, oracle)
        difference = tree.subtract(oracle.gradient_w(shared.w, beta), private.memory)
        least, own = self._chances()
        part = 1.0 if own is None else least / own[oracle.position]
        return Private(beta, tree.combine((1.0, private.memory), (part, difference))), Message(difference)

    def _eliminate(self, w: Pytree, beta: Pytree, oracle: GradientOracle) -> Pytree:
        """Nesterov's steps towards argmin_β f_m(w, β)."""
        L_beta, momentum = known(self.L_beta, self.momentum)

        def step(i: jax.Array, state: tuple[Pytree, Pytree]) -> tuple[Pytree, Pytree]:
            now, before = state
            ahead = tree.combine((1 + momentum, now), (-momentum, before))
            # The oracle's gradient has the factor p_m, which a step on f_m alone does not.
            return tree.combine((1.0, ahead), (-1 / (L_beta * oracle.weight), oracle.gradient_beta(w, ahead))), now

        return repeat(self.inner or 0, step, (beta, beta))[0]

    def _chances(self) -> tuple[float | jax.Array, jax.Array | None]:
        """min q, and each client's own if they differ."""
        q = jnp.asarray(self.q)  # pyright: ignore[reportUnknownMemberType]
        return (q, None) if q.ndim == 0 else (jnp.min(q), q)

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """A step along the mean memory plus the mean difference, which then updates the memory."""
        (eta,) = known(self.eta)
        w = tree.combine((1.0, shared.w), (-eta, shared.memory), (-eta, mean.difference))
        return Shared(w, tree.combine((1.0, shared.memory), (self._chances()[0], mean.difference)))

    def absent(self, plan: Plan, shared: Shared) -> Message:
        """An absent client's difference is zero."""
        return Message(tree.zeros(shared.w))

    def sends(self, plan: Plan) -> Message:
        """Every round sends."""
        return Message(plan.k >= 0)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """All rows, once in w and `inner` times in β."""
        return Evaluations(rows + 0 * plan.k, (self.inner or 0) * rows + 0 * plan.k)

    def model(self, shared: Shared) -> Pytree:
        """w."""
        return shared.w

    def personal(self, private: Private) -> Pytree:
        """β_m."""
        return private.beta
