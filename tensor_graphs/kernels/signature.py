"""signature: one op with its attributes and operand types, without names. Equal signatures share their measurements."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.language.text_writer import format_value
from tensor_graphs.meaning.same_math import licensed_unit


@dataclass(frozen=True, eq=False)
class Signature:
    """An op with its attributes and operand types. key: structural key of `graph`. dim_names[i]: name in `spec` of dim d<i>."""

    key: str
    spec: Spec
    graph: Graph
    dim_names: tuple[str, ...]

    @cached_property
    def unit(self) -> float:
        """Largest relative change of a value by a rounding that the op allows (`rounded`); 0 where it allows none."""
        return licensed_unit(self.graph.roots)

    def axes(self, binding: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of the dims by canonical name (d0, d1, …), from a binding: dim name in `spec` -> size."""
        return {f"d{i}": int(binding[name]) for i, name in enumerate(self.dim_names)}

    def binding(self, axes: Mapping[str, int]) -> dict[str, int]:
        """Return the binding (dim name in `spec` -> size) for sizes by canonical name; the inverse of `axes`."""
        return {name: int(axes[f"d{i}"]) for i, name in enumerate(self.dim_names)}

    def title(self) -> str:
        """Return a title for messages and tables, like `linear f32[n, 640] f32[262144, 640]`."""
        return f"{self.spec.op.name} {' '.join(map(str, self.spec.inputs))}".strip()

    def attributes(self) -> str:
        """Return the attributes that differ from their defaults, like `eps=0.01, axis=0`, without values that cannot be printed."""
        op, shown = self.spec.op, []
        defaults = {p.name: p.default for p in op.signature.parameters.values()} if isinstance(op, CompositeOp) else {}
        for name, value in self.spec.attrs.items():
            if name != "absent" and (name not in defaults or value != defaults[name]):
                with suppress(TypeError):
                    shown.append(f"{name}={format_value(value)}")
        return ", ".join(shown)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signature) and self.key == other.key and self.dim_names == other.dim_names

    def __hash__(self) -> int:
        return hash(self.key)


_cache: dict[tuple[Any, ...], Signature] = {}


def signature_of(node: Node) -> Signature:
    """Return the signature of an atomic or composite node. Equal op, attributes, types and dim names give the same object."""
    types: tuple[TensorType, ...] = tuple(i.type for i in node.inputs)
    key = (node.op, types, node.key[2])
    signature = _cache.get(key)
    if signature is None:
        spec = Spec(node.op, node.attrs, types, node.types)
        g = spec.single_node_graph()
        signature = _cache[key] = Signature(g.structural_key, spec, g, g.dim_order)
    return signature
