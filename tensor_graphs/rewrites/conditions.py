"""conditions: assumptions that rules make about values, and the elements at which they do not hold.

A rule names its conditions (`assuming=("no overflow",)`) and runs only if the caller allows them. Admission ignores the elements
that break one of them: an element that depends on a division by 0 is no evidence against a rule that excludes such divisions.
Dependence is followed through the graph element by element; `where` depends on its mask and on the branch that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import python_slice
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.assumptions import CONDITIONS, DIVISION, LOGARITHM, OVERFLOW, ROOT
from tensor_graphs.meaning.interpreter import evaluate
from tensor_graphs.rewrites.errors import RewriteError
from tensor_graphs.rewrites.pattern import elementwise

UNDERFLOW = "underflow"
"""Condition for results that became 0. It is separate from overflow, as such a result is still a number."""

SMALLEST = 1e-290
"""Smallest number that counts as different from 0: float64 holds smaller ones with fewer digits."""

Array = np.ndarray[Any, Any]
Places = dict[str, Array]
"""For each condition, a mask of the elements that depend on an element at which it is broken."""


def checked(names: Any, rule: str) -> tuple[str, ...]:
    """Return the conditions that a rule names, as a tuple. Raises RewriteError for an unknown name."""
    several = (names,) if isinstance(names, str) else names
    if not isinstance(several, (tuple, list)):
        raise RewriteError(f"the rule {rule} assumes {names!r}", fix=f'names of conditions: assuming=("{OVERFLOW}",)')
    conditions = tuple(n.replace(">=", "≥") if isinstance(n, str) else n for n in several)
    for name in conditions:
        if name not in CONDITIONS:
            raise RewriteError(f"the rule {rule} assumes {name!r}, which is no condition that is known",
                               fix=f"one of {', '.join(map(repr, CONDITIONS))}")
    return conditions


def broken(roots: Sequence[Node], inputs: Mapping[Node, Array], written_out: bool) -> list[Places]:
    """Return, for each root and condition, a mask of the elements that depend on a broken condition, or on underflow.

    written_out: whether composites are expanded first. A condition is broken by a result that is infinite or NaN although its
    operands are finite, and by an input that is; an infinity written in the program breaks none.
    """
    tops = expand_all(list(roots)) if written_out else list(roots)
    order = walk(tops)
    single = [n for n in order if len(n.types) == 1]
    values = dict(zip(single, evaluate(single, inputs, {}, "real"), strict=True))
    places: dict[Node, Places] = {}
    with np.errstate(all="ignore"):
        for node in order:
            carried = _carried(node, places, values)
            if node in values and node.dtype.kind == "float":
                for name, mask in _own(node, values).items():
                    if mask.any():
                        carried[name] = mask | carried[name] if name in carried else mask
            places[node] = carried
    return [places[top] for top in tops]


def _own(node: Node, values: Mapping[Node, Array]) -> Places:
    """Return the conditions that this op itself breaks, with masks."""
    result, name = values[node], node.op.name
    odd = ~np.isfinite(result)
    if node.op.kind == "leaf":
        return {} if node.op is leaves.CONSTANT else {OVERFLOW: odd}
    operands = [values[x] for x in node.inputs if x in values and x.dtype.kind == "float"]
    here = elementwise(node.op, tuple(x.type for x in node.inputs))
    fine = np.ones(result.shape, dtype=np.bool_)
    for x in operands:
        fine &= np.isfinite(x) if here else np.isfinite(x).all()
    odd &= fine
    match name:
        case "reciprocal":
            return {DIVISION: odd & (operands[0] == 0), OVERFLOW: odd & (operands[0] != 0)}
        case "log2":
            return {LOGARITHM: odd}
        case "sqrt":
            return {ROOT: odd}
        case "exp2":
            return {OVERFLOW: odd, UNDERFLOW: (result < SMALLEST) & fine}
        case "mul":
            return {OVERFLOW: odd, UNDERFLOW: (np.abs(result) < SMALLEST) & (operands[0] != 0) & (operands[1] != 0) & fine}
        case "pad":
            return {}
    return {} if node.op.facts.exact else {OVERFLOW: odd}     # what is chosen was looked at where it was made


def _carried(node: Node, places: Mapping[Node, Places], values: Mapping[Node, Array]) -> Places:
    """Return the masks of the operands, moved to the elements of the result that read them."""
    names = dict.fromkeys(name for x in node.inputs for name in places[x])
    shape = tuple(int(s) for s in node.shape) if len(node.types) == 1 else ()
    result: Places = {}
    for name in names:
        masks = [np.asarray(places[x].get(name, np.zeros(values[x].shape if x in values else (), dtype=np.bool_)))
                 for x in node.inputs]
        result[name] = np.asarray(_mask(node, shape, masks, values))
    return result


def _mask(node: Node, shape: tuple[int, ...], masks: list[Array], values: Mapping[Node, Array]) -> Array:
    first, attrs = masks[0], node.attrs
    match node.op.name:
        case "where":
            return first | np.where(values[node.inputs[0]], masks[1], masks[2])
        case "reshape":
            return first.reshape(shape)
        case "permute":
            return first.transpose(attrs["axes"])
        case "expand":
            return np.broadcast_to(first, shape)
        case "slice":
            return first[tuple(python_slice(*bound) for bound in attrs["bounds"])]
        case "pad":
            return np.pad(first, attrs["padding"])
    if node.op.group == "reduce":
        return np.asarray(first.any(axis=tuple(attrs["axes"])))
    if len(node.types) == 1 and all(m.shape == shape for m in masks) and elementwise(node.op, tuple(x.type for x in node.inputs)):
        return np.asarray(np.logical_or.reduce(masks))
    return np.full(shape, any(m.any() for m in masks))        # which element depends on which is not known
