"""gradient_rule: checks numerically, in float64, that a composite's gradient rule gives the gradient of its definition."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.meaning.interpreter import evaluate

log = logging.getLogger(__name__)

MOST_ELEMENTS = 1 << 20
"""limit on the elements of all operands and gradients; larger ones are not compared"""

OFF = 1e-6
"""largest accepted difference, relative to the largest element of a gradient; both gradients are computed in float64"""


def rule_differs(names: Sequence[str], arguments: Sequence[Node], by_rule: Sequence[Node | None],
                 own: Sequence[Node | None]) -> str | None:
    """Return how the two gradients of a composite differ at random values of its operands; None if they agree.

    names: of the operands. arguments: placeholders of operands and cotangents. by_rule: gradients by the rule, one per operand;
    own: by the definition; None is zero. Rules with too many elements, or undefined at random values, are not compared.
    """
    rng = np.random.default_rng(0)
    for size in (3, 1, 8):                                          # an op may require more than its operands' types show
        try:
            values = _values(arguments, [g for g in (*by_rule, *own) if g is not None], size, rng)
        except TensorGraphsError as e:
            log.debug("a gradient at sizes about %d: %s", size, e)
            continue
        if values is None:
            return None
        left = iter(values)
        given_values, right = ([None if g is None else next(left) for g in gradients] for gradients in (by_rule, own))
        differ = (_difference(name, a, b) for name, operand, a, b in zip(names, arguments, given_values, right, strict=False)
                  if operand.dtype.kind == "float")
        return next((why for why in differ if why is not None), None)
    return None


def _values(arguments: Sequence[Node], wanted: Sequence[Node], size: int, rng: np.random.Generator) -> list[np.ndarray] | None:
    symbols = {str(s): s for a in arguments for extent in a.shape for s in d.symbols(extent)}
    binding = {name: d.clamp(size + place, s) for place, (name, s) in enumerate(sorted(symbols.items()))}
    types = [a.type.at(binding) for a in arguments]
    if sum(math.prod(map(int, t.shape)) for t in types) > MOST_ELEMENTS:
        log.info("a gradient over %s is not compared with its definition's: it is too large", ", ".join(map(str, types)))
        return None
    return evaluate(wanted, {a: _drawn(t, rng) for a, t in zip(arguments, types, strict=True)}, binding)


def _drawn(t: TensorType, rng: np.random.Generator) -> np.ndarray:
    shape = tuple(map(int, t.shape))
    if t.dtype.kind == "float":
        return rng.normal(size=shape)
    return rng.integers(0, 2, size=shape).astype(t.dtype.numpy)


def _difference(name: str, by_rule: np.ndarray | None, own: np.ndarray | None) -> str | None:
    shape = next((x.shape for x in (by_rule, own) if x is not None), ())
    a, b = (np.zeros(shape) if x is None else x for x in (by_rule, own))
    both = np.isfinite(a) & np.isfinite(b)
    off = np.where(both, np.abs(np.where(both, a, 0.0) - np.where(both, b, 0.0)), 0.0)
    largest = float(np.max(np.abs(b), where=both, initial=0.0))
    if not off.size or off.max() <= OFF * max(largest, 1e-9):
        return None
    at = np.unravel_index(int(off.argmax()), off.shape)
    place = f"[{', '.join(map(str, at))}]" if at else ""
    return f"for operand {name!r} it gives {a[at]:.6g} where the definition's is {b[at]:.6g}, at {name}{place} of random values"
