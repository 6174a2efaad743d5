"""segment: the interface between the executor and the engines that run instructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tensor_graphs.devices.device import Memory
from tensor_graphs.paths.lower import Instruction
from tensor_graphs.runtime.dim_tables import DimTables
from tensor_graphs.runtime.run_frame import Frame

Clock = Callable[[], float]


class Segment(ABC):
    """A group of consecutive instructions. It is created while `lookup` still collects expressions; `prepare` is called once
    `lookup` is closed, before any run. A frame has the tables of a run. native: the segment is one native call."""

    native = False

    def __init__(self, indices: Sequence[int], instructions: Sequence[Instruction], lookup: DimTables) -> None:
        self.indices, self.lookup = list(indices), lookup

    def prepare(self) -> None:  # noqa: B027 - a segment whose steps are made with it has nothing left to do
        """Finish the steps that need closed tables."""

    @abstractmethod
    def run(self, frame: Frame) -> None:
        """Run all steps."""

    @abstractmethod
    def time(self, frame: Frame, seconds: Any) -> None:
        """Run all steps, and add the seconds of each to `seconds` at its instruction's index."""

    @abstractmethod
    def one(self, frame: Frame, k: int) -> None:
        """Run step number k of this segment alone."""

    @abstractmethod
    def silence(self) -> Callable[[], None]:
        """Make every step do nothing; return a function that undoes this."""

    def watch(self, clock: Clock, taken: list[float]) -> Sequence[int]:
        """Wrap each call so that its seconds by `clock` are appended to `taken`; return the instructions left to `time` instead."""
        return ()

    def scratch(self, frame: Frame) -> list[tuple[Memory, list[tuple[int, int]]]]:
        """Return the scratch memory of calls on other devices, with the pieces that they may write as (offset, bytes)."""
        return []

    def sizes_changed(self, frame: Frame) -> bool:
        """Return whether sizes in device memory differ from those that were last copied there."""
        return False

    def native_call(self, frame: Frame) -> Callable[[], int] | None:
        """Return a function that runs the segment on a ready frame by one native call (result 0: no error), or None."""
        return None
