"""Over devices: the clients are dealt out over all devices of all processes, and only means cross between them.

It is the simulation of everyone at once inside `shard_map`: each device advances its clients, and one `psum` adds up the
weighted means of their messages. On CPUs a device's clients take turns inside an iteration, in groups that fit into a cache.
Several processes (`jax.distributed.initialize`) make one mesh; each holds only its own clients on its devices.
"""

from __future__ import annotations

import numpy as np
from jax.sharding import Mesh

from twofold import kernels
from twofold.algorithms.base import Algorithm
from twofold.engines import memory
from twofold.engines.base import Snapshots, Starts
from twofold.engines.layout import AXIS, Layout
from twofold.engines.schedule import footprint
from twofold.engines.simulate import Simulate
from twofold.metrics import Metric, evaluate
from twofold.problem import Problem

__all__ = ["Sharded"]


class Sharded(Simulate):
    """All clients of all seeds of one run, over all devices of all processes."""

    def __init__(self, algorithm: Algorithm, problem: Problem, seeds: list[int], starts: Starts, slots: int) -> None:
        mesh = Mesh(np.array(kernels.devices()), (AXIS,))
        need = memory.need(problem, footprint(algorithm, problem), algorithm)
        most = [-(-len(positions) // mesh.size) for positions in problem.positions]  # of each bucket, on one device
        self.turns = memory.turns(need, most, len(seeds))
        super().__init__(algorithm, problem, seeds, starts, slots, layout=Layout(mesh, self.turns))

    def measure(
        self, metrics: dict[str, Metric], snapshots: Snapshots, index: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """See `Engine.measure`.

        Clients that only pad the layout have share 0. Their weight, which scales gradients in β, is replaced by it here. (In the
        loop they keep it, because a method may divide by it.)
        """
        stacks = tuple(stack._replace(weight=stack.share) for stack in self.program.stacks)
        return evaluate(metrics, self.program._replace(stacks=stacks), snapshots, index)
