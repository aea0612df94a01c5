"""SVRCD-PFL: variance-reduced block coordinate descent (Algorithm SVRCD-PFL, with the subtraction missing from its print)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
from jax.typing import ArrayLike

from twofold import tree
from twofold.algorithms import floors, rated
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill
from twofold.algorithms.fields import Batch, drawn, known
from twofold.algorithms.variance_reduction import Message, Plan, coins, counts, estimate, message
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["SVRCD", "Anchored"]


class Anchored(NamedTuple):
    """One block's iterate y, reference point v, and ∇F(v) in that block."""

    y: Pytree
    v: Pytree
    full: Pytree


@record
class SVRCD(Algorithm):
    """y −= η·g with g = (∇f̂(y) − ∇f̂(v))/p + ∇F(v) in the drawn block and ∇F(v) in the other; v⁺ = y with probability ρ.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, tw.algorithms.SVRCD(), rounds=3, record=())
    >>> 0 < result.algorithm.rho < 1, result.ledger.rounds
    (True, 3)
    """

    eta: float | None = None  # η, the step size
    p_w: float | None = None  # the probability that an iteration's sample is for w
    rho: float | None = None  # ρ, the probability of a new reference point, which costs a full gradient
    batch: Batch = static(default="auto")  # rows in one sampled gradient; None: all rows, "auto": the cheapest number
    optimal: Literal["w", "beta"] = static(default="w")  # the block whose number of gradients theory's ρ minimises
    name = "svrcd"
    corrects = frozenset({"sampling"})
    rate = rated.svrcd
    floor = floors.svrcd

    def complete(self, facts: Facts) -> tuple[SVRCD, str | None]:
        """η = 1/(6𝓛) and ρ for the optimal number of ∇_w or of ∇_β; or η = 1/(L + 6σ), if the noise σ is known, and ρ by cost."""
        c, n = facts.constants, facts.rows
        values = stepsizes.svrcd(
            c, n, optimal=self.optimal, p_w=self.p_w, rho=self.rho, batch=self.batch, **facts.prices
        )
        return fill(self, values), None

    def init(self, w0: Pytree) -> Anchored:
        """y = v = w0; the first iteration computes ∇_wF(v)."""
        return Anchored(w0, w0, tree.zeros(w0))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Anchored:
        """y = v = β0."""
        return Anchored(beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the w-coin and the ρ-coin."""
        p_w, rho = known(self.p_w, self.rho)
        return coins(stream, k, p_w, rho)

    def client(
        self, plan: Plan, shared: Anchored, private: Anchored, oracle: GradientOracle, key: Key
    ) -> tuple[Anchored, Message]:
        """The message, this client's own step, and its own reference point."""
        eta, p_w = known(self.eta, self.p_w)
        now, anchor = (shared.y, private.y), (shared.v, private.v)
        sent, own = message(plan, now, anchor, now, oracle, oracle.sample(key, drawn(self.batch)))
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
        """The difference is sent with the w-coin, the full gradient with the ρ-coin."""
        return Message(plan.w, plan.refresh)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """Two batches in the drawn block, and all rows in both blocks on a refresh."""
        return counts(plan.w, plan.refresh, drawn(self.batch), rows)

    def model(self, shared: Anchored) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Anchored) -> Pytree:
        """The sequence y."""
        return private.y
