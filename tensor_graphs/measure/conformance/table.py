"""table: writes the table of a backend as JSON and Markdown. Errors have one digit, so that two machines write equal tables."""

from __future__ import annotations

import json
from typing import Any

from tensor_graphs.costs.database_keys import VERIFIER
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.meaning.same_math import SAME_MATH
from tensor_graphs.measure.conformance.backend import Conformance, TableCell
from tensor_graphs.measure.conformance.cases import STANDS_FOR

FORMAT = 1
"""version of the JSON document"""

MARKS = {"fail": "**FAIL**", "no kernel": "none", "view": "view", "undefined": "–"}


def rounded(error: float) -> float | str:
    """Return the error rounded to one digit; an infinite error as a string, as JSON has no infinity."""
    return float(f"{error:.0e}") if abs(error) < float("inf") else str(error)


def document(table: Conformance) -> dict[str, Any]:
    """Return the table as {"format", "verifier", "backend", "counts", "cells": {op: {dtype: cell}}}."""
    cells: dict[str, dict[str, Any]] = {}
    for c in table.cells:
        row: dict[str, Any] = {"status": c.status, "reason": c.reason}
        if c.error is not None:
            row["error"] = rounded(c.error)
        if c.instances:
            row["instances"], row["claimed"] = c.instances, c.claimed
        if c.seconds is not None:
            row["microseconds"], row["timed"] = round(c.seconds * 1e6, 1), c.timed
        cells.setdefault(c.op, {})[c.dtype] = row
    return {"format": FORMAT, "verifier": VERIFIER, "backend": table.backend, "counts": table.counts(), "cells": cells}


def json_text(table: Conformance) -> str:
    """Return the document as JSON with one cell per line; this form is kept under version control."""
    whole = document(table)
    rows = []
    for op, row in whole.pop("cells").items():
        texts = [f'   "{t}": {json.dumps(cell, ensure_ascii=False, allow_nan=False)}' for t, cell in row.items()]
        rows.append(f'  "{op}": {{\n' + ",\n".join(texts) + "\n  }")
    head = json.dumps(whole, indent=1, ensure_ascii=False)[:-2]
    return f"{head},\n \"cells\": {{\n" + ",\n".join(rows) + "\n }\n}\n"


def markdown(table: Conformance) -> str:
    """Return the page: counts, a legend of the marks, a table of atomic ops, a table of composites, then notes."""
    notes: dict[str, int] = {}
    counts = table.counts()
    limits = ", ".join(f"{t} {limit:.0e}" for t, limit in SAME_MATH.items())
    lines = [
        f"# What the backend `{table.backend}` computes", "",
        (f"Written by `tg conformance --backend {table.backend}`; do not edit. Every kernel that claims a case is compared with "
         "the float64 oracle: at sizes from 0 up, in place, on strided operands, with NaN and infinities."), "",
        " · ".join(f"{n} {kind}" for kind, n in counts.items()), "",
        "| a cell says | which means |", "|---|---|",
        f"| a number | passes; the largest error seen, to one digit (allowed: {limits}; integers exactly) |",
        "| exact | passes, and no number differs from the oracle's |",
        "| FAIL | a kernel takes it and is wrong: see the note |",
        "| (n) | the kernel takes none of the instances: see note n. Behind a number: it takes only some |",
        "| none | the backend has no kernel for the op: a composite runs through its definition |",
        "| view | a plan reads it through strides: no kernel runs |",
        "| – | the op itself is not defined for this dtype |", "",
    ]
    for title, atomic in (("Atomic ops", True), ("Composites", False)):
        rows: dict[str, dict[str, TableCell]] = {}
        for c in table.cells:
            if (c.op in ATOMIC) is atomic:
                rows.setdefault(c.op, {})[c.dtype] = c
        if not rows:
            continue
        dtypes = [t for t in DTYPES if any(t in row for row in rows.values())]
        lines += [f"## {title}", "", f"| op | {' | '.join(dtypes)} |", "|---" * (len(dtypes) + 1) + "|"]
        lines += [f"| {op} | {' | '.join(_mark(row.get(t), notes) for t in dtypes)} |" for op, row in rows.items()]
        lines.append("")
    if notes:
        lines += ["## Notes", "", *(f"{n}. {text}" for text, n in notes.items()), ""]
    lines += ["## What a column's dtype is", "", "The first operand's, except: "
              + "; ".join(f"{op}: {what}" for op, what in STANDS_FOR.items()) + ".", ""]
    times = [c for c in table.cells if c.seconds is not None]
    if times:
        lines += ["## Times", "", "The median of cold runs on the machine that wrote this page.", "", "| µs | of |", "|---:|---|",
                  *(f"| {c.seconds * 1e6:.1f} | {c.timed} |" for c in times if c.seconds is not None), ""]
    return "\n".join(lines)


def _mark(cell: TableCell | None, notes: dict[str, int]) -> str:
    if cell is None:
        return "not asked"
    if cell.status in ("no kernel", "view", "undefined"):
        return MARKS[cell.status]
    text = MARKS["fail"] if cell.status == "fail" else ""
    if cell.status == "pass":
        text = "exact" if not cell.error else f"{cell.error:.0e}"
        if cell.claimed == cell.instances:
            return text
    reason = cell.reason.replace("|", "\\|")
    return f"{text} ({notes.setdefault(reason, len(notes) + 1)})".strip()
