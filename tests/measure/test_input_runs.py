"""Inputs of a caller for one draw: cut into the runs of a trajectory, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.measure.error_draws import ROWS, STEPS, ErrorDraws
from tensor_graphs.measure.input_runs import runs_on

N = tg.dim("n", 1, 64)


def averages(room: int = 128) -> tg.Graph:
    """y[n] = the mean of the states up to each new row, which are x; scale has no rows."""
    n, p = tg.dim("n", 1, room), tg.dim("p", 0, room - 1)
    x, scale, held = tg.input("x", (n, 8)), tg.input("scale", (8,)), tg.state("held", (room, 8))
    new = tg.write_rows(held.read(), x, start=p)
    return tg.graph({"y": x * scale + tg.mean(new, axis=0)}, {held: new})


def counter() -> tg.Graph:
    x, s = tg.input("x", (4, 8)), tg.state("s", (4, 8))
    return tg.graph({"y": x + s.read()}, {s: x + s.read()})


def rows(count: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32), "scale": np.ones(8, np.float32)}


@pytest.mark.parametrize(("count", "first"), [(ROWS + STEPS, ROWS), (100, ROWS), (11, 3), (1, 1)])
def test_rows_are_cut_into_one_run_and_single_positions(count: int, first: int) -> None:
    inputs = rows(count)
    runs = runs_on(averages(), {"n": 1, "p": 7}, inputs)
    assert [(sizes["p"], sizes["n"]) for _, sizes in runs] == [(0, first), *((first + i, 1) for i in range(len(runs) - 1))]
    used = np.concatenate([arrays["x"] for arrays, _ in runs])
    assert len(used) == min(count, ROWS + STEPS) and np.array_equal(used, inputs["x"][:len(used)])
    assert all(np.array_equal(arrays["scale"], inputs["scale"]) for arrays, _ in runs)


def test_without_states_they_are_one_run_of_their_size() -> None:
    graph = tg.graph(tg.softmax(tg.input("x", (N, 8), tg.bf16)))
    ((arrays, sizes),) = runs_on(graph, {"n": 5}, {"x": np.ones((9, 8), tg.bf16.numpy)})
    assert sizes == {"n": 9} and arrays["x"].shape == (9, 8)


def test_an_error_that_only_these_inputs_have_is_seen() -> None:
    right, wrong = (tg.graph(tg.maximum(tg.input("x", (N, 64)), least)) for least in (-50.0, -40.0))
    inputs = [{"x": np.full((2, 64), value, np.float32)} for value in (-1.0, -60.0)]
    draws = ErrorDraws(right, {}, {"n": 2}, runs_of=lambda seed: runs_on(right, {"n": 2}, inputs[seed]))
    mild, wild = draws.of_graph(wrong, [0, 1])
    assert mild["out"].max == 0 and wild["out"].max > 0.1


def test_states_of_earlier_rows_count_in_later_runs() -> None:
    graph, inputs = averages(), rows(12)
    draws = ErrorDraws(graph, {}, {"n": 1, "p": 0}, runs_of=lambda seed: runs_on(graph, {"n": 1, "p": 0}, inputs))
    draws.of_graph(graph, [0])
    states = np.cumsum(inputs["x"].astype(np.float64), axis=0)[3:] / 128      # after the first run of 4, then after each position
    expected = inputs["x"] + states[np.maximum(np.arange(12) - 3, 0)]
    assert np.allclose(draws.exact[0]["y"][8], expected, atol=1e-6)


@pytest.mark.parametrize(("graph", "inputs", "message"), [
    (averages(), {"x": rows(9)["x"]}, r"^inputs lack 'scale'\n  fix: an array for each of "),
    (averages(), {**rows(9), "z": 1}, "^inputs have no use for 'z'"),
    (averages(), {**rows(9), "x": np.ones((9, 8))}, "^input 'x' is .*, the array holds float64\n  fix: "),
    (averages(), {**rows(9), "x": np.ones((9, 7), np.float32)}, "axis 1 must be 8"),
    (averages(), {**rows(9), "x": np.ones((0, 8), np.float32)}, "^inputs have no rows along n\n  fix: "),
    (counter(), {"x": np.ones((4, 8), np.float32)}, "states are not written row by row.*\n  fix: "),
    (tg.graph(tg.exp(tg.input("x", (N, 8)))), {"x": np.ones((65, 8), np.float32)}, "dim .*65"),
], ids=str)
def test_inputs_that_do_not_fit_are_refused(graph: tg.Graph, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(tg.TensorGraphsError, match=message):
        runs_on(graph, dict.fromkeys(graph.dims, 1), inputs)
