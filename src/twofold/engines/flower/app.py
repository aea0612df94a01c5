"""The same coordinator and node as apps of Flower's own, for a network that somebody else runs: `flwr run`.

With Flower's stock server and nodes a process is started for every message, and code travels: use `twofold serve` and `twofold
join` where you can. An app is a folder with a pyproject.toml (deploy/flwr-app) whose two components are the names below.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid as FlowerServerGrid
from flwr.serverapp import ServerApp

from twofold.engines.flower import bodies
from twofold.federation.coordinator import Coordinator
from twofold.federation.grid import Gone, Question
from twofold.federation.keys import Identity
from twofold.federation.node import Node
from twofold.federation.patience import Patience
from twofold.federation.seat import Seat, read_rows
from twofold.federation.study import Study

__all__ = ["AppGrid", "client", "server"]


class AppGrid:
    """A `Grid` over the one that Flower hands to a ServerApp."""

    def __init__(self, grid: FlowerServerGrid) -> None:
        self._grid = grid

    def nodes(self) -> dict[int, str]:
        """See `Grid.nodes`."""
        return dict.fromkeys(self._grid.get_node_ids(), "")

    def push(self, questions: list[Question]) -> list[str]:
        """See `Grid.push`."""
        made = [
            Message(bodies.record(q.content), dst_node_id=q.node, message_type="train", ttl=3600.0) for q in questions
        ]
        return list(self._grid.push_messages(made))

    def pull(self, tickets: list[str]) -> list[tuple[str, bytes | Gone]]:
        """See `Grid.pull`."""
        found: list[tuple[str, bytes | Gone]] = []
        for reply in self._grid.pull_messages(tickets):
            ticket = reply.metadata.reply_to_message_id
            wrong = reply.has_error()
            body: Any = None if wrong else reply.content[bodies.ENTRY]
            found.append((ticket, Gone(str(reply.error.reason)) if wrong else bytes(body["body"])))
        return found


_nodes: dict[str, Node] = {}


def _node(config: Any) -> Node:
    """The node that a SuperNode's --node-config describes, kept while its process lives."""
    where = str(config["state"])
    if where not in _nodes:
        study = _study(config)
        name = str(config["as"])
        identity = Identity.read(str(config["key"])) if "key" in config else None
        seat = Seat(study, name, *read_rows(study, str(config["data"]), name))
        tells = tuple(str(config["tell"]).split(",")) if "tell" in config else None
        _nodes[where] = Node(seat, where, identity=identity, tells=tells)
    return _nodes[where]


def _study(config: Any) -> Study:
    import jax

    study = Study.read(str(config["study"]))
    jax.config.update("jax_enable_x64", study.dtype == "float64")
    return study


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Answer one question."""
    body: Any = message.content[bodies.ENTRY]
    return Message(bodies.record(_node(context.node_config).handle(bytes(body["body"]))), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: FlowerServerGrid, context: Context) -> None:
    """Coordinate the study that the run's configuration names."""
    config = context.run_config
    study, out = _study(config), Path(str(config["out"]))
    Coordinator(study, AppGrid(grid), out, patience=Patience(poll=0.1, limit=86400.0)).run().save(out / "result")
