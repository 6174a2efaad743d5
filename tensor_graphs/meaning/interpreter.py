"""interpreter: the float64 oracle. What a graph computes, without any kernel; the reference of every error.

Composites are evaluated by their direct float64 form where they have one (a test holds it to the definition), else through their
definition. Weights stay in the caller's dtype and are widened when an op reads them, so a model's oracle needs little more memory
than its largest weight in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.composite import CompositeOp, resolve_attributes
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import ArrayValue, Node, TensorType, walk
from tensor_graphs.meaning.algebra import Array, AsWritten, At, Real, carrier, round_to
from tensor_graphs.meaning.errors import MeaningError

Mode = Literal["real", "as_written"]

ROW_READERS = frozenset({"embedding", "gather"})
"""ops that read a few rows of operand 0: it is not widened as a whole"""


@dataclass(frozen=True)
class Result:
    """Values by name: floats as float64, integers and booleans in their own dtype."""

    outputs: dict[str, Array]
    updates: dict[str, Array]


def evaluate(nodes: Sequence[Node], leaf_values: Mapping[Node, Any], binding: Mapping[str, int], mode: Mode = "real",
             use_direct: bool = True) -> list[Array]:
    """The values of nodes, given an array for every leaf that is no constant, and a size for every dim.

    mode "real": floats are never rounded. "as_written": every float is rounded to its dtype at every node (composites run through
    their definitions), and comes back in it. use_direct=False: definitions instead of direct forms. Raises MeaningError for a leaf
    without a value.
    """
    found = _evaluate(nodes, leaf_values, binding, mode, use_direct)
    if mode == "real":
        return found
    with np.errstate(all="ignore"):
        return [value.astype(node.dtype.numpy) for node, value in zip(nodes, found, strict=True)]


def _evaluate(nodes: Sequence[Node], leaf_values: Mapping[Node, Any], binding: Mapping[str, int], mode: Mode,
              use_direct: bool) -> list[Array]:
    if mode not in ("real", "as_written"):
        raise MeaningError(f"mode {mode!r}: 'real' or 'as_written'")
    algebra = AsWritten() if mode == "as_written" else Real()
    order = walk(nodes)
    last: dict[Node, int] = {}
    for i, node in enumerate(order):
        for x in node.inputs:
            last[x] = i
    wanted = set(nodes)
    values: dict[Node, tuple[Any, ...]] = {}
    for i, node in enumerate(order):
        types = tuple(t.at(binding) for t in node.types)
        if node.op.kind == "leaf":
            values[node] = (_leaf(node, leaf_values, binding, types[0], algebra),)
        elif node.op is leaves.ITEM:
            values[node] = (values[node.inputs[0]][node.attrs["index"]],)
        elif node.op is leaves.COPY_TO:
            values[node] = values[node.inputs[0]]
        else:
            operands = [_operand(node, k, values[x][0], x, algebra) for k, x in enumerate(node.inputs)]
            values[node] = _apply(node, operands, types, binding, algebra, mode, use_direct)
        for x in node.inputs:                                     # nothing is kept longer than it is read
            if last[x] == i and x not in wanted:
                values.pop(x, None)
    return [_operand(None, 0, values[n][0], n, algebra) for n in nodes]


def _leaf(node: Node, given: Mapping[Node, Any], binding: Mapping[str, int], t: TensorType, algebra: Real) -> Any:
    if node.op is leaves.CONSTANT:
        value = node.attrs["value"]
        if isinstance(value, d.Expr):
            value = d.evaluate(value, binding)
        if isinstance(value, ArrayValue):
            return value.array().astype(carrier(t.dtype))
        if t.dtype.kind == "float":                               # a literal is a real number; it is rounded only as written
            return algebra.value(np.asarray(float(value), dtype=np.float64), t.dtype)
        return np.asarray(value).astype(t.dtype.numpy)
    if node not in given:
        raise MeaningError(f"{node.op.name} {node.attrs.get('name', node.attrs.get('index'))!r} ({t}) has no value")
    array = np.asarray(given[node])
    if array.shape != t.shape:
        raise MeaningError(f"{node.op.name} {node.attrs.get('name', '')!r} is {t}, the array has shape {array.shape}")
    return array


def _operand(reader: Node | None, position: int, value: Any, source: Node, algebra: Real) -> Array:
    """A value as ops take it: leaves are widened when they are read."""
    array: Array = value
    if source.op.kind != "leaf":
        return array
    if reader is not None and position == 0 and reader.op.name in ROW_READERS and array.size > 1 << 20 and not algebra.rounds:
        return array
    dtype = source.dtype
    widened = array.astype(carrier(dtype), copy=False)
    return round_to(widened, dtype) if algebra.rounds and dtype.kind == "float" else widened


def _apply(node: Node, operands: list[Array], types: tuple[TensorType, ...], binding: Mapping[str, int], algebra: Real, mode: Mode,
           use_direct: bool) -> tuple[Array, ...]:
    attrs = resolve_attributes(node.attrs, binding)
    if isinstance(node.op, AtomicOp):
        at = At(node, attrs, types, tuple(x.type.at(binding) for x in node.inputs))
        return (np.asarray(node.op.meaning(algebra, at, *operands)),)
    assert isinstance(node.op, CompositeOp)
    if node.op.direct is not None and use_direct and not algebra.rounds:
        with np.errstate(all="ignore"):
            found = node.op.direct(node.op.by_role(operands, node.attrs), attrs, types)
        outputs = found if isinstance(found, tuple) else (found,)
        return tuple(np.asarray(o).astype(carrier(t.dtype), copy=False).reshape(tuple(t.shape))
                     for o, t in zip(outputs, types, strict=True))
    definition = node.op.define([x.type for x in node.inputs], node.attrs)
    inner = dict(zip(definition.arguments, operands, strict=True))
    return tuple(_evaluate(list(definition.outputs), inner, binding, mode, use_direct))


def solve(graph: Graph, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, int] | None = None) -> dict[str, int]:
    """A size for every dim of a graph: given ones, and those that the inputs' shapes say. Raises MeaningError."""
    found = {name: int(v) for name, v in (given or {}).items()}
    unknown = sorted(set(found) - set(graph.dims))
    if unknown:
        raise MeaningError(f"the graph has no dim named {', '.join(unknown)}; it has {', '.join(graph.dims) or 'none'}")
    for name, node in graph.inputs.items():
        shape = shapes[name]
        if len(shape) != node.rank:
            raise MeaningError(f"input {name!r} is {node.type}, the array has shape {shape}")
        for size, s in zip(shape, node.shape, strict=True):
            if isinstance(s, d.Expr) and graph.dims.get(str(s)) == s and found.setdefault(str(s), size) != size:
                raise MeaningError(f"input {name!r} has shape {shape}, but dim {s} is {found[str(s)]}")
    missing = sorted(set(graph.dims) - set(found))
    if missing:
        raise MeaningError(f"dim {', '.join(missing)} follows from no input's shape\n"
                           f"  fix: interpret(…, dims={{{missing[0]!r}: …}})")
    return found


def interpret(graph: Graph, inputs: Mapping[str, Any] | None = None, parameters: Mapping[str, Any] | None = None,
              states: Mapping[str, Any] | None = None, dims: Mapping[str, int] | None = None, mode: Mode = "real",
              use_direct: bool = True) -> Result:
    """The outputs and state updates of a graph. States that are not given are zero. Raises MeaningError for what does not fit."""
    values: dict[Node, Any] = {}
    for kind, nodes, given in (("input", graph.inputs, inputs or {}), ("parameter", graph.parameters, parameters or {})):
        for name, node in nodes.items():
            if name not in given:
                raise MeaningError(f"{kind} {name!r} ({node.type}) is not given")
            values[node] = np.asarray(given[name])
        extra = [name for name in given if name not in nodes] if isinstance(given, dict) else []
        if extra:
            raise MeaningError(f"the graph has no {kind} named {extra[0]!r}; it has {', '.join(nodes) or 'none'}")
    binding = solve(graph, {name: values[node].shape for name, node in graph.inputs.items()}, dims)
    for name, node in graph.states.items():
        shape = tuple(int(s) for s in node.type.at(binding).shape)
        given_state = (states or {}).get(name)
        values[node] = np.zeros(shape, dtype=carrier(node.dtype)) if given_state is None else np.asarray(given_state)
    found = evaluate(list(graph.roots), values, binding, mode, use_direct)
    count = len(graph.outputs)
    return Result(dict(zip(graph.outputs, found[:count], strict=True)), dict(zip(graph.updates, found[count:], strict=True)))
