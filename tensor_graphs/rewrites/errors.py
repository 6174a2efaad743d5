"""errors: the errors of rules, patterns and e-graphs."""

from __future__ import annotations

from tensor_graphs.language.errors import LanguageError


class RewriteError(LanguageError):
    """Error: rewriting does not accept a rule, pattern or graph."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message, None, fix)


class PatternError(RewriteError):
    """Error: a pattern is not well formed."""


class UnsoundRuleError(RewriteError):
    """Error: the two sides of a rule differ. The message shows inputs at which they do."""


class UnionError(RewriteError):
    """Error: two values of different types were joined, as a rule's replacement has a different type than its pattern."""
