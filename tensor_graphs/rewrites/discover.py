"""discover: where the math of a composite occurs in a graph, in whatever form it is written.

    for found in discover(graph, ["silu", "softmax"]):
        print(found.show())
    faster = replaced(graph, discover(graph))

Parts of a graph (one output, few operands, few steps, nothing that leaves and comes back) are compared with composites on the same
operands by their fingerprints in finite fields; what agrees is put to `meaning.equal`, and counts only when that proves it. What is
found is equal over the real numbers (class "reassociating"), so nothing is replaced unless it is asked for; what is a definition as
written is found without this (recognise.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, apply
from tensor_graphs.meaning.equality import Verdict, equal
from tensor_graphs.meaning.fingerprint import fingerprint
from tensor_graphs.rewrites.composites import CHOICES
from tensor_graphs.rewrites.egraph import VIEWS
from tensor_graphs.rewrites.errors import RewriteError
from tensor_graphs.rewrites.recognise import MARKED, with_roots

MOST_STEPS = 12
"""Steps of a part."""

MOST_OPERANDS = 3

MOST_CUTS = 160
"""Parts that are looked at for one output."""

MOST_VALUES = 24
"""Choices of attributes for one composite on one part."""

POINTS = 4
"""of the field for a first comparison; what agrees is proved, or dropped"""

NOT_LOOKED_FOR = frozenset({"rope_table", "one_hot", "topk", "concat", "attention", "cumsum"})
"""Composites whose attributes cannot be told from a part, or that are never as small as one."""


@dataclass(frozen=True)
class Found:
    """A composite's math at a node. steps: how many it takes there. verdict: why it is the same."""

    node: Node
    op: CompositeOp
    attrs: Mapping[str, Any]
    operands: tuple[Node, ...]
    steps: int
    verdict: Verdict

    def show(self) -> str:
        said = "".join(f", {k}={v}" for k, v in self.attrs.items())
        types = ", ".join(str(o.type) for o in self.operands)
        return f"{self.op.name}({types}{said}) in {self.steps} steps, written at {self.node.location}"


def discover(graph: Graph, names: Sequence[str] | None = None, *, most_steps: int = MOST_STEPS) -> tuple[Found, ...]:
    """Every proved occurrence, users before operands, the largest of one node first; what is that composite already does not count.

    names: library composites to look for (those that a kernel computes: its `op`); by default all that are small enough. Raises
    RewriteError for another name.
    """
    for name in names or ():
        if name not in LIBRARY:
            raise RewriteError(f"no library composite is named {name!r}", fix="one of " + ", ".join(sorted(LIBRARY)))
    ops = [LIBRARY[n] for n in names] if names is not None else [op for n, op in LIBRARY.items() if n not in NOT_LOOKED_FOR]
    ops = [op for op in ops if not op.opaque and not op.variadic]
    search = _Search(graph, ops)
    found: list[Found] = []
    for node in reversed(graph.nodes):
        if _is_step(node) and len(node.types) == 1 and node in search.fed:
            here: dict[Any, Found] = {}
            for f in search.at(node, most_steps):
                here.setdefault((f.op.name, frozenset(f.operands)), f)
            found += sorted(here.values(), key=lambda f: (-f.steps, f.op.name))
    return tuple(found)


def replaced(graph: Graph, found: Sequence[Found]) -> Graph:
    """The graph with composites where they were found: at each node the largest, and none within another."""
    chosen: dict[Node, Found] = {}
    inside: set[Node] = set()
    order = {n: i for i, n in enumerate(graph.nodes)}
    for f in sorted(found, key=lambda f: (-f.steps, -order.get(f.node, -1))):
        part = _between(f.node, f.operands)
        if f.node in order and not part & inside:
            chosen[f.node] = f
            inside |= part

    made: dict[Node, Node] = {}
    stack = list(graph.roots)
    while stack:
        node = stack[-1]
        here = chosen.get(node)
        sources = node.inputs if here is None else here.operands
        missing = [s for s in sources if s not in made]
        if node in made or not missing:
            stack.pop()
            if node not in made:
                inputs = [made[s] for s in sources]
                made[node] = apply(node.op, inputs, node.attrs) if here is None else apply(here.op, inputs, here.attrs)
        else:
            stack.extend(missing)
    return with_roots(graph, [made[r] for r in graph.roots])


def _is_step(node: Node) -> bool:
    return node.op.kind in ("atomic", "composite") and node.op.name not in VIEWS


def _between(node: Node, operands: Sequence[Node]) -> set[Node]:
    """What is computed from the operands on the way to a node, the node included."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n not in seen and n not in operands and n.op.kind != "leaf":
            seen.add(n)
            stack.extend(n.inputs)
    return seen


def _call(op: CompositeOp, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Graph:
    """The composite on inputs of these types. Raises LanguageError where it does not take them."""
    return make_graph(apply(op, [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)], attrs))


class _Search:
    """One graph, and the composites that are looked for. fed: nodes that hang on a leaf with a name."""

    def __init__(self, graph: Graph, ops: Sequence[CompositeOp]) -> None:
        self.ops = ops
        self.fed: set[Node] = set()
        self.bit = {n: 1 << i for i, n in enumerate(graph.nodes)}
        self.below: dict[Node, int] = {}                            # what a node is made of, as bits
        for n in graph.nodes:
            if n.op in leaves.NAMED_LEAVES or any(i in self.fed for i in n.inputs):
                self.fed.add(n)
            self.below[n] = self.bit[n]
            for i in n.inputs:
                self.below[n] |= self.below[i]
        self.calls: dict[Any, tuple[Graph, str] | None] = {}
        self.prints: dict[str, str | None] = {}

    def at(self, node: Node, most_steps: int) -> Iterator[Found]:
        """The composites whose value a node has, over any operands below it."""
        for cut in self.cuts(node, most_steps):
            part = _between(node, cut)
            steps = sum(map(_is_step, part))
            if steps < 2:
                continue
            numbers = [n.attrs["value"] for p in part for n in p.inputs if n.op is leaves.CONSTANT]
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

    def cuts(self, node: Node, most_steps: int) -> Iterator[tuple[Node, ...]]:
        """Sets of operands over which a node is a part of few steps, and from which no way leads out of the part and back."""
        first = frozenset(i for i in node.inputs if i in self.fed)
        seen, todo = {first}, [first]
        while todo and len(seen) < MOST_CUTS:
            cut = todo.pop(0)
            part = _between(node, tuple(cut))
            if sum(map(_is_step, part)) > most_steps:
                continue
            inside = sum(self.bit[n] for n in part)
            if 0 < len(cut) <= MOST_OPERANDS and not any(self.below[o] & inside for o in cut):
                yield tuple(sorted(cut, key=lambda o: self.bit[o]))
            for operand in sorted(cut, key=lambda o: -self.bit[o]):
                if operand.op.kind == "leaf" or len(operand.types) != 1 or operand.op is leaves.ITEM:
                    continue
                wider = (cut - {operand}) | {i for i in operand.inputs if i in self.fed}
                if wider not in seen and len(wider) <= MOST_OPERANDS + 1:
                    seen.add(wider)
                    todo.append(wider)

    def candidates(self, types: Sequence[TensorType], node: Node,
                   numbers: Sequence[float]) -> Iterator[tuple[CompositeOp, dict[str, Any]]]:
        """The composites of so many operands, with the attributes that a part with these numbers may say."""
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
        """A composite on inputs of these types, with its fingerprint; None where it takes them not, or has none."""
        key = (op, types, tuple((k, repr(v)) for k, v in attrs.items()))
        if key not in self.calls:
            self.calls[key] = None
            try:
                made = _call(op, types, attrs)
                text = self.fingerprint(made)
                self.calls[key] = None if text is None else (made, text)
            except (TensorGraphsError, TypeError, ValueError, IndexError):
                pass
        return self.calls[key]

    def alone(self, node: Node, operands: Sequence[Node]) -> Graph:
        """A part as a graph of its own, over inputs named x0, x1, …"""
        inputs = {o: leaves.input(f"x{i}", o.shape, o.dtype) for i, o in enumerate(operands)}
        made: dict[Node, Node] = dict(inputs)
        for n in walk_until(node, inputs):
            made[n] = apply(n.op, [made[i] for i in n.inputs], n.attrs) if n.inputs else n
        return make_graph(made[node])

    def fingerprint(self, graph: Graph) -> str | None:
        key = graph.outputs["out"].digest
        if key not in self.prints:
            try:
                self.prints[key] = fingerprint(graph, points=POINTS)
            except TensorGraphsError:
                self.prints[key] = None
        return self.prints[key]


def walk_until(node: Node, operands: Mapping[Node, Node]) -> list[Node]:
    """What a node is made of down to the operands, which are left out, operands before users."""
    order: list[Node] = []
    seen = set(operands)
    stack = [(node, False)]
    while stack:
        n, done = stack.pop()
        if done:
            order.append(n)
        elif n not in seen:
            seen.add(n)
            stack.append((n, True))
            stack.extend((i, False) for i in n.inputs)
    return order
