"""checksummed_files: each file of a cache folder ends in a seal, so that a file that was cut or changed is never loaded or mapped.

    path = place(folder, name)                  # where the file is, or is to be written
    content = read(path)                        # None: missing or damaged; make it again; write_checksummed_files.py keeps it
    if not holds(path): …                       # the same check of a library, before the loader maps it

The seal is the names of the libraries that a library needs, then the size and a digest of everything before it. The dynamic loader
and the linker ignore bytes after a library. Sizes are compared each time a file is opened. The content is compared once for each
version of a file (device, inode, size, time of writing): in each process or, for a large file, once since the machine was started.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tensor_graphs.devices.cache_folder import CacheFolderError, check_private, user_folder, why_unusable

log = logging.getLogger(__name__)

T = TypeVar("T")

SEAL = struct.Struct("<QI32s8s")
"""Layout of a seal: size of the content, size of the names, digest, mark."""

MARK = b"tgseal 1"
BLOCK = 8 << 20
"""Bytes that one thread digests at a time."""

LARGE = 1 << 20
"""Size from which on it is remembered across processes that a file was checked."""

_checked: set[str] = set()
"""Versions of files whose content this process has compared with the digest."""


def place(folder: Path, name: str) -> Path:
    """Return the path of a file of a cache folder: in the folder, or in its stand-in where the folder's disk is full or read-only.
    The file need not exist. Raises CacheFolderError."""
    why = why_unusable(folder)
    if why is None or holds(folder / name):
        return folder / name
    from tensor_graphs.devices.fallback_folder import stand_in  # a door: most disks can be written to

    return stand_in(folder, why) / name


def user_place(kind: str, name: str) -> Path | None:
    """Return the path of a file in the user's cache folder; None where that folder cannot be used."""
    try:
        return place(user_folder(kind), name)
    except CacheFolderError as error:
        log.info("no %s are kept: %s", kind, error)
        return None


def holds(path: Path) -> bool:
    """Return whether a library exists and is unchanged since it was written, and so are all libraries that it needs. Raises
    CacheFolderError where other users may have written to it."""
    return _taken(path, lambda file, size: True, (OSError, ValueError)) or False


def read(path: Path) -> bytes | None:
    """Return the content of a file; None where it is missing, damaged or not private."""
    return _taken(path, lambda file, size: os.pread(file, size, 0))


def mapped(path: Path) -> mmap.mmap | None:
    """Return the content of a file, mapped read-only; None where it is missing, damaged or not private."""
    return _taken(path, lambda file, size: mmap.mmap(file, size, access=mmap.ACCESS_READ))


def _taken(path: Path, take: Callable[[int, int], T],
           left_out: tuple[type[Exception], ...] = (OSError, ValueError, CacheFolderError)) -> T | None:
    """Return `take`(descriptor, bytes of content) of a file, and mark it as used; None for a missing or changed file."""
    try:
        with open(path, "rb", buffering=0) as file:
            facts = os.fstat(file.fileno())
            check_private(path, facts)
            value = take(file.fileno(), _checked_size(path, file.fileno(), facts))
    except FileNotFoundError:
        return None
    except left_out as error:
        log.info("%s is left out: %s", path, error)
        return None
    if facts.st_atime < time.time() - 60:
        with contextlib.suppress(OSError):                          # the time of writing stays: it tells versions apart
            os.utime(path, ns=(time.time_ns(), facts.st_mtime_ns))
    return value


def _checked_size(path: Path, file: int, facts: os.stat_result) -> int:
    """Return the bytes of content of an open file. Raises ValueError where it is not the content that was written."""
    seal = os.pread(file, SEAL.size, max(0, facts.st_size - SEAL.size))
    size, names, digest, mark = SEAL.unpack(seal) if len(seal) == SEAL.size else (0, 0, b"", b"")
    if mark != MARK or size + names + SEAL.size != facts.st_size:
        raise ValueError("it was cut, or has no seal")
    version = version_of(facts)
    if version not in _checked:
        def fits() -> bool:
            return digest_of(file, size + names) == digest

        if not (fits() if size < LARGE else _fits_since_start(path.parent, version, fits)):
            raise ValueError("its content has changed")
        _checked.add(version)
    for name in os.pread(file, names, size).decode().splitlines():
        if not holds(path.parent / name):
            raise ValueError(f"{name}, which it needs, is not there")
    return int(size)


def _fits_since_start(folder: Path, version: str, fits: Callable[[], bool]) -> bool:
    from tensor_graphs.devices import checked_since_boot  # a door: few files are large

    if not checked_since_boot.is_listed(folder, version):
        if not fits():
            return False
        checked_since_boot.add(folder, version)
    return True


def version_of(facts: os.stat_result) -> str:
    return f"{facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns}"


def digest_of(file: int, size: int) -> bytes:
    """Return the digest of the first `size` bytes of a file: a digest of the digests of its blocks, which threads compute."""
    def of_block(begin: int) -> bytes:
        return hashlib.sha256(os.pread(file, min(BLOCK, size - begin), begin)).digest()

    begins = range(0, size, BLOCK)
    if len(begins) < 2:
        return hashlib.sha256(b"".join(map(of_block, begins))).digest()
    from concurrent.futures import ThreadPoolExecutor  # a door: few files have several blocks

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return hashlib.sha256(b"".join(pool.map(of_block, begins))).digest()
