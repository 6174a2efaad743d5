"""dataset: exports measurements as flat rows for studies, one JSON line each; and measures such rows again on this machine.

A row holds the inputs of a model of run times: the part as text, the kernel's identity, features of its sizes (bytes, flops,
shapes, dtypes), the measurement, and its environment. These rows are read back only by `replay`; to move a database, use `tg db
export`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.costs.roofline import work
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.kernels.one_op_signature import signature_of_graph
from tensor_graphs.kernels.registry import by_op, kernel_named, matching
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.node import TensorType
from tensor_graphs.language.text import parse_graph
from tensor_graphs.measure.isolation.replies import JUDGE_ERROR
from tensor_graphs.measure.isolation.worker_process import JudgeError
from tensor_graphs.measure.judge import Judge, Verdict
from tensor_graphs.measure.points.input_descriptors import Given, InputError
from tensor_graphs.paths.plan import midpoint
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tensor_graphs.records.logs import reason_of
from tensor_graphs.records.rows import at_sizes

FORMAT = 1
"""version of the rows; adding a field does not change it"""

NEEDED = ("graph", "kernel", "identity", "axes", "status", "median_ms")
"""fields of a row that a replay reads"""


class DatasetError(TensorGraphsError):
    """File that is no dataset, or an incomplete row of a dataset."""


class NotAgain(Exception):
    """Measurement that cannot be repeated on this machine; the message gives the reason."""


def rows(database: Database, step: Callable[[int, int], None] = lambda done, total: None) -> Iterator[dict[str, Any]]:
    """Yield every trace of the database as a row, the oldest first. step: called with the number of rows done and their total."""
    places = dict(queries.environments(database))
    graphs: dict[str, tuple[str, Signature | None]] = {}
    total = queries.trace_count(database)
    for done, (t, samples) in enumerate(queries.all_traces(database), 1):
        if t.graph_key not in graphs:
            graphs[t.graph_key] = _read(database, t.graph_key)
        text, signature = graphs[t.graph_key]
        place = places.get(t.environment_key)
        yield {"format": FORMAT, "trace": t.trace_id, "structural_key": t.graph_key, "op": t.graph_name, "graph": text,
               "axes": dict(t.axes), **features(signature, t.axes), "kernel": t.implementation_name, "type": t.implementation_type,
               "backend": t.backend, "identity": t.source_hash, "kind": t.kind, "status": t.status, "median_ms": t.median_ms,
               "spread": t.spread, "samples_ms": list(samples), "baseline": t.baseline, "baseline_ms": t.baseline_ms,
               "max_relative_error": _finite(t.max_relative_error), "p999_relative_error": _finite(t.p999_relative_error),
               "norm_error": _finite(t.norm_error), "max_absolute_error": _finite(t.max_absolute_error), "seed": t.seed,
               "timer": t.timer, "verifier": t.verifier, "timestamp": t.timestamp.isoformat(), "environment": t.environment_key,
               "where": None if place is None else asdict(place)}
        step(done, total)


def _read(database: Database, key: str) -> tuple[str, Signature | None]:
    """Return the text of a graph, and its signature if it is a single op that this version can read."""
    text, _ = queries.graph_text(database, key)
    try:
        return text, signature_of_graph(parse_graph(text))
    except (ValueError, TensorGraphsError):                         # an entire graph, or an op unknown to this version
        return text, None


def features(signature: Signature | None, axes: Mapping[str, int]) -> dict[str, Any]:
    """Return shapes and dtypes of a part's operands and outputs, and bytes and flops of a call; None for what is unknown."""
    if signature is None or not (axes or not signature.dim_names):
        return {"operands": None, "outputs": None, "bytes": None, "flops": None}
    at = signature.binding(axes) if signature.dim_names else {}
    nbytes, flops = work(signature, tuple(sorted(at.items())))

    def said(types: tuple[TensorType, ...]) -> list[dict[str, Any]]:
        return [{"dtype": t.dtype.name, "shape": [int(s) for s in t.at(at).shape]} for t in types]

    return {"operands": said(signature.spec.inputs), "outputs": said(signature.spec.outputs), "bytes": nbytes, "flops": flops}


def _finite(value: float | None) -> float | str | None:
    """Return the number unchanged if finite, else as a string: JSON has no infinity and no NaN."""
    return value if value is None or math.isfinite(value) else str(value)


def asked_again(judge: Judge, name: str, identity: str, text: str, axes: Mapping[str, int], given: Given = (), *,
                command: str) -> Verdict:
    """Repeat the measurement of a row: the kernel of this name and identity on this part, timed at these sizes, or without axes
    compared at all points. Store and return the verdict. command: what a user types to repeat it, for messages. Raises NotAgain."""
    try:
        kernel = kernel_named(name)
    except KernelError as error:                                    # user-registered
        raise NotAgain(f"{_in_one_line(error)}: {command} --import FILE") from error
    if kernel.identity != identity:
        raise NotAgain("its source is another one today, which has no such row")
    try:
        signature = signature_of_graph(parse_graph(text))
        if not matching(signature.spec, by_op([kernel])):
            raise NotAgain(f"it does not accept {signature.title()} any more")
        if axes:
            at = signature.binding({n: v for n, v in axes.items() if signature.dim_names})
            verdict = judge.examine(kernel, signature, at, time_at=at, verify=False, given=given)
            judge.record(kernel, signature, verdict, at, given)
        else:
            at = {n: midpoint(s) for n, s in signature.graph.dims.items() if n in signature.dim_names}
            verdict = judge.examine(kernel, signature, at)
            judge.record(kernel, signature, verdict, None)
        if verdict.status == JUDGE_ERROR:
            raise NotAgain(reason_of(verdict.log))
        return verdict
    except (TensorGraphsError, JudgeError, InputError, ValueError) as error:
        raise NotAgain(_in_one_line(error)) from error


def _in_one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines())


@dataclass(frozen=True)
class Replayed:
    """Row of a dataset and its measurement today. ratio: today's median over the row's. here: whether the row is of this
    environment, so that the times can be compared. why: reason why it was not measured again."""

    line: int
    kernel: str
    op: str
    axes: Mapping[str, int]
    before: str
    status: str
    before_ms: float | None
    median_ms: float | None = None
    error: float | None = None
    here: bool = False
    why: str = ""

    @property
    def ratio(self) -> float | None:
        return self.median_ms / self.before_ms if self.median_ms and self.before_ms else None

    def __str__(self) -> str:
        took = ""
        if self.ratio is not None and self.before_ms and self.median_ms:
            took = f"{self.before_ms * 1e3:.1f} µs → {self.median_ms * 1e3:.1f} µs, × {self.ratio:.3g}"
        status = self.status if self.status == self.before else f"{self.before} → {self.status}"
        words = (f"{self.line:6d}  {self.kernel:20s} {self.op}{at_sizes(self.axes)}: {status}", took,
                "" if self.here or self.why else "measured elsewhere", self.why)
        return "  ".join(filter(None, words))


def replay(judge: Judge, lines: Iterator[str], limit: int, threads: int | None = None) -> Iterator[Replayed]:
    """Measure the first `limit` rows of timed kernels again; store and yield the results. Raises DatasetError for a bad line."""
    asked = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _row(number, line)
        if row.get("kind") not in ("cold", "hot") or row.get("type") != "KERNEL" or not row["axes"]:
            continue
        if (asked := asked + 1) > limit:
            return
        axes = {str(n): int(s) for n, s in row["axes"].items()}
        name = str(row["kernel"])
        before = Replayed(number, name, str(row.get("op", "")), axes, str(row["status"]), "NOT MEASURED", row["median_ms"])
        try:
            verdict = asked_again(judge, name, str(row["identity"]), str(row["graph"]), axes, command="tg dataset replay DATASET")
        except NotAgain as why:
            yield replace(before, why=str(why))
            continue
        here = row.get("environment") == environment_of(kernel_named(name).backend, threads).key()
        took = median(verdict.samples) * 1e3 if verdict.samples else None
        yield replace(before, status=verdict.status, median_ms=took, error=verdict.error, here=here)


def _row(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or any(name not in row for name in NEEDED) or not isinstance(row["axes"], dict):
        raise DatasetError(f"line {number} is no row of a dataset: it needs {', '.join(NEEDED)}\n"
                           "  fix: tg dataset dump FILE.jsonl writes them")
    if row.get("format", FORMAT) != FORMAT:
        raise DatasetError(f"line {number} is of format {row['format']}, and {FORMAT} is read here\n  fix: dump it again")
    return row
