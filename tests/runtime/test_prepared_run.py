"""Runs that cost little: the second run of one shape, and runs on arrays that stay where they are."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.devices.array_address import _by_field, _by_numpy
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.runtime.errors import RunError
from tests.plans import compiled_of

N = tg.dim("n", 0, 64)
BACKENDS = [("c", "numpy"), ("numpy",)]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def doubled_sum(backends: tuple[str, ...], **options: Any) -> CompiledGraph:
    x, y, w = tg.input("x", (N, 4)), tg.input("y", (N, 4)), tg.parameter("w", (4,))
    graph = tg.graph({"sum": x + y, "scaled": tg.sin(x) * w})
    return compiled_of(graph, {"w": np.full(4, 2, np.float32)}, backends=backends, **options)


def counter(backends: tuple[str, ...]) -> CompiledGraph:
    s, x = tg.state("s", (3,)), tg.input("x", (3,))
    return compiled_of(tg.graph({"y": s.read() + x}, {s: s.read() + x}), {}, backends=backends)


def right(out: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, factor: float = 2) -> bool:
    return np.array_equal(out["sum"], x + y) and np.allclose(out["scaled"], np.sin(x) * factor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backends", BACKENDS)
def test_later_runs_of_a_shape_read_their_own_inputs_and_write_arrays_of_their_own(backends: tuple[str, ...]) -> None:
    compiled, kept = doubled_sum(backends), []
    for seed in range(6):
        x, y = numbers(3 + seed % 2, 4, seed=seed), numbers(3 + seed % 2, 4, seed=seed + 9)
        kept.append((compiled.run({"x": x, "y": y}), x, y))
    assert all(right(*each) for each in kept)


def test_an_input_that_is_no_plain_array_takes_the_long_way_to_the_same_result() -> None:
    compiled, x, y = doubled_sum(("c", "numpy")), numbers(3, 4), numbers(3, 4, seed=1)
    first = compiled.run({"x": x, "y": y})
    for value in (np.repeat(x, 2, axis=0)[::2], x.tolist(), torch.from_numpy(x), np.asfortranarray(x)):
        assert np.allclose(compiled.run({"x": value, "y": y})["scaled"], first["scaled"], rtol=1e-6)
    for wrong in (x.astype(np.float64), x[0], numbers(4, 4), x.astype(">f4")):
        with pytest.raises(RunError):
            compiled.run({"x": wrong, "y": y})
    for names in ({"x": x}, {"x": x, "z": y}):
        with pytest.raises(RunError, match="the graph takes the inputs"):
            compiled.run(names)


@pytest.mark.parametrize("backends", BACKENDS)
def test_a_parameter_that_is_bound_again_counts_at_once(backends: tuple[str, ...]) -> None:
    compiled, x, y = doubled_sum(backends), numbers(3, 4), numbers(3, 4, seed=1)
    prepared = compiled.prepared({"x": x, "y": y})
    for factor in (2.0, 3.0, 5.0):
        compiled.rebind("w", np.full(4, factor, np.float32))
        assert right(compiled.run({"x": x, "y": y}), x, y, factor) and right(prepared.run(), x, y, factor)


def test_many_threads_may_run_one_shape_at_once() -> None:
    compiled, wrong = doubled_sum(("c", "numpy")), []

    def work(seed: int) -> None:
        x, y = numbers(5, 4, seed=seed), numbers(5, 4, seed=seed + 50)
        wrong.extend(seed for _ in range(200) if not right(compiled.run({"x": x, "y": y}), x, y))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("backends", BACKENDS)
def test_a_prepared_run_reads_what_its_inputs_hold_by_then_and_writes_the_same_arrays(backends: tuple[str, ...]) -> None:
    compiled, x, y, into = doubled_sum(backends), numbers(3, 4), numbers(3, 4, seed=1), np.empty((3, 4), np.float32)
    prepared = compiled.prepared({"x": x, "y": y}, out={"sum": into})
    first = prepared.run()
    assert first["sum"] is into and right(first, x, y)
    x += 1
    assert prepared.run()["scaled"] is first["scaled"] and right(prepared.outputs, x, y)
    compiled.run({"x": numbers(60, 4), "y": numbers(60, 4)})        # another shape between
    assert right(prepared.run(), x, y)


@pytest.mark.parametrize("backends", BACKENDS)
def test_prepared_runs_move_a_session_on_as_others_do(backends: tuple[str, ...]) -> None:
    compiled, x = counter(backends), np.ones(3, np.float32)
    session = compiled.session()
    prepared = compiled.prepared({"x": x}, session=session)
    values = [float(prepared.run()["y"][0]), float(compiled.run({"x": x}, session=session)["y"][0]), float(prepared.run()["y"][0])]
    session["s"] = np.full(3, 10, np.float32)
    assert [*values, float(prepared.run()["y"][0])] == [1, 2, 3, 11]


def _in_a_parameter(compiled: CompiledGraph) -> object:
    held = np.zeros((9, 4), np.float32)
    compiled.rebind("w", held[3])
    return compiled.prepared({"x": numbers(3, 4), "y": numbers(3, 4)}, out={"sum": held[2:5]})


def test_an_output_in_a_bound_parameter_is_refused_as_the_next_run_would_read_it() -> None:
    compiled, held = doubled_sum(("numpy",)), np.zeros((9, 4), np.float32)
    compiled.rebind("w", held[3])
    with pytest.raises(RunError, match=r"out\['sum'\] shares memory with the parameter 'w'"):
        compiled.run({"x": numbers(3, 4), "y": numbers(3, 4)}, out={"sum": held[2:5]})


def test_a_graph_that_was_not_compiled_is_refused_with_the_way_to_do_so() -> None:
    with pytest.raises(RunError, match=r"bind takes a plan.*\n  fix: tg.bind\(tg.compile\(graph\)"):
        tg.bind(tg.graph(tg.sin(tg.input("x", (3,)))))             # type: ignore[arg-type]


def _overlapping(compiled: CompiledGraph) -> object:
    memory = numbers(4, 4)
    return compiled.prepared({"x": memory[:3], "y": numbers(3, 4)}, out={"sum": memory[1:]})


@pytest.mark.parametrize(("make", "says"), [
    (lambda c: c.prepared({"x": numbers(3, 8)[:, ::2], "y": numbers(3, 4)}), "every run: it is not contiguous"),
    (lambda c: c.prepared({"x": numbers(3, 4).tolist(), "y": numbers(3, 4)}),
     r"every run: it is a list\n  fix: np.ascontiguousarray\(…, 'float32'\)"),
    (_overlapping, "'x' shares memory with an output"),
    (_in_a_parameter, "shares memory with the parameter 'w'"),
    (lambda c: c.prepared({"x": numbers(3, 4), "y": numbers(3, 4)}, out=numbers(3, 4)), "outputs are given by name"),
    (lambda c: c.prepared({"x": numbers(3, 4)}), "missing: y")])
def test_what_cannot_be_prepared_is_an_error_that_says_so(make: Callable[[CompiledGraph], object], says: str) -> None:
    with pytest.raises(RunError, match=says):
        make(doubled_sum(("numpy",)))


@pytest.mark.parametrize(("call", "says"), [
    (lambda c, p: c.run(x=1, y=2), r"run\(x=…\): inputs are one argument.*\n(.*\n)?  fix: run\({'x': …, 'y': …}\)"),
    (lambda c, p: c.prepared(y=2), r"fix: prepared\({'x': …, 'y': …}\)"), (lambda c, p: c.run({}, output={}), "fix: out=…"),
    (lambda c, p: c.prepared({}, sizes={"n": 3}), "fix: dims=… instead of sizes=…"),
    (lambda c, p: c.run({"x": numbers(3, 4), "Y": 1}), r"missing: y; unknown: Y\n  fix: run\({'x': …, 'y': …}\)"),
    (lambda c, p: c.plan.run({}), r"a plan has no attribute 'run'\n  fix: tg.bind\(plan, parameters\).run"),
    (lambda c, p: tg.bind(c.plan, weights={}), "fix: parameters=… instead of weights=…"),
    (lambda c, p: tg.compile(c.graph, tol=1e-3), r"compile\(graph, .*has no argument 'tol'\n(.*\n)?  fix: tolerance=… instead"),
    (lambda c, p: tg.profile(c.graph, backend="c"), r"profile\(graph, .*\n(.*\n)?  fix: backends=… instead"),
    (lambda c, p: tg.list_paths(c.graph, rtol=1e-3), "fix: tolerance=… instead"),
    (lambda c, p: tg.compile(c.graph, backends=()), r"names no backend: it is \(\)\n  fix: backends=\('c', 'gen', 'numpy'\)"),
    (lambda c, p: p.run({"x": 1}), r"a prepared run takes no arguments.*\n(.*\n)?  fix: write into those"),
    (lambda c, p: c.prepared(), r"none are given\n  fix: prepared\({'x': …, 'y': …}\), then write"),
    (lambda c, p: c({"x": 1}), r"not called\n(.*\n)?  fix: model.run\({'x': …, 'y': …}\)"),
    (lambda c, p: c.session(3), r"fix: call it like session\(\)"), (lambda c, p: c.time(), r"fix: call it like time\(inputs"),
    (lambda c, p: c.plan.memory({"n": 1}), r"was given {'n': 1}\n  fix: memory\(n=…\)"),
    (lambda c, p: tg.compile(c.graph, at={"N": 3}), "fix: did you mean n"),
    (lambda c, p: tg.explain(c), r"fix: its plan: tg.explain\(model.plan\)"),
    (lambda c, p: tg.compile(c), "fix: its graph: .graph"),
    (lambda c, p: tg.bind(c.plan, {"W": 1}), "no parameter 'W', which is given: did you mean 'w'"),
    (lambda c, p: c.tap("add.O", dict.fromkeys("xy", numbers(3, 4))), "fix: did you mean add.0"),
    (lambda c, p: tg.interpret(tg.graph(tg.constant(1.0)), {"y": 1}), "fix: leave it out: the graph has no inputs"),
    (lambda c, p: pickle.dumps(p), "fix: pickle the bound model"), (lambda c, p: copy.deepcopy(p), "fix: pickle the bound model")])
def test_a_call_that_people_try_first_says_what_to_write(call: Callable[[Any, Any], object], says: str) -> None:
    compiled = doubled_sum(("numpy",))
    prepared = compiled.prepared({"x": numbers(3, 4), "y": numbers(3, 4)})
    assert repr(prepared).startswith("<prepared run: x float32[3, 4], y float32[3, 4] -> ")
    with pytest.raises(TensorGraphsError, match=says):
        call(compiled, prepared)


def test_addresses_are_read_as_numpy_says_them() -> None:
    whole = np.zeros((4, 6), np.int16)
    assert all(_by_field(a) == _by_numpy(a) for a in (whole, whole[1:, 2:], whole.T, whole[::-1], np.empty(0)))
