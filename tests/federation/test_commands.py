"""Exit codes and words of the commands, and what lies in deploy/: parsed, and the script run."""

from __future__ import annotations

import configparser
import ipaddress
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from federation.small import Small, identities, problem, study
from twofold.cli import app
from twofold.errors import InputError
from twofold.federation import Study

DEPLOY = Path(__file__).parents[2] / "deploy"


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    study("scd").write("study.toml")
    mine = problem().clients["north"]
    np.savez("north.npz", x=mine.x, y=mine.y)
    return tmp_path


JOIN = ("join", "study.toml", "--as", "north", "--data", "north.npz", "--server", "127.0.0.1:9", "--state", "state")


# --- exit codes ---------------------------------------------------------------------------------------------------------


def test_a_node_without_a_coordinator_has_stopped_for_now(folder: Path):
    pytest.importorskip("flwr")
    found = call(*JOIN, "--patience", "0", "--log", "json")
    assert found.exit_code == 4, found.output
    assert "No coordinator at 127.0.0.1:9 for 0 s" in found.output
    assert "The same command goes on from here." in found.output


def test_a_node_that_has_heard_goodbye_needs_no_coordinator(folder: Path):
    pytest.importorskip("flwr")
    small = Small(study("scd"), folder)
    small.run()
    assert small.server.part(5.0) == []
    found = call(*JOIN[:-1], str(folder / "north"))
    assert found.exit_code == 0, found.output
    assert "The study is done." in found.output


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (ZeroDivisionError("x"), 3)])
def test_interrupted_and_errors_of_our_own(
    error: BaseException, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    flower = pytest.importorskip("twofold.engines.flower")

    def broken(*_: Any, **__: Any) -> None:
        raise error

    for name in ("join", "serve"):
        monkeypatch.setattr(flower, name, broken)
    for words in (JOIN, ("serve", "study.toml", "--out", "run")):
        found = call(*words)
        assert found.exit_code == code, found.output


def test_bad_input(folder: Path):
    for words, sentence in (
        (("serve", "nowhere.toml", "--out", "run"), "nowhere.toml"),
        ((*JOIN[:3], "nobody", *JOIN[4:]), "There is no client 'nobody' in the study"),
        ((*JOIN, "--clip", "1"), "needs --clip, --noise and --key together"),
        (("status", "run"), "is run the --out folder"),
        (("study", "init", "new.toml", "--clients", "a,a"), "--clients takes different names"),
    ):
        found = call(*words)
        assert found.exit_code == 2, found.output
        assert sentence in found.output.replace("\n", " ")
    Path("study.toml").write_text(study("scd").text.replace('"scd"', '"scaffold"').replace('batch = "auto"\n', ""))
    for words in (("serve", "study.toml", "--out", "run"), JOIN, ("check", *JOIN[1:6])):
        found = call(*words)  # before anybody listens or connects
        assert found.exit_code == 2 and "Theory has no learning rate for scaffold" in found.output, found.output


@pytest.fixture
def with_keys(folder: Path) -> Path:
    pytest.importorskip("flwr")
    agreed = study("scd", keys=True)
    agreed.write("study.toml")
    identities()["north"].write("north.key")
    Path("table.csv").write_text("age,outcome\n1,yes\n")
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--ca", "nope.crt"), "There is no nope.crt: --ca is the study's ca.crt"),
        (("--ca", "table.csv"), "table.csv is no certificate: --ca is the study's ca.crt"),
        (("--ca", "."), ". is no certificate: --ca is the study's ca.crt"),
        (("--key", "nokey"), "There is no nokey.key: name the secret file that `twofold key NAME` wrote"),
        (("--key", "table.csv"), "table.csv holds no secret key: make one with `twofold key NAME`"),
        (("--key", "."), "holds no secret key: make one with `twofold key NAME`"),
        (("--server", "127.0.0.1"), "--server '127.0.0.1' has no port: say HOST:PORT, as in 127.0.0.1:8443"),
        (("--server", "::1"), "--server '::1' has no port"),
        (("--server", "127.0.0.1:http"), "has the port 'http', which must be a number from 1 to 65535"),
        (("--server", "127.0.0.1:0"), "has the port '0', which must be a number from 1 to 65535"),
        (("--digest", "0" * 64), "it is not the file that the others have"),
    ],
)
def test_a_slip_gets_a_sentence_before_anything_starts(words: tuple[str, str], sentence: str, with_keys: Path):
    found = call(*JOIN, "--key", "north.key", *words)
    assert found.exit_code == 2, found.output
    assert sentence in found.output and len(found.output.splitlines()) == 1, found.output
    assert not Path("state").exists()


def test_the_whole_digest_is_shown_and_held_to(with_keys: Path):
    """The coordinator could give a client a copy of the study with keys of its own: only the clients can tell each other."""
    digest = Study.read("study.toml").digest
    assert digest in call("check", *JOIN[1:6]).output.splitlines()
    joined = call(*JOIN, "--key", "north.key", "--patience", "0", "--digest", f" {digest.upper()} ")
    assert joined.exit_code == 4 and digest in joined.output.splitlines(), joined.output
    from twofold.engines.flower import join

    who = Small(study("scd"), with_keys).grid.all[100]
    with pytest.raises(InputError, match="expected was 00ff: it is not the file that the others have"):
        join(who, "127.0.0.1:9", digest="00ff", patience=0.0)


def test_private_state_keys_and_models_are_closed_to_others(with_keys: Path):
    """Also where the folder was there before, open to everybody."""
    import os

    before = os.umask(0o000)
    try:
        Path("north").mkdir(mode=0o755)
        small = Small(study("scd"), with_keys, tells=("constants", "rows"))
        small.run()
        assert small.server.part(5.0) == []
        study("scd").write("study.toml")
        found = call(*JOIN[:-1], "north")
        assert found.exit_code == 0, found.output
        Path("there").mkdir(mode=0o755)
        Path("there/model.safetensors").touch(0o644)
        for out in ("model", "there"):
            assert call("model", "--state", "north", "--out", out).exit_code == 0
        assert call("key", "east").exit_code == 0
    finally:
        os.umask(before)
    assert {path.name for path in Path("north").iterdir()} == {
        "contract.json",
        "state.safetensors",
        "study.toml",
        "node.json",
    }
    for path in (*Path("north").iterdir(), *Path("model").iterdir(), *Path("there").iterdir(), Path("east.key")):
        assert path.stat().st_mode & 0o777 == 0o600, path
    for folder in ("north", "model"):
        assert Path(folder).stat().st_mode & 0o777 == 0o700, folder
    assert Path("there").stat().st_mode & 0o777 == 0o755  # not ours to close


# --- what is told -------------------------------------------------------------------------------------------------------


def test_check_shows_what_join_would_tell(folder: Path):
    plain = call("check", *JOIN[1:6])
    assert plain.exit_code == 0 and "loss" not in plain.output.split("messages")[0], plain.output
    assert "rows" in plain.output and "calL" in plain.output
    # The study has no masks, and its objective is the mixture.
    assert "one message and w give β" in " ".join(plain.output.split())
    assert "commitment" not in plain.output  # without a key there is none
    assert "loss" in call("check", *JOIN[1:6], "--tell", "constants,rows,loss").output
    pytest.importorskip("dp_accounting")
    noisy = call("check", *JOIN[1:6], "--tell", "rows", "--clip", "1", "--noise", "5")
    assert noisy.exit_code == 0 and "epsilon" in noisy.output and "delta" in noisy.output, noisy.output
    assert "tells neither constants nor its loss" in call("check", *JOIN[1:6], "--clip", "1", "--noise", "5").output


def test_what_a_message_reveals_is_said_for_every_objective():
    """In the docs' table and by `twofold check`: an objective that is new has to say it, too."""
    from twofold import objectives

    shares = set(objectives.REGISTRY) - {"local", "custom"}  # one sends nothing, the other cannot be named in a study
    text = (DEPLOY.parent / "docs" / "federation.md").read_text()
    table = text.split("## What a message reveals")[1].split("Local methods")[0]
    rows = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert {name for name in shares if f"`{name}`" not in rows} == set()
    kinds = {kind.name: kind for kind in objectives.Objective.__subclasses__()}
    assert {name for name in shares if "reveals" not in vars(kinds[name])} == set()


def test_a_study_for_as_many_as_there_are(folder: Path):
    pytest.importorskip("cryptography")
    assert call("study", "init", "four.toml", "--clients", "north,east,south,west", "--host", "::1").exit_code == 0
    text = Path("four.toml").read_text()
    for name in ("north", "east", "south", "west"):
        assert call("key", name).exit_code == 0
        text = text.replace(f"the line that `twofold key {name}` prints", Path(f"{name}.pub").read_text().strip())
    Path("four.toml").write_text(text)
    found = Study.read("four.toml").check()
    assert found.names == ("north", "east", "south", "west") and found.masks


# --- deploy/ ------------------------------------------------------------------------------------------------------------


def unit(name: str) -> configparser.SectionProxy:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(DEPLOY / "systemd" / name)
    return found["Service"]


def test_units_call_commands_that_there_are():
    serve, join = unit("twofold-serve.service"), unit("twofold-join@.service")
    assert serve["RestartPreventExitStatus"] == "2" and join["RestartPreventExitStatus"] == "2 5"
    for each in (serve, join):
        assert each["UMask"] == "0077"
        assert each["Restart"] == "on-failure" and each["ReadWritePaths"].startswith("-/srv/twofold")
        assert_command(each["ExecStart"].split()[1:])


def assert_command(words: list[str]) -> None:
    """The command and its options exist."""
    shown = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    for word in words:
        if word.startswith("--"):
            assert word in shown.output, word


def test_the_compose_file_is_a_study_of_four():
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"coordinator", "north", "east", "south", "west"}
    for name, service in services.items():
        words = service["command"].split()
        assert_command(words)
        files = [volume.split(":")[0] for volume in service["volumes"] if volume.startswith(".")]
        own = {"./study/study.toml", "./study/certs/server.pem", "./study/certs/server.key"}
        if name != "coordinator":
            assert words[words.index("--as") + 1] == name
            own = {"./study/study.toml", "./study/certs/ca.crt", f"./study/{name}.key", f"./study/{name}.csv"}
        # Nobody's container has another one's key, table or certificate in it, and all that a command names is there.
        assert set(files) == own and all(volume.endswith(":ro") for volume in service["volumes"][: len(own)])
        inside = {volume.split(":")[1].removeprefix("/study/") for volume in service["volumes"]}
        named = {word for word in words if word.endswith((".toml", ".csv", ".key", ".crt"))}
        assert named <= inside and service["read_only"] and service["cap_drop"] == ["ALL"]
    kept = (DEPLOY.parent / ".dockerignore").read_text().split()
    assert kept[0] == "*" and "**/*.key" in kept and "**/*.csv" in kept
    image = (DEPLOY / "Dockerfile").read_text()
    assert "COPY . " not in image
    assert image.index("USER twofold") < image.index("ENTRYPOINT")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_the_script_makes_certificates_for_names_and_addresses(tmp_path: Path):
    x509 = pytest.importorskip("cryptography.x509")
    words = ["sh", str(DEPLOY / "certificates.sh"), str(tmp_path / "certs"), "hospital.org", "10.0.0.7", "fd00::7"]
    subprocess.run(words, check=True, capture_output=True, text=True)
    made = x509.load_pem_x509_certificate((tmp_path / "certs" / "server.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hospital.org"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(a) for a in ("10.0.0.7", "fd00::7")]
    assert (tmp_path / "certs" / "server.key").stat().st_mode & 0o077 == 0
    assert subprocess.run(words, check=False, capture_output=True).returncode == 2  # never over what is there


def test_a_log_for_programs_is_one_object_a_line(folder: Path, capfd: pytest.CaptureFixture[str]):
    import logging

    from twofold.cli.federation import log_to_terminal

    logger = logging.getLogger("twofold")
    before = list(logger.handlers)
    try:
        log_to_terminal("json")
        small = Small(study("scd", rounds=2), folder)
        small.run()
    finally:
        for handler in set(logger.handlers) - set(before):
            logger.removeHandler(handler)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert lines and all({"time", "level", "from", "event"} <= line.keys() for line in lines)
    assert lines[-1]["event"] == "the study is done"
