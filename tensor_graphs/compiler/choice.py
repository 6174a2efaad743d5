"""choice: why one signature is computed as it is, with the rows that say so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tensor_graphs.paths.plan import Evidence


@dataclass(frozen=True)
class Choice(Evidence):
    """Why one signature is computed the way it is, and the rows that say so: of its time, and of its comparison with the oracle.

    times, agreeing: rows with such a time, and those of them that agree with the one that counts. doubt: why it may be too slow.
    covered: what the comparison covered, in a line. derivation: of a recipe, step by step.
    """

    trace: int | None = None
    measured_at: datetime | None = None
    verdict_trace: int | None = None
    times: int = 0
    agreeing: int = 0
    doubt: str = ""
    covered: str = ""
    derivation: str = ""
