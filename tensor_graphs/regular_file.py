"""regular_file: reads all of a file that a person named: never a device, which has no end, and never more bytes than expected.

All faults are OSErrors with an explanation in `strerror`, so a handler for a missing file catches these too.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def blocking(path: Path) -> Path | None:
    """Return the part of a path that exists and is no folder, so that no folder can be created below it; None if there is none."""
    return next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), None)


def open_regular(path: str | os.PathLike[str], *, pipes: bool = False) -> BinaryIO:
    """Return the file, open for reading bytes; opening never waits. pipes: accept a pipe too (`<(…)`, /dev/stdin), read to its end.

    Raises OSError for a path that cannot be opened, for a folder, and for a device, a socket or (without `pipes`) a pipe.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
            kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | os.PathLike[str], most: int, *, pipes: bool = False) -> bytes:
    """Return all bytes of a file. Raises OSError as `open_regular` does, and for a file of more than `most` bytes."""
    with open_regular(path, pipes=pipes) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than the {most} bytes that are read of such a file", os.fspath(path))
    return data


def read_text(path: str | os.PathLike[str], most: int, *, encoding: str = "utf-8", pipes: bool = False) -> str:
    """Return the text of a file, its line ends converted to \\n. Raises OSError as `read_regular` does, and UnicodeDecodeError."""
    text = read_regular(Path(path), most, pipes=pipes).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")
