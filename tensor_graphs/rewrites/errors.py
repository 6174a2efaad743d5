"""errors: what goes wrong with rules, patterns and e-graphs."""

from __future__ import annotations

from tensor_graphs.language.errors import LanguageError


class RewriteError(LanguageError):
    """A rule, pattern or graph that rewriting cannot take."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message, None, fix)


class PatternError(RewriteError):
    """A pattern that is not well formed."""


class UnsoundRuleError(RewriteError):
    """A rule whose sides differ; the message shows inputs at which they do."""


class UnionError(RewriteError):
    """Two values of different types were called equal: a rule's replacement has another type than its pattern."""
