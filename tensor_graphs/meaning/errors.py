"""errors: the oracle's errors for a graph that has no meaning for the given values."""

from __future__ import annotations

from tensor_graphs.language.errors import LanguageError, Location


class MeaningError(LanguageError):
    """Values that do not fit the graph: a missing input, a wrong shape or dtype, an unknown dim."""

    def __init__(self, message: str, location: Location | None = None, fix: str | None = None) -> None:
        self.message, self.fix = message, fix
        super().__init__(message, location, fix)


class InterpreterError(MeaningError):
    """Values for which the fixed semantics define no result, such as two writes to one index under `set`."""
