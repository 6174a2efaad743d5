"""widen: a graph with wider intermediates, so that the error of rounding them stays within a tolerance.

Numeric class: reassociating (the same real number, rounded differently). In real mode a cast between floats is the identity, so the
oracle gives the very same values for both graphs; tests/rewrites checks that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tensor_graphs.costs.predicted_error import loop_roundings, unit_roundoff
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.anonymous_composite import PartOp, known_when_bound, note_same, over, part_between
from tensor_graphs.language.composite import LIBRARY, CompositeOp, Definition, defined, expand_all
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.dtypes import DType, f32, f64
from tensor_graphs.language.errors import LanguageError, written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import ArrayValue, Node, Op, TensorType, apply, consumers, walk
from tensor_graphs.language.subgraph import Body
from tensor_graphs.meaning.exact_definitions import is_exact
from tensor_graphs.rewrites.passes.result import PassResult
from tensor_graphs.rewrites.rule import REASSOCIATING

WIDER = (f32, f64)
"""Dtypes to which graphs are widened, the narrower one first."""

SHIFTED = (atomic.ATOMIC["cast"], atomic.ATOMIC["pad"], atomic.ATOMIC["iota"])
"""Ops on floats that a last step's definition may have besides sums, products and ops that only choose (see `_contracts`)."""


def _moves(op: Op) -> bool:
    """Return whether an op reads a value in the value's dtype and loses nothing, so that a weight is not widened before it."""
    return op.facts.view or (op.kind == "atomic" and op.facts.reads is not None)


def widen(graph: Graph, to: DType = f64) -> PassResult:
    """Return the graph with every value that is a narrower float than `to` computed in `to`. Numeric class: reassociating.

    Before: well typed. After: well typed; the same names, shapes, dims, inputs, parameters and dtypes of outputs; float states are
    states of dtype `to`. A graph without a narrower float is returned unchanged.

    Inputs are cast up once, outputs cast back. Parameters are unchanged: an op that takes a narrower weight with a wider operand
    (linear, rms_norm, embedding, …) gets the narrow one, for any other op it is cast. Casts between floats disappear, whatever they
    would have rounded. Constants keep the value that is written; elements of an array keep theirs, rounded when it was created.

    Ops whose result depends on their dtype are not widened: a `bitcast`, `uniform` and an opaque op outside of the library take and
    return the written dtypes. Other composites outside of the library are replaced by their definitions, which may require a dtype
    too (no kernel computes these composites anyway).

    >>> x, w = leaves.input("x", (2, 4)), leaves.parameter("w", (3, 4))
    >>> from tensor_graphs.language.composites import linear, softmax
    >>> wide = widen(make_graph(softmax(linear(x, w))))
    >>> [f"{n.op.name} {n.type}" for n in wide.graph.nodes if n.op.kind != "leaf"]
    ['cast f64[2, 4]', 'linear f64[2, 3]', 'softmax f64[2, 3]', 'cast f32[2, 3]']
    """
    if not any(_narrower(t.dtype, to) for node in graph.nodes for t in node.types):
        return PassResult(graph)
    return _Widening(graph, to).result()


def widened_values(graph: Graph, nodes: Sequence[Node], to: DType = f64) -> list[Node | None]:
    """Return the node that computes each node's value in `widen(graph, to)`; None for others, and for several outputs."""
    widening = _Widening(graph, to)
    widening.graph()
    return widening.values_of(nodes)


def widened_around(graph: Graph, as_written: Collection[Signature], to: DType = f64) -> PassResult:
    """Return `widen(graph, to)`, except that the composites in `as_written`, which are not the library's, stay one
    node each with the written dtypes. Numeric class: reassociating.

    Such a node rounds its operands where they come from wider values, and its result once: its definition is in wider values.
    """
    return _Widening(graph, to, as_written).result()


def _wide_inside(node: Node, to: DType, bound: Collection[Node]) -> CompositeOp:
    """Return a composite outside of the library as an op on the same operands whose definition is in wider values. It is noted as
    the same function (`known_same`), so kernels of the one compute the other. bound: nodes that depend on parameters alone."""
    assert isinstance(node.op, CompositeOp)
    types = [i.type for i in node.inputs]
    old = node.op.define(types, node.attrs)
    operands = [(leaves.parameter if i in bound else leaves.input)(f"x{n}", i.shape, i.dtype) for n, i in enumerate(node.inputs)]
    outputs = over(old.outputs, old.arguments, operands)
    wide = list(widen(make_graph({f"y{n}": y for n, y in enumerate(outputs)}), to).graph.outputs.values())
    if isinstance(node.op, PartOp):
        op: CompositeOp = part_between(wide, operands)
    else:
        op = DefinedOp(node.op.name, old.arguments, over(wide, operands, old.arguments), printed=bool(node.attrs))
    note_same(old, op.define(types, node.attrs))
    return op


def _wide_step(step: Body, to: DType) -> Body:
    """Return the step of a loop on wider carries and slices, with wider results."""
    wide = [leaves.input(f"x{n}", a.shape, to if _narrower(a.dtype, to) else a.dtype) for n, a in enumerate(step.arguments)]
    narrow = [_to(x, a.dtype) for x, a in zip(wide, step.arguments, strict=True)]
    outputs = [_to(y, to) if _narrower(y.dtype, to) else y for y in over(step.outputs, step.arguments, narrow)]
    results = list(widen(make_graph({f"y{n}": y for n, y in enumerate(outputs)}), to).graph.outputs.values())
    arguments = [leaves.argument(n, x.type) for n, x in enumerate(wide)]
    return Body(arguments, over(results, wide, arguments))


def _narrower(dtype: DType, than: DType) -> bool:
    return dtype.is_float and dtype.itemsize < than.itemsize


def _to(x: Node, dtype: DType) -> Node:
    """Return x in a dtype. A cast that only widened it before is undone. A value copied to a device is narrowed before the copy."""
    if x.op is leaves.COPY_TO and _narrower(dtype, x.dtype):
        return apply(leaves.COPY_TO, (_to(x.inputs[0], dtype),), x.attrs)
    if x.dtype != dtype and x.op.name == "cast" and x.inputs[0].dtype == dtype and _narrower(dtype, x.dtype):
        return x.inputs[0]
    return atomic.cast(x, dtype)


MOST_MOVES = 64
"""Largest number of consecutive steps that `_Widening.exactly` traces back."""


def _is_library(op: Any) -> bool:
    return isinstance(op, CompositeOp) and LIBRARY.get(op.name) is op


class _Widening:
    """The widening of one graph. `values`: for each old node, its outputs in the new graph. A new float has the dtype `wide`, or a
    narrower one in which it is exact: a parameter, a value only moved since, or the result of an op that depends on its dtype."""

    def __init__(self, graph: Graph, to: DType, whole: Collection[Signature] = ()) -> None:
        self.old, self.to, self.kept = graph, to, whole
        expanded = written_out(graph, whole)
        self.roots = expanded.roots
        self.outputs, self.updates = expanded.outputs, expanded.updates
        self.values: dict[Node, tuple[Node, ...]] = {}
        self.exact: dict[tuple[Node, DType], Node | None] = {}
        self.bound = known_when_bound(walk(self.roots)) if whole else set()

    def graph(self) -> Graph:
        for node in walk(self.roots):
            with written_at(node.location):
                self.values[node] = self.outputs_of(node)
        outputs = {name: _to(self.value(old), old.dtype) for name, old in self.outputs.items()}
        updates: dict[leaves.State | str, Node] = {}
        for name, old in self.updates.items():
            state = leaves.state(name, old.shape, self.wide(old.dtype))
            updates[state] = _to(self.value(old), self.wide(old.dtype))
        return make_graph(outputs, updates)

    def result(self) -> PassResult:
        graph, nodes = self.graph(), self.old.nodes
        images = {n: value for n, value in zip(nodes, self.values_of(nodes), strict=True) if value is not None}
        return PassResult(graph, images, REASSOCIATING)

    def values_of(self, nodes: Sequence[Node]) -> list[Node | None]:
        """Return the new values of nodes of the old graph; None for a node of another graph, or with several outputs."""
        outputs = [self.values.get(n, ()) for n in expanded_by_library(nodes, self.kept)]
        return [values[0] if len(values) == 1 else None for values in outputs]

    def wide(self, dtype: DType) -> DType:
        """Return the dtype in which a value of this dtype is computed."""
        return self.to if _narrower(dtype, self.to) else dtype

    def value(self, node: Node) -> Node:
        (value,) = self.values[node]
        return value

    def outputs_of(self, node: Node) -> tuple[Node, ...]:
        op = node.op
        if op is leaves.ITEM:
            return (self.values[node.inputs[0]][node.attrs["index"]],)
        if isinstance(op, leaves.Leaf):
            return (self.leaf(node),)
        inputs = [self.value(i) for i in node.inputs]
        if op is leaves.COPY_TO:
            return (self.copied(node, inputs[0]),)
        loop = loop_roundings(node)
        adds = loop.adds and loop.roundings > 1                     # other loops run in the dtypes of their bodies
        as_written = op.facts.dtype_matters and not adds
        if as_written or (isinstance(op, CompositeOp) and not _is_library(op)):
            if isinstance(op, CompositeOp) and not (_is_library(op) or op.opaque):      # others of a user's own were written out
                exact = [self.exactly(x, i.dtype) for x, i in zip(inputs, node.inputs, strict=True)]
                inputs = [x if e is None else e for x, e in zip(inputs, exact, strict=True)]
                op = _wide_inside(node, self.to, self.bound)
            return self.as_written(node, inputs, op)
        if op.name == "cast" and node.dtype.is_float and node.inputs[0].dtype.is_float:
            return (inputs[0],)
        if _moves(op) and inputs[0].dtype.is_float:
            return (apply(op, inputs, node.attrs),)
        attrs = {k: self.wide(v) if isinstance(v, DType) else _wide_step(v, self.to) if isinstance(v, Body) else v
                 for k, v in node.attrs.items()}
        wide = [_to(x, self.wide(i.dtype)) for x, i in zip(inputs, node.inputs, strict=True)]
        return self.applied(node, inputs, attrs) or self.applied(node, wide, attrs) or self.as_written(node, inputs, op)

    def exactly(self, x: Node, dtype: DType, deep: int = 0) -> Node | None:
        """Return a value in a narrower dtype if it is chosen and moved from values of that dtype alone, else None."""
        if not _narrower(dtype, x.dtype):
            return x if x.dtype == dtype else None
        if (x, dtype) not in self.exact:
            self.exact[x, dtype] = self._moved(x, dtype, deep) if deep < MOST_MOVES and len(x.types) == 1 else None
        return self.exact[x, dtype]

    def _moved(self, x: Node, dtype: DType, deep: int) -> Node | None:
        if x.op.name == "cast":
            return x.inputs[0] if x.inputs[0].dtype == dtype else None
        if x.op is leaves.CONSTANT:
            narrow = apply(x.op, (), {**x.attrs, **_constant(x, dtype)})
            return narrow if is_exact(narrow) and {**narrow.attrs, **_constant(narrow, x.dtype)} == x.attrs else None
        if x.op.kind == "leaf" or any(len(i.types) != 1 for i in x.inputs):
            return None
        inputs = [i if i.dtype != x.dtype else self.exactly(i, dtype, deep + 1) for i in x.inputs]
        there = [i for i in inputs if i is not None]
        try:
            moved = apply(x.op, there, x.attrs) if len(there) == len(inputs) else None
        except LanguageError:
            return None
        if moved is None or moved.types != (TensorType(x.shape, dtype),):
            return None
        return moved if unit_roundoff(moved) == 0 and (isinstance(x.op, CompositeOp) or is_exact(moved)) else None

    def copied(self, node: Node, x: Node) -> Node:
        """Return a value on another device: the narrow value is copied, and widened there."""
        if x.op.name == "cast" and _narrower(x.inputs[0].dtype, x.dtype):
            return atomic.cast(apply(node.op, x.inputs, node.attrs), x.dtype)
        return apply(node.op, (x,), node.attrs)

    def leaf(self, node: Node) -> Node:
        if not _narrower(node.dtype, self.to) or node.op is leaves.PARAMETER:
            return node
        if node.op is leaves.INPUT:
            return atomic.cast(node, self.to)
        return apply(node.op, (), {**node.attrs, **_constant(node, self.to)})

    def applied(self, node: Node, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[Node, ...] | None:
        """Return the outputs of the op on these operands; None if it does not take them or does not return the wide types."""
        try:
            call = apply(node.op, inputs, attrs)
        except LanguageError:
            return None
        wanted = tuple(TensorType(t.shape, self.wide(t.dtype)) for t in node.types)
        return _items(call) if call.types == wanted else None

    def as_written(self, node: Node, inputs: Sequence[Node], op: Op) -> tuple[Node, ...]:
        """Return the outputs of the op in the written dtypes."""
        return _items(apply(op, [_to(x, i.dtype) for x, i in zip(inputs, node.inputs, strict=True)], node.attrs))


def _constant(node: Node, dtype: DType) -> dict[str, Any]:
    """Return the attributes of a constant that change with its dtype."""
    value = node.attrs.get("value")
    attrs = {"value": ArrayValue.of(value.array().astype(dtype.numpy), dtype)} if isinstance(value, ArrayValue) else {}
    return {"dtype": dtype, **attrs}


def _items(node: Node) -> tuple[Node, ...]:
    return tuple(leaves.item(node, i) for i in range(len(node.types)))


def written_out(graph: Graph, unchanged: Collection[Signature] = ()) -> Graph:
    """Return the graph with all composites outside of the library, except `unchanged`, replaced by their definitions."""
    return graph.with_roots(expanded_by_library(graph.roots, unchanged))


def expanded_by_library(nodes: Sequence[Node], unchanged: Collection[Signature] = ()) -> Sequence[Node]:
    """Return the nodes with all composites outside of the library, except `unchanged`, replaced by definitions: a part with a
    recipe that contains such composites becomes that recipe."""
    return expand_all(nodes, lambda n: _is_library(n.op) or (bool(unchanged) and signature_of(n) in unchanged),
                      written_for_kernels if unchanged else defined)


def written_for_kernels(node: Node) -> Definition:
    """Return the definition that replaces a composite when pieces with registered kernels are searched."""
    recipe = node.op.of_kernels if isinstance(node.op, PartOp) else None
    return defined(node) if recipe is None else recipe.op.define([i.type for i in node.inputs], node.attrs)


def last_steps(graph: Graph) -> frozenset[Node]:
    """Return the matrix products with a parameter matrix that are the last arithmetic before outputs."""
    roots, outputs, updates = graph.roots, set(graph.outputs.values()), set(graph.updates.values())
    readers = consumers(roots)
    ends: set[Node] = set()                                           # what only views lead from, to outputs
    steps: set[Node] = set()
    for node in reversed(walk(roots)):
        users = readers[node]
        if node in updates or not (users or node in outputs) or not all(u in ends and u.op.facts.view for u in users):
            continue
        ends.add(node)
        if _is_library(node.op) and any(_is_matrix_of_parameters(i) for i in node.inputs) and _contracts(node):
            steps.add(node)
    return frozenset(steps)


def _is_matrix_of_parameters(node: Node) -> bool:
    rank = node.rank if len(node.types) == 1 else 0
    while node.op.facts.view or node.op.name == "cast":
        node = node.inputs[0]
    return node.op is leaves.PARAMETER and rank >= 2


def _contracts(node: Node) -> bool:
    """Return whether an op sums products of its operands, and otherwise only adds, chooses and moves. A rounded operand then
    changes the result by no more than its share: there is no division and no exponential growth."""
    assert isinstance(node.op, CompositeOp)
    if node.op.loop:                                                # what it sums is multiplied again in the next turn
        return False
    definition = node.op.define([i.type for i in node.inputs], node.attrs)
    ops = {n.op for n in walk(expand_all(definition.outputs)) if n.op.kind in ("atomic", "composite")
           and any(t.dtype.is_float for x in (n, *n.inputs) for t in x.types)}
    needed = {atomic.ATOMIC["mul"], atomic.ATOMIC["sum"]}
    return needed <= ops and all(op in SHIFTED or op.facts.ring or op.facts.compares or _chooses(op) for op in ops)


def _chooses(op: Op) -> bool:
    return _moves(op) or (op.facts.exact and op.facts.determined and op.name != "floor")
