"""The solvers' promises on two kinds of real and made data, a few minutes of `twofold reproduce realdata`.

    python benchmarks/realdata.py [--json FILE]

prints what was asked and what was measured (`paper.realdata.QUICK`); the whole page takes much longer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from twofold.paper import realdata, realdata_page


def main() -> None:
    """Measure, and print the claims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the claims here")
    file = parser.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        realdata.run(folder, **realdata.QUICK, tell=lambda text: print(text, flush=True))
        rows = json.loads((Path(folder) / "realdata.json").read_text())
    found = [
        {"asked": a, "measured": m, "held": held == "yes"} for a, m, held in realdata_page.claims(rows, realdata.DATA)
    ]
    for claim in found:
        print(f"{claim['asked']}: {claim['measured']}{'' if claim['held'] else '  missed'}")
    if file:
        file.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
