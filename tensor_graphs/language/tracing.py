"""tracing: calls the step of a scan, a Python function, once, to get its body and the other tensors that it reads."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import between, over
from tensor_graphs.language.errors import DTypeError, GraphError, ShapeError
from tensor_graphs.language.node import Node, walk
from tensor_graphs.language.subgraph import Body, slice_type

_traced = itertools.count()

RETURNED = "the carry that the step returned"


def tensors(what: str, value: Node | Sequence[Node] | None) -> list[Node]:
    """Return the tensors passed for the carry, the slices or the values of an iteration. Raises DTypeError for anything else."""
    nodes: list[Any] = [] if value is None else list(value) if isinstance(value, (tuple, list)) else [value]
    wrong = next((x for x in nodes if not isinstance(x, Node)), None)
    if wrong is not None:
        raise DTypeError(f"scan: {what} is {type(wrong).__name__}, a tensor or a tuple of tensors is needed",
                         fix=leaves.AS_TENSOR if isinstance(wrong, leaves.State) else "wrap numbers and arrays with tg.constant")
    return nodes


def traced_step(step: Callable[[Any, Any], Any], carries: Sequence[Node], slices: Sequence[Node], one_carry: bool,
                 one_slice: bool) -> tuple[Body, list[Node], bool | None]:
    """Return (the step as a body, the other tensors that it reads, True if y is one tensor, False if several, None if none).

    Raises GraphError, DTypeError, ShapeError for values that a step cannot return.
    """
    _require_step(step)
    number = next(_traced)                              # steps within steps read each other's values: no two have one name
    fresh = [leaves.input(f"scan.{number}.{i}", t.shape, t.dtype)
             for i, t in enumerate([*(c.type for c in carries), *(slice_type(x.type) for x in slices)])]
    h, x = fresh[:len(carries)], fresh[len(carries):]
    returned = step(h[0] if one_carry else tuple(h), x[0] if one_slice else tuple(x))
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        what = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else f"a {type(returned).__name__}"
        raise GraphError(f"scan: the step returned {what}, a pair is needed", fix="return new_carry, y; of a step without y: "
                         "return new_carry, None")
    after, ys = returned
    if isinstance(after, Node) != one_carry and carries:
        raise GraphError(f"scan: init is {_said(one_carry, len(carries))}, the carry that the step returned is "
                         f"{_said(isinstance(after, Node), 1 if isinstance(after, Node) else len(tensors(RETURNED, after)))}",
                         fix="the step returns its carry in the form of init")
    after, given_ys = tensors(RETURNED, after), tensors("y", ys)
    if len(after) != len(carries):
        raise GraphError(f"scan: the step takes {len(carries)} carries and returned {len(after)}",
                         fix="one for each tensor of init")
    for i, (old, new) in enumerate(zip(carries, after, strict=True)):
        where = "the carry" if one_carry else f"carry {i}"
        if new.dtype != old.dtype:
            raise DTypeError(f"scan: {where} is {old.type} before a turn and {new.type} after it",
                             fix=f"cast it: tg.cast(…, tg.{old.dtype.name}), or begin with a carry in {new.dtype.name}")
        if new.type != old.type:
            raise ShapeError(f"scan: {where} is {old.type} before a turn and {new.type} after it",
                             fix="a carry keeps its shape; what grows from turn to turn is y")
    if not after and not given_ys:
        raise GraphError("scan: the step carries nothing and returns nothing", fix="return new_carry, y")
    outputs = [*after, *given_ys]
    closed = _read_beside(outputs, fresh)
    operands = [*fresh, *closed]
    arguments = [leaves.argument(i, o.type) for i, o in enumerate(operands)]
    own = {str(s) for o in operands for s in d.symbols_in(o.shape)}
    for node in between(outputs, operands):
        strange = next((s for v in (*(t.shape for t in node.types), *node.attrs.values()) for s in d.symbols_in(v)
                        if str(s) not in own), None)
        if strange is not None:
            raise GraphError(f"scan: {node.op.name} in the step uses the dim {strange}, which is in the shape of no tensor that "
                             "the step reads", location=node.location,
                             fix=f"make a tensor of it outside of the step, tg.constant({strange}), or read one that has the axis")
    return Body(arguments, over(outputs, operands, arguments)), closed, None if ys is None else isinstance(ys, Node)


def _require_step(step: Any) -> None:
    """Raise GraphError unless `step` is a function that can be called with a carry and a slice."""
    fix = "def step(carry, x): …; return new_carry, y"
    if not callable(step):
        raise GraphError(f"scan: the step is {step!r}, which cannot be called", fix=fix)
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):                                 # of a builtin: nothing is known
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise GraphError(f"scan: the step is called with 2 arguments (carry, x), and takes {signature}", fix=fix) from None


def _said(one: bool, count: int) -> str:
    return "a tensor" if one else f"a tuple of {count}"


def _read_beside(outputs: Sequence[Node], fresh: Sequence[Node]) -> list[Node]:
    """Return the nodes that a step reads and that are the same in each iteration, in the order of first use: the largest nodes that
    do not depend on `fresh` and that some leaf other than a constant leads to. They are computed once, outside. A constant of a dim
    counts as such a leaf, unless `fresh` has the dim."""
    own = {str(s) for o in fresh for s in d.symbols_in(o.shape)}
    depends: dict[Node, bool] = {}
    named: dict[Node, bool] = {}
    order = walk(outputs)
    for node in order:
        depends[node] = node in fresh or any(depends[i] for i in node.inputs)
        strange = node.op is leaves.CONSTANT and any(str(s) not in own for s in d.symbols_in(node.attrs["value"]))
        leaf = node.op.kind == "leaf" and node.op is not leaves.CONSTANT
        named[node] = leaf or strange or any(named[i] for i in node.inputs)
    read = [i for node in order if depends[node] for i in node.inputs] + list(outputs)
    return list(dict.fromkeys(n for n in read if named[n] and not depends[n]))
