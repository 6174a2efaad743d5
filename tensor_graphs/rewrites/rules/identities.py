"""identities: rules that remove ops without effect. Bitwise ones hold for −0, NaN and ∞, too; others for real numbers alone."""

from __future__ import annotations

from tensor_graphs.language import atomic, composites
from tensor_graphs.language.dtypes import DTYPES, DType, bool_
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import BITWISE, REASSOCIATING, Refused, RuleTable

TABLE = RuleTable("identity")
NUMBERS, FLOATS, INTEGERS = ("float", "int", "uint"), ("float",), ("int", "uint")
UNBOUNDED = tuple(t.name for t in DTYPES.values() if t.has_infinity)


def _zero(x: Node) -> Node:
    return atomic.fill(0, x.shape, x.dtype)


# −0 is the neutral element of addition; +0 turns −0 into +0.
TABLE.row("add-minus-zero", "add(x, -0.0)", BITWISE, lambda x: x, dtypes=FLOATS)
TABLE.row("add-zero-integer", "add(x, 0)", BITWISE, lambda x: x if x.dtype.is_integer else None, dtypes=INTEGERS)
# The same number; of −0 the sign is lost, so not bitwise.
TABLE.row("add-zero", "add(x, 0.0)", REASSOCIATING, lambda x: x, dtypes=FLOATS)
# x + 0 · −1 = x + −0.
TABLE.row("sub-zero", "sub(x, 0)", BITWISE, lambda x: x, dtypes=NUMBERS)
TABLE.row("mul-one", "mul(x, 1)", BITWISE, lambda x: x, dtypes=NUMBERS)
TABLE.row("div-one", "div(x, 1)", BITWISE, lambda x: x, dtypes=FLOATS)
# Integers only: 0 · ∞ is NaN, 0 · −1 is −0.
TABLE.row("mul-zero", "mul(x, 0)", BITWISE, lambda x: _zero(x) if x.dtype.is_integer else None, dtypes=INTEGERS)
# Integers only: ∞ − ∞ is NaN.
TABLE.row("sub-self", "sub(x, x)", BITWISE, lambda x: _zero(x) if x.dtype.is_integer else None, dtypes=INTEGERS)
TABLE.row("idiv-one", "idiv(x, 1)", BITWISE, lambda x: x, dtypes=INTEGERS)


@TABLE.rule("integer_power(x, exponent=k)", BITWISE, dtypes=NUMBERS)
def power_small(x: Node, k: int) -> Node | None:
    return {0: lambda: atomic.fill(1, x.shape, x.dtype), 1: lambda: x, 2: lambda: atomic.mul(x, x)}.get(k, lambda: None)()


TABLE.row("neg-neg", "neg(neg(x))", BITWISE, lambda x: x, dtypes=NUMBERS)
TABLE.row("reciprocal-twice", "reciprocal(reciprocal(x))", REASSOCIATING,
          lambda x: x, assuming=("no division by 0",), dtypes=FLOATS)
TABLE.row("max-self", "max(x, x)", BITWISE, lambda x: x, dtypes=NUMBERS)
TABLE.row("min-self", "min(x, x)", BITWISE, lambda x: x, dtypes=NUMBERS)
TABLE.row("max-absorbs", "max(max(x, y), y)", BITWISE, lambda x, y: atomic.max(x, y), dtypes=NUMBERS)
TABLE.row("and-self", "bit_and(x, x)", BITWISE, lambda x: x, dtypes=("int", "uint", "bool"))
TABLE.row("and-true", "bit_and(x, True)", BITWISE, lambda x: x, dtypes=("bool",))
TABLE.row("and-false", "bit_and(x, False)", BITWISE, lambda x: atomic.fill(False, x.shape, x.dtype), dtypes=("bool",))
TABLE.row("and-zero", "bit_and(x, 0)", BITWISE, lambda x: _zero(x), dtypes=INTEGERS)
TABLE.row("xor-self", "xor(x, x)", BITWISE,
          lambda x: atomic.fill(False if x.dtype.kind == "bool" else 0, x.shape, x.dtype), dtypes=("int", "uint", "bool"))
# Not of not is one of them.
TABLE.row("xor-twice", "xor(xor(x, y), y)", BITWISE, lambda x: x, dtypes=("int", "uint", "bool"))
TABLE.row("xor-false", "xor(x, False)", BITWISE, lambda x: x, dtypes=("bool",))
TABLE.row("xor-zero", "xor(x, 0)", BITWISE, lambda x: x, dtypes=INTEGERS)
TABLE.row("or-self", "bit_or(x, x)", BITWISE, lambda x: x, dtypes=("int", "uint", "bool"))
TABLE.row("or-zero", "bit_or(x, 0)", BITWISE, lambda x: x, dtypes=INTEGERS)
# NaN stays NaN, and −0 is larger than −∞.
TABLE.row("max-of-minus-infinity", "max(x, -1e999)", BITWISE, lambda x: x, dtypes=UNBOUNDED)
TABLE.row("min-of-infinity", "min(x, 1e999)", BITWISE, lambda x: x, dtypes=UNBOUNDED)


def _neutral_numbers(t: DType) -> None:
    """Add the rules of an integer dtype's neutral elements: all bits set, the lowest and the highest number."""
    for name, pattern in (("and-all-bits", f"bit_and(x, {t.max if t.kind == 'uint' else -1})"),
                          ("max-of-lowest", f"max(x, {t.min})"), ("min-of-highest", f"min(x, {t.max})")):
        TABLE.row(f"{name}-{t.name}", pattern, BITWISE, lambda x: x, dtypes=(t.name,))


for _dtype in DTYPES.values():
    if _dtype.is_integer:
        _neutral_numbers(_dtype)


TABLE.row("where-same", "where(c, x, x)", BITWISE, lambda x: x, shapes="c:bool")
TABLE.row("where-true", "where(True, x, y)", BITWISE, lambda x: x)
TABLE.row("where-false", "where(False, x, y)", BITWISE, lambda y: y)
TABLE.row("where-not", "where(xor(c, True), x, y)", BITWISE, lambda c, x, y: atomic.where(c, y, x), shapes="c:bool")
TABLE.row("where-again", "where(c, where(c, x, z), y)", BITWISE, lambda c, x, y: atomic.where(c, x, y), shapes="c:bool")
TABLE.row("where-again-else", "where(c, y, where(c, z, x))", BITWISE, lambda c, x, y: atomic.where(c, y, x), shapes="c:bool")
TABLE.row("floor-twice", "floor(floor(x))", BITWISE, lambda x: atomic.floor(x), dtypes=FLOATS)
TABLE.row("relu-twice", "relu(relu(x))", BITWISE, lambda x: composites.relu(x), dtypes=FLOATS)
TABLE.row("abs-twice", "abs(abs(x))", BITWISE, lambda x: composites.abs(x), dtypes=NUMBERS)
TABLE.row("abs-neg", "abs(neg(x))", BITWISE, lambda x: composites.abs(x), dtypes=("float", "int"))
TABLE.row("square-neg", "square(neg(x))", BITWISE, lambda x: composites.square(x), dtypes=NUMBERS)
# The definition of sub is the same equation; here it is a step of its own.
TABLE.row("add-neg", "add(x, neg(y))", BITWISE, lambda x, y: composites.sub(x, y), dtypes=NUMBERS)
TABLE.row("sub-neg", "sub(x, neg(y))", BITWISE, lambda x, y: atomic.add(x, y), dtypes=NUMBERS)
TABLE.row("neg-times-neg", "mul(neg(x), neg(y))", BITWISE, lambda x, y: atomic.mul(x, y), dtypes=NUMBERS)
# A cast that loses nothing may be passed by.
TABLE.row("cast-twice", "cast(cast(x, dtype=a), dtype=b)", BITWISE,
          lambda x, a, b: atomic.cast(x, b) if _passes(x.dtype, a, b) else None)


def _passes(t: DType, a: DType, b: DType) -> bool:
    """Return whether casting a value of t to `a` and then to b gives the same as casting it to b directly."""
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
