"""values: scalar expressions of a program as text in C or CUDA C: types, literals, indices, and a variable for each value.

The names of scalar functions are those of numbers.h and numbers.cuh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce

from tensor_graphs.codegen.loop_ir import Array, Value, computed_in, dim_of
from tensor_graphs.codegen.loop_program import LANES, is_number
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bool_, f32, i64

STORED = {"f16": "uint16_t", "bf16": "uint16_t", "f8e4m3": "uint8_t", "f8e5m2": "uint8_t", "f32": "float", "f64": "double",
          "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "u8": "uint8_t", "u16": "uint16_t",
          "u32": "uint32_t", "u64": "uint64_t", "bool": "uint8_t"}

WIDENED = {"bf16": "bf16_to_f32", "f16": "f32_of_f16", "f8e4m3": "f32_of_f8e4m3", "f8e5m2": "f32_of_f8e5m2"}
"""dtype computed in f32 -> the function that converts a stored element to f32"""

NARROWED = {"bf16": "bf16_of_f32", "f16": "f16_of_f32", "f8e4m3": "f8e4m3_of_f32", "f8e5m2": "f8e5m2_of_f32"}
"""dtype computed in f32 -> the function that rounds an f32 to a stored element"""

LEAST = {"i8": "INT8_MIN", "i16": "INT16_MIN", "i32": "INT32_MIN", "i64": "INT64_MIN"}
"""dtype -> its least number; other integers have 0"""

_COMPARED = {"at_least": ">=", "less": "<", "not_equal": "!="}


def element_type(array: Array) -> str:
    """Return the C type of an array's elements in memory."""
    return STORED[array.dtype.name] if array.role != "scratch" else c_type(array.dtype)


def c_type(dtype: DType) -> str:
    return STORED[computed_in(dtype).name]


class Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def __call__(self, line: str = "") -> None:
        self.lines.append("    " * self.depth + line if line else "")

    def open(self, line: str) -> None:
        self(f"{line} {{".lstrip())
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self("}")


class ValueWriter:
    """Writes values as variables of C, each once in a block. write: the lines of the source. dims: names of its sizes. gathered:
    index symbol -> the value that is read for it."""

    def __init__(self, gathered: Mapping[str, Value], dims: Sequence[str]) -> None:
        self.gathered, self.dims = gathered, dims
        self.write = Writer()
        self.scopes: list[set[int]] = []                            # numbers of the values that are written, by block

    @contextmanager
    def open(self, line: str = "", pragma: str = "") -> Iterator[None]:
        """Context manager: a braced block of the source; values declared in it are unknown after it."""
        if pragma:
            self.write(f"#pragma {pragma}")
        self.write.open(line)
        self.scopes.append(set())
        yield
        self.scopes.pop()
        self.write.close()

    def known(self, v: Value) -> bool:
        return any(v.number in scope for scope in self.scopes)

    def declare(self, value: Value) -> None:
        """Declare a value and its subexpressions as variables, unless declared already."""
        gathered = self.gathered
        todo: list[tuple[Value, bool]] = [(value, False)]
        seen: set[Value] = set()
        while todo:
            v, done = todo.pop()
            if (not done and v in seen) or self.known(v) or _is_literal(v):
                continue
            if not done:
                seen.add(v)
                todo.append((v, True))
                todo += [(gathered[s], False) for s in _names(v) if s in gathered]
                todo += [(a, False) for a in reversed(v.args)]
                continue
            if self.is_variable(v):
                continue
            self.write(f"const {self.type_of(v)} v{v.number} = {self.expression(v)};")
            for name, g in gathered.items():
                if g is v:
                    self.write(f"const int64_t {name} = v{v.number};")
            self.scopes[-1].add(v.number)

    def is_variable(self, v: Value) -> bool:
        """Return whether a value is what a variable holds."""
        return v.op == "load" and is_number(v.attr[0]) and not v.args

    def type_of(self, v: Value) -> str:
        return "int" if v.dtype is bool_ else c_type(v.dtype)

    def ref(self, v: Value) -> str:
        if _is_literal(v):
            return _literal(v)
        if self.is_variable(v):
            return str(v.attr[0].name)
        return f"v{v.number}"

    def element(self, load: Value) -> str:
        """Return the element of memory that a load reads."""
        array, offset, _ = load.attr
        return array.name if is_number(array) else f"{array.name}[{c_of(offset)}]"

    def expression(self, v: Value) -> str:
        args = [self.ref(a) for a in v.args]
        t = v.dtype
        if v.op == "load":
            read = self.element(v)
            if v.attr[0].role != "scratch":
                read = called(WIDENED, v.attr[0].dtype, read)
            return f"{args[0]} ? {read} : 0" if args else read
        if v.op == "index":
            wide = c_of(v.attr)
            return wide if t is i64 else f"({c_type(t)})({wide})"
        if v.op == "where":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        if v.op == "cast":
            return _cast(v.args[0].dtype, t, args[0])
        if v.op == "bitcast":
            return _bitcast(v.attr, args[0])
        if v.op in _COMPARED:
            return f"{args[0]} {_COMPARED[v.op]} {args[1]}"
        if v.op in ("and", "xor"):
            sign = "&" if v.op == "and" else "^"
            return f"{args[0]} {sign} {args[1]}" if t is bool_ else f"({c_type(t)})({args[0]} {sign} {args[1]})"
        if v.op == "mul_alone":
            return f"{t.name}_product({args[0]}, {args[1]})"
        if v.op in ("add", "mul"):
            sign = "+" if v.op == "add" else "*"
            if t.is_float:
                return f"{args[0]} {sign} {args[1]}"
            wide = f"uint{max(32, t.bits)}_t"                        # no overflow that C leaves undefined
            return f"({c_type(t)})(({wide}){args[0]} {sign} ({wide}){args[1]})"
        if v.op == "max" and not t.is_float:
            return f"{args[0]} > {args[1]} ? {args[0]} : {args[1]}"
        if v.op == "idiv":
            return f"idiv_{t.name}({args[0]}, {args[1]})"
        if v.op == "minus":
            return f"{args[0]} - {args[1]}"
        if v.op == "reciprocal":
            return f"{'1.0f' if t is f32 else '1.0'} / {args[0]}"
        if v.op == "div":
            return f"{args[0]} / {args[1]}"
        return f"{t.name}_{v.op}({', '.join(args)})"


def _names(v: Value) -> list[str]:
    """Return the symbols of the index in a value."""
    return sorted(str(s) for s in d.symbols_in(dim_of(v)))


_REGISTERS = {str(LANES[32]): "VW", str(LANES[64]): "VD"}
"""what vec.h calls the numbers in a register"""


def dim_name(name: str) -> str:
    """Return the C name of a dim, or of a stride between rows, whose name starts with "_" like an axis."""
    return _REGISTERS.get(name, name) if _is_axis(name) else f"d_{name}"


def called(functions: Mapping[str, str], dtype: DType, text: str) -> str:
    """Return a call of the dtype's function on `text`, or `text` itself where the dtype has none."""
    return f"{functions[dtype.name]}({text})" if dtype.name in functions else text


def _is_literal(v: Value) -> bool:
    return v.op == "constant"


def _literal(v: Value) -> str:
    x, t = v.attr, v.dtype
    if t is bool_:
        return "1" if x else "0"
    if not t.is_float:
        if t.name == "i64" and x == -(1 << 63):
            return "INT64_MIN"
        return f"({c_type(t)}){int(x)}{'ULL' if t.name == 'u64' else 'LL' if t.bits == 64 else 'u' if t.name == 'u32' else ''}"
    value = float(x)
    if math.isnan(value):
        return "NAN" if t is f32 else "((double)NAN)"
    if math.isinf(value):
        sign = "-" if value < 0 else ""
        return f"({sign}INFINITY)" if t is f32 else f"({sign}(double)INFINITY)"
    if t is f32:
        return f"({float.hex(value)}f)" if value < 0 or math.copysign(1, value) < 0 else f"{float.hex(value)}f"
    return f"({float.hex(value)})" if math.copysign(1, value) < 0 else float.hex(value)


def _cast(old: DType, new: DType, x: str) -> str:
    if new is bool_:
        return f"{x} != 0"
    if old.is_float and not new.is_float:
        return f"{new.name}_of_{old.name}({x})"
    return f"({c_type(new)}){x}"


_OF_BITS = {"f32": "float_of((uint32_t)", "f64": "f64_of((uint64_t)", **{t: f"{f}(({STORED[t]})" for t, f in WIDENED.items()}}
_BITS = {"f32": "bits_of", "f64": "bits_of_f64", **NARROWED}


def _bitcast(what: str, x: str) -> str:
    old, new = what.split()
    bits = f"{_BITS[old]}({x})" if old in _BITS else x
    if new in _OF_BITS:
        return f"{_OF_BITS[new]}{bits})"
    return f"({STORED[new]}){bits}" if new != "bool" else f"({bits}) != 0"


def c_of(x: Dim) -> str:
    """Return a dim as a C expression, in parentheses where an operator around it needs them. Dims of the graph are called d_…."""
    if not isinstance(x, d.Expr):
        return str(int(x)) if abs(int(x)) < 1 << 31 else f"{int(x)}LL"
    out, factors = "", list[str]()
    for monomial, k in x.terms:
        factors = [_c_atom(a) for a in monomial]
        if abs(k) != 1 or not factors:
            factors.insert(0, str(abs(k)) if abs(k) < 1 << 31 else f"{abs(k)}LL")
        sign = (" - " if k < 0 else " + ") if out else ("-" if k < 0 else "")
        out += sign + " * ".join(factors)
    return f"({out})" if len(x.terms) > 1 or len(factors) > 1 or out.startswith("-") else out


def _c_atom(atom: d.Atom) -> str:
    if isinstance(atom, d.Symbol):
        return dim_name(atom.name)
    args = [c_of(a) for a in atom.args]
    if atom.fn == "floordiv":
        return f"({args[0]} / {args[1]})" if d.bounds(atom.args[0])[0] >= 0 else f"floor_div({args[0]}, {args[1]})"
    name = "tg_min" if atom.fn == "min" else "tg_max_i"
    return reduce(lambda text, other: f"{name}({text}, {other})", args)


def _is_axis(name: str) -> bool:
    return name.startswith("_")
