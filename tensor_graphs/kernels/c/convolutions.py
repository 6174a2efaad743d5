"""convolutions: the calls of the C kernels of `conv`: as a product (product.c), of each channel alone (depthwise.c), and directly.

The direct one (direct_conv.c) reads its input as it lies and packs no elements of windows. Its vector lanes are output channels, so
the weight is prepared: copied in the order in which it is read (at bind time where it is a parameter). That takes the bytes of the
weight again. Two bf16 operands are multiplied by pairs where the processor can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tensor_graphs.kernels.c import library, scratch
from tensor_graphs.kernels.kernel import NativeCall, Preparation, Spec
from tensor_graphs.language.dims import Dim, ceil_div, product
from tensor_graphs.language.dtypes import DType, bf16, f16, f32, f64
from tensor_graphs.language.node import TensorType

DTYPES: dict[DType, int] = {f32: 0, bf16: 1, f64: 2, f16: 3}                # enum TG_F32 … in tg.h
NARROW = (f32, bf16, f16)
"""dtypes of operands of which f32 sums are made"""


def refuse(spec: Spec) -> str | None:
    """Return None, or why no kernel whose sums are f32 takes a convolution."""
    return _refuse(spec, NARROW, NARROW)


def refuse_f64(spec: Spec) -> str | None:
    return _refuse(spec, (f64,), tuple(DTYPES))


def _refuse(spec: Spec, activations: Sequence[DType], weights: Sequence[DType]) -> str | None:
    x, weight = spec.inputs[:2]
    if x.rank > 5:
        return "up to three axes only"
    if any(not isinstance(s, int) for s in weight.shape):
        return "weights of fixed sizes only"
    if x.dtype not in activations or spec.outputs[0].dtype != x.dtype:
        return f"{' or '.join(t.name for t in activations)} activations only"
    wrong = next((t.dtype for t in spec.inputs[1:] if t.dtype not in weights), None)
    return f"{wrong.name} is not among {', '.join(t.name for t in weights)}" if wrong else None


def refuse_depthwise(spec: Spec) -> str | None:
    if spec.inputs[1].shape[1] != 1 or spec.inputs[0].rank > 4:
        return "one channel in each group, and up to two axes, only"
    return refuse(spec)


def refuse_direct(spec: Spec) -> str | None:
    weight, attrs = spec.inputs[1], spec.attrs
    if weight.rank > 4:
        return "up to two axes only"
    if attrs["groups"] != 1:
        return "one group only"
    if any(k < s for k, s in zip(weight.shape[2:], attrs["stride"], strict=True)):
        return "windows that leave nothing out only"                # all of the input is copied
    return refuse(spec) if product(weight.shape) else "weights of some elements only"


def by_pairs(spec: Spec) -> bool:
    """Return whether two bf16 operands are multiplied by pairs."""
    return all(t.dtype == bf16 for t in spec.inputs[:2]) and library.load().pairs()


def build(spec: Spec) -> NativeCall:
    """Return the call of the product of the weight and what the windows see."""
    x, weight = spec.inputs[:2]
    of_sums = f64 if x.dtype == f64 else f32
    needs = scratch.matmul(product(weight.shape[1:]), of_sums.itemsize, weight.shape[0], by_pairs(spec))
    return _call(spec, f"tg_conv_{of_sums.name}", needs)


def build_depthwise(spec: Spec) -> NativeCall:
    return _call(spec, "tg_depthwise", scratch.depthwise(*_two_axes(spec)))


def build_direct(spec: Spec) -> NativeCall:
    """Return the call on the operands, then the prepared weight."""
    needs = scratch.direct(_channels(spec), spec.inputs[0].dtype != f32, *_two_axes(spec))
    return _call(spec, "tg_direct_conv", needs, len(spec.inputs))


def _call(spec: Spec, symbol: str, needs: Dim, *prepared: int) -> NativeCall:
    x, weight = spec.inputs[:2]
    attrs, more, groups, bias = spec.attrs, 5 - x.rank, spec.attrs["groups"], spec.role_index().get("bias")
    ints: list[Dim] = [x.shape[0], groups, weight.shape[1], weight.shape[0] // groups, *(1, 1, 1, 1, 0, 1) * more]
    how = zip(attrs["stride"], attrs["padding"], attrs["dilation"], strict=True)
    for axis, (stride, (before, _), dilation) in enumerate(how, 2):
        ints += [x.shape[axis], spec.outputs[0].shape[axis], weight.shape[axis], stride, before, dilation]
    at = bias if isinstance(bias, int) else None
    dtypes = (DTYPES[x.dtype], DTYPES[weight.dtype], 0 if at is None else DTYPES[spec.inputs[at].dtype])
    return NativeCall(symbol, (0, 1, at, *prepared), (*ints, *dtypes), scratch=needs)


def _two_axes(spec: Spec) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], Dim, Dim]:
    """Return sizes, strides and dilations of windows over the last two axes, and the places along each (of one axis 1 before)."""
    weight, attrs = spec.inputs[1], spec.attrs
    size = cast(Sequence[int], weight.shape[2:])
    axes = [(1, 1, 1, 1), *zip(size, attrs["stride"], attrs["dilation"], spec.outputs[0].shape[2:], strict=True)]
    (k1, s1, d1, high), (k2, s2, d2, wide) = axes[-2:]
    return (k1, k2), (s1, s2), (d1, d2), high, wide


def _channels(spec: Spec) -> int:
    """Return the number of channels, or of pairs of them, that a direct convolution has."""
    channels = cast(int, spec.inputs[1].shape[1])
    return -(-channels // 2) if by_pairs(spec) else channels


def prepare(spec: Spec) -> tuple[Preparation, ...]:
    """Return the preparation of the weight of a direct convolution: vectors over output channels, one for each element of a
    window."""
    x, weight = spec.inputs[:2]
    outputs, lanes = weight.shape[0], library.load().tile(4).lanes // 2
    taps = product(weight.shape[2:])
    call = NativeCall("tg_direct_weights", (0,), (outputs, weight.shape[1], taps, DTYPES[x.dtype], DTYPES[weight.dtype]))
    extents = 2 * ceil_div(outputs, 2 * lanes) if by_pairs(spec) else 0
    return (Preparation(call, (1,), (TensorType((ceil_div(outputs, lanes) * lanes * _channels(spec) * taps + extents,), f32),)),)


def arithmetic(spec: Spec) -> Dim:
    """Return the number of multiplications and additions of a call; by pairs an instruction does twice as many."""
    return (1 if by_pairs(spec) else 2) * product(spec.outputs[0].shape) * product(spec.inputs[1].shape[1:])
