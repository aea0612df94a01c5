"""Nets of flax.linen, flax.nnx and equinox as pairs of pure functions: how they begin, and what they give for a batch.

None of the three is imported unless a module of it is given.
"""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NoReturn, Protocol, TypeAlias, cast

import jax
import jax.numpy as jnp

from twofold.errors import InputError, KindError
from twofold.extras import require
from twofold.tree import Pytree

__all__ = ["Functions", "ModelLike", "Net", "Outcome", "adapt"]

ModelLike: TypeAlias = object
"""A module of flax.linen, flax.nnx or equinox, a function that makes one, or a pair of functions of your own."""
Outcome: TypeAlias = tuple[jax.Array, Pytree]
"""What a net gives for a batch: its outputs, one row each, and its new state."""
TRAINING = ("train", "training", "is_training")
"""Names under which a module may ask whether it is being trained."""
OF_EQUINOX = "A module of equinox is given one row, without the axis of the batch, and its convolutions want channels first: (C, H, W)."
OF_FLAX = "A module of flax is given a batch, and its convolutions want channels last: (rows, H, W, C)."
RESTING = ("deterministic", "inference", "use_running_average", "eval", "eval_mode")
"""Names under which it may ask whether it is not."""


class Net(Protocol):
    """A net as pure functions; equal nets compile once.

    >>> from twofold.losses.modules import Functions
    >>> isinstance(hash(Functions(lambda key, x: ({}, {}), lambda params, state, x, key, train: (x, state))), int)
    True
    """

    sees: ClassVar[str]  # what the user's model is called with, in a sentence for errors

    def begin(self, key: jax.Array, x: Pytree) -> tuple[Pytree, Pytree]:
        """The first parameters and the first state, for rows like x."""
        ...

    def __call__(self, params: Pytree, state: Pytree, x: Pytree, key: jax.Array | None, train: bool) -> Outcome:
        """The outputs for a batch of rows, and the new state."""
        ...


@dataclass(frozen=True)
class Functions:
    """Two functions of the user's own.

    >>> import jax, jax.numpy as jnp
    >>> net = Functions(lambda key, x: (jnp.ones(2), ()), lambda params, state, x, key, train: (x @ params, state))
    >>> net(jnp.ones(2), (), jnp.eye(2), None, False)[0].tolist()
    [1.0, 1.0]
    """

    first: Callable[[jax.Array, Pytree], tuple[Pytree, Pytree]]
    apply: Callable[..., Outcome]
    sees: ClassVar[str] = "Both functions are given a batch, with the rows along the first axis."

    def begin(self, key: jax.Array, x: Pytree) -> tuple[Pytree, Pytree]:
        """What the first function gives."""
        return self.first(key, x)

    def __call__(self, params: Pytree, state: Pytree, x: Pytree, key: jax.Array | None, train: bool) -> Outcome:
        """What the second function gives."""
        return self.apply(params, state, x, key, train)


def _call_of(module: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the arguments of a module's call, and those among them that are true or false without being known here."""
    found = inspect.signature(type(module).__call__).parameters
    unknown = (
        name
        for name, one in found.items()
        if name not in (*TRAINING, *RESTING) and (isinstance(one.default, bool) or one.annotation in (bool, "bool"))
    )
    return tuple(found), tuple(unknown)


def _refuse_unknown(names: tuple[str, ...], unknown: tuple[str, ...], has_modes: bool) -> None:
    """Refuse a net with state or dropout that asks under an unknown name whether it trains: it would never be told."""
    if unknown and has_modes and not _mode(names, True):
        raise InputError(
            f"The net has dropout or a state such as BatchNorm's, and its call takes {', '.join(unknown)}, which twofold does not "
            f"know, so it would never be trained: call it {', '.join(TRAINING)}, or, if True means at rest, {', '.join(RESTING)}."
        )


def _mode(names: tuple[str, ...], train: bool) -> dict[str, bool]:
    """The argument by which a call is told whether it trains, where it has one."""
    told = {name: train for name in TRAINING if name in names} | {name: not train for name in RESTING if name in names}
    return dict([next(iter(told.items()))]) if told else {}


@dataclass(frozen=True)
class Linen:
    """A module of flax.linen. Its parameters are the collection "params", its state is all others."""

    module: Any
    names: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    sees: ClassVar[str] = OF_FLAX

    def __hash__(self) -> int:
        """Of the module, or of its class alone where a field is a list, as in `nn.Sequential([…])`."""
        try:
            return hash(self.module)
        except TypeError:
            return hash(type(self.module))

    def begin(self, key: jax.Array, x: Pytree) -> tuple[Pytree, Pytree]:
        """What `module.init` gives."""
        keys = dict(zip(("params", "dropout"), jax.random.split(key), strict=True))
        linen, drops = require("flax.linen", "A net of flax.linen", "nets"), list[bool]()

        def look(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
            drops.append(isinstance(context.module, linen.Dropout))
            return call(*args, **kwargs)

        with linen.intercept_methods(look):
            found = dict(self.module.init(keys, x, **_mode(self.names, False)))
        params = found.pop("params", {})
        _refuse_unknown(self.names, self.unknown, bool(found) or any(drops))
        return params, found

    def __call__(self, params: Pytree, state: Pytree, x: Pytree, key: jax.Array | None, train: bool) -> Outcome:
        """What `module.apply` gives; state changes in training only."""
        # A stream of another name, as in make_rng("noise"), falls back on that of "params".
        keys = {} if key is None else {"rngs": {"dropout": key, "params": jax.random.fold_in(key, 0)}}
        given = ({"params": params, **dict(state)}, x)
        if not train or not state:
            return self.module.apply(*given, **_mode(self.names, train), **keys), state
        out, new = self.module.apply(*given, mutable=list(state), **_mode(self.names, True), **keys)
        return out, dict(new)


class Nnx:
    """A module of flax.nnx, made from a seed by a function of `rngs`; a finished module begins as it is.

    Its parameters are its `nnx.Param`s. Its state is all other variables but random keys, which come with the batch.
    """

    sees: ClassVar[str] = OF_FLAX

    def __init__(self, make: Callable[[jax.Array], Any]) -> None:
        self._make = make
        module = make(jax.random.key(0))
        self._names, self._unknown = _call_of(module)
        module.eval()
        self._at_rest = self._split(module)
        module.train()
        self._training = self._split(module)

    def _split(self, module: Pytree) -> tuple[Pytree, ...]:
        """The graph, the parameters, the random keys and the state."""
        return _nnx().split(module, _nnx().Param, _nnx().RngState, ...)

    def begin(self, key: jax.Array, x: Pytree) -> tuple[Pytree, Pytree]:
        """The variables of a module made from this key."""
        _, params, keys, state = self._split(self._make(key))
        _refuse_unknown(self._names, self._unknown, bool(jax.tree.leaves((keys, state))))
        return _nnx().to_pure_dict(params), _nnx().to_pure_dict(state)

    def __call__(self, params: Pytree, state: Pytree, x: Pytree, key: jax.Array | None, train: bool) -> Outcome:
        """What the module gives, in training or at rest; state changes in training only."""
        graph, *like = self._training if train else self._at_rest
        filled = [jax.tree.map(lambda leaf: leaf, part) for part in like]  # new variables, which belong to this trace
        for part, values in zip(filled[::2], (params, dict(state)), strict=True):
            _nnx().replace_by_pure_dict(part, values)
        filled[2] = jax.tree.map(_typed, filled[2], like[2])
        filled[1] = _keyed(filled[1], jax.random.key(0) if key is None else key)
        module = _nnx().merge(graph, *filled)
        out = module(x, **_mode(self._names, train))
        return out, _nnx().to_pure_dict(self._split(module)[3]) if train else state


def _nnx() -> Any:
    return require("flax.nnx", "A net of flax.nnx", "nets")


def _keyed(streams: Pytree, key: jax.Array) -> Pytree:
    """Random streams with keys of their own, made of one key."""
    leaves, structure = jax.tree.flatten(streams)
    of_keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    new = [
        jax.random.fold_in(key, i) if is_key else leaf
        for i, (leaf, is_key) in enumerate(zip(leaves, of_keys, strict=True))
    ]
    return jax.tree.unflatten(structure, new)


class Equinox:
    """A module of equinox, which sees one row: made from a seed by a function of `key`; a finished one begins as it is.

    Its parameters are its arrays of real numbers, by their paths. Its state is what `eqx.nn.make_with_state` made beside it.
    """

    sees: ClassVar[str] = OF_EQUINOX

    def __init__(self, make: Callable[[jax.Array], Any]) -> None:
        self._make = make
        module, state = self._pair(make(jax.random.key(0)))
        self._fixed, self._has_state = module, state is not None
        self._empty = state
        self._names, self._unknown = _call_of(module)
        self._takes_key = "key" in self._names
        if "state" in self._names and not self._has_state:
            kind = type(module).__name__
            raise KindError(
                f"{kind} takes a state, as BatchNorm does: say tw.losses.net(eqx.nn.make_with_state({kind}))."
            )

    def _pair(self, made: Pytree) -> tuple[Pytree, Pytree]:
        return made if isinstance(made, tuple) else (made, None)

    def _params(self, module: Pytree) -> dict[str, jax.Array]:
        found: Any = jax.tree_util.tree_leaves_with_path(module)
        return {_path(path): leaf for path, leaf in found if _eqx().is_inexact_array(leaf)}

    def begin(self, key: jax.Array, x: Pytree) -> tuple[Pytree, Pytree]:
        """The arrays of a module made from this key."""
        module, state = self._pair(self._make(key))
        leaves: list[Any] = jax.tree.leaves(module, is_leaf=_is_dropout)
        _refuse_unknown(self._names, self._unknown, self._has_state or any(map(_is_dropout, leaves)))
        return self._params(module), tuple(jax.tree.leaves(state))

    def __call__(self, params: Pytree, state: Pytree, x: Pytree, key: jax.Array | None, train: bool) -> Outcome:
        """What the module gives for every row, in training or at rest; state changes in training only."""
        fixed = _eqx().nn.inference_mode(self._fixed, value=not train)
        module = jax.tree_util.tree_map_with_path(lambda path, leaf: params.get(_path(path), leaf), fixed)
        rows = len(jax.tree.leaves(x)[0])
        keys = jax.random.split(key, rows) if key is not None and self._takes_key else None

        def of_row(x: Pytree, key: jax.Array | None, state: Pytree) -> tuple[jax.Array, Pytree]:
            told: dict[str, Any] = _mode(self._names, train) | ({} if key is None else {"key": key})
            return module(x, state, **told) if self._has_state else (module(x, **told), None)

        given = None
        if self._has_state:
            leaves, structure = jax.tree.flatten(self._empty)
            given = jax.tree.unflatten(
                structure, [_typed(value, leaf) for value, leaf in zip(state, leaves, strict=True)]
            )
        out, new = jax.vmap(of_row, in_axes=(0, 0, None), out_axes=(0, None), axis_name="batch")(x, keys, given)
        return out, tuple(jax.tree.leaves(new)) if train and self._has_state else state


def _typed(value: jax.Array, like: jax.Array) -> jax.Array:
    """A number of a state in the type that the net expects: counters travel as real numbers."""
    whole = not jnp.issubdtype(like.dtype, jnp.inexact)
    return jnp.round(value).astype(like.dtype) if whole else value


def _eqx() -> Any:
    return require("equinox", "A net of equinox", "nets")


def _is_dropout(node: object) -> bool:
    return isinstance(node, _eqx().nn.Dropout)


def _path(path: tuple[object, ...]) -> str:
    return "/".join(str(getattr(key, "name", getattr(key, "idx", getattr(key, "key", key)))) for key in path)


def adapt(model: ModelLike) -> Net:
    """The functions of a module, of a function of `rngs` (flax.nnx) or `key` (equinox) that makes one, or a pair of functions.

    >>> import jax.numpy as jnp
    >>> adapt(
    ...     (lambda key, x: (jnp.ones(2), ()), lambda params, state, x, key, train: (x @ params, state))
    ... ).__class__.__name__
    'Functions'
    """
    if isinstance(model, (Functions, Linen, Nnx, Equinox)):
        return model
    home = None if isinstance(model, type) else _home(type(model))  # a class is a function that makes a module
    if isinstance(model, tuple) and len(model) == 2:
        return Equinox(lambda _: model) if _home(type(model[0])) == "equinox" else _functions(*model)
    if home == "linen":
        return Linen(model, *_call_of(model))
    if home == "nnx":
        return Nnx(lambda _: model)
    if home == "equinox":
        return Equinox(lambda _: model)
    if "torch" in (home, _home(model)):
        name = getattr(model, "__name__", type(model).__name__)
        raise KindError(f"{name} is a module of PyTorch, which JAX cannot differentiate: write it in flax or equinox.")
    return _made_by(model) if callable(model) else _no_net(type(model).__name__)


def _no_net(name: str) -> NoReturn:
    raise KindError(
        f"A net is a module of flax.linen, flax.nnx or equinox, a function of rngs= (nnx) or key= (equinox) that makes one, or a pair "
        f"of functions (init, apply), got {name}."
    )


@lru_cache(maxsize=8)
def _made_by(model: Callable[..., Any]) -> Net:
    """The net that a class or a function makes, given random numbers; the same one for the same class, so that it compiles once."""
    name = getattr(model, "__name__", type(model).__name__)
    if name in ("apply", "init", "__call__") and _home(type(getattr(model, "__self__", None))):
        raise KindError(f"A net is the module itself: give it, and not its {name}.")
    taken = inspect.signature(model.__init__ if isinstance(model, type) else model).parameters
    # eqx.nn.make_with_state(Net) is a function that hands on whatever it is given.
    of_equinox = str(getattr(model, "__module__", "")).startswith("equinox.")
    word = "rngs" if "rngs" in taken else "key" if "key" in taken or of_equinox else None
    if word is None and isinstance(model, type):
        raise KindError(f"{name} is a class, and a net is a module: call it, as in tw.losses.net({name}()).")
    if word is None:
        _no_net(name)
    more = [n for n, one in taken.items() if n not in ("self", word) and one.default is one.empty and one.kind in NAMED]
    if more:
        given = ", ".join(f"{n}=…" for n in more)
        raise KindError(
            f"{name} cannot be made from {word} alone, it also takes {', '.join(more)}: say tw.losses.net(lambda {word}: "
            f"{name}({given}, {word}={word}))."
        )
    if word == "rngs":
        return Nnx(lambda key: model(rngs=_nnx().Rngs(key)))
    return Equinox(lambda key: model(key=key))


NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
"""Kinds of arguments that have a name."""


def _functions(first: object, apply: object) -> Functions:
    if not (callable(first) and callable(apply)):
        raise KindError(
            "A net of your own is a pair of functions: init(key, x), which gives parameters and state, and "
            "apply(params, state, x, key, train), which gives outputs and state."
        )
    return Functions(cast(Any, first), cast(Any, apply))


def _home(kind: object) -> str | None:
    """Which library a class of modules comes from."""
    if not isinstance(kind, type):
        return None
    bases = {base.__module__.partition(".")[0]: f"{base.__module__}.{base.__name__}" for base in kind.__mro__[:-1]}
    if "equinox" in bases or "torch" in bases:
        return "equinox" if "equinox" in bases else "torch"
    name = bases.get("flax", "")
    return "linen" if name.startswith("flax.linen") else "nnx" if name.startswith("flax.nnx") else None
