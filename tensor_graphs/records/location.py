"""location: where the benchmark database is, without opening it."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TENSOR_GRAPHS_DB"
"""names the database, by path or URL, where no argument does: of the command line and of the Python API alike"""


def default_path() -> Path:
    """Return the default location of the database: benchmarks.db in the user's data folder."""
    import platformdirs

    return Path(platformdirs.user_data_dir("tensor_graphs")) / "benchmarks.db"


def default_target() -> str | Path:
    """Return the default target of `open_database()`: TENSOR_GRAPHS_DB, else `default_path()`. The variable is read at every call.
    """
    return os.environ.get(VARIABLE, default_path())


def file_of(target: str | Path | None) -> Path | None:
    """Return the file of a database that is named by a path, or is the default one (None); None where it is named by a URL."""
    text = str(default_target() if target is None else target)
    return None if "://" in text or text == ":memory:" else Path(text).expanduser()
