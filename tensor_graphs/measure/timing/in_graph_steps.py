"""in_graph_steps: times each step of a path through an entire graph in place: in the real order among the other steps.

A kernel that is fast alone may be slow in its plan: other kernels leave other data in caches, and threads of two runtimes disturb
each other. Paths run interleaved in one worker, so that a noisy neighbour slows all of them. The time of every step is stored as an
`in_graph` trace of its kernel. All kernels have verdicts, so weights are repeated random numbers. But a user-registered kernel may
compute only where it is judged: with one, outputs are compared with those of the plain path."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from tensor_graphs.costs.database_keys import (
    VERIFIER,
    assumed_by,
    environment_of,
    graph_record,
    implementation_of,
    path_environment,
    path_implementation,
    path_workload,
    timed_workload,
    whole_graph_record,
)
from tensor_graphs.devices.environment import Environment
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.kernel_origin import origin_of
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp, between, known_when_bound
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.node import Node, is_step, walk
from tensor_graphs.measure.isolation.replies import ReportedPath
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.timing.noise_reference import waits_for_quiet
from tensor_graphs.measure.timing.statistics import summarise
from tensor_graphs.paths.path import EXPAND, Path, expanded, is_way_on
from tensor_graphs.records.logs import reason_of
from tensor_graphs.records.rows import ImplementationRecord, TraceRecord

log = logging.getLogger(__name__)

MOST_RUNS, LEAST_RUNS = 20, 4
SECONDS = 8.0
"""approximate seconds of all runs together"""


class NotDeployed(Exception):
    """Failure of a worker to run these paths; the message gives the reason. path: the path whose outputs were wrong, if any."""

    def __init__(self, message: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Deployed:
    """Measurement of one path. whole: seconds of each run from start to end. sums: seconds of all its steps in each run. steps:
    (signature key, kernel name) -> mean seconds of a call, run by run. parts: (signature key, definition or recipe) -> mean seconds
    of a part that has recipes (graphs that mean the same): of its steps and the copies of its results. quiet: nothing disturbed
    these runs. error: of the outputs relative to the oracle (path_errors.py; check_decoder_kernel.py where one kernel runs all
    steps), None where not measured. around: seconds in each of `whole` that the host spent, where another device timed the rest;
    equal for all such paths of a measurement. None: the host timed everything."""

    path: Path
    whole: tuple[float, ...]
    sums: tuple[float, ...]
    steps: Mapping[tuple[str, str], tuple[float, ...]]
    parts: Mapping[tuple[str, str], tuple[float, ...]]
    quiet: bool
    error: float | None = None
    around: float | None = None


def measure_deployed(judge: Judge, graph: Graph, paths: Sequence[Path], kernels: Mapping[str, Kernel], binding: Mapping[str, int],
                     backends: Sequence[str]) -> list[Deployed]:
    """Run paths of one graph interleaved in a worker, and time their steps. kernels: name -> kernel. Raises NotDeployed."""
    expected = sum(p.seconds for p in paths)
    runs = int(min(MOST_RUNS, max(LEAST_RUNS, SECONDS / max(expected, 1e-6))))
    return _run(judge, graph, paths, kernels, binding, backends, {"runs": runs, "rounds": 0})


def measure_whole(judge: Judge, graph: Graph, paths: Sequence[Path], kernels: Mapping[str, Kernel], binding: Mapping[str, int],
                  backends: Sequence[str], rounds: int, seconds: float) -> list[Deployed]:
    """Time runs of paths of one graph like `measure_deployed`, but not their steps: `rounds` iterations of each path, with cold
    weights. After `seconds` no iteration begins, except the second. Raises NotDeployed."""
    return _run(judge, graph, paths, kernels, binding, backends, {"rounds": rounds, "seconds": seconds})


def _run(judge: Judge, graph: Graph, paths: Sequence[Path], kernels: Mapping[str, Kernel], binding: Mapping[str, int],
         backends: Sequence[str], how: Mapping[str, float]) -> list[Deployed]:
    """Return the worker's times of these paths. Raises NotDeployed."""
    placed = [places_of_parts(graph, p) for p in paths]             # recipes are no part of a graph's JSON, so it goes expanded
    job = {"kind": "deployed", "graph": graph_to_json(graph), "binding": dict(binding),
           "paths": [{"path": p.to_json(), "graph": graph_to_json(whole), "parts": parts}
                     for p, (whole, parts) in zip(paths, placed, strict=True)],
           "backends": tuple(backends), "compared": any(not k.ours for k in kernels.values()), "threads": judge.threads,
           "origins": sorted({origin_of(k) for k in kernels.values()}, key=str),
           "identities": {k.name: k.identity for k in kernels.values()},
           "guests": sorted(k.identity for k in kernels.values() if not k.ours), **how}
    reply = judge.worker.run(job, what=f"{len(paths)} whole paths")
    if reply.status == "OTHER":                                     # a worker that had imported a module before it was edited
        judge.worker.kill()
        reply = judge.worker.run(job, what=f"{len(paths)} whole paths")
    if reply.status != "RAN":
        wrong = dict(enumerate(paths)).get(reply.path)
        log.debug("%d whole paths could not be run: %s\n%s", len(paths), reply.status, reply.log)
        raise NotDeployed(reason_of(reply.log) or reply.status, wrong)
    if len(reply.paths) != len(paths) or not all(map(_goes_with, reply.paths, paths)):
        raise NotDeployed("what the worker said of whole paths does not go with what it was asked")
    return [Deployed(path, **vars(times)) for path, times in zip(paths, reply.paths, strict=True)]


def _goes_with(reported: ReportedPath, path: Path) -> bool:
    """Return whether the reported times are of steps that this path has, with one time of each per run."""
    runs = len(reported.whole)
    return 0 < runs == len(reported.sums) and all(path.choices.get(key) == name and len(times) == runs
                                              for (key, name), times in (*reported.steps.items(), *reported.parts.items()))


def refute(judge: Judge, wrong: Path, why: str, kernels: Mapping[str, Kernel], signatures: Mapping[str, Signature],
           binding: Mapping[str, int], verifier: str) -> bool:
    """Store that a kernel is wrong in place, if only one kernel of this path can be the cause; return whether it was stored."""
    suspects = [key for key, name in wrong.choices.items() if name in kernels and not kernels[name].ours]
    if len(suspects) != 1:
        return False
    (key,) = suspects
    kernel, signature = kernels[wrong.choices[key]], signatures[key]
    judge.database.ensure_graph(graph_record(signature))
    judge.database.add_trace(TraceRecord(
        implementation_of(kernel), timed_workload(signature, binding), environment_of(kernel.backend, judge.threads),
        "in_graph", "INCORRECT_NUMERICAL", max_relative_error=float("inf"), verifier=verifier, log=why))
    return True


@dataclass(frozen=True)
class PartRow:
    """Fields of the row for a part's time by its definition or a recipe. target: the signature of what runs instead."""

    signature: Signature
    target: Signature
    implementation: ImplementationRecord
    environment: Environment


def record_whole(judge: Judge, graph: Graph, measured: Sequence[Deployed], kernels: Mapping[str, Kernel],
                 binding: Mapping[str, int], backends: Sequence[str]) -> None:
    """Store the times of runs of entire paths, each as a trace of its path. backends: those that ran them; a path of copies only is
    stored under all of them, as it has no kernel that tells where it ran."""
    judge.database.ensure_graph(whole_graph_record(graph))
    among = [deployed.path.id for deployed in measured]
    for deployed in measured:
        computing = {kernels[name].backend for name in deployed.path.choices.values() if name in kernels} or backends
        judge.database.add_trace(TraceRecord(
            path_implementation(deployed.path, described(deployed.path, kernels)), path_workload(graph, binding),
            path_environment(computing, judge.threads), "in_graph", "PASSED", max_relative_error=deployed.error,
            samples_ms=tuple(s * 1e3 for s in deployed.whole), timer="perf_counter", verifier=VERIFIER,
            conditions={"threads": judge.threads or 0, "path": deployed.path.to_json(), "among": among,
                        "quiet": deployed.quiet if waits_for_quiet() else None, "in_place": summarise(deployed.whole).to_json(1e3),
                        "around_ms": None if deployed.around is None else deployed.around * 1e3}))


def described(path: Path, kernels: Mapping[str, Kernel]) -> str:
    """Return a path's kernels for people: the one that computes the graph's only op, or those of its steps: "numpy.tanh"; "its
    definition by c.add, c.mul, gen.loops"; "gen.loops, numpy.linear" for several ops; "my.softmax (assumes no overflow)"."""
    names = sorted({name for name in path.choices.values() if not is_way_on(name)})
    way, assumed = path.choices.get(path.graph_key, ""), assumed_by(kernels[name] for name in names if name in kernels)
    by = "its definition by " if way == EXPAND else f"{way} by " if way and is_way_on(way) else ""
    return f"{by}{', '.join(names)}{f' ({assumed})' if assumed else ''}"


def record_wrong_at_once(judge: Judge, graph: Graph, wrong: Path, why: str, kernels: Mapping[str, Kernel],
                         binding: Mapping[str, int]) -> None:
    """Store that the kernel that runs all steps of a path computes wrong results."""
    judge.database.ensure_graph(whole_graph_record(graph))
    backends = {kernels[name].backend for name in wrong.choices.values() if name in kernels}
    judge.database.add_trace(TraceRecord(
        path_implementation(wrong), path_workload(graph, binding), path_environment(backends, judge.threads), "in_graph",
        "INCORRECT_NUMERICAL", max_relative_error=float("inf"), verifier=VERIFIER, log=why,
        conditions={"threads": judge.threads or 0, "path": wrong.to_json()}))


def record_parts(judge: Judge, measured: Sequence[Deployed], rows: Mapping[tuple[str, str, str], PartRow],
                 binding: Mapping[str, int]) -> None:
    """Store the times of parts as traces of their recipes. rows: by (path's id, part's key, definition or recipe)."""
    for deployed in measured:
        for (key, way), times in deployed.parts.items():
            if (row := rows.get((deployed.path.id, key, way))) is None:     # nothing is known to compute it in a run
                continue
            for signature in (row.signature, row.target):
                judge.database.ensure_graph(graph_record(signature))
            judge.database.add_trace(TraceRecord(
                row.implementation, timed_workload(row.signature, binding), row.environment, "in_graph", "PASSED",
                samples_ms=tuple(s * 1e3 for s in times), timer="perf_counter", verifier=VERIFIER,
                conditions={"threads": judge.threads or 0, "paths": [deployed.path.id], "whole_ms": median(deployed.whole) * 1e3,
                            "quiet": deployed.quiet if waits_for_quiet() else None, "in_place": summarise(times).to_json(1e3)}))


def record_deployed(judge: Judge, measured: Sequence[Deployed], kernels: Mapping[str, Kernel], signatures: Mapping[str, Signature],
                    binding: Mapping[str, int], verifier: str) -> int:
    """Store the time of every step as a trace of its kernel, in one trace if paths share it. Return the number of traces."""
    holding: dict[tuple[str, str], list[Deployed]] = {}
    for deployed in measured:
        for step in deployed.steps:
            holding.setdefault(step, []).append(deployed)
    for (key, name), held in holding.items():
        kernel, signature = kernels[name], signatures[key]
        quiet = [d for d in held if d.quiet]                        # of several runs of this step, those that nothing disturbed
        counting = quiet or held
        judge.database.ensure_graph(graph_record(signature))
        judge.database.add_trace(TraceRecord(
            implementation_of(kernel), timed_workload(signature, binding), environment_of(kernel.backend, judge.threads),
            "in_graph", "PASSED", samples_ms=tuple(s * 1e3 for d in counting for s in d.steps[key, name]), timer="perf_counter",
            verifier=verifier, conditions={"threads": judge.threads or 0, "paths": [d.path.id for d in counting],
                                           "whole_ms": min(median(d.whole) for d in counting) * 1e3,
                                           "quiet": bool(quiet) if waits_for_quiet() else None,
                                           "in_place": summarise([s for d in counting for s in d.steps[key, name]]).to_json(1e3)}))
    return len(holding)


def places_of_parts(graph: Graph, path: Path) -> tuple[Graph, list[tuple[str, str, list[int]]]]:
    """Return the graph after the path's expansions, and for each occurrence of a part with recipes and no kernel (also if nested)
    the part's key, the chosen definition or recipe, and the indices of its nodes."""
    values = list(graph.roots)
    places: list[tuple[str, str, range, range]] = []                 # key, way, where in values its ends are, and its operands
    now = _expanded_parts(values, path)
    while True:
        for n in now:
            at, operands = len(values), len(values) + len(n.types)
            values += [*(leaves.item(n, i) for i in range(len(n.types))), *n.inputs]
            key = signature_of(n).key
            places.append((key, path.choices[key], range(at, operands), range(operands, len(values))))
        values = expanded(values, path, partial(_is_deeper, now))   # one level of parts at a time
        now = _expanded_parts(values[:len(graph.roots)], path)
        if not now:
            break
    whole = graph.with_roots(values[:len(graph.roots)])
    number = {n: i for i, n in enumerate(whole.nodes)}
    return whole, [(key, way, [number[x] for x in between([values[i] for i in out], [values[i] for i in operands])
                               if is_step(x) and x in number])
                   for key, way, out, operands in places]


def running_signatures(graph: Graph, path: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the keys of the signatures that a run along the path computes, and (key, definition or recipe) of the parts of which
    it computes something. The rest is computed when the graph is bound, or never read; it has no time in a run."""
    whole, places = places_of_parts(graph, path)
    bound = known_when_bound(whole.nodes)
    steps = {i: signature_of(n).key for i, n in enumerate(whole.nodes) if is_step(n) and n not in bound}
    return set(steps.values()), {(key, way) for key, way, inside in places if not steps.keys().isdisjoint(inside)}


def _has_recipes(node: Node) -> bool:
    return isinstance(node.op, PartOp) and bool(node.op.recipes)


def _is_deeper(level: Collection[Node], node: Node) -> bool:
    return _has_recipes(node) and node not in level


def _expanded_parts(nodes: Sequence[Node], path: Path) -> dict[Node, None]:
    """Return the parts with recipes below these nodes for which the path chooses no kernel."""
    return dict.fromkeys(n for n in walk(nodes) if _has_recipes(n) and is_way_on(path.choices[signature_of(n).key]))
