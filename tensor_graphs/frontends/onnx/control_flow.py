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


def _known(n: OnnxNode, value: OnnxValue) -> bool | None:
    """Return a condition that follows from constants; None where it is computed at run time."""
    try:
        return bool(known_array(value, n.importer.weights, f"the condition of {n.op}").ravel()[0])
    except NotSupported:
        return None


def _chosen(n: OnnxNode, condition: Node, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    if x.node().type != y.node().type:
        n.refuse(f"the results of {n.op} are {x.node().type} or {y.node().type}, and its condition is computed at run time",
                 "one shape in both cases, or a constant condition")
    return OnnxValue.of(c.where(condition, x.node(), y.node()))


@row("If")
def _if(n: OnnxNode) -> Built:
    branches, condition = (n.get("else_branch"), n.get("then_branch")), _known(n, n.value(0))
    if condition is not None:
        return list(n.importer.subgraph(branches[condition], n, []))
    otherwise, then = (n.importer.subgraph(branch, n, [], always=False) for branch in branches)
    return [_chosen(n, n.x().reshape(()), a, b) for a, b in zip(then, otherwise, strict=True)]


@row("Loop")
def _loop(n: OnnxNode) -> Built:
    body, carried, count = n.get("body"), [n.value(i) for i in range(2, len(n.inputs))], n.scalar(0, MOST_UNROLLED + 1)
    if not isinstance(count, int):
        n.refuse("a Loop along a dim", "a Scan, which may go along a dim")
    going = _known(n, n.value(1)) if n.has(1) else True
    active: Node | None = None if going is not None else n.x(1).reshape(())
    stacks: list[list[Node]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    for turn in range(count):
        if going is False:
            break
        if turn == MOST_UNROLLED:
            n.refuse(f"a Loop of more than {MOST_UNROLLED} iterations", "a Scan, which is a loop here too")
        if active is not None and stacks:
            n.refuse("a Loop that stacks values and stops at a condition that is computed at run time", "a constant condition")
        stop, *results = n.importer.subgraph(body, n, [*map(OnnxValue.of, (np.array(turn), np.array(True))), *carried],
                                               always=active is None)
        new, stacked = results[:len(carried)], results[len(carried):]
        carried = [v if active is None else _chosen(n, active, v, old) for v, old in zip(new, carried, strict=True)]
        for stack, value in zip(stacks, stacked, strict=True):
            stack.append(value.node())
        if (going := _known(n, stop)) is None:
            active = stop.node().reshape(()) if active is None else active & stop.node().reshape(())
    if not all(stacks):
        n.refuse("a Loop of no iterations that stacks values")
    return [*carried, *(c.stack(*stack) for stack in stacks)]


@row("Scan", since=9)
def _scan(n: OnnxNode) -> Built:
    body, slices = n.get("body"), n.get("num_scan_inputs")
    carries, xs = n.all()[:-slices], n.all()[-slices:]
    count_out = len(body.output) - len(carries)

    def along_axes(which: str, count: int) -> tuple[list[int], list[int]]:
        return n.get(f"scan_{which}_axes") or [0] * count, n.get(f"scan_{which}_directions") or [0] * count

    xs = [_moved(n, c.flip(x, a) if back else x, a, 0) for x, a, back in zip(xs, *along_axes("input", slices), strict=True)]
    size = xs[0].shape[0]

    def step(carry: Sequence[Node], x: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        results = [v.node() for v in n.importer.subgraph(body, n, [OnnxValue.of(v) for v in (*carry, *x)],
                                                             always=isinstance(size, int))]
        return tuple(results[:len(carry)]), tuple(results[len(carry):])

    state: Any = tuple(carries)
    if isinstance(size, int) and 0 < size <= MOST_UNROLLED:
        ys = []
        for t in range(size):
            state, y = step(state, [x[t] for x in xs])
            ys.append(y)
        stacked = [c.stack(*parts) for parts in zip(*ys, strict=True)]
    else:
        state, out = c.scan(step, state, tuple(xs))
        stacked = list(out or ())
    return [*state, *(_moved(n, c.flip(y, 0) if back else y, 0, a)
                      for y, a, back in zip(stacked, *along_axes("output", count_out), strict=True))]


def _moved(n: OnnxNode, x: Node, source: int, target: int) -> Node:
    """Return x with one axis elsewhere."""
    order = list(range(x.rank))
    order.insert(n.places([target], x.rank)[0], order.pop(n.places([source], x.rank)[0]))
    return x.permute(order)
