"""device_array: the class DeviceArray, an array on a device other than the host, shared with other libraries by DLPack.

A run returns one for an output `copy_to(y, "cuda:0")`; inputs that are torch or CuPy tensors on a GPU become one. Source:
https://dmlc.github.io/dlpack/latest (the managed tensor without a version, which every library reads and writes)."""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.devices.cpu import array_view
from tensor_graphs.devices.device import Device, Memory, UnknownDevice, transfer
from tensor_graphs.devices.device_registry import HOST, all_names, device_named, devices
from tensor_graphs.kernels.strides import contiguous_strides
from tensor_graphs.language.dtypes import DTYPES, DType

CUDA, OLD_STREAM = 2, 1
"""DLPack's numbers for CUDA: the kind of device; the default stream, on which all work of this package runs"""

KINDS = {"int": 0, "uint": 1, "float": 2, "bool": 6}
"""kind of dtype -> DLPack's type code, for dtypes that are not in OWN"""

OWN = {"bf16": 4, "f8e4m3": 10, "f8e5m2": 12}
"""dtype -> separate DLPack type code: kDLBfloat, kDLFloat8_e4m3fn, kDLFloat8_e5m2 (dlpack.h, 1.1)"""


@dataclass(eq=False)
class DeviceArray:
    """A contiguous array in the memory of a device. `np.asarray(a)` copies it to the host; `torch.from_dlpack(a)` and
    `cupy.from_dlpack(a)` share its memory. A run of a graph takes it as an input or in `out`."""

    memory: Memory
    shape: tuple[int, ...]
    type: DType

    def __repr__(self) -> str:
        return f"<{self.type}{list(self.shape)} on {self.device.name}>"

    @property
    def device(self) -> Device:
        return self.memory.device

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the elements."""
        return self.type.numpy

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.type.itemsize

    def numpy(self) -> np.ndarray:
        """Return a copy of the values on the host, after all started work on the device is done."""
        here = HOST.allocate(self.nbytes)
        if self.nbytes:
            transfer(self.memory, here, HOST)
        return array_view(here, 0, self.shape, [int(s) for s in contiguous_strides(self.shape)], self.type)

    def copy(self) -> DeviceArray:
        """Return a copy in new memory of the device."""
        result = empty(self.device, self.shape, self.type)
        if self.nbytes:
            transfer(self.memory, result.memory, HOST)
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"an array on {self.device.name} cannot be read on the host without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    # ---- DLPack ----

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device.dlpack is None:
            raise BufferError(f"memory of {self.device.name} is shared with no other library")
        return self.device.dlpack

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """Return a DLPack capsule that shares this memory. stream: the reader's CUDA stream, in the numbers of the Python array API
        (None and 1: the default stream; -1: the reader synchronizes). Raises BufferError."""
        here = self.__dlpack_device__()
        if dl_device not in (None, here):
            raise BufferError(f"an array on {self.device.name} cannot be given as one of DLPack's device {dl_device}\n"
                              "  fix: np.asarray(…) for one on the host")
        if stream is not None and stream not in (-1, 0, OLD_STREAM):
            self.device.come_before(stream)
        return _capsule_of((self.copy() if copy else self), here)


def empty(device: Device, shape: Sequence[int], type: DType) -> DeviceArray:
    """Return a new array with undefined contents."""
    return DeviceArray(device.allocate(math.prod(shape) * type.itemsize), tuple(shape), type)


def lies_elsewhere(value: Any) -> bool:
    """Return whether a value is on another device than the host, by its `__dlpack_device__`."""
    if isinstance(value, np.ndarray):
        return False
    where = getattr(value, "__dlpack_device__", None)
    try:
        return where is not None and int(where()[0]) != 1
    except Exception:                                               # of a device without a number of DLPack, for example
        return False


def why_not_read(value: Any) -> tuple[str, str] | None:
    """Return None, or (reason, fix) where a tensor's values must not be read from its memory (lazily negated ones, for example)."""
    for lazily, what, fix in (("is_neg", "its elements are negated when they are read", ".resolve_neg()"),
                              ("is_conj", "its elements are conjugated when they are read", ".resolve_conj()")):
        asked = getattr(value, lazily, None)
        if callable(asked) and asked():
            return what, fix
    if type(value).__module__.startswith("torch._subclasses"):       # what torch traces with
        return f"a {type(value).__name__} holds no values", "a tensor that does"
    if getattr(value, "requires_grad", False):
        return "it requires a gradient, of which no run knows", ".detach()"
    return None


def shared(value: Any) -> DeviceArray:
    """Return a tensor of another library on a device as an array on the same memory. Raises BufferError where it is not contiguous
    or has a dtype that graphs do not have; UnknownDevice."""
    if isinstance(value, DeviceArray):
        return value
    kind, index = (int(x) for x in value.__dlpack_device__())
    if kind == CUDA:
        return _array_of(value.__dlpack__(stream=OLD_STREAM), device_named(f"cuda:{index}"))
    for device in devices():
        if device.dlpack == (kind, index):
            return _array_of(value.__dlpack__(), device)
    raise UnknownDevice(f"no device is number {index} of DLPack's kind {kind}; this machine has {all_names()}\n  fix: one of those")


def overlap(a: np.ndarray | DeviceArray, b: np.ndarray | DeviceArray) -> bool:
    """Return whether two arrays may share memory."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.may_share_memory(a, b)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a.device is not b.device or not (a.nbytes and b.nbytes):
        return False
    return a.memory.address < b.memory.address + b.nbytes and b.memory.address < a.memory.address + a.nbytes


# ---- DLPack's structures ---------------------------------------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64))


class _Managed(ctypes.Structure):
    """The struct DLManagedTensor. Its fields are set below, as the deleter's type refers to the struct."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

OURS = 3
"""reference count of a capsule that has no owner but `_lent`: one of `_lent`, two of the counting code (a name and an argument)"""

NAME, USED = b"dltensor", b"used_dltensor"
"""name of a capsule that was not consumed yet, and of a consumed one"""

_python = ctypes.PyDLL(None)
_new: Callable[..., Any] = _python.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)  # type: ignore[attr-defined]
_valid: Callable[..., int] = _python.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)  # type: ignore[attr-defined]
_pointer: Callable[..., int] = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)  # type: ignore[attr-defined]
_rename: Callable[..., int] = _python.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)  # type: ignore[attr-defined]

_lent: dict[int, tuple[Any, ...]] = {}
"""address of an exported DLManagedTensor -> objects that must live until its reader releases it"""


def _forget(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


_on_end_of_reader = _Deleter(_forget)


def _drop_unread() -> None:
    """Drop entries of `_lent` whose capsules were never read and have no other owner. A capsule's destructor could do that earlier,
    but it might run while a reader's exception propagates, and that exception would be lost."""
    for at, (capsule, *_) in list(_lent.items()):
        if sys.getrefcount(capsule) <= OURS and _valid(id(capsule), NAME):
            _lent.pop(at, None)


def _code(dtype: DType) -> int:
    return OWN.get(dtype.name, KINDS[dtype.kind])


def _capsule_of(array: DeviceArray, device: tuple[int, int]) -> Any:
    _drop_unread()
    sizes = (ctypes.c_int64 * max(1, array.ndim))
    shape, strides = sizes(*array.shape), sizes(*(int(s) for s in contiguous_strides(array.shape)))
    managed, t = _Managed(), array.type
    managed.tensor = _DLTensor(array.memory.address if array.nbytes else None, *device, array.ndim,
                            _code(t), t.bits, 1, shape, strides, 0)
    managed.deleter = _on_end_of_reader
    at = ctypes.addressof(managed)
    capsule = _new(at, NAME, None)
    _lent[at] = (capsule, managed, shape, strides, array)
    return capsule


def _array_of(capsule: Any, device: Device) -> DeviceArray:
    at = id(capsule)
    if not _valid(at, NAME):
        raise BufferError("what it gives is no capsule of DLPack that is still to be read")
    managed = ctypes.cast(_pointer(at, NAME), ctypes.POINTER(_Managed))
    t = managed.contents.tensor
    shape = tuple(t.shape[i] for i in range(t.ndim))
    dtype = next((x for x in DTYPES.values() if (_code(x), x.bits) == (t.code, t.bits)), None)
    if dtype is None or t.lanes != 1:
        raise BufferError(f"graphs have no dtype of {t.bits} bits of DLPack's kind {t.code}")
    wanted = [int(s) for s in contiguous_strides(shape)]
    if t.strides and 0 not in shape and any(n != 1 and t.strides[i] != wanted[i] for i, n in enumerate(shape)):
        raise BufferError(f"its elements do not lie one after the other (strides {[t.strides[i] for i in range(t.ndim)]})")
    owner = _TensorOwner()
    if managed.contents.deleter:
        weakref.finalize(owner, _give_back, managed, capsule).atexit = False
    _rename(at, USED)
    memory = Memory(device, (t.data or 0) + t.byte_offset, math.prod(shape) * dtype.itemsize, owner)
    return DeviceArray(memory, shape, dtype)


class _TensorOwner:
    """The owner of another library's tensor; when it is collected, the tensor is released (`_give_back`)."""


def _give_back(managed: Any, capsule: Any) -> None:
    managed.contents.deleter(managed)
