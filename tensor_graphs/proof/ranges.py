"""ranges: the sizes at which integers first overflow their dtype, so that graphs are compared with wrapped values, too.

    cast(iota(h, u8), f32)          counts 0, 1, … 255, 0, 1, …: the same as in i32 up to h = 256

Integers are first bounded by intervals over all sizes, which nearly always rules out every overflow. Then nodes that depend on no
leaf are evaluated exactly, at the sizes compared, to see which of them overflow and on which side of the range. For a side never
seen, the smallest size that shows it is searched on lines through the box of sizes, with one dim or all dims growing. Nodes that
depend on given integers (a sum of booleans in u8) are bounded by intervals alone. In bits mode, a cast of a known number to a float
that does not hold it exactly counts as an overflow as well, and so does a size in a float below 32 bits.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import ArrayValue, Node
from tensor_graphs.meaning.algebra import Array, At, Real, narrow
from tensor_graphs.meaning.interpreter import _Walk
from tensor_graphs.proof.sizes import closed

Interval = tuple[float, float]                              # of ints, where they are finite
Side = tuple[Node, bool]                                    # a node, and whether it leaves its range above
Size = Callable[[Dim], tuple[int, int]]

_ALL: Interval = (-math.inf, math.inf)
_MOST_ELEMENTS = 1 << 20
"""Most elements, of all nodes that depend on no leaf, in one exact evaluation."""

_MOST_LOOKS = 256
_MOST_LOOKED_AT = 1 << 24
"""Most elements in all exact evaluations."""

_MOST_ADDED = 24
_BEYOND = (0, 1, 4)
"""Steps beyond the first size of overflow at which to compare: at the border, −x of x = 128 is −128 in i32 and, wrapped, in i8."""


@dataclass(frozen=True)
class Ranges:
    """Result of the search. added: further sizes to be compared. missing: why other needed sizes are not known, or "". nodes: those
    that overflow at the added sizes."""

    added: tuple[dict[str, int], ...]
    missing: str = ""
    nodes: frozenset[Node] = frozenset()


def find(order: Sequence[Node], tested: Sequence[Mapping[str, int]], symbols: Mapping[str, tuple[int, int]],
         shared: set[Node], bits: bool = False) -> Ranges:
    """Return the sizes beyond those tested at which integers in these nodes overflow. symbols: lowest and highest size by name.

    shared: nodes of all graphs compared. A shared constant that its dtype does not hold is ignored, as no graph has a meaning then.
    """
    if not symbols:
        return Ranges(())
    search = _RangeSearch(order, tested, symbols, bits)
    open_sides = [s for s in search.possible(d.bounds) if not (s[0].op is leaves.CONSTANT and s[0] in shared)]
    if not open_sides:
        return Ranges(())
    for binding in tested:
        seen = search.seen(binding)
        open_sides = [s for s in open_sides if s not in seen]
    borders: list[tuple[Side, list[dict[str, int]]]] = []
    for side in open_sides:
        smallest = search.smallest(side)
        if isinstance(smallest, str):
            return Ranges((), smallest)
        if smallest:
            borders.append((side, smallest))
    added: list[dict[str, int]] = []
    shown: set[Side] = set()
    for side, border in sorted(borders, key=lambda b: math.prod(b[1][0].values())):      # what wraps first, is seen first
        if side in shown:
            continue
        if len(added) + len(border) > _MOST_ADDED:
            return Ranges(tuple(added), "integers leave their ranges at too many sizes to compare all of them")
        added += [b for b in border if b not in added and b not in tested]
        shown.update(*map(search.seen, border))
    return Ranges(tuple(added), nodes=frozenset(node for (node, _), _ in borders))


class _RangeSearch:
    def __init__(self, order: Sequence[Node], tested: Sequence[Mapping[str, int]], symbols: Mapping[str, tuple[int, int]],
                 bits: bool) -> None:
        self.order, self.symbols, self.bits = order, symbols, bits
        self.first = dict(tested[0])
        self.closed = closed(order)
        self.exact_nodes = set(self.closed)
        self.looks: dict[tuple[int, ...], set[Side] | None] = {}
        self.left = _MOST_LOOKED_AT

    def possible(self, size: Size) -> dict[Side, None]:
        """Return the sides on which nodes may leave their ranges, according to intervals."""
        extents: dict[Node, Interval] = {}
        sides: dict[Side, None] = {}
        for node in self.order:
            low, high = extent(node, [extents[i] for i in node.inputs], size)
            if _bounded(node, self.bits):
                least, most = _range(node.dtype)
                if low < least:
                    sides[node, False] = None
                if high > most:
                    sides[node, True] = None
                if node.dtype.kind != "float":              # what wraps may be anything
                    low, high = (low, high) if least <= low and high <= most else (least, most)
            extents[node] = (low, high)
        return sides

    def may(self, side: Side, binding: Mapping[str, int]) -> bool:
        try:
            return side in self.possible(_at(binding))
        except d.DimError:
            return False

    def seen(self, binding: Mapping[str, int]) -> set[Side]:
        """Return the sides on which nodes leave their ranges at these sizes: exactly where no leaf is below, else by intervals."""
        try:
            loose = {s for s in self.possible(_at(binding)) if s[0] not in self.exact_nodes}
        except d.DimError:
            return set()
        return loose | (self.look(binding) or set())

    def look(self, binding: Mapping[str, int]) -> set[Side] | None:
        """Return the sides on which nodes that depend on no leaf leave their ranges; None where this costs too much to compute."""
        key = tuple(binding[name] for name in self.symbols)
        if key not in self.looks:
            self.looks[key] = self._look(binding)
        return self.looks[key]

    def _look(self, binding: Mapping[str, int]) -> set[Side] | None:
        try:
            elements = sum(math.prod(d.evaluate(s, binding) for s in n.types[0].shape) for n in self.closed)
            if elements > min(_MOST_ELEMENTS, self.left) or len(self.looks) >= _MOST_LOOKS:
                return None
            self.left -= elements
            walk = _WatchingWalk(binding, self.bits)
            with np.errstate(all="ignore"):
                walk.run(self.closed)
            return walk.watching.left
        except TensorGraphsError:
            return None

    def lines(self) -> Iterator[Callable[[int], dict[str, int]]]:
        """Yield functions from a number t ≥ 0 to sizes: one dim grows with t, the others stay as first compared or smallest; in the
        last one all dims grow."""
        lowest = {name: low for name, (low, _) in self.symbols.items()}
        for name in self.symbols:
            for base in ([self.first, lowest] if len(self.symbols) > 1 else [lowest]):
                yield lambda t, name=name, base=base: {**base, name: min(lowest[name] + t, self.symbols[name][1])}  # type: ignore[misc]
        if len(self.symbols) > 1:
            yield lambda t: {name: min(low + t, high) for name, (low, high) in self.symbols.items()}

    def smallest(self, side: Side) -> list[dict[str, int]] | str:
        """Return small sizes at which a node leaves its range, [] where it never does, or a message where they are unknown."""
        longest = max(high - low for low, high in self.symbols.values())
        borders: list[list[dict[str, int]]] = []

        def border(line: Callable[[int], dict[str, int]], start: int) -> list[dict[str, int]]:
            sizes = [line(min(start + beyond, longest)) for beyond in _BEYOND]
            return [b for k, b in enumerate(sizes) if b not in sizes[:k]]

        reached, unknown = False, False
        for line in self.lines():
            if not self.may(side, line(longest)):
                continue
            reached = True
            start = _least(lambda t: self.may(side, line(t)), longest)  # noqa: B023 - used at once
            if side[0] not in self.exact_nodes:
                borders.append(border(line, start))
                continue
            shown = self.shown_from(side, line, start, longest)
            unknown |= shown is None
            if shown is not None and shown >= 0:
                borders.append(border(line, shown))
        if borders:
            return min(borders, key=lambda sizes: math.prod(sizes[0].values()))
        if unknown or not reached:
            return f"{side[0].op.name} of {side[0].dtype} may leave its range at sizes that are not compared"
        return []

    def shown_from(self, side: Side, line: Callable[[int], dict[str, int]], start: int, longest: int) -> int | None:
        """Return the first t ≥ start on a line at which the node leaves its range, −1 for none, None for unknown."""
        last, step = start - 1, 0
        while True:
            place = min(start + step, longest)
            look = self.look(line(place))
            if look is None:
                return None
            if side in look:
                return last + 1 + _least(lambda t: side in (self.look(line(last + 1 + t)) or ()), place - last - 1)  # noqa: B023
            if place == longest:
                return -1
            last, step = place, 2 * step + 1


def _least(holds: Callable[[int], bool], most: int) -> int:
    """Return the least number t such that `holds` is True from t to `most`, where it is known to be True."""
    return bisect_left(range(most), True, key=holds)


def _at(binding: Mapping[str, int]) -> Size:
    def size(x: Dim) -> tuple[int, int]:
        value = d.evaluate(x, binding)
        return value, value

    return size


# ---- intervals -------------------------------------------------------------------------------------------------------


def _bounded(node: Node, bits: bool) -> bool:
    """Return whether the results of a node can differ from the exact ones because its dtype does not hold these."""
    if node.dtype.kind == "bool" or node.op in leaves.NAMED_LEAVES:
        return False
    if node.op is leaves.CONSTANT and node.dtype.kind == "float":
        return bits and rounds(node.dtype) and isinstance(node.attrs["value"], d.Expr)
    return node.dtype.kind != "float" or (bits and node.op.name in ("cast", "iota") and (
        not node.inputs or node.inputs[0].dtype != node.dtype))


def _range(dtype: DType) -> tuple[float, float]:
    if dtype.kind == "float":
        return -2.0 / dtype.epsilon, 2.0 / dtype.epsilon    # all whole numbers between
    return (0, 1) if dtype.kind == "bool" else (int(dtype.min), int(dtype.max))


def _times(x: Interval, y: Interval) -> Interval:
    products = [a * b if a and b else 0 for a in x for b in y]
    return min(products), max(products)


def _join(*xs: Interval) -> Interval:
    return min(x[0] for x in xs), max(x[1] for x in xs)


def _count(shape: Sequence[Dim], size: Size) -> Interval:
    count: Interval = (1, 1)
    for s in shape:
        count = _times(count, size(s))
    return max(count[0], 0), count[1]


def extent(node: Node, xs: list[Interval], size: Size = d.bounds) -> Interval:
    """Return the interval of a node's results, of those of its operands, as if its dtype held every number; given integers have
    their dtype's range, and so have results of a composite op."""
    name, dtype, attrs = node.op.name, node.types[0].dtype, node.attrs
    if node.op in leaves.NAMED_LEAVES or name in ("bitcast", "less", "not_equal") or dtype.kind == "bool":
        return _ALL if dtype.kind == "float" else _range(dtype)
    if name == "constant":
        value = attrs["value"]
        if isinstance(value, d.Expr):
            return size(value)
        array = value.array().astype(object if dtype.kind != "float" else np.float64) if isinstance(value, ArrayValue) else None
        if array is None:
            return (value, value) if value == value else _ALL
        return (array.min(), array.max()) if array.size and not (array != array).any() else _ALL if array.size else (0, 0)
    if name == "iota":
        return 0, max(size(node.types[0].shape[attrs["axis"]])[1] - 1, 0)
    if name == "add":
        (a, b), (c, e) = xs
        return (a + c if -math.inf not in (a, c) else -math.inf), (b + e if math.inf not in (b, e) else math.inf)
    if name == "mul":
        return _times(*xs)
    if name == "max":
        return max(x[0] for x in xs), max(x[1] for x in xs)
    if name == "idiv":
        (a, b), (c, e) = xs
        if c > 0:
            return _join(*[(a // y, b // y) for y in (c, e)])
        most = max(abs(a), abs(b))
        return -most, most
    if node.op.facts.bits:
        if min(x[0] for x in xs) < 0:
            return _range(dtype)
        highs = [x[1] for x in xs]
        return 0, (min(highs) if name == "and" else (1 << max(int(h).bit_length() for h in highs)) - 1)
    if name == "where":
        return _join(*xs[1:])
    if name == "sum":
        axes = attrs["axes"]
        return _times(xs[0], _count([node.inputs[0].shape[a] for a in axes], size))
    if name == "reduce_max":
        empty = _count([node.inputs[0].shape[a] for a in attrs["axes"]], size)[0] < 1
        return (_range(dtype)[0] if dtype.kind != "float" else -math.inf) if empty else xs[0][0], xs[0][1]
    if name in ("cast", "reshape", "expand", "permute", "slice"):
        return xs[0] if not (name == "cast" and node.inputs[0].dtype.kind == "bool") else (0, 1)
    if name == "pad":
        value = attrs["value"]
        return _ALL if value != value else _join(xs[0], size(value) if isinstance(value, d.Expr) else (value, value))
    if name == "gather":
        return _join(xs[0], (0, 0))
    if name == "scatter":
        if attrs["mode"] != "add":
            return _join(xs[0], xs[2])
        more = _join(_times(xs[2], _count(node.inputs[1].shape, size)), (0, 0))
        return xs[0][0] + more[0], xs[0][1] + more[1]
    return _ALL if dtype.kind == "float" else _range(dtype)


_WHOLE = frozenset({"add", "mul", "sum", "max", "reduce_max", "where", "cast", "reshape", "expand", "permute", "slice", "pad",
                    "gather", "scatter", "iota", "constant"})
"""Ops whose results are whole numbers wherever their operands are."""


def held(order: Sequence[Node], binding: Mapping[str, int]) -> frozenset[Node]:
    """Return the casts to floats that are exact at these sizes: casts of whole numbers, all of which the float dtype holds."""
    size, whole, casts = _at(binding), dict[Node, Interval](), set[Node]()
    for node in order:
        dtype = node.types[0].dtype
        range_ = _range(dtype)
        is_whole = all(i in whole for i in node.inputs) and (node.op.name in _WHOLE or dtype.kind != "float")
        if node.op is leaves.CONSTANT or node.op.name == "pad":
            is_whole = is_whole and _is_whole(node.attrs["value"])
        if dtype.kind != "float":
            low, high = extent(node, [whole[i] for i in node.inputs], size) if is_whole else range_
            whole[node] = (low, high) if range_[0] <= low and high <= range_[1] else range_
        elif is_whole and node.op not in leaves.NAMED_LEAVES:
            low, high = extent(node, [whole[i] for i in node.inputs], size)
            if node.op.name == "cast":
                if not (range_[0] <= low and high <= range_[1]):
                    continue
                casts.add(node)
            if math.isfinite(low) and math.isfinite(high):
                whole[node] = low, high
    return frozenset(casts)


def _is_whole(value: Any) -> bool:
    if isinstance(value, ArrayValue):
        array = value.array().astype(np.float64)
        return bool((array == np.floor(array)).all() and np.isfinite(array).all())
    return not isinstance(value, float) or value.is_integer()


def rounds(dtype: DType) -> bool:
    """Return whether every op on floats of this dtype is rounded in bits mode; f32 and f64 are real numbers even then."""
    return dtype.kind == "float" and dtype.itemsize < 4


# ---- exactly ---------------------------------------------------------------------------------------------------------


class _Watching(Real):
    """The algebra Real, which records nodes whose dtype did not hold the ideal result (in float64, which is near enough)."""

    def __init__(self, bits: bool) -> None:
        self.bits = bits
        self.left: set[Side] = set()

    def watch(self, n: At, ideal: Array) -> None:
        if n.dtype.is_integer and ideal.size:
            low, high = _range(n.dtype)
            if bool((ideal < low).any()):
                self.left.add((n.node, False))
            if bool((~(ideal <= high)).any()):              # NaN too
                self.left.add((n.node, True))

    def constant(self, n: At, value: bool | int | float | Array) -> Array:
        if n.dtype.is_integer and not isinstance(value, np.ndarray):
            least, most = (int(x) for x in _range(n.dtype))
            if not least <= value <= most:
                self.left.add((n.node, value > most))
                return np.asarray((int(value) - least) % (most - least + 1) + least, dtype=n.dtype.numpy)
        if self.bits and _bounded(n.node, True) and not isinstance(value, np.ndarray):
            if narrow(np.asarray(float(value)), n.dtype).astype(np.float64) != value:
                self.left.add((n.node, value > 0))
        return super().constant(n, value)

    def iota(self, n: At) -> Array:
        result, last = super().iota(n), n.shape[n.attrs["axis"]] - 1
        if n.dtype.is_integer and result.size:
            self.watch(n, np.asarray(float(last)))
        elif self.bits and result.size and last > _range(n.dtype)[1]:
            self.left.add((n.node, True))
        return result

    def cast(self, n: At, x: Array) -> Array:
        if n.dtype.is_integer:
            self.watch(n, np.trunc(x.astype(np.float64)))
        elif self.bits and n.dtype.kind == "float" and x.size:
            ideal = x.astype(np.float64)
            odd = narrow(ideal, n.dtype).astype(np.float64) != ideal
            self.left.update((n.node, above) for above in (False, True) if bool((odd & ((ideal > 0) == above)).any()))
        return super().cast(n, x)

    def add(self, n: At, x: Array, y: Array) -> Array:
        if n.dtype.is_integer:
            self.watch(n, x.astype(np.float64) + y.astype(np.float64))
        return super().add(n, x, y)

    def mul(self, n: At, x: Array, y: Array) -> Array:
        if n.dtype.is_integer:
            self.watch(n, x.astype(np.float64) * y.astype(np.float64))
        return super().mul(n, x, y)

    def sum(self, n: At, x: Array) -> Array:
        if n.dtype.is_integer:
            self.watch(n, np.asarray(np.sum(x.astype(np.float64), axis=n.attrs["axes"])))
        return super().sum(n, x)

    def scatter(self, n: At, base: Array, index: Array, updates: Array) -> Array:
        if n.dtype.is_integer and n.attrs["mode"] == "add":
            self.watch(n, super().scatter(n, base.astype(np.float64), index, updates.astype(np.float64)))
        return super().scatter(n, base, index, updates)


class _WatchingWalk(_Walk):
    def __init__(self, binding: Mapping[str, int], bits: bool) -> None:
        super().__init__({}, binding, "real", True)
        self.algebra = self.watching = _Watching(bits)
