"""control_flow: rows of If, Loop and Scan, whose bodies are graphs: known conditions and counts are followed.

An If whose condition is computed at run time computes both branches and chooses element by element, where they have one shape. A
Loop of a known count is written out; one that stops at a computed condition goes on to its count and keeps the values from where it
stopped. A Scan is written out up to MOST_UNROLLED iterations, and is a `scan` beyond that or along a dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensor_graphs.frontends.onnx.call import Built, OnnxNode, row
from tensor_graphs.frontends.onnx.errors import NotSupported
from tensor_graphs.frontends.onnx.values import OnnxValue, known_array
from tensor_graphs.language import composites as c
from tensor_graphs.language.node import Node

MOST_UNROLLED = 64
"""largest number of iterations that are written out; a graph grows by each"""


def _known(n: OnnxNode, value: OnnxValue) -> Any:
    """Return a condition that follows from constants; None where it is computed at run time."""
    try:
        return known_array(value, n.importer.weights, f"the condition of {n.op}").ravel()[0]
    except NotSupported:
        return None


def _count(n: OnnxNode) -> int:
    """Return the number of iterations of a Loop, which must be known."""
    if not n.has(0):
        return MOST_UNROLLED + 1
    count = n.scalar(0)
    return count if isinstance(count, int) else n.refuse("a Loop along a dim", "a Scan, which may go along a dim")


@row("If")
def _if(n: OnnxNode) -> Built:
    then, otherwise = n.get("then_branch"), n.get("else_branch")
    condition = _known(n, n.value(0))
    if condition is not None:
        return list(n.importer.subgraph(then if condition else otherwise, n, []))
    results = [n.importer.subgraph(branch, n, []) for branch in (then, otherwise)]
    for a, b in zip(*results, strict=True):
        if a.dtype is not b.dtype or a.node().type != b.node().type:
            n.refuse(f"the branches of If give {a.node().type} and {b.node().type}, and its condition is computed at run time",
                     "one shape in both branches, or a constant condition")
    condition_node = n.x().reshape(())
    return [c.where(condition_node, a.node(), b.node()) for a, b in zip(*results, strict=True)]


def _chosen(active: Node, new: OnnxValue, old: OnnxValue, n: OnnxNode) -> OnnxValue:
    if new.node().type != old.node().type:
        n.refuse(f"a value that a Loop carries changes from {old.node().type} to {new.node().type}")
    return OnnxValue.of(c.where(active, new.node(), old.node()))


@row("Loop")
def _loop(n: OnnxNode) -> Built:
    body, carried = n.get("body"), [n.value(i) for i in range(2, len(n.inputs))]
    count = _count(n)
    going = _known(n, n.value(1)) if n.has(1) else True
    active: Node | None = None if going is not None else n.x(1).reshape(())
    stacks: list[list[Node]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    turn = 0
    while turn < count and going is not False and going != 0:
        if turn == MOST_UNROLLED:
            n.refuse(f"a Loop of more than {MOST_UNROLLED} iterations", "a Scan, which is a loop here too")
        if active is not None and stacks:
            n.refuse("a Loop that stacks values and stops at a condition that is computed at run time", "a constant condition")
        first = OnnxValue.of(np.array(turn, np.int64))
        results = n.importer.subgraph(body, n, [first, OnnxValue.of(np.array(True)), *carried])
        stop, new, stacked = results[0], results[1:1 + len(carried)], results[1 + len(carried):]
        carried = [v if active is None else _chosen(active, v, old, n) for v, old in zip(new, carried, strict=True)]
        for stack, value in zip(stacks, stacked, strict=True):
            stack.append(value.node())
        goes_on = _known(n, stop)
        if goes_on is None:
            active = stop.node().reshape(()) if active is None else active & stop.node().reshape(())
        else:
            going = bool(goes_on)
        turn += 1
    if not turn and stacks:
        n.refuse("a Loop of no iterations that stacks values")
    return [*carried, *[c.stack(*stack) if len(stack) > 1 else stack[0].reshape((1, *stack[0].shape)) for stack in stacks]]


@row("Scan", since=9)
def _scan(n: OnnxNode) -> Built:
    body, slices = n.get("body"), n.get("num_scan_inputs")
    values = [n.x(i) for i in range(len(n.inputs))]
    carries, xs = values[:len(values) - slices], values[len(values) - slices:]
    axes = [n.places([a], x.rank)[0] for a, x in zip(n.get("scan_input_axes") or [0] * slices, xs, strict=True)]
    back = n.get("scan_input_directions") or [0] * slices
    count_out = len(body.output) - len(carries)
    axes_out, back_out = n.get("scan_output_axes") or [0] * count_out, n.get("scan_output_directions") or [0] * count_out
    xs = [c.flip(x, a) if b else x for x, a, b in zip(xs, axes, back, strict=True)]
    xs = [_to_front(x, a) for x, a in zip(xs, axes, strict=True)]
    size = xs[0].shape[0]

    def step(carry: Sequence[Node], x: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        results = [v.node() for v in n.importer.subgraph(body, n, [OnnxValue.of(v) for v in (*carry, *x)])]
        return tuple(results[:len(carry)]), tuple(results[len(carry):])

    if isinstance(size, int) and 0 < size <= MOST_UNROLLED:
        ys: list[tuple[Node, ...]] = []
        state = tuple(carries)
        for t in range(size):
            state, y = step(state, [x[t] for x in xs])
            ys.append(y)
        stacked = [c.stack(*(y[k] for y in ys)) if size > 1 else ys[0][k].reshape((1, *ys[0][k].shape)) for k in range(count_out)]
    else:
        state, out = c.scan(step, tuple(carries), tuple(xs))
        stacked = list(out or ())
    stacked = [c.flip(y, 0) if b else y for y, b in zip(stacked, back_out, strict=True)]
    return [*state, *(_from_front(y, n.places([a], y.rank)[0]) for y, a in zip(stacked, axes_out, strict=True))]


def _to_front(x: Node, axis: int) -> Node:
    return x.permute((axis, *(i for i in range(x.rank) if i != axis)))


def _from_front(x: Node, axis: int) -> Node:
    order = list(range(1, x.rank))
    order.insert(axis, 0)
    return x.permute(order)


