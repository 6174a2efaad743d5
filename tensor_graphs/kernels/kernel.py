"""kernel: what a kernel declares — the op it computes, the specs it accepts, how it is called, and its identity."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.node import Node, Op, TensorType, apply


class KernelError(TensorGraphsError):
    """A kernel that cannot be declared, found or built."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a kernel is built for: an op with its attributes, and the types (dims may be symbolic) of operands and outputs."""

    op: Op
    attrs: Mapping[str, Any]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    @staticmethod
    def of(node: Node) -> Spec:
        return Spec(node.op, node.attrs, tuple(i.type for i in node.inputs), node.types)

    def role_index(self) -> dict[str, int | list[int]]:
        """Operand name -> position in `inputs` (a variadic name -> list of positions); absent operands are missing."""
        positions = list(range(len(self.inputs)))
        if isinstance(self.op, CompositeOp):
            return self.op.by_role(positions, self.attrs)
        return {str(i): i for i in positions}

    def role(self, name: str) -> TensorType | None:
        """The type of a named operand, None when it is absent."""
        at = self.role_index().get(name)
        return self.inputs[at] if isinstance(at, int) else None

    def single_node_graph(self) -> Graph:
        """The graph of this op alone: inputs x0, x1, …, outputs y0, … Its text, oracle and database key are this spec's."""
        xs = [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(self.inputs)]
        node = apply(self.op, xs, self.attrs)
        return graph({f"y{i}": leaves.item(node, i) for i in range(len(node.types))})


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of a Python function on array views: run(outs, ins, attrs); attrs have their dims evaluated."""

    run: Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call of a native symbol. Pointers: every output, then `pointers` (positions of operands, None = null)."""

    symbol: str
    pointers: tuple[int | None, ...]
    ints: tuple[Dim, ...]
    floats: tuple[float, ...] = ()
    scratch: Dim = 0
    """bytes of memory of its own that the call uses at most, on all threads together; kept by the pool for the next call"""


Call = HostCall | NativeCall


@dataclass(frozen=True, slots=True)
class Preparation:
    """Something a kernel computes from some of its operands before its call: a packed or quantised copy of a weight matrix.

    call: computes it; its operands are those numbered in `operands`, its outputs have the types `outputs`, no dims in them. Where
    the operands are parameters this is done at bind time, once for all instructions that prepare the same, so that it costs memory
    and no time; elsewhere at every run.
    """

    call: Call
    operands: tuple[int, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True, eq=False)
class Kernel:
    """Code that computes one op on one backend, into outputs it is given.

    accepts(spec): None, or why not.  build(spec): the call.  in_place: pairs (output, input) that may share memory; a kernel
    that declares one is right whether they do or not.  contiguous: operands must be C-contiguous.  positive_strides: no operand
    may run backwards.  module: what a separate process imports to know this kernel.  updates: the kernel changes output 0 where
    it differs from operand 0; when the two share no memory, operand 0 is copied there first.  build_copy(shape, out strides, in
    strides, itemsize): of the copy kernel.  source: text whose hash (with `toolchain`) is the kernel's identity.  prepare(spec):
    what is computed from parameters beforehand; its outputs follow the op's operands in the kernel's call. What it prepares from
    is taken to be a parameter when the kernel is compared and timed.  traffic(spec): the bytes it moves, where these are fewer
    than its operands and outputs have.
    """

    name: str
    backend: str
    op: str
    build: Callable[[Spec], Call]
    accepts: Callable[[Spec], str | None]
    source: str
    module: str
    toolchain: str = ""
    in_place: tuple[tuple[int, int], ...] = ()
    contiguous: bool = False
    positive_strides: bool = False
    updates: bool = False
    build_copy: Callable[[Sequence[Dim], Sequence[Dim], Sequence[Dim], int], NativeCall | None] | None = None
    requirements: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Spec], tuple[Preparation, ...]] | None = None
    traffic: Callable[[Spec], Dim] | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def identity(self) -> str:
        """sha256 of the source and what built it: another source, another kernel, and its measurements do not carry over."""
        return _identity(self.name, self.source, self.toolchain)


@lru_cache(maxsize=4096)
def _identity(name: str, source: str, toolchain: str) -> str:
    return hashlib.sha256(f"{name}\0{source}\0{toolchain}".encode()).hexdigest()


def source_of(function: Callable[..., Any]) -> str:
    """The text of a Python function, for a kernel's identity."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        if code is None:
            raise KernelError(f"the source of {function!r} is not at hand, so its kernel has no identity",
                              ) from None
        return repr((code.co_code, code.co_consts, code.co_names))
