"""Seconds a round of a real federation on loopback: Flower's Fleet API with TLS, keys and masks, beside a bare HTTPS exchange.

    python benchmarks/federation.py [--only small,skip,many,many-skip,large,…] [--rounds 60] [--json FILE]

`small` is 4 nodes, each a process; `many` is 32 nodes, 8 in each of 4 processes; `skip` and `many-skip` are the same where a round
may go on without somebody, which takes a second exchange and shares of every seed; `large` is 4 nodes with messages of 40 MB (a
softmax over 10,000 features and 500 classes), and `large-pages` the same with memory in pages of 2 MB, as deploy/ has it. All are
the mixture solved by LSGD. `bare` and `bare-large` are what the wire alone costs: 4 clients whose requests, of the same size, a
server of the same kind (uvicorn, TLS) holds until all have come. `stock` is the same study as an app of Flower's own (deploy/flwr-
app), with its SuperLink and SuperNodes as they come, without TLS, keys and masks: a process is started for every message. A round's
time is that between two entries of the coordinator's log; the first five are left out (of `large`, `bare-large` and `stock`, the
first).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

GOALS = {
    "small": 0.25,
    "skip": 0.5,
    "many": 2.0,
    "many-skip": 4.0,
    "large": 8.0,
    "large-pages": 8.0,
    "bare": None,
    "bare-large": None,
    "stock": None,
}
WARM = 5
CLASSES = 500


def problem(clients: int, features: int, rows: int, classes: int = 2) -> Any:
    import twofold as tw

    rng = np.random.default_rng(0)
    everyone = [
        (rng.standard_normal((rows, features)) / features**0.5, rng.integers(0, classes, rows)) for _ in range(clients)
    ]
    loss = tw.losses.logistic(l2=0.1) if classes == 2 else tw.losses.softmax(classes, l2=0.1)
    named = tw.Clients.from_list(everyone, names=[f"n{i}" for i in range(clients)])
    return tw.Problem(tw.objectives.mixture(loss, lam=0.1), named, sampling="uniform")


def worker(folder: Path, port: int, which: list[int]) -> None:
    """Some nodes in one process, a thread each."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from twofold.engines.flower import join
    from twofold.federation import Identity, Node, Seat, Study, read_rows

    study = Study.read(folder / "study.toml")

    def one(i: int) -> None:
        name = study.names[i]
        seat = Seat(study, name, *read_rows(study, folder / f"{i}.npz", name))
        node = Node(seat, folder / f"state-{i}", identity=Identity.read(folder / f"{i}.key"), tells=("rows",))
        join(node, f"127.0.0.1:{port}", certificates=folder / "certs" / "ca.crt")

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in which]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def federation(
    clients: int, processes: int, rounds: int, *, missing: str = "wait", features: int = 10, classes: int = 2, warm: int = WARM
) -> dict[str, float]:  # fmt: skip
    """Seconds of every round, and the coordinator's own processor seconds a round."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import twofold as tw
    from twofold.engines.flower.rehearsal import Rehearsal
    from twofold.federation import Patience

    with tempfile.TemporaryDirectory() as folder:
        method = tw.algorithms.LSGD(eta=0.1, tau=2, batch=4)
        play = Rehearsal(
            problem(clients, features, 8, classes),
            method,
            folder,
            rounds=rounds,
            round={"missing": missing},
            masks={"on": True, "bits": 44},
        )
        running: list[subprocess.Popen[bytes]] = []

        def ready(port: int) -> None:
            for p in range(processes):
                which = ",".join(str(i) for i in range(p, clients, processes))
                command = [sys.executable, __file__, "--worker", folder, "--port", str(port), "--nodes", which]
                running.append(subprocess.Popen(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}))

        used = time.process_time()
        try:
            play.serve(ready, patience=Patience(limit=120.0))
            for process in running:
                process.wait(timeout=60)
        finally:
            for process in running:
                process.kill()
                process.wait()
        files = sorted((Path(folder) / "run" / "log").glob("*.safetensors"))
        when = [_time_of(file) for file in files]
        each = np.diff(when)[warm:].tolist()
        return {"median": median(each), "least": min(each), "server": (time.process_time() - used) / rounds}


def _time_of(file: Path) -> float:
    """When a round was written down, without reading its arrays."""
    with file.open("rb") as content:
        size = int.from_bytes(content.read(8), "little")
        return json.loads(json.loads(content.read(size))["__metadata__"]["about"])["time"]


def bare(clients: int, rounds: int, up: int = 700, down: int = 900, warm: int = WARM) -> dict[str, float]:
    """The same number of clients and bodies of the same size, in one held POST a client and round, with TLS."""
    import asyncio
    import ssl

    import httpx
    import uvicorn

    from twofold.federation.certificates import make_certificates

    arrived: dict[int, asyncio.Event] = {}
    count: dict[int, int] = {}
    times: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        more = True
        while more:
            more = (await receive()).get("more_body", False)
        r = int(scope["path"][1:])
        event = arrived.setdefault(r, asyncio.Event())
        count[r] = count.get(r, 0) + 1
        if count[r] == clients:
            times.append(time.time())
            event.set()
        await event.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(down)})

    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder) / "certs", ["127.0.0.1"])
        certs = Path(folder) / "certs"
        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="warning", ws="none", lifespan="off",
            ssl_certfile=str(certs / "server.pem"), ssl_keyfile=str(certs / "server.key"),
        )  # fmt: skip
        server = uvicorn.Server(config)
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]

        def one() -> None:
            context = ssl.create_default_context(cafile=str(certs / "ca.crt"))
            with httpx.Client(verify=context) as client:
                for r in range(rounds):
                    client.post(f"https://127.0.0.1:{port}/{r}", content=bytes(up), timeout=60.0)

        threads = [threading.Thread(target=one) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.should_exit = True
    each = np.diff(times)[warm:].tolist()
    return {"median": median(each), "least": min(each), "server": 0.0}


def stock(clients: int, rounds: int) -> dict[str, float]:
    """Flower's own SuperLink, SuperNodes and `flwr run`, each process ended by its own id."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import twofold as tw
    from twofold.federation import Study

    bin_, running = Path(sys.executable).parent, cast(list[subprocess.Popen[bytes]], [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = problem(clients, 10, 8)
        method = tw.algorithms.LSGD(eta=0.1, tau=2, batch=4)
        Study.of(whole, method, rounds=rounds, masks={"on": False}, round={}).write(folder / "study.toml")
        port, *ports = (_free_port() for _ in range(1 + clients))
        home = folder / "flwr"
        home.mkdir()
        here = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (home / "config.toml").write_text(here)
        environment = os.environ | {
            "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "JAX_PLATFORMS": "cpu",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PATH": f"{bin_}:{os.environ['PATH']}",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }  # fmt: skip

        def start(*command: str) -> None:
            with (folder / "log").open("ab") as out:
                running.append(
                    subprocess.Popen(
                        command, env=environment, stdout=out, stderr=out, cwd=folder, start_new_session=True
                    )
                )

        try:
            start(
                str(bin_ / "flower-superlink"),
                "--insecure",
                "--port",
                str(port),
                "--disable-runtime-dependency-installation",
            )
            time.sleep(8)
            for i in range(clients):
                mine = whole.clients[f"n{i}"]
                np.savez(folder / f"{i}.npz", x=mine.x, y=mine.y)
                config = {
                    "study": folder / "study.toml",
                    "as": f"n{i}",
                    "data": folder / f"{i}.npz",
                    "state": folder / f"state-{i}",
                }
                words = " ".join(f'{key}="{value}"' for key, value in config.items())
                where = ("--superlink", f"127.0.0.1:{port}", "--port", str(ports[i]))
                start(str(bin_ / "flower-supernode"), "--insecure", *where, "--node-config", words)
            app = Path(__file__).parents[1] / "deploy" / "flwr-app"
            options = [x for key, value in (("study", folder / "study.toml"), ("out", folder / "run"))
                       for x in ("--run-config", f'{key}="{value}"')]  # fmt: skip
            subprocess.run(
                [str(bin_ / "flwr"), "run", str(app), "here", *options], env=environment, check=True, cwd=folder
            )
            until = time.monotonic() + 25 * rounds
            while not (folder / "run" / "end.json").exists():
                if time.monotonic() > until:
                    raise RuntimeError((folder / "log").read_text()[-3000:])
                time.sleep(0.2)
        finally:
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)  # a session of our own making
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=8)
        when = [_time_of(file) for file in sorted((folder / "run" / "log").glob("*.safetensors"))]
    each = np.diff(when)[1:].tolist()
    return {"median": median(each), "least": min(each), "server": 0.0}


def large_pages() -> dict[str, float]:
    """`large` in processes whose memory comes in pages of 2 MB, which glibc is told when a process starts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        command = [sys.executable, __file__, "--only", "large", "--json", str(file)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        (row,) = json.loads(file.read_text())
    return {name: row[name] for name in ("median", "least", "server")}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(GOALS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--nodes", default="")
    a = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is also ended
    if a.worker:
        worker(a.worker, a.port, [int(i) for i in a.nodes.split(",")])
        return
    runs = {
        "small": lambda: federation(4, 4, a.rounds),
        "skip": lambda: federation(4, 4, a.rounds, missing="skip"),
        "many": lambda: federation(32, 4, max(a.rounds // 2, 15)),
        "many-skip": lambda: federation(32, 4, max(a.rounds // 2, 15), missing="skip"),
        "large": lambda: federation(4, 4, 6, features=10_000, classes=CLASSES, warm=1),
        "large-pages": large_pages,
        "bare": lambda: bare(4, a.rounds),
        "bare-large": lambda: bare(4, 6, 40_000_000, 40_000_000, warm=1),
        "stock": lambda: stock(4, 6),
    }
    words = {
        "small": "4 nodes, TLS, keys, masks",
        "skip": "4 nodes, the same with missing = skip",
        "many": "32 nodes, TLS, keys, masks",
        "many-skip": "32 nodes, the same with missing = skip",
        "large": "4 nodes, messages of 40 MB, TLS, keys, masks",
        "large-pages": "4 nodes, messages of 40 MB, memory in pages of 2 MB",
        "bare": "4 clients, a bare HTTPS exchange",
        "bare-large": "4 clients, a bare HTTPS exchange of 40 MB",
        "stock": "4 nodes, stock Flower in the open",
    }
    rows = []
    for name in a.only.split(","):
        found = runs[name]()
        rows.append({"name": name, "work": words[name], "goal": GOALS[name], **found})
        print(f"{words[name]:50} median {found['median']:.3f} s a round, least {found['least']:.3f}", flush=True)
    if a.json:
        a.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
