"""dim_enumeration: proofs that bounds cannot give: by trying all sizes or all residues where these are few, else by sympy.

Identities of min and max over large ranges go to sympy, whose import costs 0.4 s (decision 0002).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

from tensor_graphs.language.dim_functions import compile_dims
from tensor_graphs.language.dims import Atom, Call, Dim, Expr, Symbol, _atom, _substitute, _sum, _terms

_ALL_SIZES = 1 << 17
"""Up to this many combinations of sizes, a question is decided by trying all of them (about 0.25 µs each)."""

_ALL_RESIDUES = 1 << 10
"""Up to this many combinations of residues, an identity of floors is decided by trying all of them (about 20 µs each)."""


def vanishes(gap: Expr) -> bool:
    """Return True if `gap`, which is 0 at the sample sizes, is proved to be 0 at every size in range; False if it is not proved."""
    if (values := everywhere(gap)) is not None:
        return not any(values)
    calls = calls_in(gap)
    if not calls:
        return False       # a polynomial ≠ 0 over ranges longer than its degree has a size where it is not 0
    if {c.fn for c in calls} == {"floordiv"}:
        return _vanishes_by_residue(gap, calls)
    return _sympy_vanishes(gap)


def everywhere(x: Expr) -> Iterable[int] | None:
    """Return the values of x at all sizes in range; None when there are too many sizes."""
    symbols = [x.symbols[name] for name in sorted(x.symbols)]
    if math.prod(s.hi - s.lo + 1 for s in symbols) > _ALL_SIZES:
        return None
    function = compile_dims([x], [s.name for s in symbols])
    return (function(*point)[0] for point in itertools.product(*(range(s.lo, s.hi + 1) for s in symbols)))


def calls_in(x: Dim) -> set[Call]:
    """Return every call in x, including calls inside of calls."""
    calls: set[Call] = set()
    for monomial, _ in _terms(x):
        for atom in monomial:
            if isinstance(atom, Call):
                calls |= {atom}.union(*map(calls_in, atom.args))
    return calls


def _vanishes_by_residue(gap: Expr, calls: set[Call]) -> bool:
    """Return True if the expression is 0 for each residue of its symbols: with n = period·q + r, floors by ints can be resolved."""
    divisors = [b for b in {c.args[1] for c in calls} if isinstance(b, int)]
    if any(isinstance(c.args[1], Expr) for c in calls):
        return False
    period = math.prod(divisors)
    names = sorted(set().union(*(c.args[0].symbols for c in calls if isinstance(c.args[0], Expr))))
    if period ** len(names) > _ALL_RESIDUES:
        return False
    for residues in itertools.product(range(period), repeat=len(names)):
        mapping: dict[str, Dim] = {}
        for name, r in zip(names, residues, strict=True):
            s = gap.symbols[name]
            low, high = -((r - s.lo) // period), (s.hi - r) // period
            if low > high:
                break
            mapping[name] = _sum((_atom(Symbol(name + "'", low, high)), period), (r, 1))
        if len(mapping) == len(names) and _substitute(gap, mapping) != 0:
            return False
    return True


def _sympy_vanishes(gap: Expr) -> bool:
    """Return True if sympy shows that the expression is 0, in each case of its minima and maxima."""
    import sympy

    names = {name: sympy.Symbol(name, integer=True, nonnegative=True, positive=s.lo > 0 or None)
             for name, s in gap.symbols.items()}

    def convert(x: Dim) -> Any:
        return sympy.Add(*(sympy.Mul(k, *map(factor, monomial)) for monomial, k in _terms(x)))

    def factor(atom: Atom) -> Any:
        if isinstance(atom, Symbol):
            return names[atom.name]
        args = [convert(a) for a in atom.args]
        return sympy.floor(args[0] / args[1]) if atom.fn == "floordiv" else (
            sympy.Min(*args) if atom.fn == "min" else sympy.Max(*args))

    cases = sympy.piecewise_fold(convert(gap).rewrite(sympy.Piecewise))
    return bool(sympy.simplify(cases) == 0)
