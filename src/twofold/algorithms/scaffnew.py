"""Scaffnew: local gradient steps with control variates, and occasional rounds (Mishchenko et al. 2022, ProxSkip)."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms import rated_clients
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.fields import known
from twofold.algorithms.scd import Plan
from twofold.randomness import Key
from twofold.theory import stepsizes_newer
from twofold.tree import Pytree, record, static

__all__ = ["Message", "Private", "Scaffnew", "local_step", "meet"]


class Private(NamedTuple):
    """This client's own copy of w, its control variate h_m, and β_m."""

    w: Pytree
    control: Pytree
    beta: Pytree


class Message(NamedTuple):
    """w_m after a local step (in Scafflix, divided by the client's step size)."""

    w: Pytree


def local_step(
    private: Private, oracle: GradientOracle, key: Key, batch: int | None, step: float | jax.Array
) -> Private:
    """Take one step on both blocks: w_m −= η(∇_w f_m − h_m), β_m −= η p_m∇_β f_m.

    >>> import numpy as np
    >>> import twofold as tw
    >>> from twofold.algorithms.scaffnew import Private, local_step
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2))])
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.squared()), clients)
    >>> oracle = problem.program().oracle(problem.member(0))
    >>> start = Private(np.zeros(2), np.full(2, 0.5), ())
    >>> local_step(start, oracle, None, None, 0.1).w.tolist()
    [0.1, 0.1]
    """
    of_w, of_beta = oracle.gradients(private.w, private.beta, oracle.sample(key, batch))
    w = tree.combine((1.0, private.w), (-step, of_w), (step, private.control))
    return Private(w, private.control, tree.combine((1.0, private.beta), (-step, of_beta)))


def meet(plan: Plan, w: Pytree, private: Private, rate: float | jax.Array) -> Private:
    """Take over the mean after a round: h_m += rate·(w − w_m), w_m = w; without a round, nothing changes.

    >>> import jax.numpy as jnp
    >>> from twofold.algorithms.scaffnew import Private, meet
    >>> from twofold.algorithms.scd import Plan
    >>> after = meet(Plan(jnp.asarray(True)), jnp.ones(1), Private(jnp.zeros(1), jnp.zeros(1), ()), 0.5)
    >>> after.w.tolist(), after.control.tolist()
    ([1.0], [0.5])
    """
    control = tree.combine((1.0, private.control), (rate, w), (-rate, private.w))
    w, control = tree.select(plan.w, (w, control), (private.w, private.control))
    return Private(w, control, private.beta)


@record
class Scaffnew(Algorithm):
    """w_m −= η(∇_w f_m − h_m), β_m −= ηp_m∇_β f_m; with probability p the w_m become their mean w, h_m += (p/η)(w − w_m).

    ProxSkip on one copy of w per client. Proven, with β or without (`stepsizes_newer.scaffnew`): for full gradients, and if each
    f_m is strongly convex in (w, β_m), it converges linearly to the optimum, in O(κ log 1/ε) iterations and O(√κ log 1/ε) rounds
    with p = 1/√κ and κ = max L_m/min μ_m, however different the clients are. On sampled rows (`batch`) it stops short of it.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.01)), tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, "scaffnew", tol=1e-6)
    >>> result.status, 2 * result.ledger.rounds < result.ledger.iterations
    ('converged', True)
    """

    eta: float | None = None
    """η, the step size."""
    p_w: float | None = None
    """p, the probability of a round after a local step."""
    batch: int | None = static(default=None)
    """Rows in one sampled gradient; None takes all rows."""
    name = "scaffnew"
    corrects = frozenset[str]()
    rate = rated_clients.rounds_of_clients(stepsizes_newer.scaffnew, "eta")

    def complete(self, facts: Facts) -> tuple[Scaffnew, str | None]:
        """η = 1/L and p = 1/√κ of the worst client, with a shorter step for sampled rows."""
        values = stepsizes_newer.scaffnew(facts.constants, facts.each(), self.batch, self.p_w)
        return fill(self, values), values["note"]

    def init(self, w0: Pytree) -> Pytree:
        """The last mean of the w_m."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """All clients start at w0 with h_m = 0; the mean of the h_m must be zero, and stays zero."""
        return Private(w0, tree.zeros(w0), beta0)

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the coin that decides whether there is a round."""
        (p_w,) = known(self.p_w)
        return Plan(randomness.coin(randomness.of(stream, k), p_w))

    def client(
        self, plan: Plan, shared: Pytree, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """A local step, in every iteration."""
        (eta,) = known(self.eta)
        moved = local_step(private, oracle, key, self.batch, eta)
        return moved, Message(moved.w)

    def server(self, plan: Plan, shared: Pytree, mean: Message) -> Pytree:
        """The mean of the w_m in a round."""
        return tree.select(plan.w, mean.w, shared)

    def receive(self, plan: Plan, shared: Pytree, private: Private, oracle: GradientOracle) -> Private:
        """The mean becomes the new w_m, and the control variate is updated by the difference."""
        eta, p_w = known(self.eta, self.p_w)
        return meet(plan, shared, private, p_w / eta)

    def sends(self, plan: Plan) -> Message:
        """w_m is sent if there is a round."""
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
