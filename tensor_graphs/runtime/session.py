"""session: the states of one conversation with a graph (a KV cache). Several plans of graphs with equal states may share one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device import Memory
from tensor_graphs.devices.free_memory import require_memory
from tensor_graphs.language.graph import Graph
from tensor_graphs.phases import phase
from tensor_graphs.runtime.arrays import as_array
from tensor_graphs.runtime.errors import RunError


@dataclass(slots=True)
class Transcript:
    """Which tokens a decoder's session has seen, as `stream` writes it down.

    fed: the ids that were fed, in order; their keys and values are rows 0 … len(fed) − 1 of the caches. pending: the id that was
    generated last; no run has seen it, and the next one begins with it. Empty before anything is generated.
    """

    fed: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """The whole conversation: what was fed, then what is pending."""
        return [*self.fed, *self.pending]

    def rewind(self, length: int) -> None:
        """Forget all ids from number `length` on. The rows of the caches behind it stay, are not read, and are written over."""
        del self.pending[max(length - len(self.fed), 0):]
        del self.fed[length:]


class Session:
    """Holds one array per state, zero at the start. Runs on one session take turns; different sessions run at once.

    transcript: the tokens that `stream` has fed; None once states were set from outside, since nobody knows what they hold then.
    Runs made by hand are not written down.
    """

    @phase("bind")
    def __init__(self, graph: Graph) -> None:
        self.types = {name: node.type for name, node in graph.states.items()}
        self.lock = threading.Lock()
        self.arrays: dict[str, np.ndarray] = {}
        self.transcript: Transcript | None = None
        self.memory: dict[str, Memory] = {}                # the same memory, as a run puts it into its table
        self.reset()

    def __repr__(self) -> str:
        listed = [f"{n} {t}" for n, t in self.types.items()]
        return f"<session: {', '.join(listed[:4]) or 'no states'}{f', and {len(listed) - 4} more' if len(listed) > 4 else ''}>"

    def reset(self) -> None:
        """Every state back to zero, in place when there is memory already."""
        with self.lock:
            if not self.arrays:
                need = sum(int(t.nbytes()) for t in self.types.values())
                require_memory(need, f"a session of {len(self.types)} states", "shorter states (of a model: max_positions)")
            self.transcript = Transcript()
            for name, t in self.types.items():
                shape = tuple(int(s) for s in t.shape)
                if name not in self.arrays:
                    self.arrays[name] = np.empty(shape, dtype=t.dtype.numpy)
                    self.memory[name] = memory_of(self.arrays[name])
                self.arrays[name].fill(0)               # touches the pages now: the memory plan holds from the first run on

    def __getitem__(self, name: str) -> np.ndarray:
        """A read-only view of a state's current value."""
        view = self._state(name).view()
        view.flags.writeable = False
        return view

    def __setitem__(self, name: str, value: Any) -> None:
        self.restore({name: value})

    def _state(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise RunError(f"no state is named {name!r}; there are {', '.join(self.arrays) or 'none'}")
        return self.arrays[name]

    def snapshot(self) -> dict[str, np.ndarray]:
        """A copy of every state, as it is between two runs."""
        with self.lock:
            return {n: a.copy() for n, a in self.arrays.items()}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Set these states (all of them or, on a RunError, none); the others stay."""
        arrays: dict[str, np.ndarray] = {}
        for name, value in states.items():
            target = self._state(name)
            array = as_array(name, value, self.types[name], "state")
            if array.shape != target.shape:
                raise RunError(f"state {name!r} is {self.types[name]}, the array has shape {array.shape}")
            arrays[name] = array.copy() if self.holds(array) else array
        with self.lock:
            self.transcript = None
            for name, array in arrays.items():
                self.arrays[name][...] = array

    def holds(self, array: np.ndarray) -> bool:
        """Whether an array is (a view of) the memory of a state."""
        return any(np.may_share_memory(array, a) for a in self.arrays.values())

    def check(self, graph: Graph) -> None:
        """Raise RunError unless all states of the graph are held here, with the types that it asks for."""
        for name, node in graph.states.items():
            if self.types.get(name) != node.type:
                raise RunError(f"the session has no state {name!r} of {node.type}; make one with compiled.session()")
