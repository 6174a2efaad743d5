"""proved_composites: library composites that a graph computes by other ops than their definition: x · (r · w) is a norm, and a
matrix product plus a vector is a `linear`.

Definitions as written were recognised before, bit by bit (recognise.py). Others are found like occurrences of registered kernels
(find_parts.py): a piece with a composite's operand types and telling ops is proved to be the composite. It becomes an offer whose
equivalent is the composite, so that the piece can run by the kernels of the composite.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tensor_graphs.costs.predicted_error import predicted_error
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp, part_of
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, apply, is_step
from tensor_graphs.rewrites.candidate import Offer, Other
from tensor_graphs.rewrites.check_recipe import keeps_finite
from tensor_graphs.rewrites.find_parts import PartSearch, Wanted, telling
from tensor_graphs.rewrites.find_recipes import ROUNDED
from tensor_graphs.rewrites.passes.recognise import open_steps
from tensor_graphs.rewrites.recipe_rows import RecipeRows, compared
from tensor_graphs.rewrites.rule import REASSOCIATING
from tensor_graphs.rewrites.subgraphs import inside

PROVED = "proved/"
"""Prefix, in place of a rule's name, of the names of such equivalents."""

REDUCTIONS = frozenset(name for name, row in ATOMIC.items() if row.facts.telling and (row.facts.ring or row.facts.selects))
"""Ops one of which a sought composite must have. Other composites are element-wise loops, which codegen writes as well from any
ops."""

LARGEST_SIZE = 1 << 31

MOST_NUMBERS, SMALL = 3, 0.1
"""Largest number of a graph's numbers that are tried as `eps`, and the size from which a number is no `eps`."""


def offers_of_composites(graph: Graph, rows: RecipeRows | None = None) -> list[Offer]:
    """Return pieces that are proved to be library composites and as accurate; no two share a node. rows: filed earlier results."""
    ends = _ends(graph)
    if not ends:
        return []
    if rows is not None:
        return rows.kept(graph, lambda: _found(graph, ends), PROVED)
    return [o for o in _found(graph, ends) if compared(o, o.others[0]).passed]


def _ends(graph: Graph) -> list[Node]:
    """Return the nodes at which a piece may end, the last first: at a sum, or above a reduction without a matrix product between.
    So a search of a model that is written in composites is cheap."""
    above, ends = set[Node](), set[Node]()
    for n in graph.nodes:
        if n.op.facts.product:
            continue
        follows = any(i in above for i in n.inputs)
        if follows or telling([n]) & REDUCTIONS:
            above.add(n)
            ends |= {n} if follows or n.op.kind == "atomic" else set()
    ends &= set(open_steps(graph)) if ends else ends
    return [n for n in reversed(graph.nodes) if n in ends]


def beside(offers: list[Offer], others: Sequence[Offer]) -> list[Offer]:
    """Return the offers and those of `others` that have no node in common with them; the very same list if there are none."""
    more = [o for o in others if not any(o.inside & there.inside for there in offers)]
    return [*offers, *more] if more else offers


def _found(graph: Graph, ends: Sequence[Node]) -> list[Offer]:
    there = telling(graph.nodes)
    offers: list[Offer] = []
    calls = {op: (composite, attrs) for op, composite, attrs in _calls(graph)}
    wanted = [w for op in calls if (w := Wanted(op, brief=True)).telling <= there]
    if not wanted:
        return []
    search, taken = PartSearch(graph, wanted), set[Node]()
    for node in ends:
        for op, operands in reversed(search.at(node)):              # the largest piece first
            piece, (composite, attrs) = inside(node, operands), calls[op]
            call = apply(composite, operands, attrs)
            if piece & taken or call.type != node.type or _leads_out(graph, node, piece):
                continue
            other = Other((call,), (f"{PROVED}{composite.name}",), f"  proved to be {composite.name}", REASSOCIATING)
            offer = Offer(tuple(operands), (node,), frozenset(piece), (other,))
            if _is_no_worse(offer):
                offers.append(offer)
                taken |= piece
                break
    return offers


def _is_no_worse(offer: Offer) -> bool:
    """Return whether the composite is predicted to be as accurate as the original piece, and is finite wherever the piece is."""
    own, new = offer.alone(offer.outputs), offer.alone(offer.others[0].outputs)
    return own is not None and new is not None and predicted_error(new) <= ROUNDED * predicted_error(own) and keeps_finite(own, new)


def _leads_out(graph: Graph, node: Node, piece: set[Node]) -> bool:
    """Return whether a step inside a piece is read outside it, so that it is computed in any case."""
    return any(i in piece and i is not node and is_step(i) for n in graph.nodes if n not in piece for i in n.inputs) or any(
        r in piece and r is not node for r in graph.roots)


def _calls(graph: Graph) -> Iterator[tuple[PartOp, CompositeOp, Mapping[str, Any]]]:
    """Yield the composites that a graph may compute, as parts at any sizes, each with its op and attributes."""
    dtypes = tuple(dict.fromkeys(n.dtype for n in graph.nodes if len(n.types) == 1 and n.dtype.is_float))
    numbers = [n.attrs["value"] for n in graph.nodes if n.op is leaves.CONSTANT and isinstance(n.attrs["value"], float)]
    eps = tuple(dict.fromkeys(v for v in numbers if 0 < v < SMALL))[:MOST_NUMBERS]
    rank = max((n.rank for n in graph.nodes if len(n.types) == 1), default=0)
    for op in (op for op in LIBRARY.values() if op.facts.sought and not op.opaque and not op.variadic):
        for dtype in dtypes:
            yield from _calls_of(op, dtype, eps if "eps" in op.attributes else (None,), rank)


@cache
def _calls_of(op: CompositeOp, dtype: DType, eps: Sequence[float | None], rank: int) -> tuple[tuple[PartOp, CompositeOp, Any], ...]:
    calls = []
    optional = [n for n in op.operands if n in op.optional]
    for absent in itertools.chain.from_iterable(itertools.combinations(optional, k) for k in range(len(optional) + 1)):
        for types, number in itertools.product(_types(len(op.operands) - len(absent), dtype, rank), eps):
            attrs = {name: op.signature.parameters[name].default for name in op.attributes}
            attrs |= {"eps": number} if number is not None else {}
            attrs |= {name: -1 for name in ("axis", "axes") if name in attrs}
            attrs |= {"absent": absent} if absent else {}
            try:
                call = apply(op, [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)], attrs)
                part = part_of(make_graph(call))
            except (TensorGraphsError, TypeError, ValueError, IndexError):
                continue                                            # the op does not take these types
            if len(part.written.arguments) == len(types) and telling(make_graph(call).nodes) & REDUCTIONS:
                calls.append((part, op, attrs))
    return tuple(calls)


def _types(count: int, dtype: DType, rank: int) -> Iterator[list[TensorType]]:
    """Yield operand types of a composite: one row or several, vectors of a row's length, and matrices."""
    b, n, k, m = (d.dim(name, 1, LARGEST_SIZE) for name in ("b", "n", "k", "m"))
    for rows in ((k,), (n, k), (b, n, k))[:rank]:
        x = TensorType(rows, dtype)
        if count == 1:
            yield [x]
        elif count == 2:
            yield from ([x, TensorType(shape, dtype)] for shape in ((k,), (m, k), (k, m)))
        elif count == 3:
            yield [x, TensorType((k,), dtype), TensorType((k,), dtype)]
            yield [x, TensorType((m, k), dtype), TensorType((m,), dtype)]
