"""cuda_loops: loop programs as CUDA C. Nothing is decided here: a kernel is a function, a statement is a line or a few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tensor_graphs.codegen.loop_ir import Array, Monoid, Top, Value, computed_in, identity_of, values_in
from tensor_graphs.codegen.loop_program import (
    Alias,
    Barrier,
    Clear,
    Combine,
    Compute,
    CopiesWait,
    CopyAhead,
    If,
    Let,
    Load,
    Loop,
    LoopBuffer,
    LoopKernel,
    LoopProgram,
    Prefetch,
    Put,
    Stmt,
    Store,
    Take,
    Wait,
    is_number,
    shared_places,
    statements,
    values_of,
    written,
)
from tensor_graphs.codegen.print.values import (
    LEAST,
    NARROWED,
    STORED,
    ValueWriter,
    c_of,
    c_type,
    called,
    dim_name,
    element_type,
)
from tensor_graphs.kernels.kernel import Launch
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bf16, bool_, f16, f32

LOWEST = {bf16: "0xff80", f16: "0xfc00"}
"""bits of -inf, for dtypes whose maxima are computed two at a time"""

WIDE = 1 << 31
"""elements of an array from which on indices need 64 bits"""

FUNCTORS: dict[Monoid, str] = {"sum": "Sum()", "max": "Max()", "product": "Product()"}

HOW = {"plain": "pack_at", "once": "pack_once", "now": "pack_now"}


@dataclass(frozen=True)
class Rendered:
    """CUDA source, its launches in order, and the bytes of each scratch array, whose addresses are the last parameters."""

    text: str
    launches: tuple[Launch, ...]
    scratch: tuple[Dim, ...]


def index_type(*sizes: Dim) -> str:
    """Return the type of indices below some sizes."""
    return "int64_t" if any(d.bounds(x)[1] >= WIDE for x in sizes) else "int"


def printed(program: LoopProgram) -> Rendered:
    """Return the CUDA source of a program. Parameters of each kernel: outputs, operands, the dims (if any), scratch."""
    printer = _Printer(program)
    launches = tuple(printer.kernel(kernel) for kernel in program.kernels)
    scratch = tuple(d.ceil_div(a.size * computed_in(a.dtype).itemsize, 256) * 256 for a in printer.scratch)
    return Rendered("\n".join(printer.write.lines) + "\n", launches, scratch)


class CudaValues(ValueWriter):
    """Writes values with the functions that only CUDA has. alone: products that are rounded before something is added to them."""

    def __init__(self, gathered: Mapping[str, Value], dims: Sequence[str], alone: frozenset[Value] = frozenset()) -> None:
        super().__init__(gathered, dims)
        self.alone = alone

    def expression(self, v: Value) -> str:
        args = [self.ref(a) for a in v.args]
        if v.op == "mul_alone" or v in self.alone:         # not fused with a sum: numbers.h
            return f"__{'f' if v.dtype is f32 else 'd'}mul_rn({args[0]}, {args[1]})"
        match v.op:
            case "exp_in_sum":
                return f"f32_exp_in_sum({args[0]})"
            case "divisor":
                return f"divisor_of({args[0]})"
            case "divided":
                return f"divided({args[0]}, {args[1]})"
        return super().expression(v)

    def type_of(self, v: Value) -> str:
        return "Divisor" if v.op == "divisor" else super().type_of(v)


class _Printer(CudaValues):
    def __init__(self, program: LoopProgram) -> None:
        source = program.source
        super().__init__({}, [str(s) for s in source.dims])
        self.program = program
        own = {b.array for kernel in program.kernels for b in kernel.buffers}
        self.scratch = [a for a in source.scratch if a.level == 0 and a not in own] + list(program.scratch)
        self.wide = wide = self.sizes(program)
        self.buffers: dict[str, LoopBuffer] = {}
        write = self.write
        write("/* " + str(source).replace("\n", "\n * ").replace("*/", "* /") + " */")
        if all(computed_in(a.dtype) is not a.dtype for a in source.outputs):
            write("#define NARROW")
        write('#include "numbers.cuh"')
        write()
        write(f"typedef {'int64_t' if wide else 'int'} index_t;")
        changed, read = set[Array](), set[Array]()
        self.changed = changed
        for kernel in program.kernels:                              # numbers.cuh, after_those_before, says which may be restrict
            own = {a for s in statements(kernel.body) for a in written(s)}
            loads = {v.attr[0] for s in statements(kernel.body) for v in values_in(*values_of(s)) if v.op == "load"}
            loads |= {s.buffer for s in statements(kernel.body) if isinstance(s, Load)}
            changed |= own
            read |= loads - own
        texts = [f"{STORED[a.dtype.name]} *{'' if a in read else '__restrict__ '}{a.name}" for a in source.outputs]
        texts += [f"const {STORED[a.dtype.name]} *{a.name}" for a in source.operands]
        texts += ["const int64_t *__restrict__ sizes"] if self.dims else []
        texts += [f"{c_type(a.dtype)} *{'' if a in read else '__restrict__ '}{a.name}" for a in self.scratch]
        self.parameters = ", ".join(texts)

    def sizes(self, program: LoopProgram) -> bool:
        """Decide which indices need 64 bits: a few by name (where a part of a large array begins, what counts many iterations), or
        all. Return the latter."""
        inside = [s for kernel in program.kernels for s in statements(kernel.body)]
        aliases = [s for s in inside if isinstance(s, Alias)]
        seen = {s.buffer for s in aliases}
        arrays = [a for a in (*program.source.outputs, *program.source.operands, *self.scratch) if a not in seen]
        loops = [s for s in inside if isinstance(s, Loop)]
        sizes = [*(a.size for a in arrays), *(s.size for s in loops if s.kind != "serial")]
        far = {name for s in aliases if d.bounds(s.index)[1] >= WIDE // 2 for name in d.symbols_in(s.index)}
        counted = {x for s in loops if d.bounds(s.size)[1] >= WIDE // 2 for x in (s.symbol, *d.symbols_in(s.size))}
        self.far = {str(x) for x in far | counted}
        return any(d.bounds(x)[1] >= WIDE for x in sizes)

    def index_type(self, name: str) -> str:
        return "int64_t" if name in self.far and not self.wide else "index_t"

    def kernel(self, kernel: LoopKernel) -> Launch:
        write, threads = self.write, kernel.threads
        self.buffers = {b.name: b for b in kernel.buffers}
        self.scopes, self.inner, self.threads = [set()], threads, threads
        write()
        bounds = f"{threads}, {kernel.resident}" if kernel.resident > 1 else f"{threads}"
        with self.open(f'extern "C" __global__ void __launch_bounds__({bounds}) {kernel.entry}({self.parameters})'):
            for at, name in enumerate(self.dims):
                write(f"const {self.index_type(name)} {dim_name(name)} = ({self.index_type(name)})sizes[{at}];")
            shared = self.shared(kernel)
            for buffer in kernel.buffers:
                if buffer.place == "register":
                    self.register(buffer)
            self.body(kernel.body)
        return Launch(kernel.entry, kernel.grid, threads, shared, waits=True, early=kernel.early)

    def shared(self, kernel: LoopKernel) -> int:
        """Write the names of shared memory; return its bytes."""
        begins, nbytes = shared_places(kernel.buffers)
        if begins:
            self.write("extern __shared__ __align__(16) char rows[];")
        for buffer in (b for b in kernel.buffers if b.place == "shared"):
            kind = element_type(buffer.array)
            self.write(f"{kind} *const {buffer.name} = ({kind} *)(rows + {begins[buffer.name]});")
        return nbytes

    def register(self, buffer: LoopBuffer) -> None:
        kind, size = element_type(buffer.array), int(d.evaluate(buffer.array.size, {}))
        if buffer.lanes > 1:
            self.write(f"Pack<{kind}, {buffer.lanes}> {buffer.name}[{size // buffer.lanes}];")
        else:
            self.write(f"{kind} {buffer.name}{'' if is_number(buffer.array) else f'[{size}]'};")

    # ---- statements ----

    def body(self, body: Sequence[Stmt]) -> None:
        several = sum(map(_is_threads, body)) > 1
        for s in body:
            with self.open() if several and _is_threads(s) else nullcontext():
                self.statement(s)

    def statement(self, s: Stmt) -> None:
        write = self.write
        match s:
            case Let(index=Value() as value):
                self.declare(value)
                write(f"const index_t {s.name} = {self.ref(value)};")
            case Let(index=index):
                write(f"const {self.index_type(s.name)} {s.name} = {c_of(index)};")       # type: ignore[arg-type]
            case Alias():
                kind = f"{'' if s.array in self.changed else 'const '}{element_type(s.array)}"
                write(f"{kind} *const {s.array.name} = {self.address(s.buffer, s.index)};")
            case Compute():
                self.declare(s.value)
            case Load():
                self.load(s)
            case CopyAhead():
                nbytes = s.lanes * s.into.dtype.itemsize
                write(f"copy_ahead<{nbytes}>({self.address(s.into, s.at)}, {self.address(s.buffer, s.index)});")
            case CopiesWait():
                write("copies_end();")
                write(f"copies_wait<{s.left}>();")
            case Put():
                target = self.address(s.buffer, s.index)
                write(f"put_pack<{s.lanes}>({target}, {s.source.name}[{c_of(s.at // s.lanes)}]);" if s.lanes > 1 else
                      f"*({target}) = {self.place(s.source, s.at)};")
            case Store():
                self.note(s.note)
                self.declare(s.value)
                write(f"{self.place(s.buffer, s.index)} = {_narrowed(s.buffer, self.ref(s.value))};")
            case Clear():
                self.clear(s)
            case Take():
                self.take(s)
            case Combine():
                self.combine(s)
            case Prefetch():
                write(f"bring({s.buffer.name} + {c_of(s.index)});")
            case Barrier():
                write("__syncthreads();" if s.scope == "block" else "__syncwarp();")
            case Wait():
                write("after_those_before();")
            case If():
                with self.open(f"if ({self.condition(s.when)})"):
                    self.body(s.body)
            case Loop():
                self.loop(s)

    def note(self, note: str) -> None:
        if note:
            self.write(f"/* {note} */")

    def condition(self, v: Value) -> str:
        """Return a condition; one of indices is written as such."""
        if v.op == "and":
            return " && ".join(self.condition(a) for a in v.args)
        if v.op in ("less", "at_least") and all(a.op == "index" for a in v.args) and not self.known(v):
            return f"{c_of(v.args[0].attr)} {'<' if v.op == 'less' else '>='} {c_of(v.args[1].attr)}"
        self.declare(v)
        return self.ref(v)

    def loop(self, s: Loop) -> None:
        size, name = c_of(s.size), s.axis
        if s.kind == "grid":
            self.write(f"const {self.index_type(name)} {name} = ({self.index_type(name)})blockIdx.x;")
            self.body(s.body)
        elif s.kind == "thread":
            threads, whole = int(d.evaluate(s.size, {})), self.inner
            self.inner = whole // threads
            number = "threadIdx.x" + (f" / {self.inner}" if self.inner > 1 else "")
            self.write(f"const int {name} = {number}{f' % {threads}' if whole != self.threads else ''};")
            self.body(s.body)
            self.inner = whole
        elif s.kind == "vector" and self.largest_of_two(s):
            pass                                                    # written as one instruction for two elements
        else:
            step = f"{name}++" if s.step == 1 else f"{name} += {c_of(s.step)}"
            pragma = f"unroll{f' {s.unroll}' if s.unroll else ''}" if s.kind != "serial" or s.unroll else ""
            with self.open(f"for ({self.index_type(name)} {name} = {c_of(s.first)}; {name} < {size}; {step})", pragma):
                self.body(s.body)

    def largest_of_two(self, s: Loop) -> bool:
        """Write the larger of two narrow floats at a time, if that is what a loop over the elements of a pack computes."""
        take = s.body[0]
        if len(s.body) != 1 or not isinstance(take, Take) or take.buffer.dtype not in LOWEST or take.buffer.role == "scratch" \
                or take.value.op != "load" or take.value.attr[0].dtype is not take.buffer.dtype:
            return False
        array, index, _ = take.value.attr
        source = self.buffers.get(array.name)
        if source is None or source.lanes != s.size or d.coefficient(index, s.axis) != 1:
            return False
        pack = d.substitute(index, {s.axis: 0}) // source.lanes
        self.write(f"keep_larger_{array.dtype}({take.buffer.name}[0], {array.name}[{c_of(pack)}]);")
        return True

    def load(self, s: Load) -> None:
        if s.lanes == 1:                                            # bits, which are no number of a wider type meanwhile
            self.write(f"{self.place(s.into, s.at)} = {self.place(s.buffer, s.index)};")
            return
        into = f"{s.into.name}[{c_of(s.at // s.lanes)}]"
        read = f"{HOW[s.how]}<{s.lanes}>({self.address(s.buffer, s.index)})"
        if s.when is None:
            self.write(f"{into} = {read};")
        else:
            condition = self.condition(s.when)
            self.write(f"{into} = {{}};")
            self.write(f"if ({condition}) {into} = {read};")

    def identity(self, buffer: Array, monoid: Monoid) -> str:
        kind, dtype = element_type(buffer), buffer.dtype
        if buffer.role != "scratch" and monoid == "max":
            return LOWEST[dtype]
        if monoid == "max" or isinstance(monoid, Top):
            return f"-({kind})INFINITY" if dtype.is_float else LEAST.get(dtype.name, "0")
        return f"{identity_of(monoid, dtype)}"

    def clear(self, s: Clear) -> None:
        start = self.identity(s.buffer, s.monoid)
        lanes = self.buffers[s.buffer.name].lanes
        if is_number(s.buffer):
            self.write(f"{s.buffer.name} = {start};")
        else:
            at = f"[at / {lanes}].at[at % {lanes}]" if lanes > 1 else "[at]"
            self.write("#pragma unroll")
            self.write(f"for (int at = 0; at < {c_of(s.buffer.size)}; at++) {s.buffer.name}{at} = {start};")

    def take(self, s: Take) -> None:
        self.note(s.note)
        self.declare(s.value)
        place, kind, value = self.place(s.buffer, s.index), element_type(s.buffer), self.ref(s.value)
        if isinstance(s.monoid, Top):
            self.write(f"top_with({s.buffer.name}, {value});")
            return
        wraps = _wraps(s.buffer, s.monoid)
        if wraps:
            self.write(f"{place} = ({kind}){FUNCTORS[s.monoid]}(({wraps}){place}, ({wraps}){value});")
        else:
            value = value if self.type_of(s.value) == kind else f"({kind}){value}"
            self.write(f"{place} = {FUNCTORS[s.monoid]}({place}, {value});")

    def combine(self, s: Combine) -> None:
        place, kind = self.place(s.buffer, s.index), element_type(s.buffer)
        wraps = _wraps(s.buffer, s.monoid)
        shared = s.shared.name if s.shared is not None else f"({kind} *)0"
        if isinstance(s.monoid, Top):
            self.write(f"top_of<{s.threads}>({s.buffer.name}, {shared});")
            return
        if s.before is not None:
            whole, before, functor = wraps or kind, self.place(s.before, s.index), FUNCTORS[s.monoid]
            arguments = f"({whole} &){place}, {functor}, ({whole}){self.identity(s.buffer, s.monoid)}, ({whole} *){shared}"
            self.write(f"{before} = ({kind})before_of<{s.threads}>({arguments});")
            return
        if wraps:
            self.write(f"{place} = ({kind})reduced<{s.threads}>(({wraps}){place}, {FUNCTORS[s.monoid]}, ({wraps} *){shared});")
        else:
            self.write(f"{place} = reduced<{s.threads}>({place}, {FUNCTORS[s.monoid]}, {shared});")

    # ---- memory ----

    def place(self, array: Array, index: Dim) -> str:
        """Return an element of memory."""
        if is_number(array):
            return array.name
        buffer = self.buffers.get(array.name)
        if buffer is not None and buffer.lanes > 1:
            pack = index // buffer.lanes
            return f"{array.name}[{c_of(pack)}].at[{c_of(index - pack * buffer.lanes)}]"
        return f"{array.name}[{c_of(index)}]"

    def element(self, load: Value) -> str:
        return self.place(load.attr[0], load.attr[1])

    def address(self, array: Array, index: Dim) -> str:
        buffer = self.buffers.get(array.name)
        if buffer is not None and buffer.row:
            row = index // buffer.row
            return f"{array.name} + tile_place<{element_type(array)}>({c_of(row)}, {c_of(index - row * buffer.row)})"
        return f"{array.name} + {c_of(index)}"


def _is_threads(s: Stmt) -> bool:
    return isinstance(s, Loop) and s.kind == "thread"


def _wraps(array: Array, monoid: Monoid) -> str:
    """Return the unsigned type in which integers are combined, as these may overflow; none for other combinations."""
    kind = element_type(array)
    return f"u{kind}" if kind.startswith("int") and monoid != "max" else ""


def _narrowed(array: Array, text: str) -> str:
    if array.role == "scratch":
        return text
    if array.dtype is bool_:
        return f"(uint8_t)({text})"
    return called(NARROWED, array.dtype, text)
