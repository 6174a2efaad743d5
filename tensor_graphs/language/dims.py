"""dims: sizes of axes, either plain numbers or expressions over bounded symbols. A `Dim` is an int, or an `Expr` over symbols.

An Expr is kept in a normal form: a polynomial with integer coefficients over atoms, where an atom is a symbol or a call of `//`,
`min` or `max`. Equal forms mean equal values at every size in range; results without a symbol are plain ints.

    n = dim("n", 1, 4096)
    (n + 1) * (n - 1) == n * n - 1        True: both sides expand to the same polynomial
    9 * n // 8 == n + n // 8              True: multiples of the divisor are moved out of the floor
    n % 8                                 n - 8*(n // 8): mod is not an atom, so n // 8 * 8 + n % 8 is n
    dim_min(n, 5000)                      n: bounds decide

Questions that the normal form cannot answer (`proved_equal`, `dim_ge`) are in dim_proofs.py. Division is Python's: it floors, also
for negative numbers; a divisor that may be 0 in range raises an error where it is written. `parse_dim` is in dim_reader.py,
functions of sizes are in dim_functions.py.
"""

from __future__ import annotations

import itertools
import keyword
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

import numpy as np

from tensor_graphs.errors import close_to
from tensor_graphs.language.errors import LanguageError


class DimError(LanguageError):
    """An invalid dim: bounds in the wrong order, a value out of range, a divisor that may be 0, …"""


class NotWholeError(DimError, TypeError):
    """An operator between a dim and a number that is not whole."""


# ---- the normal form -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named size between lo and hi, both included."""

    name: str
    lo: int
    hi: int

    @property
    def key(self) -> tuple[int, str]:
        return (0, self.name)

    def __str__(self) -> str:
        return self.name


class Call:
    """`floordiv(a, b)` with b > 0, or `min` / `max` of two or more arguments, at least one of which has a symbol."""

    __slots__ = ("_hash", "args", "fn", "key")

    def __init__(self, fn: str, args: tuple[Dim, ...]) -> None:
        self.fn, self.args = fn, args
        text = f"({args[0]}) // ({args[1]})" if fn == "floordiv" else f"{fn}({', '.join(map(str, args))})"
        self.key = (1, text)
        self._hash = hash((fn, args))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Call) and self._hash == other._hash and self.fn == other.fn
                                 and self.args == other.args)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (Call, (self.fn, self.args))     # hashes of text differ from process to process, so they are not pickled


Atom: TypeAlias = Symbol | Call
Monomial: TypeAlias = tuple[Atom, ...]
"""Atoms sorted by their keys; a power is written as repetition: n²·m is (m, n, n)."""


def _order(monomial: Monomial) -> tuple[int, tuple[tuple[int, str], ...]]:
    """Return a sort key: highest degree first, then the atoms' names. The order is admissible, as polynomial division requires."""
    return (-len(monomial), tuple(a.key for a in monomial))


class Expr:
    """A polynomial over atoms, immutable, compared by value. It is built by `dim` and operators, not by its constructor.

    terms: (monomial, coefficient ≠ 0) in a fixed order. symbols: name -> symbol, including symbols inside of calls.
    """

    __slots__ = ("_bounds", "_hash", "symbols", "terms")
    __array_ufunc__ = None                      # numpy integers on the left then defer to our reflected operators

    terms: tuple[tuple[Monomial, int], ...]
    symbols: Mapping[str, Symbol]
    _bounds: tuple[int, int] | None
    _hash: int

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (self.terms,))

    def __str__(self) -> str:
        return format_dim(self)

    def __repr__(self) -> str:
        return format_dim(self)

    def bounds(self) -> tuple[int, int]:
        """Return (lo, hi) with lo ≤ value ≤ hi at every size in range; see the function `bounds`."""
        if self._bounds is None:
            self._bounds = _find_bounds(self)
        return self._bounds

    def __add__(self, other: Any) -> Dim:
        b = _beside(self, other)
        return NotImplemented if b is None else _sum((self, 1), (b, 1))

    def __sub__(self, other: Any) -> Dim:
        b = _beside(self, other)
        return NotImplemented if b is None else _sum((self, 1), (b, -1))

    def __rsub__(self, other: Any) -> Dim:
        b = _beside(self, other)
        return NotImplemented if b is None else _sum((b, 1), (self, -1))

    def __mul__(self, other: Any) -> Dim:
        b = _beside(self, other)
        return NotImplemented if b is None else _product(self, b)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dim:
        return _sum((self, -1))

    def __pos__(self) -> Dim:
        return self

    def __pow__(self, power: Any) -> Dim:
        n = _operand(power)
        if not isinstance(n, int) or n < 0:
            raise DimError(f"({self}) ** {power!r}", fix="the exponent of a dim is an int ≥ 0")
        out: Dim = 1
        for _ in range(n):
            out = out * self
        return out

    def __floordiv__(self, other: Any) -> Dim:
        b = _beside(self, other)
        return NotImplemented if b is None else _floordiv(self, b)

    def __rfloordiv__(self, other: Any) -> Dim:
        a = _beside(self, other)
        return NotImplemented if a is None else _floordiv(a, self)

    def __mod__(self, other: Any) -> Dim:
        b = _beside(self, other)
        return NotImplemented if b is None else _mod(self, b)

    def __rmod__(self, other: Any) -> Dim:
        a = _beside(self, other)
        return NotImplemented if a is None else _mod(a, self)

    def __truediv__(self, other: Any) -> Dim:
        raise DimError(f"({self}) / {other}",
                       fix="dims are whole numbers: a // b floors, exact_div(a, b) proves that it is exact")

    __rtruediv__ = __truediv__

    def _no_value(self, *_: Any) -> NoReturn:
        raise DimError(f"the dim {self} has no value while the graph is being written",
                       fix="dim_ge(a, b) says True, False or None (it depends); dim_min and dim_max work on dims")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __index__ = __float__ = _no_value


Dim: TypeAlias = int | Expr


def _operand(x: Any) -> Dim | None:
    """Return x as a Dim; None if x is something else, so that its type's reflected operator is tried."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        return int(x)
    return None


def _beside(a: Expr, x: Any) -> Dim | None:
    """Return `_operand` of x, the other operand of an operator on the dim a. Raises NotWholeError for a float."""
    if isinstance(x, (float, np.floating)):
        raise NotWholeError(f"an operator between the dim {a} and {x!r}",
                            fix="dims are whole numbers: n // 2 floors, exact_div(n, 2) proves that it is exact")
    return _operand(x)


MAX_SIZE = (1 << 63) - 1
"""the largest size, and the largest coefficient of a symbol: memory addresses have 64 bits"""

MAX_TERMS = 256
"""the largest number of terms of a polynomial: (a + 1)·(b + 1)·… doubles them with each factor"""


def shown_int(x: int) -> str:
    """Return a number as text for a message; beyond 40 digits, the number of digits."""
    return str(x) if abs(x) < 10 ** 40 else f"a number of about {int(x.bit_length() * math.log10(2))} digits"


def _need(x: Any) -> Dim:
    operand = _operand(x)
    if operand is None:
        raise DimError(f"{x!r} ({type(x).__name__}) is no dim", fix="an int, or an expression of tg.dim symbols")
    if isinstance(operand, int) and abs(operand) > MAX_SIZE:
        raise DimError(f"the size {shown_int(operand)} is beyond 64 bits", fix=f"at most {MAX_SIZE}")
    return operand


_ONE: Monomial = ()


def _make(terms: Mapping[Monomial, int]) -> Dim:
    """Return the Dim with these terms; terms with coefficient 0 are dropped, and a result without symbols is an int."""
    nonzero = {m: k for m, k in terms.items() if k}
    if len(nonzero) > MAX_TERMS:
        raise DimError(f"an expression of dims has {len(nonzero)} terms when its products are multiplied out",
                       fix=f"at most {MAX_TERMS}")
    if not nonzero:
        return 0
    if len(nonzero) == 1 and _ONE in nonzero:
        return nonzero[_ONE]
    return _restore(tuple(sorted(nonzero.items(), key=lambda t: _order(t[0]))) if len(nonzero) > 1 else tuple(nonzero.items()))


def _restore(terms: tuple[tuple[Monomial, int], ...]) -> Expr:
    expr = object.__new__(Expr)
    expr.terms, expr._bounds, expr._hash = terms, None, hash(terms)
    symbols: dict[str, Symbol] = {}
    for monomial, _ in terms:
        for atom in monomial:
            _collect(atom, symbols)
    expr.symbols = symbols
    return expr


def _collect(atom: Atom, into: dict[str, Symbol]) -> None:
    if isinstance(atom, Symbol):
        first = into.setdefault(atom.name, atom)
        if first is not atom and first != atom:
            raise DimError(f"two dims named {atom.name!r} meet, one from {first.lo} to {first.hi}, "
                           f"one from {atom.lo} to {atom.hi}",
                           fix="make the dim once and use it everywhere, or give the second one its own name")
        return
    for arg in atom.args:
        if isinstance(arg, Expr):
            for symbol in arg.symbols.values():
                _collect(symbol, into)


def _terms(x: Dim) -> tuple[tuple[Monomial, int], ...]:
    return x.terms if isinstance(x, Expr) else ((_ONE, x),)


def _atom(atom: Atom) -> Expr:
    return _restore((((atom,), 1),))


def _sum(*parts: tuple[Dim, int]) -> Dim:
    """Return Σ x·k over pairs (x, k)."""
    out: dict[Monomial, int] = {}
    for x, k in parts:
        for monomial, coefficient in _terms(x):
            out[monomial] = out.get(monomial, 0) + k * coefficient
    return _make(out)


def _join(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted(a + b, key=lambda x: x.key)) if a and b else a or b


def _product(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(b, int):
        return a if b == 1 else _sum((a, b))
    if isinstance(a, int):
        return b if a == 1 else _sum((b, a))
    out: dict[Monomial, int] = {}
    for m, k in a.terms:
        for other, c in b.terms:
            joined = _join(m, other)
            out[joined] = out.get(joined, 0) + k * c
    return _make(out)


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """Return monomial / part, or None when part does not divide it."""
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _divide(a: Dim, b: Expr) -> tuple[Dim, Dim]:
    """Return (q, r) with a = b·q + r as polynomials; r is 0 exactly when b divides a over the integers."""
    lead, lead_coefficient = b.terms[0]
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    work = dict(_terms(a))
    while work:
        monomial = min(work, key=_order)
        coefficient = work.pop(monomial)
        part = _without(monomial, lead)
        k = 0 if part is None else coefficient // lead_coefficient
        if part is None or k == 0:
            rest[monomial] = coefficient
            continue
        quotient[part] = quotient.get(part, 0) + k
        if coefficient != k * lead_coefficient:
            rest[monomial] = coefficient - k * lead_coefficient
        for m, c in b.terms[1:]:
            joined = _join(part, m)
            left = work.get(joined, 0) - k * c
            if left:
                work[joined] = left
            else:
                work.pop(joined, None)
    return _make(quotient), _make(rest)


def _floordiv(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int) and b:
        return a // b
    low, high = bounds(b)
    if low <= 0 <= high:
        between = f", it lies between {low} and {high}" if low != high else ""
        raise DimError(f"({a}) // ({b}): the divisor may be 0{between}",
                       fix="give the dim a lower bound of 1: tg.dim(name, 1, hi)")
    if high < 0:
        a, b = _sum((a, -1)), _sum((b, -1))
    if isinstance(b, int):
        return _floordiv_by(a, b)
    quotient, rest = _divide(a, b)
    coarse = _coarser(rest, b)
    return _sum((quotient, 1), (_floordiv_atom(rest, b) if coarse is None else _floordiv(*coarse), 1))


def _floordiv_by(a: Dim, c: int) -> Dim:
    """Return a // c, int c > 0: multiples of c leave the floor; coefficients inside come nearest to 0, the leading one > 0.

    A coefficient of exactly c/2 keeps its sign: c/2 ≡ −c/2, and if one sign were always chosen, some equal expressions that now
    have the same form would have different ones.
    """
    whole, rest = _nearest(a, c)
    sign = 1
    if isinstance(rest, Expr) and rest.terms[0][1] < 0:          # ⌊r/c⌋ = −⌊(c − 1 − r)/c⌋
        sign = -1
        more, rest = _nearest(_sum((c - 1, 1), (rest, -1)), c)
        whole = _sum((whole, 1), (more, -1))
    coarse = _coarser(rest, c)
    part = rest // c if isinstance(rest, int) else _merge_floors(rest, c) if coarse is None else _floordiv(*coarse)
    return _sum((whole, 1), (part, sign))


def _coarser(a: Dim, b: Dim) -> tuple[Dim, Dim] | None:
    """Return (x, d) with ⌊a/b⌋ = ⌊x/d⌋, where a = g·x + r and b = g·d for a g > 1 and 0 ≤ r < g; None where there is no such g.

    (1024·i + 32·j + k) // 8192 is i // 8 for j, k < 32: positions inside of a group do not change which group it is.
    """
    whole = math.gcd(*(k for _, k in _terms(b)))
    steps = sorted({whole, *(math.gcd(whole, k) for m, k in _terms(a) if m)}, reverse=True)
    for g in itertools.takewhile(lambda g: g > 1, itertools.accumulate(steps, math.gcd)):
        x, rest = _nearest(a, g)
        low, high = bounds(rest)
        if low // g == high // g:
            return _sum((x, 1), (low // g, 1)), _make({m: k // g for m, k in _terms(b)})
    return None


def _nearest(a: Dim, c: int) -> tuple[Dim, Dim]:
    """Return (q, r) with a = c·q + r, where −c/2 ≤ each coefficient of r ≤ c/2, and 0 ≤ its constant < c."""
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, k in _terms(a):
        r = k % c
        if monomial and (2 * r > c or (2 * r == c and k < 0)):
            r -= c
        whole[monomial], rest[monomial] = (k - r) // c, r
    return _make(whole), _make(rest)


def _merge_floors(a: Expr, c: int) -> Dim:
    """Return ⌊a/c⌋ for an int c > 1, with a floor inside of a merged into the outer one.

    ⌊(p + ⌊x/b⌋) / c⌋ = ⌊(b·p + x) / (b·c)⌋ and −⌊x/b⌋ = ⌊(b − 1 − x)/b⌋.
    """
    for monomial, k in a.terms:
        if len(monomial) == 1 and abs(k) == 1 and isinstance(atom := monomial[0], Call) and atom.fn == "floordiv":
            x, b = atom.args
            if isinstance(b, int):
                p = _sum((a, b), (_atom(atom), -k * b))
                return _floordiv_by(_sum((p, 1), (x, k), (0 if k > 0 else b - 1, 1)), b * c)
    return _floordiv_atom(a, c)


def _floordiv_atom(a: Dim, b: Dim) -> Dim:
    low, high = _floor_bounds(bounds(a), bounds(b))
    return low if low == high else _atom(Call("floordiv", (a, b)))


def _floor_bounds(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Return bounds of ⌊a/b⌋ for b > 0, from the corners: the quotient is monotone in a, and in b where a keeps its sign."""
    corners = [x // y for x in a for y in b]
    return min(corners), max(corners)


def _mod(a: Dim, b: Dim) -> Dim:
    return _sum((a, 1), (_product(_floordiv(a, b), b), -1))


def _extreme(fn: str, xs: Sequence[Any]) -> Dim:
    """Return the min or max of xs: flattened, without repeated or dominated operands, common summands and factors moved outside."""
    return _extreme_of(fn, tuple(map(_need, xs)))


@lru_cache(maxsize=4096)                                # equal layers of a model repeat calls, of 0.3 ms each
def _extreme_of(fn: str, xs: tuple[Dim, ...]) -> Dim:
    flat: list[Dim] = []
    for x in xs:
        inside = _alone(x)
        flat.extend(inside.args if isinstance(inside, Call) and inside.fn == fn else (x,))
    if not flat:
        raise DimError(f"{fn} of nothing", fix="give it one dim at least")
    candidates: list[Dim] = []
    for x in flat:
        if not any(_dominates(fn, y, x) for y in candidates):
            candidates = [*(y for y in candidates if not _dominates(fn, x, y)), x]
    if len(candidates) == 1:
        return candidates[0]
    dicts = [dict(_terms(x)) for x in candidates]
    common = {m: k for m, k in dicts[0].items() if all(other.get(m) == k for other in dicts[1:])}
    factor = math.gcd(*(k for terms in dicts for m, k in terms.items() if m not in common))
    parts = [_make({m: k // factor for m, k in terms.items() if m not in common}) for terms in dicts]
    parts.sort(key=sort_key)
    call = _atom(Call(fn, tuple(parts)))
    low, high = call.bounds()
    return _sum((_make(common), 1), (low if low == high else call, factor))


def _alone(x: Dim) -> Atom | None:
    """Return the atom that x equals, or None if x is not a single atom."""
    if isinstance(x, Expr) and len(x.terms) == 1:
        monomial, k = x.terms[0]
        if k == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def _dominates(fn: str, a: Dim, b: Dim) -> bool:
    """Return True if bounds show that fn(a, b) is a at every size."""
    gap = bounds(_sum((a, 1), (b, -1)))
    return gap[0] >= 0 if fn == "max" else gap[1] <= 0


# ---- making, asking, replacing ---------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def dim(name: str, lo: int = 1, hi: int | None = None) -> Expr:
    """Return a symbolic size between lo and hi, both included. The bounds belong to it: make it once and use it everywhere.

    Raises DimError unless the name is an identifier (letters, digits, _) and 0 ≤ lo ≤ hi; hi must be given, because memory is
    planned for it.
    """
    if not isinstance(name, str) or not _NAME.match(name) or keyword.iskeyword(name) or name in ("min", "max"):
        raise DimError(f"a dim cannot be named {name!r}",
                       fix="letters, digits and _, no digit in front, no word of Python")
    if hi is None:
        raise DimError(f"the dim {name!r} has no upper bound",
                       fix=f'say the largest size it may take: tg.dim("{name}", {lo}, 4096)')
    low, high = _operand(lo), _operand(hi)
    if isinstance(high, int) and high > MAX_SIZE:
        raise DimError(f"the dim {name!r} up to {shown_int(high)}, which is beyond 64 bits", fix=f"at most {MAX_SIZE}")
    if not isinstance(low, int) or not isinstance(high, int) or not 0 <= low <= high:
        raise DimError(f"the dim {name!r} from {lo!r} to {hi!r}", fix="two ints with 0 ≤ lo ≤ hi")
    return _atom(Symbol(name, low, high))


def dim_min(*xs: Dim) -> Dim:
    """Return the least of the dims; an operand that is never the least is dropped."""
    return _extreme("min", xs)


def dim_max(*xs: Dim) -> Dim:
    """Return the greatest of the dims; an operand that is never the greatest is dropped."""
    return _extreme("max", xs)


def ceil_div(a: Dim, b: Dim) -> Dim:
    """Return a / b rounded up: how many blocks of size b cover a. Raises DimError when b may be 0."""
    return _sum((_floordiv(_sum((_need(a), -1)), _need(b)), -1))


class HoldsDims(ABC):
    """An attribute value that is an object, not plain data, and may contain dims (subgraph.py)."""

    @property
    @abstractmethod
    def encoded(self) -> str:
        """Text that differs for different values."""

    @property
    @abstractmethod
    def dims(self) -> tuple[Expr, ...]:
        """The symbols in the value."""

    @abstractmethod
    def with_dims(self, mapping: Mapping[str, Dim]) -> HoldsDims:
        """Return the value with dims replaced by name."""


def has_dims(value: Any) -> bool:
    """Return True if an attribute value (or a mapping of them) contains a symbolic dim."""
    if isinstance(value, Expr):
        return True
    if isinstance(value, HoldsDims):
        return bool(value.dims)
    if isinstance(value, Mapping):
        return any(has_dims(v) for v in value.values())
    return isinstance(value, tuple) and any(has_dims(v) for v in value)


def is_static(x: Dim) -> bool:
    """Return True if the size is a plain number."""
    return isinstance(x, (int, np.integer))


def product(sizes: Iterable[Dim]) -> Dim:
    """Return the product of sizes; 1 if there are none."""
    out: Dim = 1
    for size in sizes:
        out = out * size
    return out


def symbols_in(value: object) -> list[Expr]:
    """Return the symbols that an attribute's value depends on, also those inside of tuples, with repeats."""
    if isinstance(value, tuple):
        return [s for item in value for s in symbols_in(item)]
    if isinstance(value, HoldsDims):
        return list(value.dims)
    return list(symbols(value)) if isinstance(value, Expr) else []


def symbols(x: Dim) -> tuple[Expr, ...]:
    """Return the symbols that x depends on, each as an Expr, sorted by name; () for an int."""
    return tuple(_atom(x.symbols[name]) for name in sorted(x.symbols)) if isinstance(x, Expr) else ()


def parts(x: Dim) -> tuple[Dim, Dim]:
    """Return (p, m) with x = p − m, neither with a negative coefficient: 256 − n − p gives 256 and n + p."""
    if not isinstance(x, Expr):
        return (x, 0) if x >= 0 else (0, -x)
    return _make({m: k for m, k in x.terms if k > 0}), _make({m: -k for m, k in x.terms if k < 0})


def coefficient(x: Dim, name: str) -> Dim | None:
    """Return c where x = c·s + rest and s, the symbol of this name, is in neither c nor rest; None where there is no such c."""
    if not isinstance(x, Expr) or name not in x.symbols:
        return 0
    terms: dict[Monomial, int] = {}
    for monomial, k in x.terms:
        own = [a for a in monomial if isinstance(a, Symbol) and a.name == name]
        others = tuple(a for a in monomial if a not in own)
        called = (b for a in others if isinstance(a, Call) for b in a.args if isinstance(b, Expr))
        if len(own) > 1 or any(name in b.symbols for b in called):
            return None
        if own:
            terms[others] = k
    return _make(terms)


def sort_key(x: Dim) -> tuple[int, int, str]:
    """Return a key for a total, repeatable order of dims: ints by value, then expressions by their text."""
    return (1, 0, format_dim(x)) if isinstance(x, Expr) else (0, int(x), "")


def check_range(symbol: Symbol, value: Any) -> int:
    """Return the value of a dim as an int. Raises DimError unless it is a whole number in the symbol's range."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise DimError(f"the dim {symbol.name!r} is given {value!r}", fix=f"an int from {symbol.lo} to {symbol.hi}")
    if not symbol.lo <= value <= symbol.hi:
        raise DimError(f"the dim {symbol.name!r} is {value}, it ranges from {symbol.lo} to {symbol.hi}",
                       fix=f'give a size in range, or make the dim wider: tg.dim("{symbol.name}", '
                           f"{min(symbol.lo, int(value))}, {max(symbol.hi, int(value))})")
    return int(value)


def evaluate(x: Dim, binding: Mapping[str, int]) -> int:
    """Return the value of x where `binding` gives the size of each symbol by name; other names are ignored.

    Raises DimError for a missing name and for a size out of range, with the dim's name, the value and the range.
    """
    if not isinstance(x, Expr):
        return x if type(x) is int else int(_need(x))
    at: dict[str, int] = {}
    for name, symbol in x.symbols.items():
        if name not in binding:
            raise DimError(f"the dim {name!r} has no value, needed for {x}",
                           fix=f"given are {', '.join(sorted(binding)) or 'none'}")
        at[name] = check_range(symbol, binding[name])
    return _value(x, at)


def _value(x: Dim, at: Mapping[str, int]) -> int:
    if not isinstance(x, Expr):
        return x
    total = 0
    for monomial, k in x.terms:
        for atom in monomial:
            k *= at[atom.name] if isinstance(atom, Symbol) else _call(atom.fn, [_value(a, at) for a in atom.args])
        total += k
    return total


def _call(fn: str, args: list[int]) -> int:
    return args[0] // args[1] if fn == "floordiv" else min(args) if fn == "min" else max(args)


def substitute(x: Dim, mapping: Mapping[str, Dim]) -> Dim:
    """Return x with symbols replaced by name, all simultaneously; names that x lacks are ignored.

    Raises DimError when a replacement may leave the symbol's range, since simplifications rely on the range.
    """
    if not isinstance(x, Expr):
        return _need(x)
    mapping = {name: _need(value) for name, value in mapping.items() if name in x.symbols}
    for name, value in mapping.items():
        symbol = x.symbols[name]
        low, high = bounds(value)
        if isinstance(value, int):
            check_range(symbol, value)
        elif low < symbol.lo or high > symbol.hi:
            raise DimError(f"the dim {name!r} ranges from {symbol.lo} to {symbol.hi}, "
                           f"its replacement {value} from {low} to {high}",
                           fix="the replacement must stay in the range")
    return _substitute(x, mapping) if mapping else x


def _substitute(x: Dim, mapping: Mapping[str, Dim]) -> Dim:
    if not isinstance(x, Expr) or not any(name in mapping for name in x.symbols):
        return x
    return _map_atoms(x, lambda a: (mapping.get(a.name) if isinstance(a, Symbol)
                                    else _apply(a.fn, [_substitute(b, mapping) for b in a.args])))


def _apply(fn: str, args: Sequence[Dim]) -> Dim:
    return _floordiv(args[0], args[1]) if fn == "floordiv" else _extreme(fn, args)


def _map_atoms(x: Expr, change: Callable[[Atom], Dim | None]) -> Dim:
    """Return x with each atom replaced by change(atom); None keeps the atom."""
    changed: dict[Atom, Dim] = {}
    parts: list[tuple[Dim, int]] = []
    for monomial, k in x.terms:
        product: Dim = 1
        for atom in monomial:
            if atom not in changed:
                new = change(atom)
                changed[atom] = _atom(atom) if new is None else new
            product = _product(product, changed[atom])
        parts.append((product, k))
    return _sum(*parts)


def replace_numbers(x: Dim, change: Callable[[int], Dim]) -> Dim:
    """Return x with each number in it replaced by change(number): coefficients, constant summands, and arguments of calls.

    >>> n, k = dim("n", 1, 8), dim("k", 1, 512)
    >>> print(replace_numbers(n * 512 + 3, lambda number: k if number == 512 else number))
    k*n + 3
    """
    if not isinstance(x, Expr):
        return change(x)
    total: Dim = 0
    for monomial, factor in x.terms:
        product: Dim = 1 if monomial and factor == 1 else change(factor)
        for atom in monomial:
            product = product * (_atom(atom) if isinstance(atom, Symbol) else
                                 _apply(atom.fn, [replace_numbers(a, change) for a in atom.args]))
        total = total + product
    return total


# ---- bounds ----------------------------------------------------------------------------------------------------------

_MAX_CASES = 3
"""Up to this many calls in an expression are examined one by one for tighter bounds; with more, plain intervals are used."""


def bounds(x: Dim) -> tuple[int, int]:
    """Return (lo, hi) with lo ≤ x ≤ hi at every size in range.

    The bounds are tight (both are reached) for sums and products that are monotone in each symbol, for a // c and a % c of those,
    and for min and max of independent dims; otherwise the interval contains the values but may be wider.
    """
    return x.bounds() if isinstance(x, Expr) else (int(x), int(x))


def clamp(size: int, x: Dim) -> int:
    """Return the size nearest to `size` in the range of x."""
    return min(max(size, bounds(x)[0]), bounds(x)[1])


def unknown_dims(unknown: Sequence[str], dims: Iterable[str]) -> str:
    """Return the message for names `unknown`, which the graph does not have as dims. dims: the names that it has."""
    message = f"the graph has no dim named {', '.join(unknown)}; it has {', '.join(dims) or 'none'}"
    near = close_to(unknown[0], dims)
    return f"{message}\n  fix: {f'did you mean {near[0]}?' if near else 'sizes of those only'}"


def why_no_size(name: str, size: object, of: Dim) -> str | None:
    """Return why `size` is no size of the dim `of`, which the message calls `name`, and the fix; None if it is one."""
    low, high = bounds(of)
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        return f"{name} is given as {size!r}\n  fix: a whole number from {low} to {high}"
    if not low <= int(size.__index__()) <= high:
        return (f"{name} = {size} is outside of its range, {low} to {high}\n"
                f"  fix: a size in that range, or a wider range where the dim is made")
    return None


def _find_bounds(x: Expr) -> tuple[int, int]:
    low, high = _monotone_bounds(x)
    calls: list[Call] = []
    for monomial, _ in x.terms:
        for atom in monomial:
            if isinstance(atom, Call) and atom not in calls:
                calls.append(atom)
    if len(x.terms) == 1 or not calls or len(calls) > _MAX_CASES:
        return low, high
    for call in calls:
        lo, hi = _floor_case(x, call) if call.fn == "floordiv" else _extreme_case(x, call)
        low, high = max(low, lo), min(high, hi)
    return low, high


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.lo, atom.hi
    argument_bounds = [bounds(a) for a in atom.args]
    if atom.fn == "floordiv":
        return _floor_bounds(argument_bounds[0], argument_bounds[1])
    pick = min if atom.fn == "min" else max
    return pick(b[0] for b in argument_bounds), pick(b[1] for b in argument_bounds)


def _interval(terms: Iterable[tuple[Monomial, int]], ranges: Mapping[Atom, tuple[int, int]]) -> tuple[int, int]:
    """Return bounds from summing the bounds of the terms, powers of one atom taken together."""
    low = high = 0
    for monomial, k in terms:
        lo, hi = 1, 1
        for atom, group in itertools.groupby(monomial):
            a, b = ranges[atom]
            p = len(list(group))
            ends = (a**p, b**p) if a >= 0 or p % 2 else (0 if b >= 0 else b**p, max(a**p, b**p))
            corners = [u * v for u in (lo, hi) for v in ends]
            lo, hi = min(corners), max(corners)
        low += min(k * lo, k * hi)
        high += max(k * lo, k * hi)
    return low, high


def _monotone_bounds(x: Expr) -> tuple[int, int]:
    """Return bounds with atoms taken as independent: at the ends where the derivative keeps its sign, else term by term."""
    ranges = {atom: _atom_bounds(atom) for monomial, _ in x.terms for atom in monomial}
    if all(k > 0 for m, k in x.terms if m) and all(r[0] >= 0 for r in ranges.values()):
        return _interval(x.terms, ranges)
    lows, highs = dict(ranges), dict(ranges)
    for atom, (a, b) in ranges.items():
        slope = [(_without(m, (atom,)) or _ONE, k * m.count(atom)) for m, k in x.terms if atom in m]
        lo, hi = _interval(slope, ranges)
        if lo >= 0:
            lows[atom], highs[atom] = (a, a), (b, b)
        elif hi <= 0:
            lows[atom], highs[atom] = (b, b), (a, a)
    return _interval(x.terms, lows)[0], _interval(x.terms, highs)[1]


def _floor_case(x: Expr, call: Call) -> tuple[int, int]:
    """Return bounds of x from ⌊a/b⌋ = (a − μ)/b, 0 ≤ μ ≤ b − 1, for an int b and a call that is multiplied by no other atom."""
    a, b = call.args
    if isinstance(b, Expr):
        return _symbolic_floor_case(x, call)
    k = 0
    for monomial, c in x.terms:
        if call in monomial:
            if len(monomial) > 1:
                return _monotone_bounds(x)
            k = c
    rest = _sum((x, b), (_atom(call), -k * b), (a, k))           # b·x = rest − k·μ
    low, high = bounds(rest)
    slack = (-k * (b - 1), 0) if k > 0 else (0, -k * (b - 1))
    return -(-(low + slack[0]) // b), (high + slack[1]) // b


def _symbolic_floor_case(x: Expr, call: Call) -> tuple[int, int]:
    """Return bounds of x as `_floor_case` does, for a symbolic b, where b·⌊a/b⌋ occurs as a product: it is a − μ."""
    a, b = call.args
    assert isinstance(b, Expr)
    whole = _product(b, _atom(call))
    lead, lead_coefficient = _terms(whole)[0]
    k, odd = divmod(dict(x.terms).get(lead, 0), lead_coefficient)
    rest = _sum((x, 1), (whole, -k), (a, k))
    if odd or k == 0 or any(call in m for m, _ in _terms(rest)):
        return _monotone_bounds(x)
    low, high = bounds(rest)
    top = bounds(b)[1] - 1
    return low - max(k, 0) * top, high - min(k, 0) * top


def _extreme_case(x: Expr, call: Call) -> tuple[int, int]:
    """Return bounds of x from replacing the min or max by each of its operands: it equals one of them, and bounds them all."""

    def put(arg: Dim) -> Dim:
        return _map_atoms(x, lambda atom: arg if atom == call else None)

    cases = [bounds(put(arg)) for arg in call.args]
    low, high = min(c[0] for c in cases), max(c[1] for c in cases)
    alone = [k for m, k in x.terms if call in m]
    if len(alone) == 1 and ((call,), alone[0]) in x.terms:
        if (alone[0] > 0) == (call.fn == "max"):
            low = max(c[0] for c in cases)
        else:
            high = min(c[1] for c in cases)
    return low, high


# ---- text ------------------------------------------------------------------------------------------------------------


def format_dim(x: Dim) -> str:
    """Return x as text in Python's syntax: `4*n*m + n // 8 - 1`. Equal dims have equal text; `parse_dim` reads it back."""
    if not isinstance(x, Expr):
        return str(int(x))
    out = ""
    for monomial, k in x.terms:
        factors = []
        for atom, group in itertools.groupby(monomial):
            p = len(list(group))
            text = _format_atom(atom, alone=p == 1 and len(monomial) == 1 and abs(k) == 1)
            factors.append(text if p == 1 else f"{text}**{p}")
        if abs(k) != 1 or not factors:
            factors.insert(0, str(abs(k)))
        sign = (" - " if k < 0 else " + ") if out else ("-" if k < 0 else "")
        if sign == "-" and len(monomial) == 1 and abs(k) == 1 and "//" in factors[0]:
            factors[0] = f"({factors[0]})"             # -a // b would floor the other way
        out += sign + "*".join(factors)
    return out


def _format_atom(atom: Atom, alone: bool) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    if atom.fn != "floordiv":
        return f"{atom.fn}({', '.join(map(format_dim, atom.args))})"
    sides = []
    for arg in atom.args:
        simple = (isinstance(arg, int) and arg >= 0) or isinstance(_alone(arg), Symbol)
        sides.append(format_dim(arg) if simple else f"({format_dim(arg)})")
    text = f"{sides[0]} // {sides[1]}"
    return text if alone else f"({text})"
