"""replies: what a worker says, as the judge takes it: frozen, typed, and within limits. Whatever else is said is a ProtocolError.

A candidate shares a process with its worker and can send what it likes, so `read` and `parse` are the one place at which a reply is
doubted: its size and nesting, the type of every value, how many there are, their range, and names that nobody asked for. All else
can rely on what it gets. The checker is written by hand: twelve shapes are no reason to depend on a library.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, TypeVar, cast, get_args

T = TypeVar("T")

Name = Literal["nothing", "cold", "plain", "hot", "same", "new"]
"""of a block of timed runs"""

JUDGE_ERROR: Final = "JUDGE_ERROR"
"""the judge's own code has failed: this is no verdict"""

Ended = Literal["RAN", "RUNTIME_ERROR", "COMPILE_ERROR", "INPUT", "OTHER", "INCORRECT_NUMERICAL", "TIMEOUT", "READY", "JUDGE_ERROR"]
"""how a job ended. TIMEOUT is never a worker's word"""

MOST_CONTAINERS = 1 << 17
MOST_VALUES = 1 << 19
"""of one reply: the longest, of a block of 20,000 runs, has 100,000 numbers"""

MOST_RUNS = 20_000
"""of a block"""

MOST_SECONDS = 1e6
MOST_TEXT = 8_000
MOST_NAMES = 256
"""outputs, or operands, of one op"""

MOST_RANK = 64
MOST_SIZE = 1 << 48
SALTS = 1 << 56
MOST_STEPS = 1 << 14
DIGEST = re.compile(r"[0-9a-f]{32}")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""characters that no log keeps: they move a terminal's cursor, turn the direction of writing, or are no text"""


class ProtocolError(Exception):
    """The worker's words do not go together: it did not say what a worker says, or somebody else spoke for it."""


@dataclass(frozen=True)
class Loaded:
    """The kernel is imported; what comes now is its work."""


@dataclass(frozen=True)
class Next:
    """The kernel is run at the point of this number next. many: many times in a row."""

    number: int
    many: bool


@dataclass(frozen=True)
class ReportedOutput:
    """What is said of one run's outputs. outside: where memory was touched that is not the kernel's. rows: of an output of which
    only the rows are told that differ from an operand's, how many these are."""

    shapes: Mapping[str, tuple[int, ...]]
    outside: tuple[str, ...]
    mutated: bool
    rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """The kernel was run at all points; the outputs are in the file."""

    points: tuple[ReportedOutput, ...]


@dataclass(frozen=True)
class Begin:
    """A block of timed runs begins."""


@dataclass(frozen=True)
class End:
    """A block of timed runs has ended; `blocks.Block` says what its numbers are. Lists are equally long, a number for each run."""

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
    """Digests of what the runs of a block have returned, by run."""

    digests: Mapping[int, str]


@dataclass(frozen=True)
class Kept:
    """The runs of which outputs were kept, and what was drawn for each."""

    salts: Mapping[int, int]


@dataclass(frozen=True)
class PathTold:
    """What is said of one path in whole; `deployed.Deployed` says what its numbers are."""

    whole: tuple[float, ...]
    sums: tuple[float, ...]
    steps: Mapping[tuple[str, str], tuple[float, ...]]
    parts: Mapping[tuple[str, str], tuple[float, ...]]
    quiet: bool
    error: float | None = None
    around: float | None = None


@dataclass(frozen=True)
class Reply:
    """The last word of a job. spoiled: nothing else should run in that worker. points: of the outputs that the judge asked for.
    names: operands from which a kernel prepares something. paths, path: of whole paths, and which of them was wrong."""

    status: Ended
    log: str = ""
    spoiled: bool = False
    points: tuple[ReportedOutput, ...] = ()
    names: tuple[str, ...] = ()
    path: int = -1
    paths: tuple[PathTold, ...] = ()


Mark = Loaded | Next | Shown | Begin | End | Returned | Kept
"""what is said in the middle of a job"""


def clean(text: str, most: int = MOST_TEXT) -> str:
    """A candidate's words as a log keeps them: the end of them, without control characters."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text[-most:].replace("\r\n", "\n"))


def read(data: bytes) -> Any:
    """The values in a frame: JSON without NaN, infinity, keys that come twice, or more of anything than any reply has. Raises
    ProtocolError."""
    if data.count(b"[") + data.count(b"{") > MOST_CONTAINERS or data.count(b",") > MOST_VALUES:
        raise ProtocolError("a reply has more values than any has")
    try:
        return json.loads(data, object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:                       # ValueErrors: what is no UTF-8, an integer of 5000 digits
        raise ProtocolError(f"a reply is no JSON: {clean(str(e), 200)}") from e


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def parse(said: object) -> Mark | Reply:
    """The word that these values say. Raises ProtocolError."""
    if not isinstance(said, dict):
        _wrong("a reply", said)
    if "mark" not in said:
        return _reply(said)
    mark = said["mark"]
    each = MARKS.get(mark) if isinstance(mark, str) else None
    if each is None:
        _wrong("a word", mark)
    return each({name: value for name, value in said.items() if name != "mark"})


def _loaded(said: dict[str, Any]) -> Loaded:
    _fields("the word that a kernel is loaded", said)
    return Loaded()


def _at(said: dict[str, Any]) -> Next:
    number, many = _fields("the word of a point", said, "number", "many")
    return Next(_whole("the number of a point", number, MOST_CONTAINERS), _flag("whether a point is run many times", many))


def _begin(said: dict[str, Any]) -> Begin:
    _fields("the word that a block begins", said)
    return Begin()


def _shown(said: dict[str, Any]) -> Shown:
    (points,) = _fields("the word of outputs", said, "points")
    return Shown(_list("outputs", points, _told))


def _told(said: object) -> ReportedOutput:
    given = {"rows": {}, **said} if isinstance(said, dict) else said
    shapes, outside, mutated, rows = _fields("an output", given, "shapes", "outside", "mutated", "rows")
    if not isinstance(shapes, dict) or len(shapes) > MOST_NAMES:
        _wrong("an output's shapes", shapes)
    if not isinstance(rows, dict) or not rows.keys() <= shapes.keys():
        _wrong("an output's rows", rows)
    return ReportedOutput({clean(name, 200): _list("a shape", shape, _size, MOST_RANK) for name, shape in shapes.items()},
                _list("what was written outside", outside, lambda each: _text("a place", each, 300), 2 * MOST_NAMES),
                _flag("whether an operand was changed", mutated), {clean(name, 200): _size(count) for name, count in rows.items()})


def _end(said: dict[str, Any]) -> End:
    what = "a block of runs"
    name, first, counted, walk, *lists = _fields(what, said, "name", "first", "counted", "walk", "whole", "calls", "busy",
                                                 "switches", "waits", "reference")
    if not isinstance(name, str) or name not in get_args(Name):
        _wrong(f"{what}, its name", name)
    whole, calls, busy, switches, waits, reference = (_list(f"{what}, its times", each, _seconds, MOST_RUNS) for each in lists)
    if len({len(each) for each in (whole, calls, busy, switches, waits, reference)}) != 1:
        raise ProtocolError(f"a block {name!r} was told of with lists that are not equally long")
    if not all(whole) or not all(reference):
        raise ProtocolError(f"a block {name!r} has runs that took no time at all")
    return End(cast(Name, name), _whole(f"{what}, its first", first, 1 << 32), _seconds(counted), _seconds(walk), whole, calls,
               busy, switches, waits, reference)


def _returned(said: dict[str, Any]) -> Returned:
    (digests,) = _fields("what a block has returned", said, "digests")
    found = dict(_list("digests", digests, _digest))
    if len(found) != len(digests):
        raise ProtocolError("of a run it was said twice what it has returned")
    return Returned(found)


def _digest(said: object) -> tuple[int, str]:
    if not isinstance(said, list) or len(said) != 2 or not isinstance(said[1], str) or not DIGEST.fullmatch(said[1]):
        _wrong("a digest", said)
    return _whole("a run", said[0], 1 << 32), said[1]


def _kept(said: dict[str, Any]) -> Kept:
    runs, salts = _fields("the runs that were kept", said, "runs", "salts")
    numbers = _list("runs", runs, lambda each: _whole("a run", each, 1 << 32))
    drawn = _list("salts", salts, lambda each: _whole("a salt", each, SALTS))
    if len(numbers) != len(drawn) or len(set(numbers)) != len(numbers):
        raise ProtocolError("runs that were kept are told of twice, or without what was drawn for them")
    return Kept(dict(zip(numbers, drawn, strict=True)))


MARKS: dict[str, Callable[[dict[str, Any]], Mark]] = {
    "loaded": _loaded, "at": _at, "shown": _shown, "begin": _begin, "end": _end, "returned": _returned, "kept": _kept}


def _reply(said: dict[str, Any]) -> Reply:
    what = "the last word of a job"
    given = {"log": "", "spoiled": False, "points": [], "names": [], "path": -1, "paths": [], **said}
    status, log, spoiled, points, names, path, paths = _fields(what, given, "status", "log", "spoiled", "points", "names", "path",
                                                               "paths")
    if not isinstance(status, str) or status not in get_args(Ended) or status == "TIMEOUT":
        _wrong(f"{what}, its status", status)
    if type(path) is not int or not -1 <= path <= MOST_NAMES:
        _wrong("the number of a path", path)
    return Reply(cast(Ended, status), _text("a log", log, MOST_TEXT), _flag("whether a worker is spoiled", spoiled),
                 _list("outputs", points, _told), _list("names", names, lambda each: _text("a name", each, 200), MOST_NAMES), path,
                 _list("paths", paths, _path, MOST_NAMES))


def _path(said: object) -> PathTold:
    whole, sums, steps, parts, quiet, error, around = _fields("a path", said, "whole", "sums", "steps", "parts", "quiet", "error",
                                                              "around")
    told, placed = (_list(what, each, _step, MOST_STEPS) for what, each in (("steps", steps), ("parts", parts)))
    times = _list("times", whole, _seconds, MOST_RUNS)
    if around is not None and not _seconds(around) <= min(times, default=0.0):
        _wrong("what the host did around a device", around)
    return PathTold(times, _list("times", sums, _seconds, MOST_RUNS), dict(told), dict(placed),
                    _flag("whether a path ran undisturbed", quiet), None if error is None else _seconds(error), around)


def _step(said: object) -> tuple[tuple[str, str], tuple[float, ...]]:
    if not isinstance(said, list) or len(said) != 3:
        _wrong("a step", said)
    key, name, times = said
    return (_text("a key", key, 200), _text("a name", name, 200)), _list("times", times, _seconds, MOST_RUNS)


# ---- values ----


def _fields(what: str, said: object, *names: str) -> list[Any]:
    """Their values, in this order: these and no others."""
    if not isinstance(said, dict) or said.keys() != set(names):
        _wrong(what, said)
    return [said[name] for name in names]


def _list(what: str, said: object, each: Callable[[Any], T], most: int = MOST_CONTAINERS) -> tuple[T, ...]:
    if not isinstance(said, list) or len(said) > most:
        _wrong(what, said)
    return tuple(each(value) for value in said)


def _seconds(said: object) -> float:
    """A finite number that is not negative; true is none."""
    if type(said) not in (int, float) or not 0 <= cast(float, said) <= MOST_SECONDS:
        _wrong("a number of a block of runs", said)
    return float(cast(float, said))


def _whole(what: str, said: object, below: int) -> int:
    if type(said) is not int or not 0 <= said < below:
        _wrong(what, said)
    return said


def _size(said: object) -> int:
    return _whole("a size", said, MOST_SIZE)


def _text(what: str, said: object, most: int) -> str:
    if not isinstance(said, str):
        _wrong(what, said)
    return clean(said, most)


def _flag(what: str, said: object) -> bool:
    if not isinstance(said, bool):
        _wrong(what, said)
    return said


def _wrong(what: str, said: object) -> NoReturn:
    raise ProtocolError(f"{what} was told of as {clean(reprlib.repr(said), 200)}")
