"""checked_since_boot: the list of large files of a cache folder whose checksums some process has checked since the machine started.

The list is a file of the folder, named after the machine's boot identifier. Only this user can write to a private folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def is_listed(folder: Path, version: str) -> bool:
    """Return whether this version of a file was checked."""
    path = _list(folder)
    try:
        return path is not None and version in path.read_text().splitlines()
    except OSError:
        return False


def add(folder: Path, version: str) -> None:
    """Record that this version of a file has been checked. If the list cannot be written, the next process checks it again."""
    path = _list(folder)
    if path is None:
        return
    with contextlib.suppress(OSError):
        if not path.exists():
            for old in folder.glob(".checked-*"):
                old.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(version + "\n")


def _list(folder: Path) -> Path | None:
    """Return the path of the list; None where the system has no boot identifier."""
    try:
        return folder / f".checked-{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    except OSError:
        return None
