"""Graphs: named outputs, states and their updates, dims, and the key that forgets names but nothing else."""

from __future__ import annotations

import hashlib

import pytest

import tensor_graphs as tg
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import bounds
from tensor_graphs.language.errors import AttributeValueError, DTypeError, GraphError, ShapeError
from tensor_graphs.language.graph import replace_dims
from tensor_graphs.language.node import rebuild
from tensor_graphs.language.text import parse_graph, print_graph
from tests.fuzzing.grow import grown
from tests.language.messages import said


def layer(x: str = "x", w: str = "w", dim: str = "n", eps: float = 1e-6) -> tg.Graph:
    a = tg.input(x, (tg.dim(dim, 1, 16), 4))
    return tg.graph(tg.rms_norm(a @ tg.parameter(w, (4, 4)), eps=eps))


def test_a_graph_finds_its_leaves_and_dims_by_name():
    cache = tg.state("cache", (8, 4))
    x, w, n = tg.input("x", (tg.dim("n", 1, 8), 4)), tg.parameter("w", (4, 4)), tg.dim("n", 1, 8)
    g = tg.graph({"y": x @ w + cache.read()[:1]}, {cache: cache.write(x, at=0)})
    assert list(g.inputs) == ["x"] and list(g.parameters) == ["w"] and list(g.states) == ["cache"]
    assert list(g.outputs) == ["y"] and list(g.updates) == ["cache"]
    assert g.dims == {"n": n}
    assert repr(g) == f"<graph of {len(g.nodes)} nodes: x f32[n, 4] -> y f32[n, 4]; 1 parameter; 1 state>"


def test_outputs_get_names_when_they_have_none():
    a, b = tg.input("a", (2,)), tg.input("b", (2,))
    assert list(tg.graph(a).outputs) == ["out"]
    assert list(tg.graph([a, b]).outputs) == ["out0", "out1"]


def test_graphs_of_the_same_nodes_are_equal():
    assert layer() == layer() and hash(layer()) == hash(layer())
    assert layer() != layer(eps=1e-5)


def test_the_structural_key_forgets_the_names_of_leaves_and_dims():
    assert layer().structural_key == layer(x="hidden", w="weight", dim="time").structural_key


def key_of_the_canonical_graph(g: tg.Graph) -> str:
    """With all its nodes: leaves are arguments, numbered as the walk from the roots comes to them, and dims are d0, d1, …"""
    numbers: dict[str, int] = {}
    roots = list(g.roots)
    for i, name in enumerate(g.dim_order):                          # by names that no dim has, as one may be called d1
        roots = replace_dims(roots, {name: tg.dim(f"dim_{i}", *bounds(g.dims[name]))})
    for i, name in enumerate(g.dim_order):
        roots = replace_dims(roots, {f"dim_{i}": tg.dim(f"d{i}", *bounds(g.dims[name]))})

    def replace(node: tg.Node, inputs: tuple[tg.Node, ...]) -> tg.Node | None:
        if node.op not in leaves.NAMED_LEAVES:
            return None
        return leaves.argument(numbers.setdefault(node.attrs["name"], len(numbers)), node.type)

    digests = [root.digest for root in rebuild(roots, replace)]
    outputs, updates = digests[:len(g.outputs)], digests[len(g.outputs):]
    numbered = sorted((numbers.setdefault(name, len(numbers)), value) for name, value in zip(g.updates, updates, strict=True))
    return hashlib.sha256("|".join([*outputs, "#", *(f"{i}={value}" for i, value in numbered)]).encode()).hexdigest()


@pytest.mark.parametrize("seed", range(80))
def test_the_structural_key_is_made_of_the_digests_of_the_canonical_nodes(seed: int):
    g = grown(seed).graph
    for each in (g, tg.graph([*g.outputs.values(), *g.updates.values()])):
        assert each.structural_key == key_of_the_canonical_graph(each)


def test_the_structural_key_knows_attributes_sizes_and_dtypes():
    x = tg.input("x", (4,))
    graphs = [layer(), layer(eps=1e-5), tg.graph(x + x), tg.graph(x + tg.input("y", (4,))), tg.graph(x * x),
              tg.graph(tg.input("x", (5,)) * 2.0), tg.graph(x.cast(tg.f16)), tg.graph([x, x + x]), tg.graph([x + x, x])]
    assert len({g.structural_key for g in graphs}) == len(graphs)


def test_the_range_of_a_dim_is_part_of_the_key():
    def over(largest: int) -> tg.Graph:
        return tg.graph(tg.input("x", (tg.dim("n", 1, largest),)) * 2.0)

    assert over(16).structural_key != over(32).structural_key


def test_dims_are_numbered_in_order_of_first_use():
    assert layer(x="hidden", w="weight", dim="time").dim_order == ("time",)
    b, a = tg.dim("b", 1, 4), tg.dim("a", 1, 4)
    assert tg.graph(tg.input("x", (b, 2, a)) * 2.0).dim_order == ("b", "a")


def test_a_state_that_is_written_and_never_read_has_its_place_in_the_key():
    x, s = tg.input("x", (2,)), tg.state("s", (2,))
    with_update, without = tg.graph(x, {s: x * 2.0}), tg.graph(x)
    assert with_update.structural_key != without.structural_key
    assert tg.graph(x, {tg.state("t", (2,)): x * 2.0}).structural_key == with_update.structural_key


def test_dims_are_replaced_by_numbers_everywhere():
    n = tg.dim("n", 1, 16)
    (fixed,) = replace_dims([tg.input("x", (n, 4))[:n - 1] * n], {"n": 5})
    assert fixed.shape == (4, 4) and tg.graph(fixed).dims == {}


def test_a_parameter_and_a_state_have_static_shapes():
    n = tg.dim("n", 1, 16)
    assert said(lambda: tg.parameter("w", (n,)), ShapeError) == (
        "ShapeError at HERE: parameter 'w' has the symbolic shape (n,)\n  fix: a weight's sizes are ints")
    assert said(lambda: tg.state("s", (n,)), ShapeError) == (
        "ShapeError at HERE: state 's' has the symbolic shape (n,)\n  fix: give it the largest size it may reach")


@pytest.mark.parametrize("make, kind", [(tg.input, "input"), (tg.parameter, "parameter"), (tg.state, "state")])
@pytest.mark.parametrize("name", ["", "two words", 'quo"te', "back\\slash"])
def test_a_leaf_needs_a_name_that_can_be_printed(make, kind, name):
    assert said(lambda: make(name, (2,)), GraphError) == (
        f"GraphError at HERE: {kind} needs a name without spaces, quotes and backslashes, got {name!r}\n  fix: tg.{kind}(\"x\", …)")


def test_two_leaves_of_one_name_are_refused():
    a, b = tg.input("x", (2,)), tg.input("x", (2,), tg.f16)
    assert said(lambda: tg.graph([a, b]), GraphError) == (
        "GraphError at HERE: two different inputs are named 'x': f32[2] and f16[2]\n"
        "  fix: names are unique within a graph")


def test_two_dims_of_one_name_and_different_ranges_are_refused():
    a, b = tg.input("a", (tg.dim("n", 1, 4),)), tg.input("b", (tg.dim("n", 1, 8),))
    assert said(lambda: tg.graph([a, b]), GraphError) == (
        "GraphError at HERE: two dims are named 'n' and have different bounds")


def test_a_graph_of_nothing_is_refused():
    assert said(lambda: tg.graph([]), GraphError) == (
        "GraphError at HERE: a graph needs an output or a state update\n  fix: tg.graph({\"y\": tensor})")


def test_an_output_that_is_no_tensor_is_refused():
    assert said(lambda: tg.graph({"y": 3.0}), GraphError) == (
        "GraphError at HERE: 'y' is float, a tensor is needed\n  fix: what an op returns, or tg.constant(value)")


def test_a_node_of_several_outputs_is_named_one_by_one():
    values, _ = tg.topk(tg.input("x", (4,)), k=2)
    assert said(lambda: tg.graph(values.inputs[0]), GraphError) == (
        "GraphError at HERE: 'out' has 2 outputs\n  fix: a name for each of them")


def test_a_second_output_by_position_is_refused_with_how_to_give_several():
    x = tg.input("x", (4, 8))
    fix = "\n  fix: several outputs are one list or dict: tg.graph([x, y]), or tg.graph({\"a\": x, \"b\": y})"
    said_of = "GraphError at HERE: updates, the second argument of tg.graph, is a dict of states and their new values, not "
    assert said(lambda: tg.graph(x, x), GraphError) == f"{said_of}{x!r}{fix}"
    assert said(lambda: tg.graph(x, 3), GraphError) == f"{said_of}3{fix}"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [3, None])
def test_an_output_has_a_name_that_is_a_text(name):
    assert said(lambda: tg.graph({name: tg.input("x", (2,))}), GraphError) == (
        f"GraphError at HERE: an output is named by a text, not by {name!r}\n"
        "  fix: tg.graph({\"y\": tensor})")


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a\\b", "a\nb", "größe"])
def test_the_text_of_a_graph_holds_whatever_an_output_is_called(name):
    g = tg.graph({name: tg.input("x", (2,)) * 2.0})
    assert parse_graph(print_graph(g)) == g


def test_an_input_a_parameter_and_a_state_of_one_name_are_three_values():
    x, p, s = tg.input("x", (2,)), tg.parameter("x", (2,)), tg.state("x", (2,))
    assert tg.graph(x - p).structural_key == tg.graph(x - tg.parameter("p", (2,))).structural_key != tg.graph(x - x).structural_key
    assert tg.graph(x, {s: x}).structural_key == tg.graph(x, {tg.state("s", (2,)): x}).structural_key


def test_rows_that_differ_in_length_and_what_is_no_number_are_no_constant():
    assert said(lambda: tg.constant([[1, 2], [3]]), DTypeError) == (
        "DTypeError at HERE: a constant's rows differ in length or depth\n  fix: as many elements in each row")
    assert said(lambda: tg.constant(None), DTypeError) == (
        "DTypeError at HERE: no constant can be made of a NoneType, None\n  fix: numbers, a list of them, an array")


def test_a_size_that_is_below_0_at_every_size_is_refused():
    n = tg.dim("n", 1, 4)
    assert said(lambda: tg.input("y", (n - 5, 3)), ShapeError) == (
        "ShapeError at HERE: axis 0 of a shape is n - 5, which is below 0 at every size\n  fix: sizes are ≥ 0")


def test_an_update_of_a_state_that_is_not_there_is_refused():
    x = tg.input("x", (2,))
    assert said(lambda: tg.graph(x, {"memory": x}), GraphError) == (
        "GraphError at HERE: an update of 'memory', but the graph reads no state of that name\n"
        "  fix: pass the State object as the key when the graph never reads it")


def test_an_update_has_the_type_of_its_state():
    x, s = tg.input("x", (2,)), tg.state("s", (3,))
    assert said(lambda: tg.graph(x, {s: x}), ShapeError) == (
        "ShapeError at HERE: state 's' is f32[3], its update is f32[2]")
    assert said(lambda: s.write(x), ShapeError).startswith("ShapeError at HERE: state 's' is f32[3], the new value is f32[2]")


def test_a_negative_size_is_refused():
    assert said(lambda: tg.input("x", (2, -1)), ShapeError) == (
        "ShapeError at HERE: axis 1 of shape (2, -1) is negative\n  fix: sizes are ≥ 0")
    assert said(lambda: tg.input("x", (2, 1.5)), ShapeError) == (
        "ShapeError at HERE: axis 1 of a shape is 1.5\n  fix: a size is an int or a tg.dim expression")


def test_a_size_beyond_64_bits_is_refused():
    message = said(lambda: tg.input("x", (2 ** 64,)), ShapeError)
    assert "axis 0 of a shape is 18446744073709551616, which is beyond 64 bits" in message
    x = tg.input("x", (2 ** 31, 2 ** 31), tg.f64)
    assert "more than 64 bits can address" in said(lambda: tg.graph(tg.exp(x)), ShapeError)
    assert tg.graph(tg.exp(tg.input("x", (2 ** 31, 2 ** 20), tg.f64))).nodes


def test_an_attribute_beyond_64_bits_is_refused():
    message = said(lambda: tg.softmax(tg.input("x", (4,)), axis=10 ** 5000), AttributeValueError)
    assert "an attribute is a number of about 5000 digits, which is beyond 64 bits" in message


class Module:
    """Looks like torch's, to who asks for the name of its class and of the module that this is in."""


Module.__module__ = "torch.nn.modules.module"


class Net(Module):
    def __iter__(self):
        return iter(())


def double(x: tg.Node) -> tg.Node:
    return x + x


NO_GRAPHS = {
    "function": (double, "this is a Python function (double)", "tg.graph(f(tg.input("),
    "op": (tg.softmax, "this is a Python function (softmax)", "tg.graph(f(tg.input("),
    "module": (Net(), "this is a torch module (Net)", "tg.from_torch("),
    "file": ("m.onnx", "this is 'm.onnx'", "of an ONNX file: tg.from_onnx(file).graph"),
    "number": (3, "this is a builtins.int", "tg.graph("),
}


@pytest.mark.parametrize("name", NO_GRAPHS)
def test_what_is_no_graph_is_named_with_the_fix(name: str) -> None:
    value, what, fix = NO_GRAPHS[name]
    for taker, take in (("compile", tg.compile), ("profile", tg.profile), ("list_paths", tg.list_paths), ("graph", tg.graph)):
        with pytest.raises(GraphError) as error:
            take(value)  # type: ignore[arg-type]
        wanted = "graph takes tensors" if taker == "graph" else f"{taker} takes a graph"
        assert f"{wanted}, and {what}" in str(error.value) and fix in str(error.value)


def test_a_tensor_a_plan_and_a_graph_are_told_apart() -> None:
    x = tg.input("x", (3,))
    with pytest.raises(GraphError, match=r"compile takes a graph, and this is a tensor, f32\[3\](.|\n)*fix: tg\.graph\(tensor\)"):
        tg.compile(x)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"takes a plan, and this is a graph(.|\n)*fix: tg\.explain\(tg\.compile\(graph\)\)"):
        tg.explain(tg.graph(x))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="this is a graph already"):
        tg.graph(tg.graph(x))  # type: ignore[arg-type]
