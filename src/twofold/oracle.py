"""One client as an algorithm sees it: its rows, samples of them, and gradients in the algorithm's variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from twofold import randomness, tree
from twofold.control import traced_once
from twofold.curvature.certificate import ClientFactors, SharedFactors
from twofold.losses import Rows
from twofold.objectives.base import Objective
from twofold.randomness import Key
from twofold.sampling import alias_rows
from twofold.tree import Pytree
from twofold.variables import Variables

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["PRICES", "Draws", "Member", "Oracle", "Price", "Program", "Sample", "weighted_mean"]


Entry: TypeAlias = jax.Array
"""An array of one client, or of many clients with a leading axis. (Data still on the host are NumPy arrays, used the same way.)"""


class Sample(NamedTuple):
    """Some of a client's rows, with their weights in the client's mean."""

    index: Int[jax.Array, " size"]  # pyright: ignore[reportIncompatibleMethodOverride]  (tuple.index)
    weight: Float[jax.Array, " size"]
    key: jax.Array | None = None  # two words of a random key for dropout and the like; None unless a net is trained


class Draws(NamedTuple):
    """How a client samples rows with probability π_j proportional to their smoothness: an alias table, and weights 1/(n π_j)."""

    probability: Entry
    alias: Entry
    weight: Entry


class Member(NamedTuple):
    """One client's data as the engines hold it, or, with a leading axis, the data of many clients."""

    x: Pytree
    y: Pytree
    count: Entry  # pyright: ignore[reportIncompatibleMethodOverride]  (tuple.count)
    weight: Entry  # p_m
    position: Entry  # its position among all clients; its random stream is derived from it
    own: Pytree
    share: Entry  # its weight in means over clients: p_m, or zero for a copy that only fills a device's shard
    draws: Draws | None = None  # None: rows are drawn uniformly
    factor: Entry | None = None  # R_m of the change of variables β_m = R_m β̃_m
    proof: ClientFactors | None = None  # the factors for its part of the certificate
    row_weight: Entry | None = None  # each row's, averaging one over the client's rows; None: all count the same

    @property
    def capacity(self) -> int:
        """The number of one client's rows, padding included."""
        return jax.tree.leaves(self.x)[0].shape[0]

    def rows(self, sample: Sample | None = None) -> Rows:
        """One client's rows, or a sample of them, in the form that losses take.

        Features stored in a narrower dtype are widened here to the run's precision. This happens after sampling, so only the
        sampled rows are converted.
        """
        each = self.row_weight
        if sample is None:
            weight = (jnp.arange(self.capacity) < self.count).astype(jnp.result_type(float)) / self.count
            return Rows(tree.cast(self.x), self.y, weight if each is None else weight * each)
        x, y = jax.tree.map(lambda leaf: leaf[sample.index], (self.x, self.y))
        weight = sample.weight if each is None else sample.weight * jnp.asarray(each)[sample.index]
        return Rows(tree.cast(x), y, weight, sample.key)


@partial(jax.jit, inline=True, static_argnums=3)
def _by_importance(key: Key, draws: Draws, count: Any, size: int) -> Sample:
    """Sample by importance (see `Oracle.sample`); jitted because the "messages" engine calls it outside a trace."""
    index = alias_rows(randomness.bits(key, 2 * size), draws.probability, draws.alias, count, size)
    return Sample(index, jnp.asarray(draws.weight)[index] / size)


class Price(NamedTuple):
    """The gradients of a row that an answer counts as, in w and in β; with `each`, for each entry of that block.

    Of the gradients in both blocks, only those count that are asked for (`of`).
    """

    w: int
    beta: int
    each: Literal["w", "beta"] | None
    signature: inspect.Signature


PRICES: dict[str, Price] = {}
"""What the oracle's methods cost, by name; those that are not here cost nothing."""
Method = TypeVar("Method", bound=Callable[..., Any])


def _counted(w: int, beta: int, each: Literal["w", "beta"] | None = None) -> Callable[[Method], Method]:
    """Give a method of the oracle its price, and let it be traced once."""

    def register(method: Method) -> Method:
        signature = inspect.signature(method)
        PRICES[method.__name__] = Price(w, beta, each, signature)
        return cast(Method, traced_once(method, static_argnames="of" if "of" in signature.parameters else None))

    return register


@tree.record
class Oracle:
    """One client's values and gradients, on a sample or (if `sample` is None) on all of its rows.

    `gradient_w` is ∇_w f_m(s·w, β_m); its mean over clients is the w-block of ∇F. `gradient_beta` is p_m ∇_β f_m, the
    β_m-block of ∇F (p_m = 1/M by default). The factor 1/M is applied here, so no algorithm can forget it.
    """

    objective: Objective
    variables: Variables
    member: Member

    @property
    def count(self) -> Any:
        """The client's number of rows."""
        return self.member.count

    @property
    def weight(self) -> Any:
        """The client's weight p_m in means over clients."""
        return self.member.weight

    @property
    def position(self) -> Any:
        """The client's number, 0 … M−1."""
        return self.member.position

    @property
    def capacity(self) -> int:
        """The number of rows in memory, padding included."""
        return self.member.capacity

    @property
    def scale(self) -> Any:
        """s, where w is s times the scaled w."""
        return 1.0 if self.variables.scale is None else self.variables.scale

    def sample(self, key: Key, size: int | None, uniform: bool = False) -> Sample | None:
        """Draw `size` rows with replacement; a `size` of None means all rows.

        The draw is by importance if the problem is set up for it and `uniform` is False, and uniform otherwise.
        """
        if size is None:
            return None
        draws = self.member.draws
        if uniform or draws is None:
            return Sample(randomness.rows(key, self.count, size), jnp.full((size,), 1.0 / size))
        return _by_importance(key, draws, self.count, size)

    def order(self, key: Key) -> Int[jax.Array, " rows"]:
        """A random order of this client's own rows (padding, if any, comes last)."""
        return randomness.shuffle(key, self.count, self.capacity)

    def slice(self, order: Int[jax.Array, " rows"], start: Any, size: int) -> Sample:
        """The batch of rows start … start+size−1 of a shuffled order.

        The last batch may be short; it is filled with the first rows, at weight zero. They are real rows, so that a layer that
        uses the whole batch regardless of weights, such as BatchNorm, never sees padding.
        """
        place = start + jnp.arange(size)
        real = place < self.count
        weight = real.astype(jnp.result_type(float)) / jnp.maximum(jnp.sum(real), 1)
        return Sample(order[place % self.count], weight)

    def trained_on(self, sample: Sample | None, key: Key) -> Sample | None:
        """The sample with a random key for dropout and the like, if the loss is a net; other losses get it back unchanged."""
        if not getattr(getattr(self.objective, "loss", None), "trains", False):
            return sample
        if sample is None:
            sample = Sample(jnp.arange(self.capacity) % self.count, self.member.rows().weight)
        return sample._replace(key=randomness.hashed(key))

    def halves(self, sample: Sample | None) -> tuple[Sample | None, Sample | None]:
        """Split a sample into two halves, each with its weights rescaled to sum to one.

        A sample of None (all rows) gives None twice. If the second half holds no rows that count, it is the first half again.
        """
        if sample is None:
            return None, None
        half = len(sample.index) // 2
        rest = len(sample.index) - 2 * half
        keys = [None, None] if sample.key is None else [randomness.hashed(randomness.of(sample.key, i)) for i in (0, 1)]
        whole = (sample.index, sample.weight)
        first, second = [part[:half] for part in whole], [part[half:] for part in whole]
        again = [jnp.pad(part, (0, rest)) for part in first]
        has_rows = jnp.sum(sample.weight[half:]) > 0
        second = [jnp.where(has_rows, new, old) for new, old in zip(second, again, strict=True)]
        return self._half(first[0], first[1], keys[0]), self._half(second[0], second[1], keys[1])

    @staticmethod
    def _half(index: jax.Array, weight: jax.Array, key: Any) -> Sample:
        total = jnp.sum(weight)
        return Sample(index, weight / jnp.where(total > 0, total, 1.0), key)

    def value(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Float[jax.Array, ""]:
        """f_m at the real parameters that w̃ and β̃_m stand for."""
        real = self.variables.w(w), self.variables.beta(beta, self.member.factor)
        return self.objective.value(*real, self.member.rows(sample), self.member.own)

    @_counted(w=1, beta=0)
    def gradient_w(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """∇_w f_m(s·w, β_m)."""
        return jax.grad(self.value, argnums=0)(w, beta, sample)

    @_counted(w=0, beta=1)
    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """p_m ∇_β f_m(s·w, β_m)."""
        return tree.scale(self.weight, jax.grad(self.value, argnums=1)(w, beta, sample))

    @_counted(w=1, beta=1)
    def gradients(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> tuple[Pytree, Pytree]:
        """`gradient_w` and `gradient_beta` together, at the cost of one pass."""
        of_w, of_beta = jax.grad(self.value, argnums=(0, 1))(w, beta, sample)
        return of_w, tree.scale(self.weight, of_beta)

    @_counted(w=1, beta=0)
    def value_and_gradient_w(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> tuple[jax.Array, Pytree]:
        """f_m and ∇_w f_m, at the cost of the gradient alone."""
        return jax.value_and_grad(self.value, argnums=0)(w, beta, sample)

    @_counted(w=0, beta=1)
    def value_and_gradient_beta(
        self, w: Pytree, beta: Pytree, sample: Sample | None = None
    ) -> tuple[jax.Array, Pytree]:
        """f_m and p_m ∇_β f_m, at the cost of the gradient alone."""
        value, of_beta = jax.value_and_grad(self.value, argnums=1)(w, beta, sample)
        return value, tree.scale(self.weight, of_beta)

    # The methods below work in the user's own parameters, without scaling, where a learning rate has its usual meaning.

    def outward(self, w: Pytree, beta: Pytree) -> tuple[Pytree, Pytree]:
        """The user's w and β_m, from the algorithm's variables."""
        return self.variables.w(w), self.variables.beta(beta, self.member.factor)

    def inward(self, w: Pytree, beta: Pytree) -> tuple[Pytree, Pytree]:
        """The algorithm's variables w̃ and β̃_m, from the user's w and β_m."""
        w, metric = tree.unscale(self.variables.scale, w), self.variables.metric
        if metric is None:
            return w, beta
        return metric.w_inverse(w), metric.beta_inverse(self.member.factor, beta)

    @_counted(w=1, beta=1)
    def plain_gradients(
        self, w: Pytree, beta: Pytree, sample: Sample | None = None, of: str = "both"
    ) -> tuple[Pytree, Pytree]:
        """∇_w f_m and ∇_β f_m at the user's parameters, without the factors p_m and s.

        `of` says which of the two the caller uses: "w", "beta" or "both".
        """
        return jax.grad(self._plain_value, argnums=(0, 1))(w, beta, sample)

    def _plain_value(self, w: Pytree, beta: Pytree, sample: Sample | None) -> jax.Array:
        return self.objective.value(w, beta, self.member.rows(sample), self.member.own)

    @_counted(w=1, beta=1)
    def loss_gradient(self, params: Pytree, sample: Sample | None = None, of: str = "w") -> Pytree:
        """∇f'_m, the gradient of the loss alone at one whole model; `of` says which block that model is, "w" or "beta"."""
        return jax.grad(self.objective.loss.value)(params, self.member.rows(sample))

    @_counted(w=0, beta=1, each="beta")
    def hessian_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Float[jax.Array, "b b"]:
        """p_m ∇²_ββ f_m as a matrix, over the entries of β in `ravel_pytree` order; costs one Hessian product per column."""
        flat, unravel = ravel_pytree(beta)
        return jax.jacfwd(lambda v: ravel_pytree(self.gradient_beta(w, unravel(v), sample))[0])(flat)

    @_counted(w=0, beta=1)
    def hessian_beta_times(self, w: Pytree, beta: Pytree, v: Pytree, sample: Sample | None = None) -> Pytree:
        """p_m ∇²_ββ f_m v for a direction v shaped like β."""
        return jax.jvp(lambda at: self.gradient_beta(w, at, sample), (beta,), (v,))[1]

    def hessian_beta_along(self, w: Pytree, beta: Pytree) -> Callable[[Pytree], Pytree]:
        """The map v ↦ p_m ∇²_ββ f_m v; what does not depend on v, such as a net's activations, is computed only once."""
        return jax.linearize(lambda at: self.gradient_beta(w, at), beta)[1]

    @_counted(w=1, beta=1, each="w")
    def hessian_w(
        self, w: Pytree, beta: Pytree, sample: Sample | None = None
    ) -> tuple[Float[jax.Array, "d d"], Float[jax.Array, "b d"]]:
        """∇²_ww f_m and p_m ∇²_βw f_m: the derivative of `gradients` in w, as matrices with one column per entry of w."""
        flat, unravel = ravel_pytree(w)

        def gradients(v: jax.Array) -> tuple[jax.Array, jax.Array]:
            of_w, of_beta = self.gradients(unravel(v), beta, sample)
            return ravel_pytree(of_w)[0], ravel_pytree(of_beta)[0]

        return jax.jacfwd(gradients)(flat)

    @_counted(w=0, beta=1)
    def row_gradients_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """p_m ∇_β f_{m,j} for each row j of the sample, or of all rows; that includes padding, which the caller must mask."""
        index = jnp.arange(self.capacity) if sample is None else sample.index
        alone = jnp.ones((1,))
        return jax.vmap(lambda j: self.gradient_beta(w, beta, Sample(j[None], alone)))(index)


class Program(NamedTuple):
    """All the data of a compiled run: the objective, the change of variables, and each bucket's clients."""

    objective: Objective
    variables: Variables
    stacks: tuple[Member, ...]
    proof: SharedFactors | None = None  # the certificate's factors that all clients share

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many clients each bucket has."""
        return tuple(len(stack.count) for stack in self.stacks)

    def inward(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[Pytree, tuple[Pytree, ...]]:
        """The algorithm's w̃ and each bucket's β̃, from the user's w and β."""
        return self.variables.inward(w, parts, tuple(stack.factor for stack in self.stacks))

    def outward(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[Pytree, tuple[Pytree, ...]]:
        """The user's w and each bucket's β, from the algorithm's w̃ and β̃."""
        return self.variables.outward(w, parts, tuple(stack.factor for stack in self.stacks))

    def oracle(self, member: Member) -> Oracle:
        """One client's oracle."""
        return Oracle(self.objective, self.variables, member)

    def values(self, w: Pytree, parts: tuple[Pytree, ...]) -> list[jax.Array]:
        """f_m of every client, bucket by bucket."""
        return self._of_each(lambda member, beta: self.oracle(member).value(w, beta), parts)

    def gradients_w(self, w: Pytree, parts: tuple[Pytree, ...]) -> list[Pytree]:
        """∇_w f_m of every client, bucket by bucket."""
        return self._of_each(lambda member, beta: self.oracle(member).gradient_w(w, beta), parts)

    def gradients_beta(self, w: Pytree, parts: tuple[Pytree, ...]) -> list[Pytree]:
        """p_m ∇_β f_m of every client, bucket by bucket."""
        return self._of_each(lambda member, beta: self.oracle(member).gradient_beta(w, beta), parts)

    def mean(self, values: list[Pytree]) -> Pytree:
        """Σ_m p_m v_m."""
        return weighted_mean([stack.share for stack in self.stacks], values)

    def _of_each(self, function: Any, parts: tuple[Pytree, ...]) -> list[Pytree]:
        return [jax.vmap(function)(stack, part) for stack, part in zip(self.stacks, parts, strict=True)]


def weighted_mean(shares: Sequence[jax.Array], values: Sequence[Pytree]) -> Pytree:
    """Σ_m p_m v_m, in client order, from each bucket's shares and values; every engine takes its means over clients here."""

    def total(share: jax.Array, leaf: jax.Array) -> jax.Array:
        # A product and a sum instead of a dot: vmapped over seeds, a dot would have to transpose its operands first.
        return jnp.sum(share.reshape(-1, *(1,) * (leaf.ndim - 1)) * leaf, axis=0)

    totals = [
        jax.tree.map(lambda leaf, share=share: total(share, leaf), value)
        for share, value in zip(shares, values, strict=True)
    ]
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *totals)
