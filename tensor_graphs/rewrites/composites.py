"""composites: a composite equals its definition. Rewrites apply this in both directions to every composite of the library.

Expansion adds the definition of an e-node to its class. Recognition finds definitions. It defines each library composite once on
generic types, for each choice of its discrete attributes and with marker numbers for its continuous ones; the result is a pattern.
At a match it reads the attributes off and defines the composite on the actual types. The composite is recognised only if every
e-node of *that* definition is in the e-graph and leads to the class, so an overly general pattern gives no wrong result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import LIBRARY, CompositeOp, Definition, instantiate
from tensor_graphs.language.dtypes import bool_, f16, f32, i32
from tensor_graphs.language.node import Node, Op, TensorType, apply, walk
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.enode import ENode, attribute_key, is_commutative
from tensor_graphs.rewrites.outlines import outlines
from tensor_graphs.rewrites.rule import BITWISE, Candidate, Equalities, Index, NumericClass, Reach

LARGEST_DEFINITION = 80
"""Largest number of nodes of a definition that expansion and recognition handle."""


class Expansion:
    """Rewrite that adds a composite's definition to its class. Bitwise: a composite means its definition as written.

    `keep`: composites that are not expanded; by default the element-wise ones of one operand (exp, tanh, …). Their definitions are
    chosen for accuracy, and no other rule matches inside them.
    """

    name = "composite/expand"
    numeric_class: NumericClass = BITWISE
    assuming: tuple[str, ...] = ()
    expanding = True
    reach: Reach = "near"

    def __init__(self, keep: frozenset[str] | None = None) -> None:
        self.keep = frozenset(n for n, op in LIBRARY.items() if op.facts.closed) if keep is None else keep

    def candidates(self, e: EGraph, index: Index) -> Iterator[Candidate]:
        for name, nodes in index.items():
            if name in self.keep:
                continue
            for _, node in nodes:
                if isinstance(node.op, CompositeOp) and not node.op.opaque:
                    yield Candidate((self.name, node.term), node.term, lambda node=node: self._expand(e, node))  # type: ignore[misc]

    def _expand(self, e: EGraph, node: ENode) -> Equalities | None:
        assert isinstance(node.op, CompositeOp)
        types = [e.of(c).type for c in node.children]
        definition = node.op.define(types, node.attrs)
        if len(walk(definition.outputs)) > LARGEST_DEFINITION:
            return None
        nodes = instantiate(definition, [e.placeholder(c) for c in node.children])
        return [(e.instance(node), e.add(nodes[node.output]))]


# ---- recognition -----------------------------------------------------------------------------------------------------

CHOICES: dict[str, tuple[Any, ...]] = {
    "keepdims": (False, True), "approximate": ("none", "tanh"), "activation": ("gelu_tanh", "gelu", "silu"),
    "causal": (False, True), "exponent": (3, 4, 5, 8), "window": (0,), "start": (0,), "softcap": (0.0,),
}
"""Values that recognition tries for attributes, by name, except axes and numbers with markers."""

MARKS = {"eps": 0.0009765701293945312, "offset": 0.7317073345184326, "scale": 0.3414214253425598, "beta": 1.319326400756836}
"""Markers for continuous attributes, numbers that no definition contains: an attribute is read off where its marker is."""


@dataclass(frozen=True, eq=False)
class Template:
    """A composite's definition on generic operands. `marks`: for an attribute, the constant that is its marker."""

    op: CompositeOp
    attrs: Mapping[str, Any]
    definition: Definition
    marks: Mapping[str, Node]
    root: Node


@dataclass(frozen=True, eq=False)
class Sketch:
    """The top of a template: rank and op of its root, and sketches of its children; name "" matches any op. Equal sketches are one
    object, so each class is compared with a sketch once for all templates that share it."""

    rank: int
    name: str
    below: tuple[Sketch, ...]


@cache
def _interned(rank: int, name: str, below: tuple[Sketch, ...]) -> Sketch:
    return Sketch(rank, name, below)


def _sketch(pattern: Node, depth: int = 4) -> list[Any]:
    """Return the arguments of the sketch of a node of a definition."""
    free = pattern.op is leaves.ARGUMENT or _strip(pattern).op is leaves.CONSTANT
    if free or depth == 0:
        return [pattern.rank, "", []]
    return [pattern.rank, pattern.op.name, [_sketch(i, depth - 1) for i in pattern.inputs]]


def _sketch_of(rank: int, name: str, below: Sequence[Any]) -> Sketch:
    return _interned(rank, name, tuple(_sketch_of(*b) for b in below))


@dataclass(frozen=True, eq=False)
class Outline:
    """A template that is defined when it is first used: number `index` of those of a composite. needs: ops that it has without
    views; depth: of the ops below its root."""

    op: CompositeOp
    index: int
    needs: frozenset[str]
    depth: int

    @property
    def template(self) -> Template:
        return templates_of(self.op)[self.index]


@cache
def sketches() -> dict[str, tuple[tuple[Sketch, tuple[Outline, ...]], ...]]:
    """Return the templates by the op of their last node that is no view, grouped by their sketch."""
    groups: dict[str, dict[Sketch, list[Outline]]] = {}
    for name, index, root, needs, depth, sketch in outlines("templates", _outlines):
        outline = Outline(LIBRARY[name], index, frozenset(needs), depth)
        groups.setdefault(root, {}).setdefault(_sketch_of(*sketch), []).append(outline)
    return {name: tuple((s, tuple(ts)) for s, ts in group.items()) for name, group in groups.items()}


def _outlines() -> list[list[Any]]:
    """Return (composite, index, op of the root, needs, depth, arguments of the sketch) of all templates with different patterns."""
    rows: list[list[Any]] = []
    seen: set[str] = set()
    for op in LIBRARY.values():
        for index, t in enumerate(templates_of(op)):
            mark = _signature(t)
            if mark not in seen:
                seen.add(mark)
                needs = {n.op.name for n in walk([t.root]) if n.op.kind in ("atomic", "composite") and not n.op.facts.view}
                rows.append([op.name, index, t.root.op.name, sorted(needs), _depth(t.root), _sketch(t.root)])
    return rows


Asked = dict[tuple[Sketch, int], bool]
"""For (sketch, class): whether the class may match the sketch, as long as the e-graph does not change."""


def _may_match(e: EGraph, sketch: Sketch, node: ENode, asked: Asked) -> bool:
    below, children = sketch.below, node.children
    if len(children) != len(below):
        return False
    if all(_class_may(e, s, c, asked) for s, c in zip(below, children, strict=True)):
        return True
    return (is_commutative(node.op) and children[0] != children[1]
            and _class_may(e, below[0], children[1], asked) and _class_may(e, below[1], children[0], asked))


def _class_may(e: EGraph, sketch: Sketch, number: int, asked: Asked) -> bool:
    answer = asked.get((sketch, number))
    if answer is None:
        eclass = e.of(number)
        answer = len(eclass.type.shape) == sketch.rank and (not sketch.name or (sketch.name in eclass.ops and any(
            n.op.name == sketch.name and _may_match(e, sketch, n, asked) for n in eclass.nodes)))
        asked[sketch, number] = answer
    return answer


def _signature(t: Template) -> str:
    """Return a key of a template's pattern: templates with equal keys have the same matches."""
    order = walk(t.definition.outputs)
    at = {n: i for i, n in enumerate(order)}
    marked = set(t.marks.values())
    rows = [(n.op.name, n.attrs.get("axes"), n.rank, n.dtype.kind, n in marked, [at[i] for i in n.inputs]) for n in order
            if n.op is not leaves.CONSTANT or n in marked]
    return f"{t.op.name}{t.attrs.items()}{rows}"


_DIMS = (3, 5, 7, 11)


@cache
def templates_of(op: CompositeOp) -> tuple[Template, ...]:
    """Return the templates of a composite."""
    return () if op.opaque or op.variadic else tuple(_templates_of(op))


def _templates_of(op: CompositeOp) -> Iterator[Template]:
    optional = [n for n in op.operands if n in op.optional]
    for absent in itertools.chain.from_iterable(itertools.combinations(optional, k) for k in range(len(optional) + 1)):
        present = [n for n in op.operands if n not in absent]
        for types in _generic_types(op, present):
            if len(types) != len(present):
                continue
            for chosen in _attribute_choices(op, types[0].rank if types else 0):
                attrs = {**chosen, **({"absent": absent} if absent else {})}
                try:
                    definition = op.define(types, attrs)
                except (TensorGraphsError, TypeError, ValueError, IndexError):
                    continue
                if len(definition.outputs) != 1 or len(walk(definition.outputs)) > LARGEST_DEFINITION:
                    continue
                root = _strip(definition.outputs[0])
                if root.op.kind not in ("atomic", "composite"):
                    continue
                marks = {name: node for name in attrs if name in MARKS for node in walk(definition.outputs)
                         if node.op is leaves.CONSTANT and node.attrs["value"] == MARKS[name]}
                if any(attrs[name] == MARKS[name] and name not in marks for name in attrs if name in MARKS):
                    continue                                        # an attribute that this definition does not read
                yield Template(op, dict(sorted(attrs.items())), definition, marks, root)


def _depth(root: Node) -> int:
    """Return the depth of ops below a node."""
    depth: dict[Node, int] = {}
    for node in walk([root]):
        depth[node] = 1 + max((depth[i] for i in node.inputs), default=-1)
    return depth[root]


def _strip(node: Node) -> Node:
    while node.op.facts.view or node.op.name == "cast":
        node = node.inputs[0]
    return node


def _generic_types(op: CompositeOp, present: Sequence[str]) -> Iterator[list[TensorType]]:
    """Yield operand types that a definition may accept: equal shapes, matrices and vectors, over a few ranks and dtypes."""
    count = len(present)
    for dtype in (f32, i32, bool_, f16):
        for rank in (1, 2, 3):
            yield [TensorType(_DIMS[:rank], dtype)] * count
        if count > 1 and dtype in (f32, f16):
            for rank in (2, 3):
                x = TensorType(_DIMS[:rank], dtype)
                last = TensorType(x.shape[-1:], dtype)
                yield [x] + [last] * (count - 1)
                matrix = TensorType((13, x.shape[-1]), dtype)
                yield [x, matrix] + [TensorType((13,), dtype)] * (count - 2)
                yield [x, TensorType((*x.shape[:-2], x.shape[-1], 13), dtype)]
            yield [TensorType((3, 5, 4), dtype), TensorType((3, 2), dtype), TensorType((3, 2), dtype)][:count]


def _attribute_choices(op: CompositeOp, rank: int) -> Iterator[dict[str, Any]]:
    options: list[list[Any]] = []
    for name in op.attributes:
        if name == "axis":
            options.append([*range(-1, rank)])
        elif name == "axes":
            subsets = itertools.chain.from_iterable(itertools.combinations(range(rank), k) for k in range(1, rank + 1))
            options.append([None, *range(-1, rank), *subsets])
        elif name in MARKS:
            default = op.signature.parameters[name].default
            options.append([MARKS[name], *([default] if isinstance(default, float) else [])])
        elif name in CHOICES:
            options.append(list(CHOICES[name]))
        else:
            return
    for values in itertools.product(*options):
        yield dict(zip(op.attributes, values, strict=True))


class Recognition:
    """Rewrite that finds definitions, as the module's docstring explains. Bitwise, like the expansion."""

    name = "composite/recognise"
    numeric_class: NumericClass = BITWISE
    assuming: tuple[str, ...] = ()
    expanding = False
    reach: Reach = "above"

    def candidates(self, e: EGraph, index: Index) -> Iterator[Candidate]:
        present = frozenset[str]().union(*(eclass.ops for eclass in e.classes.values()))
        asked: Asked = {}
        for name in index:
            for sketch, rows in sketches().get(name, ()):
                alive = [t for t in rows if t.needs <= present]
                if not alive:
                    continue
                depth = max(t.depth for t in alive)
                for number, node in index[name]:
                    if index.distance is not None and index.distance[number] > depth:
                        continue
                    if len(e.types[node.term].shape) != sketch.rank or not _may_match(e, sketch, node, asked):
                        continue
                    for template, (arguments, numbers) in ((t.template, m) for t in alive for m in _match(e, t.template, node)):
                        key = (self.name, template.definition.digest, e.find(number), *arguments, *numbers.values())
                        yield Candidate(key, node.term, lambda t=template, a=arguments, m=numbers: self._recognise(e, t, a, m))  # type: ignore[misc]

    def _recognise(self, e: EGraph, template: Template, arguments: tuple[int, ...],
                   numbers: Mapping[str, Any]) -> Equalities | None:
        attrs = {**template.attrs, **numbers}
        types = [e.of(a).type for a in arguments]
        try:
            definition = template.op.define(types, attrs)
            call = apply(template.op, [e.placeholder(a) for a in arguments], attrs)
        except (TensorGraphsError, TypeError, ValueError):
            return None
        written = instantiate(definition, [e.placeholder(a) for a in arguments])[0]
        if find_node(e, written) is None:
            return None
        return [(e.add(written), e.add(call))]


def find_node(e: EGraph, root: Node) -> int | None:
    """Return the class of a node if the node and all its operands are in the e-graph, else None. Nothing is added."""
    places: dict[Node, tuple[int, ...]] = {}
    for node in walk([root]):
        if node.op.name == "e_class":
            places[node] = (e.find(node.attrs["index"]),)
            continue
        if node.op is leaves.ITEM:
            places[node] = (places[node.inputs[0]][node.attrs["index"]],)
            continue
        children = tuple(places[i][0] for i in node.inputs)
        if is_commutative(node.op):
            children = tuple(sorted(children))
        key, homes = attribute_key(node.attrs), []
        for output in range(len(node.types)):
            term = e.lookup((node.op, key, children, output))
            if term is None:
                # a fill may stand there in another writing: the class of all elements that number
                return None
            homes.append(e.find(term))
        places[node] = tuple(homes)
    return places[root][0]


_Bound = tuple[tuple[int | None, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class TemplateNode:
    """A node of a template, prepared for matching. place: the index of the argument that it is, or −1. mark: the attribute whose
    marker it is, or "". number: whether it is a constant, which matches any number."""

    op: Op
    rank: int
    kind: str
    axes: Any
    place: int
    mark: str
    number: bool
    inputs: tuple[TemplateNode, ...]


def _parts(t: Template) -> TemplateNode:
    """Return the template's root, without views above it."""
    places = {a: i for i, a in enumerate(t.definition.arguments)}
    marks = {node: name for name, node in t.marks.items()}
    parts: dict[Node, TemplateNode] = {}
    for node in walk([t.root]):
        inner = _strip(node)
        type = node.types[0]
        parts[node] = TemplateNode(node.op, len(type.shape), type.dtype.kind, node.attrs.get("axes"), places.get(node, -1),
                                  marks.get(inner, ""), inner is not node and inner.op is leaves.CONSTANT,
                                  tuple(parts[i] for i in node.inputs))
    return parts[t.root]


_parts_of: dict[Template, TemplateNode] = {}


def _match(e: EGraph, template: Template, node: ENode) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    """Return the matches of a template at an e-node: (classes for the definition's arguments, values of its marked attributes)."""
    part = _parts_of.get(template)
    if part is None:
        part = _parts_of[template] = _parts(template)
    count = len(template.definition.arguments)
    start: _Bound = ((None,) * count, {})
    results: dict[tuple[Any, ...], tuple[tuple[int, ...], dict[str, Any]]] = {}
    for arguments, numbers in _match_node(e, part, node, start):
        full = tuple(a for a in arguments if a is not None)
        if len(full) == count:
            results.setdefault((full, tuple(numbers.values())), (full, numbers))
    return list(results.values())


def _match_node(e: EGraph, part: TemplateNode, node: ENode, bound: _Bound) -> list[_Bound]:
    if node.op is not part.op or len(node.children) != len(part.inputs) or node.attrs.get("axes") != part.axes:
        return []
    orders = [node.children]
    if len(node.children) == 2 and node.children[0] != node.children[1] and is_commutative(node.op):
        orders.append(node.children[::-1])
    matches: list[_Bound] = []
    for children in orders:
        states = [bound]
        for inner, child in zip(part.inputs, children, strict=True):
            states = [new for state in states for new in _match_class(e, inner, child, state)][:8]
            if not states:
                break
        matches += states
    return matches


def _match_class(e: EGraph, part: TemplateNode, number: int, bound: _Bound) -> list[_Bound]:
    number = e.find(number)
    eclass = e.classes[number]
    if len(eclass.type.shape) != part.rank or eclass.type.dtype.kind != part.kind:
        return []
    if part.place >= 0:
        old = bound[0][part.place]
        if old is None:
            return [((*bound[0][:part.place], number, *bound[0][part.place + 1:]), bound[1])]
        return [bound] if e.find(old) == number else []
    if part.mark:
        splat = eclass.splat
        if isinstance(splat, float) and bound[1].get(part.mark, splat) == splat:
            return [(bound[0], {**bound[1], part.mark: splat})]
        return []
    if part.number:
        return [bound] if eclass.splat is not None else []
    if part.op.name not in eclass.ops:
        return []
    return [match for node in eclass.nodes if node.op is part.op for match in _match_node(e, part, node, bound)]
