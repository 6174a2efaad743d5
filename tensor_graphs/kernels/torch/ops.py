"""ops: the ops that torch has fast kernels for. f(outs, ins, attrs) on numpy views, turned into tensors without a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.numpy.composites import operand

Function = Callable[[Sequence[np.ndarray], Sequence[np.ndarray], Mapping[str, Any]], None]
Accepts = Callable[[Spec], str | None]
TABLE: dict[str, tuple[Function, Accepts]] = {}


def anything(spec: Spec) -> str | None:
    return None


def floats(spec: Spec) -> str | None:
    return None if all(t.dtype.kind == "float" for t in spec.inputs) else "floats only"


def wide_floats(spec: Spec) -> str | None:
    """Half-width tensors would be rounded inside torch's fused operators."""
    return None if all(t.dtype.name in ("f32", "f64") for t in (spec.inputs[0], *spec.outputs)) else "f32 and f64 only"


def row(op: str, accepts: Accepts = anything) -> Callable[[Function], Function]:
    def add(f: Function) -> Function:
        TABLE[op] = (f, accepts)
        return f

    return add


class _Memory:
    """An array's memory offered as writeable: torch warns about read-only arrays, and nothing here writes to an operand."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False), "strides": array.strides}


def tensor(array: np.ndarray) -> Any:
    """A torch tensor that shares the array's memory."""
    import torch

    half = array.dtype == ml_dtypes.bfloat16
    shared = array.view(np.int16) if half else array
    if not shared.flags.writeable:
        shared = np.asarray(_Memory(shared))
    return torch.from_numpy(shared).view(torch.bfloat16) if half else torch.from_numpy(shared)


def _elementwise(op: str, name: str, accepts: Accepts = floats) -> None:
    def run(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
        import torch

        tensor(outs[0]).copy_(getattr(torch, name)(*(tensor(i) for i in ins)))

    run.__name__ = name
    TABLE[op] = (run, accepts)


for _op, _name in {"add": "add", "mul": "mul", "sub": "sub", "div": "div", "exp": "exp", "log": "log", "tanh": "tanh",
                   "sigmoid": "sigmoid", "exp2": "exp2", "log2": "log2", "sin": "sin", "sqrt": "sqrt", "cos": "cos",
                   "reciprocal": "reciprocal", "floor": "floor"}.items():
    _elementwise(_op, _name)


@row("erf", floats)
def erf(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    """bf16 by way of f32: torch's own erf makes zeros of numbers below the smallest normal one there."""
    import torch

    x = tensor(ins[0])
    tensor(outs[0]).copy_(torch.erf(x.float() if x.dtype == torch.bfloat16 else x))


@row("silu", wide_floats)
def silu(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    import torch

    tensor(outs[0]).copy_(torch.nn.functional.silu(tensor(ins[0])))


@row("gelu", wide_floats)
def gelu(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    tensor(outs[0]).copy_(gelu_of(tensor(ins[0]), attrs["approximate"] == "tanh"))


def gelu_of(x: Any, tanh: bool) -> Any:
    """x·Φ(x), or its form with tanh. Φ by erfc: torch's own vectorised gelu says NaN at +∞, where the definition says +∞.

    ½(1 + tanh u) as σ(2u): the sum has no digit left where x < −5, and a row of such numbers is zero in torch's own.
    """
    import torch

    if tanh:
        return x * torch.sigmoid((x + 0.044715 * x * x * x) * (2 * math.sqrt(2 / math.pi)))
    return x * 0.5 * torch.erfc(x * -math.sqrt(0.5))


@row("gated", wide_floats)
def gated(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    import torch

    gate, up = tensor(ins[0]), tensor(ins[1])
    name = attrs["activation"]
    act = torch.nn.functional.silu(gate) if name == "silu" else gelu_of(gate, name == "gelu_tanh")
    torch.mul(act, up, out=tensor(outs[0]))


@row("softmax", wide_floats)
def softmax(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    import torch

    tensor(outs[0]).copy_(torch.softmax(tensor(ins[0]), dim=attrs["axis"]))


@row("rms_norm", wide_floats)
def rms_norm(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    import torch

    x = tensor(ins[0])
    weight = operand(ins, attrs, ("x", "weight"), "weight")
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + attrs["eps"])
    tensor(outs[0]).copy_(y if weight is None else y * (attrs["offset"] + tensor(weight).to(x.dtype)))


@row("layer_norm", wide_floats)
def layer_norm(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    import torch

    names = ("x", "weight", "bias")
    x = tensor(ins[0])
    weight, bias = (operand(ins, attrs, names, n) for n in ("weight", "bias"))
    tensor(outs[0]).copy_(torch.nn.functional.layer_norm(
        x, x.shape[-1:], None if weight is None else tensor(weight).to(x.dtype),
        None if bias is None else tensor(bias).to(x.dtype), attrs["eps"]))


@row("dot", wide_floats)
def dot(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    import torch

    tensor(outs[0]).copy_(torch.matmul(tensor(ins[0]), tensor(ins[1])))


@row("linear", wide_floats)
def linear(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    import torch

    x, weight = tensor(ins[0]), tensor(ins[1])
    bias = operand(ins, attrs, ("x", "weight", "bias"), "bias")
    y = torch.nn.functional.linear(x, weight.to(x.dtype), None if bias is None else tensor(bias).to(x.dtype))
    tensor(outs[0]).copy_(y)


@row("attention", wide_floats)
def attention(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    import torch

    q, k, v = (tensor(i).to(tensor(ins[0]).dtype).transpose(0, 1) for i in ins[:3])
    mask = operand(ins, attrs, ("q", "k", "v", "mask"), "mask")
    n, s = q.shape[1], k.shape[1]
    position = attrs["start"] + torch.arange(n)[:, None]
    key = torch.arange(s)[None, :]
    visible = torch.ones(n, s, dtype=torch.bool) if mask is None else tensor(mask).clone()
    if attrs["causal"]:
        visible &= key <= position
    if attrs["window"] > 0:
        visible &= position - key < attrs["window"]
    group = q.shape[0] // k.shape[0]
    scores = torch.matmul(q, k.repeat_interleave(group, 0).transpose(1, 2)) * attrs["scale"]
    if attrs["softcap"] > 0:
        scores = attrs["softcap"] * torch.tanh(scores / attrs["softcap"])
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    weights = torch.where(visible.any(-1, keepdim=True), weights, torch.zeros((), dtype=weights.dtype))
    tensor(outs[0]).copy_(torch.matmul(weights, v.repeat_interleave(group, 0)).transpose(0, 1))
