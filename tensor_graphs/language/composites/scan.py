"""scan: a recurrence as a loop: a step is computed once for each slice of some tensors, and carries values to the next iteration.

    finals…, stacked… = scan(carries…, sliced…, others…; step, carries, slices, reverse)

    for t in 0 … n − 1 (reverse: n − 1 … 0):  (carries…, ys…) = step(carries…, sliced[t]…, others…);  stacked[t] = ys

It is not a composite of other ops: the number of iterations may be a dim, which no graph without loops can express. So it is
opaque: nothing replaces it by a definition, and evaluations of values or errors compute the iterations one by one (decision 0048).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.axis import one_axis
from tensor_graphs.language.composite import Build, CompositeOp, Definition, definition_digest, instantiate, put_in_library
from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.errors import AttributeValueError, LanguageError, ShapeError
from tensor_graphs.language.node import Node, TensorType, apply, encode_attribute
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.subgraph import Body, Turns, slice_type

__all__ = ["scan"]

MOST_UNROLLED = 64
"""largest number of iterations that `define` unrolls"""

AT_ONCE = 8
"""number of values that one concat stacks"""


def length(inputs: Sequence[TensorType], attrs: Mapping[str, Any]) -> Dim:
    """Return the number of iterations."""
    size: Dim = Turns(inputs, attrs).sliced[0].shape[0]
    return size


class ScanOp(CompositeOp):
    """The op of a scan. `define` unrolls a small, fixed number of iterations into a graph that means the same; kernels are not
    verified against that graph."""

    loop = True

    def __init__(self, build: Build, **options: Any) -> None:
        super().__init__(build, **options)
        self._one_turn: dict[tuple[Any, ...], Definition] = {}

    def infer(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """Return the types of the outputs. Raises AttributeValueError (no step, more carries or slices than operands), ShapeError
        (slices of several lengths, a step with other types)."""
        types = [i.type for i in inputs]
        step, carries, slices = attrs["step"], attrs["carries"], attrs["slices"]
        if not isinstance(step, Body):
            raise AttributeValueError(f"{self.name}: step is {step!r}, a definition is needed", fix="the name of one: step=f")
        for what, value, least in (("carries", carries, 0), ("slices", slices, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise AttributeValueError(f"{self.name}: {what} is {value!r}, a number of operands ≥ {least} is needed")
        if not isinstance(attrs["reverse"], bool):
            raise AttributeValueError(f"{self.name}: reverse is {attrs['reverse']!r}, true or false is needed")
        if len(types) < carries + slices:
            raise AttributeValueError(f"{self.name} of {carries} carries and {slices} sliced tensors has {len(types)} operands")
        turns = Turns(types, attrs)
        for i, t in enumerate(turns.sliced):
            if not t.rank:
                raise ShapeError(f"{self.name}: sliced operand {i} is {t}, it has no axis to go along")
            if not atomic.same_dim(t.shape[0], turns.sliced[0].shape[0]):
                raise ShapeError(f"{self.name}: sliced operands 0 and {i} are {turns.sliced[0]} and {t}: along the first axis they "
                                 f"have {d.format_dim(turns.sliced[0].shape[0])} and {d.format_dim(t.shape[0])} slices",
                                 fix="slice tensors of one length")
        wanted = [*turns.carries, *map(slice_type, turns.sliced), *turns.others]
        if step.types != wanted:
            raise ShapeError(f"{self.name}: the step takes {', '.join(map(str, step.types))}; carries, one slice of each sliced "
                             f"operand and the other operands are {', '.join(map(str, wanted))}")
        if len(step.outputs) < max(carries, 1):
            raise AttributeValueError(f"{self.name}: the step gives {len(step.outputs)} values, and {max(carries, 1)} are needed")
        for i, (t, o) in enumerate(zip(turns.carries, step.outputs, strict=False)):
            if o.type != t:
                raise ShapeError(f"{self.name}: carry {i} is {t} before a turn and {o.type} after it",
                                 fix="the step gives each carry back in its own shape and dtype")
        count = turns.sliced[0].shape[0]
        return (*turns.carries, *(TensorType((count, *o.shape), o.dtype) for o in step.outputs[carries:]))

    def identity(self, node: Node) -> str:
        """Return "": the attributes alone identify a scan."""
        return ""

    def define(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        """Return all iterations unrolled. Raises LanguageError if their number is a dim, or more than MOST_UNROLLED."""
        count = length(types, attrs)
        if not isinstance(count, int) or count > MOST_UNROLLED:
            raise LanguageError(f"a {self.name} of {d.format_dim(count)} turns is not written out",
                                fix=f"up to {MOST_UNROLLED} turns, a number and no dim")
        return self.in_turns(types, attrs, attrs["step"].definition)

    def in_turns(self, types: Sequence[TensorType], attrs: Mapping[str, Any], step: Definition) -> Definition:
        """Return all iterations unrolled, for a fixed number of them, with `step` instead of the scan's step."""
        arguments = tuple(leaves.argument(i, t) for i, t in enumerate(types))
        turns, count = Turns(arguments, attrs), length(types, attrs)
        assert isinstance(count, int)
        carries, rows = turns.carries, dict[int, list[Node]]()
        for t in turns.order(count):
            slices = (_slice(x, t) for x in turns.sliced)
            values = instantiate(step, (*carries, *slices, *turns.others))
            carries, rows[t] = list(values[:len(carries)]), list(values[len(carries):])
        stacked = [_stacked([rows[t][k] for t in range(count)], o) for k, o in enumerate(step.outputs[len(carries):])]
        outputs = (*carries, *stacked)
        return Definition(arguments, outputs, definition_digest(outputs))

    def turns(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Dim:
        """Return the number of iterations."""
        return length(types, attrs)

    def made_of(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        """Return one iteration, on the first slice, its values repeated over the length; not the scan's meaning. Built once."""
        key = (tuple(types), tuple((k, encode_attribute(v)) for k, v in sorted(attrs.items())))
        definition = self._one_turn.get(key)
        if definition is None:
            definition = self._one_turn[key] = self._on_first_slice(types, attrs)
        return definition

    def _on_first_slice(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        arguments = tuple(leaves.argument(i, t) for i, t in enumerate(types))
        turns = Turns(arguments, attrs)
        first = leaves.constant(0)
        slices = (atomic.gather(x, first) for x in turns.sliced)
        values = instantiate(turns.step.definition, (*turns.carries, *slices, *turns.others))
        count, carries = length(types, attrs), len(turns.carries)
        spread = [atomic.expand(atomic.reshape(y, (1, *y.shape)), (count, *y.shape)) for y in values[carries:]]
        outputs = (*values[:carries], *spread)
        return Definition(arguments, outputs, definition_digest(outputs))


def _slice(x: Node, t: int) -> Node:
    bounds = ((t, t + 1, 1), *((0, s, 1) for s in x.shape[1:]))
    return atomic.reshape(atomic.slice(x, bounds), x.shape[1:])


def _stacked(rows: Sequence[Node], one: Node) -> Node:
    """Return `rows`, values of the type of `one`, stacked: AT_ONCE at a time, since kernels take few operands."""
    stacked: list[Node] = [atomic.reshape(row, (1, *row.shape)) for row in rows] or [atomic.fill(0, (0, *one.shape), one.dtype)]
    while len(stacked) > 1:
        stacked = [concat(*stacked[i:i + AT_ONCE]) if i + 1 < len(stacked) else stacked[i] for i in range(0, len(stacked), AT_ONCE)]
    return stacked[0]


def _operands(*operands: Node, step: Body, carries: int, slices: int, reverse: bool = False) -> Node:
    """A step computed once for each slice of some tensors, along their first axis, with values that it carries between iterations.

    operands: first the carries before the first iteration (`carries` of them), then the tensors that are sliced (`slices` of them),
    then other tensors that the step reads, the same in each iteration. step(carries…, slices…, others…) returns the carries after
    the iteration, with unchanged shapes and dtypes, and any number of further values. Outputs: the carries after the last
    iteration, and the further values of all iterations, stacked along a new first axis in the order of the slices. reverse: start
    at the last slice. With no slices, the carries are returned unchanged.

    Any dtypes. In Python it is written as tg.scan(step, init, xs), with a function. It is not defined by other ops, since no graph
    of them has a dim as its number of iterations; its kernels are loops. Raises AttributeValueError, ShapeError.
    """
    raise LanguageError("a scan is no composite of other ops")


def _gradient(node: Node, grads: tuple[Node | None, ...]) -> dict[str, Any]:
    from tensor_graphs.language.composites.scan_gradient import gradient  # a door: of who differentiates

    return gradient(node, grads)


SCAN = ScanOp(_operands, name="scan", opaque=True, gradient=_gradient,
              facts=OpFacts(dtype_matters=True, telling=True, sought=False))
put_in_library(SCAN)

Tensors = Node | Sequence[Node] | None


def scan(step: Callable[[Any, Any], Any], init: Tensors, xs: Node | Sequence[Node], axis: int = 0, *,
         reverse: bool = False) -> tuple[Any, Any]:
    """For each slice x of xs, compute carry, y = step(carry, x). Return the last carry and all y, stacked.

    init: the first carry: a tensor, several in a tuple or list, or () for none. xs: a tensor, or several of the same length along
    `axis`; the length may be a dim, and 0. y: a tensor, several in a tuple, or None; they are stacked along `axis`, in the order of
    the slices. reverse: start with the last slice.

    step is called once, when the graph is built, with tensors that stand for the carry and for one slice (xs without `axis`), in
    tuples if init and xs are sequences. It returns a carry with the shapes and dtypes of init. Other tensors that it reads, such as
    weights, are the same in each iteration.

        def cell(h, x):
            h = tg.tanh(tg.linear(x, w) + tg.linear(h, u))
            return h, h

        last, hs = tg.scan(cell, tg.constant(np.zeros((batch, width), np.float32)), x)        # x[steps, batch, inputs]

    CPU kernels run a loop of any length, and so do GPU kernels if the rows of the carries are independent (decision 0083).
    Otherwise a GPU runs the iterations written out, up to some thousand nodes in all (decision 0076). Raises ShapeError,
    DTypeError, AttributeValueError, GraphError.
    """
    from tensor_graphs.language.tracing import tensors, traced_step  # a door: a graph that is compiled was traced, or read

    carries, slices = tensors("init", init), tensors("xs", xs)
    if not slices:
        raise AttributeValueError("scan: xs is empty, so nothing says how many turns there are",
                                  fix="a tensor to slice; the numbers of n turns are tg.iota((n,))")
    axes = [one_axis("scan", axis, x.rank) for x in slices]
    lengths = [x.shape[a] for x, a in zip(slices, axes, strict=True)]
    for i, n in enumerate(lengths):
        if not atomic.same_dim(n, lengths[0]):
            raise ShapeError(f"scan: xs[0] is {slices[0].type} and xs[{i}] is {slices[i].type}: along axis {axis} they have "
                             f"{d.format_dim(lengths[0])} and {d.format_dim(n)} slices", fix="tensors of one length")
    slices = [_moved(x, a, 0) for x, a in zip(slices, axes, strict=True)]
    body, closed, single = traced_step(step, carries, slices, isinstance(init, Node), isinstance(xs, Node))
    node = apply(SCAN, (*carries, *slices, *closed),
                 {"step": body, "carries": len(carries), "slices": len(slices), "reverse": bool(reverse)})
    outputs = [leaves.item(node, i) for i in range(len(node.types))]
    finals = outputs[0] if isinstance(init, Node) else tuple(outputs[:len(carries)])
    stacked = [_moved(y, 0, one_axis("scan", axis, y.rank, "axis of ys,")) for y in outputs[len(carries):]]
    return finals, (None if single is None else stacked[0] if single else tuple(stacked))


def _moved(x: Node, old: int, new: int) -> Node:
    """Return x with axis `old` moved to position `new`."""
    if old == new:
        return x
    order = [i for i in range(x.rank) if i != old]
    order.insert(new, old)
    return atomic.permute(x, order)
