"""Text and JSON of graphs that are hard to write down, of random graphs, and of damaged files."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.text import TextError, parse_graph, print_graph
from tests.language.written_graphs import HARD, X
from tests.strategies import graphs

FORMS: dict[str, tuple[Callable[[Graph], str], Callable[[str], Graph]]] = {
    "text": (print_graph, parse_graph), "json": (graph_to_json, graph_from_json)}
SHORT = [name for name in HARD if name != "a_deep_graph"]


def assert_same(found: Graph, wanted: Graph) -> None:
    """The same nodes under the same names in the same order."""
    assert found == wanted
    assert list(found.outputs) == list(wanted.outputs) and list(found.updates) == list(wanted.updates)
    assert all(found.outputs[k] is wanted.outputs[k] for k in wanted.outputs)
    assert all(found.updates[k] is wanted.updates[k] for k in wanted.updates)


def test_the_comparison_of_graphs_sees_another_node_another_name_and_another_order():
    a, b = X * 2.0, X * 3.0
    for other in (tg.graph({"a": a, "b": a}), tg.graph({"a": a, "c": b}), tg.graph({"b": b, "a": a})):
        with pytest.raises(AssertionError):
            assert_same(other, tg.graph({"a": a, "b": b}))


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=80)
@given(graph=graphs(steps=8))
def test_a_written_graph_reads_back_as_the_same_nodes(form, graph):
    write, read = FORMS[form]
    written = write(graph)
    assert_same(read(written), graph)
    assert write(read(written)) == written


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", HARD)
def test_nothing_gets_lost_on_the_way(name, form):
    write, read = FORMS[form]
    graph = HARD[name]()
    assert_same(read(write(graph)), graph)
    assert write(read(write(graph))) == write(graph)


@pytest.mark.processes
@pytest.mark.parametrize("form", FORMS)
def test_a_file_stands_for_itself_in_a_process_that_does_not_know_the_composites(form, tmp_path: Path):
    """Another process reads the files and writes them again: the same keys and the same text, definitions and all."""
    for name in SHORT:
        (tmp_path / name).write_text(FORMS[form][0](HARD[name]()), encoding="utf-8", newline="")
    read, write = (f.__name__ for f in reversed(FORMS[form]))
    program = f"""
import pathlib, sys
from {FORMS[form][0].__module__} import {write}
from {FORMS[form][1].__module__} import {read}
for file in sys.argv[1:]:
    text = pathlib.Path(file).read_bytes().decode()
    graph = {read}(text)
    assert {write}(graph) == text, file
    print(graph.structural_key)
"""
    done = subprocess.run([sys.executable, "-c", program, *(str(tmp_path / name) for name in SHORT)],
                          capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [HARD[name]().structural_key for name in SHORT]


@settings(max_examples=200)
@given(name=st.sampled_from(SHORT), seed=st.integers(0, 10**9))
def test_a_damaged_text_is_refused_or_means_a_graph_and_nothing_else_happens(name, seed):
    text, rng = print_graph(HARD[name]()), random.Random(seed)
    pieces = ["(", ")", "[", "]", "{", "}", ",", ";", "=", "-", "1", "n", "x", "%0", "inf", "none", "f32", '"', "..", "**", "@",
              "1e999", "9" * 30, "#", "add", "define", "return", "output ", "\n", "\x00", "é"]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice([*pieces, ""]) + text[at + rng.randint(0, 2):]
    try:
        graph = parse_graph(text)
    except TextError as e:
        assert e.line >= 1 and e.column >= 1
    else:
        assert_same(parse_graph(print_graph(graph)), graph)


def damage(value: Any, rng: random.Random) -> None:
    """Replace or remove something somewhere inside of a JSON value."""
    parent, key = value, None
    while isinstance(value, (dict, list)) and value and (key is None or rng.random() < 0.9):
        parent, key = value, rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = value[key]
    if key is None:
        return
    if rng.random() < 0.3:
        del parent[key]
    else:
        parent[key] = rng.choice([None, True, -1, 0, 1, 10**30, 1.5, "x", "f32", [], {}, {"float": "nan"}, {"dim": "n"},
                                  {"dtype": "i32"}, [[]]])


@settings(max_examples=200)
@given(name=st.sampled_from(SHORT), seed=st.integers(0, 10**9))
def test_damaged_json_is_refused_or_means_a_graph_and_nothing_else_happens(name, seed):
    data, rng = copy.deepcopy(json.loads(graph_to_json(HARD[name]()))), random.Random(seed)
    for _ in range(rng.randint(1, 2)):
        damage(data, rng)
    try:
        graph = graph_from_json(json.dumps(data))
    except TensorGraphsError:
        return
    assert_same(graph_from_json(graph_to_json(graph)), graph)
