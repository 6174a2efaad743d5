"""location: the location of the benchmark database, found without opening it."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TENSOR_GRAPHS_DB"
"""Environment variable that names the database, by path or URL, where no argument does; the command line and Python read it."""


def default_path() -> Path:
    """Return the default location of the database: benchmarks.db in the user's data folder."""
    import platformdirs

    return Path(platformdirs.user_data_dir("tensor_graphs")) / "benchmarks.db"


def default_target() -> str | Path:
    """Return the default target of `open_database()`: TENSOR_GRAPHS_DB, read at every call, or else `default_path()`."""
    return os.environ.get(VARIABLE, default_path())


def file_of(target: str | Path | None) -> Path | None:
    """Return the file of a database given by a path, or by None for the default one; None for a database given by a URL."""
    text = str(default_target() if target is None else target)
    return None if "://" in text or text == ":memory:" else Path(text).expanduser()
