"""Clients of unequal size in few groups, so that padding each to its largest client stays cheap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fewest_groups"]


def fewest_groups(counts: NDArray[np.integer], budget: int) -> NDArray[np.integer]:
    """Split the sizes into the fewest groups of neighbouring sizes whose padded rows fit `budget`; return each group's largest size.

    With C_j clients among the j smallest sizes s_1 < ... < s_j, the smallest number of rows after padding, in at most k groups,
    obeys D_k(j) = min_{i<j} D_{k-1}(i) + s_j (C_j - C_i). For each j this is the minimum over i of lines in s_j with slopes
    -C_i. The slopes only fall as i grows, so the lower envelope can be kept as a queue, and each layer k takes linear time.
    Python's integers keep the arithmetic exact.
    """
    unique, clients = np.unique(counts, return_counts=True)
    sizes: list[int] = unique.tolist()
    below: list[int] = [0, *np.cumsum(clients).tolist()]  # C
    fewest: list[int] = [0, *(size * c for size, c in zip(sizes, below[1:], strict=True))]  # D
    layers: list[list[int]] = []

    def crossing(a: int, b: int) -> int:  # the first whole size from which on line b is as low as line a
        return -((fewest[a] - fewest[b]) // (below[b] - below[a]))

    while fewest[-1] > budget:
        queue: list[int] = []
        head, cost, choice = 0, [0], [0]
        for i, size in enumerate(sizes):
            while len(queue) - head > 1 and crossing(queue[-1], i) <= crossing(queue[-2], queue[-1]):
                queue.pop()
            queue.append(i)
            while head + 1 < len(queue) and crossing(queue[head], queue[head + 1]) <= size:
                head += 1
            choice.append(queue[head])
            cost.append(fewest[queue[head]] + size * (below[i + 1] - below[queue[head]]))
        fewest = cost
        layers.append(choice)
    ends = [len(sizes)]
    for choice in reversed(layers):
        ends.append(choice[ends[-1]])
    return unique[np.array(ends[::-1]) - 1]
