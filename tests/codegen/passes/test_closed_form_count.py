"""Sums of comparisons of indices are numbers of indices, and a choice by one that is never 0 is none."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.interpret import run
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.passes.closed_form_count import counted
from tensor_graphs.language.node import Node
from tests.codegen.passes.test_online_reductions import S, agree, definition_of

KEYS, ROWS = (tg.iota((9, S), axis=axis, dtype=tg.i32) for axis in (1, 0))
X = tg.input("x", (9, S))


def how_many(condition: Node) -> Node:
    return tg.cast(condition, tg.i32).sum(axis=1)


CASES = {
    "up to a row": tg.less(KEYS, ROWS + 1), "from a row on": tg.less(ROWS, KEYS), "few before a row": tg.less(ROWS - KEYS, 4),
    "a window": tg.bit_and(tg.less(KEYS, ROWS + 3), tg.less(ROWS - KEYS, 2)), "none": tg.less(KEYS + 400, ROWS),
}


@pytest.mark.parametrize("name", CASES)
def test_a_count_is_an_index(name: str) -> None:
    graph, definition = definition_of(tg.cast(how_many(CASES[name]), tg.f32) + X[:, 0])
    program = lower(definition)
    program = counted(program)
    assert not any(s.reduce for nest in program.nests for s in nest.stages), str(program)
    for s in (1, 5, 20):
        values = {"x": np.zeros((9, s), np.float32)}
        agree(run(program, [values["x"]], {"s": s}), graph, values, s, 0)


@pytest.mark.parametrize("condition", [tg.less(X, 0.0), tg.less(KEYS * 2, ROWS), tg.less(KEYS * KEYS, ROWS)],
                         ids=["values", "every other", "a square"])
def test_what_indices_do_not_tell_stays_a_sum(condition: Node) -> None:
    program = lower(definition_of(tg.cast(how_many(condition), tg.f32) + X[:, 0])[1])
    before = str(program)
    program = counted(program)
    assert str(program) == before


def test_a_choice_by_a_count_that_is_never_0_is_what_is_chosen() -> None:
    q, k = tg.input("q", (9, 1, 8)), tg.input("k", (9, 1, 8))
    graph, definition = definition_of(tg.attention(q, k, k, scale=0.3, causal=True))
    program = lower(definition)
    assert "≠ 0" in str(program)
    program = counted(program)
    assert "≠ 0" not in str(program) and len(program.nests) == len(lower(definition).nests) - 1
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=(9, 1, 8)).astype(np.float32) for name in graph.inputs}
    agree(run(program, list(values.values())), graph, values, 0, 1e-9)
