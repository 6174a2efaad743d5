"""target: the numbers of a kind of GPU on which generated kernels depend, so that a text is the same with and without the GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """units: multiprocessors. warp: threads that run together. threads: most threads of a block. vector: bytes of one access to
    memory. line: bytes of a cache line. shared: most bytes of shared memory of a block, so that a multiprocessor has two.
    shared_alone: the same of a block that has a multiprocessor for itself.
    registers, registers_of_thread: 32-bit registers of a multiprocessor, and most of a thread.
    clustered: (blocks of a cluster, blocks in such clusters that run at once); more of them would take twice the time. bandwidth:
    bytes of memory a second. turn: seconds from a load to what depends on it for all threads of a block. launch: of one more."""

    units: int = 132
    warp: int = 32
    threads: int = 1024
    vector: int = 16
    line: int = 128
    shared: int = 96 << 10
    shared_alone: int = 227 << 10
    registers: int = 1 << 16
    registers_of_thread: int = 255
    clustered: tuple[tuple[int, int], ...] = ((2, 132), (4, 112), (8, 96))
    bandwidth: float = 4.3e12
    turn: float = 0.6e-6
    launch: float = 2e-6


HOPPER = Target()
"""H100 and H200"""

TINY = Target(units=3, warp=4, threads=32, vector=8, line=16, shared=512)
"""no GPU: tails, parts and several blocks occur on it at sizes of 5 to 40"""
