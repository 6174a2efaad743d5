"""rewrites/find_parts.py: a part is found wherever a graph computes the same, in whatever words, and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

import tensor_graphs as tg
from tensor_graphs.language.anonymous_composite import PartOp, known_same, part_of
from tensor_graphs.language.node import Node
from tensor_graphs.proof import equality
from tensor_graphs.rewrites import find_parts
from tensor_graphs.rewrites.find_parts import form
from tensor_graphs.rewrites.passes.recognise import write_out

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


# ---- many operands ----

def summed(terms: list[Node]) -> tg.Graph:
    return tg.graph(functools.reduce(tg.add, terms))


def test_operands_that_may_be_exchanged_are_tried_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(equality, "equal", lambda a, b, real=equality.equal: asked.append(a) or real(a, b))  # type: ignore[func-returns-value]
    first, *others = [tg.input(f"x{i}", (N, 8)) for i in range(8)]
    op = part_of(summed([tg.relu(first), *others]))
    p, q, *more = [tg.input(f"y{i}", (4, 8)) for i in range(8)]
    found = form(summed([q, *more, tg.relu(p)]), [op])
    assert found.graph.outputs["out"].inputs[0] is p and len(asked) <= 2 * 8


def test_a_part_of_more_pieces_than_are_looked_at_is_found_where_it_stands_as_written() -> None:
    graph = summed([tg.silu(tg.input(f"x{i}", (N, 8))) for i in range(12)])
    assert list(form(graph, [part_of(graph)]).places.values()) == [1]


def test_a_search_that_ends_early_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(find_parts, "MOST_COMPARED", 4)
    scaled = [tg.input(f"x{i}", (N, 8)) * (1.5 + i) for i in range(4)]
    form(summed(scaled[::-1]), [part_of(summed(scaled))])
    assert "ended after 4 comparisons: it may have more places" in caplog.text


# ---- several outputs ----

S = X + tg.input("y", (N, K))
SUM_NORM = tg.graph({"sum": S, "out": tg.rms_norm(S, G)})


def two_layer_transformer(size: int = 16) -> tg.Graph:
    """Two blocks of attention and a gated product; each residual sum feeds a norm and the next sum."""
    t = tg.dim("t", 1, 64)
    x = tg.input("x", (t, size))
    for i in range(2):
        def weight(name: str, *shape: int, i: int = i) -> Node:
            return tg.parameter(f"{name}{i}", shape)

        z = tg.rms_norm(x, weight("g", size))
        q, k, v = (tg.reshape(tg.linear(z, weight(name, size, size)), (t, 2, size // 2)) for name in "qkv")
        attended = tg.reshape(tg.attention(q, k, v, scale=0.3), (t, size))
        r = x + tg.linear(attended, weight("o", size, size))
        z = tg.rms_norm(r, weight("h", size))
        x = r + tg.linear(tg.silu(tg.linear(z, weight("u", 2 * size, size))), weight("d", size, 2 * size))
    return tg.graph({"y": tg.rms_norm(x, tg.parameter("last", (size,)))})


def test_a_part_with_two_outputs_is_found_wherever_both_occur_on_the_same_operands() -> None:
    graph = two_layer_transformer()
    found = form(graph, [part_of(SUM_NORM)])
    wholes = [n for n in found.graph.nodes if isinstance(n.op, PartOp)]
    assert list(found.places.values()) == [4] and len(wholes) == 4 and all(len(n.types) == 2 for n in wholes)
    assert write_out(found.graph) == write_out(graph)


def test_outputs_that_read_different_operands_are_one_part_where_they_share_one() -> None:
    op = part_of(tg.graph({"a": tg.linear(X, W), "b": tg.exp(tg.linear(X, tg.input("v", (M, K))))}))
    x, w, v, z = (tg.input(name, (4, 4)) for name in "xwvz")
    shared, apart = (tg.graph({"p": tg.exp(tg.linear(x, w)), "q": tg.linear(other, v)}) for other in (x, z))
    (whole,) = {n.inputs[0] for n in form(shared, [op]).graph.outputs.values()}
    assert whole.inputs == (x, v, w) and not form(apart, [op]).places


def test_outputs_of_which_one_is_made_of_the_other_through_the_outside_are_no_place() -> None:
    """With b = exp(sum of a), the kernel's operand would be made of its own output."""
    op = part_of(tg.graph({"a": tg.exp(X) * 2.0, "b": tg.relu(tg.input("h", (N, K))) * X}))
    x = tg.input("x", (4, 4))
    a = tg.exp(x) * 2.0
    assert not form(tg.graph({"a": a, "b": tg.relu(tg.linear(a, a)) * x}), [op]).places


def test_a_smaller_part_is_inside_of_one_with_several_outputs() -> None:
    graph = tg.graph(tg.rms_norm(tg.input("p", (4, 16)) + tg.input("q", (4, 16)), tg.parameter("g", (16,))))
    found = form(graph, [part_of(SUM_NORM), part_of(tg.graph(norm(X, G)))])
    (output,) = found.graph.outputs.values()
    whole = output.inputs[0].op
    assert isinstance(whole, PartOp) and isinstance(whole.written.outputs[1].op, PartOp)
    assert sorted(found.places.values()) == [1, 1] and write_out(found.graph) == write_out(graph)
