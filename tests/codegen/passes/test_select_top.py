"""The largest elements of a row are one reduction to a list, with the ties and the NaN of the definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret, interpret_loops, spec_to_loops
from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.codegen.loop_ir import StageProgram, Top
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.devices import cuda, nvrtc
from tensor_graphs.devices.target import HOPPER, TINY
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.dtypes import DType
from tests.codegen import emulated
from tests.codegen.print.test_cuda_loops import definition_of

N = tg.dim("n", 40, 300)
ROWS = [(tg.f32, (5, 128), 8), (tg.bf16, (3, 40), 3), (tg.f16, (9, 7), 7), (tg.i32, (2, 3, 17), 4), (tg.u8, (7,), 1),
        (tg.f32, (40,), 5), (tg.u32, (6, 33), 2), (tg.f32, (2, 1000), 32), (tg.f32, (2, 40000), 5), (tg.f32, (33001,), 9)]


def definition(dtype: DType, shape: tuple[object, ...], k: int) -> Definition:
    return definition_of(*tg.topk(tg.input("x", shape, dtype), k=k))     # type: ignore[arg-type]


def drawn(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of which many are equal, with both zeros, infinities and NaN."""
    draw = np.random.default_rng(len(shape))
    x = draw.integers(0 if dtype.kind == "uint" else -9, 10, shape).astype(np.float64)
    if dtype.is_float:
        some = np.array([np.nan, -0.0, np.inf, -np.inf, np.nan, 0.0, -1e-40])
        x.reshape(-1)[draw.permutation(x.size)[:7]] = some[:x.size]
    elif dtype.itemsize == 4:
        x.reshape(-1)[:2] = dtype.min, dtype.max
    return x.astype(dtype.numpy)


def largest(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    wide = x.astype(np.float64)
    order = x.shape[-1] - 1 - np.argsort(wide[..., ::-1], axis=-1, kind="stable")[..., ::-1][..., :k]
    return np.take_along_axis(wide, order, axis=-1), order


@pytest.mark.parametrize(("dtype", "shape", "k"), ROWS)
def test_a_list_has_what_a_stable_sort_has(dtype: DType, shape: tuple[int, ...], k: int) -> None:
    program, x = program_of(definition(dtype, shape, k)), drawn(dtype, shape)
    runs = [interpret.run(program, [x])]
    for target in (TINY, HOPPER):
        runs += [interpret_loops.run(map_loops(program, target, aligned), [x], {}, target.warp) for aligned in (True, False)]
    for outputs in runs:
        for output, expected in zip(outputs, largest(x, k), strict=True):
            np.testing.assert_array_equal(output.reshape(expected.shape), expected)


@pytest.mark.parametrize(("dtype", "shape", "k"), ROWS)
def test_the_text_has_what_a_stable_sort_has(dtype: DType, shape: tuple[int, ...], k: int, tmp_path: Path) -> None:
    call, x = call_of(definition(dtype, shape, k)), drawn(dtype, shape)
    values, places = largest(x, k)
    for shift in (0, 1):
        outputs = emulated.run(tmp_path, call, [(values.shape, dtype.numpy), (places.shape, np.dtype(np.int32))], [x], {}, shift)
        np.testing.assert_array_equal(outputs[0].astype(np.float64), values)
        np.testing.assert_array_equal(outputs[1], places)
    nvrtc.compiled(call.text, "sm_90", cuda.HEADERS)


def test_rows_of_any_length_are_lists(tmp_path: Path) -> None:
    x = drawn(tg.f32, (3, 77))
    values, places = largest(x, 6)
    types = [(values.shape, tg.f32.numpy), (places.shape, np.dtype(np.int32))]
    outputs = emulated.run(tmp_path, call_of(definition(tg.f32, (3, N), 6)), types, [x], {"n": 77})
    np.testing.assert_array_equal(outputs[0], values)
    np.testing.assert_array_equal(outputs[1], places)


def launches(*shape: int, k: int) -> int:
    return len(call_of(definition(tg.f32, shape, k)).launches)


def test_the_largest_of_rows_are_one_launch_and_of_few_long_rows_two() -> None:
    assert launches(4096, 128, k=8) == launches(64, 8192, k=32) == launches(1000, 5, k=5) == 1
    assert launches(2, 1 << 17, k=8) == launches(1 << 18, k=8) == 2


def lists_in(program: StageProgram) -> int:
    return sum(isinstance(s.monoid, Top) for s in program.stages)


def test_ranks_of_what_is_computed_before_are_lists_too() -> None:
    probable = tg.softmax(tg.input("x", (64, 60)))
    assert lists_in(program_of(definition_of(tg.topk(probable, k=4)[0]))) == 1
    assert lists_in(program_of(definition_of(*tg.topk(probable, k=4)))) == 1


def test_many_of_a_row_and_wide_numbers_are_ranked() -> None:
    for dtype, k in ((tg.f32, 33), (tg.f64, 3), (tg.i64, 3)):
        ranked = definition(dtype, (4, 60), k)
        assert lists_in(program_of(ranked)) == 0
        with pytest.raises(NotLowered, match="no list"):
            spec_to_loops.lists_of(ranked)
