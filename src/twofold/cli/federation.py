"""`twofold study|serve|status` for who coordinates a study, and `twofold key|check|join|model` for who takes part in it."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, cast

import typer

from twofold.cli.base import friendly, rich_table, set_up_jax, show
from twofold.errors import InputError

if TYPE_CHECKING:
    from twofold.federation import Identity, Node, Seat, Study
    from twofold.federation.dp import Noise

__all__ = ["FEDERATION_CODES", "check", "init", "join", "key", "model", "serve", "status", "study_app"]

STOPPED, REFUSED = 4, 5
FEDERATION_CODES = (
    "Exit codes: 0 the study is done, 2 bad input, 3 an error inside twofold, 4 stopped for now (the same command goes on), 5 not "
    "let in, 130 interrupted (the same command goes on)."
)
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file, the same for everybody.")]
AsOption = Annotated[str, typer.Option("--as", metavar="NAME", help="Which client of the study this is.")]
DataOption = Annotated[
    Path, typer.Option("--data", help="The rows: a CSV file with the study's columns, or .npz with x and y.")
]
TellOption = Annotated[
    str | None,
    typer.Option(
        "--tell",
        help="What may be told besides messages: constants, rows, loss, gap (where the study has a tolerance). If not given: "
        "constants, rows, and gap where the study has a tolerance.",
        show_default=False,
    ),
]
ClipOption = Annotated[float | None, typer.Option(help="Differential privacy: cut messages to this norm.")]
NoiseOption = Annotated[
    float | None, typer.Option(help="Differential privacy: noise, in multiples of twice that norm.")
]
DeltaOption = Annotated[float, typer.Option(help="Differential privacy: δ.")]
DigitsOption = Annotated[
    int | None, typer.Option("--digits", help="Tell constants with so many digits, rounded outwards.")
]
DigestOption = Annotated[
    str | None,
    typer.Option("--digest", help="The study's digest as the other clients read it out: another file is refused."),
]
LogOption = Annotated[str, typer.Option("--log", help="How to log: text, or json (one object a line).")]
study_app = typer.Typer(help="Write a study file, with its certificates.", no_args_is_help=True)

Arguments = ParamSpec("Arguments")

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


def _ends(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Exit codes of their own for a run that can be resumed, and for a node that is not let in."""

    @functools.wraps(command)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        from twofold.federation import Stopped
        from twofold.federation.store import is_full

        try:
            command(*args, **kwargs)
        except Stopped as error:
            _say(f"twofold: {error} The same command goes on from here.")
            raise typer.Exit(STOPPED) from error
        except Exception as error:
            if is_full(error):
                _say(f"twofold: {error}: make some room; nothing is lost. The same command goes on from here.")
                raise typer.Exit(STOPPED) from error
            if type(error).__name__ != "NotLetIn":
                raise
            typer.echo(f"twofold: {error}", err=True)
            raise typer.Exit(REFUSED) from error

    return friendly(wrapped)


def _say(sentence: str) -> None:
    """Say it to whoever listens: where the log is on the same full disk, the exit code has to do."""
    with contextlib.suppress(OSError):
        typer.echo(sentence, err=True)


class _JsonLines:
    """Log records as one JSON object a line."""

    def format(self, record: Any) -> str:
        """See `logging.Formatter.format`."""
        more = getattr(record, "twofold", {})
        told = {"time": round(record.created, 3), "level": record.levelname.lower(), "from": record.name}
        return json.dumps({**told, "event": record.getMessage(), **more})


def _log(how: str) -> None:
    """Log to the terminal's error stream."""
    import logging

    if how not in ("text", "json"):
        raise typer.BadParameter(f"must be text or json, got {how!r}.", param_hint="--log")
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    handler.setFormatter(plain if how == "text" else _JsonLines())  # type: ignore[arg-type]
    logger = logging.getLogger("twofold")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


def _study(path: Path) -> Study:
    import os

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from twofold.federation import Study

    found = Study.read(path)
    set_up_jax(found.dtype == "float64")
    return found


# --- who coordinates ----------------------------------------------------------------------------------------------------


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


@_ends
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
    agreed = _study(study).check()
    _log(log)
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
            ["client", "", "rounds absent", "bytes up", "bytes down"],
            rows,
            right=["rounds absent", "bytes up", "bytes down"],
        ),
        *now["events"][-5:],
    )


def _gap_of(now: dict[str, Any]) -> str:
    """The last certified gap, where a study has a tolerance and something was measured."""
    bounds = now.get("bounds")
    return f"; certified gap {bounds[-1][1]:.3g}, tolerance {now['tolerance']:g}" if bounds else ""


# --- who takes part -----------------------------------------------------------------------------------------------------


@friendly
def key(name: Annotated[str, typer.Argument(metavar="NAME", help="The client's name; writes NAME.key.")]) -> None:
    """Make a key: a secret file for this client, and a line for the study file."""
    from twofold.federation import Identity

    made = Identity.new()
    made.write(f"{name}.key")
    Path(f"{name}.pub").write_text(made.public.line + "\n")
    show(f"{name}.key: secret, keep a copy in a safe place.", f"{name}.pub: for the study file:")
    typer.echo(f'key = "{made.public.line}"')


def _seat(agreed: Study, name: str, data: Path) -> Seat:
    from twofold.federation import Seat, read_rows

    return Seat(agreed, name, *read_rows(agreed, data, name))


def _tells(agreed: Study, text: str | None) -> tuple[str, ...]:
    from twofold.federation.tells import usual_tells

    return usual_tells(agreed) if text is None else tuple(word for word in text.replace(" ", "").split(",") if word)


@friendly
def check(
    study: StudyArgument,
    as_: AsOption,
    data: DataOption,
    tell: TellOption = None,
    digits: DigitsOption = None,
    clip: ClipOption = None,
    noise: NoiseOption = None,
    delta: DeltaOption = 1e-6,
) -> None:
    """Show everything that this client would tell, and send nothing."""
    from twofold.federation.tells import check_tells

    agreed = _study(study).check()
    seat, tells = _seat(agreed, as_, data), _tells(agreed, tell)
    hidden = _noise(clip, noise, delta, lambda said: b"")
    check_tells(agreed, tells, hidden)
    told = seat.told(tells, digits)
    if hidden is not None:
        told |= {"epsilon": hidden.spent(agreed.rounds), "delta": hidden.delta}
    body = [
        [
            name,
            ", ".join(f"{number:.6g}" for number in cast("list[float]", value if isinstance(value, list) else [value])),
            "once",
        ]
        for name, value in told.items()
    ]
    if "loss" in tells and agreed.record:
        behind = "only its sum with everybody else's can be read" if agreed.masks else "the coordinator reads it"
        body.append(["loss", behind, f"every {agreed.record} rounds"])
    if agreed.proof is not None and "gap" in tells:
        from twofold.federation.gap import numbers_told

        behind = "only sums with everybody else's can be read" if agreed.masks else "the coordinator reads them"
        body.append(["gap", f"{numbers_told(agreed.stand_in)} numbers; {behind}", f"every {agreed.record} rounds"])
    behind = (
        "behind masks: the coordinator reads sums only"
        if agreed.masks
        else f"in the open: {REVEALS.get(agreed.objective.name, '')}"
    )
    body.append(["messages", behind, f"{agreed.rounds} rounds"])
    if agreed.keys:
        body.append(["commitment", "a digest of these rows and options under this client's key", "once"])
    title = f"What {as_} would tell ({len(seat.x)} rows, {agreed.width} columns)"
    show(rich_table(title, ["what", "value", "how often"], body))
    _show_digest(agreed)
    show("Nothing was sent.")


REVEALS = {
    "mixture": "one message and w give β",
    "multitask": "a message mixes ∇f'(w) and β",
    "traditional": "a message is the gradient of this client's loss",
    "weight_sharing": "a message is a gradient that depends on β and the rows",
    "residual": "a message is a gradient that depends on β and the rows",
    "adaptive": "a message is a gradient that depends on β and the rows",
    "blended": "a message is a gradient that depends on β, on this client's own α and the rows",
    "flix": "a message is a gradient that depends on what this client finds alone",
    "maml": "a message is a gradient that depends on the rows",
}
"""What an unmasked message gives away, in a few words; docs/federation.md has more."""


@_ends
def join(
    study: StudyArgument,
    as_: AsOption,
    data: DataOption,
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the coordinator is.")],
    state: Annotated[
        Path, typer.Option(help="The folder of this client's private state; keep it, and keep it private.")
    ],
    key: Annotated[Path | None, typer.Option(help="The secret key that `twofold key` made.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The study's ca.crt.")] = None,
    tell: TellOption = None,
    digits: DigitsOption = None,
    clip: ClipOption = None,
    noise: NoiseOption = None,
    delta: DeltaOption = 1e-6,
    patience: Annotated[float, typer.Option(help="Seconds without a coordinator before giving up.")] = 86400.0,
    digest: DigestOption = None,
    log: LogOption = "text",
) -> None:
    """Take part in a study until it is done. The same command again goes on where it was."""
    agreed = _study(study).check()
    _log(log)
    from twofold.engines.flower import join as run
    from twofold.engines.flower.join import authority, host_of
    from twofold.federation.store import closed, replace_file

    if digest is not None:
        agreed.expect(digest)
    host_of(server)
    if ca is not None:
        authority(ca)
    node = _node(
        _seat(agreed, as_, data), state, key, tells=_tells(agreed, tell), digits=digits, privacy=(clip, noise, delta)
    )
    about = {"as": as_, "data": str(data.resolve()), "key": None if key is None else str(key.resolve())}
    _show_digest(agreed)
    closed(state)
    # Old or new, never half: with a full disk `twofold model` can still read them.
    replace_file(state / "study.toml", agreed.text.encode())
    replace_file(state / "node.json", json.dumps(about).encode())
    run(node, server, certificates=ca, patience=patience)
    show(f"The study is done. `twofold model --state {state} --out model` writes a model that predicts alone.")


def _show_digest(agreed: Study) -> None:
    """The whole digest, on a line that no terminal cuts."""
    show("The study's digest, to compare with the other clients:")
    typer.echo(agreed.digest)


def _node(
    seat: Seat,
    state: Path,
    key: Path | None,
    *,
    privacy: tuple[float | None, float | None, float] = (None, None, 0.5),
    **options: Any,
) -> Node:
    from twofold.federation import Identity, Node

    identity = None
    if key is not None:
        identity = Identity.read(key if key.exists() else key.with_name(key.name + ".key"))
    secret = None if identity is None else functools.partial(_secret, identity)
    return Node(seat, state, identity=identity, noise=_noise(*privacy, secret), **options)


def _secret(identity: Identity, said: str) -> bytes:
    """What the coordinator cannot guess: the noise of this client follows from it, in each run and for each table another."""
    return identity.secret("noise", said.encode())


def _noise(
    clip: float | None, noise: float | None, delta: float, secret: Callable[[str], bytes] | None
) -> Noise | None:
    from twofold.federation.dp import Noise

    if clip is None and noise is None:
        return None
    if clip is None or noise is None or secret is None:
        raise InputError("Differential privacy needs --clip, --noise and --key together.")
    return Noise(clip, noise, delta, secret)


@friendly
def model(
    state: Annotated[Path, typer.Option(help="The --state folder of `twofold join`.")],
    out: Annotated[Path, typer.Option(help="Where the model goes.")],
) -> None:
    """Write this client's own model: it predicts without anybody's help, and nothing of others is in it."""
    about_path = state / "node.json"
    if not about_path.is_file():
        raise InputError(f"There is no {about_path}: is {state} the --state folder of `twofold join`?")
    about = json.loads(about_path.read_text())
    agreed = _study(state / "study.toml")
    seat = _seat(agreed, about["as"], Path(about["data"]))
    node = _node(seat, state, None if about["key"] is None else Path(about["key"]))
    from twofold.federation.export import write_model

    write_model(node, out)
    show(f"{out}: the model of {about['as']}.")
