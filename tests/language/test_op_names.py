"""Composites of the user's own in files: found again where they are, made of their definitions where they are not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.language import atomic, defined_ops
from tensor_graphs.language.atomic import ROWS
from tensor_graphs.language.composite import LIBRARY, expand_all
from tensor_graphs.language.defined_ops import MAX_DEPTH
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import GraphError, LanguageError
from tensor_graphs.language.graph import Graph, replace_dims
from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.leaves import argument
from tensor_graphs.language.node import ArrayValue, Node, walk
from tensor_graphs.language.op_names import _ATTRIBUTES
from tensor_graphs.language.text import TextError, parse_graph, print_graph
from tensor_graphs.language.text_writer import KEYWORDS
from tensor_graphs.meaning.interpreter import interpret
from tests import strategies

ROOT = Path(__file__).parents[2]
BOTH = [(print_graph, parse_graph), (graph_to_json, graph_from_json)]
BOTH_IDS = ["text", "json"]


@tg.composite
def scaled(x: Node, *, by: float) -> Node:
    return x * by


@tg.composite
def shifted(x: Node, y: Node | None = None, *, by: Dim = 1, name: str = 'any "text"\n', kind: DType = tg.i32) -> Node:
    out = scaled(x, by=0.5) + tg.constant(by, x.dtype)
    return out if y is None else out + y


@tg.composite
def parts(x: Node, *more: Node, axis: int = -1) -> tuple[Node, Node]:
    total = shifted(x, by=3)
    for m in more:
        total = total + m
    return total, scaled(x, by=-0.0)


@tg.composite(name="softmax")
def own_softmax(x: Node, *, axis: int = 0) -> Node:
    return x * x


unnamed = tg.composite(lambda a0: a0 * float("inf"), name='<lambda> of "größe"')


def of_user_composites(x: Node, n: Dim) -> list[Node]:
    """Values of composites that are in no library, on a float tensor: nested, of several outputs, with dims and odd names."""
    first, second = parts(x, x)
    return [shifted(x, by=n), shifted(x, first, by=2, kind=tg.bf16), second, parts(first, axis=1)[0], own_softmax(x), unnamed(x)]


def users_graph() -> Graph:
    n = tg.dim("n", 1, 64)
    x = tg.input("x", (n, 2 * n + 1))
    return tg.graph({f"y{i}": node for i, node in enumerate(of_user_composites(x, n + 2))})


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs with composites of the user's own on their values."""
    g: Graph = draw(strategies.graphs(steps=4))
    floats = [node for node in g.nodes if len(node.types) == 1 and node.dtype.has_infinity] or [tg.input("only", (2,))]
    by = draw(st.sampled_from([3, strategies.N, strategies.M + strategies.N]))
    values = draw(st.lists(st.sampled_from(of_user_composites(draw(st.sampled_from(floats)), by)), min_size=1, max_size=3))
    return tg.graph({**{f"user.{i}": v for i, v in enumerate(values)}, **g.outputs}, g.updates)


def same(a: Graph, b: Graph) -> bool:
    """The very same nodes under the same names in the same order."""
    return a == b and list(a.outputs) == list(b.outputs) and list(a.updates) == list(b.updates) and a.nodes == b.nodes


@settings(max_examples=40)
@given(graphs())
def test_a_graph_with_composites_of_the_user_reads_back_as_the_same_nodes(g):
    for write, read in BOTH:
        text = write(g)
        assert same(read(text), g)
        assert write(read(text)) == text


@settings(max_examples=25)
@given(graphs())
def test_where_the_composites_are_not_known_keys_and_texts_are_the_same(g):
    texts = [write(g) for write, _ in BOTH]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defined_ops, "_user_ops", weakref.WeakValueDictionary())
        for text, (write, read) in zip(texts, BOTH, strict=True):
            found = read(text)
            assert found != g and found.structural_key == g.structural_key
            assert write(found) == text
            assert same(read(text), found)


# ---- other processes ----

SCRIPT = """
import sys
from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.text import parse_graph, print_graph
if sys.argv[1] == "print":
    from tests.language.test_op_names import users_graph
    sys.stdout.buffer.write("\\0".join(write(users_graph()) for write in (print_graph, graph_to_json)).encode())
else:
    found = []
    for item in sys.stdin.buffer.read().decode().split("\\0"):
        read, write = (parse_graph, print_graph) if item.startswith("tg ") else (graph_from_json, graph_to_json)
        g = read(item)
        assert read(item) == g and read(write(g)) == g, "one text, two graphs"
        found.append(f"{g.structural_key} {write(g) == item}")
    print("\\n".join(found))
"""


def elsewhere(argument: str, given: bytes = b"", seed: str = "0") -> bytes:
    """What SCRIPT prints in a fresh process."""
    env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SCRIPT, argument], input=given, capture_output=True, cwd=ROOT, env=env,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.processes
def test_what_is_written_is_the_same_in_every_process():
    here = "\0".join(write(users_graph()) for write, _ in BOTH).encode()
    assert elsewhere("print", seed="1") == here == elsewhere("print", seed="2")


@pytest.mark.processes
def test_a_process_that_has_never_seen_the_composites_reads_the_same_keys():
    g = users_graph()
    found = elsewhere("read", "\0".join(write(g) for write, _ in BOTH).encode()).decode()
    assert found == f"{g.structural_key} True\n" * 2


# ---- what a definition is ----


@pytest.mark.parametrize("write, read", BOTH, ids=BOTH_IDS)
@pytest.mark.parametrize("mode", ["real", "as_written"])
def test_a_composite_that_is_not_known_means_what_its_definition_says(monkeypatch, write, read, mode):
    g = users_graph()
    x = {"x": np.random.default_rng(0).normal(size=(5, 11))}
    ours = interpret(g, x, mode=mode).outputs
    text = write(g)
    monkeypatch.setattr(defined_ops, "_user_ops", weakref.WeakValueDictionary())
    for a, b in zip(ours.values(), interpret(read(text), x, mode=mode).outputs.values(), strict=True):
        np.testing.assert_array_equal(a, b)


DEFINITION = """tg 1
dim n 1..8
input x f32[n, 2]
define half(a f32[n, 2]) {
  return a * 0.5
}
output y = half(x)
"""


def test_a_definition_of_a_file_is_one_op_however_often_it_is_read():
    g = parse_graph(DEFINITION)
    assert same(parse_graph(DEFINITION), g)
    assert same(parse_graph(print_graph(g)), g)
    assert same(graph_from_json(graph_to_json(g)), g)


def test_an_edited_definition_is_not_taken_for_the_one_that_was_printed():
    text = print_graph(parse_graph(DEFINITION))
    with pytest.raises(TextError, match=r"the definition named half#\w{12} has the digest \w{12}, so it is not the one that was"):
        parse_graph(text.replace("constant(0.5", "constant(0.25"))
    data = graph_to_json(parse_graph(DEFINITION))
    with pytest.raises(LanguageError, match=r"the definition named half#\w{12} has the digest \w{12}, so it is not"):
        graph_from_json(data.replace((0.5).hex(), (0.25).hex()))


def test_an_edited_definition_without_its_digest_is_another_op():
    text = re.sub(r"#\w{12}", "", print_graph(parse_graph(DEFINITION)))
    other = parse_graph(text.replace("constant(0.5", "constant(0.25"))
    assert other.structural_key != parse_graph(DEFINITION).structural_key
    assert interpret(other, {"x": np.array([[1.0, 2.0]])}).outputs["y"].tolist() == [[0.25, 0.5]]


def test_a_definition_follows_its_dims_when_they_are_renamed_or_known():
    g = parse_graph(DEFINITION)
    renamed = parse_graph(DEFINITION.replace("dim n", "dim rows").replace("[n,", "[rows,"))
    assert g.structural_key == renamed.structural_key
    (five,) = replace_dims(g.roots, {"n": 5})
    assert str(five.type) == "f32[5, 2]"
    assert same(parse_graph(print_graph(tg.graph(five))), tg.graph(five))


def test_dims_that_stand_in_sizes_only_as_expressions_are_found_again():
    m = tg.dim("rows", 1, 9)
    x = tg.input("x", (2 * m + 1, 3 * m))
    g = tg.graph(scaled(x, by=2.0))
    text = print_graph(g)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defined_ops, "_user_ops", weakref.WeakValueDictionary())
        assert parse_graph(text).structural_key == g.structural_key


def test_a_definition_that_reads_a_leaf_has_no_text():
    w = tg.input("w", (2,))
    leaky = tg.composite(lambda x: x + w, name="leaky")
    with pytest.raises(GraphError, match="the definition of leaky reads the input 'w', which is no operand of it"):
        print_graph(tg.graph(leaky(tg.input("x", (2,)))))


def test_a_graph_over_placeholders_has_no_text():
    with pytest.raises(GraphError, match="a graph over placeholders"):
        print_graph(Graph({"y": argument(0, tg.input("x", (2,)).type) + 1.0}, {}))


# ---- what else both forms have in common ----


@pytest.mark.parametrize("write, read", BOTH, ids=BOTH_IDS)
def test_an_array_may_be_an_attribute(write, read):
    @tg.composite
    def labelled(x: Node, *, table: ArrayValue) -> Node:
        return x + 1.0

    g = tg.graph(labelled(tg.input("x", (2,)), table=ArrayValue.of(np.float32([[1, np.nan]]), tg.f32)))
    assert same(read(write(g)), g)


@pytest.mark.parametrize("write, read", BOTH, ids=BOTH_IDS)
def test_numbers_of_numpy_among_attributes_read_back(write, read):
    x = tg.input("x", (4, 3))
    g = tg.graph([atomic.pad(x, [(np.int64(1), 0), (0, np.int64(2))]), atomic.slice(x, [(np.int64(1), np.int64(3), 1), (0, 3, 1)])])
    assert same(read(write(g)), g)


def test_every_attribute_of_the_op_table_is_checked_when_it_is_read():
    assert set(_ATTRIBUTES) == {name for row in ROWS for name in row.attributes}


def test_no_op_has_the_name_of_another():
    names = {row.name for row in ROWS}
    assert not names & set(LIBRARY)
    assert not (names | set(LIBRARY)) & {*KEYWORDS, "copy_to", "item", "argument"}


def tower_text(levels: int) -> str:
    """Definitions inside of one another."""
    made = ["tg 1", "define f0(a f32[4]) {", "return sin(a)", "}"]
    for i in range(1, levels):
        made += [f"define f{i}(a f32[4]) {{", f"return f{i - 1}(a)", "}"]
    return "\n".join([*made, "input x f32[4]", f"output y = f{levels - 1}(x)", ""])


def test_definitions_are_inside_of_one_another_up_to_a_limit():
    graph = parse_graph(tower_text(MAX_DEPTH))
    assert [n.op.name for n in walk(expand_all(graph.roots))] == ["input", "sin"]
    with pytest.raises(TextError, match=f"definition of f{MAX_DEPTH} uses others, and these others, {MAX_DEPTH + 1} levels"):
        parse_graph(tower_text(MAX_DEPTH + 1))
