"""residues: arithmetic on arrays modulo the primes of a chain: powers, inverses, roots, exp2 and its inverse.

A chain is three primes q, p = 2q + 1, r = 2p + 1, each ≡ 7 modulo 8, so that 2 is a square. Modulo p (r), 2 generates the squares,
a group of q (of p) elements. Hence exp2 is a homomorphism from residues modulo q to residues modulo p, and from those modulo p to
those modulo r, and the discrete logarithm is its inverse. All primes are below 2^31, so products fit 64 bits. Arrays are uint64
with values in [0, prime).

Sources: Schwartz 1980 and Zippel 1979 (random points); Shanks 1971 (baby steps, giant steps).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_FIRST = (
    412214879, 412723079, 412935599, 413180039, 413637839, 414889439, 415116239, 415148159, 415416119, 415878119,
    416215799, 416247719, 268555559, 270761399, 274044119, 276587639, 278229839, 280864079, 281048039, 283325279,
    284646599, 291885719, 292482119, 292686239, 296937479, 298617479, 299715359, 300896399, 310718519, 313175519,
    315691319, 316358279, 320488559, 321269759, 321750239, 325091759, 325243799, 325539479, 328916279, 331385039,
    334081439, 334524119, 336850919, 338858519, 338981999, 339134879, 341690159, 342594839, 343773359, 344643599,
    346425239, 347710439, 347803679, 353900399, 354251519, 355346879, 356201159, 358820279, 359944199, 361454519,
    362396159, 365271479, 366335759, 366583559, 368396279, 370815479, 382814039, 389899439, 393734039, 394973879,
    396686639, 397411559, 397962599, 399560279, 402270119, 402625439, 403862759, 407119439, 411920039, 416903759,
    417254039, 420401519, 421039919, 424869479, 425165159, 426321839, 426922439, 430962839, 431382839, 432841919,
    432867959, 434542079, 435288839, 435752519, 436224599, 436485839, 438679919, 443210039, 443380559, 443806439,
    448782599, 450636479, 452863319, 456151919, 458224199, 459108719, 462976919, 463688399, 464448599, 469522199,
    469908599, 473017439, 473680199, 473963279, 473994359, 479301479, 483543479, 485426759, 486695999, 489778799,
    497474039, 498908759, 499070879, 501214559, 506771159, 508593119, 509133239, 509518799, 510892199, 518580719,
    520253999, 524148239, 528372599, 531581399, 532417199, 535071599)
CHAINS: tuple[tuple[int, int, int], ...] = tuple((q, 2 * q + 1, 4 * q + 3) for q in _FIRST)
"""(q, p, r) with q between 2^28 and 2^29; 2, 3, 5 and 7 are squares modulo each prime. A test checks all of these properties."""

WITH_LOGARITHMS = 3
"""Number of chains that are used where logarithms are needed: a table for each prime takes a tenth of a second."""

MAIN = 1
"""The lane (index into a chain) in which values that are known in several lanes are compared and hashed."""

_LOW_BITS = 15
_BABY_BITS = 21                             # a tenth of a second and 32 MB for each prime, and then 200 to 400 steps
_BABY = 1 << _BABY_BITS
_FILTER_BITS = 24
_GRID = 1 << 14                             # elements of one step over few logarithms: a call of numpy takes as long as a thousand


def chain(k: int, logarithms: bool = False) -> tuple[int, int, int]:
    """Return chain number k, counted cyclically. logarithms: only the first WITH_LOGARITHMS chains are used."""
    return CHAINS[k % (WITH_LOGARITHMS if logarithms else len(CHAINS))]


def power(x: Array, exponent: int, m: int) -> Array:
    """Return x^exponent modulo m, by repeated squaring."""
    modulus = np.uint64(m)
    out: Array | None = None
    base = x
    while exponent:
        if exponent & 1:
            out = base if out is None else out * base % modulus
        exponent >>= 1
        if exponent:
            base = base * base % modulus
    return np.ones_like(x) if out is None else out


def inverse(x: Array, m: int) -> Array:
    """Return 1/x modulo m, and 0 for x = 0."""
    return power(x, m - 2, m)


def root(x: Array, m: int) -> tuple[Array, Array]:
    """Return (s, ok). ok: x is a square. s: where ok, the square root of x that is itself a square."""
    s = power(x, (m + 1) // 4, m)
    return s, np.asarray(s * s % np.uint64(m) == x)


def matmul(a: Array, b: Array, m: int) -> Array:
    """Return a[…, i, k] · b[…, k, j] modulo m, computed from 16-bit halves in float64: exact for k ≤ 2^20."""
    (a1, a0), (b1, b0) = (((x >> np.uint64(16)).astype(np.float64), (x & np.uint64(0xFFFF)).astype(np.float64)) for x in (a, b))

    def product(x: Array, y: Array) -> Array:
        return np.asarray(np.matmul(x, y).astype(np.uint64) % np.uint64(m))

    half = np.uint64(1 << 16)
    middle = (product(a1, b0) + product(a0, b1)) % np.uint64(m)
    high = (product(a1, b1) * half + middle) % np.uint64(m)
    return np.asarray((high * half + product(a0, b0)) % np.uint64(m))


def whole(x: Array, m: int) -> Array:
    """Return integers (signed, unsigned, bool) modulo m."""
    if x.dtype == np.uint64:
        return np.asarray(x % np.uint64(m))
    return np.asarray(x.astype(np.int64) % np.int64(m)).astype(np.uint64)


@lru_cache(maxsize=64)
def _powers(start: int, count: int, m: int) -> Array:
    """Return start^0, start^1, … start^(count − 1) modulo m."""
    out = np.ones(count, dtype=np.uint64)
    done = 1
    while done < count:
        step = min(done, count - done)
        out[done:done + step] = out[:step] * np.uint64(pow(start, done, m)) % np.uint64(m)
        done += step
    return out


def exp2(x: Array, m: int) -> Array:
    """Return 2^x modulo m, for x modulo (m − 1)/2."""
    low = _powers(2, 1 << _LOW_BITS, m)
    high = _powers(pow(2, 1 << _LOW_BITS, m), (m >> (_LOW_BITS + 1)) + 1, m)
    return np.asarray(low[x & np.uint64((1 << _LOW_BITS) - 1)] * high[x >> np.uint64(_LOW_BITS)] % np.uint64(m))


@lru_cache(maxsize=6)
def _baby_steps(m: int) -> tuple[Array, Array, Array]:
    """Return (the values 2^i for i < _BABY, sorted; the exponent i of each; a table of the low bits that occur in values)."""
    values = _powers(2, _BABY, m)
    packed = np.sort((values << np.uint64(_BABY_BITS)) | np.arange(_BABY, dtype=np.uint64))
    occurs = np.zeros(1 << _FILTER_BITS, dtype=np.bool_)
    occurs[values & np.uint64((1 << _FILTER_BITS) - 1)] = True
    return (packed >> np.uint64(_BABY_BITS)).astype(np.uint32), (packed & np.uint64(_BABY - 1)).astype(np.uint32), occurs


_known_logarithms: dict[int, dict[int, int]] = {}
_MOST_KNOWN = 1 << 18


def log2(x: Array, m: int) -> tuple[Array, Array]:
    """Return (a, ok). ok: x is a square other than 0. a: where ok, the number modulo (m − 1)/2 with 2^a = x modulo m."""
    values, back = np.unique(x.reshape(-1), return_inverse=True)
    table = _known_logarithms.setdefault(m, {})
    if len(table) > _MOST_KNOWN:
        table.clear()
    ok = (power(values, (m - 1) // 2, m) == 1)
    logarithms = np.zeros(values.shape, dtype=np.uint64)
    todo = [i for i in np.flatnonzero(ok).tolist() if int(values[i]) not in table]
    if todo:
        places = np.asarray(todo)
        for value, logarithm in zip(values[places].tolist(), _giant_steps(values[places], m).tolist(), strict=True):
            table[value] = logarithm
    for i in np.flatnonzero(ok).tolist():
        logarithms[i] = table[int(values[i])]
    return logarithms[back].reshape(x.shape), ok[back].reshape(x.shape)


def _giant_steps(y: Array, m: int) -> Array:
    """Return the logarithms of squares y [count], by steps y · (2^-baby)^j for as many j at a time as fill _GRID elements."""
    order, (values, indices, occurs) = (m - 1) // 2, _baby_steps(m)
    giant = _powers(pow(pow(2, _BABY, m), m - 2, m), order // _BABY + 1, m)
    out = np.zeros(y.shape, dtype=np.uint64)
    left, start = np.arange(y.size), 0
    while start < giant.size:
        steps = giant[start:start + max(1, _GRID // left.size)]
        grid = (y[left, None] * steps % np.uint64(m)).reshape(-1)
        maybe = np.flatnonzero(occurs[grid & np.uint64((1 << _FILTER_BITS) - 1)])
        at = np.minimum(np.searchsorted(values, grid[maybe].astype(np.uint32)), _BABY - 1)
        hit = values[at] == grid[maybe]
        whose, step = np.divmod(maybe[hit], steps.size)
        giants = (step + start).astype(np.uint64)
        out[left[whose]] = (indices[at[hit]].astype(np.uint64) + giants * np.uint64(_BABY)) % np.uint64(order)
        left = np.delete(left, whose)
        if not left.size:
            return out
        start += steps.size
    raise AssertionError(f"{left.size} squares modulo {m} have no logarithm")


# ---- keyed hashes ----------------------------------------------------------------------------------------------------


def mix(x: Array, key: Array) -> Array:
    """Return 64 well-mixed bits of x under a key (uint64, broadcast). Source: the finaliser of splitmix64, Vigna 2015."""
    with np.errstate(over="ignore"):
        z = (x + np.uint64(0x9E3779B97F4A7C15)) ^ key
        for _ in range(2):
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = (z ^ (z >> np.uint64(31))) + key
    return np.asarray(z)


def rank(x: Array, key: Array, m: int) -> Array:
    """Return ranks in a keyed random total order of residues, int64, that negation reverses: rank(−x) = −rank(x), rank(0) = 0."""
    other = np.where(x == 0, x, np.uint64(m) - x)
    h = mix(np.minimum(x, other), key)
    size = (h >> np.uint64(2)).astype(np.int64) + 1
    negative = (h & np.uint64(1)).astype(np.bool_) ^ (x < other)
    return np.where(x == 0, np.int64(0), np.where(negative, -size, size))


def oracle(x: Array, key: Array, m: int, to: int, odd: bool = False) -> Array:
    """Return f(x) modulo `to`, where f is a keyed random function of residues modulo m. odd: f(−x) = −f(x)."""
    if not odd:
        return np.asarray(mix(x, key) % np.uint64(to))
    other = np.where(x == 0, x, np.uint64(m) - x)
    value = mix(np.minimum(x, other), key) % np.uint64(to)
    value = np.where(x > other, (np.uint64(to) - value) % np.uint64(to), value)
    return np.where(x == 0, np.uint64(0), value)
