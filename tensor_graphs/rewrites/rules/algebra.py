"""algebra: factoring, distribution and association; bitwise on integers (a ring that wraps), reassociating on floats."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tensor_graphs.language import atomic
from tensor_graphs.language.composites import arithmetic, exp, gelu, log, sigmoid, silu, sub, tanh
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import BITWISE, REASSOCIATING, Refused, RuleTable

TABLE = RuleTable("algebra")
FLOATS, INTEGERS, NUMBERS = ("float",), ("int", "uint"), ("float", "int", "uint")


def _ring(name: str, pattern: str, replacement: Callable[..., Any], **options: Any) -> None:
    """Add a rule that holds in every commutative ring, for both numeric classes: bitwise on integers, reassociating on floats."""
    TABLE.row(f"{name}-integer", pattern, BITWISE, replacement, dtypes=INTEGERS, roots=INTEGERS, **options)
    TABLE.row(name, pattern, REASSOCIATING, replacement, dtypes=FLOATS, roots=FLOATS, **options)


_ring("factor", "add(mul(x, z), mul(y, z))", lambda x, y, z: atomic.mul(atomic.add(x, y), z))
_ring("factor-sub", "sub(mul(x, z), mul(y, z))", lambda x, y, z: atomic.mul(sub(x, y), z))
_ring("distribute", "mul(add(x, y), z)", lambda x, y, z: atomic.add(atomic.mul(x, z), atomic.mul(y, z)), expanding=True)
_ring("associate-add", "add(add(x, y), z)", lambda x, y, z: atomic.add(x, atomic.add(y, z)), expanding=True)
# Factors that are repeated meet, and are multiplied before they are: this way only, so that it comes to an end.
_ring("associate-repeated", "mul(mul(x, expand(y, shape=s)), expand(z, shape=s))",
      lambda x, y, z, s: atomic.mul(x, atomic.mul(atomic.expand(y, s), atomic.expand(z, s))), shapes="x[n, m] y[n, 1] z[n, 1]")
TABLE.row("associate-max", "max(max(x, y), z)", BITWISE,
          lambda x, y, z: atomic.max(x, atomic.max(y, z)), dtypes=NUMBERS, expanding=True)
TABLE.row("add-and-take-integer", "sub(add(x, y), y)", BITWISE, lambda x: x if x.dtype.is_integer else None, dtypes=INTEGERS)
TABLE.row("add-and-take", "sub(add(x, y), y)", REASSOCIATING, lambda x: x, dtypes=FLOATS)
TABLE.row("take-and-add", "add(sub(x, y), y)", REASSOCIATING, lambda x: x, dtypes=FLOATS)
TABLE.row("divide", "mul(x, reciprocal(y))", BITWISE, lambda x, y: arithmetic.div(x, y), dtypes=FLOATS)
TABLE.row("divide-factor", "div(mul(x, y), z)", REASSOCIATING,
          lambda x, y, z: atomic.mul(x, arithmetic.div(y, z)), dtypes=FLOATS, expanding=True)
TABLE.row("factor-division", "add(div(x, z), div(y, z))", REASSOCIATING,
          lambda x, y, z: arithmetic.div(atomic.add(x, y), z), dtypes=FLOATS)
TABLE.row("neg-out-of-mul", "mul(neg(x), y)", BITWISE,
          lambda x, y: arithmetic.neg(atomic.mul(x, y)), dtypes=NUMBERS, expanding=True)


@TABLE.rule("sum(mul(x, expand(c, shape=s)), axes=a)", REASSOCIATING, dtypes=FLOATS, shapes="x[n, m] c[n, 1]")
def factor_out_of_sum(x: Node, c: Node, a: tuple[int, ...]) -> Node | None:
    """Move a factor that is constant along the summed axes out of the sum."""
    if any(c.shape[i] != 1 for i in a):
        return None
    total = atomic.sum(x, a)
    shape = [s for i, s in enumerate(c.shape) if i not in a]
    return atomic.mul(total, atomic.expand(atomic.reshape(c, shape), total.shape))


TABLE.row("sum-of-add", "sum(add(x, y), axes=a)", REASSOCIATING,
          lambda x, y, a: atomic.add(atomic.sum(x, a), atomic.sum(y, a)), dtypes=FLOATS, expanding=True)
TABLE.row("exp-product", "mul(exp(x), exp(y))", REASSOCIATING,
          lambda x, y: exp(atomic.add(x, y)), dtypes=FLOATS, assuming=("no overflow",))
# Shifted by y first, then rescaled from y to the larger one: what makes softmax online.
TABLE.row("exp-rescaled", "exp(sub(x, max(y, z)))", REASSOCIATING,
          lambda x, y, z: exp(arithmetic.sub(x, y)) * exp(arithmetic.sub(y, atomic.max(y, z))),
          dtypes=FLOATS, assuming=("no overflow",), expanding=True, option="split")
TABLE.row("log-exp", "log(exp(x))", REASSOCIATING, lambda x: x, dtypes=FLOATS, assuming=("no overflow",))
TABLE.row("log-product", "log(mul(exp(x), y))", REASSOCIATING,
          lambda x, y: atomic.add(x, log(y)), dtypes=FLOATS, assuming=("no overflow",))
TABLE.row("silu-by-sigmoid", "mul(x, sigmoid(x))", REASSOCIATING, lambda x: silu(x), dtypes=FLOATS)
TABLE.row("sigmoid-written-out", "reciprocal(add(exp(neg(x)), 1))", REASSOCIATING, lambda x: sigmoid(x), dtypes=FLOATS)
TABLE.row("silu-written-out", "div(x, add(exp(neg(x)), 1))", REASSOCIATING, lambda x: silu(x), dtypes=FLOATS)
TABLE.row("sigmoid-by-tanh", "mul(add(tanh(mul(x, 0.5)), 1), 0.5)", REASSOCIATING, lambda x: sigmoid(x), dtypes=FLOATS)
TABLE.row("tanh-by-sigmoid", "sub(mul(sigmoid(mul(x, 2)), 2), 1)", REASSOCIATING, lambda x: tanh(x), dtypes=FLOATS)


def _gelus() -> None:
    """Add the rules of gelu, x · Φ(x), as textbooks write it: erfc keeps the tail that 1 + erf cancels."""
    argument = "mul(add(x, {cube}), 0.7978845608028654)"
    words = {"erf": ("erf(mul(x, 0.7071067811865476))", "none"), "erf-over": ("erf(div(x, 1.4142135623730951))", "none"),
             "tanh": (f"tanh({argument.format(cube='mul(mul(mul(x, 0.044715), x), x)')})", "tanh"),
             "tanh-cube": (f"tanh({argument.format(cube='mul(integer_power(x, exponent=3), 0.044715)')})", "tanh")}
    places = {"": "mul(mul(x, 0.5), add({phi}, 1))", "-inside": "mul(x, mul(add({phi}, 1), 0.5))"}
    for (how, (phi, approximate)), (where, around) in itertools.product(words.items(), places.items()):
        TABLE.row(f"gelu-by-{how}{where}", around.format(phi=phi), REASSOCIATING,
                  lambda x, approximate=approximate: gelu(x, approximate=approximate), dtypes=FLOATS)


_gelus()

ASSOCIATING = tuple(r for r in TABLE if r.name.startswith("algebra/associate"))
"""Rules that only move brackets."""

REFUSED = (
    Refused("algebra/factor-bitwise", BITWISE, "add(mul(x, z), mul(y, z))", lambda x, y, z: (x + y) * z, "each rounds otherwise"),
    Refused("algebra/associate-bitwise", BITWISE, "add(add(x, y), z)", lambda x, y, z: x + (y + z), "1e30 − 1e30 + 1"),
    Refused("algebra/idiv-sum", BITWISE, "add(idiv(x, z), idiv(y, z))", lambda x, y, z: atomic.idiv(x + y, z),
            "1 // 2 + 1 // 2 is 0", dtypes=INTEGERS),
    Refused("algebra/max-sum", BITWISE, "max(add(x, z), add(y, z))", lambda x, y, z: atomic.max(x, y) + z, "127 + 1 wraps",
            dtypes=INTEGERS),
    Refused("algebra/abs-sum", REASSOCIATING, "abs(add(x, y))", lambda x, y: arithmetic.abs(x) + arithmetic.abs(y), "|1 − 1| is 0"),
)
