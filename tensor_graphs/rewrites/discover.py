"""discover: a search for the math of composites in a graph, in whatever form it is written.

    for found in discover(graph, ["silu", "softmax"]):
        print(found.show())
    faster = replaced(graph, discover(graph))

Parts of a graph (one output, few operands, few steps, no path that leaves and re-enters) are compared with composites on the same
operands by their fingerprints in finite fields. Where fingerprints agree, `proof.equal` decides, and only a proof counts. An
occurrence is equal over the real numbers (class "reassociating"), so nothing is replaced unless the caller asks for it. Definitions
as written are found without this search (recognise.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import over
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, apply, is_step
from tensor_graphs.proof.equality import EqualityVerdict, equal
from tensor_graphs.proof.fingerprint import fingerprint
from tensor_graphs.rewrites.composites import CHOICES
from tensor_graphs.rewrites.errors import RewriteError
from tensor_graphs.rewrites.passes.recognise import MARKED
from tensor_graphs.rewrites.subgraphs import Cuts, inside

MOST_STEPS = 12
"""Largest number of steps of a part."""

MOST_OPERANDS = 3

MOST_VALUES = 24
"""Largest number of attribute choices for one composite on one part."""

POINTS = 4
"""Points of the finite field for a first comparison. Where fingerprints agree, a proof decides."""

@dataclass(frozen=True)
class Found:
    """An occurrence of a composite's math at a node. steps: the graph's steps that it would replace. verdict: the proof."""

    node: Node
    op: CompositeOp
    attrs: Mapping[str, Any]
    operands: tuple[Node, ...]
    steps: int
    verdict: EqualityVerdict

    def show(self) -> str:
        attributes = "".join(f", {k}={v}" for k, v in self.attrs.items())
        types = ", ".join(str(o.type) for o in self.operands)
        return f"{self.op.name}({types}{attributes}) in {self.steps} steps, written at {self.node.location}"


def discover(graph: Graph, names: Sequence[str] | None = None, *, most_steps: int = MOST_STEPS) -> tuple[Found, ...]:
    """Return every proved occurrence, users before operands, at each node the largest first, except nodes that already are the
    composite.

    names: library composites to look for; by default all that are small enough. Raises RewriteError for an unknown name.
    """
    for name in names or ():
        if name not in LIBRARY:
            raise RewriteError(f"no library composite is named {name!r}", fix="one of " + ", ".join(sorted(LIBRARY)))
    ops = [LIBRARY[n] for n in names] if names is not None else [op for op in LIBRARY.values() if op.facts.sought]
    ops = [op for op in ops if not op.opaque and not op.variadic]
    search = _DiscoverSearch(graph, ops)
    occurrences: list[Found] = []
    for node in reversed(graph.nodes):
        if is_step(node) and len(node.types) == 1 and node in search.cuts.fed:
            here: dict[Any, Found] = {}
            for f in search.at(node, most_steps):
                here.setdefault((f.op.name, frozenset(f.operands)), f)
            occurrences += sorted(here.values(), key=lambda f: (-f.steps, f.op.name))
    return tuple(occurrences)


def replaced(graph: Graph, occurrences: Sequence[Found]) -> Graph:
    """Return the graph with composites in place of occurrences: at each node the largest, and none within another."""
    chosen: dict[Node, Found] = {}
    taken: set[Node] = set()
    order = {n: i for i, n in enumerate(graph.nodes)}
    for f in sorted(occurrences, key=lambda f: (-f.steps, -order.get(f.node, -1))):
        part = inside(f.node, f.operands)
        if f.node in order and not part & taken:
            chosen[f.node] = f
            taken |= part

    images: dict[Node, Node] = {}
    stack = list(graph.roots)
    while stack:
        node = stack[-1]
        here = chosen.get(node)
        sources = node.inputs if here is None else here.operands
        missing = [s for s in sources if s not in images]
        if node in images or not missing:
            stack.pop()
            if node not in images:
                inputs = [images[s] for s in sources]
                images[node] = apply(node.op, inputs, node.attrs) if here is None else apply(here.op, inputs, here.attrs)
        else:
            stack.extend(missing)
    return graph.with_roots([images[r] for r in graph.roots])


def _call(op: CompositeOp, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Graph:
    """Return a graph of the composite on inputs of these types. Raises LanguageError if it does not accept them."""
    return make_graph(apply(op, [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)], attrs))


class _DiscoverSearch:
    """A search for some composites in one graph."""

    def __init__(self, graph: Graph, ops: Sequence[CompositeOp]) -> None:
        self.ops, self.cuts = ops, Cuts(graph)
        self.calls: dict[Any, tuple[Graph, str] | None] = {}
        self.prints: dict[str, str | None] = {}

    def at(self, node: Node, most_steps: int) -> Iterator[Found]:
        """Yield the occurrences at a node, over any operands below it."""
        for cut, part in self.cuts.of(node, most_steps, MOST_OPERANDS):
            steps = self.cuts.steps(part)
            if steps < 2:
                continue
            numbers = [n.attrs["value"] for p in self.cuts.among(part) for n in p.inputs if n.op is leaves.CONSTANT]
            numbers = list(dict.fromkeys(v for v in numbers if isinstance(v, float) and math.isfinite(v)))
            for order in itertools.permutations(cut):
                types = tuple(o.type for o in order)
                mine: Graph | None = None
                for op, attrs in self.candidates(types, node, numbers):
                    call = self.call(op, types, attrs)
                    if call is None or call[0].outputs["out"].type != node.type:
                        continue
                    mine = mine or self.alone(node, order)
                    if self.fingerprint(mine) != call[1]:
                        continue
                    verdict = equal(mine, call[0])
                    if verdict.proved:
                        yield Found(node, op, attrs, order, steps, verdict)

    def candidates(self, types: Sequence[TensorType], node: Node,
                   numbers: Sequence[float]) -> Iterator[tuple[CompositeOp, dict[str, Any]]]:
        """Yield the composites with this number of operands, with attributes, for which a part's numbers are candidates."""
        for op in self.ops:
            optional = [n for n in op.operands if n in op.optional]
            left_out = len(op.operands) - len(types)
            if not 0 <= left_out <= len(optional):
                continue
            options = [self.values(op, name, types, node, numbers) for name in op.attributes]
            for absent in itertools.combinations(optional, left_out):
                for values in itertools.islice(itertools.product(*options), MOST_VALUES):
                    yield op, {**dict(zip(op.attributes, values, strict=True)), **({"absent": absent} if absent else {})}

    def values(self, op: CompositeOp, name: str, types: Sequence[TensorType], node: Node,
               numbers: Sequence[float]) -> Sequence[Any]:
        default = op.signature.parameters[name].default
        if name in ("axis", "axes"):
            return [-1, *range(types[0].rank - 1)]
        if name == "dtype":
            return [node.dtype]
        if name == "start":
            return [0]
        if name in CHOICES and name not in MARKED:
            return CHOICES[name]
        return [*dict.fromkeys([*([default] if isinstance(default, (int, float)) else []), *numbers])]

    def call(self, op: CompositeOp, types: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> tuple[Graph, str] | None:
        """Return a composite on inputs of these types, and its fingerprint; None if it does not accept them or has none."""
        key = (op, types, tuple((k, repr(v)) for k, v in attrs.items()))
        if key not in self.calls:
            self.calls[key] = None
            try:
                call = _call(op, types, attrs)
                text = self.fingerprint(call)
                self.calls[key] = None if text is None else (call, text)
            except (TensorGraphsError, TypeError, ValueError, IndexError):
                pass                                                # the op does not go with these operands: None says so
        return self.calls[key]

    def alone(self, node: Node, operands: Sequence[Node]) -> Graph:
        """Return a part as a separate graph over inputs named x0, x1, …"""
        return make_graph(over([node], operands, [leaves.input(f"x{i}", o.shape, o.dtype) for i, o in enumerate(operands)])[0])

    def fingerprint(self, graph: Graph) -> str | None:
        key = graph.outputs["out"].digest
        if key not in self.prints:
            try:
                self.prints[key] = fingerprint(graph, points=POINTS)
            except TensorGraphsError:
                self.prints[key] = None
        return self.prints[key]
