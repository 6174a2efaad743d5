"""loop_program: a program mapped to a machine: loops with kinds, memory with places, and statements in order.

    kernel columns: grid 2, 512 threads
    grid c in 0..2
        thread w in 0..16
            thread l in 0..32
                wait
                serial r in w..65536 step 16
                    part[0] sum= x0[32·c + l + 64·r]
                tile[32·w + l] = part[0]
                barrier block
                if w < 1
                    serial k in 0..16
                        total[0] sum= tile[32·k + l]
                    y0[32·c + l] = total[0]

A program of stages says what is computed, this says where and when: each decision is made before it is printed. The values are
those of the stages (loop_ir.py). They read a buffer by an `Array` of its name; role "operand" or "output" means that the buffer
holds elements as they are stored (a narrow float is widened by the load and rounded by the store), "scratch" that it holds them as
they are computed. The following rules define what any printer prints; interpret_loops.py implements them in numpy.

- The kernels run one after another. Before its `Wait` a kernel may run while earlier ones still do.
- Iterations of `grid`, `thread` and `vector` loops are independent of each other, and run at the same time. Grid loops are
  outermost, thread loops follow; together these are the blocks and the threads of a kernel. `vector` loops are the elements of one
  access to memory. `serial` and `unrolled` loops run in order.
- A register buffer exists once for each thread, a shared one for each block, a global one for all kernels.
- A thread sees what another has written to shared memory only after a `Barrier` of their scope, and what another block has written
  to global memory only in a later kernel, after its wait.
- A value is computed where it is used. `Compute` computes one earlier; what it has loaded does not change by later stores.
- Threads that are outside of all thread loops all do the same. A kernel may have several thread loops after each other; a thread is
  the same in all of them by its number, in which the innermost loop counts fastest.
- A kernel for a CPU has `Parallel` in the place of grid and thread loops: blocks of one thread. Memory is `Local` to a body, or
  shared, which is scratch of a part. `vector` loops fill registers; a number that one of them combines is combined in lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tensor_graphs.codegen.loop_ir import Array, Monoid, StageProgram, Value, computed_in, index_symbol, shown
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

Kind = Literal["grid", "thread", "vector", "unrolled", "serial"]
Place = Literal["global", "shared", "register"]
Scope = Literal["warp", "block"]
How = Literal["plain", "once", "now"]
"""how memory is loaded: as usual; not kept in the nearest cache; in this place of the program and from read-only memory"""

PARALLEL: tuple[Kind, ...] = ("grid", "thread", "vector")


@dataclass(frozen=True)
class LoopBuffer:
    """Memory. The array has its name, its dtype and its size in elements, which is that of one thread (register) or block (shared).
    lanes: elements of one access to it. row: elements of a row, whose accesses are placed so that neither those of a column nor
    those of a row share a bank; 0 where elements lie in order. branch: number of the part of a kernel that has it (0: all have it).
    Only one part runs in a block, or they run one after another, so those of others may be in the same place."""

    array: Array
    place: Place
    lanes: int = 1
    row: int = 0
    branch: int = 0

    @property
    def name(self) -> str:
        return self.array.name

    def __str__(self) -> str:
        return f"{self.place} {self.name}: {self.array.dtype}[{d.format_dim(self.array.size)}]"


@dataclass(frozen=True, eq=False)
class Let:
    """An index by a name: of a dim, or of an integer value that is read at run time."""

    name: str
    index: Dim | Value


@dataclass(frozen=True, eq=False)
class Alias:
    """array[k] is buffer[index + k], in the rest of the body."""

    array: Array
    buffer: Array
    index: Dim


@dataclass(frozen=True, eq=False)
class Compute:
    """A value that is computed here, once for all later uses in the same body and inside of it."""

    value: Value


@dataclass(frozen=True, eq=False)
class Load:
    """into[at + k] = buffer[index + k] for all k below `lanes`, as one access, where `when` is true; 0 elsewhere. The bits are
    those in memory."""

    into: Array
    at: Dim
    buffer: Array
    index: Dim
    lanes: int = 1
    when: Value | None = None
    how: How = "plain"


@dataclass(frozen=True, eq=False)
class CopyAhead:
    """into[at + k] = buffer[index + k] for all k below `lanes`, as one access, by the time at which the thread waits for it. Until
    then nobody reads `into` or writes either."""

    into: Array
    at: Dim
    buffer: Array
    index: Dim
    lanes: int


@dataclass(frozen=True, eq=False)
class CopiesWait:
    """The copies that a thread has begun since it was here last are a group. All its groups but the last `left` are done."""

    left: int


@dataclass(frozen=True, eq=False)
class Store:
    """buffer[index] = value, rounded to what the buffer holds."""

    buffer: Array
    index: Dim
    value: Value
    note: str = ""


@dataclass(frozen=True, eq=False)
class Put:
    """buffer[index + k] = source[at + k] for all k below `lanes`, as one access. The bits are those in registers."""

    buffer: Array
    index: Dim
    source: Array
    at: Dim
    lanes: int


@dataclass(frozen=True, eq=False)
class Clear:
    """All elements of an accumulator become the identity of a monoid."""

    buffer: Array
    monoid: Monoid


@dataclass(frozen=True, eq=False)
class Take:
    """buffer[index] is combined with a value; a list, which is all of the buffer, takes it."""

    buffer: Array
    index: Dim
    monoid: Monoid
    value: Value
    note: str = ""


@dataclass(frozen=True, eq=False)
class Combine:
    """buffer[index] (a list: all of it) of each `threads` neighbours along the innermost thread loop is combined, and each of them
    gets the result. shared: memory for a number or list of each warp, where these are more than one; all threads of the block then
    wait for each other. before: registers in which each gets what those with lower numbers have combined, in the same place."""

    buffer: Array
    index: Dim
    monoid: Monoid
    threads: int
    shared: Array | None = None
    before: Array | None = None


@dataclass(frozen=True, eq=False)
class Prefetch:
    """The memory around buffer[index] is brought nearer. Nothing is read, so concurrent writes do no harm."""

    buffer: Array
    index: Dim


@dataclass(frozen=True, eq=False)
class Barrier:
    scope: Scope


@dataclass(frozen=True, eq=False)
class Wait:
    """All earlier kernels are done."""


@dataclass(frozen=True, eq=False)
class Local:
    """Memory that exists from here to the end of the body. monoid: the operation that it accumulates by, if any; then its first
    `count` elements (None: all) are the identity."""

    array: Array
    monoid: Monoid | None = None
    count: Dim | None = None


@dataclass(frozen=True, eq=False)
class Skew:
    """An index by a name: the elements by which buffer[index] lies behind a multiple of `elements` of them."""

    name: str
    buffer: Array
    index: Dim
    elements: int


@dataclass(frozen=True, eq=False)
class Note:
    """A comment."""

    text: str


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """A handwritten function in the place of statements that have the same effect. arguments: numbers, addresses of elements, and
    words of C."""

    function: str
    arguments: tuple[Dim | tuple[Array, Dim] | str, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class Braces:
    """Statements whose memory and values end with them."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class If:
    when: Value
    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """The body for each value of the axis from `first` on, in steps, below `size`. unroll: iterations that a printer writes out (0:
    the compiler decides; an unrolled loop is written out completely). past: the name of the index behind a step, at most `size`.
    rest: only whole steps are taken, and behind the loop the axis is the index at which the rest begins."""

    axis: str
    size: Dim
    kind: Kind
    body: tuple[Stmt, ...]
    first: Dim = 0
    step: Dim = 1
    unroll: int = 0
    past: str = ""
    rest: bool = False

    @property
    def symbol(self) -> Dim:
        return index_symbol(self.axis, self.size)


@dataclass(frozen=True, eq=False)
class Parallel:
    """The body for each part of the indices below `size`, at the same time: a part are those from FROM on, below TO, which are
    multiples of `unit` or `size`. steps: of an index. grain: steps that pay for a part of their own (0: each index is one)."""

    size: Dim
    unit: int
    steps: Dim
    grain: int
    body: tuple[Stmt, ...]


FROM, TO = "_from", "_to"

LANES = {32: d.dim("_lanes32", 4, 16), 64: d.dim("_lanes64", 2, 8)}
"""bits of a number -> the numbers in a register of a CPU, on which a program does not depend"""

Stmt = (Let | Alias | Compute | Load | CopyAhead | CopiesWait | Store | Put | Clear | Take | Combine | Prefetch | Barrier | Wait
        | Local | Skew | Note | FunctionCall | Braces | If | Loop | Parallel)

INNER = If | Loop | Braces | FunctionCall | Parallel
"""statements that have a body"""


@dataclass(frozen=True, eq=False)
class LoopKernel:
    """One launch. buffers: those in registers and in shared memory. early: numbers of operands that are read before the wait.
    resident: blocks of a multiprocessor for which its threads leave registers."""

    entry: str
    buffers: tuple[LoopBuffer, ...]
    body: tuple[Stmt, ...]
    early: tuple[int, ...] = ()
    resident: int = 1

    @property
    def grid(self) -> Dim:
        """The number of blocks."""
        return d.product(s.size for s in statements(self.body) if isinstance(s, Loop) and s.kind == "grid")

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return _threads(self.body)


@dataclass(frozen=True, eq=False)
class LoopProgram:
    """source: the stages that it computes. scratch: arrays in global memory that only its kernels use."""

    source: StageProgram
    scratch: tuple[Array, ...]
    kernels: tuple[LoopKernel, ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for kernel in self.kernels:
            lines.append(f"kernel {kernel.entry}")
            lines += [f"    {buffer}" for buffer in kernel.buffers]
            lines += _shown(kernel.body, 1)
        return "\n".join(lines)


def shared_places(buffers: Iterable[LoopBuffer]) -> tuple[dict[str, int], int]:
    """Return the byte at which each shared buffer begins, and the bytes of all."""
    begins, ends = dict[str, int](), {0: 0}
    for buffer in sorted((b for b in buffers if b.place == "shared"), key=lambda b: b.branch):
        array, begin = buffer.array, ends.setdefault(buffer.branch, ends[0])
        begins[buffer.name] = begin
        width = (array.dtype if array.role != "scratch" else computed_in(array.dtype)).itemsize
        ends[buffer.branch] = begin + -(-int(d.evaluate(array.size, {})) * width // 16) * 16
    return begins, max(ends.values())


def is_number(array: Array) -> bool:
    """Return whether a scratch array is one number per iteration of the nest, and so a variable."""
    return array.role == "scratch" and array.level > 0 and array.size == 1


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Yield all statements, those inside of others too, in order."""
    for s in body:
        yield s
        if isinstance(s, INNER):
            yield from statements(s.body)


def _threads(body: tuple[Stmt, ...]) -> int:
    own = (_threads(s.body) * (d.bounds(s.size)[1] if isinstance(s, Loop) and s.kind == "thread" else 1)
           for s in body if isinstance(s, If | Loop))
    return max(own, default=1)


def values_of(s: Stmt) -> tuple[Value, ...]:
    """Return the values that a statement itself uses, not those of its body."""
    match s:
        case Let(index=Value() as value) | Compute(value=value) | Store(value=value) | Take(value=value) | If(when=value):
            return (value,)
        case Load(when=Value() as value):
            return (value,)
        case _:
            return ()


def dims_of(s: Stmt) -> tuple[Dim, ...]:
    """Return the indices and sizes that a statement itself uses."""
    match s:
        case Let(index=index) if not isinstance(index, Value):
            return (index,)
        case Load() | CopyAhead() | Put():
            return s.at, s.index
        case Alias() | Store() | Take() | Combine() | Prefetch() | Skew():
            return (s.index,)
        case Loop():
            return s.first, s.size, s.step
        case _:
            return ()


def written(s: Stmt) -> tuple[Array, ...]:
    """Return the arrays that a statement itself writes."""
    match s:
        case Load() | CopyAhead():
            return (s.into,)
        case Combine(before=Array() as before):
            return s.buffer, before
        case Store() | Put() | Clear() | Take() | Combine():
            return (s.buffer,)
        case _:
            return ()


def _shown(body: tuple[Stmt, ...], depth: int) -> list[str]:
    lines: list[str] = []
    for s in body:
        text, inside = text_of(s), "    " * depth
        own = [shown(value) for value in values_of(s)]
        lines.append(inside + text)
        lines += [f"{inside}    where {line}" for _, named in own for line in named]
        if isinstance(s, INNER):
            lines += _shown(s.body, depth + 1)
    return lines


def text_of(s: Stmt) -> str:
    def at(buffer: Array, index: Dim) -> str:
        return f"{buffer}[{d.format_dim(index)}]"

    match s:
        case Let():
            return f"{s.name} = {shown(s.index)[0] if isinstance(s.index, Value) else d.format_dim(s.index)}"
        case Alias():
            return f"{s.array} is {at(s.buffer, s.index)}, ..."
        case Compute():
            return f"compute {shown(s.value)[0]}"
        case Load():
            when = f" where {shown(s.when)[0]}" if s.when is not None else ""
            how = "" if s.how == "plain" else f" {s.how}"
            return f"{at(s.into, s.at)} = load{s.lanes}{how} {at(s.buffer, s.index)}{when}"
        case CopyAhead():
            return f"copy{s.lanes} ahead {at(s.into, s.at)} = {at(s.buffer, s.index)}"
        case CopiesWait():
            return f"wait for all copies but {s.left}"
        case Store():
            return f"{at(s.buffer, s.index)} = {shown(s.value)[0]}"
        case Put():
            return f"store{s.lanes} {at(s.buffer, s.index)} = {at(s.source, s.at)}"
        case Clear():
            return f"{s.buffer} = identity of {s.monoid}"
        case Take():
            return f"{at(s.buffer, s.index)} {s.monoid}= {shown(s.value)[0]}"
        case Combine():
            before = f", {at(s.before, s.index)} before" if s.before is not None else ""
            return f"combine {at(s.buffer, s.index)} by {s.monoid} across {s.threads} threads{before}"
        case Prefetch():
            return f"prefetch {at(s.buffer, s.index)}"
        case Barrier():
            return f"barrier {s.scope}"
        case Wait():
            return "wait"
        case If():
            return f"if {shown(s.when)[0]}"
        case Loop():
            first = d.format_dim(s.first)
            step = f" step {d.format_dim(s.step)}" if s.step != 1 else ""
            step += f", each to {s.past}" if s.past else " in whole steps" if s.rest else ""
            return f"{s.kind} {s.axis} in {first}..{d.format_dim(s.size)}{step}"
        case _:
            return _text_on_cpus(s)


def _text_on_cpus(s: Stmt) -> str:
    match s:
        case Local():
            first = "" if s.count is None else f" of the first {d.format_dim(s.count)}"
            return f"local {s.array}[{d.format_dim(s.array.size)}]" + (f", identity of {s.monoid}{first}" if s.monoid else "")
        case Skew():
            return f"{s.name} = skew of {s.buffer}[{d.format_dim(s.index)}] in {s.elements}"
        case Note():
            return f"note {s.text}"
        case FunctionCall():
            return f"call {s.function} for"
        case Parallel():
            return f"parallel parts of {d.format_dim(s.size)} in units of {s.unit}"
    return "braces"
