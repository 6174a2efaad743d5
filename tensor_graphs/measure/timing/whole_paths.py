"""whole_paths: the worker's part of deployed.py: builds the plans of several paths of one graph and runs them in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from tensor_graphs.devices.device import Device
from tensor_graphs.devices.known import HOST, device_named
from tensor_graphs.kernels.registry import copy_kernels, kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.language.node import TensorType
from tensor_graphs.measure import path_errors
from tensor_graphs.measure.points.inputs import make_inputs
from tensor_graphs.measure.points.single_kernel import plain_plan, plan_along
from tensor_graphs.measure.timing.bench import LLC_BYTES
from tensor_graphs.measure.timing.check_decoder_kernel import error_at_once
from tensor_graphs.measure.timing.clock import now, others_running, switches
from tensor_graphs.measure.timing.launch_ahead import HostAhead
from tensor_graphs.measure.timing.reference_stream import QUIET, level_of, reference_stream, waits_for_quiet
from tensor_graphs.measure.timing.settle_threads import settle, warm_up
from tensor_graphs.paths.path import Path, kernel_of_all_steps
from tensor_graphs.paths.path_reader import path_from_json
from tensor_graphs.paths.plan import Plan
from tensor_graphs.paths.residency import arriving
from tensor_graphs.runtime.arrays import device_array
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.runtime.prepared import Prepared
from tensor_graphs.runtime.segments.launches import Launches
from tensor_graphs.runtime.segments.on_device import OnDevice
from tensor_graphs.runtime.segments.segment import Segment
from tensor_graphs.runtime.segments.transfers import Transfers

BLOCK = (1 << 20) + 7
"""random numbers that weights repeat; odd, so that rows of a matrix differ"""

OTHER = 0.1
"""of an output's size (its Euclidean norm): what differs by more from the plain path's is no other rounding"""

PLAIN_BYTES = 1 << 30
"""of intermediate results, beyond which the plain path is not run for its outputs"""

TURN = 5
"""runs of a path in a row; the first does not count"""

EACH_TURN = 3
"""runs of a path in a row where only whole runs are timed"""

LEAST_KEPT = 3
"""of the turns of a path, the fastest: as many at least, and half of them, are what it took"""

FLUSHED = 2 * LLC_BYTES
"""bytes read before a whole run, so that no weights are left in the caches"""

TWICE = 4 * LLC_BYTES
"""bytes of weights, up to which a path is bound to two sets of them; more do not stay in the caches from run to run"""

WRONG_AT_ONCE = 1e-2
"""beyond which a kernel of all steps is wrong, whatever a user allows: of some hundred steps, each of which may be off by 1e-4"""

TURNS_THERE, SETTLING = 12, 4
"""turns of each path on another device, and those at first that do not count: there what runs again becomes a replay"""

FEW_QUIET = 4
"""undisturbed runs of a path: where there are fewer, it is run up to twice as often, and then all its runs count"""


def run_deployed(job: Mapping[str, Any]) -> dict[str, Any]:
    """Build every path's plan, run them in turns, return the times of their steps; those of whole runs alone where the job asks
    for rounds."""
    graph = graph_from_json(job["graph"])
    for name, identity in job["identities"].items():
        if kernel_named(name).identity != identity:
            return {"status": "OTHER", "log": f"{name} is another kernel in the worker: its source is not the same there"}
    weights = {name: filled(node.type.at({}), i) for i, (name, node) in enumerate(graph.parameters.items())}
    inputs = given_there(graph, make_inputs(graph, job["binding"], 1))
    dims = {n: s for n, s in job["binding"].items() if n in graph.dims}
    expanded = [graph_from_json(p["graph"]) for p in job["paths"]]
    plans = [path_plan(graph, each, path_from_json(p["path"]), job["backends"])
             for each, p in zip(expanded, job["paths"], strict=True)]
    errors = [error_at_once(plan, weights) if plan.variants[0].path.all_steps else 0.0 for plan in plans]
    for i, error in enumerate(errors):
        if not error <= WRONG_AT_ONCE:
            return {"status": "INCORRECT_NUMERICAL", "log": f"all steps at once: an error of {error:.2g}", "path": i}
    expected = plain_outputs(graph, weights, inputs, dims) if job["compared"] else {}
    if job["rounds"]:
        if any(plan.elsewhere for plan in plans):
            told = run_whole_there(graph, plans, weights, inputs, dims, expected, job["seconds"])
        else:
            told = run_whole(graph, plans, weights, inputs, dims, expected, job["rounds"], job["seconds"])
        for each, error, plan in zip(told.get("paths", ()), errors, plans, strict=False):
            if plan.variants[0].path.all_steps:
                each["error"] = error
        return told
    parts = [parts_of(plan, each, p["parts"]) for plan, each, p in zip(plans, expanded, job["paths"], strict=True)]
    compiled = [bind(plan, weights) for plan in plans]
    sessions = [c.session() for c in compiled]
    taken: list[list[np.ndarray]] = [[] for _ in plans]
    whole: list[list[float]] = [[] for _ in plans]
    around: list[list[tuple[float, bool]]] = [[] for _ in plans]
    reference = reference_stream("arithmetic", False)               # it leaves the caches as a path's last step left them
    while len(taken[-1]) < job["runs"] or (waits_for_quiet() and len(taken[-1]) < 2 * job["runs"] and any(
            len(q) < FEW_QUIET for q in quiet(around))):
        for i, (c, session, samples, spent) in enumerate(zip(compiled, sessions, taken, whole, strict=True)):
            settle()
            for run in range(TURN):
                seconds = np.zeros(len(c.executors[0].program.instructions))
                start = now()
                reference.run()
                before = now() - start
                others, switched = others_running(), switches()
                start = now()
                outputs = c._run(inputs, dims, session, None, seconds=seconds)
                ended = now()
                alone = not (others or switches() - switched or others_running())
                again = bool(graph.states) and bool(run or samples)      # a step further on, which the plain path has not gone
                if not again and (wrong := other_than(expected, outputs)):
                    return {"status": "INCORRECT_NUMERICAL", "log": wrong, "path": i}
                if run:
                    spent.append(ended - start)
                    samples.append(seconds)
                    around[i].append((before, alone))
                del outputs                                         # or the next run's lie elsewhere
    found = []
    for plan, placed, samples, spent, calm in zip(plans, parts, taken, whole, quiet(around), strict=True):
        kept = calm if len(calm) >= FEW_QUIET else range(len(samples))
        of_runs = np.array([samples[k] for k in kept])
        found.append({"whole": [spent[k] for k in kept], "steps": steps_of(plan, of_runs, placed),
                      "parts": times_of_parts(of_runs, placed), "sums": [float(samples[k].sum()) for k in kept],
                      "quiet": len(calm) >= FEW_QUIET, "error": None, "around": None})
    return {"status": "RAN", "paths": found}


def given_there(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Inputs where the graph takes them: those on another device are copied there now, and not in each run."""
    there = arriving(graph.nodes, graph.roots)
    nodes = {name: there.get(node) for name, node in graph.inputs.items()}
    return {name: a if (device := nodes[name]) is None else device_array(a, device) for name, a in inputs.items()}


def run_whole(graph: Graph, plans: Sequence[Plan], weights: Mapping[str, np.ndarray], inputs: Mapping[str, Any],
              dims: Mapping[str, int], expected: Mapping[str, np.ndarray], rounds: int, seconds: float) -> dict[str, Any]:
    """Run the plans in turns and time whole runs, nothing inside them: code and activations warm, weights cold. rounds: turns of
    each plan; after `seconds` no round begins, but for the second. Of each turn the fastest run counts, and of the turns the faster
    half. Plans of few weights are bound anew for each, on weights that lie elsewhere in each round: where arrays lie makes a run a
    tenth slower or faster, those that a plan reads as they are as well as those that it makes of them."""
    nbytes = sum(a.nbytes for a in weights.values())
    sets = [weights]
    if 0 < nbytes <= TWICE:                                         # one warms code up, the other's run counts
        sets.append({name: filled(node.type.at({}), len(weights) + i) for i, (name, node) in enumerate(graph.parameters.items())})

    def deployed(number: int) -> list[Callable[[], dict[str, Any]]]:
        return [as_called(bind(plans[number], each), inputs, dims) for each in sets]

    runs = [deployed(i) for i in range(len(plans))]
    measured, first = path_errors.is_measured(graph, dims), list[dict[str, np.ndarray]]()
    for i, (warm, *_) in enumerate(runs):
        if wrong := other_than(expected, outputs := warm()):
            return {"status": "INCORRECT_NUMERICAL", "log": wrong, "path": i}
        first.append({name: np.array(a) for name, a in outputs.items()} if measured else {})
        del outputs                                                 # or the next run's lie elsewhere
    flushed = np.ones(FLUSHED // 8 if 0 < nbytes <= TWICE else 0)
    whole: list[list[tuple[bool, float]]] = [[] for _ in plans]
    end = now() + seconds
    for number in range(rounds):
        if number > 1 and now() > end:
            break
        if number and 0 < nbytes <= TWICE:
            sets = [{name: a.copy() for name, a in each.items()} for each in sets]
        order = range(len(plans))
        for i in order if number % 2 else reversed(order):
            if number and nbytes <= TWICE:
                runs[i] = deployed(i)
            settle()
            taken = []
            for _ in range(EACH_TURN):
                others, switched = others_running(), switches()
                flushed.sum()
                warm_up(runs[i][0])
                start = now()
                runs[i][-1]()
                taken.append((now() - start, bool(others or switches() - switched or others_running())))
            whole[i].append(min((disturbed, spent) for spent, disturbed in taken))
    found: list[dict[str, Any]] = []
    errors = path_errors.errors_of(graph, first, inputs, weights, dims) if measured else [None] * len(plans)
    for turns, error in zip(whole, errors, strict=True):
        # the faster half: a thread that had fallen asleep costs some runs of a short path three times its time, by chance
        kept = sorted(spent for _, spent in turns)[:max(LEAST_KEPT, (len(turns) + 1) // 2)]
        calm = sum(not disturbed for disturbed, _ in turns) >= len(kept)
        found.append({"whole": kept, "sums": kept, "steps": [], "parts": [], "quiet": calm, "error": error, "around": None})
    return {"status": "RAN", "paths": found}


def run_whole_there(graph: Graph, plans: Sequence[Plan], weights: Mapping[str, np.ndarray], inputs: Mapping[str, Any],
                    dims: Mapping[str, int], expected: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
    """`run_whole` of plans of which some compute on another device: each bound once, in turns, with empty caches there, when what
    runs again has become a replay. After `seconds` no turn begins, but for a few that count.

    Of those that compute on that device alone, what their steps take by its own clock, and what the host does around that at the
    least of all of them (`around`): it is the same for all, and varies by more than a step takes. Of the others what the host sees,
    from the call to the end of all that was begun."""
    compiled = [bind(plan, weights) for plan in plans]
    runs: list[tuple[CompiledGraph, Prepared]] = []
    for i, each in enumerate(compiled):
        ready = each.prepared(dict(inputs), dims=_no_input_says(graph, dims), session=each.session() if graph.states else None)
        if wrong := other_than(expected, ready.run()):
            return {"status": "INCORRECT_NUMERICAL", "log": wrong, "path": i}
        runs.append((each, ready))
    there = dict.fromkeys(name for plan in plans for name in plan.elsewhere)
    ahead = {device: HostAhead(device) for device in map(device_named, there)}
    alone = [_segments_of(each) for each in compiled]
    here = np.ones(0 if all(a is not None for a in alone) or not weights else FLUSHED // 8)
    owns: list[list[float]] = [[] for _ in runs]
    walls: list[list[float]] = [[] for _ in runs]
    disturbed = [0 for _ in runs]
    end = now() + seconds
    for turn in range(TURNS_THERE):
        if turn >= SETTLING + LEAST_KEPT and now() > end:
            break
        for i, (each, ready) in enumerate(runs):
            if (own := alone[i]) is not None:
                owns[i].append(_on_its_clock(*own, ready, ahead, turn))
            for one in ahead.values():
                one.flush(turn)
            here.sum()
            each.wait()
            others, switched = others_running(), switches()
            start = now()
            ready.run()
            each.wait()
            walls[i].append(now() - start)
            disturbed[i] += turn >= SETTLING and bool(others or switches() - switched or others_running())
    walls, owns = [each[SETTLING:] for each in walls], [each[SETTLING:] for each in owns]
    kept = [sorted(each)[:max(LEAST_KEPT, (len(each) + 1) // 2)] for each in walls]
    around = max(0.0, min((median(by_host) - median(own) for by_host, own in zip(walls, owns, strict=True) if own), default=0.0))
    kept = [[around + spent for spent in own] if own else by_host for own, by_host in zip(owns, kept, strict=True)]
    return {"status": "RAN", "paths": [{"whole": times, "sums": times, "steps": [], "parts": [], "error": None,
                                        "around": around if owns[i] else None,
                                        "quiet": len(walls[i]) - disturbed[i] >= LEAST_KEPT} for i, times in enumerate(kept)]}


def _segments_of(compiled: CompiledGraph) -> tuple[Device, list[Segment]] | None:
    """The device and what launches there, of a graph that computes on one that is not the host; None of another."""
    segments = [s for s in compiled.executors[0].segments if not isinstance(s, Transfers)]
    devices = {i.device for i in compiled.executors[0].program.instructions if i.call.engine != "transfer"}
    on_one = len(devices) == 1 and HOST.name not in devices and all(isinstance(s, Launches | OnDevice) for s in segments)
    return (device_named(devices.pop()), segments) if on_one else None


def _on_its_clock(device: Device, segments: Sequence[Segment], ready: Prepared, ahead: Mapping[Device, HostAhead],
                  byte: int) -> float:
    """Seconds of segments by the clock of their device, each with empty caches."""
    return sum(ahead[device].seconds(partial(segment.run, ready._frame), byte) for segment in segments)


def as_called(compiled: CompiledGraph, inputs: Mapping[str, Any], dims: Mapping[str, int]) -> Callable[[], dict[str, Any]]:
    """A run as a program calls it, which gives nothing that follows from the inputs: a path of one native call then costs some
    microseconds beside its kernels, any other one ten times as much."""
    return partial(compiled.run, dict(inputs), dims=_no_input_says(compiled.graph, dims),
                   session=compiled.session() if compiled.graph.states else None)


def _no_input_says(graph: Graph, dims: Mapping[str, int]) -> dict[str, int] | None:
    """The sizes that follow from no input; None where there are none."""
    shown = {s for node in graph.inputs.values() for s in node.type.shape}
    return {n: size for n, size in dims.items() if graph.dims[n] not in shown} or None


def quiet(around: Sequence[Sequence[tuple[float, bool]]]) -> list[list[int]]:
    """Of each path the runs that nothing disturbed: no other program ran, and the reference stream before took what it takes at
    best. around: of each run, the reference's seconds and whether no other program ran."""
    level = level_of([seconds for runs in around for seconds, _ in runs])
    return [[k for k, (seconds, alone) in enumerate(runs) if alone and seconds <= QUIET * level] for runs in around]


def plain_outputs(graph: Graph, weights: Mapping[str, np.ndarray], inputs: Mapping[str, Any],
                  dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Of one run along the plain path, of numpy's own kernels; none where that would take much memory."""
    plan = plain_plan(graph)
    if plan is None or plan.memory(**dims).arena > PLAIN_BYTES:
        return {}
    plain = bind(plan, weights)
    return {name: np.array(array) for name, array in plain._run(inputs, dims, plain.session(), None).items()}


def other_than(expected: Mapping[str, np.ndarray], outputs: Mapping[str, Any]) -> str:
    """Which output has nothing to do with what is expected, and by how much; "" where none. Of floats, and where they are finite:
    paths round differently, which is for the comparison of each kernel alone to judge."""
    for name, right in expected.items():
        if right.dtype.kind in "biu":
            continue
        a, b = (np.asarray(x).astype(np.float64) for x in (right, outputs[name]))
        finite = np.isfinite(a)
        size = float(np.linalg.norm(a[finite]))
        error = float(np.linalg.norm(a[finite] - b[finite]))
        if not error <= OTHER * size:
            return f"output {name} of a run in place differs from the plain path's by {error / (size or 1.0):.2g} of its size"
    return ""


def path_plan(graph: Graph, expanded: Graph, path: Path, backends: Sequence[str]) -> Plan:
    """The plan of a path, as the compiler lowers it. expanded: the graph with what the path runs in place of composites."""
    return plan_along(graph, list(expanded.roots), lambda node: kernel_named(path.choices[signature_of(node).key]),
                      copy_kernels(backends), tuple(backends), kernel_of_all_steps(path).name if path.all_steps else "")


def filled(t: TensorType, seed: int) -> np.ndarray:
    """Small random numbers (integers 0 to 3) of a type, one block of them over and over."""
    rng = np.random.default_rng(seed)
    block = rng.standard_normal(BLOCK).astype(np.float32) * np.float32(0.05) if t.dtype.is_float else rng.integers(0, 4, BLOCK)
    return np.resize(block.astype(t.dtype.numpy), tuple(int(s) for s in t.shape))


@dataclass(frozen=True)
class PlacedInstructions:
    """Which instructions belong to which place of a part. keys: by place, the part's key and its way. homes: instruction -> places,
    several where a part is inside of another one.
    copied: those that copy what a place made: they are the part's, and no step's; other copies are the step's that reads them."""

    keys: Sequence[tuple[str, str]]
    homes: Mapping[int, Sequence[int]]
    copied: Set[int]


def parts_of(plan: Plan, expanded: Graph, parts: Sequence[tuple[str, str, Sequence[int]]]) -> PlacedInstructions:
    """parts: as `places_of_parts` has them."""
    program = plan.variants[0].program
    nodes = expanded.nodes
    makers: dict[int, list[int]] = {}
    for place, (_, _, inside) in enumerate(parts):
        for buffer in dict.fromkeys(program.values[nodes[i]].buffer for i in inside if nodes[i] in program.values):
            makers.setdefault(buffer, []).append(place)
    homes: dict[int, list[int]] = {}
    copied, waiting = set[int](), list[int]()                       # waiting: for the step that comes next
    for i, ins in enumerate(program.instructions):
        step = bool(ins.signature) and not ins.label.startswith("prepare_")
        at = next((makers[o.buffer] for o in (ins.outs if step else ins.ins) if o.buffer in makers), None)
        if at is not None:
            homes |= dict.fromkeys([i, *waiting] if step else [i], at)
        if step:
            waiting.clear()
        elif at is None:
            waiting.append(i)
        else:
            copied.add(i)
    return PlacedInstructions([(key, way) for key, way, _ in parts], homes, copied)


def times_of_parts(samples: np.ndarray, placed: PlacedInstructions) -> list[tuple[str, str, list[float]]]:
    """(part's key, way, mean seconds of a place in each run); samples[run, instruction]."""
    sums: dict[int, np.ndarray] = {}
    for i, places in placed.homes.items():
        for place in places:
            sums[place] = sums.get(place, 0.0) + samples[:, i]
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for place, taken in sums.items():
        found.setdefault(placed.keys[place], []).append(taken)
    return [(key, way, np.mean(each, axis=0).tolist()) for (key, way), each in found.items()]


def steps_of(plan: Plan, samples: np.ndarray, placed: PlacedInstructions) -> list[tuple[str, str, list[float]]]:
    """(signature key, kernel, mean seconds of a call in each run); samples[run, instruction]. A copy that a kernel needed, and what
    it prepares in every run, counts as the kernel's; a copy of what a part with recipes made counts as the part's alone."""
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    waiting = np.zeros(len(samples))
    for i, ins in enumerate(plan.variants[0].program.instructions):
        if not ins.signature or ins.label.startswith("prepare_"):
            waiting = waiting + (0.0 if i in placed.copied else samples[:, i])
            continue
        found.setdefault((ins.signature, ins.kernel), []).append(samples[:, i] + waiting)
        waiting = np.zeros(len(samples))
    return [(key, name, np.mean(calls, axis=0).tolist()) for (key, name), calls in found.items()]
