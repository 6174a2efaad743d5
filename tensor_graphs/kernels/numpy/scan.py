"""scan: the op `scan` as a Python loop that calls numpy functions of this backend for each op of the step.

In: operands as on the op's page.  Out: the carries after the last iteration, then the stacked values of all iterations. The step is
translated into calls once per sizes. All iterations share the memory of its values; each carry has two buffers: read, written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.numpy import atomics, composites
from tensor_graphs.kernels.numpy.atomics import Arrays, Function
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import LIBRARY, CompositeOp, expand_all
from tensor_graphs.language.composites.scan import SCAN
from tensor_graphs.language.node import ArrayValue, Node, TensorType, walk
from tensor_graphs.language.subgraph import Body, Turns


@dataclass(frozen=True)
class BodyCall:
    """One call of a numpy function in a step. ins, outs: numbers of the values that it reads and writes (see BodyCalls)."""

    function: Function
    attrs: Mapping[str, Any]
    ins: tuple[int, ...]
    outs: tuple[int, ...]


@dataclass(frozen=True)
class BodyCalls:
    """The body of a scan as a list of calls on numbered values; the first numbers are the body's arguments. constants: values known
    before the loop. made: types of the values that calls write. results: numbers of the body's outputs."""

    steps: tuple[BodyCall, ...]
    constants: Mapping[int, np.ndarray]
    made: Mapping[int, TensorType]
    results: tuple[int, ...]


def refuse(spec: Spec) -> str | None:
    """Return None where every op in the scan's step has a numpy function, else a reason that names an op without one."""
    for node in walk(_written(spec.attrs["step"])):
        if node.op is not leaves.ITEM and not isinstance(node.op, leaves.Leaf) and _function(node) is None:
            return f"{node.op.name} in the step has no function here"
    return None


def scan(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Run all iterations and write the last carries and the stacked values to `outs`."""
    turns = Turns(ins, attrs)
    count = len(turns.carries)
    program = program_of(turns.step)
    new, stacks = outs[:count], outs[count:]
    old = [np.array(c) for c in turns.carries]
    fresh = [np.empty_like(c) for c in old]
    values: dict[int, np.ndarray] = {**program.constants, **{i: np.empty(t.shape, t.dtype.numpy) for i, t in program.made.items()}}
    first = count + len(turns.sliced)
    values.update(enumerate(turns.others, first))
    for t in turns.order(len(turns.sliced[0])):
        values.update(enumerate(old))
        values.update(enumerate((x[t] for x in turns.sliced), count))
        for step in program.steps:
            step.function([values[i] for i in step.outs], [values[i] for i in step.ins], step.attrs)
        for at, result in enumerate(program.results):
            np.copyto(fresh[at] if at < count else stacks[at - count][t, ...], values[result])
        old, fresh = fresh, old
    for out, carry in zip(new, old, strict=True):
        np.copyto(out, carry)


def _written(body: Body) -> list[Node]:
    """Return the outputs of a body, with each composite that has no numpy function expanded into its definition."""
    return expand_all(body.outputs, lambda node: _function(node) is not None)


def _function(node: Node) -> Function | None:
    """Return the numpy function that computes a node, or None."""
    name = node.op.name
    if node.op is SCAN:
        return scan if refuse(Spec.of(node)) is None else None
    if isinstance(node.op, CompositeOp):
        row = composites.TABLE.get(name) if LIBRARY.get(name) is node.op else None
        accepts = composites.ACCEPTS.get(name)
        return None if row is None or (accepts is not None and accepts(Spec.of(node)) is not None) else row[0]
    row = atomics.TABLE.get(name)
    return row and row[0]


@lru_cache(maxsize=256)
def program_of(body: Body) -> BodyCalls:
    """Return the calls of a body whose sizes are all numbers. Ops of constants alone are evaluated now."""
    numbers: dict[Node, tuple[int, ...]] = {a: (i,) for i, a in enumerate(body.arguments)}
    constants: dict[int, np.ndarray] = {}
    types: dict[int, TensorType] = {}
    steps = []
    following = len(body.arguments)
    roots = _written(body)
    for node in walk(roots):
        if node in numbers:
            continue
        if node.op is leaves.ITEM:
            numbers[node] = (numbers[node.inputs[0]][node.attrs["index"]],)
            continue
        if node.op is leaves.COPY_TO:
            numbers[node] = numbers[node.inputs[0]]
            continue
        numbers[node] = outs = tuple(range(following, following + len(node.types)))
        following += len(outs)
        if node.op is leaves.CONSTANT:
            value = node.attrs["value"]
            constants[outs[0]] = _number(value.array() if isinstance(value, ArrayValue) else value, node.type)
            continue
        ins = tuple(numbers[i][0] for i in node.inputs)
        function = _function(node)
        assert function is not None
        if all(i in constants for i in ins):                        # the same in each iteration
            values = [np.empty(t.shape, t.dtype.numpy) for t in node.types]
            function(values, [constants[i] for i in ins], node.attrs)
            constants.update(zip(outs, values, strict=True))
            continue
        types.update(zip(outs, node.types, strict=True))
        steps.append(BodyCall(function, node.attrs, ins, outs))
    return BodyCalls(tuple(steps), constants, types, tuple(numbers[r][0] for r in roots))


def _number(value: Any, t: TensorType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(t.dtype.numpy).reshape(t.shape)


TABLE: dict[str, tuple[Function, bool]] = {SCAN.name: (scan, False)}
ACCEPTS = {SCAN.name: refuse}
