"""Any folder of runs for people to read: side by side in a table (`compare`), or as one self-contained HTML page (`write`).

The paper's page (`twofold.paper.report`) is made of the same pieces.
"""

__all__: list[str] = []
