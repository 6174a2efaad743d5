"""outlines: what a search reads of the library's composites before it needs their definitions, stored in the user's cache folder.

To define every composite on all kinds of types takes a second. A search needs the definitions of those few composites whose
outlines (their ops, down to some depth) occur in its graph.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensor_graphs.devices.filed_json import filed

DECIDES = ("costs", "language", "meaning", "proof", "rewrites")
"""Packages whose code decides the results of a search."""

MOST_BYTES = 8 << 20
"""Size limit of the cache [bytes]."""


@functools.cache
def code_digest() -> str:
    """Return a digest of the code that decides the results of a search."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(p for room in DECIDES for p in (root / room).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def outlines(name: str, compute: Callable[[], Any]) -> Any:
    """Return the outlines that `compute` returns, as JSON reads them back: from the cache folder, or computed now."""
    return filed("outlines", f"{name} {code_digest()} {sys.version}", compute, MOST_BYTES)
