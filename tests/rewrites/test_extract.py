"""Swaps of e-nodes, evaluated by what they change, are those of entire graphs."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.extract import Choice, Extractor, _Swaps, add_graph
from tensor_graphs.rewrites.find_recipes import BRIEF
from tensor_graphs.rewrites.rule import BITWISE, REASSOCIATING
from tensor_graphs.rewrites.rules import ALL
from tensor_graphs.rewrites.saturate import saturate


def attention_of_one_layer() -> tg.Graph:
    x = tg.input("x", (5, 8))
    q, k, v = (tg.linear(tg.rms_norm(x, tg.parameter("n", (8,))), tg.parameter(name, (8, 8))) for name in "qkv")
    return tg.graph({"y": x + tg.softmax(q @ k.permute((1, 0))) @ v})


def training_step() -> tg.Graph:
    x, w = tg.input("x", (4, 6)), tg.parameter("w", (3, 6))
    loss = tg.mean(tg.square(tg.tanh(tg.linear(x, w))))
    return tg.graph({"loss": loss, "w": w - 0.1 * tg.grad(loss, w)})


@pytest.mark.parametrize("graph", [attention_of_one_layer(), training_step()])
def test_a_swap_changes_what_the_entire_graph_then_changes(graph: tg.Graph) -> None:
    e = EGraph()
    outputs, updates = add_graph(e, graph)
    view = saturate(e, ALL, BRIEF, (BITWISE, REASSOCIATING)).views[REASSOCIATING]
    extractor = Extractor(view, outputs, updates)

    def pairs(choice: Choice) -> set[tuple[int, int]]:
        return {(number, node.term) for number, node in choice.items()}

    tried = 0
    for choice in extractor.several(2):
        swaps = _Swaps(extractor, choice)
        for number in choice:
            for node in view.classes[number]:
                swap = swaps.of(number, node)
                other = None if node is choice[number] else extractor.chosen(choice, number, node)
                assert (swap is None) == (other is None)
                if swap is not None and other is not None:
                    tried += 1
                    assert swap.saved == pytest.approx(extractor.score(choice) - extractor.score(other), abs=1e-9)
                    assert swap.changes == pairs(choice) ^ pairs(other)
    assert tried > 20
