"""The C of stages as it was last reviewed: one text of each kind of stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import schedule_actions
from tensor_graphs.codegen.default_schedule import CHUNK, LANES, LONG_ROW
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, Values
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.codegen.print.c_loops import rendered
from tensor_graphs.language.anonymous_composite import part_between, part_of
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

if TYPE_CHECKING:
    from tests.conftest import Snapshot

N = tg.dim("n", 1, 512)
X = tg.input("x", (N, 64))

REVIEWED: dict[str, Node] = {
    "rows": tg.softmax(X * 0.125),
    "in_parts": tg.reduce_max(tg.input("x", (5 * CHUNK,))),
    "gather_and_pad": tg.pad(tg.embedding(tg.input("t", (100, 16)), tg.input("i", (N,), tg.i32)), ((1, 0), (0, 0))),
    "tiles": tg.input("t", (64, N)).permute((1, 0)) + X,
    "scan_of_one_row": tg.cumsum(tg.input("x", (5 * CHUNK,), tg.i32)),
    "rows_apart": tg.rms_norm(X, tg.input("g", (64,))),
    "long_rows": tg.input("x", (N, 1024)).sum(axis=1),
}


@pytest.mark.parametrize("name", REVIEWED)
def test_the_c_is_the_text_last_reviewed(name: str, snapshot: Snapshot) -> None:
    program = arranged(lower(part_of(tg.graph(REVIEWED[name])).written, apart=name == "rows_apart"))
    snapshot.check(f"{name}.c", rendered(program))


def test_a_size_that_is_a_product_is_one_number_where_turns_are_counted() -> None:
    """turn / 2 * n is not turn / (2 * n)."""
    n = tg.dim("n", 1, 64)
    graph = tg.graph(tg.input("x", (2 * n, 3, 5)).permute((1, 0, 2)) * 2.0)
    written = part_of(graph).written
    library = Library([arranged(lower(written))])
    assert "(_turn / (2 * d_n))" in rendered(library.programs[0])
    x = np.arange(8 * 15, dtype=np.float32).reshape(8, 3, 5)
    (out,) = library.run(0, written, [x], {"n": 4})
    np.testing.assert_array_equal(out, x.transpose(1, 0, 2) * 2)


@pytest.mark.parametrize(("turned", "loops"), [(False, 1), (True, 2)])
def test_what_is_stored_along_the_same_axes_is_one_loop_unless_it_is_read_at_another_turn(turned: bool, loops: int) -> None:
    values, i, n = Values(), Axis("_i", 64), 64
    x, first, second = Array("x0", "operand", 0, f32, n), Array("y0", "output", 0, f32, n), Array("y1", "output", 1, f32, n)
    read = values.load(first, n - 1 - i.symbol if turned else i.symbol)
    stages = Stage(first, i.symbol, (i,), values.load(x, i.symbol), 0), Stage(second, i.symbol, (i,), read, 0)
    program = StageProgram((x,), (first, second), (Nest((Axis("_o", 1),), stages),))
    assert rendered(program).count("for (int64_t _i ") == loops


@pytest.mark.parametrize(("size", "of", "lanes"), [(LONG_ROW - 1, tg.abs, 1), (LONG_ROW, tg.neg, LANES), (LONG_ROW, tg.exp, 1)])
def test_a_long_row_is_added_up_by_several_vectors_where_its_values_are_cheap(
        size: int, of: Callable[[Node], Node], lanes: int) -> None:
    program = arranged(lower(part_of(tg.graph(of(tg.input("x", (N, size))).sum(axis=1))).written))
    assert [s.advice.lanes for s in program.nests[0].stages] == [lanes]


def test_reductions_beside_each_other_have_variables_of_their_own() -> None:
    """Two of one row in lanes, and two of one value."""
    n, m = tg.dim("n", 1, 64), 21
    x, z = tg.input("x", (n, m), tg.i32), tg.input("z", (n, 1), tg.i32)
    lanes = schedule_actions.Accumulators(4, 0, 0), schedule_actions.Accumulators(4, 0, 1)
    values = {"x": np.random.default_rng(3).integers(-9, 9, (5, m), np.int32), "z": np.arange(-2, 3, dtype=np.int32)[:, None]}
    for reduced, schedule in ((x, lanes), (tg.expand(z, (n, m)), ())):
        both = tg.reduce_max(reduced, axis=1, keepdims=True) + reduced.sum(axis=1, keepdims=True)
        graph = tg.graph({"y": x * both})
        written = part_between(list(graph.outputs.values()), list(graph.inputs.values())).written
        library = Library([schedule_actions.replay(written, schedule)])
        assert [s.monoid for s in library.programs[0].nests[0].stages] == ["max", "sum", None]
        given = {k: values[k] for k in graph.inputs}
        (found,) = library.run(0, written, list(given.values()), {"n": 5})
        np.testing.assert_array_equal(found, interpret(graph, given).outputs["y"])


def test_numbers_of_bf16_that_are_only_moved_are_not_rounded_again() -> None:
    table, ids = tg.input("t", (50, 8), tg.bf16), tg.input("i", (9,), tg.i32)
    moved, scaled = tg.embedding(table, ids, dtype=tg.bf16), tg.embedding(table, ids, dtype=tg.bf16, scale=0.3)
    wide = tg.cast(tg.input("f", (50, 8)), tg.bf16)
    texts = [rendered(arranged(lower(part_of(tg.graph(y)).written))) for y in (moved, scaled, wide)]
    assert ["bf16_of_f32" in text for text in texts] == [False, True, True]
