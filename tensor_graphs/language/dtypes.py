"""dtypes: the fifteen element types (8-bit floats follow OFP8, decision 0085), and the names for them that are accepted.

Names in text are short (`f32`, `bf16`, `bool`); long ones (`float32`, …) are aliases in Python and are accepted by `parse_dtype`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from tensor_graphs.language.errors import DTypeError

__all__ = [
    "DType", "bf16", "bfloat16", "bool_", "f8e4m3", "f8e5m2", "f16", "f32", "f64", "float8_e4m3fn", "float8_e5m2", "float16",
    "float32", "float64", "i8", "i16", "i32", "i64", "int8", "int16", "int32", "int64", "parse_dtype", "u8", "u16", "u32",
    "u64", "uint8", "uint16", "uint32", "uint64"
]

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type: its text name, the numpy dtype that stores it, its kind and its size in bytes. There is one object for each
    name, compared by identity, because types of values are hashed very often."""

    name: str
    numpy: np.dtype[Any]
    kind: Kind
    itemsize: int

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_dtype, (self.name,)                 # the one object of this name, in another process too

    def __repr__(self) -> str:
        return f"tg.{PYTHON_NAMES.get(self.name, self.name)}"

    @property
    def bits(self) -> int:
        """Width in bits; a bool takes 8."""
        return self.itemsize * 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers; False for bool."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("float", "int")

    @property
    def has_infinity(self) -> bool:
        """True for a float dtype with ±∞. `f8e4m3` has none: in it, a number out of range is NaN."""
        return self.is_float and self.name != "f8e4m3"

    @property
    def max(self) -> int | float:
        """The largest finite value: a Python float for float dtypes, an int for the others."""
        return 1 if self.kind == "bool" else float(self._finfo("max").max) if self.is_float else int(np.iinfo(self.numpy).max)

    @property
    def min(self) -> int | float:
        """The smallest (most negative) finite value."""
        return 0 if self.kind == "bool" else float(self._finfo("min").min) if self.is_float else int(np.iinfo(self.numpy).min)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive value that keeps full precision. Raises DTypeError unless the dtype is a float."""
        return float(self._finfo("smallest normal number").smallest_normal)

    @property
    def epsilon(self) -> float:
        """The gap between 1 and the next larger value. Raises DTypeError unless the dtype is a float."""
        return float(self._finfo("epsilon").eps)

    def _finfo(self, what: str) -> Any:
        if not self.is_float:
            raise DTypeError(f"{self.name} has no {what}", fix="ask a float dtype: f16, bf16, f32, f64, f8e4m3 or f8e5m2")
        return ml_dtypes.finfo(self.numpy)


def _dtype(name: str, numpy: Any, kind: Kind) -> DType:
    held = np.dtype(numpy)
    return DType(name, held, kind, held.itemsize)


f16, bf16, f32, f64, f8e4m3, f8e5m2 = (_dtype(name, numpy, "float") for name, numpy in (
    ("f16", np.float16), ("bf16", ml_dtypes.bfloat16), ("f32", np.float32), ("f64", np.float64),
    ("f8e4m3", ml_dtypes.float8_e4m3fn), ("f8e5m2", ml_dtypes.float8_e5m2)))
i8, i16, i32, i64 = (_dtype(f"i{bits}", f"int{bits}", "int") for bits in (8, 16, 32, 64))
u8, u16, u32, u64 = (_dtype(f"u{bits}", f"uint{bits}", "uint") for bits in (8, 16, 32, 64))
bool_ = _dtype("bool", np.bool_, "bool")

float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 = f16, bf16, f32, f64, f8e4m3, f8e5m2
int8, int16, int32, int64 = i8, i16, i32, i64
uint8, uint16, uint32, uint64 = u8, u16, u32, u64

DTYPES: dict[str, DType] = {t.name: t for t in (f16, bf16, f32, f64, f8e4m3, f8e5m2, i8, i16, i32, i64, u8, u16, u32, u64, bool_)}
"""Every dtype by its text name."""

PYTHON_NAMES = {"bool": "bool_"}
"""Text names that are builtins of Python -> the names of the constants in this package."""

BY_NUMPY: dict[np.dtype[Any], DType] = {t.numpy: t for t in DTYPES.values()}
_BY_TEXT: dict[str, DType] = {**DTYPES, **{t.numpy.name: t for t in DTYPES.values()}, "bool_": bool_}


def parse_dtype(x: Any) -> DType:
    """Return the DType that `x` names.

    x: a DType; text in any case, short or long, with or without a library's prefix ("f32", "float32", "torch.float32", "BF16"); a
    numpy dtype or scalar type; a torch.dtype. Raises DTypeError, which lists the accepted names, for anything else; Python's `int`
    and `float` are refused because numpy reads them as 64 bits wide and torch does not.
    """
    if isinstance(x, DType):
        return x
    dtype: DType | None = None
    if isinstance(x, str):
        dtype = _BY_TEXT.get(x.strip().lower().rsplit(".", 1)[-1])
    elif x is bool:
        dtype = bool_
    elif isinstance(x, np.dtype):
        dtype = BY_NUMPY.get(x)
    elif isinstance(x, type) and (issubclass(x, np.generic) or x.__module__ == "ml_dtypes"):
        dtype = BY_NUMPY.get(np.dtype(x))
    elif type(x).__module__ == "torch":               # a torch.dtype prints as torch.float32; no import is needed
        dtype = _BY_TEXT.get(str(x).rsplit(".", 1)[-1])
    if dtype is None:
        fix = f"one of {', '.join(DTYPES)} (or {', '.join(t.numpy.name for t in DTYPES.values() if t is not bool_)})"
        if x is int or x is float:
            fix = f"say the width, like tg.{'i32' if x is int else 'f32'}; " + fix
        elif isinstance(x, np.dtype) and x.newbyteorder("=") in BY_NUMPY:
            fix = f"arrays are little-endian here: array.astype(numpy.{x.newbyteorder('=').name})"
        raise DTypeError(f"{x!r} is no dtype", fix=fix)
    return dtype


def dtype_of(array: Any) -> DType:
    """Return the DType of the elements of `array`, any object with a `dtype` (numpy, torch). Raises DTypeError."""
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        raise DTypeError(f"{type(array).__name__} has no dtype", fix="make it an array: numpy.asarray(…)")
    return parse_dtype(dtype)
