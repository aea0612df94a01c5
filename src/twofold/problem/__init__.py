"""A problem is an objective, the clients, and a change of variables: values, gradients, constants, reference optimum."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What users hand over is looked at, whatever its annotation says.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import copy
import dataclasses
import textwrap
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from twofold import kernels, tree
from twofold.clients import Clients
from twofold.curvature import choice
from twofold.curvature.bounds import RowSmoothness, arrow, row_smoothness, sharp, single_rows
from twofold.curvature.certificate import Certificate, ClientFactors, prepare
from twofold.curvature.metric import Kind, Metric, build
from twofold.curvature.model import BlockCurvature
from twofold.errors import InputError, KindError
from twofold.exports import WIDTH
from twofold.losses import Linear
from twofold.objectives.base import Objective
from twofold.oracle import Draws, Member, Program
from twofold.problem import gradients
from twofold.problem.arguments import (
    FeatureDtype,
    check_loss,
    feature_dtype_of,
    no_objective,
    rounded,
    sampling_of,
    scale_of,
)  # fmt: skip
from twofold.sampling import FLOOR, alias_table, row_weights
from twofold.theory.arrow import best_probability
from twofold.theory.constants import Constants, Sampling
from twofold.tree import Pytree
from twofold.variables import Variables

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Optimum", "Problem"]

MANY = 20_000
"""Clients up to which it is worth the seconds to look for the best p_w of ACD."""


_inward = jax.jit(Variables.inward)
"""For its shapes alone: traced once for all problems of one shape."""


def _now(put: Callable[[Pytree], Pytree], x: Pytree) -> Pytree:
    """x on the device, also when first asked for inside somebody's jit: what is kept must not belong to a trace."""
    with jax.ensure_compile_time_eval():
        return put(x)


def _in(dtype: np.dtype, x: Pytree) -> Pytree:
    """x as NumPy arrays, with floating numbers in the given precision."""
    arrays = jax.tree.map(np.asarray, x)
    return jax.tree.map(lambda a: a.astype(dtype, copy=False) if np.issubdtype(a.dtype, np.floating) else a, arrays)


class Optimum(NamedTuple):
    """The minimiser of F in real (unscaled) parameters, its value, and ‖∇F‖ there (in the scaled space).

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
    >>> best = problem.optimum()
    >>> best.w.shape, best.beta.shape, best.gradient_norm < 1e-6
    ((2,), (2, 2), True)
    """

    w: Pytree
    beta: Pytree
    value: float
    gradient_norm: float


class Problem:
    """min F(w, β) = Σ_m p_m f_m(w, β_m), with p_m = 1/M unless the clients have weights of their own.

    Algorithms work on w/s with s = M^(-1/2) (`rescale=True`), or with s = 1 (False), or with the s that `rescale` is;
    everything that this class takes and gives is in real, unscaled w. Without a private part (traditional FL) there is
    nothing to balance and s = 1.
    `buckets` groups clients by size so that padding stays cheap; None decides by itself.

    `precondition` says in which variables algorithms work; the w and β that you see stay your own. With "matrix" every block of
    the Hessian is at most 1 in them, by its second moments; "diagonal" and "scale" take less of these. "profile" is for the
    method of that name: in w, about the Hessian of min_β F. "auto" takes what suits `acd`. What the server has to know is an opening
    message, in the ledger. `sampling` draws rows "uniform" or by "importance", in proportion to their smoothness; "auto" is
    the second where that is known.

    `feature_dtype="bfloat16"` keeps floating features in two bytes each, for an accelerator whose memory is what limits it. (Nothing is
    gained on a CPU, where XLA widens them in memory before it reads them.) Targets, parameters and all arithmetic are in the
    run's precision, and losses see features in it. Such features have 8 significant bits: whole numbers up to 256 (raw
    pixels, counts, 0 and 1) are exact, and others are rounded by up to 1/256 of themselves. What is solved is then the
    problem of the rounded features, which this problem's `clients` have: constants, step sizes, gaps and the optimum are all
    its own. Rows held out are graded as they are.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
    >>> problem.M, round(problem.scale, 4)
    (2, 0.7071)
    >>> float(problem.value(*problem.start))
    0.375
    """

    def __init__(
        self,
        objective: Objective,
        clients: Clients,
        *,
        rescale: bool | float = True,
        precondition: Kind | Literal["auto"] | None = None,
        sampling: Sampling | Literal["auto"] = "auto",
        buckets: Sequence[ArrayLike] | None = None,
        feature_dtype: FeatureDtype | None = None,
        rows: FeatureDtype | None = None,
    ) -> None:
        if not isinstance(objective, Objective):
            raise KindError(no_objective(objective))
        check_loss(getattr(objective, "loss", None))
        if not isinstance(clients, Clients):
            raise KindError(f"Problem needs Clients (see Clients.from_list), got {type(clients).__name__}.")
        self.feature_dtype: FeatureDtype | None = feature_dtype_of(feature_dtype, rows)
        self._kept = None if self.feature_dtype is None else np.dtype(jnp.bfloat16)  # of features; None: as all numbers
        if self._kept is not None:
            clients = rounded(clients, self._kept)
        self.objective = objective.prepare(clients, lambda first: Problem(first, clients).optimum()[:2])
        self.clients = clients
        self.rescale = rescale
        self.M = len(clients)
        w, beta = self.objective.init(clients)
        loss: Any = getattr(self.objective, "loss", None)
        if hasattr(loss, "check") and not isinstance(loss, Linear):  # those check when they make their parameters
            loss.check(clients)
        self.has_shared, self.has_private = tree.size(w) > 0, tree.size(beta) > 0
        if not self.has_shared and not self.has_private:
            raise InputError(
                "There is nothing to learn: the model has no parameters. Do the clients have any features?"
            )
        self.scale = scale_of(rescale, self.M) if self.has_shared and self.has_private else 1.0
        self.precondition: Kind | None = self._choose_metric(precondition)
        self.sampling: Sampling = self._choose_sampling(sampling)
        self._given = objective
        self._asked: dict[str, Any] = {"precondition": precondition, "sampling": sampling}
        self._start = (w, beta)
        groups = clients.buckets(least=kernels.least_padding()) if buckets is None else buckets
        self.positions = tuple(np.asarray(group) for group in groups)
        if np.sort(np.concatenate(self.positions)).tolist() != list(range(self.M)):
            raise InputError(f"buckets must hold each of the {self.M} client positions exactly once.")
        self._trivial = len(self.positions) == 1 and np.array_equal(self.positions[0], np.arange(self.M))
        self._plain: Problem | None = None  # of a `proving` problem: the same without what a proof needs

    # --- what is known of the curvature -------------------------------------------------------------------------------

    @cached_property
    def curvature(self) -> BlockCurvature | None:
        """A certified model of the Hessian, from which constants, metric and certificate come; None where there is none."""
        return self.objective.curvature(self.clients)

    def _choose_metric(self, asked: str | None) -> Kind | None:
        if asked is None:
            return None
        if asked not in ("auto", *get_args(Kind)):
            raise InputError(f"precondition is None, 'auto' or one of {', '.join(get_args(Kind))}, got {asked!r}.")
        if asked == "auto":
            return choice.choose(self.curvature, self.scale)
        if self.curvature is None:
            raise InputError(
                f"precondition={asked!r} needs a linear loss (logistic, softmax, squared) under an objective whose curvature is known; "
                f"that of {self.objective.name} is not. Leave it out, or scale the features yourself."
            )
        return asked  # type: ignore[return-value]

    def _choose_sampling(self, asked: str) -> Sampling:
        if asked not in ("auto", *get_args(Sampling)):
            raise InputError(f"sampling is 'auto' or one of {', '.join(get_args(Sampling))}, got {asked!r}.")
        known = isinstance(getattr(self.objective, "loss", None), Linear) and self.objective.convex
        if asked == "importance" and not known:
            raise InputError("sampling='importance' needs the smoothness of every row, which only linear losses know.")
        return "importance" if asked == "importance" or (asked == "auto" and known) else "uniform"

    @cached_property
    def metric(self) -> Metric | None:
        """The factors of the change of variables, in float64 on the host."""
        if self.precondition is None or self.curvature is None:
            return None
        made = build(self.curvature, self.scale, self.precondition)
        return dataclasses.replace(made, by_class=self._by_class is not None)

    @cached_property
    def _row_smoothness(self) -> RowSmoothness | None:
        """p_m V_mj of every row in w and in β; None where it is not known."""
        return None if self.curvature is None else row_smoothness(self.curvature, self.scale, self.metric)

    @cached_property
    def _row_probabilities(self) -> np.ndarray | None:
        """π_mj of every row, all clients below each other: the mean of what would suit w and what would suit β."""
        rows = None if self.sampling == "uniform" else self._row_smoothness
        if rows is None:
            return None
        counts, first = self.clients.counts, self.clients.offsets[:-1]
        found = np.zeros(len(rows.w))
        blocks = [part for part in rows if np.any(part > 0)]
        for part in blocks:
            total = np.repeat(np.add.reduceat(part, first), counts)
            floor = FLOOR * total / np.repeat(counts, counts)
            found += np.where(part > 0, np.maximum(part, floor), 0.0) / np.where(total > 0, total, 1.0)
        uniform = 1 / np.repeat(counts, counts)
        total = np.repeat(np.add.reduceat(found, first), counts)
        return np.where(total > 0, found / np.where(total > 0, total, 1.0), uniform)

    @cached_property
    def _by_class(self) -> Objective | None:
        """The objective of weights kept class by class, where it has such a form."""
        return self.objective.by_class()

    @property
    def variables(self) -> Variables:
        """The change of variables between what users see and what algorithms work on."""
        scale = None if self.scale == 1 else jnp.asarray(self.scale, jnp.result_type(float))
        metric = None if self.metric is None else tree.cast(dataclasses.replace(self.metric, private=None))
        return Variables(scale, metric, by_class=self._by_class is not None)

    def _factors(self) -> tuple[np.ndarray | None, ...]:
        """Each bucket's R_m."""
        private = None if self.metric is None else self.metric.private
        return tuple(None if private is None else np.asarray(private)[p] for p in self.positions)

    def inward(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[Pytree, tuple[Pytree, ...]]:
        """The user's w and each bucket's β as algorithms have them.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])] * 4)
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(), lam=1.0), clients)
        >>> problem.inward(np.ones(2), (np.ones((4, 2)),))[0].tolist()  # √M times larger inside
        [2.0, 2.0]
        """
        return self.variables.inward(w, parts, tree.cast(self._factors()))

    def outward(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[Pytree, tuple[Pytree, ...]]:
        """An algorithm's w and each bucket's β as the user has them.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])] * 4)
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(), lam=1.0), clients)
        >>> problem.outward(np.ones(2), (np.ones((4, 2)),))[0].tolist()  # √M times smaller outside
        [0.5, 0.5]
        """
        return self.variables.outward(w, parts, tree.cast(self._factors()))

    def program(self, *stacks: Member) -> Program:
        """What algorithms work on, with these clients (default: all, on the device)."""
        objective = self.objective if self._by_class is None else self._by_class
        proof = None if self._plain is None or self._certificate is None else tree.cast(self._certificate.shared)
        return Program(objective, self.variables, stacks or self.stacks, proof)

    @cached_property
    def proving(self) -> Problem:
        """This problem with what a certified gap needs of each client kept beside its data; itself where there is no proof."""
        if self._certificate is None or self._plain is not None:
            return self
        twin = copy.copy(self)
        for name in ("stacks", "host_stacks", "abstract_member"):
            vars(twin).pop(name, None)
        twin._plain = self
        return twin

    def staged(self, objective: Objective) -> Problem:
        """Another objective on the same clients, with all that this problem was asked for: a stage of Λ = ∞.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> ditto = tw.objectives.multitask(tw.losses.squared(l2=0.5), lam=1.0, Lambda=float("inf"))
        >>> problem = tw.Problem(ditto, clients, sampling="uniform")
        >>> problem.staged(ditto.stages().first).sampling
        'uniform'
        """
        return Problem(
            objective, self.clients, rescale=self.rescale, buckets=self.positions, feature_dtype=self.feature_dtype,
            **self._asked,
        )  # fmt: skip

    @cached_property
    def billed(self) -> Problem:
        """The problem by whose sizes a run's cost is counted: this one, or where clients were padded that of the real sizes."""
        real = self.clients.unpadded
        if real is None:
            return self
        return Problem(self._given, real, rescale=self.rescale, precondition=self.precondition, sampling=self.sampling)

    def preconditioned(self, kind: Kind) -> Problem:
        """The same problem in other variables, as by `Problem(..., precondition=kind)`; w and β stay the user's own.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2) * [1, 9], [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> other = problem.preconditioned("matrix")
        >>> other.precondition, round(other.constants().L_beta, 6), problem.precondition
        ('matrix', 1.0, None)
        """
        twin = copy.copy(self)
        for name, value in vars(Problem).items():
            if isinstance(value, cached_property) and name not in ("curvature", "_by_class", "_certificate"):
                vars(twin).pop(name, None)
        twin.precondition = twin._choose_metric(kind)
        return twin

    @cached_property
    def _certificate(self) -> Certificate | None:
        """What bounds F − F* from gradients; None where the curvature is not known or has no lower bound."""
        model = self.curvature
        if model is None:
            return None
        if model.exact and model.b**2 > 16 * max(model.a, model.b) * float(np.mean(self.clients.counts)):
            return None  # everyone's part of it would be far larger than its data
        dtype = np.dtype(jnp.result_type(float))
        found = prepare(model, self.clients.weights, dtype=dtype, by_class=self._by_class is not None)
        return found if found.how == "arrow" else None

    @property
    def has_proof(self) -> bool:
        """Whether F − F* can be bounded by more than ‖∇F‖²/(2μ); `proving` is then the problem to run."""
        return self._certificate is not None

    def __repr__(self) -> str:
        kept = "" if self.feature_dtype is None else f", feature_dtype={self.feature_dtype!r}"
        solved = f"{self.objective.name}: {self.objective.equation}"
        return textwrap.fill(
            f"Problem({solved}, {self.clients!r}, scale={self.scale:.4g}{kept})", WIDTH, subsequent_indent="  "
        )

    # --- data ---------------------------------------------------------------------------------------------------------

    @cached_property
    def stacks(self) -> tuple[Member, ...]:
        """The clients' data on the device, one stack per bucket."""
        if self._plain is None:
            return _now(tree.arrays, self.host_stacks)
        both = zip(self._plain.stacks, self.host_stacks, strict=True)
        return tuple(stack._replace(proof=_now(tree.arrays, host.proof)) for stack, host in both)

    @cached_property
    def host_stacks(self) -> tuple[Member, ...]:
        """The same on the host, in the precision that the device will have."""
        dtype = np.dtype(jnp.result_type(float))
        if self._plain is None:
            return self.stacks_as(dtype)
        both = zip(self._plain.host_stacks, self.positions, strict=True)
        return tuple(stack._replace(proof=_in(dtype, self._proof(positions))) for stack, positions in both)

    def stacks_as(self, dtype: np.dtype) -> tuple[Member, ...]:
        """The padded stacks as NumPy arrays, with floating numbers in the given precision, features as they are kept."""
        return tuple(self.stack(positions, dtype) for positions in self.positions)

    def stack(self, positions: np.ndarray, dtype: np.dtype, rows: int | None = None) -> Member:
        """Some clients' data, padded to `rows` (default: the largest of them) on the host."""
        stack = self.clients.stack(positions, rows)
        own = jax.tree.map(lambda leaf: np.asarray(leaf)[positions], self._own)
        draws = self._draws(positions, jax.tree.leaves(stack.x)[0].shape[1])
        private = None if self.metric is None else self.metric.private
        factor = None if private is None else np.asarray(private)[positions]
        proof = None if self._plain is None else self._proof(positions)
        others = (
            stack.y, stack.count, stack.weight, stack.position, own, stack.weight, draws, factor, proof, stack.row_weight,
        )  # fmt: skip
        return Member(_in(self._kept or dtype, stack.x), *_in(dtype, others))

    def _proof(self, positions: np.ndarray) -> ClientFactors | None:
        """What some clients' parts of the certificate need, in a `proving` problem."""
        if self._certificate is None:
            return None
        return jax.tree.map(lambda leaf: np.asarray(leaf)[positions], self._certificate.clients)

    def _draws(self, positions: np.ndarray, capacity: int) -> Draws | None:
        """How some clients draw their rows, padded."""
        if self._row_probabilities is None:
            return None
        counts, first = self.clients.counts[positions], self.clients.offsets[:-1][positions]
        places = np.minimum(np.arange(capacity), counts[:, None] - 1) + first[:, None]
        pi = np.where(np.arange(capacity) < counts[:, None], self._row_probabilities[places], 0.0)
        table = alias_table(pi, counts)
        return Draws(*cast(Any, (table.probability, table.alias, row_weights(pi, counts))))

    @cached_property
    def _own(self) -> Pytree:
        return self.objective.own(self.clients)

    @cached_property
    def abstract_member(self) -> Member:
        """The shapes of one client's data, as large as the largest of the first bucket."""
        positions, dtype = self.positions[0], np.dtype(jnp.result_type(float))
        first = self.stack(positions[:1], dtype, rows=int(self.clients.counts[positions].max()))
        kind = jax.dtypes.canonicalize_dtype
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], kind(leaf.dtype)), first)

    @cached_property
    def abstract_start(self) -> tuple[Pytree, Pytree]:
        """The shapes of w and of one client's β, as algorithms have them."""
        w, beta = _in(np.dtype(jnp.result_type(float)), self._start)
        first = jax.tree.map(lambda leaf: leaf[None], beta)
        w, (beta,) = _inward.eval_shape(self.variables, w, (first,), (None,))
        return w, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), beta)

    def member(self, m: int) -> Member:
        """Client m's data alone, unpadded.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> problem.member(1).y.tolist()
        [1.0, 1.0]
        """
        alone = self.stack(np.array([m]), np.dtype(jnp.result_type(float)))
        return tree.arrays(jax.tree.map(lambda leaf: leaf[0], alone))

    def split(self, beta: Pytree) -> tuple[Pytree, ...]:
        """Everyone's β (leading client axis) cut into the buckets.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> [part.shape for part in problem.split(np.zeros((2, 2)))]
        [(2, 2)]
        """
        if self._trivial:
            return (beta,)
        return tuple(jax.tree.map(lambda leaf, p=positions: leaf[p], beta) for positions in self.positions)

    def join(self, parts: tuple[Pytree, ...]) -> Pytree:
        """The inverse of `split`.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> problem.join(problem.split(np.zeros((2, 2)))).shape
        (2, 2)
        """
        if self._trivial:
            return parts[0]
        order = np.argsort(np.concatenate(self.positions))
        on_host = all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(parts))
        concatenate = np.concatenate if on_host else jnp.concatenate
        return jax.tree.map(lambda *leaves: concatenate(leaves)[order], *parts)

    @cached_property
    def start(self) -> tuple[Pytree, Pytree]:
        """The starting point, real w and everyone's β."""
        return _now(tree.cast, self.host_start)

    @cached_property
    def host_start(self) -> tuple[Pytree, Pytree]:
        """The same on the host, where everyone's β is one and the same piece of memory."""
        w, beta = _in(np.dtype(jnp.result_type(float)), self._start)
        return w, jax.tree.map(lambda leaf: np.broadcast_to(leaf, (self.M, *leaf.shape)), beta)

    def starts(self, seeds: list[int]) -> list[tuple[Pytree, Pytree]]:
        """Where a run with each of these seeds begins, on the host: a net is drawn anew for every seed; else all begin alike.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> first, second = problem.starts([0, 1])
        >>> first is second
        True
        """
        loss = getattr(self.objective, "loss", None)
        if not hasattr(loss, "with_seed"):
            return [self.host_start] * len(seeds)

        def start_of(seed: int) -> tuple[Pytree, Pytree]:
            other = dataclasses.replace(self.objective, loss=loss.with_seed(loss.seed.value + seed))  # type: ignore[type-var, union-attr]
            w, beta = _in(np.dtype(jnp.result_type(float)), other.init(self.clients))
            return w, jax.tree.map(lambda leaf: np.broadcast_to(leaf, (self.M, *leaf.shape)), beta)

        return [start_of(seed) for seed in seeds]

    # --- values and gradients -----------------------------------------------------------------------------------------

    def value(self, w: Pytree, beta: Pytree) -> Float[jax.Array, ""]:
        """F(w, β) at real parameters; β has a leading client axis.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> float(problem.value(np.zeros(2), np.zeros((2, 2))))
        0.375
        """
        return gradients.value(*self._at(w, beta))

    def values(self, w: Pytree, beta: Pytree) -> Float[jax.Array, " clients"]:
        """f_m(w, β_m) of every client.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> problem.values(np.zeros(2), np.zeros((2, 2))).tolist()
        [0.25, 0.5]
        """
        return self.join(gradients.values(*self._at(w, beta)))

    def gradient(
        self, w: Pytree, beta: Pytree, *, key: jax.Array | None = None, batch: int | None = None
    ) -> tuple[Pytree, Pytree]:
        """(∇_w F, ∇_β F) at real parameters, full or, with a key (`jax.random.key(seed)`), on `batch` sampled rows each.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> of_w, of_beta = problem.gradient(np.ones(2), np.zeros((2, 2)))
        >>> of_w.tolist(), of_beta.shape
        ([1.0, 1.0], (2, 2))
        """
        return self.gradient_w(w, beta, key=key, batch=batch), self.gradient_beta(w, beta, key=key, batch=batch)

    def gradient_w(self, w: Pytree, beta: Pytree, *, key: jax.Array | None = None, batch: int | None = None) -> Pytree:
        """∇_w F = Σ p_m ∇_w f_m; where the objective decouples the blocks this touches no β-gradient.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> problem.gradient_w(np.ones(2), np.zeros((2, 2))).tolist()
        [1.0, 1.0]
        """
        return gradients.gradient_w(*self._at(w, beta), *sampling_of(key, batch))

    def gradient_beta(
        self, w: Pytree, beta: Pytree, *, key: jax.Array | None = None, batch: int | None = None
    ) -> Pytree:
        """∇_β F, whose block m is p_m ∇_β f_m, with a leading client axis.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> problem.gradient_beta(np.zeros(2), np.zeros((2, 2))).tolist()
        [[0.0, -0.25], [-0.25, -0.25]]
        """
        return self.join(gradients.gradient_beta(*self._at(w, beta), *sampling_of(key, batch)))

    def gradient_norm_squared(self, w: Pytree, beta: Pytree) -> Float[jax.Array, ""]:
        """‖∇F‖² in the scaled space: what the gap certificate ‖∇F‖²/(2μ) needs.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> best = problem.optimum()
        >>> bool(problem.gradient_norm_squared(best.w, best.beta) < 1e-12)
        True
        """
        return gradients.gradient_norm_squared(self.scale, *self._at(w, beta))

    def _at(self, w: Pytree, beta: Pytree) -> tuple[Program, Pytree, tuple[Pytree, ...]]:
        """The program in the user's own variables, and a point."""
        self.check(w, beta)
        return Program(self.objective, Variables(), self.stacks), tree.cast(w), self.split(tree.cast(beta))

    def check(self, w: Pytree, beta: Pytree) -> None:
        """Refuse parameters of another shape than this problem's.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> try:
        ...     problem.check(np.zeros(3), np.zeros((2, 2)))
        ... except ValueError as mistake:
        ...     print(mistake)
        (w, beta) must have shapes ((2,), (2, 2)), got ((3,), (2, 2)).
        """
        expected = jax.tree.map(jnp.shape, self.host_start)
        found = jax.tree.map(jnp.shape, (w, beta))
        if found != expected:
            raise InputError(f"(w, beta) must have shapes {expected}, got {found}.")

    # --- theory -------------------------------------------------------------------------------------------------------

    def constants(
        self,
        at: tuple[Pytree, Pytree] | None = None,
        *,
        rule: Literal["sharp", "paper"] = "sharp",
        **given: float,
    ) -> Constants:
        """μ, L^w, L^β, 𝓛^w, 𝓛^β of F in the variables that algorithms work on, each with how it was obtained.

        "certified" follows from the data and the objective; "local" is the curvature at a point: pass `at=(w, beta)`, or have an
        objective without formula, for which the smoothness is taken at the start; "given" is what you pass by name
        (`constants(mu=1e-3)`). Strong convexity is never guessed: without formula it is 0 unless you give it or ask for a point.

        With `rule="sharp"` they come from everyone's second moments, and know how noisy the gradients of sampled rows are, by
        this problem's `sampling`. With `rule="paper"` they are those of the paper's lemmas.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> found = problem.constants()
        >>> found.how["mu"], round(found.L_beta, 4)
        ('certified', 1.0)
        >>> problem.constants(mu=0.01).mu
        0.01
        """
        if rule not in ("sharp", "paper"):
            raise InputError(f"rule is 'sharp' or 'paper', got {rule!r}.")
        if at is not None:
            found = self._at_point(at)
        else:
            found = self._sharp if rule == "sharp" and self._sharp is not None else self._certified
            if found is None:
                found = self._estimated
        return found.replace(**given) if given else found

    def _at_point(self, at: tuple[Pytree, Pytree], smallest: bool = True) -> Constants:
        from twofold.problem.local import constants_at  # SciPy only when asked

        return constants_at(self, at, smallest)

    @cached_property
    def _certified(self) -> Constants | None:
        """The paper's lemma; it knows no metric."""
        if self.metric is not None:
            return None
        return self.objective.constants(self.clients, self.scale)

    @cached_property
    def _estimated(self) -> Constants:
        """The curvature at the start, where there is no formula."""
        return self._at_point(self.start, smallest=False)

    @cached_property
    def _sharp(self) -> Constants | None:
        model = self.curvature
        if model is None:
            return None
        # The arrow contains every lemma, but where there is no room for everyone's second moments.
        lemma = None if model.flat or model.exact else self._certified
        found = sharp(model, self.scale, self.metric, lemma=lemma, rows=self._row_smoothness)
        pi, rows, counts = self._row_probabilities, self._row_smoothness, self.clients.counts
        assert rows is not None
        # p_m V_mj/(n_m π_mj): rows as they are really drawn.
        weight = 1.0 if pi is None else 1 / np.where(pi > 0, np.repeat(counts, counts) * pi, np.inf)
        rows = RowSmoothness(*(part * weight for part in rows))
        noise_w, noise_beta = (float(np.max(part, initial=0.0)) for part in rows)
        drawn_w, drawn_beta = single_rows(model, self.scale, self.metric, rows)
        factor = None if self.metric is None else self.metric.shared
        most = 1.0 if factor is None else float(np.linalg.norm(np.atleast_2d(np.asarray(factor)), 2)) ** 2
        client = 0.0 if model.shared is None else self.scale**2 * most * float(
            np.max(model.high * model.data.ww * model.tops[0] + model.fixed.ww)
        )  # fmt: skip
        blocks = (f"{kind}_{block}" for kind in ("L", "calL", "noise", "drawn") for block in ("w", "beta"))
        names = ("mu", *blocks, "L_client")
        why = dict.fromkeys(names, "from everyone's second moments") | {"mu": found.why}
        return Constants(
            found.mu, found.L_w, found.L_beta, found.calL_w, found.calL_beta, how=dict.fromkeys(names, "certified"), why=why,
            noise_w=noise_w, noise_beta=noise_beta, sampling=self.sampling, L_client=client,
            drawn_w=drawn_w, drawn_beta=drawn_beta,
        )  # fmt: skip

    @cached_property
    def best_coin(self) -> tuple[float, float] | None:
        """The p_w that makes ACD cheapest (a round costs as much as twenty β-iterations) and its ν; None where not known."""
        model, c = self.curvature, self._sharp
        if model is None or c is None or not (self.has_shared and self.has_private) or self.M > MANY or c.mu == 0:
            return None
        best = best_probability(arrow(model, self.scale, self.metric).weighted(c.L_w**-0.5, c.L_beta**-0.5))
        return (best.p_w, best.nu) if best.nu > 0 else None

    def optimum(self) -> Optimum:
        """The minimiser to machine precision (convex problems), by a method that shares no code with the algorithms.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
        >>> result = tw.solve(problem, "acd", tol=1e-6)
        >>> bool(np.allclose(result.w, problem.optimum().w, atol=1e-2))
        True
        """
        return self._optimum

    @property
    def known_optimum(self) -> Optimum | None:
        """The minimiser, if `optimum` has been asked for already; nothing is computed.

        >>> import numpy as np, twofold as tw
        >>> problem = tw.Problem(
        ...     tw.objectives.traditional(tw.losses.squared()), tw.Clients.from_list([(np.eye(2), [0.0, 1.0])])
        ... )
        >>> problem.known_optimum is None, problem.optimum() is problem.known_optimum
        (True, True)
        """
        return vars(self).get("_optimum")

    @cached_property
    def _optimum(self) -> Optimum:
        from twofold.reference import minimise  # SciPy only when asked

        stages = self.objective.stages()
        if stages is None:
            return minimise(self)
        first = Problem(stages.first, self.clients).optimum()
        second = Problem(stages.second(first.w), self.clients).optimum()
        return Optimum(first.w, second.beta, second.value, second.gradient_norm)
