"""Values of the graph that was written are found in the plan of what became of it, also where the plan is read from a file."""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice import storing
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.language.node import Node
from tensor_graphs.records.database import Database
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.runtime.errors import RunError

X, W = tg.input("x", (5, 64)), tg.parameter("w", (32, 64))
GATE = tg.sigmoid(X)
H = X * GATE
OUT = tg.linear(H, W)
RNG = np.random.default_rng(0)
GIVEN = {"x": RNG.standard_normal((5, 64)).astype(np.float32)}
WEIGHTS = {"w": RNG.standard_normal((32, 64)).astype(np.float32)}


def bound(database: Database, **asked: Any) -> CompiledGraph:
    return tg.bind(tg.compile(tg.graph(OUT), database=database, **{"backends": ("numpy",), **asked}), WEIGHTS)


def assert_taps(model: CompiledGraph, nodes: Mapping[str, Node], given: Mapping[str, Any]) -> None:
    for name, node in nodes.items():
        wanted = tg.interpret(tg.graph(node), given, model.parameters).outputs["out"]
        np.testing.assert_allclose(model.tap(node, given)[node], wanted, rtol=1e-4, atol=1e-4, err_msg=name)


def why_not(model: CompiledGraph, node: Node, given: Mapping[str, Any]) -> str:
    with pytest.raises(RunError) as caught:
        model.tap(node, given)
    return str(caught.value)


@pytest.mark.parametrize("wide", [None, "f64"])
def test_what_was_recognised_is_tapped_by_the_nodes_that_were_written(store: Database, wide: str | None) -> None:
    model = bound(store, precision=wide)
    assert "silu" in model.plan.prepared
    assert_taps(model, {"h": H, "out": OUT}, GIVEN)


def test_a_value_inside_of_a_kernel_is_said_to_be_there(store: Database) -> None:
    reason = why_not(bound(store), GATE, GIVEN)
    assert "which is computed inside of silu.0 (numpy.silu); there are silu.0, linear.0" in reason
    assert "fix: tap 'silu.0' for what that makes, or compile with simplify=False, or have the value as an output" in reason
    assert_taps(bound(store, simplify=False), {"gate": GATE}, GIVEN)
    assert_taps(tg.bind(tg.compile(tg.graph({"out": OUT, "gate": GATE}), database=store, backends=("numpy",)), WEIGHTS),
                {"gate": GATE}, GIVEN)


def test_what_cannot_be_inside_is_said_to_be_elsewhere(store: Database) -> None:
    model = bound(store)
    assert "which is given, or made when parameters are bound; there are" in why_not(model, X, GIVEN)
    assert "which is no node of the graph that was compiled; there are" in why_not(model, tg.exp(X), GIVEN)


def test_the_words_of_an_attention_are_inside_of_what_computes_them(store: Database) -> None:
    q, k, v = (tg.input(name, (4, 8, 16)) for name in "qkv")
    s = (q @ k.permute((0, 2, 1))) * 0.25
    e = tg.exp(s - tg.reduce_max(s, -1, keepdims=True))
    p = e / tg.sum(e, -1, keepdims=True)
    out = p @ v
    model = tg.bind(tg.compile(tg.graph(out), database=store, backends=("numpy",)), {})
    given = {name: RNG.standard_normal((4, 8, 16)).astype(np.float32) for name in "qkv"}
    labels = [i.label for i in model.plan.variants[0].program.instructions]
    assert_taps(model, {"out": out}, given)
    for node in (s, e, p):
        try:
            found = model.tap(node, given)[node]
        except RunError as error:
            label = str(error).partition("computed inside of ")[2].partition(" ")[0]
            assert label in labels and f"fix: tap {label!r}" in str(error)
        else:
            np.testing.assert_allclose(found, tg.interpret(tg.graph(node), given).outputs["out"], rtol=1e-4, atol=1e-4)
    assert "computed inside of softmax.0" in why_not(model, e, given) or "attention.0" in labels


SCRIPT = """
import sys
import numpy as np
import tensor_graphs as tg
x, w = tg.input("x", (5, 64)), tg.parameter("w", (32, 64))
gate = tg.sigmoid(x)
h = x * gate
o = tg.linear(h, w)
model = tg.bind(tg.compile(tg.graph(o), database=sys.argv[1], backends=("numpy",), precision=sys.argv[2]),
                {"w": np.ones((32, 64), np.float32)})
print(type(model.plan.images).__name__, file=sys.stderr)
given = {"x": np.ones((5, 64), np.float32)}
print([model.tap(node, given)[node].sum().round(3) for node in (h, o)])
try:
    model.tap(gate, given)
except tg.TensorGraphsError as error:
    print(error)
print([(label, at) for label, at, _ in model.trace(given)])
print(model.first_nan({"x": np.full((5, 64), -np.inf, np.float32)}))
"""


@pytest.mark.parametrize("wide", ["written", pytest.param("f64", marks=pytest.mark.long)])
def test_a_second_process_reads_the_plan_and_knows_the_nodes_and_their_lines_too(store: Database, tmp_path: Path,
                                                                                 wide: str | None) -> None:
    (script := tmp_path / "own.py").write_text(SCRIPT)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    env.pop(storing.VARIABLE, None)
    bound(store, precision=wide)                               # so that neither process adds rows
    first, second = (subprocess.run([sys.executable, str(script), str(store.location), wide], capture_output=True, text=True,
                                    check=True, env=env) for _ in range(2))
    assert (first.stderr.strip(), second.stderr.strip()) == ("dict", "Images")
    told, again = first.stdout.splitlines(), second.stdout.splitlines()
    *others, trace, nan = again
    assert (others, nan) == (told[:-2], told[-1])
    assert "computed inside of silu.0 (numpy.silu)" in others[1] and "fix: tap 'silu.0'" in others[2]
    for each in (told[-2], trace):                                  # a cast of wider values stands for nothing that was written
        assert {"silu.0": "own.py:7", "linear.0": "own.py:8"}.items() <= dict(ast.literal_eval(each)).items()
    assert nan == "silu.0 (numpy.silu), written at own.py:7"


def test_a_plan_that_was_sent_finds_the_nodes_of_its_own_graph(store: Database) -> None:
    sent = pickle.loads(pickle.dumps(tg.compile(tg.graph(OUT), database=store, backends=("numpy",))))
    assert_taps(tg.bind(sent, WEIGHTS), {"out": sent.graph.outputs["out"]}, GIVEN)
    assert_taps(bound(store), {"its own": sent.graph.outputs["out"]}, GIVEN)


def test_what_is_simplified_is_found_where_it_is_made_and_keeps_its_line(store: Database) -> None:
    x = tg.input("x", (6, 7))
    line = inspect.currentframe().f_lineno + 1                       # type: ignore[union-attr]
    twice = tg.sin(tg.permute(tg.permute(tg.neg(tg.neg(x)), (1, 0)), (1, 0)))
    out = tg.cos(twice) + 1.0
    made = prepare(tg.graph(out), backends=("numpy",))
    assert "simplified" in made.note and made.images[twice].inputs[0] is x
    assert [str(n.location) for n in made.graph.nodes if n.op.name == "sin"] == [f"test_taps.py:{line}"]
    assert_taps(tg.bind(tg.compile(tg.graph(out), database=store, backends=("numpy",)), {}), {"twice": twice},
                {"x": RNG.standard_normal((6, 7)).astype(np.float32)})
