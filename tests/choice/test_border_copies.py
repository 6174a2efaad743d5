"""Graphs whose inputs and outputs are on another device are rewritten like those that are not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.language import leaves

N = tg.dim("n", 1, 64)


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    from tests.fake import backend  # here: its import makes the device known

    backend.make_known()
    yield
    backend.forget()


def there(node: tg.Node) -> tg.Node:
    return tg.copy_to(node, "fake")


def softmax_of_steps(x: tg.Node) -> tg.Node:
    shifted = tg.exp(x - tg.reduce_max(x, -1, keepdims=True))
    return shifted / tg.sum(shifted, -1, keepdims=True)


def ops(graph: tg.Graph) -> list[str]:
    return [node.op.name for node in graph.nodes if node.op.kind != "leaf"]


def test_a_composite_is_recognised_between_copies_at_the_borders() -> None:
    x = tg.input("x", (N, 32))
    inner = softmax_of_steps(there(x))
    graph = tg.graph({"y": there(inner), "z": inner * 2.0})
    prepared = prepare(graph, recipes=False, backends=("numpy",))
    assert ops(prepared.graph).count("copy_to") == 2 and "exp" not in ops(prepared.graph) and "recognised: " in prepared.note
    y, z = prepared.graph.outputs["y"], prepared.graph.outputs["z"]
    assert y.op is leaves.COPY_TO and y.inputs[0].op.name == "softmax" and y.inputs[0].inputs[0].op is leaves.COPY_TO
    assert z.inputs[0] is y.inputs[0] and prepared.images[inner] is y.inputs[0]
    values = {"x": np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)}
    for name, value in tg.interpret(graph, values).outputs.items():
        np.testing.assert_allclose(tg.interpret(prepared.graph, values).outputs[name], value, rtol=1e-12)


def test_it_is_the_same_graph_each_time() -> None:
    graph = tg.graph({"y": there(softmax_of_steps(there(tg.input("x", (N, 32)))))})
    assert prepare(graph, recipes=False).graph is prepare(graph, recipes=False).graph
    plain = tg.graph({"y": there(tg.softmax(there(tg.input("x", (N, 32)))))})
    assert prepare(plain, recipes=False, backends=("numpy",)).graph is plain


@pytest.mark.parametrize("case", ["amid", "read on two devices", "an output and read there"])
def test_copies_that_are_not_at_the_borders_stay_where_they_are(case: str) -> None:
    x = tg.input("x", (N, 32))
    graph = {"amid": lambda: tg.graph({"y": softmax_of_steps(there(x * 2.0))}),
             "read on two devices": lambda: tg.graph({"y": softmax_of_steps(there(x)), "z": x * 3.0}),
             "an output and read there": lambda: tg.graph({"y": softmax_of_steps(there(x)), "z": x})}[case]()
    assert prepare(graph, recipes=False, backends=("numpy",)).graph is graph


def test_a_copy_of_an_input_that_is_an_output_stays() -> None:
    x = tg.input("x", (N, 32))
    graph = tg.graph({"y": there(softmax_of_steps(x)), "z": there(x)})
    prepared = prepare(graph, recipes=False, backends=("numpy",)).graph
    assert prepared.outputs["z"] is graph.outputs["z"] and prepared.outputs["y"].inputs[0].op.name == "softmax"
