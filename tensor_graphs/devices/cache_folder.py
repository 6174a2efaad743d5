"""cache_folder: the folder of compiled libraries, plans and learned costs: ours alone, or nothing in it is loaded."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tensor_graphs.devices.c_code import ToolchainError


class CacheFolderError(ToolchainError):
    """The folder for compiled libraries cannot be used, is full, or is not private.

    Unlike a missing compiler, which only costs the native kernels, this is a mistake that its owner wants to hear of."""


def default_cache() -> Path:
    """The folder for compiled libraries: `native` in the user's cache folder."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("tensor_graphs")) / "native"


OTHER_CACHE = "give another cache folder (XDG_CACHE_HOME says where it is made)"


def private_folder(folder: Path) -> Path:
    """Makes `folder` (mode 0700) or checks that it is ours; raises CacheFolderError if it cannot be had."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise CacheFolderError(
            f"the cache folder {folder} cannot be made: {_file_above(folder)} is a file, not a folder.\n"
            f"fix: remove that file, or {OTHER_CACHE}"
        ) from error
    except OSError as error:
        raise unusable(folder, error) from error
    check_private(folder)
    return folder


def _file_above(folder: Path) -> Path:
    return next((p for p in (folder, *folder.parents) if p.is_file()), folder)


def check_private(path: Path) -> None:
    """Raises CacheFolderError unless `path` (a folder or a library) belongs to this user and nobody else may write to it.

    A folder of ours that others may enter is closed to them instead."""
    try:
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and facts.st_mode & 0o077:
            os.chmod(path, 0o700)
            facts = os.stat(path)
    except OSError as error:
        raise unusable(path, error) from error
    if facts.st_uid != os.getuid():
        raise CacheFolderError(
            f"{path} belongs to user {facts.st_uid}, not to you ({os.getuid()}): code in it is not loaded.\n"
            f"fix: remove it, or {OTHER_CACHE}"
        )
    if facts.st_mode & 0o022:
        raise CacheFolderError(
            f"others may write to {path} (mode {stat.S_IMODE(facts.st_mode):04o}): code in it is not loaded.\n"
            f"fix: chmod go-w {path}, or {OTHER_CACHE}"
        )


def unusable(path: Path, error: OSError) -> CacheFolderError:
    if error.errno == errno.ENOSPC:
        return CacheFolderError(f"no space left for {path}.\n  fix: free some, or give a cache folder on another disk")
    return CacheFolderError(f"cannot use {path}: {error.strerror or error}.\n  fix: {OTHER_CACHE} that you may write to")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its place when all is written, at once: nobody reads or maps half of it. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def prune(folder: Path, most: int, newest: Path) -> None:
    """Remove the files that were not used for the longest time, until the rest is no more than `most` bytes; `newest` stays."""
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):                # another process removed it, or gave it its name, since
            files.append((path.stat(), path))
    total = 0
    for facts, path in sorted(files, key=lambda file: (file[0].st_mtime, file[1]), reverse=True):
        size = facts.st_size
        total += size
        if total > most and path != newest:
            path.unlink(missing_ok=True)
