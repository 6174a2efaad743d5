"""timeline: records one run of a plan, step by step, as a trace for Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing).

    document = timeline(plan, database, {"n": 1}, "softmax.tg")

Format: the JSON object of the Trace Event Format, complete events ("ph": "X") in microseconds; a lane for each device.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.kernels.kernel import Transfer
from tensor_graphs.measure.points.inputs import make_inputs
from tensor_graphs.measure.timing.whole_paths import filled
from tensor_graphs.paths.lower import Instruction
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records.database import Database
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.views.roofline_chart import kernel_table

RUNS = 5
"""Number of runs of each kind: without pauses, the median of which is shown; and step by step, the fastest of which is shown, as
other work on a machine slows runs down."""


def timeline(plan: Plan, database: Database, sizes: Mapping[str, int], title: str, threads: int | None = None) -> dict[str, Any]:
    """Return the trace of one run at these sizes (default: those the plan was costed at), on random inputs and weights, states at
    zero.

    Each step is one call from Python, and its device is waited for: steps that overlap in an ordinary run do not overlap, and
    slices include some microseconds of the call. `otherData` has the time of this run and the median time without pauses, in µs.
    """
    v = plan.variant({**plan.variants[0].at, **sizes})
    binding = {**v.at, **sizes}
    weights = {name: filled(node.type.at({}), i) for i, (name, node) in enumerate(plan.graph.parameters.items())}
    compiled = bind(plan, weights)
    inputs, dims = make_inputs(plan.graph, binding, 1), {n: s for n, s in binding.items() if n in plan.graph.dims}
    whole = []
    for _ in range(RUNS):
        session, start = compiled.session(), HOST.clock()
        compiled.run(inputs, dims=dims, session=session)
        whole.append(HOST.clock() - start)
    tries: list[tuple[float, float, list[tuple[Instruction, float, float]]]] = []
    for _ in range(RUNS):
        session, start = compiled.session(), HOST.clock()
        spans_of_runs = compiled.spans(inputs, dims=dims, session=session)
        tries.append((start, HOST.clock(), spans_of_runs))
    start, end, spans = min(tries, key=lambda run: run[1] - run[0])
    steps = {s.signature: s for s in kernel_table(plan, database, sizes, threads).steps}
    lanes = {name: i for i, name in enumerate(dict.fromkeys(["run", *(ins.device for ins, _, _ in spans)]))}
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": title}}]
    events += [{"name": "thread_name", "ph": "M", "pid": 1, "tid": i, "args": {"name": name}} for name, i in lanes.items()]
    events.append({"name": "run", "cat": "run", "ph": "X", "pid": 1, "tid": 0, "ts": 0.0, "dur": (end - start) * 1e6,
                   "args": {"path": v.path.id, "predicted_us": v.predicted * 1e6, "one_go_us": median(whole) * 1e6}})
    for ins, began, ended in spans:
        args: dict[str, Any] = {"kernel": ins.kernel, "op": ins.op}
        step = steps.get(ins.signature)
        if step is not None and not ins.label.startswith("prepare_"):
            args |= {"what": step.what, "bytes": step.nbytes, "flops": step.flops, "predicted_us": step.seconds * 1e6,
                     "predicted_from": "a measurement" if step.measured else "an estimate", "least_us": step.least * 1e6}
        args |= {"written_at": ins.written_at} if ins.written_at else {}
        events.append({"name": ins.label, "cat": _category(ins), "ph": "X", "pid": 1, "tid": lanes[ins.device],
                       "ts": (began - start) * 1e6, "dur": (ended - began) * 1e6, "args": args})
    return {"traceEvents": events, "displayTimeUnit": "ns",
            "otherData": {"graph": plan.graph.structural_key, "path": v.path.id, "at": {n: int(s) for n, s in binding.items()},
                          "step_by_step_us": (end - start) * 1e6, "in_steps_us": sum(e - b for _, b, e in spans) * 1e6,
                          "one_go_us": median(whole) * 1e6}}


def _category(ins: Instruction) -> str:
    return "copy" if isinstance(ins.call, Transfer) else ins.backend
