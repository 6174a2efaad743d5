"""loop_programs: loop programs written by hand, and their stages: all kinds of loops, memory and statements occur."""

from __future__ import annotations

from collections.abc import Callable

import tensor_graphs as tg
from tensor_graphs.codegen.loop_ir import Array, StageProgram, Value, Values, index_symbol
from tensor_graphs.codegen.loop_program import (
    Barrier,
    Clear,
    Combine,
    Compute,
    If,
    Kind,
    Let,
    Load,
    Loop,
    LoopBuffer,
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
from tensor_graphs.language.dtypes import bool_, f32, i32
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
    return V.make("less", bool_, V.index(x, i32), V.index(most, i32))


def mul(*args: Value) -> Value:
    return V.make("mul", f32, *args)


def program(source: StageProgram, *body: Stmt, buffers: tuple[LoopBuffer, ...] = (), scratch: tuple[Array, ...] = (),
            early: tuple[int, ...] = ()) -> LoopProgram:
    return LoopProgram(source, scratch, (LoopKernel("one", buffers, body, early),))


def doubled(n: int = 48) -> LoopProgram:
    """y = 2·x of n elements, in packs of 4, in blocks of 8 threads."""
    source = stages(tg.input("x", (n,)) * 2.0)
    (x,), (y,), r, w = source.operands, source.outputs, own("r", 4, "operand"), own("w", 4, "operand")
    at = 32 * i("b") + 4 * i("t")
    return program(source, loop("grid", "b", -(-n // 32), loop("thread", "t", 8, Wait(), If(below(at, n), (
        Load(r, 0, x, at, 4),
        loop("vector", "v", 4, Store(w, i("v"), mul(V.load(r, i("v")), V.constant(2.0, f32)))),
        Put(y, at, w, 0, 4))))), buffers=(LoopBuffer(r, "register"), LoopBuffer(w, "register")))


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
        buffers=(LoopBuffer(part, "register"), LoopBuffer(total, "register"), LoopBuffer(tile, "shared")))


def softmax(rows: int = 3, threads: int = 8, each: int = 5) -> LoopProgram:
    """A row for each block, whose threads hold some elements each; its warps combine through shared memory."""
    source = stages(tg.softmax(tg.input("x", (rows, threads * each))))
    (x,), (y,) = source.operands, source.outputs
    m, s, e, across = own("m", 1), own("s", 1), own("e", each), own("across", threads // WARP)
    at = threads * (each * i("i") + i("k")) + i("t")
    minus, by = mul(V.constant(-1.0, f32), V.load(m, 0)), V.make("divisor", f32, V.load(s, 0))
    return program(source, loop("grid", "i", rows, loop("thread", "t", threads,
        Wait(), Clear(m, "max"), Clear(s, "sum"),
        loop("unrolled", "k", each, Store(e, i("k"), V.load(x, at)), Take(m, 0, "max", V.load(e, i("k")))),
        Combine(m, 0, "max", threads, across),
        Compute(minus),
        loop("unrolled", "k", each,
             Store(e, i("k"), V.make("exp_in_sum", f32, V.make("add", f32, V.load(e, i("k")), minus))),
             Take(s, 0, "sum", V.load(e, i("k")))),
        Combine(s, 0, "sum", threads, across),
        loop("unrolled", "k", each, Store(y, at, V.make("divided", f32, V.load(e, i("k")), by))))),
        buffers=(LoopBuffer(m, "register"), LoopBuffer(s, "register"), LoopBuffer(e, "register"), LoopBuffer(across, "shared")))


def running(rows: int = 6, wide: int = 11) -> LoopProgram:
    """Running sums of rows: a thread walks one, and carries the sum in a register."""
    source = stages(tg.cumsum(tg.input("x", (rows, wide)), axis=1))
    (x,), (y,), carry = source.operands, source.outputs, own("carry", 1)
    row = 4 * i("b") + i("t")
    return program(source, loop("grid", "b", -(-rows // 4), loop("thread", "t", 4, Wait(), If(below(row, rows), (
        Clear(carry, "sum"),
        loop("serial", "j", wide, Take(carry, 0, "sum", V.load(x, wide * row + i("j"))),
             Store(y, wide * row + i("j"), V.load(carry, 0))))))), buffers=(LoopBuffer(carry, "register"),))


def in_two(n: int = 24) -> LoopProgram:
    """The sum of n elements: one kernel stores the sums of 3 blocks, the next one adds them."""
    source = stages(tg.input("x", (n,)).sum(axis=0, keepdims=True))
    (x,), (y,), parts, a = source.operands, source.outputs, own("parts", 3), own("a", 1)
    first = loop("grid", "p", 3, loop("thread", "t", 4, Wait(), Clear(a, "sum"),
                 loop("serial", "k", n // 12, Take(a, 0, "sum", V.load(x, n // 3 * i("p") + 4 * i("k") + i("t")))),
                 Combine(a, 0, "sum", 4), If(below(i("t"), 1), (Store(parts, i("p"), V.load(a, 0)),))))
    last = loop("grid", "g", 1, loop("thread", "t", 1, Wait(), Clear(a, "sum"),
                loop("serial", "k", 3, Take(a, 0, "sum", V.load(parts, i("k")))), Store(y, 0, V.load(a, 0))))
    register = (LoopBuffer(a, "register"),)
    return LoopProgram(source, (parts,), (LoopKernel("first", register, (first,)), LoopKernel("last", register, (last,))))


def turned(rows: int = 12) -> LoopProgram:
    """RowForm of 4 backwards: the threads of a warp exchange their elements through shared memory, a row at a time."""
    source = stages(tg.flip(tg.input("x", (rows, 4)), 1) * 1.0)
    (x,), (y,), tile = source.operands, source.outputs, own("tile", 8)
    at = 4 * (2 * i("k") + i("w")) + i("l")
    return program(source, loop("thread", "w", 2, loop("thread", "l", 4, Wait(), loop("serial", "k", rows // 2,
        Store(tile, 4 * i("w") + i("l"), V.load(x, at)),
        Barrier("warp"),
        Store(y, at, V.load(tile, 4 * i("w") + 3 - i("l"))),
        Barrier("warp")))), buffers=(LoopBuffer(tile, "shared"),))


def looked_up(rows: int = 5) -> LoopProgram:
    """RowForm of a table by numbers that are read at run time, in packs of 2."""
    source = stages(tg.embedding(tg.input("table", (7, 4)), tg.input("ids", (rows,), tg.i32)))
    table, ids = sorted(source.operands, key=lambda x: x.dtype.kind)
    (y,), r = source.outputs, own("r", 2, "operand")
    return program(source, loop("grid", "i", rows, loop("thread", "t", 2, Wait(), Let("id", V.load(ids, i("i"))),
        Load(r, 0, table, 4 * i("id") + 2 * i("t"), 2), Put(y, 4 * i("i") + 2 * i("t"), r, 0, 2))),
        buffers=(LoopBuffer(r, "register"),))


def triangle(n: int = 7) -> LoopProgram:
    """Running sums: each thread adds up all elements up to its own."""
    source = stages(tg.cumsum(tg.input("x", (n,))))
    (x,), (y,), a = source.operands, source.outputs, own("a", 1)
    return program(source, loop("thread", "t", n, Wait(), Clear(a, "sum"),
                                loop("serial", "j", i("t") + 1, Take(a, 0, "sum", V.load(x, i("j")))),
                                Store(y, i("t"), V.load(a, 0))),
                   buffers=(LoopBuffer(a, "register"),))


def of_any_size() -> LoopProgram:
    """y = x·x of n elements, of which a pack of 2 may have only one."""
    n = tg.dim("n", 1, 100)
    x: Node = tg.input("x", (n,))
    source = stages(x * x)
    (x0,), (y,) = source.operands, source.outputs
    at = Let("at", 8 * i("b") + 2 * i("t"))
    place = i("at") + i("v")
    inside = below(place, n)
    element = V.load(x0, place, inside)
    return program(source, loop("grid", "b", (n + 7) // 8, loop("thread", "t", 4, Wait(), at, loop("vector", "v", 2, If(inside, (
        Store(y, place, mul(element, element)),))))))


PROGRAMS: dict[str, Callable[[], LoopProgram]] = {f.__name__: f for f in (
    doubled, columns, softmax, running, in_two, turned, looked_up, triangle, of_any_size)}
