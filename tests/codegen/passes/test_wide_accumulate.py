"""What sums come to, where it meets the elements of their row."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.default_schedule import CHUNK
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.passes.wide_accumulate import LONG, unrounded
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.codegen.print.c_loops import rendered
from tensor_graphs.devices.features import features
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

ROWS = 3
Values = dict[str, np.ndarray]


def x(length: int, name: str = "x") -> Node:
    return tg.input(name, (ROWS, length))


def written(graph: tg.Graph) -> Definition:
    return part_between(list(graph.outputs.values()), list(graph.inputs.values())).written


def found(graph: tg.Graph, given: Values) -> dict[str, np.ndarray]:
    """What the C of a graph's loops computes."""
    made = written(graph)
    outs = Library([arranged(lower(made))]).run(0, made, [given[n] for n in graph.inputs], {})
    return dict(zip(graph.outputs, outs, strict=True))


def error(graph: tg.Graph, given: Values) -> float:
    expected, outs = interpret(graph, given).outputs, found(graph, given)
    return max(measure(outs[n], expected[n], o.dtype).max_relative_error for n, o in graph.outputs.items())


def normal(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, length), np.float32)


@pytest.mark.parametrize("length", [33, LONG, 1000])
def test_a_mean_that_is_large_next_to_what_is_left_of_it_is_taken_off_as_it_is(length: int) -> None:
    near = 4e-6 if "avx512f" in features() else 6e-6                # vectors of 8 have half as many sums, each twice as long
    graph = tg.graph(tg.layer_norm(x(length)))
    assert error(graph, {"x": normal(length) + np.float32(100)}) < (near if length >= LONG else 2e-5)


@pytest.mark.parametrize("length", [LONG, 1000])
def test_a_product_with_a_number_of_its_row_is_rounded_once(length: int) -> None:
    graph = tg.graph(x(length) * tg.mean(x(length, "y") + 1.0, axis=1, keepdims=True))
    assert error(graph, {"x": normal(length), "y": np.rint(4 * normal(length, 1))}) <= 2.0**-24


def test_the_variance_of_equal_numbers_is_0() -> None:
    n = tg.dim("n", 1, LONG)
    graph = tg.graph(tg.var(tg.input("x", (ROWS, n)), axis=1))
    made = written(graph)
    library = Library([arranged(lower(made))])
    for size in (1, 2, 64):
        (out,) = library.run(0, made, [np.full((ROWS, size), np.float32(0.3))], {"n": size})
        np.testing.assert_array_equal(out, 0)


def test_a_sum_of_all_that_cancels_is_as_near_as_any() -> None:
    values = normal(5 * CHUNK).reshape(-1)
    values = np.concatenate([values, -np.float32([values.astype(np.float64).sum() - 1e-3])]).astype(np.float32)
    graph = tg.graph(tg.input("x", values.shape).sum())
    assert error(graph, {"x": values}) < 1e-7
    squares = tg.graph((tg.input("x", values.shape) * tg.input("y", values.shape)).sum())
    assert error(squares, {"x": values, "y": np.ones_like(values)}) < 1e-7


def test_the_gradient_of_a_softmax_that_is_nearly_certain_is_near() -> None:
    given = {"x": normal(128), "g": normal(128, 1)}
    given["x"][:, 7] = 8.0
    y = tg.softmax(x(128))
    assert error(tg.graph(tg.grad((y * x(128, "g")).sum(), [tg.input("x", (ROWS, 128))])[0]), given) < 3e-6


ODD = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -3.0, 1e-36, 3e38)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("length", [16, LONG])
def test_what_is_no_ordinary_number_comes_out_as_of_one_operation(length: int) -> None:
    """Of each pair: a number of a row, and an element."""
    values = np.zeros((len(ODD), length), np.float32)
    values[:, :len(ODD)] = ODD
    numbers = np.zeros((len(ODD), 4), np.float32)
    numbers[:, 2] = ODD
    a, b = tg.input("x", values.shape), tg.input("y", numbers.shape)
    number = b.sum(axis=1, keepdims=True)
    graph = tg.graph({"sum": a + number, "product": a * number, "quotient": a / number})
    outs = found(graph, {"x": values, "y": numbers})
    n = numbers.sum(axis=1, keepdims=True)
    for name, expected in (("sum", values + n), ("product", values * n), ("quotient", values / n)):
        np.testing.assert_array_equal(outs[name][np.isnan(expected)], np.nan)
        np.testing.assert_allclose(outs[name], expected, rtol=2e-7, atol=1e-44, err_msg=name)


def test_only_variables_become_f64() -> None:
    n = tg.dim("n", 1, 64)
    program = arranged(lower(written(tg.graph(tg.softmax(tg.input("x", (n, 64)))))))
    wide = unrounded(program)
    assert [(a.name, a.dtype.name) for a in program.scratch] == [("t3", "f32"), ("t2", "f32"), ("t1", "f32")]
    assert [(a.name, a.dtype.name) for a in wide.scratch] == [("t3", "f32"), ("t2", "f32"), ("t1", "f64")]


def test_what_has_no_sum_stays_as_it_is() -> None:
    program = arranged(lower(written(tg.graph(tg.reduce_max(x(64), axis=1, keepdims=True) + x(64)))))
    assert unrounded(program) is program and "double" not in rendered(program)


def test_sums_of_a_definition_that_says_f64_itself_stay_f64() -> None:
    y, z = tg.input("y", (4, 96), tg.bf16), tg.input("z", (4, 96))
    of_f64 = tg.sum(tg.exp(tg.input("x", (4, 96), tg.f64)) * tg.cast(y, tg.f64), axis=-1)
    between = tg.cast(tg.sum(tg.cast(z, tg.f64) * tg.cast(y, tg.f64) - 1.0, axis=-1), tg.f32)
    for node in (of_f64, between):
        assert "float lane" not in rendered(arranged(lower(written(tg.graph(node)))))
