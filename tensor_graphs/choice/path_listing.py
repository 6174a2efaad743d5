"""path_listing: list every path of a graph, and what is on no path, with the reason."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_graphs.argument_checks import whole
from tensor_graphs.choice.accuracy_inputs import Inputs
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable, typical_sizes
from tensor_graphs.choice.forms import forms
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.refusals import with_reasons
from tensor_graphs.choice.request import Precision, Request
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, lacking, left_out
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph, require_graph
from tensor_graphs.paths.path import Cost, NoPathError, Paths
from tensor_graphs.paths.path import Path as GraphPath
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites.why_no_match import why_nowhere

if TYPE_CHECKING:
    from tensor_graphs.paths.path_count import PathCount


@worded
def list_paths(graph: Graph, *, backends: Sequence[str] | None = None, tolerance: float | None = None,
               database: Database | str | Path | None = None, at: Mapping[str, int] | None = None,
               all_kernels_count: bool = True, simplify: bool = True, threads: int | None = None,
               limit: int | None = None, precision: Precision = None, measured: bool = False,
               assuming: str | Sequence[str] = (), weights: Mapping[str, Any] | None = None,
               inputs: Inputs = None) -> PathListing:
    """List the paths of a graph lazily, the cheapest first; those with a swap of a small step that moves less than 1 % of the time
    come last. With several devices, paths on a single device follow the cheapest. Kernels without a verdict are included (error
    None) unless all_kernels_count is False.

    limit: at most this many; there may be millions, and the listing's `total` counts them all. Its repr shows the next few, and how
    to go on. measured: only paths whose steps all have measurements at these sizes. tolerance, precision, simplify, threads,
    assuming, weights, inputs: as in `compile_graph`. `not_offered` names what no path may use. Raises GraphError for what is no
    graph, PlanError for a size in `at` that its dim cannot have, ArgumentError, and NoPathError where there is no path."""
    graph = require_graph(graph, "list_paths")
    limit = None if limit is None else whole("limit", limit, 1)
    request = Request(graph, tolerance, backends, database, at, threads=threads, precision=precision, simplify=simplify,
                      assuming=assuming, weights=weights, inputs=inputs)
    prepared = prepare(graph, simplify, recipes=request.store, backends=request.here)
    graph = prepared.graph
    costs = CostTable.of(request, ESTIMATE_MARGIN)
    binding = typical_sizes(graph, at)
    table = by_op(all_kernels(request.here))
    refused: NoPathError | None = None

    def cost(kernel: Kernel, s: Signature) -> Cost | None:
        result = costs.cost(kernel, s, binding, all_kernels_count)
        return None if result is None or (measured and not result.measured) else result

    for form in forms(graph, request):
        paths = costs.paths(form.graph, table, binding, cost)
        try:
            paths.cheapest()
        except NoPathError as e:                                    # nothing within the tolerance computes this form
            if measured:
                refused = NoPathError("no path has a measurement of each of its steps here\n"
                                      "  fix: tg profile measures; without measured=True (--measured) estimates are listed too")
                continue
            refused = refused or with_reasons(e, paths, costs, table, binding)
        else:
            listed = (replace(path, form=form.words) for path in _by_worth(paths, costs, binding))
            return PathListing(itertools.islice(listed, limit), prepared.parts, partial(_count, paths))
    assert refused is not None                                      # there is one form at least
    raise refused


def _by_worth(paths: Paths, costs: CostTable, binding: Mapping[str, int]) -> Iterator[GraphPath]:
    """Yield all paths: those that were run as a whole by their measured time, the others by cost, merged into one order."""
    tried = (paths.still(run.path) for run in costs.tried(paths.graph, binding) if not run.path.all_steps)
    ran = {path.id: costs.as_run(paths.graph, path, binding) for path in tried if path is not None}
    others = (path for path in paths if path.id not in ran)
    return heapq.merge(sorted(ran.values(), key=lambda path: path.seconds), others, key=lambda path: (
        path.small, path.seconds if path.id in ran else path.cost + paths.around))


def _count(paths: Paths) -> PathCount:
    from tensor_graphs.paths.path_count import count_paths  # when it is asked for: an import takes time

    return count_paths(paths)


SHOWN = 3
"""number of paths in the repr of a listing"""


class PathListing(Iterator[GraphPath]):
    """Iterator over paths, each once; its repr shows the next ones without consuming them. parts: a text on the pieces that kernels
    of graphs compute. total: the number of all paths, whatever the limit; counted on first access."""

    def __init__(self, paths: Iterator[GraphPath], parts: str, count: Callable[[], PathCount]) -> None:
        self.parts, self._paths, self._count = parts, paths, count
        self._ahead: deque[GraphPath] = deque()

    @cached_property
    def total(self) -> PathCount:
        return self._count()

    def __next__(self) -> GraphPath:
        return self._ahead.popleft() if self._ahead else next(self._paths)

    def __repr__(self) -> str:
        self._ahead += itertools.islice(self._paths, max(0, SHOWN + 1 - len(self._ahead)))
        if not self._ahead:
            return "<paths: none left>"
        more = len(self._ahead) > SHOWN
        return "\n".join(["<paths, the cheapest first:", *(f"  {line}" for line in self.parts.splitlines()),
                          *(f"  {path!r}" for path in itertools.islice(self._ahead, SHOWN)), *(["  …"] if more else []),
                          "  their steps: for path in tg.list_paths(graph, limit=10): print(path)>"])


def not_offered(graph: Graph, backends: Sequence[str] | None = None, simplify: bool = True) -> list[str]:
    """Return lines for readers on what is on no path: backends that are missing here, kernels of ops in the graph whose
    requirements this device does not meet, and kernels of graphs that occur nowhere in it."""
    request = Request(graph, backends=backends)
    here, notes = request.here, request.notes
    if simplify:
        notes = (*notes, *(f"kernel {k.name} is no candidate: {why}" for k, why in _without_place(graph, here)))
    table = by_op(k for k in all_kernels(here) if lacking(k) is not None)
    refused: dict[str, str] = {}
    if table:
        for s in signatures_of(prepare(graph, simplify, backends=here).graph):
            refused |= {k.name: f"kernel {k.name} is left out: {why}" for k, why in left_out(s.spec, table)}
    return [*notes, *refused.values()]


def _without_place(graph: Graph, backends: Sequence[str]) -> Iterator[tuple[Kernel, str]]:
    """Yield the kernels of graphs that occur nowhere in this graph, each with the reason as far as it is known."""
    kernels = [k for k in all_kernels(backends) if isinstance(k.composite, PartOp)]
    if not kernels:
        return
    formed = prepare(graph, recipes=False).graph
    specs = [s.spec for s in signatures_of(formed)]
    for k in kernels:
        if isinstance(k.composite, PartOp) and not any(k.computes(spec) for spec in specs):
            reason = why_nowhere((graph, formed), k.composite)
            yield k, f"its graph was found nowhere in this one: {reason.why} (fix: {reason.fix})"


def signatures_of(graph: Graph) -> list[Signature]:
    """Return every signature that a path of a graph may reach, each once: those of its nodes, and those in the definitions of
    composites at any depth."""
    paths = Paths(graph, {}, lambda kernel, signature: None)
    signatures: dict[str, Signature] = {}
    todo = [s for s, _ in reversed(paths.top)]
    while todo:
        s = todo.pop()
        if s.key not in signatures:
            signatures[s.key] = s
            for way in reversed(paths.alternatives(s)):
                todo += [i for i, _ in reversed(paths.inner(s, way))]
    return list(signatures.values())
