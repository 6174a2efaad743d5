"""array_address: the address of an array's first element, read several times faster than by numpy's own interfaces.

`array.ctypes` builds an object and `__array_interface__` a dict: 1.8 µs each, more than a small kernel, against 0.3. In numpy's C
struct (PyArrayObject, part of its ABI) the pointer to the elements directly follows the object's head.
"""

from __future__ import annotations

import ctypes

import numpy as np

_FIELD = object.__basicsize__
_pointer_at = ctypes.c_void_p.from_address


def _by_field(array: np.ndarray) -> int:
    return _pointer_at(id(array) + _FIELD).value or 0


def _by_numpy(array: np.ndarray) -> int:
    return array.ctypes.data


def _agree() -> bool:
    """Return whether this interpreter's objects and this numpy's arrays have the expected layout."""
    whole = np.zeros(8)
    return all(_by_field(a) == _by_numpy(a) for a in (whole, whole[3:], np.zeros((2, 3), np.int8)))


address = _by_field if np.ndarray.__basicsize__ > _FIELD and _agree() else _by_numpy
"""Function that returns the address of an array's first element."""
