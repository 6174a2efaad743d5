"""errors: faults of an ONNX file, and what of it cannot be imported; each message names the file, the node and the fix."""

from __future__ import annotations

from pathlib import Path

from tensor_graphs.frontends.errors import FrontendError


class OnnxError(FrontendError):
    """An ONNX file that is malformed: truncated, with a missing tensor, a cycle, or types that do not fit."""

    def __init__(self, message: str, *, file: str | Path | None = None, fix: str | None = None, located: bool = False) -> None:
        super().__init__(message, file=file, fix=fix)
        self.message, self.fix, self.located = message, fix, located      # located: the message names a node

    def at(self, node: str) -> OnnxError:
        """Return the error with the node's name, unless it has one."""
        return self if self.located else self._again(f"{self.message} {node}", None, True)

    def within(self, file: Path) -> OnnxError:
        """Return the error with the file's name."""
        return self._again(self.message, file, self.located)

    def _again(self, message: str, file: Path | None, located: bool) -> OnnxError:
        return type(self)(message, file=file, fix=self.fix, located=located)


class NotSupported(OnnxError):
    """An ONNX node, or a type of a tensor, that has no counterpart here."""

    def __init__(self, message: str, *, file: str | Path | None = None, fix: str | None = None, located: bool = False) -> None:
        super().__init__(message, file=file, fix=fix or "export the model without it, or with another opset", located=located)


class ValueNeeded(NotSupported):
    """A value that must be known when the graph is built (a shape, an axis), and depends on inputs. inputs: their names."""

    def __init__(self, message: str, *, file: str | Path | None = None, fix: str | None = None, located: bool = False,
                 inputs: tuple[str, ...] = ()) -> None:
        super().__init__(message, file=file, located=located,
                         fix=fix or f"give it: tg.from_onnx(file, values={{{inputs[0]!r}: array}})" if inputs else fix)
        self.inputs = inputs

    def _again(self, message: str, file: Path | None, located: bool) -> OnnxError:
        return ValueNeeded(message, file=file, fix=self.fix, located=located, inputs=self.inputs)
