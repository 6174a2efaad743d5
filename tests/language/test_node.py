"""Nodes are immutable and hash-consed: one application, one object; what changes the value is part of its identity."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic, node
from tensor_graphs.language.errors import NOWHERE, ShapeError, written_at
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import ArrayValue, TensorType, alike, consumers, encode_attribute, rebuild, walk
from tensor_graphs.phase_times import phase

X = tg.input("x", (2, 3))
Y = tg.input("y", (2, 3))


def test_the_same_application_is_the_same_object():
    assert tg.input("x", (2, 3)) is X
    assert X + Y is X + Y
    assert tg.softmax(X, axis=-1) is tg.softmax(X, axis=-1)


@tg.composite
def _named(x, *, name="a"):
    return x * (2.0 if name == "a" else 3.0)


def test_nodes_are_alike_where_op_attributes_and_types_of_operands_are():
    same = alike(walk([tg.sum(X + Y, 0), tg.sum(Y + X, 0), tg.sum(X, 1)]))
    assert same[Y] is X and same[Y + X] is X + Y and same[tg.sum(Y + X, 0)] is tg.sum(X + Y, 0)
    assert same[tg.sum(X, 1)] is tg.sum(X, 1)


@pytest.mark.parametrize("one, other", [
    (tg.input("x", (2, 3)), tg.input("y", (3, 2))), (tg.input("x", (2, 3)), tg.parameter("y", (2, 3))),
    (tg.input("x", (tg.dim("n", 1, 8),)), tg.input("y", (tg.dim("n", 1, 9),))), (constant(1.0), constant(2.0)),
    (X + Y, X * Y), (tg.exp(X), tg.exp(tg.input("y", (2, 3), tg.f16))), (_named(X, name="a"), _named(X, name="b")),
    (_named(X), _named(tg.input("y", (3, 2))))], ids=str)
def test_nodes_are_not_alike_where_something_else_differs(one: tg.Node, other: tg.Node):
    same = alike(walk([one, other]))
    assert same[one] is one and same[other] is other


def test_what_changes_the_value_makes_another_node():
    assert tg.input("x", (2, 3), tg.f16) is not X
    assert tg.input("x", (3, 2)) is not X
    assert X + Y is not Y + X
    assert tg.sum(X, 0) is not tg.sum(X, 1)
    assert tg.rms_norm(X, eps=1e-5) is not tg.rms_norm(X, eps=1e-6)


@pytest.mark.parametrize("a, b", [(0.0, -0.0), (1.0, float(np.nextafter(1.0, 2.0))), (float("inf"), -float("inf"))])
def test_constants_that_differ_in_a_bit_are_different(a, b):
    assert constant(a) is not constant(b)
    assert constant(a) is constant(a)


def test_a_nan_is_the_same_constant_as_a_nan():
    assert constant(float("nan")) is constant(-float("nan"))


def test_attributes_of_different_types_never_share_an_encoding():
    n = tg.dim("n", 1, 8)
    values = [None, True, False, 0, 1, 0.0, -0.0, 1.0, "1", "n", "none", n, n + 1, tg.f32, (), (1,), ((1,),), (1, 1),
              ("1",), ArrayValue.of(np.zeros(2, np.float32), tg.f32),
              ArrayValue.of(np.zeros((2, 1), np.float32), tg.f32), ArrayValue.of(np.zeros(2, np.int32), tg.i32)]
    encoded = [encode_attribute(v) for v in values]
    assert len(set(encoded)) == len(values)


def test_a_value_without_an_encoding_is_refused():
    with pytest.raises(TypeError) as caught:
        encode_attribute({"a": 1})
    assert str(caught.value) == "an attribute of type dict has no encoding: {'a': 1}"


def test_an_array_value_keeps_its_bytes_in_order():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    kept = ArrayValue.of(array.T, tg.i32)
    np.testing.assert_array_equal(kept.array(), array.T)
    array[0, 0] = 99
    assert kept.array()[0, 0] == 0


def test_nodes_that_nobody_holds_are_forgotten():
    tag = tg.input("only_here", (7,))
    _ = tag + 1.0
    before = len(node._table)
    for i in range(50):
        _ = tag * float(i + 2)
    gc.collect()
    assert len(node._table) < before + 50


def test_the_digest_does_not_depend_on_the_line_it_was_written_on():
    a = atomic.add(X, Y)
    digest = a.digest
    del a
    gc.collect()
    assert atomic.add(X, Y).digest == digest


def test_a_node_remembers_where_the_user_wrote_it():
    here = tg.input("located", (5,)) * 3.0
    assert here.location is not None and here.location.file == __file__
    assert here.location.source() == 'here = tg.input("located", (5,)) * 3.0'


def test_a_type_prints_its_dtype_and_shape_and_knows_its_size():
    n = tg.dim("n", 1, 8)
    t = TensorType((n, 4), tg.bf16)
    assert str(t) == "bf16[n, 4]" and t.rank == 2
    assert t.at({"n": 3}) == TensorType((3, 4), tg.bf16)
    assert t.at({"n": 3}).size() == 12 and t.at({"n": 3}).nbytes() == 24


def test_walking_gives_operands_before_users_and_each_once():
    a = X + Y
    order = walk([a * a, a])
    assert len(order) == len(set(order))
    for place, found in enumerate(order):
        assert all(order.index(i) < place for i in found.inputs)
    assert order[-1] is a * a


def test_a_chain_of_a_twenty_thousand_nodes_needs_no_recursion():
    x = X
    for _ in range(20_000):
        x = atomic.add(x, Y)
    assert len(walk([x])) == 20_002
    assert rebuild([x], lambda n, inputs: None) == [x]


def test_rebuilding_replaces_a_leaf_everywhere_and_keeps_the_rest():
    z = tg.input("z", (2, 3))
    old = tg.exp(X + Y) * X
    (new,) = rebuild([old], lambda n, inputs: z if n is X else None)
    assert new is tg.exp(z + Y) * z


def test_consumers_count_an_operand_that_is_read_twice():
    a = X + Y
    users = consumers([a * a])
    assert users[a] == [a * a, a * a] and users[X] == [a]


def test_a_node_with_several_outputs_is_read_through_its_items():
    values, indices = tg.topk(X, k=2)
    both = values.inputs[0]
    assert both is indices.inputs[0] and len(both.types) == 2
    with pytest.raises(TypeError, match="topk has 2 outputs; take one with item"):
        _ = both.type


def test_threads_that_write_the_same_graph_get_the_same_nodes():
    made: list[list[tg.Node]] = []
    start = threading.Barrier(4)

    def write() -> None:
        start.wait()
        made.append([tg.input("shared", (i + 1,)) * 2.0 for i in range(100)])

    threads = [threading.Thread(target=write) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 4
    for nodes in made[1:]:
        assert all(a is b for a, b in zip(nodes, made[0], strict=True))


def test_a_line_of_pythons_library_is_nobodys() -> None:
    made = phase("prepare")(tg.exp)(tg.input("called", (3,)))       # contextlib calls it
    assert made.location is not None and made.location.source().startswith('made = phase("prepare")(tg.exp)')


@pytest.mark.processes
def test_nodes_of_a_model_that_a_command_reads_were_written_there() -> None:
    script = ("import tensor_graphs as tg\nfrom tensor_graphs.cli import graphs, option_groups\n"
              "graph = graphs.graph_of('gemma-3-270m', option_groups.SourceOptions('float32'), 64)\n"
              "print({str(n.location and n.location.file) for n in graph.nodes})\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    files = ast.literal_eval(done.stdout)
    models = tuple(str(Path(tg.__file__).parent / room) for room in ("models", "frontends"))
    assert files and all(file.startswith(models) for file in files), files


def test_what_is_read_from_a_file_has_no_line() -> None:
    with written_at(NOWHERE):
        made = tg.exp(tg.input("nowhere", (3, 5)))
        with pytest.raises(ShapeError) as caught:
            tg.dot(made, made)
    assert made.location is None and repr(made) == "<exp f32[3, 5]>" and str(caught.value).startswith("ShapeError: ")
