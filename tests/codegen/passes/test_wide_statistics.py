"""Sums of squares and what is made of them are right wherever their elements are numbers of f32, in C and in CUDA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.codegen.passes.wide_statistics import with_wide_statistics
from tensor_graphs.language.dtypes import f32, f64
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.interpreter import interpret as oracle
from tests.codegen import emulated
from tests.codegen.passes.test_wide_accumulate import found, written
from tests.codegen.print.test_cuda_loops import definition_of

ROWS, LENGTH = 3, 600
Written = Callable[[Node, Node], Node]


def over_rows(x: Node) -> Node:
    return tg.sqrt((x * x).sum(axis=1, keepdims=True))


def grouped(x: Node) -> Node:
    return tg.reshape(x, (ROWS, 4, LENGTH // 4))


def in_numpy(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return (x - x.mean(axis=axis, keepdims=True)) / x.std(axis=axis, keepdims=True)


def length(x: np.ndarray) -> np.ndarray:
    return np.sqrt((x * x).sum(axis=-1, keepdims=True))


NORMS: dict[str, tuple[Written, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "rms_norm": (lambda x, y: tg.rms_norm(x + y, eps=0.0), lambda x, y: (x + y) / length(x + y) * np.sqrt(LENGTH)),
    "layer_norm": (lambda x, y: tg.layer_norm(x + y, eps=0.0), lambda x, y: in_numpy(x + y)),
    "layer_norm of short rows": (lambda x, y: tg.layer_norm(grouped(x + y), eps=0.0),
                                 lambda x, y: in_numpy((x + y).reshape(ROWS, 4, -1))),
    "group_norm": (lambda x, y: tg.group_norm(grouped(x + y), groups=2, eps=0.0),
                   lambda x, y: in_numpy((x + y).reshape(ROWS * 2, -1)).reshape(ROWS, 4, -1)),
    "across memory": (lambda x, y: (x - tg.mean(x, axis=0, keepdims=True)) / tg.sqrt(tg.var(x, axis=0, keepdims=True)) + 0.0 * y,
                      lambda x, y: in_numpy(x, 0)),
    "masked": (lambda x, y: x / tg.sqrt(tg.where(tg.less(x, y), x * x, 0.0).sum(axis=1, keepdims=True)),
               lambda x, y: x / length(x * (x < y))),
    "l2 norm": (lambda x, y: x / over_rows(x) + 0.0 * y, lambda x, y: x / length(x)),
    "standard deviation": (lambda x, y: tg.sqrt(tg.var(x + y, axis=1)), lambda x, y: (x + y).std(axis=-1)),
    "cosine": (lambda x, y: (x * y).sum(axis=1, keepdims=True) / (over_rows(x) * over_rows(y)),
               lambda x, y: (x * y).sum(axis=-1, keepdims=True) / (length(x) * length(y)))}

SIZES = (1.0, 1e19, 1e30, 3e36, 1e-25, 1e-36)


def drawn(size: float, seed: int = 0, mean: float = 0.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {n: (size * draw.standard_normal((ROWS, LENGTH)) + mean).astype(np.float32) for n in "xy"}


def nodes() -> tuple[Node, Node]:
    return tg.input("x", (ROWS, LENGTH)), tg.input("y", (ROWS, LENGTH))


def off(out: np.ndarray, expected: np.ndarray) -> float:
    """The largest error, next to the largest number."""
    return float(np.max(np.abs(out - expected)) / np.max(np.abs(expected)))


def in_f64(name: str, values: dict[str, np.ndarray]) -> np.ndarray:
    return NORMS[name][1](*(v.astype(np.float64) for v in values.values()))


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_in_c_is_right_for_large_and_small_numbers(name: str) -> None:
    graph = tg.graph({"y": NORMS[name][0](*nodes())})
    for size in SIZES:
        values = drawn(size)
        assert off(found(graph, values)["y"], in_f64(name, values)) < 5e-7, size


def test_elements_are_divided_by_a_norm_that_no_f32_holds() -> None:
    values = drawn(3e37)
    out = found(tg.graph({"y": NORMS["l2 norm"][0](*nodes())}), values)["y"]
    assert off(out, in_f64("l2 norm", values)) < 1e-5               # 1 / norm has 17 bits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is compiled lies."""
    return tmp_path_factory.mktemp("statistics")


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_in_cuda_is_right_for_large_and_small_numbers(name: str, folder: Path) -> None:
    graph = tg.graph({"y": NORMS[name][0](*nodes())})
    definition = written(graph)
    kinds = [(tuple(int(n) for n in o.shape), np.dtype(np.float32)) for o in definition.outputs]
    for size in SIZES:
        values = drawn(size)
        (out,) = emulated.run(folder, definition, kinds, list(values.values()), {}, 0)
        assert off(out, in_f64(name, values)) < 5e-7, f"{size}\n{call_of(definition).text}"


CLOSE = [("layer_norm", 1.0), ("layer_norm", 0.01), ("layer_norm of short rows", 1.0), ("group_norm", 0.01)]


@pytest.mark.parametrize(("name", "spread"), CLOSE)
@pytest.mark.parametrize("mean", [100.0, 1e3, 1e4])
def test_a_norm_of_a_sum_loses_nothing_but_what_rounding_the_sum_does(name: str, spread: float, mean: float, folder: Path) -> None:
    values = drawn(spread, 1, mean)
    rounded = {"x": values["x"] + values["y"], "y": np.zeros((ROWS, LENGTH), np.float32)}
    expected = in_f64(name, rounded)
    graph = tg.graph({"y": NORMS[name][0](*nodes())})
    definition = written(graph)
    kinds = [(tuple(int(n) for n in o.shape), np.dtype(np.float32)) for o in definition.outputs]
    (on_gpu,) = emulated.run(folder, definition, kinds, list(values.values()), {}, 0)
    for out in (found(graph, values)["y"], on_gpu):
        assert off(out, expected) < 1e-6


def test_a_row_with_an_infinity_has_no_norm_and_a_row_of_zeros_is_zero() -> None:
    values = drawn(1.0)
    values["x"][0, 0], values["x"][1], values["y"][1] = np.inf, 0, 0
    x, y = nodes()
    out = found(tg.graph({"y": tg.layer_norm(x + y)}), values)["y"]
    assert np.isnan(out[0]).all() and (out[1] == 0).all() and np.isfinite(out[2]).all()


def test_sums_of_other_products_stay_f32() -> None:
    x, y = nodes()
    for node in ((x * y).sum(axis=1) + 1.0, tg.softmax(x), tg.linear(x, y), x.sum(axis=1) * 2.0, (x * x).sum(axis=1)):
        outputs = tg.language.composite.expand_all([node])
        assert with_wide_statistics(outputs) == list(outputs)


def test_what_is_made_of_squares_is_f64_until_it_meets_elements() -> None:
    x, _ = nodes()
    (made,) = with_wide_statistics(tg.language.composite.expand_all([tg.rms_norm(x)]))
    dtypes = {n.op.name: n.dtype for n in walk([made]) if n.op.name in ("sum", "sqrt", "reciprocal")}
    assert dtypes == {"sum": f64, "sqrt": f64, "reciprocal": f64} and made.dtype is f32


@pytest.mark.parametrize("mean", [0.0, 3e4, -7e6])
def test_a_gpu_that_subtracts_both_halves_of_a_mean_in_f32_loses_no_digits(mean: float, tmp_path: Path) -> None:
    x = (np.random.default_rng(5).standard_normal((3, 700)) * 3.0 + mean).astype(np.float32)
    node = tg.layer_norm(tg.input("x", x.shape))
    text = call_of(definition_of(node)).text
    assert "f32_high" in text and "f32_low" in text
    (expected,) = oracle(tg.graph(node), {"x": x}).outputs.values()
    (y,) = emulated.run(tmp_path, definition_of(node), [(x.shape, np.dtype("f4"))], [x], {})
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
