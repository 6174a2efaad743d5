"""products: `linear` and `dot` of bf16 and f16 in Triton, summed in f32 by tensor cores. A rule chooses the tile by the shape."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.numpy.composites import operand
from tensor_graphs.kernels.torch.ops import torch
from tensor_graphs.kernels.triton.rows import FLOATS
from tensor_graphs.language import dims as d


class Machine(NamedTuple):
    """The limits of a GPU. multiprocessors: blocks that run simultaneously. shared: most bytes of shared memory of a block."""

    multiprocessors: int = HOPPER.units
    shared: int = HOPPER.shared_alone


@functools.cache
def machine(device: Any) -> Machine:
    """Return the limits of a torch device; those of compute capability 9.0 for a CPU, as in Triton's interpreter."""
    if device.type != "cuda":
        return Machine()
    properties = torch.cuda.get_device_properties(device)
    return Machine(properties.multi_processor_count, getattr(properties, "shared_memory_per_block_optin", 99 << 10))


NARROW = ("bf16", "f16")

MOST = 1 << 30
"""limit of the sizes of a matrix, exclusive, so that 32-bit counters in the kernels do not overflow"""


def dot_takes(spec: Spec) -> str | None:
    x, weight = spec.inputs[:2]
    if x.dtype.name not in NARROW or any(t.dtype is not x.dtype for t in (weight, *spec.outputs)):
        return "bf16 or f16, both operands of one type"
    large = any(d.bounds(s)[1] >= MOST for t in (x, weight, *spec.outputs) for s in t.shape)
    return "an axis has too many elements" if large else None


def linear_takes(spec: Spec) -> str | None:
    bias = spec.role("bias")
    if bias is not None and bias.dtype.name not in FLOATS:
        return "a bias of f32, bf16 or f16"
    return dot_takes(spec)


class Tiling(NamedTuple):
    """A tiling. tall, wide: rows and columns of results of a block. deep: elements of k in a step. parts: into which k is split."""

    tall: int
    wide: int
    deep: int
    warps: int
    parts: int = 1

    def stages(self, shared: int) -> int:
        """Return the number of steps of k that are loaded ahead: as many as fit into shared memory (1 KiB is left), up to four."""
        return max(1, min(4, (shared - 1024) // ((self.tall + self.wide) * self.deep * 2)))


TILES = (Tiling(128, 256, 64, 8), Tiling(128, 128, 64, 8), Tiling(64, 128, 64, 4), Tiling(64, 64, 64, 4))
"""tiles for many rows; the first one reads each operand the fewest times"""

MOST_PARTS, LEAST_DEEP = 32, 256
"""most parts of k, and least elements of k in each"""


def tile_for(rows: int, columns: int, k: int, batches: int, multiprocessors: int) -> Tiling:
    """Return the largest tiling that gives a tile to at least three of four multiprocessors, else the smallest. k is split into
    parts where there are at most half as many tiles as multiprocessors. For up to 32 rows a tile has their height, and k is split
    for two blocks per multiprocessor, as reading the weight dominates."""

    def count(tile: Tiling) -> int:
        return batches * -(-rows // tile.tall) * -(-columns // tile.wide)

    if rows <= 32:
        tile, blocks = Tiling(max(16, 1 << (rows - 1).bit_length()), 64, 128, 4), 2 * multiprocessors
    else:
        tile = next((t for t in TILES if 4 * count(t) >= 3 * multiprocessors), TILES[-1])
        blocks = multiprocessors
    parts = min(blocks // count(tile), MOST_PARTS, k // LEAST_DEEP)
    if parts < 2:
        return tile
    length = -(-k // (parts * tile.deep)) * tile.deep
    return tile._replace(parts=-(-k // length))


def multiplied(y: Any, x: Any, w: Any, bias: Any, of: Machine) -> None:
    """Write y[batch, rows, columns] = x[batch, rows, k] · w[batch, columns, k]ᵀ + bias[columns]; y must be contiguous."""
    from tensor_graphs.kernels.triton import jit_functions

    batches, rows, columns = y.shape
    k = x.shape[2]
    tile = tile_for(rows, columns, k, batches, of.multiprocessors)
    length = -(-k // (tile.parts * tile.deep)) * tile.deep
    cut = tile.parts > 1
    out = y.new_empty((tile.parts, *y.shape), dtype=torch.float32) if cut else y
    has_bias = bias is not None
    added, bias_each = (bias, bias.stride(0)) if has_bias else (x, 0)       # where there is none, anything: it is not read
    tiles = batches * -(-rows // tile.tall) * -(-columns // tile.wide)
    jit_functions.product[(tiles, tile.parts)](out, x, w, added, rows, columns, k, batches, length, *x.stride(), *w.stride(),
                                               bias_each, TALL=tile.tall, WIDE=tile.wide, DEEP=tile.deep, GROUP=8,
                                               WHOLE=k % tile.deep == 0, BIAS=has_bias and not cut, num_warps=tile.warps,
                                               num_stages=tile.stages(of.shared))
    if cut:
        jit_functions.added_parts[(-(-y.numel() // 1024),)](y, out, added, y.numel(), columns, tile.parts, bias_each, BIAS=has_bias,
                                                            BLOCK=1024, num_warps=4)


def linear(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    bias: Any = operand(ins, attrs, ("x", "weight", "bias"), "bias")
    y, x, weight = outs[0], ins[0], ins[1]
    if y.numel():
        rows = y.numel() // y.shape[-1]
        multiplied(y.view(1, rows, y.shape[-1]), x.reshape(1, rows, x.shape[-1]), weight[None], bias, machine(y.device))


def dot(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Multiply as numpy.matmul does: a vector counts as a row or a column, and leading axes are broadcast."""
    y = outs[0]
    if not y.numel():
        return
    a = ins[0][None] if ins[0].dim() == 1 else ins[0]
    b = ins[1][:, None] if ins[1].dim() == 1 else ins[1]
    k, columns = b.shape[-2:]
    if b.numel() == k * columns:                                    # one matrix for all: its rows are those of all
        b = b.reshape(1, k, columns)
        rows = y.numel() // columns
        multiplied(y.view(1, rows, columns), a.reshape(1, rows, k), b.transpose(1, 2), None, machine(y.device))
        return
    lead = tuple(max(pair) for pair in zip(_led(a, b), _led(b, a), strict=True))
    rows = a.shape[-2]
    batches = y.numel() // (rows * columns)
    a, b = a.expand(*lead, rows, k).reshape(batches, rows, k), b.expand(*lead, k, columns).reshape(batches, k, columns)
    multiplied(y.view(batches, rows, columns), a, b.transpose(1, 2), None, machine(y.device))


def _led(t: Any, other: Any) -> tuple[int, ...]:
    """Return the leading axes of a tensor, padded in front with 1 to as many as the other tensor has."""
    return (1,) * (max(t.dim(), other.dim()) - t.dim()) + tuple(t.shape[:-2])
