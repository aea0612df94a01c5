"""Every goal of speed and scale in one table; what `make bench` prints.

    python benchmarks/table.py [--out docs] [--only mx2,seeds,peers,scale,...]
                               [--torch-python PATH] ... [--gpu-json FILE ...] [--against-json FILE] [--nets-json FILE]

Every row is a whole run as users make it (`tw.solve`, with theory's coins). This runs the other scripts of this folder one after
the other, nothing beside them, and writes DIR/performance.json and DIR/performance.md. A part that cannot be run here (no
accelerator, a peer that is not installed) keeps the figures and the machine of its last run from DIR/performance.json, and says so.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS = ("torch", "fedjax", "pfl")


def machine() -> str:
    """This machine in a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    count = sum(line.startswith("processor") for line in lines)
    return f"{cpu}, {count} cores; Python {platform.python_version()}, jax {version('jax')}, numpy {version('numpy')}"


def elsewhere(file: Path) -> str:
    """The machine on which `gpu.py` wrote this file."""
    found = json.loads(file.read_text())
    return f"{found['device']}; jax {found['jax']}"


def run(script: str, *arguments: str) -> Any:
    """A script's JSON; its own table is printed as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "out.json"
        subprocess.run([sys.executable, str(HERE / script), *arguments, "--json", str(file)], check=True)
        return json.loads(file.read_text())


def row(work: str, against: str, found: float | None, goal: str, met: bool | None, unit: str, note: str = "") -> dict:
    """A row of the table."""
    return {"work": work, "against": against, "found": found, "goal": goal, "met": met, "unit": unit, "note": note}


def mx2(arguments: argparse.Namespace) -> list[dict]:
    """One seed and thirty, the loss at every round and at every hundredth."""
    return _ratios(run("mx2.py"))


def seeds(arguments: argparse.Namespace) -> list[dict]:
    """Five methods, thirty seeds in one call, the loss at every tenth round."""
    methods = "lsgd,ascd,asvrcd,l2sgd_plus,pfedme"
    found = run("mx2.py", "--methods", methods, "--every", "10")
    return _ratios([r for r in found if r["seeds"] > 1])


def _ratios(found: list[dict]) -> list[dict]:
    return [
        row(
            f"1,000 rounds of {r['method']} on synthetic MX2, {r['seeds']} seed{'s' * (r['seeds'] > 1)}, loss every {r['every']}",
            "careful NumPy", r["ratio"], f"{r['goal']}×", r["ratio"] >= r["goal"], "×",
        )
        for r in found if r["goal"]
    ]  # fmt: skip


def peers(arguments: argparse.Namespace) -> list[dict]:
    """FedAvg and pFedMe rounds on MNIST."""
    given = [a for peer in PEERS if (path := getattr(arguments, f"{peer}_python")) for a in (f"--{peer}-python", path)]
    out = []
    for r in run("peers.py", *given)["rows"]:
        share = r["against"] == "copy"
        goal = f"{r['goal']:.0%}" if share else f"{r['goal']}×"
        met = None if r["ratio"] is None else r["ratio"] >= r["goal"]
        against = "share of a copy's bandwidth" if share else r["against"]
        out.append(
            row(
                f"one {r['work']} round on MNIST",
                against,
                r["ratio"],
                goal,
                met,
                "%" if share else "×",
                r.get("note", ""),
            )
        )
    return out


def nets(arguments: argparse.Namespace) -> list[dict]:
    """Gradient steps of PFLlib's CNN on one core."""
    if arguments.nets_json:
        found = json.loads(arguments.nets_json.read_text())
    elif arguments.torch_python:
        found = run("nets.py", "--torch-python", arguments.torch_python)
    else:
        raise LookupError("no PyTorch to compare with (--torch-python)")
    out = []
    for r in found:
        work = f"a gradient step of PFLlib's CNN by {r['method']}, one core"
        out.append(row(work, "PyTorch, client after client", r["ratio"], "1.5×", r["ratio"] >= 1.5, "×"))
    first, memory = max(r["more"] for r in found), max(r["twofold"]["memory"] for r in found)
    return [
        *out,
        row("the first solve of these, at most", "PyTorch's first, CPU seconds more", first, "15 s", first <= 15, "s"),
        row("the memory of these, at most", "1 GB", memory / 1e9, "1 GB", memory <= 1e9, "GB"),
    ]


def strength(arguments: argparse.Namespace) -> list[dict]:
    """Ten strengths compared by `tw.tune`, by one fit."""
    return [
        row(
            f"`tw.tune` of ten strengths, 5,900 rows of 42 clients, {r['loss']} loss, {r['when']}", "one fit",
            r["ratio"], f"{r['goal']}×", r["ratio"] <= r["goal"], "×",
        )
        for r in run("strength.py", "--only", "time")
    ]  # fmt: skip


def scale(arguments: argparse.Namespace) -> list[dict]:
    """From 100 to 100,000 clients."""
    found = run("scale.py")
    worst = max(abs(r["memory"] / r["predicted"] - 1) for r in found["rows"] if r["clients"] >= 1000)
    slope = found["slope"]
    return [
        row("time per round, 100 to 100,000 clients", "linear growth", slope, "0.9–1.1", 0.9 <= slope <= 1.1, "slope"),
        row("peak memory, 1,000 to 100,000 clients", "its prediction", worst, "20 % off", worst <= 0.2, "%"),
    ]


def processes(arguments: argparse.Namespace) -> list[dict]:
    """Two processes with one thread each."""
    found = run("processes.py")
    return [
        row(
            f"a round of LSGD with two processes, {found['clients']:,} clients, engine sharded",
            "one process",
            found["ratio"],
            f"{found['goal']}×",
            found["ratio"] >= found["goal"],
            "×",
        )
    ]


def federation(arguments: argparse.Namespace) -> list[dict]:
    """Rounds of a real federation on loopback."""
    if find_spec("flwr") is None:
        raise LookupError("flwr is not installed")
    out = []
    for r in run("federation.py"):
        goal = "" if r["goal"] is None else f"{r['goal']:g} s"
        met = None if r["goal"] is None else r["median"] <= r["goal"]
        out.append(row(f"a round on loopback: {r['work']}", "the clock (median)", r["median"], goal, met, "s"))
    return out


def realdata(arguments: argparse.Namespace) -> list[dict]:
    """What the solvers promise, on two kinds of data."""
    return [
        row(claim["asked"], "digits and made data", None, "", claim["held"], "×", claim["measured"])
        for claim in run("realdata.py")
    ]


def references(arguments: argparse.Namespace) -> list[dict]:
    """Two reference points against the better of the two choices of one, in the larger count of row gradients."""
    return [
        row(
            f"two reference points, smoothness of beta by that of w = {r['ratio']:.3g}", "one (the better choice)",
            r["one"] / r["two"], "", None, "×",
        )
        for r in run("references.py")
    ]  # fmt: skip


GPU_CASES = {"a": "100,000 × 20 rows", "b": "1,000 × 1,000 rows", "million": "1,000,000 × 5 rows"}


def gpu(arguments: argparse.Namespace) -> list[dict]:
    """The accelerator's cases, run here, or read from what `gpu.py --json` wrote on a machine that has one."""
    if arguments.gpu_json:
        return _shares([json.loads(path.read_text()) for path in arguments.gpu_json])
    import jax

    if jax.devices()[0].platform == "cpu":
        raise LookupError("no accelerator here")
    narrow = run("gpu.py", "--case", "b", "--feature-dtype", "bfloat16")
    return _shares([*(run("gpu.py", "--case", case) for case in GPU_CASES), narrow])


def _shares(cases: list[dict]) -> list[dict]:
    """Whole runs, as shares of a copy's bandwidth; there is no goal, since it is theory that says how often rounds come."""
    out = []
    for found in cases:
        kept = f", features in {found['feature_dtype']}" if found.get("feature_dtype") else ""
        for r in found["rows"]:
            time = f", {r['ms']:.3g} ms an iteration" if "ms" in r else ""
            work = f"{found['device']}, {GPU_CASES[found['case']]}, a run of {r['method']}{kept}{time}"
            out.append(row(work, "share of a copy's bandwidth", r["share"], "", None, "%", r.get("note", "")))
    return out


def versions(arguments: argparse.Namespace) -> list[dict]:
    """This version against another one, read from what `against.py --json` wrote."""
    if not arguments.against_json:
        raise LookupError("no other version to compare with (--against-json)")
    out = []
    for r in json.loads(arguments.against_json.read_text()):
        goal = 0.75 if "/30/" in r["row"] else 0.85
        met = r["ratio_used"] >= goal
        out.append(
            row(_told(*r["row"].split("/")), "version 0.1, in processor time", r["ratio_used"], f"{goal}×", met, "×")
        )
    return out


def _told(kind: str, *rest: str) -> str:
    """A row of `against.py` in words."""
    if kind == "mx2":
        name, seeds, rounds, every = rest
        return (
            f"{int(rounds):,} rounds of {name} on synthetic MX2, {seeds} seed{'s' * (seeds != '1')}, loss every {every}"
        )
    if kind == "fedavg":
        return f"fifty rounds of FedAvg, 20 clients of 2,000 rows, {rest[0]} features"
    return f"rounds of {rest[0]} on MNIST" if kind == "mnist" else f"five rounds of lsgd, {int(rest[0]):,} clients"


PARTS = {
    "mx2": mx2,
    "seeds": seeds,
    "peers": peers,
    "nets": nets,
    "strength": strength,
    "scale": scale,
    "processes": processes,
    "federation": federation,
    "versions": versions,
    "gpu": gpu,
    "realdata": realdata,
    "references": references,
}
COMMANDS = {
    "mx2": "python benchmarks/mx2.py",
    "seeds": "python benchmarks/mx2.py --methods lsgd,ascd,asvrcd,l2sgd_plus,pfedme --every 10",
    "peers": "python benchmarks/peers.py --torch-python … --fedjax-python … --pfl-python …",
    "nets": "python benchmarks/nets.py --torch-python …",
    "strength": "python benchmarks/strength.py --only time",
    "scale": "python benchmarks/scale.py",
    "processes": "python benchmarks/processes.py",
    "federation": "python benchmarks/federation.py",
    "versions": "python benchmarks/against.py OLD_SRC --json FILE, then table.py --against-json FILE",
    "gpu": "python benchmarks/gpu.py --case a (or b, or million) [--feature-dtype bfloat16]",
    "realdata": "python benchmarks/realdata.py",
    "references": "python benchmarks/references.py",
}


def told(value: float | None, unit: str) -> str:
    """A figure for people."""
    if value is None:
        return "not installed"
    return {
        "×": f"{value:.3g}×",
        "%": f"{100 * value:.3g} %",
        "slope": f"{value:.3f}",
        "s": f"{value:.3g} s",
        "GB": f"{value:.3g} GB",
    }[unit]


def markdown(parts: dict[str, dict]) -> str:
    """The page."""
    head = Path(__file__).with_name("performance_head.md").read_text().strip()
    lines = [head, "", "| work | against | measured | goal | met |", "|---|---|---|---|---|"]
    for part in parts.values():
        for r in part["rows"]:
            met = {True: "yes", False: "**no**", None: ""}[r["met"]]
            figure = r["note"] if r["found"] is None and r["note"] else told(r["found"], r["unit"])
            lines.append(f"| {r['work']} | {r['against']} | {figure} | {r['goal']} | {met} |")
    lines += ["", "Measured on:", ""]
    lines += [f"- {', '.join(f'`{name}`' for name in names)}: {where}" for where, names in _by_machine(parts).items()]
    lines += ["", "One part alone:", "", *(f"- `{name}`: `{COMMANDS[name]}`" for name in parts)]
    return "\n".join(lines) + "\n"


def _by_machine(parts: dict[str, dict]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, part in parts.items():
        found.setdefault(f"{part['machine']}; {part['date']}", []).append(name)
    return found


def main() -> None:
    """Run what is asked for, keep the rest, print and write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--only", default=",".join(PARTS))
    for peer in PEERS:
        parser.add_argument(f"--{peer}-python", metavar="PATH")
    parser.add_argument("--gpu-json", metavar="FILE", type=Path, nargs="+")
    parser.add_argument("--against-json", metavar="FILE", type=Path)
    parser.add_argument("--nets-json", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    file = arguments.out / "performance.json"
    parts: dict[str, dict] = json.loads(file.read_text()) if file.exists() else {}
    for name in arguments.only.split(","):
        print(f"== {COMMANDS[name]}", flush=True)
        try:
            rows = PARTS[name](arguments)
        except (LookupError, subprocess.CalledProcessError) as why:
            print(f"not run: {why}; what stands in {file} is kept")
            continue
        where = elsewhere(arguments.gpu_json[0]) if name == "gpu" and arguments.gpu_json else machine()
        parts[name] = {"machine": where, "date": time.strftime("%Y-%m-%d"), "rows": rows}
        parts = {name: parts[name] for name in PARTS if name in parts}
        arguments.out.mkdir(exist_ok=True)
        file.write_text(json.dumps(parts, indent=1, ensure_ascii=False) + "\n")
        file.with_suffix(".md").write_text(markdown(parts))
    print(f"\n{'work':72} {'against':28} {'measured':>12} {'goal':>9}")
    for part in parts.values():
        for r in part["rows"]:
            mark = {True: "", False: "  missed", None: ""}[r["met"]]
            figure = r["note"] if r["found"] is None and r["note"] else told(r["found"], r["unit"])
            print(f"{r['work']:72} {r['against']:28} {figure:>12} {r['goal']:>9}{mark}")


if __name__ == "__main__":
    main()
