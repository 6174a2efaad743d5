"""Sums of squares around a mean, of few long rows and of columns: by parts that are read once, and right whatever is in a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret as stages
from tensor_graphs.codegen import interpret_loops
from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.codegen.loop_ir import StageProgram, values_in
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.devices.target import HOPPER, TINY
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tests.codegen import emulated
from tests.codegen.launched import run
from tests.codegen.print.test_cuda_loops import check, definition_of, on_host

CHANNELS = (0, 2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is compiled lies."""
    return tmp_path_factory.mktemp("deviations")


def normalised(x: Node, axes: tuple[int, ...]) -> Node:
    return (x - tg.mean(x, axis=axes, keepdims=True)) * tg.rsqrt(tg.var(x, axis=axes, keepdims=True) + 1e-5)


def image(*shape: int, dtype: DType = tg.f32) -> Node:
    return tg.input("x", shape, dtype)


CUT: dict[str, Any] = {
    "variance over three axes": lambda t: tg.var(image(48, 3, 28, 28, dtype=t), axis=CHANNELS),
    "variance of rows": lambda t: tg.var(image(3, 40_000, dtype=t), axis=1),
    "batch norm": lambda t: normalised(image(48, 3, 28, 28, dtype=t), CHANNELS),
    "layer norm": lambda t: tg.layer_norm(image(2, 36_864, dtype=t)),
    "of what is computed": lambda t: tg.var(tg.abs(image(3, 40_000, dtype=t)) * 2.0, axis=1),
    "both": lambda t: (lambda x: tg.var(x, axis=1) + tg.mean(x, axis=1))(image(3, 40_000, dtype=t))}

WHOLE: dict[str, Any] = {
    "of many rows": lambda: tg.var(image(133, 40_000), axis=1), "of short rows": lambda: tg.var(image(3, 20_000), axis=1),
    "of a prime length": lambda: tg.var(image(3, 40_009), axis=1),
    "of small images": lambda: tg.var(image(2048, 3, 5, 5), axis=CHANNELS),
    "around another mean": lambda: (lambda x, y: tg.sum((x - tg.mean(y, axis=1, keepdims=True)) ** 2, axis=1))(
        image(3, 40_000), tg.input("y", (3, 40_000))),
    "around half of the sum": lambda: (lambda x: tg.sum((x - 0.5 * tg.sum(x, axis=1, keepdims=True)) ** 2, axis=1))(
        image(3, 40_000)),
    "of differences to others": lambda: (lambda x, y: tg.sum(
        (x - tg.mean(x, axis=1, keepdims=True)) * (y - tg.mean(x, axis=1, keepdims=True)), axis=1))(
            image(3, 40_000), tg.input("y", (3, 40_000)))}


def passes(program: StageProgram) -> int:
    """Nests that read the first operand."""
    return sum(any(v.op == "load" and v.attr[0] is program.operands[0] for s in nest.stages for v in values_in(s.value))
               for nest in program.nests)


def cut(program: StageProgram) -> int:
    """Pairs of sums that are made in parts."""
    return sum(s.note.endswith("around an element of each part") for nest in program.nests for s in nest.stages)


@pytest.mark.parametrize("name", CUT)
def test_it_is_read_once_for_both_sums_by_many_blocks(name: str) -> None:
    definition = definition_of(CUT[name](tg.f32))
    program = program_of(definition)
    assert cut(program) == 1 and passes(program) == 1 + (name in ("batch norm", "layer norm"))
    assert call_of(definition).launches[0].grid > 3
    assert max(s.level for s in program.nests[0].stages) == 2


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_no_such_pair_or_has_no_fitting_parts_stays(name: str) -> None:
    assert not cut(program_of(definition_of(WHOLE[name]())))


def test_each_pair_of_a_graph_is_found_whatever_other_sums_there_are() -> None:
    x, y = image(3, 40_000), tg.input("y", (3, 40_000))
    assert cut(program_of(definition_of(tg.mean(y, axis=1) + tg.var(x, axis=1)))) == 1
    assert cut(program_of(definition_of(tg.var(x, axis=1) + tg.var(y, axis=1)))) == 2


@pytest.mark.parametrize("name", ["an index is made of the mean", "an output that is stored later"])
def test_what_else_reads_the_sums_finds_them(name: str, folder: Path) -> None:
    x, t, b = image(3, 40_000), tg.input("t", (9,)), tg.input("b", (3,))
    mean, var = tg.mean(x, axis=1), tg.var(x, axis=1)
    outputs: dict[str, tuple[Node, ...]] = {
        "an index is made of the mean": (x * tg.reshape(tg.gather(t, tg.cast(mean, tg.i32)), (3, 1)) * tg.reshape(var, (3, 1)),),
        "an output that is stored later": (tg.reshape(mean + b, (3, 1)) * tg.reshape(t, (1, 9)),
                                           ((x - tg.reshape(mean, (3, 1))) ** 2).sum(axis=1))}
    draw = np.random.default_rng(7)
    values = {"x": (draw.standard_normal((3, 40_000)) + np.array([[3], [5], [1]])).astype(np.float32),
              "t": draw.standard_normal(9).astype(np.float32), "b": draw.standard_normal(3).astype(np.float32)}
    given = tg.graph({f"y{i}": y for i, y in enumerate(outputs[name])}).inputs
    on_host(folder, outputs[name], {n: values[n] for n in given}, 0)


def test_a_sum_of_what_no_operand_gives_is_cut_as_well() -> None:
    counted = tg.iota((3, 40_000), 1, tg.f32)
    program = program_of(definition_of(tg.input("y", (3, 40_000)) * 2.0, tg.input("x", (3,)) + tg.sin(counted).sum(axis=1)))
    assert len(program.nests) == 3


@pytest.mark.parametrize("name", CUT)
def test_the_program_is_what_numpy_says(name: str) -> None:
    node = CUT[name](tg.f32)
    shape = tuple(int(n) for n in tg.graph(node).inputs["x"].shape)
    x = np.random.default_rng(3).standard_normal(shape) * 3 + 20
    (found,) = stages.run(program_of(definition_of(node)), [x])
    (expected,) = tg.interpret(tg.graph(node), {"x": x.astype(np.float32)}).outputs.values()
    np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [tg.f32, tg.bf16])
@pytest.mark.parametrize("name", CUT)
def test_its_kernels_are_what_the_oracle_says(name: str, dtype: DType, folder: Path) -> None:
    node = CUT[name](dtype)
    shape = tuple(int(n) for n in tg.graph(node).inputs["x"].shape)
    on_host(folder, (node,), {"x": np.random.default_rng(4).standard_normal(shape).astype(dtype.numpy)}, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [tg.f32, tg.bf16])
@pytest.mark.parametrize("name", CUT)
def test_on_a_gpu_they_are_too(name: str, dtype: DType) -> None:
    node = CUT[name](dtype)
    graph = tg.graph(node)
    shape = tuple(int(n) for n in graph.inputs["x"].shape)
    values = {"x": np.random.default_rng(6).standard_normal(shape).astype(dtype.numpy)}
    for shift in (0, 1):
        check(definition_of(node), values, list(tg.interpret(graph, values).outputs.values()), shift)


def columns(*shape: int, dtype: DType = tg.f32) -> tuple[Node, Node]:
    x = image(*shape, dtype=dtype)
    return tg.mean(x, axis=0), tg.var(x, axis=0)


@pytest.mark.parametrize("shape", [(65536, 256), (300, 40), (1021, 7), (4096, 3, 5), (512, 1 << 17)])
def test_both_sums_of_columns_are_two_launches_and_read_once(shape: tuple[int, ...]) -> None:
    definition = definition_of(*columns(*shape))
    assert len(call_of(definition).launches) <= 2
    first, last = program_of(definition).nests
    assert cut(program_of(definition)) == 1 and len(first.stages) == 2 and last.axes


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 1.0), (1e4, 1.0), (1e6, 0.1), (-3e3, 1e-3), (0.0, 1e15), (7.0, 0.0)])
@pytest.mark.parametrize(("shape", "dtype"), [((1000, 40), tg.f32), ((1021, 7), tg.f32), ((300, 24), tg.bf16)])
def test_columns_far_from_0_are_right_whatever_their_first_elements_are(
        shape: tuple[int, ...], dtype: DType, mean: float, spread: float, folder: Path) -> None:
    x = np.random.default_rng(8).standard_normal(shape) * spread + mean
    x[0, :3] += np.array([1e6, -1e3, 1e2]) * min(spread, 1.0)       # the element that others are subtracted from is far away
    x = x.astype(dtype.numpy)
    wide, definition = x.astype(np.float64), definition_of(*columns(*shape, dtype=dtype))
    expected, program = (wide.mean(axis=0), wide.var(axis=0)), program_of(definition)
    runs = [stages.run(program, [x]), *(interpret_loops.run(map_loops(program, target, aligned), [x], {}, target.warp)
                                        for target in (TINY, HOPPER) for aligned in (True, False))]
    for outputs in runs:
        np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-9, atol=1e-9 * spread)
        np.testing.assert_allclose(outputs[1], expected[1], rtol=1e-9)
    outputs = emulated.run(folder, call_of(definition), [(shape[1:], dtype.numpy)] * 2, [x], {}, 0)
    close = 2e-7 if dtype is tg.f32 else 4e-3
    np.testing.assert_allclose(outputs[0].astype(np.float64), expected[0], rtol=close, atol=close * spread)
    np.testing.assert_allclose(outputs[1].astype(np.float64), expected[1], rtol=close)


def test_what_is_not_finite_stays_in_its_column(folder: Path) -> None:
    x = np.random.default_rng(9).standard_normal((600, 8)).astype(np.float32)
    x[0, 1], x[300, 2], x[70, 3], x[5, 4], x[128, 5], x[128 + 64, 5] = np.inf, -np.inf, np.nan, np.nan, np.inf, -np.inf
    mean, var = emulated.run(folder, call_of(definition_of(*columns(600, 8))), [((8,), np.dtype(np.float32))] * 2, [x], {}, 0)
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float64).mean(axis=0), x.astype(np.float64).var(axis=0)
    np.testing.assert_allclose(mean, expected[0], rtol=2e-7, atol=2e-7)
    np.testing.assert_allclose(var, expected[1], rtol=2e-7)


def test_columns_that_are_normalised_read_their_sums_from_memory(folder: Path) -> None:
    x = image(600, 24)
    node = (x - tg.mean(x, axis=0)) * tg.rsqrt(tg.var(x, axis=0) + 1e-5)
    assert cut(program_of(definition_of(node))) == 1 and len(call_of(definition_of(node)).launches) == 3
    on_host(folder, (node,), {"x": np.random.default_rng(4).standard_normal((600, 24)).astype(np.float32) + 9}, 0)


@pytest.mark.parametrize("make", [
    lambda: columns(200, 40), lambda: columns(4096, 40, dtype=tg.f64),
    lambda: (tg.var(tg.exp(image(4096, 40)), axis=0),)], ids=["of few rows", "of f64", "of what is computed"])
def test_columns_of_another_form_are_read_twice(make: Any) -> None:
    assert not cut(program_of(definition_of(*make())))


FAR = [(1e4, 1.0), (-3e3, 0.1), (1e5, 1.0), (12345.678, 0.3), (0.0, 1e15), (7.0, 0.0)]
"""means and spreads of rows whose parts lie about means of their own, as those of a trend do"""


def drawn(mean: float, spread: float) -> np.ndarray:
    shape = (3, 40_000)
    trend = np.linspace(-1, 1, shape[1]) * 5 * spread
    return (np.random.default_rng(5).standard_normal(shape) * spread + trend + mean).astype(np.float32)


def near(found: np.ndarray, x: np.ndarray, spread: float) -> None:
    np.testing.assert_allclose(found, x.astype(np.float64).var(axis=1), rtol=1e-5 if spread else 0)


@pytest.mark.parametrize(("mean", "spread"), FAR)
def test_neither_a_far_mean_nor_equal_numbers_lose_what_is_left(mean: float, spread: float, folder: Path) -> None:
    x = drawn(mean, spread)
    (found,) = emulated.run(folder, definition_of(tg.var(image(*x.shape), axis=1)), [((3,), np.dtype("f4"))], [x], {}, 0)
    near(found, x, spread)


@pytest.mark.gpu
@pytest.mark.parametrize(("mean", "spread"), FAR)
def test_nor_do_they_on_a_gpu_whose_products_are_not_rounded_before_they_are_added(mean: float, spread: float) -> None:
    x = drawn(mean, spread)
    (found,) = run(device_named("cuda:0"), definition_of(tg.var(image(*x.shape), axis=1)), [x], {})
    near(found, x, spread)


def test_a_sum_of_parts_that_f32_cannot_hold_is_held(folder: Path) -> None:
    x = np.full((2, 40_000), 1e36, np.float32)
    x[:, 20_000:] *= -1
    node = image(*x.shape)
    definition = definition_of(tg.mean(node, axis=1), tg.var(node, axis=1))
    assert cut(program_of(definition)) == 1
    mean, var = emulated.run(folder, definition, [((2,), np.dtype("f4"))] * 2, [x], {}, 0)
    assert np.all(np.abs(mean) <= 1e30) and np.all(np.isinf(var))
