"""Regions: equal layers are solved once, and what is stitched together is the same graph under the same names."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import leaves
from tensor_graphs.language.text import parse_graph, print_graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.extract import paid_nodes
from tensor_graphs.rewrites.graph_regions import regions, simplify_by_regions, solve_by_regions
from tensor_graphs.rewrites.recipes import recipes
from tensor_graphs.rewrites.rules import ALL
from tensor_graphs.rewrites.saturate import Budget

BUDGET = Budget(seconds=600.0, nodes=4000)
SPEC = Gemma3Spec(vocabulary=11, hidden=8, ffn=12, heads=2, kv_heads=1, head_dim=4, layers=("sliding",) * 3, window=3, eps=1e-6,
                  scale=0.5, sliding_rope=Rope(1e4), full_rope=Rope(1e6))


def decoder() -> tg.Graph:
    return gemma3_graph(SPEC, max_positions=6)


def results(graph: tg.Graph) -> dict[str, np.ndarray]:
    r = np.random.default_rng(0)
    given = {name: r.standard_normal(p.type.at({}).shape) for name, p in sorted({**graph.parameters, **graph.states}.items())}
    found = interpret(graph, {"ids": np.array([3, 1, 7], np.int32)}, {n: given[n] for n in graph.parameters},
                      {n: given[n] for n in graph.states}, dims={"n": 3, "p": 2, "m": 2})
    return {**found.outputs, **found.updates}


def same(a: tg.Graph, b: tg.Graph) -> bool:
    left, right = results(a), results(b)
    return left.keys() == right.keys() and all(np.allclose(left[k], right[k], rtol=1e-9, atol=1e-11) for k in left)


def test_equal_layers_are_one_region_each() -> None:
    found = regions(decoder())
    assert len(found.chain) == 8 and len({r.graph for r in found.chain}) == 4       # embedding, 3 × (attention, mlp), head
    assert found.beside is not None and found.distinct == 5                       # tables of positions
    covered = {n for r in found.all for n in r.nodes}
    assert all(n in covered or n in found.numbers or n.op.kind == "leaf" for n in decoder().nodes)


def test_each_distinct_region_is_solved_once_and_the_whole_is_the_same() -> None:
    graph, sizes = decoder(), list[int]()

    def check(e: EGraph) -> None:
        e.check_invariants()
        sizes.append(e.size)

    made, solver = solve_by_regions(graph, ALL, "reassociating", BUDGET, count=3, after_round=check)
    for region in regions(graph).all:
        assert region.graph in solver.known
    assert len(solver.known) <= 5 + 3 * solver.report.pairs and solver.report.pairs <= 4
    assert sizes and max(sizes) == solver.report.largest <= BUDGET.nodes
    assert solver.report.saturated == {"bitwise": True, "reassociating": True}
    assert paid_nodes(made[0].graph) < paid_nodes(graph) and len(made) == 3
    assert made[0].cost <= made[1].cost <= made[2].cost
    for one in made:
        assert set(one.graph.parameters) == set(graph.parameters) and one.graph.updates.keys() == graph.updates.keys()
        assert list(one.graph.outputs) == list(graph.outputs) and one.graph.inputs.keys() == graph.inputs.keys()
        assert same(graph, one.graph)
        assert parse_graph(print_graph(one.graph)) == one.graph


def test_a_budget_of_nodes_bounds_each_region_aloud() -> None:
    _, solver = solve_by_regions(decoder(), ALL, "reassociating", Budget(seconds=600.0, nodes=40))
    assert solver.report.stopped == "more than 40 e-nodes" and not all(solver.report.saturated.values())
    assert all(len(s.egraph.terms) <= 4 * 40 + 80 for s in solver.known.values())


def test_more_layers_are_no_more_work() -> None:
    def terms(layers: int) -> int:
        x = tg.input("x", (3, 4))
        for i in range(layers):
            x = x + tg.silu(tg.linear(tg.rms_norm(x, tg.parameter(f"g{i}", (4,))), tg.parameter(f"w{i}", (4, 4))))
        return solve_by_regions(tg.graph(x), ALL, "reassociating", BUDGET)[1].report.e_nodes

    assert terms(4) == terms(9)


def chained(layers: int) -> tg.Graph:
    """Each layer ends with a scale of each channel, which belongs into the next one's weight."""
    x = tg.input("x", (3, 4))
    for i in range(layers):
        h = tg.sin(tg.linear(x, tg.parameter(f"w{i}", (4, 4)))) * tg.linear(x, tg.parameter(f"v{i}", (4, 4)))
        x = tg.exp(h) * tg.parameter(f"c{i}", (4,))
    return tg.graph(x)


def test_what_a_border_hides_is_found_by_a_pair() -> None:
    graph = chained(3)
    assert len(regions(graph).chain) == 6
    (made,), solver = solve_by_regions(graph, ALL, "reassociating", BUDGET)
    assert solver.report.joined == 2 and solver.report.pairs == 2
    (whole,) = recipes(graph, count=1, budget=BUDGET, whole=True).list
    assert paid_nodes(made.graph) == whole.paid == paid_nodes(graph) - 5           # three joined products, two folded scales
    r = np.random.default_rng(1)
    given = {n: r.standard_normal(p.type.at({}).shape) for n, p in graph.parameters.items()}
    x = r.standard_normal((3, 4))
    a, b = (interpret(g, {"x": x}, given).outputs["out"] for g in (graph, made.graph))
    assert np.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_recipes_of_a_large_graph_come_from_its_regions() -> None:
    made = recipes(decoder(), count=2, budget=BUDGET, whole=False)
    assert made.regions is not None and made.regions.distinct == 5
    assert "join/two" in made.list[0].rules or "join/three" in made.list[0].rules
    assert "join/" in made.derivation(0)
    assert same(made.list[0].graph, decoder())


def test_simplifying_by_regions_keeps_a_minimal_graph_and_drops_what_does_nothing() -> None:
    graph = decoder()
    assert simplify_by_regions(graph)[0] == graph
    x = tg.input("x", (3, 4))
    ugly = tg.graph(tg.neg(tg.neg(tg.exp(x) + tg.sin(x))) * 1.0)
    made, report = simplify_by_regions(ugly)
    assert paid_nodes(made) == 3 and report.regions >= 1


def scanned(turn: int, last: int, source: str) -> tg.Graph:
    """A chain of ten links; a scan of what `source` says is read in two of them, by its carry and by its values."""
    x, z, start = tg.input("x", (3, 4)), tg.input("z", (5, 4)), tg.parameter("start", (4,))
    read = {"parameter": tg.parameter("p", (5, 4)), "input": z, "stream": tg.concat(x, z, axis=0)}[source]
    carry, values = tg.scan(lambda c, s: (c * 0.5 + s, tg.tanh(c - s)), start, read)
    h = x
    for i in range(10):
        h = tg.tanh(tg.exp(h) * 0.5 + (h + carry if i == turn else h + tg.sum(values, 0) if i == last else h))
        h = tg.dot(h, tg.parameter(f"w{i}", (4, 4)))
    return tg.graph(h)


@pytest.mark.parametrize("source", ["parameter", "input", "stream"])
@pytest.mark.parametrize(("turn", "last"), [(2, 7), (7, 2), (4, 5), (0, 9), (3, 99)])
def test_a_scan_is_in_one_region_with_all_that_takes_an_output_of_it(source: str, turn: int, last: int) -> None:
    graph = scanned(turn, last, source)
    for region in regions(graph).all:
        held = set(region.nodes)
        assert all((n in held) == (n.inputs[0] in held) for n in graph.nodes if n.op is leaves.ITEM)
    made = recipes(graph, count=2, budget=BUDGET, whole=False)
    r = np.random.default_rng(2)
    given = {n: r.standard_normal(p.type.at({}).shape) for n, p in graph.parameters.items()}
    inputs = {n: r.standard_normal(p.type.at({}).shape) for n, p in graph.inputs.items()}
    a, b = (interpret(g, inputs, given).outputs["out"] for g in (graph, made.list[-1].graph))
    assert np.allclose(a, b, rtol=1e-9, atol=1e-12)
