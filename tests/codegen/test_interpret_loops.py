"""The interpreter of loop programs: a mapped program means what its stages mean, and a race or a wrong access is reported."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest

from tensor_graphs.codegen.evaluate import StageError
from tensor_graphs.codegen.interpret import run as run_stages
from tensor_graphs.codegen.interpret_loops import run
from tensor_graphs.codegen.loop_ir import Value
from tensor_graphs.codegen.loop_program import (
    INNER,
    Barrier,
    Clear,
    Combine,
    Compute,
    If,
    Let,
    Load,
    Loop,
    LoopProgram,
    Put,
    Stmt,
    Store,
    Take,
    Wait,
    statements,
)
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.devices.target import TINY
from tensor_graphs.language.dims import evaluate
from tensor_graphs.language.dtypes import bool_, f16, f32, i32
from tests.codegen.loop_programs import (
    PROGRAMS,
    WARP,
    V,
    below,
    columns,
    doubled,
    i,
    in_two,
    looked_up,
    mul,
    of_any_size,
    own,
    running,
    softmax,
    triangle,
    turned,
)
from tests.codegen.tiny import programs


def compared(loops: LoopProgram, n: int = 13) -> None:
    """Run a program and its stages on numbers at random. Raises AssertionError where they differ."""
    rng, dims = np.random.default_rng(1), {str(s): n for s in loops.source.dims}
    operands = [rng.integers(0, 7, evaluate(x.size, dims)).astype(x.dtype.numpy) if x.dtype.is_integer
                else rng.standard_normal(evaluate(x.size, dims)) for x in loops.source.operands]
    for out, expected in zip(run(loops, operands, dims, WARP), run_stages(loops.source, operands, dims), strict=True):
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_program_means_what_its_stages_mean(name: str) -> None:
    compared(PROGRAMS[name]())


@pytest.mark.parametrize("n", [1, 7, 8, 9, 100])
def test_a_loop_program_serves_a_range_of_sizes(n: int) -> None:
    compared(of_any_size(), n)


# ---- programs that are wrong ------------------------------------------------------------------------------------------


Edit = Callable[[LoopProgram], LoopProgram]


def edited(loops: LoopProgram, old: Stmt, *new: Stmt) -> LoopProgram:
    """The program with other statements in the place of one."""
    def body(statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(t for s in statements for t in (new if s is old else (one(s),)))

    def one(s: Stmt) -> Stmt:
        return replace(s, body=body(s.body)) if isinstance(s, INNER) else s

    return replace(loops, kernels=tuple(replace(k, body=body(k.body)) for k in loops.kernels))


def nth(loops: LoopProgram, kind: type[Any], k: int) -> Any:
    return [s for kernel in loops.kernels for s in statements(kernel.body) if isinstance(s, kind)][k]


def no(kind: type[Any], k: int = 0) -> Edit:
    return lambda loops: edited(loops, nth(loops, kind, k))


def inner(kind: type[Any], k: int = 0) -> Edit:
    """Without the loop or the condition around a body."""
    return lambda loops: edited(loops, nth(loops, kind, k), *nth(loops, kind, k).body)


def but(kind: type[Any], k: int = 0, **fields: Any) -> Edit:
    """Other fields of a statement; functions get the old one."""
    def edit(loops: LoopProgram) -> LoopProgram:
        old = nth(loops, kind, k)
        return edited(loops, old, replace(old, **{n: f(getattr(old, n)) if callable(f) else f for n, f in fields.items()}))

    return edit


def only(when: Value, kind: type[Any], k: int = 0) -> Edit:
    return lambda loops: edited(loops, nth(loops, kind, k), If(when, (nth(loops, kind, k),)))


def more(kind: type[Any], k: int, *new: Stmt, after: bool = False) -> Edit:
    """More statements before or after one."""
    def edit(loops: LoopProgram) -> LoopProgram:
        old = nth(loops, kind, k)
        return edited(loops, old, *((old, *new) if after else (*new, old)))

    return edit


def moved(kind: type[Any], k: int, before: type[Any], j: int = 0) -> Edit:
    """A statement before another."""
    return lambda loops: more(before, j, nth(loops, kind, k))(no(kind, k)(loops))


def kernels(**fields: Any) -> Edit:
    return lambda loops: replace(loops, kernels=tuple(replace(k, **fields) for k in loops.kernels))


def buffer(name: str, place: str | None = None, **fields: Any) -> Edit:
    """Another array, or another place for it."""
    def edit(loops: LoopProgram) -> LoopProgram:
        return replace(loops, kernels=tuple(replace(kernel, buffers=tuple(
            replace(b, place=place or b.place, array=replace(b.array, **fields)) if b.name == name else b for b in kernel.buffers))
            for kernel in loops.kernels))

    return edit


def all_of(*edits: Edit) -> Edit:
    return lambda loops: reduce(lambda before, edit: edit(before), edits, loops)


def one_kernel(loops: LoopProgram) -> LoopProgram:
    first, last = loops.kernels
    return replace(loops, kernels=(replace(first, body=first.body + last.body),))


EARLY = kernels(early=(0,))
CARRIED = mul(V.load(own("carry", 1), 0), V.constant(2.0, f32))
FAULTS: list[tuple[str, Callable[[], LoopProgram], Edit, str]] = [
    ("no wait", doubled, no(Wait), "x0[0] is read before the wait"),
    ("a wait of some threads", columns, only(below(i("l"), 3), Wait), "x0[3] is read before the wait"),
    ("a store before the wait", doubled, all_of(EARLY, no(Wait), more(If, 0, Wait(), after=True)),
     "y0[0] is written before the wait"),
    ("no wait in the next kernel", in_two, all_of(EARLY, no(Wait, 1)), "parts[0] is read before the wait"),
    ("a load over the wait", in_two, all_of(EARLY, moved(Loop, 5, Wait, 1), moved(Clear, 1, Loop, 5)),
     "parts[0] is read before the wait"),
    ("blocks that read each other", in_two, one_kernel,
     "parts[1] is read by thread 0 of block 0 and written by thread 0 of block 1"),
    ("a read-only load of what changes", in_two,
     all_of(one_kernel, more(Clear, 1, Load(own("a", 1), 0, own("parts", 3), 0, how="now"))),
     "parts is no read-only memory"),
    ("scratch of no program", in_two, lambda p: replace(p, scratch=()), "parts is no buffer of this kernel"),
    ("an operand is written", running, but(Store, buffer=lambda y: replace(y, name="x0")), "the operand x0 is written"),

    ("no barrier", columns, no(Barrier), "tile[4] is read by thread 0 of block 0 and written by thread 4 of block 0"),
    ("a barrier of warps only", columns, but(Barrier, scope="warp"), "tile[4] is read by thread 0 of block 0"),
    ("a barrier that comes too early", columns, moved(Barrier, 0, Store), "tile[4] is read by thread 0"),
    ("none between two writes", columns,
     more(Barrier, 0, Store(own("tile", 20), 19 - 4 * i("w") - i("l"), V.load(own("part", 1), 0))),
     "tile[19] is written by thread 0 of block 0 and written by thread 19"),
    ("no barrier of a warp", turned, no(Barrier), "tile[3] is read by thread 0 of block 0 and written by thread 3"),
    ("none before the next row", turned, no(Barrier, 1), "tile[0] is written by thread 0 of block 0 and read by thread 3"),
    ("a barrier of some threads", columns, all_of(moved(Barrier, 0, Clear, 1)), "4 of 20 threads are at a barrier"),
    ("a barrier of some threads of a warp", turned, only(below(i("l"), 2), Barrier), "2 of 4 threads are at a barrier"),
    ("a barrier of the block in a warp", turned, all_of(but(Barrier, scope="block"), only(below(i("w"), 1), Barrier)),
     "4 of 8 threads are at a barrier"),
    ("a barrier in a loop that is shorter for some", triangle, more(Take, 0, Barrier("block")), "6 of 7 threads are at a barrier"),
    ("an accumulator for all threads", running, buffer("carry", "shared"), "carry[0] is written by thread 0"),

    ("no end of the last block", doubled, inner(If), "x0[48] is outside of its 48 elements"),
    ("a row too many", columns, but(Loop, 3, size=41), "x0[320] is outside of its 320 elements"),
    ("shared memory too small", columns, buffer("tile", size=19), "tile[19] is outside of its 19 elements"),
    ("a pack beyond its registers", doubled, but(Load, at=2), "r[4] is outside of its 4 elements"),
    ("an element before the first", triangle, but(Store, index=i("t") - 1), "y0[-1] is outside of its 7 elements"),
    ("an index that is read, one too great", looked_up, but(Let, index=lambda x: V.make("add", x.dtype, x, V.constant(3, x.dtype))),
     "is outside of its 28 elements"),
    ("an index without a name", looked_up, no(Let), "the index id is not bound"),
    ("no condition of a load", of_any_size, inner(If), "y0[14] is outside of its 13 elements"),

    ("a pack that is misaligned", doubled, but(Load, index=lambda x: x + 2), "x0[2] is misaligned"),
    ("a stored pack that is misaligned", looked_up, but(Put, index=lambda x: x + 1), "y0[1] is misaligned"),
    ("a pack too wide", doubled, but(Load, lanes=8), "8 elements of x0 are no access"),
    ("a pack of three", doubled, but(Put, lanes=3), "3 elements of y0 are no access"),
    ("a pack with elements of another width", doubled, but(Load, into=lambda r: replace(r, dtype=f16)),
     "r does not hold the bits of x0"),
    ("a lane that nobody writes", doubled, but(Loop, 2, size=3), "w[3] is read before it is written"),
    ("the same lane for all", doubled, but(Store, index=0),
     "w[0] is written by lane 0 of thread 0 of block 0 and written by lane 3 of thread 0 of block 0"),
    ("another lane's element", doubled, more(Store, 0, Store(own("r", 4), i("v"), V.load(own("w", 4), 3 - i("v"))), after=True),
     "w[3] is read by lane 0 of thread 0 of block 0 and written by lane 3"),

    ("packs of two blocks", doubled, but(Loop, 1, size=12), "y0[32] is written by"),
    ("all warps store", columns, inner(If), "y0[0] is written by thread"),
    ("stored once more after a barrier", columns, more(If, 0, Barrier("block"), If(below(3, i("w")), (
        Store(own("y0", 8, "output"), 4 * i("c") + i("l"), V.load(own("part", 1), 0)),)), after=True),
     "y0[0] is written by thread 16 of block 0 and written before by thread 0 of block 0"),
    ("one element for all threads", columns, but(Store, index=4 * i("w")), "tile[0] is written by thread 0"),
    ("a block too few", doubled, but(Loop, size=1), "16 of 48 elements of y0 are never written"),
    ("a store outside of the threads", columns, more(Loop, 1, Store(own("tile", 20), 0, V.constant(0.0, f32))),
     "the statement is outside of thread loops"),

    ("no identity", columns, no(Clear), "part[0] is read before it is written"),
    ("another identity", columns, but(Clear, monoid="max"), "part is combined by sum, and was cleared for max"),
    ("combined by another operation", softmax, but(Combine, monoid="sum"), "m is combined by sum, and was cleared for max"),
    ("combined across too many", softmax, but(Combine, threads=16), "m is combined across 16 threads in a loop of 8"),
    ("combined without shared memory", softmax, but(Combine, shared=None), "8 threads combine m without shared memory"),
    ("combined without room", softmax, buffer("across", size=1), "across has no room for a number of each of 2 warps"),
    ("combined by some threads", softmax, only(below(i("t"), 4), Combine), "4 of 8 threads are at a barrier"),
    ("combined by some threads of a warp", in_two, only(below(i("t"), 3), Combine), "3 of 4 threads combine a"),
    ("computed early by all threads, used by one that has not written it", running,
     all_of(more(If, 0, Compute(CARRIED)), but(Store, value=lambda _: CARRIED)), "carry[0] is read before it is written"),
    ("computed before it is there", softmax, moved(Compute, 0, Clear), "m[0] is read before it is written"),
]
DIFFERENT: list[tuple[str, Callable[[], LoopProgram], Edit]] = [
    ("a load that is stale", softmax, moved(Compute, 0, Combine)),
    ("not combined across threads", softmax, no(Combine, 1)),
    ("combined in part", softmax, but(Combine, threads=4)),
    ("a sum that begins again", running, all_of(no(Clear), more(Take, 0, Clear(own("carry", 1), "sum")))),
    ("stored before it is added", running, moved(Store, 0, Take)),
    ("rows that all warps add", columns, but(Loop, 3, first=0, step=1)),
    ("a load without its condition", doubled, but(Load, when=V.make("less", bool_, V.index(i("t"), i32), V.index(5, i32)))),
]


@pytest.mark.parametrize(("name", "make", "edit", "why"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_planted_fault_is_reported(name: str, make: Callable[[], LoopProgram], edit: Edit, why: str) -> None:
    with pytest.raises(StageError, match=re.escape(why)):
        compared(edit(make()))


@pytest.mark.parametrize(("name", "make", "edit"), DIFFERENT, ids=[f[0] for f in DIFFERENT])
def test_a_fault_in_order_alone_is_seen_in_the_numbers(name: str, make: Callable[[], LoopProgram], edit: Edit) -> None:
    with pytest.raises(AssertionError):
        compared(edit(make()))


def test_a_report_names_the_element_the_threads_the_statement_and_the_kernel() -> None:
    with pytest.raises(StageError) as error:
        compared(no(Barrier)(columns()))
    assert str(error.value) == ("tile[4] is read by thread 0 of block 0 and written by thread 4 of block 0, "
                                "in `total[0] sum= tile[4*k + l]` of one")


def test_what_is_computed_of_empty_registers_is_no_fault_where_nobody_uses_it() -> None:
    compared(more(If, 0, Compute(CARRIED))(running()))


def test_a_value_is_computed_again_by_each_compute() -> None:
    loops = running()
    store = nth(loops, Store, 0)
    twice = replace(store, value=V.make("add", f32, CARRIED, mul(V.constant(-1.0, f32), V.load(own("carry", 1), 0))))
    again = edited(loops, store, Compute(CARRIED), twice)
    compared(again)
    compared(more(Loop, 2, Compute(CARRIED))(again))
    with pytest.raises(AssertionError):
        compared(more(Loop, 2, Compute(CARRIED))(edited(loops, store, twice)))


def test_two_blocks_of_64_threads_with_loops_of_40_run_in_well_below_a_second() -> None:
    loops, x = softmax(2, 64, 40), np.random.default_rng(0).standard_normal((2, 64 * 40))
    begin = time.process_time()
    run(loops, [x], warp=WARP)
    assert time.process_time() - begin < 0.8


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_statement_is_dropped_unnoticed(name: str) -> None:
    loops = PROGRAMS[name]()
    for s in (s for kernel in loops.kernels for s in statements(kernel.body) if not isinstance(s, Compute)):
        with pytest.raises((StageError, AssertionError)):
            compared(edited(loops, s))


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_what_programs_at_random_are_mapped_to_means_what_their_stages_mean(first: int) -> None:
    for seed in range(first, first + 10):
        stages, operands = programs(seed)
        for of_stages in stages:
            if not any(s.scan for s in of_stages.stages):           # scans are printed without loop programs
                loops = map_loops(of_stages, TINY)
                for out, expected in zip(run(loops, operands, warp=TINY.warp), run_stages(of_stages, operands), strict=True):
                    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}\n{of_stages}\n{loops}")
