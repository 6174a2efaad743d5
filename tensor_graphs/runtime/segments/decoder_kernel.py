"""decoder_kernel: replaces all launches of a decoder by one kernel (kernels/decoder/one_kernel.py) in runs of one token.

The kernel uses the same memory of states, token and outputs as the launches, so that runs may alternate between both. At its first
run after a binding it computes its form of the weights: rows in another order, norms' weights in f32, a table of rotations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.devices.array_address import address
from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device import Memory
from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.decoder.one_kernel import MODEL, OneKernel, packing_text
from tensor_graphs.kernels.decoder.read_graph import Decoder
from tensor_graphs.kernels.kernel import Kernel, NotLowered
from tensor_graphs.paths.lower import Instruction, Operand, Program
from tensor_graphs.runtime.dim_tables import DimTables
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.segments.launches import Launches

log = logging.getLogger(__name__)

UNSET, ALIGNED = 0xFF, 16
"""initial value of each byte of the exchange; alignment in bytes of memory that is copied in bulk"""

PACKING_BLOCKS, PACKING_THREADS = 1024, 256


@dataclass
class _Packed:
    """The weights in the kernel's order. bound: `Frame.bound` of their binding. held: name in `MODEL` -> memory."""

    bound: int
    held: dict[str, Memory]


@dataclass
class _Exchange:
    """The arguments of one frame's launches. words: the struct Model. parameters: its address. number: the word set that is used
    next. packed, key: weights and addresses that are in `words`. fits: whether all memory that is copied in bulk is aligned."""

    memory: Memory
    words: np.ndarray
    parameters: np.ndarray
    number: int = 0
    packed: _Packed | None = None
    key: bytes = b""
    fits: bool = False


def in_place_of(indices: Sequence[int], instructions: Sequence[Instruction], lookup: DimTables, kernel: Kernel) -> Launches | None:
    """Return a segment that can run `kernel` instead of these launches; None where it does not fit the program (logged)."""
    assert kernel.whole is not None
    try:
        decoder: Decoder = kernel.whole(lookup.program.graph)
        why = _why_not(lookup.program, decoder)
    except NotLowered as e:
        why = str(e)
    if why:
        log.warning("%s is not used: %s", kernel.name, why)
    return None if why else AllSteps(indices, instructions, lookup, decoder)


def _why_not(program: Program, decoder: Decoder) -> str:
    """Return the reason why one kernel cannot replace a program's launches; "" where it can."""
    launched = [ins for ins in program.instructions if ins.call.engine == "launch"]
    devices = {ins.device for ins in launched}
    if len(devices) != 1 or any(ins.call.engine not in ("launch", "transfer") for ins in program.instructions):
        return "not all of its steps are launches of one device"
    places = [_arrived(program, decoder.ids), _left(program, decoder.token), _left(program, decoder.logit)]
    names = {b.name for b in program.buffers if b.kind == "state" and b.device in devices}
    if any(o is None or not o.contiguous or program.device(o) not in devices for o in places):
        return "what it is given or gives is elsewhere"
    return "" if names >= {n for layer in decoder.layers for n in (layer.keys, layer.values)} else "its states are elsewhere"


def _arrived(program: Program, name: str) -> Operand | None:
    """Return the operand from which launches read an input: its copy on the device, or the input itself."""
    buffer = next((i for i, b in enumerate(program.buffers) if b.kind == "input" and b.name == name), None)
    moved = next((ins.outs[0] for ins in program.instructions
                  if ins.call.engine == "transfer" and buffer in (ins.ins[0].buffer, program.home(ins.ins[0].buffer))), None)
    read = (o for ins in program.instructions if ins.call.engine == "launch" for o in ins.ins if o.buffer == buffer)
    return moved or next(read, None)


def _left(program: Program, name: str) -> Operand | None:
    """Return the operand to which launches write an output: before its copy to another device, or the output itself."""
    out = program.outputs[name]
    return next((ins.ins[0] for ins in program.instructions if ins.call.engine == "transfer"
                 and program.home(ins.outs[0].buffer) == program.home(out.buffer)), out)


class AllSteps(Launches):
    """A segment of a program's launches, and of one kernel that replaces them in runs of one token."""

    def __init__(self, indices: Sequence[int], instructions: Sequence[Instruction], lookup: DimTables, decoder: Decoder) -> None:
        super().__init__(indices, instructions, lookup)
        self.decoder, self.made = decoder, OneKernel(decoder.kinds, decoder.sizes)
        (self.device,) = self.devices
        self.ones, self.position = list(map(lookup.expr, decoder.ones)), lookup.expr(decoder.position)
        program = lookup.program
        operands = [_arrived(program, decoder.ids), _left(program, decoder.token), _left(program, decoder.logit)]
        bases = {(b.kind, b.name): lookup.first + i for i, b in enumerate(program.buffers)}
        states = [bases["state", name] for layer in decoder.layers for name in (layer.keys, layer.values)]
        self.moving = np.array([*(lookup.base(o) for o in operands if o is not None), *states], np.int64)
        self.offsets = np.array([lookup.pointer(o) for o in operands], np.int64)
        self.weights = {b.name: [lookup.first + i] for i, b in enumerate(program.buffers) if b.kind == "parameter"}
        for ins in program.bind_instructions:                       # where they were copied, the copies come first
            source = program.buffers[ins.ins[0].buffer] if ins.ins else None
            if ins.call.engine == "transfer" and source is not None and source.kind == "parameter":
                self.weights[source.name].insert(0, lookup.first + program.home(ins.outs[0].buffer))
        self.packed: _Packed | None = None
        self.lock = threading.Lock()
        self.text, self.packing = self.made.text(), packing_text(PACKING_BLOCKS, PACKING_THREADS)

    def prepare(self) -> None:
        super().prepare()
        self.offsets += self.lookup.n_exprs                             # pointers come behind the expressions
        self.entry = self.device.entry(self.text, "whole", HOPPER.shared_alone)

    # ---- what it reads of weights ----

    def _packed_for(self, frame: Frame) -> _Packed:
        packed = self.packed
        if packed is not None and packed.bound == frame.bound:
            return packed
        with self.lock:
            if self.packed is None or self.packed.bound != frame.bound:
                self.packed = None                                  # free before it is made again
                self.packed = self._pack(frame)
            return self.packed

    def _pack(self, frame: Frame) -> _Packed:
        kernel, device = self.made, self.device
        pack, norms = (device.entry(self.packing, name, 0) for name in ("pack", "norms"))
        packs, commons = device.allocate(kernel.pack_bytes), device.allocate(kernel.common_bytes)
        table = self._uploaded(np.frombuffer(kernel.table(), np.uint8))
        rotations = self._uploaded(self.decoder.rotation_tables())
        embedding = self._weight(frame, self.decoder.table)
        alive = []                                                   # alive until all is made
        for step in range(len(kernel.kinds)):
            row = kernel.loading(step)
            rows = [self._weight(frame, name) for name in self.decoder.matrices(step)]
            if rows:
                numbers = kernel.packing(step, self._rows(step))
                where = [m.address for m in (*rows, rows[0], rows[0])][:3]
                self._launch_now(pack, [packs.address + row.pack_at, *where, *numbers])
            at = commons.address + row.common_at
            for name in self.decoder.norms(step):
                count = row.common_bytes // 8
                weight = self._weight(frame, name) if name else None
                self._launch_now(norms, [at, 0 if weight is None else weight.address, count,
                                         np.float64(self.decoder.offset).view(np.uint64)])
                alive.append(weight)
                at += 4 * count
            alive += rows
        device.synchronise()
        return _Packed(frame.bound, {"steps": table, "packs": packs, "commons": commons, "table": embedding,
                                     "rotations": rotations})

    def _rows(self, step: int) -> list[int]:
        parameters = self.lookup.program.graph.parameters
        return [int(parameters[name].shape[0]) for name in self.decoder.matrices(step)]

    def _weight(self, frame: Frame, name: str) -> Memory:
        """Return a parameter's memory on the device, copied there if necessary."""
        memories = [memory for base in self.weights[name] if (memory := frame.memory[base]) is not None]
        there = next((memory for memory in memories if memory.device is self.device), None)
        if there is None:
            there = self.device.allocate(memories[0].nbytes)
            self.device.upload(memories[0], there)
        return there

    def _uploaded(self, array: np.ndarray) -> Memory:
        held = memory_of(np.ascontiguousarray(array))
        there = self.device.allocate(held.nbytes)
        self.device.upload(held, there)
        return there

    def _launch_now(self, entry: Any, words: Sequence[Any]) -> None:
        arguments = np.array(words, np.uint64)
        parameters = address(arguments) + 8 * np.arange(len(arguments), dtype=np.uint64)
        self.device.launch(entry, PACKING_BLOCKS, PACKING_THREADS, 0, int(parameters.ctypes.data))

    # ---- running ----

    def run(self, frame: Frame) -> None:
        if self.silent or any(frame.values[i] != 1 for i in self.ones):
            super().run(frame)
            return
        exchange = self._exchange(frame)
        if not exchange.fits:
            super().run(frame)
            return
        exchange.words[-1] = int(frame.values[self.position]) | exchange.number << 32
        self.device.use()
        self.device.launch(self.entry, self.made.grid, self.made.threads, HOPPER.shared_alone,
                           int(exchange.parameters.ctypes.data))
        exchange.number = 1 - exchange.number

    def _exchange(self, frame: Frame) -> _Exchange:
        """Return the arguments of this frame's launches, up to date except for the position."""
        exchange: _Exchange | None = frame.kept.get(id(self.made))
        if exchange is None:
            memory = self.device.allocate(8 * self.made.words)
            self.device.fill(memory, UNSET)
            words = np.zeros(len(MODEL) + 2 * self.made.layers + 1, np.uint64)
            parameters = np.array([address(words)], np.uint64)
            exchange = frame.kept[id(self.made)] = _Exchange(memory, words, parameters)
        places, offsets = frame.bases[self.moving], frame.values[self.offsets]
        key = places.tobytes() + offsets.tobytes()
        packed = self._packed_for(frame)
        if exchange.packed is not packed or exchange.key != key:
            held = {**{name: m.address for name, m in packed.held.items()}, "exchange": exchange.memory.address}
            first = MODEL.index("id")
            exchange.words[:first] = [held[name] for name in MODEL[:first]]
            exchange.words[first:-1] = places
            exchange.words[first:first + len(offsets)] += offsets.view(np.uint64)
            exchange.packed, exchange.key = packed, key
            exchange.fits = not any(int(word) % ALIGNED for word in (*exchange.words[:first], *exchange.words[len(MODEL):-1]))
            if not exchange.fits:
                log.warning("a run of one token is launches: what it reads does not begin at a multiple of %d bytes", ALIGNED)
        return exchange
