"""Small products whose right operand lies across: a thread has a pack of results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret_loops
from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.codegen.map_loops import forms, map_loops
from tensor_graphs.codegen.mapping.elementwise import AcrossSumForm
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.devices.target import HOPPER, TINY
from tests.codegen import emulated
from tests.codegen.print.test_cuda_loops import definition_of


@pytest.mark.parametrize(("batch", "rows", "inner", "columns", "dtype"), [
    (5, 6, 9, 16, tg.f32), (3, 4, 20, 7, tg.f32), (2, 5, 12, 24, tg.bf16), (2, 3, 8, 4, tg.f64), (3, 4, 8, 8, tg.i32)])
def test_products_of_small_matrices_are_right(batch: int, rows: int, inner: int, columns: int, dtype: tg.DType,
                                              tmp_path: Path) -> None:
    node = tg.input("a", (batch, rows, inner), dtype) @ tg.input("b", (batch, inner, columns), dtype)
    program, draw = program_of(definition_of(node)), np.random.default_rng(4)
    assert [type(form) for form in forms(program).values()] == [AcrossSumForm]
    arrays = [(draw.standard_normal(s) if dtype.is_float else draw.integers(-9, 9, s)).astype(dtype.numpy)
              for s in ((batch, rows, inner), (batch, inner, columns))]
    expected = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    for target in (TINY, HOPPER):
        for aligned in (True, False):
            (y,) = interpret_loops.run(map_loops(program, target, aligned), arrays, {}, target.warp)
            np.testing.assert_allclose(y.reshape(expected.shape), expected, rtol=1e-9, atol=1e-9)
    close = {"f32": 1e-5, "bf16": 1e-2}.get(dtype.name, 1e-12)
    for shift in (0, 1):
        (y,) = emulated.run(tmp_path, call_of(definition_of(node)), [(expected.shape, dtype.numpy)], arrays, {}, shift)
        np.testing.assert_allclose(y.astype(np.float64), expected, rtol=close, atol=close * np.abs(expected).max())
