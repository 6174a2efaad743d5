"""cpu_body: statements that are being written for a CPU: loops in scopes, and values computed as early as all they need is there.

    body = CpuBody(program)
    with body.loop(axis, "vector"):
        body.add(Store(y, axis.symbol, value))
    body.statements                                     # one loop
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tensor_graphs.codegen.loop_ir import (
    Array,
    Axis,
    Monoid,
    Stage,
    StageProgram,
    Value,
    dim_of,
    products_alone,
    rewritten,
    values_in,
)
from tensor_graphs.codegen.loop_program import Braces, Compute, If, Kind, Let, Local, Loop, Stmt, Store, Take, is_number
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType

Bounds = tuple[Dim, Dim]
"""the first index of a loop, and the one behind the last"""


@dataclass
class _OpenBody:
    """Statements in braces. computed: numbers of the values that exist. names: the indices that are defined."""

    body: list[Stmt] = field(default_factory=list)
    computed: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


class CpuBody:
    """Statements of one nest. instead: load -> what is read in its place. stored: array -> the value of its element that the open
    loop has stored."""

    def __init__(self, program: StageProgram) -> None:
        self.program, self.values = program, program.values
        self.alone = products_alone(program)
        self.instead: dict[Value, Value] = {}
        self.stored: dict[Array, Value] = {}
        self.gathered = {name: self.here(v) for name, v in program.gathered.items()}
        self.variables = set[Array]()                               # numbers of a turn that exist
        self.scopes = [_OpenBody(names={str(s) for s in program.dims})]

    @property
    def statements(self) -> tuple[Stmt, ...]:
        return tuple(self.scopes[-1].body)

    def add(self, *statements: Stmt) -> None:
        self.scopes[-1].body += statements

    # ---- scopes ----

    @contextmanager
    def scope(self, *names: str) -> Iterator[list[Stmt]]:
        """Context manager: a scope of its own, in which some indices are defined; gives its statements."""
        self.scopes.append(_OpenBody(names=set(names)))
        yield self.scopes[-1].body
        self.scopes.pop()

    @contextmanager
    def block(self) -> Iterator[None]:
        with self.scope() as body:
            yield
        self.add(Braces(tuple(body)))

    @contextmanager
    def when(self, condition: Value | None) -> Iterator[None]:
        """Context manager: statements that run where a condition holds; None: always."""
        if condition is None:
            yield
            return
        with self.scope() as body:
            yield
        self.add(If(condition, tuple(body)))

    @contextmanager
    def loop(self, axis: Axis, kind: Kind = "serial", bounds: Bounds | None = None, unroll: int = 0) -> Iterator[None]:
        first, past = bounds or (0, axis.size)
        with self.scope(axis.name) as body:
            yield
        self.add(Loop(axis.name, past, kind, tuple(body), first, 1, unroll))

    @contextmanager
    def loops(self, axes: Iterable[Axis], bounds: Bounds | None = None, *values: Value) -> Iterator[None]:
        """Context manager: nested loops, the first within `bounds`; each computes those parts of `values` that are ready."""
        with ExitStack() as stack:
            for axis in axes:
                stack.enter_context(self.loop(axis, bounds=bounds))
                bounds = None
                for value in values:
                    self.place(value)
            yield

    @contextmanager
    def strips(self, name: str, past: str, bounds: Bounds, length: Dim) -> Iterator[Bounds]:
        """Context manager: a loop over strips of a range; gives the bounds of a strip."""
        low, high = bounds
        with self.scope(name, past) as body:
            yield index(name, high), index(past, high)
        self.add(Loop(name, high, "serial", tuple(body), low, length, past=past))

    def let(self, name: str, x: Dim) -> Dim:
        """Define an index by a name, and return it."""
        self.add(Let(name, x))
        self.scopes[-1].names.add(name)
        return index(name, x)

    # ---- values ----

    def here(self, root: Value) -> Value:
        """Return a value as it is computed here; it keeps its number, by which texts name it."""
        if not (self.alone or self.instead or self.stored):
            return root

        def change(v: Value, args: tuple[Value, ...]) -> Value:
            if v in self.instead:
                return self.instead[v]
            if v.op == "load" and v.attr[0] in self.stored:
                return self.stored[v.attr[0]]
            op = "mul_alone" if v in self.alone else v.op
            same = args == v.args and op == v.op
            return v if same else self.values.make(op, v.dtype, *args, attr=v.attr, number=v.number)

        return rewritten(root, change)

    def ready(self, v: Value) -> bool:
        """Return whether all indices that a value depends on are defined."""
        return all(any(s in scope.names for scope in self.scopes) or (s in self.gathered and self.ready(self.gathered[s]))
                   for s in v.symbols)

    def exists(self, v: Value) -> bool:
        """Return whether a value needs no statement: it is a constant, a variable, or computed."""
        if v.op == "constant" or (v.op == "load" and not v.args and is_number(v.attr[0])):
            return True
        return any(v.number in scope.computed for scope in self.scopes)

    def place(self, root: Value) -> None:
        """Compute the parts of a value that are ready."""
        seen = set[Value]()

        def one(v: Value) -> None:
            if v in seen or self.exists(v):
                return
            seen.add(v)
            if self.ready(v):
                self.compute(v)
                return
            for x in (*v.args, *self.read_by(v)):
                one(x)

        one(self.here(root))

    def compute(self, v: Value) -> None:
        """Compute a value, and the indices that are read for it."""
        if self.exists(v):
            return
        indices = set(self.gathered.values())
        inside = [x for x in values_in(v) if not self.exists(x)]
        if not any(x in indices or self.read_by(x) for x in inside):
            self.add(Compute(v))
            self.scopes[-1].computed |= {x.number for x in inside}
            return
        for x in (*v.args, *self.read_by(v)):
            self.compute(x)
        self.add(Compute(v))
        self.scopes[-1].computed.add(v.number)
        self.add(*(Let(name, v) for name, x in self.gathered.items() if x is v))

    def used(self, root: Value) -> Value:
        """Return a value as it is computed here, for the next statement, behind the indices that are read for it."""
        v = self.here(root)
        inside = [x for x in values_in(v) if not self.exists(x)]
        if any(self.read_by(x) for x in inside) or not set(self.gathered.values()).isdisjoint(inside):
            self.compute(v)
        else:
            self.scopes[-1].computed |= {x.number for x in inside}
        return v

    def read_by(self, v: Value) -> list[Value]:
        """Return the indices that are read for a value itself."""
        if not self.gathered:
            return []
        names = sorted((str(s) for s in d.symbols_in(dim_of(v))), reverse=True)
        return [self.gathered[name] for name in names if name in self.gathered]

    # ---- memory ----

    def local(self, name: str, dtype: DType, size: Dim = 1, monoid: Monoid | None = None, count: Dim | None = None) -> Array:
        """Add memory of the open scope, and return it."""
        array = Array(name, "scratch", 0, dtype, size, 1)
        self.add(Local(array, monoid, count))
        return array

    def store(self, array: Array, at: Dim, value: Value) -> None:
        self.add(Store(array, at, self.used(value)))

    def take(self, array: Array, at: Dim, monoid: Monoid, value: Value) -> None:
        self.add(Take(array, at, monoid, self.used(value)))

    def put(self, s: Stage, value: Value) -> None:
        """Store the value of a stage, or combine it with what the target holds."""
        assert s.monoid is not None or not s.held
        if s.monoid is None or not s.held:
            self.store(s.target, s.index, value)
        elif not isinstance(s.held, Value):
            self.take(s.target, s.index, s.monoid, value)
        else:
            old, make = self.values.load(s.target, s.index), self.values.make
            scaled = make("mul", old.dtype, old, self.used(s.held))
            value = value if value.dtype is old.dtype else make("cast", old.dtype, value)
            self.store(s.target, s.index, make("add", old.dtype, scaled, value))


def index(name: str, size: Dim) -> Dim:
    """Return an index of a name that may also be the one behind the last."""
    return d.dim(name, 0, max(d.bounds(size)[1], 0))
