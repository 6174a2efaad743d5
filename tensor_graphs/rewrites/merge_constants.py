"""merge_constants: the constants of a chain of one op are combined: ((x + 1) + 2) + 3 is x + 6, max(max(x, 0.5), 2) is max(x, 2).

Association as a pattern would add a term for every stretch of a chain; this rewrite walks each chain down to its end. It is bitwise
for ops that are associative and commutative in bits (the fact `any_order`): integers wrap, and a max rounds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.dims import Expr
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Op, apply
from tensor_graphs.meaning.interpreter import evaluate
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.enode import ENode
from tensor_graphs.rewrites.rule import BITWISE, Candidate, Equalities, Index, NumericClass, Reach

ADD = atomic.ATOMIC["add"]

Number = bool | int | float


class _Link(NamedTuple):
    """One application of an op to a constant: the e-node, the index of the other operand, and the number as the op takes it."""

    node: ENode
    at: int
    number: Number

    @property
    def rest(self) -> int:
        return self.node.children[self.at]


class Collecting:
    """Rewrite that combines the constants of a chain. sub(x, c) counts as add(x, −c)."""

    name = "constant/collect"
    numeric_class: NumericClass = BITWISE
    assuming: tuple[str, ...] = ()
    expanding = False
    reach: Reach = "above"

    def candidates(self, e: EGraph, index: Index) -> Iterator[Candidate]:
        for name, nodes in list(index.items()):
            op: Op | None = ADD if name == "sub" else atomic.ATOMIC.get(name) or LIBRARY.get(name)
            if op is None or not op.facts.any_order:
                continue
            for home, node in nodes:
                first = _link(e, node, op)
                if first is None:
                    continue
                base, chain = _walk(e, op, home, first)
                if len(chain) > 1 or name == "sub":
                    yield Candidate((self.name, op.name, home, base, *(repr(link.number) for link in chain)), node.term,
                                    lambda op=op, base=base, chain=chain: _collected(e, op, base, chain))  # type: ignore[misc]


def _collected(e: EGraph, op: Op, base: int, chain: list[_Link]) -> Equalities | None:
    type = e.of(base).type
    try:
        total = leaves.constant(chain[0].number, type.dtype)
        for link in chain[1:]:
            total = apply(op, (total, leaves.constant(link.number, type.dtype)))
        value = evaluate([total], {}, {}, "as_written")[0]
    except TensorGraphsError:
        return None
    written = base
    for node, at, _ in reversed(chain):
        children = [written if i == at else e.find(c) for i, c in enumerate(node.children)]
        written = e.add_term(node.op, node.attrs, children, node.output, e.types[node.term])
    return [(written, e.add(apply(op, (e.placeholder(base), atomic.fill(value.item(), type.shape, type.dtype)))))]


def _link(e: EGraph, node: ENode, op: Op) -> _Link | None:
    """Return how an e-node applies an op to a constant; None if it does not, or if both operands are constants."""
    dtype: DType = e.types[node.term].dtype
    if dtype.kind not in op.facts.any_order or len(node.children) != 2:
        return None
    numbers = [e.of(c).splat for c in node.children]
    if any(isinstance(n, Expr) for n in numbers) or (numbers[0] is None) == (numbers[1] is None):
        return None
    at = 0 if numbers[0] is None else 1
    if node.op is op:
        return _Link(node, at, numbers[1 - at])
    if node.op is LIBRARY["sub"] and op.name == "add" and at == 0:
        lowest, count = int(dtype.min), 1 << dtype.bits
        return _Link(node, at, (-int(numbers[1]) - lowest) % count + lowest)
    return None


def _walk(e: EGraph, op: Op, home: int, link: _Link) -> tuple[int, list[_Link]]:
    """Return the class at which a chain of constants ends, and its links from the top. No class is visited twice, as x + 0 is x."""
    passed, chain = {e.find(home)}, [link]
    base = e.find(link.rest)
    while base not in passed:
        passed.add(base)
        below = (applied for n in e.classes[base].nodes if n.op is op or op.name == "add" if (applied := _link(e, n, op)))
        further = next((b for b in below if e.find(b.rest) not in passed), None)
        if further is None:
            break
        chain.append(further)
        base = e.find(further.rest)
    return base, chain
