"""gated: a gate passed through an activation, times a second projection (the middle of a GLU layer; Shazeer 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import need, same_dtype, same_shape
from tensor_graphs.language.composite import library
from tensor_graphs.language.composites.elementary import gelu, silu, wide
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts

__all__ = ["gated"]

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "gelu": lambda x: gelu(x, approximate="none"),
    "silu": lambda x: silu(x),
}
"""The activations that `gated` accepts, by name."""


def _direct(roles: Mapping[str, np.ndarray], attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    name = attrs["activation"]
    op = silu if name == "silu" else gelu
    inner = {} if name == "silu" else {"approximate": "tanh" if name == "gelu_tanh" else "none"}
    assert op.direct is not None
    return np.asarray(op.direct({"x": roles["gate"]}, inner, out_types) * roles["up"])


@library(direct=_direct, facts=OpFacts(closed=True))
def gated(gate: Node, up: Node, *, activation: str = "gelu_tanh") -> Node:
    """activation(gate) · up, of equal shapes and dtypes: GeGLU ("gelu_tanh", "gelu") or SwiGLU ("silu").

    Raises ShapeError, DTypeError, and AttributeValueError for an activation of another name.

    gate[…] and up[…] of a float dtype -> their shape and dtype. Source: Shazeer 2020.
    """
    need("gated (gate)", gate, "float")
    same_dtype("gated", gate, up)
    same_shape("gated", gate, up)
    if activation not in ACTIVATIONS:
        raise AttributeValueError(f"gated: the activation is {activation!r}", fix=f"one of {', '.join(ACTIVATIONS)}")
    return atomic.cast(ACTIVATIONS[activation](wide(gate)) * wide(up), gate.dtype)
