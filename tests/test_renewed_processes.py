"""Processes that are replaced now and then: nothing is lost, and none outlives its share."""

from __future__ import annotations

import os
from collections import Counter

from benchmarks.renewed_processes import renewed_map


def process_of(item: int) -> tuple[int, int]:
    return item, os.getpid()


def test_a_process_computes_its_share_and_another_one_goes_on() -> None:
    results = list(renewed_map(process_of, range(5), processes=1, life=2))
    assert [item for item, _ in results] == [0, 1, 2, 3, 4]
    assert list(Counter(process for _, process in results).values()) == [2, 2, 1]
