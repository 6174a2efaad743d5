"""python_text_cache: cache of parsed Python modules (ModuleText) in the user's cache folder, for the identities of kernels.

    text = text_of(data, digest)        # data: bytes of the module's file

Parsing the modules of all backends takes as long as lowering a model. A cache file is named by a digest of the module's bytes, of
the parser (python_text.py) and of Python's version. A damaged file is replaced; the least recently used files are removed."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tensor_graphs.devices.filed_json import filed
from tensor_graphs.kernels.python_text import ModuleText, parsed

MOST_BYTES = 8 << 20
"""size limit of the cache, in bytes"""


def text_of(data: bytes, digest: str) -> ModuleText:
    """Return a module's parsed text, from the cache or parsed now. digest: sha256 of `data`. Raises SyntaxError, ValueError or
    RecursionError where `data` is no Python."""
    return _from_json(filed("texts", f"{digest} {_parser()}", lambda: astuple(parsed(data)), MOST_BYTES))


@functools.cache
def _parser() -> str:
    """Return the digest of the parser's file (python_text.py), followed by Python's version."""
    return hashlib.sha256(Path(__file__).with_name("python_text.py").read_bytes()).hexdigest() + sys.version


def _from_json(value: Sequence[Any]) -> ModuleText:
    tree, imports, lines, strings, listed, computed = value
    return ModuleText(tree, tuple((level, name, None if names is None else tuple(names)) for level, name, names in imports),
                {int(line): tuple(numbers) for line, numbers in lines.items()}, tuple(strings), tuple(listed), tuple(computed))
