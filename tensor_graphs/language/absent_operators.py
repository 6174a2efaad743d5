"""absent_operators: Python operators that tensors do not support, each with the expression to write instead."""

from __future__ import annotations

from tensor_graphs.language.errors import LanguageError

SAID: dict[str, tuple[str, str]] = {
    "divmod": ("divmod", "x // y and x % y"),
    "matmul": ("@", "of two tensors: tg.dot; by a number: *"), "round": ("round", "tg.floor(x + 0.5)"),
    "pos": ("unary +", "x itself"), "contains": ("in", "tg.equals(x, value), a bool tensor"),
}
"""operator (name in Python's data model, without underscores) -> (its sign, the expression to write instead)"""


class NoOperatorError(LanguageError, TypeError):
    """The error for a Python operator that tensors do not support."""


def no_operator(operator: str) -> NoOperatorError:
    """Return the error for an operator, by its name in Python's data model without underscores."""
    sign, fix = SAID[operator]
    return NoOperatorError(f"there is no operator {sign} here", fix=fix)
