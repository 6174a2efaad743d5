"""choice_evidence: the reason for each choice of a kernel, and the database rows that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tensor_graphs.paths.plan import Evidence


@dataclass(frozen=True)
class Choice(Evidence):
    """The reason why a signature is computed the way it is, with the rows of its time and of its comparison with the oracle.

    times, agreeing: number of its times, and of those that agree with the one used. doubt: why that may be too slow. covered: one
    line on what the comparison covered. derivation: of a recipe, step by step."""

    trace: int | None = None
    measured_at: datetime | None = None
    verdict_trace: int | None = None
    times: int = 0
    agreeing: int = 0
    doubt: str = ""
    covered: str = ""
    derivation: str = ""


def in_words(covered: Mapping[str, Any]) -> str:
    """Describe in one line what a comparison covered, from the record in its row (measure/points/point_plan.py)."""
    sizes = ", ".join(f"{name}: {text}" for name, text in covered.get("sizes", {}).items()) or "its only size"
    more = f", and {covered['and']}" if "and" in covered else ""
    return (f"{covered.get('points', '?')} points: {sizes} | {', '.join(covered.get('values', ())) or 'ordinary values'} | "
            f"{', '.join(covered.get('layouts', ())) or 'aligned'} operands{more}")
