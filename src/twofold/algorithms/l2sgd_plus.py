"""L2SGD+: loopless local SGD with variance reduction for the mixture (Hanzely & Richtárik 2020, Algorithm 2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Open, Setting, fill, size_of_batch
from twofold.algorithms.scd import Plan
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static


class Private(NamedTuple):
    """β_m, the table of its rows' last gradients with their mean, and Ψ_m = λ(β_m − mean) when last averaged."""

    beta: Pytree
    table: Pytree
    mean: Pytree
    psi: Pytree


class Message(NamedTuple):
    """β_m itself, in the units of the scaled w: unlike all other methods, this one sends the personal model."""

    beta: Pytree


@record
class L2SGDPlus(Algorithm):
    """With probability 1−p a local SAGA step on f'_m, with probability p a step towards the mean of all β_m.

    local: β −= p_m η [ (∇f'_j(β) − J_j)/(1−p) + mean J + Ψ ], then J_j = ∇f'_j(β);
    mean:  β −= p_m η [ λ(β − mean β)/p − (1/p − 1)Ψ + mean J ], then Ψ = λ(β − mean β).
    It solves the mixture only, and **its message is the personal model β_m**. It keeps one gradient per row.
    """

    eta: Open = None
    p_w: Open = None
    lam: Open = None
    batch: int | None = static(default=1)
    name = "l2sgd_plus"
    needs = "mixture"

    def complete(self, setting: Setting) -> tuple[L2SGDPlus, str | None]:
        """p = p_w and a step for SAGA-type estimators."""
        penalty = setting.lam * setting.heaviest
        values = stepsizes.l2sgd_plus(setting.constants, self.p_w, penalty=penalty, batch=self.batch)
        return fill(self, {"eta": values["eta"], "p_w": values["p"], "lam": setting.lam}), None

    def init(self, w0: Pytree) -> Pytree:
        """The mean of all β_m when last averaged, in the scaled space."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """β0 and empty control variates."""
        table = jax.tree.map(lambda leaf: jnp.zeros((oracle.capacity, *jnp.shape(leaf)), leaf.dtype), beta0)
        return Private(beta0, table, tree.zeros(beta0), tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """The coin that decides between a local step and an averaging one."""
        return Plan(randomness.coin(randomness.of(stream, k), self.p_w))

    def client(
        self, plan: Plan, shared: Pytree, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """A local step; an averaging one needs the mean first, and is made in `receive`."""
        beta, table, mean, psi = private
        sample = oracle.sample(key, self.batch)
        index = jnp.arange(oracle.capacity) if sample is None else sample.index
        old = jax.tree.map(lambda leaf: leaf[index], table)
        # At w = β the mixture's penalty vanishes, so these are the gradients of f'_m alone, row by row.
        at = tree.unscale(oracle.scale, beta)
        # Only the rows pass through the branch, never the table: a batched branch would copy all of it.
        new = branch(
            plan.w,
            lambda: old,
            lambda: tree.scale(1 / oracle.weight, oracle.row_gradients_beta(at, beta, sample)),
        )
        change, real = tree.subtract(new, old), index < oracle.count
        moved = _weighted(real, oracle.count if sample is None else len(index), change)
        step = -oracle.weight * self.eta
        after = tree.combine((1.0, beta), (step / (1 - self.p_w), moved), (step, mean), (step, psi))
        # A row sampled twice in a batch enters the table, and so its mean, only once.
        once = real if sample is None else real & ~jnp.any(jnp.tril(index[:, None] == index[None, :], -1), axis=1)
        mean = tree.combine((1.0, mean), (1.0, _weighted(once, oracle.count, change)))
        table = jax.tree.map(lambda leaf, value: leaf.at[index].set(value), table, new)
        message = Message(tree.unscale(oracle.scale, beta))
        return Private(tree.select(plan.w, beta, after), table, mean, psi), message

    def server(self, plan: Plan, shared: Pytree, mean: Message) -> Pytree:
        """Remember the mean."""
        return tree.select(plan.w, mean.beta, shared)

    def receive(self, plan: Plan, shared: Pytree, private: Private, oracle: GradientOracle) -> Private:
        """The averaging step, now that the mean is known."""
        beta, table, mean, psi = private
        pull = tree.scale(self.lam, tree.subtract(beta, tree.scale(oracle.scale, shared)))
        step = -oracle.weight * self.eta
        away = -step * (1 / self.p_w - 1)
        after = tree.combine((1.0, beta), (step / self.p_w, pull), (away, psi), (step, mean))
        beta, psi = tree.select(plan.w, (after, pull), (beta, psi))
        return Private(beta, table, mean, psi)

    def sends(self, plan: Plan) -> Message:
        """Only an averaging iteration sends."""
        return Message(plan.w)

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """One batch in a local iteration."""
        each = jnp.where(plan.w, 0, size_of_batch(self.batch, rows))
        return Evaluations(jnp.zeros_like(each), each)

    def model(self, shared: Pytree) -> Pytree:
        """The mean when last averaged."""
        return shared

    def personal(self, private: Private) -> Pytree:
        """β_m."""
        return private.beta


def _weighted(chosen: jax.Array, size: Any, values: Pytree) -> Pytree:
    # Cast before dividing: a boolean over an integer would be float32 even in a float64 run.
    return jax.tree.map(lambda leaf: jnp.tensordot(chosen.astype(leaf.dtype) / size, leaf, axes=1), values)
