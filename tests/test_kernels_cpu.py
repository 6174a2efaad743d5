"""benchmarks/kernels_cpu.py: its graphs say the same as torch's functions, and wrong or slow rows are seen as such."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from benchmarks.cpu_graphs import Case, cases
from benchmarks.in_turns import Timed, in_turns
from benchmarks.kernels_cpu import as_array, error_of, misses, summary, torch_call
from tensor_graphs.measure.timing import settle_threads

CASES = cases(torch)
LARGE = 1 << 20
"""elements of operands, beyond which a case is too slow for a test of its own"""


def small(case: Case) -> bool:
    return sum(math.prod(g.shape) for g in case.given.values()) < LARGE


def test_there_are_graphs_of_every_kind_with_names_of_their_own() -> None:
    assert len(CASES) == len({(c.kind, c.name) for c in CASES}) >= 40
    assert {"element-wise", "optimizer", "reduction", "softmax", "norm", "movement", "product", "layer", "attention", "image",
            "loop", "gradient"} == {c.kind for c in CASES}


@pytest.mark.parametrize("case", [c for c in CASES if small(c)], ids=lambda c: c.name)
def test_a_graph_means_what_torch_computes(case: Case) -> None:
    operands = {name: given.array(np.random.default_rng(0)) for name, given in case.given.items()}
    graph = case.graph
    found = tg.interpret(graph, *({n: operands[n] for n in leaves} for leaves in (graph.inputs, graph.parameters))).outputs
    theirs = torch_call(torch, case, case.torch, operands)()
    theirs = [as_array(t) for t in (theirs if isinstance(theirs, tuple) else (theirs,))]
    assert error_of(theirs, [np.asarray(found[n]) for n in graph.outputs], list(graph.outputs.values())) < 1e-2


def row(ratio: float, right: bool = True, kind: str = "a") -> dict[str, Any]:
    return {"kind": kind, "graph": f"{kind} {ratio}", "ratio": ratio if right else math.nan, "hot": 1.0, "right": right,
            "error": 0.5}


def test_a_wrong_output_is_a_miss_and_counts_in_no_mean() -> None:
    rows = [row(2.0), row(8.0), row(9.0, right=False, kind="b")]
    assert misses(rows, True) == ["b 9.0: wrong, its error is 5.0e-01"]
    found = summary(rows)
    assert found["a"][:2] == (2, 4.0) and math.isnan(found["b"][1]) and found["all"][:2] == (3, 4.0)


def test_a_slow_graph_and_a_low_mean_are_misses() -> None:
    assert misses([row(1.3), row(1.3)], True) == []
    assert misses([row(0.8), row(4.0)], True) == ["a 0.8: 0.80 is below 0.85"]
    assert misses([row(1.1), row(1.1)], True) == ["the geometric mean is 1.10, below 1.25"] and not misses([row(1.1)], False)


def test_the_error_of_an_output_that_is_off_is_seen() -> None:
    ones = np.ones((2, 3))
    x = tg.input("x", (2, 3))
    assert error_of([ones], [ones], [x]) == 0
    assert error_of([ones + 0.1], [ones], [x]) == pytest.approx(0.1)
    assert error_of([ones * np.nan], [ones], [x]) == math.inf


def test_each_has_as_many_turns_and_a_cold_run_follows_a_warm_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle_threads, "AWAKE_SECONDS", 0.0)
    said: list[str] = []
    everyone = [Timed(lambda n=n: said.append(f"warm {n}"), lambda n=n: said.append(f"cold {n}")) for n in "ab"]  # type: ignore[misc]
    in_turns(everyone, 2, np.ones(4))
    assert said == [f"{what} {n}" for n in "baab" for what in ("warm", "cold", "cold")]
    assert all(len(t.samples) == len(t.hot) == 2 and t.low <= t.median for t in everyone)
