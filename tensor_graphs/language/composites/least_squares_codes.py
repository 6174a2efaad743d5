"""least_squares_codes: codes of numbers, with scales that are searched for the least squared error: the K formats of blocks of 256,
and, where importance is known, formats of blocks of 32 with one f16 scale (`scaled`, `shifted`).

A block of 256 has parts of 16 or 32 numbers. Each part is approximated by s·q (+ b), with codes q of few bits. The first codes are
those of the best of a few scales, in each of which s and b are the least-squares ones for the codes. Then scales and minima, whole
numbers times one f16 each of the block, and codes are improved in turn, each the best for the others. Numbers may be weighted by
importance: the mean square of what they are multiplied by.

Arrays are f32[numbers of a part, parts]; a block's parts are next to each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROUNDS = 5
"""times that scales and codes are improved in turn"""

STRETCHES = np.linspace(-1.0, 1.0, 9)
"""first scales: those for which the largest number is this much more than the largest code"""

LEAST = np.float32(1e-30)


def symmetric(x: Array, weight: Array | None, low: int, high: int, parts: int) -> tuple[Array, Array, Array]:
    """Return f16[blocks], i8[parts of all blocks] and codes u8[numbers, parts of all blocks] (from 0, for `low`), such that
    scale · i8 · (code + low) is near x. parts: those of a block."""
    scale = _first_scale(x, weight, low, high)
    widest = np.take_along_axis(by_block := scale.reshape(-1, parts), np.abs(by_block).argmax(1, keepdims=True), 1)[:, 0]
    common = _half(widest / np.float32(-128))
    for _ in range(ROUNDS):
        wide = np.repeat(common.astype(np.float32), parts)
        whole = np.rint(scale / _not_zero(wide)).clip(-128, 127).astype(np.float32)
        codes = _rounded(x, 1 / _not_zero(wide * whole), low, high)
        xq, qq = _sum(x * codes, weight), _sum(codes * codes, weight)
        scale = xq / np.maximum(qq, LEAST)
        whole = np.rint(scale / _not_zero(wide)).clip(-128, 127).astype(np.float32)
        over, under = (np.add.reduce(terms.reshape(-1, parts), 1) for terms in (whole * xq, whole * whole * qq))
        common = _half(np.where(under > 0, over / np.maximum(under, LEAST), common))
    wide = np.repeat(common.astype(np.float32), parts)
    return common, whole.astype(np.int8), (_rounded(x, 1 / _not_zero(wide * whole), low, high) - low).astype(np.uint8)


def affine(x: Array, weight: Array | None, most: int, parts: int, levels: int = 63) -> tuple[Array, Array, Array, Array, Array]:
    """Return f16[blocks] of scales and of minima, u8[parts of all blocks] of both (0 to `levels`), and codes (0 to `most`), such
    that scale · u8 · code − minimum · u8 is near x. parts: those of a block."""
    sums = np.float32(len(x)) if weight is None else np.add.reduce(weight, 0)
    sx = _sum(x, weight)
    scale, minimum = _first(x, weight, most, sums, sx)
    commons = [_half(np.abs(v).reshape(-1, parts).max(1) / np.float32(levels)) for v in (scale, minimum)]
    for turn in range(ROUNDS + 1):
        d, m = (np.repeat(c.astype(np.float32), parts) for c in commons)
        ls = np.rint(scale / _not_zero(d)).clip(0, levels)
        lm = np.rint(minimum / _not_zero(m)).clip(0, levels)
        codes = _rounded(x + m * lm, 1 / _not_zero(d * ls), 0, most)
        if turn == ROUNDS:
            break
        sq, sqq, sxq = _sum(codes, weight), _sum(codes * codes, weight), _sum(x * codes, weight)
        ls, lm = _whole(d, m, ls, lm, (sums, sx, sq, sqq, sxq), levels)
        commons = _commons(ls, lm, (sums, sx, sq, sqq, sxq), parts, commons)
        wide = [np.repeat(c.astype(np.float32), parts) for c in commons]
        scale, minimum = ls * wide[0], lm * wide[1]
    return commons[0], commons[1], ls.astype(np.uint8), lm.astype(np.uint8), codes.astype(np.uint8)


def scaled(x: Array, weight: Array, low: int, high: int) -> tuple[Array, Array]:
    """Return f16[blocks] and codes u8[numbers, blocks] (from 0, for `low`), such that f16 · (code + low) is near x."""
    scale = _first_scale(x, weight, low, high)
    for _ in range(ROUNDS):
        codes = _rounded(x, 1 / _not_zero(scale), low, high)
        scale = _sum(x * codes, weight) / np.maximum(_sum(codes * codes, weight), LEAST)
    half = scale.astype(np.float16)
    return half, (_rounded(x, 1 / _not_zero(half.astype(np.float32)), low, high) - low).astype(np.uint8)


def shifted(x: Array, weight: Array, most: int) -> tuple[Array, Array, Array]:
    """Return f16[blocks] of scales and of what is added, and codes (0 to `most`), such that scale · code + f16 is near x."""
    sums, sx = np.add.reduce(weight, 0), _sum(x, weight)
    scale, minimum = (v.astype(np.float16) for v in _first(x, weight, most, sums, sx, any_sign=True))
    for _ in range(ROUNDS):
        codes = _rounded(x + minimum, 1 / _not_zero(scale.astype(np.float32)), 0, most)
        sq, sqq, sxq = _sum(codes, weight), _sum(codes * codes, weight), _sum(x * codes, weight)
        inner = sums * sqq - sq * sq
        scale = np.where(inner > 0, (sums * sxq - sx * sq) / np.maximum(inner, LEAST), scale).astype(np.float16)
        minimum = ((scale * sq - sx) / np.maximum(sums, LEAST)).astype(np.float16)
    codes = _rounded(x + minimum, 1 / _not_zero(scale.astype(np.float32)), 0, most)
    return scale, -minimum, codes.astype(np.uint8)


def _first_scale(x: Array, weight: Array | None, low: int, high: int) -> Array:
    """Return the scale of each part: the best of STRETCHES by least squares."""
    top = np.where(-x.min(0) > x.max(0), x.min(0), x.max(0))
    best = np.full(x.shape[1], -1.0, np.float32)
    scale = np.zeros(x.shape[1], np.float32)
    for stretch in STRETCHES:
        codes = _rounded(x, (low - np.float32(stretch)) / _not_zero(top), low, high)
        xq, qq = _sum(x * codes, weight), _sum(codes * codes, weight)
        gain = xq * xq / np.maximum(qq, LEAST)
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, xq / np.maximum(qq, LEAST), scale)
    return scale


def _first(x: Array, weight: Array | None, most: int, sums: Any, sx: Array, any_sign: bool = False) -> tuple[Array, Array]:
    """Return the scale and the minimum (subtracted; ≥ 0 but for any_sign) of each part: the best of STRETCHES by least squares."""
    low = x.min(0) if any_sign else np.minimum(x.min(0), 0)
    width = x.max(0) - low
    best = np.full(x.shape[1], -np.inf, np.float32)
    scale, minimum = np.zeros_like(best), np.zeros_like(best)
    shifted = x - low
    for stretch in STRETCHES:
        codes = _rounded(shifted, (most + np.float32(stretch)) / _not_zero(width), 0, most)
        sq, sqq, sxq = _sum(codes, weight), _sum(codes * codes, weight), _sum(x * codes, weight)
        inner = sums * sqq - sq * sq
        s = np.where(inner > 0, (sums * sxq - sx * sq) / np.maximum(inner, LEAST), 0)
        b = (sx - s * sq) / np.maximum(sums, LEAST)
        if not any_sign:
            s, b = np.where(b > 0, sxq / np.maximum(sqq, LEAST), s), np.minimum(b, 0)
        gain = 2 * (s * sxq + b * sx) - (s * s * sqq + 2 * s * b * sq + b * b * sums)
        better = gain > best
        best, scale, minimum = np.where(better, gain, best), np.where(better, s, scale), np.where(better, -b, minimum)
    return np.maximum(scale, 0), minimum


Sums = tuple[Any, Array, Array, Array, Array]
"""Weighted sums over each part: of 1, of x, of the codes q, of q², of x·q."""


def _whole(d: Array, m: Array, ls: Array, lm: Array, sums: Sums, levels: int) -> tuple[Array, Array]:
    """Return the whole numbers of scales and minima, one more or less than these, that are best for the codes."""
    one, sx, sq, sqq, sxq = sums
    best = np.full(ls.shape, np.inf, np.float32)
    out = ls, lm
    for more in (0, -1, 1):
        a = (ls + more).clip(0, levels)
        s = d * a
        ideal = np.rint((s * sq - sx) / np.maximum(one, LEAST) / _not_zero(m)).clip(0, levels)
        b = m * ideal
        error = s * s * sqq - 2 * s * sxq + b * b * one + 2 * b * sx - 2 * s * b * sq
        better = error < best
        best = np.where(better, error, best)
        out = np.where(better, a, out[0]), np.where(better, ideal, out[1])
    return out


def _commons(ls: Array, lm: Array, sums: Sums, parts: int, before: list[Array]) -> list[Array]:
    """Return the scale of scales and that of minima of each block that are best for whole numbers and codes."""
    one, sx, sq, sqq, sxq = sums
    of_block = [np.add.reduce(v.reshape(-1, parts), 1) for v in (ls * ls * sqq, ls * lm * sq, lm * lm * one, ls * sxq, lm * sx)]
    dd, dm, mm, xd, xm = of_block
    inner = dd * mm - dm * dm
    is_regular = inner > np.float32(1e-6) * dd * mm
    safe = np.where(is_regular, inner, 1)
    d = np.where(is_regular, (xd * mm - xm * dm) / safe, np.where(dd > 0, xd / np.maximum(dd, LEAST), before[0]))
    m = np.where(is_regular, (xd * dm - xm * dd) / safe, before[1])
    is_usable = (d > 0) & (m >= 0)
    return [_half(np.where(is_usable, new, old)) for new, old in zip((d, m), before, strict=True)]


def _rounded(x: Array, by: Array, low: int, high: int) -> Array:
    codes = x * by
    np.rint(codes, out=codes)
    return np.clip(codes, low, high, out=codes)


def _sum(x: Array, weight: Array | None) -> Array:
    """Return the weighted sum over the numbers of each part."""
    out: Array = np.add.reduce(x if weight is None else x * weight, 0)
    return out


def _half(x: Array) -> Array:
    """Return numbers in f16, rounded away from 0, so that the largest whole number times one reaches what it stands for."""
    near = x.astype(np.float16)
    return np.where(np.abs(near) < np.abs(x), np.nextafter(near, np.copysign(np.float16(np.inf), near)), near)


def _not_zero(x: Array) -> Array:
    return np.where(x == 0, np.float32(np.inf), x)
