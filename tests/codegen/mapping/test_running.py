"""Scans on a GPU read memory once where there are enough rows, and are what the definition says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret, interpret_loops
from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.codegen.evaluate import StageError
from tensor_graphs.codegen.loop_program import Barrier, If, Loop, Stmt
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.codegen.mapping import running
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.devices import cuda, nvrtc
from tensor_graphs.devices.target import HOPPER, TINY
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.interpreter import interpret as oracle
from tests.codegen import emulated
from tests.codegen.print.test_cuda_loops import definition_of
from tests.codegen.test_scans import SCANS

CLOSE = {"f64": 1e-12, "f32": 2e-6, "bf16": 8e-3, "f16": 2e-3, "f8e4m3": 0.07, "f8e5m2": 0.13}


def drawn(graph: Graph, n: int) -> np.ndarray:
    (x,) = graph.inputs.values()
    shape, draw = x.type.at({"n": n}).shape, np.random.default_rng(3)
    numbers = draw.standard_normal(shape) if x.dtype.is_float else draw.integers(0, 100, shape)
    return numbers.astype(x.dtype.numpy)


@pytest.mark.parametrize("name", SCANS)
def test_the_loops_of_a_scan_are_its_stages_and_have_no_races(name: str) -> None:
    graph = tg.graph(SCANS[name])
    program = program_of(definition_of(SCANS[name]))
    for n in (0, 1, 129) if graph.dims else (0,):
        x, dims = drawn(graph, n), {"n": n} if graph.dims else {}
        (expected,) = interpret.run(program, [x], dims)
        for target in (TINY, HOPPER):
            for aligned in (True, False):
                (y,) = interpret_loops.run(map_loops(program, target, aligned), [x], dims, target.warp)
                np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9, err_msg=f"{n}, {aligned}")


@pytest.mark.parametrize("name", SCANS)
def test_the_text_of_a_scan_is_what_the_oracle_says(name: str, tmp_path: Path) -> None:
    graph, node = tg.graph(SCANS[name]), SCANS[name]
    call = call_of(definition_of(node))
    if name in ("rows of bf16", "columns of f32", "product"):
        nvrtc.compiled(call.text, "sm_90", cuda.HEADERS)
    for n in (600,) if graph.dims else (0,):
        x, dims = drawn(graph, n), {"n": n} if graph.dims else {}
        (expected,) = oracle(graph, {"x": x}, dims=dims).outputs.values()
        with np.errstate(over="ignore"):
            wide, close = expected.astype(node.dtype.numpy).astype(np.float64), CLOSE.get(node.dtype.name, 0)
        largest = np.abs(wide[np.isfinite(wide)]).max(initial=0)
        for shift in (0, 1):
            (y,) = emulated.run(tmp_path, call, [(expected.shape, node.dtype.numpy)], [x], dims, shift)
            np.testing.assert_allclose(y.astype(np.float64), wide, rtol=close, atol=close * largest)


@pytest.mark.parametrize(("shape", "axis", "dtype"), [
    ((3, 20000), 1, tg.f32), ((1, 70001), 1, tg.bf16), ((1000, 7), 0, tg.i32), ((3, 999, 5), 1, tg.f32), ((700, 3), 0, tg.f8e4m3)])
def test_scans_in_parts_are_what_numpy_says(shape: tuple[int, ...], axis: int, dtype: DType, tmp_path: Path) -> None:
    node, draw = tg.cumsum(tg.input("x", shape, dtype), axis=axis), np.random.default_rng(1)
    x = (draw.standard_normal(shape) if dtype.is_float else draw.integers(-9, 9, shape)).astype(dtype.numpy)
    expected, program = np.cumsum(x.astype(np.float64), axis=axis), program_of(definition_of(node))
    for target in (TINY, HOPPER):
        (y,) = interpret_loops.run(map_loops(program, target), [x], {}, target.warp)
        np.testing.assert_allclose(y.reshape(shape), expected, rtol=1e-9, atol=1e-9)
    (y,) = emulated.run(tmp_path, call_of(definition_of(node)), [(shape, dtype.numpy)], [x], {}, 0)
    close = CLOSE.get(dtype.name, 0)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=close, atol=close * np.abs(expected).max())


def launches(*shape: int, axis: int = -1) -> int:
    return len(call_of(definition_of(tg.cumsum(tg.input("x", shape), axis=axis))).launches)


def test_many_rows_are_one_launch_that_reads_once_and_few_long_ones_are_two() -> None:
    assert launches(512, 65536) == launches(132, 1 << 20) == launches(4096, 512) == launches(64, 4096, 4096, axis=1) == 1
    assert launches(1, 1 << 22) == launches(16, 65536) == launches(1 << 16, 64, axis=0) == 2
    text = call_of(definition_of(tg.cumsum(tg.input("x", (512, 65536))))).text
    assert text.count("pack_once<4>(x0") == 2 and text.count("bring(x0") == 1          # of the first chunk, and of the next ones


def test_a_scan_is_in_the_launch_of_what_it_reads_and_of_what_reads_it() -> None:
    x = tg.input("x", (600, 3000))
    assert len(call_of(definition_of(tg.softmax(tg.cumsum(x * 0.5)))).launches) == 1
    assert len(call_of(definition_of(tg.cumsum(tg.softmax(x)))).launches) == 1


def without_barriers(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return tuple(replace(s, body=without_barriers(s.body)) if isinstance(s, If | Loop) else s for s in body
                 if not isinstance(s, Barrier))


def test_a_row_that_is_read_before_all_threads_have_written_it_is_reported() -> None:
    node = tg.softmax(tg.cumsum(tg.input("x", (3, 100))))
    loops = map_loops(program_of(definition_of(node)), TINY)
    kernels = tuple(replace(k, body=without_barriers(k.body)) for k in loops.kernels)
    with pytest.raises(StageError, match="is read by"):
        interpret_loops.run(replace(loops, kernels=kernels), [np.zeros((3, 100), np.float32)], {}, TINY.warp)


CHUNK = running.THREADS * 4                                         # a pack of each thread


def run(x: np.ndarray, folder: Path) -> np.ndarray:
    (y,) = emulated.run(folder, call_of(definition_of(tg.cumsum(tg.input("x", x.shape)))), [(x.shape, x.dtype)], [x], {}, 0)
    return y


def test_a_sum_may_leave_the_range_and_come_back(tmp_path: Path) -> None:
    x = np.zeros((1, 4 * CHUNK), np.float32)
    x[0, [5, CHUNK + 7, 2 * CHUNK + 3, 3 * CHUNK + 1]] = 3e38, 1e38, -3e38, -2.9e38
    y = run(x, tmp_path)[0, [CHUNK + 6, 2 * CHUNK + 2, 2 * CHUNK + 3, 3 * CHUNK, 3 * CHUNK + 1]]
    np.testing.assert_allclose(y, [3e38, np.inf, 1e38, 1e38, -1.9e38], rtol=1e-6)


def test_what_is_not_finite_is_in_no_earlier_sum(tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((2, 3 * CHUNK)).astype(np.float32)
    x[0, CHUNK + 300], x[1, 5], x[1, 2 * CHUNK + 400] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(run(x, tmp_path), np.cumsum(x.astype(np.float64), axis=1), rtol=2e-6, atol=1e-4)


def test_a_long_row_of_large_numbers_keeps_small_differences(tmp_path: Path) -> None:
    x = np.tile(np.array([1e6, 1.0, -1e6, 0.25], np.float32), 2 * CHUNK)[None]
    expected = np.cumsum(x.astype(np.float64), axis=1)
    assert np.abs(run(x, tmp_path) - expected).max() <= 2.0**-23 * 1.1e6 * 8
