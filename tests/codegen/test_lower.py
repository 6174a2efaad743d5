"""What a definition becomes: how many nests, what is kept where, what is refused and why."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.loop_ir import StageProgram, values_in
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.codegen.print.c_loops import rendered
from tensor_graphs.codegen.refusals import TooManyTurns
from tensor_graphs.codegen.spec_to_loops import loops_of
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import part_between, part_of
from tensor_graphs.language.node import Node

N = tg.dim("n", 1, 512)
X, Y, G = tg.input("x", (N, 64)), tg.input("y", (N, 64)), tg.input("g", (64,))
Q, K, V = tg.input("q", (16, 4, 32)), tg.input("k", (16, 2, 32)), tg.input("v", (16, 2, 32))


def program(output: Node) -> StageProgram:
    return arranged(lower(part_of(tg.graph(output)).written))


@pytest.mark.parametrize(("output", "nests", "stages"), [
    (tg.softmax(X * 0.125) + Y, 1, 4),                              # maximum, exponentials, sum, result
    (tg.rms_norm(X, G), 1, 2),
    (tg.layer_norm(X + Y, G), 1, 3),
    (tg.logsumexp(X), 1, 3),
    (tg.gelu(X, approximate="tanh") * Y, 1, 1),
    (tg.softmax(X, axis=0), 3, 3),                                  # down the columns everything is needed whole
    (X.sum(axis=0), 1, 1),
    (tg.input("z", (1000, 1000)).sum(), 2, 2),                      # in parts, and what they come to
    (tg.concat(X, Y, axis=1)[:, ::-1].reshape(N * 128), 1, 1),
    (tg.embedding(tg.input("t", (100, 16)), tg.input("i", (N,), tg.i32)) * 2, 1, 1),
    (tg.attention(Q, K, V, scale=0.1), 2, 6),
], ids=lambda x: "")
def test_a_definition_takes_as_few_passes_as_it_can(output: Node, nests: int, stages: int) -> None:
    made = program(output)
    assert (len(made.nests), sum(len(n.stages) for n in made.nests)) == (nests, stages), str(made)


def test_axes_that_walk_memory_as_one_are_one() -> None:
    (nest,) = program(tg.tanh(tg.input("w", (N, 8, 64)))).nests
    assert not nest.axes and [str(a.size) for a in nest.stages[0].axes] == ["512*n"]


def test_what_is_reduced_in_a_row_is_a_number_of_that_row_and_no_array() -> None:
    made = program(tg.rms_norm(X, G))
    (kept,) = made.scratch
    assert (kept.level, kept.size) == (1, 1) and "double t1;" in rendered(made)


def test_a_program_is_printed_with_what_is_used_twice_under_a_name() -> None:
    deep: Node = X
    for _ in range(40):
        deep = deep * deep                                          # written out it would be 2^40 operands
    text = str(program(deep))
    assert len(text) < 8000 and "where v" in text


@pytest.mark.parametrize(("output", "why"), [
    (atomic.bitcast(tg.input("b", (8,), tg.i32), tg.u8), "a bitcast to another width"),
])
def test_what_is_no_loop_is_refused_with_the_reason(output: Node, why: str) -> None:
    with pytest.raises(NotLowered, match=why):
        program(output)


def test_a_product_is_left_to_kernels_with_tiles() -> None:
    with pytest.raises(TooManyTurns, match="a product"):
        loops_of(part_of(tg.graph(tg.linear(tg.input("a", (512, 512)), tg.input("w", (512, 512))))).written)


def test_what_reads_a_narrow_output_again_reads_it_unrounded() -> None:
    x = tg.input("h", (16, 96), tg.f16)
    best = tg.reduce_max(x * 3.0, axis=1, keepdims=True)
    made = arranged(lower(part_between([best, tg.equals(x * 3.0, best)], [x]).written))
    assert not any(v.op == "load" and v.attr[0].role == "output" for n in made.nests for s in n.stages for v in values_in(s.value))


def test_what_is_stored_for_a_channel_below_the_numbers_of_its_group_walks_memory_in_one_loop() -> None:
    image, weights = tg.input("x", (2, 16, 5, 7)), [tg.input(n, (16,)) for n in "gb"]
    (nest,) = program(tg.silu(tg.group_norm(image, *weights, groups=4))).nests
    assert [[d.format_dim(a.size) for a in s.axes] for s in nest.stages][-1] == ["4", "35"] and len(nest.axes) == 2, str(nest)


def test_a_place_that_arithmetic_says_is_an_address_unless_it_might_wrap() -> None:
    pool = program(tg.max_pool2d(tg.input("x", (2, 3, 28, 28)), 3, stride=2, padding=1))
    assert not pool.gathered

    def twice(dtype: tg.DType) -> Node:
        return tg.gather(tg.input("x", (200,)), tg.iota((100,), 0, dtype) * 2, axis=0)

    assert not program(twice(tg.i32)).gathered               # 0, 2, …, 198
    assert program(twice(tg.i8)).gathered                    # which 8 bits do not hold
