"""conv: convolutions of the backend `cuda` on tensor cores, without a copied matrix of all windows."""

from __future__ import annotations

from dataclasses import dataclass

from tensor_graphs.kernels.cuda.matrix_products import (
    MOST_STAGES,
    PIECE_OF_FLOATS,
    as_written,
    pairs_of,
    parts_of,
    source_of,
    split_sums,
    tile_launch,
)
from tensor_graphs.kernels.cuda.source_text import ALIGNED, FLOATS, MULTIPROCESSORS, SHARE, TILES_BYTES, matrix_map, static, text_of
from tensor_graphs.kernels.kernel import Launch, LaunchCall, Preparation, Spec, TensorMap
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bf16, f16, f32
from tensor_graphs.language.node import TensorType

CONV = "conv_element.cu plain_elements.cu conv_tiles.cu tensor_tiles.cu"
"""files that the source of a convolution consists of, beside those of sums"""

PLACES = 128
"""most output positions of a tile"""

MOST_OF_A_BOX, MOST_STRIDE = 256, 8
"""limits along an axis: elements of a box, and stride between copied elements (CUDA driver API, cuTensorMapEncodeTiled)"""


@dataclass(frozen=True)
class _Axes:
    """Sizes and attributes along both image axes; with one axis the first has size 1. places: output positions. before: padding."""

    size: tuple[int, int]
    places: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    dilation: tuple[int, int]


def _axes(spec: Spec) -> _Axes:
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]

    def both(numbers: tuple[int, ...], other: int) -> tuple[int, int]:
        first, second = (*(other,) * (2 - len(numbers)), *numbers)
        return first, second

    sizes = (tuple(int(s) for s in t.shape[2:]) for t in (x, y, w))
    size, places, window = (both(numbers, 1) for numbers in sizes)
    attrs = spec.attrs
    return _Axes(size, places, window, both(attrs["stride"], 1), both(tuple(low for low, _ in attrs["padding"]), 0),
                 both(attrs["dilation"], 1))


def _channels(spec: Spec) -> tuple[int, int, int]:
    """Return (channels of x, channels padded to a multiple of 8, output channels)."""
    outputs, channels = (int(s) for s in spec.inputs[1].shape[:2])
    return channels, -(-channels // 8) * 8, outputs


def conv_takes(spec: Spec) -> str | None:
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    if (x.dtype, w.dtype) not in ((bf16, bf16), (f16, f16), (f32, bf16), (f32, f32)):
        return "bf16, f16, f32, and f32 by bf16 only"
    if any(t.dtype not in FLOATS for t in (*spec.inputs[2:], y)) or y.dtype is not x.dtype:
        return "a result as x, a bias of f32, bf16 or f16"
    if x.rank > 4 or int(spec.attrs["groups"]) != 1:
        return "one or two axes, and one group, only"
    if (why := static(*x.shape[1:], *w.shape)) is not None:
        return why
    if 0 in (*x.shape[1:], *w.shape, *y.shape[1:]):
        return "empty images"
    axes = _axes(spec)
    if max(axes.stride) > MOST_STRIDE or min(axes.before) < 0:
        return f"strides up to {MOST_STRIDE}, and padding that is none less"
    channels, _, outputs = _channels(spec)
    high = d.bounds(x.shape[0])[1]
    biggest = max(channels * axes.size[0] * axes.size[1], outputs * axes.places[0] * axes.places[1])
    return None if high < 1 << 28 and high * biggest < 1 << 40 else "too many elements"


def _runs(spec: Spec) -> tuple[int, int, int]:
    """Return (positions of the window in a run of adjacent numbers, elements of a padded row, steps of 64 numbers of a tile)."""
    axes, (_, packed, _) = _axes(spec), _channels(spec)
    (high, wide), dilation = axes.window, axes.dilation[1]
    taps = wide if dilation == 1 else 1
    sees = (axes.places[1] - 1) * axes.stride[1] + (wide - 1) * dilation + 1
    return taps, max(sees, axes.before[1] + axes.size[1]), high * (wide // taps) * -(-taps * packed // 64)


OF_A_STEP, STORED, STORED_APART = 3, 19, 54
"""relative times in a tile: a step per pair of parts; storing results, and storing them where rows are no multiples of 8"""


@dataclass(frozen=True)
class _Tiling:
    """A tiling. images, rows, places: those of a tile (places: output positions of a row). wide: output channels of a tile. count:
    number of tiles."""

    images: int
    rows: int
    places: int
    wide: int
    count: Dim


def _tiling(spec: Spec) -> _Tiling:
    """Return the tiling with the least estimated time, with one tile per multiprocessor at a time. Ties go to fewer tiles, then to
    longer rows."""
    axes, count, (_, _, outputs), parts = _axes(spec), spec.inputs[0].shape[0], _channels(spec), parts_of(spec)
    images = max(1, min(PLACES, d.bounds(count)[1]))                # of a batch that is a dim: the largest
    steps, pairs = _runs(spec)[2], pairs_of(*parts)
    (high, along), candidates = axes.places, list[tuple[float, int, int, tuple[int, int, int, int]]]()
    widths = [w for w in (64, 128, 256) if w == 64 or (outputs > w // 2 and w <= (128 if parts[0] == 3 else 256))]
    for places in range(1, min(along, PLACES) + 1):
        for rows in range(1, min(high, PLACES // places, MOST_OF_A_BOX // axes.stride[0]) + 1):
            many = min(images, PLACES // (places * rows))
            places_count = -(-images // many) * -(-high // rows) * -(-along // places)
            stored = STORED if places == along or places % 8 == 0 else STORED_APART
            for wide in widths:
                tiles = places_count * -(-outputs // wide)
                in_turn = -(-steps // split_sums(tiles, steps, parts[0] * parts[1])) * pairs
                time = -(-tiles // MULTIPROCESSORS) * wide * (OF_A_STEP * in_turn + stored) / (1 if wide == 64 else 1.25)
                candidates.append((time, tiles, -places, (many, rows, places, wide)))
    many, rows, places, wide = min(candidates)[3]
    of_batch = -(-high // rows) * -(-along // places) * -(-outputs // wide)
    return _Tiling(many, rows, places, wide, d.ceil_div(count, many) * of_batch)


def conv_prepares(spec: Spec) -> tuple[Preparation, ...]:
    """Return the preparation of the weight: runs of numbers per output channel, for f32 in three bf16 parts."""
    w, (channels, packed, outputs), parts = spec.inputs[1], _channels(spec), parts_of(spec)[1]
    (high, wide), taps = _axes(spec).window, _runs(spec)[0]
    numbers = {"PARTS_W": parts, "CHANNELS": channels, "OUTPUTS": outputs, "WINDOW": high * wide, "TAPS": taps, "PACKED": packed}
    launch = Launch("conv_weights", -(-high * wide * outputs * packed // 256), 256)
    call = LaunchCall(text_of("conv_weights.cu", numbers, {"W": w.dtype}), (launch,), ())
    shape = (parts, high * wide // taps, outputs, taps * packed)
    return (Preparation(call, (1,), (TensorType(shape, bf16 if w.dtype is f32 else w.dtype),)),)


def conv(spec: Spec) -> LaunchCall:
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    axes, (channels, packed, outputs), (parts_x, parts_w) = _axes(spec), _channels(spec), parts_of(spec)
    bias, count = spec.role("bias"), x.shape[0]
    tiling, (taps, seen, steps) = _tiling(spec), _runs(spec)
    stage = (parts_x * PLACES + parts_w * tiling.wide) * 128
    stages = min(TILES_BYTES // stage, MOST_STAGES)
    splits = split_sums(d.bounds(tiling.count)[1], steps, parts_x * parts_w)
    kind = "F16" if x.dtype is f16 else "Bf16"
    numbers: dict[str, object] = {
        "KIND": kind, "KIND_Y": kind, "PIECE": PIECE_OF_FLOATS if parts_x == 3 else 0, "COLUMNS": tiling.wide, "STAGES": stages,
        "SPLITS": splits, "PARTS_X": parts_x, "PARTS_W": parts_w, "W_PREPARED": 1, "CHANNELS": channels, "PACKED": packed,
        "OUTPUTS": outputs, "TILE_N": tiling.images, "TILE_H": tiling.rows, "TILE_W": tiling.places, "TAPS": taps, "SEEN_W": seen}
    for name, (first, second) in (("IN", axes.size), ("OUT", axes.places), ("KERNEL", axes.window), ("STRIDE", axes.stride),
                                  ("PAD", axes.before), ("DILATION", axes.dilation)):
        numbers |= {f"{name}_H": first, f"{name}_W": second}
    types = {"X": x.dtype, "W": w.dtype, "B": f32 if bias is None else bias.dtype, "Y": y.dtype}
    text = source_of(CONV, numbers, types, as_written(spec, True))
    elements = d.product(y.shape)
    size = axes.size[0] * seen
    launches = (Launch("turned", count * (-(-size // 64) * -(-packed // 64)), 256, waits=True),
                tile_launch(tiling.count, splits, stages * stage, (len(spec.inputs),)))
    pieces = (d.ceil_div(count * (size * packed * 2 * parts_x), 256) * 256,)
    words = 1 + len(spec.inputs), 3 + len(spec.inputs)              # the prepared weight; behind it and the sizes, `turned` x
    run, place, runs = taps * packed, 2 * packed, axes.window[1] // taps
    lengths = run, runs, axes.places[1], axes.size[0], count * parts_x
    apart = place * axes.dilation[1], place * axes.stride[1], place * seen, place * seen * axes.size[0]
    box = 64, 1, tiling.places, tiling.rows * axes.stride[0], tiling.images
    maps = (TensorMap(words[1], "u16", lengths, apart, box, (1, 1, 1, axes.stride[0], 1)),
            matrix_map(words[0], run, outputs, parts_w * axes.window[0] * runs, tiling.wide))
    plain = LaunchCall(text, (Launch("plain", d.ceil_div(elements, 256), 256, waits=True),), (count,))
    return LaunchCall(text, launches, (count,), pieces, ALIGNED, plain, maps)


def conv_traffic(spec: Spec) -> Dim:
    """Return the bytes moved: x, results, prepared weights, and the padded and reordered copy of x, written and read."""
    x, y, (_, packed, outputs), (parts_x, parts_w) = spec.inputs[0], spec.outputs[0], _channels(spec), parts_of(spec)
    (high, wide), seen = _axes(spec).window, _axes(spec).size[0] * _runs(spec)[1]
    parts = x.shape[0] * (seen * packed * 4 * parts_x) + high * wide * outputs * packed * 2 * parts_w
    return d.product(x.shape) * x.dtype.itemsize + d.product(y.shape) * y.dtype.itemsize + parts


def conv_steps(spec: Spec) -> Dim:
    """Return the operations of complete tiles and steps, and of storing, divided by SHARE (speed-up of tensor cores over f32)."""
    tiling, steps = _tiling(spec), _runs(spec)[2] * pairs_of(*parts_of(spec))
    return tiling.count * (PLACES * tiling.wide * 2 * 64 * (steps + STORED // OF_A_STEP) // SHARE)
