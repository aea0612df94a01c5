"""Where the clients of a run are: all on one device, or dealt out over the devices of all processes."""

# pyright: reportArgumentType=false
# (Partition specs stand where arrays do in the same NamedTuples.)

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from twofold.oracle import Member
from twofold.tree import Pytree

__all__ = ["AXIS", "Layout", "P"]

AXIS = "clients"
"""The axis of the mesh, along which clients are dealt out."""


class Layout(NamedTuple):
    """How clients are laid out. By default all are on one device, and all work at once."""

    mesh: Mesh | None = None
    """The devices that clients are dealt out over."""
    turns: tuple[int, ...] | None = None
    """The number of groups, one after the other, that each bucket's clients work in."""

    def mapped(self, function: Callable, takes: Any, gives: Any) -> Callable:
        """The function on every device's own clients; `takes` and `gives` say which axes are dealt out."""
        if self.mesh is None:
            return function
        return jax.shard_map(function, mesh=self.mesh, in_specs=takes, out_specs=gives, check_vma=False)

    def put(self, value: Pytree, spec: P) -> Pytree:
        """Host arrays as global ones; every process puts only what belongs on its own devices."""
        assert self.mesh is not None
        sharding = NamedSharding(self.mesh, spec)

        def put(leaf: Any) -> jax.Array:
            array = np.asarray(leaf)
            return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

        return jax.tree.map(put, value)

    def gathered(self, value: Pytree) -> Pytree:
        """Global arrays, whole on every process."""
        return _gathered(value, self.mesh)

    def filled(self, stacks: tuple[Any, ...], axis: int = 0) -> tuple[Any, ...]:
        """Every bucket, padded so that each turn of each device has the same number of clients; padding counts for nothing."""
        assert self.mesh is not None
        turns = self.turns or (1,) * len(stacks)
        return tuple(_fill(stack, self.mesh.size * n, axis) for stack, n in zip(stacks, turns, strict=True))


@partial(jax.jit, static_argnums=1)
def _gathered(value: Pytree, mesh: Mesh) -> Pytree:
    return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P()))


def _fill(stack: Any, multiple: int, axis: int) -> Any:
    """The stack, padded to a multiple of `multiple` clients by repeats of its last one, with share 0 in means."""
    leaves = jax.tree.leaves(stack)
    missing = -leaves[0].shape[axis] % multiple if leaves else 0
    if not missing:
        return stack

    def repeated(leaf: np.ndarray) -> np.ndarray:
        last = np.take(leaf, [-1], axis=axis)
        return np.concatenate([leaf, np.repeat(last, missing, axis=axis)], axis=axis)

    filled = jax.tree.map(repeated, stack)
    if not isinstance(filled, Member):
        return filled
    share = np.array(filled.share)
    share[-missing:] = 0
    return filled._replace(share=share)
