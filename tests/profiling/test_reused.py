"""tests for profiling/distrust/reused.py: memory that nobody holds is given out again, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tensor_graphs.profiling.distrust import reused
from tensor_graphs.profiling.distrust.memory_guards import Guarded

COUNT = reused.LARGE // 4
"""f32 of the smallest array whose memory is kept"""


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    reused.clear()
    yield
    reused.clear()


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_that_nobody_holds_is_given_out_again_whatever_its_dtype_and_shape() -> None:
    first = reused.empty((COUNT,), np.float32)
    first.fill(1.0)
    place = address(first)
    del first
    again = reused.empty((COUNT // 8, 4), np.float64)
    assert address(again) == place and again.shape == (COUNT // 8, 4) and again.dtype == np.float64


def test_memory_that_somebody_holds_is_not_given_out() -> None:
    first = reused.empty((COUNT,), np.float32)
    for held in (first[5:9], first.view(np.uint8)[::2], memoryview(first), np.ndarray((2,), np.float32, buffer=first, offset=64)):
        place = address(first)
        assert address(reused.empty((COUNT,), np.float32)) != place, held
    part, place = first.reshape(4, -1)[1:], address(first)
    del first, held
    assert address(reused.empty((COUNT,), np.float32)) != place
    del part
    assert place in {address(x) for x in [reused.empty((COUNT,), np.float32) for _ in range(6)]}


def test_guards_around_an_array_are_new_each_time() -> None:
    guard = Guarded((COUNT,), np.dtype(np.float32))
    guard.poison()
    place = address(guard.array)
    guard.before.fill(0)
    assert guard.overrun()
    del guard
    again = Guarded((COUNT,), np.dtype(np.float32))
    assert address(again.array) == place and not again.overrun()


def test_no_more_is_kept_than_a_limit_and_nothing_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reused, "KEPT", 3 * reused.LARGE)
    arrays = [reused.empty((reused.LARGE + k,), np.uint8) for k in range(4)]
    assert [each.nbytes - reused.LARGE for each in reused._kept] == [0, 1]
    del arrays
    held = reused.empty((2 * reused.LARGE,), np.uint8)
    assert [each.nbytes for each in reused._kept] == [2 * reused.LARGE], "what nobody held went first"
    reused.empty((100,), np.float32)
    assert len(reused._kept) == 1 and held.nbytes == 2 * reused.LARGE


def test_rows_are_taken_as_numpy_takes_them() -> None:
    rng = np.random.default_rng(0)
    few, numbers = rng.standard_normal((5, 3, 300)), rng.integers(0, 3, 2000)
    for _ in range(2):
        np.testing.assert_array_equal(reused.take(few, numbers, 1), np.take(few, numbers, axis=1))
    small = few[:, ::2].astype(np.float32)
    np.testing.assert_array_equal(reused.take(small, np.array([1, 0]), 1), small[:, [1, 0]])
