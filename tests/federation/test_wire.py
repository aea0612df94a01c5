"""What really passes: every byte on the sockets between nodes and coordinator, without TLS so that it can be read, and searched."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from federation.small import NAMES, node, problem, study
from federation.test_outages import Cable
from twofold.federation import Coordinator, Node, Patience, Study

pytest.importorskip("flwr")

from twofold.engines.flower import FlowerGrid, join

COLUMNS = ("age_at_stroke", "systolic_mmHg", "is_smoker")


class Tap(Cable):
    """A line that keeps what goes over it."""

    def __init__(self, port: int) -> None:
        self.passed: dict[Any, list[bytes]] = {}
        super().__init__(port)

    def heard(self, end: Any, some: bytes) -> None:
        self.passed.setdefault(end, []).append(some)


def numbers_in(passed: list[bytes], dtype: str) -> np.ndarray:
    """Everything that could be read as a number of this type, from wherever it begins."""
    size = np.dtype(dtype).itemsize
    return np.unique(
        np.concatenate([np.frombuffer(s[i:][: len(s[i:]) // size * size], dtype) for s in passed for i in range(size)])
    )


def assert_nowhere(vectors: list[np.ndarray], passed: list[bytes]) -> None:
    """None of these numbers is there in float64 or as decimal text, and no vector in float32."""
    numbers = np.concatenate([np.ravel(v) for v in vectors])
    assert not np.isin(numbers[numbers != 0], numbers_in(passed, "<f8")).any()
    whole = b"".join(passed)
    for vector in vectors:
        flat = np.ravel(vector)
        for kind in ("<f4", ">f4", ">f8"):
            if flat.size > 1 and np.count_nonzero(flat) > 1:  # one float32 alone could be there by chance
                assert flat.astype(kind).tobytes() not in whole
        for number in flat[flat != 0]:
            for text in (repr(float(number))[:10], f"{number:.7g}", f"{number:.6e}"):
                assert text.encode() not in whole, text


@pytest.mark.parametrize(
    ("name", "kind", "keys"),
    [("acd", "mixture", False), ("acd", "mixture", True), ("asvrcd", "weight_sharing", False), ("lsgd", "multitask", False),
     ("scd", "residual", True)],
)  # fmt: skip
def test_no_private_number_is_on_the_wire(
    name: str, kind: str, keys: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every β on the way, every row, the labels and the names of columns: as float64, as float32 and as text."""
    base = study(name, kind, rounds=4, keys=keys, masks={"on": keys}, target={"name": "outcome_of_stroke"})
    document = {k: v for k, v in base.document.items() if k != "features"}
    agreed = Study(document | {"feature": [{"name": column} for column in COLUMNS]}).check()
    betas: list[np.ndarray] = []
    keep = Node._keep

    def spy(self: Node, state: Any) -> None:
        for private in (state.private, *(() if state.ended is None else (state.ended[1],))):
            betas.extend(np.asarray(leaf) for leaf in jax.tree.leaves(self.algorithm.personal(private)))
        keep(self, state)

    monkeypatch.setattr(Node, "_keep", spy)
    grid = FlowerGrid(keys=agreed.keys)
    tap = Tap(grid.port)
    nodes = [node(agreed, n, tmp_path, kind) for n in NAMES]
    threads = [threading.Thread(target=join, args=(who, f"127.0.0.1:{tap.port}"), daemon=True) for who in nodes]
    try:
        for each in threads:
            each.start()
        server = Coordinator(agreed, grid, tmp_path / "server", patience=Patience(limit=60.0))
        server.run()
        assert server.part(20.0) == []
        for each in threads:
            each.join(timeout=20)
    finally:
        grid.close()
        tap.cut()
    passed = [b"".join(some) for some in tap.passed.values()]
    # What should be there is found: the means, which everybody hears.
    means = np.concatenate([np.ravel(a) for line in server.log.lines[:-1] for a in line.mean.values()])
    assert means.size and np.isin(means, numbers_in(passed, "<f8")).all()
    clients = [problem(kind).clients[n] for n in NAMES]
    assert len(betas) >= 4 * 4 and max(np.abs(b).max(initial=0.0) for b in betas) > 0
    assert_nowhere([*betas, *(row for c in clients for row in np.asarray(c.x))], passed)
    whole = b"".join(passed)
    for client in clients:
        for dtype in ("<i8", "<f8", "<i4", "<f4", "u1"):
            assert np.asarray(client.y).astype(dtype).tobytes() not in whole
        assert str(np.asarray(client.y).tolist())[1:-1].encode() not in whole
    for word in (*COLUMNS, "outcome_of_stroke", str(tmp_path)):
        assert word.encode() not in whole
