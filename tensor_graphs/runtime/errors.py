"""errors: the exception for invalid arguments of a run."""

from __future__ import annotations

from tensor_graphs.errors import TensorGraphsError


class RunError(TensorGraphsError):
    """An error for inputs, dims, parameters or outputs that do not fit the graph. Nothing ran and no state changed."""
