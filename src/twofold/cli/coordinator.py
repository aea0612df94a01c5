"""`twofold study|serve|status`: for who coordinates a study."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from twofold.cli.base import friendly, rich_table, show
from twofold.cli.federation import LogOption, StudyArgument, ends, log_to_terminal, read_study
from twofold.errors import InputError

__all__ = ["init", "serve", "status", "study_app"]

study_app = typer.Typer(help="Write a study file, with its certificates.", no_args_is_help=True)

TEMPLATE = """\
# A study: everybody has the same file, and no number in it comes from anybody's data.
version = 1
name = "{name}"
seed = 0
dtype = "float64"

[[feature]]              # the columns of everybody's table, in this order
name = "age"
kind = "number"          # number, binary, or category with levels = ["a", "b"]
center = 50.0            # agreed on, not computed: (age - 50) / 20
scale = 20.0

[[feature]]
name = "smoker"
kind = "binary"

[target]
name = "outcome"
classes = ["no", "yes"]  # leave out where the target is a number

[loss]
name = "logistic"        # logistic, softmax (with classes = 3), squared
l2 = 0.01
intercept = true

[objective]
name = "mixture"         # see `twofold list objectives`
lam = 0.1

[algorithm]
name = "asvrcd"          # step sizes come from what clients tell

[stop]
rounds = 100
# tolerance = 1e-6       # or earlier: once F - F* is certified to be at most this; everybody tells its part of the bound

[round]
missing = "wait"         # or "skip": go on without who has not answered by the deadline
deadline = 60            # seconds
# quorum = 3             # with "skip": how many clients a round takes; more than two thirds if not given
record = 10              # ask for losses every so many rounds; only who joins with --tell loss tells

[masks]                  # the coordinator sees sums only; every client needs a key
on = {masks}

# [tell]
# norm = 4.0             # everybody's rows have at most this norm: then no constants are told
# rows = 500             # how many rows to reckon with where a client does not tell
"""
CLIENT = """
[[client]]
name = "{name}"
key = "the line that `twofold key {name}` prints"
"""


@study_app.command("init")
@friendly
def init(
    study: StudyArgument,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address of the coordinator; may be repeated.")
    ] = None,
    clients: Annotated[
        str, typer.Option(help="The names of the clients, with commas between them.")
    ] = "north,south,west",
    certs: Annotated[
        Path | None, typer.Option(help="Where certificates go; certs/ beside the file if not given.")
    ] = None,
) -> None:
    """Write a study file to fill in, and the certificates of its coordinator."""
    from twofold.federation.certificates import make_certificates

    if study.exists():
        show(f"{study} is there already and stays as it is.")
    else:
        study.parent.mkdir(parents=True, exist_ok=True)
        names = [name for name in clients.replace(" ", "").split(",") if name]
        if len(set(names)) < max(len(names), 1):
            raise InputError(f"--clients takes different names with commas between them, got {clients!r}.")
        masks = "true" if len(names) > 2 else "false        # they take three clients or more"
        text = TEMPLATE.format(name=study.stem, masks=masks) + "".join(CLIENT.format(name=name) for name in names)
        study.write_text(text, encoding="utf-8")
        show(f"{study}: fill it in, and send it to everybody.")
    folder = certs or study.parent / "certs"
    make_certificates(folder, host or ["localhost", "127.0.0.1"])
    show(f"{folder}/ca.crt: send it to everybody. server.key and ca.key stay here.")


@ends
def serve(
    study: StudyArgument,
    out: Annotated[Path, typer.Option(help="The folder of this run; the same folder again goes on with it.")],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at.")] = 8443,
    certs: Annotated[Path | None, typer.Option(help="The folder of certificates that `study init` made.")] = None,
    page: Annotated[
        int | None, typer.Option(help="Show a page for watching at this port, on this machine only.")
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds to wait for somebody before stopping for now.")] = 86400.0,
    log: LogOption = "text",
) -> None:
    """Coordinate a study until it is done. The same command again goes on where it was."""
    agreed = read_study(study).check()
    log_to_terminal(log)
    from twofold.engines.flower import serve as run
    from twofold.federation import Patience
    from twofold.federation.page import watching
    from twofold.solver.progress import bar

    with watching(out, page) as seen, bar(None, agreed.rounds) as tick:
        waits = _Waits()
        if seen is not None:
            show(f"Watch it at http://127.0.0.1:{seen}/ on this machine.")

        def watch(now: dict[str, Any]) -> None:
            tick(now["round"])
            waits(now)

        result = run(
            agreed, out, host=host, port=port, certificates=certs, patience=Patience(limit=limit),
            watch=watch, ready=lambda p: show(f"Serving {agreed.name} at {host}:{p}."),
        )  # fmt: skip
    show(str(result.ledger), f"{out / 'result'}: the shared model and the ledger. Every β stayed where it is.")


class _Waits:
    """Says on the terminal who is waited for: at once before the first round, and later where it takes long."""

    LONG = 5.0

    def __init__(self) -> None:
        self.told: list[str] = []
        self.last: list[str] = []
        self.since = 0.0

    def __call__(self, now: dict[str, Any]) -> None:
        waiting = now["waiting"]
        if waiting != self.last:
            self.last, self.since = waiting, now["time"]
        long = not now["round"] or now["time"] - self.since > self.LONG
        if waiting and waiting != self.told and long:
            self.told = waiting
            show(f"Waiting for {', '.join(waiting)}.")


@friendly
def status(
    out: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Say how far a study is, and whom it waits for."""
    path = out / "status.json"
    if not path.is_file():
        raise InputError(f"There is no {path}: is {out} the --out folder of `twofold serve`?")
    now = json.loads(path.read_text())
    if as_json:
        show(json.dumps(now))
        return
    rows = [
        [
            name,
            "waited for" if name in now["waiting"] else "",
            *(str(now.get(k, [0] * 99)[m]) for k in ("absent", "up", "down")),
        ]
        for m, name in enumerate(now["clients"])
    ]
    show(
        f"{now['study']}: round {now['round']} of {now['rounds']}{', done' if now['over'] else ''}{_gap_of(now)}",
        rich_table(
            "",
            ["client", "now", "rounds absent", "bytes up", "bytes down"],
            rows,
            right=["rounds absent", "bytes up", "bytes down"],
        ),
        *now["events"][-5:],
    )


def _gap_of(now: dict[str, Any]) -> str:
    """The last certified gap, where a study has a tolerance and something was measured."""
    bounds = now.get("bounds")
    return f"; certified gap {bounds[-1][1]:.3g}, tolerance {now['tolerance']:g}" if bounds else ""
