"""Blocks of timed runs: what is claimed of them, and what is made of it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pytest

from tensor_graphs.measure.isolation import process_tree
from tensor_graphs.measure.isolation.replies import End, ProtocolError, parse
from tensor_graphs.measure.points.inputs import Point
from tensor_graphs.measure.timing.bench import Timing
from tensor_graphs.measure.timing.timed_batch import OTHERS_SLACK, Block, between, picked, uneven

RUNS = 40


def claimed(**changed: Any) -> dict[str, Any]:
    """A block of runs of a millisecond each, as a worker claims it."""
    each = [1e-3] * RUNS
    return {"name": "cold", "first": 0, "counted": 0.05, "walk": 1e-5, "whole": each, "calls": each, "busy": each,
            "switches": [0] * RUNS, "waits": [0.0] * RUNS, "reference": [5e-5] * RUNS, **changed}


def heard(said: dict[str, Any], wall: float, others: float) -> Block:
    """As the judge takes it."""
    end = parse({"mark": "end", **said})
    assert isinstance(end, End)
    return Block.of(end, wall, others)


LUMPS = [50e-3] * 4 + [1e-3] * (RUNS - 4)


def test_a_few_runs_that_did_the_work_of_others_are_suspicious() -> None:
    assert uneven(heard(claimed(), 0.05, 0.0)) == ""
    assert "a few did the work of others" in uneven(heard(claimed(busy=LUMPS), 0.25, 0.0))
    assert "a few did the work of others" in uneven(heard(claimed(busy=LUMPS), 0.25, OTHERS_SLACK))


def test_where_other_programs_worked_threads_that_waited_for_each_other_are_not() -> None:
    assert uneven(heard(claimed(busy=LUMPS), 0.25, 0.1)) == ""


@pytest.mark.parametrize("wrong", [{"name": "warm"}, {"whole": [1e-3]}, {"calls": ["soon"] * RUNS}, {"counted": float("nan")},
                                   {"reference": None}])
def test_a_claim_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="block"):
        heard(claimed(**wrong), 0.05, 0.0)


AROUND = 2e-4
"""of a run, in the blocks below"""


def blocks(part: float = 1.0, *, took: float = 1e-3, waited: float = 0.0, told: bool = True, **changed: Any) -> tuple[Block, Block]:
    """One in which nothing is called, and one of runs that take a millisecond, of which a part is claimed. waited: for another
    program, in each run [s]."""
    nothing = replace(heard(claimed(whole=[1e-5] * RUNS, calls=[0.0] * RUNS), RUNS * (AROUND + 1e-5), 0.0),
                      waited=0.0 if told else None)
    each = [part * (took + waited)] * RUNS
    waits = [waited] * RUNS
    block = heard(claimed(**{"whole": each, "calls": each, "waits": waits, **changed}), RUNS * (AROUND + took + waited), 0.0)
    block = replace(block, waited=RUNS * waited if told else None, worked=RUNS * (AROUND + took))
    return block, replace(nothing, worked=RUNS * AROUND)


@pytest.mark.parametrize("part", [0.8, 0.6, 0.1])
def test_on_an_undisturbed_machine_the_runs_account_for_the_time_that_the_judge_saw(part: float) -> None:
    assert between(*blocks()) == "" == between(*blocks(0.95))
    assert "as claimed" in between(*blocks(part))
    assert part > 0.6 or "as claimed" in between(*blocks(calls=[part * 1e-3] * RUNS, whole=[1e-3] * RUNS))
    assert (between(*blocks(part, told=False)) == "") == (part > 0.5)            # as much can be said where nobody knows of waits


@pytest.mark.parametrize("factor", [0.5, 0.25])
@pytest.mark.parametrize("waited", [0.0, 1e-3, 3e-3, 9e-3])
def test_a_clock_that_was_slowed_down_cannot_hide_in_the_waits_of_its_runs(factor: float, waited: float) -> None:
    """A quarter of a run that waited for three quarters of its time is as long as the run's work."""
    assert "both without waits" in between(*blocks(factor, took=3e-3, waited=waited))
    assert between(*blocks(took=3e-3, waited=waited)) == ""


def test_that_the_judge_waited_too_is_no_time_that_the_worker_did() -> None:
    """Beside the worker, that is: then the two waits are more than the block lasted, and what the worker worked is what counts."""
    forged, nothing = blocks(0.25, waited=3e-3)
    forged = replace(forged, waited=forged.wall)
    assert forged.present() == forged.worked and "as claimed" in between(forged, nothing)


def test_runs_that_count_are_not_far_faster_than_the_worker_worked_in_all_though_other_programs_did() -> None:
    """Of runs of 3 ms each fifth is said to have taken nearly all, and to have waited for none of it."""
    few = [6e-4, 6e-4, 6e-4, 6e-4, 12.6e-3] * (RUNS // 5)
    forged, nothing = blocks(took=3e-3, whole=few, calls=few)
    forged = replace(forged, others=1.0)
    assert between(forged, nothing) == "", "the sum is true"
    assert "of the processor's time" in picked([forged, forged], nothing)
    waiting = replace(forged, helpers=RUNS * 2e-3)
    assert picked([waiting, waiting], nothing) == "", "threads of its own waited, and its first one perhaps in a loop for them"


def test_a_run_that_waited_for_its_processor_claims_it_and_one_beside_others_may_miss_more() -> None:
    assert between(*blocks(waited=3e-3)) == ""
    honest, nothing = blocks(took=1e-4)
    assert "as claimed" in between(replace(honest, wall=honest.wall + RUNS * 2e-4), nothing)
    assert between(replace(honest, wall=honest.wall + RUNS * 2e-4, others=1.0), nothing) == ""


@pytest.mark.parametrize("forged", [
    {"whole": [1e-5] * 10 + [1.3e-3] * 30, "calls": [1e-5] * 10 + [1.3e-3] * 30, "switches": [0] * 10 + [1] * 30},
    {"whole": [0.039, *[1e-5] * 39], "calls": [0.039, *[1e-5] * 39]}], ids=["a few count", "the first took all"])
def test_runs_that_count_are_not_a_few_fast_ones_among_slow_ones(forged: dict[str, Any]) -> None:
    block, nothing = blocks(**forged)
    assert between(block, nothing) == "", "the sum is true"
    assert "that count" in picked([block, block], nothing)
    honest, nothing = blocks()
    assert picked([honest, honest], nothing) == ""


@pytest.mark.parametrize(("beyond", "varies", "right"), [(0.0, 1.0, True), (0.0, 1.1, True), (0.02, 1.0, False)])
def test_copies_to_a_device_and_back_are_no_time_of_its_kernel(beyond: float, varies: float, right: bool) -> None:
    """A kernel claims 90 µs between copies of 60 ms. beyond: seconds that it takes in truth besides; varies: by how much its copies
    take longer than those of a run in which nothing is called."""
    copies, calls = 0.06, 9e-5
    nothing = replace(heard(claimed(whole=[copies] * RUNS, calls=[0.0] * RUNS), RUNS * (AROUND + copies), 0.0), waited=0.0)
    whole = copies * varies + calls + beyond
    said = claimed(whole=[whole] * RUNS, calls=[calls] * RUNS, walk=copies)
    block = replace(heard(said, RUNS * (AROUND + whole), 0.0), waited=0.0)
    assert (picked([block, block], nothing, copied=True) == "") is right
    assert "that count" in picked([block, block], nothing), "on the host nothing is copied"


def test_who_waits_in_a_loop_for_a_device_works_longer_than_its_kernel_takes() -> None:
    """Beside other programs that use the device, too, the worker's first thread waits in its driver."""
    honest, nothing = blocks()
    longer = RUNS * 7e-3
    looping = replace(honest, wall=honest.wall + longer, worked=honest.worked + longer, others=1.0)
    assert "of the processor's time" in picked([looping, looping], nothing)
    assert picked([looping, looping], nothing, copied=True) == ""


def test_a_run_is_asked_by_what_is_drawn_for_it_and_one_that_is_compared_with_a_slow_oracle_is_not() -> None:
    def timing(ways: int) -> Timing:
        return Timing(Point((("n", 4),), 7), ways, 0.1, False, "read", 1e-4, 0.01)

    assert len({timing(0).way(5, 11, salt) for salt in range(100)}) == 100
    compared = [run for run in range(30) if timing(2).comparable(run, 11)]
    assert len(compared) == 10
    assert len({timing(2).way(run, 11, salt) for run in compared for salt in range(100)}) == 2


def test_the_work_of_this_process_is_part_of_the_machines() -> None:
    if not os.path.exists("/proc/stat"):
        assert process_tree.machine_worked() == 0.0
        return
    mine, all_ = process_tree.worked(os.getpid()), process_tree.machine_worked()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    assert 0.25 < process_tree.worked(os.getpid()) - mine < 0.6
    assert process_tree.machine_worked() - all_ > 0.2
    assert process_tree.worked(2 ** 22 + 1) == 0.0
