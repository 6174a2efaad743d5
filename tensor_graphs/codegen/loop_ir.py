"""loop_ir: loops as data. A program is nests of stages; a stage is axes and one scalar expression, stored, reduced or scanned.

    nest over i in 0..n
        t0[] = max over r in 0..m of x[i·m + r]
        t1[] = sum over s in 0..m of exp(x[i·m + s] − t0[])
        y[i·m + j] = exp(x[i·m + j] − t0[]) / t1[]    over j in 0..m

Indices are dims: integer expressions of the axes' symbols and of the graph's dims, in the normal form of language/dims.py, so that
views (reshape, permute, slice, expand) fold into them. `print(program)` shows the entire program.

The following rules define what any mapper has to keep. interpret.py implements them in numpy and settles doubts about the meaning.
- The nests run one after another. The iterations ("turns") of a nest's axes are independent, so threads or blocks may share the
  axes up to the lowest stage level above 0. A stage at a lower level than the innermost runs again for each turn of its `level`
  outer axes, before deeper stages run. A nest at level 0 is one turn.
- Within a turn the stages run in order. A stage that stores may walk its `axes` in any order. A reduction may combine its values in
  any order (sums of floats: no less accurate than with f64 across blocks of a few hundred). A scan combines them in order.
- Scratch of level 0 is one array for all nests. Scratch of a higher level belongs to one turn (of size 1: a register).
- The stages of `Blocks` share one loop over its axis, whose turns run in order. Each turn is a block of an axis that no stage
  stores completely. A reduction that goes on with what its target holds (`Reduce.held`) combines the old value, times `held`.
- A load with an argument reads memory only where that is true, and is 0 elsewhere.
- Arithmetic is done in `computed_in(dtype)`; values stored to an output are rounded to its dtype.
- `Nest.tile` and fields called advice are advice: results do not depend on them, except for the order of sums.

Everything here is a value: nothing of a program changes once it is made. A pass gives a new program (pipelines.py), which shares
with the old one what it left alone. Arrays and axes are equal by their fields, and a name stands for one of them in a program;
stages, nests and programs are compared by identity, so that they are cheap keys of caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal

from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, f32

Pairs = tuple[tuple[int, int], ...]

WINDOW, NEAR = 8, (1, 2, 3, 4)
"""most elements of a window, and strides between its positions for which many are computed at the same time"""


@dataclass(frozen=True)
class Top:
    """The monoid of sorted lists: the `count` greatest values of all, the greatest first. A result is as many elements, from the
    stage's index on; where there are fewer values, the last ones are the least number of the dtype."""

    count: int

    def __str__(self) -> str:
        return f"top {self.count}"


Monoid = Literal["sum", "max", "product"] | Top
"""the operation that combines values: associative, with an identity"""

JOINS: Mapping[Monoid, tuple[str, int | None, str]] = {
    "sum": ("add", 0, "+"), "max": ("max", None, "max"), "product": ("mul", 1, "*")}
"""monoid of single numbers -> (the op of two values, its identity, its sign in C); None: the least number"""


def identity_of(monoid: Monoid, dtype: DType) -> float:
    """Return the identity of a monoid, or each element of it."""
    identity = None if isinstance(monoid, Top) else JOINS[monoid][1]
    return identity if identity is not None else -math.inf if dtype.is_float else dtype.min


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


@dataclass(frozen=True)
class Array:
    """Memory for loads and stores: an operand, an output, or a temporary of the program (scratch). In a program its name is unique.

    level: number of outer nest axes for whose turns scratch is separate; 0: the nests share it. size: elements at that level."""

    name: str
    role: Literal["operand", "output", "scratch"]
    number: int
    dtype: DType
    size: Dim
    level: int = 0

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, slots=True)                                    # frozen ones, of which there are many, take longer
class Value:
    """A scalar expression, which nobody changes; equal expressions are one object (`Values.make`).

    op: "constant" (attr: the number) · "index" (attr: a dim, as a number of `dtype`) · "load" (attr: array, offset, and the axes
    inside of which the array exists; an optional argument is a condition, without which the result is 0 and memory is not read) ·
    the name of an atomic op, or of a scalar function that a printer has. symbols: the axes and gathered indices that it depends
    on. number: its place in `table`, the values of one lowering; texts name it by that."""

    op: str
    args: tuple[Value, ...]
    dtype: DType
    attr: Any
    symbols: frozenset[str]
    number: int
    table: _ValueTable = field(repr=False)

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
    stages = list(program.stages)
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


_NO_SYMBOLS: frozenset[str] = frozenset()


class _ValueTable:
    """The values of one lowering and of what passes make of it, numbered in the order in which they were first made: so a text does
    not depend on what else was lowered."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Value] = {}
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.count = 0


class Values:
    """A factory of hash-consed values: equal arguments give one object. gathered: index symbol -> the value loaded at run time for
    it. A pass takes one from its program (`StageProgram.values`) and gives what it gathered to the program that it returns."""

    def __init__(self, table: _ValueTable | None = None, gathered: Mapping[str, Value] = MappingProxyType({})) -> None:
        self._table = table or _ValueTable()
        self.gathered = dict(gathered)

    def make(self, op: str, dtype: DType, *args: Value, attr: Any = None, number: int = -1) -> Value:
        """Return the value of these arguments. number: that of a value with the same name in texts; by default a new one."""
        table, read = self._table, _NO_SYMBOLS
        if self.gathered and op in ("index", "load"):
            read = self.read_in(attr)
        key = op, dtype, args, _attr_key(attr), read
        value = table.known.get(key)
        if value is None:
            symbols = _NO_SYMBOLS.union(*[a.symbols for a in args])
            if attr is not None:
                symbols = symbols.union(*[symbols_of(x, self.gathered) for x in _dims_of(attr)])
            if op == "load":
                symbols |= attr[2]
            number = table.count if number < 0 else number
            if self.gathered:                                       # what is remade for another index that is read keeps its name
                number = table.numbers.setdefault((op, dtype, tuple(a.number for a in args), _attr_key(attr)), number)
            table.count = max(table.count, number + 1)
            value = table.known[key] = Value(op, args, dtype, attr, symbols, number, table)
        return value

    def __len__(self) -> int:
        return self._table.count

    def read_in(self, attr: Any) -> frozenset[str]:
        """Return the symbols on which the gathered indices in an attribute depend."""
        names = [name for x in _dims_of(attr) if isinstance(x, d.Expr) for name in x.symbols if name in self.gathered]
        return _NO_SYMBOLS.union(*[self.gathered[name].symbols for name in names])

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
        return self.make("load", computed_in(array.dtype), *guards, attr=(array, offset, _NO_SYMBOLS))

    def gather(self, value: Value, size: Dim) -> Dim:
        """Return an index below `size` whose value is read at run time; loads with it need a guard against values out of range."""
        name = f"_g{value.number}"
        self.gathered[name] = value
        return index_symbol(name, size)

    def of_arrays(self, value: Value, arrays: Mapping[Array, Array]) -> Value:
        """Return a value with loads from other arrays of the same names; it keeps its number, as its name in texts is the same."""
        def one(v: Value, args: tuple[Value, ...]) -> Value:
            attr = (arrays[v.attr[0]], *v.attr[1:]) if v.op == "load" and v.attr[0] in arrays else v.attr
            return v if args == v.args and attr is v.attr else self.make(v.op, v.dtype, *args, attr=attr, number=v.number)

        return rewritten(value, one)


def symbols_of(index: Dim, gathered: Mapping[str, Value]) -> frozenset[str]:
    """Return the symbols of an index. A gathered symbol adds those on which its value depends."""
    if not isinstance(index, d.Expr):
        return frozenset()
    out = frozenset(index.symbols)
    for name in index.symbols if gathered else ():
        if name in gathered:
            out |= gathered[name].symbols
    return out


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
class Reduce:
    """A reduction over axes inside those of the stage. held: how often what the target holds is combined, too: not at all, as it
    is, or times a value."""

    over: tuple[Axis, ...]
    monoid: Monoid
    held: Value | Literal[0, 1] = 0


@dataclass(frozen=True)
class Running:
    """A scan along one of the stage's own axes. The target at each turn combines the values of this and all earlier turns (before:
    of earlier ones only) with `start`, or the monoid's identity. It runs backwards if the indices reverse the axis."""

    along: Axis
    monoid: Monoid
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


@dataclass(frozen=True, eq=False)
class Stage:
    """target[index] = value, or its reduction, or its scan, for all `axes`, inside of `level` axes of the nest. product: a sum of
    products of rows and columns, in a program for few rows (streamed), or with operands in the layout of a register tile (tiled:
    tile_rows.py)."""

    target: Array
    index: Dim
    axes: tuple[Axis, ...]
    value: Value
    level: int
    does: Reduce | Running | None = None
    note: str = ""
    advice: StageAdvice = StageAdvice()
    product: Literal["streamed", "tiled"] | None = None

    @property
    def monoid(self) -> Monoid | None:
        """The operation that combines values; None of a stage that stores."""
        return None if self.does is None else self.does.monoid

    @property
    def reduce(self) -> tuple[Axis, ...]:
        """The axes of a reduction; none of other stages."""
        return self.does.over if isinstance(self.does, Reduce) else ()

    @property
    def scan(self) -> Running | None:
        return self.does if isinstance(self.does, Running) else None

    @property
    def held(self) -> Value | Literal[0, 1]:
        """The share of what its target holds that a reduction combines, too (`Reduce.held`)."""
        return self.does.held if isinstance(self.does, Reduce) else 0

    def roots(self) -> tuple[Value, ...]:
        """Return the expressions that the stage computes."""
        other = self.does.start if isinstance(self.does, Running) else self.held
        return (self.value, other) if isinstance(other, Value) else (self.value,)

    def with_roots(self, change: Callable[[Value], Value], **others: Any) -> Stage:
        """Return the stage with `change` applied to its expressions, and other fields as given."""
        does = others.pop("does", self.does)
        value = change(self.value)
        if isinstance(does, Running) and does.start is not None:
            does = replace(does, start=change(does.start))
        elif isinstance(does, Reduce) and isinstance(does.held, Value):
            does = replace(does, held=change(does.held))
        return Stage(**{**vars(self), "value": value, "does": does, **others})


@dataclass(frozen=True, eq=False)
class Blocks:
    """Stages in a loop over an axis inside those of the nest, whose turns run in order."""

    axis: Axis
    stages: tuple[Stage, ...]


@dataclass(frozen=True, eq=False)
class Nest:
    """Stages under shared outer axes, ordered so that each reads only what earlier ones have written.

    tile: an axis of the nest along which operands are contiguous, while the stages store along their last axis. Both axes are best
    walked in blocks, so that cache lines read and written are used completely. None where there is no such axis."""

    axes: tuple[Axis, ...]
    body: tuple[Stage | Blocks, ...]
    tile: Axis | None = None
    advice: NestAdvice = NestAdvice()

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, in order, those in blocks too."""
        return tuple(s for part in self.body for s in (part.stages if isinstance(part, Blocks) else (part,)))

    @cached_property
    def blocks(self) -> Blocks | None:
        """The first stages in blocks; None where there are none."""
        return next((part for part in self.body if isinstance(part, Blocks)), None)

    def loops(self, s: Stage) -> tuple[Axis, ...]:
        """Return all loops of a stage inside those of the nest."""
        around = (part.axis for part in self.body if isinstance(part, Blocks) and s in part.stages)
        return (*around, *s.axes, *s.reduce)

    def runs(self) -> Iterator[tuple[Axis | None, tuple[Stage, ...]]]:
        """Yield neighbouring stages that run in order: those of blocks with their axis, others with None."""
        for in_blocks, parts in groupby(self.body, key=lambda part: isinstance(part, Blocks)):
            if in_blocks:
                yield from ((part.axis, part.stages) for part in parts if isinstance(part, Blocks))
            else:
                yield None, tuple(part for part in parts if isinstance(part, Stage))

    def mapped(self, change: Callable[[Stage], Iterable[Stage]], **others: Any) -> Nest:
        """Return the nest with each stage replaced by those that `change` gives for it, where it is, and other fields as given."""
        body: list[Stage | Blocks] = []
        for part in self.body:
            if isinstance(part, Blocks):
                body.append(Blocks(part.axis, tuple(new for s in part.stages for new in change(s))))
            else:
                body += change(part)
        fields = {"axes": self.axes, "tile": self.tile, "advice": self.advice, **others}
        return Nest(body=tuple(body), **fields)


def parallel(nest: Nest) -> int:
    """Return how many of the nest's axes are cut into parts."""
    return min([nest.advice.shared, *(s.level for s in nest.stages if s.level > 0)]) if any(s.level for s in nest.stages) else 0


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
    window = longest <= WINDOW < last and any(step in NEAR for step in steps) and all(step in (0, *NEAR) for step in steps)
    return own > over or window


@dataclass(frozen=True, eq=False)
class StageProgram:
    """The program of one part. gathered: index symbol -> the value that is loaded at run time for it. dims: the symbols of its
    sizes, in the order of the kernel's arguments. dear: number of costly values that several stages need; again: those of them that
    are recomputed instead of stored. derivation: the rules that derived it from the lowered program, one line each
    (online_reductions.py). updated: pairs (output, operand) where only the elements that differ from the operand are stored, and
    nothing else reads either. shared: all pairs (output, operand) that may share memory, including the updated ones (in_place.py).
    doubles: the definition itself has f64 numbers, which stay f64."""

    operands: tuple[Array, ...]
    outputs: tuple[Array, ...]
    nests: tuple[Nest, ...]
    gathered: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    dims: tuple[d.Expr, ...] = ()
    dear: int = 0
    again: tuple[int, ...] = ()
    derivation: tuple[str, ...] = ()
    updated: Pairs = ()
    shared: Pairs = ()
    doubles: bool = False

    @property
    def stages(self) -> Iterator[Stage]:
        """All stages, in order."""
        return (s for nest in self.nests for s in nest.stages)

    @property
    def values(self) -> Values:
        """A factory of its own for a pass: of values that go with those of the program."""
        first = next(self.stages, None)
        return Values(None if first is None else first.value.table, self.gathered)

    def made_of(self, nests: Iterable[Nest], values: Values | None = None, **others: Any) -> StageProgram:
        """Return the program with other nests (those without stages left out), what a pass gathered, and other fields as given."""
        if values is not None:
            others["gathered"] = MappingProxyType(dict(values.gathered))
        return StageProgram(**{**vars(self), "nests": tuple(nest for nest in nests if nest.body), **others})

    def mapped(self, change: Callable[[Stage], Iterable[Stage]]) -> StageProgram:
        """Return the program with each stage replaced by those that `change` gives for it."""
        return self.made_of(nest.mapped(change) for nest in self.nests)

    @property
    def scratch(self) -> list[Array]:
        return list(dict.fromkeys(s.target for s in self.stages if s.target.role == "scratch"))

    def __str__(self) -> str:
        lines: list[str] = []
        for nest in self.nests:
            tiles = f", in tiles along {nest.tile.name}" if nest.tile is not None else ""
            lines.append(f"nest over {_axes(nest.axes) or 'nothing'}{tiles}")
            for axis, stages in nest.runs():
                if axis is not None:
                    lines.append(f"    in turns of {_axes([axis])}:")
                inside = "    " * (1 + (axis is not None))
                for s in stages:
                    over = f"    over {_axes(s.axes)}" if s.axes else ""
                    level = f"    in {s.level} of its axes" if s.level != len(nest.axes) else ""
                    text, named = shown(s.value)
                    lines.append(f"{inside}{s.target}[{d.format_dim(s.index)}] = {_does(s.does)}{text}{over}{level}")
                    lines += [f"{inside}    where {line}" for line in named]
        for name, value in self.gathered.items():
            text, named = shown(value)
            lines += [f"where {line}" for line in (f"{name} = {text}", *named)]
        lines += [f"derived: {line}" for line in self.derivation]
        return "\n".join(lines)


def _does(does: Reduce | Running | None) -> str:
    if does is None:
        return ""
    if isinstance(does, Running):
        start = f"{shown(does.start)[0]} and " if does.start is not None else ""
        return f"{does.monoid} of {start}all {'before' if does.before else 'up to'} {does.along.name} of "
    if isinstance(does.held, int):
        return f"{does.monoid} {'of what it holds and all ' if does.held else ''}over {_axes(does.over)} of "
    return f"{does.monoid} of what it holds * {does.held} and all over {_axes(does.over)} of "


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
