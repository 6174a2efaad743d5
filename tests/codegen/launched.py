"""launched: the kernels of a definition on a GPU, called with arrays, as the runtime calls them but for its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device import Device, Memory
from tensor_graphs.kernels.kernel import LaunchCall
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.node import Node
from tensor_graphs.runtime.segments.launches import encoded_maps

GUARD = 64
"""bytes behind each output that must stay as they are"""


class Launched:
    """One call on memory of a device that holds its operands."""

    def __init__(self, device: Device, call: LaunchCall, outs: Sequence[Memory], ins: Sequence[Memory],
                 dims: Mapping[str, int]) -> None:
        given = [m.address for m in (*outs, *ins)]
        form = call.otherwise if call.otherwise is not None and any(a % call.alignment for a in given) else call
        self.device, self.form, self.held = device, form, [*outs, *ins]
        self.held += [device.allocate(int(d.evaluate(p, dims))) for p in form.pieces]
        scratch = [m.address for m in self.held[len(given):]]
        if form.ints:
            self.held.append(uploaded(device, np.array([int(d.evaluate(i, dims)) for i in form.ints], np.int64)))
        words = [*given, *([self.held[-1].address] if form.ints else []), *scratch]
        self.words = np.array(words, np.uint64)
        self.parameters = self.words.ctypes.data + 8 * np.arange(len(words), dtype=np.uint64)
        if form.maps:
            numbers = [[int(d.evaluate(s, dims)) for s in (*one.sizes, *one.steps)] for one in form.maps]
            self.maps = encoded_maps(device, form.maps, self.words, numbers)
            self.parameters = np.append(self.parameters, np.uint64(self.maps.ctypes.data))
        self.launches = [(device.entry(form.text, each.entry, each.shared), int(d.evaluate(each.grid, dims)), each.block,
                          each.shared, each.waits) for each in form.launches]

    def __call__(self, stream: object = 0) -> None:
        for entry, grid, block, shared, waits in self.launches:
            if grid:
                self.device.launch(entry, grid, block, shared, self.parameters.ctypes.data, stream, waits)


def uploaded(device: Device, array: np.ndarray, shift: int = 0) -> Memory:
    memory = device.allocate(array.nbytes + shift + 1)
    inner = device.part(memory, shift, array.nbytes)
    if array.nbytes:
        device.upload(memory_of(np.ascontiguousarray(array)), inner)
    return inner


def downloaded(device: Device, memory: Memory, like: np.ndarray) -> np.ndarray:
    out = np.empty_like(like)
    if out.nbytes:
        device.download(device.part(memory, 0, out.nbytes), memory_of(out))
    return out


def run(device: Device, definition: Definition, arrays: Sequence[np.ndarray], dims: Mapping[str, int],
        shift: int = 0) -> list[np.ndarray]:
    """The outputs for C-contiguous operands. shift: elements by which everything is moved off its alignment.
    Raises AssertionError where it writes behind an output, NotLowered."""
    return run_call(device, call_of(definition), definition.outputs, arrays, dims, shift)


def run_call(device: Device, call: LaunchCall, outputs: Sequence[Node], arrays: Sequence[np.ndarray], dims: Mapping[str, int],
             shift: int = 0) -> list[np.ndarray]:
    """The same of a call with outputs of these types."""
    likes, outs = [], []
    for o in outputs:
        like = np.empty(tuple(d.evaluate(s, dims) for s in o.shape), o.dtype.numpy)
        memory = device.allocate(like.nbytes + GUARD + shift * o.dtype.itemsize)
        device.fill(memory, 0xA5)
        likes.append(like)
        outs.append(device.part(memory, shift * o.dtype.itemsize, like.nbytes + GUARD))
    ins = [uploaded(device, a, shift * a.itemsize) for a in arrays]
    Launched(device, call, outs, ins, dims)()
    found = []
    for like, memory in zip(likes, outs, strict=True):
        raw = downloaded(device, memory, np.empty(like.nbytes + GUARD, np.uint8))
        assert (raw[like.nbytes:] == 0xA5).all(), "it wrote behind an output"
        found.append(raw[:like.nbytes].view(like.dtype).reshape(like.shape))
    return found
