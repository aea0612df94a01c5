"""The study as an app of Flower's own: its ClientApp and the ServerApp's grid, called in this process through Flower's messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import twofold as tw
from federation.small import NAMES, problem, study
from twofold.federation import Coordinator, Patience

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from twofold.engines.flower import app, bodies


class Fake:
    """As much of Flower's Grid as an app uses."""

    def __init__(self, contexts: dict[int, Context]) -> None:
        self.contexts, self.replies, self.failures = contexts, {}, 1

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: list[Message]) -> list[str]:
        tickets = []
        for message in messages:
            bodies.objects(message)  # gives it its name
            if self.failures and "round" in str(
                message.content[bodies.ENTRY]["body"]
            ):  # Flower says that a node is gone
                self.failures -= 1
                reply = Message(Error(code=3, reason="node unavailable"), reply_to=message)
            else:
                reply = app.client(message, self.contexts[message.metadata.dst_node_id])
            self.replies[message.metadata.message_id] = reply
            tickets.append(message.metadata.message_id)
        return tickets

    def pull_messages(self, tickets: list[str]) -> list[Message]:
        return [self.replies.pop(ticket) for ticket in tickets if ticket in self.replies]


def test_apps_are_the_same_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("_task_id", 1), ("_run_id", 1), ("_node_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    agreed = study("scd", rounds=4)
    agreed.write(tmp_path / "study.toml")
    contexts: dict[int, Context] = {}
    for i, name in enumerate(NAMES):
        mine = problem().clients[name]
        np.savez(tmp_path / f"{name}.npz", x=mine.x, y=mine.y)
        config: Any = {
            "study": str(tmp_path / "study.toml"), "as": name, "data": str(tmp_path / f"{name}.npz"), "state": str(tmp_path / name),
            "tell": "constants,rows,loss",
        }  # fmt: skip
        contexts[10 + i] = Context(run_id=1, node_id=10 + i, node_config=config, state=RecordDict(), run_config={})
    grid: Any = app.AppGrid(Fake(contexts))  # type: ignore[arg-type]
    patience = Patience(poll=0.0, again=0.01, look=9.0, limit=5.0)
    found = Coordinator(agreed, grid, tmp_path / "server", patience=patience).run()
    expected = tw.solve(problem(), found.algorithm, rounds=4, seed=3)
    assert_allclose(found.w, expected.w, rtol=0, atol=1e-12)
    assert any("is not there (node unavailable)" in note for note in found.notes)
