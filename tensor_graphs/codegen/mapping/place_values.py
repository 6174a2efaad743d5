"""place_values: compute what loops do not change before them, and on a GPU divide by such values by their reciprocals.

    serial r in 0..n                            compute exp(t1)
        y0[r] = x0[r] · exp(t1)         →       serial r in 0..n
                                                    y0[r] = x0[r] · exp(t1)

In: a kernel whose statements use indices that are read at run time.  Out: the kernel; each such index is defined as early as its
value can be computed. A load moves before a loop only where nothing in the loop writes its array, and before a condition only where
its place does not depend on what the condition is about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace

from tensor_graphs.codegen.loop_ir import Array, Value, Values, rewritten, values_in
from tensor_graphs.codegen.loop_program import (
    FROM,
    TO,
    Alias,
    Braces,
    Compute,
    If,
    Let,
    Load,
    Local,
    Loop,
    LoopKernel,
    Parallel,
    Skew,
    Stmt,
    Store,
    Take,
    dims_of,
    statements,
    values_of,
    written,
)
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import f32

CHEAP = frozenset({"constant", "index"})


def placed(kernel: LoopKernel, values: Values, dims: Collection[str], divide: bool = True) -> LoopKernel:
    """Return the kernel with its values placed. values: their factory. dims: names of the sizes. divide: divisions by values that
    are placed early are multiplications."""
    in_registers = {b.array for b in kernel.buffers if b.place == "register"}
    in_registers |= {s.array for s in statements(kernel.body) if isinstance(s, Local)}
    return replace(kernel, body=_Placer(values, in_registers, divide).body(kernel.body, set(dims), set()))


class _Placer:
    def __init__(self, values: Values, in_registers: Set[Array], divide: bool) -> None:
        self.values, self.in_registers, self.divide = values, in_registers, divide

    def body(self, body: Sequence[Stmt], names: set[str], computed: set[Value]) -> tuple[Stmt, ...]:
        """Return statements in place. names: the indices that are defined; computed: values that are computed. Both grow."""
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop) and s.kind not in ("grid", "thread"):
                before, s = self.hoisted(s, names, computed)
                out += before
            out += self.defined(s, names)
            if isinstance(s, If | Loop | Braces | Parallel):
                own = {s.axis, s.past} if isinstance(s, Loop) else {FROM, TO} if isinstance(s, Parallel) else set()
                s = replace(s, body=self.body(s.body, names | own, set(computed)))
            elif isinstance(s, Let | Skew):
                names.add(s.name)
            out.append(s)
        return tuple(out)

    def defined(self, s: Stmt, names: set[str]) -> Iterator[Stmt]:
        """Yield definitions of the indices that a statement reads at run time."""
        for index in dims_of(s):
            for name in sorted(index.symbols) if isinstance(index, d.Expr) else ():
                yield from self.define(name, names)
        yield from self.define_all(values_of(s), names)

    def define_all(self, roots: Iterable[Value], names: set[str]) -> Iterator[Stmt]:
        for v in sorted(values_in(*roots), key=lambda v: v.number):
            for name in sorted(v.symbols) if v.op in ("load", "index") else ():
                yield from self.define(name, names)

    def define(self, name: str, names: set[str]) -> Iterator[Stmt]:
        value = self.values.gathered.get(name)
        if value is not None and name not in names:
            yield from self.define_all([value], names)
            names.add(name)
            yield Let(name, value)

    # ---- loops ----

    def hoisted(self, loop: Loop, names: set[str], computed: set[Value]) -> tuple[list[Stmt], Loop]:
        """Return what is computed before a loop, and the loop."""
        inside = list(statements(loop.body))
        changed = {array for s in inside for array in written(s)} | {s.array for s in inside if isinstance(s, Alias)}
        early: dict[Value, None] = {}
        divisors: dict[Value, Value] = {}
        for root, blocked in self.roots(loop.body, frozenset()):
            todo, seen = [root], set[Value]()
            while todo:
                if (v := todo.pop()) in seen:
                    continue
                seen.add(v)
                if self.is_early(v, names, changed, blocked):
                    if v.op not in CHEAP and not self.is_name(v) and v not in computed:
                        early[v] = None
                    continue
                if self.divide and v.op == "div" and v.dtype is f32 and all(a.op != "constant" for a in v.args) and self.is_early(
                        v.args[1], names, changed, blocked):
                    divisors[v.args[1]] = self.values.make("divisor", f32, v.args[1])
                todo += [*v.args, *(self.values.gathered[n] for n in sorted(v.symbols) if v.op in ("load", "index")
                                    and n in self.values.gathered and n not in names)]
        for by, divisor in divisors.items():
            early.pop(by, None)
            early[divisor] = None
        before: list[Stmt] = []
        for v in sorted(early, key=lambda v: v.number):
            before += [*self.define_all([v], names), Compute(v)]
            computed |= {v, *v.args}
        return before, replace(loop, body=self.divided(loop.body, divisors)) if divisors else loop

    def roots(self, body: Sequence[Stmt], blocked: frozenset[str]) -> Iterator[tuple[Value, frozenset[str]]]:
        """Yield the values of statements, and the indices that conditions around them are about."""
        for s in body:
            for v in values_of(s):
                yield v, blocked
            for index in dims_of(s):
                for name in sorted(index.symbols) if isinstance(index, d.Expr) else ():
                    if name in self.values.gathered:
                        yield self.values.gathered[name], blocked
            if isinstance(s, If):
                yield from self.roots(s.body, blocked | s.when.symbols)
            elif isinstance(s, Loop | Braces):
                yield from self.roots(s.body, blocked)

    def is_early(self, v: Value, names: Set[str], changed: Set[Array], blocked: Set[str]) -> bool:
        """Return whether a value is the same before a loop that changes some arrays."""
        if not all(n in names or n in self.values.gathered for n in v.symbols):
            return False
        loads = [x for x in self.all_in(v) if x.op == "load"]
        return not any(x.attr[0] in changed for x in loads) and (
            blocked.isdisjoint(v.symbols) or all(self.is_name(x) for x in loads))

    def all_in(self, v: Value) -> Iterator[Value]:
        """Yield a value's subexpressions, and those of the indices that they read."""
        return values_in(v, *(self.values.gathered[n] for n in v.symbols if n in self.values.gathered))

    def is_name(self, v: Value) -> bool:
        return v.op == "load" and not v.args and v.attr[0] in self.in_registers and v.attr[0].size == 1

    def divided(self, body: Sequence[Stmt], divisors: dict[Value, Value]) -> tuple[Stmt, ...]:
        """Return statements whose divisions by some values are multiplications."""
        def change(v: Value, args: tuple[Value, ...]) -> Value:
            if v.op == "div" and v.dtype is f32 and v.args[1] in divisors and v.args[0].op != "constant":
                return self.values.make("divided", f32, args[0], divisors[v.args[1]])
            return self.values.remade(v, args)

        out: list[Stmt] = []
        for s in body:
            match s:
                case Store() | Take():
                    s = replace(s, value=rewritten(s.value, change))
                case Let(index=Value() as value):
                    s = replace(s, index=rewritten(value, change))
                case If():
                    s = replace(s, when=rewritten(s.when, change), body=self.divided(s.body, divisors))
                case Load(when=Value() as value):
                    s = replace(s, when=rewritten(value, change))
                case Loop():
                    s = replace(s, body=self.divided(s.body, divisors))
                case _:
                    pass
            out.append(s)
        return tuple(out)
