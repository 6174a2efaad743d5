"""c_loops: loop programs as C in the style of the handwritten kernels (kernels/c/tg.h): a function for each nest, one to run them.

Nothing is decided here: a statement is a line or a few. The source is meant to be read; the program's stages are its first comment.
The entry is TG_KERNEL(name); ptr: outputs, then operands; ints: the dims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensor_graphs.codegen.loop_ir import JOINS, Array, Monoid, StageProgram, Value, computed_in, identity_of, values_in
from tensor_graphs.codegen.loop_program import (
    FROM,
    TO,
    Braces,
    Clear,
    Compute,
    FunctionCall,
    If,
    Let,
    Load,
    Local,
    Loop,
    LoopKernel,
    LoopProgram,
    Note,
    Parallel,
    Skew,
    Stmt,
    Store,
    Take,
    is_number,
    statements,
    values_of,
    written,
)
from tensor_graphs.codegen.map_cpu import map_cpu
from tensor_graphs.codegen.mapping.cpu_parts import padded_bytes
from tensor_graphs.codegen.print.values import LEAST, NARROWED, STORED, ValueWriter, c_of, c_type, called, dim_name, element_type
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bf16, bool_, f32, f64

MOST_PARTS = 4096
"""parts of a nest whose indices are one each"""



def rendered(program: StageProgram, name: str = "generated") -> str:
    """Return the C source of a program of stages."""
    return printed(map_cpu(program), name)


def printed(program: LoopProgram, name: str) -> str:
    """Return the C source of a loop program."""
    return _CPrinter(program, name).text()


class CValues(ValueWriter):
    """Writes values that read accumulators. locals: what each local array accumulates, by name."""

    def __init__(self, dims: Sequence[str]) -> None:
        super().__init__({}, dims)
        self.locals: dict[str, Monoid | None] = {}

    def keyed(self, array: Array) -> str:
        """Return the type whose integers stand for the floats of a maximum, in the same order; "" for other memory."""
        if self.locals.get(array.name) != "max" or not array.dtype.is_float:
            return ""
        return "f32" if array.dtype is f32 else "f64"

    def memory_type(self, array: Array) -> str:
        """Return the type of the elements of a local array."""
        monoid, dtype = self.locals.get(array.name), array.dtype
        if self.keyed(array):
            return "int32_t" if dtype is f32 else "int64_t"
        if monoid in ("sum", "product") and not dtype.is_float:     # no overflow that C leaves undefined
            return f"uint{dtype.bits if monoid == 'sum' else max(32, dtype.bits)}_t"
        return element_type(array)

    def is_variable(self, v: Value) -> bool:
        return super().is_variable(v) or (
            v.op == "load" and not v.args and v.attr[0].role == "scratch" and v.attr[0].name in self.locals)

    def ref(self, v: Value) -> str:
        if not self.is_variable(v):
            return super().ref(v)
        array, text = v.attr[0], self.place(*v.attr[:2])
        if self.keyed(array):
            return f"unorder_{self.keyed(array)}({text})"
        return text if self.memory_type(array) == c_type(array.dtype) else f"({c_type(array.dtype)}){text}"

    def place(self, array: Array, index: Dim) -> str:
        """Return an element of memory."""
        return array.name if is_number(array) else f"{array.name}[{c_of(index)}]"

    def taken(self, array: Array, index: Dim, monoid: Monoid, v: Value) -> str:
        """Return the statement that combines an element with a value."""
        place, text, kind = self.place(array, index), self.ref(v), self.memory_type(array)
        if self.locals.get(array.name) is None:                     # it holds what others read
            text = self.rounded(array, v)
            return f"{place} = {array.dtype.name}_max({place}, {text});" if monoid == "max" else f"{place} = {place} + {text};"
        if self.keyed(array):
            key = self.place(*v.attr[:2]) if self.is_variable(v) and self.keyed(v.attr[0]) else f"order_{self.keyed(array)}({text})"
            return f"const {kind} key = {key}; {place} = key > {place} ? key : {place};"
        if monoid == "max":
            return f"{place} = {text} > {place} ? {text} : {place};"
        cast = "" if kind == c_type(v.dtype) or (kind == "float") else f"({kind})"
        return f"{place} {JOINS[monoid][2]}= {cast}{text};"

    def rounded(self, array: Array, v: Value) -> str:
        """Return a value in the dtype in which an array's elements are computed."""
        text = self.ref(v)
        return f"({c_type(array.dtype)}){text}" if v.dtype is f64 and computed_in(array.dtype) is not f64 else text

    def stored(self, array: Array, v: Value) -> str:
        """Return a value as an array holds it."""
        text = self.rounded(array, v)
        if self.keyed(array):
            return f"order_{self.keyed(array)}({text})"
        if array.role == "scratch":
            return text
        if array.dtype is bf16 and _is_moved(v):
            return f"(uint16_t)(bits_of({text}) >> 16)"
        return f"(uint8_t)({text})" if array.dtype is bool_ else called(NARROWED, array.dtype, text)


class _CPrinter(CValues):
    def __init__(self, program: LoopProgram, name: str) -> None:
        super().__init__([str(s) for s in program.source.dims])
        self.program, self.name = program, name
        source = program.source
        over = [pair for pair in source.shared if pair not in source.updated]       # what is read and may be written over
        self.shared = {source.outputs[o] for o, _ in over} | {source.operands[i] for _, i in over}
        self.scratch = [a for a in source.scratch if a.level == 0]
        own = dict.fromkeys(b.array for kernel in program.kernels for b in kernel.buffers)
        self.places, self.own_bytes = _in_order(list(own))          # scratch of a part

    # ---- the program ----

    def text(self) -> str:
        source, write = self.program.source, self.write
        write("/* " + str(source).replace("\n", "\n * ").replace("*/", "* /") + " */")
        write('#include "numbers.h"')
        inside = (s for kernel in self.program.kernels for s in statements(kernel.body))
        if any(isinstance(s, FunctionCall) and s.function.endswith("rows_product") for s in inside):
            write('#include "wide_gemm.h"')
        write()
        write.open(f"typedef struct {self.name}_arguments")
        for a in (*source.outputs, *source.operands):
            write(f"{'' if a.role == 'output' else 'const '}{STORED[a.dtype.name]} *{self.alone(a)}{a.name};")
        for a in self.scratch:
            write(f"{c_type(a.dtype)} *restrict {a.name};")
        for name in self.dims:
            write(f"int64_t {dim_name(name)};")
        write("int64_t count;")
        write.depth -= 1
        write(f"}} {self.name}_arguments;")
        for kernel in self.program.kernels:
            for k, parts in enumerate(_parts_of(kernel)):
                self.parts(self.function(kernel, k), parts, len(kernel.body) > 1)
        for kernel in self.program.kernels:
            if len(kernel.body) > 1:
                write()
                with self.open(f"static void {self.name}_{kernel.entry}_together(void *context, int part, int parts)"):
                    for k in range(len(kernel.body)):
                        write(f"{self.function(kernel, k)}(context, part, parts);")
        write()
        self.entry()
        return "\n".join(write.lines) + "\n"

    def function(self, kernel: LoopKernel, k: int) -> str:
        """Return the name of the function of the k-th nest of a kernel."""
        return f"{self.name}_{kernel.entry}" + (f"_{k}" if k else "")

    def alone(self, array: Array) -> str:
        """Return the qualifier of a pointer when no other pointer leads to its memory."""
        return "" if array in self.shared else "restrict "

    def entry(self) -> None:
        source, write = self.program.source, self.write
        with self.open(f"TG_KERNEL({self.name})"):
            write("(void)floats, (void)ints;")
            write(f"{self.name}_arguments a;")
            for i, array in enumerate((*source.outputs, *source.operands)):
                write(f"a.{array.name} = ptr[{i}];")
            for i, name in enumerate(self.dims):
                write(f"const int64_t {dim_name(name)} = a.{dim_name(name)} = ints[{i}];")
                write(f"(void){dim_name(name)};")
            if self.scratch:
                places, nbytes = _in_order(self.scratch)
                write(f"char *scratch = tg_scratch(0, {c_of(nbytes)});")
                for array, at in places.items():
                    write(f"a.{array.name} = ({c_type(array.dtype)} *)(scratch + {c_of(at)});")
            for kernel in self.program.kernels:
                self.region(kernel)

    def region(self, kernel: LoopKernel) -> None:
        """Write the start of a kernel: a region of the pool, or a call where it is one part."""
        first, *others = _parts_of(kernel)
        size = first.size
        for other in others:                                        # any of them may be the one that has no turns
            size = d.dim_max(size, other.size)
        self.write(f"a.count = {c_of(size)};")
        if size == 1 and not others:
            self.write(f"{self.function(kernel, 0)}(&a, 0, 1);")
            return
        parts = f"tg_parts(tg_ceil(a.count, {first.unit}), tg_ceil(tg_ceil({first.grain}, {c_of(first.steps)}), {first.unit}))"
        if not first.grain:
            parts = f"(int)tg_min(a.count, {MOST_PARTS})"
        function = f"{self.name}_{kernel.entry}_together" if others else self.function(kernel, 0)
        self.write(f"if (a.count > 0) tg_parallel({function}, &a, {parts});")

    def parts(self, function: str, s: Parallel, together: bool) -> None:
        """Write the function that runs some indices of a nest. together: others run in the same region, and have other sizes."""
        write, source = self.write, self.program.source
        write()
        with self.open(f"static void {function}(void *context, int part, int parts)"):
            write(f"const {self.name}_arguments *a = context;")
            arrays = {a.name for a in _arrays(s)}
            for x in (*source.outputs, *source.operands, *self.scratch):
                if x.name in arrays:
                    const = "const " if x.role == "operand" else ""
                    write(f"{const}{element_type(x)} *{self.alone(x)}{x.name} = a->{x.name};")
            for name in self.dims:
                write(f"const int64_t {dim_name(name)} = a->{dim_name(name)};")
                write(f"(void){dim_name(name)};")
            if any(x.name in arrays for x in self.places):
                write(f"char *scratch = tg_scratch(1, {c_of(self.own_bytes)});")
            for x, at in self.places.items():
                if x.name in arrays:
                    write(f"{c_type(x.dtype)} *restrict {x.name} = ({c_type(x.dtype)} *)(scratch + {c_of(at)});")
            write(f"int64_t {FROM}, {TO};")
            write(f"tg_range({c_of(s.size) if together else 'a->count'}, {s.unit}, part, parts, &{FROM}, &{TO});")
            self.scopes, self.locals = [set()], {}
            self.body(s.body)

    # ---- statements ----

    def body(self, body: Sequence[Stmt]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: Stmt) -> None:
        write = self.write
        match s:
            case Let(index=Value() as value):
                self.declare(value)
                write(f"const int64_t {s.name} = {self.ref(value)};")
            case Let(index=index):
                write(f"const int64_t {s.name} = {c_of(index)};")   # type: ignore[arg-type]
            case Skew():
                at = f"(uintptr_t)&{self.place(s.buffer, s.index)} / {s.buffer.dtype.itemsize}"
                write(f"const int64_t {s.name} = (int64_t)({at} % {s.elements});")
            case Note():
                write(f"/* {s.text} */")
            case Compute():
                self.declare(s.value)
            case Local():
                self.local(s)
            case Clear():
                write(f"{s.buffer.name} = {self.identity(s.buffer, s.monoid)};")
            case Store():
                self.declare(s.value)
                write(f"{self.place(s.buffer, s.index)} = {self.stored(s.buffer, s.value)};")
            case Take():
                self.declare(s.value)
                write(self.taken(s.buffer, s.index, s.monoid, s.value))
            case FunctionCall():
                write(f"{s.function}({', '.join(map(self.argument, s.arguments))});")
            case Braces():
                with self.open():
                    self.body(s.body)
            case If():
                self.declare(s.when)
                with self.open(f"if ({self.ref(s.when)})"):
                    self.body(s.body)
            case Loop():
                self.loop(s)
            case _:
                raise AssertionError(f"{type(s).__name__} is not for a CPU")

    def local(self, s: Local) -> None:
        array = s.array
        self.locals[array.name] = s.monoid
        kind = self.memory_type(array)
        if is_number(array):
            start = "" if s.monoid is None or s.count == 0 else f" = {self.identity(array, s.monoid)}"
            self.write(f"{kind} {array.name}{start};")
            return
        self.write(f"{kind} {array.name}[{c_of(array.size)}];")
        if s.monoid is not None and s.count != 0:
            count = c_of(array.size if s.count is None else s.count)
            self.write(f"for (int64_t at = 0; at < {count}; at++) {array.name}[at] = {self.identity(array, s.monoid)};")

    def identity(self, array: Array, monoid: Monoid) -> str:
        if self.keyed(array):
            return f"order_{self.keyed(array)}(-INFINITY)"
        if monoid == "max":
            return LEAST.get(array.dtype.name, "0")
        return f"{identity_of(monoid, array.dtype)}"

    def argument(self, x: Dim | tuple[Array, Dim] | str) -> str:
        if isinstance(x, str):
            return x
        return f"&{self.place(*x)}" if isinstance(x, tuple) else c_of(x)

    def loop(self, s: Loop) -> None:
        name, size, first = s.axis, c_of(s.size), c_of(s.first)
        if s.unroll:
            self.write(f"#pragma GCC unroll {s.unroll}")
        if s.rest:
            self.write(f"int64_t {name} = {first};")
            line = f"for (; {name} + {c_of(s.step)} <= {size}; {name} += {c_of(s.step)})"
        elif s.past:
            line = f"for (int64_t {name} = {first}, {s.past}; {name} < {size}; {name} = {s.past})"
        else:
            step = "++" if s.step == 1 else f" += {c_of(s.step)}"
            line = f"for (int64_t {name} = {first}; {name} < {size}; {name}{step})"
        takes = [x for x in s.body if isinstance(x, Take) and is_number(x.buffer)]
        pragma = f"omp simd reduction({JOINS[takes[0].monoid][2]} : {takes[0].buffer.name})" if takes else "GCC ivdep"
        with self.open(line, pragma if s.kind == "vector" else ""):
            if s.past:
                self.write(f"{s.past} = tg_min({name} + {c_of(s.step)}, {size});")
            self.body(s.body)


def _parts_of(kernel: LoopKernel) -> list[Parallel]:
    return [s for s in kernel.body if isinstance(s, Parallel)]


def _arrays(s: Stmt) -> Iterator[Array]:
    """Yield the arrays that a statement and those in its body use."""
    for x in statements((s,)):
        yield from (v.attr[0] for v in values_in(*values_of(x)) if v.op == "load")
        yield from written(x)
        if isinstance(x, Load | Skew):
            yield x.buffer


def _in_order(arrays: Sequence[Array]) -> tuple[dict[Array, Dim], Dim]:
    """Return the byte at which each array of scratch begins, and the bytes of all."""
    places, at = dict[Array, Dim](), d.dim_max(0, 0)
    for array in arrays:
        places[array] = at
        at = at + padded_bytes(array)
    return places, at


def _is_moved(v: Value) -> bool:
    """Return whether a value is a stored number of bf16 or 0, so that storing it again rounds nothing."""
    if v.op == "where":
        return all(map(_is_moved, v.args[1:]))
    return v.is_constant(0) or (v.op == "load" and v.attr[0].role == "operand" and v.attr[0].dtype is bf16)


