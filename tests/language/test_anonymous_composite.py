"""language/anonymous_composite.py: a graph as one op, with a name that says what is in it."""

from __future__ import annotations

import pickle

import pytest

import tensor_graphs as tg
from tensor_graphs.language.anonymous_composite import other_dims, part_between, part_of
from tensor_graphs.language.composite import expand
from tensor_graphs.language.errors import GraphError
from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.node import apply
from tensor_graphs.language.text import parse_graph, print_graph

N, K = tg.dim("n", 1, 64), tg.dim("k", 1, 4096)


def normalised_product() -> tg.Graph:
    x, g, w = tg.input("x", (N, K)), tg.input("g", (K,)), tg.input("w", (8, K))
    return tg.graph(tg.linear(tg.rms_norm(x, g), w))


def test_a_part_is_one_node_over_the_inputs_of_its_graph_and_expands_to_it() -> None:
    graph = normalised_product()
    op = part_of(graph)
    called = op(*graph.inputs.values())
    assert called.inputs == tuple(graph.inputs.values())
    assert expand(called) == (graph.outputs["out"],)


def test_its_name_lists_few_steps_and_tells_other_parts_apart() -> None:
    one, other = part_of(normalised_product()), part_of(tg.graph(tg.tanh(tg.sin(tg.exp(tg.cos(tg.input("x", (N,))))))))
    assert one.name.startswith("rms_norm_linear_") and other.name.startswith("part_")
    assert part_of(normalised_product()).name == one.name != part_of(tg.graph(tg.sin(tg.input("x", (N,))))).name


def test_the_dims_of_a_part_stand_for_other_sizes() -> None:
    x, g, w = tg.input("x", (3, 16)), tg.input("g", (16,)), tg.input("w", (8, 16))
    op = part_of(normalised_product())
    assert op(x, g, w).type == tg.linear(tg.rms_norm(x, g), w).type
    with pytest.raises(tg.TensorGraphsError, match="was written for"):
        op(x, tg.input("g", (5,)), w)


def test_a_graph_that_calls_a_part_is_written_and_read_back() -> None:
    graph = normalised_product()
    called = tg.graph(part_of(graph)(*graph.inputs.values()))
    assert graph_from_json(graph_to_json(called)).structural_key == called.structural_key
    assert parse_graph(print_graph(called)).structural_key == called.structural_key
    assert pickle.loads(pickle.dumps(called)).structural_key == called.structural_key


def _one_output_twice() -> tg.Graph:
    x = tg.input("x", (N,))
    return tg.graph({"a": tg.sin(x), "b": tg.sin(x)})


def _with_a_state() -> tg.Graph:
    s = tg.state("s", (4,), tg.f32)
    return tg.graph(tg.sin(s.read()))


@pytest.mark.parametrize(("make", "says"), [
    (_one_output_twice, "the output 'a' of this graph is another output"),
    (_with_a_state, "no states"), (lambda: tg.graph(tg.constant(1.0, tg.f32) + 1.0), "no inputs"),
    (lambda: tg.graph(tg.input("x", (N,))), "hands its input on")])
def test_what_is_no_part_is_an_error_that_says_why(make: object, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        part_of(make())                                             # type: ignore[operator]


def test_dims_that_no_operand_has_are_named_by_the_calls_of_a_part() -> None:
    n, m = tg.dim("n", 1, 64), tg.dim("m", 1, 64)
    x, y = tg.input("x", (n, 8), tg.f32), tg.input("y", (m, 8), tg.f32)
    assert not other_dims([tg.softmax(x)], [x])
    part = x[m - 1]                                                 # m is in an attribute alone
    assert other_dims([part], [x]) == (m,) and not other_dims([part], [x, y])
    made = tg.exp(part)                                             # beyond its operands a piece is not looked at
    assert not other_dims([made], [part])
    op = part_between([part], [x])
    called = tg.graph(apply(op, [x], op.attrs))
    k = tg.dim("k", 1, 64)
    assert expand(apply(op, [x], {"dims": (k,)})) == (x[k - 1],)
    for again in (graph_from_json(graph_to_json(called)), parse_graph(print_graph(called)), pickle.loads(pickle.dumps(called))):
        assert again.structural_key == called.structural_key and expand(again.outputs["out"]) == (part,)
