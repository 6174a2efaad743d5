"""What an op's definition contains: long sums, maxima whose rows may be padded, comparisons of operands."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.measure.definition_analysis import compares_operands, most_terms, one_sided_operands, padded_operands

N, M = tg.dim("n", 1, 4096), tg.dim("m", 1, 4096)
X, Y = tg.input("x", (N, M), tg.f32), tg.input("y", (N, M), tg.f32)
KEYS = tuple(tg.input(name, (size, 2, 8), tg.f32) for name, size in (("q", N), ("k", M), ("v", M)))


def graph_of(node: Node) -> Graph:
    return signature_of(node).graph


def test_the_longest_sum_of_floats_is_found_in_a_composite_too() -> None:
    assert most_terms(graph_of(tg.sum(X, axis=1))) == M
    assert most_terms(graph_of(tg.rms_norm(X))) == M
    assert most_terms(graph_of(tg.dot(X, tg.input("w", (M, 3), tg.f32)))) == M
    assert most_terms(graph_of(tg.sum(tg.input("x", (N, 24), tg.f32), axis=1))) == 24
    assert most_terms(graph_of(tg.add(X, Y))) == 0
    assert most_terms(graph_of(tg.sum(tg.input("x", (N, M), tg.f64), axis=1))) == 0
    assert most_terms(graph_of(tg.sum(tg.input("x", (N, M), tg.i32), axis=1))) == 0


def test_the_operands_of_a_maximum_may_be_padded_along_its_axis() -> None:
    rows = padded_operands(graph_of(tg.softmax(X)))
    assert (dict(rows.floats), dict(rows.masks), rows.dims) == ({"x0": -1}, {}, {"m"})
    columns = padded_operands(graph_of(tg.softmax(X, axis=0)))
    assert (dict(columns.floats), columns.dims) == ({"x0": -2}, {"n"})
    assert dict(padded_operands(graph_of(tg.logsumexp(X))).floats) == {"x0": -1}


def test_a_mask_may_be_padded_and_what_is_multiplied_may_not() -> None:
    """0 · ∞ is NaN."""
    masked = padded_operands(graph_of(tg.attention(*KEYS, tg.input("mask", (N, M), tg.bool_), scale=0.5)))
    assert (dict(masked.floats), dict(masked.masks), masked.dims) == ({}, {"x3": -1}, {"m"})
    for node in (tg.attention(*KEYS, scale=0.5), tg.sum(X, axis=1), tg.maximum(X, Y), tg.relu(X)):
        assert padded_operands(graph_of(node)).floats == padded_operands(graph_of(node)).masks == {}


IMAGE = tg.input("image", (N, 3, 8, 8), tg.f32)


@pytest.mark.parametrize(("node", "axes"), [
    (tg.softmax(X), (-1,)), (tg.softmax(X, axis=0), (-2,)), (tg.reduce_min(X, 1), (-1,)), (tg.reduce_max(X), (-2, -1)),
    (tg.reduce_max(tg.input("i", (N, M), tg.i32), 1), (-1,)), (tg.topk(X, k=1)[0].inputs[0], (-1,)),
    (tg.max_pool2d(IMAGE, 2, padding=1), (-3, -2, -1))])
def test_the_operands_of_a_maximum_may_lie_on_one_side_of_zero(node: Node, axes: tuple[int, ...]) -> None:
    assert one_sided_operands(graph_of(node)).straight == {"x0": axes}


def test_factors_make_a_product_that_is_on_one_side_and_sums_have_no_sides() -> None:
    attention = one_sided_operands(graph_of(tg.attention(*KEYS, scale=0.5)))
    assert (attention.straight, attention.multiplied) == ({}, {"x0": (-2, -1), "x1": (-2, -1)})
    assert one_sided_operands(graph_of(tg.sum(X, axis=1))) == one_sided_operands(graph_of(tg.add(X, Y)))


@pytest.mark.parametrize("node", [tg.less(X, Y), tg.equals(X, Y), tg.argmax(X), tg.topk(X, k=1)[0].inputs[0]])
def test_comparisons_of_operands_are_found(node: Node) -> None:
    assert compares_operands(graph_of(node))


@pytest.mark.parametrize("node", [tg.relu(X), tg.softmax(X), tg.add(X, Y), tg.gelu(X), tg.attention(*KEYS, scale=0.5, causal=True),
                                  tg.less(tg.input("x", (N,), tg.i32), tg.input("y", (N,), tg.i32))])
def test_nothing_else_compares_operands(node: Node) -> None:
    assert not compares_operands(graph_of(node))
