"""errors: the errors of exact evaluation that knows nothing of a graph."""

from __future__ import annotations

from tensor_graphs.meaning.errors import MeaningError


class OutsideFragmentError(MeaningError):
    """A graph, or a value in it, of which exact evaluation knows nothing; equality is then unknown."""


class TooMuchToComputeError(OutsideFragmentError):
    """Sizes at which exact evaluation would take too long."""
