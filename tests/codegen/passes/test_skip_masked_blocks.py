"""Blocks of which nothing counts are not walked, and what comes out is the same, of queries that see nothing too."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.interpret import run
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.passes.closed_form_count import counted
from tensor_graphs.codegen.passes.online_reductions import BLOCK, online
from tensor_graphs.codegen.passes.skip_masked_blocks import without_hidden
from tensor_graphs.codegen.passes.tile_rows import laned
from tensor_graphs.kernels.c import library
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.node import Node
from tests.codegen.generated import Library
from tests.codegen.passes.test_online_reductions import S, agree, definition_of
from tests.codegen.passes.test_tile_rows import drawn, qkv

CASES: dict[str, Node] = {
    "causal": tg.attention(*qkv(40, 2, 1, 24), scale=0.3, causal=True, start=S - 40),     # of few keys, the first see nothing
    "causal from the first key": tg.attention(*qkv(40, 2, 2, 24), scale=0.3, causal=True),
    "a window": tg.attention(*qkv(40, 2, 2, 24), scale=0.3, causal=True, window=9, start=S - 40),
    "a window that is not causal": tg.attention(*qkv(40, 2, 2, 24), scale=0.3, window=9, start=40),
    "behind all keys": tg.attention(*qkv(40, 2, 2, 24), scale=0.3, causal=True, window=9, start=500),
}


def walked(definition: Definition, lanes: bool) -> StageProgram:
    found = online(counted(lower(definition)))
    assert found is not None and found[1].may_skip
    program = laned(found[0], library.load().tile(4).lanes) if lanes else found[0]
    assert not lanes or program is not found[0]
    fewer = without_hidden(program, found[1])
    assert fewer is not program
    return fewer


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("lanes", [False, True], ids=["rows alone", "lanes"])
def test_what_is_left_out_changes_nothing(name: str, lanes: bool) -> None:
    graph, definition = definition_of(CASES[name])
    program = walked(definition, lanes)
    for s in (1, 20, BLOCK, 130):
        values, at = drawn(graph, s, 40)
        agree(run(program, list(values.values()), at), graph, values, s, 1e-9, at)


def test_what_is_left_out_changes_nothing_in_c() -> None:
    pairs = [definition_of(output) for output in CASES.values()]
    compiled = Library([walked(definition, lanes) for _, definition in pairs for lanes in (False, True)])
    for i, (graph, definition) in enumerate(pair for pair in pairs for _ in (False, True)):
        for s in (1, 20, 300):
            values, at = drawn(graph, s, 40)
            agree(compiled.run(i, definition, list(values.values()), at), graph, values, s, 1e-5, at)


def test_a_window_walks_the_blocks_it_meets() -> None:
    program = walked(definition_of(CASES["a window"])[1], True)
    (blocks,) = (nest.blocks.axis for nest in program.nests if nest.blocks is not None)
    nest = program.nests[-1]
    last = d.evaluate(blocks.size, {"s": 300, nest.axes[-1].name: 1})
    assert last == 1 and d.evaluate(blocks.size, {"s": 300, nest.axes[-1].name: 0}) <= 2


@pytest.mark.parametrize("output", [
    tg.attention(*qkv(40, 2, 2, 24), scale=0.3),
    tg.attention(*qkv(40, 2, 2, 24), tg.input("m", (40, S), tg.bool_), scale=0.3),         # read, and not compared
], ids=["nothing is hidden", "a mask"])
def test_what_hides_no_block_is_walked_whole(output: Node) -> None:
    found = online(counted(lower(definition_of(output)[1])))
    assert found is not None and without_hidden(*found) is found[0]


def test_a_row_that_is_read_where_nothing_is_seen_is_walked_whole() -> None:
    x, w = tg.input("x", (40, S)), tg.input("w", (S, 8))
    seen = tg.less(tg.cast(tg.iota((40, S), axis=1), tg.i32), tg.cast(tg.iota((40, S), axis=0), tg.i32))
    some = tg.less(tg.input("at", (40, 1)), 0.0)
    hidden = tg.where(tg.bit_and(some, tg.equals(seen, False)), -float("inf"), x)
    found = online(counted(lower(definition_of(tg.softmax(hidden) @ w)[1])))
    assert found is not None and not found[1].may_skip                 # where `some` does not hold, all count
