"""degree: upper bounds on the degree of formulas: two different formulas agree at no more than degree/prime of all random residues.

A value is a polynomial in the leaves, in its quotients 1/s and roots √s, and in its exponentials and random functions (fresh
variables). Multiplied out, each distinct quotient costs the degree of its s as often as it occurs in a product. A node that divides
elementwise has as many distinct quotients as elements. Roots are counted like quotients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from tensor_graphs.language.node import Node
from tensor_graphs.proof.finite_field import Lanes

MOST = 1 << 60
_Form = tuple[int, dict[Node, int]]             # degree as a polynomial, quotient node -> how often in one product


def degrees(order: Sequence[Node], sizes: Mapping[Node, int], lanes: Lanes) -> dict[Node, int]:
    """Return an upper bound on the degree of each float node, at most MOST. sizes: number of elements of each node."""
    forms: dict[Node, _Form] = {}
    whole: dict[Node, int] = {}
    for node in order:
        if node.types[0].dtype.kind != "float":
            continue
        floats = [i for i in node.inputs if i.dtype.kind == "float"]
        forms[node] = _form(node, [forms[i] for i in floats])
        base, quotients = forms[node]
        total = base + sum(times * sizes[q] * max(1, whole[q.inputs[0]]) for q, times in quotients.items())
        if node.op.name in ("exp2", "log2") or node in lanes.random:
            total = max(1, whole[floats[0]]) if node not in lanes.random else 1
            forms[node] = (min(total, MOST), {})
        whole[node] = min(total, MOST)
    return whole


def _form(node: Node, operands: list[_Form]) -> _Form:
    name = node.op.name
    if not operands:
        return (0 if name in ("constant", "iota") else 1, {})
    if name in ("reciprocal", "sqrt"):
        return (1 if name == "sqrt" else 0, {node: 1})
    join: Callable[[int, int], int] = operator.add if name in ("mul", "dot") else max
    base, quotients = operands[0][0], dict(operands[0][1])
    for other, more in operands[1:]:
        base = join(base, other)
        for q in {*quotients, *more}:
            quotients[q] = min(MOST, join(quotients.get(q, 0), more.get(q, 0)))
    return min(MOST, base), quotients
