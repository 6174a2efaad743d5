"""Draws of an entire path: trajectories that carry states on, and what they find wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.measure.error_draws import ROWS, STEPS, ErrorDraws, drawn_weights, trajectory
from tensor_graphs.models.gemma3 import Gemma3Spec, gemma3_graph
from tensor_graphs.models.rope import Rope

SPEC = Gemma3Spec(vocabulary=97, hidden=32, ffn=48, heads=2, kv_heads=1, head_dim=16, layers=("sliding", "full"), window=8,
                  eps=1e-6, scale=0.25, sliding_rope=Rope(1e4), full_rope=Rope(1e6))
N = tg.dim("n", 1, 64)


def decoder(room: int = 128, dtype: tg.DType = tg.f32) -> tg.Graph:
    return gemma3_graph(SPEC, max_positions=room, weight_dtype=dtype, activation_dtype=dtype)


def counter(forgets: bool = False) -> tg.Graph:
    """y = x + s; s becomes x + s, or stays as it was."""
    x, s = tg.input("x", (4, 8)), tg.state("s", (4, 8))
    y = x + s.read()
    return tg.graph({"y": y}, {s: s.read() * 1.0 if forgets else y})


def test_a_decoder_reads_a_text_and_then_goes_on_one_position_at_a_time() -> None:
    runs = trajectory(decoder(), {"n": 1, "p": 7, "m": 1})
    assert runs[0] == {"n": ROWS, "p": 0, "m": ROWS}
    assert runs[1:] == [{"n": 1, "p": ROWS + i, "m": 1} for i in range(STEPS)]
    assert trajectory(decoder(20), {"n": 1, "p": 7, "m": 1}) == [{"n": 12, "p": 0, "m": 12}, *({"n": 1, "p": 12 + i, "m": 1}
                                                                                              for i in range(8))]


def test_other_states_are_carried_through_runs_of_one_size() -> None:
    assert trajectory(counter(), {}) == [{}] * (1 + STEPS)


def test_a_graph_without_states_runs_at_typical_and_at_large_sizes() -> None:
    assert trajectory(tg.graph(tg.softmax(tg.input("x", (N, 8)))), {"n": 5}) == [{"n": 5}, {"n": 64}]
    assert trajectory(tg.graph(tg.softmax(tg.input("x", (3, 8)))), {}) == [{}]
    assert trajectory(tg.graph(tg.exp(tg.input("x", (N, 8)))[5]), {"n": 2}) == [{"n": 64}]      # n = 2 has no row 5


def test_sizes_that_take_the_oracle_too_long_are_halved() -> None:
    n = tg.dim("n", 1, 1 << 20)
    graph = tg.graph(tg.linear(tg.input("x", (n, 1024)), tg.parameter("w", (1024, 1024))))
    typical, large = trajectory(graph, {"n": 1 << 20})
    assert 1 << 15 <= typical["n"] < 1 << 17 and large["n"] < 1 << 10


def test_the_same_graph_in_float64_has_no_error_and_bf16_has_one() -> None:
    draws = ErrorDraws(graph := decoder(dtype=tg.bf16), drawn_weights(graph), {"n": 1, "p": 0, "m": 1})
    (draw,) = draws.of_graph(graph, [0])
    assert set(draw) == {"logits"} and 1e-4 < draw["logits"].norm < 0.1
    wide = decoder(dtype=tg.f32)
    (none,) = ErrorDraws(wide, drawn_weights(wide), {"n": 1, "p": 0, "m": 1}).of_graph(wide, [0])
    assert none["logits"].norm < 1e-5


def test_a_state_that_is_not_carried_on_is_found_by_a_later_run() -> None:
    draws = ErrorDraws(counter(), {}, {})
    stale = counter(forgets=True)
    assert draws.of_graph(stale, [0], first_run=True)[0]["y"].max == 0
    assert draws.of_graph(stale, [0])[0]["y"].max > 0.1
    assert draws.of_graph(counter(), [0])[0]["y"].max < 1e-6


def test_nan_on_one_draw_is_within_no_limit() -> None:
    x = tg.input("x", (64,))
    right, wrong = tg.graph(tg.exp(x)), tg.graph(tg.exp(x) + tg.log(tg.minimum(x + 1.0, 0.0) * 0.0 + 1.0) / (x < 0.5).cast(tg.f32))
    (draw,) = ErrorDraws(right, {}, {}).of_graph(wrong, [0])
    assert math.isinf(draw["out"].max)


def test_draws_are_the_same_for_a_seed_and_differ_between_seeds() -> None:
    graph = tg.graph(tg.softmax(tg.input("x", (N, 8), tg.bf16)))
    draws = [ErrorDraws(graph, {}, {"n": 9}).of_graph(graph, [0, 1]) for _ in range(2)]
    assert draws[0] == draws[1] and draws[0][0] != draws[0][1]


@pytest.mark.processes
def test_a_plan_is_run_with_states_and_outputs_are_rows_of_all_runs() -> None:
    graph = decoder(dtype=tg.bf16)
    weights = drawn_weights(graph)
    plan = tg.compile(graph, backends=("numpy",), at={"n": 1, "p": 3, "m": 1}, database=":memory:")
    (path,) = ErrorDraws(graph, weights, {"n": 1, "p": 3, "m": 1}).of_plan(plan, [0])
    (rounded,) = ErrorDraws(graph, weights, {"n": 1, "p": 3, "m": 1}).of_graph(graph, [0])
    assert 0.2 < path["logits"].norm / rounded["logits"].norm < 1.5


def test_weights_keep_magnitudes() -> None:
    graph = tg.graph(tg.linear(tg.input("x", (4, 400)), tg.parameter("w", (300, 400)), tg.parameter("b", (300,))))
    weights = drawn_weights(graph)
    assert np.isclose(weights["w"].std() * np.sqrt(400), 1, rtol=0.05) and weights["b"].std() < 0.2
