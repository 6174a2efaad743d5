"""codegen/traffic.py: bytes counted by hand."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.spec_to_loops import loops_of
from tensor_graphs.codegen.traffic import APART, traffic_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import part_of
from tensor_graphs.language.node import Node

N = tg.dim("n", 1, 512)
X, Y, G = tg.input("x", (N, 64)), tg.input("y", (N, 64)), tg.input("g", (64,))


@pytest.mark.parametrize(("output", "nbytes"), [
    (tg.tanh(X + Y) * 2.0, 4 * 3 * 10 * 64),
    (tg.softmax(X), 4 * 2 * 10 * 64),                               # three stages of one nest: the row is read once
    (tg.rms_norm(X + Y, G), 4 * (3 * 10 * 64 + 64)),
    (X.sum(axis=1), 4 * (10 * 64 + 10)),
    (X.sum(axis=0), 4 * (10 * 64 + 64)),                            # columns next to each other
    (tg.cast(X, tg.bf16) * 2, (4 + 2) * 10 * 64),
    (tg.embedding(tg.input("t", (10000, 16)), tg.input("i", (N,), tg.i32)) * 2, 4 * (2 * 10 * 16 + 10)),
    (tg.input("m", (300, 500)).permute((1, 0)) + tg.input("k", (500, 300)), 4 * 150000 * (2 + APART)),
], ids=lambda x: "")
def test_a_nest_is_one_pass_over_what_it_reads_and_writes(output: Node, nbytes: int) -> None:
    program = loops_of(part_of(tg.graph(output)).written)
    assert isinstance(program, StageProgram)
    assert d.evaluate(traffic_of(program), {"n": 10}) == nbytes
