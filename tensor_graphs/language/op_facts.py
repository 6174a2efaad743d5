"""op_facts: properties of an op, stored in its row of the op table, or next to a composite's definition.

Code that moves, merges, estimates or proves something reads a fact by name (`node.op.facts.view`) and has no list of ops. An op
without facts (a user's) is treated most cautiously.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor, along one axis, that an op reads or writes. of: index of the operand with the rows. at: index of the
    operand with the row numbers, or None if an attribute has them."""

    of: int
    at: int | None


@dataclass(frozen=True, kw_only=True)
class OpFacts:
    """Facts about an op: how values get to the result, how they are rounded, and what it requires of its operands.

    view: the result is the operand's memory with other strides or under another name; nothing is computed or moved.
    rearranges: a view in which each element of the operand occurs, and nothing else.
    exact: floats are chosen, moved or made whole; each result is a value of its dtype if the operands are, and is never rounded.
    rounds: arithmetic; a float result is rounded to its dtype.
    determined: every way to compute it gives the same bits, because it is rounded correctly or not at all.
    any_order: kinds of dtypes for which a chain x ∘ y ∘ z may be evaluated in any order without changing a bit.
    ring: sums and products, so that results are polynomials of the operands.
    bits: computed from the bits of its operands, regardless of their meaning.
    dtype_matters: in another dtype it means something else, not only another rounding.
    compares, selects: the order of the operands decides; the result is a boolean (compares), or one of the operands (selects).
    leaps: the smallest change of a float operand may change the result by a large step.
    positive: a float operand below 0 has no result.
    assumes: what a proof over the real numbers assumes about its float operands.
    reads, writes: the only rows of a larger tensor that it reads or writes.
    pages: index of an operand with numbers of pages, `page` (an attribute) rows each: only these are read of the operands between
    the first one and it.
    running: each result depends on the previous one and one more element, although the definition sums over all elements.
    product: sums of products, where a model spends most of its time.
    telling: no function that uses it can be written with other ops instead.
    mentioned: the definition of another library composite uses it.
    closed: rules that search for composites do not search its definition, because its pieces occur in nothing else.
    sought: a piece of a graph may be recognised as this op. False if its attributes cannot be read off a piece, or no piece is
    small enough.
    contains: atomic ops that its definition always has; a graph that lacks one cannot be this op.
    symbol: the operator sign for it in formulas, between two operands.
    licence: over the real numbers its operands are not changed, but a kernel may round them to the format of the attribute `to`.
    joined: a kernel may compute it together with the steps around it. False where kernels are better alone than loops with more in
    them.
    smaller: function of operand types and attributes that returns operand types of smaller sizes, or None: where sizes depend on
    each other. Built-in kernels are compared there first (measure/points/size_classes.py).
    by_rows: built-in kernels compute it row by row, in pieces of bounded size: one that is right at `smaller` sizes, which have
    several pieces, is right at more rows, and is not compared there.
    piecewise: operands that its direct evaluation reads in their stored dtype, narrower than float64. It widens them one piece at a
    time, so that a large weight is never in memory in float64 as a whole.
    """

    view: bool = False
    rearranges: bool = False
    exact: bool = False
    rounds: bool = False
    determined: bool = False
    any_order: tuple[str, ...] = ()
    ring: bool = False
    bits: bool = False
    dtype_matters: bool = False
    compares: bool = False
    selects: bool = False
    leaps: bool = False
    positive: bool = False
    assumes: str = ""
    reads: Rows | None = None
    writes: Rows | None = None
    pages: int | None = None
    running: bool = False
    product: bool = False
    telling: bool = False
    mentioned: bool = False
    closed: bool = False
    contains: tuple[str, ...] = ()
    sought: bool = True
    symbol: str = ""
    licence: bool = False
    joined: bool = True
    smaller: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any] | None] | None = None
    by_rows: bool = False
    piecewise: tuple[str, ...] = ()


UNKNOWN = OpFacts()
"""the facts of an op for which none were given"""
