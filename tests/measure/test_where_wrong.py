"""Which elements are wrong is said by rows and columns, ranges and multiples."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.measure.points.inputs import Point
from tensor_graphs.measure.where_wrong import in_words, other_sizes, unwritten, wrong_elements


def marked(shape: tuple[int, ...], *where: object) -> np.ndarray:
    wrong = np.zeros(shape, bool)
    wrong[tuple(where)] = True  # type: ignore[index]
    return wrong


EVERY = slice(None)


@pytest.mark.parametrize("wrong, words", [
    (marked((16, 8), slice(1, None)), "120 of 128 elements are wrong (rows from 1 on of 16)"),
    (marked((16, 128), EVERY, slice(64, None)), "1024 of 2048 elements are wrong (columns from 64 on of 128)"),
    (marked((16, 8), slice(0, 3), 5), "3 of 128 elements are wrong (rows 0–2 of 16; column 5 of 8)"),
    (marked((4, 32), EVERY, slice(7, None, 8)), "16 of 128 elements are wrong (columns 8 · i + 7 of 32)"),
    (marked((4, 32), EVERY, np.arange(32) % 8 != 0), "112 of 128 elements are wrong (columns other than 8 · i of 32)"),
    (marked((40,), [3, 9, 11]), "3 of 40 elements are wrong (elements 3, 9, 11 of 40)"),
    (marked((2, 3, 4), EVERY, 1), "8 of 24 elements are wrong (axis 1 at 1 of 3)"),
    (marked((2, 2), [0, 1], [0, 1]), "2 of 4 elements are wrong (in every row and column)"),
    (marked((3, 2), EVERY), "all 6 elements are wrong"), (marked((3, 2), slice(0, 0)), ""),
    (np.array(True), "its only element is wrong"), (marked((3, 0)), "")])
def test_places_are_in_words(wrong: np.ndarray, words: str) -> None:
    assert in_words(wrong) == words


@pytest.mark.parametrize("byte", [0xFF, 0x7F, 0xFE])
def test_what_holds_the_byte_of_before_the_run_was_not_written(byte: int) -> None:
    for dtype in (np.float32, np.float64, np.int32):
        out = np.arange(12, dtype=dtype).reshape(3, 4)
        out[1:] = np.full((2, 4 * out.itemsize), byte, np.uint8).view(dtype)
        kept = dtype is not np.int32 or byte != 0xFF                # -1 may be an answer
        assert unwritten(out, marked((3, 4), slice(1, None))) is kept and not unwritten(out, marked((3, 4), EVERY))
    for answer in (np.zeros(4, np.float32), np.full(4, byte, np.uint8)):
        assert not unwritten(answer, marked((4,), EVERY))


def test_rows_that_are_not_compared_do_not_count() -> None:
    assert in_words(marked((4, 2), EVERY), np.array([False, True, False, False])) == "2 of 8 elements are wrong (row 1 of 4)"


def test_sizes_that_were_right_are_listed_once_and_few() -> None:
    points = [Point((("n", n),), seed) for n in (8, 16) for seed in (1, 2)]
    assert other_sizes(points, Point((("n", 7),), 3)) == "n=8; n=16"
    assert other_sizes(points[:2], Point((("n", 8),), 3)) == ""
    assert other_sizes([Point((("n", n), ("m", 1)), 1) for n in range(9)], points[0]).endswith("n=5, m=1; …")


def test_an_element_is_wrong_beside_itself_and_the_size_of_its_row() -> None:
    ref = np.array([[1.0, 1e-6, np.nan, np.inf, 1e39], [0.0, 0.0, 0.0, 0.0, 0.0]])
    out = np.array([[1.001, 2e-6, np.nan, -np.inf, np.inf], [0.0, 1e-3, np.nan, 0.0, 0.0]], np.float32)
    assert wrong_elements(out, ref, tg.f32, 1e-4).tolist() == [[True, False, False, True, False], [False, True, True, False, False]]
    assert wrong_elements(np.array([1, 2]), np.array([1, 3]), tg.i32, 0.0).tolist() == [False, True]
