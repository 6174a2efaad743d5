"""values: attribute values as JSON-able data and back, exactly. What the JSON form and the text form have in common.

Also the composites that are not in the library, known by name and definition, so that a printed graph reads back as the same nodes.
"""

from __future__ import annotations

import base64
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.node import ArrayValue, Node

_user_ops: weakref.WeakValueDictionary[tuple[str, str], CompositeOp] = weakref.WeakValueDictionary()


def is_library(op: CompositeOp) -> bool:
    return LIBRARY.get(op.name) is op


def remember(node: Node) -> str:
    """The name under which a user composite's node is written: `name#digest`; the op is kept for reading it back."""
    assert isinstance(node.op, CompositeOp)
    digest = node.op.identity(node)[:12]
    _user_ops[node.op.name, digest] = node.op
    return f"{node.op.name}#{digest}"


def known_user_op(name: str, digest: str) -> CompositeOp | None:
    """The user composite of this name and definition, when this process has it."""
    return _user_ops.get((name, digest))


def to_data(value: Any) -> Any:
    """An attribute value as JSON data. Floats are hexadecimal text, so that every bit (−0.0, an ulp) survives."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, d.Expr):
        return {"dim": d.format_dim(value)}
    if isinstance(value, ArrayValue):
        return {"array": base64.b64encode(value.data).decode(), "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, tuple):
        return [to_data(v) for v in value]
    raise TypeError(f"an attribute of type {type(value).__name__} cannot be written: {value!r}")


def from_data(data: Any, symbols: Mapping[str, Dim]) -> Any:
    """The inverse of `to_data`. Raises ValueError for data that it did not write."""
    if data is None or isinstance(data, (bool, int, str)):
        return data
    if isinstance(data, list):
        return tuple(from_data(v, symbols) for v in data)
    if isinstance(data, dict) and data:
        if set(data) == {"float"}:
            return float.fromhex(data["float"])
        if set(data) == {"dtype"} and data["dtype"] in DTYPES:
            return DTYPES[data["dtype"]]
        if set(data) == {"dim"}:
            return d.parse_dim(data["dim"], symbols)
        if set(data) == {"array", "dtype", "shape"} and data["dtype"] in DTYPES:
            return array_value(base64.b64decode(data["array"], validate=True), DTYPES[data["dtype"]], tuple(data["shape"]))
    raise ValueError(f"{data!r} is no attribute value")


def array_value(raw: bytes, dtype: DType, shape: tuple[int, ...]) -> ArrayValue:
    """A constant array of raw little-endian bytes. Raises ValueError when the length does not fit the shape."""
    wanted = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(raw) != wanted:
        raise ValueError(f"an array of {dtype.name}{list(shape)} has {wanted} bytes, {len(raw)} are given")
    return ArrayValue(dtype, shape, raw)
