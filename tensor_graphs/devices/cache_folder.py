"""cache_folder: the folders of compiled libraries, plans, prepared weights and learned costs, used only if private to this user.

checksummed_files.py checks the files in them before they are loaded."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from tensor_graphs.devices.c_code import ToolchainError
from tensor_graphs.regular_file import blocking


class CacheFolderError(ToolchainError):
    """The cache folder cannot be created, as a file is in its place, or it is not private: a mistake that its owner corrects."""


class CacheDiskError(ToolchainError):
    """A disk that is full or read-only. Like a missing compiler, it costs only the files that would be written there."""


LEAST_FREE = 8 << 20
"""Least free bytes that a disk must have for code to be compiled to it."""


def user_folder(kind: str) -> Path:
    """Return the folder for one kind of files ("native", "plans", …) in the user's cache folder, without creating it."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("tensor_graphs")) / kind


OTHER_CACHE = "give another cache folder (XDG_CACHE_HOME says where it is made)"


def why_unusable(folder: Path) -> str | None:
    """Return why nothing can be written to a folder, else None. A missing folder is created. Raises CacheFolderError."""
    try:
        private_folder(folder)
        disk = os.statvfs(folder)
    except (CacheDiskError, OSError) as error:
        return str(error).partition("\n")[0].rstrip(".")
    if disk.f_flag & (os.ST_RDONLY | getattr(os, "ST_NOEXEC", 0)) or not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is on a disk that is read-only, or runs no code"
    free = disk.f_bavail * disk.f_frsize
    return f"{free >> 10} KiB are left on the disk of {folder}" if free < LEAST_FREE else None


def private_folder(folder: Path) -> Path:
    """Create `folder` (mode 0700), or check that it is private, and return it. Raises CacheFolderError, CacheDiskError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        above = blocking(folder)
        remove = "remove that file, or " if above is not None and above.is_file() else ""
        raise CacheFolderError(f"the cache folder {folder} cannot be made: {above} is no folder.\n"
                               f"fix: {remove}{OTHER_CACHE}") from error
    except OSError as error:
        raise unusable(folder, error) from error
    check_private(folder)
    return folder


def check_private(path: Path, facts: os.stat_result | None = None) -> None:
    """Raise CacheFolderError unless `path` (a folder or a library) belongs to this user and nobody else may write to it.

    facts: stat result, if the file is open. A folder of this user that others may enter is closed to them instead."""
    try:
        facts = facts or os.stat(path)
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and facts.st_mode & 0o077:
            os.chmod(path, 0o700)
            facts = os.stat(path)
    except OSError as error:
        raise unusable(path, error) from error
    if facts.st_uid != os.getuid():
        raise CacheFolderError(f"{path} belongs to user {facts.st_uid}, not to you ({os.getuid()}): code in it is not loaded.\n"
                               f"fix: remove it, or {OTHER_CACHE}")
    if facts.st_mode & 0o022:
        raise CacheFolderError(f"others may write to {path} (mode {stat.S_IMODE(facts.st_mode):04o}): code in it is not loaded.\n"
                               f"fix: chmod go-w {path}, or {OTHER_CACHE}")


def unusable(path: Path, error: OSError) -> CacheDiskError:
    if error.errno == errno.ENOSPC:
        return CacheDiskError(f"no space left for {path}.\n  fix: free some, or give a cache folder on another disk")
    return CacheDiskError(f"cannot use {path}: {error.strerror or error}.\n  fix: {OTHER_CACHE} that you may write to")
