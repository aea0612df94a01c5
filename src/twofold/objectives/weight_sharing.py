"""Weight sharing WS2: some weights of one model are shared, the others private (eq. weight_sharing2; FedPer, LG)."""
# JAX leaves paths into pytrees, and parts of jax.numpy's signatures, untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from typing import Any, Literal, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.clients import Clients
from twofold.curvature import model
from twofold.errors import ContractError, InputError
from twofold.losses import Linear, Rows
from twofold.objectives.base import Loss, Objective
from twofold.theory import constants
from twofold.tree import Pytree, is_running, record, static

__all__ = ["AllBut", "Split", "WeightSharing", "weight_sharing"]

Split: TypeAlias = int | slice | str | Collection[str] | Callable[[str, Any], ArrayLike]
"""Which weights are shared; see `weight_sharing`."""


class AllBut(tuple[str, ...]):
    """A split that names the private weights; all others are shared.

    >>> AllBut(("head",))
    AllBut('head')
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"AllBut({', '.join(map(repr, self))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AllBut) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(("AllBut", tuple(self)))


STATE = "state"
"""The name of the numbers that a net updates by itself."""
_Split: TypeAlias = int | slice | tuple[str, ...] | Callable[[str, Any], ArrayLike]  # the same, hashable
_Kind: TypeAlias = Literal["shared", "private"] | tuple[tuple[int, ...], tuple[int, ...]]
"""The block that a leaf belongs to, or, if it is divided, the indices along its first axis that belong to each block."""
_Layout: TypeAlias = tuple[Any, tuple[tuple[str, _Kind], ...]]
"""The structure of the loss's parameters (a PyTreeDef, which JAX does not type), with each leaf's name and kind."""
SHARED: Literal["shared"] = "shared"
PRIVATE: Literal["private"] = "private"


@record
class WeightSharing(Objective):
    """f_m(w, β_m) = f'_m([w, β_m]): w and β are pieces of one parameter pytree.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(3), np.ones(3)), (np.eye(3), np.zeros(3))])
    >>> objective = tw.objectives.weight_sharing(tw.losses.squared(), split=2).bind(clients)
    >>> objective.personal(np.array([1.0, 2.0]), np.array([3.0]), None, ()).tolist()
    [1.0, 2.0, 3.0]
    """

    loss: Loss
    split: _Split = static()
    layout: _Layout | None = static(default=None)
    name = "weight_sharing"
    equation = "f'([w, β])"
    reveals = "a message is a gradient that depends on β and the rows"

    def bind(self, clients: Clients) -> WeightSharing:
        """Work out which entries of every leaf of the loss's parameters are shared."""
        params = self.loss.init(clients)
        # The numbers that a net updates by itself stay together, under one name.
        structure = cast(Any, jax.tree.structure(params, is_leaf=is_running))
        leaves = cast(
            list[tuple[tuple[Any, ...], Any]], jax.tree_util.tree_leaves_with_path(params, is_leaf=is_running)
        )
        named = [(_name(path), leaf) for path, leaf in leaves]
        for name in _names(self.split):
            if name != STATE and not any(_inside(leaf, name) for leaf, _ in named):
                known = {part.lower(): part for leaf, _ in named for part in leaf.split("/")}
                near = [known[one] for one in difflib.get_close_matches(name.lower(), known, n=1)]
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise InputError(
                    f"The split names {name!r}, but the parameters are {', '.join(repr(n) for n, _ in named)}{hint}"
                )
        kinds: tuple[tuple[str, _Kind], ...] = tuple(
            (name, _kind(self.split, name, leaf, len(leaves))) for name, leaf in named
        )
        for block in (SHARED, PRIVATE):
            other = PRIVATE if block == SHARED else SHARED
            if all(kind == other for _, kind in kinds):
                listed = ", ".join(repr(name) for name, _ in kinds)
                raise InputError(f"{self._said()} leaves nothing {block}; the parameters are {listed}.")
        return WeightSharing(self.loss, self.split, (structure, kinds))

    def _said(self) -> str:
        """The split in a user's words."""
        if not isinstance(self.split, AllBut):
            return f"The split {self.split!r}"
        return f"Keeping {', '.join(repr(name) for name in self.split if name != STATE) or 'no layer'} private"

    def _bound(self) -> _Layout:
        if self.layout is None:
            raise ContractError("weight_sharing does not know its parameters yet: call bind(clients), as Problem does.")
        return self.layout

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """The loss's initial parameters, divided into the two blocks."""
        _, kinds = self._bound()
        leaves: list[Any] = jax.tree.leaves(self.loss.init(clients), is_leaf=is_running)
        blocks: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for leaf, (name, kind) in zip(leaves, kinds, strict=True):
            if isinstance(kind, str):
                blocks[kind == PRIVATE][name] = leaf
            else:
                for block, index in zip(blocks, kind, strict=True):
                    block[name] = leaf[np.asarray(index)]
        # A model that is a single array is divided into two arrays, not into two dictionaries with one entry each.
        return blocks if len(leaves) > 1 else (*blocks[0].values(), *blocks[1].values())

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """The whole model [w, β_m]."""
        structure, kinds = self._bound()
        if len(kinds) == 1:
            w, beta = {kinds[0][0]: w}, {kinds[0][0]: beta}
        leaves: list[Any] = []
        for name, kind in kinds:
            if isinstance(kind, str):
                leaves.append((w if kind == SHARED else beta)[name])
            else:
                order = np.argsort(np.concatenate([np.asarray(index) for index in kind]), kind="stable")
                both = jnp.concatenate([w[name], beta[name]])
                leaves.append(both if np.array_equal(order, np.arange(len(order))) else both[order])
        return jax.tree.unflatten(structure, leaves)

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f'_m([w, β_m])."""
        return self.loss.value(self.personal(w, beta, rows, own), rows)

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """f'_m with some features for w and the others for β_m; None if the classes of a bias are divided between them."""
        if not isinstance(self.loss, Linear):
            return None
        _, kinds = self._bound()
        features = [_features(self.loss, clients, kinds, block) for block in (0, 1)]
        shared, private = features
        return None if shared is None or private is None else model.of_parts(self.loss, clients, shared, private)

    def constants(self, clients: Clients, scale: float) -> constants.Constants:
        """μ'/M, L'/M, L'/M (the paper prints μ', L': a slip)."""
        return constants.weight_sharing(self.loss.constants(clients), scale=scale, weights=clients.weights)

    def describe(self) -> tuple[str, dict[str, Any]] | None:
        """The name and the split; None if the split is a function."""
        if callable(self.split):
            return None
        if isinstance(self.split, AllBut):
            return self.name, {"private": list(self.split)}
        split = (
            {"slice": [self.split.start, self.split.stop, self.split.step]}
            if isinstance(self.split, slice)
            else self.split
        )
        return self.name, {"split": list(split) if isinstance(split, tuple) else split}


def _features(
    loss: Linear, clients: Clients, kinds: tuple[tuple[str, _Kind], ...], block: int
) -> model.Features | None:
    """The columns that the weights of a block (0: shared, 1: private) are multiplied with."""
    columns: NDArray[np.int64] = np.zeros(0, np.int64)
    intercept = False
    for name, kind in kinds:
        bias = loss.intercept and name == "bias"
        mine = kind == (SHARED, PRIVATE)[block]
        if bias and isinstance(kind, tuple):
            return None  # some classes' biases are shared and others private, which no set of feature columns describes
        if bias:
            intercept = mine
        elif isinstance(kind, tuple):
            columns = np.asarray(kind[block], np.int64)
        elif mine:
            columns = np.arange(int(clients.x.shape[1]), dtype=np.int64)
    if not columns.size and not intercept:
        return None  # an empty block has no curvature
    return model.Features(clients.x, columns, intercept, clients.row_weights)


def _names(split: _Split) -> tuple[str, ...]:
    return cast(tuple[str, ...], split) if isinstance(split, tuple) else ()


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)


def _inside(leaf: str, branch: str) -> bool:
    """Whether a leaf is the branch or lies below it; a leading "params/" may be left out."""
    return any(found == branch or found.startswith(branch + "/") for found in (leaf, leaf.removeprefix("params/")))


def _kind(split: _Split, name: str, leaf: Any, leaves: int) -> _Kind:
    """Decide which block a leaf belongs to."""
    if isinstance(split, (int, slice)):
        if leaves != 1:
            raise InputError(
                f"split={split!r} cuts a single array, but the model has {leaves} leaves: name the shared ones instead."
            )
        chosen = np.zeros(leaf.shape[0], bool)
        chosen[slice(split) if isinstance(split, int) else split] = True
    elif callable(split):
        chosen = np.asarray(split(name, leaf), bool)
    else:
        named = any(_inside(name, branch) for branch in split)
        chosen = np.asarray(named != isinstance(split, AllBut))
    if chosen.ndim and chosen.shape != leaf.shape[:1]:
        raise InputError(f"The split of {name!r} has shape {chosen.shape}, but the leaf has shape {leaf.shape}.")
    if chosen.all() or not chosen.any():
        return SHARED if chosen.all() else PRIVATE
    return tuple(np.flatnonzero(chosen).tolist()), tuple(np.flatnonzero(~chosen).tolist())


def weight_sharing(
    loss: Loss, split: Split | None = None, *, private: str | Collection[str] | None = None
) -> WeightSharing:
    """Share some weights of one model and keep the others private: f'([w, β]) (WS2, FedPer, LG-FedAvg).

    Give either `split`, which says what is shared, or the names of what is private (`private="head"`).

    `split` is one of:
    an integer k (share the first k rows of a model that is a single array), or a slice of its rows;
    the name of a leaf or branch, or several of them (`"head"`, `["layer1", "layer2"]`; paths are joined by "/");
    a function of a leaf's path and value that returns True, False, or a mask along the first axis.

    A net's state, such as BatchNorm's means, is private unless `split` names "state".

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(3), np.ones(3)), (np.eye(3), np.zeros(3))])
    >>> objective = tw.objectives.weight_sharing(tw.losses.squared(intercept=True), split="weight")
    >>> w, beta = tw.Problem(objective, clients).start
    >>> list(w), list(beta)
    (['weight'], ['bias'])
    """
    if (split is None) == (private is None):
        raise InputError(
            "weight_sharing needs either split= (what is shared) or private= (the names of what is private)."
        )
    if private is not None:
        return WeightSharing(loss, AllBut(dict.fromkeys((*_layers(private), STATE))))
    if isinstance(split, dict):  # a slice that was written to JSON
        split = slice(*cast(list[Any], split["slice"]))
    if isinstance(split, (int, slice)) or callable(split):
        return WeightSharing(loss, cast(_Split, split))
    return WeightSharing(loss, _layers(split))


def _layers(given: object) -> tuple[str, ...]:
    """The names of layers, of one or several."""
    names: list[object] = [given]
    if isinstance(given, Collection) and not isinstance(given, str):
        names = list(cast(Collection[object], given))
    chosen = tuple(name for name in names if isinstance(name, str))
    if len(chosen) < len(names):
        raise InputError(f"Layers are chosen by their names, as in 'Dense_1' or ['Conv_0', 'Conv_1'], got {given!r}.")
    return chosen
