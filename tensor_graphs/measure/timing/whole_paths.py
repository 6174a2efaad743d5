"""whole_paths: the worker's part of in_graph_steps.py: builds the plans of several paths of one graph and runs them interleaved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from tensor_graphs.devices.device import Device
from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.kernels.registry import copy_kernels, kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.language.node import TensorType
from tensor_graphs.measure import path_errors
from tensor_graphs.measure.points.inputs import make_inputs
from tensor_graphs.measure.points.single_op_plans import plain_plan, plan_along
from tensor_graphs.measure.timing.bench import LLC_BYTES
from tensor_graphs.measure.timing.check_decoder_kernel import error_at_once
from tensor_graphs.measure.timing.clock import now, others_running, switches
from tensor_graphs.measure.timing.launch_ahead import HostAhead
from tensor_graphs.measure.timing.noise_reference import QUIET, level_of, reference_stream, waits_for_quiet
from tensor_graphs.measure.timing.settle_threads import settle, warm_up
from tensor_graphs.paths.path import Path, kernel_of_all_steps
from tensor_graphs.paths.path_reader import path_from_json
from tensor_graphs.paths.plan import Plan
from tensor_graphs.paths.residency import arriving
from tensor_graphs.runtime.arrays import device_array
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.runtime.prepared_run import Prepared
from tensor_graphs.runtime.segments.captured_calls import OnDevice
from tensor_graphs.runtime.segments.launches import Launches
from tensor_graphs.runtime.segments.segment import Segment
from tensor_graphs.runtime.segments.transfers import Transfers

BLOCK = (1 << 20) + 7
"""number of random numbers that weights repeat; odd, so that rows of a matrix differ"""

OTHER = 0.1
"""share of an output's size (its Euclidean norm) by which another rounding cannot make it differ from the plain path's"""

PLAIN_BYTES = 1 << 30
"""bytes of intermediate results above which the plain path is not run for its outputs"""

TURN, EACH_TURN = 5, 3
"""TURN: runs of a path in a row, the first of which does not count. EACH_TURN: the number where only entire runs are timed"""

LEAST_KEPT = 3
"""least number of fastest iterations of a path that count (otherwise half of them)"""

FLUSHED, TWICE = 2 * LLC_BYTES, 4 * LLC_BYTES
"""FLUSHED: bytes read before a run, so that no weights are left in the caches. TWICE: bytes of weights up to which a path is bound
to two copies of them; more do not stay in the caches from run to run"""

WRONG_AT_ONCE = 1e-2
"""error above which a kernel of all steps is wrong at any tolerance: it has some hundred steps, each of which may be off by 1e-4"""

TURNS_THERE, SETTLING = 12, 4
"""iterations of each path on another device; the first of them, which do not count: later ones replay what was captured"""

FEW_QUIET = 4
"""least number of undisturbed runs of a path: with fewer it is run up to twice as often, and then all its runs count"""


def run_deployed(job: Mapping[str, Any]) -> dict[str, Any]:
    """Build every path's plan, run the plans interleaved, return the times of their steps; with `rounds`, of entire runs."""
    graph = graph_from_json(job["graph"])
    for name, identity in job["identities"].items():
        if kernel_named(name).identity != identity:
            return {"status": "OTHER", "log": f"{name} is another kernel in the worker: its source is not the same there"}
    weights = {name: filled(node.type.at({}), i) for i, (name, node) in enumerate(graph.parameters.items())}
    inputs = given_there(graph, make_inputs(graph, job["binding"], 1))
    dims = {n: s for n, s in job["binding"].items() if n in graph.dims}
    expanded = [graph_from_json(p["graph"]) for p in job["paths"]]
    plans = [path_plan(graph, report, path_from_json(p["path"]), job["backends"])
             for report, p in zip(expanded, job["paths"], strict=True)]
    errors = [error_at_once(plan, weights) if plan.variants[0].path.all_steps else 0.0 for plan in plans]
    for i, error in enumerate(errors):
        if not error <= WRONG_AT_ONCE:
            return {"status": "INCORRECT_NUMERICAL", "log": f"all steps at once: an error of {error:.2g}", "path": i}
    expected = plain_outputs(graph, weights, inputs, dims) if job["compared"] else {}
    if job["rounds"]:
        if any(plan.elsewhere for plan in plans):
            reply = run_whole_there(graph, plans, weights, inputs, dims, expected, job["seconds"])
        else:
            reply = run_whole(graph, plans, weights, inputs, dims, expected, job["rounds"], job["seconds"])
        for report, error, plan in zip(reply.get("paths", ()), errors, plans, strict=False):
            if plan.variants[0].path.all_steps:
                report["error"] = error
        return reply
    parts = [parts_of(plan, report, p["parts"]) for plan, report, p in zip(plans, expanded, job["paths"], strict=True)]
    compiled = [bind(plan, weights) for plan in plans]
    sessions = [c.session() for c in compiled]
    taken: list[list[np.ndarray]] = [[] for _ in plans]
    whole: list[list[float]] = [[] for _ in plans]
    around: list[list[tuple[float, bool]]] = [[] for _ in plans]
    reference = reference_stream("arithmetic", False)               # it leaves the caches unchanged
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
                again = bool(graph.states) and bool(run or samples)      # its state is a step further than the plain path's
                if not again and (wrong := other_than(expected, outputs)):
                    return {"status": "INCORRECT_NUMERICAL", "log": wrong, "path": i}
                if run:
                    spent.append(ended - start)
                    samples.append(seconds)
                    around[i].append((before, alone))
                del outputs                                         # or the next run's lie elsewhere
    reports = []
    for plan, placed, samples, spent, calm in zip(plans, parts, taken, whole, quiet(around), strict=True):
        counting = calm if len(calm) >= FEW_QUIET else range(len(samples))
        of_runs = np.array([samples[k] for k in counting])
        reports.append({"whole": [spent[k] for k in counting], "steps": steps_of(plan, of_runs, placed),
                      "parts": times_of_parts(of_runs, placed), "sums": [float(samples[k].sum()) for k in counting],
                      "quiet": len(calm) >= FEW_QUIET, "error": None, "around": None})
    return {"status": "RAN", "paths": reports}


def given_there(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the inputs on the devices where the graph reads them, so that they are not copied in each run."""
    there = arriving(graph.nodes, graph.roots)
    nodes = {name: there.get(node) for name, node in graph.inputs.items()}
    return {name: a if (device := nodes[name]) is None else device_array(a, device) for name, a in inputs.items()}


def run_whole(graph: Graph, plans: Sequence[Plan], weights: Mapping[str, np.ndarray], inputs: Mapping[str, Any],
              dims: Mapping[str, int], expected: Mapping[str, np.ndarray], rounds: int, seconds: float) -> dict[str, Any]:
    """Time entire runs of the plans, interleaved: code and activations warm, weights cold. rounds: iterations of each plan; after
    `seconds` no iteration begins, except the second. Of each iteration the fastest run counts, and of the iterations the faster
    half. Plans with few weights are bound again in each, to new memory: the addresses of arrays change times by up to a tenth."""
    nbytes = sum(a.nbytes for a in weights.values())
    sets = [weights]
    if 0 < nbytes <= TWICE:                                         # one warms code up, the other's run counts
        sets.append({name: filled(node.type.at({}), len(weights) + i) for i, (name, node) in enumerate(graph.parameters.items())})

    def deployed(number: int) -> list[Callable[[], dict[str, Any]]]:
        return [as_called(bind(plans[number], values), inputs, dims) for values in sets]

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
            sets = [{name: a.copy() for name, a in values.items()} for values in sets]
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
    reports: list[dict[str, Any]] = []
    errors = path_errors.errors_of(graph, first, inputs, weights, dims) if measured else [None] * len(plans)
    for turns, error in zip(whole, errors, strict=True):
        # the faster half: a thread that had fallen asleep costs some runs of a short path three times its time, by chance
        fastest = sorted(spent for _, spent in turns)[:max(LEAST_KEPT, (len(turns) + 1) // 2)]
        calm = sum(not disturbed for disturbed, _ in turns) >= len(fastest)
        reports.append({"whole": fastest, "sums": fastest, "steps": [], "parts": [], "quiet": calm, "error": error, "around": None})
    return {"status": "RAN", "paths": reports}


def run_whole_there(graph: Graph, plans: Sequence[Plan], weights: Mapping[str, np.ndarray], inputs: Mapping[str, Any],
                    dims: Mapping[str, int], expected: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
    """Do the same as `run_whole` for plans of which some compute on another device. Each is bound once; they run interleaved, with
    empty caches there, and count once repeated work is replayed. After `seconds` no iteration begins, except a few that count.

    Plans that compute only on that device get their steps' time by its clock plus `around`: the least time that the host spends
    around that in any of them, as it is equal for all and varies by more than a step takes. Other plans get the host's time, from
    the call to the end of all that was begun."""
    compiled = [bind(plan, weights) for plan in plans]
    runs: list[tuple[CompiledGraph, Prepared]] = []
    for i, bound in enumerate(compiled):
        session = bound.session() if graph.states else None
        ready = bound.prepared(dict(inputs), dims=_no_input_says(graph, dims), session=session)
        if wrong := other_than(expected, ready.run()):
            return {"status": "INCORRECT_NUMERICAL", "log": wrong, "path": i}
        runs.append((bound, ready))
    there = dict.fromkeys(name for plan in plans for name in plan.elsewhere)
    ahead = {device: HostAhead(device) for device in map(device_named, there)}
    alone = list(map(_segments_of, compiled))
    here = np.ones(0 if all(a is not None for a in alone) or not weights else FLUSHED // 8)
    owns: list[list[float]] = [[] for _ in runs]
    walls: list[list[float]] = [[] for _ in runs]
    disturbed = [0 for _ in runs]
    end = now() + seconds
    for turn in range(TURNS_THERE):
        if turn >= SETTLING + LEAST_KEPT and now() > end:
            break
        for i, (bound, ready) in enumerate(runs):
            if (own := alone[i]) is not None:
                owns[i].append(_on_its_clock(*own, ready, ahead, turn))
            for one in ahead.values():
                one.flush(turn)
            here.sum()
            bound.wait()
            others, switched = others_running(), switches()
            start = now()
            ready.run()
            bound.wait()
            walls[i].append(now() - start)
            disturbed[i] += turn >= SETTLING and bool(others or switches() - switched or others_running())
    walls, owns = [times[SETTLING:] for times in walls], [times[SETTLING:] for times in owns]
    fastest = [sorted(times)[:max(LEAST_KEPT, (len(times) + 1) // 2)] for times in walls]
    around = max(0.0, min((median(by_host) - median(own) for by_host, own in zip(walls, owns, strict=True) if own), default=0.0))
    fastest = [[around + spent for spent in own] if own else by_host for own, by_host in zip(owns, fastest, strict=True)]
    return {"status": "RAN", "paths": [{"whole": times, "sums": times, "steps": [], "parts": [], "error": None,
                                        "around": around if owns[i] else None,
                                        "quiet": len(walls[i]) - disturbed[i] >= LEAST_KEPT} for i, times in enumerate(fastest)]}


def _segments_of(compiled: CompiledGraph) -> tuple[Device, list[Segment]] | None:
    """Return the device and its segments for a graph that computes on a single device other than the host; else None."""
    segments = [s for s in compiled.executors[0].segments if not isinstance(s, Transfers)]
    devices = {i.device for i in compiled.executors[0].program.instructions if i.call.engine != "transfer"}
    on_one = len(devices) == 1 and HOST.name not in devices and all(isinstance(s, Launches | OnDevice) for s in segments)
    return (device_named(devices.pop()), segments) if on_one else None


def _on_its_clock(device: Device, segments: Sequence[Segment], ready: Prepared, ahead: Mapping[Device, HostAhead],
                  byte: int) -> float:
    """Return the seconds of segments by the clock of their device, each with empty caches."""
    return sum(ahead[device].seconds(partial(segment.run, ready._frame), byte) for segment in segments)


def as_called(compiled: CompiledGraph, inputs: Mapping[str, Any], dims: Mapping[str, int]) -> Callable[[], dict[str, Any]]:
    """Return a function that runs the graph as a program calls it, without sizes that follow from the inputs: this adds some
    microseconds to the kernels of a path of one native call, and ten times as much to any other path."""
    return partial(compiled.run, dict(inputs), dims=_no_input_says(compiled.graph, dims),
                   session=compiled.session() if compiled.graph.states else None)


def _no_input_says(graph: Graph, dims: Mapping[str, int]) -> dict[str, int] | None:
    """Return the sizes that follow from no input; None where there are none."""
    shown = {s for node in graph.inputs.values() for s in node.type.shape}
    return {n: size for n, size in dims.items() if graph.dims[n] not in shown} or None


def quiet(around: Sequence[Sequence[tuple[float, bool]]]) -> list[list[int]]:
    """Return for each path the indices of undisturbed runs: no other program ran, and the reference stream before took about its
    best time. around: for each run, the reference's seconds and whether no other program ran."""
    level = level_of([seconds for runs in around for seconds, _ in runs])
    return [[k for k, (seconds, alone) in enumerate(runs) if alone and seconds <= QUIET * level] for runs in around]


def plain_outputs(graph: Graph, weights: Mapping[str, np.ndarray], inputs: Mapping[str, Any],
                  dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return the outputs of one run along the plain path, with numpy's kernels; {} where that would take much memory."""
    plan = plain_plan(graph)
    if plan is None or plan.memory(**dims).arena > PLAIN_BYTES:
        return {}
    plain = bind(plan, weights)
    return {name: np.array(array) for name, array in plain._run(inputs, dims, plain.session(), None).items()}


def other_than(expected: Mapping[str, np.ndarray], outputs: Mapping[str, Any]) -> str:
    """Return a message for the first output that is unrelated to the expected one, with their distance; "" if there is none. Only
    finite floats count: paths round differently, which each kernel's verdict allows for."""
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
    """Return the plan of a path, as the compiler lowers it. expanded: the graph with the definitions and recipes that it runs."""
    return plan_along(graph, list(expanded.roots), lambda node: kernel_named(path.choices[signature_of(node).key]),
                      copy_kernels(backends), tuple(backends), kernel_of_all_steps(path).name if path.all_steps else "")


def filled(t: TensorType, seed: int) -> np.ndarray:
    """Return an array of a type with small random numbers (integers 0 to 3): one block of them repeated."""
    rng = np.random.default_rng(seed)
    block = rng.standard_normal(BLOCK).astype(np.float32) * np.float32(0.05) if t.dtype.is_float else rng.integers(0, 4, BLOCK)
    return np.resize(block.astype(t.dtype.numpy), tuple(int(s) for s in t.shape))


@dataclass(frozen=True)
class PlacedInstructions:
    """Instructions that belong to each occurrence of a part. keys: by occurrence, the part's key and its definition or recipe.
    homes: instruction -> occurrences, several for nested parts. copied: instructions that copy an occurrence's results."""

    keys: Sequence[tuple[str, str]]
    homes: Mapping[int, Sequence[int]]
    copied: Set[int]


def parts_of(plan: Plan, expanded: Graph, parts: Sequence[tuple[str, str, Sequence[int]]]) -> PlacedInstructions:
    """Return the instructions of parts that `places_of_parts` has found."""
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
    """Return (part's key, definition or recipe, mean seconds of an occurrence in each run). samples[run, instruction]: seconds."""
    sums: dict[int, np.ndarray] = {}
    for i, places in placed.homes.items():
        for place in places:
            sums[place] = sums.get(place, 0.0) + samples[:, i]
    times: dict[tuple[str, str], list[np.ndarray]] = {}
    for place, taken in sums.items():
        times.setdefault(placed.keys[place], []).append(taken)
    return [(key, way, np.mean(calls, axis=0).tolist()) for (key, way), calls in times.items()]


def steps_of(plan: Plan, samples: np.ndarray, placed: PlacedInstructions) -> list[tuple[str, str, list[float]]]:
    """Return (signature key, kernel, mean seconds of a call in each run). samples[run, instruction]: seconds. Copies and
    preparations in every run count for the next kernel; a copy of the result of a part with recipes counts only for the part."""
    times: dict[tuple[str, str], list[np.ndarray]] = {}
    waiting = np.zeros(len(samples))
    for i, ins in enumerate(plan.variants[0].program.instructions):
        if not ins.signature or ins.label.startswith("prepare_"):
            waiting = waiting + (0.0 if i in placed.copied else samples[:, i])
            continue
        times.setdefault((ins.signature, ins.kernel), []).append(samples[:, i] + waiting)
        waiting = np.zeros(len(samples))
    return [(key, name, np.mean(calls, axis=0).tolist()) for (key, name), calls in times.items()]
