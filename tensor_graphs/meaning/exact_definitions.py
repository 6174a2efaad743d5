"""exact_definitions: finds the definitions that only choose and move floats, so that nothing in them is rounded (write_rows, topk,
concat, …)."""

from __future__ import annotations

import weakref

import numpy as np

from tensor_graphs.language.composite import CompositeOp, Definition, looked_into
from tensor_graphs.language.node import ArrayValue, Node, walk

_known: weakref.WeakKeyDictionary[Definition, bool] = weakref.WeakKeyDictionary()


def chooses(definition: Definition) -> bool:
    """Return True if a definition, including all definitions inside of it, only chooses and moves floats, so nothing is rounded."""
    cached = _known.get(definition)
    if cached is not None:
        return cached
    todo, seen, result = [definition], {definition}, True
    while todo and result:
        for node in walk(todo.pop().outputs):
            if not isinstance(node.op, CompositeOp):
                result = result and is_exact(node)
                continue
            inner = looked_into(node)
            if inner not in seen:
                seen.add(inner)
                todo.append(inner)
    _known[definition] = result
    return result


def is_exact(node: Node) -> bool:
    """Return True if the result is a value of its dtype without rounding, given operands that are values of their dtypes."""
    name, dtype = node.op.name, node.types[0].dtype
    if dtype.kind != "float" or node.op.kind == "structural" or node.op.facts.exact:
        return True
    if name in ("constant", "pad"):
        value = node.attrs["value"]
        if isinstance(value, float):
            with np.errstate(over="ignore"):
                return bool(np.isnan(value) or float(np.asarray(value).astype(dtype.numpy)) == value)
        return isinstance(value, ArrayValue)
    if name == "cast":
        old = node.inputs[0].dtype
        return old.kind == "bool" or (old.kind == "float" and old.itemsize < dtype.itemsize)
    if name == "scatter":
        return bool(node.attrs["mode"] != "add")
    return node.op.kind == "leaf"
