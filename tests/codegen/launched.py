"""launched: the kernels of a definition on a GPU, called with arrays, as the runtime calls them but for its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tensor_graphs.codegen.backend_cuda import call_of, program_of
from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device import Device, Memory
from tensor_graphs.kernels.kernel import LaunchCall
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.node import Node
from tensor_graphs.tuning.device_timing import Launched, uploaded

__all__ = ["Launched", "downloaded", "run", "run_call", "uploaded"]

GUARD = 64
"""bytes behind each output that must stay as they are"""


def downloaded(device: Device, memory: Memory, like: np.ndarray) -> np.ndarray:
    out = np.empty_like(like)
    if out.nbytes:
        device.download(device.part(memory, 0, out.nbytes), memory_of(out))
    return out


def run(device: Device, definition: Definition, arrays: Sequence[np.ndarray], dims: Mapping[str, int],
        shift: int = 0) -> list[np.ndarray]:
    """The outputs for C-contiguous operands. shift: elements by which everything is moved off its alignment.
    Raises AssertionError where it writes behind an output, NotLowered."""
    call = call_of(definition)
    return run_call(device, call, definition.outputs, arrays, dims, shift, dict(program_of(definition).updated))


def run_call(device: Device, call: LaunchCall, outputs: Sequence[Node], arrays: Sequence[np.ndarray], dims: Mapping[str, int],
             shift: int = 0, updated: Mapping[int, int] = MappingProxyType({})) -> list[np.ndarray]:
    """The same of a call with outputs of these types. updated: output -> the operand that its memory holds before."""
    likes, outs = [], []
    for i, o in enumerate(outputs):
        like = np.empty(tuple(d.evaluate(s, dims) for s in o.shape), o.dtype.numpy)
        memory = device.allocate(like.nbytes + GUARD + shift * o.dtype.itemsize)
        device.fill(memory, 0xA5)
        likes.append(like)
        outs.append(device.part(memory, shift * o.dtype.itemsize, like.nbytes + GUARD))
        if i in updated:
            device.upload(memory_of(arrays[updated[i]]), device.part(outs[-1], 0, like.nbytes))
    ins = [uploaded(device, a, shift * a.itemsize) for a in arrays]
    Launched(device, call, outs, ins, dims)()
    found = []
    for like, memory in zip(likes, outs, strict=True):
        raw = downloaded(device, memory, np.empty(like.nbytes + GUARD, np.uint8))
        assert (raw[like.nbytes:] == 0xA5).all(), "it wrote behind an output"
        found.append(raw[:like.nbytes].view(like.dtype).reshape(like.shape))
    return found
