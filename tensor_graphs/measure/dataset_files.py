"""dataset_files: writes the rows of a dataset to a file: JSON lines, CSV or Parquet, by the file's suffix.

    write(Path("rows.parquet"), rows(database))         returns the number of rows

CSV and Parquet have one column per field, with structured fields (axes, operands, where) as JSON strings; time samples are a list
in Parquet. Parquet needs pyarrow (the extra `parquet`)."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tensor_graphs.measure.dataset import DatasetError

Kind = Literal["text", "whole", "number", "numbers", "json"]

COLUMNS: Mapping[str, Kind] = {
    "format": "whole", "trace": "whole", "structural_key": "text", "op": "text", "graph": "text", "axes": "json",
    "operands": "json", "outputs": "json", "bytes": "number", "flops": "number", "kernel": "text", "type": "text",
    "backend": "text", "identity": "text", "kind": "text", "status": "text", "median_ms": "number", "spread": "number",
    "samples_ms": "numbers", "baseline": "text", "baseline_ms": "number", "max_relative_error": "number",
    "p999_relative_error": "number", "norm_error": "number", "max_absolute_error": "number", "seed": "whole", "timer": "text",
    "verifier": "text", "timestamp": "text", "environment": "text", "where": "json"}
"""field of a row -> type of its column (whole: an integer)"""

ROW_GROUP = 5000
"""rows of a Parquet file that are in memory simultaneously"""

Row = Mapping[str, Any]


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _write_jsonl(file: Path, rows: Iterable[Row]) -> int:
    with file.open("w", encoding="utf-8") as out:
        return sum(out.write(_json(row) + "\n") > 0 for row in rows)


def _write_csv(file: Path, rows: Iterable[Row]) -> int:
    with file.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out)
        table.writerow(COLUMNS)
        return sum(table.writerow(_json(row[name]) if kind in ("json", "numbers") else row[name]
                                  for name, kind in COLUMNS.items()) > 0 for row in rows)


def _write_parquet(file: Path, rows: Iterable[Row]) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError as e:
        raise DatasetError(f"{file} is Parquet, and pyarrow is not installed\n"
                           "  fix: pip install 'tensor_graphs[parquet]', or FILE.csv or FILE.jsonl") from e
    types = {"text": pa.string(), "json": pa.string(), "whole": pa.int64(), "number": pa.float64(),
             "numbers": pa.list_(pa.float64())}
    schema, count, left = pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()]), 0, iter(rows)
    with parquet.ParquetWriter(file, schema, compression="zstd") as out:
        while group := list(islice(left, ROW_GROUP)):
            out.write_table(pa.Table.from_pylist(list(_typed(group)), schema=schema))
            count += len(group)
    return count


def _typed(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yield rows in Parquet's types: an infinite error, which JSON rows hold as a string, becomes a float again."""
    for row in rows:
        yield {name: _json(row[name]) if kind == "json" else float(row[name]) if kind == "number" and row[name] is not None
               else row[name] for name, kind in COLUMNS.items()}


WRITERS: Mapping[str, Callable[[Path, Iterable[Row]], int]] = {
    ".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}
"""suffix -> function that writes such a file, and returns the number of rows"""


def require_suffix(file: Path) -> None:
    """Raise DatasetError unless the file's suffix is one of WRITERS."""
    if file.suffix not in WRITERS:
        raise DatasetError(f"{file.name!r} has no suffix of a dataset\n"
                           f"  fix: one of {', '.join(f'FILE{suffix}' for suffix in WRITERS)}")


def write(file: Path, rows: Iterable[Row]) -> int:
    """Write rows to a file in the format of its suffix; return their number. Raises DatasetError, OSError."""
    require_suffix(file)
    return WRITERS[file.suffix](file, rows)
