"""storing: says whether results are stored in the user's cache folder, and identifies the code that computes them."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from tensor_graphs.argument_checks import switch

VARIABLE = "TENSOR_GRAPHS_PLANS"                                    # off: nothing is stored or used


def is_on() -> bool:
    """Return whether results are stored. Raises ArgumentError where the variable is neither on nor off."""
    return switch(VARIABLE, unless_said=True)


@functools.cache
def package_digest() -> str:
    """Return a digest of this package's code."""
    root = Path(__file__).resolve().parent.parent
    code = (f"{path.relative_to(root)}\n".encode() + path.read_bytes() for path in sorted(root.rglob("*.py")))
    return hashlib.sha256(b"".join(code)).hexdigest()
