"""Stages over the same columns are one kernel whose threads share the rows, and are what the definition says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret, interpret_loops
from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.codegen.evaluate import StageError
from tensor_graphs.codegen.loop_program import Barrier, If, Loop, Stmt
from tensor_graphs.codegen.map_loops import forms, map_loops
from tensor_graphs.codegen.mapping.column_rows import ColumnRowsForm
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.devices import cuda, nvrtc
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.devices.target import HOPPER, TINY
from tensor_graphs.meaning.interpreter import interpret as oracle
from tests.codegen import emulated, launched
from tests.codegen.print.test_cuda_loops import definition_of

CLOSE = {"f32": 3e-6, "bf16": 8e-3, "f16": 2e-3, "f64": 1e-12}


def normed(x: tg.Node) -> tg.Node:
    return (x - tg.reduce_max(x, axis=1, keepdims=True)) * tg.rsqrt((x * x).mean(axis=1, keepdims=True) + 1.0)


CASES: dict[str, tuple[Callable[[tg.Node], tg.Node], tuple[int, ...], tg.DType]] = {
    "softmax": (lambda x: tg.softmax(x, axis=1), (3, 40, 16), tg.f32),
    "few columns": (lambda x: tg.softmax(x, axis=1), (2, 70, 8), tg.bf16),
    "odd": (lambda x: tg.softmax(x, axis=1), (3, 33, 37), tg.f32),
    "many columns": (lambda x: tg.softmax(x, axis=1), (2, 9, 600), tg.f16),
    "long columns": (lambda x: tg.log_softmax(x, axis=1), (2, 2500, 12), tg.f32),
    "norm": (normed, (5, 50, 24), tg.f32),
    "f64": (lambda x: tg.softmax(x, axis=1), (2, 40, 20), tg.f64),
    "softmax of parts": (lambda x: tg.softmax(x, axis=0), (1030, 24), tg.f32),
    "logsumexp of parts": (lambda x: tg.logsumexp(x * 3.0, axis=0), (600, 9), tg.bf16),
}


def drawn(shape: tuple[int, ...], dtype: tg.DType) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape).astype(dtype.numpy)


def with_special(x: np.ndarray) -> np.ndarray:
    """Columns that begin with, end with or are −inf; with NaN; with +inf."""
    x = x.copy()
    lines = np.moveaxis(x, -1, 0)
    for number, where, value in ((0, slice(None, x.shape[-2] // 2), -np.inf), (1, slice(x.shape[-2] // 2, None), -np.inf),
                                 (2, slice(None), -np.inf), (3, slice(5, 6), np.nan), (4, slice(7, 8), np.inf)):
        lines[number][..., where] = value
    return x


def assert_close(found: np.ndarray, expected: np.ndarray, dtype: tg.DType) -> None:
    with np.errstate(all="ignore"):
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    close = CLOSE[dtype.name]
    np.testing.assert_allclose(found.astype(np.float64).reshape(expected.shape), expected, rtol=close, atol=close * largest)


@pytest.mark.parametrize("name", CASES)
def test_the_loops_are_the_stages_and_have_no_races(name: str) -> None:
    node, shape, dtype = CASES[name]
    program = program_of(definition_of(node(tg.input("x", shape, dtype))))
    assert any(isinstance(form, ColumnRowsForm) for form in forms(program).values())
    for x in (drawn(shape, dtype), with_special(drawn(shape, dtype))):
        with np.errstate(all="ignore"):
            (expected,) = interpret.run(program, [x], {})
            for target in (TINY, HOPPER):
                for aligned in (True, False):
                    (y,) = interpret_loops.run(map_loops(program, target, aligned), [x], {}, target.warp)
                    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9, err_msg=f"{aligned}")


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_what_the_oracle_says(name: str, tmp_path: Path) -> None:
    make, shape, dtype = CASES[name]
    node = make(tg.input("x", shape, dtype))
    call, graph = call_of(definition_of(node)), tg.graph(node)
    if name in ("softmax", "softmax of parts"):
        nvrtc.compiled(call.text, "sm_90", cuda.HEADERS)
    for x in (drawn(shape, dtype), with_special(drawn(shape, dtype))):
        (expected,) = oracle(graph, {"x": x}).outputs.values()
        for shift in (0, 1):
            (y,) = emulated.run(tmp_path, call, [(expected.shape, dtype.numpy)], [x], {}, shift)
            assert_close(y, expected, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_the_same(name: str) -> None:
    make, shape, dtype = CASES[name]
    node = make(tg.input("x", shape, dtype))
    for x in (drawn(shape, dtype), with_special(drawn(shape, dtype))):
        (expected,) = oracle(tg.graph(node), {"x": x}).outputs.values()
        for shift in (0, 1):
            (y,) = launched.run(device_named("cuda:0"), definition_of(node), [x], {}, shift)
            assert_close(y, expected, dtype)


def test_a_softmax_across_memory_is_one_launch_or_three() -> None:
    def of(*shape: int, axis: int) -> list[int]:
        call = call_of(definition_of(tg.softmax(tg.input("x", shape), axis=axis)))
        return [int(str(launch.grid)) for launch in call.launches]

    assert of(8, 512, 64, axis=1) == [16]
    assert len(of(16384, 1024, axis=0)) == 3


def without_barriers(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return tuple(replace(s, body=without_barriers(s.body)) if isinstance(s, If | Loop) else s for s in body
                 if not isinstance(s, Barrier))


def test_a_number_that_is_read_before_its_thread_has_written_it_is_reported() -> None:
    loops = map_loops(program_of(definition_of(tg.softmax(tg.input("x", (3, 40, 16)), axis=1))), TINY)
    kernels = tuple(replace(k, body=without_barriers(k.body)) for k in loops.kernels)
    with pytest.raises(StageError, match="is read by"):
        interpret_loops.run(replace(loops, kernels=kernels), [np.zeros((3, 40, 16), np.float32)], {}, TINY.warp)
