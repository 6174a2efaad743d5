"""algebra: factoring, distribution and association, on integers bitwise (they are a ring that wraps), on floats reassociating."""

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


def _ring(pattern: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A rule that holds in every commutative ring, in both classes."""
    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        name = f.__name__.replace("_", "-")

        # the same function twice: which of them may run where is for the dtype to say
        TABLE.rule(pattern, BITWISE, name=f"algebra/{name}-integer", dtypes=INTEGERS, roots=INTEGERS, **options)(f)
        TABLE.rule(pattern, REASSOCIATING, name=f"algebra/{name}", dtypes=FLOATS, roots=FLOATS, **options)(f)
        return f

    return register


@_ring("add(mul(x, z), mul(y, z))")
def factor(x: Node, y: Node, z: Node) -> Node:
    return atomic.mul(atomic.add(x, y), z)


@_ring("sub(mul(x, z), mul(y, z))")
def factor_sub(x: Node, y: Node, z: Node) -> Node:
    made: Node = sub(x, y)
    return atomic.mul(made, z)


@_ring("mul(add(x, y), z)", expanding=True)
def distribute(x: Node, y: Node, z: Node) -> Node:
    return atomic.add(atomic.mul(x, z), atomic.mul(y, z))


@_ring("add(add(x, y), z)", expanding=True)
def associate_add(x: Node, y: Node, z: Node) -> Node:
    return atomic.add(x, atomic.add(y, z))


@_ring("mul(mul(x, expand(y, shape=s)), expand(z, shape=s))", shapes="x[n, m] y[n, 1] z[n, 1]")
def associate_repeated(x: Node, y: Node, z: Node, s: Any) -> Node | None:
    """Factors that are repeated meet, and are multiplied before they are: this way only, so that it comes to an end."""
    return atomic.mul(x, atomic.mul(atomic.expand(y, s), atomic.expand(z, s)))


@TABLE.rule("max(max(x, y), z)", BITWISE, dtypes=NUMBERS, expanding=True)
def associate_max(x: Node, y: Node, z: Node) -> Node:
    return atomic.max(x, atomic.max(y, z))


@TABLE.rule("sub(add(x, y), y)", BITWISE, dtypes=INTEGERS)
def add_and_take_integer(x: Node) -> Node | None:
    return x if x.dtype.is_integer else None


@TABLE.rule("sub(add(x, y), y)", REASSOCIATING, dtypes=FLOATS)
def add_and_take(x: Node) -> Node:
    return x


@TABLE.rule("add(sub(x, y), y)", REASSOCIATING, dtypes=FLOATS)
def take_and_add(x: Node) -> Node:
    return x


@TABLE.rule("mul(x, reciprocal(y))", BITWISE, dtypes=FLOATS)
def divide(x: Node, y: Node) -> Node:
    return arithmetic.div(x, y)


@TABLE.rule("div(mul(x, y), z)", REASSOCIATING, dtypes=FLOATS, expanding=True)
def divide_factor(x: Node, y: Node, z: Node) -> Node:
    return atomic.mul(x, arithmetic.div(y, z))


@TABLE.rule("add(div(x, z), div(y, z))", REASSOCIATING, dtypes=FLOATS)
def factor_division(x: Node, y: Node, z: Node) -> Node:
    return arithmetic.div(atomic.add(x, y), z)


@TABLE.rule("mul(neg(x), y)", BITWISE, dtypes=NUMBERS, expanding=True)
def neg_out_of_mul(x: Node, y: Node) -> Node:
    made: Node = arithmetic.neg(atomic.mul(x, y))
    return made


def _without(x: Node, axes: tuple[int, ...]) -> list[Any]:
    return [s for i, s in enumerate(x.shape) if i not in axes]


@TABLE.rule("sum(mul(x, expand(c, shape=s)), axes=a)", REASSOCIATING, dtypes=FLOATS, shapes="x[n, m] c[n, 1]")
def factor_out_of_sum(x: Node, c: Node, a: tuple[int, ...]) -> Node | None:
    """A factor that is the same along the axes summed over."""
    if any(c.shape[i] != 1 for i in a):
        return None
    total = atomic.sum(x, a)
    return atomic.mul(total, atomic.expand(atomic.reshape(c, _without(c, a)), total.shape))


@TABLE.rule("sum(add(x, y), axes=a)", REASSOCIATING, dtypes=FLOATS, expanding=True)
def sum_of_add(x: Node, y: Node, a: tuple[int, ...]) -> Node:
    return atomic.add(atomic.sum(x, a), atomic.sum(y, a))


@TABLE.rule("mul(exp(x), exp(y))", REASSOCIATING, dtypes=FLOATS, assuming=("no overflow",))
def exp_product(x: Node, y: Node) -> Node:
    made: Node = exp(atomic.add(x, y))
    return made


@TABLE.rule("exp(sub(x, max(y, z)))", REASSOCIATING, dtypes=FLOATS, assuming=("no overflow",), expanding=True, option="split")
def exp_rescaled(x: Node, y: Node, z: Node) -> Node:
    """Shifted by y first, then rescaled from y to the larger one: what makes softmax online."""
    made: Node = exp(arithmetic.sub(x, y)) * exp(arithmetic.sub(y, atomic.max(y, z)))
    return made


@TABLE.rule("log(exp(x))", REASSOCIATING, dtypes=FLOATS, assuming=("no overflow",))
def log_exp(x: Node) -> Node:
    return x


@TABLE.rule("log(mul(exp(x), y))", REASSOCIATING, dtypes=FLOATS, assuming=("no overflow",))
def log_product(x: Node, y: Node) -> Node | None:
    made: Node = log(y)
    return atomic.add(x, made)


@TABLE.rule("mul(x, sigmoid(x))", REASSOCIATING, dtypes=FLOATS)
def silu_by_sigmoid(x: Node) -> Node:
    made: Node = silu(x)
    return made


@TABLE.rule("reciprocal(add(exp(neg(x)), 1))", REASSOCIATING, dtypes=FLOATS)
def sigmoid_written_out(x: Node) -> Node:
    made: Node = sigmoid(x)
    return made


@TABLE.rule("div(x, add(exp(neg(x)), 1))", REASSOCIATING, dtypes=FLOATS)
def silu_written_out(x: Node) -> Node:
    made: Node = silu(x)
    return made


@TABLE.rule("mul(add(tanh(mul(x, 0.5)), 1), 0.5)", REASSOCIATING, dtypes=FLOATS)
def sigmoid_by_tanh(x: Node) -> Node:
    made: Node = sigmoid(x)
    return made


@TABLE.rule("sub(mul(sigmoid(mul(x, 2)), 2), 1)", REASSOCIATING, dtypes=FLOATS)
def tanh_by_sigmoid(x: Node) -> Node:
    made: Node = tanh(x)
    return made


def _gelus() -> None:
    """x · Φ(x) as textbooks say it: erfc keeps the tail that 1 + erf cancels."""
    argument = "mul(add(x, {cube}), 0.7978845608028654)"
    words = {"erf": ("erf(mul(x, 0.7071067811865476))", "none"), "erf-over": ("erf(div(x, 1.4142135623730951))", "none"),
             "tanh": (f"tanh({argument.format(cube='mul(mul(mul(x, 0.044715), x), x)')})", "tanh"),
             "tanh-cube": (f"tanh({argument.format(cube='mul(integer_power(x, exponent=3), 0.044715)')})", "tanh")}
    places = {"": "mul(mul(x, 0.5), add({phi}, 1))", "-inside": "mul(x, mul(add({phi}, 1), 0.5))"}
    for (how, (phi, approximate)), (where, around) in itertools.product(words.items(), places.items()):
        def made(x: Node, approximate: str = approximate) -> Node:
            found: Node = gelu(x, approximate=approximate)
            return found

        TABLE.rule(around.format(phi=phi), REASSOCIATING, name=f"algebra/gelu-by-{how}{where}", dtypes=FLOATS)(made)


_gelus()

ASSOCIATING = tuple(r for r in TABLE if r.name.startswith("algebra/associate"))
"""The rules that put brackets elsewhere, and do no more."""

REFUSED = (
    Refused("algebra/factor-bitwise", BITWISE, "add(mul(x, z), mul(y, z))", lambda x, y, z: (x + y) * z, "each rounds otherwise"),
    Refused("algebra/associate-bitwise", BITWISE, "add(add(x, y), z)", lambda x, y, z: x + (y + z), "1e30 − 1e30 + 1"),
    Refused("algebra/idiv-sum", BITWISE, "add(idiv(x, z), idiv(y, z))", lambda x, y, z: atomic.idiv(x + y, z),
            "1 // 2 + 1 // 2 is 0", dtypes=INTEGERS),
    Refused("algebra/max-sum", BITWISE, "max(add(x, z), add(y, z))", lambda x, y, z: atomic.max(x, y) + z, "127 + 1 wraps",
            dtypes=INTEGERS),
    Refused("algebra/abs-sum", REASSOCIATING, "abs(add(x, y))", lambda x, y: arithmetic.abs(x) + arithmetic.abs(y), "|1 − 1| is 0"),
)
