"""zeros, ones, full, arange, tril and triu against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError


def value(node: tg.Node, **inputs: np.ndarray) -> np.ndarray:
    return np.asarray(tg.interpret(tg.graph(node), inputs).outputs["out"])


def test_full_tensors_have_the_number_everywhere_and_the_usual_dtype() -> None:
    for node, expected, dtype in ((tg.zeros((2, 3)), np.zeros((2, 3)), tg.f32), (tg.ones(4, tg.i64), np.ones(4), tg.i64),
                                  (tg.full((2,), 2.5), [2.5, 2.5], tg.f32), (tg.full((2,), 7), [7, 7], tg.i32),
                                  (tg.full((), True), True, tg.bool_), (tg.full(3, 1, "bf16"), [1, 1, 1], tg.bf16)):
        assert node.dtype == dtype
        np.testing.assert_array_equal(value(node), expected)
    n = tg.dim("n", 1, 8)
    assert tg.zeros((n, 2)).shape == (n, 2)
    with pytest.raises(DTypeError, match="fix"):
        tg.full((2,), 300, tg.u8)


@pytest.mark.parametrize("arguments", [(5,), (2, 7), (7, 2), (0, 10, 3), (10, 0, -3), (1, 2, 0.25), (0.5, 3), (3, 3), (-4, 5, 2)])
def test_arange_is_that_of_numpy(arguments: tuple[float, ...]) -> None:
    node, expected = tg.arange(*arguments), np.arange(*arguments)
    assert node.dtype == (tg.f32 if expected.dtype.kind == "f" else tg.i32)
    np.testing.assert_allclose(value(node), expected, rtol=1e-7)
    assert tg.arange(*arguments, dtype=tg.f64).dtype == tg.f64


def test_arange_of_dims_counts_their_values() -> None:
    n = tg.dim("n", 1, 8)
    x = tg.input("x", (n, 2))
    both = tg.graph({"up": tg.arange(n), "on": tg.arange(n, 2 * n), "x": x})
    out = tg.interpret(both, {"x": np.zeros((3, 2), np.float32)}).outputs
    np.testing.assert_array_equal(out["up"], [0, 1, 2])
    np.testing.assert_array_equal(out["on"], [3, 4, 5])
    for wrong in ((0, n, 2), (0.5, n)):
        with pytest.raises(AttributeValueError, match=r"arange\(n\) \* step"):
            tg.arange(*wrong)
    with pytest.raises(AttributeValueError, match="the step is 0"):
        tg.arange(0, 4, 0)


@pytest.mark.parametrize("k", [-3, -1, 0, 1, 4])
def test_triangles_are_those_of_numpy(k: int) -> None:
    x = np.arange(1, 25, dtype=np.int32).reshape(2, 3, 4)
    node = tg.input("x", x.shape, tg.i32)
    np.testing.assert_array_equal(value(tg.tril(node, k), x=x), np.tril(x, k))
    np.testing.assert_array_equal(value(tg.triu(node, k), x=x), np.triu(x, k))
    kept = tg.interpret(tg.graph(tg.tril(tg.input("y", (2, 2)))), {"y": np.full((2, 2), np.nan, np.float32)}).outputs["out"]
    np.testing.assert_array_equal(kept, [[np.nan, 0], [np.nan, np.nan]])
    with pytest.raises(ShapeError, match="a matrix has two axes"):
        tg.triu(tg.input("v", (3,)))
