"""tests for measure/isolation/reused_arrays.py: memory that nobody holds is given out again, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tensor_graphs.measure.isolation import reused_arrays
from tensor_graphs.measure.isolation.memory_guards import Guarded

COUNT = reused_arrays.LARGE // 4
"""f32 of the smallest array whose memory is kept"""


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    reused_arrays.clear()
    yield
    reused_arrays.clear()


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_that_nobody_holds_is_given_out_again_whatever_its_dtype_and_shape() -> None:
    first = reused_arrays.empty((COUNT,), np.float32)
    first.fill(1.0)
    place = address(first)
    del first
    again = reused_arrays.empty((COUNT // 8, 4), np.float64)
    assert address(again) == place and again.shape == (COUNT // 8, 4) and again.dtype == np.float64


def test_memory_that_somebody_holds_is_not_given_out() -> None:
    first = reused_arrays.empty((COUNT,), np.float32)
    for held in (first[5:9], first.view(np.uint8)[::2], memoryview(first), np.ndarray((2,), np.float32, buffer=first, offset=64)):
        place = address(first)
        assert address(reused_arrays.empty((COUNT,), np.float32)) != place, held
    part, place = first.reshape(4, -1)[1:], address(first)
    del first, held
    assert address(reused_arrays.empty((COUNT,), np.float32)) != place
    del part
    assert place in {address(x) for x in [reused_arrays.empty((COUNT,), np.float32) for _ in range(6)]}


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
    monkeypatch.setattr(reused_arrays, "KEPT", 3 * reused_arrays.LARGE)
    arrays = [reused_arrays.empty((reused_arrays.LARGE + k,), np.uint8) for k in range(4)]
    assert [each.nbytes - reused_arrays.LARGE for each in reused_arrays._kept] == [0, 1]
    del arrays
    held = reused_arrays.empty((2 * reused_arrays.LARGE,), np.uint8)
    assert [each.nbytes for each in reused_arrays._kept] == [2 * reused_arrays.LARGE], "what nobody held went first"
    reused_arrays.empty((100,), np.float32)
    assert len(reused_arrays._kept) == 1 and held.nbytes == 2 * reused_arrays.LARGE


def test_rows_are_taken_as_numpy_takes_them() -> None:
    rng = np.random.default_rng(0)
    few, numbers = rng.standard_normal((5, 3, 300)), rng.integers(0, 3, 2000)
    for _ in range(2):
        np.testing.assert_array_equal(reused_arrays.take(few, numbers, 1), np.take(few, numbers, axis=1))
    small = few[:, ::2].astype(np.float32)
    np.testing.assert_array_equal(reused_arrays.take(small, np.array([1, 0]), 1), small[:, [1, 0]])
