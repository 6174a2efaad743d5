"""subgraph: a function of tensors as an attribute value, as a graph over placeholders: the step of an op that iterates (a scan).
Turns names the operands of such an op by role."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import Definition, definition_digest, instantiate
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.graph import Graph, replace_dims
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, rebuild

NAME = "step"
"""the written name of every body: the name of the author's function is not part of its meaning"""


class Body(d.HoldsDims):
    """Outputs, as a graph over the placeholders `arguments`. Equal bodies have the same meaning.

    All its dims occur in the types of its arguments, so that a call with other sizes needs no further attribute.
    """

    def __init__(self, arguments: Sequence[Node], outputs: Sequence[Node]) -> None:
        self.definition = Definition(tuple(arguments), tuple(outputs), definition_digest(outputs))
        self._at: dict[tuple[tuple[str, Dim], ...], Body] = {}

    @property
    def arguments(self) -> tuple[Node, ...]:
        return self.definition.arguments

    @property
    def outputs(self) -> tuple[Node, ...]:
        return self.definition.outputs

    @property
    def types(self) -> list[TensorType]:
        """Types of the arguments."""
        return [a.type for a in self.arguments]

    @cached_property
    def encoded(self) -> str:
        """Text that differs for different bodies: a hash of the outputs and of all arguments, as some may not be read."""
        return "g:" + hashlib.sha256("|".join(n.digest for n in (*self.arguments, *self.outputs)).encode()).hexdigest()

    @cached_property
    def dims(self) -> tuple[d.Expr, ...]:
        return tuple({str(s): s for a in self.arguments for s in d.symbols_in(a.shape)}.values())

    def with_dims(self, mapping: Mapping[str, Dim]) -> Body:
        """Return the body with dims replaced by ints or other dims."""
        own = tuple((str(s), mapping[str(s)]) for s in self.dims if str(s) in mapping)
        if not own:
            return self
        body = self._at.get(own)
        if body is None:
            new = replace_dims([*self.arguments, *self.outputs], dict(own))
            body = self._at[own] = Body(new[:len(self.arguments)], new[len(self.arguments):])
        return body

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self.encoded == other.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)

    def __repr__(self) -> str:
        return f"<{NAME} of {', '.join(map(str, self.types))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the definition as a graph, which can be pickled; of an argument that is not read, only the type is kept."""
        inputs = inputs_of(self.types)
        return _unpickled, (self.types, make_graph(instantiate(self.definition, inputs)))


class Turns:
    """A scan's operands and attributes by role; values: any values in the operands' order (nodes, types, arrays)."""

    def __init__(self, values: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        carries, sliced = attrs["carries"], attrs["carries"] + attrs["slices"]
        self.step: Body = attrs["step"]
        self.carries, self.sliced, self.others = list(values[:carries]), list(values[carries:sliced]), list(values[sliced:])
        self.reverse: bool = attrs["reverse"]

    def order(self, count: int) -> range:
        """Return the indices of the slices, in the order of the iterations."""
        return range(count - 1, -1, -1) if self.reverse else range(count)


def slice_type(t: TensorType) -> TensorType:
    """Return the type of one slice along the first axis."""
    return TensorType(t.shape[1:], t.dtype)


def inputs_of(types: Sequence[TensorType]) -> list[Node]:
    return [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]


def _unpickled(types: Sequence[TensorType], graph: Graph) -> Body:
    arguments = [leaves.argument(i, t) for i, t in enumerate(types)]
    argument_of = dict(zip(inputs_of(types), arguments, strict=True))
    return Body(arguments, rebuild(list(graph.outputs.values()), lambda node, inputs: argument_of.get(node)))
