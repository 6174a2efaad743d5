"""direct_conv: a convolution kernel that reads its input directly and packs no elements of windows (direct_conv.c).

Its vector lanes are output channels, so the weight is prepared: copied in the order in which it is read (at bind time where it is a
parameter). That takes the bytes of the weight again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tensor_graphs.kernels.c import library, scratch
from tensor_graphs.kernels.kernel import NativeCall, Preparation, Spec
from tensor_graphs.language.dims import Dim, ceil_div, product
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.node import TensorType


def refuse(spec: Spec) -> str | None:
    """Return None, or the reason why this kernel does not take a convolution that the plain kernel takes."""
    weight, attrs = spec.inputs[1], spec.attrs
    if weight.rank > 4:
        return "up to two axes only"
    if attrs["groups"] != 1:
        return "one group only"
    if any(k < s for k, s in zip(weight.shape[2:], attrs["stride"], strict=True)):
        return "windows that leave nothing out only"                # all of the input is copied
    return None if product(weight.shape) else "weights of some elements only"


def build(spec: Spec, plain: NativeCall) -> NativeCall:
    """Return the call: the operands and ints of the plain kernel's call `plain`, then the prepared weight."""
    weight, attrs = spec.inputs[1], spec.attrs
    channels, *size = map(int, cast(Sequence[int], weight.shape[1:]))
    axes = [(1, 1, 1, 1), *zip(size, attrs["stride"], attrs["dilation"], spec.outputs[0].shape[2:], strict=True)]
    (k1, s1, d1, high), (k2, s2, d2, wide) = axes[-2:]
    needs = scratch.direct(channels, (k1, k2), (s1, s2), (d1, d2), high, wide)
    return NativeCall("tg_direct_f32", (*plain.pointers, len(spec.inputs)), plain.ints, scratch=needs)


def prepare(spec: Spec) -> tuple[Preparation, ...]:
    """Return the preparation of the weight: vectors over output channels, one for each element of a window."""
    outputs, lanes = spec.inputs[1].shape[0], library.load().tile(4).lanes // 2
    inside = product(spec.inputs[1].shape[1:])
    call = NativeCall("tg_direct_weights", (0,), (outputs, inside))
    return (Preparation(call, (1,), (TensorType((ceil_div(outputs, lanes) * lanes * inside,), f32),)),)


def arithmetic(spec: Spec) -> Dim:
    """Return the number of multiplications and additions of a call."""
    return 2 * product(spec.outputs[0].shape) * product(spec.inputs[1].shape[1:])
