"""dim_proofs: questions on dims that the normal form does not decide: does a relation hold at every size in range, or at none?

They are decided by bounds, then by sample sizes (which can only refute), and last by dim_enumeration.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tensor_graphs.language.dims import Dim, Expr, _divide, _make, _need, _value, bounds


def _samples(x: Expr) -> Iterable[dict[str, int]]:
    """Yield a few sizes: the ends of the ranges, sizes near the ends, and scattered ones. They are the same in every run."""
    for shift in range(12):
        point = {}
        for i, s in enumerate(x.symbols[name] for name in sorted(x.symbols)):
            span = s.hi - s.lo
            near = (0, span, span // 2, min(1, span), max(span - 1, 0), min(2, span))
            at = (near[(shift + (i if shift >= 3 else 0)) % 6] if shift < 6
                  else 7919 * (shift + 3) * (i + 2) + 104729 * shift)
            point[s.name] = s.lo + at % (span + 1)
        yield point


def proved_equal(a: Dim, b: Dim) -> bool:
    """Return True if a and b are proved equal at every size in range; False means refuted or not proved."""
    gap = _need(a) - _need(b)
    return gap == 0 if isinstance(gap, int) else _vanishes(gap)


@lru_cache(maxsize=4096)
def _vanishes(gap: Expr) -> bool:
    low, high = gap.bounds()
    if low > 0 or high < 0:
        return False
    if any(_value(gap, point) for point in _samples(gap)):
        return False
    from tensor_graphs.language.dim_enumeration import vanishes  # a door: bounds and samples answer nearly all

    return vanishes(gap)


def dim_ge(a: Dim, b: Dim) -> bool | None:
    """Return True if a ≥ b at every size in range, False if a < b at every size, None if it depends or is not proved."""
    gap = _need(a) - _need(b)
    return gap >= 0 if isinstance(gap, int) else _never_negative(gap)


@lru_cache(maxsize=4096)
def _never_negative(gap: Expr) -> bool | None:
    low, high = gap.bounds()
    if low >= 0:
        return True
    if high < 0:
        return False
    signs = {_value(gap, point) >= 0 for point in _samples(gap)}
    if len(signs) > 1:
        return None
    from tensor_graphs.language.dim_enumeration import everywhere  # the same door

    values = everywhere(gap)
    if values is None:
        return None
    sign = signs.pop()
    return sign if all((value >= 0) == sign for value in values) else None


def exact_div(a: Dim, b: Dim) -> Dim | None:
    """Return q with a = b·q at every size in range, or None when there is none or none could be proved. b = 0 gives None.

    Polynomials are divided as polynomials (n² − 1 by n − 1 is n + 1), so b may be 0 in range; other cases rely on `proved_equal`.
    """
    a, b = _need(a), _need(b)
    if isinstance(b, int):
        if b == 0:
            return None
        if isinstance(a, int):
            return a // b if a % b == 0 else None
        if all(k % b == 0 for _, k in a.terms):
            return _make({m: k // b for m, k in a.terms})
    else:
        quotient, rest = _divide(a, b)
        if rest == 0:
            return quotient
    low, high = bounds(b)
    if low <= 0 <= high:
        return None
    floor = a // b
    return floor if proved_equal(floor * b, a) else None
