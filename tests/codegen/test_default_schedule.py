"""Arranging changes no meaning, also of programs that no definition is lowered to today (tests/fuzzing draws such at random)."""

from __future__ import annotations

import numpy as np

import tensor_graphs as tg
from tensor_graphs.codegen.default_schedule import CHUNK
from tensor_graphs.codegen.interpret import run
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Reduce, Running, Stage, StageProgram, Values
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.passes import split_reduction
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.dtypes import i64
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library


def test_axes_stay_apart_where_a_loop_is_as_long_as_one_of_them_has_come() -> None:
    a, b = Axis("_a", 1), Axis("_b", 12)
    short = Axis("_r", b.symbol + 1)

    def program() -> StageProgram:
        values = Values()
        x, y = Array("x0", "operand", 0, i64, 12), Array("y0", "output", 0, i64, 12)
        at = b.symbol
        stage = Stage(y, at, (a, b), values.load(x, at), 0, Reduce((short,), "sum"))
        return StageProgram((x,), (y,), (Nest((), (stage,)),))

    x = np.arange(12)
    np.testing.assert_array_equal(run(arranged(program()), [x])[0], x * (1 + x))


def started(rows: int, length: int) -> StageProgram:
    """Each row of y as the running sum of x, begun with the row's number of z."""
    values = Values()
    x, z = Array("x0", "operand", 0, i64, length), Array("x1", "operand", 1, i64, rows)
    y = Array("y0", "output", 0, i64, rows * length)
    i, j, k = Axis("_i", rows), Axis("_j", 1), Axis("_k", length)
    outer = () if rows == 1 else (i,)
    first = 0 if rows == 1 else i.symbol
    scan = Running(k, "sum", start=values.load(z, first))
    own = (k,) if rows == 1 else (j, k)
    stage = Stage(y, length * first + k.symbol, own, values.load(x, k.symbol), len(outer), scan)
    return StageProgram((x, z), (y,), (Nest(outer, (stage,)),))


def test_what_a_scan_begins_with_is_kept_where_axes_become_one_and_where_it_is_cut() -> None:
    for rows, length in ((3, 5), (1, 5 * CHUNK)):
        x, z = np.arange(length), 100 * np.arange(1, rows + 1)
        expected = (np.cumsum(x)[None] + z[:, None]).reshape(-1)
        as_run = arranged(started(rows, length))
        for program in (started(rows, length), as_run, split_reduction.columns_in_parts(as_run)):
            np.testing.assert_array_equal(run(program, [x, z])[0], expected)
    assert len(arranged(started(1, 5 * CHUNK)).nests) == 3


def test_scratch_of_parts_has_a_name_of_its_own() -> None:
    x = tg.input("x", (tg.dim("n", 0, 1024), tg.dim("m", 0, 1024)), tg.bool_)
    for graph in (tg.graph(tg.any(x)), tg.graph(tg.all(x)), tg.graph([tg.any(x), tg.reduce_max(tg.cast(x, tg.i32))])):
        written = part_between(list(graph.outputs.values()), [x]).written
        program = arranged(lower(written))
        arrays = set(program.scratch)
        assert len({a.name for a in arrays}) == len(arrays) > 1, program
        library = Library([program])
        for size in (0, 3, 1024):
            values = np.zeros((size, size), bool)
            values[-1:, -1:] = True
            for found, ref in zip(library.run(0, written, [values], {"n": size, "m": size}),
                                  interpret(graph, {"x": values}).outputs.values(), strict=True):
                np.testing.assert_array_equal(found, ref)


def test_axes_stay_apart_where_a_stage_that_keeps_both_reads_an_index_along_one_of_them() -> None:
    """Of two stages over _j, the first is made before _k is walked and reads x[p[_j]]; the second alone could walk both as one."""
    i, k, j = Axis("_i", 2), Axis("_k", 1), Axis("_j", 3)

    def program() -> StageProgram:
        values = Values()
        x, p = Array("x0", "operand", 0, i64, 3), Array("x1", "operand", 1, i64, 3)
        first, second = Array("y0", "output", 0, i64, 6), Array("y1", "output", 1, i64, 6)
        at = 3 * i.symbol + j.symbol
        read = values.load(x, values.gather(values.load(p, j.symbol), 3))
        stages = Stage(first, at, (j,), read, 1), Stage(second, at, (j,), values.index(at, i64), 2)
        return StageProgram((x, p), (first, second), (Nest((i, k), stages),), values.gathered)

    operands = [np.array([10, 20, 30]), np.array([2, 0, 1])]
    for made in (program(), arranged(program())):
        for found, expected in zip(run(made, operands), ([30, 10, 20] * 2, range(6)), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_reduction_of_no_columns_is_not_cut() -> None:
    rows, column = Axis("_r", 4 * split_reduction.LEAST_ROWS), Axis("_j", 0)
    values = Values()
    x, y = Array("x0", "operand", 0, i64, 0), Array("y0", "output", 0, i64, 0)
    stage = Stage(y, column.symbol, (column,), values.load(x, column.symbol), 0, Reduce((rows,), "sum"))
    program = split_reduction.columns_in_parts(StageProgram((x,), (y,), (Nest((), (stage,)),)))
    assert list(program.stages) == [stage]
    assert run(program, [np.empty(0, np.int64)])[0].shape == (0,)
