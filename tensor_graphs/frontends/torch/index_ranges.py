"""index_ranges: indices that torch refuses, and that a graph would read as 0: each run checks them unless they are proved.

A row of aten/ names what it reads (`AtenCall.read`). Indices whose interval is within the axis at all sizes need no check. Others
are checked where they are an input of the graph; of those that the graph computes, it returns the least and the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import cast
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import i64
from tensor_graphs.language.node import Node
from tensor_graphs.proof.ranges import Interval, extent

ANY: Interval = (-math.inf, math.inf)
MOVES = frozenset({"reshape", "permute", "expand", "cast"})


class IndexRangeError(FrontendError, IndexError):
    """An index beyond the axis that it indexes."""


@dataclass(frozen=True)
class Read:
    """An axis of `size` elements that an op reads or writes at `index`. back: −size … −1 count from its end."""

    index: Node
    size: Dim
    back: bool
    op: str = ""


@dataclass(frozen=True)
class RangeCheck:
    """A check of the values of an input or an output of a graph."""

    name: str
    read: Read

    def require(self, values: Any, size_of: Callable[[str], int]) -> None:
        """Raise IndexRangeError unless all values are in range. size_of: value of a dim, by its name."""
        if not values.size:
            return
        size = d.evaluate(self.read.size, {str(dim): size_of(str(dim)) for dim in d.symbols(self.read.size)})
        low, high, least = int(values.min()), int(values.max()), -size if self.read.back else 0
        if low < least or high >= size:
            wrong = low if low < least else high
            raise IndexRangeError(f"{self.read.op}: index {wrong} is out of bounds for an axis of size {size}",
                                  fix=f"indices from {least} to {size - 1}")


def checks(reads: Iterable[Read]) -> tuple[list[RangeCheck], dict[str, Node]]:
    """Return the checks of reads that are not proved, and the further outputs of the graph that they need."""
    needed: list[RangeCheck] = []
    outputs: dict[str, Node] = {}
    for read in dict.fromkeys(reads):
        low, high = interval(read.index)
        most = d.bounds(read.size)[0]
        if (-most if read.back else 0) <= low and high < most:
            continue
        source = read.index
        while source.op.name in MOVES and source.inputs[0].dtype.kind in ("int", "uint"):
            source = source.inputs[0]
        if source.op is leaves.INPUT:
            needed.append(RangeCheck(source.attrs["name"], read))
        else:
            name = f"indices{len(outputs)}"
            outputs[name] = cast(c.stack(c.reduce_min(source), c.reduce_max(source)), i64)
            needed.append(RangeCheck(name, read))
    return needed, outputs


PLACES: Mapping[str, Callable[[Node, list[Interval]], Interval]] = {
    "argmax": lambda node, xs: (0, d.bounds(node.inputs[0].shape[node.attrs["axis"]])[1] - 1),
    "item": lambda node, xs: (0, d.bounds(node.inputs[0].inputs[0].shape[-1])[1] - 1) if node.inputs[0].op.name == "topk"
    else ANY,
    "min": lambda node, xs: (min(x[0] for x in xs), min(x[1] for x in xs)),
    "mod": lambda node, xs: (0, xs[1][1] - 1) if xs[1][0] > 0 else ANY,
    "sub": lambda node, xs: (xs[0][0] - xs[1][1], xs[0][1] - xs[1][0]),
}
"""Composite op -> the interval of its results, of those of its operands."""


def interval(node: Node) -> Interval:
    """Return an interval that has all values of a node of integers, at all sizes."""
    intervals: dict[Node, Interval] = {}
    stack = [node]
    while stack:
        one = stack[-1]
        inner = [i for i in one.inputs if i not in intervals and i.types[0].dtype.kind != "float"]
        if inner and one.op.name not in ("argmax", "item"):
            stack += inner
            continue
        stack.pop()
        xs = [intervals.get(i, ANY) for i in one.inputs]
        dtype = one.types[-1].dtype
        low, high = PLACES[one.op.name](one, xs) if one.op.name in PLACES else extent(one, xs)
        ends = ANY if dtype.kind == "float" else (0, 1) if dtype.kind == "bool" else (int(dtype.min), int(dtype.max))
        intervals[one] = (low, high) if ends[0] <= low and high <= ends[1] else ends
    return intervals[node]
