"""row_independence: the step of a loop restricted to a few of its rows, where rows are independent.

A row is the slice of the carries at one index of their first axis. A step keeps rows independent if a row of its results depends
only on that row of its inputs and on inputs without rows (weights). Some rows can then run through all iterations alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.composite import CompositeOp, Definition, defined, definition_digest, is_loop
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.node import Node, TensorType, apply, walk
from tensor_graphs.language.subgraph import Body

MOST_TRIED = 4
"""most operands for which both cases are tried: their first axis is the axis of rows, or is not"""


class RowsMeet(Exception):
    """A step that combines several rows; the message is a readable reason."""


@dataclass(frozen=True)
class FewRows:
    """A step on a few rows. of_arguments, of_outputs: whether each of its arguments and returned values has rows."""

    step: Definition
    of_arguments: tuple[bool, ...]
    of_outputs: tuple[bool, ...]


def few_rows(body: Body, carries: int, count: int) -> FewRows:
    """Return the step on `count` rows. Raises RowsMeet."""
    if not carries or not all(t.rank for t in body.types[:carries]):
        raise RowsMeet("it carries no rows from turn to turn")
    rows = body.types[0].shape[0]
    why: RowsMeet | LanguageError | None = None
    for has in _candidates(body, carries, rows):
        try:
            return _on(body, has, rows, count)
        except (RowsMeet, LanguageError) as e:
            why = why or e
    raise RowsMeet(str(why).splitlines()[0])


def _candidates(body: Body, carries: int, rows: Dim) -> Iterator[list[bool]]:
    """Yield guesses which arguments have rows. Carries always do; slices and others may if their first axis is as long."""
    may = [i for i, t in enumerate(body.types) if i >= carries and t.rank and same_dim(t.shape[0], rows)]
    for changed in itertools.product((True, False), repeat=min(len(may), MOST_TRIED)):
        with_rows = {*range(carries), *(i for i, yes in zip(may, changed, strict=False) if yes)}
        yield [i in with_rows for i in range(len(body.types))]


def _on(body: Body, has: Sequence[bool], rows: Dim, count: int) -> FewRows:
    kinds: dict[Node, tuple[bool, ...]] = {a: (h,) for a, h in zip(body.arguments, has, strict=True)}
    arguments = [leaves.argument(i, _few(t, h, count)) for i, (t, h) in enumerate(zip(body.types, has, strict=True))]
    new_nodes: dict[Node, Node] = dict(zip(body.arguments, arguments, strict=True))
    for node in walk(body.outputs):
        if node in new_nodes:
            continue
        inner = [kinds[i] for i in node.inputs]
        kinds[node] = _kinds(node, inner, rows)
        new = new_nodes[node] = node if node.op.kind == "leaf" else apply(
            node.op, [new_nodes[i] for i in node.inputs], _attributes(node, kinds[node][0], rows, count))
        if new.types != tuple(_few(t, k, count) for t, k in zip(node.types, kinds[node], strict=True)):
            raise RowsMeet(f"{node.op.name} of fewer rows is {', '.join(map(str, new.types))}")
    outputs = tuple(new_nodes[o] for o in body.outputs)
    of_outputs = tuple(kinds[o][0] for o in body.outputs)
    return FewRows(Definition(tuple(arguments), outputs, definition_digest(outputs)), tuple(has), of_outputs)


def _few(t: TensorType, has: bool, count: int) -> TensorType:
    return TensorType((count, *t.shape[1:]), t.dtype) if has else t


def _attributes(node: Node, has: bool, rows: Dim, count: int) -> Mapping[str, Any]:
    if not has:
        return node.attrs
    attrs = dict(node.attrs)
    if isinstance(attrs.get("shape"), tuple) and attrs["shape"] and same_dim(attrs["shape"][0], rows):
        attrs["shape"] = (count, *attrs["shape"][1:])
    if node.op.name == "slice":
        attrs["bounds"] = ((0, count, 1), *attrs["bounds"][1:])
    return attrs


def _kinds(node: Node, inner: Sequence[tuple[bool, ...]], rows: Dim) -> tuple[bool, ...]:
    """Return whether each value of a node has rows along its first axis. Raises RowsMeet if the node combines rows."""
    if node.op is leaves.ITEM:
        return (inner[0][node.attrs["index"]],)
    has = [inner_node[0] for inner_node in inner]
    if isinstance(node.op, CompositeOp):
        if is_loop(node.op):
            if any(has):
                raise RowsMeet(f"{node.op.name} takes turns of its own")
            return (False,) * len(node.types)
        definition = defined(node)
        kinds: dict[Node, tuple[bool, ...]] = {a: (h,) for a, h in zip(definition.arguments, has, strict=True)}
        for inner_node in walk(definition.outputs):
            if inner_node not in kinds:
                kinds[inner_node] = _kinds(inner_node, [kinds[i] for i in inner_node.inputs], rows)
        return tuple(kinds[o][0] for o in definition.outputs)
    if node.op.kind == "leaf":
        return (False,)
    return (_kind(node, has, rows),)


def _kind(node: Node, has: Sequence[bool], rows: Dim) -> bool:
    """Return whether the value of an atomic op has rows. Raises RowsMeet if the op combines rows."""
    name, attrs, shape = node.op.name, node.attrs, node.shape
    as_long = bool(shape) and same_dim(shape[0], rows)
    if name == "iota":
        return as_long and attrs["axis"] != 0
    if not any(has):                                                # one row for all of them, or no rows
        return name == "expand" and as_long and node.inputs[0].shape[0] == 1
    x = node.inputs[0]
    apart = {
        "sum": lambda: 0 not in attrs["axes"],
        "reduce_max": lambda: 0 not in attrs["axes"],
        "permute": lambda: attrs["axes"][0] == 0,
        "reshape": lambda: as_long,
        "expand": lambda: as_long,
        "slice": lambda: attrs["bounds"][0][0] == 0 and attrs["bounds"][0][2] == 1 and as_long,
        "pad": lambda: tuple(attrs["padding"][0]) == (0, 0),
        "gather": lambda: False,
        "scatter": lambda: False,
        "bitcast": lambda: x.rank > 1,
    }.get(name, lambda: all(has))
    if not apart():
        raise RowsMeet(f"{name} takes several rows together")
    return True
