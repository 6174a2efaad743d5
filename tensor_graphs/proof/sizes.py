"""sizes: the sizes of a graph's dims at which it has to be compared, so that agreement at these means agreement at all sizes.

Slices and constants that come from a dim are expressions of it. So a graph does the same at every size, except where a number of
the program meets the dim: a window, a block, a cache of fixed length. Hence the sizes are: two generic ones (at least 3, different
from each other and from every number in the graphs), the two smallest, those around each number that meets a dim (w − 1, w, w + 1,
2w + 1), and the residues 0, 1, b − 1 over two blocks of each divisor b. piecewise_sizes.py adds sizes for min, max and // of dims,
ranges.py for integers that overflow their dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import ArrayValue, Node, walk
from tensor_graphs.meaning.interpreter import evaluate

_GENERIC = (4, 3, 5, 6, 7, 9, 8, 10, 11, 13, 12, 14, 15, 16, 17, 18, 19, 23)
_LARGER = (13, 11, 17, 12)
"""A larger size for each dim, by the position of its name among the sorted names."""

_MOST_GENERIC = 16
_FEW = 8
"""A dim with at most this many sizes is tried at all of them."""

_LARGEST_PROBE = 1 << 19
_PROBED = frozenset({"less", "not_equal", "max", "floor", "idiv"})


@dataclass(frozen=True)
class Sizes:
    """The sizes to compare at. bindings: sizes by dim name, generic ones first. met: the numbers that meet a dim, by dim name.
    further: one more binding, beyond what small roots and thresholds reach, compared where that is not too costly."""

    bindings: tuple[dict[str, int], ...]
    met: Mapping[str, tuple[int, ...]]
    further: dict[str, int]

    def with_more(self, bindings: Iterable[dict[str, int]], met: Mapping[str, Iterable[int]]) -> Sizes:
        """Return these sizes with further bindings to be compared, and further numbers that meet dims."""
        names = sorted({*self.met, *(name for name, numbers in met.items() if numbers)})
        return Sizes((*self.bindings, *bindings),
                     {name: tuple(sorted({*self.met.get(name, ()), *met.get(name, ())})) for name in names}, self.further)


def _numbers(value: Any) -> Iterable[int]:
    """Yield the ints anywhere inside an attribute, also those inside expressions of dims."""
    if isinstance(value, tuple):
        for v in value:
            yield from _numbers(v)
    elif isinstance(value, (int, d.Expr)) and not isinstance(value, bool):
        yield from numbers_in(value)


def numbers_in(x: Dim) -> Iterator[int]:
    """Yield the magnitudes of the numbers in an expression of dims."""
    if not isinstance(x, d.Expr):
        yield abs(int(x))
        return
    for monomial, k in x.terms:
        yield abs(k)
        for atom in monomial:
            if isinstance(atom, d.Call):
                for arg in atom.args:
                    yield from numbers_in(arg)


def closed(order: Sequence[Node]) -> list[Node]:
    """Return the nodes that depend on no input, parameter or state. order: nodes, operands first."""
    hang: set[Node] = set()
    for node in order:
        if node.op in leaves.NAMED_LEAVES or any(i in hang for i in node.inputs):
            hang.add(node)
    return [node for node in order if node not in hang]


def _symbols(*values: Any) -> set[str]:
    names: set[str] = set()
    for v in values:
        names |= set(v.symbols) if isinstance(v, d.Expr) else _symbols(*v) if isinstance(v, tuple) else set()
    return names


def _behind(node: Node) -> Node:
    """Return the node below all expands, reshapes and casts."""
    while node.op.facts.rearranges or node.op.name == "cast":
        node = node.inputs[0]
    return node


def meeting(order: Sequence[Node]) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """Return (the numbers with which each dim is compared, the divisors of each dim), both by dim name."""
    met: dict[str, set[int]] = {}
    blocks: dict[str, set[int]] = {}

    def meet(names: Iterable[str], numbers: Iterable[int], into: dict[str, set[int]] = met) -> None:
        for name in names:
            into.setdefault(name, set()).update(k for k in numbers if k >= 2)

    def divisors(x: Dim) -> None:
        for monomial, _ in x.terms if isinstance(x, d.Expr) else ():
            for atom in monomial:
                if isinstance(atom, d.Call):
                    names = _symbols(*atom.args)
                    if atom.fn == "floordiv" and isinstance(atom.args[1], int):
                        meet(names, [atom.args[1]], blocks)
                    else:
                        meet(names, [k for a in atom.args for k in numbers_in(a)])
                    for a in atom.args:
                        divisors(a)

    hangs = set(order) - set(closed(order))                 # on leaves: these are drawn at thresholds (integer_inputs.py)
    for node in order:
        shape, name = node.types[0].shape, node.op.name
        for s in shape:
            divisors(s)
        for value in node.attrs.values():
            for v in value if isinstance(value, tuple) else (value,):
                for x in v if isinstance(v, tuple) else (v,):
                    divisors(x)
        if name == "slice":
            for (start, stop, step), size in zip(node.attrs["bounds"], node.inputs[0].shape, strict=True):
                names = _symbols(size, start, stop)
                if names and not (start == 0 and stop == size and step == 1):
                    numbers = [k for x in (start, stop) for k in numbers_in(x)]
                    meet(names, numbers if isinstance(size, d.Expr) else [*numbers, size])
                    if abs(step) > 1:
                        meet(names, [abs(step)], blocks)
        elif name == "pad":
            for pair, size in zip(node.attrs["padding"], node.inputs[0].shape, strict=True):
                if names := _symbols(size, *pair):
                    meet(names, [k for x in pair for k in numbers_in(x)])
        elif node.op.group == "index":
            size = node.inputs[0].shape[node.attrs["axis"]]
            if node.inputs[1] not in hangs:                 # given indices are drawn at all positions (integer_inputs.py)
                meet(_symbols(node.inputs[1].shape, size), numbers_in(size))
        elif name in ("less", "not_equal", "max", "add", "mul", "idiv", "and", "xor") and node.inputs[0].dtype.kind != "bool" and (
                node not in hangs):
            values = [_behind(i) for i in node.inputs]
            constants = [v.attrs["value"] for v in values if v.op is leaves.CONSTANT]
            names = _symbols(shape, *[c for c in constants if isinstance(c, d.Expr)])
            if node.inputs[0].dtype.kind == "float" and name not in ("less", "not_equal", "max"):
                continue
            numbers = [abs(int(c)) for c in constants if isinstance(c, (int, float)) and not isinstance(c, bool)
                       and abs(c) < 2**40 and float(c).is_integer()]
            numbers += [k for c in constants if isinstance(c, d.Expr) for k in numbers_in(c)]
            meet(names, numbers, blocks if name == "idiv" else met)
    return met, blocks


def choose(roots: Sequence[Node], symbols: Mapping[str, tuple[int, int]]) -> Sizes:
    """Return the sizes at which graphs over these atomic nodes have to be compared. symbols: lowest and highest size by dim."""
    if not symbols:
        return Sizes(({},), {}, {})
    order = walk(roots)
    met, blocks = meeting(order)
    taken = {k for node in order for value in (*node.attrs.values(), *(t.shape for t in node.types)) for k in _numbers(value)}
    for node in order:
        value = node.attrs.get("value")
        if isinstance(value, ArrayValue):
            taken |= set(value.array().shape)
    names = sorted(symbols)

    def generic(skip: int) -> dict[str, int]:
        binding: dict[str, int] = {}
        wanted = [k for k in _GENERIC if k not in taken]
        for place, name in enumerate(names):
            low, high = symbols[name]
            here = [k for k in wanted if low <= k <= high and k not in binding.values()]
            if here:
                binding[name] = here[min(skip, len(here) - 1)]
            else:
                binding[name] = min(high, low + 3 + skip + place) if high - low > 40 else min(high, low + skip)
        return binding

    bindings: list[dict[str, int]] = []

    def add(binding: dict[str, int]) -> None:
        inside = all(symbols[k][0] <= v <= symbols[k][1] for k, v in binding.items())
        if inside and binding not in bindings:
            bindings.append(binding)

    first, second = generic(0), generic(1)
    add(first)
    add(second)
    degree = sum(len(monomial) for node in order if node.op is leaves.CONSTANT and isinstance(node.attrs["value"], d.Expr)
                 for monomial, _ in node.attrs["value"].terms[:1])
    for skip in range(2, min(degree, _MOST_GENERIC)):       # a polynomial of the dims may be 0 at as many sizes
        add(generic(skip))
    used: dict[str, tuple[int, ...]] = {}
    for name in names:
        low, high = symbols[name]
        wanted = list(range(low, high + 1)) if high - low < _FEW else [low, low + 1]
        numbers = sorted(w for w in met.get(name, ()) if low - 1 <= w <= high + 1)
        divisors = sorted(b for b in blocks.get(name, ()) if b <= high)
        for w in numbers:
            wanted += [w - 1, w, w + 1, 2 * w + 1]
        for b in divisors:
            wanted += [2 * b, 2 * b + 1, 3 * b - 1] if 3 * b - 1 <= high else [b - 1, b, b + 1, high]
        if numbers or divisors:
            used[name] = tuple(sorted({*numbers, *divisors}))
        for size in wanted:
            add({**first, name: size})
    if len(names) > 1:
        add({name: symbols[name][0] for name in names})
        for a in range(len(names) - 1):                     # equal sizes, where an axis could be taken for another
            low = max(symbols[names[a]][0], symbols[names[a + 1]][0])
            add({**first, names[a]: max(low, 4), names[a + 1]: max(low, 4)})
    further = {name: min(symbols[name][1], max(symbols[name][0], _LARGER[place % len(_LARGER)]))
               for place, name in enumerate(names)}
    return Sizes(tuple(bindings), used, further)


def unseen(order: Sequence[Node], tested: Sequence[Mapping[str, int]], symbols: Mapping[str, tuple[int, int]]) -> Node | None:
    """Return a node that depends on sizes alone and is one number at all tested sizes but not at large ones, or None. Example: i //
    40 < 30, a threshold that is no number of the program. Large: the highest size, or the largest with at most _LARGEST_PROBE
    elements."""
    probed = [node for node in closed(order) if node.op.name in _PROBED]
    if not probed or not symbols:
        return None
    for name in symbols:                                    # one dim large at a time, then all
        bad = _changes(probed, tested, {**tested[0], name: symbols[name][1]}, symbols, {name})
        if bad is not None:
            return bad
    return _changes(probed, tested, {name: high for name, (_, high) in symbols.items()}, symbols, set(symbols))


def _changes(nodes: Sequence[Node], tested: Sequence[Mapping[str, int]], large: Mapping[str, int],
             symbols: Mapping[str, tuple[int, int]], free: set[str]) -> Node | None:
    large = dict(large)
    while True:
        try:
            most = max(d.evaluate(node.type.size(), large) for node in walk(nodes))
        except d.DimError:
            return None
        if most <= _LARGEST_PROBE:
            break
        smaller = {name: max(symbols[name][0], large[name] // 2) if name in free else large[name] for name in large}
        if smaller == large:
            return None
        large = smaller
    at_large = _values(nodes, large)
    at_tested = [_values(nodes, binding) for binding in tested]
    for k, node in enumerate(nodes):
        small = set().union(*(_few(v[k]) for v in at_tested))
        if len(small) == 1 and _few(at_large[k]) - small:
            return node
    return None


def _few(x: Any) -> set[Any]:
    """Return the least and the largest value of an array, as a set; the empty set for None or an empty array."""
    return set() if x is None or x.size == 0 else {x.min().item(), x.max().item()}


def _values(nodes: Sequence[Node], binding: Mapping[str, int]) -> list[Any]:
    try:
        return [np.asarray(x) for x in evaluate(nodes, {}, binding)]
    except TensorGraphsError:
        return [None] * len(nodes)
