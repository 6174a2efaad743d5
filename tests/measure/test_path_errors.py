"""The error of a whole path is that of its outputs beside the oracle; none where the oracle has no value, or takes long."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.measure.path_errors import WRONG, errors_of, is_measured

N = tg.dim("n", 1, 1 << 26)
GRAPH = tg.graph({"y": tg.tanh(tg.input("x", (N,)))})
X = np.linspace(-3, 3, 100, dtype=np.float32)


def test_each_path_has_the_error_of_its_own_outputs() -> None:
    right = np.tanh(X.astype(np.float64))
    off = right.copy()
    off[-1] *= 1.001
    outputs = [{"y": right}, {"y": off}, {"y": np.where(X > 2, np.nan, right)}]
    exact, rounded, wrong = errors_of(GRAPH, outputs, {"x": X}, {}, {"n": 100})
    assert exact == 0.0 and rounded == pytest.approx(1e-3, rel=1e-6) and wrong == WRONG


def test_what_the_oracle_has_no_value_of_has_no_error() -> None:
    x, i, u = tg.input("x", (4,)), tg.input("i", (2,), tg.i32), tg.input("u", (2,))
    twice = tg.graph({"y": tg.scatter(x, i, u, axis=0, mode="set")})
    given = {"x": np.zeros(4, np.float32), "i": np.array([1, 1], np.int32), "u": np.ones(2, np.float32)}
    assert errors_of(twice, [{"y": np.zeros(4)}], given, {}, {}) == [None]


def test_a_graph_that_keeps_the_oracle_busy_for_long_is_not_measured() -> None:
    assert is_measured(GRAPH, {"n": 100_000}) and not is_measured(GRAPH, {"n": 1 << 25})
    assert not is_measured(tg.graph(tg.linear(tg.input("x", (1024, 1024)), tg.parameter("w", (2048, 1024)))), {})
