"""errors: the errors raised where exact evaluation cannot handle a graph."""

from __future__ import annotations

from tensor_graphs.meaning.errors import MeaningError


class OutsideFragmentError(MeaningError):
    """A graph, or a value in it, that exact evaluation does not support; equality is then unknown."""


class TooMuchToComputeError(OutsideFragmentError):
    """A graph at sizes at which exact evaluation would take too long."""
