"""normal_form: a graph rewritten to atomic ops alone, by short forms that are the same functions of real numbers.

A composite is replaced by its definition, or, where that branches or rounds on purpose (exp, tanh, softmax, …), by the shortest
expression with the same value for finite operands without overflow. The result is unfit for computing in floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.composite import LIBRARY, CompositeOp, Definition, WrittenOut, instantiate
from tensor_graphs.language.composites.elementary import ALGEBRAIC, LN2, LOG2E, wide
from tensor_graphs.language.dtypes import f32, f64
from tensor_graphs.language.node import Node, apply, rebuild
from tensor_graphs.meaning.algebra import narrow
from tensor_graphs.proof.errors import OutsideFragmentError

Form = Callable[[Node, Mapping[str, Any]], Node]

KEPT = frozenset({"erf", "dot"})
"""Composites that are kept because algebras evaluate them directly: erf, of which only oddness is used, and the matrix product of
floats, whose definition would hold all its terms in memory."""


def _exp(x: Node) -> Node:
    return atomic.exp2(x * LOG2E)


def _softmax(x: Node, attrs: Mapping[str, Any]) -> Node:
    e = _exp(x)
    return e * atomic.reciprocal(e.sum(attrs["axis"], keepdims=True))


def _logsumexp(x: Node, axis: int, keepdims: bool) -> Node:
    return atomic.log2(_exp(x).sum(axis, keepdims=keepdims)) * LN2


def _log_softmax(x: Node, attrs: Mapping[str, Any]) -> Node:
    return x - _logsumexp(x, attrs["axis"], True)


def _erfc(x: Node, attrs: Mapping[str, Any]) -> Node:
    result: Node = 1.0 - LIBRARY["erf"](x)
    return result


def _of_one(form: Callable[[Node], Node]) -> Form:
    return lambda x, attrs: form(x)


FORMS: dict[str, Form] = {
    **{name: _of_one(form) for name, form in ALGEBRAIC.items()},
    "softmax": _softmax, "log_softmax": _log_softmax,
    "logsumexp": lambda x, attrs: _logsumexp(x, attrs["axis"], attrs["keepdims"]), "erfc": _erfc,
}
"""For each library composite of one operand, a function that builds its value over the reals from a wide operand."""


def _whole_power_of_two(x: Node) -> bool:
    """Return whether all elements are ±1, ±2, ±4, …; not ±½, as a product with ½ may lose bits near the smallest number."""
    while x.op.facts.rearranges:
        x = x.inputs[0]
    value = x.attrs["value"] if x.op is leaves.CONSTANT else 0.0
    return isinstance(value, (int, float)) and abs(math.frexp(value)[0]) == 0.5 and abs(value) >= 1


def rounding_aloud(outputs: Sequence[Node]) -> list[Node]:
    """Return outputs in which each atomic op on floats below 32 bits runs in f32, followed by a narrowing cast that makes its
    rounding explicit. A literal of f32 that is cast to f64 becomes the number that f32 holds."""
    def as_f32(node: Node, new: tuple[Node, ...]) -> Node | None:
        value = node.attrs["value"] if node.op is leaves.CONSTANT else None
        return leaves.constant(float(np.float32(value)), f32) if isinstance(value, float) else None

    def replace(node: Node, new: tuple[Node, ...]) -> Node | None:
        if node.op.name == "cast" and node.dtype == f64 and new[0].dtype == f32:
            source = new[0]
            while source.op.facts.rearranges:
                source = source.inputs[0]
            return atomic.cast(rebuild([new[0]], as_f32)[0], f64) if source.op is leaves.CONSTANT else None
        if not node.op.facts.rounds or node.dtype.kind != "float" or node.dtype.itemsize >= 4:
            return None
        if node.op.name == "mul" and any(map(_whole_power_of_two, node.inputs)):
            return None                                     # exact
        if node.op.name == "scatter" and node.attrs["mode"] != "add":
            return None                                     # moves and chooses
        return atomic.cast(apply(node.op, [atomic.cast(x, f32) if x.dtype.is_float else x for x in new], node.attrs), node.dtype)

    return rebuild(list(outputs), replace)


def literals_as_held(outputs: Sequence[Node]) -> list[Node]:
    """Return outputs with each float literal below 32 bits as the number that its dtype holds: 0.10009765625 for 0.1 in bf16."""
    def replace(node: Node, new: tuple[Node, ...]) -> Node | None:
        value = node.attrs["value"] if node.op is leaves.CONSTANT and node.dtype.kind == "float" else None
        if not isinstance(value, float) or node.dtype.itemsize >= 4:
            return None
        return leaves.constant(float(narrow(np.asarray(value), node.dtype)), node.dtype)

    return rebuild(list(outputs), replace)


def in_atoms(outputs: Sequence[Node]) -> list[Node]:
    """Return outputs over leaves, atomic ops and the KEPT composites. Raises OutsideFragmentError for an opaque composite, and
    TooManyNodesError as `expand_all` does."""
    inside = WrittenOut(lambda inner: _in_atoms(inner, inside))
    return _in_atoms(outputs, inside)


def _in_atoms(outputs: Sequence[Node], inside: WrittenOut) -> list[Node]:
    several: dict[Node, tuple[Node, ...]] = {}

    def replace(node: Node, new: tuple[Node, ...]) -> Node | None:
        op = node.op
        if op is leaves.ITEM and node.inputs[0] in several:
            index: int = node.attrs["index"]
            return several[node.inputs[0]][index]
        if op is leaves.COPY_TO:
            return new[0]
        if not isinstance(op, CompositeOp):
            if isinstance(op, AtomicOp) or op.kind in ("leaf", "structural"):
                return None
            raise OutsideFragmentError(f"{op.name} is neither atomic nor a composite", node.location)
        ours = LIBRARY.get(op.name) is op
        if ours and op.name in KEPT and new[0].dtype.is_float:
            if new[0].dtype.itemsize >= 4:
                return None
            return atomic.cast(op(*map(wide, new)), new[0].dtype)
        if ours and op.name in FORMS:
            x = new[0]
            form = FORMS[op.name](wide(leaves.argument(0, x.type)), node.attrs)
            (value,) = instantiate(Definition((leaves.argument(0, x.type),), tuple(_in_atoms([form], inside)), ""), [x])
            return atomic.cast(value, x.dtype)
        if op.opaque:
            raise OutsideFragmentError(f"{op.name} is opaque: it is never replaced by a definition", node.location)
        outputs_of = inside.instantiate(node, new)
        if len(outputs_of) > 1:
            several[node] = outputs_of
        return outputs_of[0]

    return rebuild(list(outputs), replace)
