"""cost_table: which kernels may be used, and what they cost by rows of the database, or else by an estimate that is marked as one.

A kernel may be used for a signature once a verdict for this machine is in the database: it was compared with the oracle at several
sizes, passed, and its error is within the tolerance, if any. A kernel without a verdict is a candidate: the compiler has it
verified before it uses it.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tensor_graphs.choice.request import Request, roundoff
from tensor_graphs.costs.database_keys import (
    VERIFIER,
    environment_of,
    part_environment,
    part_implementation,
    path_environment,
    path_workload,
    timed_workload,
    timing_key,
    verdict_key,
    verify_workload,
)
from tensor_graphs.costs.learned import cost_model
from tensor_graphs.costs.measured_rates import known_links, known_rates, prior_rates
from tensor_graphs.costs.roofline import BACKEND_RATES, DeviceRates, LinkRates, estimate_seconds, says_of
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.kernel_origin import out_of_reach
from tensor_graphs.kernels.registry import all_kernels, backend_module, device_of, why_missing
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import TensorType
from tensor_graphs.meaning.same_math import same_math_limit
from tensor_graphs.paths.path import Alternative, Cost, CostOf, Paths, Steps
from tensor_graphs.paths.path import Path as GraphPath
from tensor_graphs.paths.plan import given_sizes, midpoint
from tensor_graphs.phase_times import phase
from tensor_graphs.records.database import Database
from tensor_graphs.records.measurements import KnownTime, latest_traces, times_at, trace_conditions, why_failed
from tensor_graphs.records.rows_digest import generation

if TYPE_CHECKING:
    from tensor_graphs.costs.learned.trees import Estimate

log = logging.getLogger(__name__)

COPY_SECONDS = 0.3e-6
"""seconds per call of a copy, in addition to the time of moving its bytes"""

ESTIMATE_MARGIN = 2.0
"""factor on estimates when a path is chosen to be used: a roofline is a lower bound, and a measurement is preferred to an estimate.
Where a kernel of the same op was timed, an estimate is raised further, by the ratio of that measurement to its own roofline:
whatever makes this op slower than its roofline also slows the next kernel. Measurements of the kernel's own backend count before
those of others. On one backend an estimate thus never beats a measurement, unless the kernel moves less than half as much as the
timed one; a kernel of a backend without a measurement may, if its roofline is more than twice as fast. Measurements of
user-registered kernels raise no estimate: such a kernel may just be slow."""

UNKNOWN_HAND = 1.5
"""further factor for user-registered kernels until they are timed: the rates of a backend are those of built-in kernels. It is
about what one kernel in place of two saves. A plain loop that a user registers for several ops thus does not win by that estimate
alone, and is still listed among the first paths"""

NEAR = 0.97
"""factor on a cost; another cost below that is lower by more than measurements vary"""


@dataclass(frozen=True)
class MeasuredPath:
    """A path that was run as a whole. seconds: of a run, comparable between paths; row: the measurement."""

    path: GraphPath
    seconds: float
    row: KnownTime

    @property
    def took(self) -> float:
        """Seconds of a run, as measured."""
        return (self.row.median_ms or 0.0) * 1e-3


@dataclass
class CostTable:
    """Measurements of kernels in this machine's environments, and estimates for the rest.

    threads: only measurements with this many threads count (None: the default number). margin: factor on estimates; 1 for deciding
    what to measure next, ESTIMATE_MARGIN for choosing a plan."""

    database: Database
    backends: tuple[str, ...]
    tolerance: float | None
    threads: int | None = None
    margin: float = 1.0
    assuming: tuple[str, ...] = ()
    """conditions on values that the caller assumes"""
    known: dict[str, dict[tuple[str, str], KnownTime]] = field(default_factory=dict)
    in_graph: dict[str, dict[tuple[str, str], KnownTime]] = field(default_factory=dict)
    parts: dict[str, dict[tuple[str, str], KnownTime]] = field(default_factory=dict)
    """environment key -> times of parts run as a whole, read on demand"""
    generation: str = ""
    """digest of the rows that were read (records/rows_digest.py)"""
    rates: dict[str, DeviceRates] = field(default_factory=dict)
    """device name -> its rates"""
    links: dict[tuple[str, str], LinkRates] = field(default_factory=dict)
    """(source, target) -> rates of copies between the host and another device"""
    _timed_on: dict[str, list[tuple[str, KnownTime]]] | None = field(default=None, repr=False)
    """workload key -> (backend, row) of all times of that workload"""
    _tried: dict[str, list[MeasuredPath]] = field(default_factory=dict, repr=False)
    _off: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict, repr=False)
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)
    """(kernel's identity, signature key) -> why this process does not use it, when its compiler or the judge failed; not in the
    database"""
    _estimates: dict[tuple[str, str], Estimate] = field(default_factory=dict, repr=False)
    _unreachable: dict[str, str | None] = field(default_factory=dict, repr=False)
    _logged: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, request: Request, margin: float = 1.0) -> CostTable:
        """Return the cost table for a request, with its rows loaded."""
        return cls(request.store, request.here, request.allowed, request.threads, margin,
                   request.assumed).load()

    @phase("rows")
    def load(self) -> CostTable:
        """Read all measurements of these environments, with two queries per backend, and the rates of its devices."""
        self.generation = generation(self.database)                 # before they are read: rows that come meanwhile are newer
        for backend in self.backends:
            if why_missing(backend) is None:
                environment = environment_of(backend, self.threads)
                if hasattr(backend_module(backend), "TUNED"):       # a door: most backends have what they have
                    from tensor_graphs.choice.tuned_kernels import know_tuned

                    know_tuned(self.database, backend, environment)
                self.known[backend] = latest_traces(self.database, environment, "cold", verifier=VERIFIER)
                self.in_graph[backend] = latest_traces(self.database, environment, "in_graph", verifier=VERIFIER)
        self.parts.clear()
        self._tried.clear()
        here = [name for name in self.backends if why_missing(name) is None]
        for device in {device_of(name) for name in here}:
            ours = [name for name in here if device_of(name) is device]
            self.rates[device.name] = known_rates(self.database, ours, self.threads) or prior_rates(device)
            if not device.is_host:
                self.links |= known_links(self.database, device, ours, self.threads)
        self._timed_on = None
        self._off.clear()
        self._unreachable.clear()
        self._logged.clear()
        return self

    def verdict(self, kernel: Kernel, signature: Signature) -> KnownTime | None:
        """Return the row of this kernel's comparison with the oracle on a signature at all sizes; None if it was never compared."""
        return self.known.get(kernel.backend, {}).get(verdict_key(kernel, signature))

    def time(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> KnownTime | None:
        """Return the row of this kernel timed alone at these sizes."""
        return self.known.get(kernel.backend, {}).get(timing_key(kernel, signature, binding))

    def timed(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> tuple[KnownTime, bool] | None:
        """Return the row that gives a kernel's cost, and whether it was timed inside a graph; such a time counts before one of the
        kernel alone."""
        key = timing_key(kernel, signature, binding)
        row_in_graph = self.in_graph.get(kernel.backend, {}).get(key)
        if row_in_graph is not None and row_in_graph.median_ms is not None:
            return row_in_graph, True
        row = self.time(kernel, signature, binding)
        return None if row is None or row.median_ms is None else (row, False)

    def error(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> float | None:
        """Return a kernel's worst error over all sizes compared and at these sizes; None when it was never compared."""
        rows = (self.verdict(kernel, signature), self.time(kernel, signature, binding))
        errors = [r.worst_relative_error for r in rows if r is not None and r.worst_relative_error is not None]
        return max(errors, default=None)

    def why_not(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> str | None:
        """Return None when this kernel may be used here within the tolerance; "unverified" when it was never compared; else the
        reason."""
        lacking = [name for name in kernel.assuming if name not in self.assuming]
        if lacking:
            return f"it assumes {' and '.join(lacking)}, which is not assumed here"
        reason = self.why_wrong(kernel, signature, binding)
        if reason is not None:
            return reason
        error = self.error(kernel, signature, binding)
        if self.tolerance is not None and (error is None or not error <= self.tolerance + _rounded_once(signature.spec.outputs)):
            return f"its error {error:.2g} is beyond the tolerance {self.tolerance:.2g}"
        return None

    def refusal(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> str | None:
        """Return `why_not` for readers, followed by the log line that explains the failure."""
        reason = self.why_not(kernel, signature, binding)
        logged = "" if reason is None else self.logged(kernel, signature, binding)
        return f"{reason}: {logged}" if logged else reason

    def logged(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> str:
        """Return the log line that explains why a kernel failed, over all sizes or else at these; "" where it did not fail or
        nothing was logged."""
        at = {verify_workload(signature).key: self.verdict(kernel, signature),
              timed_workload(signature, binding).key: self.time(kernel, signature, binding)}
        for workload, row in at.items():
            if row is not None and (row.status != "PASSED" or row.refuted):
                key = kernel.identity, workload
                if key not in self._logged:
                    why = why_failed(self.database, environment_of(kernel.backend, self.threads), *key)
                    order = kernel.composite.order if isinstance(kernel.composite, PartOp) else ()
                    self._logged[key] = f"{why}; its operands come as {', '.join(order)}" if why and len(order) > 1 else why
                return self._logged[key]
        return ""

    def why_wrong(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> str | None:
        """Return the reason of `why_not` that holds regardless of the tolerance; None where there is none."""
        if kernel.name not in self._unreachable:
            self._unreachable[kernel.name] = out_of_reach(kernel)
        unreachable = self._unreachable[kernel.name]
        if unreachable is not None:                                 # a verdict is none about what it has read since
            return unreachable
        why = self.left_out.get((kernel.identity, signature.key)) if self.left_out else None
        if why is not None:
            return why
        v, row = self.verdict(kernel, signature), self.time(kernel, signature, binding)
        if v is None:
            return "it was made for a question that was not asked here" if kernel.remade else "unverified"
        for judged, where in ((v, "when compared with the oracle"), (row, "at these sizes")):
            if judged is None or (judged is row and judged.only_timed):
                continue
            if not judged.passed or judged.refuted or judged.status not in ("PASSED", "INCORRECT_NUMERICAL"):
                return f"{judged.status} {where}"
            error = judged.worst_relative_error
            if error is None or not error <= same_math_limit(signature.spec.outputs, signature.unit):
                return f"{judged.status} {where}: error {error}"
        return None

    def cost(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int], optimistic: bool = False) -> Cost | None:
        """Return a kernel's cost, or None when it may not be used. optimistic: unverified kernels count as usable."""
        reason = self.why_not(kernel, signature, binding)
        if reason is not None and not (optimistic and reason == "unverified"):
            return None
        error = self.error(kernel, signature, binding)
        timed = self.timed(kernel, signature, binding)
        if timed is not None:
            row, in_graph = timed
            assert row.median_ms is not None
            return Cost(row.median_ms * 1e-3, True, error, f"trace {row.trace_id}{', in its graph' if in_graph else ''}",
                         in_graph)
        estimated = _as_extended(self, kernel, signature, binding, self.estimate(kernel, signature, binding))
        if estimated.learned or estimated.margin < self.margin:
            return replace(estimated, error=error)
        off, trace = self.off(kernel.backend, signature, binding) if self.margin > 1 else (1.0, 0)
        note = estimated.note if off == 1 else f"estimate (roofline × {estimated.margin:g} × {off:.3g}, as trace {trace} took)"
        return replace(estimated, seconds=estimated.seconds * off, error=error, note=note)

    def estimate(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> Cost:
        """Return the cost of a kernel as if no kernel of its op were timed: from the learned model where there is one, else the
        roofline. The table's margin applies to rooflines; the model gives its own where that is above 1."""
        at = {n: int(binding[n]) for n in signature.dim_names}
        moved, steps = says_of(kernel, signature.spec, at)
        model = cost_model.of_calls() if device_of(kernel.backend).is_host else None
        roofline = estimate_seconds(signature, at, kernel.backend, self.rates.get(device_of(kernel.backend).name), moved, steps)
        if model is None or not kernel.ours:
            margin = self.margin * (1.0 if kernel.ours or self.margin == 1 else UNKNOWN_HAND)
            note = "estimate (roofline)" if margin == 1 else f"estimate (roofline × {margin:g})"
            return Cost(roofline * margin, False, None, note, margin=margin)
        key = kernel.identity, timed_workload(signature, binding).key
        if key not in self._estimates:
            self._estimates[key] = model.of_call(signature, at, kernel.backend, kernel.name, roofline, moved, steps)
        learned = self._estimates[key]
        margin = math.exp(learned.spread) if self.margin > 1 else 1.0
        return Cost(roofline * math.exp(learned.off) * margin, False, None,
                     f"estimate ({model.origin}, × {margin:.2g})", margin=margin, learned=True)

    def paths(self, graph: Graph, table: Mapping[str, list[Kernel]], binding: Mapping[str, int], cost_of: CostOf | None = None, *,
              optimistic: bool = False) -> Paths:
        """Return the paths of a graph at these sizes. cost_of: cost of a kernel (default: `cost`, optimistic or not)."""
        cost_of = cost_of or (lambda kernel, signature: self.cost(kernel, signature, binding, optimistic))
        return Paths(graph, table, cost_of, copied=partial(self.copied, binding), whole=partial(self.whole, binding),
                     link=partial(self.link, binding), around=self.device.run_seconds)

    def tried(self, graph: Graph, binding: Mapping[str, int]) -> list[MeasuredPath]:
        """Return the paths of a graph that were run as a whole at these sizes, on a subset of these backends, the fastest first.
        Paths timed by a device's clock are compared by it. The host's time around it varies between profiles by more than a short
        kernel takes, so all get that of the fastest of them; the host's clock compares this path with others."""
        workload = path_workload(graph, binding).key
        if workload not in self._tried:
            here = [name for name in self.backends if why_missing(name) is None]
            allowed = {path_environment(some, self.threads).key() for n in range(len(here))
                       for some in itertools.combinations(here, n + 1)}
            rows = [row for place, row in times_at(self.database, workload, "in_graph", verifier=VERIFIER)
                    if place in allowed and row.median_ms is not None and row.status == "PASSED" and not row.refuted]
            runs = []
            if rows:                                                # a door: most graphs were never run as a whole
                from tensor_graphs.paths.path_reader import path_from_json

                conditions = trace_conditions(self.database, *(row.trace_id for row in rows))
                runs = [MeasuredPath(path_from_json(conditions[row.trace_id]["path"]), (row.median_ms or 0.0) * 1e-3, row)
                         for row in rows if "path" in conditions[row.trace_id]]      # one op: its kernel is filed so too
                timed_around = [(run, _around(conditions[run.row.trace_id], run.took)) for run in runs]
                _, of_fastest = min(((run.took - around, around) for run, around in timed_around if around is not None),
                                    default=(0.0, 0.0))
                runs = [run if around is None else replace(run, seconds=run.took - around + of_fastest)
                         for run, around in timed_around]
            self._tried[workload] = sorted(runs, key=lambda run: run.seconds)
        return self._tried[workload]

    def as_run(self, graph: Graph, path: GraphPath, binding: Mapping[str, int]) -> GraphPath:
        """Return the path with its measured time of a whole run, where it was run at these sizes."""
        took = next((run.took for run in self.tried(graph, binding) if run.path.id == path.id), None)
        return path if took is None else replace(path, seconds=took, measured=True)

    def best_measured(self, graph: Graph, paths: Paths, cheapest: GraphPath, binding: Mapping[str, int]) -> GraphPath:
        """Return the fastest of the paths that were run as a whole; among those about as fast, the one with the fewest calls, then
        the least cost. Return `cheapest` where none was run, or where it is fully measured, was not run, and costs clearly less
        than those that were."""
        measured = []
        for run in self.tried(graph, binding):
            error = run.row.worst_relative_error if run.path.all_steps else 0.0
            if error is not None and error <= _allowed(graph, self.tolerance) and (costed := paths.still(run.path)) is not None:
                measured.append((run.seconds + paths.charge(costed), costed))
        if not measured:
            return cheapest
        unknown = cheapest.measured and all(p.id != cheapest.id for _, p in measured)   # for an estimate, a run is not set aside
        if unknown and cheapest.cost < NEAR * min(p.cost for _, p in measured):
            return cheapest
        best, path = min(measured, key=lambda pair: pair[0])
        close = [p for seconds, p in measured if best >= NEAR * seconds]       # each call adds to what a run may vary by
        return min(close, key=lambda p: (p.kernel_calls, p.cost), default=path)

    def whole(self, binding: Mapping[str, int], part: Signature, way: Alternative, steps: Steps) -> Cost | None:
        """Return the measured time of a part inside a graph, computed in this way by these kernels; None where there is none."""
        row = self.whole_row(binding, part, way, steps)
        return None if row is None or row.median_ms is None else Cost(row.median_ms * 1e-3, True, None, f"trace {row.trace_id}")

    def whole_row(self, binding: Mapping[str, int], part: Signature, way: Alternative, steps: Steps) -> KnownTime | None:
        """Return the row of that measured time; None unless it counts."""
        if not steps:                                               # all of it is known when the graph is bound
            return None
        environment = part_environment(steps, self.threads)
        if environment.key() not in self.parts:
            self.parts[environment.key()] = latest_traces(self.database, environment, "in_graph", verifier=VERIFIER)
        computed = part_implementation(part, way.target(part), steps).source_hash
        row = self.parts[environment.key()].get((computed, timed_workload(part, binding).key))
        return None if row is None or row.median_ms is None or row.status != "PASSED" or row.refuted else row

    @property
    def device(self) -> DeviceRates:
        """Rates of the host."""
        return self.rates.get(HOST.name, DeviceRates())

    def link(self, binding: Mapping[str, int], source: str, target: str, t: TensorType) -> float:
        """Estimate the seconds of a copy of a value between devices; between two devices other than the host it goes via the
        host."""
        hops = [(source, target)] if HOST.name in (source, target) else [(source, HOST.name), (HOST.name, target)]
        return sum(self.links.get(hop, LinkRates()).seconds(_nbytes(t, binding)) for hop in hops)

    def copied(self, binding: Mapping[str, int], t: TensorType) -> float:
        """Estimate the seconds of a copy of a value within the host, or within the device where no backend in use runs on the
        host."""
        nbytes = _nbytes(t, binding)
        devices = [device_of(name) for name in self.backends]
        if devices and not any(one.is_host for one in devices):
            device, rates = self.rates.get(devices[0].name, prior_rates(devices[0])), BACKEND_RATES["cuda"]
            return rates.call_seconds + 2.0 * nbytes / (device.bandwidth * rates.bandwidth_share)
        return COPY_SECONDS + 2.0 * nbytes / (self.device.bandwidth * BACKEND_RATES["c"].bandwidth_share)

    def roofline(self, backend: str, signature: Signature, binding: Mapping[str, int], kernel: Kernel | None = None) -> float:
        """Estimate the least seconds of any kernel of a backend, or of `kernel` if given, by the traffic that it declares."""
        at = {n: int(binding[n]) for n in signature.dim_names}
        moved, steps = says_of(kernel, signature.spec, at)
        return estimate_seconds(signature, at, backend, self.rates.get(device_of(backend).name), moved, steps)

    def off(self, backend: str, signature: Signature, binding: Mapping[str, int]) -> tuple[float, int]:
        """Return the least ratio (1 or more) of time to roofline among built-in kernels timed on this signature at these sizes, and
        its trace; (1, 0) where none was. Kernels of this backend count if one was timed, else those of all backends."""
        if self._timed_on is None:
            self._timed_on = {}
            for name, times in self.known.items():
                placed = {key: row for key, row in self.in_graph.get(name, {}).items() if row.median_ms is not None}
                for (_, workload), row in {**times, **placed}.items():
                    if row.median_ms is not None and row.status == "PASSED" and not row.refuted:
                        self._timed_on.setdefault(workload, []).append((name, row))
        workload = timed_workload(signature, binding).key
        if (backend, workload) not in self._off:
            rows = self._timed_on.get(workload, [])
            ours = {k.identity: k for k in all_kernels(self.backends) if k.ours and k.computes(signature.spec)} if rows else {}
            rows = [(name, row) for name, row in rows if row.source_hash in ours]
            rows = [(name, row) for name, row in rows if name == backend] or rows
            ratios = [(row.median_ms * 1e-3 / self.roofline(name, signature, binding, ours[row.source_hash]), row.trace_id)
                     for name, row in rows if row.median_ms is not None]
            off, trace = min(ratios, default=(1.0, 0))
            self._off[backend, workload] = (off, trace) if off > 1 else (1.0, 0)
        return self._off[backend, workload]


def _as_extended(costs: CostTable, kernel: Kernel, signature: Signature, binding: Mapping[str, int], estimate: Cost) -> Cost:
    """Return an estimate corrected by what the kernel that this one extends took, without a margin; else as it is."""
    if kernel.extends is None or estimate.margin == 1:
        return estimate
    name, node = kernel.extends(signature.spec)
    inner, part = next((k for k in all_kernels(costs.backends) if k.name == name), None), signature_of(node)
    timed = None if inner is None else costs.timed(inner, part, binding)
    if inner is None or timed is None:
        return estimate
    row, _ = timed
    assert row.median_ms is not None
    off = row.median_ms * 1e-3 / costs.roofline(inner.backend, part, binding, inner)
    return replace(estimate, seconds=estimate.seconds / estimate.margin * off, margin=1.0,
                   note=f"estimate (roofline × {off:.3g}, as {name} took, trace {row.trace_id})")


def _rounded_once(types: Iterable[TensorType]) -> float:
    """Return the largest relative error of rounding values to these types."""
    return max((roundoff(t.dtype) for t in types), default=0.0)


def _allowed(graph: Graph, tolerance: float | None) -> float:
    """Return the error of outputs and states that a kernel of all steps may have."""
    types = [root.type for root in graph.roots]
    limit = same_math_limit(types)
    return limit if tolerance is None else min(limit, tolerance + 2 * _rounded_once(types))


def _around(conditions: Mapping[str, Any], took: float) -> float | None:
    """Return the seconds that the host spent around a device during a path's run, from the conditions of its row; None where the
    host timed it all, or the value is invalid."""
    milliseconds = conditions.get("around_ms")
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool) or not 0 <= milliseconds * 1e-3 <= took:
        return None
    return milliseconds * 1e-3


def _nbytes(t: TensorType, binding: Mapping[str, int]) -> int:
    return math.prod(int(d.evaluate(s, binding)) for s in t.shape) * t.dtype.itemsize


def typical_sizes(graph: Graph, at: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the sizes at which a graph's costs are estimated: given sizes, else the middle of each dim's range. Raises
    PlanError."""
    return {n: midpoint(s) for n, s in graph.dims.items()} | given_sizes(graph, at, "at")
