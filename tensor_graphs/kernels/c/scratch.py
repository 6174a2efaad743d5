"""scratch: upper bounds of the scratch memory of C kernels [bytes, on all threads together], as expressions of their dims.

Each formula follows the tg_scratch calls in the C file of its name. Every thread of the pool does a part; a symbolic number of rows
takes its worst value. A test compares the bounds with the bytes that kernels request from the pool."""

from __future__ import annotations

from tensor_graphs.kernels.c import library
from tensor_graphs.language.dims import Dim, ceil_div, dim_max, dim_min

PAGE = 4096                                            # the pool rounds each block up to this
STREAM_LIMIT = {4: 8, 8: 6}                            # rows that `linear` streams the weights past (by bytes of a float)
GROUP = (4, 192 << 10)                                 # linear: least tiles, or bytes, of weights that go through together
FEW_LANES = 8                                          # attention: lanes up to which keys are cut between threads
EVEN = 16                                              # gather_linear: rows of zeros fill a group of rows up to a multiple
GATHERED = 512                                         # gather_linear: rows that are brought together at once
BLOCK = (32, 256)                                      # depthwise: rows and columns that are computed together
BAND_BYTES, BAND_COLS, BAND_ROWS = 160 << 10, 112, 4    # direct: of a band's input; columns at most; rows at least
LONGEST_GROUP = 16                                     # linear: the most tiles that go through together
AMX = (8, 32, 128, 1 << 20)                            # rows left to other kernels; depth of a tile; most rows, bytes of a group


def _beyond(n: Dim, limit: Dim) -> Dim:
    """Return 1 where n > limit, else 0."""
    return dim_min(1, dim_max(0, n - limit))


def _padded(k: Dim, itemsize: int) -> Dim:
    """Return the stride of copied rows of k elements at most: k rounded up to cache lines, and one more line."""
    line = 64 // itemsize
    return ceil_div(k, line) * line + line


def linear(n: Dim, k: Dim, itemsize: int, weight_bytes: int, m: Dim | None = None) -> Dim:
    """Return the bytes for x[n, k] by weights of weight_bytes each, in floats of `itemsize` bytes. Few rows of x are rearranged for
    bf16 weights; weights of another dtype are widened. m: rows of weights, which may be packed in place of x; None: any number."""
    tile, threads = library.load().tile(itemsize), library.load().threads()
    (least, group), limit = GROUP, STREAM_LIMIT[itemsize]
    one_tile, same = tile.rows * _padded(k, itemsize) * itemsize, weight_bytes == itemsize
    weights: Dim = 0 if same else dim_min(LONGEST_GROUP * one_tile, dim_max(least * one_tile, group))
    products = 2 * LONGEST_GROUP * tile.rows * tile.lanes * itemsize
    many = ceil_div(n, tile.lanes) * _panel(k, itemsize) + PAGE + threads * (weights + products + PAGE)
    few: Dim = dim_min(n, limit) * k * itemsize + 8 + PAGE if weight_bytes == 2 else 0
    if not same or m is None:
        return dim_max(_beyond(n, limit) * (dim_max(many, matmul(k, itemsize)) if same else many), few)
    packed = _beyond(n, dim_max(limit, 2 * m - 1))
    return dim_max((_beyond(n, limit) - packed) * many, packed * matmul(k, itemsize))


def decoded_linear(n: Dim, k: Dim) -> Dim:
    """Return the bytes for x[n, k] by weights in blocks, of which panels are widened where there are many rows of x."""
    return _beyond(n, STREAM_LIMIT[4]) * matmul(k, 4)


def rounded_rows(n: Dim, k: Dim) -> Dim:
    """Return the bytes for x[n, k] in parts of 32 integers of two bytes, with a scale and three sums each."""
    return n * (k // 32) * 80 + 1 + PAGE


def _panel(k: Dim, itemsize: int, pairs: bool = False) -> Dim:
    """Return the bytes of a panel of k steps, or of pairs of them, with what is written or said about its lanes behind them."""
    lanes = library.load().tile(itemsize).lanes
    steps = dim_max(k, 1) + 1
    return (ceil_div(steps - 1, 2) if pairs else steps) * lanes * itemsize + lanes * 8


def narrow_linear(n: Dim, m: Dim, k: Dim) -> Dim:
    """Return the bytes for x[n, k] by m rows of weights, all bf16: by pairs, or as for weights that are widened."""
    lib, limit = library.load(), STREAM_LIMIT[4]
    tile, pairs = lib.tile(4), lib.pairs()
    products = 2 * LONGEST_GROUP * tile.rows * tile.lanes * 4
    many = ceil_div(n, tile.lanes) * _panel(k, 4, pairs) + PAGE + lib.threads() * (products + PAGE)
    turned = _beyond(n, dim_max(limit, 2 * m - 1)) * matmul(k, 4, n, pairs)
    return dim_max(dim_max(_beyond(n, limit) * many, turned), linear(dim_min(n, limit) if pairs else n, k, 4, 2))


def _amx_product(n: Dim, k: Dim, of_a: int, of_b: int, callers: int) -> Dim:
    """Return the bytes for rows of k numbers by n lanes, in `of_a` and `of_b` bf16 parts per number. Each of `callers` has panels
    of the lanes; each thread has a group of rows and two copies of its results."""
    tile, threads = library.load().tile(4), library.load().threads()
    _, depth, most, group = AMX
    whole = ceil_div(k, depth) * depth * 2
    panels = callers * (ceil_div(n, tile.lanes) * tile.lanes * (whole * of_b + 8) + PAGE)
    rows = dim_min(most * whole * of_a, dim_max(group, depth * whole * of_a))
    return panels + threads * (2 * most * tile.lanes * 4 + rows + PAGE)


def amx_linear(n: Dim, m: Dim, k: Dim, narrow: bool, narrow_weights: bool) -> Dim:
    """Return the bytes for x[n, k] by m rows of weights. Other kernels take few rows, and all where the process may use no AMX."""
    def elsewhere(rows: Dim) -> Dim:
        return narrow_linear(rows, m, k) if narrow else linear(rows, k, 4, 2 if narrow_weights else 4)

    tiles = _amx_product(n, k, 1 if narrow_weights else 3, 1 if narrow else 3, 1) + elsewhere(dim_min(n, AMX[0]))
    return dim_max(_beyond(n, AMX[0]) * tiles, elsewhere(n))


def amx_dot(batch: Dim, n: Dim, k: Dim, narrow: bool) -> Dim:
    """Return the bytes for a[batch, m, k] · b[batch, k, n]; each thread may hold the panels of one matrix of b."""
    parts, threads = (1 if narrow else 3), library.load().threads()
    tiles = _amx_product(n, k, parts, parts, 1 if batch == 1 else threads)
    return tiles if narrow else dim_max(tiles, matmul(k, 4))


def gather_linear(pairs: Dim, m: Dim, k: Dim, weight_bytes: int, even: bool) -> Dim:
    """Return the bytes for a block of rows of x (k elements) and of the result (m), and `linear` of it. even: rows of zeros fill
    the block up to a multiple of EVEN."""
    block = dim_min(ceil_div(pairs, EVEN) * EVEN if even else pairs, GATHERED)
    return block * ((m + k) * 4 + 8) + PAGE + linear(block, k, 4, weight_bytes)


def matmul(k: Dim, itemsize: int, rows: Dim = 0, pairs: bool = False) -> Dim:
    """Return the bytes for a[rows, k] · b[k, n]: on each thread a panel of b and two tiles of a, with results twice; by pairs also
    what all rows of a are like."""
    tile, threads = library.load().tile(itemsize), library.load().threads()
    own = _panel(k, itemsize, pairs) + 2 * tile.rows * (_padded(k, itemsize) + 2 * tile.lanes) * itemsize
    return threads * (own + PAGE) + (rows * 8 + PAGE if pairs else 0)


def depthwise(size: tuple[Dim, Dim], stride: tuple[int, int], dilation: tuple[int, int], high: Dim, wide: Dim) -> Dim:
    """Return the bytes for a block of lines of one channel on each thread, for high x wide outputs and windows of `size`."""
    threads, lanes = library.load().threads(), library.load().tile(4).lanes // 2
    rows = (dim_min(high, BLOCK[0]) - 1) * stride[0] + (size[0] - 1) * dilation[0] + 1
    last = dim_max(dim_min(wide, BLOCK[1]), lanes) + (size[1] - 1) * dilation[1] // stride[1] + 1
    return threads * ((rows * stride[1] * ceil_div(last, lanes) * lanes + size[0] * size[1]) * 4 + PAGE)


def direct(channels: int, narrow: bool, size: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], high: Dim,
           wide: Dim) -> Dim:
    """Return the bytes for the input of a band of the high x wide outputs, tap offsets, and sums of one panel of outputs. narrow:
    these are turned before they are stored."""
    threads, panel = library.load().threads(), library.load().tile(4).lanes
    lanes = panel // 2
    last = dim_max(dim_min(wide, BAND_COLS), lanes) + (size[1] - 1) * dilation[1] // stride[1] + 1
    line = channels * stride[1] * ceil_div(last, lanes) * lanes * 4
    lines = dim_min(high * stride[0] * line, dim_max(BAND_BYTES, BAND_ROWS * stride[0] * line))
    sums = ceil_div(lines, channels * stride[0] * stride[1]) * panel * (2 if narrow else 1)
    offsets = ceil_div(channels * size[0] * size[1], lanes) * lanes * 4
    return threads * (lines + (size[0] - 1) * dilation[0] * line + offsets + sums + PAGE)


def scatter(rows: Dim, count: Dim) -> Dim:
    """Return the bytes for the index of each row's first update, and the updates sorted by row."""
    return (rows + 1 + count) * 8 + PAGE


def attention(lanes: Dim, kv_heads: Dim, width: Dim, itemsize: int) -> Dim:
    """Return the bytes for attention with `lanes` queries per head of k and v, and heads of `width` channels."""
    tile, threads = library.load().tile(itemsize), library.load().threads()
    pieces = 4 * threads + kv_heads                    # heads times the pieces that their keys are cut into
    rows = dim_min(lanes, FEW_LANES)
    few = pieces * rows * (width + 2) * itemsize + PAGE + threads * (rows * width * itemsize + 8 + PAGE)
    keys = 8 * tile.rows
    many = threads * ((2 * width + keys) * tile.lanes * itemsize + PAGE)
    return dim_max(few, _beyond(lanes, FEW_LANES) * many)


def paged_attention(n: Dim, group: Dim, heads: Dim, width: Dim, narrow: bool) -> Dim:
    """Return the bytes for n queries of `heads` heads, `group` of which share a head of keys and values: panels of lanes, bf16
    values in f32, and on each thread also the keys and values of a block."""
    tile, threads = library.load().tile(4), library.load().threads()
    keys = 8 * tile.rows
    own = threads * (((2 * width + keys) * tile.lanes + 2 * keys * width) * 4 + PAGE)
    return own + n * (group // tile.lanes + 1) * 16 + PAGE + (2 * n * heads * width * 4 + PAGE if narrow else 0)
