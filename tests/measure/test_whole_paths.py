"""Runs of whole paths: they are run as a program runs them, or what a call costs would be another thing where it is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.measure.timing import launch_ahead, whole_paths
from tensor_graphs.measure.timing.whole_paths import (
    LEAST_KEPT,
    SETTLING,
    TURNS_THERE,
    as_called,
    given_there,
    parts_of,
    run_whole,
    run_whole_there,
    times_of_parts,
)
from tensor_graphs.runtime.device_array import DeviceArray
from tests.plans import paths_of, plan_of


def test_a_path_of_one_native_call_is_timed_without_the_checks_that_a_program_does_not_repeat(monkeypatch: pytest.MonkeyPatch,
                                                                                             ) -> None:
    n = tg.dim("n", 1, 64)
    compiled = tg.bind(tg.compile(tg.graph({"y": tg.softmax(tg.input("x", (n, 16), tg.f32))}), backends=["c"]))
    inputs = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)}
    run = as_called(compiled, inputs, {"n": 2})
    first = run()

    def checked(*given: Any, **options: Any) -> None:
        raise AssertionError("the arguments were checked again")

    monkeypatch.setattr(compiled, "_run", checked)
    assert np.array_equal(run()["y"], first["y"])
    powers = np.exp(inputs["x"])
    assert np.allclose(first["y"], powers / powers.sum(axis=-1, keepdims=True), atol=1e-6)


def test_a_size_that_follows_from_no_input_is_given() -> None:
    n = tg.dim("n", 1, 64)
    graph = tg.graph({"y": tg.expand(tg.input("x", (1, 4), tg.f32), (n, 4)) * 1.5})
    compiled = tg.bind(tg.compile(graph, backends=["numpy"]))
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    assert np.array_equal(as_called(compiled, {"x": x}, {"n": 3})()["y"], np.repeat(1.5 * x, 3, axis=0))


def test_a_step_counts_in_each_part_that_it_is_in_and_once_where_two_nodes_lie_in_one_place() -> None:
    x = tg.input("x", (4, 16), tg.f32)
    inner = tg.softmax(x)
    rows = inner.reshape(16, 4)
    graph = tg.graph({"y": tg.tanh(rows), "z": tg.exp(x)})
    number = {n: i for i, n in enumerate(graph.nodes)}
    tanh, exp = (graph.outputs[name] for name in "yz")
    parts = [("outer", "words", [number[n] for n in (inner, rows, tanh)]), ("inner", "recipe a", [number[inner]]),
             ("other", "words", [number[exp]])]
    plan = plan_of(graph, ("numpy",))
    placed = parts_of(plan, graph, parts)
    calls = {ins.kernel: i for i, ins in enumerate(plan.variants[0].program.instructions) if ins.signature}
    samples = np.zeros((2, len(plan.variants[0].program.instructions)))
    for kernel, seconds in (("numpy.softmax", 1.0), ("numpy.tanh", 10.0), ("numpy.exp", 100.0)):
        samples[:, calls[kernel]] = seconds
    assert times_of_parts(samples, placed) == [("outer", "words", [11.0] * 2), ("inner", "recipe a", [1.0] * 2),
                                               ("other", "words", [100.0] * 2)]


@pytest.mark.parametrize("with_weights", [False, True])
def test_the_fastest_run_of_each_turn_and_the_faster_half_of_the_turns_are_told(monkeypatch: pytest.MonkeyPatch,
                                                                               with_weights: bool) -> None:
    clock, turn = [0.0], [0]
    taken = iter(np.repeat([9.0, 3.0, 8.0, 1.0, 2.0, 7.0], 3) + np.tile([0.5, 0.0, 0.25], 6))
    module = "tensor_graphs.measure.timing.whole_paths"

    def called(compiled: Any, inputs: Mapping[str, np.ndarray], dims: Mapping[str, int]) -> Any:
        def run() -> dict[str, np.ndarray]:
            if turn[0] == 1:
                clock[0] += next(taken)
            turn[0] = 0
            return {}
        return run

    def warm(run: Any) -> None:
        run()
        turn[0] = 1

    for name, stands_in in (("as_called", called), ("warm_up", warm), ("settle", lambda: None), ("now", lambda: clock[0]),
                            ("others_running", lambda: 0), ("switches", lambda: 0)):      # a run that is disturbed is another case
        monkeypatch.setattr(f"{module}.{name}", stands_in)
    x = tg.input("x", (1, 4), tg.f32)
    graph = tg.graph({"y": x * tg.parameter("w", (1, 4)) if with_weights else x * 2.0})
    weights = {"w": np.ones((1, 4), np.float32)} if with_weights else {}
    told = run_whole(graph, [tg.compile(graph, backends=["numpy"])], weights, {}, {}, {}, rounds=6, seconds=1e9)
    assert told["paths"][0]["whole"] == [1.0, 2.0, 3.0] and LEAST_KEPT == 3


def test_weights_lie_elsewhere_in_each_round_and_are_the_same_for_all_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = tg.input("x", (2, 4), tg.f32), tg.parameter("w", (4, 4), tg.f32)
    graph = tg.graph({"y": tg.dot(x, w)})
    bound: list[np.ndarray] = []

    def bind(plan: Any, weights: dict[str, np.ndarray]) -> Any:
        bound.append(weights["w"])                                  # held, so that no other array comes to lie there
        return tg.bind(plan, weights)

    monkeypatch.setattr(whole_paths, "bind", bind)
    for name in ("settle", "warm_up"):
        monkeypatch.setattr(whole_paths, name, lambda *given: None)
    plans = [tg.compile(graph, backends=["numpy"])] * 2
    given = np.ones((4, 4), np.float32)
    run_whole(graph, plans, {"w": given}, {"x": np.ones((2, 4), np.float32)}, {}, {}, rounds=3, seconds=1e9)
    assert len(bound) == 3 * 2 * 2                                  # rounds, paths, one that warms up and one that counts
    rounds = [{id(w) for w in bound[4 * i:4 * i + 4]} for i in range(3)]
    assert all(len(ids) == 2 for ids in rounds) and len(set.union(*rounds)) == 6
    assert sum(np.array_equal(w, given) for w in bound) == 6


def test_paths_of_which_one_is_partly_on_the_host_are_timed_from_the_call_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fake import backend

    fake = backend.make_known()
    try:
        monkeypatch.setattr(launch_ahead, "EMPTIED", 1 << 12)
        g = tg.graph({"y": tg.copy_to(tg.tanh(tg.copy_to(tg.input("x", (8, 16)), "fake")), "fake")})
        paths = {bool(p.copies): p for _, p in zip(range(40), paths_of(g, ("fake", "numpy")), strict=False)}
        plans = [plan_of(g, ("fake", "numpy"), path=paths[crosses]) for crosses in (False, True)]
        x = np.linspace(-2, 2, 128, dtype=np.float32).reshape(8, 16)
        inputs = given_there(g, {"x": x})
        assert isinstance(inputs["x"], DeviceArray) and inputs["x"].device is fake
        fake.latency = 0.002                                        # of each copy: what crosses takes 4 ms
        told = run_whole_there(g, plans, {}, inputs, {}, {"y": np.tanh(x)}, 30.0)
        stays, crosses = (each["whole"] for each in told["paths"])
        assert told["status"] == "RAN" and len(stays) == len(crosses) == (TURNS_THERE - SETTLING + 1) // 2
        assert max(stays) < 0.004 <= min(crosses)
        wrong = run_whole_there(g, plans, {}, inputs, {}, {"y": np.tanh(x) + 9}, 30.0)
        assert wrong["status"] == "INCORRECT_NUMERICAL" and wrong["path"] == 0
    finally:
        backend.forget()


@pytest.mark.usefixtures("gpu_that_is_none")
def test_paths_all_on_a_gpu_are_compared_by_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's part is the same for both, though it varies by more than they do."""
    monkeypatch.setattr(launch_ahead, "EMPTIED", 1 << 12)
    g = tg.graph({"y": tg.copy_to(tg.exp(tg.tanh(tg.copy_to(tg.input("x", (8, 16)), "cuda:0"))), "cuda:0")})
    paths = [p for _, p in zip(range(2), paths_of(g, ("gencuda",)), strict=False)]
    plans = [plan_of(g, ("gencuda",), path=p) for p in paths]
    clocks = iter(np.tile([1e-3, 3e-3], 100))
    monkeypatch.setattr(whole_paths, "_on_its_clock", lambda *given: next(clocks))
    x = np.linspace(-2, 2, 128, dtype=np.float32).reshape(8, 16)
    told = run_whole_there(g, plans, {}, given_there(g, {"x": x}), {}, {"y": np.exp(np.tanh(x))}, 30.0)
    first, second = (np.median(each["whole"]) for each in told["paths"])
    assert second - first == pytest.approx(2e-3)
    assert [each["around"] for each in told["paths"]] == pytest.approx([first - 1e-3] * 2)
