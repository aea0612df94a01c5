"""Raw tables: any data frame's columns as NumPy arrays, and the schema that turns them into features."""

from __future__ import annotations

from twofold.tables.alike import difference
from twofold.tables.columns import Columns, Values, read
from twofold.tables.schema import Column, Schema, Standardize

__all__ = ["Column", "Columns", "Schema", "Standardize", "Values", "difference", "read"]
