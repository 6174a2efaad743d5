"""tensor_data: tensors that a file stores, as numpy arrays: in the file itself, or in files of raw data next to it (mapped)."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tensor_graphs.frontends.onnx.errors import NotSupported, OnnxError
from tensor_graphs.language.dims import MAX_SIZE
from tensor_graphs.language.dtypes import DType, parse_dtype

DTYPES: dict[int, str] = {1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64",
                          12: "u32", 13: "u64", 16: "bf16", 17: "f8e4m3", 19: "f8e5m2"}
"""TensorProto.DataType -> dtype here"""

FIELDS = {"f32": "float_data", "i64": "int64_data", "f64": "double_data", "u32": "uint64_data", "u64": "uint64_data"}
"""dtype -> field of a TensorProto with one number an element; the others use int32_data, floats of 8 and 16 bits as their bits"""


def dtype_of(number: int, what: str) -> DType:
    """Return the dtype with this number in TensorProto.DataType. Raises NotSupported, which names `what` has it."""
    if number not in DTYPES:
        import onnx

        names = {v: k.lower() for k, v in onnx.TensorProto.DataType.items()}
        raise NotSupported(f"{what} has the element type {names.get(number, number)}",
                           fix=f"the types that are read are {', '.join(DTYPES.values())}")
    return parse_dtype(DTYPES[number])


def number_of(dtype: DType) -> int:
    """Return a dtype's number in TensorProto.DataType."""
    return next(number for number, name in DTYPES.items() if name == dtype.name)


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Return the sizes that a TensorProto declares. Raises OnnxError for a negative one, or more elements than 64 bits count."""
    shape = tuple(int(size) for size in tensor.dims)
    if any(size < 0 for size in shape) or math.prod(shape) > MAX_SIZE:
        raise OnnxError(f"the tensor {tensor.name!r} declares the sizes {list(shape)}", fix="sizes that its data has")
    return shape


def read_tensor(tensor: Any, folder: Path | None, maps: dict[Path, np.ndarray] | None = None) -> np.ndarray:
    """Return the values of a TensorProto, read-only. folder: where its external data lies. maps: files of such data that are
    mapped already, each once, as each map takes a descriptor; others are added.

    Raises OnnxError for data of another length than its sizes say, or external data that is missing; NotSupported for its type.
    """
    what, shape = f"the tensor {tensor.name!r}", shape_of(tensor)
    dtype = dtype_of(tensor.data_type, what)
    count = math.prod(shape)
    if tensor.data_location == 1:
        flat = _external(tensor, count * dtype.itemsize, folder, {} if maps is None else maps).view(dtype.numpy)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != count * dtype.itemsize:
            raise OnnxError(f"{what}, {dtype}{list(shape)}, has {len(tensor.raw_data)} bytes of data",
                            fix=f"{count * dtype.itemsize} bytes, one value for each element")
        flat = np.frombuffer(tensor.raw_data, dtype.numpy)
    else:
        field = FIELDS.get(dtype.name, "int32_data")
        stored = getattr(tensor, field)
        if len(stored) != count:
            raise OnnxError(f"{what}, {dtype}{list(shape)}, has {len(stored)} values", fix=f"{count} values, one for each element")
        if field == "int32_data" and dtype.is_float:
            bits = np.asarray(stored, np.int64).astype(f"u{dtype.itemsize}")
            flat = bits.view(dtype.numpy)
        else:
            flat = np.asarray(stored).astype(dtype.numpy)
    array = flat.reshape(shape)
    array.flags.writeable = False
    return array


def _external(tensor: Any, length: int, folder: Path | None, maps: dict[Path, np.ndarray]) -> np.ndarray:
    """Return the bytes of a tensor's external data, mapped. Its file must lie in the model's folder, or below it."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    place, what = entries.get("location", ""), f"the external data of the tensor {tensor.name!r}"
    if folder is None:
        raise OnnxError(f"{what} is in a file, and the model is not from a file", fix="give the path of the model's file")
    parts = PurePosixPath(place)
    if not place or parts.is_absolute() or ".." in parts.parts or "\\" in place or "\0" in place:
        raise OnnxError(f"{what} is at {place!r}", fix="a relative path below the folder of the model's file")
    file = folder / place
    try:
        offset, size = int(entries.get("offset", 0)), int(entries.get("length", length))
    except ValueError:
        raise OnnxError(f"{what} has an offset or a length that is no number", fix="whole numbers") from None
    if not file.resolve().is_relative_to(folder.resolve()) or not file.is_file():
        raise OnnxError(f"{what} is missing: {file}", fix="put the file with the data next to the model's file")
    if size != length or offset < 0 or offset + length > file.stat().st_size:
        raise OnnxError(f"{what} is {size} bytes from {offset} on in {file}, which has {file.stat().st_size}; {length} are needed",
                        fix="take the file that was written with the model")
    if length and file not in maps:
        maps[file] = np.memmap(file, np.uint8, "r")
    return maps[file][offset:offset + length] if length else np.empty(0, np.uint8)
