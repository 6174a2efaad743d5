"""size_breakpoints: the sizes at which positions along an axis, where values are moved or compared, change their order.

A graph moves values along axes (pad, slice, gather at known positions) and compares positions with positions and sizes. The result
depends on the order of these *cuts*: whether a shift by m leaves any of n elements, or which of two sizes is larger. The difference
of two cuts is an expression of sizes. Where its sign is not the same for all sizes, each sign that it takes (below 0, 0, above),
together with those of the other differences, has to occur among the sizes compared. The distances by which a value may have been
moved, from the left end and from the right, are followed for all axes together: this finds too many cuts, but misses none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Dim, Expr
from tensor_graphs.language.node import Node, walk
from tensor_graphs.proof.decidable_fragment import LinearForm

MOST_DISTANCES = 32
"""Most distances by which one node may have been moved."""

MOST_DIFFERENCES = 600

MOST_SIZES = 24
"""Most sizes that are added for the differences."""

MOST_MIXED = 2
"""Most differences of several sizes with varying sign: near the ends of the sizes' ranges two show all signs, more may not."""

MOST_TRIED = 4000

_NEAR = 2
"""Largest distance from the ends of a range at which sizes are tried; also the largest factor and number of a difference."""

Distances = frozenset[Dim]

STILL: Distances = frozenset({0})


@dataclass
class Places:
    """Result of the search. added: sizes that have to be compared. missing: why these are not enough, or ""."""

    added: tuple[dict[str, int], ...] = ()
    missing: str = ""


@dataclass
class _Cuts:
    """Cuts found so far. differences: expressions of sizes whose signs matter. distances: all distances in the graphs."""

    differences: dict[Dim, None] = field(default_factory=dict)
    distances: set[Dim] = field(default_factory=set)
    missing: str = ""

    def meet(self, *differences: Dim) -> None:
        for difference in differences:
            if isinstance(difference, Expr):
                self.differences.setdefault(difference)
        if len(self.differences) > MOST_DIFFERENCES:
            self.missing = "too many places are compared with each other"


def find(order: Sequence[Node], positions: Mapping[Node, LinearForm], first: Mapping[str, int],
         symbols: Mapping[str, tuple[int, int]]) -> Places:
    """Return the sizes at which graphs in atomic ops have to be compared because of their cuts.

    positions: linear forms of indices and comparisons that sizes alone determine (`Findings.positions`). first: generic sizes.
    symbols: lowest and highest size by name.
    """
    if not any(high > low for low, high in symbols.values()):
        return Places()
    cuts = _Cuts()
    left: dict[Node, Distances] = {}
    right: dict[Node, Distances] = {}
    for node in order:
        left[node], right[node] = _moved(node, left, right, positions, cuts, symbols)
        if len(left[node]) > MOST_DISTANCES or len(right[node]) > MOST_DISTANCES:
            cuts.missing = "values are moved by too many distances"
        if cuts.missing:
            return Places(missing=cuts.missing)
    sized = [x for x in cuts.distances if isinstance(x, Expr)]
    cuts.meet(*(a - b for a, b in itertools.combinations(sized, 2)))
    if cuts.missing:
        return Places(missing=cuts.missing)
    return _sizes_for([x for x in cuts.differences if isinstance(x, Expr)], first, symbols)


def _moved(node: Node, left: Mapping[Node, Distances], right: Mapping[Node, Distances], positions: Mapping[Node, LinearForm],
           cuts: _Cuts, symbols: Mapping[str, tuple[int, int]]) -> tuple[Distances, Distances]:
    if not node.inputs or node.op in leaves.NAMED_LEAVES:
        return STILL, STILL
    name = node.op.name
    by_left = frozenset().union(*(left[i] for i in node.inputs))
    by_right = frozenset().union(*(right[i] for i in node.inputs))
    if name == "pad":
        pairs = [(axis, pair) for axis, pair in enumerate(node.attrs["padding"]) if pair != (0, 0)]
        ends = [(node.shape[axis], before, after) for axis, (before, after) in pairs]
    elif name == "slice":
        ends = []
        for (start, stop, step), size in zip(node.attrs["bounds"], node.inputs[0].shape, strict=True):
            if (start, stop, step) == (0, size, 1):
                continue
            if step < 0:
                by_left, by_right = by_left | by_right, by_left | by_right
                start, stop = stop + 1, start + 1
            ends.append((stop - start, -start, stop - size))
    elif node in positions:
        form = positions[node]
        indices = form.plus + form.minus
        ends = []
        for by in _added(form, symbols):
            if node.op.group == "index":
                axis = node.inputs[0].shape[node.attrs["axis"]]
                ends.append((axis, by, 0))
                cuts.meet(*([axis - s - by for s in node.inputs[1].shape] if indices else [by, axis - 1 - by]))
            elif indices:
                along = {n.shape[n.attrs["axis"]] for n in walk([node]) if n.op.name == "iota"}
                ends += [(size, by, 0) for size in along]
                if indices == 1:                                # what an index is compared with lies as far from the right end
                    ends += [(size, 0, size - by) for size in along]
            else:
                cuts.meet(by)
    else:
        return by_left, by_right
    moved_left, moved_right = set(by_left), set(by_right)
    for size, before, after in ends:
        if not any(isinstance(x, Expr) for x in (size, before, after)):
            continue                                            # an axis that is the same at all sizes
        new_left, new_right = {x + before for x in by_left}, {x + after for x in by_right}
        for x in (*new_left, *new_right):
            cuts.meet(x, size - x, size + x)
        cuts.meet(*(size - x - y for x in new_left for y in new_right))
        moved_left |= new_left
        moved_right |= new_right
    cuts.distances |= moved_left | moved_right
    if any(abs(x) > 1 for x in (*moved_left, *moved_right) if isinstance(x, int)):
        cuts.missing = "values are moved by several places in all, and not all sizes at which that matters were looked at"
    return frozenset(moved_left), frozenset(moved_right)


def _added(form: LinearForm, symbols: Mapping[str, tuple[int, int]]) -> list[Dim]:
    """Return the values of a form without its indices, up to signs: sizes + literal, sizes − literal, and their negations."""
    sizes: Dim = 0
    for name, factor in form.sizes:
        sizes = sizes + factor * d.dim(name, *symbols[name])
    return list(dict.fromkeys(sign * x for x in (sizes + form.gap, sizes - form.gap) for sign in (1, -1)))


def _sizes_for(differences: Sequence[Expr], first: Mapping[str, int], symbols: Mapping[str, tuple[int, int]]) -> Places:
    """Return sizes at which the differences take every sign that they can, and those of several sizes every combination."""
    alone: dict[str, set[int]] = {}
    mixed: list[Expr] = []
    for difference in differences:
        low, high = d.bounds(difference)
        if low > 0 or high < 0 or low == high:
            continue
        names = sorted(difference.symbols)
        factors = [k for monomial, k in difference.terms if monomial]
        if any(len(monomial) > 1 or isinstance(monomial[0], d.Call) for monomial, _ in difference.terms if monomial):
            return Places(missing=f"whether {difference} is above 0, which places depend on, was not seen at all sizes")
        if len(names) == 1:
            number = sum(k for monomial, k in difference.terms if not monomial)
            root = -number // factors[0]
            alone.setdefault(names[0], set()).update({root - 1, root, root + 1, root + 2})
        elif low < 0 < high or sum(abs(k) for k in factors) > 2:
            mixed.append(difference)
    if len({max(str(x), str(-x)) for x in mixed}) > MOST_MIXED:
        return Places(missing=f"whether {mixed[0]} is above 0, which places depend on, and more like it, was not seen at all sizes")
    added = [{**first, name: size} for name, sizes in alone.items() for size in sorted(sizes)
             if symbols[name][0] <= size <= symbols[name][1]]
    if mixed:
        patterns = _patterns(mixed, first, symbols)
        if patterns is None:
            return Places(missing=f"whether {mixed[0]} is above 0, which places depend on, was not seen at all sizes")
        added += patterns
    added = [b for k, b in enumerate(added) if b not in added[:k]]
    if len(added) > MOST_SIZES:
        return Places(missing="values are moved by several places in all, and not all sizes at which that matters were looked at")
    return Places(tuple(added))


def _patterns(mixed: Sequence[Expr], first: Mapping[str, int],
              symbols: Mapping[str, tuple[int, int]]) -> list[dict[str, int]] | None:
    """Return one choice of sizes for every combination of signs of the differences; None where combinations may be missing."""
    names = sorted({name for difference in mixed for name in difference.symbols})
    numbers = [k for difference in mixed for _, k in difference.terms]
    if max(map(abs, numbers)) > _NEAR:
        return None
    marks = {x + k for name in names for x in symbols[name] for k in range(-_NEAR, 2 * _NEAR + 2)}
    values = {name: sorted(v for v in marks | {first[name]} if symbols[name][0] <= v <= symbols[name][1]) for name in names}
    if math.prod(map(len, values.values())) > MOST_TRIED:
        return None
    by_signs: dict[tuple[int, ...], dict[str, int]] = {}
    for at in sorted(itertools.product(*values.values()), key=sum):
        binding = dict(zip(names, at, strict=True))
        signs = tuple((v > 0) - (v < 0) for v in (d.evaluate(difference, {**first, **binding}) for difference in mixed))
        by_signs.setdefault(signs, {**first, **binding})
    return list(by_signs.values())
