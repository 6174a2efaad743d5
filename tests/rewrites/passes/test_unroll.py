"""rewrites/passes/unroll.py: the turns of a loop mean the loop, bit by bit; which are written out; what became of the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import Definition, expand_all
from tensor_graphs.language.composites.scan import AT_ONCE
from tensor_graphs.rewrites.passes import unroll as module
from tensor_graphs.rewrites.passes.result import PassResult
from tensor_graphs.rewrites.passes.unroll import MOST_NODES, unroll, why_whole
from tensor_graphs.rewrites.rule import BITWISE
from tests.rewrites.parts_in import parts_in


def loops(graph: tg.Graph) -> list[tg.Node]:
    return [n for n in graph.nodes if n.op.name == "scan"]


def every(graph: tg.Graph, **more: Any) -> PassResult:
    return unroll(graph, lambda loop: True, **more)


def in_turns(made: PassResult) -> tg.Graph:
    """The graph in which the turns of each part run."""
    def written(node: tg.Node) -> Definition:
        assert isinstance(node.op, PartOp)
        (recipe,) = node.op.recipes
        return recipe.op.define([i.type for i in node.inputs], node.attrs)

    roots = made.graph.roots
    while any(isinstance(n.op, PartOp) for n in made.graph.with_roots(roots).nodes):      # a loop in the step of another one
        roots = expand_all(roots, lambda node: not isinstance(node.op, PartOp), written)
    return made.graph.with_roots(roots)


def same_bits(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k], equal_nan=True) for k in one)


def drawn(graph: tg.Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.standard_normal(x.shape) * 0.5 if x.dtype.is_float else rng.integers(-9, 9, x.shape),
                             x.dtype.numpy) for name, x in graph.inputs.items()}


def assert_the_same(graph: tg.Graph, seed: int = 0) -> tg.Graph:
    """The turns give the bits of the loop, in both modes of the oracle, and its parts in their own words do."""
    made = every(graph)
    turns, values = in_turns(made), drawn(graph, seed)
    read = {name: values[name] for name in turns.inputs}            # what no turn reads is no input of turns alone
    assert made.graph is not graph and not loops(turns)
    for mode in ("as_written", "real"):
        wanted = tg.interpret(graph, values, mode=mode).outputs
        assert same_bits(tg.interpret(turns, read, mode=mode).outputs, wanted)
        assert same_bits(tg.interpret(made.graph, values, mode=mode).outputs, wanted)
    return turns


# ---- what is meant --------------------------------------------------------------------------------------------------------------

BATCH, WIDTH, INPUTS = 2, 4, 3
X = tg.input("x", (5, BATCH, INPUTS))
H, W, U = tg.input("h", (BATCH, WIDTH)), tg.input("w", (WIDTH, INPUTS)), tg.input("u", (WIDTH, WIDTH))


def cell(h: tg.Node, x: tg.Node) -> tuple[tg.Node, tg.Node]:
    new = tg.tanh(tg.linear(x, W) + tg.linear(h, U) * 2.0)
    return new, new - h


def rnn(length: int = 5, reverse: bool = False) -> tg.Graph:
    last, ys = tg.scan(cell, H, tg.input("x", (length, BATCH, INPUTS)), reverse=reverse)
    return tg.graph({"last": last, "ys": ys})


def selective(length: int = 6) -> tg.Graph:
    """A state space whose decay, input and output are of the turn: several tensors are sliced, along their second axis."""
    names = {"x": 3, "dt": 3, "b": 4, "c": 4}
    x, dt, b, c = (tg.input(name, (BATCH, length, width)) for name, width in names.items())
    a = tg.input("a", (3, 4))

    def step(h: tg.Node, now: tuple[tg.Node, ...]) -> tuple[tg.Node, tg.Node]:
        x, dt, b, c = now
        h = h * tg.exp(dt.reshape((BATCH, 3, 1)) * a) + (dt * x).reshape((BATCH, 3, 1)) * b.reshape((BATCH, 1, 4))
        return h, (h * c.reshape((BATCH, 1, 4))).sum(2)

    last, ys = tg.scan(step, tg.input("h", (BATCH, 3, 4)), (x, dt, b, c), axis=1)
    return tg.graph({"last": last, "ys": ys})


@pytest.mark.parametrize(("length", "reverse"), [*((n, False) for n in (0, 1, 2, AT_ONCE, AT_ONCE + 1, AT_ONCE ** 2 + 3)),
                                                 (AT_ONCE + 1, True)])
def test_the_turns_of_a_recurrence_have_its_bits_at_every_length(length: int, reverse: bool) -> None:
    turns = assert_the_same(rnn(length, reverse))
    assert Counter(n.op.name for n in turns.nodes)["tanh"] == length


def test_the_turns_of_a_selective_scan_have_its_bits() -> None:
    assert_the_same(selective())


def test_several_carries_change_places_and_integers_wrap() -> None:
    x, one = tg.input("x", (9,), tg.u8), tg.constant(1, tg.u8)
    (a, b), ys = tg.scan(lambda c, x: ((c[1], c[0] + c[1] + x), (c[0], c[1])), (one, one), x)
    assert_the_same(tg.graph({"a": a, "b": b, "first": ys[0], "second": ys[1]}))


def test_what_carries_nothing_and_what_gives_nothing_but_its_carry() -> None:
    none, ys = tg.scan(lambda c, x: ((), x * 2.0), (), X)
    last, nothing = tg.scan(lambda h, x: (h + x.sum(1, keepdims=True), None), H, X)
    assert (none, nothing) == ((), None)
    assert_the_same(tg.graph({"ys": ys, "last": last}))


def test_one_tensor_in_several_places_and_a_carry_that_is_handed_on() -> None:
    last, ys = tg.scan(lambda c, v: ((c[0], c[1] + v[0] * v[1] + H), v[0]), (H, H), (tg.input("v", (4, BATCH, WIDTH)),) * 2)
    assert_the_same(tg.graph({"first": last[0], "second": last[1], "ys": ys}))


Step = Callable[[Sequence[tg.Node]], tg.Node]
OPS: tuple[Step, ...] = (lambda v: v[0] + v[1], lambda v: v[0] * v[1], lambda v: tg.maximum(v[0], v[1] * 0.5),
                         lambda v: v[0] - v[1].sum(-1, keepdims=True), lambda v: tg.tanh(v[0]), lambda v: tg.softmax(v[0]),
                         lambda v: v[1])


@st.composite
def scans(draw: st.DrawFn) -> tg.Graph:
    """Some carries, sliced tensors and others, and a step that makes of them what is drawn."""
    def numbers(most: int, least: int = 0) -> int:
        return draw(st.integers(least, most))

    carries, slices, others, length = numbers(3), numbers(3, 1), numbers(2), numbers(10)
    init = [tg.input(f"h{i}", (2, 3)) for i in range(carries)]
    xs = [tg.input(f"x{i}", (length, 2, 3)) for i in range(slices)]
    around = [tg.input(f"o{i}", (2, 3)) for i in range(others)]
    plan = [(numbers(len(OPS) - 1), numbers(99), numbers(99)) for _ in range(numbers(6, 1))]
    given_back = [numbers(99) for _ in range(carries + numbers(3, 0 if carries else 1))]

    def step(h: tuple[tg.Node, ...], x: tuple[tg.Node, ...]) -> tuple[Any, Any]:
        values = [*h, *x, *around]
        for op, i, k in plan:
            values.append(OPS[op]([values[i % len(values)], values[k % len(values)]]))
        out = [values[-1 - i % len(values)] for i in given_back]
        return tuple(out[:carries]), tuple(out[carries:]) or None

    finals, ys = tg.scan(step, tuple(init), tuple(xs), reverse=draw(st.booleans()))
    return tg.graph([*finals, *(ys or ())])


@given(graph=scans(), seed=st.integers(0, 99))
def test_the_turns_of_whatever_is_drawn_have_its_bits(graph: tg.Graph, seed: int) -> None:
    assert_the_same(graph, seed)


@pytest.mark.parametrize("graph", [rnn(4), selective(4)], ids=["rnn", "selective"])
def test_gradients_are_written_out_too_and_the_recurrence_itself_once(graph: tg.Graph) -> None:
    loss = (graph.outputs["ys"] * graph.outputs["ys"]).sum() + graph.outputs["last"].sum()
    whole = tg.graph([loss, *tg.grad(loss, list(graph.inputs.values()))])
    assert len(loops(whole)) == 3                                   # the loss's; for what turns began with; the other way round
    made = every(whole)
    assert sorted(parts_in(made.graph).values()) == [1, 1]
    turns = in_turns(made)
    values = drawn(whole)
    wanted, found = (tg.interpret(g, values).outputs for g in (whole, turns))
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12, atol=1e-14)


def test_a_step_that_scans_is_prepared_like_the_graph() -> None:
    def outer(total: tg.Node, row: tg.Node) -> tuple[tg.Node, tg.Node]:
        inner, _ = tg.scan(lambda h, v: (h * 0.5 + v * total, None), total, row)
        return inner, inner

    last, ys = tg.scan(outer, tg.constant(1.0), tg.input("x", (4, 3)))
    graph = tg.graph({"last": last, "ys": ys})
    turns = in_turns(every(graph, prepared=lambda step: every(step).graph))
    assert not loops(turns)
    values = drawn(graph)
    assert same_bits(tg.interpret(turns, values, mode="as_written").outputs,
                     tg.interpret(graph, values, mode="as_written").outputs)


# ---- which are written out ------------------------------------------------------------------------------------------------------


def test_a_dim_of_turns_stays_a_loop() -> None:
    last, _ = tg.scan(lambda h, x: (h + x, None), tg.input("h", (3,)), tg.input("x", (tg.dim("n", 0, 64), 3)))
    graph = tg.graph(last)
    (loop,) = loops(graph)
    assert every(graph).graph is graph
    assert why_whole([i.type for i in loop.inputs], loop.attrs) == "its turns are not written out, as their number is n"


def test_a_dim_elsewhere_does_not_hinder() -> None:
    n = tg.dim("n", 1, 8)
    last, ys = tg.scan(lambda h, x: ((new := tg.tanh(h + x)), new), tg.input("h", (n, 3)), tg.input("x", (n, 5, 3)), axis=1)
    graph = tg.graph({"last": last, "ys": ys})
    turns = in_turns(every(graph))
    values = {"h": np.ones((2, 3), np.float32), "x": np.arange(30, dtype=np.float32).reshape(2, 5, 3)}
    assert same_bits(tg.interpret(turns, values).outputs, tg.interpret(graph, values).outputs)


def test_as_many_turns_are_written_out_as_the_bound_has_room_for() -> None:
    def of(length: int) -> tg.Graph:
        return tg.graph(tg.scan(lambda h, x: (h * 0.5 + x, None), tg.input("h", (2,)), tg.input("x", (length, 2)))[0])

    turn = 7                                # a slice without its axis; the product, its number, that in its shape, spread; the sum
    fits, longer = of(MOST_NODES // turn), of(MOST_NODES // turn + 1)
    assert parts_in(every(fits).graph) and every(longer).graph is longer
    (loop,) = loops(longer)
    assert why_whole([i.type for i in loop.inputs], loop.attrs) == (
        f"its {MOST_NODES // turn + 1} turns of {turn} nodes are not written out; up to {MOST_NODES // turn} such turns are")


def test_of_many_loops_as_many_are_written_out_as_have_room_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IN_ALL", 2 * 12 * 5)
    ends = [tg.scan(cell, H, tg.input(f"x{i}", (5, BATCH, INPUTS)))[0] for i in range(3)]
    assert len(loops(every(tg.graph(ends)).graph)) == 1


def test_only_what_is_wanted_is_written_out() -> None:
    first, second = (tg.scan(cell, H, x, axis=0)[0] for x in (X, tg.input("shorter", (3, BATCH, INPUTS))))
    graph = tg.graph([first, second])
    made = unroll(graph, lambda loop: loop.inputs[1] is X)
    assert [n.inputs[1].shape[0] for n in loops(made.graph)] == [3] and list(parts_in(made.graph).values()) == [1]
    assert unroll(graph, lambda loop: False).graph is graph


# ---- how ------------------------------------------------------------------------------------------------------------------------


def test_equal_loops_are_one_part_and_their_step_is_prepared_once() -> None:
    asked: list[tg.Graph] = []
    weights = [tg.parameter(f"w{i}", (4, 4)) for i in range(2)]

    def prepared(step: tg.Graph) -> tg.Graph:
        asked.append(step)
        return step

    xs = tg.input("x", (6, 4))
    for w in weights:
        _, xs = tg.scan(lambda h, x, w=w: ((new := tg.tanh(h + tg.linear(x, w))), new), tg.input("h", (4,)), xs)
    made = every(tg.graph(xs), prepared=prepared)
    (part,) = parts_in(made.graph)
    assert parts_in(made.graph)[part] == 2 and len(asked) == 1
    assert (set(asked[0].inputs), set(asked[0].parameters)) == ({"x0", "x1"}, {"x2"})      # what is bound is a parameter there
    assert part.bound == {2} and part.alone
    (recipe,) = part.recipes
    assert recipe.numeric_class == BITWISE and recipe.derivation == "scan/turns: 6 turns, one after another"
    assert made.note == f"2 {part.name}: {recipe.name}" and recipe.name.startswith("recipe scan/turns ")


def test_turns_are_alike_so_that_they_are_one_question() -> None:
    turns = in_turns(every(rnn(AT_ONCE ** 2)))
    asked = Counter(signature_of(n).key for n in turns.nodes if n.op.name in ("linear", "tanh", "concat"))
    assert sorted(asked.values()) == [1, 8, 64, 64, 64]             # concats of concats, of rows; tanh, and both products


def test_images_say_what_became_of_the_nodes_of_the_graph() -> None:
    graph = tg.graph({"twice": rnn().outputs["ys"] * 2.0, "last": rnn().outputs["last"]})
    made = every(graph)
    values = drawn(graph)
    known = [n for n in graph.nodes if len(n.types) == 1 and n.op.kind != "leaf"]
    now = [made.images.get(n, n) for n in known]
    assert all(n in made.graph.nodes for n in now) and not any(n.op.name == "scan" for n in now)
    before, after = (tg.interpret(tg.graph(nodes), values).outputs for nodes in (known, now))
    assert same_bits(before, after)
    assert all(m.location == n.location for n, m in made.images.items())


def test_a_loop_of_one_output_and_one_of_which_some_are_read() -> None:
    _, (ys, zs) = tg.scan(lambda h, x: ((new := tg.tanh(h + x.sum(1, keepdims=True))), (new, new * 2.0)), H, X)
    alone = tg.scan(lambda h, x: (h * x.sum(), None), H, X)[0]
    assert alone.op.name == "scan"
    graph = tg.graph({"zs": zs, "alone": alone + 1.0})
    assert_the_same(graph)
    assert max(len(op.written.outputs) for op in parts_in(every(graph).graph)) == 2     # the carry, and zs
    assert ys not in every(graph).images


def test_a_part_is_called_after_its_turns() -> None:
    """So that a path of one form of the graph is not taken for one of another."""
    def other(step: tg.Graph) -> tg.Graph:
        return step.with_roots([tg.neg(tg.neg(r)) for r in step.roots])

    assert every(rnn()).graph.structural_key != every(rnn(), prepared=other).graph.structural_key
    assert every(rnn()).graph.structural_key == every(rnn()).graph.structural_key
