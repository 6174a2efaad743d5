"""write_checksummed_files: writes a cache folder's files: sealed (checksummed_files.py), each in one rename, within a limit."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from tensor_graphs.devices import checked_since_boot
from tensor_graphs.devices.checksummed_files import LARGE, MARK, SEAL, digest_of, version_of

log = logging.getLogger(__name__)


def seal(path: Path, needs: Sequence[str] = ()) -> None:
    """Append the seal to a file. needs: the libraries that this one is linked against, as paths relative to its final
    folder. Raises OSError."""
    names = "\n".join(needs).encode()
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.write(names)
        file.flush()
        file.write(SEAL.pack(size, len(names), digest_of(file.fileno(), size + len(names)), MARK))


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Context manager: yield a temporary file to write. At the end it is sealed and renamed to `path`. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            yield file
        seal(Path(name))
        facts = os.stat(name)
        if facts.st_size >= LARGE:
            checked_since_boot.add(path.parent, version_of(facts))
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def keep(path: Path, chunks: Iterable[bytes | memoryview], most: int) -> None:
    """Write a file, then remove the least recently used files of its folder until at most `most` bytes remain. On an error, such as
    a full disk, the file is not kept and the log says so."""
    try:
        with whole_file(path) as file:
            for chunk in chunks:
                file.write(chunk)
        prune(path.parent, most, path)
    except OSError as error:
        log.info("%s is not kept: %s", path, error)


def prune(folder: Path, most: int, newest: Path) -> None:
    """Remove the least recently used files until the rest is at most `most` bytes; `newest` is never removed."""
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):                # another process removed it, or gave it its name, since
            files.append((path.stat(), path))
    total = 0
    for facts, path in sorted(files, key=lambda file: (max(file[0].st_atime, file[0].st_mtime), file[1]), reverse=True):
        size = facts.st_size
        total += size
        if total > most and path != newest:
            path.unlink(missing_ok=True)
