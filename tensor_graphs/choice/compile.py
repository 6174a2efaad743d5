"""compile: graph → plan. Which kernel runs what at which sizes, in what order, in which bytes; all decided before anything runs.

The plan of the same request is taken from its file. Where there is none, the graph is prepared (prepare.py) and searched
(search.py); while Python imports these, the processes that the search will need are started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_graphs.argument_checks import function
from tensor_graphs.choice import plan_file
from tensor_graphs.choice.request import Precision, Request, Tolerance, as_given
from tensor_graphs.kernels.registry import begin, compile_ahead
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph, require_graph
from tensor_graphs.language.node import walk
from tensor_graphs.paths.lower import PlanError
from tensor_graphs.paths.path import Path as GraphPath
from tensor_graphs.paths.plan import Plan
from tensor_graphs.phase_times import IMPORT, phase
from tensor_graphs.records.errors import DatabaseError

if TYPE_CHECKING:
    from tensor_graphs.choice.accuracy_inputs import Inputs
    from tensor_graphs.paths.pin_file import Pin
    from tensor_graphs.records.database import Database

log = logging.getLogger(__name__)

Progress = Callable[[str], None]


def compile_graph(graph: Graph, *, tolerance: Tolerance = None, backends: Sequence[str] | None = None,
                  database: Database | str | Path | None = None, at: Mapping[str, int] | None = None,
                  largest: Mapping[str, int] | None = None, memory_limit: int | None = None,
                  path: GraphPath | Pin | str | Path | None = None, reuse_outputs: bool = False, threads: int | None = None,
                  progress: Progress | None = None, precision: Precision = None, simplify: bool = True,
                  assuming: str | Sequence[str] = (), weights: Mapping[str, Any] | None = None,
                  accuracy_seconds: float = 10.0, inputs: Inputs = None, invariant: Sequence[str] = ()) -> Plan:
    """Choose the fastest path that is accurate enough, and plan it. `bind` the plan to run it.

    tolerance: None runs the graph as written: no value is narrower than the graph says, and each kernel agrees with the float64
    oracle on its own part of the graph. A number is a bound on the error of every float output against the oracle, beyond the
    output's own last rounding, measured on the entire plan: with 95 % confidence, 99 % of further draws of such inputs are within
    it. Weights, operands of products, values between ops and float states are kept in narrower or wider floats, whatever is fastest
    within the bound (inputs and outputs stay as written). {"logits": 1e-2} bounds one output, and tg.accuracy has other statistics
    (norm, kl, top1, cosine, as_written), joined by &; "kl:logits:0.01" is text for the same.
    weights: the parameters on which the error is measured (default: random ones, and `tg.bind` measures again on those that it is
    given). inputs: a mapping name -> array for each draw, or a function from a seed to one (default: random ones): inputs of a run,
    or of all positions of a decoder, whose own text is tg.load_model(folder).samples. accuracy_seconds: for the draws of a plan; 0
    decides by the predicted error, and the plan says so.
    precision: dtypes of sites, whatever the tolerance allows. "f32" is f32 everywhere; {"between": "f32", "product:model.layers.*":
    "bf16"} keeps values between ops in f32 and multiplies bf16 operands in some layers. Kinds of sites: between, product, weight,
    state; words: f64, f32, f16, bf16, written. Other sites are chosen, or stay as written where there is no tolerance.
    at: typical sizes of dims, at which costs are estimated. largest: sizes up to which the graph will be used (default: the dims'
    upper bounds): kernels are chosen up to them (beyond, those of the largest run), and memory is laid out and checked for them.
    memory_limit: bytes the device may use in all. A plan that needs more at `largest` computes values again, and where that is not
    enough it is refused, with sizes at which it fits.
    path: run this one instead of choosing: a listed path, or what a plan chose at all sizes (`plan.pin`, or the file that it was
    saved to), whose tolerance and backends count where none are given. reuse_outputs: a run may overwrite the outputs of the one
    before. threads: measurements with this many threads count, and verification uses them.
    simplify: recognise composites in atomic ops, and make small graphs smaller, with the same bits (prepare.py); False to run the
    very graph that is written. assuming: conditions on values that hold for every input, as "no overflow": kernels that assume them
    are candidates. invariant: dims at all of whose sizes the same kernels run.
    The plan is stored in the cache folder, and the same request is answered from there until a kernel, the software or a row of the
    database changes (plan_file.py; the environment variable TENSOR_GRAPHS_PLANS=off stores nothing).
    Raises NoPathError (no path, none within the tolerance, or no available backend), PlanError (too little memory, a size outside
    of its dim's range), ArgumentError, and GraphError for what is no graph.
    """
    graph = require_graph(graph, "compile")
    function("progress", progress, "a text that says what is done")
    return answer(Request(graph, tolerance, backends, database, at, largest, memory_limit, reuse_outputs, threads, precision,
                          simplify, as_given(path), assuming, weights, accuracy_seconds, inputs, invariant), progress)


def answer(request: Request, progress: Progress | None = None) -> Plan:
    """Return the plan of a request: from its file, or chosen. A pin is planned also where the database cannot be used: then its
    kernels are compared with the oracle again, and nothing is stored. Raises as `compile_graph`."""
    try:
        return _answer(request, progress)
    except DatabaseError as error:
        if request.pin is None:
            raise
        log.warning("the pinned plan is made without the database: %s", str(error).partition("\n")[0])
        return _answer(replace(request, database=":memory:"), progress)


def _answer(request: Request, progress: Progress | None) -> Plan:
    graph, path = request.graph, request.path
    with phase("read plan"):
        begin(request.names)
        here = request.here
    file = plan_file.of(request)
    plan = None if file is None else file.read()
    if plan is not None:
        return plan
    with phase(IMPORT):
        if path is None and file is not None:                       # nothing on file: the graph is new, and will be compared
            from tensor_graphs.measure.isolation import fork_server_process  # a door: what is found on file needs no worker

            fork_server_process.begin()
        from tensor_graphs.choice.prepare import prepare  # doors, likewise
        from tensor_graphs.choice.search import searched
    compile_ahead(here, _ops_of(graph))                             # while the graph is prepared: it takes as long
    with phase("prepare"):
        if path is None:
            prepared, decided = prepare(graph, request.simplify, recipes=request.store, backends=here), None
        else:
            from tensor_graphs.choice.requested_path import form_of  # a door: most paths are chosen, and not given

            prepared, decided = form_of(request, path, request.store)
    compile_ahead(here, _ops_of(prepared.graph))
    try:
        plan = searched(request, prepared, progress, decided)
    except PlanError:
        if request.memory_limit is None or path is not None:
            raise
        plain = prepare(graph, request.simplify, recipes=False, backends=here)
        if plain.graph is prepared.graph:
            raise
        plan = searched(request, plain, progress)                  # what recipes make of parameters takes memory
    if file is not None:
        file.write(plan)
    return plan


def _ops_of(graph: Graph) -> set[str]:
    """Return the names of a graph's ops, and of those in its parts."""
    parts = [node.op for node in graph.nodes if isinstance(node.op, PartOp)]
    return {node.op.name for nodes in (graph.nodes, *(walk(part.written.outputs) for part in parts)) for node in nodes}


if not TYPE_CHECKING:                                                # a checker of types reads the signature as it stands there
    compile_graph = worded(compile_graph, "compile")
