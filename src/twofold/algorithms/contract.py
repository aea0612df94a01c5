"""The checks of the contract: an algorithm's fields, and the shapes of all that its functions return, before a run begins."""
# What users write is looked at, whatever the contract's annotations say; and JAX leaves parts of its signatures untyped.
# pyright: reportUnnecessaryIsInstance=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from twofold import tree
from twofold.algorithms.oracle import GradientOracle
from twofold.control import is_traced, traced_once
from twofold.errors import ContractError, InputError
from twofold.randomness import Key
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.algorithms.base import Algorithm

__all__ = ["Footprint", "check", "refuse_arguments", "refused", "trace", "turn_of"]

Plan = Shared = Private = Message = Any
NUMBERS = (bool, int, float, complex, np.number, np.bool_, np.ndarray, jax.Array)
"""What a field, and a leaf of a state, a plan or a message may be."""


class Footprint(NamedTuple):
    """The shapes of an algorithm's states and message, found by tracing each of its functions once."""

    shared: Shared
    private: Private
    message: Message

    @property
    def parts(self) -> tuple[int, ...]:
        """The number of scalars in each part of the message."""
        return tuple(tree.size(part) for part in self.message)


# --- fields -----------------------------------------------------------------------------------------------------------


def check(algorithm: Algorithm) -> None:
    """Refuse an algorithm that is not a `tree.record`, has no name, or has impossible hyper-parameters."""
    kind = type(algorithm).__name__
    if not tree.is_record(algorithm):
        raise ContractError(f"{kind} is not a frozen record: write @tree.record above the class.")
    if not isinstance(getattr(algorithm, "name", None), str):
        raise ContractError(f'{kind} has no name: write name = "..." in the class.')
    for name, value in vars(algorithm).items():
        chosen = name == "batch" and isinstance(value, str) and value == getattr(type(algorithm), name, None)
        if value is not None and not callable(value) and not is_traced(value) and not chosen:
            _check_field(kind, name, value)
    for field in dataclasses.fields(cast(Any, algorithm)):
        value = () if field.metadata.get("static") else getattr(algorithm, field.name)
        for leaf in jax.tree.leaves(value):
            if not callable(value) and not isinstance(leaf, NUMBERS):
                raise ContractError(
                    f"{kind}: {field.name}={leaf!r} is not a number: declare the field as {field.name} = tree.static(default=...), "
                    "which makes it part of the compiled program."
                )


def _check_field(kind: str, name: str, value: object) -> None:
    """Refuse an impossible step size, probability or batch."""
    numbers = np.asarray(value)
    real = numbers.dtype.kind in "iuf" and bool(np.all(np.isfinite(numbers) & (numbers >= 0)))
    if name in ("eta", "inner_eta") and not real:
        raise InputError(f"{kind} needs a step size that is a finite number ≥ 0, got {name}={value!r}.")
    if name in ("p_w", "rho", "rho_w", "rho_beta") and not (real and bool(np.all(numbers <= 1))):
        raise InputError(f"{kind}: {name} is a probability, a number from 0 to 1, got {name}={value!r}.")
    if name == "batch" and not (isinstance(value, int | np.integer) and value >= 1):
        raise InputError(
            f"{kind} needs a batch that is a whole number ≥ 1, or None for all rows, got {name}={value!r}."
        )


def refused(algorithm: Algorithm, found: object) -> ContractError:
    """The error of a method whose `complete` did not return a method and a note."""
    if not isinstance(found, tuple) or len(pair := cast(tuple[object, ...], found)) != 2:
        return _no_pair(algorithm, "complete", found, "(method, note or None)")
    return ContractError(f"{type(algorithm).__name__}.complete must return a method first, got {_kind(pair[0])}.")


def refuse_arguments(kind: type, name: str, function: object, contracts: object) -> None:
    """Refuse a function that cannot be called as the contract's function of that name is."""
    if name.startswith("__") or not inspect.isfunction(function) or not inspect.isfunction(contracts):
        return
    wanted, found = inspect.signature(contracts).parameters, inspect.signature(function)
    try:
        found.bind(*wanted)
    except TypeError:
        shown = ["(" + ", ".join([*names][1:]) + ")" for names in (wanted, found.parameters)]
        raise ContractError(f"{kind.__name__}.{name} must take {shown[0]}, but takes {shown[1]}.") from None


# --- functions --------------------------------------------------------------------------------------------------------


@traced_once
def turn_of(
    algorithm: Algorithm, plan: Plan, shared: Shared, private: Private, oracle: GradientOracle, key: Key
) -> tuple[Private, Message]:
    """Take one client through an iteration, see `Algorithm.client`: the check below and the engines share the trace."""
    return algorithm.client(plan, shared, private, oracle, key)


def trace(
    algorithm: Algorithm, oracle: GradientOracle, stream: jax.Array, key: Key, w: Pytree, beta: Pytree
) -> Footprint:
    """Take an algorithm through one iteration on shapes alone (inside `jax.eval_shape`), and check the results."""
    from twofold.algorithms.base import Algorithm  # which imports this module

    # A method with an is_complete of its own says itself what may stay None.
    if type(algorithm).is_complete is Algorithm.is_complete and not algorithm.is_complete():
        fields = [f.name for f in dataclasses.fields(cast(Any, algorithm)) if not f.metadata.get("static")]
        left = next(name for name in fields if getattr(algorithm, name) is None)
        raise ContractError(
            f"{type(algorithm).__name__}.complete left {left}=None: it must fill in every field that is None; one that may stay None "
            "is declared as tree.static(default=None)."
        )
    shared, private = algorithm.init(w), algorithm.init_private(w, beta, oracle)
    plan = algorithm.plan(stream, jnp.int32(0))
    for function, found in (("init", shared), ("init_private", private), ("plan", plan)):
        _same(algorithm, function, "what it returns", found, "that", found)
    _same(algorithm, "model", "the w that it reports", algorithm.model(shared), "the problem's", w)
    _same(algorithm, "personal", "the β that it reports", algorithm.personal(private), "the problem's", beta)
    turn = turn_of(algorithm, plan, shared, private, oracle, key)
    if not isinstance(turn, tuple) or len(turn) != 2:  # whatever the annotation says
        raise _no_pair(algorithm, "client", turn, "(new private state, message)")
    moved, message = turn
    _same(algorithm, "client", "the new private state", moved, "init_private's", private)
    _check_message(algorithm, message, algorithm.sends(plan))
    _check_evaluations(algorithm, plan)
    after = algorithm.server(plan, shared, message)
    _same(algorithm, "server", "the new shared state", after, "init's", shared)
    received = algorithm.receive(plan, after, moved, oracle)
    _same(algorithm, "receive", "the new private state", received, "init_private's", private)
    if algorithm.works_with_some:
        _same(algorithm, "absent", "an absent client's message", algorithm.absent(plan, shared), "client's", message)
    return Footprint(shared, private, message)


def _check_message(algorithm: Algorithm, message: Message, sends: Message) -> None:
    kind = type(algorithm).__name__
    sent, flags = cast(tuple[object, ...], message), cast(tuple[ArrayLike, ...], sends)
    if not isinstance(message, tuple) or type(sent) is not type(flags) or len(sent) != len(flags):
        raise ContractError(
            f"{kind}: a message is a (named) tuple of parts, and sends returns one bool for each part; client returned "
            f"{_kind(sent)} and sends {_kind(flags)}."
        )
    for name, part in zip(getattr(sent, "_fields", range(len(sent))), sent, strict=True):
        if part is None:
            raise ContractError(
                f"{kind}.client must send arrays in every part of its message, got None in {name!r}: where a part is not sent, "
                "return zeros of its shape, and let sends say False."
            )
    for flag in flags:
        if jnp.shape(flag) != () or not jnp.issubdtype(jnp.result_type(flag), jnp.bool_):
            raise ContractError(
                f"{kind}.sends must return one bool for each part, got {jnp.result_type(flag)} of shape {jnp.shape(flag)}."
            )
    for leaf in jax.tree.leaves(message):
        if jnp.result_type(leaf) != jnp.result_type(float):
            raise ContractError(
                f"{kind}.client sends numbers of type {leaf.dtype}; a message must consist of {jnp.result_type(float)}."
            )


def _check_evaluations(algorithm: Algorithm, plan: Plan) -> None:
    """Refuse anything but two numbers of gradients for each number of rows."""
    rows = jnp.ones(2)
    found = algorithm.evaluations(plan, rows)
    counts = cast(tuple[object, ...], found) if isinstance(found, tuple) else ()
    if len(counts) != 2 or not all(
        isinstance(each, NUMBERS) and jnp.shape(each) in ((), rows.shape) for each in counts
    ):
        got = " and ".join(map(_kind, counts)) if len(counts) == 2 else _kind(found)
        raise ContractError(
            f"{type(algorithm).__name__}.evaluations must return Evaluations(w, beta), two numbers of single-row gradients, each a "
            f"scalar or of the shape of rows, got {got}."
        )


def _same(algorithm: Algorithm, function: str, what: str, found: Pytree, whose: str, expected: Pytree) -> None:
    """Refuse what is no array or number, and what has another structure, other shapes or other types than expected."""
    kind = type(algorithm).__name__
    for leaf in jax.tree.leaves(found):
        if not isinstance(leaf, NUMBERS):
            raise ContractError(
                f"{kind}.{function} must return arrays and numbers, in any nesting, but has {_kind(leaf)}: {leaf!r}."
            )
    structures = [str(jax.tree.structure(x)) for x in (found, expected)]
    arrays = [[(jnp.shape(leaf), str(jnp.result_type(leaf))) for leaf in jax.tree.leaves(x)] for x in (found, expected)]
    if structures[0] != structures[1]:
        different = f"the structure {structures[0]}, not {structures[1]}"
    elif arrays[0] != arrays[1]:
        here, there = next((a, b) for a, b in zip(*arrays, strict=True) if a != b)
        different = f"an array of shape and type {here}, not {there}"
    else:
        return
    raise ContractError(f"{kind}.{function}: {what} must be like {whose}, but has {different}.")


# --- words ------------------------------------------------------------------------------------------------------------


def _no_pair(algorithm: Algorithm, function: str, found: object, wanted: str) -> ContractError:
    """The error of a function that must return two things."""
    return ContractError(f"{type(algorithm).__name__}.{function} must return a pair {wanted}, got {_kind(found)}.")


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of shape {value.shape}"
    name = type(value).__name__
    name = f"an {name}" if name[0] in "AEIOUaeio" else f"a {name}"
    return f"{name} of {len(cast(tuple[object, ...], value))}" if isinstance(value, tuple) else name
