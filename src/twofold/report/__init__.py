"""Reports on any folder of runs: a table that compares them (`compare`), or one self-contained HTML page (`write`).

The paper's page (`twofold.paper.report`) is built from the same parts.
"""

__all__: list[str] = []
