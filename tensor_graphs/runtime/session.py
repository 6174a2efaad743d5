"""session: the class Session, the states of one conversation (a KV cache). Plans of graphs with equal states may share one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensor_graphs.argument_checks import whole
from tensor_graphs.devices.cpu import array_view, memory_of
from tensor_graphs.devices.device import Device, Memory, transfer
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.devices.free_memory import require_memory
from tensor_graphs.kernels.strides import contiguous_strides
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import TensorType
from tensor_graphs.phase_times import phase
from tensor_graphs.runtime.arrays import as_array
from tensor_graphs.runtime.device_array import DeviceArray
from tensor_graphs.runtime.errors import RunError

OPEN = -1
"""value of `_holder` while a stream holds the session; any thread may continue the stream, or none"""


@dataclass(slots=True)
class Transcript:
    """The tokens of a decoder's session, recorded by `stream`. fed: ids that were fed, in order; their keys and values are rows
    0 … len(fed) − 1 of the caches. pending: the id generated last, which the next run feeds first; empty before any generation."""

    fed: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """The ids of the entire conversation: fed, then pending."""
        return [*self.fed, *self.pending]

    def rewind(self, length: int) -> None:
        """Keep the first `length` ids. Cache rows of the others stay, but are not read and will be overwritten. Raises
        ArgumentError unless `length` is from 0 to the number of ids."""
        have = len(self.ids)
        length = whole("length", length, 0, have, f"how many ids of the {have} stay, from 0 to {have}")
        del self.pending[max(length - len(self.fed), 0):]
        del self.fed[length:]


class Session:
    """The memory of each state, zero at the start. Runs on one session are serialised, and so are complete calls of `generate`
    (`turn`); different sessions run simultaneously.

    A state is created on the device where it is expected to be used (`homes`; the host by default). A run that uses it on another
    device moves it there for good.

    transcript: the tokens that `stream` has fed; None once states were set by the caller, as their tokens are then unknown.
    Direct calls of `run` are not recorded.
    """

    @phase("bind")
    def __init__(self, graph: Graph, homes: Mapping[str, Device] = {}) -> None:
        self._begin({name: node.type for name, node in graph.states.items()}, homes)

    def _begin(self, types: Mapping[str, TensorType], homes: Mapping[str, Device] = {}) -> None:
        self.types, self.homes = dict(types), homes
        self.lock = threading.Lock()
        self._turns = threading.Condition()
        self._holder: int | None = None                    # the thread whose call has its turn, or OPEN
        self.arrays: dict[str, np.ndarray] = {}            # of the states that are on the host
        self.transcript: Transcript | None = None
        self.memory: dict[str, Memory] = {}                # of every state, as a run puts it into its table
        self.places = object()                             # another one once a state has moved
        self.reset()

    @contextmanager
    def turn(self, *, left_open: bool = False) -> Iterator[None]:
        """Return a context in which the session belongs to one caller: a call of `generate` or (left_open) a stream, which may
        never be read to its end. Waits while another thread's call runs. Raises RunError where a wait might never end: while a
        stream is open, or within another call of this thread."""
        me = threading.get_ident()
        with self._turns:
            while self._holder is not None:
                if self._holder in (OPEN, me):
                    what = "a stream is open" if self._holder == OPEN else "another generate call is running"
                    raise RunError(f"{what} on these states\n  fix: read the stream to its end or close() it, let the call return, "
                                   "or take a session for each conversation: compiled.session()")
                self._turns.wait()
            self._holder = OPEN if left_open else me
        try:
            yield
        finally:
            with self._turns:
                self._holder = None
                self._turns.notify_all()                   # a thread that waits may find a stream open, which is an error

    def __repr__(self) -> str:
        listed = [f"{n} {t}" for n, t in self.types.items()]
        return f"<session: {', '.join(listed[:4]) or 'no states'}{f', and {len(listed) - 4} more' if len(listed) > 4 else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return states and transcript for pickle and copy; in the new session the states are on the host."""
        return _read, (self.types, self.snapshot(), copy.deepcopy(self.transcript))

    def reset(self) -> None:
        """Set every state to zero, in place if its memory exists. Raises RunError while a stream is open (`turn`)."""
        with self.turn(), self.lock:
            if not self.memory:
                need = sum(int(t.nbytes()) for n, t in self.types.items() if self.homes.get(n, HOST) is HOST)
                require_memory(need, f"a session of {len(self.types)} states", "shorter states (of a model: max_positions)")
            self.transcript = Transcript()
            for name, t in self.types.items():
                shape = tuple(int(s) for s in t.shape)
                home = self.homes.get(name, HOST)
                if name not in self.memory and home is not HOST:
                    self.memory[name] = home.allocate(int(t.nbytes()))
                elif name not in self.memory:
                    self.arrays[name] = np.empty(shape, dtype=t.dtype.numpy)
                    self.memory[name] = memory_of(self.arrays[name])
                memory = self.memory[name]
                memory.device.fill(memory, 0)           # touches the pages now: the memory plan holds from the first run on

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a state's current value as a read-only array: a view if it is on the host, else a copy."""
        view = self._value(name).view()
        view.flags.writeable = False
        return view

    def __setitem__(self, name: str, value: Any) -> None:
        self.restore({name: value})

    def _value(self, name: str) -> np.ndarray:
        if name not in self.memory:
            raise RunError(f"no state is named {name!r}; there are {', '.join(self.memory) or 'none'}")
        if name in self.arrays:
            return self.arrays[name]
        t = self.types[name]
        return DeviceArray(self.memory[name], tuple(int(s) for s in t.shape), t.dtype).numpy()

    def _array(self, name: str, memory: Memory) -> np.ndarray:
        t = self.types[name]
        shape = tuple(int(s) for s in t.shape)
        return array_view(memory, 0, shape, [int(s) for s in contiguous_strides(shape)], t.dtype)

    def on(self, name: str, device: Device) -> Memory:
        """Return a state's memory on a device, moving it there if necessary. The caller must hold the lock."""
        held = self.memory[name]
        if held.device is not device:
            moved = device.allocate(held.nbytes)
            transfer(held, moved, HOST)
            self.memory[name] = held = moved
            self.places = object()
            self.arrays.pop(name, None)
            if device is HOST:
                self.arrays[name] = self._array(name, moved)
        return held

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return name -> copy of a state, for all states; waits for a run in progress."""
        with self.lock:
            return {n: self._value(n).copy() if n in self.arrays else self._value(n) for n in self.memory}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Set these states; others are kept. On a RunError none is set; one is raised while a stream is open (`turn`)."""
        if not isinstance(states, Mapping):
            raise RunError(f"states are given by name, this is a {type(states).__name__}\n  fix: restore(session.snapshot())")
        arrays: dict[str, np.ndarray] = {}
        for name, value in states.items():
            shape = self._value(name).shape
            array = as_array(name, value, self.types[name], "state")
            if array.shape != shape:
                raise RunError(f"state {name!r} is {self.types[name]}, the array has shape {array.shape}\n"
                               f"  fix: an array of shape {shape}")
            arrays[name] = array.copy() if self.holds(array) else array
        with self.turn(), self.lock:
            self.transcript = None
            for name, array in arrays.items():
                transfer(memory_of(array), self.memory[name], HOST)

    def holds(self, array: np.ndarray) -> bool:
        """Return whether an array is (a view of) the memory of a state."""
        return any(np.may_share_memory(array, a) for a in self.arrays.values())

    def check(self, graph: Graph) -> None:
        """Raise RunError unless the session has all states of the graph, with equal types."""
        for name, node in graph.states.items():
            if self.types.get(name) != node.type:
                raise RunError(f"the session has no state {name!r} of {node.type}; make one with compiled.session()")


def _read(types: Mapping[str, TensorType], states: Mapping[str, np.ndarray], transcript: Transcript | None) -> Session:
    """Return a session from its pickled data."""
    session = Session.__new__(Session)
    session._begin(types)
    session.restore(states)
    session.transcript = transcript
    return session
