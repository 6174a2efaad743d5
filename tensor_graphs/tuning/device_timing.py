"""device_timing: time schedules of one signature on a GPU, interleaved with the seed.

The launches of a schedule, one on each set of operands, are one captured graph, so that no host is between them. Caches are
emptied before each sample, and samples are taken by the device's clock (measure/timing/launch_ahead.py). As on a CPU, candidates
run in this process and are compared with the seed's outputs; the judge compares the winner with the oracle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tensor_graphs.codegen.backend_cuda import NAME
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.c_code import ToolchainError
from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.cuda import HEADERS
from tensor_graphs.devices.device import Device, DeviceError, DeviceLost, Memory
from tensor_graphs.kernels.kernel import LaunchCall
from tensor_graphs.kernels.registry import device_of
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.measure.points.inputs import make_inputs
from tensor_graphs.measure.timing.launch_ahead import HostAhead
from tensor_graphs.runtime.segments.launches import encoded_maps
from tensor_graphs.tuning.timing import Paired, WrongOutputs, why_off

COLD_BYTES, MOST_SETS = 128 << 20, 32
"""bytes of distinct operands through which the runs of a sample rotate, and the most sets of them"""


class Launched:
    """One call on memory of a device that holds its operands."""

    def __init__(self, device: Device, call: LaunchCall, outs: Sequence[Memory], ins: Sequence[Memory],
                 dims: Mapping[str, int]) -> None:
        addresses = [m.address for m in (*outs, *ins)]
        form = call.otherwise if call.otherwise is not None and any(a % call.alignment for a in addresses) else call
        self.device, self.form, self.held = device, form, [*outs, *ins]
        self.held += [device.allocate(int(d.evaluate(p, dims))) for p in form.pieces]
        scratch = [m.address for m in self.held[len(addresses):]]
        if form.ints:
            self.held.append(uploaded(device, np.array([int(d.evaluate(i, dims)) for i in form.ints], np.int64)))
        words = [*addresses, *([self.held[-1].address] if form.ints else []), *scratch]
        self.words = np.array(words, np.uint64)
        self.parameters = self.words.ctypes.data + 8 * np.arange(len(words), dtype=np.uint64)
        if form.maps:
            numbers = [[int(d.evaluate(s, dims)) for s in (*one.sizes, *one.steps)] for one in form.maps]
            self.maps = encoded_maps(device, form.maps, self.words, numbers)
            self.parameters = np.append(self.parameters, np.uint64(self.maps.ctypes.data))
        self.launches = [(device.entry(form.text, one.entry, one.shared), int(d.evaluate(one.grid, dims)), one.block,
                          one.shared, one.waits) for one in form.launches]

    def __call__(self, stream: object = 0) -> None:
        for entry, grid, block, shared, waits in self.launches:
            if grid:
                self.device.launch(entry, grid, block, shared, self.parameters.ctypes.data, stream, waits)


def uploaded(device: Device, array: np.ndarray, shift: int = 0) -> Memory:
    """Return memory of a device that holds an array, `shift` bytes after where memory begins."""
    memory = device.allocate(array.nbytes + shift + 1)
    inner = device.part(memory, shift, array.nbytes)
    if array.nbytes:
        device.upload(memory_of(np.ascontiguousarray(array)), inner)
    return inner


@dataclass
class DeviceRun:
    """A schedule on all sets of operands. replay: its captured launches."""

    calls: list[Launched]
    replay: object

    def all(self) -> None:
        self.replay.run()                                           # type: ignore[attr-defined]


class DeviceBench:
    """Operands of a signature at given sizes, on which calls are made and timed."""

    def __init__(self, signature: Signature, binding: Mapping[str, int]) -> None:
        self.device = device_of(NAME)
        self.device.use()
        self.ints = {name: int(binding[name]) for name in signature.dim_names}
        inputs = [np.ascontiguousarray(x) for x in make_inputs(signature.graph, self.ints, 1).values()]
        shapes = [tuple(int(d.evaluate(s, binding)) for s in t.shape) for t in signature.spec.outputs]
        self.likes = [np.empty(shape, t.dtype.numpy) for shape, t in zip(shapes, signature.spec.outputs, strict=True)]
        nbytes = sum(x.nbytes for x in (*inputs, *self.likes))
        count = min(MOST_SETS, max(2, math.ceil(COLD_BYTES / max(nbytes, 1))))
        first = [uploaded(self.device, x) for x in inputs]
        self.sets = [([self.device.allocate(max(1, out.nbytes)) for out in self.likes], first if k == 0 else self._copies(first))
                     for k in range(count)]
        self.operands, self.expected = inputs, list[np.ndarray]()
        self.ahead = HostAhead(self.device)

    def _copies(self, first: Sequence[Memory]) -> list[Memory]:
        copies = [self.device.allocate(max(1, m.nbytes)) for m in first]
        for own, m in zip(copies, first, strict=True):
            self.device.copy(m, own)
        return copies

    def load(self, call: LaunchCall) -> DeviceRun:
        """Return a compiled call on all sets of operands. Raises WrongOutputs where the device does not take it."""
        try:
            calls = [Launched(self.device, call, outs, ins, self.ints) for outs, ins in self.sets]
            calls[0]()
            self.device.synchronise()
        except DeviceLost:
            raise
        except (DeviceError, ToolchainError) as e:
            raise WrongOutputs(f"the device does not run it: {e}") from e

        def each(stream: object) -> None:
            for one in calls:
                one(stream)

        replay = self.device.captured(each)
        if replay is None:
            raise WrongOutputs("its launches cannot be captured")
        return DeviceRun(calls, replay)

    def compare(self, run: DeviceRun) -> None:
        """Raise WrongOutputs where a call's results differ from those of the first call compared."""
        outs, _ = self.sets[0]
        for memory in outs:
            self.device.fill(memory, 0xA5)
        run.calls[0]()
        outputs = []
        for memory, like in zip(outs, self.likes, strict=True):
            out = np.empty_like(like)
            if out.nbytes:
                self.device.download(self.device.part(memory, 0, out.nbytes), memory_of(out))
            outputs.append(out)
        if not self.expected:
            self.expected = outputs
            return
        for out, ref in zip(outputs, self.expected, strict=True):
            if (off := why_off(out, ref)) is not None:
                raise WrongOutputs(off)

    def pairs(self, run: DeviceRun, seed: DeviceRun, rounds: int) -> Paired:
        """Return interleaved samples of both; the order within pairs alternates."""
        own, its = list[float](), list[float]()
        for one in (run, seed):
            self.ahead.seconds(one.all)
        for i in range(rounds):
            for which, into in ((run, own), (seed, its)) if i % 2 else ((seed, its), (run, own)):
                into.append(self.ahead.seconds(which.all) / len(self.sets))
        return Paired(tuple(own), tuple(its))


def compiled(calls: Iterable[LaunchCall]) -> list[str | None]:
    """Compile the texts of calls, several at the same time, while later calls are made; return for each None, or why it cannot be
    compiled."""
    target = device_of(NAME).target                                 # type: ignore[attr-defined]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs, texts = dict[str, Future[str | None]](), list[str]()
        for call in calls:
            texts.append(call.text)
            if call.text not in jobs:
                jobs[call.text] = pool.submit(_compiled, call.text, target)
        return [jobs[text].result() for text in texts]


def _compiled(text: str, target: str) -> str | None:
    try:
        nvrtc.compiled(text, target, HEADERS)
    except ToolchainError as e:
        return f"it does not compile: {e}"
    return None
