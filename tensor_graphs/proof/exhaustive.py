"""exhaustive: trying all values of integer leaves with few values: agreement at all is a proof, whatever the ops are.

Each element of an output must depend on at most one element of each leaf, and the leaves must have at most 2^16 combinations of
values (two leaves of a byte, one of 16 bits, some booleans). Both graphs are then run with every combination, one at each position
of a new axis. All is exact: integers are the machine's, floats computed from them have residues and a float64 (finite_field.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.algebra import Array, At

MOST_VALUES = 1 << 16


def values(order: Sequence[Node], nodes: Sequence[At]) -> dict[Node, Array] | None:
    """Return each leaf's value at all combinations, [combinations] (equal for all its elements). Return None where combinations are
    too many, or an element depends on two elements of one leaf, or on a float."""
    named = [node for node in order if node.op in leaves.NAMED_LEAVES]
    count = 1
    for leaf in named:
        if leaf.dtype.kind == "float":
            return None
        count *= 2 if leaf.dtype.kind == "bool" else 1 << (8 * leaf.dtype.itemsize)
        if count > MOST_VALUES:
            return None
    if not named or not _one_of_each(nodes, named):
        return None
    result: dict[Node, Array] = {}
    inner = 1
    for leaf in named:
        if leaf.dtype.kind == "bool":
            all_values: Array = np.asarray([False, True])
        else:
            all_values = np.arange(int(leaf.dtype.min), int(leaf.dtype.max) + 1).astype(leaf.dtype.numpy)
        result[leaf] = all_values[np.arange(count) // inner % all_values.size]
        inner *= all_values.size
    return result


def _one_of_each(nodes: Sequence[At], named: Sequence[Node]) -> bool:
    """Return whether every element of every node depends on at most one element of each leaf; the index of that one is traced."""
    none = -1
    origins: dict[tuple[Node, Node], Array | None] = {}
    for n in nodes:
        node, name = n.node, n.node.op.name
        if math.prod(n.shape) > 1 << 14:
            return False
        for leaf in named:
            if node is leaf:
                origins[node, leaf] = np.arange(math.prod(n.shape)).reshape(n.shape)
                continue
            operands = [origins[i, leaf] for i in node.inputs]
            if all(o is None for o in operands):
                origins[node, leaf] = None
                continue
            if name == "erf" or (isinstance(node.op, AtomicOp) and node.op.elementwise):
                joined: Array = np.full(n.shape, none)
                for o in operands:
                    if o is not None:
                        if np.any((joined != none) & (o != none) & (joined != o)):
                            return False
                        joined = np.where(o == none, joined, o)
                origins[node, leaf] = joined
                continue
            moves = node.op.group in ("move", "reduce") or node.op.facts.reads is not None or node.op.facts.dtype_matters
            moved = _moved(n, operands, none) if moves else None
            if moved is None:
                return False
            origins[node, leaf] = moved
    return True


def _moved(n: At, operands: Sequence[Array | None], none: int) -> Array | None:
    name, x = n.node.op.name, operands[0]
    if name == "gather":                                    # a table without leaves, looked up at an index
        index = operands[1]
        if x is not None or index is None:
            return None
        axis = n.attrs["axis"]
        shape = [1] * axis + list(index.shape) + [1] * (len(n.shape) - axis - index.ndim)
        return np.broadcast_to(index.reshape(shape), n.shape)
    assert x is not None
    if name == "reshape":
        return x.reshape(n.shape)
    if name == "permute":
        return x.transpose(n.attrs["axes"])
    if name == "expand":
        return np.broadcast_to(x, n.shape)
    if name == "slice":
        return x[tuple(slice(start, None if stop < 0 else stop, step) for start, stop, step in n.attrs["bounds"])]
    if name == "pad":
        out = np.full(n.shape, none)
        out[tuple(slice(before, before + size) for (before, _), size in zip(n.attrs["padding"], x.shape, strict=True))] = x
        return out
    if name == "bitcast":
        return x if x.shape == n.shape else None
    axes = n.attrs["axes"]                                  # sum and reduce_max: of elements that all depend on the same one
    most = np.iinfo(np.int64).max
    high, low = x.max(axis=axes, initial=none), np.where(x == none, most, x).min(axis=axes, initial=most)
    return None if np.any((high != none) & (high != low)) else np.asarray(high)


def assigned(n: At, every: Mapping[Node, Array]) -> Array:
    """Return a leaf's elements at all combinations, [*shape, combinations]."""
    return np.broadcast_to(every[n.node], (*n.shape, every[n.node].size))
