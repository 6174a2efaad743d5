"""documents: JSON text as it stands in a file: cut into lines, read strictly, written again the way it was written.

Two documents are the same when they parse to the same values of the same types: 1, 1.0 and true differ, so do null and
an absent key; the order of keys and the spelling of a number or a string do not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from tensor_graphs.records.errors import DatabaseError

BOM = "\ufeff"
DEEPEST = 100  # nested lists and dicts of one record


class MalformedFile(DatabaseError):
    """A file of a data set is not what its name says; nothing of it was stored."""


@dataclass(frozen=True)
class Line:
    """One line of a file, or a whole .json file: its number from 1, its text with the line ending, what it parses to.

    blank: there is no document.
    """

    number: int
    text: str
    document: Any = None
    blank: bool = False


def read_lines(data: bytes, path: str, *, whole: bool) -> list[Line]:
    """The records of a file. whole: the file is one document (.json), else every line is one (.jsonl).

    Raises MalformedFile with the file and the line.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise MalformedFile(
            f"{path}, line {number}: byte {error.start} is no UTF-8\n  fix: save the file as UTF-8; nothing of it was stored"
        ) from error
    if whole:
        return [Line(1, text, _parse(text, path, 1))]
    lines = []
    for number, line in enumerate(_split(text), 1):
        blank = not line.removeprefix(BOM).strip()
        lines.append(Line(number, line, None if blank else _parse(line, path, number), blank))
    return lines


def _split(text: str) -> Iterator[str]:
    """The lines with their endings; only \\n ends one (\\r before it stays, U+2028 is a character like any other)."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _parse(text: str, path: str, number: int) -> Any:
    try:
        document = json.loads(text.removeprefix(BOM))
    except json.JSONDecodeError as error:
        at = number + error.lineno - 1
        raise MalformedFile(
            f"{path}, line {at}, column {error.colno}: {error.msg}\n"
            "  fix: correct or remove that line (a file that ends in the middle was cut off: fetch it again); "
            "nothing of the file was stored"
        ) from error
    except (ValueError, RecursionError) as error:
        raise MalformedFile(
            f"{path}, line {number}: {error}\n  fix: correct that record; nothing of the file was stored"
        ) from error
    if _deeper_than(document, DEEPEST):
        raise MalformedFile(
            f"{path}, line {number}: more than {DEEPEST} lists within lists\n"
            "  fix: correct that record; nothing of the file was stored"
        )
    return document


def parse(text: str) -> Any:
    """The document of a text that was read before."""
    return json.loads(text.removeprefix(BOM))


def _deeper_than(document: Any, depth: int) -> bool:
    level = [document]
    for _ in range(depth):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


canonical = partial(json.dumps, sort_keys=True, separators=(",", ":"))
"""One text per document, whatever the order of its keys; plain ASCII."""


def same(a: Any, b: Any) -> bool:
    """The same values of the same types."""
    if type(a) is not type(b):
        return False
    return bool(a == b) if isinstance(a, str) else bool(canonical(a) == canonical(b))


_STYLES = tuple(
    partial(json.dumps, indent=indent, separators=separators, ensure_ascii=ascii_only)
    for indent, separators, ascii_only in product((None, 2, 4), ((",", ":"), (", ", ": "), (",", ": ")), (False, True))
)


def write(document: Any, *, whole: bool, like: str | None) -> str:
    """A document as text, in the style (indentation, spaces, escapes, line ending) of the text it was read from."""
    if like is None:
        return json.dumps(document, indent=2 if whole else None) + ("" if whole else "\n")
    body = like.removeprefix(BOM)
    core = body.strip(" \t\r\n")
    before, after = body[: len(body) - len(body.lstrip(" \t\r\n"))], body[len(body.rstrip(" \t\r\n")) :]
    old = json.loads(core)
    style = next((each for each in _STYLES if each(old) == core), partial(json.dumps, indent=2 if whole else None))
    bom = BOM if like.startswith(BOM) else ""
    text = style(document)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair is only writable as an escape
        text = partial(style, ensure_ascii=True)(document)
    return f"{bom}{before}{text}{after}"
