"""rewrites/parts.py: a part is found wherever a graph computes the same, in whatever words, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tensor_graphs as tg
from tensor_graphs.language.node import Node
from tensor_graphs.language.part import PartOp, known_same, part_of
from tensor_graphs.rewrites.parts import form
from tensor_graphs.rewrites.recognise import write_out

N, K, M = tg.dim("n", 1, 4096), tg.dim("k", 1, 65536), tg.dim("m", 1, 65536)
X, G, W, R = tg.input("x", (N, K)), tg.input("g", (K,)), tg.input("w", (M, K)), tg.input("r", (N, M))


def norm(x: Node, g: Node) -> Node:
    """rms_norm in atomic ops, in another order than its definition."""
    squares = tg.sum(x * x, axis=-1, keepdims=True) * tg.reciprocal(tg.constant(x.shape[-1], tg.f32))
    return (x * g) * tg.reciprocal(tg.sqrt(squares + 1e-6))


NORM_LINEAR = tg.graph(tg.linear(norm(X, G), W))
ADDED_NORM = tg.graph(R + norm(tg.linear(X, W), tg.input("h", (M,))))


def layers(count: int, hidden: int = 16) -> tg.Graph:
    """A small model of two-matrix blocks in the library's words; the norm before it feeds both its products."""
    x = tg.input("x", (tg.dim("t", 1, 32), hidden))
    for i in range(count):
        def weight(name: str, *shape: int, i: int = i) -> Node:
            return tg.parameter(f"{name}{i}", shape)

        h = tg.rms_norm(x, weight("g", hidden))
        a, b = tg.linear(h, weight("a", 2 * hidden, hidden)), tg.linear(h, weight("b", 2 * hidden, hidden))
        x = x + tg.rms_norm(tg.linear(tg.silu(a) * b, weight("c", hidden, 2 * hidden)), weight("o", hidden))
    return tg.graph(x)


def test_a_part_in_other_words_is_found_in_every_layer_and_the_graph_stays_the_same_function() -> None:
    graph = layers(3)
    found = form(graph, [part_of(NORM_LINEAR), part_of(ADDED_NORM)])
    assert sorted(found.places.values()) == [3, 6]
    assert write_out(found.graph) == write_out(graph)              # node by node


@pytest.mark.parametrize(("rows", "hidden", "wide"), [(4, 16, 16), (7, 256, 512), (33, 311, 1023)])
def test_a_part_is_found_in_every_layer_of_a_model_in_atomic_ops_at_any_size(rows: int, hidden: int, wide: int) -> None:
    x = tg.input("x", (rows, hidden))
    for i in range(3):
        g, w = tg.parameter(f"g{i}", (hidden,)), tg.parameter(f"w{i}", (wide, hidden))
        squares = tg.sum(x * x, axis=-1, keepdims=True) * (1.0 / hidden)
        x = tg.dot((x * g) / tg.sqrt(squares + 1e-6), tg.permute(w, (1, 0)))
        x = tg.linear(tg.relu(x), tg.parameter(f"d{i}", (hidden, wide)))
    assert sum(form(tg.graph(x), [part_of(NORM_LINEAR)]).places.values()) == 3


def test_equal_layers_are_one_op() -> None:
    found = form(layers(3), [part_of(NORM_LINEAR)])
    ops = {n.op for n in found.graph.nodes if isinstance(n.op, PartOp)}
    assert len({op.written.digest for op in ops}) == 1


def test_a_graph_without_it_is_the_very_same() -> None:
    graph = tg.graph(tg.softmax(tg.linear(tg.input("x", (4, 16)), tg.parameter("w", (8, 16)))))
    assert form(graph, [part_of(NORM_LINEAR)]).graph is graph


def test_a_smaller_part_is_inside_of_a_larger_one() -> None:
    small, large = part_of(tg.graph(norm(X, G))), part_of(NORM_LINEAR)
    graph = tg.graph(tg.linear(tg.rms_norm(tg.input("x", (4, 16)), tg.parameter("g", (16,))), tg.parameter("w", (8, 16))))
    found = form(graph, [large, small])
    (output,) = found.graph.outputs.values()
    assert isinstance(output.op, PartOp)
    inner = [n for n in output.op.written.outputs[0].inputs if isinstance(n.op, PartOp)]
    assert len(inner) == 1 and write_out(found.graph) == write_out(graph)


def test_one_part_in_two_wordings_is_one_node_and_kernels_of_both_compute_it() -> None:
    one, other = part_of(NORM_LINEAR), part_of(tg.graph(tg.linear(tg.rms_norm(X, G), W)))
    found = form(layers(1), [one, other])
    wholes = [n for n in found.graph.nodes if isinstance(n.op, PartOp)]
    assert len(wholes) == 2 and not any(isinstance(i.op, PartOp) for n in wholes for i in n.op.written.outputs[0].inputs)
    whole = wholes[0]
    types = [i.type for i in whole.inputs]
    assert all(known_same(part.define(types, {}), whole.op.define(types, {})) for part in (one, other))


def test_operands_that_may_be_exchanged_are_put_in_the_order_of_the_part() -> None:
    a, b = tg.input("a", (N, K)), tg.input("b", (N, K))
    op = part_of(tg.graph(tg.sub(tg.exp(a), b)))
    p, q = tg.input("p", (4, 4)), tg.input("q", (4, 4))
    found = form(tg.graph(tg.sub(tg.exp(q), p)), [op])
    assert found.graph.outputs["out"].inputs == (q, p)


OTHER: dict[str, Callable[[Node, Node, Node], Node]] = {
    "another eps": lambda x, g, w: tg.linear(tg.rms_norm(x, g, eps=1e-5), w),
    "an offset": lambda x, g, w: tg.linear(tg.rms_norm(x, g, offset=1.0), w),
    "a mean taken off": lambda x, g, w: tg.linear(tg.rms_norm(x - tg.mean(x, axis=-1, keepdims=True), g), w),
    "the norm of the product": lambda x, g, w: tg.rms_norm(tg.linear(x, w), w[:, 0]),
    "another axis": lambda x, g, w: tg.linear(tg.rms_norm(x.T, g).T, w),
    "the absolute value": lambda x, g, w: tg.linear(tg.abs(tg.rms_norm(x, g)), w),
}


@pytest.mark.parametrize("case", OTHER)
def test_what_computes_something_else_is_left_alone(case: str) -> None:
    x, g, w = tg.input("x", (16, 16)), tg.parameter("g", (16,)), tg.parameter("w", (16, 16))
    graph = tg.graph(OTHER[case](x, g, w))
    places = form(graph, [part_of(NORM_LINEAR)]).places
    assert sum(places.values()) == (1 if case == "a mean taken off" else 0)    # of what is normalised there


def test_sizes_beyond_those_that_the_part_was_declared_for_are_not_taken() -> None:
    few = tg.dim("few", 1, 8)
    op = part_of(tg.graph(tg.exp(tg.input("x", (few,))) * 2.0))

    def at(size: tg.Dim) -> int:
        return sum(form(tg.graph(tg.exp(tg.input("x", (size,))) * 2.0), [op]).places.values())

    assert (at(8), at(9), at(tg.dim("t", 1, 8)), at(tg.dim("t", 1, 9))) == (1, 0, 1, 0)


def test_a_place_that_holds_its_own_size_is_compared_at_that_size() -> None:
    op = part_of(tg.graph(tg.exp(tg.mean(X, axis=-1))))
    x = tg.input("x", (4, 16))
    right, wrong = (tg.graph(tg.exp(tg.sum(x, axis=-1) * (1 / size))) for size in (16, 8))
    assert sum(form(right, [op]).places.values()) == 1 and not form(wrong, [op]).places
