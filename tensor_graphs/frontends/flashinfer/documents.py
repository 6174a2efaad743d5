"""documents: JSON text as it stands in a file: cut into lines, read strictly, written again the way it was written.

Two documents are the same when they parse to the same values of the same types: 1, 1.0 and true differ, so do null and
an absent key; the order of keys and the spelling of a number or a string do not count.
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


MOST_TOLD = 20  # unreadable places; an error stays on one screen


class MalformedFile(DatabaseError):
    """Files of a data set are not what their names say; nothing of the set was stored."""


@dataclass(frozen=True)
class Problem:
    """A place that cannot be read: file and line, what is wrong there, and what to do about it."""

    place: str
    what: str
    fix: str


def malformed(problems: Sequence[Problem], folder: str) -> MalformedFile:
    """All that cannot be read in a data set, in one error."""
    listed = [f"{problem.place}: {problem.what}" for problem in problems[:MOST_TOLD]]
    fixes = "; ".join(dict.fromkeys(problem.fix for problem in problems))
    if len(problems) > 1:
        more = [f"… {len(problems) - MOST_TOLD} more"] if len(problems) > MOST_TOLD else []
        listed = [f"{len(problems)} places of {folder} cannot be read", *(f"  {problem}" for problem in (*listed, *more))]
    return MalformedFile("\n".join([*listed, f"  fix: {fixes}; nothing of the data set was stored"]))


@dataclass(frozen=True)
class Line:
    """One line of a file, or a whole .json file: its number from 1, its text with the line ending, what it parses to.

    blank: there is no document.
    """

    number: int
    text: str
    document: Any = None
    blank: bool = False


def read_lines(data: bytes, path: str, *, whole: bool) -> tuple[list[Line], list[Problem]]:
    """The records of a file, and the places that are none. whole: the file is one document (.json), else every line is one
    (.jsonl)."""
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
        # Without its ending: what is missing at the end of a line would else be missed at the beginning of the next.
        document, problem = _parse(line if whole else line.removesuffix("\n"), path, number)
        if problem is not None:
            problems.append(problem)
        else:
            lines.append(Line(number, line, document))
    return lines, problems


def _split(text: str) -> Iterator[str]:
    """The lines with their endings; only \\n ends one (\\r before it stays, U+2028 is a character like any other)."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _parse(text: str, path: str, number: int) -> tuple[Any, Problem | None]:
    """Return (the document, None), or (None, what is wrong with it)."""
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
    """Return the document of a text."""
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
    style = next((option for option in _STYLES if option(old) == core), partial(json.dumps, indent=2 if whole else None))
    bom = BOM if like.startswith(BOM) else ""
    text = style(document)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair is only writable as an escape
        text = partial(style, ensure_ascii=True)(document)
    return f"{bom}{before}{text}{after}"
