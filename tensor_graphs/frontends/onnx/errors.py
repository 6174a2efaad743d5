"""errors: faults of an ONNX file, and what of it cannot be imported; each message names the file, the node and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensor_graphs.frontends.errors import FrontendError


class OnnxError(FrontendError):
    """An ONNX file that is malformed: truncated, with a missing tensor, a cycle, or types that do not fit."""

    def __init__(self, message: str, *, file: str | Path | None = None, fix: str | None = None, located: bool = False,
                 inputs: tuple[str, ...] = ()) -> None:
        super().__init__(message, file=file, fix=fix)
        self.message, self.fix, self.located, self.inputs = message, fix, located, inputs     # located: the message names a node

    def again(self, **changes: Any) -> OnnxError:
        """Return the error with another message, a file, …"""
        return type(self)(**{"message": self.message, "fix": self.fix, "located": self.located, "inputs": self.inputs} | changes)


class NotSupported(OnnxError):
    """An ONNX node, or a type of a tensor, that has no counterpart here."""

    def __init__(self, message: str, *, fix: str | None = None, **more: Any) -> None:
        super().__init__(message, fix=fix or "export the model without it, or with another opset", **more)


class ValueNeeded(NotSupported):
    """A value that must be known when the graph is built (a shape, an axis), and depends on inputs. inputs: their names."""

    def __init__(self, message: str, *, fix: str | None = None, inputs: tuple[str, ...] = (), **more: Any) -> None:
        fix = fix or (f"give it: tg.from_onnx(file, values={{{inputs[0]!r}: array}})" if inputs else None)
        super().__init__(message, fix=fix, inputs=inputs, **more)
