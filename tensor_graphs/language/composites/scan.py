"""scan: a recurrence as a loop: a step that is taken once for each slice of some tensors, with what it carries from turn to turn.

    finals…, stacked… = scan(carries…, sliced…, others…; step, carries, slices, reverse)

    for t in 0 … n − 1 (reverse: n − 1 … 0):  (carries…, ys…) = step(carries…, sliced[t]…, others…);  stacked[t] = ys

An op of its own and no composite of others: how often the step is taken may be a dim, and no graph without loops says that. So it
is opaque: nobody replaces it by a definition, and whoever gives values or errors to graphs takes the turns one by one (decision
0048).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.axis import one_axis
from tensor_graphs.language.body import Body
from tensor_graphs.language.composite import Build, CompositeOp, Definition, definition_digest, instantiate, put_in_library
from tensor_graphs.language.composites.indexing import stack
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.errors import AttributeValueError, DTypeError, GraphError, LanguageError, ShapeError
from tensor_graphs.language.facts import OpFacts
from tensor_graphs.language.node import Node, TensorType, apply, encode_attribute, walk
from tensor_graphs.language.part import between, over

MOST_UNROLLED = 64
"""turns that `define` writes out"""


class Turns:
    """A scan's operands and attributes by role; for nodes, types, arrays, whatever stands in the operands' order."""

    def __init__(self, values: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        carries, sliced = attrs["carries"], attrs["carries"] + attrs["slices"]
        self.step: Body = attrs["step"]
        self.carries, self.sliced, self.others = list(values[:carries]), list(values[carries:sliced]), list(values[sliced:])
        self.reverse: bool = attrs["reverse"]

    def order(self, count: int) -> range:
        """The slices, in the order of the turns."""
        return range(count - 1, -1, -1) if self.reverse else range(count)


def length(inputs: Sequence[TensorType], attrs: Mapping[str, Any]) -> Dim:
    """How often the step is taken."""
    size: Dim = Turns(inputs, attrs).sliced[0].shape[0]
    return size


def slice_type(t: TensorType) -> TensorType:
    """Of one slice along the first axis."""
    return TensorType(t.shape[1:], t.dtype)


class ScanOp(CompositeOp):
    """The op. `define` writes the turns out where they are few and their number is known; that is a graph of the same meaning, and
    not what kernels are held to."""

    loop = True

    def __init__(self, build: Build, **options: Any) -> None:
        super().__init__(build, **options)
        self._one_turn: dict[tuple[Any, ...], Definition] = {}

    def infer(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """Raises AttributeValueError (no step, counts that there are no operands for), ShapeError (slices of several lengths, a
        step of other types)."""
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
        """Nothing beside its attributes."""
        return ""

    def define(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        """All turns in a row. Raises LanguageError where their number is a dim, 0, or more than MOST_UNROLLED."""
        count = length(types, attrs)
        if not isinstance(count, int) or not 0 < count <= MOST_UNROLLED:
            raise LanguageError(f"a {self.name} of {d.format_dim(count)} turns is not written out",
                                fix=f"up to {MOST_UNROLLED} turns, a number and no dim")
        arguments = tuple(leaves.argument(i, t) for i, t in enumerate(types))
        turns = Turns(arguments, attrs)
        carries, rows = turns.carries, dict[int, list[Node]]()
        for t in turns.order(count):
            slices = (_slice(x, t) for x in turns.sliced)
            made = instantiate(turns.step.definition, (*carries, *slices, *turns.others))
            carries, rows[t] = list(made[:len(carries)]), list(made[len(carries):])
        stacked = [stack(*(rows[t][k] for t in range(count))) for k in range(len(rows[0]))]
        outputs = (*carries, *stacked)
        return Definition(arguments, outputs, definition_digest(outputs))

    def turns(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Dim:
        """The length."""
        return length(types, attrs)

    def made_of(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        """One turn, on the first slice, and its values spread over the length: not what the scan means. Made once."""
        key = (tuple(types), tuple((k, encode_attribute(v)) for k, v in sorted(attrs.items())))
        found = self._one_turn.get(key)
        if found is None:
            found = self._one_turn[key] = self._on_first_slice(types, attrs)
        return found

    def _on_first_slice(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        arguments = tuple(leaves.argument(i, t) for i, t in enumerate(types))
        turns = Turns(arguments, attrs)
        first = leaves.constant(0)
        slices = (atomic.gather(x, first) for x in turns.sliced)
        made = instantiate(turns.step.definition, (*turns.carries, *slices, *turns.others))
        count, carries = length(types, attrs), len(turns.carries)
        spread = [atomic.expand(atomic.reshape(y, (1, *y.shape)), (count, *y.shape)) for y in made[carries:]]
        outputs = (*made[:carries], *spread)
        return Definition(arguments, outputs, definition_digest(outputs))


def _slice(x: Node, t: int) -> Node:
    bounds = ((t, t + 1, 1), *((0, s, 1) for s in x.shape[1:]))
    return atomic.reshape(atomic.slice(x, bounds), x.shape[1:])


def _operands(*operands: Node, step: Body, carries: int, slices: int, reverse: bool = False) -> Node:
    """A step taken once for each slice of some tensors, along their first axis, with values that it carries from turn to turn.

    operands: the carries before the first turn, the tensors that are sliced, and what the step reads beside those, the same in
    each turn; the first two as many as `carries` and `slices` say. step(carries…, slices…, others…) gives the carries after the
    turn, each of the shape and dtype that it had before, and any number of further values. Outputs: the carries after the last
    turn, and the further values of all turns, stacked along a new first axis in the order of the slices. reverse: from the last
    slice to the first. Of no slices the carries are what they were.

    Any dtypes. Written in Python as tg.scan(step, init, xs), with a function. An op of its own: there is no graph of other
    ops that takes as many turns as a dim says, so it is never replaced by a definition, and its kernels are loops. Raises
    AttributeValueError, ShapeError.
    """
    raise LanguageError("a scan is no composite of other ops")


def _gradient(node: Node, grads: tuple[Node | None, ...]) -> dict[str, Any]:
    """A scan the other way round, over what each turn began with: those carries are a first scan's further values. What it carries
    is the gradient of the carry, and of what all turns read the sum so far."""
    from tensor_graphs.language.autodiff import reversed_through  # loaded where somebody differentiates

    turns = Turns(node.inputs, node.attrs)
    body, count = turns.step, len(turns.carries)
    begun = Body(body.arguments, (*body.outputs[:count], *body.arguments[:count]))
    before = [leaves.item(apply(SCAN, node.inputs, {**node.attrs, "step": begun}), count + k) for k in range(count)]

    # of one turn, over placeholders: the step's own, then the gradients of what it gives, then the sums of earlier turns
    floats = [k for k, a in enumerate(body.arguments) if a.dtype.is_float]
    flowing = [k for k, o in enumerate(body.outputs) if o.dtype.is_float and (k < count or grads[k] is not None)]
    given = {k: leaves.argument(len(body.arguments) + k, body.outputs[k].type) for k in flowing}
    found = dict(zip(floats, reversed_through(body.outputs, [given.get(k) for k in range(len(body.outputs))],
                                              [body.arguments[k] for k in floats]), strict=True))
    sliced = range(count, count + len(turns.sliced))
    carried = [k for k in floats if k < count]
    read = {k: g for k in floats if k in sliced and (g := found[k]) is not None}
    others = {k: g for k in floats if k >= sliced.stop and (g := found[k]) is not None}
    sums = {k: leaves.argument(len(body.arguments) + len(body.outputs) + k, body.arguments[k].type) for k in others}
    made = [*(_or_zero(found[k], body.arguments[k].type) for k in carried), *(atomic.add(sums[k], g) for k, g in others.items()),
            *read.values()]
    if not made:
        return {}
    slices = [*zip(body.arguments[:count], before, strict=True), *((body.arguments[k], node.inputs[k]) for k in sliced),
              *((given[k], g) for k in flowing if k >= count and (g := grads[k]) is not None)]
    taken = [*(given[k] for k in carried), *sums.values(), *(a for a, _ in slices), *body.arguments[sliced.stop:]]
    arguments = [leaves.argument(i, a.type) for i, a in enumerate(taken)]
    begin = [*(_or_zero(grads[k], node.types[k]) for k in carried), *(atomic.fill(0, s.shape, s.dtype) for s in sums.values())]
    back = apply(SCAN, (*begin, *(x for _, x in slices), *turns.others),
                 {"step": Body(arguments, over(made, taken, arguments)), "carries": len(begin), "slices": len(slices),
                  "reverse": not turns.reverse})
    out: list[Node | None] = [None] * len(node.inputs)
    for place, k in enumerate((*carried, *others, *read)):
        out[k] = leaves.item(back, place)
    return {"operands": out}


def _or_zero(x: Node | None, t: TensorType) -> Node:
    return atomic.fill(0, t.shape, t.dtype) if x is None else x


SCAN = put_in_library(ScanOp(_operands, name="scan", opaque=True, gradient=_gradient,
                             facts=OpFacts(dtype_matters=True, telling=True, sought=False)))

Tensors = Node | Sequence[Node] | None

_traced = itertools.count()


def scan(step: Callable[[Any, Any], Any], init: Tensors, xs: Node | Sequence[Node], axis: int = 0, *,
         reverse: bool = False) -> tuple[Any, Any]:
    """A recurrence: step(carry, x) -> (new carry, y), taken once for each slice of xs. Returns (carry after the last turn, ys).

    init: the carry before the first turn: a tensor, or several in a tuple or list; () where nothing is carried. xs: a tensor, or
    several of one length along `axis`, which may be a dim, and 0. step is called once, with tensors that stand for the carry and
    for one slice (xs without `axis`), in tuples where init and xs are sequences; whatever else it reads (weights) is the same in
    each turn. The carry that it returns has the shapes and dtypes of init. y: a tensor, several in a tuple, or None; ys are stacked
    along `axis`, in the order of the slices. reverse: from the last slice to the first.

        def cell(h, x):
            h = tg.tanh(tg.linear(x, w) + tg.linear(h, u))
            return h, h

        last, hs = tg.scan(cell, tg.constant(0.0).expand((batch, width)), x)        # x[steps, batch, inputs]

    Kernels run it as a loop, however long it is. Raises ShapeError, DTypeError, AttributeValueError, GraphError.
    """
    carries, slices = _tensors("init", init), _tensors("xs", xs)
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
    body, closed, single = _traced_step(step, carries, slices, isinstance(init, Node), isinstance(xs, Node))
    made = apply(SCAN, (*carries, *slices, *closed),
                 {"step": body, "carries": len(carries), "slices": len(slices), "reverse": bool(reverse)})
    outputs = [leaves.item(made, i) for i in range(len(made.types))]
    finals = outputs[0] if isinstance(init, Node) else tuple(outputs[:len(carries)])
    stacked = [_moved(y, 0, one_axis("scan", axis, y.rank, "axis of ys,")) for y in outputs[len(carries):]]
    return finals, (None if single is None else stacked[0] if single else tuple(stacked))


def _tensors(what: str, given: Tensors) -> list[Node]:
    found: list[Any] = [] if given is None else list(given) if isinstance(given, (tuple, list)) else [given]
    wrong = next((x for x in found if not isinstance(x, Node)), None)
    if wrong is not None:
        raise DTypeError(f"scan: {what} is {type(wrong).__name__}, a tensor or a tuple of tensors is needed",
                         fix=leaves.AS_TENSOR if isinstance(wrong, leaves.State) else "wrap numbers and arrays with tg.constant")
    return found


RETURNED = "the carry that the step returned"


def _moved(x: Node, old: int, new: int) -> Node:
    """x with one axis elsewhere."""
    if old == new:
        return x
    order = [i for i in range(x.rank) if i != old]
    order.insert(new, old)
    return atomic.permute(x, order)


def _traced_step(step: Callable[[Any, Any], Any], carries: Sequence[Node], slices: Sequence[Node], one_carry: bool,
                 one_slice: bool) -> tuple[Body, list[Node], bool | None]:
    """(the step as a body, what it reads beside carry and slice, whether y is one tensor; None where there is none)."""
    number = next(_traced)                              # steps within steps read each other's values: no two have one name
    fresh = [leaves.input(f"scan.{number}.{i}", t.shape, t.dtype)
             for i, t in enumerate([*(c.type for c in carries), *(slice_type(x.type) for x in slices)])]
    h, x = fresh[:len(carries)], fresh[len(carries):]
    given = step(h[0] if one_carry else tuple(h), x[0] if one_slice else tuple(x))
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        what = f"{len(given)} values" if isinstance(given, (tuple, list)) else f"a {type(given).__name__}"
        raise GraphError(f"scan: the step returned {what}, a pair is needed", fix="return new_carry, y; of a step without y: "
                         "return new_carry, None")
    after, ys = given
    if isinstance(after, Node) != one_carry and carries:
        raise GraphError(f"scan: init is {_said(one_carry, len(carries))}, the carry that the step returned is "
                         f"{_said(isinstance(after, Node), 1 if isinstance(after, Node) else len(_tensors(RETURNED, after)))}",
                         fix="the step returns its carry in the form of init")
    after, given_ys = _tensors(RETURNED, after), _tensors("y", ys)
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


def _said(one: bool, count: int) -> str:
    return "a tensor" if one else f"a tuple of {count}"


def _read_beside(outputs: Sequence[Node], fresh: Sequence[Node]) -> list[Node]:
    """What a step reads that is the same in each turn, in the order of its first use: whatever is made of leaves alone that are no
    numbers, as far as it goes; it is computed once, outside. A number of a dim is one, unless carries and slices know the dim."""
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
