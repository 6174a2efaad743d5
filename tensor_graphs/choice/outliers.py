"""outliers: which times of the database may be those of a busy machine, why, and how little the kernel may take then.

Whatever happens on a machine slows a kernel down and never speeds it up. A time far above what other measurements lead to expect,
or measured while something disturbed or shortly before or after that, may therefore hide a faster kernel: `tg profile` measures it
again where that could change the choice, and a plan that rests on it reports it. A second measurement that agrees, from another
time in which nothing disturbed, settles the matter.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.choice.deferred_measure import may_have_been_disturbed
from tensor_graphs.costs.filing import timed_workload
from tensor_graphs.costs.roofline import uncertainty
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import matching
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.records.measurements import AGREE, KnownTime, circumstances, in_busy_times

FAR = 3.0
"""ratio of two times that are far apart: estimates by the roofline are off by 2 to 5 and for a backend's kernels alike, so that
their ratios to it differ less"""

SLOW_REFERENCE = 1.4
"""a machine was slower where the reference stream took this factor times its best time"""

BUSY = 15.0
"""seconds before and after a disturbed measurement in which others may have been disturbed too: between bursts of a neighbour the
reference stream, which works on one core, is as fast as ever and a kernel on all cores is not"""

OLD = timedelta(days=30)

SETTLED, ENOUGH = 2, 3
"""number of measurements that agree: this many settle a doubt; this many are enough where a rival is close"""


@dataclass(frozen=True)
class Outlier:
    """why: for people. least: seconds that the kernel may take after all."""

    why: str
    least: float


@dataclass
class Outliers:
    """Doubts about the measurements in a cost table. signatures, points: of the graph in question, whose times are compared."""

    costs: CostTable
    table: Mapping[str, list[Kernel]]
    signatures: Sequence[Signature]
    points: Sequence[Mapping[str, int]]
    _seen: dict[int, tuple[datetime, Mapping[str, Any]]] = field(default_factory=dict)
    """trace -> time and conditions of its measurement"""
    _busy: set[int] = field(default_factory=set)
    """traces measured in busy times"""
    _ratios: dict[str, dict[tuple[str, str], float]] = field(default_factory=dict)

    def look_at(self, rows: Iterable[KnownTime]) -> None:
        """Read the conditions of these measurements, in one query."""
        unread = {row.trace_id for row in rows} - self._seen.keys()
        self._seen.update(circumstances(self.costs.database, *unread))
        self._busy.update(in_busy_times(self.costs.database, *unread, seconds=BUSY))

    def quiet(self, row: KnownTime) -> bool | None:
        """Return whether nothing disturbed the runs of a measurement; None where it does not say."""
        conditions = self._conditions(row)
        over = conditions.get("over_reference", conditions)
        quiet = over.get("quiet") if isinstance(over, Mapping) else None
        return quiet if isinstance(quiet, bool) else None

    def of(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> Outlier | None:
        """Return why the measurement that gives this kernel's cost here may be too slow; None: it is not suspect, or there is none.
        """
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
        """Return the least seconds that a timed kernel may take, by its row: by what is doubtful about it, else by its interval,
        until enough rows agree. None: it has no row."""
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
        """Return the ratios of time to roofline of a kernel, over all that the graph asks of it."""
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
    """Return the reference stream's time during the measurement: its kind, and its median [ms]."""
    match conditions:
        case {"reference": {"kind": str(kind), "median": float(median)}} if median > 0:
            return kind, median
    return None
