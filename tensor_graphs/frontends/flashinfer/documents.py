"""documents: the JSON text of a file: divided into lines, parsed strictly, and written again in its original style.

Two documents are equal when they parse to equal values of equal types: 1, 1.0 and true differ, so do null and an absent key; the
order of keys and the spelling of a number or a string do not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from tensor_graphs.records.errors import DatabaseError

BOM = "\ufeff"
DEEPEST = 100  # nested lists and dicts of one record


MOST_TOLD = 20  # unreadable locations in one error, so that it fits on one screen


class MalformedFile(DatabaseError):
    """A data set with files of a wrong format; nothing of the data set was stored."""


@dataclass(frozen=True)
class Problem:
    """A location that cannot be read: file and line, the fault, and its fix."""

    place: str
    what: str
    fix: str


def malformed(problems: Sequence[Problem], folder: str) -> MalformedFile:
    """Return one error for all locations of a data set that cannot be read."""
    listed = [f"{problem.place}: {problem.what}" for problem in problems[:MOST_TOLD]]
    fixes = "; ".join(dict.fromkeys(problem.fix for problem in problems))
    if len(problems) > 1:
        more = [f"… {len(problems) - MOST_TOLD} more"] if len(problems) > MOST_TOLD else []
        listed = [f"{len(problems)} places of {folder} cannot be read", *(f"  {problem}" for problem in (*listed, *more))]
    return MalformedFile("\n".join([*listed, f"  fix: {fixes}; nothing of the data set was stored"]))


@dataclass(frozen=True)
class Line:
    """One line of a file, or an entire .json file: its number from 1, its text with the line ending, and the parsed document.

    blank: the line holds no document.
    """

    number: int
    text: str
    document: Any = None
    blank: bool = False


def read_lines(data: bytes, path: str, *, whole: bool) -> tuple[list[Line], list[Problem]]:
    """Return (records of a file, faults in it). whole: the file is one document (.json), else every line is one (.jsonl)."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        what = f"byte {error.start} is no UTF-8"
        return [], [Problem(f"{path}, line {number}", what, "save the file as UTF-8")]
    lines: list[Line] = []
    problems: list[Problem] = []
    for number, line in enumerate([text] if whole else _split(text), 1):
        if not whole and not line.removeprefix(BOM).strip():
            lines.append(Line(number, line, blank=True))
            continue
        # Without its ending: a fault at the end of a line would else be reported at the beginning of the next.
        document, problem = _parse(line if whole else line.removesuffix("\n"), path, number)
        if problem is not None:
            problems.append(problem)
        else:
            lines.append(Line(number, line, document))
    return lines, problems


def _split(text: str) -> Iterator[str]:
    """Yield the lines with their endings; only \\n ends a line (\\r before it stays, U+2028 is an ordinary character)."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _parse(text: str, path: str, number: int) -> tuple[Any, Problem | None]:
    """Return (the document, None), or (None, its fault)."""
    try:
        document = parse(text)
    except json.JSONDecodeError as error:
        return None, Problem(f"{path}, line {number + error.lineno - 1}, column {error.colno}", error.msg,
                             "correct or remove that line (a file that ends in the middle was cut off: fetch it again)")
    except (ValueError, RecursionError) as error:
        return None, Problem(f"{path}, line {number}", str(error), "correct that record")
    if _deeper_than(document, DEEPEST):
        return None, Problem(f"{path}, line {number}", f"more than {DEEPEST} lists within lists", "correct that record")
    return document, None


def parse(text: str) -> Any:
    """Return the document parsed from a JSON text."""
    return json.loads(text.removeprefix(BOM))


def _deeper_than(document: Any, depth: int) -> bool:
    level = [document]
    for _ in range(depth):
        level = [inner for container in level if isinstance(container, (dict, list))
                 for inner in (container.values() if isinstance(container, dict) else container)]
        if not level:
            return False
    return True


canonical = partial(json.dumps, sort_keys=True, separators=(",", ":"))
"""Return one text per document, whatever the order of its keys; plain ASCII."""


def same(a: Any, b: Any) -> bool:
    """Return True if two documents have equal values of equal types."""
    if type(a) is not type(b):
        return False
    return bool(a == b) if isinstance(a, str) else bool(canonical(a) == canonical(b))


_STYLES = tuple(
    partial(json.dumps, indent=indent, separators=separators, ensure_ascii=ascii_only)
    for indent, separators, ascii_only in product((None, 2, 4), ((",", ":"), (", ", ": "), (",", ": ")), (False, True))
)


def write(document: Any, *, whole: bool, like: str | None) -> str:
    """Return a document as text. like: the text it was read from, whose indentation, spaces, escapes and line ending are kept."""
    if like is None:
        return json.dumps(document, indent=2 if whole else None) + ("" if whole else "\n")
    body = like.removeprefix(BOM)
    core = body.strip(" \t\r\n")
    before, after = body[: len(body) - len(body.lstrip(" \t\r\n"))], body[len(body.rstrip(" \t\r\n")) :]
    old = json.loads(core)
    style = next((option for option in _STYLES if option(old) == core), partial(json.dumps, indent=2 if whole else None))
    bom = BOM if like.startswith(BOM) else ""
    text = style(document)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair is only writable as an escape
        text = partial(style, ensure_ascii=True)(document)
    return f"{bom}{before}{text}{after}"
