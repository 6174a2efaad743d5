"""Parts of a graph that end in a node: their nodes are those between the operands and that node."""

from __future__ import annotations

import tensor_graphs as tg
from tensor_graphs.language.node import is_step, walk
from tensor_graphs.rewrites.subgraphs import Cuts, inside


def test_a_part_has_the_nodes_between_its_operands_and_its_end() -> None:
    x, w = tg.input("x", (4, 8)), tg.parameter("w", (8,))
    norm = x * tg.rsqrt(tg.mean(x * x, axis=-1, keepdims=True) + tg.iota(1).cast(tg.f32)) * w
    graph = tg.graph({"y": tg.softmax(norm + x)})
    cuts, seen = Cuts(graph), 0
    for node in filter(is_step, graph.nodes):
        for operands, part in cuts.of(node, 6, 3):
            seen += 1
            assert set(cuts.among(part)) == inside(node, operands)
            assert cuts.steps(part) == sum(map(is_step, inside(node, operands))) <= 6
            assert len({*operands}) == len(operands) <= 3 and cuts.fed.issuperset(operands)
            assert inside(node, operands).isdisjoint(walk(operands))    # no path leaves the part and re-enters
    assert seen > 20
