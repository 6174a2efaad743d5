"""sizes_as_dims: graphs with dims (symbolic sizes) in place of fixed sizes that are too large to compute with.

A proof over dims holds at every size in their ranges. Each distinct size becomes one dim from 1 to that size, wherever the number
occurs. Which numbers are sizes is a guess that needs no trust: a graph over dims counts only if it becomes the given graph again,
node for node, when the sizes are put back. A float that denotes 1/size (exact_literals.py) becomes the reciprocal of the dim.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.graph import replace_dims
from tensor_graphs.language.node import Node, apply, rebuild, walk
from tensor_graphs.proof import exact_literals

log = logging.getLogger(__name__)

LEAST = (16, 64, 256, 1024)
"""Thresholds, tried in order: sizes up to the threshold stay numbers. Higher ones keep more numbers, as a number of the program
(half of 64 channels) may not be an expression of a dim."""

_MOST_FACTORS = 3
"""Most sizes that are divided out of a number, to write it as a product of dims."""


def with_dims(outputs: Sequence[Node], bits: bool = False) -> Iterator[list[Node]]:
    """Yield the outputs (over leaves and atomic ops) with dims for large sizes, in each way that is exact at those sizes.

    bits: roundings count, so numbers are left unchanged and only shapes get dims.
    """
    order = walk(outputs)
    sizes = _sizes(order)
    taken = {str(s) for n in order for value in n.attrs.values() for s in d.symbols_in(value)}
    tried: set[tuple[Node, ...]] = set()
    for least in LEAST:
        large = {s: d.dim(f"size{s}", 1, s) for s in sorted(sizes) if s > least}
        if not large:
            return
        if taken & {str(x) for x in large.values()}:
            continue
        for numbers in (True, False) if not bits else (False,):
            over_dims = _made(outputs, _AsDims(large), numbers)
            if over_dims is not None and tuple(over_dims) not in tried:
                tried.add(tuple(over_dims))
                yield over_dims


def has_large_sizes(outputs: Sequence[Node]) -> bool:
    """Return whether a leaf has a size large enough to become a dim."""
    return any(s > LEAST[0] for s in _sizes(walk(outputs)))


def _sizes(order: Sequence[Node]) -> set[int]:
    return {s for n in order if n.op in leaves.NAMED_LEAVES for s in n.shape if isinstance(s, int)}


def _made(outputs: Sequence[Node], as_dims: _AsDims, numbers: bool) -> list[Node] | None:
    """Return the outputs over these dims; None where an op rejects them, or where putting the sizes back gives another graph.
    numbers: constants get dims too."""
    def replace(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op is not leaves.CONSTANT:
            return apply(node.op, inputs, {name: as_dims.of(value) for name, value in node.attrs.items()})
        value = node.attrs["value"]
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value in as_dims.large
        return leaves.constant(as_dims.large[int(value)], node.dtype) if numbers and whole else node

    try:
        over_dims = rebuild(list(outputs), replace)
        back = replace_dims(over_dims, {str(x): size for size, x in as_dims.large.items()})
    except TensorGraphsError as e:
        log.debug("not at any size: %s", e)
        return None
    if _plain(back) != _plain(outputs):
        return None
    return rebuild(over_dims, as_dims.reciprocal) if numbers else over_dims


def _plain(outputs: Sequence[Node]) -> list[Node]:
    """Return outputs with ints in constants converted to the constants' dtypes: a size put back is an int even in a float."""
    def replace(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.op is leaves.CONSTANT and isinstance(node.attrs["value"], int):
            return leaves.constant(node.attrs["value"], node.dtype)
        return None

    return rebuild(list(outputs), replace)


class _AsDims:
    """Conversion of numbers to dims. large: the dim for each size."""

    def __init__(self, large: Mapping[int, Dim]) -> None:
        self.large = large
        self._known: dict[int, Dim] = {}

    def of(self, value: Any) -> Any:
        """Return an attribute value with dims in place of sizes and of products of sizes."""
        if isinstance(value, bool):
            return value
        if isinstance(value, (int, d.Expr)):
            return d.replace_numbers(value, self._number)
        return tuple(self.of(v) for v in value) if isinstance(value, tuple) else value

    def _number(self, n: int) -> Dim:
        if n not in self._known:
            self._known[n] = self._product(n, _MOST_FACTORS)
        return self._known[n]

    def _product(self, n: int, most: int) -> Dim:
        """Return n as a product of dims and a remaining factor that is no size; n itself where no size divides it."""
        if n in self.large:
            return self.large[n]
        for size in sorted(self.large, reverse=True) if most else ():
            if n and n % size == 0:
                return self.large[size] * self._product(n // size, most - 1)
        return n

    def reciprocal(self, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        """Return the reciprocal of a dim for a constant node whose float denotes 1/size; None for any other node."""
        value = node.attrs.get("value") if node.op is leaves.CONSTANT else None
        if not isinstance(value, float) or not math.isfinite(value) or not 0 < value < 1:
            return None
        size = round(1 / value)
        if size not in self.large or exact_literals.read(value) != exact_literals.ClosedForm(Fraction(1, size)):
            return None
        return atomic.reciprocal(leaves.constant(self.large[size], node.dtype))
