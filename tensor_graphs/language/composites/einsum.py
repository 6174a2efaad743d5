"""einsum: sums of products, whose axes are named by letters, as permutes, reshapes and dots.

Operands are contracted from left to right. Source of the notation: numpy.einsum.
"""

from __future__ import annotations

import math
import string
from collections.abc import Collection

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.products import dot
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node

__all__ = ["einsum"]


def einsum(equation: str, *operands: Node) -> Node:
    """Sum of products over the axes that the result does not name: einsum("bij,bjk->bik", a, b) is a batched dot.

    A letter is an axis; "..." stands for the leading axes of all operands that have it. Without "->" the letters that occur
    once are the result's, in alphabetic order. Floats or integers of one dtype; products are summed as by `dot`. Raises
    AttributeValueError (the equation), ShapeError (two sizes for one letter, or another number of axes), DTypeError.
    """
    terms, result = _parse(equation, operands)
    sizes = _sizes(equation, terms, operands)
    value, letters = operands[0], terms[0]
    for number in range(1, len(operands)):
        needed = set(result).union(*terms[number + 1:])
        value, letters = _contract(value, letters, operands[number], terms[number], needed, sizes)
    value, letters = _summed(value, letters, set(result))
    return atomic.permute(value, [letters.index(letter) for letter in result])


def _parse(equation: str, operands: tuple[Node, ...]) -> tuple[list[str], str]:
    """Return the letters of each operand's axes and of the result's; an ellipsis becomes letters that are not in the equation."""
    def refuse(why: str) -> AttributeValueError:
        return AttributeValueError(f"einsum {equation!r}: {why}", fix='letters for axes: "ij,jk->ik"')

    if not isinstance(equation, str):
        raise refuse("the equation is no text")
    text = equation.replace(" ", "").replace("…", "...")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise refuse(f"it has {len(terms)} terms for {len(operands)} tensors")
    free = [letter for letter in string.ascii_letters if letter not in text]
    ranks = [x.rank - len(term.replace("...", "")) for term, x in zip(terms, operands, strict=True) if "..." in term]
    leading = "".join(free[:max(ranks, default=0)])
    for i, (term, x) in enumerate(zip(terms, operands, strict=True)):
        own = x.rank - len(term.replace("...", ""))
        if own < 0 or (own and "..." not in term):
            raise ShapeError(f"einsum {equation!r}: the term {term!r} names {len(term.replace('...', ''))} axes of {x.type}",
                             fix="a letter for each axis")
        terms[i] = term.replace("...", leading[len(leading) - own:])
    if not arrow:
        together = "".join(terms)
        once = {letter for letter in set(together) - set(leading) if together.count(letter) == 1}
        right = leading + "".join(sorted(once))
    result = right.replace("...", leading)
    for term in (*terms, result):
        if not all(letter in string.ascii_letters for letter in term):
            raise refuse(f"{term!r} has signs that are no letters")
        if len(set(term)) != len(term):
            raise refuse(f"{term!r} names an axis twice, and a diagonal is not supported")
    if unknown := set(result) - set("".join(terms)):
        raise refuse(f"the result names {', '.join(sorted(unknown))}, which no tensor has")
    return terms, result


def _sizes(equation: str, terms: list[str], operands: tuple[Node, ...]) -> dict[str, Dim]:
    sizes: dict[str, Dim] = {}
    for term, x in zip(terms, operands, strict=True):
        for letter, size in zip(term, x.shape, strict=True):
            if not same_dim(sizes.setdefault(letter, size), size):
                raise ShapeError(f"einsum {equation!r}: the axis {letter} has two sizes, {format_dim(sizes[letter])} and "
                                 f"{format_dim(size)} (in {x.type})", fix="equal sizes, or another letter")
    return sizes


def _summed(x: Node, letters: str, needed: Collection[str]) -> tuple[Node, str]:
    """Return x summed over the axes whose letters are not in `needed`, and the letters that remain."""
    gone = [axis for axis, letter in enumerate(letters) if letter not in needed]
    return (arithmetic.sum(x, gone) if gone else x), "".join(letter for letter in letters if letter in needed)


def _contract(a: Node, of_a: str, b: Node, of_b: str, needed: set[str], sizes: dict[str, Dim]) -> tuple[Node, str]:
    """Return the product of a and b, summed over the axes that both have and that are not needed, and its letters."""
    a, of_a = _summed(a, of_a, needed | set(of_b))
    b, of_b = _summed(b, of_b, needed | set(of_a))
    shared = [letter for letter in of_a if letter in of_b]
    batch, inner = [x for x in shared if x in needed], [x for x in shared if x not in needed]
    rows, columns = [x for x in of_a if x not in shared], [x for x in of_b if x not in shared]

    def shape(*groups: list[str]) -> list[Dim]:
        return [*(sizes[x] for x in batch), *(math.prod((sizes[x] for x in group), start=1) for group in groups)]

    def laid(x: Node, letters: str, *groups: list[str]) -> Node:
        order = [*batch, *(letter for group in groups for letter in group)]
        return atomic.reshape(atomic.permute(x, [letters.index(letter) for letter in order]), shape(*groups))

    out = [*batch, *rows, *columns]
    left = laid(a, of_a, rows, inner)
    if inner:
        product = dot(left, laid(b, of_b, inner, columns))
    else:
        product = arithmetic.mul(left, laid(b, of_b, inner, columns))                       # (…, rows, 1) by (…, 1, columns)
    return atomic.reshape(product, [sizes[x] for x in out]), "".join(out)
