"""All questions about the machine: its backend, devices, cores and memory. Nobody else asks them.

Each function here either answers such a question ("is it faster to work in turns?") or computes something ordinary (a product,
a sort, a map) in the way that the backend at hand does fastest; the plain way would give the same result. Whoever reads an
engine, a loss or an algorithm need not look in here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

T = TypeVar("T")
S = TypeVar("S")

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt32

__all__ = [
    "Threads", "cores", "device_copy", "devices", "free_memory", "free_on_host", "host", "least_padding", "on_cpu",
    "product", "seed_groups", "shares_memory", "stable_order", "uneven_loop", "waits_for_the_slowest", "wants_flat_products",
    "workers", "works_in_turns",
]  # fmt: skip

FEW = 32
"""Rows and features up to which a product is written out."""
SHORT = 1 << 16
"""Words up to which `stable_order` packs the place into the word."""


def on_cpu() -> bool:
    """Whether computations run on the host's own cores.

    >>> on_cpu() == (devices()[0].platform == "cpu")
    True
    """
    return jax.default_backend() == "cpu"


def cores() -> int:
    """Cores that this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> list[Any]:
    """All devices of all processes.

    >>> len(devices()) >= 1
    True
    """
    return jax.devices()


def host() -> Any:
    """The host's own cores, as a device.

    >>> host().platform
    'cpu'
    """
    return jax.devices("cpu")[0]


def free_on_host() -> int:
    """Bytes that the system could give without swapping.

    >>> free_on_host() > 0
    True
    """
    import psutil

    return int(psutil.virtual_memory().available)


def free_memory() -> int:
    """Bytes that are free on the first device, which on a CPU is the host.

    >>> free_memory() > 0
    True
    """
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else free_on_host()


def device_copy(array: np.ndarray) -> jax.Array:
    """The array on the device, in memory of its own: on a CPU, JAX may otherwise use the very memory that the array has.

    >>> mine = np.zeros(1)
    >>> theirs = device_copy(mine)
    >>> mine += 1
    >>> theirs.tolist()
    [0.0]
    """
    return jnp.array(array)


# --- who works at the same time ----------------------------------------------------------------------------------------


def works_in_turns() -> bool:
    """Whether a few clients at a time, then the next few, are faster than all in lock step: on CPUs, which work in caches.

    >>> works_in_turns() is on_cpu()
    True
    """
    return on_cpu()


def waits_for_the_slowest() -> bool:
    """Whether clients with fewer steps than others wait for them, because all go in step: on GPUs.

    >>> waits_for_the_slowest() is not on_cpu()
    True
    """
    return not on_cpu()


def shares_memory() -> bool:
    """Whether what is "on the host" takes the device's own memory.

    >>> shares_memory() is on_cpu()
    True
    """
    return on_cpu()


def workers(chunks: int) -> int:
    """How many threads work on so many chunks of clients.

    On CPUs chunks run side by side, each on a core of its own: its arrays stay in that core's cache. There is one thread more
    than there are cores, so that the next chunk is ready when one is done. A GPU takes one chunk after the other.

    >>> workers(1)
    1
    """
    return min(cores() + 1, chunks) if on_cpu() else 1


def seed_groups(seeds: int) -> int:
    """Into how many equal groups of at least two seeds a run of many is split: on CPUs one for each core, as far as that divides.

    >>> seed_groups(1)
    1
    """
    most = min(cores(), seeds // 2) if on_cpu() else 1
    return max((n for n in range(1, most + 1) if seeds % n == 0), default=1)


# --- clients of unequal size ------------------------------------------------------------------------------------------

CPU_PADDING, GPU_PADDING = 1 << 20, 1 << 30
"""Numbers of padding that are not worth a group of their own."""
BLOCK = 8
"""Steps of an uneven loop between two looks at who is done: a GPU waits for the host at each look."""
LANES = (2, 5)
"""An uneven loop goes on with a half of the clients, and then with a fifth of them, as soon as all the others are done."""
GATHERED = 1 << 32
"""Bytes that an uneven loop may put in order before it starts."""


def least_padding() -> int:
    """How many numbers of padding it takes until clients of unequal size are better laid out in several groups.

    A GPU works on the groups one after the other, and in a step of few clients it mostly waits. So there it takes much.

    >>> least_padding() >= 2**20
    True
    """
    return CPU_PADDING if on_cpu() else GPU_PADDING


def uneven_loop(times: Int[jax.Array, ""], body: Callable[[list, jax.Array, T], T], start: T, values: list) -> T:
    """body(values, times−1, … body(values, 0, start)), for GPUs, where many clients with their own `times` go in step.

    Clients that are done only waste memory traffic. So they are put in order, those with the most steps first, and the loop goes
    on with fewer of them (`LANES`) as soon as the others are done.

    >>> def double(values, i, x):
    ...     return values[0] * x
    >>> loop = jax.vmap(lambda times, x: uneven_loop(times, double, x, [jnp.float32(2.0)]))
    >>> loop(jnp.array([3, 0], jnp.int32), jnp.ones(2)).tolist()
    [8.0, 1.0]
    """

    @custom_vmap
    def loop(times: jax.Array, start: T, values: list) -> T:
        return jax.lax.fori_loop(jnp.int32(0), times, lambda i, state: body(values, i, state), start)

    @loop.def_vmap
    def _(lanes: int, batched: list, times: jax.Array, start: T, values: list) -> tuple[T, T]:
        own = jax.tree.map(lambda flag: 0 if flag else None, batched)
        start = jax.tree.map(lambda x, flag: x if flag else jnp.broadcast_to(x, (lanes, *x.shape)), start, batched[1])
        step = jax.vmap(body, in_axes=(own[2], None, 0))
        if batched[0]:
            end = _shrinking(step, times, start, values, batched[2])
        else:
            end = jax.lax.fori_loop(jnp.int32(0), times, lambda i, state: step(values, i, state), start)
        return end, jax.tree.map(lambda _: True, end)

    return loop(times, start, values)


def _shrinking(step: Callable[[list, jax.Array, T], T], times: jax.Array, start: T, values: list, own: list[bool]) -> T:
    """The end of an uneven loop; `own` says which of the values have an axis of clients."""
    bytes_of_values = sum(x.nbytes for x, flag in zip(values, own, strict=True) if flag)
    widths = sorted({len(times), *(-(-len(times) // n) for n in LANES if bytes_of_values <= GATHERED)}, reverse=True)
    order = jnp.argsort(-times)
    times, state = times[order], jax.tree.map(lambda x: x[order], start)
    k = jnp.int32(0)
    for width, rest in zip(widths, [*widths[1:], 0], strict=True):
        mine = [x[order[:width]] if flag else x for x, flag in zip(values, own, strict=True)]
        ends, last = times[:width], times[rest]  # those in the other lanes are done after `last` steps
        some = jax.tree.map(lambda x, width=width: x[:width], state)
        k, some = _blocks(partial(step, mine), ends, last, k, some)
        state = jax.tree.map(lambda new, x, width=width: jnp.concatenate([new, x[width:]]), some, state)
    back = jnp.argsort(order)
    return jax.tree.map(lambda x: x[back], state)


def _blocks(
    step: Callable[[jax.Array, T], T], ends: jax.Array, last: jax.Array, k: jax.Array, state: T
) -> tuple[jax.Array, T]:
    """Steps from the k-th on, a block at a time, until `last` is reached; nobody moves beyond its own end."""

    def one_step(i: jax.Array, state: T) -> T:
        going = i < ends
        new = step(jnp.minimum(i, jnp.maximum(ends[0] - 1, 0)), state)
        return jax.tree.map(lambda a, b: jnp.where(going.reshape(-1, *(1,) * (a.ndim - 1)), a, b), new, state)

    def block(carry: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        k, state = carry
        return k + BLOCK, jax.lax.fori_loop(0, BLOCK, lambda j, state: one_step(k + j, state), state)

    return jax.lax.while_loop(lambda carry: carry[0] < last, block, (k, state))


# --- a product of few rows --------------------------------------------------------------------------------------------


def wants_flat_products() -> bool:
    """Whether a product over many axes is faster as one of two matrices, with the rows of all axes one below the other: on CPUs.

    >>> wants_flat_products() is on_cpu()
    True
    """
    return on_cpu()


def product(
    x: Float[jax.Array, "rows features"], weight: Float[jax.Array, " features *classes"]
) -> Float[jax.Array, " rows *classes"]:
    """x·W.

    On CPUs, a few rows of a few features times a vector are written out term by term, and so is the gradient: XLA would make
    one small call for every client and seed, whereas sums of products fuse with what is around them (1.6 times as fast for
    pFedMe over thirty seeds).

    >>> product(jnp.eye(2), jnp.array([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    if x.shape[-1] != weight.shape[0]:  # `_written_out` would not notice
        raise ValueError(f"{x.shape[-1]} features times weights of {weight.shape[0]}")
    few = weight.ndim == 1 and min(x.shape) > 0 and max(x.shape) <= FEW and on_cpu()
    return _written_out(x, weight) if few else x @ weight


@jax.custom_jvp
def _written_out(x: jax.Array, weight: jax.Array) -> jax.Array:
    # Behind a barrier, several steps on one sample share its columns, and with a column more than there are XLA writes them at
    # once, where it would copy a bare transpose twice.
    columns = jax.lax.optimization_barrier(jnp.pad(x.T, ((0, 1), (0, 0))))
    return reduce(jnp.add, [columns[j] * weight[j] for j in range(len(weight))])


def _written_out_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (x, weight), (dx, dweight) = primals, tangents
    terms = []
    if not isinstance(dweight, SymbolicZero):
        # Row by row, because of how it is transposed: the gradient becomes a sum of rows, each times its slope. The factor
        # of one completes this sum before anything else (a ridge) is added to it, which makes a faster loop.
        once = 1.0 * dweight
        terms.append(jnp.stack([jnp.sum(row * once) for row in x]))
    if not isinstance(dx, SymbolicZero):
        terms.append(_written_out(dx, weight))
    return _written_out(x, weight), reduce(jnp.add, terms)


_written_out.defjvp(_written_out_jvp, symbolic_zeros=True)


# --- a sort -----------------------------------------------------------------------------------------------------------


def stable_order(words: UInt32[jax.Array, " n"]) -> Int[jax.Array, " n"]:
    """The stable argsort of unsigned 32-bit words.

    XLA's CPU code sorts single words four times as fast as words with their places. So where there are few, this sorts words
    whose last bits are replaced by the place, and then mends the rare neighbours that differ in those bits alone.

    >>> stable_order(jnp.array([5, 1, 5, 0], jnp.uint32)).tolist()
    [3, 1, 0, 2]
    """
    if not (1 < len(words) <= SHORT and on_cpu()):
        return jnp.argsort(words, stable=True).astype(jnp.int32)
    places = jnp.arange(len(words), dtype=jnp.uint32)
    mask = jnp.uint32((1 << (len(words) - 1).bit_length()) - 1)
    order = jax.lax.sort((words & ~mask) | places, is_stable=False) & mask

    def exchange(state: tuple, first: int) -> tuple:
        """Exchange the wrong pairs that begin at an even place, or (first = 1) at an odd one."""
        words, _ = state
        wrong = (words[:-1] > words[1:]) & (places[:-1] % 2 == first)
        left, right = jnp.append(wrong, False), jnp.append(jnp.zeros(1, bool), wrong)
        return tuple(jnp.where(left, jnp.roll(x, -1), jnp.where(right, jnp.roll(x, 1), x)) for x in state)

    def unordered(state: tuple) -> jax.Array:
        return jnp.any(state[0][:-1] > state[0][1:])

    mended = jax.lax.while_loop(unordered, lambda state: exchange(exchange(state, 0), 1), (words[order], order))
    return mended[1].astype(jnp.int32)


# --- threads ----------------------------------------------------------------------------------------------------------


class Threads:
    """A pool of threads that work in the precision of the thread that made them (JAX keeps it per thread).

    >>> Threads(2).map(lambda number: number**2, [1, 2, 3])
    [1, 4, 9]
    """

    def __init__(self, count: int) -> None:
        self._count, self._pool = count, ThreadPoolExecutor(count)
        self._x64 = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]

    def map(self, work: Callable[[S], T], items: Iterable[S]) -> list[T]:
        """The result of each item's work, in order, all of it done."""
        found: dict[int, T] = {}
        waiting = iter(list(enumerate(items)))

        def take_turns() -> None:
            with jax.enable_x64(self._x64):
                for place, item in waiting:
                    found[place] = jax.block_until_ready(work(item))

        for each in [self._pool.submit(take_turns) for _ in range(self._count)]:
            each.result()
        return [found[place] for place in range(len(found))]

    def fold(self, work: Callable[[S], T], items: Iterable[S], add: Callable[[T, T], T]) -> T:
        """The items' results added up in order, each as soon as its turn comes: hardly more of them exist than there are threads.

        >>> Threads(2).fold(str, [1, 2, 3], lambda a, b: a + b)
        '123'
        """
        early: dict[int, T] = {}  # results that wait for those before them
        total: list[T] = []
        lock, done = Lock(), 0

        def take(numbered: tuple[int, S]) -> None:
            nonlocal done
            place, item = numbered
            found = jax.block_until_ready(work(item))
            with lock:
                early[place] = found
                while done in early:
                    total[:] = [add(total[0], early.pop(done)) if total else early.pop(done)]
                    done += 1

        self.map(take, enumerate(items))
        return total[0]
