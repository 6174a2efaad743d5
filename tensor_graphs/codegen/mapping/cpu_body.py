"""cpu_body: statements that are being written for a CPU, in nested scopes.

    body = CpuBody(program, products_alone(program))
    with body.loop(axis, "vector"):
        body.add(Store(y, axis.symbol, value))
    body.statements                                     # one loop
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from tensor_graphs.codegen.loop_ir import Array, Axis, Monoid, Stage, StageProgram, Value, rewritten
from tensor_graphs.codegen.loop_program import Braces, If, Kind, Let, Local, Loop, Stmt, Store, Take
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType

Bounds = tuple[Dim, Dim]
"""the first index of a loop, and the one behind the last"""


class CpuBody:
    """Statements of one nest. alone: products that are rounded before something is added to them. instead: load -> what is read in
    its place. stored: array -> the value of its element that the open loop has stored."""

    def __init__(self, program: StageProgram, alone: frozenset[Value]) -> None:
        self.program, self.values, self.alone = program, program.values, alone
        self.instead: dict[Value, Value] = {}
        self.stored: dict[Array, Value] = {}
        self.variables = set[Array]()                               # numbers of a turn that exist
        self.scopes: list[list[Stmt]] = [[]]

    @property
    def statements(self) -> tuple[Stmt, ...]:
        return tuple(self.scopes[-1])

    def add(self, *statements: Stmt) -> None:
        self.scopes[-1] += statements

    # ---- scopes ----

    @contextmanager
    def scope(self) -> Iterator[list[Stmt]]:
        """Context manager: a scope of its own; gives its statements."""
        self.scopes.append([])
        yield self.scopes[-1]
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
        with self.scope() as body:
            yield
        self.add(Loop(axis.name, past, kind, tuple(body), first, 1, unroll))

    @contextmanager
    def loops(self, axes: Iterable[Axis], bounds: Bounds | None = None) -> Iterator[None]:
        """Context manager: nested loops, the first within `bounds`."""
        with ExitStack() as stack:
            for axis in axes:
                stack.enter_context(self.loop(axis, bounds=bounds))
                bounds = None
            yield

    @contextmanager
    def strips(self, name: str, past: str, bounds: Bounds, length: Dim) -> Iterator[Bounds]:
        """Context manager: a loop over strips of a range; gives the bounds of a strip."""
        low, high = bounds
        with self.scope() as body:
            yield index(name, high), index(past, high)
        self.add(Loop(name, high, "serial", tuple(body), low, length, past=past))

    def let(self, name: str, x: Dim) -> Dim:
        """Define an index by a name, and return it."""
        self.add(Let(name, x))
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

    # ---- memory ----

    def local(self, name: str, dtype: DType, size: Dim = 1, monoid: Monoid | None = None, count: Dim | None = None) -> Array:
        """Add memory of the open scope, and return it."""
        array = Array(name, "scratch", 0, dtype, size, 1)
        self.add(Local(array, monoid, count))
        return array

    def store(self, array: Array, at: Dim, value: Value) -> None:
        self.add(Store(array, at, self.here(value)))

    def take(self, array: Array, at: Dim, monoid: Monoid, value: Value) -> None:
        self.add(Take(array, at, monoid, self.here(value)))

    def put(self, s: Stage, value: Value) -> None:
        """Store the value of a stage, or combine it with what the target holds."""
        assert s.monoid is not None or not s.held
        if s.monoid is None or not s.held:
            self.store(s.target, s.index, value)
        elif not isinstance(s.held, Value):
            self.take(s.target, s.index, s.monoid, value)
        else:
            old, make = self.values.load(s.target, s.index), self.values.make
            scaled = make("mul", old.dtype, old, self.here(s.held))
            value = value if value.dtype is old.dtype else make("cast", old.dtype, value)
            self.store(s.target, s.index, make("add", old.dtype, scaled, value))


def index(name: str, size: Dim) -> Dim:
    """Return an index of a name that may also be the one behind the last."""
    return d.dim(name, 0, max(d.bounds(size)[1], 0))
