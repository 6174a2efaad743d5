"""fallback_folder: the folder used in place of a cache folder whose disk is full or read-only."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

from tensor_graphs.devices.cache_folder import OTHER_CACHE, CacheFolderError, why_unusable

log = logging.getLogger(__name__)

IN_MEMORY = "/dev/shm"

_warned: set[Path] = set()
"""Cache folders about which this process has logged that they cannot be used."""


def stand_in(folder: Path, why: str) -> Path:
    """Return a private folder among the temporary files in place of a cache folder that cannot be used: the same for all processes
    of this user. It is logged once. Return `folder` itself where no such folder can be used."""
    name = f"tensor_graphs-{os.getuid()}-{hashlib.sha256(os.fsencode(folder.parent)).hexdigest()[:16]}"
    others = (Path(place, name) for place in dict.fromkeys((tempfile.gettempdir(), IN_MEMORY)))
    other = next((x for x in others if not x.is_symlink() and _is_usable(x) and _is_usable(x / folder.name)), None)
    if folder.parent not in _warned:
        _warned.add(folder.parent)
        then = "nothing new is kept or compiled" if other is None else f"what is new goes to {other}"
        log.warning("%s: %s (fix: free some space, or %s)", why, then, OTHER_CACHE)
    return folder if other is None else other / folder.name


def _is_usable(folder: Path) -> bool:
    try:
        return why_unusable(folder) is None
    except CacheFolderError:
        return False
