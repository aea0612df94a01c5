"""How far one `solve` walks: the files and named functions of twofold that `solve(problem, "asvrcd", rounds=100)` passes.

    python benchmarks/walk.py [--list] [--ready] [ALGORITHM]

Counted with `sys.setprofile` over the call alone, after imports. With --ready the problem has been asked for its constants and
its arrays before, so that what is counted is the run: step sizes, engine, loop, records, result. Lambdas and comprehensions
are not counted.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

import twofold as tw

HOME = Path(tw.__file__).parent


def problem() -> tw.Problem:
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 5)), rng.integers(0, 2, 20)) for _ in range(10)]
    return tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), tw.Clients.from_list(data))


def walked(algorithm: str, ready: bool = False) -> tuple[set[CodeType], set[tuple[str, str]], Counter[str]]:
    """The functions that were called, the pairs of files where one called the other, and how often `client` was traced."""
    functions: set[CodeType] = set()
    edges: set[tuple[str, str]] = set()
    traced: Counter[str] = Counter()
    home = str(HOME)

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(home) or code.co_name.startswith("<"):
            return
        functions.add(code)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(home):
            caller = caller.f_back  # through JAX
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            edges.add((caller.f_code.co_filename, code.co_filename))
        if code.co_name == "client" and "algorithms" in code.co_filename:
            traced["client"] += 1

    whole = problem()
    tw.solve(whole, "lsgd", rounds=1)  # everything is imported by now
    whole = problem()
    if ready:
        whole.constants()
        whole.program()
    sys.setprofile(look)
    try:
        tw.solve(whole, algorithm, rounds=100)
    finally:
        sys.setprofile(None)
    return functions, edges, traced


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("algorithm", nargs="?", default="asvrcd")
    arguments.add_argument("--list", action="store_true", help="name the functions, file by file")
    arguments.add_argument("--ready", action="store_true", help="with a problem whose constants and arrays are known")
    given = arguments.parse_args()
    functions, edges, traced = walked(given.algorithm, given.ready)
    files = Counter(str(Path(code.co_filename).relative_to(HOME)) for code in functions)
    for file, count in sorted(files.items(), key=lambda item: -item[1]):
        print(f"{count:4d}  {file}")
        if given.list:
            names = [c.co_qualname for c in functions if Path(c.co_filename) == HOME / file]
            print("      " + ", ".join(sorted(names)))
    print(
        f"{len(files)} files, {len(functions)} functions, {len(edges)} edges between files; "
        f"client was traced {traced['client']} times"
    )


if __name__ == "__main__":
    main()
