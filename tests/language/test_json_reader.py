"""The JSON form: the models read back as the same graphs, and what is no graph is said in one line."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.json_reader import JsonFormError, graph_from_json
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.text import parse_graph, print_graph
from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph
from tests.language.test_op_names import users_graph
from tests.language.written_graphs import scaled


def gemma() -> Graph:
    """The size of Gemma 3 270M."""
    layers = ("sliding",) * 5 + ("full",)
    spec = Gemma3Spec(vocabulary=262144, hidden=640, ffn=2048, heads=4, kv_heads=1, head_dim=256, layers=layers * 3, window=512,
                      eps=1e-6, scale=256 ** -0.5, sliding_rope=Rope(10_000.0), full_rope=Rope(1_000_000.0))
    return gemma3_graph(spec, max_positions=1024, weight_dtype=tg.bf16)


def minilm() -> Graph:
    return bert_graph(BertSpec(vocabulary=30522, hidden=384, ffn=1536, layers=6, heads=12, positions=512, token_types=2, eps=1e-12,
                               normalise=True))


@pytest.mark.parametrize("make", [gemma, minilm], ids=lambda f: f.__name__)
def test_a_model_reads_back_as_the_same_nodes_from_both_forms(make):
    g = make()
    for found in (graph_from_json(graph_to_json(g)), parse_graph(print_graph(g))):
        assert found == g and found.nodes == g.nodes
        assert list(found.outputs) == list(g.outputs) and list(found.updates) == list(g.updates)


def test_the_form_is_one_line_that_a_person_can_read():
    n = tg.dim("n", 1, 8)
    x, k = tg.input("x", (n, 2)), tg.state("k", (8, 2))
    g = tg.graph({"y": tg.softmax(x) + -0.5}, {k: k.write(x, at=n - 1)})
    text = graph_to_json(g)
    assert "\n" not in text
    data = json.loads(text)
    assert list(data) == ["tensor_graphs", "dims", "definitions", "nodes", "outputs", "updates"]
    assert data["tensor_graphs"] == 1 and data["dims"] == {"n": [1, 8]} and data["definitions"] == {}
    assert data["nodes"][0] == {"op": "input", "inputs": [], "attrs": {
        "dtype": {"dtype": "f32"}, "name": "x", "shape": [{"dim": "n"}, 2]}}
    assert {"op": "softmax", "inputs": [0], "attrs": {"axis": -1}} in data["nodes"]
    assert any(row["attrs"].get("value") == {"float": "-0x1.0000000000000p-1"} for row in data["nodes"])
    assert any(row["attrs"].get("start") == {"dim": "n - 1"} for row in data["nodes"])


def changed(**parts: Any) -> str:
    """The JSON of `y = exp(x)` with parts of it replaced; `node` is a change to the node of exp."""
    data = json.loads(graph_to_json(tg.graph({"y": tg.sum(tg.input("x", (2, 3)), 1)})))
    data["nodes"][1].update(parts.pop("node", {}))
    return json.dumps(data | parts)


LEAF = {"op": "input", "inputs": [], "attrs": {"dtype": {"dtype": "f32"}, "name": "x", "shape": [2, 3]}}
WRONG: dict[str, tuple[str, str]] = {
    "empty": ("", "line 1, column 1: Expecting value"),
    "no json": ('{"tensor_graphs": 1,\n oops}', "line 2, column 2: Expecting property name enclosed in double quotes"),
    "a list": ("[]", "this JSON is no graph: it has no 'tensor_graphs' version"),
    "no version": ("{}", "this JSON is no graph: it has no 'tensor_graphs' version"),
    "another version": ('{"tensor_graphs": 7}', "version 7 of the JSON form; this package reads version 1"),
    "no nodes": ('{"tensor_graphs": 1, "dims": {}, "definitions": {}}', "this JSON is no graph of version 1: 'nodes' is missing"),
    "an unknown op": (changed(node={"op": "sofmax"}), "this JSON is no graph of version 1: no op is named 'sofmax'"),
    "a node of the future": (changed(node={"inputs": [1]}),
                             "this JSON is no graph of version 1: an operand of node 1 is node 1, there are 1"),
    "a node from the back": (changed(node={"inputs": [-1]}),
                             "this JSON is no graph of version 1: an operand of node 1 is node -1, there are 1"),
    "an output that is not there": (changed(outputs={"y": 2}),
                                    "this JSON is no graph of version 1: output 'y' is node 2, there are 2"),
    "an attribute of no form": (changed(node={"attrs": {"axes": {"float": "nan", "x": 1}}}),
                                "this JSON is no graph of version 1: {'float': 'nan', 'x': 1} is no attribute value"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_graph_is_said_in_one_line(name):
    text, message = WRONG[name]
    with pytest.raises(JsonFormError) as caught:
        graph_from_json(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text, message", [
    (changed(node={"attrs": {}}), "sum has the attributes axes, got none"),
    (changed(node={"attrs": {"axes": 1}}), "sum: axes is 1, a tuple of ints is needed"),
    (changed(node={"attrs": {"axes": [7]}}), "sum: axis 7 of f32[2, 3]"),
    (changed(node={"inputs": [0, 0]}), "sum takes 1 operands, got 2"),
    (changed(node={"op": "softmax", "attrs": {}}), "softmax has the attributes axis, got none"),
    (changed(node={"op": "softmax", "attrs": {"axis": 0}, "inputs": [0, 0]}), "softmax takes 1 operands here, got 2"),
    (changed(node={"op": "item", "attrs": {"index": -1}}), "item: index is -1, an int ≥ 0 is needed"),
    (changed(node={"op": "cast", "attrs": {"dtype": "f32"}}), "cast: dtype is 'f32', a dtype is needed"),
    (changed(node={"op": "reshape", "attrs": {"shape": [-2, -3]}}), "axis 0 of shape (-2, -3) is negative"),
    (changed(node={"op": "constant", "attrs": {"shape": [2], "dtype": {"dtype": "f32"}, "value": 1}, "inputs": []}),
     "a constant of type f32[2] cannot be 1"),
    (changed(nodes=[LEAF, {**LEAF, "attrs": {**LEAF["attrs"], "shape": ["n"]}}]), "a dtype and a tuple of sizes are needed"),
    (changed(updates={"k": 1}, outputs={}, dims={"n": [4, 1]}), "the dim 'n' from 4 to 1"),
    (changed(outputs={}), "a graph needs an output or a state update"),
])
def test_what_no_builder_would_make_is_refused(text, message):
    with pytest.raises(TensorGraphsError) as caught:
        graph_from_json(text)
    assert message in str(caught.value)


def test_deep_brackets_and_huge_numbers_end_in_an_error_of_ours():
    for text in ("[" * 100_000, '{"tensor_graphs": ' + "9" * 10_000 + "}"):
        with pytest.raises(JsonFormError, match="this is no JSON of a graph"):
            graph_from_json(text)


def test_a_definition_that_uses_itself_is_refused():
    data = json.loads(graph_to_json(users_graph()))
    name = next(name for name, body in data["definitions"].items() if any("#" in row["op"] for row in body["nodes"]))
    for row in data["definitions"][name]["nodes"]:
        if "#" in row["op"]:
            row["op"] = name
    with pytest.raises(JsonFormError, match="no op is named"):
        graph_from_json(json.dumps(data))


def test_what_a_program_is_made_of_is_pickled_and_is_the_same_object_afterwards():
    x = tg.input("x", (tg.dim("n", 1, 8), 4))
    values, indices = tg.topk(scaled(x, by=3.0), k=2)
    cache = tg.state("cache", (8, 4))
    for node in (x, values, values.inputs[0], indices, x * np.arange(4, dtype=np.float32), cache.read(), tg.grad(values.sum(), x)):
        assert pickle.loads(pickle.dumps(node)) is node and copy.deepcopy(node) is node and copy.copy(node) is node
    g = tg.graph({"b": values, "a": indices}, {cache: cache.write(x, at=0)})
    again = pickle.loads(pickle.dumps(g))
    assert again == g and list(again.outputs) == ["b", "a"] and again.structural_key == g.structural_key
    assert pickle.loads(pickle.dumps(cache)).read() is cache.read()
    for same in (tg.softmax, tg.mean, tg.f32, tg.bf16, scaled, tg.TensorType((2,), tg.f16), tg.dim("n", 1, 8) * 2):
        assert pickle.loads(pickle.dumps(same)) == same == copy.deepcopy(same)
    assert pickle.loads(pickle.dumps(tg.softmax)) is tg.softmax and copy.deepcopy(tg.bf16) is tg.bf16


def test_a_deep_graph_is_pickled():
    x = tg.input("x", (2,))
    y = x
    for _ in range(5000):
        y = tg.sin(y)
    assert pickle.loads(pickle.dumps(tg.graph(y))) == tg.graph(y) and pickle.loads(pickle.dumps(y)) is y
