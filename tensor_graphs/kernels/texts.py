"""texts: what a Python module's text says, for the identity of the kernels that it defines; kept in the user's cache folder.

    said = text_of(data, digest)        # of the module's bytes

Parsing the texts of all backends takes as long as lowering a model. What a text says follows from its bytes, from the code that
parses it (python_text.py) and from Python's own parser, and the name of a file is a digest of these; one that is damaged is left
out, and replaced. Files that were not used for the longest time go.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import sys
from dataclasses import astuple
from pathlib import Path

from tensor_graphs.devices.cache_folder import CacheFolderError, check_private, default_cache, private_folder, prune, whole_file
from tensor_graphs.kernels.python_text import ModuleText, parsed

log = logging.getLogger(__name__)

MOST_BYTES = 8 << 20
"""of all that is kept"""


def text_of(data: bytes, digest: str) -> ModuleText:
    """What a text says. digest: sha256 of its bytes. Raises SyntaxError, ValueError or RecursionError for what is no Python."""
    path = _path(digest)
    found = None if path is None else _read(path)
    if found is None:
        found = parsed(data)
        if path is not None:
            _write(path, found)
    return found


def _path(digest: str) -> Path | None:
    try:
        folder = private_folder(default_cache().parent / "texts")
    except CacheFolderError as e:
        log.debug("what modules say is not kept: %s", e)
        return None
    return folder / f"{hashlib.sha256(f'{digest} {_parser()}'.encode()).hexdigest()}.json"


@functools.cache
def _parser() -> str:
    """Of the code that parses, with Python's own."""
    return hashlib.sha256(Path(__file__).with_name("python_text.py").read_bytes()).hexdigest() + sys.version


def _read(path: Path) -> ModuleText | None:
    try:
        check_private(path)
        digest, _, said = path.read_bytes().partition(b"\n")
        if hashlib.sha256(said).hexdigest().encode() != digest:
            raise ValueError("it is damaged")
        tree, imports, lines, strings, listed, computed = json.loads(said)
        os.utime(path)
    except (OSError, ValueError, CacheFolderError) as e:
        log.debug("%s is left out: %s", path, e)
        return None
    return ModuleText(tree, tuple((level, name, None if names is None else tuple(names)) for level, name, names in imports),
                {int(line): tuple(numbers) for line, numbers in lines.items()}, tuple(strings), tuple(listed), tuple(computed))


def _write(path: Path, text: ModuleText) -> None:
    said = json.dumps(astuple(text)).encode()
    try:
        with whole_file(path) as file:
            file.write(hashlib.sha256(said).hexdigest().encode() + b"\n" + said)
        prune(path.parent, MOST_BYTES, path)
    except OSError as e:
        log.debug("%s is not kept: %s", path, e)
