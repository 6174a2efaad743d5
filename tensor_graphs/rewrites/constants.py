"""constants: folding of ops whose operands are all small constants. The oracle evaluates them once, as written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.dims import Expr, is_static
from tensor_graphs.language.node import ArrayValue, Node, apply
from tensor_graphs.meaning.interpreter import evaluate
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.enode import ENode
from tensor_graphs.rewrites.pattern import elementwise
from tensor_graphs.rewrites.rule import BITWISE, Candidate, Equalities, Index, NumericClass, Reach

LARGEST = 256
"""Largest number of elements of a folded constant, unless all elements are one number."""


class Folding:
    """Constant folding. Bitwise, and exact over the real numbers: ops that round, float sums and exp2 are left for bind time."""

    name = "constant/fold"
    numeric_class: NumericClass = BITWISE
    assuming: tuple[str, ...] = ()
    expanding = False
    reach: Reach = "near"

    def candidates(self, e: EGraph, index: Index) -> Iterator[Candidate]:
        for nodes in index.values():
            for number, node in nodes:
                if node.op.kind == "leaf" or node.op.facts.view or e.of(number).splat is not None:
                    continue
                if not (node.op.facts.determined or isinstance(node.op, CompositeOp)) or not node.children or _has_array(e, number):
                    continue
                if all(e.of(c).splat is not None for c in node.children) or all(_has_array(e, c) or e.of(c).splat is not None
                                                                                 for c in node.children):
                    yield Candidate((self.name, node.term, number), node.term, lambda node=node: self._fold(e, node))  # type: ignore[misc]

    def _fold(self, e: EGraph, node: ENode) -> Equalities | None:
        if not _exact(node, e) or node.op.name == "iota":
            return None
        types = [e.of(c).type for c in node.children]
        result = e.types[node.term]
        values = [e.of(c).splat for c in node.children]
        if any(isinstance(v, Expr) for v in values):
            return None
        try:
            if all(v is not None for v in values) and elementwise(node.op, tuple(types)):
                call = apply(node.op, [leaves.constant(v, t.dtype) for v, t in zip(values, types, strict=True)], node.attrs)
                number, ideal = (evaluate([call], {}, {}, mode)[0] for mode in ("as_written", "real"))
                if not np.array_equal(number.astype(ideal.dtype), ideal, equal_nan=True):
                    return None
                folded = atomic.fill(number.item(), result.shape, result.dtype)
            else:
                if not all(is_static(s) for s in result.shape) or result.size() > LARGEST:
                    return None
                operands = [_array_of(e, c) for c in node.children]
                if any(o is None for o in operands):
                    return None
                call = apply(node.op, [o for o in operands if o is not None], node.attrs)
                call = leaves.item(call, node.output)
                array, ideal = (evaluate([call], {}, {}, mode)[0] for mode in ("as_written", "real"))
                if not np.array_equal(array.astype(ideal.dtype), ideal, equal_nan=True):
                    return None
                folded = leaves.constant(array, result.dtype)
        except TensorGraphsError:
            return None
        return [(e.instance(node), e.add(folded))]


def _exact(node: ENode, e: EGraph) -> bool:
    if node.op.facts.determined:
        return True
    if node.op.name == "sum":
        return e.types[node.term].dtype.is_integer
    if isinstance(node.op, CompositeOp) and not node.op.opaque:
        from tensor_graphs.language.composite import expand_all
        from tensor_graphs.language.node import walk

        definition = node.op.define([e.of(c).type for c in node.children], node.attrs)
        return all(n.op.facts.determined or n.op.kind in ("leaf", "structural") or (n.op.name == "sum" and n.dtype.is_integer)
                   for n in walk(expand_all(definition.outputs)))
    return False


def _has_array(e: EGraph, number: int) -> bool:
    return any(n.op.name == "constant" and isinstance(n.attrs["value"], ArrayValue) for n in e.of(number).nodes)


def _array_of(e: EGraph, number: int) -> Node | None:
    eclass = e.of(number)
    for n in eclass.nodes:
        if n.op.name == "constant" and isinstance(n.attrs["value"], ArrayValue):
            return apply(n.op, (), n.attrs)
    if eclass.splat is None or isinstance(eclass.splat, Expr) or not all(is_static(s) for s in eclass.type.shape):
        return None
    return atomic.fill(eclass.splat, eclass.type.shape, eclass.type.dtype)
