"""gather_as_slice: a gather by consecutive increasing indices is a slice, or its operand itself. Elements move and do not change.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensor_graphs.language import atomic
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.enode import ENode
from tensor_graphs.rewrites.rule import BITWISE, Candidate, Equalities, Index, NumericClass, Reach


class CountingIndices:
    """Rewrite of gather(x, iota) and gather(x, iota + start), for indices of one axis that stay within x and do not overflow."""

    name = "move/gather-in-order"
    numeric_class: NumericClass = BITWISE
    assuming: tuple[str, ...] = ()
    expanding = False
    reach: Reach = "near"

    def candidates(self, e: EGraph, index: Index) -> Iterator[Candidate]:
        for _, node in index.get("gather", ()):
            count = _counted(e, node.children[1])
            if count is not None:
                yield Candidate((self.name, node.term, *map(repr, count)), node.term,
                                lambda node=node, count=count: _sliced(e, node, *count))  # type: ignore[misc]


def _counted(e: EGraph, number: int) -> tuple[Dim, int] | None:
    """Return (count, first index) of indices that increase by one along their only axis; None for other indices."""
    eclass = e.of(number)
    if len(eclass.type.shape) != 1:
        return None
    (count,), dtype = eclass.type.shape, eclass.type.dtype
    for node in eclass.nodes:
        start = 0 if node.op.name == "iota" else _start(e, node)
        if start is not None and _fits(dtype, start, count):
            return count, start
    return None


def _start(e: EGraph, node: ENode) -> int | None:
    """Return c for an e-node iota + c, else None."""
    if node.op.name != "add":
        return None
    for x, c in (node.children, node.children[::-1]):
        number = e.of(c).splat
        if type(number) is int and any(n.op.name == "iota" for n in e.of(x).nodes):
            return number
    return None


def _fits(dtype: DType, start: int, count: Dim) -> bool:
    return start >= 0 and dim_ge(int(dtype.max), start + count - 1) is True


def _sliced(e: EGraph, node: ENode, count: Dim, start: int) -> Equalities | None:
    x, axis = e.placeholder(node.children[0]), int(node.attrs["axis"])
    if dim_ge(x.shape[axis], start + count) is not True:         # beyond the end a gather reads 0
        return None
    bounds: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in x.shape]
    bounds[axis] = (start, start + count, 1)
    return [(e.instance(node), e.add(atomic.slice(x, bounds)))]
