"""exact_literals: the real number that a float constant of a program denotes in exact arithmetic.

0.1 denotes 1/10, 0.3333333333333333 denotes 1/3, 0.6931471805599453 ln 2, and 0.3535533905932738 1/√8: the number that a person
wrote, or computed, before it was rounded to 53 bits. A float denotes such a number only if it is that number correctly rounded, so
no two floats denote the same number. Any other float denotes its exact value, also one that was rounded twice and differs (1/√2 as
1.0 / 1.4142135623730951).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from tensor_graphs.proof.errors import OutsideFragmentError

_SHORT_BITS = 24
_WRITTEN_DIGITS = 12                                     # a person writes no more by hand
_SHORT_DIGITS = 15
_ULPS = 3.0 * 2.0**-53
_LARGEST_DENOMINATOR = 4096
_LARGEST_ROOT = 1 << 20
_DIGITS = 200                                            # bits of the fractions that floats are compared with
_LN2 = Fraction("0.693147180559945309417232121458176568075500134360255254120680009")
_PI = Fraction("3.141592653589793238462643383279502884197169399375105820974944592")


@dataclass(frozen=True)
class ClosedForm:
    """The number factor · (ln 2)^ln2 · (√π)^root_pi · √root, where factor and root are rational and root > 0."""

    factor: Fraction
    ln2: int = 0
    root_pi: int = 0
    root: Fraction = Fraction(1)

    def rounded(self) -> float:
        """Return the nearest float."""
        return float(self.factor * _LN2**self.ln2 * _square_root(_PI) ** self.root_pi * _square_root(self.root))


def _square_root(x: Fraction) -> Fraction:
    if x == 1:
        return x
    return Fraction(math.isqrt((x.numerator * x.denominator) << (2 * _DIGITS)), x.denominator << _DIGITS)


_NAMED: tuple[tuple[float, int, int, Fraction], ...] = (
    (math.log(2.0), 1, 0, Fraction(1)), (1.0 / math.log(2.0), -1, 0, Fraction(1)),
    (math.pi, 0, 2, Fraction(1)), (1.0 / math.pi, 0, -2, Fraction(1)),
    (math.sqrt(math.pi), 0, 1, Fraction(1)), (1.0 / math.sqrt(math.pi), 0, -1, Fraction(1)),
    (math.sqrt(2.0), 0, 0, Fraction(2)), (math.sqrt(2.0 * math.pi), 0, 1, Fraction(2)),
    (math.sqrt(2.0 / math.pi), 0, -1, Fraction(2)))


def _short(x: float, bits: int) -> Fraction | None:
    """Return the number of at most `bits` bits nearest to x, if it is within a few units in the last place of x; else None."""
    mantissa, exponent = math.frexp(x)
    near = round(math.ldexp(mantissa, bits))
    if abs(math.ldexp(near, -bits) - mantissa) > _ULPS * abs(mantissa):
        return None
    return Fraction(near) * (Fraction(2) ** (exponent - bits))


def _root(x: float) -> ClosedForm | None:
    """Return √d or 1/√d, for an integer d that is no square, within a few units in the last place of x; None if there is none."""
    if not 1e-6 < x < 1e6:
        return None
    for square, upside_down in ((x * x, False), (1.0 / (x * x), True)):
        d = round(square)
        if 2 <= d <= _LARGEST_ROOT and abs(square - d) <= 4 * _ULPS * square and math.isqrt(d) ** 2 != d:
            return ClosedForm(Fraction(1), root=Fraction(1, d) if upside_down else Fraction(d))
    return None


@lru_cache(maxsize=4096)
def read(value: float) -> ClosedForm:
    """Return the real number that a finite float denotes, as the module docstring defines it."""
    form = near(value)
    return form if form.rounded() == value else ClosedForm(Fraction(value))


@lru_cache(maxsize=4096)
def near(value: float) -> ClosedForm:
    """Return the closed form within a few units in the last place of a finite float, else the float's exact value. It is a guess at
    a sum of known numbers that was rounded; callers verify it by other means."""
    exact = Fraction(value)
    if value == 0 or _bits(exact) <= _SHORT_BITS:
        return ClosedForm(exact)
    digits = repr(abs(value)).split("e")[0].replace(".", "").strip("0")
    if len(digits) <= _WRITTEN_DIGITS:
        return ClosedForm(Fraction(repr(value)))
    sign, x = (-1, -value) if value < 0 else (1, value)
    for number, ln2, root_pi, root in _NAMED:
        ratio = _short(x / number, 12)
        if ratio is not None:
            return ClosedForm(sign * ratio, ln2, root_pi, root)
    for number, ln2 in ((1.0, 0), (math.log(2.0), 1), (1.0 / math.log(2.0), -1)):
        form = _root(x / number)
        if form is not None:
            return ClosedForm(sign * form.factor, ln2, 0, form.root)
    if len(digits) <= _SHORT_DIGITS:
        return ClosedForm(Fraction(repr(value)))
    small = Fraction(x).limit_denominator(_LARGEST_DENOMINATOR)
    if small and small.numerator <= _LARGEST_DENOMINATOR and abs(float(small) - x) <= _ULPS * x:
        return ClosedForm(sign * small)
    return ClosedForm(exact)


def _bits(exact: Fraction) -> int:
    numerator = abs(exact.numerator)
    return (numerator // (numerator & -numerator)).bit_length() if numerator else 0


# ---- roots -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def primes(n: int) -> tuple[int, ...]:
    """Return the distinct prime factors of an integer > 0. Raises OutsideFragmentError where finding them would take long."""
    return tuple(dict.fromkeys(_factors(n)))


def _factors(n: int) -> list[int]:
    factors, p = [], 2
    while p * p <= n:
        if p > _LARGEST_ROOT:
            raise OutsideFragmentError(f"the root of {n}, whose factors are large")
        if n % p:
            p += 1 if p == 2 else 2
        else:
            factors.append(p)
            n //= p
    return factors + [n] * (n > 1)


@lru_cache(maxsize=4096)
def root_of(x: ClosedForm) -> ClosedForm:
    """Return √x ≥ 0 with square factors in front of the root. Raises OutsideFragmentError for a number without such a form."""
    if x.root != 1 or x.ln2 % 2 or x.root_pi % 2:
        raise OutsideFragmentError("the root of a known number that is no fraction")
    if x.factor == 0:
        return x
    outside, inside = Fraction(1), Fraction(1)
    for n, power in ((x.factor.numerator, 1), (x.factor.denominator, -1)):
        left = _factors(n)
        for p in dict.fromkeys(left):
            outside *= Fraction(p) ** (power * (left.count(p) // 2))
            inside *= Fraction(p) ** (power * (left.count(p) % 2))
    return ClosedForm(outside, x.ln2 // 2, x.root_pi // 2, inside)
