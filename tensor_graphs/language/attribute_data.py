"""attribute_data: reads back, exactly, the attribute values that json_writer.py wrote as JSON data, and constant arrays."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tensor_graphs.language.dim_reader import parse_dim
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.node import ArrayValue


def from_data(data: Any, symbols: Mapping[str, Dim]) -> Any:
    """Return the attribute value that `json_writer.to_data` wrote as `data`. Raises ValueError for any other data."""
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
            return parse_dim(data["dim"], symbols)
        if set(data) == {"array", "dtype", "shape"} and data["dtype"] in DTYPES and isinstance(data["shape"], list):
            return array_value(data["array"], DTYPES[data["dtype"]], data["shape"])
    raise ValueError(f"{data!r} is no attribute value")


def array_value(text: str, dtype: DType, shape: Sequence[Any]) -> ArrayValue:
    """Return a constant array from the base64 text of its little-endian bytes, in C order. Raises ValueError if they do not fit."""
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
