"""scratch: upper bounds of the scratch memory of C kernels [bytes, on all threads together], as expressions of their dims.

Each formula follows the tg_scratch calls of the C file of its name: every thread of the pool does a part, and a symbolic number of
rows takes its worst value. A test compares them with what the pool was asked for."""

from __future__ import annotations

from tensor_graphs.kernels.c import library
from tensor_graphs.language.dims import Dim, ceil_div, dim_max, dim_min

PAGE = 4096                                            # the pool rounds each block up to this
STREAM_LIMIT = {4: 8, 8: 6}                            # rows that `linear` streams the weights past (by bytes of a float)
GROUP = {4: (4, 192 << 10), 8: (2, 256 << 10)}         # linear: tiles, or bytes, of weights that go through together
FEW_LANES = 8                                          # attention: lanes up to which keys are cut between threads
GATHERED = 512                                         # gather_linear: rows that are brought together at once
BLOCK = (32, 256)                                      # depthwise: rows and columns that are computed together
BAND_BYTES, BAND_COLS, BAND_ROWS = 160 << 10, 112, 4    # direct: of a band's input; columns at most; rows at least
LONGEST_GROUP = 16                                     # linear: the most tiles that go through together
NARROW = (8, 4, 256 << 10)                              # linear of bf16: rows that are widened; least tiles, or bytes, of a group
ABOUT = 132                                            # linear of bf16: bytes of what is known of a panel
AMX = (8, 32, 128, 1 << 20)                            # rows that others take; depth of a tile; most rows, and bytes, of a group


def _beyond(n: Dim, limit: int) -> Dim:
    """1 where n > limit, else 0."""
    return dim_min(1, dim_max(0, n - limit))


def _padded(k: Dim, itemsize: int) -> Dim:
    """Elements from one copied row to the next: whole cache lines and one more."""
    line = 64 // itemsize
    return ceil_div(k, line) * line + line


def linear(n: Dim, k: Dim, itemsize: int, pairs: bool) -> Dim:
    """x[n, k] by weights, computed in floats of `itemsize` bytes; pairs: few rows of x are rearranged (bf16 weights)."""
    tile, threads = library.load().tile(itemsize), library.load().threads()
    (least, group), limit = GROUP[itemsize], STREAM_LIMIT[itemsize]
    panels = ceil_div(n, tile.lanes) * tile.lanes * dim_max(k, 1) * itemsize
    one_tile = tile.rows * _padded(k, itemsize) * itemsize
    weights = dim_min(LONGEST_GROUP * one_tile, dim_max(least * one_tile, group))
    products = LONGEST_GROUP * tile.rows * tile.lanes * itemsize
    many = panels + PAGE + threads * (weights + products + PAGE)
    few: Dim = dim_min(n, limit) * k * itemsize + 8 + PAGE if pairs else 0
    return dim_max(_beyond(n, limit) * many, few)


def narrow_linear(n: Dim, m: Dim, k: Dim) -> Dim:
    """x[n, k] by m rows of weights, all of bf16: panels of pairs, and on each thread the sums of a group of rows, twice, and the
    group itself where its rows would share one set of the cache; or few rows in f32, and their products."""
    tile, threads = library.load().tile(4), library.load().threads()
    limit, least, group_bytes = NARROW
    count = ceil_div(n, tile.lanes)
    panels = count * tile.lanes * ceil_div(k, 2) * 4 + count * ABOUT + PAGE
    group = dim_min(LONGEST_GROUP * tile.rows, dim_max(least * tile.rows, ceil_div(group_bytes, 2 * dim_max(k, 1))))
    copied: Dim = 0 if isinstance(k, int) and k * 2 % 4096 else group * (k + 32) * 2
    many = panels + threads * (2 * group * tile.lanes * 4 + copied + PAGE)
    few = dim_min(n, limit)
    return few * (k + m) * 4 + PAGE + dim_max(_beyond(n, limit) * many, linear(few, k, 4, True))


def _amx_product(n: Dim, k: Dim, of_a: int, of_b: int, callers: int) -> Dim:
    """Rows of k numbers, each as `of_a` parts of bf16, by n lanes: panels of the lanes, of each caller; on each thread a group of
    rows, and its results, twice."""
    tile, threads = library.load().tile(4), library.load().threads()
    _, depth, most, group = AMX
    whole = ceil_div(k, depth) * depth * 2
    panels = callers * (ceil_div(n, tile.lanes) * tile.lanes * (whole * of_b + 8) + PAGE)
    rows = dim_min(most * whole * of_a, dim_max(group, depth * whole * of_a))
    return panels + threads * (2 * most * tile.lanes * 4 + rows + PAGE)


def amx_linear(n: Dim, m: Dim, k: Dim, narrow: bool, narrow_weights: bool) -> Dim:
    """x[n, k] by m rows of weights: few rows go elsewhere, and all do where a process may use no tiles."""
    def elsewhere(rows: Dim) -> Dim:
        return narrow_linear(rows, m, k) if narrow else linear(rows, k, 4, narrow_weights)

    tiles = _amx_product(n, k, 1 if narrow_weights else 3, 1 if narrow else 3, 1) + elsewhere(dim_min(n, AMX[0]))
    return dim_max(_beyond(n, AMX[0]) * tiles, elsewhere(n))


def amx_dot(batch: Dim, n: Dim, k: Dim, narrow: bool) -> Dim:
    """a[batch, m, k] · b[batch, k, n]: each thread may have the panels of one b."""
    parts, threads = (1 if narrow else 3), library.load().threads()
    tiles = _amx_product(n, k, parts, parts, 1 if batch == 1 else threads)
    return tiles if narrow else dim_max(tiles, matmul(k, 4))


def gather_linear(pairs: Dim, m: Dim, k: Dim, narrow: bool) -> Dim:
    """A block of rows of x and of the result, of m and k elements, and what `linear` takes for it; narrow: bf16 weights."""
    block = dim_min(pairs, GATHERED)
    return block * ((m + k) * 4 + 8) + PAGE + linear(block, k, 4, narrow)


def matmul(k: Dim, itemsize: int) -> Dim:
    """a[m, k] · b[k, n]: on each thread a panel of b and a tile of a."""
    tile, threads = library.load().tile(itemsize), library.load().threads()
    return threads * ((dim_max(k, 1) * tile.lanes + tile.rows * _padded(k, itemsize)) * itemsize + PAGE)


def conv(k: Dim) -> Dim:
    """The k numbers that each window of a panel sees, on each thread."""
    tile, threads = library.load().tile(4), library.load().threads()
    return threads * (k * tile.lanes * 4 + PAGE)


def depthwise(size: tuple[Dim, Dim], stride: tuple[int, int], dilation: tuple[int, int], high: Dim, wide: Dim) -> Dim:
    """A block of lines of one channel, for high x wide outputs and windows of `size`, on each thread."""
    threads, lanes = library.load().threads(), library.load().tile(4).lanes // 2
    rows = (dim_min(high, BLOCK[0]) - 1) * stride[0] + (size[0] - 1) * dilation[0] + 1
    last = dim_max(dim_min(wide, BLOCK[1]), lanes) + (size[1] - 1) * dilation[1] // stride[1] + 1
    return threads * (rows * stride[1] * ceil_div(last, lanes) * lanes * 4 + PAGE)


def direct(channels: int, size: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], high: Dim, wide: Dim) -> Dim:
    """The input of a band of high x wide places, where it has each tap, and the sums of one panel of outputs, on each thread."""
    threads, panel = library.load().threads(), library.load().tile(4).lanes
    lanes = panel // 2
    last = dim_max(dim_min(wide, BAND_COLS), lanes) + (size[1] - 1) * dilation[1] // stride[1] + 1
    line = channels * stride[1] * ceil_div(last, lanes) * lanes * 4
    lines = dim_min(high * stride[0] * line, dim_max(BAND_BYTES, BAND_ROWS * stride[0] * line))
    sums = ceil_div(lines, channels * stride[0] * stride[1]) * panel
    offsets = ceil_div(channels * size[0] * size[1], lanes) * lanes * 4
    return threads * (lines + (size[0] - 1) * dilation[0] * line + offsets + sums + PAGE)


def scatter(rows: Dim, count: Dim) -> Dim:
    """The begin of each row's updates, and the updates in the order of rows."""
    return (rows + 1 + count) * 8 + PAGE


def attention(lanes: Dim, kv_heads: Dim, width: Dim, itemsize: int) -> Dim:
    """`lanes` queries for each of the heads of k and v, `width` channels."""
    tile, threads = library.load().tile(itemsize), library.load().threads()
    pieces = 4 * threads + kv_heads                    # heads times the pieces that their keys are cut into
    rows = dim_min(lanes, FEW_LANES)
    few = pieces * rows * (width + 2) * itemsize + PAGE + threads * (rows * width * itemsize + 8 + PAGE)
    keys = 8 * tile.rows
    many = threads * ((2 * width * tile.lanes + keys * tile.lanes + keys * _padded(width, itemsize)) * itemsize + PAGE)
    return dim_max(few, _beyond(lanes, FEW_LANES) * many)
