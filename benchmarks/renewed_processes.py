"""renewed_processes: map over processes that are replaced now and then, since loaded libraries fill their memory.

ProcessPoolExecutor(max_tasks_per_child=…) is meant for that, and hangs in Python 3.11 once each of its processes has ended.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item, Result = TypeVar("Item"), TypeVar("Result")


def renewed_map(one: Callable[[Item], Result], items: Sequence[Item], processes: int, life: int) -> Iterator[Result]:
    """one(item) for each item, in order, by processes that are replaced after `life` items each. Raises BrokenProcessPool."""
    block = life * processes
    for i in range(0, len(items), block):
        with ProcessPoolExecutor(processes, multiprocessing.get_context("forkserver")) as pool:
            yield from pool.map(one, items[i:i + block])
