"""arrays: conversion of a caller's values (numpy, DLPack, lists) to contiguous arrays of the right type, or a clear error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device import transfer
from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.errors import TensorGraphsError, listed
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.node import TensorType
from tensor_graphs.runtime.device_array import DeviceArray, empty, lies_elsewhere, shared, why_not_read
from tensor_graphs.runtime.errors import RunError


def as_array(name: str, value: Any, t: TensorType, what: str = "input") -> np.ndarray:
    """Return `value` as a C-contiguous, aligned array of dtype t.dtype and rank t.rank, copied only where its layout differs. Lists
    and Python numbers are converted if they fit; arrays must have the dtype. bf16 DLPack tensors can be read. Raises RunError."""
    if lies_elsewhere(value):
        tensor = _shared(name, value, t, what)
        raise RunError(f"{what} {name!r} lies on {tensor.device.name}, and is read on the host\n"
                       "  fix: a copy there: np.asarray(…); .cpu() of torch, .get() of CuPy")
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
            raise RunError(f"{what} {name!r} is a masked array, and masks are not read\n"
                           "  fix: array.filled(…), or tg.where in the math")
        array = value
    elif hasattr(value, "__dlpack__"):
        array = _from_dlpack(f"{what} {name!r}", value)
    elif isinstance(value, np.generic):
        array = np.asarray(value)
    elif isinstance(value, (int, float, bool, list, tuple)):
        array = _from_list(name, value, t, what)
    else:
        raise RunError(f"{what} {name!r} is a {type(value).__name__}; numpy arrays, DLPack tensors and lists are accepted\n"
                       f"  fix: np.asarray(…, {t.dtype.numpy.name!r})")
    if array.dtype != t.dtype.numpy:
        dtype = array.dtype.name if array.dtype.isnative else f"big-endian {array.dtype.name}"
        fix = f"array.astype({t.dtype.numpy.name!r})" if isinstance(value, (np.ndarray, np.generic)) else f"one of {t.dtype.name}"
        raise RunError(f"{what} {name!r} is {t}, the array holds {dtype}\n  fix: {fix}")
    if array.ndim != t.rank:
        raise RunError(f"{what} {name!r} is {t}, the array has shape {array.shape}: {array.ndim} axes instead of {t.rank}\n"
                       "  fix: array.reshape(…) to those axes; array[None] puts one of size 1 in front")
    if array.flags.c_contiguous and array.flags.aligned:               # kernels rely on elements that are aligned to their size
        return array
    return np.array(array, order="C")


@worded
def device_array(values: Any, device: str) -> DeviceArray:
    """Copy an array (numpy's, a list of Python numbers, a tensor of another library) to a device ("cuda:0") and return it as a
    DeviceArray. A tensor on that device is shared, not copied. Raises UnknownDevice; RunError for the host (use numpy arrays
    there) and for values that are no array of a dtype that graphs have."""
    there = device_named(device)
    if there is HOST:
        raise RunError(f"{device} is the host, whose arrays are numpy's\n  fix: np.asarray(…)")
    if lies_elsewhere(values):
        tensor = _read_where_it_lies("the array", values)
        if tensor.device is there:
            return tensor
        values = tensor.numpy()
    if isinstance(values, np.ndarray):
        array = values
    else:
        array = _from_dlpack("the array", values) if hasattr(values, "__dlpack__") else _listed(values)
    if isinstance(array, np.ma.MaskedArray):
        raise RunError("the array is masked, and masks are not read\n  fix: array.filled(…)")
    dtype = next((t for t in DTYPES.values() if t.numpy == array.dtype), None)
    if dtype is None:
        raise RunError(f"the array holds {array.dtype.name}, a dtype that graphs do not have\n  fix: one of {listed(DTYPES)}")
    result = empty(there, array.shape, dtype)
    if array.nbytes:
        transfer(memory_of(np.array(array, order="C", copy=None)), result.memory, HOST)
    return result


def _listed(values: Any, called: str = "the list") -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as e:
        raise RunError(f"{called} is ragged: {e}\n  fix: lists of one length at each level") from e


def as_input(name: str, value: Any, t: TensorType) -> np.ndarray | DeviceArray:
    """Return an input by `as_array`; a DLPack tensor on another device as a DeviceArray on its memory. Raises RunError."""
    return _shared(name, value, t, "input") if lies_elsewhere(value) else as_array(name, value, t)


def _shared(name: str, value: Any, t: TensorType, what: str) -> DeviceArray:
    """Return a tensor on another device as a DeviceArray. Raises RunError unless it has the dtype and rank of t."""
    array = _read_where_it_lies(f"{what} {name!r}", value)
    if array.type is not t.dtype:
        raise RunError(f"{what} {name!r} is {t}, the array on {array.device.name} holds {array.type}\n  fix: the same in {t.dtype}")
    if array.ndim != t.rank:
        raise RunError(f"{what} {name!r} is {t}, the array has shape {array.shape}: {array.ndim} axes instead of {t.rank}\n"
                       "  fix: array.reshape(…) to those axes; array[None] puts one of size 1 in front")
    if array.memory.address % t.dtype.itemsize:
        raise RunError(f"{what} {name!r} begins within an element\n  fix: a copy of it")
    return array


def _read_where_it_lies(what: str, value: Any) -> DeviceArray:
    if not isinstance(value, DeviceArray) and (why := why_not_read(value)) is not None:
        raise RunError(f"{what} cannot be read where it lies: {why[0]}\n  fix: {why[1]}")
    try:
        return shared(value)
    except TensorGraphsError as e:                                  # with what to do
        raise RunError(f"{what} cannot be read where it lies: {e}") from e
    except Exception as e:                                          # of the library whose tensor it is
        raise RunError(f"{what} cannot be read where it lies: {_first_line(e)}\n"
                       "  fix: .contiguous(), of a dtype that graphs have") from e


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def as_output(name: str, value: Any, t: TensorType) -> np.ndarray | DeviceArray:
    """Return `value`, an array or DLPack tensor that will receive output `name` of concrete type t, as a view of its memory. Raises
    RunError when it has another type, is read-only or not C-contiguous."""
    if lies_elsewhere(value):
        there = _shared(name, value, t, "out")
        if there.shape != t.shape:
            raise RunError(f"out[{name!r}] must be {t}, and is {there.type}{list(there.shape)} on {there.device.name}\n"
                           f"  fix: one of shape {t.shape}")
        return there
    array = value if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__") else _from_dlpack(f"out {name!r}", value)
    if isinstance(array, np.ma.MaskedArray):
        raise RunError(f"out[{name!r}] is a masked array, and masks are not written\n  fix: np.empty({t.shape}, …)")
    if not isinstance(array, np.ndarray) or array.shape != t.shape or array.dtype != t.dtype.numpy:
        order = "" if not isinstance(array, np.ndarray) or array.dtype.isnative else "big-endian "
        what = f"{order}{array.dtype.name}{list(array.shape)}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
        raise RunError(f"out[{name!r}] must be {t}, and is {what}\n"
                       f"  fix: np.empty({t.shape}, {t.dtype.numpy.name!r})")
    if not array.flags.c_contiguous or not array.flags.writeable or not array.flags.aligned:
        raise RunError(f"out[{name!r}] must be writeable and C-contiguous, its elements aligned\n"
                       f"  fix: np.empty({t.shape}, {t.dtype.numpy.name!r})")
    return array


def _from_list(name: str, value: Any, t: TensorType, what: str) -> np.ndarray:
    """Return Python numbers in nested lists as an array. Raises RunError where more than float digits would be lost."""
    array = _listed(value, f"{what} {name!r} is {t}, the list")
    kinds = {"b": ("bool",), "i": ("int", "uint", "float"), "u": ("int", "uint", "float"), "f": ("float",)}
    if array.size and t.dtype.kind not in kinds.get(array.dtype.kind, ()):
        raise RunError(f"{what} {name!r} is {t}, the list holds {array.dtype.name}\n"
                       f"  fix: a list of values of {t.dtype}")
    if array.size and t.dtype.kind in ("int", "uint"):
        info = np.iinfo(t.dtype.numpy)
        if int(array.min()) < info.min or int(array.max()) > info.max:
            raise RunError(f"{what} {name!r} is {t}, the list holds numbers outside of {info.min}..{info.max}\n"
                           f"  fix: numbers in that range, or an input of a wider dtype")
    return array.astype(t.dtype.numpy)


_NOT_NUMPYS = {t.numpy.name: t for t in DTYPES.values() if t.numpy.isbuiltin != 1}
"""numpy name -> dtype, for those that np.from_dlpack does not know"""


def _from_dlpack(called: str, value: Any) -> np.ndarray:
    if (why := why_not_read(value)) is not None:
        raise RunError(f"{called} cannot be read through DLPack: {why[0]}\n  fix: {why[1]}")
    try:
        dtype = _NOT_NUMPYS.get(str(getattr(value, "dtype", "")).rpartition(".")[2])
        return np.from_dlpack(value) if dtype is None else np.from_dlpack(value.view(_int_of(value, dtype.bits))).view(dtype.numpy)
    except Exception as e:                                          # of the library whose tensor it is
        raise RunError(f"{called} cannot be read through DLPack: {_first_line(e)}\n"
                       "  fix: a dense one on the host, of a dtype that numpy has") from e


def _int_of(value: Any, bits: int) -> Any:
    """Return the integer dtype with this number of bits, of the library of a tensor."""
    import sys

    library = sys.modules[type(value).__module__.split(".")[0]]
    return getattr(library, f"int{bits}")


def solve_dims(types: Mapping[str, TensorType], shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, d.Expr],
               fixed: Mapping[str, int]) -> dict[str, int]:
    """Return the size of every dim, from the inputs' shapes and `fixed`. Raises RunError for missing or contradictory sizes."""
    if not isinstance(fixed, Mapping):
        raise RunError(f"dims are given by name, this is a {type(fixed).__name__}\n"
                       f"  fix: dims={{{', '.join(f'{n!r}: …' for n in dims)}}}")
    unknown = sorted(map(str, set(fixed) - set(dims)))
    if unknown:
        raise RunError(d.unknown_dims(unknown, dims))
    for name, value in fixed.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise RunError(f"dim {d.why_no_size(name, value, dims[name])}")
    sizes = {n: int(v) for n, v in fixed.items()}
    by_dim = {s: n for n, s in dims.items()}
    for name, t in types.items():
        for axis, s in enumerate(t.shape):
            if isinstance(s, d.Expr) and s in by_dim:
                size = shapes[name][axis]
                before = sizes.setdefault(by_dim[s], size)
                if before != size:
                    raise RunError(f"input {name!r} has size {size} at axis {axis}, dim {s} is {before} already\n"
                                   f"  fix: one size of {s} in dims= and in all inputs")
    missing = sorted(set(dims) - set(sizes))
    if missing:
        raise RunError(f"dim {', '.join(missing)} follows from no input\n  fix: run(…, dims={{{missing[0]!r}: …}})")
    for name, value in sizes.items():
        why = d.why_no_size(name, value, dims[name])
        if why is not None:
            raise RunError(f"dim {why}")
    for name, t in types.items():
        for axis, s in enumerate(t.shape):
            wanted = int(d.evaluate(s, sizes))
            if shapes[name][axis] != wanted:
                raise RunError(f"input {name!r} is {t}: axis {axis} must be {wanted}, the array has shape {shapes[name]}\n"
                               f"  fix: an array of shape {tuple(int(d.evaluate(s, sizes)) for s in t.shape)}")
    return sizes
