"""A model of many equal layers: what is chosen is asked once, whatever their number, and so is how it is called."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths import copies, lower
from tensor_graphs.paths.path import Paths
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites import find_recipes


def layers(count: int) -> Graph:
    """A norm and two products that may be joined, so many times, each with weights of its own."""
    n = tg.dim("n", 1, 64)
    x = tg.input("x", (n, 16), tg.f32)
    for i in range(count):
        h = tg.rms_norm(x)
        up, gate = (tg.linear(h, tg.parameter(f"{name}{i}", (16, 16), tg.f32)) for name in ("up", "gate"))
        x = x + tg.silu(gate) * up
    return tg.graph(x)


@pytest.fixture
def counted(store: Database, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often costs are asked for, ways are listed, copies costed, signatures counted, regions searched, and nodes lowered
    that are not like one before."""
    compile_graph(layers(18), database=store, backends=("numpy",))     # verdicts on file: no judge works with replaced code
    seen: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def counting(*given: Any, **named: Any) -> Any:
            seen[name] += 1
            return plain(*given, **named)

        monkeypatch.setattr(owner, name, counting)

    for owner, name in ((CostTable, "cost"), (Paths, "alternatives"), (copies, "copied"), (copies, "strided"),
                        (copies, "layout_of"), (find_recipes, "saturate"), (lower, "signature_of")):
        count(owner, name)
    return seen


def test_five_times_the_layers_ask_for_no_more_costs_and_are_lowered_by_the_same_calls(
        store: Database, counted: Counter[str]) -> None:
    def work(count: int) -> Counter[str]:
        graph = layers(count)
        counted.clear()
        plan = compile_graph(graph, database=store, backends=("numpy",))
        assert len(plan.variants[0].program.instructions) >= 3 * count
        return Counter(counted)

    few, many = work(18), work(90)
    assert few["cost"] > 0 and many["cost"] <= 1.3 * few["cost"], (few, many)
    assert many["alternatives"] <= 1.3 * few["alternatives"] and many["saturate"] <= few["saturate"], (few, many)
    assert 0 < many["copied"] <= 1.3 * few["copied"] and many["strided"] <= few["strided"], (few, many)
    assert 0 < many["layout_of"] <= few["layout_of"], (few, many)
    assert 0 < many["signature_of"] <= few["signature_of"], (few, many)
