"""call: one ONNX node whose operands are tensors here, as a row of the table receives it; and the table itself, ROWS.

A row reads its attributes and operands through the OnnxNode, which notes them: an attribute or an operand that the row did not read
is refused by name, so that nothing in a file is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tensor_graphs.frontends.onnx.errors import NotSupported, OnnxError
from tensor_graphs.frontends.onnx.values import OnnxValue, known_array
from tensor_graphs.frontends.torch.index_ranges import MOVES, RangeCheck, Read
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.axis import one_axis
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import Node

Built = Node | OnnxValue | np.ndarray | Sequence[Node | OnnxValue | np.ndarray | None]


class OnnxNode:
    """A node: `x(i)` operand i as a node, `known(i)` as an array, `get(name, default)` an attribute. importer: the walk over the
    model, of which rows use `weights`, `stored_array(tensor)` and `subgraph(graph, node, inputs, always)`."""

    def __init__(self, proto: Any, domain: str, opset: int, inputs: Sequence[OnnxValue | None], attributes: Mapping[str, Any],
                 importer: Any, scope: Any, opsets: Mapping[str, int]) -> None:
        self.op, self.domain, self.opset, self.proto = proto.op_type, domain, opset, proto
        self.inputs, self.attributes, self.importer, self.scope, self.opsets = inputs, attributes, importer, scope, opsets
        self.wanted = len(proto.output)
        self.read = IGNORED.get(self.op, set()) | ({"broadcast", "consumed_inputs"} if opset < 7 else set())   # later: always

    def refuse(self, reason: str, fix: str | None = None) -> NoReturn:
        raise NotSupported(reason, fix=fix)

    # ---- operands ----

    def has(self, index: int) -> bool:
        self.read.add(index)
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> OnnxValue:
        value = self.inputs[index] if self.has(index) else None
        return value if value is not None else self.refuse(f"operand {index} is missing")

    def x(self, index: int = 0) -> Node:
        return self.value(index).node()

    def optional(self, index: int) -> Node | None:
        return self.x(index) if self.has(index) else None

    def all(self) -> list[Node]:
        return [self.x(i) for i in range(len(self.inputs))]

    def known(self, index: int) -> np.ndarray:
        """Return the value of an operand. Raises ValueNeeded if it depends on inputs."""
        return known_array(self.value(index), self.importer.weights, f"operand {index} of {self.op}")

    def dims(self, index: int) -> list[Dim]:
        """Return a known operand of integers or dims as a list."""
        return [int(v) if isinstance(v, (int, np.integer, np.bool_)) else v for v in self.known(index).ravel()]

    def ints(self, index: int) -> list[int]:
        return [self.static_size(size) for size in self.dims(index)]

    def static_size(self, size: Dim) -> int:
        """Return a size that must be an int. Raises NotSupported for a dim."""
        return size if isinstance(size, int) else self.refuse(f"{self.op} along the dim {size}",
                                                              "fix the size: tg.from_onnx(file, dims={name: size})")

    def scalar(self, index: int, default: Any = None) -> Any:
        """Return a known operand of one element as a number, or the default where it is absent."""
        if not self.has(index):
            return default
        array = self.known(index)
        if array.size != 1:
            self.refuse(f"operand {index} of {self.op} has {array.size} elements, and one is needed")
        return array.ravel()[0] if array.dtype == object else array.ravel()[0].item()

    def indices(self, index: Node, size: Dim, back: bool = True) -> Node:
        """Return indices of an axis of `size` elements, which are counted from its end too if `back`. An input of the graph with
        indices is noted in `importer.checks`. Raises OnnxError for constants that are out of range at all sizes."""
        most = d.bounds(size)[1]
        try:
            places = known_array(OnnxValue.of(index), self.importer.weights, "an index").ravel()
        except NotSupported:
            source = index
            while source.op.name in MOVES and source.inputs[0].dtype.is_integer:
                source = source.inputs[0]
            name = self.proto.name or self.proto.output[0]
            if source.op is leaves.INPUT and self.importer.always:
                self.importer.checks.append(RangeCheck(source.attrs["name"], Read(index, size, back, f"{self.op} {name!r}")))
            return index
        for place in {int(places.min()), int(places.max())} if places.size else ():
            if not (-most if back else 0) <= place < most:
                raise OnnxError(f"{self.op} of the index {place} of an axis of {size} elements",
                                fix=f"indices from {-most if back else 0} to {most - 1}")
        return index

    # ---- attributes ----

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return self.attributes.get(name, default)

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse an attribute with a value other than these, the first of which is its default."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            self.refuse(f"{name}={value!r} of {self.op} has no counterpart here")

    def axis(self, default: int, rank: int | None = None) -> int:
        return one_axis(self.op, self.get("axis", default), self.x().rank if rank is None else rank)

    def places(self, axes: Sequence[int], rank: int) -> list[int]:
        """Return axes counted from the front, in their order. Raises NotSupported for an axis out of range, or named twice."""
        out = [a % rank if -rank <= a < rank else self.refuse(f"axis {a} of {self.op} of a tensor of rank {rank}") for a in axes]
        return out if len(set(out)) == len(out) else self.refuse(f"{self.op} names an axis twice: {list(axes)}")

    def axes(self) -> list[int] | None:
        """Return the axes as the file names them, in operand 1 or, in older opsets, in an attribute."""
        return self.ints(1) if self.has(1) else self.get("axes")

    def per_axis(self, count: int) -> tuple[list[int], list[int], list[tuple[int, int]]]:
        """Return the strides, the dilations and the padding that the attributes give for `count` axes."""
        flat = self.get("pads") or [0] * (2 * count)
        return (list(self.get("strides") or [1] * count), list(self.get("dilations") or [1] * count),
                list(zip(flat[:count], flat[count:], strict=True)))

    def unread(self) -> str | None:
        """Return what the row did not read: an operand, or an attribute."""
        for index, value in enumerate(self.inputs):
            if value is not None and index not in self.read:
                return f"operand {index}"
        unread = [name for name in self.attributes if name not in self.read]
        return f"the attribute {unread[0]}={self.attributes[unread[0]]!r:.60}" if unread else None


Row = Callable[[OnnxNode], Built | None]
"""A builder of nodes; None: this call is for the function of the op's schema"""

ROWS: dict[tuple[str, str], list[tuple[int, Row]]] = {}
"""(domain, op) -> (first opset, builder of the nodes), in ascending order; the newest row with first opset ≤ the model's counts"""

IGNORED: dict[str, set[str | int]] = {}
"""op -> attributes and operands that its rows need not read"""

OPAQUE: set[str] = set()
"""ops that the onnx package's reference evaluator computes, of known operands"""


def row(*ops: str, since: int = 1, domain: str = "", opaque: bool = False,
        ignored: Sequence[str | int] = ()) -> Callable[[Row], Row]:
    """Return a decorator that puts a builder into ROWS for these ops. ignored: attributes and operands that change no result."""
    OPAQUE.update(ops if opaque else ())

    def add(build: Row) -> Row:
        for op in ops:
            ROWS.setdefault((domain, op), []).append((since, build))
            IGNORED.setdefault(op, set()).update(ignored)
            ROWS[domain, op].sort(key=lambda r: r[0])
        return build
    return add


def row_of(domain: str, op: str, opset: int) -> Row | None:
    """Return the builder of an op in a model of this opset; None without one."""
    return next((build for since, build in reversed(ROWS.get((domain, op), ())) if since <= opset), None)


def along(vector: Node, axis: int, rank: int) -> Node:
    """Return a vector in the shape that broadcasts along an axis of tensors of this rank."""
    return vector.reshape(tuple(-1 if i == axis % rank else 1 for i in range(rank)))
