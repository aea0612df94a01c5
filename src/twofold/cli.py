"""`twofold …`: the command line.

Nothing heavy is imported before a command needs it, so that `twofold --help` is there at once.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twofold.errors import InputError
from twofold.extras import require

if TYPE_CHECKING:
    from twofold.config import Built, Config
    from twofold.evaluate import Evaluation
    from twofold.problem import Problem
    from twofold.result import Result

OK, DIVERGED, BAD_INPUT, BUG, INTERRUPTED = 0, 1, 2, 3, 130
CODES = (
    "Exit codes: 0 all went well, 1 a run diverged, 2 bad input or usage, 3 an error inside twofold (please report "
    "it), 130 interrupted."
)
NO_CACHE, DEBUG = "TWOFOLD_NO_CACHE", "TWOFOLD_DEBUG"
ENVIRONMENT = (
    "Environment: TWOFOLD_DATA, a folder with data files; TWOFOLD_NO_CACHE=1, do not keep compiled programs between "
    "runs; TWOFOLD_DEBUG=1, show the traceback of every error."
)

app = typer.Typer(
    name="twofold",
    help="Personalised federated learning: every client's model has a part shared by all and a part of its own.",
    epilog=f"{CODES}\n\n{ENVIRONMENT}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Kind(StrEnum):
    """What `twofold list` can list."""

    objectives = "objectives"
    losses = "losses"
    algorithms = "algorithms"
    engines = "engines"
    datasets = "datasets"
    partitioners = "partitioners"
    experiments = "experiments"
    keys = "keys"


# --- shared by the commands -------------------------------------------------------------------------------------------


def main() -> None:
    """The entry point of the command `twofold`."""
    app()


def _friendly(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a user's mistake into sentences and exit code 2, and anything else into a traceback and exit code 3."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.BadParameter):
            raise
        except KeyboardInterrupt as error:
            typer.echo("twofold: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error
        except Exception as error:
            if os.environ.get(DEBUG):
                raise
            if _is_a_mistake(error):
                for sentence in getattr(error, "errors", None) or (str(error),):
                    typer.echo(f"twofold: {sentence}", err=True)
                raise typer.Exit(BAD_INPUT) from error
            import traceback

            typer.echo(traceback.format_exc(), err=True)
            typer.echo("twofold: this should not happen; please report it with the lines above.", err=True)
            raise typer.Exit(BUG) from error

    return wrapped


def _is_a_mistake(error: Exception) -> bool:
    """Whether it is the user's to mend: a refusal of ours, or a file that cannot be read or written."""
    from twofold.data import DataError

    if isinstance(error, (OSError, DataError)):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    ours = trace is not None and Path(trace.tb_frame.f_code.co_filename).is_relative_to(Path(__file__).parent)
    # JAX takes its own frames out of a traceback, so that its errors look like ours; it leaves a note where it did.
    from_jax = any("JAX" in note for note in getattr(error, "__notes__", ()))
    return ours and not from_jax and isinstance(error, (ValueError, TypeError))


def _prepare(x64: bool | None = None) -> None:
    """Settings of JAX that must be made before anything is computed: precision, and the cache of compiled programs."""
    import jax

    if x64 is not None:
        jax.config.update("jax_enable_x64", x64)
    if not os.environ.get(NO_CACHE) and not getattr(jax.config, "jax_compilation_cache_dir", None):
        import platformdirs

        folder = platformdirs.user_cache_path("twofold", appauthor=False) / "jax"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _notes_to_stderr() -> None:
    """Show theory's warnings as notes of one line."""
    import warnings

    from twofold.solver import TheoryWarning

    plain = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, TheoryWarning):
            typer.echo(f"note: {message}", err=True)
        else:
            plain(message, category, *where, **more)

    warnings.showwarning = show


def _print(*things: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for thing in things:
        console.print(thing, markup=False) if isinstance(thing, str) else console.print(thing)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if column in right else "left", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _size(count: float) -> str:
    from twofold.engines.memory import size

    return size(count)


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if math.isfinite(value) else "∞"


Config_ = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The file; `twofold list keys` lists its keys.")]
Set_ = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in objective.lam=0.3; may be repeated."),
]
X64_ = Annotated[
    bool | None, typer.Option("--x64/--no-x64", help="Compute in float64 or in float32.", show_default=False)
]


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        import twofold

        typer.echo(f"twofold {twofold.__version__}")
        raise typer.Exit(OK)


# --- demo -------------------------------------------------------------------------------------------------------------


@app.command(epilog=CODES)
@_friendly
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the plot and the numbers.")] = Path("twofold-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Deals the digits out, and runs the methods.")] = 0,
    clients: Annotated[int, typer.Option(min=2, help="The number of clients.")] = 20,
    train: Annotated[int, typer.Option(min=2, help="Training images of each client.")] = 10,
    algorithm: Annotated[str, typer.Option(help="The method that solves everything.")] = "acd",
    x64: X64_ = None,
) -> None:
    """Recognise digits, for twenty people who each know only two: shared, alone, or personalised?

    Trains one model for all, one for each client alone, and six personalised objectives on scikit-learn's digits, and
    shows how well every client does on images that were not trained on. Takes less than a minute.
    """
    _prepare(x64)
    from twofold.demo import Setting, show

    result = show(Setting(clients=clients, train=train, seed=seed, algorithm=algorithm), out)
    if any(row.status == "diverged" for row in result.comparison):
        raise typer.Exit(DIVERGED)


# --- run --------------------------------------------------------------------------------------------------------------

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
name = "asvrcd"         # and any of its fields; theory sets the others
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
# rich takes [data] for markup unless it is escaped, and \b keeps the lines as they are.
FORMAT = (
    "\b\nA file has these sections, of which data, loss and objective are needed;\n`twofold list keys` has every key."
    "\n\n\b\n" + EXAMPLE.replace("[", "\\[")
)


@app.command(epilog=f"{FORMAT}\n\n{CODES}")
@_friendly
def run(
    config: Config_,
    out: Annotated[Path | None, typer.Option(help="The folder for the results; wins over output.folder.")] = None,
    set_: Set_ = None,
    x64: X64_ = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors; no progress bar.")] = False,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where process 0 of a run over several processes listens.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="How many processes there are, with --coordinator.")] = 1,
    process: Annotated[int, typer.Option(min=0, help="Which of them this one is, from 0.")] = 0,
) -> None:
    """Solve the problem that a TOML file describes, and keep the model, the history and the cost.

    Writes model.safetensors and result.json (for `twofold.Result.load`; one folder per seed if there are several),
    history.csv and history.parquet, clients.csv with every client's grade, and config.toml, which runs the same again.

    With --coordinator, the clients are dealt out over all devices of several processes, on one machine or many (engine
    sharded): start the same command everywhere, with --process 0, 1, …; process 0 prints and writes.
    """
    if coordinator is not None:
        _join(coordinator, processes, process)
        set_, quiet = [*(set_ or []), 'run.engine="sharded"'], quiet or process > 0
    elif processes > 1 or process > 0:
        raise InputError("--processes and --process need --coordinator HOST:PORT, the address of process 0.")
    settings, built = _open(config, set_, x64, out)
    runs = settings.solve(built, progress=False if quiet else None)
    if process > 0:
        return
    graded = _grade(settings, built, runs)
    files = _save(settings, runs, graded)
    if not quiet:
        _print(*_summary(settings, built, runs, graded), f"Written to {settings.folder}: {', '.join(files)}.")
    for one in runs:
        if one.status == "diverged":
            typer.echo(f"twofold: seed {one.seed}: {one.message}", err=True)
    if any(one.status == "diverged" for one in runs):
        raise typer.Exit(DIVERGED)


def _join(coordinator: str, processes: int, process: int) -> None:
    """Make one of several processes that compute together; before anything else is computed."""
    if process >= processes:
        raise InputError(f"--process counts from 0 and must be below --processes: {process} of {processes}.")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"--coordinator is HOST:PORT, for example 10.0.0.1:8476, not {coordinator!r}.")
    import jax

    jax.distributed.initialize(coordinator, num_processes=processes, process_id=process)


def _open(path: Path, overrides: list[str] | None, x64: bool | None, out: Path | None = None) -> tuple[Config, Built]:
    """Read the file, set JAX up for it, and build the problem."""
    import json

    _prepare()
    from twofold import config

    extra = [*(overrides or []), *([f"output.folder={json.dumps(str(out))}"] if out is not None else [])]
    extra += [f"run.x64={str(x64).lower()}"] if x64 is not None else []
    settings = config.load(path, extra)
    _prepare(settings.tables["run"].x64)
    _notes_to_stderr()
    return settings, settings.build()


def _grade(settings: Config, built: Built, runs: Sequence[Result]) -> Evaluation | None:
    """Every client's grade, for the first seed."""
    if not settings.tables["output"].evaluate:
        return None
    from twofold.evaluate import evaluate

    return evaluate(built.problem, runs[0], built.test)


def _save(settings: Config, runs: Sequence[Result], graded: Evaluation | None) -> list[str]:
    import csv

    import numpy as np

    folder = settings.folder
    several = settings.tables["run"].seeds is not None
    files = ["seed-*/model.safetensors", "seed-*/result.json"] if several else ["model.safetensors", "result.json"]
    for one in runs:
        one.save(folder / f"seed-{one.seed}" if several else folder)
    columns = {"seed": np.concatenate([np.full(len(r.history["round"]), r.seed) for r in runs])} if several else {}
    columns |= {name: np.concatenate([np.asarray(r.history[name]) for r in runs]) for name in runs[0].history}

    def rows(path: Path, header: Sequence[str], values: Iterable[Sequence[Any]]) -> None:
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([header, *values])
        files.append(path.name)

    if "csv" in settings.tables["output"].history:
        rows(folder / "history.csv", list(columns), zip(*(c.tolist() for c in columns.values()), strict=True))
    if "parquet" in settings.tables["output"].history:
        require("pyarrow", 'output.history = ["parquet"]', "paper")
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), folder / "history.parquet")
        files.append("history.parquet")
    if graded is not None:
        body = zip(graded.names, graded.rows.tolist(), *(g.tolist() for g in graded.grades.values()), strict=True)
        rows(folder / "clients.csv", ["client", "rows", *graded.grades], body)
    (folder / "config.toml").write_text(str(settings), encoding="utf-8")
    return [*files, "config.toml"]


def _summary(settings: Config, built: Built, runs: Sequence[Result], graded: Evaluation | None) -> list[Any]:
    problem = built.problem
    asked: list[str] = [*settings.tables["record"].metrics, *(["bound"] if "tol" in settings.stop else [])]
    last = [name for name in dict.fromkeys(asked) if name in runs[0].history]
    columns = ["seed", "status", "rounds", "iterations", "traffic", *last, "seconds"]
    body = []
    for one in runs:
        ledger = one.ledger
        cost = [f"{ledger.rounds:,}", f"{ledger.iterations:,}", _size(ledger.bytes_up + ledger.bytes_down)]
        ends = [f"{float(one.history[name][-1]):.4g}" for name in last]
        body.append([str(one.seed), one.status, *cost, *ends, f"{one.seconds:.1f}"])
    lines: list[Any] = [
        f"{settings.name}: {problem.objective.name}, {problem.objective.equation}, by {settings.kinds['algorithm']}",
        f"{built.provenance} {built.train.M} clients, {built.train.rows:,} training rows.",
        _table("", columns, body, right=columns[2:]),
        "traffic: sent and received by each client, together",
    ]
    if graded is not None:
        where = "test rows" if graded.held_out else "the training rows themselves"
        names = {"personal": "personal models", "shared": "shared part alone", "alone": "private part alone"}
        body = [
            [names[part], *(_figure(v[c], graded.measure) for c in ("mean", "worst")), str(v["worst_client"])]
            for part, v in graded.summary().items()
            if part == "personal" or not (graded[part] == graded.personal).all()  # often the private part is the model
        ]
        lines.append(_table(f"{graded.measure.capitalize()} on {where}", ["", "mean", "worst", "worst client"], body,
                            right=["mean", "worst"]))  # fmt: skip
    return lines


def _figure(value: float, measure: str) -> str:
    return f"{100 * value:.1f} %" if measure == "accuracy" else f"{value:.4g}"


# --- theory -----------------------------------------------------------------------------------------------------------


@app.command(epilog=CODES)
@_friendly
def theory(
    config: Config_,
    tol: Annotated[float, typer.Option(help="The accuracy to predict for, relative to the initial error.")] = 1e-3,
    set_: Set_ = None,
    x64: X64_ = None,
) -> None:
    """Say what theory knows before anything runs: constants, step sizes, predicted rounds and bytes.

    The data is read, but nothing is trained. Predictions are upper bounds on expectations; a run may well be faster.
    """
    if not 0 < tol < 1:
        raise typer.BadParameter(f"must lie between 0 and 1, got {tol:g}.", param_hint="--tol")
    settings, built = _open(config, set_, x64)
    from twofold.objectives.two_stage import TwoStage
    from twofold.problem import Problem

    objective, clients = built.problem.objective, built.problem.clients
    _print(
        f"{settings.name}: {objective.name}, {objective.equation}, by {settings.kinds['algorithm']}", built.provenance
    )
    if not isinstance(objective, TwoStage):
        _print(*_forecast(settings, built, built.problem, tol))
        return
    stages = (Problem(objective.first(), clients), Problem(objective.second(built.problem.start[0]), clients))
    for number, stage in enumerate(stages, 1):
        _print(f"\nStage {number}: {stage.objective.equation}", *_forecast(settings, built, stage, tol))


def _forecast(settings: Config, built: Built, problem: Problem, tol: float) -> list[Any]:
    import dataclasses

    from twofold.solver import complete
    from twofold.theory.constants import SYMBOLS

    constants = problem.constants()
    algorithm, note = complete(problem, built.algorithm)
    body = [
        [symbol, f"{getattr(constants, name):.6g}", constants.how[name], constants.why[name]]
        for name, symbol in SYMBOLS.items()
    ]
    given = settings.tables["algorithm"].model_fields_set
    chosen = []
    for name in (field.name for field in dataclasses.fields(algorithm)):  # type: ignore[arg-type]
        before, value = getattr(built.algorithm, name), getattr(algorithm, name)
        source = "file" if name in given else "default" if before is not None or value is None else "theory"
        chosen.append([name, _value(name, value), source])
    out: list[Any] = [
        _table("Constants of F in the scaled space", ["", "value", "how", "why"], body, right=["value"]),
        _table(f"Hyper-parameters of {algorithm.name}", ["", "value", "from"], chosen, right=["value"]),
    ]
    if note:
        out.append(f"note: {note}")
    return [*out, *_predictions(settings, built, problem, algorithm, tol), *_budget(settings, problem, algorithm)]


def _value(name: str, value: Any) -> str:
    if value is None:
        return "all" if name == "batch" else "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _predictions(settings: Config, built: Built, problem: Problem, algorithm: Any, tol: float) -> list[Any]:
    """What theory promises, per client, beside the lower bounds."""
    from twofold.theory import rates

    constants, counts = problem.constants(), problem.clients.counts
    method = settings.kinds["algorithm"]
    if method not in rates.METHODS:
        return [f"There is no prediction for {method}."]
    rows = float(counts.max() if method == "l2sgd_plus" else counts.mean())
    batch = getattr(algorithm, "batch", 1)
    exact = method in ("acd", "svrcd", "asvrcd", "l2sgd_plus") or (batch is None and getattr(algorithm, "tau", 1) == 1)
    found = rates.predict(
        method, constants, tol, n=rows, M=problem.M, tau=getattr(algorithm, "tau", 1),
        batch=rows if batch is None else batch, optimal=getattr(algorithm, "optimal", "w"),
        p_w=getattr(built.algorithm, "p_w", None), rho=getattr(built.algorithm, "rho", None),
    )  # fmt: skip
    columns = ["", "rounds", "traffic", "∇w rows", "∇β rows"]
    floats = _floats_per_round(problem, algorithm, settings.seeds[0])
    size = found.rounds * 2 * floats * _itemsize()
    body = []
    if found.certainty != "none":
        calls = [found.grad_w * found.rows_per_gradient, found.grad_beta * found.rows_per_gradient]
        traffic = _size(size) if math.isfinite(size) else "∞"
        body.append([f"{method} ({found.certainty})", _number(found.rounds), traffic, *map(_number, calls)])
    if constants.mu > 0:
        least = rates.lower_bounds(constants, rows, tol)
        body.append(["lower bound, up to a constant", *map(_number, (least.rounds,)), "", _number(least.grad_w),
                     _number(least.grad_beta)])  # fmt: skip
    out: list[Any] = []
    if body:
        what = found.criterion or "F − F*"
        out.append(
            _table(
                f"Predicted per client, to bring {what} to {tol:g} of its initial bound",
                columns,
                body,
                right=columns[1:],
            )
        )
    if found.note:
        out.append(f"note: {found.note}")
    elif not exact and found.certainty != "none":
        out.append("note: sampling noise and client drift, unknown before a run, are left out of this prediction.")
    return out


def _itemsize() -> int:
    import jax.numpy as jnp

    return jnp.result_type(float).itemsize


def _schedule(problem: Problem, algorithm: Any, seed: int) -> Any:
    import jax.numpy as jnp

    from twofold import randomness, tree
    from twofold.engines.schedule import Schedule

    return Schedule(tree.cast(algorithm), problem, jnp.stack([randomness.root(seed)]))


def _floats_per_round(problem: Problem, algorithm: Any, seed: int) -> float:
    """Scalars that a client sends in an iteration in which it sends, on average over the first coins."""
    schedule = _schedule(problem, algorithm, seed)
    floats = schedule.floats[schedule.kinds(4096)[0]]
    return float(floats[floats > 0].mean()) if (floats > 0).any() else 0.0


def _budget(settings: Config, problem: Problem, algorithm: Any, most: int = 1_000_000) -> list[str]:
    """What the file's own number of rounds will cost: exact, since the coins are known beforehand."""
    import numpy as np

    rounds = settings.stop.get("rounds")
    if rounds is None or not problem.has_shared:
        return []
    schedule, until = _schedule(problem, algorithm, settings.seeds[0]), 4096
    while True:
        kinds = schedule.kinds(until)[0]
        done = np.cumsum(schedule.communicates[kinds])
        if done[-1] >= rounds or until >= most:
            break
        until *= 2
    if done[-1] < rounds:
        return [f"The file's {rounds:,} rounds take more than {most:,} iterations."]
    count = int(np.argmax(done >= rounds)) + 1
    floats = int(schedule.floats[kinds[:count]].sum())
    return [
        f"The file's {rounds:,} rounds are {count:,} iterations and {_size(2 * floats * _itemsize())} sent and "
        f"received by each client, exactly (seed {settings.seeds[0]}; the coins are known beforehand)."
    ]


# --- list -------------------------------------------------------------------------------------------------------------


@app.command("list", epilog=CODES)
@_friendly
def list_(
    kind: Annotated[Kind | None, typer.Argument(help="Only these.", show_default=False)] = None,
) -> None:
    """List what there is: objectives, losses, algorithms, engines, data sets, partitioners, experiments.

    `twofold list keys` lists every key of a configuration file.
    """
    if kind is Kind.keys:
        _print(*_key_lines())
        return
    kinds = [kind] if kind else [one for one in Kind if one is not Kind.keys]
    for one in kinds:
        columns, body = _listing(one)
        if body:
            _print(_table(one.value, columns, body))
        elif kind:
            _print(f"There are no {one.value} in this version.")


def _listing(kind: Kind) -> tuple[list[str], list[list[str]]]:
    from twofold import config

    first = config.first_sentence
    if kind is Kind.objectives:
        from twofold.objectives import REGISTRY

        return ["", "what it is"], [[name, first(function)] for name, function in REGISTRY.items()]
    if kind is Kind.algorithms:
        from twofold.algorithms import REGISTRY as METHODS

        body = [
            [name, _module_line(cls), ", ".join(config.table("algorithm", name).model_fields)]
            for name, cls in METHODS.items()
        ]
        return ["", "what it is", "fields"], body
    if kind is Kind.engines:
        from twofold.engines import REGISTRY as ENGINES

        return ["", "what it is"], [[name, _module_line(engine)] for name, engine in ENGINES.items()]
    if kind is Kind.experiments:
        return ["", "what it is"], [[name, text] for name, text in _experiments().items()]
    section = {Kind.losses: "loss", Kind.datasets: "data", Kind.partitioners: "partition"}[kind]
    return ["", "what it is"], [[name, table.__doc__ or ""] for name, table in config.grouped(section).items()]


def _key_lines() -> list[Any]:
    """Every key of a file, section by section."""
    from rich.padding import Padding
    from rich.text import Text

    from twofold import config

    out: list[Any] = []
    section = kind = ""
    for key in config.all_keys():
        home, name = key.path.split(".", 1)
        if home != section:
            section, kind = home, ""
            out.append(Text(f"\n[{section}]", style="bold"))
        if key.kind != kind:
            kind = key.kind
            out.append(Padding(Text(f"with {config.KINDS[section][0]} = {kind}:", style="italic"), (0, 0, 0, 2)))
        line = Text(name, style="bold")
        line.append(f"  {key.type}", style="not bold")
        line.append({"": "", "required": ", required"}.get(key.default, f", default {key.default}"), style="not bold")
        line.append(f": {key.meaning}" if key.meaning else "", style="not bold dim")
        out.append(Padding(line, (0, 0, 0, 4 if kind else 2)))
    return out


def _module_line(thing: Any) -> str:
    doc = sys.modules[thing.__module__].__doc__ or ""
    return doc.split("\n")[0]


# --- reproduce and report ---------------------------------------------------------------------------------------------


def _experiments() -> dict[str, str]:
    """The experiments' names, with a line on each."""
    from twofold import paper

    return {name: paper.load(name).title for name in paper.available()}


@app.command(epilog=CODES)
@_friendly
def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Some of `twofold list experiments`, or all.")],
    out: Annotated[Path, typer.Option(help="The folder for the results; an interrupted run resumes there.")],
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run in seconds, too short to judge by.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, instead of the experiment's own.")] = None,
) -> None:
    """Run experiments of the paper again, with the paper's settings and with theory's.

    Writes NAME.json, NAME.parquet and figures for each, then the page of `twofold report`, and prints its verdicts.
    """
    _prepare()
    from twofold import paper

    for path in paper.reproduce(names, out=out, quick=quick, seeds=seeds):
        typer.echo(path)
    _report(out, None)


@app.command(epilog=CODES)
@_friendly
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `twofold reproduce` has written.")],
    markdown: Annotated[
        Path | None, typer.Option(help="Write verdicts, figures and end points as Markdown, too.", metavar="FILE")
    ] = None,
) -> None:
    """Make one self-contained HTML page out of a folder of results, and print its verdicts on the paper's claims."""
    _report(folder, markdown)


def _report(folder: Path, markdown: Path | None) -> None:
    from twofold.paper import judge, write, write_markdown

    typer.echo(write(folder))
    if markdown is not None:
        typer.echo(write_markdown(folder, markdown))
    rows = [[v.verdict, v.by_theory, v.claim] for v in judge(folder)]
    _print(_table("The paper's claims", ["as published", "by theory", "claim"], rows))


if __name__ == "__main__":
    main()
