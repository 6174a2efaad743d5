"""errors: what the oracle says when a graph has no meaning for the values given."""

from __future__ import annotations

from tensor_graphs.errors import TensorGraphsError


class MeaningError(TensorGraphsError):
    """Inputs or dims that do not fit the graph."""


class InterpreterError(MeaningError):
    """Values for which the fixed semantics define no result (two writes to one place under `set`)."""
