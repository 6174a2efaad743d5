"""Tally: which signature of a graph stands for all of its key."""

from __future__ import annotations

import tensor_graphs as tg
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.node import alike
from tensor_graphs.paths.signature_counts import tally_of


def test_one_signature_stands_for_its_key_in_all_tallies_of_a_graph_whatever_each_meets_first() -> None:
    """Prices are asked at the sizes of its dims, by one tally and looked up by another."""
    n, m = tg.dim("n", 1, 64), tg.dim("m", 1, 64)
    x, y = tg.input("x", (n, 8), tg.f32), tg.input("y", (m, 8), tg.f32)
    there, back = tg.linear(x, y), tg.linear(y, x)
    graph = tg.graph(tg.sum(x, axis=0))
    one, other = tally_of(graph).tally.copy(), tally_of(graph).tally.copy()
    counts = [one.add(alike([x, y, there, back])), other.add(alike([x, y, back, there]))]
    assert counts[0] == counts[1] == {signature_of(there): 2}
