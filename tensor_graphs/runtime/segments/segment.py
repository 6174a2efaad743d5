"""segment: what the executor asks of whatever runs instructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tensor_graphs.devices.device import Memory
from tensor_graphs.paths.lower import Instruction
from tensor_graphs.runtime.dim_tables import DimTables
from tensor_graphs.runtime.frame import Frame

Clock = Callable[[], float]


class Segment(ABC):
    """A run of instructions. Made when the program is: `lookup` still collects what they look up. `prepare` comes when that is
    closed, before any run. A frame has the tables of a run: addresses by base, values by number. native: it is one native call."""

    native = False

    def __init__(self, indices: Sequence[int], instructions: Sequence[Instruction], lookup: DimTables) -> None:
        self.indices, self.lookup = list(indices), lookup

    def prepare(self) -> None:  # noqa: B027 - a segment whose steps are made with it has nothing left to do
        """Make the steps that need closed tables."""

    @abstractmethod
    def run(self, frame: Frame) -> None:
        """Run all steps."""

    @abstractmethod
    def time(self, frame: Frame, seconds: Any) -> None:
        """Run all steps; the seconds that each took are added to `seconds` at the instruction's number."""

    @abstractmethod
    def one(self, frame: Frame, k: int) -> None:
        """Run step number k of this segment alone."""

    @abstractmethod
    def silence(self) -> Callable[[], None]:
        """Make every step do nothing; returns what undoes it."""

    def watch(self, clock: Clock, taken: list[float]) -> Sequence[int]:
        """Put a watch around each call that adds its seconds to `taken`. Returns the instructions that `time` times without one."""
        return ()

    def scratch(self, frame: Frame) -> list[tuple[Memory, list[tuple[int, int]]]]:
        """Scratch memory of calls on other devices, and the parts that they may write: (offset, bytes)."""
        return []

    def sizes_changed(self, frame: Frame) -> bool:
        """Return whether sizes that lie on other devices are others than they were given."""
        return False

    def native_call(self, frame: Frame) -> Callable[[], int] | None:
        """Return the one native call that runs it on a ready frame (its result 0: no error); None where there is none."""
        return None
