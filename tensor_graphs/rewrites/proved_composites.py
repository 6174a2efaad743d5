"""proved_composites: library composites that a graph says in other words: x · (r · w) is a norm, a product and its sum are a
`linear`.

A definition as written is recognised before, bit by bit (recognise.py). The rest is found as places of registered kernels are
(parts.py): a piece with the operand types and telling ops of a composite is proved to be it. Each place is an offer whose other
words are the composite, so that the kernels of the composite are ways of the piece.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tensor_graphs.costs.precision import predicted_error
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, apply, is_step
from tensor_graphs.language.part import PartOp, part_of
from tensor_graphs.rewrites.candidate import Offer, Other
from tensor_graphs.rewrites.check_recipe import keeps_finite
from tensor_graphs.rewrites.find_recipes import ROUNDED
from tensor_graphs.rewrites.parts import PartSearch, Wanted, telling
from tensor_graphs.rewrites.passes.recognise import open_steps
from tensor_graphs.rewrites.recipe_rows import RecipeRows, compared
from tensor_graphs.rewrites.rule import REASSOCIATING
from tensor_graphs.rewrites.subgraphs import inside

PROVED = "proved/"
"""how the name of what leads to such words begins, in place of a rule's"""

REDUCTIONS = frozenset(name for name, row in ATOMIC.items() if row.facts.telling and (row.facts.ring or row.facts.selects))
"""a composite without one is a loop over elements, which is written as well from the words that stand there"""

LARGEST_SIZE = 1 << 31

MOST_NUMBERS, SMALL = 3, 0.1
"""numbers of a graph that are tried as an `eps`, and above which none is one"""


def offers_of_composites(graph: Graph, rows: RecipeRows | None = None) -> list[Offer]:
    """Return the places of library composites in other words that are as accurate, no two with a node in common. rows: where
    earlier results are on file."""
    ends = _ends(graph)
    if not ends:
        return []
    if rows is not None:
        return rows.kept(graph, lambda: _found(graph, ends), PROVED)
    return [o for o in _found(graph, ends) if compared(o, o.others[0]).passed]


def _ends(graph: Graph) -> list[Node]:
    """Yield where a place may end, the last first: at a sum, or above a reduction with no product between. So a search of a model
    in composites is cheap."""
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
    """Offers, and those of the others that have no node in common with them; the very same list where there are none."""
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
    """Return whether the composite is predicted to be as accurate as the original piece, and is finite where that is."""
    own, new = offer.alone(offer.outputs), offer.alone(offer.others[0].outputs)
    return own is not None and new is not None and predicted_error(new) <= ROUNDED * predicted_error(own) and keeps_finite(own, new)


def _leads_out(graph: Graph, node: Node, piece: set[Node]) -> bool:
    """Return whether something inside a piece is read outside it: then it is computed in any case."""
    return any(i in piece and i is not node and is_step(i) for n in graph.nodes if n not in piece for i in n.inputs) or any(
        r in piece and r is not node for r in graph.roots)


def _calls(graph: Graph) -> Iterator[tuple[PartOp, CompositeOp, Mapping[str, Any]]]:
    """The composites that a graph may say, at any sizes, each with the attributes of its call."""
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
    """Operand types of a composite: a row or rows, what goes with a row, and matrices."""
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
