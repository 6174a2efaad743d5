"""host_calls: the segment of Python functions, called in order on views of device memory that their backends create."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.devices.device import Device
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.kernel import HostCall
from tensor_graphs.kernels.registry import View, optional_member, view_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import resolve_attributes
from tensor_graphs.paths.lower import Instruction
from tensor_graphs.runtime.dim_tables import DimTables, Window
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.segments.segment import Clock, Segment

Order = Callable[[str], AbstractContextManager[Any]]
"""device name -> context for calls of a backend's library, in which its work on the device is ordered with that of others"""


@dataclass
class HostStep:
    """One call. outs, ins: windows of its operands. dynamic_attrs: attrs contain dims. order: None where no context is needed."""

    index: int
    call: HostCall
    outs: list[Window]
    ins: list[Window]
    attrs: Mapping[str, Any]
    dynamic_attrs: bool
    view: View
    device: Device
    order: Order | None


class HostCalls(Segment):
    """A segment of host calls, in order."""

    def __init__(self, indices: Sequence[int], instructions: Sequence[Instruction], lookup: DimTables) -> None:
        super().__init__(indices, instructions, lookup)
        self.steps: list[HostStep] = []
        for index, ins in zip(indices, instructions, strict=True):
            assert isinstance(ins.call, HostCall)
            self.steps.append(HostStep(index, ins.call, [lookup.window(o) for o in ins.outs], [lookup.window(o) for o in ins.ins],
                                       ins.attrs, d.has_dims(ins.attrs), view_of(ins.backend), device_named(ins.device),
                                       optional_member(ins.backend, "in_order")))

    def prepare(self) -> None:
        windows = [w for step in self.steps for w in (*step.outs, *step.ins)]
        numbers = [self.lookup.n_exprs + w.pointer for w in windows] + [i for w in windows for i in (*w.shape, *w.strides)]
        self._bases, self._numbers = (np.array(sorted(indices), np.int64) for indices in ({w.base for w in windows}, set(numbers)))
        self._named = any(step.dynamic_attrs for step in self.steps)

    def key(self, frame: Frame) -> bytes:
        """Return, as bytes, addresses, shapes and strides of operands, and sizes in attributes: captured calls depend on them."""
        sizes = str(sorted(frame.sizes.items())).encode() if self._named else b""
        return frame.bases[self._bases].tobytes() + frame.values[self._numbers].tobytes() + sizes

    def run(self, frame: Frame) -> None:
        for step in self.steps:
            self._call(frame, step)

    def time(self, frame: Frame, seconds: Any) -> None:
        marks = []
        for step in self.steps:
            start = step.device.mark()
            self._call(frame, step)
            marks.append((step, start, step.device.mark()))
        for step, start, end in marks:
            seconds[step.index] += step.device.between(start, end)

    def one(self, frame: Frame, k: int) -> None:
        self._call(frame, self.steps[k])

    def silence(self) -> Callable[[], None]:
        saved = [step.call for step in self.steps]
        for step in self.steps:
            step.call = HostCall(_nothing)

        def undo() -> None:
            for step, call in zip(self.steps, saved, strict=True):
                step.call = call

        return undo

    def watch(self, clock: Clock, taken: list[float]) -> Sequence[int]:
        for step in self.steps:
            step.call = HostCall(_timed(step.call.run, clock, taken, step.device))
        return ()

    def _call(self, frame: Frame, step: HostStep) -> None:
        attrs = resolve_attributes(step.attrs, frame.sizes) if step.dynamic_attrs else step.attrs
        outs, ins = views(frame, step.outs, step.view), views(frame, step.ins, step.view)
        if step.order is None:
            step.call.run(outs, ins, attrs)
            return
        with step.order(step.device.name):
            step.call.run(outs, ins, attrs)


def views(frame: Frame, windows: Sequence[Window], make: View) -> list[Any]:
    """Return a backend's views of operands at the sizes of this frame; earlier views are reused while their memory is unchanged."""
    arrays = []
    for w in windows:
        held = frame.views[w.base]
        array = held.get(id(w))
        if array is None:
            array = held[id(w)] = make(frame.memory[w.base], *frame.shape_of(w), w.dtype)
        arrays.append(array)
    return arrays


def _nothing(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    return None


def _timed(run: Callable[..., None], clock: Clock, taken: list[float], device: Device) -> Callable[..., None]:
    elsewhere = not device.is_host                                  # on the host a call that has returned is done

    def call(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        if elsewhere:
            device.synchronise()
        start = clock()
        run(outs, ins, attrs)
        if elsewhere:
            device.synchronise()
        taken.append(clock() - start)

    return call
