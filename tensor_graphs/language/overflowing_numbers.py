"""overflowing_numbers: the error for a Python number that a dtype rounds to infinity, or to NaN in a dtype without infinity."""

from __future__ import annotations

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import DTypeError


def refuse_out_of_range(x: int | float, dtype: DType) -> None:
    """Raise DTypeError, unless x is at most half a step beyond the dtype's largest number, so that it is rounded to that number."""
    try:
        with np.errstate(over="ignore"):
            fits = bool(np.isfinite(np.asarray(float(x)).astype(dtype.numpy)))
    except OverflowError:                                           # an int beyond every float
        fits = False
    if fits:
        return
    shown = d.shown_int(x) if isinstance(x, int) else f"{float(x)!r}"
    becomes, others = "NaN", "or the tensor cast to a wider dtype"
    if dtype.has_infinity:
        becomes, others = "infinite", "the tensor cast to a wider dtype, or inf (math.inf in Python) where that is meant"
    raise DTypeError(f"{shown} beside a tensor of {dtype.name} would be {becomes}: the largest number is {dtype.max:.8g}",
                     fix=f"a smaller number, {others}")
