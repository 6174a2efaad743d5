"""gather_linear in C and its numpy twin: right for any choice of matrices, and no byte read of those that nobody chose."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.runtime.compiled_graph import bind
from tests.plans import check


def stacked(n: Dim, chosen: int, shape: tuple[int, int, int], weight: DType = tg.f32, *, each: bool = False,
            bias: bool = False) -> Graph:
    matrices, out, inner = shape
    operands = [tg.input("x", (n, chosen if each else 1, inner)), tg.parameter("w", shape, weight),
                tg.input("i", (n, chosen), tg.i32)]
    return tg.graph(tg.gather_linear(*operands, *([tg.parameter("b", (matrices, out))] if bias else [])))


def values(n: int, chosen: int, shape: tuple[int, int, int], weight: DType, each: bool, index: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {"x": rng.standard_normal((n, chosen if each else 1, shape[2])).astype(np.float32), "i": index.astype(np.int32),
            "w": rng.standard_normal(shape).astype(weight.numpy), "b": rng.standard_normal(shape[:2]).astype(np.float32)}


@pytest.mark.parametrize("backends", [("numpy",), ("c", "numpy")], ids=["numpy", "c"])
@pytest.mark.parametrize(("n", "chosen", "shape", "weight", "each", "bias"), [
    (1, 2, (4, 5, 7), tg.f32, False, True), (1, 1, (1, 1, 1), tg.bf16, True, False), (6, 2, (4, 48, 32), tg.f32, False, False),
    (50, 3, (4, 48, 33), tg.bf16, False, True), (40, 2, (3, 17, 33), tg.f32, True, True),
    (520, 2, (2, 20, 16), tg.f32, False, True)])
def test_each_row_is_multiplied_by_its_own_matrix(n: int, chosen: int, shape: tuple[int, int, int], weight: DType, each: bool,
                                                  bias: bool, backends: tuple[str, ...]) -> None:
    """Indices out of range at both ends among them; more rows by one matrix than are brought together at once."""
    index = np.random.default_rng(1).integers(-1, shape[0] + 1, (n, chosen))
    given = values(n, chosen, shape, weight, each, index)
    parameters = {name: given.pop(name) for name in ("w", "b")}
    check(stacked(n, chosen, shape, weight, each=each, bias=bias), given, parameters if bias else {"w": parameters["w"]},
          backends=backends)


def test_the_plan_covers_the_scratch_memory_of_the_worst_choice() -> None:
    lib, n, shape = library.load(), tg.dim("n", 1, 700), (4, 48, 96)
    for weight in (tg.f32, tg.bf16):
        plan = single_kernel_plan(stacked(n, 2, shape, weight), kernel_named("c.gather_linear"))
        for rows in (1, 3, 9, 300, 700):
            given = values(rows, 2, shape, weight, False, np.full((rows, 2), 3))
            lib.scratch_watch()
            bind(plan, {"w": given.pop("w")}).run({name: given[name] for name in ("x", "i")})
            asked, planned = lib.scratch_watch(), plan.memory(n=rows).scratch
            assert asked <= planned <= 3 * lib.threads() * asked + (1 << 16), (rows, asked, planned)


# ---- what is read ----------------------------------------------------------------------------------------------------

FORBIDDING = """
import ctypes, mmap, sys
import numpy as np
import tensor_graphs as tg
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.runtime.compiled_graph import bind

SHAPE = (16, 64, 96)                       # a matrix is 6 pages
matrix, forbidden_too, protect = 4 * SHAPE[1] * SHAPE[2], [int(i) for i in sys.argv[1:]], ctypes.CDLL(None, use_errno=True).mprotect
area = mmap.mmap(-1, SHAPE[0] * matrix)
weight = np.frombuffer(area, np.float32).reshape(SHAPE)
weight[...] = np.random.default_rng(0).standard_normal(SHAPE)
whole = weight.copy()
for kernel in ("c.gather_linear", "numpy.gather_linear"):
    for index in ([[3, 11]], [[5, 5]], [[0, 15], [15, 0], [-1, 15]], [[i % 4, 7] for i in range(64)]):
        x, i = tg.input("x", (len(index), 1, SHAPE[2])), tg.input("i", (len(index), 2), tg.i32)
        plan = single_kernel_plan(tg.graph(tg.gather_linear(x, tg.parameter("w", SHAPE), i)), kernel_named(kernel))
        compiled, chosen = bind(plan, {"w": weight}), np.array(index, np.int32)
        given = {"x": np.ones((len(index), 1, SHAPE[2]), np.float32), "i": chosen}
        closed = sorted({*range(SHAPE[0])} - {*chosen.flat} | {*forbidden_too})
        for e in closed:                   # from here on a read of these bytes ends the process
            assert protect(ctypes.c_void_p(weight.ctypes.data + e * matrix), ctypes.c_size_t(matrix), 0) == 0
        out = compiled.run(given)["out"]
        for e in closed:
            assert protect(ctypes.c_void_p(weight.ctypes.data + e * matrix), ctypes.c_size_t(matrix), 3) == 0
        expected = np.where((chosen >= 0)[..., None], whole.sum(2)[chosen], 0)
        assert np.allclose(out, expected, atol=1e-3), kernel
print("all read what they chose")
"""


def forbidding(*more: int) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "-c", FORBIDDING, *map(str, more)]
    return subprocess.run(script, check=False, capture_output=True, text=True, timeout=120)


def test_a_matrix_that_nobody_chose_is_not_read() -> None:
    """The pages of all other matrices are closed while the kernels run: with 1 token, with several, with 64."""
    ran = forbidding()
    assert (ran.returncode, ran.stdout) == (0, "all read what they chose\n"), ran.stderr


def test_the_comparison_sees_a_matrix_that_is_read() -> None:
    assert forbidding(11).returncode == -signal.SIGSEGV
