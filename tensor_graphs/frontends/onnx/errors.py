"""errors: faults of an ONNX file, and what of it cannot be imported; each message names the file, the node and the fix."""

from __future__ import annotations

from tensor_graphs.frontends.errors import FrontendError


class OnnxError(FrontendError):
    """An ONNX file that is malformed: truncated, with a missing tensor, a cycle, or types that do not fit."""


class NotSupported(OnnxError):
    """An ONNX node, or a type of a tensor, that has no counterpart here."""


class ValueNeeded(NotSupported):
    """A value that must be known when the graph is built (a shape, an axis), and depends on inputs. inputs: their names."""

    def __init__(self, message: str, inputs: tuple[str, ...]) -> None:
        super().__init__(message, fix=f"give it: tg.from_onnx(file, values={{{inputs[0]!r}: array}})" if inputs else None)
        self.inputs = inputs
