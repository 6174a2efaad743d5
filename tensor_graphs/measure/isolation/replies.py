"""replies: parses a worker's messages for the judge into frozen, typed values within limits. Anything else is a ProtocolError.

A candidate shares a process with its worker and can send anything, so `read` and `parse` check every reply: its size and nesting,
the type, number and range of its values, and unknown names. No other code needs to check them. The checker is written by hand:
twelve shapes do not justify a dependency on a library."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, TypeVar, cast, get_args

T = TypeVar("T")

Name = Literal["nothing", "cold", "plain", "hot", "same", "new"]
"""names of blocks of timed runs"""

JUDGE_ERROR: Final = "JUDGE_ERROR"
"""status: the judge's own code has failed, so there is no verdict"""

Ended = Literal["RAN", "RUNTIME_ERROR", "COMPILE_ERROR", "INPUT", "OTHER", "INCORRECT_NUMERICAL", "TIMEOUT", "READY", "JUDGE_ERROR"]
"""how a job ended. A worker must not send TIMEOUT"""

MOST_CONTAINERS = 1 << 17
MOST_VALUES = 1 << 19
"""most lists and objects, and most values, of one reply: the longest, for a block of 20,000 runs, has 100,000 numbers"""

MOST_RUNS = 20_000
"""most runs of a block"""

MOST_SECONDS = 1e6
MOST_TEXT = 8_000
MOST_NAMES = 256
"""most outputs, or operands, of one op"""

MOST_RANK = 64
MOST_SIZE = 1 << 48
SALTS = 1 << 56
MOST_STEPS = 1 << 14
DIGEST = re.compile(r"[0-9a-f]{32}")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""characters that are removed from logs: they move a terminal's cursor, change the direction of writing, or are not text"""


class ProtocolError(Exception):
    """Reply that no worker sends, or that contradicts itself."""


@dataclass(frozen=True)
class Loaded:
    """Message that the kernel is imported; everything that follows is done by the kernel."""


@dataclass(frozen=True)
class Next:
    """Message that the kernel is about to run at the point with this number. many: it runs many times in a row."""

    number: int
    many: bool


@dataclass(frozen=True)
class ReportedOutput:
    """Report on one run's outputs. outside: positions where memory outside the outputs was written. rows: outputs of which only the
    rows that differ from an operand are sent -> the number of these rows."""

    shapes: Mapping[str, tuple[int, ...]]
    outside: tuple[str, ...]
    mutated: bool
    rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """Message that the kernel was run at all points; the outputs are in the file."""

    points: tuple[ReportedOutput, ...]


@dataclass(frozen=True)
class Begin:
    """Message that a block of timed runs begins."""


@dataclass(frozen=True)
class End:
    """Message that a block of timed runs has ended. Lists have a number for each run; `timed_batch.Block` explains the numbers."""

    name: Name
    first: int
    counted: float
    walk: float
    whole: tuple[float, ...]
    calls: tuple[float, ...]
    busy: tuple[float, ...]
    switches: tuple[float, ...]
    waits: tuple[float, ...]
    reference: tuple[float, ...]


@dataclass(frozen=True)
class Returned:
    """Message after a block: digest of the outputs of its runs, by run."""

    digests: Mapping[int, str]


@dataclass(frozen=True)
class Kept:
    """Message with the runs whose outputs were stored -> number drawn for each run."""

    salts: Mapping[int, int]


@dataclass(frozen=True)
class ReportedPath:
    """Report on one path through an entire graph; `deployed.Deployed` explains the numbers."""

    whole: tuple[float, ...]
    sums: tuple[float, ...]
    steps: Mapping[tuple[str, str], tuple[float, ...]]
    parts: Mapping[tuple[str, str], tuple[float, ...]]
    quiet: bool
    error: float | None = None
    around: float | None = None


@dataclass(frozen=True)
class Reply:
    """Last message of a job. spoiled: nothing else should run in that worker. points: the outputs that the judge requested. names:
    operands from which a kernel prepares something. paths: reports on entire paths; path: number of the one that failed."""

    status: Ended
    log: str = ""
    spoiled: bool = False
    points: tuple[ReportedOutput, ...] = ()
    names: tuple[str, ...] = ()
    path: int = -1
    paths: tuple[ReportedPath, ...] = ()


Mark = Loaded | Next | Shown | Begin | End | Returned | Kept
"""messages in the middle of a job"""


def clean(text: str, most: int = MOST_TEXT) -> str:
    """Return the end of a candidate's text, without control characters, for a log."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text[-most:].replace("\r\n", "\n"))


def read(data: bytes) -> Any:
    """Return the values in a frame: JSON without NaN, infinity, repeated keys, or too many values. Raises ProtocolError."""
    if data.count(b"[") + data.count(b"{") > MOST_CONTAINERS or data.count(b",") > MOST_VALUES:
        raise ProtocolError("a reply has more values than any has")
    try:
        return json.loads(data, object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:                       # ValueErrors: what is no UTF-8, an integer of 5000 digits
        raise ProtocolError(f"a reply is no JSON: {clean(str(e), 200)}") from e


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key comes twice")
    return values


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def parse(content: object) -> Mark | Reply:
    """Return the message that these values form. Raises ProtocolError."""
    if not isinstance(content, dict):
        _wrong("a reply", content)
    if "mark" not in content:
        return _reply(content)
    mark = content["mark"]
    parse_mark = MARKS.get(mark) if isinstance(mark, str) else None
    if parse_mark is None:
        _wrong("a word", mark)
    return parse_mark({name: value for name, value in content.items() if name != "mark"})


def _at(fields: dict[str, Any]) -> Next:
    number, many = _fields("the word of a point", fields, "number", "many")
    return Next(_whole("the number of a point", number, MOST_CONTAINERS), _flag("whether a point is run many times", many))


def _shown(fields: dict[str, Any]) -> Shown:
    (points,) = _fields("the word of outputs", fields, "points")
    return Shown(_list("outputs", points, _output))


def _output(value: object) -> ReportedOutput:
    fields = {"rows": {}, **value} if isinstance(value, dict) else value
    shapes, outside, mutated, rows = _fields("an output", fields, "shapes", "outside", "mutated", "rows")
    if not isinstance(shapes, dict) or len(shapes) > MOST_NAMES:
        _wrong("an output's shapes", shapes)
    if not isinstance(rows, dict) or not rows.keys() <= shapes.keys():
        _wrong("an output's rows", rows)
    return ReportedOutput(
        {clean(name, 200): _list("a shape", shape, _size, MOST_RANK) for name, shape in shapes.items()},
        _list("what was written outside", outside, lambda place: _text("a place", place, 300), 2 * MOST_NAMES),
        _flag("whether an operand was changed", mutated),
        {clean(name, 200): _size(count) for name, count in rows.items()})


def _end(fields: dict[str, Any]) -> End:
    what = "a block of runs"
    name, first, counted, walk, *lists = _fields(what, fields, "name", "first", "counted", "walk", "whole", "calls", "busy",
                                                 "switches", "waits", "reference")
    if not isinstance(name, str) or name not in get_args(Name):
        _wrong(f"{what}, its name", name)
    whole, calls, busy, switches, waits, reference = (_list(f"{what}, its times", times, _seconds, MOST_RUNS) for times in lists)
    if len({len(times) for times in (whole, calls, busy, switches, waits, reference)}) != 1:
        raise ProtocolError(f"a block {name!r} was told of with lists that are not equally long")
    if not all(whole) or not all(reference):
        raise ProtocolError(f"a block {name!r} has runs that took no time at all")
    return End(cast(Name, name), _whole(f"{what}, its first", first, 1 << 32), _seconds(counted), _seconds(walk), whole, calls,
               busy, switches, waits, reference)


def _returned(fields: dict[str, Any]) -> Returned:
    (digests,) = _fields("what a block has returned", fields, "digests")
    by_run = dict(_list("digests", digests, _digest))
    if len(by_run) != len(digests):
        raise ProtocolError("of a run it was said twice what it has returned")
    return Returned(by_run)


def _digest(value: object) -> tuple[int, str]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str) or not DIGEST.fullmatch(value[1]):
        _wrong("a digest", value)
    return _whole("a run", value[0], 1 << 32), value[1]


def _kept(fields: dict[str, Any]) -> Kept:
    runs, salts = _fields("the runs that were kept", fields, "runs", "salts")
    numbers = _list("runs", runs, lambda number: _whole("a run", number, 1 << 32))
    drawn = _list("salts", salts, lambda number: _whole("a salt", number, SALTS))
    if len(numbers) != len(drawn) or len(set(numbers)) != len(numbers):
        raise ProtocolError("runs that were kept are told of twice, or without what was drawn for them")
    return Kept(dict(zip(numbers, drawn, strict=True)))


MARKS: dict[str, Callable[[dict[str, Any]], Mark]] = {
    "loaded": lambda fields: Loaded(*_fields("the word that a kernel is loaded", fields)), "at": _at, "shown": _shown,
    "begin": lambda fields: Begin(*_fields("the word that a block begins", fields)), "end": _end, "returned": _returned,
    "kept": _kept}


def _reply(fields: dict[str, Any]) -> Reply:
    what = "the last word of a job"
    complete = {"log": "", "spoiled": False, "points": [], "names": [], "path": -1, "paths": [], **fields}
    status, log, spoiled, points, names, path, paths = _fields(what, complete, "status", "log", "spoiled", "points", "names",
                                                               "path", "paths")
    if not isinstance(status, str) or status not in get_args(Ended) or status == "TIMEOUT":
        _wrong(f"{what}, its status", status)
    if type(path) is not int or not -1 <= path <= MOST_NAMES:
        _wrong("the number of a path", path)
    return Reply(cast(Ended, status), _text("a log", log, MOST_TEXT), _flag("whether a worker is spoiled", spoiled),
                 _list("outputs", points, _output), _list("names", names, lambda text: _text("a name", text, 200), MOST_NAMES),
                 path, _list("paths", paths, _path, MOST_NAMES))


def _path(value: object) -> ReportedPath:
    whole, sums, steps, parts, quiet, error, around = _fields("a path", value, "whole", "sums", "steps", "parts", "quiet", "error",
                                                              "around")
    of_steps, placed = (_list(what, entries, _step, MOST_STEPS) for what, entries in (("steps", steps), ("parts", parts)))
    times = _list("times", whole, _seconds, MOST_RUNS)
    if around is not None and not _seconds(around) <= min(times, default=0.0):
        _wrong("what the host did around a device", around)
    return ReportedPath(times, _list("times", sums, _seconds, MOST_RUNS), dict(of_steps), dict(placed),
                    _flag("whether a path ran undisturbed", quiet), None if error is None else _seconds(error), around)


def _step(value: object) -> tuple[tuple[str, str], tuple[float, ...]]:
    if not isinstance(value, list) or len(value) != 3:
        _wrong("a step", value)
    key, name, times = value
    return (_text("a key", key, 200), _text("a name", name, 200)), _list("times", times, _seconds, MOST_RUNS)


# ---- values ----


def _fields(what: str, value: object, *names: str) -> list[Any]:
    """Return the values of a dict that has exactly these fields, in this order."""
    if not isinstance(value, dict) or value.keys() != set(names):
        _wrong(what, value)
    return [value[name] for name in names]


def _list(what: str, values: object, parse_one: Callable[[Any], T], most: int = MOST_CONTAINERS) -> tuple[T, ...]:
    if not isinstance(values, list) or len(values) > most:
        _wrong(what, values)
    return tuple(parse_one(value) for value in values)


def _seconds(value: object) -> float:
    """Return a number that is finite and not negative; a bool is refused."""
    if type(value) not in (int, float) or not 0 <= cast(float, value) <= MOST_SECONDS:
        _wrong("a number of a block of runs", value)
    return float(cast(float, value))


def _whole(what: str, value: object, below: int) -> int:
    if type(value) is not int or not 0 <= value < below:
        _wrong(what, value)
    return value


def _size(value: object) -> int:
    return _whole("a size", value, MOST_SIZE)


def _text(what: str, value: object, most: int) -> str:
    if not isinstance(value, str):
        _wrong(what, value)
    return clean(value, most)


def _flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        _wrong(what, value)
    return value


def _wrong(what: str, value: object) -> NoReturn:
    raise ProtocolError(f"{what} was told of as {clean(reprlib.repr(value), 200)}")
