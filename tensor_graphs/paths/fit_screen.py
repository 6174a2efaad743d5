"""fit_screen: what `print` shows of a plan, a path or a report fits on one screen, whatever it is of; times and bytes for
people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

SCREEN_WIDTH, SCREEN_LINES = 120, 40
"""characters and lines that one `print` may take"""


def wrapped(lines: Iterable[str]) -> list[str]:
    """Lines of at most SCREEN_WIDTH characters: what is longer goes on in the next, further in. For what ends in what matters."""
    return [part for line in lines for part in textwrap.wrap(line, SCREEN_WIDTH, subsequent_indent=" " * 6, drop_whitespace=False,
                                                             break_on_hyphens=False) or [""]]


def fitted(lines: Sequence[str], what: str = "lines", keep: int = 0) -> str:
    """These lines as one text, each cut at SCREEN_WIDTH, and all of them at SCREEN_LINES; what is left out is counted, as `what`.

    keep: that many of the last lines are shown in any case.

    >>> print(fitted([str(n) for n in range(42)], "numbers", keep=1).splitlines()[-2:])
    ['… 3 more numbers', '41']
    """
    if len(lines) > SCREEN_LINES:
        shown = SCREEN_LINES - 1 - keep
        last = lines[len(lines) - keep:]
        lines = [*lines[:shown], f"… {len(lines) - shown - keep} more {what}", *last]
    return "\n".join(line if len(line) <= SCREEN_WIDTH else line[:SCREEN_WIDTH - 1] + "…" for line in lines)


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(12.34e-6), duration(0.0123)
    ('12.3 µs', '12.30 ms')
    """
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-4 else f"{seconds * 1e3:.2f} ms"


def human(nbytes: float) -> str:
    """Bytes for people: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    raise AssertionError
