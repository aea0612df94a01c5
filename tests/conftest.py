"""Strict numerics for every test: float64, no silent rank promotion, warnings are errors (pyproject.toml)."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Before JAX and NumPy are imported, and for the processes that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Two thirds of the time of a test is compilation, and a test's program runs for a moment: without optimisation it compiles in
# half the time. (Tests that run for long ask for `optimised`.) `XLA_FLAGS= make test` has everything as users have it.
if "XLA_FLAGS" not in os.environ:
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    if version("jaxlib").startswith("0.10."):  # XLA aborts on a flag that it does not know
        os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if "PYTEST_XDIST_WORKER" in os.environ:
    # One thread a worker: XLA's pool (NPROC) waits without spinning, but OpenBLAS's and OpenMP's threads do spin.
    for variable in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

# Compiled programs, small ones too, are kept between runs and shared by the workers and by all processes that tests start. A
# half-written entry only costs a compilation, with a warning that pyproject.toml lets pass.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax
import psutil
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])  # a plugin may have imported JAX before us
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_traceback_in_locations_limit", 0)  # no test asks which line of ours an instruction comes from

# Traces and compiled programs are millions of objects that stay. The collector would walk over them again and again, for a
# sixth of all the time there is: so it comes less often, and what a module leaves behind is put aside for good.
gc.set_threshold(100_000, 50, 100)
PROCESS = psutil.Process()


def _share_contexts() -> None:
    """Let programs share the place where they are written down.

    JAX makes one for each program: with thirty dialects in it, that is a third of the time that a small program takes to
    compile. Here each thread makes one for a hundred programs (it keeps their constants as long as it lives).
    """
    from jax._src.interpreters import mlir

    make, mine = mlir.make_ir_context, threading.local()

    def context() -> object:
        mine.left = getattr(mine, "left", 0) - 1
        if mine.left < 0:
            mine.left, mine.context = 99, make()
        return mine.context

    mlir.make_ir_context = context


with contextlib.suppress(ImportError, AttributeError):  # another JAX may not have it
    _share_contexts()

pytest_plugins = ("chromium",)  # the fixture `browser`

settings.register_profile(
    "twofold",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("twofold"), derandomize=False, max_examples=500)
settings.load_profile("twofold")  # pytest --hypothesis-profile=thorough wins over this


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes are named by their length: a gzip file holds the time it was made, and workers must agree on all names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


FIRST = ("test_processes.py", "test_outages.py", "test_sharded.py", "test_checkpoint.py")
"""Tests that wait for processes of their own: at the end of a run they would leave the other workers idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits comes first, and all else in its order."""
    items.sort(key=lambda item: item.path.name not in FIRST)


MOST_BYTES = 1_600_000_000
"""What a worker may hold after a test before its compiled programs go: with one more test's it stays below 2 GB."""


@pytest.fixture(scope="module", autouse=True)
def _put_aside() -> Iterator[None]:
    yield
    if PROCESS.memory_info().rss > MOST_BYTES // 2:  # until then there is room for what nobody needs
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _within_memory() -> Iterator[None]:
    """Compiled programs stay until they are in the way: made anew, they cost more than all else here."""
    yield
    if PROCESS.memory_info().rss > MOST_BYTES:
        _give_back()
    if PROCESS.memory_info().rss <= MOST_BYTES:
        return
    jax.clear_caches()
    _give_back()
    if PROCESS.memory_info().rss > 0.75 * MOST_BYTES:  # too little came of it: the collector walks over all there is
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _give_back()


def _give_back() -> None:
    """Return to the system what is free already: glibc keeps it unless told otherwise."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works() -> None:
    """Some tests press Ctrl-C, which a shell has ignored in what it starts in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def own_registries() -> Iterator[None]:
    """What a test registers is gone after it."""
    from twofold import registry

    before = {kind: dict(found) for kind, found in registry.REGISTRIES.items()}
    yield
    for kind, found in registry.REGISTRIES.items():
        found.clear()
        found.update(before[kind])


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data files, TWOFOLD_DATA; without it the test is skipped."""
    folder = os.environ.get("TWOFOLD_DATA", "")
    if not (folder and Path(folder).is_dir()):
        pytest.skip("TWOFOLD_DATA does not name a folder of real data")
    return Path(folder)


@pytest.fixture
def fresh_python() -> Callable[..., str]:
    """Run a piece of code in a new interpreter, on as many CPU devices as asked for; what it printed comes back.

    Anything with several devices belongs in here: XLA's CPU collectives deadlock when programs queue up while the
    thread pool is smaller than twice the number of devices (seen with JAX 0.10.2, 4 devices, pools of 2 to 6 threads).
    """

    def run(code: str, devices: int = 1, timeout: float = 300.0) -> str:
        env = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "NPROC": str(2 * devices)}
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "error",
                "-W",
                "ignore:'click.:DeprecationWarning",
                "-W",
                "ignore:Error reading persistent compilation cache entry:UserWarning",
                "-W",
                "ignore:Error writing persistent compilation cache entry:UserWarning",
                "-c",
                code,
            ],  # see pyproject.toml
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def optimised() -> Iterator[None]:
    """Optimised code, as users have it: for tests that run for longer than they compile."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 64 recorded iterates at a time, not for 1024: the engine of messages compiles a stack of as many arrays."""
    from twofold.solver import run

    monkeypatch.setattr(run, "MOST_SLOTS", 64)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The engines of messages that a test's runs have built, in order."""
    from twofold import engines

    found: list[Any] = []

    class Built(engines.Messages):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setitem(engines.REGISTRY, "messages", Built)
    return found
