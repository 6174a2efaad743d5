"""identities: what leaves a value as it is. Bitwise ones hold for −0, NaN and ∞ too; where only reals agree, the class says so."""

from __future__ import annotations

from typing import Any

from tensor_graphs.language import atomic
from tensor_graphs.language.dtypes import DTYPES, DType, bool_
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import BITWISE, REASSOCIATING, Refused, RuleTable

TABLE = RuleTable("identity")
NUMBERS, FLOATS, INTEGERS = ("float", "int", "uint"), ("float",), ("int", "uint")
UNBOUNDED = tuple(t.name for t in DTYPES.values() if t.has_infinity)


def _zero(x: Node) -> Node:
    return atomic.fill(0, x.shape, x.dtype)


@TABLE.rule("add(x, -0.0)", BITWISE, dtypes=FLOATS)
def add_minus_zero(x: Node) -> Node:
    """−0 is the neutral element of addition; +0 turns −0 into +0."""
    return x


@TABLE.rule("add(x, 0)", BITWISE, dtypes=INTEGERS)
def add_zero_integer(x: Node) -> Node | None:
    return x if x.dtype.is_integer else None


@TABLE.rule("add(x, 0.0)", REASSOCIATING, dtypes=FLOATS)
def add_zero(x: Node) -> Node:
    """The same number; of −0 the sign is lost, so not bitwise."""
    return x


@TABLE.rule("sub(x, 0)", BITWISE, dtypes=NUMBERS)
def sub_zero(x: Node) -> Node:
    """x + 0 · −1 = x + −0."""
    return x


@TABLE.rule("mul(x, 1)", BITWISE, dtypes=NUMBERS)
def mul_one(x: Node) -> Node:
    return x


@TABLE.rule("div(x, 1)", BITWISE, dtypes=FLOATS)
def div_one(x: Node) -> Node:
    return x


@TABLE.rule("mul(x, 0)", BITWISE, dtypes=INTEGERS)
def mul_zero(x: Node) -> Node | None:
    """Integers only: 0 · ∞ is NaN, 0 · −1 is −0."""
    return _zero(x) if x.dtype.is_integer else None


@TABLE.rule("sub(x, x)", BITWISE, dtypes=INTEGERS)
def sub_self(x: Node) -> Node | None:
    """Integers only: ∞ − ∞ is NaN."""
    return _zero(x) if x.dtype.is_integer else None


@TABLE.rule("idiv(x, 1)", BITWISE, dtypes=INTEGERS)
def idiv_one(x: Node) -> Node:
    return x


@TABLE.rule("integer_power(x, exponent=k)", BITWISE, dtypes=NUMBERS)
def power_small(x: Node, k: int) -> Node | None:
    return {0: lambda: atomic.fill(1, x.shape, x.dtype), 1: lambda: x, 2: lambda: atomic.mul(x, x)}.get(k, lambda: None)()


@TABLE.rule("neg(neg(x))", BITWISE, dtypes=NUMBERS)
def neg_neg(x: Node) -> Node:
    return x


@TABLE.rule("reciprocal(reciprocal(x))", REASSOCIATING, assuming=("no division by 0",), dtypes=FLOATS)
def reciprocal_twice(x: Node) -> Node:
    return x


@TABLE.rule("max(x, x)", BITWISE, dtypes=NUMBERS)
def max_self(x: Node) -> Node:
    return x


@TABLE.rule("min(x, x)", BITWISE, dtypes=NUMBERS)
def min_self(x: Node) -> Node:
    return x


@TABLE.rule("max(max(x, y), y)", BITWISE, dtypes=NUMBERS)
def max_absorbs(x: Node, y: Node) -> Node:
    return atomic.max(x, y)


@TABLE.rule("bit_and(x, x)", BITWISE, dtypes=("int", "uint", "bool"))
def and_self(x: Node) -> Node:
    return x


@TABLE.rule("bit_and(x, True)", BITWISE, dtypes=("bool",))
def and_true(x: Node) -> Node:
    return x


@TABLE.rule("bit_and(x, False)", BITWISE, dtypes=("bool",))
def and_false(x: Node) -> Node:
    return atomic.fill(False, x.shape, x.dtype)


@TABLE.rule("bit_and(x, 0)", BITWISE, dtypes=INTEGERS)
def and_zero(x: Node) -> Node:
    return _zero(x)


@TABLE.rule("xor(x, x)", BITWISE, dtypes=("int", "uint", "bool"))
def xor_self(x: Node) -> Node:
    return atomic.fill(False if x.dtype.kind == "bool" else 0, x.shape, x.dtype)


@TABLE.rule("xor(xor(x, y), y)", BITWISE, dtypes=("int", "uint", "bool"))
def xor_twice(x: Node) -> Node:
    """Not of not among them."""
    return x


@TABLE.rule("xor(x, False)", BITWISE, dtypes=("bool",))
def xor_false(x: Node) -> Node:
    return x


@TABLE.rule("xor(x, 0)", BITWISE, dtypes=INTEGERS)
def xor_zero(x: Node) -> Node:
    return x


@TABLE.rule("bit_or(x, x)", BITWISE, dtypes=("int", "uint", "bool"))
def or_self(x: Node) -> Node:
    return x


@TABLE.rule("bit_or(x, 0)", BITWISE, dtypes=INTEGERS)
def or_zero(x: Node) -> Node:
    return x


@TABLE.rule("max(x, -1e999)", BITWISE, dtypes=UNBOUNDED)
def max_of_minus_infinity(x: Node) -> Node:
    """NaN stays NaN, and −0 is larger than −∞."""
    return x


@TABLE.rule("min(x, 1e999)", BITWISE, dtypes=UNBOUNDED)
def min_of_infinity(x: Node) -> Node:
    return x


def _neutral_numbers(t: DType) -> None:
    """The numbers of an integer dtype that change nothing: all bits, the lowest, the highest."""
    def keep(x: Node) -> Node:
        return x

    for name, pattern in (("and-all-bits", f"bit_and(x, {t.max if t.kind == 'uint' else -1})"),
                          ("max-of-lowest", f"max(x, {t.min})"), ("min-of-highest", f"min(x, {t.max})")):
        TABLE.rule(pattern, BITWISE, name=f"identity/{name}-{t.name}", dtypes=(t.name,))(keep)


for _dtype in DTYPES.values():
    if _dtype.is_integer:
        _neutral_numbers(_dtype)


@TABLE.rule("where(c, x, x)", BITWISE, shapes="c:bool")
def where_same(x: Node) -> Node:
    return x


@TABLE.rule("where(True, x, y)", BITWISE)
def where_true(x: Node) -> Node:
    return x


@TABLE.rule("where(False, x, y)", BITWISE)
def where_false(y: Node) -> Node:
    return y


@TABLE.rule("where(xor(c, True), x, y)", BITWISE, shapes="c:bool")
def where_not(c: Node, x: Node, y: Node) -> Node:
    return atomic.where(c, y, x)


@TABLE.rule("where(c, where(c, x, z), y)", BITWISE, shapes="c:bool")
def where_again(c: Node, x: Node, y: Node) -> Node:
    return atomic.where(c, x, y)


@TABLE.rule("where(c, y, where(c, z, x))", BITWISE, shapes="c:bool")
def where_again_else(c: Node, x: Node, y: Node) -> Node:
    return atomic.where(c, y, x)


@TABLE.rule("floor(floor(x))", BITWISE, dtypes=FLOATS)
def floor_twice(x: Node) -> Node:
    return atomic.floor(x)


@TABLE.rule("relu(relu(x))", BITWISE, dtypes=FLOATS)
def relu_twice(x: Node) -> Node:
    from tensor_graphs.language.composites import relu

    return relu(x)


@TABLE.rule("abs(abs(x))", BITWISE, dtypes=NUMBERS)
def abs_twice(x: Node) -> Node:
    from tensor_graphs.language.composites import abs

    return abs(x)


@TABLE.rule("abs(neg(x))", BITWISE, dtypes=("float", "int"))
def abs_neg(x: Node) -> Node | None:
    from tensor_graphs.language.composites import abs

    return None if x.dtype.kind == "uint" else abs(x)


@TABLE.rule("square(neg(x))", BITWISE, dtypes=NUMBERS)
def square_neg(x: Node) -> Node:
    from tensor_graphs.language.composites import square

    return square(x)


@TABLE.rule("add(x, neg(y))", BITWISE, dtypes=NUMBERS)
def add_neg(x: Node, y: Node) -> Node:
    """The definition of sub says so too; here it is a step of its own."""
    from tensor_graphs.language.composites import sub

    return sub(x, y)


@TABLE.rule("sub(x, neg(y))", BITWISE, dtypes=NUMBERS)
def sub_neg(x: Node, y: Node) -> Node:
    return atomic.add(x, y)


@TABLE.rule("mul(neg(x), neg(y))", BITWISE, dtypes=NUMBERS)
def neg_times_neg(x: Node, y: Node) -> Node:
    return atomic.mul(x, y)


@TABLE.rule("cast(cast(x, dtype=a), dtype=b)", BITWISE)
def cast_twice(x: Node, a: Any, b: Any) -> Node | None:
    """A cast that loses nothing may be passed by."""
    return atomic.cast(x, b) if _passes(x.dtype, a, b) else None


def _passes(t: DType, a: DType, b: DType) -> bool:
    """Whether a value of t, cast to `a` and then to b, is what it is cast to b at once."""
    if a == t:
        return True
    if t.kind == "float":                                           # a wider float; what is no float rounds or saturates otherwise
        wider = a.kind == "float" and a.max >= t.max and a.smallest_normal <= t.smallest_normal and a.itemsize > t.itemsize
        return wider and b.kind == "float"
    if a.kind == "bool" or b.kind == "bool":
        return False
    if a.kind == "float":                                           # exact up to 2 / ε; back from a float, integers saturate
        whole = t.kind == "bool" or max(t.max, -t.min) <= min(2 / a.epsilon, a.max)
        return whole and (b.kind == "float" or (b.min <= t.min and t.max <= b.max))
    return t.kind == "bool" or (a.min <= t.min and t.max <= a.max)


REFUSED = (
    Refused("identity/mul-zero-float", BITWISE, "mul(x, 0.0)", lambda x: _zero(x), "0 · ∞ and 0 · NaN are NaN",
            dtypes=FLOATS),
    Refused("identity/add-zero-bitwise", BITWISE, "add(x, 0.0)", lambda x: x, "−0 + 0 is +0"),
    Refused("identity/sub-self-float", BITWISE, "sub(x, x)", lambda x: _zero(x), "∞ − ∞ is NaN"),
    Refused("identity/not-equal-self", BITWISE, "not_equal(x, x)", lambda x: atomic.fill(False, x.shape, bool_), "NaN ≠ NaN"),
    Refused("identity/div-self", REASSOCIATING, "div(x, x)", lambda x: atomic.fill(1, x.shape, x.dtype), "0 / 0 is NaN"),
    Refused("identity/idiv-times", BITWISE, "mul(idiv(x, y), y)", lambda x, y: x, "7 // 2 · 2 is 6", dtypes=INTEGERS),
    Refused("identity/max-zero", REASSOCIATING, "max(x, 0.0)", lambda x: x, "max(−1, 0) is 0"),
    Refused("identity/max-infinity", BITWISE, "max(x, 1e999)", lambda x: atomic.fill(float("inf"), x.shape, x.dtype),
            "NaN is the largest"),
    Refused("identity/max-zero-bits", BITWISE, "max(x, 0)", lambda x: x, "max(−1, 0) is 0", dtypes=("int",)),
    Refused("identity/cast-through-float", BITWISE, "cast(cast(x, dtype=a), dtype=b)",
            lambda x, a, b: atomic.cast(x, b) if a.kind == "float" else None, "2^24 + 1 is no f32, and 300 as u8 is 44, or 255",
            dtypes=INTEGERS),
    Refused("identity/sqrt-square", REASSOCIATING, "sqrt(mul(x, x))", lambda x: x, "√((−1)²) is 1"),
)
