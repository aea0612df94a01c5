"""L2SGD+: loopless local SGD with variance reduction for the mixture (Hanzely & Richtárik 2020, Algorithm 2)."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms import rated
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.fields import known
from twofold.algorithms.scd import Plan
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["L2SGDPlus", "Message", "Private"]


class Private(NamedTuple):
    """β_m, the table of each row's last gradient and their mean, and Ψ_m = λ(β_m − mean) at the last averaging."""

    beta: Pytree
    table: Pytree
    mean: Pytree
    psi: Pytree


class Message(NamedTuple):
    """β_m itself, scaled like w: unlike most methods, this one sends the personal model."""

    beta: Pytree


@record
class L2SGDPlus(Algorithm):
    """With probability 1−p a local SAGA step on f'_m, with probability p a step towards the mean of all β_m.

    local: β −= p_m η [ (∇f'_j(β) − J_j)/(1−p) + mean J + Ψ ], then J_j = ∇f'_j(β);
    mean:  β −= p_m η [ λ(β − mean β)/p − (1/p − 1)Ψ + mean J ], then Ψ = λ(β − mean β).
    It solves the mixture only, and **its message is the personal model β_m**. It stores one gradient per row.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, tw.algorithms.L2SGDPlus(), rounds=3, record=())
    >>> result.algorithm.lam, result.ledger.rounds
    (0.5, 3)
    """

    eta: float | None = None  # η, the step size
    p_w: float | None = None  # p, the probability of an averaging step
    lam: float | None = None  # λ, the strength of the mixture's penalty
    batch: int | None = static(default=1)  # rows in one sampled gradient; None takes all rows
    name = "l2sgd_plus"
    corrects = frozenset({"sampling"})
    needs = "mixture"
    rate = rated.l2sgd_plus

    def complete(self, facts: Facts) -> tuple[L2SGDPlus, str | None]:
        """p = p_w, and a step size for SAGA-type estimators."""
        (lam,) = known(facts.lam)
        penalty = lam * facts.max_weight
        values = stepsizes.l2sgd_plus(facts.constants, self.p_w, penalty=penalty, batch=self.batch)
        return fill(self, {"eta": values["eta"], "p_w": values["p"], "lam": lam}), None

    def init(self, w0: Pytree) -> Pytree:
        """The mean of all β_m at the last averaging, in the scaled space."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """β0 and empty control variates."""

        def row_by_row(leaf: jax.Array) -> jax.Array:
            return jnp.zeros((oracle.capacity, *jnp.shape(leaf)), leaf.dtype)

        return Private(beta0, jax.tree.map(row_by_row, beta0), tree.zeros(beta0), tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the coin that picks a local step or an averaging step."""
        (p_w,) = known(self.p_w)
        return Plan(randomness.coin(randomness.of(stream, k), p_w))

    def client(
        self, plan: Plan, shared: Pytree, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """A local step. An averaging step needs the mean first, so it happens in `receive`."""
        eta, p_w = known(self.eta, self.p_w)
        beta, table, mean, psi = private
        sample = oracle.sample(key, self.batch, uniform=True)
        index = jnp.arange(oracle.capacity) if sample is None else sample.index
        old = tree.rows(table, index)
        # At w = β the mixture's penalty vanishes, so these are the gradients of f'_m alone, row by row.
        at = tree.unscale(oracle.scale, beta)
        # Only the sampled rows pass through the branch, because a batched branch would copy the whole table.
        new = branch(
            plan.w,
            lambda: old,
            lambda: tree.scale(1 / oracle.weight, oracle.row_gradients_beta(at, beta, sample)),
        )
        change, real = tree.subtract(new, old), index < oracle.count
        moved = tree.weighted_sum(real, change, oracle.count if sample is None else len(index))
        step = -oracle.weight * eta
        after = tree.combine((1.0, beta), (step / (1 - p_w), moved), (step, mean), (step, psi))
        # A row that is sampled twice in a batch must count only once in the table and its mean.
        once = real if sample is None else real & ~jnp.any(jnp.tril(index[:, None] == index[None, :], -1), axis=1)
        mean = tree.combine((1.0, mean), (1.0, tree.weighted_sum(once, change, oracle.count)))
        table = tree.replace_rows(table, index, new)
        message = Message(tree.unscale(oracle.scale, beta))
        return Private(tree.select(plan.w, beta, after), table, mean, psi), message

    def server(self, plan: Plan, shared: Pytree, mean: Message) -> Pytree:
        """Store the mean of an averaging iteration."""
        return tree.select(plan.w, mean.beta, shared)

    def receive(self, plan: Plan, shared: Pytree, private: Private, oracle: GradientOracle) -> Private:
        """The averaging step, now that the mean is known."""
        eta, p_w, lam = known(self.eta, self.p_w, self.lam)
        beta, table, mean, psi = private
        pull = tree.scale(lam, tree.subtract(beta, tree.scale(oracle.scale, shared)))
        step = -oracle.weight * eta
        away = -step * (1 / p_w - 1)
        after = tree.combine((1.0, beta), (step / p_w, pull), (away, psi), (step, mean))
        beta, psi = tree.select(plan.w, (after, pull), (beta, psi))
        return Private(beta, table, mean, psi)

    def sends(self, plan: Plan) -> Message:
        """β_m is sent in an averaging iteration."""
        return Message(plan.w)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """One batch in a local iteration."""
        each = jnp.where(plan.w, 0, size_of_batch(self.batch, rows))
        return Evaluations(jnp.zeros_like(each), each)

    def model(self, shared: Pytree) -> Pytree:
        """The mean of all β_m at the last averaging."""
        return shared

    def personal(self, private: Private) -> Pytree:
        """β_m."""
        return private.beta
