"""loop_ir: loops as data. A program is nests of stages; a stage is axes and one scalar expression, stored, reduced or scanned.

    nest over i in 0..n
        t0[] = max over r in 0..m of x[i·m + r]
        t1[] = sum over s in 0..m of exp(x[i·m + s] − t0[])
        y[i·m + j] = exp(x[i·m + j] − t0[]) / t1[]    over j in 0..m

Indices are dims: integer expressions of the axes' symbols and of the graph's dims, in the normal form of language/dims.py, so that
views (reshape, permute, slice, expand) fold into them. `print(program)` shows the entire program.

The following rules define what any renderer prints. interpret.py implements them in numpy and settles doubts about the meaning.
- The nests run one after another. The iterations ("turns") of a nest's axes are independent, so threads or blocks may share the
  axes up to the lowest stage level above 0. A stage at a lower level than the innermost runs again for each turn of its `level`
  outer axes, before deeper stages run. A nest at level 0 is one turn.
- Within a turn the stages run in order. A stage that stores may walk its `axes` in any order. A reduction may combine its values in
  any order (sums of floats: no less accurate than with f64 across blocks of a few hundred). A scan combines them in order.
- Scratch of level 0 is one array for all nests. Scratch of a higher level belongs to one turn (of size 1: a register).
- Neighbouring stages `within` an axis share one loop over it, whose turns run in order. Each turn is a block of an axis that no
  stage stores completely. A `joined` stage combines its value with its target's old value, which is first multiplied by `factor`.
- A load with an argument reads memory only where that is true, and is 0 elsewhere.
- Arithmetic is done in `computed_in(dtype)`; values stored to an output are rounded to its dtype.
- `Nest.tile` and fields called advice are advice: results do not depend on them, except for the order of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, f32

Pairs = tuple[tuple[int, int], ...]

WINDOW, NEAR = 8, (1, 2, 3, 4)
"""most elements of a window, and strides between its positions for which many are computed at the same time"""

Monoid = Literal["sum", "max", "product"]
"""name of the operation that combines values: associative, with an identity (0, the least number or −∞, 1)"""


@dataclass(frozen=True)
class Axis:
    """A loop from 0 to size. symbol: the dim that represents its index."""

    name: str
    size: Dim

    @property
    def symbol(self) -> Dim:
        """The axis's index as a dim, with its bounds."""
        return index_symbol(self.name, self.size)


def index_symbol(name: str, size: Dim) -> Dim:
    """Return a symbol for an index below a size; for an axis of one element, 0. A possibly empty axis keeps a symbol, so that
    nothing is read before its loop is entered."""
    low, high = d.bounds(size)
    return 0 if low == high == 1 else d.dim(name, 0, max(high - 1, 0))


def flat(axes: Sequence[Axis]) -> Dim:
    """Return the flat index over all axes, the last axis fastest."""
    index: Dim = 0
    for axis in axes:
        index = index * axis.size + axis.symbol
    return index


@dataclass(eq=False)
class Array:
    """Memory for loads and stores: an operand, an output, or a temporary of the program (scratch).

    level: number of outer nest axes for whose turns scratch is separate; 0: the nests share it. size: elements at that level."""

    name: str
    role: Literal["operand", "output", "scratch"]
    number: int
    dtype: DType
    size: Dim
    level: int = 0

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False)
class Value:
    """A scalar expression; equal expressions are one object (`Values.make`).

    op: "constant" (attr: the number) · "index" (attr: a dim, as a number of `dtype`) · "load" (attr: array, offset, and the axes
    inside of which the array exists; an optional argument is a condition, without which the result is 0 and memory is not read) ·
    the name of an atomic op, or of a scalar function that the renderer has. symbols: the axes and gathered indices that it depends
    on."""

    op: str
    args: tuple[Value, ...]
    dtype: DType
    attr: Any
    symbols: frozenset[str]
    number: int

    def __str__(self) -> str:
        text, named = shown(self)
        return "; ".join([text, *named])

    def is_constant(self, number: float) -> bool:
        return self.op == "constant" and bool(self.attr == number)


def values_in(*roots: Value) -> Iterator[Value]:
    """Yield values and all their subexpressions, each once."""
    todo, seen = list(roots), set[Value]()
    while todo:
        v = todo.pop()
        if v not in seen:
            seen.add(v)
            todo += v.args
            yield v


def rewritten(root: Value, change: Callable[[Value, tuple[Value, ...]], Value]) -> Value:
    """Return a value rebuilt bottom-up: `change` gets each value and its changed arguments."""
    cache: dict[Value, Value] = {}

    def one(v: Value) -> Value:
        if v not in cache:
            cache[v] = change(v, tuple(one(a) for a in v.args))
        return cache[v]

    return one(root)


def lies_across(load: Value, outer: str, inner: str) -> bool:
    """Return whether a load is contiguous along the axis `outer`, and strided along `inner`."""
    offset = load.attr[1]
    step = d.coefficient(offset, inner)
    return not load.args and step is not None and step not in (0, 1, -1) and d.coefficient(offset, outer) == 1


def products_alone(program: StageProgram) -> frozenset[Value]:
    """Return the products that have to be rounded before something is added to them, because a difference depends on that rounding.

    x − ⌊x / y⌋·y is the remainder of x only where the product is rounded. exp(x·s − max(x·s)) is 1 at the maximum only where both
    round x·s alike: one fused multiply-add of 1e10·s would make it 0 or ∞."""
    stages = [s for nest in program.nests for s in nest.stages]
    greatest = {s.target: s.value for s in stages if s.monoid == "max"}
    alone: set[Value] = set()
    for v in {v for s in stages for root in s.roots() for v in values_in(root) if v.dtype.is_float}:
        if v.op == "mul" and any(a.op == "floor" or (a.op == "cast" and a.args[0].op == "floor") for a in v.args):
            alone.add(v)
        if v.op == "add":
            most = [greatest[x.attr[0]] for a in v.args for x in values_in(a) if x.op == "load" and x.attr[0] in greatest]
            for x in (*v.args, *most) if most else ():
                alone.update(_products_added(x))
    return frozenset(alone)


def _products_added(v: Value) -> Iterator[Value]:
    """Yield the products that a value is, adds or selects, except multiples by a power of two, which are exact."""
    if v.op == "mul":
        if not any(a.op == "constant" and abs(math.frexp(a.attr)[0]) == 0.5 for a in v.args):
            yield v
    elif v.op in ("add", "max", "where", "cast"):
        for a in v.args:
            yield from _products_added(a)


def dim_of(value: Value) -> Dim | None:
    """Return the index that a value is or loads from; None for other values."""
    held: Dim | None = value.attr if value.op == "index" else value.attr[1] if value.op == "load" else None
    return held


def computed_in(dtype: DType) -> DType:
    """Return the dtype of arithmetic: narrow floats are computed in f32 and rounded when they are stored."""
    return f32 if dtype.is_float and dtype.itemsize < f32.itemsize else dtype


class Values:
    """A factory of hash-consed values: equal arguments give one object. gathered: index symbol -> the value loaded at run time for
    it."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Value] = {}
        self.gathered: dict[str, Value] = {}

    def make(self, op: str, dtype: DType, *args: Value, attr: Any = None) -> Value:
        key = op, dtype.name, tuple(a.number for a in args), _attr_key(attr)
        if key not in self._known:
            symbols = frozenset[str]().union(*(a.symbols for a in args), *(self.symbols_of(x) for x in _dims_of(attr)))
            if op == "load":
                symbols |= attr[2]
            self._known[key] = Value(op, args, dtype, attr, symbols, len(self._known))
        return self._known[key]

    def __len__(self) -> int:
        return len(self._known)

    def symbols_of(self, index: Dim) -> frozenset[str]:
        """Return the symbols of an index. A gathered symbol adds those on which its value depends."""
        if not isinstance(index, d.Expr):
            return frozenset()
        out = frozenset(index.symbols)
        for name in index.symbols:
            if name in self.gathered:
                out |= self.gathered[name].symbols
        return out

    def constant(self, value: bool | int | float, dtype: DType) -> Value:
        return self.make("constant", dtype, attr=value)

    def index(self, index: Dim, dtype: DType) -> Value:
        return self.make("index", dtype, attr=index)

    def remade(self, v: Value, args: tuple[Value, ...], attr: Any = None) -> Value:
        """Return a value with other arguments, and another attribute if one is given."""
        attr = v.attr if attr is None else attr
        return v if args == v.args and attr == v.attr else self.make(v.op, v.dtype, *args, attr=attr)

    def load(self, array: Array, offset: Dim, guard: Value | None = None) -> Value:
        guards = () if guard is None else (guard,)
        return self.make("load", computed_in(array.dtype), *guards, attr=(array, offset, frozenset[str]()))

    def gather(self, value: Value, size: Dim) -> Dim:
        """Return an index below `size` whose value is read at run time; loads with it need a guard against values out of range."""
        name = f"_g{value.number}"
        self.gathered[name] = value
        return index_symbol(name, size)


def _attr_key(attr: Any) -> Any:
    if isinstance(attr, float):
        return "float", attr.hex()                        # −0.0 is not 0.0, and NaN is itself
    return type(attr).__name__, attr


def _dims_of(attr: Any) -> Iterator[Dim]:
    if isinstance(attr, d.Expr):
        yield attr
    elif isinstance(attr, tuple):
        for part in attr:
            yield from _dims_of(part)


@dataclass(frozen=True)
class Scan:
    """A running reduction over `axis`, one of the stage's own axes. The target at each turn combines the values of this and all
    earlier turns (before: of earlier ones only) with `start`, or the monoid's identity. A scan runs backwards if the indices
    reverse the axis."""

    axis: Axis
    before: bool = False
    start: Value | None = None


@dataclass(frozen=True)
class StageAdvice:
    """Advice on how a stage is walked; results do not change, except for the order of sums.

    block: elements that each lane of a sum of narrow floats adds before it continues in a wider dtype; for a scan, elements
    computed before they are accumulated. lanes: accumulator vectors of a reduction along memory (1: the compiler decides). unroll:
    turns of the innermost loop that are unrolled (1: the compiler decides). columns, rows: for a reduction across memory, columns
    that are reduced together, and rows that are summed before the sum is added to a wider one. Measured on sums of 2048 rows: 256
    columns took 0.6 of the time of 512 or 1024 (rows of 768 to 1024 f32), or 0.8 cold and 0.5 hot (4096); fewer: no gain."""

    block: int = 512
    lanes: int = 1
    unroll: int = 1
    columns: int = 256
    rows: int = 64


SCANNED = 128
"""elements that a scan along memory computes before it accumulates them: few, so that memory is read while it accumulates. Measured
on 1024 rows of 1024 f32, one thread: 64 or 128 took 0.48 of the cold time of 512, and 0.8 of the hot time"""

SCAN_ADVICE = StageAdvice(block=SCANNED)


@dataclass(frozen=True)
class NestAdvice:
    """Advice on a nest. grain: element steps that justify a separate part for a thread. tile: iterations of a block along the axis
    that is read contiguously; along the stored axis it has as many as fit. Measured on 1024 × 1024, cold, one thread, operands
    that begin between lines of the cache: 0.77 (f32), 0.73 (bf16), 0.92 (f64), 1.08 (i8) of the time of 64 × 64 begun anywhere.
    shared: most outer axes that threads share. beside: it may run concurrently with the nest before it."""

    grain: int = 1 << 14
    tile: int = 16
    shared: int = 99
    beside: bool = False


@dataclass(eq=False)
class Stage:
    """target[index] = value, or its reduction over `reduce`, or its scan, for all `axes`, inside of `level` axes of the nest. A
    stage with a monoid has axes to reduce or a scan, not both. product: a sum of products of rows and columns, in a program for few
    rows. tiled: a product whose operands have the layout of a register tile (tile_rows.py). within: an axis of blocks around the
    stage and its neighbours, inside the nest's axes. joined: a reduction continues from the target's old value, times `factor`
    (None: 1)."""

    target: Array
    index: Dim
    axes: tuple[Axis, ...]
    value: Value
    level: int
    reduce: tuple[Axis, ...] = ()
    monoid: Monoid | None = None
    note: str = ""
    scan: Scan | None = None
    advice: StageAdvice = StageAdvice()
    within: Axis | None = None
    joined: bool = False
    factor: Value | None = None
    product: bool = False
    tiled: bool = False

    def roots(self) -> tuple[Value, ...]:
        """Return the expressions that the stage computes."""
        others = (None if self.scan is None else self.scan.start, self.factor)
        return (self.value, *(v for v in others if v is not None))

    @property
    def own(self) -> tuple[Axis, ...]:
        """All loops of the stage inside those of the nest."""
        return (*(() if self.within is None else (self.within,)), *self.axes, *self.reduce)


@dataclass(eq=False)
class Nest:
    """Stages under shared outer axes, ordered so that each reads only what earlier ones have written.

    tile: an axis of the nest along which operands are contiguous, while the stages store along their last axis. Both axes are best
    walked in blocks, so that cache lines read and written are used completely. None where there is no such axis."""

    axes: tuple[Axis, ...]
    stages: list[Stage]
    tile: Axis | None = None
    advice: NestAdvice = NestAdvice()


def across(s: Stage) -> bool:
    """Return whether a reduction runs across memory: its last own axis, not the reduced one, is contiguous, or the reduced axis is
    shorter than a vector, as in a window."""
    if s.monoid is None or s.scan is not None or not s.axes:
        return False
    if any(str(x) == s.axes[-1].name for axis in s.reduce for x in d.symbols(axis.size)):
        return False                                                # how long it is is known only inside of that axis
    own, over, steps = 0, 0, []
    for v in values_in(s.value):
        if v.op == "load":
            size = d.bounds(v.attr[0].size)[1]
            steps.append(d.coefficient(v.attr[1], s.axes[-1].name))
            own += size if steps[-1] == 1 else 0
            over += size if d.coefficient(v.attr[1], s.reduce[-1].name) == 1 else 0
    longest, last = d.bounds(s.reduce[-1].size)[1], d.bounds(s.axes[-1].size)[0]
    window = longest <= WINDOW < last and all(step in NEAR for step in steps)
    return own > over or window


@dataclass(eq=False)
class StageProgram:
    """The program of one part. dims: the symbols of its sizes, in the order of the kernel's arguments. dear: number of costly
    values that several stages need; again: those of them that are recomputed instead of stored. derivation: the rules that derived
    it from the lowered program, one line each (online_reductions.py). updated: pairs (output, operand) where only the elements that
    differ from the operand are stored, and nothing else reads either. shared: all pairs (output, operand) that may share memory,
    including the updated ones (in_place.py). doubles: the definition itself has f64 numbers, which stay f64."""

    operands: tuple[Array, ...]
    outputs: tuple[Array, ...]
    nests: list[Nest]
    values: Values
    dims: tuple[d.Expr, ...] = ()
    dear: int = 0
    again: tuple[int, ...] = ()
    derivation: tuple[str, ...] = ()
    updated: Pairs = ()
    shared: Pairs = ()
    doubles: bool = False

    @property
    def scratch(self) -> list[Array]:
        return list(dict.fromkeys(s.target for n in self.nests for s in n.stages if s.target.role == "scratch"))

    def __str__(self) -> str:
        lines: list[str] = []
        for nest in self.nests:
            tiles = f", in tiles along {nest.tile.name}" if nest.tile is not None else ""
            lines.append(f"nest over {_axes(nest.axes) or 'nothing'}{tiles}")
            for s, before in zip(nest.stages, [None, *nest.stages], strict=False):
                if s.within is not None and (before is None or before.within is not s.within):
                    lines.append(f"    in turns of {_axes([s.within])}:")
                inside = "    " * (1 + (s.within is not None))
                held = "" if not s.joined else "what it holds and " if s.factor is None else f"what it holds * {s.factor} and "
                kind = f"{s.monoid} of {held}all over {_axes(s.reduce)} of " if held else (
                    f"{s.monoid} over {_axes(s.reduce)} of " if s.reduce else "")
                if s.scan is not None:
                    start = f"{shown(s.scan.start)[0]} and " if s.scan.start is not None else ""
                    kind = f"{s.monoid} of {start}all {'before' if s.scan.before else 'up to'} {s.scan.axis.name} of "
                over = f"    over {_axes(s.axes)}" if s.axes else ""
                level = f"    in {s.level} of its axes" if s.level != len(nest.axes) else ""
                text, named = shown(s.value)
                lines.append(f"{inside}{s.target}[{d.format_dim(s.index)}] = {kind}{text}{over}{level}")
                lines += [f"{inside}    where {line}" for line in named]
        for name, value in self.values.gathered.items():
            text, named = shown(value)
            lines += [f"where {line}" for line in (f"{name} = {text}", *named)]
        lines += [f"derived: {line}" for line in self.derivation]
        return "\n".join(lines)


def _axes(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{a.name} in 0..{d.format_dim(a.size)}" for a in axes)


_INFIX = {"add": "+", "mul": "*", "less": "<", "not_equal": "≠", "and": "&", "xor": "^", "idiv": "//"}


def shown(value: Value) -> tuple[str, list[str]]:
    """Return a value as text, and lines that define names for the values it uses more than once."""
    uses: dict[Value, int] = {}
    order: list[Value] = []
    todo = [(value, False)]
    while todo:
        v, done = todo.pop()
        if done:
            order.append(v)
            continue
        uses[v] = uses.get(v, 0) + 1
        if uses[v] == 1:
            todo.append((v, True))
            todo += [(a, False) for a in reversed(v.args)]
    texts: dict[Value, str] = {}
    lines = []
    for v in order:
        text = _text(v, [texts[a] for a in v.args])
        if uses[v] > 1 and v.args and v is not value:
            lines.append(f"v{v.number} = {text}")
            text = f"v{v.number}"
        texts[v] = text
    return texts[value], lines


def _text(v: Value, args: Sequence[str]) -> str:
    if v.op == "constant":
        return str(v.attr)
    if v.op == "index":
        return f"{v.dtype}({d.format_dim(v.attr)})"
    if v.op == "load":
        array, offset, _ = v.attr
        read = f"{array}[{d.format_dim(offset)}]"
        return f"({args[0]} and {read})" if args else read
    if v.op in _INFIX:
        return f"({args[0]} {_INFIX[v.op]} {args[1]})"
    return f"{v.op}({', '.join(args)})"
