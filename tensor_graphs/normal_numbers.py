"""normal_numbers: a table from which normal random numbers are drawn, several times as fast as numpy generates them."""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import Any

import numpy as np


@functools.cache
def quantiles(bits: int) -> np.ndarray[Any, Any]:
    """Return 2^bits quantiles of N(0, 1), f32: medians of 2^bits equally probable intervals. A random entry is a normal number."""
    normal, count = NormalDist(), 1 << bits
    upper = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count // 2, count)], np.float32)
    return np.concatenate([-upper[::-1], upper])
