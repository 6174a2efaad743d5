"""c_code: finds the C compiler, and the inputs of a C source: its text, and the headers that it includes by name.

In: a file, or a text.  Out: paths, and bytes as they are now. Nothing in this module compiles (toolchain.py does)."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensor_graphs.errors import TensorGraphsError


class ToolchainError(TensorGraphsError):
    """The C compiler is missing or failed, or the cache folder cannot be used."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler that works: `command` starts it, `version` is the first line that it prints for --version."""

    command: tuple[str, ...]
    version: str


def find_compiler(cc: str | None = None, environ: Mapping[str, str] | None = None) -> tuple[Compiler | None, str]:
    """Return (compiler, reason): `cc` if given, else $CC, else the first of cc, gcc, clang; (None, reason) if there is none. A
    compiler named by `cc` or $CC is never replaced by another one."""
    named = cc or (os.environ if environ is None else environ).get("CC")
    # A path with a blank in it is one word if such a file exists; "ccache gcc" is two.
    candidates = [(named,) if shutil.which(named) else tuple(named.split())] if named else [("cc",), ("gcc",), ("clang",)]
    refused = []
    for command in candidates:
        path = shutil.which(command[0]) if command else None
        if path is None:
            refused.append(f"{' '.join(command)!r} is not on PATH")
            continue
        version, complaint = _version((path, *command[1:]), os.stat(os.path.realpath(path)).st_mtime_ns)
        if version:
            return Compiler((path, *command[1:]), version), f"{' '.join(command)}: {version}"
        refused.append(f"{path} does not answer --version ({complaint})")
    return None, "no C compiler: " + "; ".join(refused) + ". Fix: install gcc or clang, or name one in CC"


@functools.cache
def _version(command: tuple[str, ...], modified: int) -> tuple[str, str]:
    """Return (first line of --version, error), one of them empty. modified: a cache key, so that an upgrade is noticed."""
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return "", str(error)
    lines = answer.stdout.strip().splitlines()
    if answer.returncode or not lines:
        return "", f"exit status {answer.returncode}"
    return lines[0].strip(), ""


_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Text:
    """C code that has no file of its own. name: of the file as which it is compiled. folder: of the headers that it includes by
    "name". at: (file, line) where the text begins in a file of another kind, for the compiler's messages."""

    name: str
    text: str
    folder: Path
    at: tuple[Path, int] | None = None


Source = Path | Text


def content_of(source: Source) -> bytes:
    """Return the C text of a source, read now."""
    return source.text.encode() if isinstance(source, Text) else source.read_bytes()


def headers_of(source: Source, folders: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return the headers that a source includes by "name", directly or indirectly, in name order. Each is searched next to the file
    that includes it, then in `folders`."""
    headers: set[Path] = set()
    left = [(source.folder, _included(content_of(source))) if isinstance(source, Text) else (source.parent, _included_by(source))]
    while left:
        own, included = left.pop()
        for name in included:
            places = (Path(os.path.normpath(folder / name)) for folder in (own, *folders))
            header = next((place for place in places if place.is_file()), None)
            if header is not None and header not in headers:
                headers.add(header)
                left.append((header.parent, _included_by(header)))
    return tuple(sorted(headers))


def _included(content: bytes) -> tuple[str, ...]:
    """Return the names in the includes of a C text."""
    return tuple(map(os.fsdecode, _INCLUDE.findall(content)))


def _included_by(file: Path) -> tuple[str, ...]:
    """Return the includes of a file; they are cached until the file changes."""
    facts = os.stat(file)
    return _read_once(file, (facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino))


@functools.lru_cache(maxsize=256)
def _read_once(file: Path, stamp: tuple[int, ...]) -> tuple[str, ...]:
    return _included(file.read_bytes())
