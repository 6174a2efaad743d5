"""plan_times: runs plans of one graph interleaved in this process, at its typical sizes, and compares their times.

Estimates make kernels that were never measured look fast. A plan with fewer bits has to be faster than the graph as written when
both are run. The two times are in rows of the database, which are used again while the estimate of the graph as written stays the
same.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from tensor_graphs.choice.graph_forms import words_text
from tensor_graphs.choice.measured_accuracy import MeasuredAccuracy, plan_key, plan_record
from tensor_graphs.costs.database_keys import VERIFIER, path_environment, path_workload, whole_graph_record
from tensor_graphs.devices.environment import Environment
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.error_draws import FIRST_SEED
from tensor_graphs.measure.points.inputs import make_inputs
from tensor_graphs.paths.plan import Plan
from tensor_graphs.phase_times import phase
from tensor_graphs.records.measurements import conditions_at
from tensor_graphs.records.rows import TraceRecord
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind

log = logging.getLogger(__name__)

ROUNDS, SECONDS = 9, 1.0
"""most runs of each plan, the first of which does not count; seconds after which no round begins where two plans are compared"""

SHORT = 5e-3
"""seconds of a run up to which another run comes before each timed one, so that its data are in the caches"""

UNCHANGED = 0.01
"""relative change of an estimate up to which times on file count"""

KIND = "plan time"
"""`what` of the conditions of these rows"""


def interleaved(models: Sequence[CompiledGraph], graph: Graph, sizes: Mapping[str, int], seconds: float = math.inf,
                say: Callable[[str], None] = lambda text: None) -> list[list[float]]:
    """Return the seconds of ROUNDS − 1 runs of each model, of fewer after `seconds`. Runs of the models are interleaved, so that
    other load on the machine slows all of them down alike."""
    inputs, began = make_inputs(graph, sizes, FIRST_SEED), time.perf_counter()
    sessions, samples = [model.session() for model in models], [list[float]() for _ in models]
    for number in range(ROUNDS):
        if number and time.perf_counter() - began > seconds:
            break
        say(f"timing, round {number + 1} of {ROUNDS}")
        for model, session, times in zip(models, sessions, samples, strict=True):
            dims = {name: size for name, size in sizes.items() if name in model.graph.dims}
            for _ in range(2 if times and times[-1] < SHORT else 1):
                start = time.perf_counter()
                model.run(inputs, dims=dims, session=session)
                model.wait()
                latest = time.perf_counter() - start
            times.append(latest)
    return [times[1:] or times for times in samples]


@phase("time plans")
def against_written(accuracy: MeasuredAccuracy, plan: Plan, written: Callable[[], Plan],
                    estimated: float) -> tuple[float, float] | None:
    """Return the seconds of a run of a plan and of the graph as written: from a row, or timed now and stored. Return None where
    both compute the same, or cannot be run here.

    written: returns the plan as written. estimated: its seconds by an estimate, which identifies it in rows."""
    stored = _stored(accuracy, plan, estimated)
    if stored is not None:
        return stored
    sizes = accuracy.sizes
    try:
        rival = written()
        if plan.graph == rival.graph:
            return None
        expected = [p.variant({n: s for n, s in sizes.items() if n in p.graph.dims}) for p in (plan, rival)]
        if all(variant.path.measured for variant in expected):       # rows of all kernels tell them apart
            return expected[0].predicted, expected[1].predicted
        models = [bind(p, accuracy.draws.weights) for p in (plan, rival)]
        samples = interleaved(models, accuracy.request.graph, sizes, SECONDS)
    except (TensorGraphsError, MemoryError) as error:
        log.info("%s is not timed: %s", words_text(plan.words), error)
        return None
    _store(accuracy, (plan, rival), samples, estimated)
    return median(samples[0]), median(samples[1])


def _environment(accuracy: MeasuredAccuracy, plan: Plan) -> Environment:
    return path_environment(plan.backends, accuracy.request.threads)


def _stored(accuracy: MeasuredAccuracy, plan: Plan, estimated: float) -> tuple[float, float] | None:
    """Return the latest times of a plan and of the graph as written that were measured together in this environment."""
    request = accuracy.request
    workload = path_workload(request.graph, accuracy.sizes)
    rows = conditions_at(request.store, workload.key, plan_key(plan), "in_graph", verifier=VERIFIER)
    here = _environment(accuracy, plan).key()
    times = [row["seconds"] for row in rows if row.get("what") == KIND and row["environment"] == here
             and abs(row["written_estimate"] - estimated) <= UNCHANGED * estimated]
    return (times[-1][0], times[-1][1]) if times else None


def _store(accuracy: MeasuredAccuracy, plans: Sequence[Plan], samples: Sequence[Sequence[float]], estimated: float) -> None:
    """Store the times of a plan and of the plan as written, each as a trace of its plan."""
    request = accuracy.request
    for plan, times in zip(plans, samples, strict=True):
        for graph in (request.graph, plan.graph):
            request.store.ensure_graph(whole_graph_record(graph))
        environment = _environment(accuracy, plan)
        request.store.add_trace(TraceRecord(
            plan_record(plan), path_workload(request.graph, accuracy.sizes), environment, "in_graph", "PASSED",
            samples_ms=tuple(s * 1e3 for s in times), timer="perf_counter", verifier=VERIFIER,
            conditions={"what": KIND, "weights": accuracy.weights_key, "environment": environment.key(),
                        "written_estimate": estimated, "among": [plan_key(p) for p in plans],
                        "seconds": [median(s) for s in samples]}))
