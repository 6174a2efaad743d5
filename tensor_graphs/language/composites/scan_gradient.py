"""scan_gradient: the gradient of a scan, which is a scan over the slices in the opposite order."""

from __future__ import annotations

from typing import Any

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.anonymous_composite import over
from tensor_graphs.language.autodiff import reverse
from tensor_graphs.language.node import Node, TensorType, apply
from tensor_graphs.language.subgraph import Body, Turns


def gradient(node: Node, grads: tuple[Node | None, ...]) -> dict[str, Any]:
    """Return the gradient as a scan in the opposite order. Its slices include the carries at the start of each iteration, which a
    first scan returns as ys. It carries the gradient of the carry, and the gradients of what all iterations read, summed so far."""
    turns = Turns(node.inputs, node.attrs)
    body, count = turns.step, len(turns.carries)
    begun = Body(body.arguments, (*body.outputs[:count], *body.arguments[:count]))
    before = [leaves.item(apply(node.op, node.inputs, {**node.attrs, "step": begun}), count + k) for k in range(count)]

    # one iteration, over placeholders: those of the step, then gradients of its outputs, then sums of earlier iterations
    floats = [k for k, a in enumerate(body.arguments) if a.dtype.is_float]
    flowing = [k for k, o in enumerate(body.outputs) if o.dtype.is_float and (k < count or grads[k] is not None)]
    cotangents = {k: leaves.argument(len(body.arguments) + k, body.outputs[k].type) for k in flowing}
    gradients = dict(zip(floats, reverse(body.outputs, [cotangents.get(k) for k in range(len(body.outputs))],
                                         [body.arguments[k] for k in floats]), strict=True))
    sliced = range(count, count + len(turns.sliced))
    carried = [k for k in floats if k < count]
    read = {k: g for k in floats if k in sliced and (g := gradients[k]) is not None}
    others = {k: g for k in floats if k >= sliced.stop and (g := gradients[k]) is not None}
    sums = {k: leaves.argument(len(body.arguments) + len(body.outputs) + k, body.arguments[k].type) for k in others}
    outputs = [*(_or_zero(gradients[k], body.arguments[k].type) for k in carried),
               *(atomic.add(sums[k], g) for k, g in others.items()), *read.values()]
    if not outputs:
        return {}
    slices = [*zip(body.arguments[:count], before, strict=True), *((body.arguments[k], node.inputs[k]) for k in sliced),
              *((cotangents[k], g) for k in flowing if k >= count and (g := grads[k]) is not None)]
    taken = [*(cotangents[k] for k in carried), *sums.values(), *(a for a, _ in slices), *body.arguments[sliced.stop:]]
    arguments = [leaves.argument(i, a.type) for i, a in enumerate(taken)]
    begin = [*(_or_zero(grads[k], node.types[k]) for k in carried), *(atomic.fill(0, s.shape, s.dtype) for s in sums.values())]
    back = apply(node.op, (*begin, *(x for _, x in slices), *turns.others),
                 {"step": Body(arguments, over(outputs, taken, arguments)), "carries": len(begin), "slices": len(slices),
                  "reverse": not turns.reverse})
    out: list[Node | None] = [None] * len(node.inputs)
    for place, k in enumerate((*carried, *others, *read)):
        out[k] = leaves.item(back, place)
    return {"operands": out}


def _or_zero(x: Node | None, t: TensorType) -> Node:
    return atomic.fill(0, t.shape, t.dtype) if x is None else x
