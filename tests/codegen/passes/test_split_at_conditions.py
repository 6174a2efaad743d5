"""What an index alone decides is decided before the loop, and what is computed stays."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret
from tensor_graphs.codegen.loop_ir import StageProgram, values_in
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.passes.split_at_conditions import decided, limits
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.codegen.print.c_loops import rendered
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret as interpreted
from tests.codegen.generated import Library


def lowered(*outputs: Node) -> StageProgram:
    inputs = list(make_graph({f"y{i}": y for i, y in enumerate(outputs)}).inputs.values())
    return lower(part_between(outputs, inputs).written)


def one_hot(width: int, labels: Node, x: Node, turned: bool = False) -> Node:
    rows = x.shape[0]
    places = tg.reshape(tg.iota(width, dtype=labels.dtype), (1, width))
    hit = tg.equals(tg.reshape(labels, (rows, 1)), places) if turned else tg.equals(places, tg.reshape(labels, (rows, 1)))
    return tg.where(hit, x, 0.0).sum(axis=1)


X, Q = tg.input("x", (6, 16)), tg.input("q", (5, 3, 8))
C, S, L = tg.input("c", (5, 4)), tg.input("s", (5, 4)), tg.input("l", (6,), tg.i32)
SAME = {
    "a rotation": (tg.rope(Q, C, S),), "two halves": (tg.concat(X, X * 2.0, axis=1) + 1.0,),
    "three thirds": (tg.concat(X, X * 2.0, X + 1.0, axis=1),), "uneven": (tg.concat(X, X[:, :3], axis=1),),
    "padded": (tg.pad(X, ((0, 0), (16, 16))) * 2.0,), "a label": (one_hot(16, L, X),), "turned": (one_hot(16, L, X, True) * 2.0,),
    "a loss": (tg.logsumexp(X) - one_hot(16, L, X),), "of what is made": (one_hot(16, L, tg.softmax(X)),)}


@pytest.mark.parametrize("name", SAME)
def test_what_is_computed_stays(name: str) -> None:
    rng = np.random.default_rng(3)
    values = {n: (rng.integers(0, 16, x.shape) if x.dtype is tg.i32 else rng.standard_normal(x.shape)).astype(x.dtype.numpy)
              for n, x in make_graph({"y": SAME[name][0]}).inputs.items()}
    if "l" in values:
        values["l"][:4] = [-1, 16, 15, -(2**31)]                    # nothing is selected outside of a row
    before, after = (interpret.run(program, list(values.values())) for program in
                     (lowered(*SAME[name]), decided(lowered(*SAME[name]))))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-7)


def conditions(program: StageProgram) -> int:
    return sum(v.op in ("where", "at_least", "less") for n in program.nests for s in n.stages for v in values_in(s.value))


@pytest.mark.parametrize(("name", "stages"), [("a rotation", 2), ("two halves", 2), ("three thirds", 3), ("padded", 3)])
def test_pieces_of_a_row_are_stages_that_ask_nothing(name: str, stages: int) -> None:
    program = decided(lowered(*SAME[name]))
    assert conditions(lowered(*SAME[name])) and not conditions(program)
    assert [len(n.stages) for n in program.nests] == [stages]


def test_pieces_of_different_lengths_stay_one_stage() -> None:
    program = decided(lowered(*SAME["uneven"]))
    assert [len(n.stages) for n in program.nests] == [1] and conditions(program)


def test_a_sum_in_which_one_index_counts_is_a_load_that_comes_first() -> None:
    (nest,) = decided(lowered(*SAME["a loss"])).nests
    first, *rest = nest.stages
    assert not first.reduce and first.monoid is None and sum(bool(s.reduce) for s in rest) == 2


@pytest.mark.parametrize("sum_", [
    one_hot(16, L, tg.softmax(X)),                                  # what other threads have made
    tg.where(tg.less(tg.reshape(tg.iota(16, dtype=tg.i32), (1, 16)), tg.reshape(L, (6, 1))), X, 0.0).sum(axis=1),
    tg.where(tg.equals(tg.reshape(tg.iota(16, dtype=tg.i32), (1, 16)), tg.reshape(L, (6, 1))), X, 1.0).sum(axis=1),
    tg.where(tg.equals(tg.reshape(tg.iota(16, dtype=tg.i32), (1, 16)), tg.reshape(L, (6, 1))), 0.0, X).sum(axis=1)],
    ids=["made", "a range", "not nothing", "all but one"])
def test_another_sum_stays_a_sum(sum_: Node) -> None:
    assert sums(decided(lowered(sum_))) == sums(lowered(sum_)) > 0


def sums(program: StageProgram) -> int:
    return sum(s.monoid == "sum" for n in program.nests for s in n.stages)


IMAGE, LINE = tg.input("image", (2, 3, 21, 37)), tg.input("line", (2, 3, 50))
WHOLE = tg.input("whole", (2, 3, 50), tg.i32)
WINDOWS = {
    "max, padded": tg.max_pool2d(IMAGE, 3, stride=2, padding=1),
    "both ends": tg.max_pool2d(IMAGE, 4, stride=1, padding=(2, 1)),
    "dilated": tg.max_pool2d(IMAGE, 3, stride=3, padding=1, dilation=2), "longer": tg.max_pool1d(LINE, 7, stride=2, padding=3),
    "of integers": tg.max_pool1d(WHOLE, 5, stride=1, padding=2), "means": tg.avg_pool2d(IMAGE, 3, stride=2, padding=1),
    "not padded": tg.max_pool2d(IMAGE, 2, stride=2), "backwards": tg.max_pool1d(tg.flip(LINE, 2), 4, stride=3, padding=2)}


def test_windows_are_those_of_the_definition_and_ask_nothing_at_each_place() -> None:
    definitions = [part_between([y], [x]).written for y in WINDOWS.values() for x in make_graph({"y": y}).inputs.values()]
    programs = [arranged(lower(definition)) for definition in definitions]
    made = Library(programs)
    draw = np.random.default_rng(4)
    for number, (name, y) in enumerate(WINDOWS.items()):
        (x,) = make_graph({"y": y}).inputs.values()
        value = (draw.standard_normal(x.shape) * 100).astype(x.dtype.numpy)
        if x.dtype is tg.f32:
            value[0, 0] = -np.inf                                   # of nothing else the largest is -infinity too
            value[1, 2, ..., 5] = np.nan
        found, = made.run(number, definitions[number], [value], {})
        wanted = interpreted(make_graph({"y": y}), {x.attrs["name"]: value}).outputs["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=2e-5 * (name == "means"), err_msg=name)
        text = rendered(programs[number])
        assert name in ("means", "backwards") or "? x0[" not in text, text


def test_what_is_no_bound_is_asked_at_each_place() -> None:
    """A mask, and turns outside that count."""
    mask = tg.input("m", (2, 3, 21, 37), tg.bool_)
    padded = tg.pad(IMAGE, ((0, 0), (0, 0), (1, 1), (0, 0)))        # with zeros
    for y in (tg.reduce_max(tg.where(mask, IMAGE, -np.inf), axis=2), tg.reduce_max(padded, axis=2)):
        for nest in lowered(y).nests:
            for s in nest.stages:
                assert s.monoid is not None and limits(lowered(y).values, s, s.axes[-1]) is None
