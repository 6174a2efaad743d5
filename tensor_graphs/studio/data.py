"""data: what the page shows, as one JSON document: pictures as blocks, the plan's steps, paths, memory, a run.

Positions are decided here only once for each block (views/layout.py): its layers, their order, and centres. The page moves boxes
apart when one opens, and decides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensor_graphs.choice.measured_front import FrontPoint
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, is_step, walk
from tensor_graphs.meaning.accuracy import RANGES, Accuracy
from tensor_graphs.paths.lower import arena_buffers
from tensor_graphs.paths.path import Path
from tensor_graphs.paths.plan import Plan, Variant
from tensor_graphs.records.database import Database
from tensor_graphs.records.queries import evidence
from tensor_graphs.views.diagram import Diagram, of_definition, of_graph, of_plan
from tensor_graphs.views.explain import explain_data
from tensor_graphs.views.layout import block_of
from tensor_graphs.views.roofline_chart import KernelTable

LOOSER = 10.0
"""Factor of the error with which the page compares a plan."""

MOST_DEFINITIONS = 400
"""Most ops whose definitions a page holds."""


def page_data(graph: Graph, plan: Plan, title: str, sizes: Mapping[str, int], *, paths: Sequence[Path] = (),
              front: Sequence[FrontPoint] = (), statistic: str = "", run: Mapping[str, Any] | None = None,
              roofline: KernelTable | None = None, looser: Plan | None = None,
              database: Database | None = None) -> dict[str, Any]:
    """Return the document of a page. graph: as written. sizes: that select the plan's variant. paths: to show side by side, the
    cheapest first. front: measured forms, with the statistic of their errors. run: a trace of views/timeline.py. looser: what would
    be chosen with LOOSER times the error. database: from which the spreads of measured steps are read."""
    v = _variant(plan, sizes)
    explained = explain_data(plan, v.at)
    mine = next(one for one in explained["variants"] if one["path"] == v.path.id)
    spreads = _spreads(database, [choice["trace"] for choice in mine["choices"]])
    details = {e.signature: {**choice, "spread": spreads.get(choice["trace"]),
                             "text": str(v.program.signatures[e.signature].title())}
               for e, choice in zip(v.evidence, mine["choices"], strict=True) if e.signature in v.program.signatures}
    return {
        "title": title,
        "at": dict(v.at),
        "asked": plan.asked,
        "backends": list(plan.backends),
        "path": v.path.id,
        "us": v.predicted * 1e6,
        "measured_share": v.measured_share,
        "notes": explained["notes"],
        "pictures": {"graph": _picture(of_graph(graph, title)), "kernels": _picture(of_plan(plan, v.at, title))},
        "definitions": _definitions(graph),
        "steps": details,
        "ways": _ways(v.path),
        "paths": _paths(paths),
        "memory": _memory(v, explained["memory"]),
        "front": [{**point.to_json(), "name": point.id or "as written", "ways": _ways(_variant(point.plan, v.at).path)}
                  for point in front],
        "statistic": statistic,
        "roofline": None if roofline is None else roofline.to_json(),
        "looser": None if looser is None else {"asked": looser.asked, "us": _variant(looser, v.at).predicted * 1e6,
                                               "precision": looser.precision, "ways": _ways(_variant(looser, v.at).path)},
        "run": run,
    }


def _spreads(database: Database | None, traces: Iterable[int | None]) -> dict[int | None, float | None]:
    """Return the spread of each of these measurements: half the distance of the quartiles, relative."""
    numbers = {number for number in traces if number is not None}
    rows = evidence(database, *sorted(numbers)) if database is not None and numbers else ()
    return {row.trace_id: row.spread for row in rows}


def ten_times(accuracy: Accuracy) -> Accuracy | None:
    """Return an accuracy that allows LOOSER times the error; None for one without a limit of that kind.

    >>> from tensor_graphs.meaning.accuracy import parse
    >>> print(ten_times(parse("norm:1e-4&cosine:0.999")), ten_times(parse(None)))
    norm 0.001 and cosine 0.99 None
    """
    terms = [replace(term, limit=1 - LOOSER * (1 - term.limit) if RANGES[term.statistic].best else LOOSER * term.limit)
             for term in accuracy.terms]
    return Accuracy(tuple(terms)) if terms else None


def _variant(plan: Plan, at: Mapping[str, int]) -> Variant:
    return plan.variant({**plan.variants[0].at, **at})


def _ways(path: Path) -> dict[str, str]:
    """Return the kernel, or the way, of each part of a path, by the part's text."""
    return {path.titles.get(key, key): name for key, name in path.choices.items()}


def _picture(diagram: Diagram) -> dict[str, Any]:
    block = block_of(diagram.items, {n: b.size for n, b in diagram.boxes.items()}, diagram.arrows)
    return {"boxes": {str(n): {**vars(b), "size": b.size} for n, b in diagram.boxes.items()}, "block": block.to_json(),
            "legend": [list(line) for line in diagram.legend]}


def _definitions(graph: Graph) -> dict[str, Any]:
    """Return signature key -> picture of the definition, for the composites of a graph and those in their definitions."""
    pictures: dict[str, Any] = {}
    waiting = _composites(graph.nodes)
    while waiting and len(pictures) < MOST_DEFINITIONS:
        signature = waiting.pop()
        op = signature.spec.op
        if signature.key in pictures or not isinstance(op, CompositeOp):
            continue
        definition = op.define(signature.spec.inputs, signature.spec.attrs)
        names = [f"operand {i}" for i in range(len(definition.arguments))]
        pictures[signature.key] = _picture(of_definition(definition, names, op.name))
        waiting += _composites(walk(definition.outputs))
    return pictures


def _composites(nodes: Iterable[Node]) -> list[Signature]:
    return [signature_of(node) for node in nodes
            if is_step(node) and isinstance(node.op, CompositeOp) and not node.op.opaque]


def _paths(paths: Sequence[Path]) -> list[dict[str, Any]]:
    return [
        {
            "id": p.id,
            "us": p.seconds * 1e6,
            "measured": p.measured,
            "error": p.error,
            "form": dict(p.form),
            "ways": _ways(p),
        }
        for p in paths
    ]


def _memory(v: Variant, use: Mapping[str, int]) -> dict[str, Any]:
    """Return the arena of one run: [first step, last step, offset, bytes, name] of each buffer in it."""
    offsets, sizes = v.layout.offsets(v.at)
    intervals = v.layout.intervals
    assert len(intervals) == len(arena_buffers(v.program))
    steps = [ins.label for ins in v.program.instructions]
    return {"use": dict(use), "arenas": sizes, "steps": steps,
            "buffers": [[i.first, i.last, at, i.size(v.at), i.label, i.device] for i, at in zip(intervals, offsets, strict=True)]}
