"""rounded: values with fewer bits than their dtype has, and the matrix products of such values.

Over the real numbers `rounded` is the identity. It allows a kernel to round here, as a cast to a narrower float does, to formats
that are no dtype: TF32 (NVIDIA A100 Tensor Core GPU Architecture, 2020), and the sum of two bf16 numbers (Henry, Tang and Heinecke,
Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations, 2019), and to integers times a scale
of each 32 numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.atomic import fill, show
from tensor_graphs.language.composite import (
    LIBRARY,
    Definition,
    defined,
    definition_digest,
    expand_all,
    library,
    of_one_output,
)
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.products import dot, linear
from tensor_graphs.language.dtypes import f32, u32
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts

__all__ = ["rounded", "rounded_dot", "rounded_linear"]

SIGNIFICANDS = {"tf32": 11, "bf16x2": 17}
"""format -> its significant bits, with the first one, which is not stored. Its exponents are those of f32"""

LEVELS = {"int8": 127, "int8x2": 127 * 256 + 127}
"""format -> the integer that the largest magnitude of PART numbers becomes; int8x2 is an int8 plus 256 times another"""

PART = 32
"""numbers along the last axis that have one scale"""

Roles = Mapping[str, np.ndarray]


def unit_of(attrs: Mapping[str, Any]) -> float:
    """Return the largest change by which an op with these attributes may round its operands, relative to a number, or to the
    largest magnitude of its part."""
    return 0.5 / LEVELS[attrs["to"]] if attrs["to"] in LEVELS else 2.0 ** -SIGNIFICANDS[attrs["to"]]


def magnitudes(x: np.ndarray, to: str) -> np.ndarray:
    """Return the magnitude to which the change of each number by a format is relative."""
    if to not in LEVELS or not x.size:
        return np.asarray(np.abs(x))
    parts = np.abs(x).reshape(*x.shape[:-1], -1, PART)
    return np.broadcast_to(parts.max(-1, keepdims=True), parts.shape).reshape(x.shape)


def _check(op: str, to: str, *operands: Node, formats: Collection[str] = SIGNIFICANDS) -> None:
    if to not in formats:
        raise AttributeValueError(f"{op} to {to!r}", fix=f"one of {', '.join(formats)}")
    for x in operands:
        if x.dtype is not f32:
            raise DTypeError(f"{op} of {show(x)}", fix="operands of f32; a cast rounds to a dtype")


@library(direct=lambda roles, attrs, out_types: roles["x"], gradient=of_one_output(lambda node, g: {"x": g}),
         facts=OpFacts(rounds=True, licence=True, sought=False))
def rounded(x: Node, *, to: str) -> Node:
    """x, f32, rounded to the nearest number with the significant bits of a format: "tf32" (11) or "bf16x2" (17); or, by "int8" and
    "int8x2", to the nearest multiple of max |x| / 127, or max |x| / 32639, of each 32 numbers along the last axis.

    Ties go to the even number; infinities and NaN stay. In real mode it is x itself. A kernel may be off by the smallest normal
    number more, as parts of a number that are below that become 0. Raises AttributeValueError, DTypeError, ShapeError.
    """
    _check("rounded", to, x, formats=(*SIGNIFICANDS, *LEVELS))
    if to in LEVELS:
        return _multiples(x, LEVELS[to])
    step = 1 << 24 - SIGNIFICANDS[to]

    def number(value: int) -> Node:
        return fill(value, x.shape, u32)

    bits = atomic.bitcast(x, u32)
    is_odd = atomic.bit_and(atomic.idiv(bits, number(step)), number(1))
    near = atomic.bit_and(bits + (number(step // 2 - 1) + is_odd), number(0xFFFFFFFF - (step - 1)))
    is_finite = atomic.less(atomic.bit_and(bits, number(0x7FFFFFFF)), number(0x7F800000))
    return atomic.bitcast(atomic.where(is_finite, near, bits), f32)


def _multiples(x: Node, levels: int) -> Node:
    if not x.rank or not isinstance(x.shape[-1], int) or x.shape[-1] % PART:
        raise ShapeError(f"rounded of {show(x)}", fix=f"a last axis of whole parts of {PART} numbers")
    parts = x.reshape((*x.shape[:-1], x.shape[-1] // PART, PART))
    scale = arithmetic.reduce_max(arithmetic.abs(parts), -1, keepdims=True) / float(levels)
    multiples = arithmetic.round(parts / arithmetic.where(scale > 0.0, scale, 1.0)) * scale
    return arithmetic.where(scale < f32.max, multiples, parts).reshape(x.shape)    # what is not finite has no scale


def without_licences(roots: Sequence[Node]) -> list[Node]:
    """Return the nodes with every `rounded` replaced by its operand, in the definitions of composites too."""
    def over_the_reals(node: Node) -> Definition:
        x = leaves.argument(0, node.inputs[0].type)
        return Definition((x,), (x,), definition_digest((x,))) if node.op is rounded else defined(node)

    return expand_all(roots, lambda node: LIBRARY.get(node.op.name) is node.op and not node.op.facts.licence, over_the_reals)


def _product_direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    of_plain = linear if "weight" in roles else dot
    assert of_plain.direct is not None
    return np.asarray(of_plain.direct(roles, attrs, out_types))


@library(direct=_product_direct, facts=OpFacts(product=True, licence=True, sought=False, piecewise=("weight",)))
def rounded_linear(x: Node, weight: Node, bias: Node | None = None, *, to: str) -> Node:
    """x[…, k] · weight[out, k]ᵀ + bias[out] = […, out] of f32, with x and weight `rounded` to a format first; sums are in f32.

    The bias may have any float dtype. Raises ShapeError, DTypeError, AttributeValueError.
    """
    _check("rounded_linear", to, x, weight)
    return linear(rounded(x, to=to), rounded(weight, to=to), bias)


@library(direct=_product_direct, facts=OpFacts(product=True, licence=True, sought=False))
def rounded_dot(a: Node, b: Node, *, to: str) -> Node:
    """a[…, m, k] · b[…, k, n] = […, m, n] of f32, with a and b `rounded` to a format first; see dot.

    Raises ShapeError, DTypeError, AttributeValueError.
    """
    _check("rounded_dot", to, a, b)
    return dot(rounded(a, to=to), rounded(b, to=to))
