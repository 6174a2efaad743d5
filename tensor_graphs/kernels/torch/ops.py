"""ops: the ops for which torch has fast kernels: f(outs, ins, attrs) on numpy views, which become tensors without a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.numpy.composites import only_floats, operand

Function = Callable[[Sequence[np.ndarray], Sequence[np.ndarray], Mapping[str, Any]], None]
Accepts = Callable[[Spec], str | None]
TABLE: dict[str, tuple[Function, Accepts]] = {}


@cache
def _library() -> Any:
    import torch

    return torch


class _Torch:
    """A stand-in for the module torch that imports it at the first use of a member (1.7 s)."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):                                   # introspection of this object needs no import
            raise AttributeError(name)
        return getattr(_library(), name)


torch: Any = _Torch()


def anything(spec: Spec) -> str | None:
    return None


def wide_floats(spec: Spec) -> str | None:
    """Return None where x and outputs are f32 or f64, else a refusal: torch's fused operators would round 16-bit floats inside."""
    return None if all(t.dtype.name in ("f32", "f64") for t in (spec.inputs[0], *spec.outputs)) else "f32 and f64 only"


def row(op: str, accepts: Accepts = anything) -> Callable[[Function], Function]:
    def add(f: Function) -> Function:
        TABLE[op] = (f, accepts)
        return f

    return add


class _Memory:
    """An array's memory marked as writeable. torch warns about read-only arrays, and these functions write to no operand."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False), "strides": array.strides}


def tensor(array: np.ndarray) -> Any:
    """Return a torch tensor that shares the array's memory; a tensor (on another device) is returned unchanged."""
    if isinstance(array, torch.Tensor):
        return array
    foreign = array.dtype.isbuiltin != 1                    # a dtype of ml_dtypes, which from_numpy does not know
    shared = array.view(f"i{array.dtype.itemsize}") if foreign else array
    if not shared.flags.writeable:
        shared = np.asarray(_Memory(shared))
    result = torch.from_numpy(shared)
    return result.view(getattr(torch, array.dtype.name)) if foreign else result


def _elementwise(op: str, name: str, accepts: Accepts = only_floats) -> None:
    def run(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
        tensor(outs[0]).copy_(getattr(torch, name)(*(tensor(i) for i in ins)))

    run.__name__ = name
    TABLE[op] = (run, accepts)


for _op, _name in {"add": "add", "mul": "mul", "sub": "sub", "div": "div", "exp": "exp", "log": "log", "tanh": "tanh",
                   "sigmoid": "sigmoid", "exp2": "exp2", "log2": "log2", "sin": "sin", "sqrt": "sqrt", "cos": "cos",
                   "reciprocal": "reciprocal", "floor": "floor"}.items():
    _elementwise(_op, _name)


@row("erf", only_floats)
def erf(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    """Compute erf, for bf16 in f32: torch's erf of bf16 gives 0 for numbers below the smallest normal one."""
    x = tensor(ins[0])
    tensor(outs[0]).copy_(torch.erf(x.float() if x.dtype == torch.bfloat16 else x))


@row("silu", wide_floats)
def silu(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    tensor(outs[0]).copy_(torch.nn.functional.silu(tensor(ins[0])))


@row("gelu", wide_floats)
def gelu(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    tensor(outs[0]).copy_(gelu_of(tensor(ins[0]), attrs["approximate"] == "tanh"))


def gelu_of(x: Any, tanh: bool) -> Any:
    """Return gelu: x·Φ(x), or its tanh form. Φ is computed by erfc, as torch's vectorised gelu gives NaN at +∞ (the definition:
    +∞). ½(1 + tanh u) is computed as σ(2u), as the sum loses all digits where x < −5; torch's gelu gives 0 there."""
    if tanh:
        return x * torch.sigmoid((x + 0.044715 * x * x * x) * (2 * math.sqrt(2 / math.pi)))
    return x * 0.5 * torch.erfc(x * -math.sqrt(0.5))


@row("gated", wide_floats)
def gated(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    gate, up = tensor(ins[0]), tensor(ins[1])
    name = attrs["activation"]
    act = torch.nn.functional.silu(gate) if name == "silu" else gelu_of(gate, name == "gelu_tanh")
    torch.mul(act, up, out=tensor(outs[0]))


@row("softmax", wide_floats)
def softmax(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    tensor(outs[0]).copy_(torch.softmax(tensor(ins[0]), dim=attrs["axis"]))


@row("rms_norm", wide_floats)
def rms_norm(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    x = tensor(ins[0])
    weight = operand(ins, attrs, ("x", "weight"), "weight")
    squares = x.pow(2).mean(-1, keepdim=True)
    if not _all_between(squares, LEAST_SQUARE, math.inf):
        x = x.double()
        squares = x.pow(2).mean(-1, keepdim=True)
    y = x * torch.rsqrt(squares + attrs["eps"])
    tensor(outs[0]).copy_(y if weight is None else y * (attrs["offset"] + tensor(weight).to(x.dtype)))


LEAST_SQUARE = 2.0 ** -90
"""mean of squares below which some squares are subnormal in f32 and lose digits"""

MOST_APART = 64.0
"""largest ratio of a row's mean to its standard deviation; beyond it torch's f32 variance loses more than six bits"""


def _all_between(x: Any, low: float, high: float) -> bool:
    """Return whether all numbers of x are within a range; always True on a GPU, where the check would wait for the device."""
    return x.is_cuda or bool(((x > low) & (x < high)).all())


def normalised(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Return layer_norm over the last axis by torch; in f64 where squares leave the range of f32, or a mean is far from 0."""
    y, mean, inverse = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
    if _all_between(inverse, 0, LEAST_SQUARE ** -0.5) and _all_between((mean * inverse).abs(), -1, MOST_APART):
        return y
    return torch.nn.functional.layer_norm(x.double(), x.shape[-1:], *(v if v is None else v.double() for v in (weight, bias)), eps)


@row("layer_norm", wide_floats)
def layer_norm(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    names = ("x", "weight", "bias")
    x = tensor(ins[0])
    weight, bias = (None if (v := operand(ins, attrs, names, n)) is None else tensor(v).to(x.dtype) for n in ("weight", "bias"))
    tensor(outs[0]).copy_(normalised(x, weight, bias, attrs["eps"]))


LONG_SUM = 1 << 14
"""most terms of a dot product that torch sums in f32; with 2^20 equal terms the result was off by 1e-2, with 2^14 by 2e-4"""


def product(x: Any, y: Any) -> Any:
    """Return x @ y. Where x is f32 with rows longer than LONG_SUM, products of pieces of that length are summed in f64."""
    inner = x.shape[-1]
    if inner <= LONG_SUM or x.dtype != torch.float32:
        return torch.matmul(x, y)
    rows = y.dim() - 2 if y.dim() > 1 else 0
    total: Any = 0.0
    for begin in range(0, inner, LONG_SUM):
        many = min(LONG_SUM, inner - begin)
        total = total + torch.matmul(x.narrow(-1, begin, many), y.narrow(rows, begin, many)).double()
    return total


@row("dot", wide_floats)
def dot(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    tensor(outs[0]).copy_(product(tensor(ins[0]), tensor(ins[1])))


@row("linear", wide_floats)
def linear(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    x, weight = tensor(ins[0]), tensor(ins[1])
    bias = operand(ins, attrs, ("x", "weight", "bias"), "bias")
    bias = None if bias is None else tensor(bias).to(x.dtype)
    if x.shape[-1] > LONG_SUM:
        y = product(x, weight.to(x.dtype).T)
        tensor(outs[0]).copy_(y if bias is None else y + bias)
        return
    tensor(outs[0]).copy_(torch.nn.functional.linear(x, weight.to(x.dtype), bias))


def visible_keys(n: int, s: int, mask: np.ndarray | None, attrs: Mapping[str, Any], device: Any) -> Any:
    """Return bool[n, s]: True where a query sees a key."""
    position = attrs["start"] + torch.arange(n, device=device)[:, None]
    key = torch.arange(s, device=device)[None, :]
    visible = torch.ones(n, s, dtype=torch.bool, device=device) if mask is None else tensor(mask).clone()
    if attrs["causal"]:
        visible &= key <= position
    if attrs["window"] > 0:
        visible &= position - key < attrs["window"]
    return visible


@row("attention", wide_floats)
def attention(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    q, k, v = (tensor(i).to(tensor(ins[0]).dtype).transpose(0, 1) for i in ins[:3])
    mask = operand(ins, attrs, ("q", "k", "v", "mask"), "mask")
    n, s = q.shape[1], k.shape[1]
    visible = visible_keys(n, s, mask, attrs, q.device)
    group = q.shape[0] // k.shape[0]
    scores = torch.matmul(q, k.repeat_interleave(group, 0).transpose(1, 2)) * attrs["scale"]
    if attrs["softcap"] > 0:
        scores = attrs["softcap"] * torch.tanh(scores / attrs["softcap"])
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    weights = torch.where(visible.any(-1, keepdim=True), weights, torch.zeros((), dtype=weights.dtype))
    tensor(outs[0]).copy_(torch.matmul(weights, v.repeat_interleave(group, 0)).transpose(0, 1))


def evenly_padded(attrs: Mapping[str, Any], axes: int | None = None) -> str | None:
    """Return None where padding is equal at both ends of each axis, else a refusal: torch pads both ends alike. axes: most axes."""
    if axes is not None and len(attrs["padding"]) > axes:
        return f"up to {axes} axes only"
    return None if all(low == high for low, high in attrs["padding"]) else "as much padding behind as before only"


def _sliding(spec: Spec) -> str | None:
    return wide_floats(spec) or evenly_padded(spec.attrs, 3)


@row("conv", _sliding)
def conv(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    x, weight = tensor(ins[0]), tensor(ins[1])
    bias = operand(ins, attrs, ("x", "weight", "bias"), "bias")
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[x.dim() - 3]
    tensor(outs[0]).copy_(function(x, weight.to(x.dtype), None if bias is None else tensor(bias).to(x.dtype), attrs["stride"],
                                   [low for low, _ in attrs["padding"]], attrs["dilation"], attrs["groups"]))


def _pooling(spec: Spec) -> str | None:
    """Return None where torch can pool: padding of at most half a window, and one or two axes before those of the window."""
    half = any(2 * low > k for (low, _), k in zip(spec.attrs["padding"], spec.attrs["size"], strict=True))
    lead = len(spec.inputs[0].shape) - len(spec.attrs["size"])
    if half or lead not in (1, 2):
        return "padding by up to half a window only" if half else "x[n, c, …] or x[c, …] only"
    return _sliding(spec)


@row("max_pool", _pooling)
def max_pool(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    if not outs[0].size:                                            # which torch refuses
        return
    size = attrs["size"]
    function = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)[len(size) - 1]
    tensor(outs[0]).copy_(function(tensor(ins[0]), size, attrs["stride"], [low for low, _ in attrs["padding"]], attrs["dilation"]))


@row("avg_pool", _pooling)
def avg_pool(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    if not outs[0].size:                                            # which torch refuses
        return
    f, size = torch.nn.functional, attrs["size"]
    function = (f.avg_pool1d, f.avg_pool2d, f.avg_pool3d)[len(size) - 1]
    tensor(outs[0]).copy_(function(tensor(ins[0]), size, attrs["stride"], [low for low, _ in attrs["padding"]],
                                   count_include_pad=attrs["count_padding"]))


@row("group_norm", wide_floats)
def group_norm(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    """Compute group_norm by layer_norm: torch's group_norm takes a difference of squares, and is off by a tenth for small rows."""
    names, x, out = ("x", "weight", "bias"), tensor(ins[0]), tensor(outs[0])
    if not x.numel():
        return
    rows = x.reshape(len(x), attrs["groups"], -1)
    out.copy_(normalised(rows, None, None, attrs["eps"]).reshape(x.shape))
    by_channel = (-1, *(1,) * (x.dim() - 2))
    if (weight := operand(ins, attrs, names, "weight")) is not None:
        out.mul_(tensor(weight).to(x.dtype).reshape(by_channel))
    if (bias := operand(ins, attrs, names, "bias")) is not None:
        out.add_(tensor(bias).to(x.dtype).reshape(by_channel))


def _interpolated(spec: Spec) -> str | None:
    """Return None for mode "nearest" and shapes that torch takes. Its mode "linear" gives NaN for an infinity of weight 0."""
    if spec.attrs["mode"] != "nearest":
        return "the nearest element only"
    lead = len(spec.inputs[0].shape) - len(spec.attrs["scale"])
    return wide_floats(spec) or (None if len(spec.attrs["scale"]) <= 3 and lead <= 2 else "x[n, c, …] of one to three axes only")


@row("upsample", _interpolated)
def upsample(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    if not outs[0].size:                                            # which torch refuses
        return
    x, scale = tensor(ins[0]), attrs["scale"]
    more = 2 - (x.dim() - len(scale))
    out = torch.nn.functional.interpolate(x[(None,) * more], scale_factor=[float(s) for s in scale], mode="nearest")
    tensor(outs[0]).copy_(out[(0,) * more])
