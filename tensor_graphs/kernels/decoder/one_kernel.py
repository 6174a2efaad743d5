"""one_kernel: one CUDA kernel for all steps of a run of one token (one_kernel.cu), generated from a list of steps (read_graph.py).

Each step reads the result of the step before. Blocks pass results to each other as 32-bit words in a buffer, the exchange.
Generated are the source (numbers, the steps in order, a loop where they repeat), a table with a row per step (offsets of its words
and weights, the step after which its weights may be loaded), and the order of weights in memory: one copy loads all weights of a
block for a step. A step of dot products behind norms (`NormRows`) has two halves. The first needs no new words, so it runs before
the step that computes them, while other words are in transit. Measured in decision 0079."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.kernel import NotLowered

TEXT, PACKING = (Path(__file__).resolve().parent / name for name in ("one_kernel.cu", "pack_weights.cu"))

BLOCKS, MULTIPROCESSORS = 128, HOPPER.units
"""blocks that share the rows of a step; all blocks (one per multiprocessor), which share the rows of `Likeliest`"""

WARPS, KEY_WARPS, FINAL = 10, 8, 7
"""computing warps of a block; those of them that read keys; the warp that ends a step behind norms (its scheduler has one less)"""

SPLITS, TAKEN = 16, 4
"""parts into which the keys of a head are split; keys of a warp that are loaded through the ring"""

RING, SLOTS = 188 << 10, 16
"""bytes of the ring: shared memory for weights loaded ahead; number of barriers for their arrival"""

SUMS, STEP_BYTES = 68, 80
"""floats for the sums of a warp; bytes of a row of the table"""

SET, STAGES = 4, 4
"""rows of the embedding in a set, which a warp takes in one step; sets that it loads ahead"""

PIECE, PACE, FIRST_STEPS = 4096, 100, 8
"""bytes of a copy; cycles between two copies; number of first steps whose copies have no such pause"""

MODEL = ("steps", "packs", "commons", "exchange", "table", "rotations", "id", "token", "top")
"""addresses at the beginning of the struct Model, in order. They are followed by the addresses of keys and values of each layer,
and by one 64-bit word with the position and the number of the exchange's word set"""

_ALIGNED = 128


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes of a decoder. hidden: width of the residual. heads, dim: number and length of heads of queries; there is one head
    of keys. room: positions of the caches. vocabulary: rows of the embedding, also the output matrix. scale, embedded: factors of
    scores and of embedded tokens. cached_bytes: bytes of a number in the caches, 4 (f32) or 2 (bf16)."""

    hidden: int
    heads: int
    dim: int
    room: int
    vocabulary: int
    eps: float
    scale: float
    embedded: float
    cached_bytes: int = 4


@dataclass(frozen=True)
class NormRows:
    """A step y = W norm2(x + norm1(o)), after which x is x + norm1(o). rows: number of rows of W. o: the sum of `parts` vectors.
    pairs: rows 2 i and 2 i + 1 of W give gate and up of element i of y, which is gelu(gate) * up."""

    rows: int
    parts: int = 1
    pairs: bool = False

    def call(self, sizes: DecoderSizes) -> str:
        return f"norm_rows<{self.rows // BLOCKS}, {self.parts}, {str(self.pairs).lower()}>"

    def early_call(self) -> str:
        return f"early_rows<{self.rows // BLOCKS}>"

    def words(self, sizes: DecoderSizes) -> int:
        return self.rows // 2 if self.pairs else self.rows

    def block_bytes(self, sizes: DecoderSizes) -> int:
        return self.rows // BLOCKS * sizes.hidden * 2

    def common_bytes(self, sizes: DecoderSizes) -> int:
        return 2 * sizes.hidden * 4

    def check(self, sizes: DecoderSizes) -> None:
        require(self.rows % (4 * BLOCKS) == 0 and self.rows <= 32 * BLOCKS, f"{self.rows} rows behind norms")
        require(self.parts in (1, sizes.heads), f"a sum of {self.parts} vectors")


@dataclass(frozen=True)
class Attention:
    """A step of attention: one query per head over all keys up to its position, or the last `window` of them (0: all). layer:
    number of its caches. rotation: number of its table of cosines and sines (0 or 1). The step norms and rotates the queries and
    the newest key, and writes that key into the cache."""

    layer: int
    window: int = 0
    rotation: int = 0

    def call(self, sizes: DecoderSizes) -> str:
        return "attend"

    def words(self, sizes: DecoderSizes) -> int:
        return sizes.heads * SPLITS * (sizes.dim + 2 * KEY_WARPS)

    def block_bytes(self, sizes: DecoderSizes) -> int:
        return 2 * TAKEN * KEY_WARPS * sizes.dim * sizes.cached_bytes

    def common_bytes(self, sizes: DecoderSizes) -> int:
        return 2 * sizes.dim * 4

    def check(self, sizes: DecoderSizes) -> None:
        require(self.window >= 0 and self.rotation in (0, 1), f"a window of {self.window}, rotation {self.rotation}")


@dataclass(frozen=True)
class HeadRows:
    """A step y = W a, where a is the result of attention. A block has rows of W restricted to the columns of one head, so the
    result is one vector per head; their sum is y (`NormRows.parts`)."""

    rows: int

    def call(self, sizes: DecoderSizes) -> str:
        return f"head_rows<{self._of_block(sizes)}>"

    def words(self, sizes: DecoderSizes) -> int:
        return sizes.heads * self.rows

    def block_bytes(self, sizes: DecoderSizes) -> int:
        return -(-self._of_block(sizes) // 8) * 8 * sizes.dim * 2

    def common_bytes(self, sizes: DecoderSizes) -> int:
        return 0

    def check(self, sizes: DecoderSizes) -> None:
        require(self.rows * sizes.heads % BLOCKS == 0 and self._of_block(sizes) <= 32, f"{self.rows} rows behind attention")

    def _of_block(self, sizes: DecoderSizes) -> int:
        return self.rows * sizes.heads // BLOCKS


@dataclass(frozen=True)
class PlainRows:
    """A step y = W a, where a has INNER elements."""

    INNER: ClassVar[int] = 8 * 256
    rows: int

    def call(self, sizes: DecoderSizes) -> str:
        return f"plain_rows<{self.rows // BLOCKS}>"

    def words(self, sizes: DecoderSizes) -> int:
        return self.rows

    def block_bytes(self, sizes: DecoderSizes) -> int:
        return self.rows // BLOCKS * self.INNER * 2

    def common_bytes(self, sizes: DecoderSizes) -> int:
        return 0

    def check(self, sizes: DecoderSizes) -> None:
        require(self.rows % BLOCKS == 0 and self.rows // BLOCKS <= 8, f"{self.rows} plain rows")


@dataclass(frozen=True)
class Likeliest:
    """The last step: the next token, which is the row of the embedding with the largest dot product with norm2(x + norm1(o))."""

    def call(self, sizes: DecoderSizes) -> str:
        return "likeliest"

    def words(self, sizes: DecoderSizes) -> int:
        return 2 * MULTIPROCESSORS

    def block_bytes(self, sizes: DecoderSizes) -> int:
        return 0

    def common_bytes(self, sizes: DecoderSizes) -> int:
        return 2 * sizes.hidden * 4

    def check(self, sizes: DecoderSizes) -> None:
        sets = sizes.vocabulary // SET
        require(sets >= STAGES * MULTIPROCESSORS * WARPS and sizes.vocabulary % SET == 0, f"a head of {sizes.vocabulary} rows")


Kind = NormRows | Attention | HeadRows | PlainRows | Likeliest


@dataclass
class TableRow:
    """A row of the table. step: index in the given list of steps, None for a placeholder. early: the row is the first half of a
    step.
    late: number of the second half's row. reads, writes: offsets of words in the exchange. pack, common: byte offsets in the ring.
    pack_at, common_at: byte offsets in device memory of the weights of blocks, and of values that all blocks share."""

    step: int | None
    call: str
    number: int = 0
    early: bool = False
    late: int = -1
    reads: int = 0
    writes: int = 0
    pack: int = 0
    common: int = 0
    full: int = 0
    phase: int = 0
    wait: int = 0
    block_bytes: int = 0
    common_bytes: int = 0
    pack_at: int = 0
    common_at: int = 0
    loads: bool = False

    @property
    def last_read(self) -> int:
        """Return the number of the last row that reads the weights loaded for this row."""
        return self.late if self.early else self.number


class OneKernel:
    """The generated kernel of a list of steps. words: 32-bit words of one of the two sets of the exchange, which the caller fills
    with one bits before the first launch. pack_bytes: weights of all blocks. common_bytes: values that all blocks read. layers:
    number of layers with caches. A launch has `grid` blocks of `threads` threads, all shared memory that a block can have and one
    parameter, the struct Model of one_kernel.cu (`MODEL`)."""

    grid, threads = MULTIPROCESSORS, 32 * WARPS + 32

    def __init__(self, kinds: Sequence[Kind], sizes: DecoderSizes) -> None:
        self.kinds, self.sizes = tuple(kinds), sizes
        self.layers = 1 + max((k.layer for k in kinds if isinstance(k, Attention)), default=-1)
        require(sizes.hidden == 64 * WARPS, f"{sizes.hidden} columns of the residual")
        heads = sizes.heads
        require(sizes.dim == 256 and BLOCKS % heads == 0 and heads * SPLITS <= BLOCKS, f"{heads} heads of {sizes.dim}")
        require(bool(kinds) and isinstance(kinds[-1], Likeliest), "steps that do not end with the likeliest")
        for kind in kinds:
            kind.check(sizes)
        require(isinstance(kinds[0], NormRows | Likeliest), f"steps that begin with {type(kinds[0]).__name__}")
        for before, after in pairwise(kinds):                       # a step that reads unwritten words waits for ever
            require(_follows(before, after, sizes), f"{after} behind {before}")
        self.steps = self._in_order()
        require(self.shared <= HOPPER.shared_alone, f"{self.layers} layers, which take {self.shared} bytes of shared memory")
        self._place_words()
        self._place_weights()
        self._place_first_sets()

    # ---- where everything is ----

    def _in_order(self) -> list[TableRow]:
        """Return the table's rows, with the first half of a step before the step that computes its words. A placeholder before the
        last step makes the last layer like the others, so that all layers are one loop."""
        steps: list[TableRow] = []
        waiting: dict[int, TableRow] = {}
        firsts = [k for k in self.kinds if isinstance(k, NormRows)]
        for i, kind in enumerate(self.kinds):
            following = self.kinds[i + 1] if i + 1 < len(self.kinds) else None
            if i == 0 and isinstance(kind, NormRows):
                steps.append(TableRow(0, kind.early_call(), early=True))
                waiting[0] = steps[-1]
            if isinstance(following, NormRows):
                steps.append(TableRow(i + 1, following.early_call(), early=True))
                waiting[i + 1] = steps[-1]
            elif isinstance(following, Likeliest) and firsts:
                steps.append(TableRow(None, firsts[0].early_call(), early=True))
            steps.append(TableRow(i, kind.call(self.sizes)))
            if i in waiting:
                waiting[i].late = len(steps) - 1
        for number, step in enumerate(steps):
            step.number = number
        return steps

    def _place_words(self) -> None:
        at, before = 0, 0
        for step in self.steps:
            if step.early or step.step is None:
                continue
            step.reads, step.writes = before, at
            before, at = at, at + -(-self.kinds[step.step].words(self.sizes) // 32) * 32
        self.words = at

    def _place_weights(self) -> None:
        """Give the weights of each step a contiguous piece of the ring, and compute the step after which that piece is free."""
        held: list[tuple[int, int, int]] = []                       # from, to, last step that reads it
        readers: list[int] = []
        place = self.pack_bytes = self.common_bytes = 0
        halves = {s.late: s for s in self.steps if s.early and s.step is not None}
        for step in self.steps:
            if step.number in halves:
                first = halves[step.number]
                step.pack, step.common, step.full, step.phase = first.pack, first.common, first.full, first.phase
                continue
            if step.step is None:
                continue
            kind = self.kinds[step.step]
            step.loads = True
            step.block_bytes, step.common_bytes = kind.block_bytes(self.sizes), kind.common_bytes(self.sizes)
            need = -(-(step.block_bytes + step.common_bytes) // _ALIGNED) * _ALIGNED
            if place + need > RING:
                place = 0
            step.pack, step.common = place, place + step.block_bytes
            over = [h for h in held if h[0] < place + need and place < h[1]]
            held = [h for h in held if h not in over] + [(place, place + need, step.last_read)]
            step.wait = max([h[2] + 1 for h in over] + [readers[-SLOTS] + 1 if len(readers) >= SLOTS else 0])
            require(step.wait <= step.number, "weights of a step that do not fit into the ring beside those of the step before")
            step.full, step.phase = len(readers) % SLOTS, len(readers) // SLOTS % 2
            readers.append(step.last_read)
            place += need
            step.common_at, self.common_bytes = self.common_bytes, self.common_bytes + step.common_bytes
            if not isinstance(kind, Attention):                     # its weights are the caches
                step.pack_at, self.pack_bytes = self.pack_bytes, self.pack_bytes + step.block_bytes * BLOCKS
        self._in_ring = held

    def _place_first_sets(self) -> None:
        """Compute, for the slots of the last step's first sets of rows, the step after which each may be loaded, and their
        order."""
        nbytes = SET * self.sizes.hidden * 2
        attended = max((s.number for s in self.steps if s.call == "attend"), default=-1)
        mixed = RING                                                # behind the ring: where attention joins parts
        waits = []
        for slot in range(WARPS * STAGES):
            begin, end = slot * nbytes, (slot + 1) * nbytes
            over = [h[2] + 1 for h in self._in_ring if h[0] < end and begin < h[1]]
            # parts are read after the step says that it is done, but before the next one does
            waits.append(max([*over, attended + 3 if end > mixed else 0]))
        self._waits, self._order = waits, sorted(range(len(waits)), key=lambda k: (waits[k], k))

    def _more(self) -> int:
        """Return the bytes of the last step's sets that do not fit into the ring and the buffer in which attention joins parts."""
        s = self.sizes
        return max(16, WARPS * STAGES * SET * s.hidden * 2 - RING - (KEY_WARPS + 1) * s.dim * 4)

    @property
    def shared(self) -> int:
        """Return the size in bytes of the struct Shared of one_kernel.cu."""
        s = self.sizes
        floats = (KEY_WARPS + 1) * s.dim + 2 * WARPS * SUMS + 2 * s.dim + 40 + s.dim + 3 * s.hidden + 4
        own = RING + self._more() + 4 * floats + STEP_BYTES * len(self.steps) + 8 * (SLOTS + WARPS * STAGES) + 24
        return -(-own // 16) * 16

    # ---- what a launch needs ----

    def text(self) -> str:
        """Return the source of the kernel `whole`, in CUDA C++ for compute capability 9.0 (sm_90a)."""
        s = self.sizes
        numbers = {
            "WARPS": WARPS, "KEY_WARPS": KEY_WARPS, "FINAL": FINAL, "BLOCKS": BLOCKS, "GRID": MULTIPROCESSORS, "SPLITS": SPLITS,
            "TAKEN": TAKEN, "RING": RING, "SLOTS": SLOTS, "SET": SET, "STAGES": STAGES, "SETS": s.vocabulary // SET, "PIECE": PIECE,
            "PACE": PACE, "FIRST_STEPS": FIRST_STEPS, "HIDDEN": s.hidden, "HEADS": s.heads, "DIM": s.dim, "ROOM": s.room,
            "MOST_SHARED": HOPPER.shared_alone, "STEPS": len(self.steps), "LAYERS": self.layers, "EXCHANGE": self.words,
            "MORE": self._more(), "CACHED_BYTES": s.cached_bytes,
            "EPS": f"{s.eps}f", "SCALE": f"{s.scale}f", "EMBEDDED": f"{s.embedded}f"}
        lines = [f"#define {name} {value}" for name, value in numbers.items()]
        lines += [f"__constant__ int {name}[] = {{{', '.join(map(str, values))}}};"
                 for name, values in (("prefill_waits", self._waits), ("prefill_order", self._order))]
        return "\n".join([*lines, f"#define STEPS_IN_ORDER {self._calls()}", TEXT.read_text()])

    def _calls(self) -> str:
        calls = [s.call for s in self.steps]
        first, length, times = repeated(calls)
        lines = [f"STEP({i}, ({c}))" for i, c in enumerate(calls[:first])]
        lines += [f'at += {first}; _Pragma("unroll 1") for (int times = 0; times < {times}; times++, at += {length}) {{']
        lines += [f"STEP({i}, ({c}))" for i, c in enumerate(calls[first:first + length])] + ["}"]
        lines += [f"STEP({i}, ({c}))" for i, c in enumerate(calls[first + length * times:])]
        return " \\\n    ".join(lines)

    def table(self) -> bytes:
        """Return the table as bytes: an array of the struct Step of one_kernel.cu."""
        return b"".join(self._row(step) for step in self.steps)

    def _row(self, s: TableRow) -> bytes:
        kind = None if s.step is None else self.kinds[s.step]
        attention = kind if isinstance(kind, Attention) else None
        first = -1 if kind is None else int(s.step == 0 and not s.early)
        turn = int(isinstance(kind, HeadRows | PlainRows))          # so that a barrier separates two uses of the same sums
        layer, window, rotation = (attention.layer, attention.window, attention.rotation) if attention else (0, 0, 0)
        return struct.pack("<16iq2i", int(attention is not None), s.reads, s.writes, s.pack, s.common, s.full, s.phase, s.wait,
                           s.block_bytes, s.common_bytes, s.common_at, layer, first, window, rotation, turn, s.pack_at, s.number,
                           int(s.loads))

    def packed(self, step: int, weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a weight [rows, columns] with elements of 2 bytes in the order in which blocks, warps and lanes read it, as it is
        stored at `pack_at` of the step. step: index in the given list."""
        kind, sizes = self.kinds[step], self.sizes
        if isinstance(kind, HeadRows):
            of_block = weight.reshape(BLOCKS // sizes.heads, -1, sizes.heads, sizes.dim).transpose(2, 0, 1, 3)
            return _in_lanes(of_block.reshape(BLOCKS, -1, sizes.dim), 8, 4)
        if isinstance(kind, PlainRows):
            return _in_lanes(weight.reshape(BLOCKS, -1, kind.INNER), 8, 32)
        require(isinstance(kind, NormRows), f"a weight of step {step}")
        return _in_lanes(weight.reshape(BLOCKS, -1, sizes.hidden), WARPS, 8)

    def packing(self, step: int, rows: Sequence[int]) -> tuple[int, ...]:
        """Return the arguments with which the kernel `pack` of pack_weights.cu computes the result of `packed`, from up to three
        matrices with these numbers of rows."""
        kind, sizes = self.kinds[step], self.sizes
        heads, warps, lanes, columns = 1, WARPS, 8, sizes.hidden
        if isinstance(kind, HeadRows):
            heads, warps, lanes, columns = sizes.heads, 8, 4, sizes.heads * sizes.dim
        elif isinstance(kind, PlainRows):
            warps, lanes, columns = 8, 32, kind.INNER
        require(not isinstance(kind, Attention | Likeliest), f"a weight of step {step}")
        of_block = sum(rows) * heads // BLOCKS
        turns = -(-of_block // (32 // lanes))
        in_turn = int(isinstance(kind, NormRows) and kind.pairs)
        first, second, *_ = (*rows, 0)
        return (first, second, in_turn, columns, of_block, BLOCKS // heads, warps, lanes, turns, BLOCKS * warps * turns * 64)

    def loading(self, step: int) -> TableRow:
        """Return the row of the table for which the weights of a given step are loaded."""
        return next(s for s in self.steps if s.step == step and s.loads)


def _follows(before: Kind, after: Kind, sizes: DecoderSizes) -> bool:
    """Return whether a step can read the result of the step before it."""
    if isinstance(after, Attention):
        return isinstance(before, NormRows) and not before.pairs and before.rows == (sizes.heads + 2) * sizes.dim
    if isinstance(after, HeadRows):
        return isinstance(before, Attention)
    if isinstance(after, PlainRows):
        return isinstance(before, NormRows) and before.pairs and before.rows == 2 * PlainRows.INNER
    parts = after.parts if isinstance(after, NormRows) else 1
    summands = {HeadRows: sizes.heads, PlainRows: 1}.get(type(before))
    return summands == parts and isinstance(before, HeadRows | PlainRows) and before.rows == sizes.hidden


def packing_text(blocks: int, threads: int) -> str:
    """Return the source of pack_weights.cu for these numbers of blocks and threads: kernels that reorder weights."""
    return f"#define BLOCKS {blocks}\n#define THREADS {threads}\n{PACKING.read_text()}"


def repeated(calls: Sequence[str]) -> tuple[int, int, int]:
    """Return (first, length, times) of the repeated piece of a list that shortens it the most when written as a loop.

    >>> repeated(["a", "b", "c", "b", "c", "b", "c", "d"])
    (1, 2, 3)
    """
    best = (0, len(calls), 1)
    for length in range(1, len(calls) // 2 + 1):
        for first in range(min(length, len(calls) - length)):
            piece, times = calls[first:first + length], 1
            while calls[first + times * length:first + (times + 1) * length] == piece:
                times += 1
            if times > 1 and length * (times - 1) > best[1] * (best[2] - 1):
                best = (first, length, times)
    return best


def _in_lanes(weight: np.ndarray[Any, Any], warps: int, lanes: int) -> np.ndarray[Any, Any]:
    """Return a weight [blocks, rows, columns] in reading order. Warps share the columns; of its warp's columns a lane has 4 in each
    half; a warp takes 32 / lanes rows in a step."""
    blocks, rows, columns = weight.shape
    at_once = 32 // lanes
    turns = -(-rows // at_once)
    whole = np.zeros((blocks, turns * at_once, columns), weight.dtype)
    whole[:, :rows] = weight
    return np.ascontiguousarray(
        whole.reshape(blocks, turns, at_once, warps, 2, lanes, 4).transpose(0, 3, 1, 2, 5, 4, 6)).reshape(-1)


def require(right: bool, what: str) -> None:
    """Raise NotLowered with a message about `what` unless `right`."""
    if not right:
        raise NotLowered(f"one kernel for all steps is not made for {what}")
