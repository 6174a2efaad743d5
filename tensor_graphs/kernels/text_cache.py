"""text_cache: parsed texts of Python modules, for the identity of the kernels that they define, in the user's cache folder.

    text = text_of(data, digest)        # of the module's bytes

Parsing the texts of all backends takes as long as lowering a model. A file is named by a digest of the module's bytes, of the code
that parses (python_text.py) and of Python's version; a damaged one is replaced. Files that were not used for the longest time are
removed."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from dataclasses import astuple
from pathlib import Path

from tensor_graphs.devices.sealed_files import read, user_place
from tensor_graphs.kernels.python_text import ModuleText, parsed

MOST_BYTES = 8 << 20
"""of all that is kept"""


def text_of(data: bytes, digest: str) -> ModuleText:
    """Return the parsed text, from the cache if it is there. digest: sha256 of its bytes. Raises SyntaxError, ValueError or
    RecursionError for what is no Python."""
    path = user_place("texts", f"{hashlib.sha256(f'{digest} {_parser()}'.encode()).hexdigest()}.json")
    content = None if path is None else read(path)
    if content is not None:
        return _from_json(content)
    text = parsed(data)
    if path is not None:
        from tensor_graphs.devices.sealing import keep  # a door: most texts are on file

        keep(path, [json.dumps(astuple(text)).encode()], MOST_BYTES)
    return text


@functools.cache
def _parser() -> str:
    """Digest of the code that parses, with Python's version."""
    return hashlib.sha256(Path(__file__).with_name("python_text.py").read_bytes()).hexdigest() + sys.version


def _from_json(content: bytes) -> ModuleText:
    tree, imports, lines, strings, listed, computed = json.loads(content)
    return ModuleText(tree, tuple((level, name, None if names is None else tuple(names)) for level, name, names in imports),
                {int(line): tuple(numbers) for line, numbers in lines.items()}, tuple(strings), tuple(listed), tuple(computed))
