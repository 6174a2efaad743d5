"""piecewise_sizes: the sizes at which every min, max and // inside an expression of dims takes each of its branches.

    max(n - m, 150) - 150           is 0 wherever n - m is at most 150; sizes near 150 show no other value
    (n * m) // 3001                 steps where n * m is a multiple of 3001, far from 3001 in either dim

A call splits the box of its dims into regions; within one region an expression is a polynomial (of the dims, and of quotients). So
sizes are compared in each region of the box. For min and max: every operand as the smallest (largest) by as little as possible, by
more, and ties. For a // b: the residues 0, 1 and b − 1 (or the nearest that occur), each over two blocks. Also: the regions of
several calls combined. Missing sizes are searched in the box: among all of its sizes where they are few, else in a fixed sample. A
region that the dims' ranges allow and the sample lacks is reported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Call, Dim
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.algebra import Array
from tensor_graphs.proof.sizes import numbers_in

_BOX = 1 << 20
"""Most sizes times calls of a box that is searched entirely; a larger box is sampled."""

_SAMPLE = 1 << 16
_HIGHEST = (1 << 20, 1 << 15, 1 << 10, 1 << 7)
"""Limits of the sizes searched: the first at which the values of all expressions fit 64 bits is used."""

_FEW_REGIONS = 16
_MOST_TOGETHER = 64
_MOST_ADDED = 80
_MOST_WITNESSES = 4
"""Most sizes compared in one region; fewer where its polynomial's degree + 1 is less."""


@dataclass(frozen=True)
class Sides:
    """Result of the search. added: further sizes to be compared. met: numbers in the calls, by dim. missing: why some needed sizes
    are not known, or ""."""

    added: tuple[dict[str, int], ...]
    met: Mapping[str, set[int]]
    missing: str = ""


def expressions(order: Sequence[Node]) -> list[d.Expr]:
    """Return all expressions of dims in shapes and attributes, each once."""
    def inside(value: Any) -> Iterator[d.Expr]:
        if isinstance(value, d.Expr):
            yield value
        elif isinstance(value, tuple):
            for v in value:
                yield from inside(v)

    return list(dict.fromkeys(x for node in order for value in (*(t.shape for t in node.types), *node.attrs.values())
                              for x in inside(value)))


def calls(exprs: Iterable[Dim]) -> list[Call]:
    """Return the calls (min, max, //) in expressions, each once, after those in its operands."""
    atoms: dict[Call, None] = {}

    def look(x: Dim) -> None:
        for monomial, _ in x.terms if isinstance(x, d.Expr) else ():
            for atom in monomial:
                if isinstance(atom, Call) and atom not in atoms:
                    for arg in atom.args:
                        look(arg)
                    atoms[atom] = None

    for x in exprs:
        look(x)
    return list(atoms)


def find(order: Sequence[Node], tested: Sequence[Mapping[str, int]], symbols: Mapping[str, tuple[int, int]]) -> Sides:
    """Return the sizes that the calls in these nodes need beyond those tested. symbols: lowest and highest size by name."""
    exprs = expressions(order)
    every = calls(exprs)
    if not every or not symbols:
        return Sides((), {})
    met: dict[str, set[int]] = {}
    for call in every:
        numbers = call.args[1:] if call.fn == "floordiv" else call.args
        for name in _names(call):
            met.setdefault(name, set()).update(k for x in numbers for k in numbers_in(x) if k >= 2)
    search = _SideSearch(every, exprs, order, tested, symbols, met)
    for call in every:
        table = search.table(_names(call))
        for region in _own_regions(call, table, search.witnesses):
            search.show(table, region)
        if not table.whole and (reason := _lacking(call, table)):
            search.missing = search.missing or reason
    if len(every) > 1:
        search.together()
    return Sides(tuple(search.added), met, search.missing)


def _names(call: Call) -> tuple[str, ...]:
    return tuple(sorted({name for x in call.args if isinstance(x, d.Expr) for name in x.symbols}))


# ---- tables of sizes -------------------------------------------------------------------------------------------------


@dataclass
class _Table:
    """Candidate sizes: rows, with an array for each dim. whole: the rows are all sizes in range. compared: rows that are compared.
    known: number of compared sizes taken over. valid: rows with no axis below 0. cost: elements of all nodes, by row."""

    columns: dict[str, Array]
    whole: bool
    compared: list[int]
    known: int
    valid: Array
    cost: Array

    def values(self, x: Dim) -> Array:
        """Return the values of an expression at every row."""
        if not isinstance(x, d.Expr):
            return np.full(self.valid.shape, x, dtype=np.int64)
        out = np.zeros(self.valid.shape, dtype=np.int64)
        for monomial, k in x.terms:
            product = np.full(self.valid.shape, k, dtype=np.int64)
            for atom in monomial:
                product = product * (self.call(atom) if isinstance(atom, Call) else self.columns[atom.name])
            out = out + product
        return out

    def call(self, call: Call) -> Array:
        operands = [self.values(x) for x in call.args]
        if call.fn == "floordiv":
            return np.asarray(operands[0] // operands[1])
        return np.asarray((np.minimum if call.fn == "min" else np.maximum).reduce(operands))


@dataclass(frozen=True)
class _Region:
    """Rows of a table (a mask), of which `count` with different keys have to be compared."""

    rows: Array
    keys: Array
    count: int


def _own_regions(call: Call, table: _Table, witnesses: int) -> Iterator[_Region]:
    """Yield the regions into which one call splits a table."""
    index, valid = np.arange(table.valid.size), table.valid
    if call.fn == "floordiv":
        a, b = (table.values(x) for x in call.args)
        quotient = a // b
        residue = a - quotient * b
        for seen in _ends(residue, b - residue, valid):
            yield _Region(valid & seen, quotient, 2)
        yield _Region(valid, quotient, max(2, witnesses))
        return
    order = 1 if call.fn == "min" else -1
    operands = [order * table.values(x) for x in call.args]
    for i, x in enumerate(operands):
        gap = np.minimum.reduce([y - x for k, y in enumerate(operands) if k != i])
        inside = valid & (gap > 0)
        if inside.any():
            yield _Region(inside & (gap == gap[inside].min()), index, 1)
            yield _Region(inside, index, witnesses + 1)
        for k in range(i):
            yield _Region(valid & (gap == 0) & (operands[k] == x), index, 1)


def _ends(residue: Array, to_go: Array, valid: Array) -> Iterator[Array]:
    """Yield masks of the rows whose residue is 0, 1 and b − 1, or the nearest residue that occurs."""
    lowest = residue[valid].min(initial=np.iinfo(np.int64).max)
    yield residue == lowest
    above = valid & (residue > lowest)
    if above.any():
        yield residue == residue[above].min()
        yield to_go == to_go[valid].min()


def _classes(call: Call, table: _Table) -> tuple[Array, Array]:
    """Return two classes of each row. min, max: the operand taken, and 0. //: 1 at the start of a block, 2 at its end, else 0; and
    whether it is beyond the first block."""
    if call.fn == "floordiv":
        a, b = (table.values(x) for x in call.args)
        quotient = a // b
        residue = a - quotient * b
        kind = np.where(b - residue == (b - residue)[table.valid].min(initial=1 << 62), 2, 0)
        kind = np.where(residue == residue[table.valid].min(initial=1 << 62), 1, kind)
        return kind, (quotient > quotient[table.valid].min(initial=1 << 62)).astype(np.int64)
    operands = [table.values(x) for x in call.args]
    taken = np.asarray((np.argmin if call.fn == "min" else np.argmax)(np.stack(operands), axis=0))
    return taken, np.zeros_like(taken)


def _lacking(call: Call, table: _Table) -> str:
    """Return a message about a region of a call that the dims' ranges allow but the sample lacks, or ""."""
    if call.fn == "floordiv":
        a, b = call.args
        quotient, divisor = table.call(call), table.values(b)
        residue = (table.values(a) - quotient * divisor)[table.valid]
        low, high = d.bounds(a % b)
        if not residue.size or (low <= 0 < residue.min()) or (
                isinstance(b, int) and high >= b - 1 > residue.max()) or np.unique(quotient[table.valid]).size < 2:
            return f"{call.key[1]} was not seen at both ends of a block"
        return ""
    operands = [table.values(x) if call.fn == "min" else -table.values(x) for x in call.args]
    for i, x in enumerate(operands):
        others = [k for k in range(len(operands)) if k != i]
        inside = table.valid & (np.minimum.reduce([operands[k] for k in others]) > x)
        if inside.any():
            continue
        differences = [d.bounds(call.args[k] - call.args[i]) for k in others]
        if all((high > 0) if call.fn == "min" else (low < 0) for low, high in differences):
            return f"no sizes that can be looked at make {call.args[i]} what {call.key[1]} is"
    return ""


class _SideSearch:
    """The search for sizes: those compared so far, and those added because of the calls."""

    def __init__(self, every: Sequence[Call], exprs: Sequence[d.Expr], order: Sequence[Node], tested: Sequence[Mapping[str, int]],
                 symbols: Mapping[str, tuple[int, int]], met: Mapping[str, set[int]]) -> None:
        self.calls, self.exprs, self.symbols, self.met = every, exprs, symbols, met
        shapes = [t.shape for node in order for t in node.types]
        self.axes = list(dict.fromkeys(x for shape in shapes for x in shape if isinstance(x, d.Expr) and d.bounds(x)[0] < 0))
        self.sizes = list(dict.fromkeys(x for node in order for t in node.types if isinstance(x := t.size(), d.Expr)))
        self.tested = [dict(b) for b in tested]
        self.added: list[dict[str, int]] = []
        self.missing = ""
        self.witnesses = min(_MOST_WITNESSES, 1 + max(_degree(x) for x in exprs if calls([x])))
        self.highest = next((h for h in _HIGHEST if self.fits(h)), 16)
        self.tables: dict[tuple[str, ...], _Table] = {}

    def fits(self, highest: int) -> bool:
        """Return whether all expressions can be computed in 64 bits for dims up to `highest`."""
        def most(x: Dim) -> float:
            if not isinstance(x, d.Expr):
                return float(abs(x))
            return sum(abs(k) * math.prod(
                max(most(y) for y in a.args) if isinstance(a, Call) else float(min(a.hi, highest)) for a in monomial)
                for monomial, k in x.terms)

        return all(most(x) * highest < 2.0**62 for x in [*self.exprs, *self.sizes, *(y for c in self.calls for y in c.args)])

    def table(self, names: tuple[str, ...]) -> _Table:
        """Return a table of sizes of the named dims, others as first tested; its last rows are all sizes compared so far."""
        if names not in self.tables:
            ranges = {name: (self.symbols[name][0], max(self.symbols[name][0], min(self.symbols[name][1], self.highest)))
                      for name in names}
            if math.prod(high - low + 1 for low, high in ranges.values()) * max(4, len(self.calls)) <= _BOX:
                grid = np.meshgrid(*(np.arange(low, high + 1) for low, high in ranges.values()), indexing="ij")
                columns = {name: x.reshape(-1) for name, x in zip(names, grid, strict=True)}
                whole = all(ranges[name] == self.symbols[name] for name in names)
            else:
                columns, whole = self.sample(ranges), False
            self.tables[names] = self.made(columns, whole)
        table = self.tables[names]
        if fresh := self.tested[table.known:]:
            more = self.made({n: np.asarray([b[n] for b in fresh]) for n in self.symbols}, False)
            table.compared += range(table.valid.size, table.valid.size + len(fresh))
            table.known += len(fresh)
            table.columns = {n: np.concatenate([x, more.columns[n]]) for n, x in table.columns.items()}
            table.valid = np.concatenate([table.valid, np.ones(len(fresh), dtype=np.bool_)])
            table.cost = np.concatenate([table.cost, more.cost])
        return table

    def made(self, columns: dict[str, Array], whole: bool) -> _Table:
        count = next(iter(columns.values())).size
        columns = {n: columns[n] if n in columns else np.full(count, self.tested[0][n], dtype=np.int64) for n in self.symbols}
        table = _Table(columns, whole, [], 0, np.ones(count, dtype=np.bool_), np.ones(count))
        for x in self.axes:
            table.valid &= table.values(x) >= 0
        for x in self.sizes:
            table.cost = table.cost + table.values(x)
        return table

    def sample(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, Array]:
        """Return a fixed sample by dim: corners of the box, sizes near numbers of the program, small ones and random ones."""
        rng = np.random.default_rng(len(ranges))
        columns = {}
        corners = np.asarray(list(itertools.islice(itertools.product((0, 1), repeat=len(ranges)), 256)))
        for place, (name, (low, high)) in enumerate(ranges.items()):
            tested = {b[name] for b in self.tested}
            near = {k + e for w in self.met.get(name, ()) for k in (w, 2 * w, 3 * w) for e in (-1, 0, 1)}
            near = {k for k in {*near, *tested, *range(low, low + 17), high} if low <= k <= high}
            kinds = rng.integers(0, 3, _SAMPLE)
            small = np.exp(rng.uniform(0.0, math.log(high - low + 2.0), _SAMPLE)).astype(np.int64) - 1 + low
            some = np.where(kinds == 0, rng.choice(np.asarray(sorted(near)), _SAMPLE),
                            np.where(kinds == 1, np.minimum(small, high), rng.integers(low, high + 1, _SAMPLE)))
            columns[name] = np.concatenate([np.where(corners[:, place] == 1, high, low), some])
        return columns

    def show(self, table: _Table, region: _Region) -> None:
        """Add sizes that a region lacks: the cheapest first, then random ones that do not cost much more."""
        rows = np.flatnonzero(region.rows)
        seen = {int(region.keys[r]) for r in table.compared if region.rows[r]}
        rng = np.random.default_rng(rows.size)
        while len(seen) < region.count and rows.size:
            rows = rows[~np.isin(region.keys[rows], list(seen))]
            if not rows.size:
                return
            cost = table.cost[rows]
            cheap = rows[cost <= (16 * cost.min() + 4096 if seen else cost.min())]
            chosen = int(cheap[0] if not seen else rng.choice(cheap))
            seen.add(int(region.keys[chosen]))
            if self.add({n: int(x[chosen]) for n, x in table.columns.items()}):
                table.compared.append(chosen)
                table.known += 1

    def add(self, binding: dict[str, int]) -> bool:
        """Add sizes to be compared, and return whether they are new."""
        if binding in self.tested:
            return False
        if len(self.added) >= _MOST_ADDED:
            self.missing = self.missing or "min, max and // of dims have too many sides to compare all of them"
            return False
        self.added.append(binding)
        self.tested.append(binding)
        return True

    def together(self) -> None:
        """Add sizes for combined regions of all calls, or of each pair of calls where these are too many."""
        table = self.table(tuple(sorted({name for call in self.calls for name in _names(call)})))
        classes = [_classes(call, table) for call in self.calls]
        index = np.arange(table.valid.size)
        joined = np.zeros_like(index)
        for kind, block in classes:
            joined = np.unique(joined * 2 * (kind.max() + 1) + kind * 2 + block, return_inverse=True)[1].reshape(-1)
        groups: Iterable[Array] = [joined]
        if np.unique(joined[table.valid]).size > _MOST_TOGETHER:
            groups = (x * (y.max() + 1) + y for pair in itertools.combinations(classes, 2) for x, y in zip(*pair, strict=True))
        for group in groups:
            regions = np.unique(group[table.valid])
            for region in regions.tolist():
                count = self.witnesses if regions.size <= _FEW_REGIONS else 1
                if np.count_nonzero(group[table.compared] == region) < count:
                    self.show(table, _Region(table.valid & (group == region), index, count))


def _degree(x: Dim) -> int:
    """Return the degree of an expression as a polynomial in the dims, within one region."""
    return max((sum(max(map(_degree, atom.args)) if isinstance(atom, Call) else 1 for atom in monomial)
                for monomial, _ in x.terms), default=0) if isinstance(x, d.Expr) else 0
