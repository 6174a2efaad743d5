"""paths/lower.py: views cost nothing, in-place writes are safe, programs are short, waits order every hazard."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.kernels.strides import contiguous_strides, is_contiguous
from tensor_graphs.language import atomic
from tensor_graphs.language.composites.products import linear
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.bert import bert_graph
from tensor_graphs.models.gemma3 import gemma3_graph
from tensor_graphs.paths.lower import PlanError, Program, arena_buffers, reshape_strides
from tensor_graphs.paths.memory import Interval, place
from tensor_graphs.paths.plan import Plan
from tensor_graphs.rewrites.passes.fuse import fuse
from tensor_graphs.runtime.compiled_graph import bind
from tests.paths.test_memory import GEMMA, MINILM
from tests.plans import BACKENDS, check, compiled_of, kernel_counts, plan_of, program_of, worst_error

pytestmark = pytest.mark.processes

RNG = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + 1).standard_normal(shape).astype(np.float32)


# ---- views -----------------------------------------------------------------------------------------------------------


@st.composite
def view_chains(draw: st.DrawFn) -> tuple[Graph, Callable[[np.ndarray], np.ndarray], tuple[int, ...], dict[str, int]]:
    """(graph of a view chain with a kernel at its end, the same in numpy, shape of the input, dims)."""
    n = draw(st.sampled_from([1, 2, 3, 5]))
    symbol = tg.dim("n", 1, 8)
    shape: list[Any] = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3))
    if draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = symbol
    at = {"n": n} if symbol in shape else {}
    x = tg.input("x", shape)
    concrete = tuple(n if s is symbol else s for s in shape)
    steps: list[Callable[[np.ndarray], np.ndarray]] = []
    y: Node = x
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["permute", "slice", "expand", "reshape", "split", "flatten", "insert"]))
        rank = y.rank
        if kind == "permute":
            axes = tuple(draw(st.permutations(range(rank))))
            y = atomic.permute(y, axes)
            steps.append(lambda v, axes=axes: v.transpose(axes))
        elif kind == "slice":
            index: list[slice] = []
            for s in y.shape:
                if isinstance(s, int):
                    index.append(slice(draw(st.one_of(st.none(), st.integers(-s - 1, s + 1))),
                                       draw(st.one_of(st.none(), st.integers(-s - 1, s + 1))),
                                       draw(st.sampled_from([None, 1, 2, 3, -1, -2, -3]))))
                else:
                    index.append(draw(st.sampled_from([slice(None), slice(None, None, -1), slice(None, None, 2), slice(0, 1)])))
            y = y[tuple(index)]
            steps.append(lambda v, index=tuple(index): v[index])
        elif kind == "expand" and any(s == 1 for s in y.shape):
            axis = draw(st.sampled_from([i for i, s in enumerate(y.shape) if s == 1]))
            to: list[Any] = list(y.shape)
            to[axis] = draw(st.sampled_from([2, 3, symbol] if at else [2, 3]))
            y = atomic.expand(y, to)
            steps.append(lambda v, to=tuple(to): np.broadcast_to(v, tuple(n if s is symbol else k if not isinstance(s, int) else s
                                                                          for s, k in zip(to, v.shape, strict=True))))
        elif kind == "insert":
            axis = draw(st.integers(0, rank))
            if rank < 5:
                y = atomic.reshape(y, (*y.shape[:axis], 1, *y.shape[axis:]))
                steps.append(lambda v, axis=axis: np.expand_dims(v, axis))
        elif kind == "flatten" and rank:
            y = atomic.reshape(y, (-1,))
            steps.append(lambda v: v.reshape(-1))
        elif kind == "split" and any(isinstance(s, int) and s and s % 2 == 0 for s in y.shape) and rank < 5:
            axis = draw(st.sampled_from([i for i, s in enumerate(y.shape) if isinstance(s, int) and s and s % 2 == 0]))
            half = y.shape[axis] // 2
            y = atomic.reshape(y, (*y.shape[:axis], half, 2, *y.shape[axis + 1:]))
            steps.append(lambda v, axis=axis: v.reshape(*v.shape[:axis], v.shape[axis] // 2, 2, *v.shape[axis + 1:]))
        elif kind == "reshape" and rank > 1:
            axis = draw(st.integers(0, rank - 2))
            y = atomic.reshape(y, (*y.shape[:axis], y.shape[axis] * y.shape[axis + 1], *y.shape[axis + 2:]))
            steps.append(lambda v, axis=axis: v.reshape(*v.shape[:axis], v.shape[axis] * v.shape[axis + 1], *v.shape[axis + 2:]))

    def run(v: np.ndarray) -> np.ndarray:
        for step in steps:
            v = step(v)
        return v

    return tg.graph({"view": y, "sum": y + y}), run, concrete, at


@given(view_chains())
@settings(max_examples=120)
def test_chains_of_views_read_what_numpy_reads_on_every_backend(
        case: tuple[Graph, Callable[[np.ndarray], np.ndarray], tuple[int, ...], dict[str, int]]) -> None:
    g, reference, shape, at = case
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    expected = reference(x)
    for backend in ("numpy", "torch", "gen"):
        out = compiled_of(g, backends=(backend,)).run({"x": x}, dims=at)
        np.testing.assert_array_equal(out["view"], expected)
        np.testing.assert_array_equal(out["sum"], expected + expected)


def test_views_of_every_kind_need_no_instruction() -> None:
    x = tg.input("x", (4, 6, 2))
    y = atomic.permute(x, (1, 0, 2))[::-1, 1:3]
    y = atomic.expand(atomic.reshape(y, (6, 2, 1, 2)), (6, 2, 5, 2))
    assert kernel_counts(program_of(tg.graph(tg.sin(y)))) == {"sin": 1}


def test_a_kernel_that_needs_contiguous_memory_gets_one_copy() -> None:
    x = tg.input("x", (4, 6))
    program = program_of(tg.graph(tg.linear(x.T, tg.input("w", (5, 4)))), ("c",))
    assert kernel_counts(program) == {"contiguous": 1, "linear": 1}


@pytest.mark.parametrize("shape", [(), (6, 1), (1, 40)], ids=str)
def test_generated_loops_read_what_is_repeated_without_a_copy(shape: tuple[int, ...]) -> None:
    x, s = tg.input("x", (6, 40)), tg.input("s", shape)
    g = tg.graph(x / s)
    assert "contiguous" not in kernel_counts(program_of(g, ("gen",)))
    values = np.random.default_rng(1).standard_normal((2, 6, 40)).astype(np.float32)
    check(g, {"x": values[0], "s": values[1][tuple(slice(n) for n in shape)] if shape else values[1, 0, 0]}, backends=("gen",))


def test_a_kernel_that_cannot_walk_backwards_gets_one_copy() -> None:
    x = tg.input("x", (4, 6))
    assert kernel_counts(program_of(tg.graph(tg.tanh(x[::-1])), ("torch",))) == {"contiguous": 1, "tanh": 1}
    assert kernel_counts(program_of(tg.graph(tg.tanh(x[:, ::2])), ("torch",))) == {"tanh": 1}


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_reshape_strides_are_numpys_or_none(shape: list[int], data: st.DataObject) -> None:
    """Compare with numpy: a view where it has one, None where it copies (never a wrong view)."""
    base = np.arange(4096, dtype=np.int64)
    strides = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 6, 12, 24, -1, -6]), min_size=len(shape), max_size=len(shape)))
    x = np.lib.stride_tricks.as_strided(base[2048:], shape, [8 * s for s in strides], writeable=False)
    total = int(np.prod(shape))
    sizes = [s for s in range(1, total + 1) if total % s == 0]
    first = data.draw(st.sampled_from(sizes))
    second = data.draw(st.sampled_from([s for s in sizes if (total // first) % s == 0]))
    new = (first, second, total // first // second)
    result = reshape_strides(shape, strides, new)
    if result is not None:
        view = np.lib.stride_tricks.as_strided(base[2048:], new, [8 * int(s) for s in result], writeable=False)
        np.testing.assert_array_equal(view, x.reshape(new))
    else:
        assert not np.shares_memory(x.reshape(new), base)


def test_symbolic_axes_merge_when_they_are_one_run_of_memory() -> None:
    n = tg.dim("n", 1, 100)
    assert reshape_strides((n, 4, 8), (32, 8, 1), (4 * n, 8)) == (8, 1)
    assert reshape_strides((n, 4, 8), (64, 16, 2), (4 * n, 8)) == (16, 2)
    assert reshape_strides((n, 4, 8), (64, 8, 1), (4 * n, 8)) is None
    assert reshape_strides((4, n), (1, 4), (4 * n,)) is None
    assert is_contiguous((n, 1, 4), (4, 0, 1)) and not is_contiguous((n, 4), (0, 1))
    assert contiguous_strides((2, n, 3)) == (3 * n, 3, 1)


# ---- in place --------------------------------------------------------------------------------------------------------


def in_place(program: Program) -> list[str]:
    """Labels of the instructions that write over an operand."""
    return [ins.label for ins in program.instructions
            if any(program.home(o.buffer) == program.home(i.buffer) for o in ins.outs for i in ins.ins)]


def test_a_chain_of_elementwise_ops_uses_one_buffer() -> None:
    x = tg.input("x", (8,))
    y = tg.exp2(tg.sin(tg.sqrt(x)))
    program = program_of(tg.graph({"a": tg.sum(y)}))
    assert in_place(program) == ["sin.0", "exp2.0"] and len(arena_buffers(program)) == 1
    check(tg.graph({"a": tg.sum(y)}), {"x": np.abs(numbers(8))})


def test_inputs_and_parameters_are_never_written() -> None:
    x, w = tg.input("x", (8,)), tg.parameter("w", (8,))
    g = tg.graph({"a": tg.sin(x), "b": tg.exp2(w) + x})
    values = numbers(8), numbers(8)
    for backend in BACKENDS:
        compiled = check(g, {"x": values[0]}, {"w": values[1]}, backends=(backend, "numpy"))
        assert not in_place(compiled.plan.variants[0].program)
    np.testing.assert_array_equal(values[0], numbers(8))
    np.testing.assert_array_equal(values[1], numbers(8))


def test_a_value_that_is_read_later_is_not_overwritten() -> None:
    x = tg.input("x", (8,))
    a = tg.sqrt(x)
    b = tg.sin(a)
    g = tg.graph(b * a)
    assert "sin.0" not in in_place(program_of(g))
    check(g, {"x": np.abs(numbers(8))})


def test_a_value_read_later_through_a_view_is_not_overwritten() -> None:
    x = tg.input("x", (4, 4))
    a = tg.sqrt(x)
    g = tg.graph(tg.sin(a) * a.T)
    assert "sin.0" not in in_place(program_of(g))
    check(g, {"x": np.abs(numbers(4, 4))})


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_value_as_both_operands(backend: str) -> None:
    x = tg.input("x", (6, 6))
    a = tg.tanh(x)
    for y in (a + a, a * a, a + a.T, a * a[::-1], tg.maximum(a, a.T)):
        check(tg.graph(y), {"x": numbers(6, 6)}, backends=(backend, "numpy"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reversed_view_of_a_dying_value_is_not_written_over(backend: str) -> None:
    x = tg.input("x", (8,))
    a = tg.sqrt(x)
    check(tg.graph(tg.sin(a[::-1])), {"x": np.abs(numbers(8))}, backends=(backend, "numpy"))
    check(tg.graph(tg.sin(a[2:6])), {"x": np.abs(numbers(8))}, backends=(backend, "numpy"))


def test_an_update_of_a_state_that_nobody_reads_later_is_in_place() -> None:
    s, x = tg.state("s", (16, 4)), tg.input("x", (2, 4))
    written = s.write(x, at=3)
    g = tg.graph({"y": tg.sum(written)}, {s: written})
    for backend in ("numpy", "c"):
        program = program_of(g, (backend, "numpy"))
        assert in_place(program) == ["write_rows.0"] and kernel_counts(program) == {"write_rows": 1, "sum": 1}
        check(g, {"x": numbers(2, 4)}, states={"s": numbers(16, 4)}, backends=(backend, "numpy"))


def test_a_state_that_is_never_updated_keeps_its_value() -> None:
    s, x = tg.state("s", (16, 4)), tg.input("x", (2, 4))
    g = tg.graph({"y": s.write(x, at=3)})
    for backend in ("numpy", "c"):
        compiled = compiled_of(g, backends=(backend, "numpy"))
        session = compiled.session()
        session["s"] = numbers(16, 4)
        compiled.run({"x": numbers(2, 4)}, session=session)
        np.testing.assert_array_equal(session["s"], numbers(16, 4))


S, T = tg.state("s", (4, 3)), tg.state("t", (4, 3))
X = tg.input("x", (2, 3))
OLD, OTHER = S.read(), T.read()
WRITTEN = S.write(X, at=1)
HAZARDS: dict[str, tuple[dict[str, Node], dict[tg.State, Node]]] = {
    "two readers of a state": ({"a": tg.sin(OLD), "b": tg.sqrt(OLD * OLD)}, {S: WRITTEN}),
    "the old state is an output": ({"old": OLD, "new": WRITTEN}, {S: WRITTEN}),
    "a view of the old state is an output": ({"old": OLD[::-1].T}, {S: WRITTEN}),
    "the old state is read after the write": ({"a": WRITTEN * tg.sin(OLD)}, {S: WRITTEN}),
    "two states swap": ({"a": OLD + OTHER}, {S: OTHER, T: OLD}),
    "two states swap, one is written": ({"a": OLD}, {S: OTHER, T: WRITTEN}),
    "two states swap, both are written": ({}, {S: T.write(X, at=0), T: S.write(X, at=2)}),
    "a state becomes a function of another": ({}, {S: tg.sin(OTHER), T: tg.exp2(OLD)}),
    "a state becomes its own transposed view": ({"a": OLD}, {S: atomic.reshape(OLD.T, (4, 3))}),
    "a state becomes its own reverse": ({"a": OLD}, {S: OLD[::-1]}),
    "an output is an update too": ({"a": WRITTEN, "b": WRITTEN}, {S: WRITTEN}),
    "a computed output is an update too": ({"a": OLD + OTHER}, {S: OLD + OTHER, T: OLD + OTHER}),
    "two writers of one state": ({"a": S.write(X, at=0)}, {S: S.write(X, at=2)}),
    "a write on a write": ({"a": tg.write_at(WRITTEN, X, 2)}, {S: tg.write_at(WRITTEN, X, 2)}),
    "a write on a write, the first is an output": ({"a": WRITTEN}, {S: tg.write_at(WRITTEN, X, 2)}),
    "an intermediate write is read later": ({"a": tg.sum(tg.write_at(WRITTEN, X, 2) * WRITTEN)}, {S: tg.write_at(WRITTEN, X, 2)}),
    "a state written with its own rows": ({}, {S: S.write(OLD[2:], at=0)}),
    "a state written with its own rows, overlapping": ({}, {S: S.write(OLD[1:], at=0)}),
    "a state written with the other's rows": ({}, {S: S.write(OTHER[:2], at=1), T: T.write(OLD[:2], at=1)}),
    "an update unlike its write": ({"a": WRITTEN}, {S: tg.sin(WRITTEN)}),
    "an unchanged state": ({"a": OLD + 1.0}, {S: OLD, T: OTHER}),
    "a state becomes zero": ({"a": OLD}, {S: atomic.fill(0, (4, 3), tg.f32)}),
    "a state becomes an input": ({"a": OLD}, {S: tg.input("y", (4, 3))}),
    "an input is an output": ({"a": X, "b": X[::-1], "c": X}, {S: WRITTEN}),
    "one node under two names": ({"a": tg.sin(X), "b": tg.sin(X), "c": tg.sin(X)[1:]}, {}),
    "constants are outputs": ({"a": tg.constant(3.5), "b": tg.constant(np.arange(6.0).reshape(2, 3)),
                               "c": atomic.fill(2, (4,), tg.i32)}, {}),
    "a bound value is an output": ({"a": tg.sin(tg.constant(np.arange(4.0))), "b": tg.sin(tg.constant(np.arange(4.0))) + 1.0}, {}),
    "each state becomes a function of both": ({"a": OLD * 2.0}, {S: OLD + OTHER, T: OLD - OTHER * 0.5}),
    "two states swap, scaled": ({}, {S: OTHER * 2.0, T: OLD * 3.0}),
    "a state and an output of the same numbers": ({"a": OLD * 0.5 + 1.0}, {S: OLD * 0.5}),
    "a state is read turned": ({"a": tg.sum(OLD.T * 2.0)}, {S: OLD + OLD[::-1]}),
    "a state is reduced": ({}, {S: OLD * tg.sum(OLD), T: tg.softmax(OTHER) + OLD}),
    "an output is read by another": ({"a": tg.sin(X), "b": tg.sin(X) * 2.0, "c": tg.exp2(tg.sin(X))}, {}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", HAZARDS)
def test_whatever_is_written_over_was_read_before(name: str, backend: str) -> None:
    outputs, updates = HAZARDS[name]
    g = tg.graph(outputs, updates)
    inputs = {n: RNG.standard_normal(t.shape).astype(np.float32) for n, t in g.inputs.items()}
    states = {n: RNG.standard_normal(t.shape).astype(np.float32) for n, t in g.states.items()}
    check(g, inputs, states=states, backends=(backend, "numpy"))


@pytest.mark.parametrize("name", HAZARDS)
def test_whatever_a_part_writes_over_was_read_before(name: str) -> None:
    outputs, updates = HAZARDS[name]
    g = fuse(tg.graph(outputs, updates)).graph
    inputs = {n: RNG.standard_normal(t.shape).astype(np.float32) for n, t in g.inputs.items()}
    states = {n: RNG.standard_normal(t.shape).astype(np.float32) for n, t in g.states.items()}
    check(g, inputs, states=states, backends=("gen", "numpy"))


def test_a_step_of_an_optimizer_is_one_call_that_writes_over_its_states() -> None:
    p, m, v = (tg.state(name, (40, 5)) for name in "pmv")
    grad = tg.input("g", (40, 5))
    new_m, new_v = m.read() * 0.9 + grad * 0.1, v.read() * 0.999 + grad * grad * 0.001
    g = fuse(tg.graph({}, {p: p.read() - new_m * 0.001 / (tg.sqrt(new_v) + 1e-8), m: new_m, v: new_v})).graph
    program = program_of(g, ("gen", "numpy"))
    (step,) = program.instructions
    becomes = {program.buffers[program.home(o.buffer)].name for o in step.outs}
    assert becomes == {"p", "m", "v"} and not arena_buffers(program)
    check(g, {"g": numbers(40, 5)}, states={"p": numbers(40, 5), "m": numbers(5, 40).reshape(40, 5), "v": np.abs(numbers(40, 5))},
          backends=("gen", "numpy"))


@pytest.mark.parametrize("at", [{"n": 1, "p": 0}, {"n": 3, "p": 5}, {"n": 4, "p": 12}, {"n": 0, "p": 16}])
def test_rows_of_several_caches_are_written_by_one_call_over_what_is_there(at: dict[str, int]) -> None:
    n, p = tg.dim("n", 0, 16), tg.dim("p", 0, 16)
    k, v = tg.state("k", (16, 2, 4)), tg.state("v", (16, 2, 4))
    x, y, q = (tg.input(name, (n, 2, 4)) for name in "xyq")
    keys, values = k.write(tg.rms_norm(x, tg.input("g", (4,))), at=p), v.write(y, at=p)
    seen = tg.attention(tg.rms_norm(q), keys[:p + n], values[:p + n], scale=0.5, causal=True, start=p)
    written = tg.graph({"seen": seen, "old": tg.sum(k.read() * 2.0)}, {k: keys, v: values})
    g = fuse(written).graph
    program = program_of(g, ("gen", "numpy"))
    assert "before_update" not in kernel_counts(program) and "store" not in kernel_counts(program)
    written_to = [{program.buffers[program.home(o.buffer)].name for o in i.outs} for i in program.instructions]
    assert sum(bool(names & {"k", "v"}) for names in written_to) == 1
    inputs = {name: numbers(at["n"], 2, 4) * (i + 1) for i, name in enumerate("xyq")} | {"g": numbers(4)}
    states = {"k": numbers(16, 2, 4), "v": numbers(16, 8).reshape(16, 2, 4)}
    if at["n"] + at["p"]:
        check(g, inputs, states=states, dims={"p": at["p"]}, backends=("gen", "numpy"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_state_moved_down_are_read_before_they_are_written(backend: str) -> None:
    """A copy that runs from the front would repeat the first row; in place is not for a value that is both operands."""
    s = tg.state("s", (5000, 16))
    g = tg.graph({}, {s: s.write(s.read()[:-1], at=1)})
    assert "write_rows.0" not in in_place(program_of(g, (backend, "numpy")))
    check(g, states={"s": numbers(5000, 16)}, backends=(backend, "numpy"))


def test_a_state_that_is_only_written() -> None:
    s = tg.state("s", (2, 3))
    g = tg.graph({"y": tg.sin(X)}, {s: tg.sin(X) + 1.0})
    check(g, {"x": numbers(2, 3)})


def test_a_copy_to_another_device_is_refused() -> None:
    with pytest.raises(PlanError, match=r"copy_to\('cuda:0'\) at .*no device is named 'cuda:0'; this machine has 'cpu'"):
        program_of(tg.graph(tg.sin(tg.copy_to(X, "cuda:0"))))
    check(tg.graph(tg.sin(tg.copy_to(X, "cpu"))), {"x": numbers(2, 3)})


def test_copies_of_more_axes_than_the_native_copy_takes() -> None:
    x = tg.input("x", (2,) * 9)
    y = atomic.permute(x, tuple(reversed(range(9))))
    check(tg.graph({"a": tg.tanh(y), "b": y}), {"x": numbers(*(2,) * 9)}, backends=("c", "numpy"))


# ---- bind time -------------------------------------------------------------------------------------------------------


def test_what_depends_on_parameters_alone_runs_at_bind_time() -> None:
    x, w = tg.input("x", (3, 4)), tg.parameter("w", (4, 4))
    folded = tg.tanh(w.T * 2.0)
    g = tg.graph({"y": tg.dot(x, folded), "w": tg.sum(folded)})
    for backend in BACKENDS:
        program = program_of(g, (backend, "numpy"))
        assert [i.op for i in program.instructions if i.op not in ("contiguous", "store")] == ["dot"]
        check(g, {"x": numbers(3, 4)}, {"w": numbers(4, 4)}, backends=(backend, "numpy"))


# ---- length ----------------------------------------------------------------------------------------------------------


def test_a_gemma_step_is_one_kernel_per_op_and_no_copies() -> None:
    counts = kernel_counts(program_of(gemma3_graph(GEMMA, max_positions=64), ("c", "numpy")))
    layers = len(GEMMA.layers)
    assert counts == {"iota": 1, "add": 1 + 2 * layers, "rope_table": 2, "embedding": 1, "rms_norm": 6 * layers + 1,
                      "linear": 7 * layers + 1, "rope": 2 * layers, "write_rows": 2 * layers, "attention": layers,
                      "gated": layers}


def test_a_gemma_step_writes_its_caches_in_place_and_few_buffers() -> None:
    program = program_of(gemma3_graph(GEMMA, max_positions=64), ("c", "numpy"))
    written = [i for i in program.instructions if i.op == "write_rows"]
    assert all(program.buffers[program.home(i.outs[0].buffer)].kind == "state" for i in written)


def test_a_minilm_pass_is_one_kernel_per_op() -> None:
    counts = kernel_counts(program_of(bert_graph(MINILM), ("c", "gen", "numpy")))
    layers = MINILM.layers
    moved = {op: counts.pop(op, 0) for op in ("contiguous", "store", "before_update", "stage")}
    assert not any(moved.values())      # the row of sentence types is spread over the tokens, the length that divides is one number
    assert counts["linear"] == 6 * layers and counts["attention"] == layers and counts["layer_norm"] == 2 * layers + 1
    assert counts["gelu"] == layers and counts["embedding"] == 1 and counts["add"] == 2 * layers + 2
    assert sum(counts.values()) <= 12 * layers + 12


N = tg.dim("n", 1, 40)
BOTH = tg.linear(tg.input("x", (N, 8)), tg.parameter("w", (48, 8)))
LEFT, RIGHT = BOTH[:, :24], BOTH[:, 24:]
READERS: dict[str, tuple[Node, int]] = {
    "gate": (tg.gated(LEFT, RIGHT), 0), "norm of heads": (tg.rms_norm(tg.reshape(RIGHT, (N, 3, 8))), 0),
    "sum": (LEFT + RIGHT, 0), "row for all": (LEFT + tg.parameter("row", (24,)), 0),
    "column for all": (LEFT * tg.input("column", (N, 1)), 0), "softmax": (tg.softmax(RIGHT), 0), "exponential": (tg.exp(LEFT), 0),
    "turned product": (tg.dot(LEFT, tg.permute(RIGHT, (1, 0))), 0),
    "a product that wants rows without gaps": (tg.linear(LEFT, tg.parameter("v", (5, 24))), 1),
    "elements that lie apart": (tg.softmax(tg.permute(LEFT, (1, 0))), 1)}


@pytest.mark.parametrize("name", READERS)
def test_what_is_cut_out_of_a_joined_product_is_read_where_it_lies(name: str) -> None:
    node, copies = READERS[name]
    g = tg.graph(node)
    rng = np.random.default_rng(0)
    for n in (1, 2, 40):
        inputs = {name: rng.standard_normal([n if s is N else s for s in leaf.shape]).astype(np.float32)
                 for name, leaf in g.inputs.items()}
        compiled = check(g, inputs, {name: rng.standard_normal(p.shape).astype(np.float32) for name, p in g.parameters.items()},
                         backends=("c", "numpy"))
        assert kernel_counts(compiled.plan.variants[0].program).get("contiguous", 0) == copies


def test_one_row_has_no_gaps() -> None:
    both = tg.linear(tg.input("x", (1, 8)), tg.parameter("w", (48, 8)))
    assert "contiguous" not in kernel_counts(program_of(tg.graph(tg.linear(both[:, 24:], tg.parameter("v", (5, 24)))), ("c",)))


# ---- waits -----------------------------------------------------------------------------------------------------------


def apart(program: Program) -> Plan:
    """A plan in which no two buffers share bytes, so that only `waits` forbid an order."""
    plan = plan_of(program.graph, program=program)
    end = len(program.instructions)
    intervals = [Interval(0, end, program.buffers[i].nbytes) for i in arena_buffers(program)]
    return replace(plan, variants=(replace(plan.variants[0], layout=place(intervals, plan.largest)),))


def shuffled(program: Program, rng: np.random.Generator) -> Program:
    """The same instructions in another order that respects every instruction's waits."""
    left = {t: set(ins.waits) for t, ins in enumerate(program.instructions)}
    users: dict[int, list[int]] = {t: [] for t in left}
    for t, waits in left.items():
        assert all(w < t for w in waits)
        for w in waits:
            users[w].append(t)
    ready = [(rng.random(), t) for t, waits in left.items() if not waits]
    heapq.heapify(ready)
    order = []
    while ready:
        _, t = heapq.heappop(ready)
        order.append(program.instructions[t])
        for u in users[t]:
            left[u].discard(t)
            if not left[u]:
                heapq.heappush(ready, (rng.random(), u))
    assert len(order) == len(program.instructions)
    return replace(program, instructions=order)


def wide_graph(seed: int) -> Graph:
    """Branches that read and write two states and share values, so that most orders are wrong."""
    rng = np.random.default_rng(seed)
    s, t = tg.state("s", (6, 3)), tg.state("t", (6, 3))
    pool: list[Node] = [s.read(), t.read(), tg.input("y", (6, 3))]
    rows = tg.input("x", (2, 3))
    ops: list[Callable[[Node, Node], Node]] = [
        lambda a, b: a + b, lambda a, b: tg.sin(a), lambda a, b: tg.write_at(a, rows, int(rng.integers(0, 4))),
        lambda a, b: tg.maximum(a, b), lambda a, b: tg.write_at(a, b[1:3], int(rng.integers(0, 4))), lambda a, b: tg.softmax(a)]
    for _ in range(int(rng.integers(6, 16))):
        a, b = (pool[int(rng.integers(max(0, len(pool) - 5), len(pool)))] for _ in range(2))
        pool.append(ops[int(rng.integers(len(ops)))](a, b))
    pick: Callable[[], Node] = lambda: pool[int(rng.integers(len(pool)))]  # noqa: E731
    return tg.graph({"a": pick(), "b": pool[-1], "c": pick()}, {s: pick(), t: pool[-2]})


def run_states(g: Graph, plan: Plan, inputs: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray]) -> tuple[float, str]:
    compiled = bind(plan)
    session = compiled.session()
    for name in g.states:
        session[name] = states[name]
    results = compiled.run(inputs, session=session)
    return worst_error(g, results, session.snapshot(), interpret(g, inputs, {}, states))


@pytest.mark.parametrize("seed", range(30))
def test_any_order_that_respects_the_waits_gives_the_same_result(seed: int) -> None:
    g = wide_graph(seed)
    values = {"x": numbers(2, 3), "y": numbers(6, 3)}
    inputs = {n: values[n] for n in g.inputs}
    states = {"s": numbers(6, 3) + 1, "t": numbers(6, 3) - 1}
    for backends in (("numpy",), ("c", "numpy")):
        program = program_of(g, backends)
        ratio, where = run_states(g, plan_of(g, program=program), inputs, states)
        assert ratio <= 1, where
        for k in range(3):
            ratio, where = run_states(g, apart(shuffled(program, np.random.default_rng(k))), inputs, states)
            assert ratio <= 1, where


def test_an_order_that_ignores_the_waits_is_seen() -> None:
    wrong = 0
    for seed in range(10):
        g = wide_graph(seed)
        program = program_of(g)
        careless = replace(program, instructions=[replace(i, waits=()) for i in program.instructions])
        values = {"x": numbers(2, 3), "y": numbers(6, 3)}
        states = {"s": numbers(6, 3) + 1, "t": numbers(6, 3) - 1}
        plan = apart(shuffled(careless, np.random.default_rng(seed)))
        wrong += not run_states(g, plan, {n: values[n] for n in g.inputs}, states)[0] <= 1
    assert wrong >= 5


def test_linear_reads_a_bound_view_of_its_weight_once() -> None:
    """A weight that must be turned is turned at bind time, not at every run."""
    x, w = tg.input("x", (3, 4)), tg.parameter("w", (4, 5))
    program = program_of(tg.graph(linear(x, w.T)), ("c", "numpy"))
    assert kernel_counts(program) == {"linear": 1} and [i.op for i in program.bind_instructions] == ["contiguous"]
    check(tg.graph(linear(x, w.T)), {"x": numbers(3, 4)}, {"w": numbers(4, 5)}, backends=("c", "numpy"))


# ---- what kernels prepare --------------------------------------------------------------------------------------------


def heads(*kinds: str) -> tg.Graph:
    """The likeliest of two inputs under one weight, which is a parameter or an input."""
    w = tg.parameter("w", (6, 4)) if kinds[0] == "parameter" else tg.input("w", (6, 4))
    return tg.graph([tg.linear_argmax(tg.input(name, (2, 4)), w)[1] for name in ("x", "z")])


def test_what_is_prepared_from_a_parameter_is_made_at_bind_time_once_for_all_its_readers() -> None:
    program = program_of(heads("parameter"), ("c",))
    assert [i.label for i in program.bind_instructions] == ["prepare_linear_argmax.0"]
    assert [i.op for i in program.instructions] == ["linear_argmax"] * 2
    prepared = program.bind_instructions[0].outs
    assert all(i.ins[2:] == prepared for i in program.instructions)
    assert {program.buffers[o.buffer].kind for o in prepared} == {"bound"}


def test_what_is_prepared_from_an_input_is_made_in_every_run() -> None:
    g = heads("input")
    program = program_of(g, ("c",))
    assert not program.bind_instructions
    assert [i.label for i in program.instructions] == ["prepare_linear_argmax.0", "linear_argmax.0", "linear_argmax.1"]
    x, z = (np.random.default_rng(i).standard_normal((2, 4)).astype(np.float32) for i in (0, 1))
    compiled = compiled_of(g, backends=("c",))
    for seed in (2, 3):
        w = np.random.default_rng(seed).standard_normal((6, 4)).astype(np.float32)
        outputs = compiled.run({"x": x, "z": z, "w": w})
        assert [v.tolist() for v in outputs.values()] == [(a @ w.T).argmax(1).tolist() for a in (x, z)]
