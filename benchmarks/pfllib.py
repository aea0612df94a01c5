"""PFLlib's table where twofold is not installed: `PYTHONPATH=src python benchmarks/pfllib.py --pack-from fmnist.npz --out DIR`.

It needs jax, numpy, scipy and flax, nothing else. The data is one file for each data set, made where the images are:

    python benchmarks/pfllib.py --pack fmnist.npz --data fmnist
    PYTHONPATH=src python benchmarks/pfllib.py --from fmnist.npz --methods fedavg,local --rounds 100 --seeds 1 --out results
    python benchmarks/pfllib.py --page --out results
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from twofold.paper import pfllib, pfllib_data


def main() -> None:
    """Pack, run or only make the page."""
    asked = _arguments()
    if asked.pack:
        path = pfllib_data.write(pfllib_data.make(asked.data or "fmnist"), asked.pack)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    elif asked.page:
        print(pfllib.page(asked.out, asked.note), end="")
    else:
        _run(asked)


def _run(asked: argparse.Namespace) -> None:
    plan, pack = pfllib.QUICK if asked.quick else pfllib.Plan(), None
    if asked.given:
        read = pfllib_data.read(asked.given)
        asked.data, pack = read.data, lambda _: read
    lists = {"data": asked.data, "splits": asked.split, "methods": asked.methods}
    changes = {name: tuple(value.split(",")) for name, value in lists.items() if value}
    names = ("rounds", "seeds", "every", "rows", "seconds")
    changes |= {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    print(pfllib.run(asked.out, dataclasses.replace(plan, **changes), pack, tell=lambda text: print(text, flush=True)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, help="write the images and both splits into this file, and stop")
    parser.add_argument("--from", dest="given", type=Path, help="read the data from this file")
    parser.add_argument("--page", action="store_true", help="print the page of what --out has, and stop")
    parser.add_argument("--note", default="", help="a sentence on how the cells were run, for the page")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--quick", action="store_true")
    for name in ("data", "split", "methods"):
        parser.add_argument(f"--{name}", help="some of them, with commas; all if not given")
    for name in ("rounds", "seeds", "every", "rows"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument(
        "--seconds", type=float, help="the most for one method and seed; what it has by then is written"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
