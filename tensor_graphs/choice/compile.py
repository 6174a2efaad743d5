"""compile: graph → plan. Which kernel runs what at which sizes, in what order, in which bytes; all decided before anything runs.

Here is what everybody needs: the plan of the same request is taken from its file. Where there is none, the graph is prepared
(prepare.py) and searched for (search.py); while Python imports these, the processes that the search will wait for are started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensor_graphs.arguments import function
from tensor_graphs.choice import plan_file
from tensor_graphs.choice.request import Request, Wanted, as_given
from tensor_graphs.kernels.registry import begin, compile_ahead
from tensor_graphs.language.calls import worded
from tensor_graphs.language.graph import Graph, require_graph
from tensor_graphs.language.node import walk
from tensor_graphs.language.part import PartOp
from tensor_graphs.paths.lower import PlanError
from tensor_graphs.paths.path import Path as GraphPath
from tensor_graphs.paths.plan import Plan
from tensor_graphs.phases import IMPORT, phase
from tensor_graphs.records.errors import DatabaseError

if TYPE_CHECKING:
    from tensor_graphs.paths.pin import Pin
    from tensor_graphs.records.database import Database

log = logging.getLogger(__name__)

Progress = Callable[[str], None]


def compile_graph(graph: Graph, *, tolerance: float | None = None, backends: Sequence[str] | None = None,
                  database: Database | str | Path | None = None, at: Mapping[str, int] | None = None,
                  largest: Mapping[str, int] | None = None, memory_limit: int | None = None,
                  path: GraphPath | Pin | str | Path | None = None, reuse_outputs: bool = False, threads: int | None = None,
                  progress: Progress | None = None, intermediates: Wanted = "auto", simplify: bool = True,
                  assuming: str | Sequence[str] = ()) -> Plan:
    """Choose the fastest path that is accurate enough, and plan it. `bind` the plan to run it.

    tolerance: largest relative error against the float64 oracle (default: 1e-3, or two roundings of an output's dtype where
    that is more: 7.8e-3 for bf16, since storing a bf16 costs up to 3.9e-3 by itself): measured for every kernel; for the graph
    as a whole predicted, and where the prediction is beyond it, values are kept in float32 or float64 between ops (float states
    then too, inputs and outputs are as written). intermediates: "as_written", "float32" or "float64" to have it so in any case;
    "bfloat16": products by parameters of bf16 are made of values of bf16, whatever is predicted, which is faster for many rows.
    at: typical sizes of dims for pricing. largest: sizes up to which the graph will be used (default: the dims' upper bounds):
    kernels are chosen up to them (beyond, those of the largest run), and memory is laid out and checked for them. memory_limit:
    bytes the device may use in all; a plan that needs more at `largest` is refused here, with the sizes up to which it would fit.
    path: run this one instead of choosing: a path that was listed, or what a plan chose at all sizes (`plan.pin`, or the file that
    it was saved to), whose tolerance and backends count where none are given. reuse_outputs: a run may overwrite the outputs of the
    one before. threads: rows of so many threads count, and what is verified uses them.
    simplify: composites are recognised where the graph says them in atomic ops, and small graphs made smaller, with the same bits
    (prepare.py); False to run the very graph that is written.
    assuming: conditions on values that hold for every input, as "no overflow": kernels that assume them are candidates.
    What was chosen is kept in the cache folder, and the same request is answered from there until a kernel, the software or a row
    of the database is another one (plan_file.py; the environment variable TENSOR_GRAPHS_PLANS=off keeps nothing).
    Raises NoPathError (no path, none within the tolerance, or no backend that is here), PlanError (too little memory, a size
    outside of its dim's range), ArgumentError, and GraphError for what is no graph.
    """
    graph = require_graph(graph, "compile")
    function("progress", progress, "a text that says what is done")
    return answer(Request(graph, tolerance, backends, database, at, largest, memory_limit, reuse_outputs, threads, intermediates,
                          simplify, as_given(path), assuming), progress)


def answer(request: Request, progress: Progress | None = None) -> Plan:
    """The plan of a request: from its file, or chosen. Of a pin also where the database cannot be used: then its kernels are
    compared with the oracle once more, and nothing is kept. Raises as `compile_graph`."""
    try:
        return _answer(request, progress)
    except DatabaseError as error:
        if request.pin is None:
            raise
        log.warning("the pinned plan is made without the database: %s", str(error).partition("\n")[0])
        return _answer(replace(request, database=":memory:"), progress)


def _answer(request: Request, progress: Progress | None) -> Plan:
    graph, given = request.graph, request.path
    with phase("read plan"):
        begin(request.names)
        here = request.here
    file = plan_file.of(request)
    plan = None if file is None else file.read()
    if plan is not None:
        return plan
    with phase(IMPORT):
        if given is None and file is not None:                       # nothing on file: the graph is new, and will be compared
            from tensor_graphs.measure.isolation import template_process  # a door: what is found on file needs no worker

            template_process.begin()
        from tensor_graphs.choice.prepare import prepare  # doors, likewise
        from tensor_graphs.choice.search import searched
    with phase("prepare"):
        if given is None:
            prepared, decided = prepare(graph, request.simplify, recipes=request.store, backends=here), None
        else:
            from tensor_graphs.choice.replay import form_of  # a door: most paths are chosen, and not given

            prepared, decided = form_of(request, given, request.store)
    compile_ahead(here, _ops_of(prepared.graph))
    try:
        plan = searched(request, prepared, progress, decided)
    except PlanError:
        if request.memory_limit is None or given is not None:
            raise
        plain = prepare(graph, request.simplify, recipes=False, backends=here)
        if plain.graph is prepared.graph:
            raise
        plan = searched(request, plain, progress)                  # what recipes make of parameters takes memory
    if file is not None:
        file.write(plan)
    return plan


def _ops_of(graph: Graph) -> set[str]:
    """The names of a graph's ops, and of those in its parts."""
    parts = [node.op for node in graph.nodes if isinstance(node.op, PartOp)]
    return {node.op.name for nodes in (graph.nodes, *(walk(part.written.outputs) for part in parts)) for node in nodes}


if not TYPE_CHECKING:                                                # a checker of types reads the signature as it stands there
    compile_graph = worded(compile_graph, "compile")
