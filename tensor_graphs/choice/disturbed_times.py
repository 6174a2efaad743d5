"""disturbed_times: finds stored times that other load on the machine may have spoiled: why, and the least that the kernel may take.

Disturbances slow a kernel down and never speed it up. A time may hide a faster kernel if it is far above what other measurements
suggest, or was measured during or close to a disturbance. `tg profile` measures it again where that could change the choice, and a
plan that rests on it reports it. A second, agreeing measurement from another, undisturbed time settles the doubt.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.choice.deferred_measure import may_have_been_disturbed
from tensor_graphs.costs.database_keys import timed_workload
from tensor_graphs.costs.roofline import uncertainty
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import matching
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.records.measurements import AGREE, KnownTime, circumstances, in_busy_times

FAR = 3.0
"""ratio from which on two times are far apart. Estimates by the roofline are off by 2 to 5, but similarly for all kernels of a
backend, so that ratios of time to roofline differ less"""

SLOW_REFERENCE = 1.4
"""ratio of the reference stream's time to its best time from which on the machine counts as slowed down"""

BUSY = 15.0
"""seconds before and after a disturbed measurement in which others may have been disturbed too: between bursts of a neighbour the
reference stream, on one core, runs at full speed while a kernel on all cores does not"""

OLD = timedelta(days=30)

SETTLED, ENOUGH = 2, 3
"""numbers of agreeing measurements: SETTLED of them settle a doubt, ENOUGH suffice where a rival is close"""


@dataclass(frozen=True)
class Outlier:
    """A doubt about a time. why: a readable reason. least: seconds that the kernel may really take."""

    why: str
    least: float


@dataclass
class Outliers:
    """Doubts about the measurements in a cost table. signatures, points: those of the graph at hand, whose times are compared."""

    costs: CostTable
    table: Mapping[str, list[Kernel]]
    signatures: Sequence[Signature]
    points: Sequence[Mapping[str, int]]
    _seen: dict[int, tuple[datetime, Mapping[str, Any]]] = field(default_factory=dict)
    """trace -> time and conditions of its measurement"""
    _busy: set[int] = field(default_factory=set)
    """traces measured close to a disturbance"""
    _ratios: dict[str, dict[tuple[str, str], float]] = field(default_factory=dict)

    def look_at(self, rows: Iterable[KnownTime]) -> None:
        """Read the conditions of these measurements, and which of them were near a disturbance."""
        unread = {row.trace_id for row in rows} - self._seen.keys()
        self._seen.update(circumstances(self.costs.database, *unread))
        self._busy.update(in_busy_times(self.costs.database, *unread, seconds=BUSY))

    def quiet(self, row: KnownTime) -> bool | None:
        """Return whether nothing disturbed the runs of a measurement; None where its conditions do not record that."""
        conditions = self._conditions(row)
        over = conditions.get("over_reference", conditions)
        quiet = over.get("quiet") if isinstance(over, Mapping) else None
        return quiet if isinstance(quiet, bool) else None

    def of(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> Outlier | None:
        """Return the doubt about the measurement that gives this kernel's cost; None where it is not suspect, or there is none."""
        timed = self.costs.timed(kernel, signature, binding)
        if timed is None or timed[0].median_ms is None:
            return None
        row, in_place = timed
        median = timed[0].median_ms * 1e-3
        least = self.costs.roofline(kernel.backend, signature, binding, kernel) * (1.0 - uncertainty(kernel.backend))
        quiet = self.quiet(row)
        why = "measured while something disturbed" if quiet is False else ""
        if not why and row.agreeing < SETTLED:
            why = self._slow_machine(row) or self._far(kernel, signature, binding, row, in_place)
        if not why and row.trace_id in self._busy:
            why = f"measured within {BUSY:.0f} s of a row that something disturbed"
        if why:
            return Outlier(f"trace {row.trace_id}: {why}", least) if least < median else None
        if datetime.now(UTC) - self.when(row) > OLD:
            return Outlier(f"trace {row.trace_id}: older than {OLD.days} days", median / AGREE)
        return None

    def least(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> float | None:
        """Return the least seconds that a timed kernel may take by its row: from a doubt, else from its confidence interval until
        enough rows agree. None where it has no row."""
        timed = self.costs.timed(kernel, signature, binding)
        if timed is None or timed[0].median_ms is None:
            return None
        doubt = self.of(kernel, signature, binding)
        if doubt is not None:
            return doubt.least
        row, median = timed[0], timed[0].median_ms * 1e-3
        interval = self._conditions(row).get("in_place" if timed[1] else "cold")
        if row.agreeing >= ENOUGH or not isinstance(interval, Mapping) or not isinstance(interval.get("low"), float):
            return median
        return min(median, max(float(interval["low"]) * 1e-3, median / AGREE))

    def _slow_machine(self, row: KnownTime) -> str:
        if not may_have_been_disturbed():
            return ""
        own = _reference(self._conditions(row))
        if own is None:
            return ""
        references = [_reference(conditions) for _, conditions in self._seen.values()]
        best = min(reference[1] for reference in references if reference is not None and reference[0] == own[0])
        return f"the reference stream took {own[1] / best:.2g} × what it takes at best" if own[1] > SLOW_REFERENCE * best else ""

    def _far(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int], row: KnownTime, in_place: bool) -> str:
        if in_place:
            alone = self.costs.time(kernel, signature, binding)
            if alone is None or alone.median_ms is None or row.median_ms is None or row.median_ms <= FAR * alone.median_ms:
                return ""
            times = row.median_ms / (alone.median_ms or 1e-9)
            return f"in its place it took {times:.2g} × what it takes alone (trace {alone.trace_id})"
        here = timed_workload(signature, binding).key
        own = self._ratio(kernel, signature, binding)
        elsewhere = [r for (workload, _), r in self._of_kernel(kernel).items() if workload != here]
        if own is not None and elsewhere and own > FAR * statistics.median_low(elsewhere):
            return f"{own / statistics.median_low(elsewhere):.2g} × what its times at other sizes lead to expect"
        rivals = [r for k in matching(signature.spec, self.table) if k.identity != kernel.identity
                  and (r := self._ratio(k, signature, binding)) is not None]
        if own is not None and rivals and own > FAR * min(rivals):
            return f"{own / min(rivals):.2g} × as far above its roofline as another kernel"
        return ""

    def _of_kernel(self, kernel: Kernel) -> dict[tuple[str, str], float]:
        """Return the ratios of time to roofline of a kernel, over all signatures and sizes of the graph that it computes."""
        if kernel.identity not in self._ratios:
            ratios: dict[tuple[str, str], float] = {}
            for signature in self.signatures:
                if kernel.computes(signature.spec) and kernel in matching(signature.spec, self.table):
                    for binding in self.points:
                        ratio = self._ratio(kernel, signature, binding)
                        if ratio is not None:
                            ratios[timed_workload(signature, binding).key, kernel.identity] = ratio
            self._ratios[kernel.identity] = ratios
        return self._ratios[kernel.identity]

    def _ratio(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> float | None:
        row = self.costs.time(kernel, signature, binding)
        if row is None or row.median_ms is None or row.status != "PASSED":
            return None
        return row.median_ms * 1e-3 / self.costs.roofline(kernel.backend, signature, binding, kernel)

    def _conditions(self, row: KnownTime) -> Mapping[str, Any]:
        return self._circumstances(row)[1]

    def when(self, row: KnownTime) -> datetime:
        """Return when a row was measured."""
        return self._circumstances(row)[0]

    def _circumstances(self, row: KnownTime) -> tuple[datetime, Mapping[str, Any]]:
        if row.trace_id not in self._seen:
            self.look_at([row])
        return self._seen[row.trace_id]


def _reference(conditions: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the kind of the reference stream and its median time [ms] during the measurement; None where there is none."""
    match conditions:
        case {"reference": {"kind": str(kind), "median": float(median)}} if median > 0:
            return kind, median
    return None
