"""conditions: conditions between sizes that could not be proved when the graph was written, such as a slice inside its axis.

A shape rule refuses what is wrong at every size, and accepts what is right at some sizes (x[5] of an axis of 0 to 16). The
remaining conditions are collected once per graph, and evaluated at the sizes of a run before anything is read or written. An op's
conditions are in its row (`conditions`); those inside of a composite's definition are collected too. A write into a state must end
inside of the state: the op drops rows beyond the end, but a state that lost rows would give wrong results later.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import CompositeOp, Definition, looked_into
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.errors import Location
from tensor_graphs.language.node import Node, alike, walk


@dataclass(frozen=True)
class Condition:
    """The condition gap ≥ 0. op, text: the op and the message if it fails. location: the user's line."""

    gap: Dim
    op: str
    text: str
    location: Location | None = None
    otherwise: str = "other bounds where the dim is made"
    """a fix other than different sizes, for the message"""

    def __str__(self) -> str:
        return f"{self.op}{f' at {self.location}' if self.location else ''}: {self.text}"

    @property
    def wanted(self) -> str:
        """The condition as a comparison of two sums, such as n + p ≤ 256."""
        more, less = d.parts(self.gap)
        if d.is_static(more):
            return f"{d.format_dim(less)} ≤ {d.format_dim(more)}"
        return f"{d.format_dim(more)} ≥ {d.format_dim(less)}"


def at_least(large: Dim, small: Dim, op: str, text: str) -> list[Condition]:
    """Return the condition large ≥ small as a list of one; [] if it holds at every size in range."""
    return [] if dim_ge(large, small) is True else [Condition(large - small, op, text)]


def conditions_of(roots: Sequence[Node]) -> tuple[Condition, ...]:
    """Return each condition that some size in range fails, once, in node order; those of definitions get the caller's line."""
    conditions: dict[Dim, Condition] = {}
    for node, first in alike(walk(roots)).items():
        for c in _of_node(node) if node is first else _within_state(node):
            conditions.setdefault(c.gap, replace(c, location=node.location))
    return tuple(conditions.values())


def all_hold(conditions: Sequence[Condition], binding: Mapping[str, int]) -> bool:
    """Return True if a graph with these conditions can run at the sizes of `binding`."""
    return all(d.evaluate(c.gap, binding) >= 0 for c in conditions)


def written_state(node: Node) -> Node | None:
    """Return the state that a write writes into, directly or after other writes; None if it writes into another value."""
    while node.op.name in ("write_rows", "write_at_index", "scatter"):
        node = node.inputs[0]
    return node if node.op is leaves.STATE else None


def _within_state(node: Node) -> Iterable[Condition]:
    """Yield the conditions of a write of rows into a state. A start below 0, which keeps the end of the written value, is allowed;
    rows beyond the last row of the state, which would be lost, are a mistake."""
    state = written_state(node) if node.op.name == "write_rows" else None
    if state is None:
        return
    axis, start, count = node.attrs["axis"], node.attrs["start"], node.inputs[1].shape[node.attrs["axis"]]
    rows = state.shape[axis]
    text = (f"the state {state.attrs['name']!r} has {d.format_dim(rows)} rows along axis {axis}, "
            f"{d.format_dim(count)} are written from {d.format_dim(start)} on")
    for c in at_least(rows, start + count, "write_rows", text):
        yield replace(c, otherwise=f"more rows where the state {state.attrs['name']!r} is made")


_of_definition: weakref.WeakKeyDictionary[Definition, tuple[Condition, ...]] = weakref.WeakKeyDictionary()


def _of_node(node: Node) -> Iterable[Condition]:
    if (node.op.kind == "leaf" and node.op is not leaves.INPUT) or node.op is leaves.ITEM:
        return
    own: Callable[[Node], Iterable[Condition]] | None = getattr(node.op, "conditions", None)
    if own is not None:
        yield from own(node)
    yield from _within_state(node)
    if isinstance(node.op, CompositeOp):
        definition = looked_into(node)
        if definition not in _of_definition:
            _of_definition[definition] = conditions_of(definition.outputs)
        yield from (replace(c, op=f"{c.op} in {node.op.name}") for c in _of_definition[definition])
    elif "shape" in node.attrs:                              # sizes of its own, not only its operands'
        for axis, size in enumerate(node.attrs["shape"]):
            yield from at_least(size, 0, node.op.name, f"axis {axis} of {node.type} has the size {d.format_dim(size)}, below 0")
