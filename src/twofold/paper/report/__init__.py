"""The results of a folder for people to read: one self-contained HTML page (`page`), or Markdown (`markdown`)."""

__all__: list[str] = []
