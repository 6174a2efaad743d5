"""What a list of times says: its middle, and an interval that knows that runs in a row hang together."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from tensor_graphs.measure.timing.statistics import WINDOWS, drifting, summarise, thinned


def test_few_samples_are_summarised_one_by_one() -> None:
    samples = [5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 9.0, 7.0, 8.0, 10.0]
    assert drifting(samples, statistics.median) == summarise(samples)


def test_runs_that_hang_together_do_not_count_as_many() -> None:
    """Half of 3200 runs on a fast machine, half on a slow one: a median of either is no news about the other."""
    rng = np.random.default_rng(1)
    noise = rng.normal(1.0, 0.01, 3200)
    samples = np.where(np.arange(3200) // 400 % 2, 2.0, 1.0) * noise
    one_by_one, together = summarise(samples.tolist()), drifting(samples.tolist(), statistics.median)
    assert together.median == one_by_one.median == pytest.approx(np.median(samples))
    assert together.low < 1.05 and together.high > 1.95
    steady = drifting(noise.tolist(), statistics.median)
    assert 0.99 < steady.low <= steady.median <= steady.high < 1.01 and steady.confidence >= 0.99


def test_every_sample_is_in_one_piece() -> None:
    seen: list[int] = []

    def middle(piece: list[int]) -> float:
        seen.extend(piece)
        return float(piece[0])

    drifting(list(range(WINDOWS * 7 + 3)), middle)  # type: ignore[arg-type]
    assert seen == [*range(WINDOWS * 7 + 3)] * 2                    # once in its piece, once in the whole


def test_thinned_keeps_the_order_and_the_ends_of_few() -> None:
    assert thinned([3, 1, 2]) == [3, 1, 2]
    assert thinned(list(range(1000)), 4) == [0, 250, 500, 750]


def test_nothing_is_no_sample() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarise([])
