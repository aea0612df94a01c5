"""`twofold run`."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.base import (
    DIVERGED,
    INTERRUPTED,
    ConfigArgument,
    SetOption,
    X64Option,
    friendly,
    rich_table,
    show,
)
from twofold.cli.opening import open_config
from twofold.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from twofold.config import Built, Config
    from twofold.evaluate import Evaluation
    from twofold.result import Result, Results

__all__ = ["EXAMPLE", "FORMAT", "evaluated", "run"]

EXAMPLE = """\
[data]
source = "digits"       # or synthetic-mixture, mnist, school, csv, ...
[partition]
method = "by_labels"    # or dirichlet, power_law; natural for given clients
clients = 20
train = 40
test = 40
[loss]
name = "softmax"        # or logistic, squared
l2 = 0.01
[objective]
name = "mixture"        # or traditional, local, multitask, adaptive, ...
lam = 0.1
[algorithm]
name = "acd"            # and any of its fields; theory sets the others. Without this section, the cheapest
[stop]
rounds = 1000           # and/or iterations, seconds, target, tol
[record]
metrics = ["loss"]      # and gap, gradient_norm, bound
every = 10
[run]
seeds = [0, 1, 2]       # or seed = 0
x64 = true
[output]
folder = "runs/digits"
"""
# rich takes [data] for markup unless it is escaped. Every line is a paragraph: older versions of typer join lines.
FORMAT = "\n\n".join(
    ["A file has these sections, of which data, loss and objective are needed; `twofold list keys` has every key.",
     *EXAMPLE.replace("[", "\\[").splitlines()]
)  # fmt: skip
PARTS = {"personal": "personal models", "only w": "only the shared part", "only β": "only the private part"}


@friendly
def run(
    config: ConfigArgument,
    out: Annotated[Path | None, typer.Option(help="The folder for the results; wins over output.folder.")] = None,
    set_: SetOption = None,
    x64: X64Option = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the results of another configuration in the folder.")
    ] = False,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Write a checkpoint every N rounds, for --resume.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder of the results.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors; no progress bar.")] = False,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where process 0 of a run over several processes listens.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="How many processes there are, with --coordinator.")] = 1,
    process: Annotated[int, typer.Option(min=0, help="Which of them this one is, from 0.")] = 0,
) -> None:
    """Solve the problem that a TOML file describes, and keep the model, the history and the cost.

    Writes model.safetensors and result.json (for `twofold.Result.load`; one folder per seed if there are several, for
    `twofold.Results.load`), history.csv and history.parquet, clients.csv with every client's grade, and config.toml, which
    runs the same again.

    With --checkpoint-every (or checkpoint = true in \\[run]) a run that was killed goes on with --resume, to the same result.
    Ctrl-C ends a run early and keeps what it has.

    With --coordinator, the clients are dealt out over all devices of several processes, on one machine or many (engine
    sharded): start the same command everywhere, with --process 0, 1, …; process 0 prints and writes.
    """
    if coordinator is not None:
        _join(coordinator, processes, process)
        set_, quiet = [*(set_ or []), 'run.engine="sharded"'], quiet or process > 0
    elif processes > 1 or process > 0:
        raise InputError("--processes and --process need --coordinator HOST:PORT, the address of process 0.")
    settings = open_config(config, [*(set_ or []), *_checkpoint_keys(checkpoint_every, resume)], x64, out)
    from twofold.config import check_folder, save

    if process == 0:
        check_folder(settings, force, resume)
    built = settings.build()
    runs = settings.solve(built, progress=False if quiet else None)
    if process > 0:
        return
    graded = evaluated(settings, built, runs)
    files = save(settings, runs, graded, built)
    if not quiet:
        show(*_summary(settings, built, runs, graded), f"Written to {settings.folder}: {', '.join(files)}.")
    _tell_interrupted(settings, runs)
    _tell_diverged(runs)


def _checkpoint_keys(every: int | None, resume: bool) -> list[str]:
    """The keys that the two options stand for."""
    keys = [] if every is None else [f"run.checkpoint_every={every}"]
    return [*keys, "run.checkpoint=true"] if keys or resume else []


def _join(coordinator: str, processes: int, process: int) -> None:
    """Make this one of several processes that compute together; before anything else is computed."""
    if process >= processes:
        raise InputError(f"--process counts from 0 and must be below --processes: {process} of {processes}.")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"--coordinator is HOST:PORT, for example 10.0.0.1:8476, not {coordinator!r}.")
    import jax

    jax.distributed.initialize(coordinator, num_processes=processes, process_id=process)


def evaluated(settings: Config, built: Built, runs: Results) -> Evaluation | None:
    """Every client's grade, for the first seed."""
    if not settings.output.evaluate:
        return None
    from twofold.evaluate import evaluate

    return evaluate(built.problem, runs[0], built.test, metric=settings.output.metric)


def _tell_interrupted(settings: Config, runs: Results) -> None:
    stopped = [result for result in runs if result.status == "interrupted"]
    for result in stopped:
        typer.echo(f"twofold: seed {result.seed}: {result.message}", err=True)
    if stopped:
        if settings.checkpoints is not None:
            typer.echo("twofold: --resume goes on from here.", err=True)
        raise typer.Exit(INTERRUPTED)


def _tell_diverged(runs: Results) -> None:
    diverged = [result for result in runs if result.status == "diverged"]
    for result in diverged:
        typer.echo(f"twofold: seed {result.seed}: {result.message}", err=True)
    if diverged:
        raise typer.Exit(DIVERGED)


def _summary(settings: Config, built: Built, runs: Results, graded: Evaluation | None) -> list[RenderableType]:
    objective = built.problem.objective
    asked: list[str] = [*settings.record.metrics, *(["bound"] if "tol" in settings.budget else [])]
    last = [name for name in dict.fromkeys(asked) if name in runs[0].history]
    columns = ["seed", "status", "rounds", "iterations", "traffic", *last, "seconds"]
    return [
        f"{settings.name}: {objective.name}, {objective.equation}, by {settings.algorithm.registered.name}",
        f"{built.provenance} {built.train.M} clients, {built.train.rows:,} training rows.",
        rich_table("", columns, [_line(result, last) for result in runs], right=columns[2:]),
        "traffic: sent and received by each client, together",
        *([runs[0].notes[0]] if built.algorithm == "auto" else []),
        *([] if graded is None else [_grades(graded)]),
    ]


def _line(result: Result, last: list[str]) -> list[str]:
    """One seed in the summary: its cost, and the last values of the named metrics."""
    from twofold.engines.memory import in_words as size

    ledger = result.ledger
    cost = [f"{ledger.rounds:,}", f"{ledger.iterations:,}", size(ledger.bytes_per_client)]
    ends = [f"{float(result.history[name][-1]):.4g}" for name in last]
    return [str(result.seed), result.status, *cost, *ends, f"{result.seconds:.1f}"]


def _grades(graded: Evaluation) -> RenderableType:
    where = "test rows" if graded.held_out else "the training rows themselves"
    body = [
        [PARTS[part], *(_figure(found[c], graded.measure) for c in ("mean", "worst")), str(found["worst_client"])]
        for part, found in graded.summary().items()
        if part == "personal" or not (graded[part] == graded.personal).all()  # often the private part is the model
    ]
    columns = ["", "mean", "worst", "worst client"]
    return rich_table(f"{graded.measure.capitalize()} on {where}", columns, body, right=["mean", "worst"])


def _figure(value: float, measure: str) -> str:
    from twofold.evaluate.text import show as figure

    return figure(float(value), measure)
