"""fields: a table of the column that stores each value of a record; values without a column form the record's rest.

`split` divides a record into columns and a rest, `join` reassembles it. A column cannot hold all JSON values (1 or 1.0, null or
absent, "NaN"), so where a column would not reproduce the value, the rest keeps the original too. `join` uses a kept original only
while the column is unchanged: a changed column wins.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tensor_graphs.frontends.flashinfer.documents import same
from tensor_graphs.records.logs import compress_log, decompress_log
from tensor_graphs.records.rows import STATUSES

NAME_LENGTH = 200  # characters that a name column holds


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()


@dataclass(frozen=True)
class RecordField:
    """One value of a record: its path in the document, its column, and its conversions to and from the column.

    encode takes any JSON value or ABSENT; decode takes any value that the column may hold.
    """

    path: tuple[str, ...]
    column: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]

    @property
    def key(self) -> str:
        return "/".join(self.path)


# ---- how a value is put into a column --------------------------------------------------------------------------------


def text(value: str) -> str:
    """Return the string without NUL and halves of surrogate pairs, so that every database can store it."""
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _text(value: Any) -> str:
    return text(value) if isinstance(value, str) else ""


def name(value: Any) -> str:
    return _text(value)[:NAME_LENGTH]


def _name_or_null(length: int) -> Callable[[Any], str | None]:
    return lambda value: text(value)[:length] if isinstance(value, str) else None


def finite(value: Any) -> Any:
    """Return a JSON value that every JSON column and key can hold: NaN and infinities as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {text(key): finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return text(value) if isinstance(value, str) else value


def _only(kind: type, other: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return a function that returns values of this type in their finite form, and for any other value the result of `other`."""
    return lambda value: finite(value) if isinstance(value, kind) else other()


_dict, _dict_or_null = _only(dict, dict), _only(dict, lambda: None)
_list, _list_or_null = _only(list, list), _only(list, lambda: None)
_text_or_null = _only(str, lambda: None)
_NOT_FINITE = {"Infinity": math.inf, "inf": math.inf, "NaN": math.nan, "nan": math.nan}


def _number(value: Any) -> float | None:
    """Return a number, also from a string that denotes NaN or infinity; None for all else."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _error(value: Any) -> float | None:
    """Return an error: NaN as infinity (SQLite would make it NULL, "not judged"), and None for a negative value."""
    number = _number(value)
    return number if number is None or number >= 0 else math.inf if math.isnan(number) else None


def _time(value: Any) -> float | None:
    """Return a time in ms or a ratio, if finite and not negative, else None."""
    number = _number(value)
    return number if number is not None and math.isfinite(number) and number >= 0 else None


def _number_back(value: Any) -> Any:
    return "Infinity" if value == math.inf else "-Infinity" if value == -math.inf else value


def timestamp(value: Any) -> datetime:
    """Return a moment in UTC; without a zone it is read as UTC, and a value that is no moment is read as 1970."""
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return datetime(1970, 1, 1, tzinfo=UTC)


def _timestamp_back(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat()


def _log(value: Any) -> bytes | None:
    return compress_log(value) if isinstance(value, str) else None


def _sources(value: Any) -> list[dict[str, str]]:
    """Return the source files if their paths differ, else []."""
    files = value if isinstance(value, list) else []
    contents = {text(file["path"]): text(file["content"]) for file in files
                if isinstance(file, dict) and isinstance(file.get("path"), str) and isinstance(file.get("content"), str)}
    return [{"path": path, "content": content} for path, content in contents.items()] if len(contents) == len(files) else []


def _inputs(value: Any) -> list[dict[str, Any]]:
    """Return {"x": {"type": "random"}} as a workload's list of inputs."""
    if not isinstance(value, dict):
        return []
    return [{**(finite(item) if isinstance(item, dict) else {"value": finite(item)}), "name": text(key)}
            for key, item in value.items()]


def _inputs_back(value: list[dict[str, Any]]) -> dict[str, Any]:
    return {str(item.get("name")): {key: part for key, part in item.items() if key != "name"} for item in value}


def _libraries(value: Any) -> dict[str, str]:
    return {text(key): text(str(item)) for key, item in sorted(value.items())} if isinstance(value, dict) else {}


def _status(value: Any) -> str:
    return value if value in STATUSES else "RUNTIME_ERROR"


def _same(value: Any) -> Any:
    return value


# ---- the tables ------------------------------------------------------------------------------------------------------

DEFINITION = (
    RecordField(("name",), "name", name, _same), RecordField(("op_type",), "op_type", _name_or_null(100), _same),
    RecordField(("description",), "description", _text, _same), RecordField(("tags",), "tags", _list, _same),
    RecordField(("axes",), "axes", _dict, _same), RecordField(("inputs",), "inputs", _dict_or_null, _same),
    RecordField(("outputs",), "outputs", _dict_or_null, _same),
    RecordField(("constraints",), "constraints", _list_or_null, _same),
    RecordField(("reference",), "reference", _text_or_null, _same),
)
SOLUTION = (
    RecordField(("name",), "name", name, _same), RecordField(("definition",), "definition", name, _same),
    RecordField(("author",), "author", _name_or_null(NAME_LENGTH), _same),
    RecordField(("description",), "description", _text_or_null, _same),
    RecordField(("spec",), "requirements", _dict, _same), RecordField(("sources",), "sources", _sources, _same),
)
WORKLOAD = (
    RecordField(("definition",), "definition", name, _same),
    RecordField(("workload", "axes"), "axes_json", _dict, _same),
    RecordField(("workload", "inputs"), "input_descriptors", _inputs, _inputs_back),
)
TRACE = (
    *WORKLOAD,
    RecordField(("solution",), "implementation_name", name, _same),
    RecordField(("evaluation", "status"), "status", _status, _same),
    RecordField(("evaluation", "environment", "hardware"), "hardware_name", name, _same),
    RecordField(("evaluation", "environment", "libs"), "libs", _libraries, _same),
    RecordField(("evaluation", "timestamp"), "timestamp", timestamp, _timestamp_back),
    RecordField(("evaluation", "log"), "full_log", _log, decompress_log),
    RecordField(("evaluation", "correctness", "max_relative_error"), "max_relative_error", _error, _number_back),
    RecordField(("evaluation", "correctness", "max_absolute_error"), "max_absolute_error", _error, _number_back),
    RecordField(("evaluation", "performance", "latency_ms"), "median_ms", _time, _number_back),
    RecordField(("evaluation", "performance", "reference_latency_ms"), "baseline_ms", _time, _number_back),
    RecordField(("evaluation", "performance", "speedup_factor"), "speedup_factor", _time, _number_back),
)
FIELDS: Mapping[str, tuple[RecordField, ...]] = {
    "definition": DEFINITION, "solution": SOLUTION, "workload": WORKLOAD, "trace": TRACE, "whole": (),
}  # fmt: skip


# ---- apart and together ----------------------------------------------------------------------------------------------


def look(document: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path of a document, or ABSENT."""
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return ABSENT
        document = document[key]
    return document


def _put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        inner = document.get(key)
        if not isinstance(inner, dict):
            inner = document[key] = {}
        document = inner
    document[path[-1]] = value


def split(document: Any, fields: tuple[RecordField, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (columns, rest). rest: "document", with null for each value that a column holds, and "kept": the originals that
    columns cannot reproduce exactly."""
    columns = {field.column: field.encode(look(document, field.path)) for field in fields}
    rest: dict[str, Any] = {"document": copy.deepcopy(document)}
    numbers = {}
    for field in fields:
        value = look(document, field.path)
        if value is ABSENT:
            continue
        _put(rest["document"], field.path, None)
        if not same(field.decode(columns[field.column]), value):
            numbers[field.key] = value
    if numbers:
        rest["kept"] = numbers
    return columns, rest


def join(columns: Mapping[str, Any], rest: Mapping[str, Any], fields: tuple[RecordField, ...]) -> Any:
    """Return the document that these columns and this rest describe."""
    document, numbers = copy.deepcopy(rest["document"]), rest.get("kept", {})
    for field in fields:
        now = field.decode(columns[field.column])
        if look(rest["document"], field.path) is ABSENT:
            if not same(now, field.decode(field.encode(ABSENT))):
                _put(document, field.path, now)
        elif field.key in numbers and same(now, field.decode(field.encode(numbers[field.key]))):
            _put(document, field.path, numbers[field.key])
        else:
            _put(document, field.path, now)
    return document
