"""consistency_check: finds rows that contradict themselves. Imports and `tg db check` apply the same rules.

In: the rows of a database or of an export, tables in the order of `schema`, as dicts.  Out: the reason why a row is impossible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records.database import text_hash
from tensor_graphs.records.errors import InvalidRecord
from tensor_graphs.records.rows import ImplementationRecord, TraceRecord, WorkloadRecord

Row = Mapping[str, Any]

Reads = Callable[[str, str, str], str | None]
"""Function of (text, JSON, structural key) of a graph: why the three do not agree, or None. This room cannot read graphs itself."""



def any_graph(text: str, json: str, key: str) -> str | None:
    """Return None for every graph, without reading it."""
    return None


_A_KERNEL = ImplementationRecord("KERNEL", "row", "", "-")
_SAME = ("kind", "status", "samples_ms", "median_ms", "spread", "max_relative_error", "p999_relative_error", "norm_error",
         "max_absolute_error", "tolerance", "baseline_ms", "speedup_factor")  # fmt: skip


@dataclass
class Soundness:
    """Checks of rows, which must come parents first. latest: the latest valid date of a measurement."""

    latest: datetime
    reads: Reads = any_graph
    _keys: dict[int, str] = field(default_factory=dict)                       # graph: its structural key
    _graphs: dict[tuple[str, int], int] = field(default_factory=dict)         # (table, row): the graph that it is about

    def why_not(self, table: str, row: Row) -> str | None:
        """Return the contradiction in a row as text; None where there is none."""
        if table == "canonical_graphs":
            self._keys[row["id"]] = row["structural_key"]
        elif row.get("canonical_graph_id") is not None:
            self._graphs[table, row["id"]] = row["canonical_graph_id"]
        if nan := next((name for name, value in row.items() if isinstance(value, float) and math.isnan(value)), None):
            return f"its {nan} is no number"
        rule = _RULES.get(table)
        try:
            return None if rule is None else rule(self, row)
        except (InvalidRecord, AttributeError, KeyError, TypeError, ValueError) as error:      # JSON may hold anything
            return str(error).partition("\n")[0]

    def _graph(self, row: Row) -> str | None:
        return self.reads(row["text"], row["json"], row["structural_key"]) if row["text"] else None

    def _environment(self, row: Row) -> str | None:
        fields = (row[name] for name in ("hardware_name", "memory_bytes", "platform", "backend", "libs", "hardware"))
        return None if Environment(*fields).key() == row["key"] else _NOT_OF_FIELDS

    def _workload(self, row: Row) -> str | None:
        sizes = row["axes_json"]
        if wrong := next((name for name, size in sizes.items() if isinstance(size, (int, float)) and not size >= 0), None):
            return f"its size {wrong} is {sizes[wrong]!r}"
        record = WorkloadRecord(self._keys.get(row["canonical_graph_id"], ""), sizes, tuple(row["input_descriptors"]))
        return None if (record.key, record.axes_hash) == (row["key"], row["axes_hash"]) else _NOT_OF_FIELDS

    def _implementation(self, row: Row) -> str | None:
        graph, target = (None if row[name] is None else self._keys.get(row[name], "")
                         for name in ("canonical_graph_id", "recipe_graph_id"))
        record = ImplementationRecord(row["type"], row["name"], row["backend"], row["source_hash"], graph, target,
                                      row["numeric_class"])
        return None if record.signature == row["signature"] else "its signature is not of its fields"

    def _source(self, row: Row) -> str | None:
        return None if text_hash(row["content"]) == row["content_sha256"] else "its text is not the text that was stored"

    def _trace(self, row: Row) -> str | None:
        samples = row["samples_ms"]
        if row["sample_count"] != len(samples):
            return f"{row['sample_count']} samples were announced, {len(samples)} are there"
        TraceRecord(_A_KERNEL, WorkloadRecord(""), _NOWHERE, **{name: row[name] for name in _SAME})
        mine, asked = (self._graphs.get((table, row[name])) for table, name in
                       (("implementations", "implementation_id"), ("workloads", "workload_id")))
        if mine is not None and asked is not None and mine != asked:
            return "its workload is of another graph than its implementation"
        return self._dated(row)

    def _constant(self, row: Row) -> str | None:
        return self._dated(row) if 0 <= row["value"] < math.inf else f"its value is {row['value']}"

    def _dated(self, row: Row) -> str | None:
        return None if row["timestamp"] <= self.latest else dated_ahead(row["timestamp"])


def dated_ahead(timestamp: datetime) -> str:
    return f"it is dated {timestamp.isoformat()}, in the future, and the newest row is what counts"


_NOWHERE = Environment("", 0, "", "")
_NOT_OF_FIELDS = "its key is not of its fields"
_RULES: Mapping[str, Callable[[Soundness, Row], str | None]] = {
    "canonical_graphs": Soundness._graph, "environments": Soundness._environment, "workloads": Soundness._workload,
    "implementations": Soundness._implementation, "implementation_sources": Soundness._source,
    "benchmark_traces": Soundness._trace, "device_constants": Soundness._constant,
}  # fmt: skip
