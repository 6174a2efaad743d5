"""runtime/compiled_graph.py: a run gives what the oracle gives, whoever holds which memory; and one can look inside."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.devices.free_memory import OutOfMemory
from tensor_graphs.kernels.kernel import HostCall
from tensor_graphs.language import atomic
from tensor_graphs.language.text import parse_graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.plan import Plan, PlanError
from tensor_graphs.paths.size_cells import Cell
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.runtime.errors import RunError
from tests.plans import compiled_of, paths_of, plan_of, poison, program_of

BACKENDS = [("numpy",), ("torch", "numpy"), ("c", "numpy")]
N = tg.dim("n", 0, 64)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def block() -> tg.Graph:
    """A feed-forward block on n rows: several kernels, in-place writes, a reduction."""
    x = tg.input("x", (N, 8))
    w, v = tg.parameter("w", (12, 8)), tg.parameter("v", (8, 12))
    h = tg.linear(tg.rms_norm(x), w)
    return tg.graph({"y": x + tg.linear(tg.gelu(h, approximate="tanh"), v), "total": tg.sum(h, 0)})


WEIGHTS = {"w": numbers(12, 8, seed=1), "v": numbers(8, 12, seed=2)}


def counter() -> tg.Graph:
    """A state that adds up its inputs."""
    s, x = tg.state("s", (3,)), tg.input("x", (3,))
    return tg.graph({"y": s.read() + x}, {s: s.read() + x})


def said(act: Callable[[], object], error: type[Exception] = RunError) -> str:
    with pytest.raises(error) as caught:
        act()
    assert type(caught.value) is error
    return str(caught.value)


# ---- sizes that do not fit each other ------------------------------------------------------------------------------


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
@pytest.mark.parametrize(("row", "rows", "wanted"), [(-1, 0, "n ≥ 1"), (0, 0, "n ≥ 1"), (5, 2, "n ≥ 6")])
def test_an_index_outside_of_the_rows_of_this_run_is_refused_not_read(backends: tuple[str, ...], row: int, rows: int,
                                                                      wanted: str) -> None:
    x = tg.input("x", (N, 3))
    for made in (x[row] * 2.0, x[row]):
        compiled = compiled_of(tg.graph(made), {}, backends)
        message = said(lambda c=compiled: c.run({"x": numbers(rows, 3)}))  # type: ignore[misc]
        assert message.startswith("slice of f32[n, 3] at test_compiled_graph.py:")
        assert f"leaves the axis of size n; here n = {rows}" in message and f"fix: sizes with {wanted}" in message
        given = numbers(6, 3)
        np.testing.assert_allclose(compiled.run({"x": given})["out"], given[row] * (2.0 if made.op.name == "mul" else 1.0))
        said(lambda c=compiled: c.run({"x": numbers(rows, 3)}))            # type: ignore[misc]  # also behind a run that was right


def test_a_cache_that_would_overflow_is_refused_and_keeps_its_rows() -> None:
    g = parse_graph(Path("examples/cached_attention.tg").read_text(encoding="utf-8"), "cached_attention.tg")
    compiled = compiled_of(g, {}, ("numpy",))
    session = compiled.session()

    def step(n: int, p: int) -> np.ndarray:
        one = np.ones((n, 1, 64), np.float32)
        return compiled.run({"q": numbers(n, 4, 64), "new_k": one, "new_v": one * p}, dims={"p": p}, session=session)["y"]

    assert step(6, 250).shape == (6, 4, 64)
    before = session.snapshot()
    for n, p in ((256, 255), (7, 250)):
        message = said(lambda n=n, p=p: step(n, p))                        # type: ignore[misc]
        assert "write_rows at cached_attention.tg:10: the state 'k' has 256 rows along axis 0, n are written from p on" in message
        assert f"here n = {n}, p = {p}" in message and "fix: sizes with n + p ≤ 256, or more rows" in message
    assert all((session[name] == value).all() for name, value in before.items())


def test_what_is_no_dict_no_size_and_no_session_is_told_what_it_should_be() -> None:
    x = tg.input("x", (N, 3))
    compiled, given = compiled_of(tg.graph(x * 2.0), {}, ("numpy",)), numbers(2, 3)
    assert said(lambda: compiled.run(given)) == (  # type: ignore[arg-type]
        "inputs are given by name, this is a ndarray\n  fix: run({'x': …})")
    for wrong in ("a", 2.5, True, None):
        assert said(lambda w=wrong: compiled.run({"x": given}, dims={"n": w})) == (  # type: ignore[misc, dict-item]
            f"dim n is given as {wrong!r}\n  fix: a whole number from 0 to 64")
    assert said(lambda: compiled.run({"x": given}, dims=3)) == (  # type: ignore[arg-type]
        "dims are given by name, this is a int\n  fix: dims={'n': …}")
    for wrong in (5, {"s": given}):
        assert said(lambda w=wrong: compiled.run({"x": given}, session=w)).endswith(  # type: ignore[misc, arg-type]
            "\n  fix: session=compiled.session()")
    assert compiled.run({"x": given}, dims={"n": np.int64(2)})["out"].shape == (2, 3)


# ---- right results -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_results_do_not_depend_on_what_the_arena_held_before(backends: tuple[str, ...]) -> None:
    g = block()
    compiled = compiled_of(g, WEIGHTS, backends)
    for n in (5, 1, 64, 5, 0, 2):
        x = numbers(n, 8, seed=n)
        expected = interpret(g, {"x": x}, WEIGHTS).outputs
        for byte in (0xFF, 0x00, 0x7F):
            poison(compiled, byte)
            out = compiled.run({"x": x})
            np.testing.assert_allclose(out["y"], expected["y"], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(out["total"], expected["total"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_zero_sizes_run(backends: tuple[str, ...]) -> None:
    x = tg.input("x", (N, 4))
    g = tg.graph({"sum": tg.sum(x, 0), "max": tg.max(x, 0), "same": tg.sin(x), "soft": tg.softmax(x),
                  "both": tg.concat(x, x, axis=0)})
    out = compiled_of(g, backends=backends).run({"x": np.zeros((0, 4), np.float32)})
    np.testing.assert_array_equal(out["sum"], np.zeros(4))
    np.testing.assert_array_equal(out["max"], np.full(4, -np.inf))
    assert out["same"].shape == (0, 4) and out["soft"].shape == (0, 4) and out["both"].shape == (0, 4)


def test_one_compiled_graph_serves_four_threads() -> None:
    for backends in BACKENDS:
        compiled = compiled_of(block(), WEIGHTS, backends)
        wrong: list[str] = []

        def work(seed: int, compiled: CompiledGraph = compiled, wrong: list[str] = wrong) -> None:
            for k in range(15):
                x = numbers(1 + (seed * 7 + k) % 9, 8, seed=100 * seed + k)
                expected = interpret(compiled.graph, {"x": x}, WEIGHTS).outputs["y"]
                if not np.allclose(compiled.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5):
                    wrong.append(f"thread {seed}, run {k}")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong


@pytest.mark.parametrize("backends", [("numpy",), ("c", "numpy")], ids="+".join)
def test_a_child_process_runs_after_a_fork(backends: tuple[str, ...]) -> None:
    compiled = compiled_of(block(), WEIGHTS, backends)
    x = numbers(64, 8)
    before = compiled.run({"x": x})["y"]
    child = os.fork()
    if child == 0:                                      # pragma: no cover: another process
        same = np.array_equal(compiled.run({"x": x})["y"], before)
        os._exit(0 if same else 1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            assert os.waitstatus_to_exitcode(status) == 0
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], before)


# ---- outputs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_given_arrays_receive_the_outputs(backends: tuple[str, ...]) -> None:
    compiled = compiled_of(block(), WEIGHTS, backends)
    x, y = numbers(5, 8), np.full((5, 8), np.nan, np.float32)
    expected = compiled.run({"x": x})
    out = compiled.run({"x": x}, out={"y": y})
    assert out["y"] is y
    np.testing.assert_array_equal(y, expected["y"])
    np.testing.assert_array_equal(out["total"], expected["total"])


def test_runs_in_one_native_call_keep_no_array_alive_that_they_were_given() -> None:
    compiled = compiled_of(tg.graph({"y": tg.softmax(tg.input("x", (N, 8)))}), {}, ("c",))
    for _ in range(2):                                              # checked anew, then as before
        x = numbers(5, 8)
        y = compiled.run({"x": x})["y"]
        gone = weakref.ref(x), weakref.ref(y)
        del x, y
        assert [each() for each in gone] == [None, None]


def test_given_arrays_are_not_looked_at_one_by_one_when_a_shape_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tg.input("x", (N, 8))
    graph = tg.graph({"y": tg.softmax(tg.linear(given, tg.parameter("w", (8, 8)))), "z": tg.rms_norm(given)})
    compiled, x, memory = compiled_of(graph, {"w": numbers(8, 8)}, ("c",)), numbers(5, 8), np.zeros((12, 8), np.float32)
    expected = compiled.run({"x": x})["y"]
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_run", lambda *given: pytest.fail("checked anew"))
        assert compiled.run({"x": x}, out={"y": memory[:5]})["y"].base is memory
    np.testing.assert_array_equal(memory[:5], expected)
    memory[2:7] = x
    np.testing.assert_array_equal(compiled.run({"x": memory[2:7]}, out={"y": memory[:5]})["y"], expected)
    held = numbers(8, 8)
    compiled.rebind("w", held)
    for out, why in (({"y": held[3:]}, "the parameter 'w'"), ({"y": memory[:5], "z": memory[4:9]}, "share memory"),
                     ({"y": memory[:4]}, "must be f32"), ({"Y": memory[:5]}, "no output 'Y'")):
        assert why in said(lambda out=out: compiled.run({"x": x}, out=out))


def test_given_torch_tensors_receive_the_outputs_bf16_too() -> None:
    x = tg.input("x", (3,))
    compiled = compiled_of(tg.graph({"a": x * 2.0, "b": (x * 2.0).cast(tg.bf16)}))
    a, b = torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16)
    compiled.run({"x": [1.0, 2.0, 3.5]}, out={"a": a, "b": b})
    assert a.tolist() == [2, 4, 7] and b.tolist() == [2, 4, 7]


def test_outputs_are_new_arrays_unless_they_may_be_reused() -> None:
    g = block()
    fresh, reused = compiled_of(g, WEIGHTS), compiled_of(g, WEIGHTS, reuse_outputs=True)
    first, second = (fresh.run({"x": numbers(5, 8, seed=s)})["y"] for s in (1, 2))
    assert not np.shares_memory(first, second)
    again = [reused.run({"x": numbers(5, 8, seed=s)})["y"] for s in (1, 2)]
    assert again[0] is again[1]
    np.testing.assert_array_equal(again[0], second)
    other = reused.run({"x": numbers(4, 8)})["y"]
    assert other.shape == (4, 8) and not np.shares_memory(other, again[0])
    given = np.empty((5, 8), np.float32)
    assert reused.run({"x": numbers(5, 8)}, out={"y": given})["y"] is given


def test_torch_reads_results_without_a_copy() -> None:
    out = compiled_of(block(), WEIGHTS).run({"x": numbers(5, 8)})
    assert torch.from_dlpack(out["y"]).data_ptr() == out["y"].ctypes.data


TWICE = tg.input("x", (6,))
READS_AFTER_IT_WROTE = tg.graph({"a": tg.sin(TWICE), "b": tg.exp2(TWICE), "c": TWICE[::-1]})


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_an_input_that_is_an_output_is_read_before_it_is_written(backends: tuple[str, ...]) -> None:
    x = numbers(6)
    expected = interpret(READS_AFTER_IT_WROTE, {"x": x}).outputs
    compiled = compiled_of(READS_AFTER_IT_WROTE, backends=backends)
    for name in ("a", "b", "c"):
        memory = x.copy()
        out = compiled.run({"x": memory}, out={name: memory})
        for n, e in expected.items():
            np.testing.assert_allclose(out[n], e, rtol=1e-6)
    reused = compiled_of(READS_AFTER_IT_WROTE, backends=backends, reuse_outputs=True)
    a = reused.run({"x": x})["a"]
    expected = interpret(READS_AFTER_IT_WROTE, {"x": a.copy()}).outputs
    out = reused.run({"x": a})
    for n, e in expected.items():
        np.testing.assert_allclose(out[n], e, rtol=1e-6)


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_an_input_that_is_a_state_is_read_before_it_is_written(backends: tuple[str, ...]) -> None:
    s, x = tg.state("s", (4, 2)), tg.input("x", (4, 2))
    written = s.write(tg.constant(np.ones((2, 2))), at=1)
    g = tg.graph({"a": tg.sum(written) * x}, {s: written})
    compiled = compiled_of(g, backends=backends)
    session = compiled.session()
    session["s"] = numbers(4, 2)
    expected = interpret(g, {"x": numbers(4, 2)}, {}, {"s": numbers(4, 2)}).outputs["a"]
    np.testing.assert_allclose(compiled.run({"x": session["s"]}, session=session)["a"], expected, rtol=1e-5)


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_inputs_must_be_the_graphs() -> None:
    compiled = compiled_of(block(), WEIGHTS)
    assert said(lambda: compiled.run()) == "the graph takes the inputs x: f32[n, 8]; missing: x\n  fix: run({'x': …})"
    assert said(lambda: compiled.run({"x": numbers(2, 8), "z": 1})) == (
        "the graph takes the inputs x: f32[n, 8]; unknown: z\n  fix: run({'x': …})")
    none = compiled_of(tg.graph(tg.constant(1.0)))
    assert said(lambda: none.run({"a": 1})) == "the graph takes the inputs none; unknown: a\n  fix: run({})"


def test_outputs_given_must_fit() -> None:
    compiled = compiled_of(block(), WEIGHTS)
    x = numbers(2, 8)
    assert said(lambda: compiled.run({"x": x}, out={"z": x})) == "the graph has no output 'z'; it has y, total"
    assert said(lambda: compiled.run({"x": x}, out={"Total": x})).endswith("\n  fix: did you mean total?")
    for wrong, what in ((np.empty((3, 8), np.float32), "float32[3, 8]"), (np.empty((2, 8)), "float64[2, 8]"), ([1.0], "a list"),
                        (torch.zeros(2, 8, dtype=torch.float64), "float64[2, 8]")):
        assert said(lambda wrong=wrong: compiled.run({"x": x}, out={"y": wrong})) == (
            f"out['y'] must be f32[2, 8], and is {what}\n  fix: np.empty((2, 8), 'float32')")
    locked = np.empty((2, 8), np.float32)
    locked.flags.writeable = False
    for wrong in (locked, np.empty((8, 2), np.float32).T):
        assert said(lambda wrong=wrong: compiled.run({"x": x}, out={"y": wrong})) == (
            "out['y'] must be writeable and C-contiguous, its elements aligned\n  fix: np.empty((2, 8), 'float32')")


def test_outputs_given_may_not_overlap() -> None:
    x = tg.input("x", (4,))
    s = tg.state("s", (4,))
    compiled = compiled_of(tg.graph({"a": tg.sin(x), "b": tg.exp2(x)}, {s: x + s.read()}))
    memory, session = np.zeros(6, np.float32), compiled.session()
    for begin in (compiled.run, compiled.prepared):
        assert said(lambda begin=begin: begin({"x": numbers(4)}, session=session, out={"a": memory[:4], "b": memory[2:]})) == (
            "out['b'] and out['a'] share memory\n  fix: an array for each")
        assert said(lambda begin=begin: begin({"x": numbers(4)}, session=session, out={"a": session.arrays["s"]})) == (
            "out['a'] shares memory with a state of the session\n  fix: an array of its own")
    assert not session["s"].any()


def test_parameters_must_be_the_graphs() -> None:
    plan = plan_of(block())
    assert said(lambda: bind(plan, {"w": WEIGHTS["w"]})) == (
        "parameter 'v' (f32[8, 12]) is not given\n  fix: tg.bind(plan, {'v': …}), with all of: v, w")
    assert said(lambda: bind(plan, {**WEIGHTS, "z": 1, "y": 2})) == (
        "the graph has no parameter named y, z\n  fix: its parameters are v, w")
    assert said(lambda: bind(plan, {**WEIGHTS, "v": numbers(12, 8)})) == (
        "parameter 'v' is f32[8, 12], the array has shape (12, 8)\n  fix: array.T")
    assert said(lambda: bind(plan, {**WEIGHTS, "v": numbers(12, 9)})) == (
        "parameter 'v' is f32[8, 12], the array has shape (12, 9)\n"
        "  fix: an array of shape (8, 12), or tg.parameter('v', (12, 9), …)")
    assert said(lambda: bind(plan, [1])) == (                       # type: ignore[arg-type]
        "parameters are given by name, this is a list\n  fix: tg.bind(plan, {'w': …, 'v': …})")
    assert said(lambda: bind(plan, {**WEIGHTS, "v": numbers(8, 12).astype(np.float64)})) == (
        "parameter 'v' is f32[8, 12], the array holds float64\n  fix: array.astype('float32')")
    compiled = bind(plan, WEIGHTS)
    assert said(lambda: compiled.rebind("z", 1)) == (
        "the graph has no parameter named z\n  fix: its parameters are v, w")
    assert said(lambda: compiled.rebind("v", numbers(3))) == (
        "parameter 'v' is f32[8, 12], the array has shape (3,): 1 axes instead of 2\n"
        "  fix: array.reshape(…) to those axes; array[None] puts one of size 1 in front")


def test_a_mapping_that_loads_on_access_may_hold_more() -> None:
    lazy = MappingProxyType({**WEIGHTS, "another": numbers(1)})
    np.testing.assert_array_equal(bind(plan_of(block()), lazy).run({"x": numbers(2, 8)})["y"],
                                  compiled_of(block(), WEIGHTS).run({"x": numbers(2, 8)})["y"])


def test_a_graph_with_states_asks_for_a_session() -> None:
    compiled = compiled_of(counter())
    doors: list[Callable[[dict[str, Any]], object]] = [compiled.run, compiled.trace, compiled.profile]
    for door in doors:
        found = said(partial(door, {"x": numbers(3)}))
        assert found.startswith("the graph has states, and no session holds them") and "compiled.session()" in found


def test_a_session_of_another_graph_is_refused() -> None:
    s, x = tg.state("s", (2,)), tg.input("x", (2,))
    other = compiled_of(tg.graph({"y": x}, {s: s.read() + x})).session()
    compiled = compiled_of(counter())
    assert said(lambda: compiled.run({"x": numbers(3)}, session=other)) == (
        "the session has no state 's' of f32[3]; make one with compiled.session()")
    stateless = compiled_of(block(), WEIGHTS).session()
    assert "the session has no state 's'" in said(lambda: compiled.run({"x": numbers(3)}, session=stateless))


def test_a_session_with_more_states_may_be_shared() -> None:
    s, t, x = tg.state("s", (3,)), tg.state("t", (3,)), tg.input("x", (3,))
    session = compiled_of(tg.graph({}, {s: s.read() + x, t: t.read() + x})).session()
    compiled_of(counter()).run({"x": [1.0, 2.0, 3.0]}, session=session)
    assert session["s"].tolist() == [1, 2, 3] and session["t"].tolist() == [0, 0, 0]


def test_too_little_memory_is_refused_before_anything_runs() -> None:
    compiled = compiled_of(block(), WEIGHTS, capacity=3000)
    compiled.run({"x": numbers(2, 8)})
    assert "device cpu may use 3.0 kB, the plan needs" in said(lambda: compiled.run({"x": numbers(40, 8)}), PlanError)


# ---- parameters ----------------------------------------------------------------------------------------------------


def test_rebinding_evaluates_what_depends_on_it_and_what_that_needs_and_nothing_else() -> None:
    """The two terms of the sum were freed, so both are made again; the reciprocal, which a run reads, is not."""
    x, a, b = tg.input("x", (3,)), tg.parameter("a", (3,)), tg.parameter("b", (3,))
    both = tg.sqrt(tg.exp2(a) + tg.floor(b))
    g = tg.graph({"y": x * both, "z": x + tg.reciprocal(tg.constant([1.0, 2.0, 4.0]))})
    compiled = compiled_of(g, {"a": [0.0, 1.0, 2.0], "b": [3.0, 4.0, 5.0]})
    asked: list[str] = []
    for step in (step for segment in compiled.executors[0].bind_segments for step in segment.steps):
        run = step.call.run
        step.call = HostCall(lambda outs, ins, attrs, run=run: (asked.append(run.__name__), run(outs, ins, attrs))[1])
    compiled.rebind("a", [2.0, 2.0, 2.0])
    assert asked == ["exp2", "floor", "add", "sqrt"]
    asked.clear()
    compiled.rebind("b", [5.0, 12.0, 0.0])
    assert asked == ["exp2", "floor", "add", "sqrt"]
    out = compiled.run({"x": [1.0, 1.0, 1.0]})
    np.testing.assert_allclose(out["y"], np.sqrt([9, 16, 4]))
    np.testing.assert_allclose(out["z"], [2, 1.5, 1.25])


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_a_rebound_parameter_counts_from_the_next_run_on(backends: tuple[str, ...]) -> None:
    g = block()
    compiled = compiled_of(g, WEIGHTS, backends)
    x = numbers(5, 8)
    compiled.run({"x": x})
    for seed in (7, 8):
        weights = {**WEIGHTS, "w": numbers(12, 8, seed=seed)}
        compiled.rebind("w", weights["w"])
        np.testing.assert_allclose(compiled.run({"x": x})["y"], interpret(g, {"x": x}, weights).outputs["y"], rtol=1e-4, atol=1e-5)


def test_rows_written_into_a_parameter_at_bind_time_follow_both() -> None:
    x, a, b = tg.input("x", (4,)), tg.parameter("a", (4,)), tg.parameter("b", (2,))
    g = tg.graph(x + tg.write_rows(a, b, start=1))
    for backends in BACKENDS:
        compiled = compiled_of(g, {"a": [0.0, 1.0, 2.0, 3.0], "b": [8.0, 9.0]}, backends)
        assert compiled.run({"x": [0.0] * 4})["out"].tolist() == [0, 8, 9, 3]
        compiled.rebind("b", [5.0, 6.0])
        assert compiled.run({"x": [0.0] * 4})["out"].tolist() == [0, 5, 6, 3]
        compiled.rebind("a", [7.0, 7.0, 7.0, 7.0])
        assert compiled.run({"x": [0.0] * 4})["out"].tolist() == [7, 5, 6, 7]


# ---- looking inside ------------------------------------------------------------------------------------------------


def chain() -> tuple[tg.Graph, tg.Node, tg.Node]:
    x = tg.input("x", (4, 2))
    a = tg.sqrt(x)
    b = tg.sin(a)
    return tg.graph({"y": tg.sum(b, 0), "z": a.T[::-1]}), a, b


def test_values_are_tapped_by_name_and_by_node() -> None:
    g, a, b = chain()
    x = np.abs(numbers(4, 2))
    compiled = compiled_of(g)
    found = compiled.tap(["sqrt.0", a, b, a.T[::-1], "sum.0"], {"x": x})
    np.testing.assert_allclose(found["sqrt.0"], np.sqrt(x))
    np.testing.assert_allclose(found[a], np.sqrt(x))
    np.testing.assert_allclose(found[b], np.sin(np.sqrt(x)), rtol=1e-6)
    np.testing.assert_allclose(found[a.T[::-1]], np.sqrt(x).T[::-1])
    np.testing.assert_allclose(found["sum.0"], np.sin(np.sqrt(x)).sum(0), rtol=1e-6)
    assert list(compiled.tap("sin.0", {"x": x})) == ["sin.0"]


def test_a_node_is_tapped_behind_an_expanded_composite() -> None:
    x = tg.input("x", (4,))
    s = tg.sigmoid(x)
    y = tg.sin(s)
    g = tg.graph(y * 2.0)
    path = paths_of(g, ("numpy",), atomics=True).cheapest()
    compiled = bind(plan_of(g, path=path, program=program_of(g, path=path, atomics=True)))
    found = compiled.tap([y, s], {"x": numbers(4)})
    np.testing.assert_allclose(found[s], 1 / (1 + np.exp(-numbers(4))), rtol=1e-5)
    np.testing.assert_allclose(found[y], np.sin(found[s]), rtol=1e-6)


def test_the_second_output_of_an_instruction_is_tapped() -> None:
    cos, sin = tg.rope_table(tg.input("p", (3,), tg.i32), head_dim=4, theta=10.0)
    compiled = compiled_of(tg.graph({"a": tg.sum(cos), "b": tg.sum(sin)}))
    found = compiled.tap(["rope_table.0", "rope_table.0/1"], {"p": [0, 1, 2]})
    np.testing.assert_allclose(found["rope_table.0"] ** 2 + found["rope_table.0/1"] ** 2, np.ones((3, 2)), rtol=1e-6)
    assert said(lambda: compiled.tap("rope_table.0/2", {"p": [0, 1, 2]})) == (
        "rope_table.0 has 2 outputs, 'rope_table.0/2' asks for another")


def test_what_cannot_be_tapped_is_named() -> None:
    g, _, _ = chain()
    compiled = compiled_of(g)
    x = np.abs(numbers(4, 2))
    known = "there are sqrt.0, sin.0, sum.0, store.0"
    assert said(lambda: compiled.tap("cos.0", {"x": x})) == f"no instruction is named 'cos.0'; {known}"
    assert "no instruction is named 'sin.1'" in said(lambda: compiled.tap("sin.1", {"x": x}))
    assert "asks for another" in said(lambda: compiled.tap("sin.0/first", {"x": x}))
    other = tg.exp2(tg.input("x", (4, 2)))
    text = said(lambda: compiled.tap(other, {"x": x}))
    assert text.startswith("no instruction of a run makes the value of <exp2 f32[4, 2]") and text.endswith(known)


def test_a_trace_holds_every_step_in_order() -> None:
    g, _, _ = chain()
    x = np.abs(numbers(4, 2))
    compiled = compiled_of(g)
    steps = compiled.trace({"x": x})
    assert [label for label, _, _ in steps] == ["sqrt.0", "sin.0", "sum.0", "store.0"]
    assert all(where.startswith("test_compiled_graph.py:") for _, where, _ in steps[:3])
    np.testing.assert_allclose(steps[0][2][0], np.sqrt(x))
    np.testing.assert_allclose(steps[1][2][0], np.sin(np.sqrt(x)), rtol=1e-6)


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
@pytest.mark.parametrize("dtype", [tg.f32, tg.f64, tg.bf16, tg.f16], ids=str)
def test_the_first_nan_is_named_with_its_line(backends: tuple[str, ...], dtype: tg.DType) -> None:
    x = tg.input("x", (3,), dtype)
    a = tg.exp2(x)
    root = tg.sqrt(a + x)
    g = tg.graph({"n": tg.sum(tg.where(root < 0.0, a, a)), "y": tg.sin(root)})
    compiled = compiled_of(g, backends=backends)
    assert compiled.first_nan({"x": np.ones(3).astype(dtype.numpy)}) is None
    text = compiled.first_nan({"x": np.array([1, -9, 1]).astype(dtype.numpy)})
    assert text is not None and text.startswith("sqrt.0 (") and f"written at {root.location}" in text
    assert compiled.first_nan({"x": np.array([1, np.nan, 1]).astype(dtype.numpy)}) == "input x"


def test_a_nan_that_was_given_is_named_where_it_was_given() -> None:
    compiled = compiled_of(block(), {**WEIGHTS, "w": np.full((12, 8), np.nan, np.float32)})
    assert compiled.first_nan({"x": numbers(5, 8)}) == "parameter w"
    counting = compiled_of(counter())
    session = counting.session()
    session["s"] = np.array([0, np.nan, 0], np.float32)
    assert counting.first_nan({"x": numbers(3)}, session=session) == "state s"


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_no_op_runs_nothing_and_is_undone(backends: tuple[str, ...]) -> None:
    compiled = compiled_of(block(), WEIGHTS, backends)
    x, out = numbers(5, 8), np.full((5, 8), 7, np.float32)
    expected = compiled.run({"x": x})["y"]
    with pytest.raises(ZeroDivisionError), compiled.no_op():
        with compiled.no_op():
            compiled.run({"x": x}, out={"y": out})
        compiled.run({"x": x}, out={"y": out})
        assert (out == 7).all()
        raise ZeroDivisionError
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], expected)


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_a_profile_has_a_time_for_every_step(backends: tuple[str, ...]) -> None:
    compiled = compiled_of(block(), WEIGHTS, backends)
    rows = compiled.profile({"x": numbers(40, 8)}, repeats=3)
    assert [r[0] for r in rows] == [i.label for i in compiled.executors[0].program.instructions]
    assert all(seconds > 0 for _, _, seconds in rows)
    assert 0 < compiled.time({"x": numbers(40, 8)}, repeats=3) < 5


def test_memory_is_a_function_of_the_dims() -> None:
    compiled = compiled_of(block(), WEIGHTS)
    small, large = compiled.memory(n=1), compiled.memory(n=64)
    assert small.arena < large.arena and small.parameters == large.parameters == 2 * 12 * 8 * 4
    assert compiled.memory() == large and large.total == large.allocated + large.parameters
    frame = compiled._take(0)
    compiled._frames[0].append(frame)
    compiled.run({"x": numbers(64, 8)})
    assert frame.arena.nbytes == large.arena


@pytest.mark.parametrize("backends", BACKENDS, ids=lambda b: b[0])
def test_a_number_for_all_elements_takes_no_memory_of_an_array(backends: tuple[str, ...]) -> None:
    """x * 2.0 keeps one number: neither the plan nor the process has a second array of the operand's size."""
    x = tg.input("x", (1024, 1024), tg.f32)
    array = 1024 * 1024 * 4
    tracemalloc.start()
    try:
        compiled = compiled_of(tg.graph(1.0 - x * 2.0), {}, backends)
        memory = compiled.memory()
        assert memory.bound == 0 and memory.constants < 1000 and memory.arena <= array
        given = np.ones((1024, 1024), np.float32)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        out = compiled.run({"x": given})["out"]
        assert tracemalloc.get_traced_memory()[1] - before <= memory.arena + array + (1 << 16)
    finally:
        tracemalloc.stop()
    assert out.min() == out.max() == -1.0


def test_an_arena_that_is_far_too_large_is_given_back() -> None:
    compiled = compiled_of(block(), WEIGHTS)
    compiled.run({"x": numbers(64, 8)})
    compiled.run({"x": numbers(2, 8)})
    assert compiled._frames[0][0].arena.nbytes == compiled.memory(n=2).arena


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_attributes_that_hold_dims_follow_the_run(backends: tuple[str, ...]) -> None:
    p = tg.dim("p", 0, 8)
    s, x = tg.state("s", (8, 2)), tg.input("x", (N, 2))
    g = tg.graph({"n": tg.constant(3 * N + p), "mean": tg.mean(x, axis=0)}, {s: s.write(x, at=p)})
    compiled = compiled_of(g, backends=backends)
    session = compiled.session()
    for n, at in ((2, 0), (1, 5), (3, 1), (2, 6)):
        before = session.snapshot()
        out = compiled.run({"x": numbers(n, 2)}, dims={"p": at}, session=session)
        assert out["n"] == 3 * n + at and out["n"].dtype == np.int32
        np.testing.assert_allclose(out["mean"], numbers(n, 2).mean(0), rtol=1e-5)
        want = before["s"].copy()
        want[at:at + n] = numbers(n, 2)[:8 - at]
        np.testing.assert_array_equal(session["s"], want)


def test_only_the_frames_of_the_last_variant_keep_a_large_arena() -> None:
    """One arena in all between runs: a prefill's is given back when decoding starts."""
    x = tg.input("x", (N, 8192))
    g = tg.graph(tg.sum(tg.sin(atomic.sqrt(x)) + x, 1))
    plan = plan_of(g)
    small, large = (replace(plan.variants[0], cell=Cell.of({"n": ends})) for ends in ((0, 8), (9, 64)))
    compiled = bind(replace(plan, variants=(small, large)))
    compiled.run({"x": np.ones((64, 8192), np.float32)})
    assert compiled._frames[1][0].arena.nbytes > 1 << 20
    compiled.run({"x": np.ones((2, 8192), np.float32)})
    assert compiled._frames[1][0].arena.nbytes == 0
    np.testing.assert_allclose(compiled.run({"x": np.ones((64, 8192), np.float32)})["out"], 8192 * (np.sin(1.0) + 1), rtol=1e-5)


def variants_of(g: tg.Graph) -> Plan:
    """Two variants of the same path, for n up to 8 and beyond."""
    plan = plan_of(g, ("c", "numpy"))
    (only,) = plan.variants
    return replace(plan, variants=tuple(replace(only, cell=Cell.of({"n": ends})) for ends in ((0, 8), (9, 64))))


def test_what_is_made_of_parameters_is_made_once_for_all_variants() -> None:
    x, w = tg.input("x", (N, 8)), tg.parameter("w", (40, 8))
    value, index = tg.linear_argmax(x, w)
    compiled = bind(variants_of(tg.graph({"value": value, "index": index})), {"w": numbers(40, 8)})
    first, second = compiled.executors
    made = [b for b in first.fixed if first.program.buffers[b - 2].kind == "bound"]
    assert len(made) == 4 and all(first.fixed[b] is second.fixed[b] for b in made)
    for weight in (numbers(40, 8, seed=1), numbers(40, 8, seed=2)):
        compiled.rebind("w", weight)
        assert all(first.fixed[b] is second.fixed[b] for b in made)
        for rows in (3, 20):
            given = numbers(rows, 8, seed=rows)
            np.testing.assert_array_equal(compiled.run({"x": given})["index"], (given @ weight.T).argmax(1))


def test_what_is_made_of_parameters_and_constants_is_made_once_for_all_variants() -> None:
    x, w = tg.input("x", (N, 8)), tg.parameter("w", (40, 8))
    plan = variants_of(tg.graph(tg.linear(x, (w - 8.0) * w)))
    compiled = bind(plan, {"w": numbers(40, 8)})
    first, second = ({b: m for b, m in e.fixed.items() if e.program.buffers[b - 2].kind == "bound"} for e in compiled.executors)
    assert len(first) == 1 and first == second
    assert plan.memory().bound == 40 * 8 * 4 and plan.memory().bind_peak == 2 * 40 * 8 * 4


def test_the_first_run_at_sizes_that_no_kernel_was_chosen_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The run takes the kernels of the largest sizes; the plan says so before, and the log once."""
    plan = variants_of(tg.graph(tg.input("x", (N, 8)) * 2.0))
    small, large = plan.variants
    short = replace(plan, variants=(small, replace(large, cell=Cell.of({"n": (9, 32)}))), largest={"n": 32})
    note = "note: runs at n = 33..64 take the kernels chosen below that, and may be slow; largest={'n': 64} plans for them"
    assert note in tg.explain(short) and note in str(short) and "chosen below" not in tg.explain(plan) + str(plan)
    for made in (plan, short):
        compiled = bind(made)
        for rows in (3, 32, 40, 3, 64):
            given = numbers(rows, 8)
            np.testing.assert_allclose(compiled.run({"x": given})["out"], 2.0 * given, rtol=1e-7)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.getMessage() == (
        "a run at n = 40 takes the kernels that were chosen for n = 0..32, and may be slow; other such runs are not logged\n"
        "  fix: tg.compile(graph, largest={'n': 40})")


def codes(rows: int, columns: int) -> tuple[tg.Graph, dict[str, np.ndarray]]:
    """A product by a weight of 4 bits: two codes in a byte, a scale for each 32 of a row; and its parameters."""
    p, s = tg.parameter("p", (rows, columns // 2), tg.u8), tg.parameter("s", (rows, columns // 32, 1), tg.f32)
    both = tg.reshape(tg.stack(tg.bit_and(p, 15), p // 16, axis=-1), (rows, columns // 32, 32))
    weight = tg.reshape((tg.cast(both, tg.f32) - 8.0) * s, (rows, columns))
    rng = np.random.default_rng(rows)
    return tg.graph(tg.linear(tg.input("x", (2, columns)), weight)), {
        "p": rng.integers(0, 256, (rows, columns // 2), np.uint8), "s": rng.random((rows, columns // 32, 1), np.float32)}


def decoded(p: np.ndarray, s: np.ndarray) -> np.ndarray:
    both = np.stack([p & 15, p >> 4], -1).reshape(*s.shape[:2], 32)
    return ((both - 8.0) * s).reshape(len(p), -1)


def held_by(action: Callable[[], Any]) -> tuple[Any, int, int]:
    """Return an action's result, and the bytes that it has allocated: those that stay, and the most at one moment."""
    action()                                                        # what is loaded once, is loaded
    gc.collect()
    tracemalloc.start()
    result = action()
    stay, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, stay, peak


@pytest.mark.parametrize("backends", [("numpy",), ("c", "numpy")], ids="+".join)
def test_what_only_makes_another_parameter_is_freed_and_the_plan_says_what_binding_takes(backends: tuple[str, ...]) -> None:
    graph, parameters = codes(512, 1024)
    plan, weight, slack = plan_of(graph, backends), 512 * 1024 * 4, 100_000
    use = plan.memory()
    assert use.bound == weight and weight < use.bind_peak <= 3 * weight
    compiled, stay, peak = held_by(lambda: bind(plan, parameters))
    assert abs(stay - use.bound) < slack and abs(peak - use.bind_peak) < weight // 2     # numpy has temporaries of its own
    x = numbers(2, 1024)
    for seed, name in enumerate(("s", "p", "s")):
        rng = np.random.default_rng(seed)
        parameters[name] = rng.integers(0, 256, (512, 512), np.uint8) if name == "p" else rng.random((512, 32, 1), np.float32)
        _, stay, peak = held_by(partial(compiled.rebind, name, parameters[name]))
        assert stay < slack and peak < use.bind_peak + weight // 2
        want = x.astype(np.float64) @ decoded(**parameters).T
        np.testing.assert_allclose(compiled.run({"x": x})["out"], want, rtol=1e-4, atol=1e-3)


def test_a_plan_that_only_fits_once_it_is_bound_is_refused() -> None:
    graph, _ = codes(64, 1024)
    plan = plan_of(graph)
    use = plan.memory()
    assert use.total < use.most == use.bind_only + use.constants + use.bind_peak
    plan.check_capacity({}, use.most)
    with pytest.raises(PlanError, match=r"^device cpu may use 500\.0 kB, binding the plan needs .* at once: parameters 41\.0 kB, "
                                        r"constants \d+ B, made of parameters .*, of which 262\.1 kB stay\n  fix: "):
        plan.check_capacity({}, 500_000)


def test_a_value_of_bind_time_that_is_read_twice_by_every_step_is_made_at_once() -> None:
    """A power of integers squares sixty times: written out, what it is made of would have 2^60 parts."""
    w = numbers(4) * 0 + 3
    x: tg.Node = tg.parameter("w", (4,), tg.u64)
    compiled = compiled_of(tg.graph(tg.pow(x, x)), {"w": w.astype(np.uint64)})
    np.testing.assert_array_equal(compiled.run()["out"], np.full(4, 27, np.uint64))


def test_a_run_that_does_not_fit_into_memory_is_refused_and_a_smaller_one_runs() -> None:
    rows = tg.dim("rows", 1, 10**6)
    x = tg.input("x", (rows,))
    table = tg.reshape(x, (rows, 1)) * tg.reshape(x, (1, rows))
    whole, inside = compiled_of(tg.graph({"y": table})), compiled_of(tg.graph({"y": tg.sum(tg.exp(table), 1)}))
    for compiled, what in ((whole, r"the output y f32\[1000000, 1000000\]"), (inside, "the memory for what this run computes")):
        for _ in range(2):                                          # what was begun is begun again, not taken for done
            with pytest.raises(OutOfMemory, match=rf"^{what}.* takes \d{{4}}\.\d GB, and .* GB of memory are free\n  fix: smaller"):
                compiled.run({"x": np.ones(10**6, np.float32)})
    np.testing.assert_array_equal(whole.run({"x": np.ones(3, np.float32)})["y"], np.ones((3, 3)))
    np.testing.assert_allclose(inside.run({"x": np.ones(3, np.float32)})["y"], 3 * np.exp(np.ones(3)), rtol=1e-6)


def test_a_session_that_does_not_fit_into_memory_is_refused() -> None:
    s = tg.state("s", (10**6, 10**6))
    compiled = compiled_of(tg.graph({"y": tg.sum(s.read())}, {s: s.read()}))
    with pytest.raises(OutOfMemory, match=r"^a session of 1 states takes 4000\.0 GB"):
        compiled.session()
