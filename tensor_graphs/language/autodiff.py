"""autodiff: gradients as graphs, by reverse mode: the derivative in each atomic op's row, each composite's gradient rule, or else
the derivative of its definition. The result is an ordinary graph: it is compiled, fused and differentiated like any other.

A trainable parameter is a state; this module does not treat it specially.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, overload

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.atomic import AtomicOp, fill, same_dim
from tensor_graphs.language.composite import LIBRARY, RULE_CHECKS, CompositeOp, Definition, instantiate
from tensor_graphs.language.errors import AttributeValueError, DTypeError, GraphError, LanguageError, ShapeError
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType, apply, encode_attribute, walk

Cotangents = list[Node | None]                           # one per output of a node; None = nothing flows back


@overload
def grad(output: Node, wrt: Node) -> Node: ...
@overload
def grad(output: Node, wrt: Sequence[Node]) -> list[Node]: ...
@worded
def grad(output: Node, wrt: Node | Sequence[Node]) -> Node | list[Node]:
    """Return the gradient of a scalar float with respect to each tensor of `wrt`; it has the tensor's shape and dtype.

    It is zero where the output does not depend on a tensor. `wrt` may be leaves or any tensors in between; for a State, pass its
    `read()`. Integers and booleans stop the gradient; a tie of max shares it equally. Raises ShapeError (the output is no scalar),
    DTypeError (the output or one of `wrt` is no float), and GraphError for an op in between that has no gradient.
    """
    _value(output, "grad: the output")
    if output.rank != 0:
        raise ShapeError(f"grad: the output is {output.type}, a scalar is needed",
                         fix="reduce it, output.sum(), or give the gradient of each element: "
                             "tg.vjp(outputs, cotangents, wrt)")
    if isinstance(wrt, str) or not isinstance(wrt, Sequence):
        _value(wrt, "grad: wrt")
    if isinstance(wrt, Node):
        return vjp([output], [fill(1, (), output.dtype)], [wrt])[0]
    return vjp([output], [fill(1, (), output.dtype)], wrt)


@worded
def vjp(outputs: Sequence[Node], cotangents: Sequence[Node | None], wrt: Sequence[Node]) -> list[Node]:
    """Return Σ over outputs of cotangentᵀ · ∂output/∂w for each w of `wrt`; it has the shape and dtype of w.

    A cotangent has the type of its output; None means zero. The result is zero where no output depends on w. Raises ShapeError,
    DTypeError, GraphError, AttributeValueError.
    """
    for what, values in (("outputs", outputs), ("cotangents", cotangents), ("wrt", wrt)):
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise AttributeValueError(f"vjp: {what} is {type(values).__name__}, a sequence of tensors is needed",
                                      fix="tg.vjp([output], [cotangent], [tensor])")
    if len(outputs) != len(cotangents):
        raise AttributeValueError(f"vjp: {len(outputs)} outputs and {len(cotangents)} cotangents",
                                  fix="one for each output, or None")
    for k, (output, cotangent) in enumerate(zip(outputs, cotangents, strict=True)):
        _value(output, f"vjp: output {k}")
        if cotangent is None:
            continue
        if cotangent.dtype != output.dtype:
            raise DTypeError(f"vjp: output {k} is {output.type}, its cotangent {cotangent.type}",
                             fix="cast the cotangent")
        if not _same_shape(cotangent.type, output.type):
            raise ShapeError(f"vjp: output {k} is {output.type}, its cotangent {cotangent.type}",
                             fix="they have the same shape")
    for k, w in enumerate(wrt):
        _value(w, f"wrt[{k}]")
    gradients = reverse(outputs, cotangents, wrt)
    return [fill(0, w.shape, w.dtype) if g is None else g for w, g in zip(wrt, gradients, strict=True)]


def _value(x: Any, what: str) -> None:
    if not isinstance(x, Node):
        fix = ("a State is differentiated by its read()" if isinstance(x, leaves.State) else
               "one of its outputs: graph.outputs[name]" if isinstance(x, Graph) else
               "the tensor itself, not its name" if isinstance(x, str) else
               "the tensor that it returns: call it" if callable(x) else "a tensor of the graph that is differentiated")
        raise DTypeError(f"{what} is {type(x).__name__}, a tensor is needed", fix=fix)
    if len(x.types) != 1:
        raise GraphError(f"{what} is {x.op.name}, which has {len(x.types)} outputs", fix="take one of them")
    if x.dtype.kind != "float":
        raise DTypeError(f"{what} is {x.type}, only floats have gradients",
                         fix="cast it to a float dtype before it is used")


def _same_shape(a: TensorType, b: TensorType) -> bool:
    return a.rank == b.rank and all(same_dim(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def _reached(order: Iterable[Node], wrt: Sequence[Node]) -> set[Node]:
    """Return the nodes that depend on some tensor of `wrt`; no other node needs a gradient. order: operands before users."""
    reached = set(wrt)
    for node in order:
        if any(i in reached for i in node.inputs):
            reached.add(node)
    return reached


def reverse(outputs: Sequence[Node], cotangents: Sequence[Node | None], wrt: Sequence[Node]) -> list[Node | None]:
    """Return the gradient of each of `wrt`, None where no gradient reaches it. Outputs may have any dtype, graphs any depth."""
    order = walk(outputs)
    needed = _reached(order, wrt)
    flowing: dict[Node, Cotangents] = {}

    def receive(node: Node, index: int, g: Node | None) -> None:
        if g is None or node not in needed:
            return
        at = flowing.setdefault(node, [None] * len(node.types))
        before = at[index]
        at[index] = g if before is None else atomic.add(before, g)

    for output, cotangent in zip(outputs, cotangents, strict=True):
        receive(output, 0, cotangent)
    for node in reversed(order):
        grads = flowing.get(node)
        if grads is None or not node.inputs:
            continue
        if node.op is leaves.ITEM:
            receive(node.inputs[0], node.attrs["index"], grads[0])
            continue
        for operand, g in zip(node.inputs, _operand_gradients(node, grads, needed), strict=True):
            if g is not None and (g.dtype != operand.dtype or not _same_shape(g.type, operand.type)):
                raise LanguageError(
                    f"the gradient rule of {node.op.name} gave {g.type} for an operand of type {operand.type}",
                    location=node.location, fix="a rule returns the operand's own shape and dtype")
            receive(operand, 0, g)
    return [flowing[w][0] if w in flowing else None for w in wrt]


def _operand_gradients(node: Node, grads: Cotangents, needed: set[Node]) -> Sequence[Node | None]:
    """Return the gradient of each operand of one node."""
    op = node.op
    if op is leaves.COPY_TO:    # the same value; where its gradient lives is the planner's choice
        return grads
    if isinstance(op, AtomicOp):
        if op.gradient is None:
            raise _no_gradient(node)
        assert grads[0] is not None
        return op.gradient(node, grads[0])
    if isinstance(op, CompositeOp):
        if op.gradient_rule is not None:
            return _by_rule(op, node, grads)
        if op.opaque:
            raise _no_gradient(node)
        return _by_definition(op, node, grads, tuple(i in needed and i.dtype.kind == "float" for i in node.inputs))
    raise _no_gradient(node)


def _no_gradient(node: Node) -> GraphError:
    return GraphError(f"{node.op.name} has no gradient, and one has to pass through it", location=node.location,
                      fix="differentiate with respect to something after it, or give the composite gradient=…")


def _by_rule(op: CompositeOp, node: Node, grads: Cotangents) -> list[Node | None]:
    """Return the gradients that a composite's gradient rule gives, in operand order; a user-registered rule is checked first."""
    if op.gradient_checked and LIBRARY.get(op.name) is not op and RULE_CHECKS:
        _check_rule(op, node, grads)
    return _of_rule(op, node, grads)


_checked: weakref.WeakKeyDictionary[CompositeOp, set[tuple[Any, ...]]] = weakref.WeakKeyDictionary()


def _check_rule(op: CompositeOp, node: Node, grads: Cotangents) -> None:
    """Compare a gradient rule with the definition's gradient, once for given operand types. Raises GraphError if they differ."""
    types = [i.type for i in node.inputs]
    present = tuple(g is not None for g in grads)
    key = (tuple(types), tuple((k, encode_attribute(v)) for k, v in sorted(node.attrs.items())), present)
    checked = _checked.setdefault(op, set())
    if op.opaque or key in checked:
        return
    operands = [leaves.argument(i, t) for i, t in enumerate(types)]
    seeds = [leaves.argument(len(operands) + k, t) for k, t in enumerate(node.types)]
    over, flowing = apply(op, operands, node.attrs), [s if g else None for s, g in zip(seeds, present, strict=True)]
    rule = _of_rule(op, over, flowing)
    if any(g is not None and g.type != a.type for g, a in zip(rule, operands, strict=True)):
        return                                                      # `reverse` raises an error for it
    try:
        own = _by_definition(op, over, flowing, tuple(t.dtype.kind == "float" for t in types))
    except GraphError:                                              # a rule for a definition without a gradient
        return
    finally:
        checked.add(key)
    names = [name for name, role in op.roles(node).items() for _ in (role if name == op.variadic else (role,))]
    for check in RULE_CHECKS:
        why = check(names, [*operands, *seeds], rule, own)
        if why is not None:
            checked.discard(key)
            raise GraphError(f"the gradient= of {op.name} is not the gradient of its definition: {why}", location=node.location,
                             fix="correct it, or leave gradient= out; gradient_checked=False where another one is meant, as one "
                                 "straight through a rounding")


def _of_rule(op: CompositeOp, node: Node, grads: Cotangents) -> list[Node | None]:
    assert op.gradient_rule is not None
    by_name = op.gradient_rule(node, tuple(grads))
    roles = op.roles(node)
    unknown = sorted(set(by_name) - set(roles))
    if unknown:
        raise LanguageError(f"the gradient rule of {op.name} names {unknown}, its operands here are {sorted(roles)}",
                            location=node.location)
    out: list[Node | None] = []
    for name, operand in roles.items():
        g = by_name.get(name)
        if name == op.variadic:
            out.extend([None] * len(operand) if g is None else g)
        else:
            out.append(g)
    return out


# Keyed weakly by the op: a user's composite and its gradients are freed when the user drops it.
_gradients: weakref.WeakKeyDictionary[CompositeOp, dict[tuple[Any, ...], tuple[Definition, tuple[int, ...]]]] = (
    weakref.WeakKeyDictionary())
_lock = threading.RLock()


def _by_definition(op: CompositeOp, node: Node, grads: Cotangents, wanted: tuple[bool, ...]) -> list[Node | None]:
    """Return the gradient of a composite's definition, built once for given operand types and then applied to the operands.

    It is built over placeholders, since an operand may itself be computed from another one, and one tensor may be passed twice.
    """
    types = [i.type for i in node.inputs]
    present = tuple(g is not None for g in grads)
    key = (tuple(types), tuple((k, encode_attribute(v)) for k, v in sorted(node.attrs.items())), present, wanted)
    with _lock:
        templates = _gradients.setdefault(op, {})
        entry = templates.get(key)
    if entry is None:
        definition = op.define(types, node.attrs)
        count = len(definition.arguments)
        seeds = [leaves.argument(count + k, t.type) for k, t in enumerate(definition.outputs)]
        wrt = [a for a, w in zip(definition.arguments, wanted, strict=True) if w]
        results = reverse(definition.outputs, [s if g else None for s, g in zip(seeds, present, strict=True)], wrt)
        places = [i for i, w in enumerate(wanted) if w]
        reached = tuple(i for i, r in zip(places, results, strict=True) if r is not None)
        arguments = (*definition.arguments, *(s for s, g in zip(seeds, present, strict=True) if g))
        entry = Definition(arguments, tuple(r for r in results if r is not None), ""), reached
        with _lock:
            entry = templates.setdefault(key, entry)
    template, reached = entry
    gradients = instantiate(template, (*node.inputs, *(g for g in grads if g is not None)))
    out: list[Node | None] = [None] * len(node.inputs)
    for place, g in zip(reached, gradients, strict=True):
        out[place] = g
    return out
