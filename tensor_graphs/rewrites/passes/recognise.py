"""recognise: a graph of atomic ops rewritten in composites, since kernels compute composites.

Bitwise: a composite is its definition, as written. There is no e-graph. The graph is expanded to atomic ops; equal nodes, also up
to the order of commuting operands, are one class. The definition of every library composite, expanded as well, is searched at every
class. The search skips views and casts (sizes, axes and elided views differ from case to case). A match suggests operands and
attributes, and counts only if the definition *at the actual types* is in the graph, node by node. Then the outputs are covered from
the top, each time by the composite that saves the most steps.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp, expand_all
from tensor_graphs.language.dims import Expr, has_dims, is_static
from tensor_graphs.language.dtypes import bf16, bool_, f16, f32, f64, i32
from tensor_graphs.language.errors import Location, written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, Op, TensorType, apply, encode_attribute, walk
from tensor_graphs.rewrites.composites import CHOICES, MARKS
from tensor_graphs.rewrites.enode import is_commutative
from tensor_graphs.rewrites.outlines import outlines
from tensor_graphs.rewrites.passes.result import PassResult

log = logging.getLogger(__name__)


def _is_skipped(op: Op) -> bool:
    """Return whether an op is skipped between other ops in the search for a definition: a view or a cast."""
    return op is CAST or (op.facts.view and op is not leaves.ITEM)


CAST = ATOMIC["cast"]

MOST_TRIES = 24
"""Largest number of combinations of operands and attributes that are tried at one position for one definition."""

MOST_ROUNDS = 16
"""Largest number of covers that are computed, each without the composites that compute needed values a second time."""


def write_out(graph: Graph) -> Graph:
    """Return the same function in atomic ops alone: every composite by its definition, recursively; opaque ones are unchanged."""
    return graph.with_roots(expand_all(graph.roots))


# ---- definitions, as they are looked for -----------------------------------------------------------------------------

MARKED: dict[str, tuple[float | int, float | int]] = {
    **{name: (mark, mark * 1.5 + 0.001) for name, mark in MARKS.items()},
    "start": (1009, 1019), "window": (1013, 1021), "softcap": (0.6180339887, 0.4142135623), "theta": (1234.5, 2345.25),
    "scaling": (1.7320508, 2.2360679),
}
"""Two unusual values of each numeric attribute. Constants that change with the value are those from which the attribute is read."""

GUESSED = ("axis", "axes", "keepdims", "dtype", "head_dim", "size", "k")
"""Attributes that show only in shapes and axes. They are guessed from those of the nodes where a definition matches."""


@dataclass(frozen=True, eq=False)
class FormPart:
    """An op of a definition that takes time, so no view. operands: for each, the views above its source, outermost first, and the
    source: another part, the number of an argument, or a constant (a Node)."""

    op: Op
    operands: tuple[tuple[tuple[str, ...], FormPart | int | Node], ...]

    @cached_property
    def shape(self) -> int:
        """A number that parts share whose ops are the same all the way down; any argument is like any other, as is any constant."""
        below = [-1 if isinstance(b, int) else -2 if isinstance(b, Node) else b.shape for _, b in self.operands]
        return _shapes.setdefault((self.op, *below), len(_shapes))


_shapes: dict[tuple[Op | int, ...], int] = {}

DEPTH = 6
"""Number of steps from the top of a definition, without views and casts, that its outline has."""


@dataclass(frozen=True, eq=False)
class Form:
    """An output of a composite, expanded. fixed: constants that are equal for all types and numbers. read: attribute -> constants
    that are its value. solved: attribute -> constants computed from it."""

    op: CompositeOp
    attrs: Mapping[str, Any]
    output: int
    arguments: int
    top: FormPart
    fixed: frozenset[Node]
    read: Mapping[str, tuple[Node, ...]]
    solved: Mapping[str, tuple[Node, ...]]
    guessed: tuple[str, ...]


def _below(node: Node) -> tuple[list[Node], Node]:
    """Return (a node with the views and casts below it, the first node that is neither)."""
    chain = [node]
    while _is_skipped(node.op):
        node = node.inputs[0]
        chain.append(node)
    return chain, node


def _types(count: int) -> Iterator[list[TensorType]]:
    """Yield operand types that a definition of this number of operands may accept."""
    def t(*shape: int, dtype: Any = f32) -> TensorType:
        return TensorType(shape, dtype)

    if count >= 3:                                                  # heads in groups, so that no view is left out
        yield [t(3, 4, 8), t(7, 2, 8), t(7, 2, 8), *[t(3, 7, dtype=bool_)] * (count - 3)]
    for dtype in (f32, i32, bool_):
        yield [t(3, 5, dtype=dtype)] * count
        yield [t(3, 5, 8, dtype=dtype)] * count
        yield [t(3, dtype=dtype)] * count
    if count > 1:
        yield [t(3, 5)] + [t(5)] * (count - 1)
        yield [t(3, 5), t(11, 5), *[t(11)] * (count - 2)]
        yield [t(3, 5), t(5, 11), *[t(11)] * (count - 2)]
        yield [t(13, 5), t(3, dtype=i32), *[t(5)] * (count - 2)]
    if count == 3:
        yield [t(3, 5, 8), t(3, 4), t(3, 4)]
        yield [t(7, 5), t(3, 5), t(3, dtype=i32)]


def _choices(op: CompositeOp) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield (values for all attributes, names of the attributes with marked values)."""
    options: list[list[tuple[Any, bool]]] = []
    for name in op.attributes:
        default = op.signature.parameters[name].default
        if name in MARKED:
            special = [default] if isinstance(default, (int, float)) and not isinstance(default, bool) else []
            options.append([(MARKED[name][0], True), *((v, False) for v in special)])
        elif name == "keepdims":
            options.append([(False, False)])
        elif name in CHOICES:
            options.append([(v, False) for v in CHOICES[name]])
        elif name in GUESSED:
            options.append([({"axis": -1, "axes": (0,), "dtype": f32, "head_dim": 8, "size": 17, "k": 2}[name], False)])
        else:
            return
    for values in itertools.product(*options):
        yield ({n: v for n, (v, _) in zip(op.attributes, values, strict=True)},
               [n for n, (_, marked) in zip(op.attributes, values, strict=True) if marked])


def forms(c: Classes, tops: Sequence[int]) -> Mapping[str, tuple[Form, ...]]:
    """Return the forms to search at these classes, by the op at the top: of every library composite whose definition may be there,
    for each choice of attributes that changes it."""
    atoms = {node.op.name for node in c.node}
    at: dict[str, list[int]] = {}
    for number in tops:
        at.setdefault(c.node[number].op.name, []).append(number)
    return _forms(frozenset(name for name, top in _outlines() if atoms.issuperset(LIBRARY[name].facts.contains)
                            and any(c.may_match(top, number) for number in at.get(top.op.name, ()))))


@cache
def _outlines() -> Sequence[tuple[str, FormPart]]:
    """Return (composite, the parts near its top) for all forms."""
    rows = outlines("forms", lambda: [(op.name, _outline(form.top)) for op in LIBRARY.values()
                                      for of_top in forms_of(op).values() for form in of_top if form.top.op.kind == "atomic"])
    return [(name, _from_outline(*outline)) for name, outline in rows]


def _outline(part: FormPart, depth: int = DEPTH) -> list[Any]:
    """Return (name of the op, for each operand: its outline, "constant", or "" where it may be anything), as JSON."""
    return [part.op.name, ["" if isinstance(b, int) or not depth else leaves.CONSTANT.name if isinstance(b, Node) else
                           "" if b.op.kind == "leaf" else _outline(b, depth - 1) for _, b in part.operands]]


def _from_outline(name: str, operands: Sequence[Any]) -> FormPart:
    anything, constant = 0, leaves.constant(0, i32)
    return FormPart(ATOMIC.get(name) or LIBRARY[name], tuple(
        ((), anything if b == "" else constant if isinstance(b, str) else _from_outline(*b)) for b in operands))


@cache
def _forms(composites: frozenset[str]) -> Mapping[str, tuple[Form, ...]]:
    result: dict[str, list[Form]] = {}
    for op in (op for name, op in LIBRARY.items() if name in composites):
        for top, of_top in forms_of(op).items():
            result.setdefault(top, []).extend(of_top)
    return {name: tuple(rows) for name, rows in result.items()}


@cache
def forms_of(op: CompositeOp) -> Mapping[str, tuple[Form, ...]]:
    """Return the forms of one composite, by the op at the top. Attention takes half the time of all."""
    result: dict[str, list[Form]] = {}
    if not op.opaque:
        seen: set[str] = set()
        optional = [n for n in op.operands if n in op.optional]
        for absent in itertools.chain.from_iterable(itertools.combinations(optional, k) for k in range(len(optional) + 1)):
            counts = (2, 3) if op.variadic else (len(op.operands) - len(absent),)
            for count, (attrs, marked) in itertools.product(counts, _choices(op)):
                attrs = {**attrs, **({"absent": absent} if absent else {})}
                done: set[Any] = set()
                for types in _types(count):
                    if types and types[0].dtype in done:
                        continue
                    for form in _forms_of(op, types, attrs, marked):
                        done.add(types[0].dtype)
                        mark = f"{form.output}{attrs}{_shown(form.top, {})}"
                        if mark not in seen:
                            seen.add(mark)
                            result.setdefault(form.top.op.name, []).append(form)
    return {name: tuple(rows) for name, rows in result.items()}


def _shown(part: FormPart, numbers: dict[FormPart, int]) -> str:
    if part in numbers:
        return f"#{numbers[part]}"
    numbers[part] = len(numbers)
    below = [b if isinstance(b, int) else "c" if isinstance(b, Node) else _shown(b, numbers) for _, b in part.operands]
    return f"{part.op.name}({','.join(map(str, below))})"


def _define(op: CompositeOp, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> tuple[Node, ...] | None:
    try:
        return tuple(expand_all(op.define(types, attrs).outputs))
    except (TensorGraphsError, TypeError, ValueError, IndexError):
        return None


def _forms_of(op: CompositeOp, types: list[TensorType], attrs: Mapping[str, Any], marked: Sequence[str]) -> Iterator[Form]:
    outputs = _define(op, types, attrs)
    if outputs is None:
        return
    order = walk(outputs)
    constants = [n for n in order if n.op is leaves.CONSTANT]
    other_types = [TensorType(tuple(s + 12 * (int(s) % 2 + 1) for s in t.shape), t.dtype) for t in types]
    larger = _define(op, _consistent(types, other_types), attrs)

    def changed(other: tuple[Node, ...] | None) -> list[Node]:
        numbers = [] if other is None else [n for n in walk(other) if n.op is leaves.CONSTANT]
        if len(numbers) != len(constants):
            return constants
        return [a for a, b in zip(constants, numbers, strict=True) if a is not b]

    free = set(changed(larger))
    read, solved = {}, {}
    for name in marked:
        holds = tuple(c for c in constants if c.attrs["value"] == MARKED[name][0])
        if holds:
            read[name] = holds
        else:
            moved = tuple(changed(_define(op, types, {**attrs, name: MARKED[name][1]})))
            if not moved:
                return                                              # an attribute that this definition does not read
            solved[name] = moved
        free.update(read.get(name, solved.get(name, ())))
    parts: dict[Node, FormPart | int | Node] = {}
    for node in order:
        if _is_skipped(node.op):
            continue
        if node.op is leaves.ARGUMENT:
            parts[node] = int(node.attrs["index"])
        elif node.op is leaves.CONSTANT:
            parts[node] = node
        else:
            below = [_below(i) for i in node.inputs]
            parts[node] = FormPart(node.op, tuple((tuple(n.op.name for n in chain[:-1]), parts[end]) for chain, end in below))
    for i, out in enumerate(outputs):
        top = parts[_below(out)[1]]
        read_by_it = {n.attrs["index"] for n in walk([out]) if n.op is leaves.ARGUMENT}
        if isinstance(top, FormPart) and read_by_it == set(range(len(types))):
            yield Form(op, attrs, i if len(outputs) > 1 else -1, len(types), top, frozenset(c for c in constants if c not in free),
                       read, solved, tuple(n for n in op.attributes if n in GUESSED))


def _consistent(types: Sequence[TensorType], others: Sequence[TensorType]) -> list[TensorType]:
    """Return the other types, with sizes equal wherever they were equal in `types`."""
    sizes: dict[Any, Any] = {}
    for a, b in zip(types, others, strict=True):
        for s, o in zip(a.shape, b.shape, strict=True):
            sizes.setdefault(s, o)
    if 8 in sizes and 4 in sizes:
        sizes[8] = 2 * sizes[4]
    return [TensorType(tuple(sizes[s] for s in t.shape), t.dtype) for t in types]


# ---- the graph written out, in classes of nodes that are one but for the order of operands --------------------------

_Key = tuple[Op, tuple[int, ...], Any]


class Classes:
    """Classes of atomic nodes, by number. node: one node of each class. inputs: the classes of its operands, in order.

    bound: known once parameters are. fed: depends on a named leaf, not on sizes and numbers alone.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.node: list[Node] = []
        self.inputs: list[tuple[int, ...]] = []
        self.bound: list[bool] = []
        self.fed: list[bool] = []
        self.of: dict[Node, int] = {}
        self._known: dict[_Key, int] = {}
        self._chains: dict[int, list[int]] = {}
        self._may: dict[tuple[int, int], bool] = {}
        for n in walk(nodes):
            self._add(n)

    def _add(self, n: Node) -> None:
        inputs = tuple(self.of[i] for i in n.inputs)
        key = _key(n, inputs)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.node)
            self.node.append(n)
            self.inputs.append(inputs)
            self.bound.append(_is_bound(n, [self.bound[i] for i in inputs]))
            self.fed.append(n.op in leaves.NAMED_LEAVES or any(self.fed[i] for i in inputs))
        self.of[n] = number

    def orders(self, number: int) -> list[tuple[int, ...]]:
        """Return the orders in which a class's operands are compared with those of a definition."""
        inputs = self.inputs[number]
        return [inputs, inputs[::-1]] if is_commutative(self.node[number].op) and inputs[0] != inputs[1] else [inputs]

    def may_match(self, part: FormPart, number: int) -> bool:
        """Return whether the ops of a part of a definition are those at a class and below; each answer is computed once."""
        key = part.shape, number
        answer = self._may.get(key)
        if answer is None:
            alike = self.node[number].op is part.op and len(part.operands) == len(self.inputs[number])
            answer = self._may[key] = alike and any(self.may_read(part, order) for order in self.orders(number))
        return answer

    def may_read(self, part: FormPart, order: Sequence[int]) -> bool:
        """Return whether these classes may be the operands of a part."""
        return all(isinstance(below, int) or self._may_be(below, self.below(i)[-1])
                   for (_, below), i in zip(part.operands, order, strict=True))

    def _may_be(self, below: FormPart | Node, number: int) -> bool:
        return self.node[number].op is leaves.CONSTANT if isinstance(below, Node) else self.may_match(below, number)

    def image(self, order: Sequence[Node], operands: Sequence[int]) -> dict[Node, int] | None:
        """Return the classes of a definition's nodes on these operands; None if a node is not in the graph."""
        numbers: dict[Node, int] = {}
        for n in order:
            if n.op is leaves.ARGUMENT:
                numbers[n] = operands[n.attrs["index"]]
                continue
            number = self._known.get(_key(n, tuple(numbers[i] for i in n.inputs)))
            if number is None:
                return None
            numbers[n] = number
        return numbers

    def below(self, number: int) -> list[int]:
        """Return a class and the views and casts below it; the last class is neither."""
        chain = self._chains.get(number)
        if chain is None:
            chain = [number]
            while _is_skipped(self.node[chain[-1]].op):
                chain.append(self.inputs[chain[-1]][0])
            self._chains[number] = chain
        return chain


def _key(n: Node, inputs: tuple[int, ...]) -> _Key:
    return n.op, tuple(sorted(inputs)) if is_commutative(n.op) else inputs, n.key[2]


def _is_bound(n: Node, inputs: Sequence[bool]) -> bool:
    """Return whether a value is known once parameters are bound (egraph.EClass.bound)."""
    if n.op.kind == "leaf":
        return n.op.name in ("parameter", "constant") and not isinstance(n.attrs.get("value"), Expr)
    return all(inputs) and all(is_static(s) for t in n.types for s in t.shape) and not has_dims(n.attrs)


def _is_step(n: Node) -> bool:
    return n.op.kind != "leaf" and not n.op.facts.view


def steps(graph: Graph) -> int:
    """Return the number of steps at run time: no leaves, no views, nothing that depends on parameters and constants alone."""
    bound: dict[Node, bool] = {}
    for n in graph.nodes:
        bound[n] = _is_bound(n, [bound[i] for i in n.inputs])
    return sum(1 for n in graph.nodes if _is_step(n) and not bound[n])


# ---- looking for a definition ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Occurrence:
    """A composite that computes a class. inside: the classes computed on the way, the result included."""

    op: CompositeOp
    attrs: tuple[tuple[str, Any], ...]
    operands: tuple[int, ...]
    output: int
    inside: frozenset[int] = field(compare=False)
    written: bool = field(default=False, compare=False)


_Bound = dict[Any, Any]
"""A partial match: part of a form -> class, constant -> class, argument number -> [(views of the definition, graph's chain), …]"""


def _match(c: Classes, part: FormPart, number: int, bound: _Bound) -> Iterator[_Bound]:
    if part in bound:
        if bound[part] == number:
            yield bound
        return
    if c.may_match(part, number):
        for order in c.orders(number):
            if c.may_read(part, order):
                yield from _match_operands(c, part, order, 0, {**bound, part: number})


def _match_operands(c: Classes, part: FormPart, order: tuple[int, ...], at: int, bound: _Bound) -> Iterator[_Bound]:
    if at == len(order):
        yield bound
        return
    views, below = part.operands[at]
    chain = c.below(order[at])
    if isinstance(below, int):
        if any(not set(chain) & set(other) for _, other in bound.get(below, ())):
            return
        states: Iterator[_Bound] = iter([{**bound, below: (*bound.get(below, ()), (views, chain))}])
    elif isinstance(below, Node):
        end = chain[-1]
        old = bound.get(below)
        value = c.node[end].attrs["value"]
        if (old is not None and old != end) or (below in bound["fixed"] and not _same_number(value, below.attrs["value"])):
            return
        states = iter([{**bound, below: end}])
    else:
        states = _match(c, below, chain[-1], bound)
    for state in states:
        yield from _match_operands(c, part, order, at + 1, state)


def _same_number(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _operands(c: Classes, occurrences: Sequence[tuple[tuple[str, ...], list[int]]]) -> list[int]:
    """Return the classes that an argument may be, the likeliest first: those below the views that the definition has."""
    views, chain = occurrences[0]
    at = 0
    for name in views:
        ahead = at
        while c.node[chain[ahead]].op.name == "cast" and name != "cast" and ahead + 1 < len(chain):
            ahead += 1
        if c.node[chain[ahead]].op.name == name:
            at = ahead + 1
    rest = [chain[at]]
    while c.node[chain[at]].op.name == "cast":
        at += 1
        rest.append(chain[at])
    rest += [x for x in chain if x not in rest]
    return [x for x in rest if all(x in other for _, other in occurrences[1:])]


def _guesses(c: Classes, form: Form, name: str, top: int) -> list[Any]:
    """Return candidate values of an attribute that shows only in shapes, axes and dtypes."""
    node = c.node[top]
    inner = node if not node.inputs else node.inputs[0]
    if name == "keepdims":
        return [False, True]
    if name == "dtype":
        return list(dict.fromkeys([node.dtype, f32, f64, f16, bf16]))
    rank = max(node.rank, inner.rank)
    if name == "axis":
        return [-1, *range(rank)]
    if name == "axes":
        return [None, -1, *range(rank), *([node.attrs["axes"]] if "axes" in node.attrs else []),
                *itertools.combinations(range(rank), 2)]
    sizes = [*node.shape, *inner.shape]
    return list(dict.fromkeys([*sizes, *(2 * s for s in sizes if isinstance(s, int))]))


def _places(c: Classes, form: Form, top: int) -> Iterator[tuple[int, Occurrence]]:
    """Yield (class, occurrence) for the classes that an output of a composite computes, its definition's top at `top`."""
    values: Sequence[Any]
    for bound in itertools.islice(_match(c, form.top, top, {"fixed": form.fixed}), 4):
        read: dict[str, Any] = {}
        agree = True
        for name, nodes in form.read.items():
            values = [c.node[bound[n]].attrs["value"] for n in nodes if n in bound]
            agree = agree and bool(values) and all(_same_number(v, values[0]) for v in values)
            read[name] = values[0] if values else None
        if not agree or any(i not in bound for i in range(form.arguments)):
            continue
        candidates = [_operands(c, bound[i]) for i in range(form.arguments)]
        guesses = [_guesses(c, form, name, top) for name in form.guessed]
        tries, matched = 0, False
        for operands in _by_depth(candidates):
            types = [c.node[i].type for i in operands]
            for values in itertools.product(*guesses):
                attrs = {**form.attrs, **read, **dict(zip(form.guessed, values, strict=True))}
                if form.solved:
                    wanted = {name: [c.node[bound[n]].attrs["value"] for n in nodes if n in bound]
                              for name, nodes in form.solved.items()}
                    solved = _solve(form, types, attrs, wanted)
                    if solved is None:
                        continue
                    attrs |= solved
                outputs = _written(form.op, types, attrs)
                if outputs is None:
                    continue
                tries += 1
                order = _order(outputs[max(form.output, 0)])
                image = c.image(order, operands)
                if image is not None:
                    matched = True
                    inside = frozenset(image[n] for n in order if n.op is not leaves.ARGUMENT)
                    yield image[order[-1]], Occurrence(form.op, tuple(sorted(attrs.items())), operands, form.output, inside)
                    if "dtype" not in form.guessed:                 # the same value, said otherwise; one in f32 may stand above f64
                        break
            if tries >= MOST_TRIES or (matched and tries > 4):
                break


def _by_depth(candidates: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield all choices, those of likely operands first."""
    ranked = itertools.product(*(list(enumerate(row[:4])) for row in candidates))
    for choice in sorted(ranked, key=lambda row: sum(i for i, _ in row)):
        yield tuple(x for _, x in choice)


_definitions: dict[tuple[Any, ...], tuple[Node, ...] | None] = {}
_orders: dict[Node, list[Node]] = {}


def _written(op: CompositeOp, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> tuple[Node, ...] | None:
    key = (op, tuple(types), tuple((k, encode_attribute(v)) for k, v in attrs.items()))
    if key not in _definitions:
        if len(_definitions) > 4000:
            _definitions.clear()
            _orders.clear()
        _definitions[key] = _define(op, types, attrs)
    return _definitions[key]


def _order(output: Node) -> list[Node]:
    if output not in _orders:
        _orders[output] = walk([output])
    return _orders[output]


def _solve(form: Form, types: Sequence[TensorType], attrs: Mapping[str, Any],
           wanted: Mapping[str, list[Any]]) -> dict[str, Any] | None:
    """Return values of the attributes in `solved` at which the definition's constants are those of the graph; else None."""
    out: dict[str, Any] = {}
    for name, values in wanted.items():
        targets = [v for v in values if isinstance(v, float)]
        low, high = (float(v) for v in MARKED[name])

        def numbers(v: float, name: str = name) -> list[Any] | None:
            outputs = _define(form.op, types, {**attrs, **out, name: v})
            return None if outputs is None else [n.attrs["value"] for n in walk(outputs) if n.op is leaves.CONSTANT]

        one, two = numbers(low), numbers(high)
        if one is None or two is None or len(one) != len(two) or not targets:
            return None
        place = next((i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), None)
        if place is None:
            return None
        solution = next((v for t in targets if (v := _root(numbers, place, t, low, high)) is not None), None)
        if solution is None:
            return None
        out[name] = solution
    return out


def _root(numbers: Any, place: int, wanted: float, low: float, high: float) -> float | None:
    """Return the shortest decimal number v > 0 at which constant number `place` equals `wanted`; None if none is found."""
    def at(v: float) -> float:
        value = numbers(v)
        return math.nan if value is None or len(value) <= place else float(value[place])

    a, b = math.log(low), math.log(high)
    fa, fb = at(low) - wanted, at(high) - wanted
    for _ in range(8):                                              # secants, in logarithms
        if fb == 0 or fa == fb or math.isnan(fa) or math.isnan(fb):
            break
        a, b, fa = b, b - fb * (b - a) / (fb - fa), fb
        if abs(b) > 300:
            return None
        fb = at(math.exp(b)) - wanted
    if not abs(fb) <= 1e-9 * max(1.0, abs(wanted)):
        return None
    for digits in range(1, 18):
        v = float(f"{math.exp(b):.{digits}g}")
        if abs(math.log(v) - b) < 1e-6 and at(v) == wanted:
            return v
    return None


# ---- covering --------------------------------------------------------------------------------------------------------


class _Cover:
    """A choice of an occurrence, or the original op, for each class that is needed."""

    def __init__(self, c: Classes, places: Mapping[int, Sequence[Occurrence]], roots: Sequence[int],
                 banned: frozenset[tuple[int, Occurrence]]) -> None:
        self.chosen: dict[int, Occurrence | None] = {}
        stack = list(roots)
        while stack:
            number = stack.pop()
            if number in self.chosen:
                continue
            place = next((p for p in places.get(number, ()) if (number, p) not in banned), None)
            self.chosen[number] = place
            stack.extend(c.inputs[number] if place is None else place.operands)
        calls = {(p.op, p.attrs, p.operands) for n, p in self.chosen.items() if p is not None and not c.bound[n]}
        self.steps = len(calls) + sum(1 for n, p in self.chosen.items() if p is None and not c.bound[n] and _is_step(c.node[n]))

    def sums_twice(self, c: Classes) -> Iterator[tuple[int, Occurrence]]:
        """Yield chosen occurrences that contain a sum needed elsewhere, too, so that no matrix product is computed twice."""
        needed = {n for n, p in self.chosen.items() if not c.bound[n] and c.fed[n]
                  and any(c.node[i].op.name == "sum" for i in ((n,) if p is None else p.inside))}
        for number, place in self.chosen.items():
            if place is not None and any(n != number and not self._is_other_output(n, place) for n in place.inside & needed):
                yield number, place

    def _is_other_output(self, number: int, place: Occurrence) -> bool:
        other = self.chosen.get(number)
        return other is not None and (other.op, other.attrs, other.operands) == (place.op, place.attrs, place.operands)


def may_hold_more(graph: Graph) -> bool:
    """Return False if clearly no composite can cover two steps or more: of two adjacent steps one must be atomic, or both must
    occur in definitions, and not both are additions. Steps that no input feeds (positions, masks) do not count."""
    return next(open_steps(graph), None) is not None


def open_steps(graph: Graph) -> Iterator[Node]:
    """Yield the steps at which a composite may end that also covers a step below (see `may_hold_more`)."""
    fed: dict[Node, bool] = {}
    source: dict[Node, Node] = {}
    for n in graph.nodes:
        fed[n] = n.op in leaves.NAMED_LEAVES or any(fed[i] for i in n.inputs)
        source[n] = source[n.inputs[0]] if _is_skipped(n.op) or n.op is leaves.ITEM else n
        if n.op.kind not in ("atomic", "composite") or _is_skipped(n.op):
            continue
        for below in (source[i] for i in n.inputs):
            if not fed[below] or below.op.kind == "leaf":
                if n.op.kind == "atomic" and n.op.name != "add" and below.op is leaves.CONSTANT:
                    yield n                                         # x · −1, max(x, 0)
                continue
            if _is_open(n, below) and _is_open(below, n) and not n.op.name == below.op.name == "add":
                yield n


def _is_open(n: Node, other: Node) -> bool:
    """Return whether a step may be part of a larger composite together with an adjacent step."""
    if n.op.kind == "atomic" or n.op.facts.mentioned:
        return True
    smaller = n.attrs.get("absent") or any(
        v in (0.0, 1.0) and v == n.op.signature.parameters[name].default  # type: ignore[attr-defined]
        for name, v in n.attrs.items() if name in MARKED)
    return bool(smaller) and other.op.kind == "atomic"


def recognise(graph: Graph) -> PassResult:
    """Return the graph with composites in place of their definitions. Numeric class: bitwise, as written.

    Before: well typed. After: well typed; the same names, types and leaves; never more steps, and the very same graph if there are
    not fewer. The note counts the new composites: "36 rms_norm, 18 attention".
    """
    before = steps(graph)
    if not may_hold_more(graph):
        return PassResult(graph)
    nodes = [n for n in graph.nodes if len(n.types) == 1]
    atoms = expand_all(nodes)
    c = Classes(atoms)
    home = {n: c.of[a] for n, a in zip(nodes, atoms, strict=True)}
    places: dict[int, list[Occurrence]] = {}
    for n in nodes:                                                 # what is written, and not opaque
        source = n.inputs[0] if n.op is leaves.ITEM else n
        if isinstance(source.op, CompositeOp) and not source.op.opaque:
            operands = tuple(home[i] for i in source.inputs)
            if home[n] in operands:                                 # it hands an operand on (concat of one): nothing to run
                continue
            inside = _between(c, home[n], operands)
            places.setdefault(home[n], []).append(Occurrence(source.op, tuple(sorted(source.attrs.items())), operands,
                                                             n.attrs["index"] if n.op is leaves.ITEM else -1, inside, True))
    tops = [i for i, n in enumerate(c.node) if n.op.kind == "atomic" and not _is_skipped(n.op) and not c.bound[i]]
    candidates = forms(c, tops)
    for number in tops:
        for form in candidates.get(c.node[number].op.name, ()):
            for where, place in _places(c, form, number) if c.may_match(form.top, number) else ():
                if where not in place.operands and place not in places.setdefault(where, []):    # abs of what has no sign: itself
                    places[where].append(place)

    def worth(place: Occurrence) -> tuple[Any, ...]:
        inside = [i for i in place.inside if not c.bound[i] and _is_step(c.node[i]) and c.node[i].op.name != "cast"]
        read = sum(c.node[i].dtype.itemsize for i in place.operands)    # a cast is left to whoever has less to read then
        return -len(inside), read, -len(place.inside), not place.written, len(place.operands), place.op.name

    for row in places.values():
        row.sort(key=worth)
    roots = [home[r] for r in graph.roots]
    banned = frozenset[tuple[int, Occurrence]]()
    cover = _Cover(c, places, roots, banned)
    for _ in range(MOST_ROUNDS):
        doubled = frozenset(cover.sums_twice(c))
        if not doubled:
            break
        banned |= doubled
        cover = _Cover(c, places, roots, banned)
    if cover.steps >= before:
        return PassResult(graph)
    written = {home[n]: n.location for n in reversed(nodes)}
    values = _built(c, cover, roots, written)
    covered = graph.with_roots([values[r] for r in roots])
    images = {n: values[home[n]] for n in nodes if home[n] in values and values[home[n]] is not n}
    new = Counter(n.op.name for n in covered.nodes if n.op.kind == "composite")
    new -= Counter(n.op.name for n in graph.nodes if n.op.kind == "composite")
    log.info("recognised %s: %d steps become %d", dict(new), before, cover.steps)
    counts = sorted(new.items(), key=lambda item: (-item[1], item[0]))
    return PassResult(covered, images, note=", ".join(f"{count} {name}" for name, count in counts))


def _between(c: Classes, number: int, operands: Sequence[int]) -> frozenset[int]:
    seen, stack = set[int](), [number]
    while stack:
        n = stack.pop()
        if n not in seen and n not in operands:
            seen.add(n)
            stack.extend(c.inputs[n])
    return frozenset(seen)


def _built(c: Classes, cover: _Cover, roots: Sequence[int], written: Mapping[int, Location | None]) -> dict[int, Node]:
    """Return the node of each class that the roots need. written: the location of a class in the graph."""
    nodes: dict[int, Node] = {}
    stack = list(reversed(roots))
    while stack:
        number = stack[-1]
        place = cover.chosen[number]
        inputs = c.inputs[number] if place is None else place.operands
        missing = [i for i in inputs if i not in nodes]
        if number in nodes or missing:
            stack.extend(missing) if number not in nodes else stack.pop()
            continue
        node, operands = c.node[number], [nodes[i] for i in inputs]
        with written_at(written.get(number) or node.location):
            if place is None:
                same = all(a is b for a, b in zip(operands, node.inputs, strict=True))
                nodes[number] = node if same else apply(node.op, operands, node.attrs)
            else:
                call = apply(place.op, operands, dict(place.attrs))
                nodes[number] = call if place.output < 0 else leaves.item(call, place.output)
        stack.pop()
    return nodes
