"""What blocks of runs say about a kernel's time, beside a neighbour and in workers that differ."""

from __future__ import annotations

import pytest

from tensor_graphs.measure.isolation.replies import Name
from tensor_graphs.measure.timing.aggregate import aggregate, found_quiet, level_between, runs_that_count
from tensor_graphs.measure.timing.noise_reference import FEW_QUIET, QUIET, STILL
from tensor_graphs.measure.timing.timed_batch import WARM_UP, Block

LEVEL = 1e-4
MS = 1e-3


def block(*runs: tuple[int, float, float], name: Name = "cold") -> Block:
    """(how many, seconds each, of the reference before it in levels), behind runs that do not count."""
    runs = ((WARM_UP, 1.0, 1.0), *runs)
    took = [seconds for count, seconds, _ in runs for _ in range(count)]
    reference = [levels * LEVEL for count, _, levels in runs for _ in range(count)]
    switches = [0.0] * len(took)
    return Block(name, 0, sum(took), sum(took), 1e-6, whole=took, calls=took, busy=took, switches=switches, waits=switches,
                 reference=reference)


def worker(*cold: tuple[int, float, float]) -> list[Block]:
    return [block((9, 0.0, 1.0), name="nothing"), block(*cold), block(*cold), block(*cold, name="hot"), block(*cold, name="same")]


@pytest.mark.parametrize(("still", "beside", "seconds", "quiet"), [
    (20, 1.2, {1 * MS}, True),
    (6, 1.2, {1 * MS, 1.5 * MS}, True),                             # too few are still, and all are quiet
    (6, 1.4, {1 * MS, 1.5 * MS}, False)], ids=["still", "quiet", "neither"])
def test_the_stillest_runs_count_where_there_are_enough(still: int, beside: float, seconds: set[float], quiet: bool) -> None:
    """The others take half as long again, beside a neighbour who slows the reference down too."""
    blocks = [block((40 - still, 1.5 * MS, beside), (still, 1 * MS, 1.0))]
    runs = runs_that_count([blocks], "cold", LEVEL, (STILL, QUIET))
    assert {run.seconds for run in runs} == seconds and all(run.quiet for run in runs) == quiet


@pytest.mark.usefixtures("waiting")
def test_workers_weigh_alike_however_many_quiet_runs_each_had() -> None:
    few, many = worker((FEW_QUIET, 1 * MS, 1.0)), worker((400, 2 * MS, 1.0))
    weights: dict[float, float] = {}
    for run in runs_that_count([few, many], "cold", LEVEL):
        weights[run.seconds] = weights.get(run.seconds, 0.0) + run.weight
    assert weights == {1 * MS: pytest.approx(1.0), 2 * MS: pytest.approx(1.0)}
    over = aggregate([few, many]).timing["over_reference"]
    assert over["quiet"] and over["median"] == pytest.approx(10.0)  # the slow one's 400 runs do not drown the other's


def test_runs_beside_a_neighbour_do_not_count_where_others_are_quiet() -> None:
    weighed = aggregate([worker((30, 1 * MS, 1.0), (30, 9 * MS, 1.6))])
    assert set(weighed.cold) == {1 * MS} and weighed.level == LEVEL and not weighed.plain
    assert weighed.timing["wall"]["processes"] == 1


def test_what_is_compared_with_the_reference_was_still_where_times_need_only_be_quiet() -> None:
    weighed = aggregate([worker((20, 1 * MS, 1.0)), worker((20, 0.5 * MS, 1.2))])
    assert set(weighed.cold) == {0.5 * MS, 1 * MS}
    assert weighed.timing["over_reference"]["low"] == weighed.timing["over_reference"]["median"] == pytest.approx(10.0)


@pytest.mark.usefixtures("waiting")
def test_where_nothing_was_quiet_every_run_is_compared_with_the_reference_before_it() -> None:
    blocks = worker((30, 1 * MS, 1.0), (30, 2 * MS, 2.0))
    for each in blocks:
        each.switches = [1.0] * len(each.whole)
    over = aggregate([blocks]).timing["over_reference"]
    assert not over["quiet"] and over["median"] == pytest.approx(10.0) == pytest.approx(over["low"])


def test_on_a_shared_machine_nothing_is_said_of_quiet() -> None:
    busy, calm = worker((30, 1 * MS, 1.0)), worker((30, 1 * MS, 1.0))
    for each in busy:
        each.switches = [1.0] * len(each.whole)
    assert [aggregate([blocks]).timing["over_reference"]["quiet"] for blocks in (busy, calm)] == [None, None]


def test_the_level_is_that_of_cold_blocks_and_not_of_the_luckiest() -> None:
    lucky = [block((9, 1 * MS, 0.5))]
    usual = [[block((9, 1 * MS, 1.0)), block((9, 1 * MS, 0.4), name="hot")] for _ in range(20)]
    assert level_between([lucky, *usual]) == LEVEL


def test_a_worker_has_found_quiet_where_it_was_often_so_or_half_of_the_time() -> None:
    calm, loud, short = worker((40, 1 * MS, 1.0)), worker((40, 1 * MS, 1.5)), [block((4, 1 * MS, 1.0), (2, 1 * MS, 1.5))]
    assert found_quiet([calm, loud, short]) == 2
