"""`twofold key|check|join|model`: for who takes part in a study."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from twofold.cli.base import friendly, rich_table, show
from twofold.cli.federation import LogOption, StudyArgument, ends, log_to_terminal, read_study
from twofold.errors import InputError

if TYPE_CHECKING:
    from twofold.federation import Identity, Node, Seat, Study
    from twofold.federation.dp import Noise

__all__ = ["check", "join", "key", "model"]

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

    agreed = read_study(study).check()
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
        "behind masks: the coordinator reads sums only" if agreed.masks else f"in the open: {agreed.objective.reveals}"
    )
    body.append(["messages", behind, f"{agreed.rounds} rounds"])
    if agreed.keys:
        body.append(["commitment", "a digest of these rows and options under this client's key", "once"])
    title = f"What {as_} would tell ({len(seat.x)} rows, {agreed.width} columns)"
    show(rich_table(title, ["what", "value", "how often"], body))
    _show_digest(agreed)
    show("Nothing was sent.")


@ends
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
    agreed = read_study(study).check()
    log_to_terminal(log)
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
    agreed = read_study(state / "study.toml")
    seat = _seat(agreed, about["as"], Path(about["data"]))
    node = _node(seat, state, None if about["key"] is None else Path(about["key"]))
    from twofold.federation.export import write_model

    write_model(node, out)
    show(f"{out}: the model of {about['as']}.")
