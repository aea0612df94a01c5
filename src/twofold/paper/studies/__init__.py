"""The experiments, one file each: a grid of cells, the figures, and facts for the reader. No algorithm code."""

__all__: list[str] = []
