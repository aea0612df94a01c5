"""A whole federation on this machine, with real processes, certificates, keys and masks: `solve(problem, engine="flower")`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from twofold.algorithms.base import Algorithm
from twofold.engines.flower.server import serve
from twofold.errors import InputError, TwofoldError
from twofold.federation.certificates import make_certificates
from twofold.federation.keys import Identity
from twofold.federation.node import Node
from twofold.federation.patience import Patience
from twofold.federation.seat import Seat
from twofold.federation.study import Study
from twofold.problem import Problem
from twofold.result import Result

__all__ = ["Rehearsal", "rehearse"]


class Rehearsal:
    """Everything that a federation needs, in one folder: keys, certificates, the study file, and everyone's rows."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        folder: str | Path,
        *,
        rounds: int,
        seed: int = 0,
        tolerance: float | None = None,
        **sections: Any,
    ) -> None:
        self.folder, self.problem = Path(folder), problem
        self.folder.mkdir(parents=True, exist_ok=True)
        self.names = [str(name) for name in problem.clients.names]
        keys = {name: Identity.new() for name in self.names}
        for i, (name, key) in enumerate(keys.items()):
            key.write(self.folder / f"{i}.key")
            mine = problem.clients[problem.clients.names[i]]
            np.savez(self.folder / f"{i}.npz", x=mine.x, y=mine.y)
            (self.folder / f"state-{i}").mkdir()
            assert name == self.names[i]
        lines = {name: key.public.line for name, key in keys.items()}
        self.study = Study.of(problem, algorithm, rounds=rounds, seed=seed, tolerance=tolerance, keys=lines, **sections)
        self.study.check().write(self.folder / "study.toml")
        make_certificates(self.folder / "certs", ["127.0.0.1", "localhost"])

    def command(self, i: int, port: int, *more: str) -> list[str]:
        """What node i runs."""
        return [
            sys.executable, "-m", "twofold.cli", "join", str(self.folder / "study.toml"), "--as", self.names[i],
            "--data", str(self.folder / f"{i}.npz"), "--key", str(self.folder / f"{i}.key"),
            "--ca", str(self.folder / "certs" / "ca.crt"), "--server", f"127.0.0.1:{port}", "--state", str(self.folder / f"state-{i}"),
            "--tell", "constants,rows,loss,gap", *more,
        ]  # fmt: skip

    def start(self, i: int, port: int, *more: str) -> subprocess.Popen[bytes]:
        """Start node i; what it says goes into a file."""
        with (self.folder / f"{i}.log").open("ab") as out:
            environment = os.environ | {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
            return subprocess.Popen(self.command(i, port, *more), stdout=out, stderr=out, env=environment)

    def serve(self, ready: Callable[[int], None], **options: Any) -> Result:
        """Be the coordinator, in this process."""
        return serve(self.study, self.folder / "run", certificates=self.folder / "certs", ready=ready, **options)

    def node(self, i: int) -> Node:
        """Node i as it is on the disk."""
        mine = self.problem.clients[self.problem.clients.names[i]]
        seat = Seat(self.study, self.names[i], mine.x, mine.y)
        return Node(seat, self.folder / f"state-{i}", identity=Identity.read(self.folder / f"{i}.key"))

    def beta(self) -> Any:
        """Everyone's β, from everyone's disk: only in a rehearsal is there somebody who can read them all."""
        return jax.tree.map(
            lambda *leaves: np.stack(leaves), *(self.node(i).model()[1] for i in range(len(self.names)))
        )


def rehearse(
    problem: Problem,
    algorithm: Algorithm,
    *,
    rounds: int | None,
    seed: int = 0,
    every: int = 1,
    tolerance: float | None = None,
    patience: Patience | None = None,
    losses: bool = True,
) -> Result:
    """Solve a problem as a federation of one process per client on this machine.

    It is the real thing: Flower, TLS, keys, masks where there are three clients or more, and state on disks. Step sizes come
    from what nodes tell, where the algorithm leaves them open. Rows are drawn by the run's seed, without salt.
    """
    if rounds is None:
        raise InputError("engine='flower' needs rounds=, after which a study ends in any case.")
    with tempfile.TemporaryDirectory(prefix="twofold-") as folder:
        stage = Rehearsal(
            problem,
            algorithm,
            folder,
            rounds=rounds,
            seed=seed,
            tolerance=tolerance,
            round={"record": every},
            tell={"salt": False},
        )
        running: list[subprocess.Popen[bytes]] = []

        def ready(port: int) -> None:
            running.extend(
                stage.start(i, port, *(() if losses else ("--tell", "constants,rows,gap")))
                for i in range(len(stage.names))
            )

        try:
            result = stage.serve(ready, patience=patience)
            for process in running:
                process.wait(timeout=30)
            return replace(result, beta=stage.beta())
        except TwofoldError as error:
            said = "\n".join(path.read_text()[-500:] for path in sorted(Path(folder).glob("*.log")))
            raise TwofoldError(f"{error}\n{said}") from error
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
