"""mutants: graphs of a decoder with one small mistake each. A comparison that lets one of them pass proves nothing.

A mutant is a function from graph to graph that looks only at ops, so that it works on every size of model:
`mutant.apply(graph)`, then run both and demand that the comparison fails. A mutant that finds nothing to change raises
LookupError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import Node, apply, rebuild

Change = Callable[[Node, tuple[Node, ...]], Node | None]
"""(old node, its new operands) -> what stands in its place; None: no change here."""


@dataclass(frozen=True)
class Mutant:
    """One mistake. first_only: made in the lowest place where it can be made, instead of everywhere."""

    name: str
    change: Callable[[Graph], Change]
    first_only: bool = False

    def apply(self, g: Graph) -> Graph:
        """The graph with the mistake. Raises LookupError when it has no place for it."""
        change, places = self.change(g), 0

        def replace(node: Node, inputs: tuple[Node, ...]) -> Node | None:
            nonlocal places
            if self.first_only and places:
                return None
            made = change(node, inputs)
            places += made is not None
            return made

        roots = rebuild(list(g.roots), replace)
        if not places:
            raise LookupError(f"the mutant {self.name!r} found nothing to change in {g!r}")
        outputs, updates = roots[:len(g.outputs)], roots[len(g.outputs):]
        return graph(dict(zip(g.outputs, outputs, strict=True)), dict(zip(g.updates, updates, strict=True)))


def _attribute(op: str, attribute: str, new: Callable[[Any], Any],
               when: Callable[[Node], bool] = lambda n: True) -> Change:
    def change(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if not node.is_op(op) or not when(node):
            return None
        return apply(node.op, inputs, {**node.attrs, attribute: new(node.attrs[attribute])})

    return change


def _everywhere(op: str, attribute: str, new: Callable[[Any], Any],
                when: Callable[[Node], bool] = lambda n: True) -> Callable[[Graph], Change]:
    return lambda g: _attribute(op, attribute, new, when)


def _slides(node: Node) -> bool:
    return bool(node.attrs["window"] > 0)


def _exchanged_thetas(g: Graph) -> Change:
    """Local layers get the global angles and the other way round; a model with one theta gets ten times as much."""
    thetas = sorted({float(n.attrs["theta"]) for n in g.nodes if n.is_op("rope_table")})
    other = dict(zip(thetas, reversed(thetas), strict=True)) if len(thetas) > 1 else {t: 10 * t for t in thetas}
    return _attribute("rope_table", "theta", lambda theta: other[theta])


def _no_rope(g: Graph) -> Change:
    return lambda node, inputs: inputs[0] if node.is_op("rope") else None


def _two_heads_exchanged(g: Graph) -> Change:
    """The first two heads of an attention's output change places."""
    def change(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if not node.is_op("attention") or node.shape[1] == 1:
            return None
        heads = node.shape[1]
        assert isinstance(heads, int)
        return atomic.gather(apply(node.op, inputs, node.attrs), constant(np.array([1, 0, *range(2, heads)])), axis=1)

    return change


def _first_cached_row_lost(g: Graph) -> Change:
    """New rows land one row too late, so that row 0 stays empty and the last is dropped or late."""
    return _attribute("write_rows", "start", lambda start: start + 1)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("window + 1", _everywhere("attention", "window", lambda w: w + 1, _slides)),
    Mutant("window - 1", _everywhere("attention", "window", lambda w: w - 1, _slides)),
    Mutant("window + 1 in one layer", _everywhere("attention", "window", lambda w: w + 1, _slides), first_only=True),
    Mutant("not causal", _everywhere("attention", "causal", lambda c: not c)),
    Mutant("eps x 10", _everywhere("rms_norm", "eps", lambda eps: 10 * eps)),
    Mutant("norm without offset", _everywhere("rms_norm", "offset", lambda offset: 0.0)),
    Mutant("scale 1/sqrt(d - 1)", _everywhere("attention", "scale", lambda s: (s ** -2 - 1) ** -0.5)),
    Mutant("no rope", _no_rope),
    Mutant("thetas exchanged", _exchanged_thetas),
    Mutant("two heads exchanged", _two_heads_exchanged, first_only=True),
    Mutant("embedding not scaled", _everywhere("embedding", "scale", lambda s: 1.0)),
    Mutant("gelu by erf", _everywhere("gated", "activation", lambda a: "gelu")),
    Mutant("cache written one row late", _first_cached_row_lost),
)
