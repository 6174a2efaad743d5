"""arrays: what a caller may hand in (numpy, DLPack, lists) as contiguous arrays of the right type, or a clear error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import dtype_of
from tensor_graphs.language.node import TensorType
from tensor_graphs.runtime.errors import RunError


def as_array(name: str, value: Any, t: TensorType, what: str = "input") -> np.ndarray:
    """value as a C-contiguous array of dtype t.dtype and rank t.rank; a copy only where layout asks for one.

    Lists and Python numbers are converted; arrays must have the dtype already (nothing is promoted). bf16 tensors of libraries
    that speak DLPack are read by their bits. Raises RunError.
    """
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__dlpack__"):
        array = _from_dlpack(name, value, what)
    elif isinstance(value, (int, float, bool, list, tuple, np.generic)):
        array = np.asarray(value, dtype=value.dtype if isinstance(value, np.generic) else None)
        if not isinstance(value, np.generic):
            kinds = {"b": ("bool",), "i": ("int", "uint", "float"), "u": ("int", "uint", "float"), "f": ("float",)}
            if t.dtype.kind not in kinds.get(array.dtype.kind, ()) and array.size:
                raise RunError(f"{what} {name!r} is {t}, the list holds {array.dtype.name}")
            array = array.astype(t.dtype.numpy)
    else:
        raise RunError(f"{what} {name!r} is a {type(value).__name__}; numpy arrays, DLPack tensors and lists are accepted")
    if array.dtype != t.dtype.numpy:
        known = array.dtype.name
        raise RunError(f"{what} {name!r} is {t}, the array holds {known}\n  fix: array.astype({t.dtype.numpy.name!r})")
    if array.ndim != t.rank:
        raise RunError(f"{what} {name!r} is {t}, the array has shape {array.shape}: {array.ndim} axes instead of {t.rank}")
    return np.ascontiguousarray(array).reshape(array.shape)


def _from_dlpack(name: str, value: Any, what: str) -> np.ndarray:
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        import ml_dtypes

        return np.from_dlpack(value.contiguous().view(_int16_of(value))).view(ml_dtypes.bfloat16)
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as e:
        raise RunError(f"{what} {name!r} cannot be read through DLPack: {e}") from e


def _int16_of(value: Any) -> Any:
    """The 16-bit integer dtype of the library that a bf16 tensor comes from (numpy's DLPack reader has no bf16)."""
    import sys

    library = sys.modules[type(value).__module__.split(".")[0]]
    return library.int16


def solve_dims(types: Mapping[str, TensorType], shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, d.Expr],
               given: Mapping[str, int]) -> dict[str, int]:
    """A size for every dim, from the given ones and the inputs' shapes; every axis is then checked. Raises RunError."""
    unknown = sorted(set(given) - set(dims))
    if unknown:
        raise RunError(f"the graph has no dim named {', '.join(unknown)}; it has {', '.join(dims) or 'none'}")
    found = {n: int(v) for n, v in given.items()}
    for name, t in types.items():
        for axis, s in enumerate(t.shape):
            if isinstance(s, d.Expr) and str(s) in dims and dims[str(s)] == s:
                size = shapes[name][axis]
                before = found.setdefault(str(s), size)
                if before != size:
                    raise RunError(f"input {name!r} has size {size} at axis {axis}, dim {s} is {before} already")
    missing = sorted(set(dims) - set(found))
    if missing:
        raise RunError(f"dim {', '.join(missing)} follows from no input\n  fix: run(…, dims={{{missing[0]!r}: …}})")
    for name, value in found.items():
        lo, hi = d.bounds(dims[name])
        if not lo <= value <= hi:
            raise RunError(f"dim {name} = {value} is outside of {lo}..{hi}")
    for name, t in types.items():
        for axis, s in enumerate(t.shape):
            wanted = int(d.evaluate(s, found))
            if shapes[name][axis] != wanted:
                raise RunError(f"input {name!r} is {t}: axis {axis} must be {wanted}, the array has shape {shapes[name]}")
    return found
