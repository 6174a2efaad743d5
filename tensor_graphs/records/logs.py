"""logs: the printed output of a run, as a row stores it, and the one line of it that explains a failure."""

from __future__ import annotations

import re
import zlib

LOG_BYTES = 256 * 1024
"""Longest log that is stored entirely; of a longer one the first and the last half of this are stored."""

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File ".*", line \d+')


def compress_log(text: str) -> bytes | None:
    """Return a log compressed with zlib over UTF-8, None for an empty log. A log longer than LOG_BYTES is cut in the middle."""
    if not text:
        return None
    data = text.encode("utf-8", "replace")
    if len(data) > LOG_BYTES:
        half = LOG_BYTES // 2
        data = data[:half] + b"\n[... %d bytes left out ...]\n" % (len(data) - 2 * half) + data[-half:]
    return zlib.compress(data, 6)


def decompress_log(data: bytes | None) -> str:
    """Return the text of a log compressed by `compress_log` (with replacements for characters that were cut)."""
    return "" if data is None else zlib.decompress(data).decode("utf-8", "replace")


def reason_of(log: str) -> str:
    """Return the one line of a log that explains a failure: its first line, or, if it begins with or inside a Python traceback (a
    log may have lost its beginning), the exception raised last.

    >>> reason_of("Traceback (most recent call last):\\n  File \\"k.py\\", line 1\\nValueError: no room\\n  fix: less\\n")
    'ValueError: no room'
    """
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    inside = [i for i, line in enumerate(lines) if line.lstrip().startswith(_TRACEBACK) or _FRAME.match(line)]
    if not inside or (inside[0] > 0 and not _FRAME.match(lines[inside[0]])):
        return lines[0].strip() if lines else ""
    # The code of a frame is indented, and so may be what the message goes on with: a fix, say.
    return next((line for line in lines[inside[-1] + 1 :] if not line[0].isspace()), lines[-1]).strip()
