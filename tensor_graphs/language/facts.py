"""facts: facts about an op: a column of its row in the op table, or next to a composite's definition.

Code that moves, merges, estimates or proves something reads the fact by its name (`node.op.facts.view`) and has no list of ops; an
op without facts (a user's) is treated with the most care.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """of: the operand whose rows along one axis are read, or written. at: the operand that numbers them, or None where an attribute
    says it."""

    of: int
    at: int | None


@dataclass(frozen=True, kw_only=True)
class OpFacts:
    """Facts about an op: how values get to the result, how they are rounded, what it requires of its operands.

    view: the operand's own memory, with other strides or under another name: nothing is computed, nothing moves.
    rearranges: a view in which each element of the operand occurs, and nothing else.
    exact: floats are chosen, moved or made whole: each result is a value of its dtype if the operands are, never rounded.
    rounds: arithmetic: a float result is rounded to its dtype.
    steep: whether it makes more of a relative error than it was given; None of a composite: its definition says.
    determined: every computation gives the same bits: it is rounded correctly, or not at all.
    any_order: kinds of dtypes of which a chain x ∘ y ∘ z may be taken in any order without changing a bit.
    ring: sums and products, so polynomials of the operands.
    bits: made of the bits of its operands, whatever these mean.
    dtype_matters: another meaning in another dtype, not only another rounding.
    compares, selects: the order of the operands decides: a boolean, or one of them.
    leaps: the smallest change of a float operand may move the result by a whole step.
    centres: takes the mean of rows of its first operand off them.
    positive: of a float below 0 there is no result.
    assumes: what a proof over the real numbers takes for granted of its float operands.
    reads, writes: the rows of a larger tensor that it touches, and no others.
    running: each result comes of the one before it and one element more, whatever sums the definition says.
    product: sums of products, which is where most of a model's time goes.
    telling: no function is rid of it by being said in other ops.
    mentioned: a definition of another composite of the library uses it.
    closed: rules that look for composites do not look into its definition: nothing else is made of its pieces.
    sought: a piece of a graph may turn out to be it. False where its attributes cannot be read off a piece, or no piece is small
    enough.
    contains: atomic ops that its definition has, whatever its attributes and types: a graph that lacks one cannot say it.
    symbol: how a formula writes it between two operands.
    piecewise: operands that its direct evaluation takes as they are stored, in a dtype narrower than float64: it widens them
    itself, a piece at a time, so that a large weight is never held in float64 whole.
    """

    view: bool = False
    rearranges: bool = False
    exact: bool = False
    rounds: bool = False
    steep: bool | None = None
    determined: bool = False
    any_order: tuple[str, ...] = ()
    ring: bool = False
    bits: bool = False
    dtype_matters: bool = False
    compares: bool = False
    selects: bool = False
    leaps: bool = False
    centres: bool = False
    positive: bool = False
    assumes: str = ""
    reads: Rows | None = None
    writes: Rows | None = None
    running: bool = False
    product: bool = False
    telling: bool = False
    mentioned: bool = False
    closed: bool = False
    contains: tuple[str, ...] = ()
    sought: bool = True
    symbol: str = ""
    piecewise: tuple[str, ...] = ()


UNKNOWN = OpFacts()
"""of an op of which nothing was said"""
