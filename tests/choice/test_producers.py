"""Each kind of op as the producer of what each kind of consumer reads: the loops of both together give the oracle's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.codegen.interpret import run
from tensor_graphs.codegen.lower import lower
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import over
from tensor_graphs.language.composite import Definition, definition_digest
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.records.database import Database
from tensor_graphs.runtime.compiled_graph import bind

X, ROWS = tg.input("x", (6, 5), tg.f32), tg.input("rows", (3, 5), tg.f32)
INDEX, KEY = tg.input("index", (3,), tg.i32), tg.input("key", (2,), tg.u32)
VALUES = {"x": np.random.default_rng(0).standard_normal((6, 5), np.float32),
          "rows": np.random.default_rng(1).standard_normal((3, 5), np.float32),
          "index": np.array([4, 0, 9], np.int32), "key": np.array([7, 8], np.uint32)}
"""one index is out of range"""

PRODUCERS: Mapping[str, Node] = {
    "scatter, set": tg.scatter(X, INDEX, ROWS, mode="set"), "scatter, add": tg.scatter(X, INDEX, ROWS, mode="add"),
    "scatter, max": tg.scatter(X, INDEX, ROWS, mode="max"),
    "scatter along rows": tg.scatter(X, INDEX, tg.concat(ROWS, ROWS, axis=0)[:, :3], axis=1),
    "write_at_index": tg.write_at_index(X, ROWS, INDEX), "write_rows": tg.write_rows(X, ROWS, start=2),
    "gather": tg.gather(X, INDEX, axis=0), "pad": tg.pad(X, ((1, 2), (0, 3))), "concat": tg.concat(X, ROWS, axis=0),
    "one_hot": tg.cast(tg.one_hot(INDEX, size=5), tg.f32), "running sum": tg.cumsum(X, axis=0),
    "reduction": tg.expand(tg.sum(X, axis=1, keepdims=True), (6, 5)), "softmax": tg.softmax(X), "product": tg.linear(X, ROWS),
}

CONSUMERS: Mapping[str, Callable[[Node], Node]] = {
    "sum of rows": lambda v: tg.sum(v, axis=-1), "sum of columns": lambda v: tg.sum(v, axis=0),
    "largest": lambda v: tg.reduce_max(v, axis=-1), "variance": lambda v: tg.var(v, axis=-1), "softmax": tg.softmax,
    "argmax": lambda v: tg.argmax(v, axis=-1), "rms_norm": lambda v: tg.rms_norm(v, tg.expand(v[0, :1], (v.shape[1],))),
    "running sum": lambda v: tg.cumsum(v, axis=-1),
    "masked sum": lambda v: tg.sum(tg.where(tg.less(v, 0.0), v, 0.0), axis=-1),
    "gather": lambda v: tg.gather(v, INDEX, axis=0), "product": lambda v: tg.linear(v, v),
}


def expected(root: Node) -> np.ndarray:
    graph = tg.graph({"y": root})
    return interpret(graph, {name: VALUES[name] for name in graph.inputs}).outputs["y"]


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_the_loops_of_a_consumer_and_its_producer_give_the_oracles_values(producer: str, consumer: str) -> None:
    root = CONSUMERS[consumer](PRODUCERS[producer])
    names = list(tg.graph({"y": root}).inputs)
    operands = list(tg.graph({"y": root}).inputs.values())
    arguments = [leaves.argument(i, x.type) for i, x in enumerate(operands)]
    outputs = over([root], operands, arguments)
    program = lower(Definition(tuple(arguments), outputs, definition_digest(outputs)))
    (made,) = run(program, [VALUES[name] for name in names], {})
    wanted = expected(root)
    np.testing.assert_allclose(made.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("producer", ["scatter, set", "write_at_index"])
def test_a_reduction_a_softmax_and_a_norm_of_what_is_scattered_compile(store: Database, producer: str) -> None:
    for consumer in ("sum of rows", "softmax", "argmax", "rms_norm"):
        root = CONSUMERS[consumer](PRODUCERS[producer])
        graph = tg.graph({"y": root})
        model = bind(compile_graph(graph, database=store, backends=("gen", "numpy")), {})
        made = model.run({name: VALUES[name] for name in graph.inputs})["y"]
        np.testing.assert_allclose(made, expected(root), rtol=1e-4, atol=1e-5)
