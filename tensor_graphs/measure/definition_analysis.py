"""definition_analysis: finds sums, maxima and comparisons of floats in an op's definition, which decide where it is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.composite import atoms_in
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, walk


@lru_cache(maxsize=1024)
def definition_of(graph: Graph) -> Graph:
    """Return the graph expanded to atomic ops, including the ops of loop bodies."""
    return graph.with_roots(atoms_in(graph.roots))


def _varying(whole: Graph) -> set[Node]:
    """Return the nodes that depend on an input."""
    varies: set[Node] = set()
    for node in whole.nodes:
        if node in whole.inputs.values() or any(i in varies for i in node.inputs):
            varies.add(node)
    return varies


@lru_cache(maxsize=1024)
def adds_products(graph: Graph) -> bool:
    """Return whether the definition sums floats and multiplies two values that both depend on inputs (squares included)."""
    whole = definition_of(graph)
    varies = _varying(whole)
    floats = [node for node in whole.nodes if node.dtype.kind == "float"]
    return any(n.op.name == "sum" for n in floats) and any(n.op.name == "mul" and varies.issuperset(n.inputs) for n in floats)


def adds_floats(graph: Graph) -> bool:
    """Return whether a graph's definition adds up floats."""
    return any(node.op.name == "sum" and node.dtype.kind == "float" for node in definition_of(graph).nodes)


@lru_cache(maxsize=1024)
def most_terms(graph: Graph) -> d.Dim:
    """Return the number of terms of the longest float sum, a dim; 0 without one or in f64, where any narrower accumulator shows."""
    whole = definition_of(graph)
    varies = _varying(whole)
    counts = [d.product([node.inputs[0].shape[axis] for axis in node.attrs["axes"]]) for node in whole.nodes
              if node.op.name == "sum" and node in varies and node.dtype.kind == "float" and node.dtype.itemsize < 8]
    return d.dim_max(0, *counts) if counts else 0


@dataclass(frozen=True)
class Padded:
    """Operands whose rows may begin with padding. floats: padded with −∞; masks: with False; each maps an operand to the axis of
    the maximum, counted from the right. dims: dims that give the length of such rows."""

    floats: Mapping[str, int] = field(default_factory=dict)
    masks: Mapping[str, int] = field(default_factory=dict)
    dims: frozenset[str] = frozenset()


@dataclass(frozen=True)
class OneSided:
    """Operands of maxima whose rows may all be on one side of zero -> axes of a row, from the right. straight: operands whose
    numbers enter a maximum or a comparison unmultiplied; multiplied: factors of such numbers, if `straight` is empty."""

    straight: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    multiplied: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@lru_cache(maxsize=1024)
def one_sided_operands(graph: Graph) -> OneSided:
    """Return the operands of a graph's maxima, with the axes of the maximum, or all but the first where shapes change (pooling)."""
    whole = definition_of(graph)
    names, varies = {node: name for name, node in whole.inputs.items()}, _varying(whole)
    straight, multiplied = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    for top in whole.nodes:
        if top.op.name != "reduce_max" or top not in varies:
            continue
        (operand,) = top.inputs
        rank, over = len(operand.shape), top.attrs["axes"]
        for name, kind in _reached(operand, names, varies):
            shape = whole.inputs[name].shape
            alike = len(shape) == rank and all(same_dim(shape[axis], operand.shape[axis]) for axis in over)
            if kind != "bool":
                straight.setdefault(name, tuple(axis - rank for axis in over) if alike else _behind_first(shape))
        if not straight:
            multiplied |= {names[leaf]: _behind_first(leaf.shape) for leaf in walk([operand])
                           if leaf in names and leaf.dtype.kind == "float"}
    if compares_operands(graph):
        straight = {n: (-1,) for n, leaf in whole.inputs.items() if leaf.dtype.kind == "float" and leaf.shape} | straight
    return OneSided(straight, {} if straight else multiplied)


def _behind_first(shape: Sequence[d.Dim]) -> tuple[int, ...]:
    """Return all axes but the first, counted from the right; if there is only one axis, that axis."""
    return tuple(range(-max(1, len(shape) - 1), 0)) if shape else ()


@lru_cache(maxsize=1024)
def padded_operands(graph: Graph) -> Padded:
    """Return the float operands that reach a maximum over one axis through data movement, selections and additions alone (−∞ · 0 is
    NaN), and the masks that select its values."""
    whole = definition_of(graph)
    names, varies = {node: name for name, node in whole.inputs.items()}, _varying(whole)
    operands: dict[str, dict[str, int]] = {"float": {}, "bool": {}}
    dims: set[str] = set()
    for top in whole.nodes:
        if top.op.name != "reduce_max" or top not in varies or top.dtype.kind != "float" or len(top.attrs["axes"]) != 1:
            continue
        (operand,), (axis,) = top.inputs, top.attrs["axes"]
        size, right = operand.shape[axis], axis - len(operand.shape)
        for name, kind in _reached(operand, names, varies):
            shape, dtype = whole.inputs[name].shape, whole.inputs[name].dtype
            if kind not in operands or len(shape) < -right or not same_dim(shape[right], size):
                continue
            if kind == "bool" or dtype.has_infinity:
                operands[kind][name] = right
                dims |= set(map(str, d.symbols(size)))
    return Padded(operands["float"], operands["bool"], frozenset(dims))


def _reached(operand: Node, names: Mapping[Node, str], varies: set[Node]) -> set[tuple[str, str]]:
    """Return (input, kind of its dtype) for inputs that reach the operand by moves and additions, and bools that select in it."""
    inputs, seen, left = set[tuple[str, str]](), set[Node](), [operand]
    while left:
        node = left.pop()
        if node in seen or node not in varies:
            continue
        seen.add(node)
        facts = node.op.facts
        if node in names:
            inputs.add((names[node], node.dtype.kind))
        elif node.dtype.kind == "bool":
            left += [i for i in node.inputs if i.dtype.kind == "bool"]
        elif facts.exact or (facts.determined and not (facts.rounds or facts.ring or facts.leaps)) or (
                facts.ring and len(node.inputs) == 2 and (
                    node.op.name == "add" or len(varies.intersection(node.inputs)) == 1)):
            left += node.inputs
    return inputs


@lru_cache(maxsize=1024)
def compares_operands(graph: Graph) -> bool:
    """Return whether the definition compares two floats that are elements of its operands, moved or cast but not computed."""
    whole = definition_of(graph)
    stored: set[Node] = set()
    for node in whole.nodes:
        if node in whole.inputs.values() or (node.op.facts.exact and stored.intersection(node.inputs)) or (
                node.op.name == "cast" and stored.issuperset(node.inputs)):
            stored.add(node)
    return any(node.op.facts.compares and stored.issuperset(node.inputs) and len(set(node.inputs)) == 2
               and all(i.dtype.kind == "float" for i in node.inputs) for node in whole.nodes)
