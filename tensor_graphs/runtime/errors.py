"""errors: what a run says when it is asked wrongly."""

from __future__ import annotations

from tensor_graphs.errors import TensorGraphsError


class RunError(TensorGraphsError):
    """Inputs, dims, parameters or outputs that do not fit the graph. Nothing ran and no state changed."""
