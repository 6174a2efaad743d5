"""absent_operators: Python's operators that tensors do not have, each with what says the same here."""

from __future__ import annotations

from tensor_graphs.language.errors import LanguageError

SAID: dict[str, tuple[str, str]] = {
    "divmod": ("divmod", "x // y and x % y"),
    "matmul": ("@", "of two tensors: tg.dot; by a number: *"), "round": ("round", "tg.floor(x + 0.5)"),
    "pos": ("unary +", "x itself"), "contains": ("in", "tg.equals(x, value), a bool tensor"),
}
"""operator -> its sign, and what to write"""


class NoOperatorError(LanguageError, TypeError):
    """An operator of Python that tensors do not have."""


def no_operator(operator: str) -> NoOperatorError:
    """Return the error for an operator, by its name in Python's data model without underscores."""
    sign, fix = SAID[operator]
    return NoOperatorError(f"there is no operator {sign} here", fix=fix)
