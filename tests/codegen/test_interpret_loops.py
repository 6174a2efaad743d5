"""The interpreter of loop programs: a mapped program means what its stages mean, and a race or a wrong access is reported."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.interpret import run as run_stages
from tensor_graphs.codegen.interpret_loops import run
from tensor_graphs.codegen.loop_ir import Array, StageProgram, Value, Values, index_symbol
from tensor_graphs.codegen.loop_program import (
    Barrier,
    Buffer,
    Clear,
    Combine,
    Compute,
    If,
    Kind,
    Load,
    Loop,
    LoopKernel,
    LoopProgram,
    Put,
    Stmt,
    Store,
    Take,
    Wait,
)
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32, i32
from tensor_graphs.language.node import Node

WARP = 4
V = Values()


def stages(*outputs: Node) -> StageProgram:
    graph = tg.graph({f"y{k}": y for k, y in enumerate(outputs)})
    return arranged(lower(part_between(list(graph.outputs.values()), list(graph.inputs.values())).written))


def own(name: str, size: Dim, role: str = "scratch") -> Array:
    return Array(name, role, 0, f32, size)                          # type: ignore[arg-type]


def loop(kind: Kind, axis: str, size: Dim, *body: Stmt, first: Dim = 0, step: int = 1) -> Loop:
    return Loop(axis, size, kind, body, first, step)


def i(axis: str, size: int = 1000) -> Dim:
    return index_symbol(axis, size)


def below(x: Dim, most: Dim) -> Value:
    return V.make("less", tg.bool_, V.index(x, i32), V.index(most, i32))


def mul(*args: Value) -> Value:
    return V.make("mul", f32, *args)


def program(source: StageProgram, *body: Stmt, buffers: tuple[Buffer, ...] = (), scratch: tuple[Array, ...] = (),
            early: tuple[int, ...] = ()) -> LoopProgram:
    return LoopProgram(source, scratch, (LoopKernel("one", buffers, body, early),))


# ---- programs that are right ------------------------------------------------------------------------------------------


def doubled(n: int = 48) -> LoopProgram:
    """y = 2·x of n elements, in packs of 4, in blocks of 8 threads."""
    source = stages(tg.input("x", (n,)) * 2.0)
    (x,), (y,), r, w = source.operands, source.outputs, own("r", 4, "operand"), own("w", 4, "operand")
    at = 32 * i("b") + 4 * i("t")
    return program(source, loop("grid", "b", -(-n // 32), loop("thread", "t", 8, Wait(), If(below(at, n), (
        Load(r, 0, x, at, 4),
        loop("vector", "v", 4, Store(w, i("v"), mul(V.load(r, i("v")), V.constant(2.0, f32)))),
        Put(y, at, w, 0, 4))))), buffers=(Buffer(r, "register"), Buffer(w, "register")))


def columns(rows: int = 40, wide: int = 8) -> LoopProgram:
    """The sums of columns: warps of 4 threads, one for each column of a block's, add rows that lie 5 apart."""
    source = stages(tg.input("x", (rows, wide)).sum(axis=0))
    (x,), (y,) = source.operands, source.outputs
    part, total, tile = own("part", 1), own("total", 1), own("tile", 20)
    return program(source, loop("grid", "c", wide // 4, loop("thread", "w", 5, loop("thread", "l", 4,
        Wait(), Clear(part, "sum"),
        loop("serial", "r", rows, Take(part, 0, "sum", V.load(x, wide * i("r") + 4 * i("c") + i("l"))), first=i("w"), step=5),
        Store(tile, 4 * i("w") + i("l"), V.load(part, 0)),
        Barrier("block"),
        If(below(i("w"), 1), (
            Clear(total, "sum"),
            loop("serial", "k", 5, Take(total, 0, "sum", V.load(tile, 4 * i("k") + i("l")))),
            Store(y, 4 * i("c") + i("l"), V.load(total, 0))))))),
        buffers=(Buffer(part, "register"), Buffer(total, "register"), Buffer(tile, "shared")))


def softmax(rows: int = 3, wide: int = 40) -> LoopProgram:
    """A row for each block of 8 threads, which hold 5 elements each; two warps combine through shared memory."""
    source = stages(tg.softmax(tg.input("x", (rows, wide))))
    (x,), (y,) = source.operands, source.outputs
    m, s, e, across = own("m", 1), own("s", 1), own("e", 5), own("across", 2)
    at = wide * i("i") + 8 * i("k") + i("t")
    minus = mul(V.constant(-1.0, f32), V.load(m, 0))
    return program(source, loop("grid", "i", rows, loop("thread", "t", 8,
        Wait(), Clear(m, "max"), Clear(s, "sum"),
        loop("unrolled", "k", 5, Store(e, i("k"), V.load(x, at)), Take(m, 0, "max", V.load(e, i("k")))),
        Combine(m, 0, "max", 8, across),
        Compute(minus),
        loop("unrolled", "k", 5,
             Store(e, i("k"), V.make("exp_in_sum", f32, V.make("add", f32, V.load(e, i("k")), minus))),
             Take(s, 0, "sum", V.load(e, i("k")))),
        Combine(s, 0, "sum", 8, across),
        loop("unrolled", "k", 5, Store(y, at, V.make("divided", f32, V.load(e, i("k")), V.make("divisor", f32, V.load(s, 0))))))),
        buffers=(Buffer(m, "register"), Buffer(s, "register"), Buffer(e, "register"), Buffer(across, "shared")))


def running(rows: int = 6, wide: int = 11) -> LoopProgram:
    """Running sums of rows: a thread walks one, and carries the sum in a register."""
    source = stages(tg.cumsum(tg.input("x", (rows, wide)), axis=1))
    (x,), (y,), carry = source.operands, source.outputs, own("carry", 1)
    row = 4 * i("b") + i("t")
    return program(source, loop("grid", "b", -(-rows // 4), loop("thread", "t", 4, Wait(), If(below(row, rows), (
        Clear(carry, "sum"),
        loop("serial", "j", wide, Take(carry, 0, "sum", V.load(x, wide * row + i("j"))),
             Store(y, wide * row + i("j"), V.load(carry, 0))))))), buffers=(Buffer(carry, "register"),))


RIGHT: dict[str, Callable[[], LoopProgram]] = {f.__name__: f for f in (doubled, columns, softmax, running)}


@pytest.mark.parametrize("name", RIGHT)
def test_a_loop_program_means_what_its_stages_mean(name: str) -> None:
    loops = RIGHT[name]()
    rng = np.random.default_rng(1)
    operands = [rng.standard_normal(int(x.size)) for x in loops.source.operands]
    for out, expected in zip(run(loops, operands, warp=WARP), run_stages(loops.source, operands), strict=True):
        np.testing.assert_allclose(out, expected, rtol=1e-12)
