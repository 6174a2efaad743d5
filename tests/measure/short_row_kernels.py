"""short_row_kernels: kernels that are right on rows of more than four elements, and wrong on shorter ones.

What cancels in a short row is large beside what is left of it, so a comparison that makes allowance for that must still see these.
The worker imports this module by name, as it would a user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.language.node import Node
from tests.measure.wrong_kernels import Arrays, Body, Candidate

SHORT_ROWS: list[Candidate] = []

FEW = 4

N = tg.dim("n", 1, 96)


def x(*shape: int) -> Node:
    return tg.input("x", (N, *shape), tg.f32)


ROWS: dict[str, Node] = {
    "dot of a column": tg.dot(x(2, 24), tg.input("y", (N, 24, 1), tg.f32)),
    "dot of 3 columns": tg.dot(x(24), tg.input("y", (24, 3), tg.f32)),
    "linear of 1": tg.linear(x(24), tg.input("w", (1, 24), tg.f32), tg.input("b", (1,), tg.f32)),
    "sum of 2 columns": tg.sum(x(24, 2), axis=1),
    "mean of a column": tg.mean(x(24, 1), axis=1),
    "mean of 3": tg.mean(x(3), axis=1, keepdims=True),
    "var of a column": tg.var(x(24, 1), axis=1),
    "var of 2": tg.var(x(2), axis=1, keepdims=True),
    "softmax of 1": tg.softmax(x(1)),
    "softmax of 4": tg.softmax(x(4)),
    "logsumexp of 2": tg.logsumexp(x(2)),
    "rms_norm of 2": tg.rms_norm(x(2)),
    "layer_norm of 4": tg.layer_norm(x(4)),
}


def short(node: str) -> Callable[[Body], Body]:
    """A kernel that computes what its body does where the last axis of its first operand or output has FEW elements or fewer."""
    def wrap(body: Body) -> Body:
        kernel = Kernel(f"short.{body.__name__}", "numpy", ROWS[node].op.name, lambda spec: HostCall(body), lambda spec: None,
                        source_of(body), __name__)
        SHORT_ROWS.append(Candidate(body.__name__, node, "INCORRECT_NUMERICAL", kernel))
        return body

    return wrap


def is_short(outs: Arrays) -> bool:
    return outs[0].ndim == 0 or outs[0].shape[-1] <= FEW


def product(ins: Arrays) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.matmul(ins[0].astype(np.float64), ins[1].astype(np.float64))


def rows_of(ins: Arrays, attrs: Mapping[str, Any]) -> tuple[np.ndarray, int]:
    """A float64 copy, and the axis that is reduced."""
    axes = attrs["axes"]
    return ins[0].astype(np.float64), axes if isinstance(axes, int) else axes[0]


def put(outs: Arrays, value: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        outs[0][...] = np.reshape(value, outs[0].shape)


def without_low_bits(a: np.ndarray, kept: int) -> np.ndarray:
    """The same floats with so many bits of their fraction."""
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFFFFF << (23 - kept) & 0xFFFFFFFF)).view(np.float32)


# ---- products --------------------------------------------------------------------------------------------------------


@short("dot of a column")
def forgets_the_last_term_of_a_column(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    kept = slice(0, -1) if is_short(outs) else slice(None)
    put(outs, product((ins[0][..., kept], ins[1][..., kept, :])))


@short("dot of a column")
def loses_the_sign_of_a_column(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, np.abs(product(ins)) if is_short(outs) else product(ins))


@short("dot of a column")
def multiplies_a_column_in_bfloat16(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, product([a.astype(ml_dtypes.bfloat16) for a in ins]) if is_short(outs) else product(ins))


@short("dot of a column")
def multiplies_a_column_with_fractions_of_ten_bits(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, product([without_low_bits(a, 10) for a in ins]) if is_short(outs) else product(ins))


@short("dot of a column")
def adds_up_a_column_in_half(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with np.errstate(all="ignore"):
        total = np.zeros(outs[0].shape, np.float16)
        for i in range(ins[0].shape[-1]):
            total = total + (ins[0][..., i:i + 1] * ins[1][..., i:i + 1, :]).astype(np.float16)
    put(outs, total if is_short(outs) else product(ins))


@short("dot of a column")
def is_off_by_a_thousandth_of_a_column(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, product(ins) * (1.001 if is_short(outs) else 1.0))


@short("dot of a column")
def adds_a_little_of_what_it_has_multiplied(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """A ten thousandth of the size of the terms: hidden where they do not cancel."""
    with np.errstate(all="ignore"):
        size = np.sqrt(product([a.astype(np.float64) ** 2 for a in ins]))
        put(outs, product(ins) + (1e-4 * size if is_short(outs) else 0.0))


@short("dot of 3 columns")
def drops_the_last_of_three_columns(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, product(ins))
    if outs[0].shape[-1] == 3:
        outs[0][..., 2] = 0


@short("dot of 3 columns")
def takes_three_columns_the_other_way_round(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, product(ins)[..., ::-1] if outs[0].shape[-1] == 3 else product(ins))


@short("linear of 1")
def forgets_the_bias_of_a_single_output(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, product((ins[0], ins[1].T)) + (0 if is_short(outs) else ins[2]))


# ---- sums, means, variances ------------------------------------------------------------------------------------------


@short("sum of 2 columns")
def sums_two_columns_in_half(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axis = rows_of(ins, attrs)
    with np.errstate(all="ignore"):
        put(outs, x.astype(np.float16).sum(axis=axis, dtype=np.float32) if is_short(outs) else x.sum(axis=axis))


@short("sum of 2 columns")
def sums_from_the_second_row_on(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axis = rows_of(ins, attrs)
    put(outs, (np.delete(x, 0, axis) if is_short(outs) else x).sum(axis=axis))


@short("mean of a column")
def divides_by_one_less_than_there_are(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axis = rows_of(ins, attrs)
    put(outs, x.sum(axis=axis) / (x.shape[axis] - is_short(outs)))


@short("mean of 3")
def divides_by_the_width_of_its_registers(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axis = rows_of(ins, attrs)
    put(outs, x.sum(axis=axis) / max(FEW, x.shape[axis]))


@short("mean of 3")
def takes_the_first_for_the_mean(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axis = rows_of(ins, attrs)
    put(outs, x.take(0, axis=axis) if x.shape[axis] <= FEW else x.mean(axis=axis))


@short("var of 2")
def corrects_the_variance_of_few(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axis = rows_of(ins, attrs)
    with np.errstate(all="ignore"):
        put(outs, np.var(x, axis=axis, ddof=int(1 < x.shape[axis] <= FEW)))


@short("var of a column")
def forgets_the_mean_of_a_column(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axis = rows_of(ins, attrs)
    with np.errstate(all="ignore"):
        put(outs, np.mean(x * x, axis=axis) if is_short(outs) else np.var(x, axis=axis))


@short("var of a column")
def squares_a_column_in_bfloat16(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axis = rows_of(ins, attrs)
    with np.errstate(all="ignore"):
        centred = x - x.mean(axis=axis, keepdims=True)
        put(outs, np.mean(np.square(centred.astype(ml_dtypes.bfloat16).astype(float) if is_short(outs) else centred), axis=axis))


# ---- rows that are normalised ----------------------------------------------------------------------------------------


def exponentials(x: np.ndarray, top: np.ndarray | float) -> np.ndarray:
    with np.errstate(all="ignore"):
        e = np.exp(x.astype(np.float32) - np.asarray(top, np.float32))
        return np.asarray(e / e.sum(axis=-1, keepdims=True))


@short("softmax of 1")
def gives_a_single_element_a_little_less_than_one(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, exponentials(ins[0], ins[0].max(axis=-1, keepdims=True)) * np.float32(0.999 if ins[0].shape[-1] == 1 else 1))


@short("softmax of 4")
def subtracts_no_maximum_from_few(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, exponentials(ins[0], 0.0 if is_short(outs) else ins[0].max(axis=-1, keepdims=True)))


@short("softmax of 4")
def leaves_the_last_of_four_out_of_the_sum(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with np.errstate(all="ignore"):
        e = np.exp(ins[0] - ins[0].max(axis=-1, keepdims=True))
        put(outs, e / e[..., :3 if is_short(outs) else None].sum(axis=-1, keepdims=True))


@short("logsumexp of 2")
def takes_the_maximum_for_the_logarithm(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    put(outs, ins[0].max(axis=attrs["axis"]) if ins[0].shape[-1] <= FEW else np.logaddexp.reduce(ins[0], axis=attrs["axis"]))


@short("rms_norm of 2")
def skips_the_eps_of_few(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0].astype(np.float64)
    with np.errstate(all="ignore"):
        put(outs, x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + (0 if is_short(outs) else attrs["eps"])))


@short("layer_norm of 4")
def corrects_the_spread_of_few(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0].astype(np.float64)
    with np.errstate(all="ignore"):
        spread = np.var(x, axis=-1, keepdims=True, ddof=int(is_short(outs)))
        put(outs, (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(spread + attrs["eps"]))


if os.environ.get("TENSOR_GRAPHS_WORKER"):                          # known only where they are judged
    from tensor_graphs.kernels.registry import register

    for each in SHORT_ROWS:
        register(each.kernel)
