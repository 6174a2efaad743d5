"""Memory that reports races: an access is reported exactly where clocks of all threads do not order it behind an earlier one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, sampled_from, tuples

from tensor_graphs.codegen.evaluate import StageError
from tensor_graphs.codegen.loop_ir import Array
from tensor_graphs.codegen.races import TrackedMemory, Units
from tensor_graphs.language.dtypes import f32

BLOCKS, THREADS, WARP = 2, 4, 2
UNITS = BLOCKS * THREADS
Step = tuple[str, int]
STEPS = tuples(sampled_from(["read", "write", "warp", "block"]), integers(0, UNITS - 1))


def of_clocks(steps: list[Step]) -> int:
    """The first step that is a race on one element of global memory, by vector clocks; the number of steps if none is."""
    clocks = [[int(u == v) for v in range(UNITS)] for u in range(UNITS)]
    accesses: list[tuple[str, int, int]] = []
    for k, (what, unit) in enumerate(steps):
        if what in ("read", "write"):
            for before, other, clock in accesses:
                if "write" in (what, before) and other != unit and clocks[unit][other] < clock:
                    return k
            accesses.append((what, unit, clocks[unit][unit]))
        else:
            group = WARP if what == "warp" else THREADS
            members = range(unit // group * group, unit // group * group + group)
            met = [max(clocks[u][v] for u in members) for v in range(UNITS)]
            for u in members:
                clocks[u] = [met[v] + int(u == v) for v in range(UNITS)]
    return len(steps)


def of_memory(steps: list[Step]) -> int:
    units = Units(BLOCKS, THREADS, 1, WARP, ())
    units.waited[:] = True
    memory = TrackedMemory(Array("t", "scratch", 0, f32, 1), "global", 1, 1, np.zeros(1))
    memory.begin(units, True)
    for k, (what, unit) in enumerate(steps):
        here, size = np.array([unit]), WARP if what == "warp" else THREADS
        try:
            if what == "read":
                memory.read(np.zeros(1, int), here)
            elif what == "write":
                memory.claim(np.zeros(1, int), here)
            else:
                units.meet(unit // size * size + np.arange(size), what == "block")
        except StageError:
            return k
    return len(steps)


@given(lists(STEPS, max_size=14))
@settings(max_examples=600)
def test_a_race_is_reported_where_it_is_one_and_nowhere_else(steps: list[Step]) -> None:
    assert of_memory(steps) == of_clocks(steps)


@given(lists(tuples(sampled_from(["read", "read", "warp", "warp", "block"]), integers(0, THREADS - 1)), max_size=10),
       integers(0, UNITS - 1))
@settings(max_examples=600)
def test_a_write_after_many_reads_is_one_too(steps: list[Step], writer: int) -> None:
    assert of_memory([*steps, ("write", writer)]) == of_clocks([*steps, ("write", writer)])


def test_a_barrier_that_some_threads_do_not_reach_is_reported() -> None:
    units = Units(BLOCKS, THREADS, 1, WARP, ())
    units.meet(np.arange(THREADS), True)
    for threads, block in ((np.arange(3), True), (np.array([0]), False), (np.arange(5), True)):
        try:
            units.meet(threads, block)
        except StageError as error:
            assert "threads are at a barrier" in str(error)
        else:
            raise AssertionError(threads)
