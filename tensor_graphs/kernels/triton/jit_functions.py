"""jit_functions: the functions that Triton compiles for a GPU. Only a launch imports this module: importing triton takes long, and
it may be absent.

All functions compute in f32 and round once, at the store. Offsets of rows, batches and heads have 64 bits, as operands may have
more than 2^31 elements. Sizes and positions that vary are marked `do_not_specialize`, so that one compilation serves all values."""
# mypy: disable-error-code="no-untyped-def"
# Triton reads the annotations of parameters, of which it knows constexpr alone.

from __future__ import annotations

import triton
import triton.language as tl

# ---- rows --------------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["count"])
def softmax_rows(y, x, count, n, y_row, x_row, x_each, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the softmax of x[count, n], ROWS rows per program; a row fits into BLOCK numbers. Rows of y are contiguous."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    here = (row < count) & (at < n)
    v = tl.load(x + row * x_row + at.to(tl.int64) * x_each, mask=here, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 1)[:, None])
    tl.store(y + row * y_row + at, (e / tl.sum(e, 1)[:, None]).to(y.dtype.element_ty), mask=here)


@triton.jit
def softmax_long(y, x, n, y_row, x_row, x_each, BLOCK: tl.constexpr):
    """Compute the softmax of one row of any length. The first pass finds maximum and sum, the second writes the results."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + block
        v = tl.load(x + row * x_row + at.to(tl.int64) * x_each, mask=at < n, other=-float("inf")).to(tl.float32)
        above = tl.maximum(top, v)
        shift = tl.where(above == -float("inf"), 0.0, above)        # −∞ − −∞ would be NaN in a row that has other numbers
        total = total * tl.exp(top - shift) + tl.exp(v - shift)
        top = above
    highest = tl.max(top, 0)
    shift = tl.where(highest == -float("inf"), 0.0, highest)
    whole = tl.sum(total * tl.exp(top - shift), 0)                  # 0 of a row of −∞, which 0/0 makes NaN
    for start in range(0, n, BLOCK):
        at = start + block
        v = tl.load(x + row * x_row + at.to(tl.int64) * x_each, mask=at < n, other=0.0).to(tl.float32)
        tl.store(y + row * y_row + at, (tl.exp(v - shift) / whole).to(y.dtype.element_ty), mask=at < n)


@triton.jit
def softmax_columns(y, x, n, inner, x_outer, x_each, x_inner, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Compute the softmax over the middle axis of x[outer, n, inner]. A program takes adjacent columns of one outer index."""
    tiles = tl.cdiv(inner, COLUMNS)
    outer = (tl.program_id(0) // tiles).to(tl.int64)
    column = (tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    step = tl.arange(0, ROWS)[:, None]
    base = x + outer * x_outer + column.to(tl.int64) * x_inner
    top = tl.full((1, COLUMNS), -float("inf"), tl.float32)
    total = tl.zeros((1, COLUMNS), tl.float32)
    for start in range(0, n, ROWS):
        at = start + step
        v = tl.load(base + at.to(tl.int64) * x_each, mask=(at < n) & (column < inner), other=-float("inf")).to(tl.float32)
        above = tl.maximum(top, tl.max(v, 0, keep_dims=True))
        shift = tl.where(above == -float("inf"), 0.0, above)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(v - shift), 0, keep_dims=True)
        top = above
    shift = tl.where(top == -float("inf"), 0.0, top)
    for start in range(0, n, ROWS):
        at = start + step
        here = (at < n) & (column < inner)
        v = tl.load(base + at.to(tl.int64) * x_each, mask=here, other=0.0).to(tl.float32)
        to = y + (outer * n + at) * inner + column
        tl.store(to, (tl.exp(v - shift) / total).to(y.dtype.element_ty), mask=here)


@triton.jit
def _scaled(unit, weight, bias, at, here, offset, WEIGHT: tl.constexpr, BIAS: tl.constexpr):
    """Return unit · (offset + weight) + bias; WEIGHT and BIAS tell which of the two vectors exist."""
    if WEIGHT:
        unit = unit * (tl.load(weight + at, mask=here, other=0.0).to(tl.float32) + offset)
    if BIAS:
        unit = unit + tl.load(bias + at, mask=here, other=0.0).to(tl.float32)
    return unit


@triton.jit(do_not_specialize=["count", "eps", "offset"])
def norm_rows(y, x, weight, bias, count, n, y_row, x_row, x_each, eps, offset, CENTRED: tl.constexpr, WEIGHT: tl.constexpr,
              BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Divide rows by their root mean square (after subtracting their mean if CENTRED), then apply weight and bias."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    here = (row < count) & (at < n)
    v = tl.load(x + row * x_row + at.to(tl.int64) * x_each, mask=here, other=0.0).to(tl.float32)
    if CENTRED:
        v = tl.where(here, v - (tl.sum(v, 1) / n)[:, None], 0.0)
    root = tl.sqrt_rn(tl.sum(v * v, 1) / n + eps)
    unit = _scaled(v * (1.0 / root)[:, None], weight, bias, at, at < n, offset, WEIGHT, BIAS)
    tl.store(y + row * y_row + at, unit.to(y.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["eps", "offset"])
def norm_long(y, x, weight, bias, n, y_row, x_row, x_each, eps, offset, CENTRED: tl.constexpr, WEIGHT: tl.constexpr,
              BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the same as `norm_rows`, for one row of any length."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCK)
    mean = 0.0
    if CENTRED:
        sums = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n, BLOCK):
            at = start + block
            sums += tl.load(x + row * x_row + at.to(tl.int64) * x_each, mask=at < n, other=0.0).to(tl.float32)
        mean = tl.sum(sums, 0) / n
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + block
        v = tl.load(x + row * x_row + at.to(tl.int64) * x_each, mask=at < n, other=0.0).to(tl.float32)
        v = tl.where(at < n, v - mean, 0.0)
        squares += v * v
    inverse = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / n + eps)
    for start in range(0, n, BLOCK):
        at = start + block
        v = tl.load(x + row * x_row + at.to(tl.int64) * x_each, mask=at < n, other=0.0).to(tl.float32)
        unit = _scaled((v - mean) * inverse, weight, bias, at, at < n, offset, WEIGHT, BIAS)
        tl.store(y + row * y_row + at, unit.to(y.dtype.element_ty), mask=at < n)


# ---- products ----------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["rows", "batches"])
def product(y, x, w, bias, rows, columns, k, batches, length, x_batch, x_row, x_k, w_batch, w_column, w_k, bias_each,
            TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, GROUP: tl.constexpr, WHOLE: tl.constexpr,
            BIAS: tl.constexpr):
    """Compute a tile of y[part, batch, rows, columns] (contiguous): products over `length` of the k for each part (program axis 1).

    A tile has TALL × WIDE results and takes steps of DEEP along k. Tiles are ordered in groups of GROUP rows of tiles, column by
    column within a group, so that simultaneous tiles read the same operands from the cache. WHOLE: k is a multiple of DEEP.
    """
    down, across = tl.cdiv(rows, TALL), tl.cdiv(columns, WIDE)
    batch = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    part = tl.program_id(1)
    top = tile // (GROUP * across) * GROUP
    height = min(down - top, GROUP)
    row = (top + tile % (GROUP * across) % height) * TALL + tl.arange(0, TALL)
    column = tile % (GROUP * across) // height * WIDE + tl.arange(0, WIDE)
    step = tl.arange(0, DEEP)
    first = part * length
    # rows beyond the last wrap around and are not stored, so that the loop needs no mask for rows
    here, there = (row % rows).to(tl.int64)[:, None], (column % columns).to(tl.int64)[None, :]
    x += batch * x_batch + here * x_row + (first + step).to(tl.int64)[None, :] * x_k
    w += batch * w_batch + there * w_column + (first + step).to(tl.int64)[:, None] * w_k
    total = tl.zeros((TALL, WIDE), tl.float32)
    for at in range(first, min(first + length, k), DEEP):
        if WHOLE:
            left, right = tl.load(x), tl.load(w)
        else:
            left = tl.load(x, mask=at + step[None, :] < k, other=0.0)
            right = tl.load(w, mask=at + step[:, None] < k, other=0.0)
        total = tl.dot(left, right, total)
        x += DEEP * x_k
        w += DEEP * w_k
    if BIAS:
        total += tl.load(bias + column * bias_each, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    to = y + (((part.to(tl.int64) * batches + batch) * rows + row[:, None]) * columns + column[None, :])
    tl.store(to, total.to(y.dtype.element_ty), mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit(do_not_specialize=["count", "parts"])
def added_parts(y, x, bias, count, columns, parts, bias_each, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """Write to y[count] the sums over the parts of x[parts, count], plus bias[columns] if BIAS."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(parts):
        total += tl.load(x + at, mask=at < count, other=0.0)
        x += count
    if BIAS:
        total += tl.load(bias + at % columns * bias_each, mask=at < count, other=0.0).to(tl.float32)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=at < count)


# ---- attention ---------------------------------------------------------------------------------------------------------


@triton.jit
def _over_keys(total, weights, top, q, k, v, first, last, position, keys, k_row, k_each, v_row, v_each, factor, cap, window,
               LENGTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr, KEYS: tl.constexpr,
               PACK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, NEAR: tl.constexpr,
               MASKED: tl.constexpr):
    """Return the state of a tile of queries after the keys from `first` to `last`: sum of weighted values, sum of weights, maximum
    of scores. NEAR: the rounding errors of weights are multiplied with values too. MASKED: some queries of the tile do not see some
    of these keys."""
    along, across, step = tl.arange(0, PADDED), tl.arange(0, PADDED_VALUES), tl.arange(0, KEYS)
    for start in range(first, last, KEYS):
        key = start + step
        k_at = k + key.to(tl.int64)[None, :] * k_row * PACK + along[:, None] * k_each
        v_at = v + key.to(tl.int64)[:, None] * v_row * PACK + across[None, :] * v_each
        if MASKED or LENGTH != PADDED:
            tile = tl.load(k_at, mask=(along < LENGTH)[:, None] & (key < keys)[None, :], other=0.0)
        else:
            tile = tl.load(k_at)
        scores = tl.dot(q, tile) * factor
        if CAPPED:
            scores = (1.0 - 2.0 / (tl.exp2(scores) + 1.0)) * cap    # tanh; factor is that of 2·x·log2(e)
        if MASKED:
            seen = (key < keys)[None, :]
            if CAUSAL:
                seen = seen & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (position[:, None] - key[None, :] < window)
            scores = tl.where(seen, scores, -float("inf"))
        above = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(above == -float("inf"), 0.0, above)
        weight = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(top - shift)
        if MASKED or VALUES != PADDED_VALUES:
            values = tl.load(v_at, mask=(key < keys)[:, None] & (across < VALUES)[None, :], other=0.0)
        else:
            values = tl.load(v_at)
        weights = weights * fade + tl.sum(weight, 1)
        rounded = weight.to(values.dtype)
        total = tl.dot(rounded, values, total * fade[:, None])
        if NEAR:                                                    # non-finite values were added before; 0 times them must be 0
            finite = tl.where(tl.abs(values.to(tl.float32)) < float("inf"), values, 0.0).to(values.dtype)
            lost = (weight - rounded.to(tl.float32)) * 16777216.0   # f16 has no number below 2^-24, which may multiply 65504
            total += tl.dot(lost.to(values.dtype), finite) * (1.0 / 16777216.0)
        top = above
    return total, weights, top


@triton.jit(do_not_specialize=["queries", "keys", "start", "factor", "cap", "window"])
def attention(y, q, k, v, queries, keys, start, factor, cap, window, heads, group, y_row, y_head, q_row, q_head, q_each, k_row,
              k_head, k_each, v_row, v_head, v_each, LENGTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr,
              PADDED_VALUES: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PACK: tl.constexpr, CAUSAL: tl.constexpr,
              WINDOW: tl.constexpr, CAPPED: tl.constexpr, NEAR: tl.constexpr):
    """Compute a tile of y[queries, heads, values]: attention over the visible keys with a running maximum (Dao 2023).

    Scores are scaled for exp2. Strides of rows and heads of operands are in units of PACK elements: the compiler only detects
    strides that are multiples of 16, but multiples of 8 suffice for loads of 16 bytes. Tiles of late queries come first, as these
    see the most keys in causal attention.
    """
    tile = tl.cdiv(queries, QUERIES) - 1 - tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    row = tile * QUERIES + tl.arange(0, QUERIES)
    along, across = tl.arange(0, PADDED), tl.arange(0, PADDED_VALUES)
    position = start + row
    q_at = q + row.to(tl.int64)[:, None] * q_row * PACK + head.to(tl.int64) * q_head * PACK + along[None, :] * q_each
    loaded = tl.load(q_at, mask=(row < queries)[:, None] & (along < LENGTH)[None, :], other=0.0)
    k += (head // group).to(tl.int64) * k_head * PACK
    v += (head // group).to(tl.int64) * v_head * PACK
    nearest, farthest = start + tile * QUERIES, start + min(tile * QUERIES + QUERIES, queries) - 1
    # some query of the tile sees a key from `first` to `last`; all of them see every key from `opened` to `closed`
    first, last = 0, keys
    if WINDOW:
        first = max(0, nearest - window + 1) // KEYS * KEYS
    if CAUSAL:
        last = min(keys, max(0, farthest + 1))
    opened, closed = first, keys // KEYS * KEYS
    if WINDOW:
        opened = max(first, (max(0, farthest - window + 1) + KEYS - 1) // KEYS * KEYS)
    if CAUSAL:
        closed = min(closed, max(0, nearest + 1) // KEYS * KEYS)
    opened = min(opened, tl.cdiv(last, KEYS) * KEYS)
    closed = max(opened, closed)
    total = tl.zeros((QUERIES, PADDED_VALUES), tl.float32)
    weights = tl.zeros((QUERIES,), tl.float32)
    top = tl.full((QUERIES,), -float("inf"), tl.float32)
    if WINDOW:
        total, weights, top = _over_keys(
            total, weights, top, loaded, k, v, first, opened, position, keys, k_row, k_each, v_row, v_each, factor, cap, window,
            LENGTH, PADDED, VALUES, PADDED_VALUES, KEYS, PACK, CAUSAL, WINDOW, CAPPED, NEAR, MASKED=True)
    total, weights, top = _over_keys(
        total, weights, top, loaded, k, v, opened, closed, position, keys, k_row, k_each, v_row, v_each, factor, cap, window,
        LENGTH, PADDED, VALUES, PADDED_VALUES, KEYS, PACK, CAUSAL, WINDOW, CAPPED, NEAR, MASKED=False)
    total, weights, top = _over_keys(
        total, weights, top, loaded, k, v, closed, last, position, keys, k_row, k_each, v_row, v_each, factor, cap, window,
        LENGTH, PADDED, VALUES, PADDED_VALUES, KEYS, PACK, CAUSAL, WINDOW, CAPPED, NEAR, MASKED=True)
    # a query that sees no key gives zero; one that sees keys of no weight alone has no softmax: 0/0
    from_key = tl.zeros((QUERIES,), tl.int32)
    to_key = from_key + keys
    if WINDOW:
        from_key = tl.maximum(0, position - window + 1)
    if CAUSAL:
        to_key = tl.minimum(keys, position + 1)
    result = tl.where((from_key < to_key)[:, None], total / weights[:, None], 0.0)
    to = y + row.to(tl.int64)[:, None] * y_row + head.to(tl.int64) * y_head + across[None, :]
    tl.store(to, result.to(y.dtype.element_ty), mask=(row < queries)[:, None] & (across < VALUES)[None, :])
