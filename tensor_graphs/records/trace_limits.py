"""trace_limits: limits of the times and errors of a measurement; a trace beyond them is refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tensor_graphs.records.errors import InvalidRecord

if TYPE_CHECKING:
    from tensor_graphs.records.rows import TraceRecord

ERRORS = ("max_relative_error", "p999_relative_error", "norm_error", "max_absolute_error")


def require_possible(trace: TraceRecord) -> None:
    """Raise InvalidRecord for times and errors that are negative, not finite, or contradict the samples."""
    name, samples = trace.implementation.name, trace.samples_ms
    if any(not (0 <= sample < math.inf) for sample in samples):
        raise InvalidRecord(f"a time sample of {name!r} is negative or not finite\n  fix: record a failed run by its status")
    if trace.status == "PASSED" and trace.kind != "verify" and trace.median_ms is None:
        raise InvalidRecord(f"a PASSED {trace.kind} trace of {name!r} has no time\n  fix: pass samples_ms, or kind='verify'")
    for what in ("median_ms", "baseline_ms", "spread", "speedup_factor", "tolerance", *ERRORS):
        value = getattr(trace, what)
        if value is not None and not (value >= 0 and (value < math.inf or not what.endswith("_ms"))):
            raise InvalidRecord(f"{what} of {name!r} is {value:g}, which cannot be\n  fix: record a failed run by its status")
    if samples and trace.median_ms is not None and not min(samples) <= trace.median_ms <= max(samples):
        raise InvalidRecord(f"median_ms of {name!r} is {trace.median_ms:g}, and its samples go from {min(samples):g} to "
                            f"{max(samples):g}\n  fix: leave out median_ms, which then follows from the samples")
    if samples and trace.median_ms and trace.baseline_ms is not None and trace.speedup_factor is not None:
        ratio = trace.baseline_ms / trace.median_ms
        if not math.isclose(trace.speedup_factor, ratio, rel_tol=1e-6):
            raise InvalidRecord(f"speedup_factor of {name!r} is {trace.speedup_factor:g}, and baseline_ms / median_ms is "
                                f"{ratio:g}\n  fix: leave it out, as it follows from both")
