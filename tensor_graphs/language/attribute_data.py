"""attribute_data: attribute values as JSON-able data and back, exactly; and constant arrays from raw bytes."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.node import ArrayValue


def to_data(value: Any) -> Any:
    """An attribute value as JSON data. Floats are hexadecimal text, so that every bit (−0.0, an ulp) survives."""
    if isinstance(value, np.generic):
        value = value.item()                                        # the same attribute as the Python number: equal encodings
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
    if isinstance(data, dict) and data and all(isinstance(v, str) for k, v in data.items() if k != "shape"):
        if set(data) == {"float"}:
            return float.fromhex(data["float"])
        if set(data) == {"dtype"} and data["dtype"] in DTYPES:
            return DTYPES[data["dtype"]]
        if set(data) == {"dim"}:
            return d.parse_dim(data["dim"], symbols)
        if set(data) == {"array", "dtype", "shape"} and data["dtype"] in DTYPES and isinstance(data["shape"], list):
            return array_value(data["array"], DTYPES[data["dtype"]], data["shape"])
    raise ValueError(f"{data!r} is no attribute value")


def array_value(text: str, dtype: DType, shape: Sequence[Any]) -> ArrayValue:
    """A constant array of base64 text of its little-endian bytes, in C order. Raises ValueError when they do not fit the type."""
    if not all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in shape):
        raise ValueError(f"the sizes of an array are ints ≥ 0, given are {', '.join(map(str, shape))}")
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as e:
        raise ValueError(f"the array's bytes are no base64: {e}") from None
    wanted = math.prod(shape) * dtype.itemsize
    if len(raw) != wanted:
        raise ValueError(f"an array of {dtype.name}{list(shape)} has {wanted} bytes, {len(raw)} are given")
    if dtype.kind == "bool" and raw.translate(None, b"\x00\x01"):
        raise ValueError("an array of bool has the bytes 0 and 1 only")
    return ArrayValue(dtype, tuple(shape), raw)
