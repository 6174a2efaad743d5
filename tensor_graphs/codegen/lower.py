"""lower: a definition lowered to stages. Views fold into indices, element-wise ops into expressions; results of reductions are
stored.

Every value of the definition is a function of its index. From each output backwards, values are inlined into the expression that
reads them, down to the operands. A reduction (or a costly value that several stages need) gets a separate stage that runs first.
How much that stage computes follows from its readers: a row's maximum that is read at the nest's current row is one number for that
row; a value that is read across rows is computed completely, by an earlier nest.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tensor_graphs.codegen.loop_ir import (
    SCAN_ADVICE,
    Array,
    Axis,
    Monoid,
    Nest,
    Reduce,
    Running,
    Stage,
    StageAdvice,
    StageProgram,
    Value,
    Values,
    computed_in,
    identity_of,
    rewritten,
)
from tensor_graphs.codegen.passes.wide_statistics import with_wide_statistics
from tensor_graphs.codegen.refusals import cached
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.kernels.strides import Strides, contiguous_strides
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import part_of
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.composite import LIBRARY, Definition, TooManyNodesError, expand_all
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bool_, f32, f64, i64, u8
from tensor_graphs.language.node import ArrayValue, Node, Op, rebuild, walk
from tensor_graphs.language.text import parse_graph

FUNCTIONS = frozenset({"exp", "tanh", "div", "erf", "erfc", "cos", "tan", "mod"})
"""composites that renderers have as scalar functions: computed directly they are faster and have fewer roundings"""

REDUCTIONS: Mapping[str, Monoid] = {"sum": "sum", "reduce_max": "max", "prod": "product"}
"""ops that combine values along the axes in their attribute; prod is a composite that is not expanded"""

DEAR = frozenset({"exp2", "log2", "sin", "cos", "tan", "exp", "tanh", "erf", "erfc"})
"""ops whose results are stored rather than recomputed where several stages need them"""

MOST_STEPS = 600
"""most nodes of a definition in atomic ops; larger definitions are too large for one kernel"""

MOST_DEEP = 150
"""most ops on any path from an operand to an output"""

MOST_VALUES = 4000
"""most expressions of a program: a definition that reads values at ever new indices would grow without end"""


FARTHEST = 1 << 40
"""most elements from one row to the next"""


def steps_apart(number: int, shape: Sequence[Dim]) -> Strides:
    """Return strides of an operand with contiguous rows (its last axis): for every other axis a dim that is known at run time."""
    return tuple(1 if axis == len(shape) - 1 else d.dim(f"_s{number}_{axis}", 0, FARTHEST) for axis in range(len(shape)))


def lower(definition: Definition, apart: bool | Sequence[Strides] = False, again: Collection[int] | None = None,
          few_rows: bool = False, updates: bool = False) -> StageProgram:
    """Return the program of a definition; its operands are the definition's arguments, C-contiguous by default. apart: their
    strides, or True for arbitrary row strides (`steps_apart`); the program's dims are the definition's, then those strides. again:
    numbers of the costly shared values that are recomputed instead of stored (None: those that would be stored for all indices).
    few_rows: products are single numbers in separate nests, and their factors are computed before. updates: where rows are written
    into an operand, only these rows are stored (`StageProgram.updated`). Raises NotLowered."""
    read = _read(definition.outputs)
    roots, order, dear = read.roots, read.order, read.dear
    factors = _factors(order) if few_rows else {}
    numbered = [node for node in order if node in dear]
    stored = dear if again is None else frozenset(node for i, node in enumerate(numbered) if i not in again)
    while True:
        lowering = _PartLowering(definition, read, stored, apart, factors, _updates(definition, roots, order) if updates else {})
        program = lowering.program(dear=len(numbered), again=tuple(i for i, node in enumerate(numbered) if node not in stored))
        if not lowering.whole or again is not None:
            return program
        stored = stored - lowering.whole                                    # what would be made whole is computed again instead


def lower_text(*lines: str, few_rows: bool = False) -> StageProgram:
    """Return the program of a graph in its text form (language/text.py), with which the examples of passes begin. Raises TextError
    and NotLowered.

    >>> print(lower_text("input x f32[4, 8]", "output y = sum(exp(x); axes=(1,))"))
    nest over _i0 in 0..4
        y0[_i0] = sum over _r1 in 0..8 of exp(x0[8*_i0 + _r1])
    """
    return lower(part_of(parse_graph("\n".join(["tg 1", *lines]))).written, few_rows=few_rows)


@dataclass(frozen=True)
class _Expanded:
    """The outputs of a definition in ops that stages have, all nodes in topological order, those worth keeping, the dims. doubles:
    any f64?"""

    roots: Sequence[Node]
    order: Sequence[Node]
    dear: frozenset[Node]
    dims: tuple[d.Expr, ...]
    doubles: bool


@cached(maxsize=256)                                                # the loops of one are asked for in five ways, and more on a GPU
def _read(outputs: tuple[Node, ...]) -> _Expanded:
    """Return the expanded nodes behind these outputs. Raises NotLowered where stages cannot express them."""
    try:
        roots = expand_all(outputs, _stays)
    except TooManyNodesError as e:
        raise NotLowered(str(e)) from None
    roots = rebuild(roots, _read_rather_than_scattered)
    order = walk(roots)
    if len(order) > MOST_STEPS:
        raise NotLowered(f"it is {len(order)} steps, more than {MOST_STEPS}")
    deep: dict[Node, int] = {}
    for node in order:
        deep[node] = 1 + max((deep[i] for i in node.inputs), default=0)
    if max(deep.values()) > MOST_DEEP:
        raise NotLowered(f"it is {max(deep.values())} steps deep, more than {MOST_DEEP}")
    for node in order:
        why = _strange(node)
        if why is not None:
            raise NotLowered(why)
    doubles = any(t.dtype is f64 for node in order for t in node.types)
    roots = with_wide_statistics(roots)
    order = walk(roots)
    dims = _dims(order)
    for dim in dims:
        if str(dim).startswith("_"):
            raise NotLowered(f"its dim {dim} begins like an axis")
    return _Expanded(tuple(roots), tuple(order), _shared(order, roots), dims, doubles)


def stays(op: Op, dtype: DType) -> bool:
    """Return whether an op with results of this dtype is not expanded, because it is a scalar function or a reduction."""
    return LIBRARY.get(op.name) is op and (op.name in REDUCTIONS or (op.name in FUNCTIONS and dtype.is_float))


def _stays(node: Node) -> bool:
    return stays(node.op, node.types[0].dtype)


def _dims(order: Sequence[Node]) -> tuple[d.Expr, ...]:
    """Return the symbols in types and attributes, sorted by name."""
    symbols = {str(s): s for n in order for value in (*(t.shape for t in n.types), *n.attrs.values()) for s in d.symbols_in(value)}
    return tuple(symbols[name] for name in sorted(symbols))


def _strange(node: Node) -> str | None:
    """Return why stages cannot express a node; None where they can."""
    op = node.op
    if op is leaves.CONSTANT:
        return f"a constant of {node.type}" if isinstance(node.attrs["value"], ArrayValue) else None
    if op is leaves.ARGUMENT or _stays(node):
        return None
    if op.kind != "atomic":
        return f"{op.name} is no atomic op"
    if op.name == "bitcast" and node.dtype.itemsize != node.inputs[0].dtype.itemsize:
        return "a bitcast to another width"
    return None


def _read_rather_than_scattered(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """Return a scatter to positions known only at run time as a read for each position: the last, sum or largest of all its
    updates. Callers that count loop iterations decide if that is too much work."""
    if node.op.name != "scatter" or _place(inputs[1]) is not None:
        return None
    (base, at, updates), (axis, mode) = inputs, (node.attrs["axis"], node.attrs["mode"])
    if at.rank != 1:
        at = atomic.reshape(at, (at.type.size(),))
        updates = atomic.reshape(updates, (*base.shape[:axis], at.shape[0], *base.shape[axis + 1:]))
    (m,), s, dtype = at.shape, base.shape[axis], base.dtype

    def among(x: Node, axes: Sequence[int], shape: Sequence[Dim]) -> Node:
        return atomic.expand(atomic.reshape(x, [size if i in axes else 1 for i, size in enumerate(shape)]), shape)

    places = atomic.iota((s, m), 0, i64)
    hit = atomic.logical_not(atomic.not_equal(places, among(atomic.cast(at, i64), (1,), (s, m))))
    if mode == "set":
        last = atomic.reduce_max(atomic.where(hit, atomic.iota((s, m), 1, i64), atomic.fill(-1, (s, m), i64)), (1,))
        is_hit = among(atomic.less(atomic.fill(-1, (s,), i64), last), (axis,), base.shape)
        return atomic.where(is_hit, atomic.gather(updates, last, axis=axis), base)
    pairs = (*base.shape[:axis], s, m, *base.shape[axis + 1:])
    others = [i for i in range(len(pairs)) if i != axis]
    none = 0 if mode == "add" else -math.inf if dtype.is_float else int(dtype.min)
    taken = atomic.where(among(hit, (axis, axis + 1), pairs), among(updates, others, pairs), atomic.fill(none, pairs, dtype))
    if mode == "add":
        return atomic.add(base, atomic.sum(taken, (axis + 1,)))
    return atomic.max(base, atomic.reduce_max(taken, (axis + 1,)))


def _place(at: Node) -> Dim | None:
    """Return c if each element of an index vector is its own position + c; None otherwise."""
    if at.rank != 1:
        return None
    if at.op.name == "iota":
        return 0 if d.bounds(at.shape[0])[1] <= at.dtype.max else None
    if at.op.name != "add":
        return None
    for x, y in (at.inputs, at.inputs[::-1]):
        start = _place(x)
        while y.op.name in ("expand", "reshape"):
            y = y.inputs[0]
        if start is not None and y.op is leaves.CONSTANT and isinstance(y.attrs["value"], (int, d.Expr)):
            low, high = d.bounds(start + y.attrs["value"])
            return start + y.attrs["value"] if at.dtype.min <= low and high + d.bounds(at.shape[0])[1] <= at.dtype.max else None
    return None


def _shared(order: Sequence[Node], roots: Sequence[Node]) -> frozenset[Node]:
    """Return the nodes of DEAR ops that more than one stage needs."""
    users: dict[Node, set[Node]] = {n: set() for n in order}
    stored: set[Node] = set()
    for node in reversed(order):
        own = node in roots or node.op.name in REDUCTIONS
        if node.op.name in DEAR and len(users[node]) > 1:
            own = True
            stored.add(node)
        for x in node.inputs:
            users[x] |= {node} if own else users[node]
    return frozenset(stored)


@dataclass(frozen=True)
class _Update:
    """Rows written into an operand along an axis, from `start` on. shape: the shape of those rows that are within the operand."""

    operand: int
    rows: Node
    axis: int
    start: Dim
    shape: tuple[Dim, ...]

    def placed(self, index: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the index in the operand for an index in the rows."""
        return (*index[:self.axis], index[self.axis] + self.start, *index[self.axis + 1:])


def _updates(definition: Definition, roots: Sequence[Node], order: Sequence[Node]) -> dict[Node, _Update]:
    """Return the outputs that are an operand with rows written at a known position, where nothing else reads output or operand."""
    read = Counter(x for node in order for x in node.inputs)
    updates = {}
    for root in roots:
        if root.op.name == "scatter" and root.attrs["mode"] == "set" and not read[root] and roots.count(root) == 1:
            (base, at, rows), axis = root.inputs, root.attrs["axis"]
            start = _place(at)
            if base.op is leaves.ARGUMENT and read[base] == 1 and start is not None and dim_ge(start, 0) is True:
                inside = d.dim_min(rows.shape[axis], d.dim_max(base.shape[axis] - start, 0))
                shape = (*rows.shape[:axis], inside, *rows.shape[axis + 1:])
                updates[root] = _Update(definition.arguments.index(base), rows, axis, start, shape)
    return updates


def _factors(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return the products among nodes (sums over something larger than one of its factors), each with its factors that need
    computing."""
    products: dict[Node, list[Node]] = {}
    for node in order:
        if node.op.name == "sum" and node.inputs[0].op.name == "mul":
            size = node.inputs[0].type.size()
            factors = [_under(x, _VIEWS) for x in node.inputs[0].inputs]
            if any(x.op is not leaves.CONSTANT and not same_dim(x.type.size(), size) for x in factors):
                products[node] = [x for x in factors if _under(x, (*_VIEWS, "cast")).op.kind != "leaf"]
    return products


def _under(node: Node, ops: Collection[str]) -> Node:
    while node.op.name in ops:
        node = node.inputs[0]
    return node


@dataclass(eq=False)
class _OpenNest:
    """A nest while readers still add the stages that they need, at its front."""

    axes: tuple[Axis, ...]
    stages: list[Stage] = field(default_factory=list)


@dataclass(eq=False)
class _StoredNode:
    """A node whose value is stored, its array, and its reads (nest, number of axes around the read, index). level: nest axes around
    its stage. along: axes of the stage that computes an output in the loop of its only reader."""

    node: Node
    reads: list[tuple[_OpenNest, int, tuple[Dim, ...]]] = field(default_factory=list)
    array: Array | None = None
    level: int = 0
    along: tuple[Axis, ...] = ()


@dataclass(frozen=True)
class _RunningNode:
    """A reduction that is a scan. axis: the axis of its result; part: the argument of `where` that is scanned; before: the current
    element is excluded; backwards: it runs from the end."""

    axis: int
    part: int
    before: bool
    backwards: bool


def _reach(shape: Sequence[Dim], strides: Strides) -> Dim:
    """Return the elements that an operand spans, from its first to its last."""
    total: Dim = 1
    for size, stride in zip(shape, strides, strict=True):
        total = total + (size - 1) * stride
    return d.dim_max(total, 0)


class _PartLowering:
    def __init__(self, definition: Definition, read: _Expanded, dear: frozenset[Node],
                 apart: bool | Sequence[Strides], factors: Mapping[Node, Sequence[Node]], updates: Mapping[Node, _Update]) -> None:
        self.roots, self.order, self.dims, self.products = list(read.roots), read.order, read.dims, factors
        self.doubles = read.doubles
        self.streams: set[_OpenNest] = set()                             # nests of products
        self.updates = updates
        self.values = Values()
        arguments = definition.arguments
        if isinstance(apart, bool):
            self.strides = {a: steps_apart(i, a.shape) if apart else contiguous_strides(a.shape) for i, a in enumerate(arguments)}
        else:
            self.strides = dict(zip(arguments, apart, strict=True))
        self.operands = tuple(Array(f"x{i}", "operand", i, a.dtype, a.type.size() if isinstance(apart, bool) else
                                    _reach(a.shape, self.strides[a])) for i, a in enumerate(arguments))
        self.argument = dict(zip(arguments, self.operands, strict=True))
        self.nests: list[_OpenNest] = []                                 # the last first: who reads is lowered before who is read
        first = {x for nodes in factors.values() for x in nodes}
        self.kept = {n: _StoredNode(n) for n in self.order if n in dear or n in first or n in self.roots or n.op.name in REDUCTIONS}
        self.dear = dear
        self.whole: set[Node] = set()
        self.count = 0
        self.nest_of: dict[tuple[Dim, ...], tuple[_OpenNest, tuple[Axis, ...]]] = {}

    # ---- names ----

    def axis(self, letter: str, size: Dim) -> Axis:
        axis = Axis(f"_{letter}{self.count}", size)
        self.count += 1
        return axis

    # ---- the program ----

    def program(self, dear: int, again: tuple[int, ...]) -> StageProgram:
        outputs: dict[Node, Array] = {}
        for i, root in enumerate(self.roots):
            if root in outputs:
                raise NotLowered("one value is two outputs")
            outputs[root] = Array(f"y{i}", "output", i, root.dtype, root.type.size())
        for node in reversed(self.order):
            if node in self.kept:
                stored, output = self.kept[node], outputs.get(node)
                if output is not None and stored.reads and output.dtype != computed_in(output.dtype):
                    self.rounded(stored, output)                    # who reads it again reads what was not rounded, like all others
                    output = None
                self.keep(stored, output)
        # sorted is stable: at one level, in the order in which they were found
        nests = tuple(Nest(n.axes, tuple(s.with_roots(self.resolved) for s in sorted(n.stages, key=lambda s: s.level)))
                      for n in reversed(self.nests) if n.stages)
        self.values.gathered = {name: self.resolved(v) for name, v in self.values.gathered.items()}
        free = [s for strides in self.strides.values() for step in strides for s in d.symbols(step) if str(s).startswith("_")]
        updated = tuple((i, self.updates[r].operand) for i, r in enumerate(self.roots) if r in self.updates)
        return StageProgram(self.operands, tuple(outputs[r] for r in self.roots), nests, MappingProxyType(self.values.gathered),
                            (*self.dims, *free), dear, again, updated=updated, doubles=self.doubles)

    def keep(self, stored: _StoredNode, output: Array | None) -> None:
        """Create the stage of a stored node, in the nest where its readers need it."""
        node = stored.node
        running = self.running(node)
        nest, level = self.place(stored, node.rank if running is None else running.axis)
        update = self.updates.get(node)
        inside = node.shape if update is None else update.shape
        reader = self.beside(stored) if output is not None and node.op.name not in REDUCTIONS else None
        if reader is not None:
            nest, level, stored.along = reader
            axes = stored.along
        elif nest is None:
            if node in self.dear and output is None:
                self.whole.add(node)
            nest, axes = self.own_nest(node, inside, running)
        else:
            axes = tuple(self.axis("j", s) for s in node.shape[level:])
        if node in self.products:
            self.streams.add(nest)
        stored.level = level = len(nest.axes) if level < 0 else level
        index = [*(a.symbol for a in nest.axes[:level]), *(a.symbol for a in axes)]
        shape = node.shape
        if running is not None and running.backwards:
            index[running.axis] = shape[running.axis] - 1 - index[running.axis]
        if output is not None:
            stored.array, target = output, _offset(index if update is None else update.placed(index), shape)
        else:
            inner = shape[level:] if nest.axes and self.is_shared(stored, nest) else shape
            number = sum(k.array is not None for k in self.kept.values())
            level_of = level if inner is not shape else 0
            stored.array = Array(f"t{number}", "scratch", 0, computed_in(node.dtype), d.product(inner), level_of)
            target = _offset(index[len(shape) - len(inner):], inner)
        does: Reduce | Running | None = None
        read = _Reader(self, nest, level)
        if running is not None:
            does = Running(axes[running.axis - level], REDUCTIONS[node.op.name], running.before)
            (over,) = node.attrs["axes"]
            value = read(node.inputs[0], (*index[:over], index[running.axis], *index[over:]), None).args[running.part]
        elif node.op.name in REDUCTIONS:
            x = node.inputs[0]
            reduced = {a: self.axis("r", x.shape[a]) for a in node.attrs["axes"]}
            rest = iter(index)
            value = read(x, tuple(reduced[i].symbol if i in reduced else next(rest) for i in range(x.rank)), None)
            does = Reduce(tuple(reduced.values()), REDUCTIONS[node.op.name])
        elif update is not None:
            value = read(update.rows, tuple(index), None)
        else:
            value = read.computed(node, tuple(index), None)
        stage = Stage(stored.array, target, axes, value, level, does, node.op.name,
                      StageAdvice() if running is None else SCAN_ADVICE, "streamed" if node in self.products else None)
        nest.stages.insert(0, stage)
        if len(self.values) > MOST_VALUES:
            raise NotLowered(f"it comes to more than {MOST_VALUES} expressions")

    def rounded(self, stored: _StoredNode, output: Array) -> None:
        """Create the stage that rounds a stored value to an output, in the nest that computes it for its other readers."""
        shape = stored.node.shape
        nest, level = self.place(stored, stored.node.rank)
        if nest is None:
            nest, axes = self.own_nest(stored.node, shape)
            level = len(nest.axes)
        else:
            axes = tuple(self.axis("j", s) for s in shape[level:])
        index = (*(a.symbol for a in nest.axes[:level]), *(a.symbol for a in axes))
        value = _Reader(self, nest, level).referred(stored, index, None)
        nest.stages.insert(0, Stage(output, _offset(index, shape), axes, value, level, note="rounded"))

    def is_shared(self, stored: _StoredNode, nest: _OpenNest) -> bool:
        return all(n is nest for n, _, _ in stored.reads)

    def running(self, node: Node) -> _RunningNode | None:
        """Return a reduction as a scan, out[i] = the reduction of x[j] over all j ≤ i (or <, ≥, >), where x does not depend on i;
        None if it is no scan."""
        over: tuple[int, ...] = node.attrs["axes"] if node.op.name in REDUCTIONS else ()
        if len(over) != 1 or node.inputs[0].op.name != "where":
            return None
        x, monoid = node.inputs[0], REDUCTIONS[node.op.name]
        axes = [self.axis("p", s) for s in x.shape]
        value = _Reader(self, None, 0)(x, tuple(a.symbol for a in axes), None)
        if value.op != "where":
            return None
        inner = axes.pop(over[0])
        for part in (1, 2):
            other = value.args[3 - part]
            if other.op != "constant" or other.attr != identity_of(monoid, other.dtype):
                continue
            for at, outer in enumerate(axes):
                if outer.symbol == 0 or not same_dim(outer.size, inner.size):
                    continue
                far = _how_far(value.args[0], part == 1, outer.symbol, inner.symbol)
                if far is not None and outer.name not in value.args[part].symbols:
                    return _RunningNode(at, part, *far)
        return None

    def place(self, stored: _StoredNode, most: int) -> tuple[_OpenNest | None, int]:
        """Return the nest that computes a value, and inside of how many of its axes (at most `most`). None: it needs its own
        nest."""
        nests = {id(n): n for n, _, _ in stored.reads}
        if len(nests) != 1:
            return None, -1
        (nest,) = nests.values()
        level = min(len(nest.axes), most)
        for _, inside, index in stored.reads:
            same = 0
            for axis, at, size in zip(nest.axes[:inside], index, stored.node.shape, strict=False):
                if at != axis.symbol or not (same_dim(size, axis.size) or (
                        self.updates and stored.node not in self.roots and dim_ge(size, axis.size) is True)):
                    break
                same += 1
            level = min(level, same)
        whole = (nest in self.streams and level < len(nest.axes)) or (stored.node in self.products and level < stored.node.rank)
        return (nest, level) if level and not whole else (None, -1)

    def beside(self, stored: _StoredNode) -> tuple[_OpenNest, int, tuple[Axis, ...]] | None:
        """Return nest, level and axes of an output's only reader, if that reads the element of its own iteration; else None."""
        if len({(id(nest), level, index) for nest, level, index in stored.reads}) != 1:
            return None
        nest, level, index = stored.reads[0]
        for s in nest.stages:
            axes = (*nest.axes[:level], *s.axes)
            if s.level == level and s.monoid is None and s.axes and index == tuple(a.symbol for a in axes) and all(
                    same_dim(a.size, size) for a, size in zip(axes, stored.node.shape, strict=True)):
                return nest, level, s.axes
        return None

    def own_nest(self, node: Node, shape: tuple[Dim, ...],
                 running: _RunningNode | None = None) -> tuple[_OpenNest, tuple[Axis, ...]]:
        """Return a new first nest over all axes of a node's value but the last, which belongs to its stage. Outputs of one shape
        share a nest. A contiguous reduction leaves its stage no axis (one number per iteration). A scan's stage has its axis and
        all inner ones."""
        shares = node in self.roots and node.op.name not in REDUCTIONS and not self.kept[node].reads
        if shares and shape in self.nest_of:
            return self.nest_of[shape]
        cut = running.axis if running is not None else node.rank if self.one_each(node) else max(node.rank - 1, 0)
        nest = _OpenNest(tuple(self.axis("i", s) for s in shape[:cut]))
        axes = tuple(self.axis("j", s) for s in shape[cut:])
        self.nests.append(nest)
        if shares:
            self.nest_of[shape] = nest, axes
        return nest, axes

    def one_each(self, node: Node) -> bool:
        """Return whether a node is a contiguous reduction, or an element-wise result of such reductions of its shape."""
        todo, seen = [node], set[Node]()
        while todo:
            n = todo.pop()
            if n in seen or not same_dim(n.type.size(), node.type.size()):
                continue
            seen.add(n)
            if n.op.name in REDUCTIONS:
                if _along_memory(n):
                    return True
                continue
            todo += n.inputs if n.op.name not in ("permute", "slice", "gather", "pad") else ()
        return False

    # ---- references to what is kept ----

    def resolved(self, value: Value) -> Value:
        """Return a value with each reference to a stored node replaced by a load."""
        return rewritten(value, lambda v, args: self.loaded(v, args) if v.op == "kept" else self.values.remade(v, args))

    def loaded(self, v: Value, args: tuple[Value, ...]) -> Value:
        stored, *at, nest = v.attr
        index = tuple(at)
        array, shape = stored.array, stored.node.shape
        if array.role == "scratch" and array.level:
            names = frozenset(a.name for a in nest.axes[:array.level])
            offset = _offset(index[array.level:], shape[array.level:])
        else:
            # an output that is read again in its own nest is there once the axes that it was written in are at their turn
            axes = (*nest.axes[:stored.level], *stored.along) if self.is_shared(stored, nest) else ()
            names = frozenset(a.name for a in axes)
            offset = _offset(index, shape)
        return self.values.make("load", computed_in(array.dtype), *args, attr=(array, offset, names))


class _Reader:
    """Inlines the values of nodes at indices into expressions for one stage of a nest. Without a nest its values are separate and
    do not enter the program."""

    def __init__(self, lowering: _PartLowering, nest: _OpenNest | None, level: int) -> None:
        self.lowering, self.nest, self.level = lowering, nest, level
        self.values = Values() if nest is None else lowering.values
        self.known: dict[tuple[Node, tuple[Dim, ...], Value | None], Value] = {}

    def __call__(self, node: Node, index: tuple[Dim, ...], guard: Value | None) -> Value:
        """Return the value of a node at an index. guard: where it is false, the result is arbitrary and no memory is read."""
        key = node, index, guard
        if key not in self.known:
            stored = self.lowering.kept.get(node)
            self.known[key] = self.computed(node, index, guard) if stored is None else self.referred(stored, index, guard)
        return self.known[key]

    def referred(self, stored: _StoredNode, index: tuple[Dim, ...], guard: Value | None) -> Value:
        if self.nest is not None:
            stored.reads.append((self.nest, self.level, index))
        guards = () if guard is None else (guard,)
        return self.values.make("kept", computed_in(stored.node.dtype), *guards, attr=(stored, *index, self.nest))

    def computed(self, node: Node, index: tuple[Dim, ...], guard: Value | None) -> Value:
        """Return the value of a node at an index, computed from its operands' values."""
        v, op, attrs = self.values, node.op, node.attrs
        dtype = computed_in(node.dtype)
        if len(v) > MOST_VALUES:
            raise NotLowered(f"it comes to more than {MOST_VALUES} expressions")
        if op is leaves.ARGUMENT:
            offset: Dim = 0
            for at, step in zip(index, self.lowering.strides[node], strict=True):
                offset = offset + at * step
            return v.load(self.lowering.argument[node], offset, guard)
        if op is leaves.CONSTANT:
            value = attrs["value"]
            return v.index(value, dtype) if isinstance(value, d.Expr) else v.constant(value, dtype)
        name = op.name
        if name == "iota":
            return v.index(index[attrs["axis"]], dtype)
        view = _VIEWS.get(name)
        if view is not None:
            return self(node.inputs[0], view(node, index), guard)
        if name == "pad":
            return self.padded(node, index, guard)
        if name == "gather":
            return self.gathered(node, index, guard)
        if name == "scatter":
            return self.scattered(node, index, guard)
        args = [self(x, index, guard) for x in node.inputs]
        counted = _counted(name, dtype, args)
        if counted is not None:
            return v.index(counted, dtype)
        if name == "cast":
            x = self.rounded(args[0], node.inputs[0].dtype)
            return x if x.dtype == dtype else v.make("cast", dtype, x)
        if name == "bitcast":
            return v.make("bitcast", dtype, *args, attr=f"{node.inputs[0].dtype} {node.dtype}")
        if name == "floor" and dtype is f32 and args[0].op == "div":
            # a quotient just below a whole number may be rounded up to it: in f64, of two f32 below 2**29, it is not
            quotient = v.make("div", f64, *(v.make("cast", f64, a) for a in args[0].args))
            return v.make("cast", f32, v.make("floor", f64, quotient))
        return v.make(name, dtype, *args)

    def rounded(self, x: Value, dtype: DType) -> Value:
        """Return the operand of a cast. A float of 8 bits that is computed in f32 is rounded to its dtype, as nobody writes a cast
        to 8 bits and back but to round."""
        if not dtype.is_float or dtype.itemsize > 1 or _is_stored_in(x, dtype):
            return x
        bits = self.values.make("bitcast", u8, x, attr=f"{dtype} u8")
        return self.values.make("bitcast", x.dtype, bits, attr=f"u8 {dtype}")

    def padded(self, node: Node, index: tuple[Dim, ...], guard: Value | None) -> Value:
        v, x = self.values, node.inputs[0]
        inner = tuple(at - before for at, (before, _) in zip(index, node.attrs["padding"], strict=True))
        inside = self.within(inner, x.shape)
        if inside is None:
            return self(x, inner, guard)
        return v.make("where", computed_in(node.dtype), inside, self(x, inner, self.also(guard, inside)),
                      v.constant(node.attrs["value"], computed_in(node.dtype)))

    def within(self, index: Sequence[Dim], shape: Sequence[Dim]) -> Value | None:
        """Return the condition that an index is inside of a shape; None where it always is."""
        v, inside = self.values, list[Value]()
        for at, size in zip(index, shape, strict=True):
            for low, high in ((0, at), (at + 1, size)):             # 0 ≤ at and at + 1 ≤ size
                if dim_ge(high, low) is not True:
                    inside.append(v.make("at_least", bool_, v.index(high, i64), v.index(low, i64)))
        return functools.reduce(lambda a, b: v.make("and", bool_, a, b), inside) if inside else None

    def also(self, guard: Value | None, other: Value) -> Value:
        return other if guard is None else self.values.make("and", bool_, guard, other)

    def scattered(self, node: Node, index: tuple[Dim, ...], guard: Value | None) -> Value:
        """Return the value of a scatter whose updates go to consecutive positions from a known start."""
        (base, positions, updates), axis, v = node.inputs, node.attrs["axis"], self.values
        dtype, start = computed_in(node.dtype), _place(positions)
        assert start is not None
        inner = (*index[:axis], index[axis] - start, *index[axis + 1:])
        inside = self.within(inner[axis:axis + 1], positions.shape)
        new = self(updates, inner, guard if inside is None else self.also(guard, inside))
        if node.attrs["mode"] == "set" and inside is None:
            return new
        old = self(base, index, guard)
        if node.attrs["mode"] != "set":
            new = v.make({"add": "add", "max": "max"}[node.attrs["mode"]], dtype, old, new)
        return new if inside is None else v.make("where", dtype, inside, new, old)

    def gathered(self, node: Node, index: tuple[Dim, ...], guard: Value | None) -> Value:
        v, (x, positions), axis = self.values, node.inputs, node.attrs["axis"]
        at = self(positions, index[axis:axis + positions.rank], guard)
        dtype = computed_in(node.dtype)
        if at.op == "index" and dim_ge(at.attr, 0) is True and dim_ge(x.shape[axis] - 1, at.attr) is True:
            return self(x, (*index[:axis], at.attr, *index[axis + positions.rank:]), guard)   # an address, not a look-up
        wide = at if at.dtype == i64 else v.make("cast", i64, at)
        holds = v.make("and", bool_, v.make("at_least", bool_, wide, v.index(0, i64)),
                       v.make("less", bool_, wide, v.index(x.shape[axis], i64)))
        both = holds if guard is None else v.make("and", bool_, guard, holds)
        place = v.gather(v.make("where", i64, both, wide, v.constant(0, i64)), x.shape[axis])
        read = self(x, (*index[:axis], place, *index[axis + positions.rank:]), both)
        return v.make("where", dtype, holds, read, v.constant(False if dtype is bool_ else 0, dtype))


def _is_stored_in(x: Value, dtype: DType) -> bool:
    """Return whether a value is read from memory of this dtype, or is 0 elsewhere."""
    if x.op == "where":
        return all(_is_stored_in(a, dtype) for a in x.args[1:])
    return x.attr == 0 if x.op == "constant" else x.op == "load" and x.attr[0].dtype is dtype


def least_of(condition: Value, holds: bool) -> Dim | None:
    """Return a dim that is ≥ 0 exactly where a comparison of indices is true (holds=False: where it is false); None for any other
    condition."""
    while condition.op == "xor" and condition.args[1].op == "constant" and condition.args[1].attr is True:
        condition, holds = condition.args[0], not holds
    if condition.op not in ("less", "at_least"):
        return None
    numbers: list[Any] = [a.attr if a.op == "index" and _holds_itself(a) else
                          int(a.attr) if a.op == "constant" and a.dtype.is_integer else None for a in condition.args]
    if None in numbers:
        return None
    a, b = numbers
    least: Dim = a - b if condition.op == "at_least" else b - a - 1
    return least if holds else -1 - least


def _how_far(condition: Value, holds: bool, i: Dim, j: Dim) -> tuple[bool, bool] | None:
    """Return (before, backwards) where `condition` (holds=False: its negation) is j ≤ i, j < i, j ≥ i or j > i; None for any
    other."""
    least = least_of(condition, holds)
    if least is None:
        return None
    for backwards, gap in ((False, least - (i - j)), (True, least - (j - i))):
        if gap in (0, -1):
            return gap == -1, backwards
    return None


def _counted(name: str, dtype: DType, args: Sequence[Value]) -> Dim | None:
    """Return the result of an op on indices and whole numbers as an index, so that a computed position in a window is address
    arithmetic and no look-up. None where an argument is something else, or the result might wrap."""
    if not dtype.is_integer or name not in ("add", "mul", "cast") or all(a.op != "index" for a in args):
        return None
    if any(not a.dtype.is_integer or not (a.op == "constant" or (a.op == "index" and _holds_itself(a))) for a in args):
        return None
    first, *rest = (a.attr if a.op == "index" else int(a.attr) for a in args)
    if name == "mul" and isinstance(first, d.Expr) and isinstance(rest[0], d.Expr):
        return None
    result: Dim = first if name == "cast" else first + rest[0] if name == "add" else first * rest[0]
    low, high = d.bounds(result)
    return result if dtype.min <= low and high <= dtype.max else None


def _holds_itself(index: Value) -> bool:
    """Return whether an index fits its dtype without wrapping."""
    low, high = d.bounds(index.attr)
    return index.dtype.is_integer and index.dtype.min <= low and high <= index.dtype.max


def _offset(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """Return the offset of an index in a C-contiguous array, in elements."""
    out: Dim = 0
    for at, size in zip(index, shape, strict=True):
        out = out * size + at
    return out


# ---- views: the operand's index of an index of the result --------------------------------------------------------------------


def _permuted(node: Node, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
    out: list[Dim] = [0] * len(index)
    for at, axis in zip(index, node.attrs["axes"], strict=True):
        out[axis] = at
    return tuple(out)


def _expanded(node: Node, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(at if same_dim(old, new) else 0
                 for at, old, new in zip(index, node.inputs[0].shape, node.shape, strict=True))


def _sliced(node: Node, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(start + at * step for at, (start, _, step) in zip(index, node.attrs["bounds"], strict=True))


def _reshaped(node: Node, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return the operand's index. Runs of axes with equal element counts are treated separately, so that unchanged axes stay
    simple."""
    old, new = node.inputs[0].shape, node.shape
    out: list[Dim] = []
    i = j = 0
    while i < len(old):
        if j < len(new) and same_dim(old[i], new[j]):
            out.append(index[j])
            i, j = i + 1, j + 1
            continue
        if old[i] == 1:
            out.append(0)
            i += 1
            continue
        if j < len(new) and new[j] == 1:
            j += 1
            continue
        m, n = _one_run(old, new, i, j)
        if any(d.is_static(size) and size == 0 for size in old[i:m]):
            out += [0] * (m - i)                                    # of nothing, whose remainders no index has
            i, j = m, n
            continue
        flat = _offset(index[j:n], new[j:n])
        parts: list[Dim] = []
        for size in reversed(old[i + 1:m]):
            parts.append(flat % size)
            flat = flat // size
        out += [flat, *reversed(parts)]
        i, j = m, n
    return tuple(out)


def _one_run(old: Sequence[Dim], new: Sequence[Dim], i: int, j: int) -> tuple[int, int]:
    """Return (m, n) for the shortest runs old[i:m] and new[j:n] of provably equal size; where there are none, all remaining
    axes."""
    m, n = i + 1, j
    a: Dim = old[i]
    b: Dim = 1
    while not same_dim(a, b) or n == j:
        grow = dim_ge(a, b)
        if (grow is True and n < len(new)) or (n < len(new) and n == j):
            b, n = b * new[n], n + 1
        elif grow is not True and m < len(old) and dim_ge(b, a) is True:
            a, m = a * old[m], m + 1
        else:
            return len(old), len(new)
    return m, n


_VIEWS: dict[str, Callable[[Node, tuple[Dim, ...]], tuple[Dim, ...]]] = {
    "permute": _permuted, "expand": _expanded, "slice": _sliced, "reshape": _reshaped}


def _along_memory(node: Node) -> bool:
    """Return whether a reduction includes its operand's last axis."""
    return node.inputs[0].rank - 1 in node.attrs["axes"]
