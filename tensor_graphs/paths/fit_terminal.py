"""fit_terminal: fits the text of plans, paths and reports to one screen; formats times and bytes for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

SCREEN_WIDTH, SCREEN_LINES = 120, 40
"""Characters per line and lines that one `print` may take."""


def wrapped(lines: Iterable[str]) -> list[str]:
    """Return lines of at most SCREEN_WIDTH characters; longer lines continue on the next, indented. For lines whose end matters."""
    return [piece for line in lines for piece in textwrap.wrap(
        line, SCREEN_WIDTH, subsequent_indent=" " * 6, drop_whitespace=False, break_on_hyphens=False) or [""]]


def fitted(lines: Sequence[str], what: str = "lines", keep: int = 0) -> str:
    """Return lines as one text, each cut at SCREEN_WIDTH, and all at SCREEN_LINES. what: noun for the lines left out.

    keep: number of last lines that are always shown.

    >>> print(fitted([str(n) for n in range(42)], "numbers", keep=1).splitlines()[-2:])
    ['… 3 more numbers', '41']
    """
    if len(lines) > SCREEN_LINES:
        shown = SCREEN_LINES - 1 - keep
        lines = [*lines[:shown], f"… {len(lines) - shown - keep} more {what}", *lines[len(lines) - keep:]]
    return "\n".join(line if len(line) <= SCREEN_WIDTH else line[:SCREEN_WIDTH - 1] + "…" for line in lines)


def duration(seconds: float) -> str:
    """Return a time in seconds as text: 12.3 µs, 12.30 ms."""
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-4 else f"{seconds * 1e3:.2f} ms"


def human(nbytes: float) -> str:
    """Return a number of bytes as text: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    raise AssertionError
