"""backend_cuda: the backend `torchcuda`: torch's operators on a GPU, with cuBLAS for matrix products. Tensors are views of device
memory.

torch uses the primary context, as the devices of this package do, and its default stream (`in_order`), so that work of both runs in
order. 16-bit floats are accepted where torch computes in f32 within one operator."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from tensor_graphs.devices.device import DeviceError, Memory
from tensor_graphs.kernels.cuda.source_text import FROM_80
from tensor_graphs.kernels.kernel import HostCall, Kernel, Spec, source_of
from tensor_graphs.kernels.numpy.composites import operand
from tensor_graphs.kernels.torch import backend, ops
from tensor_graphs.kernels.torch.ops import torch
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType

log = logging.getLogger(__name__)

NAME = "torchcuda"
DEVICE = "cuda"
IMPORTS = ("torch",)


HAS_NONE = "this torch has no CUDA (install a build that has)"


def available() -> str | None:
    from tensor_graphs.devices import cuda

    reason, without = cuda.why_missing(), backend.available()
    if without is not None:
        without = f"{without}, and this one wants a build with CUDA"
    elif reason is not None:
        without = HAS_NONE if versions()["torch"].endswith("+cpu") else None      # as its name says; it is not imported for that
    else:
        without = None if torch.cuda.is_available() else HAS_NONE
    return "; ".join(filter(None, (reason, without))) or None


def versions() -> dict[str, str]:
    return backend.versions()


def view(memory: Memory, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: DType) -> Any:
    """Return a tensor on GPU memory, without a copy. offset: in bytes. strides: in elements."""
    kind = getattr(torch, _TYPES[dtype.name])
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=kind, device=memory.device.name)
    count = (memory.nbytes - offset) // dtype.itemsize
    flat = torch.as_tensor(_Bytes(memory, offset, count * dtype.itemsize), device=memory.device.name).view(kind)
    return flat.as_strided(tuple(shape), tuple(strides))


def in_order(device: str) -> AbstractContextManager[Any]:
    """Return a context in which torch uses the device's default stream, so that its work follows work that this package started. It
    matters where the caller has set another current stream. During a capture the captured stream stays current."""
    if not torch.cuda.current_stream(device).cuda_stream or torch.cuda.is_current_stream_capturing():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.default_stream(device))


class _Replay:
    def __init__(self, graph: Any, device: str) -> None:
        self.graph, self.device = graph, device

    def run(self) -> None:
        with in_order(self.device):
            self.graph.replay()


def captured(work: Callable[[Any], None]) -> _Replay | None:
    """Call work(stream) and return the captured CUDA graph of all work that it starts, with separate memory for intermediate
    values. Returns None where an operator waits for the device, or cannot be captured."""
    device = f"cuda:{torch.cuda.current_device()}"
    one(torch.device(device))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work(stream.cuda_stream)
            finally:
                graph.capture_end()
    except (RuntimeError, DeviceError) as e:                        # torch's errors of CUDA are RuntimeErrors
        log.debug("operators of torch are not captured: %s", e)
        return None
    return _Replay(graph, device)


_TYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16", "i8": "int8", "i16": "int16", "i32": "int32",
          "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "bool": "bool",
          "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}


class _Bytes:
    """GPU memory with the interface by which torch imports it; it keeps the owner of the memory alive."""

    def __init__(self, memory: Memory, offset: int, nbytes: int) -> None:
        self.owner = memory.owner
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (memory.address + offset, False),
                                         "version": 3, "strides": None, "stream": None}


def floats(spec: Spec) -> str | None:
    """Return None where all operands and outputs have one float dtype, as torch's operators require, else a refusal."""
    types = {t.dtype.name for t in (*spec.inputs, *spec.outputs)}
    return None if len(types) == 1 and spec.outputs[0].dtype.is_float else "floats of one type only"


def layer_norm_takes(spec: Spec) -> str | None:
    return None if spec.inputs[0].dtype.is_float and spec.outputs[0].dtype == spec.inputs[0].dtype else "floats of one type only"


TABLE = dict(ops.TABLE)
TABLE |= {op: (ops.TABLE[op][0], floats) for op in ("softmax", "silu", "dot")}
TABLE["layer_norm"] = ops.TABLE["layer_norm"][0], layer_norm_takes


_setting = threading.RLock()
"""held while f32 matrix products are started, as torch's TF32 setting is one per process"""


@contextmanager
def products_of(tf32: bool) -> Iterator[None]:
    """Return a context in which cuBLAS rounds f32 operands to TF32, or does not, whatever the process has set. It restores the
    setting. Meanwhile matrix products of other code in other threads are affected; those of this backend wait."""
    matmul = torch.backends.cuda.matmul
    with _setting:
        now = getattr(matmul, "fp32_precision", None)               # since 2.9; "none": as was set for all
        try:
            word, allowed = torch.get_float32_matmul_precision(), matmul.allow_tf32
        except RuntimeError:                                        # what was set by the one no longer agrees with the other
            word, allowed = "", now != "tf32"
        if allowed == tf32 and now in (None, "tf32" if tf32 else "ieee", "none"):
            yield
            return
        matmul.allow_tf32 = tf32                                    # sets both
        try:
            yield
        finally:
            if word == "medium":                                    # which the other setter takes for "high"
                torch.set_float32_matmul_precision(word)
            else:
                matmul.allow_tf32 = allowed
            if now is not None:
                matmul.fp32_precision = now


def in_floats(function: ops.Function, tf32: bool = False) -> ops.Function:
    """Return the function, with its f32 matrix products rounded to TF32 or not."""
    @functools.wraps(function)
    def called(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        with products_of(tf32) if any(t.dtype.itemsize == 4 for t in (*outs, *ins)) else nullcontext():
            function(outs, ins, attrs)

    return called


def to_tf32(spec: Spec) -> str | None:
    if spec.attrs["to"] != "tf32":
        return "TF32 only"
    return None if all(t.dtype.name == "f32" for t in (*spec.inputs, *spec.outputs)) else "f32 only"


def products(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Compute a linear in the widest of the dtypes, so that only the sums are rounded."""
    bias: Any = operand(ins, attrs, ("x", "weight", "bias"), "bias")
    wide = outs[0].dtype
    if all(t.dtype == wide for t in ins) and ins[0].numel():  # by cuBLAS, into the output
        x, y = ins[0].reshape(-1, ins[0].shape[-1]), outs[0].view(-1, outs[0].shape[-1])
        if bias is None:
            torch.mm(x, ins[1].t(), out=y)
        else:
            torch.addmm(bias, x, ins[1].t(), out=y)
        return
    for t in ins:
        wide = torch.promote_types(wide, t.dtype)
    y = torch.nn.functional.linear(ins[0].to(wide), ins[1].to(wide), None if bias is None else bias.to(wide))
    outs[0].copy_(y)


ROLES = ("x", "weight", "x_scale", "weight_scale", "bias")

FROM_89 = ("sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""architectures with 8-bit float products; all but the first also take scales per row"""


@functools.cache
def one(device: Any) -> Any:
    """Return a scale of 1, for operands without one. It is created before a capture: tensors created in one belong to its graph."""
    return torch.ones((), device=device)


def _in_rows(t: Any) -> Any:
    """Return the tensor as cuBLASLt takes it: contiguous, at an address that is a multiple of 16 bytes."""
    return _aligned(t.contiguous())


def _aligned(t: Any) -> Any:
    """Return the tensor, copied unless its address is a multiple of 16 bytes."""
    return t if t.data_ptr() % 16 == 0 else t.clone()


def _scaled_mm(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any], fast: bool) -> None:
    x, weight, x_scale, weight_scale, bias = tuple[Any, ...](operand(ins, attrs, ROLES, name) for name in ROLES)
    y = outs[0].view(-1, outs[0].shape[-1])
    if not y.numel():
        return
    scales = [one(y.device) if s is None else s.reshape(shape).contiguous() if s.dim() else s
              for s, shape in ((x_scale, (-1, 1)), (weight_scale, (1, -1)))]
    is_far = y.data_ptr() % 16 != 0                                 # from what cuBLASLt writes to
    result = torch._scaled_mm(_in_rows(x).view(-1, x.shape[-1]), _in_rows(weight).t(), scale_a=scales[0], scale_b=scales[1],
                            bias=None if bias is None else _in_rows(bias), out_dtype=y.dtype, use_fast_accum=fast,
                            out=torch.empty_like(y) if is_far else y)
    if is_far:
        y.copy_(result)


def scaled_linear(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Compute scaled_linear by cuBLAS, which adds sums of 8-bit products from tensor cores in f32 every few products."""
    _scaled_mm(outs, ins, attrs, fast=False)


def scaled_linear_fast(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Compute scaled_linear by cuBLAS, with all sums in tensor cores, which keep fewer bits."""
    _scaled_mm(outs, ins, attrs, fast=True)


def scaled_linear_takes(of_rows: bool, spec: Spec) -> str | None:
    """Return None, or the reason for a refusal. of_rows: scales are per row of both operands, else single numbers."""
    x, weight, x_scale, weight_scale, bias = map(spec.role, ROLES)
    assert x is not None and weight is not None
    kinds, y = {x.dtype.name, weight.dtype.name}, spec.outputs[0]
    if not kinds <= {"f8e4m3", "f8e5m2"} or kinds == {"f8e5m2"}:
        return "floats of eight bits, of which one at least is f8e4m3"
    if any(not isinstance(s, int) or s % 16 or s == 0 for s in weight.shape):
        return "a weight whose sizes are multiples of 16"
    if y.dtype.name not in ("bf16", "f16", "f32") or (bias is not None and (bias.dtype is not y.dtype or y.dtype.itemsize != 2)):
        return "a result of bf16, f16 or f32, and a bias of the first two that is as the result"
    wanted = [s is not None and s.rank > 0 for s in (x_scale, weight_scale)]
    if wanted != [of_rows, of_rows]:
        return "scales of the rows of both" if of_rows else "scales of one number"
    return "a result of bf16" if of_rows and y.dtype.name != "bf16" else None


def matrices(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    torch.matmul(ins[0], ins[1], out=outs[0])


linear, linear_tf32 = in_floats(products), in_floats(products, tf32=True)
dot, dot_tf32 = in_floats(matrices), in_floats(matrices, tf32=True)
TABLE["dot"] = dot, floats


def sums(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    torch.sum(ins[0], attrs["axes"], out=outs[0])


def mean(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    torch.mean(ins[0], attrs["axes"], keepdim=attrs["keepdims"], out=outs[0])


def cumsum(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    torch.cumsum(ins[0], attrs["axis"], out=outs[0])


def batch_norm(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    weight, bias = (operand(ins, attrs, ("x", "weight", "bias"), name) for name in ("weight", "bias"))
    outs[0].copy_(torch.nn.functional.batch_norm(ins[0], None, None, weight, bias, training=True, eps=attrs["eps"]))


def over_axes(spec: Spec) -> str | None:
    """Return None for floats of one dtype and at least one axis: without axes torch would sum over all."""
    return floats(spec) if spec.attrs["axes"] else "a sum over axes"


def several(spec: Spec) -> str | None:
    """Return None for floats of one dtype in a batch of two or more: torch requires more than one value per channel."""
    size = spec.inputs[0].shape
    return floats(spec) if len(size) >= 2 and dim_ge(size[0], 2) is True else "a batch of two or more"


TABLE |= {"sum": (sums, over_axes), "mean": (mean, over_axes), "cumsum": (cumsum, floats), "batch_norm": (batch_norm, several)}


def conv(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Convolve without rounding to TF32, which is cuDNN's default and less precise than f32."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        ops.conv(outs, ins, attrs)


TABLE["conv"] = conv, lambda spec: floats(spec) or ops.evenly_padded(spec.attrs, 3)


def any_floats(spec: Spec) -> str | None:
    return None if all(t.dtype.is_float for t in (*spec.inputs, *spec.outputs)) else "floats only"


TABLE["linear"] = linear, any_floats


def attention(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Compute attention by torch's fused operator. It gets no mask where none is needed, as its fastest variants take none."""
    mask = operand(ins, attrs, ("q", "k", "v", "mask"), "mask")
    q, k, v = (_aligned(i.to(ins[0].dtype)).transpose(0, 1)[None] for i in ins[:3])     # its fused forms do not look: NaN
    queries, keys = q.shape[2], k.shape[2]
    causal, window = attrs["causal"], attrs["window"]
    first = attrs["start"] if causal or window else 0
    square = causal and queries == keys and first == 0
    all_seen = not causal or first + 1 >= keys
    if mask is None and keys and (window == 0 or window >= first + queries) and (square or all_seen):
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=square and queries > 1, scale=attrs["scale"],
                                                             enable_gqa=q.shape[1] != k.shape[1])
        outs[0].copy_(y[0].transpose(0, 1))
        return
    visible = ops.visible_keys(q.shape[2], k.shape[2], mask, attrs, q.device)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=attrs["scale"],
                                                         enable_gqa=q.shape[1] != k.shape[1])
    y = torch.where(visible.any(-1, keepdim=True), y[0], torch.zeros((), dtype=y.dtype, device=y.device))
    outs[0].copy_(y.transpose(0, 1))


def cudnn_attention(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Compute attention by torch's fused operator, restricted to cuDNN."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        attention(outs, ins, attrs)


def cudnn_attention_takes(spec: Spec) -> str | None:
    q = spec.inputs[0]
    if {t.dtype.name for t in (*spec.inputs, *spec.outputs)} not in ({"bf16"}, {"f16"}) or len(spec.inputs) > 3:
        return "bf16 or f16, without a mask"
    if not isinstance(q.shape[2], int) or q.shape[2] % 8 or q.shape[2] > 256 or spec.attrs["window"]:
        return "heads of up to 256 elements, a multiple of 8, without a window"
    return attention_takes(spec)


def attention_takes(spec: Spec) -> str | None:
    if not all(t.dtype.is_float for t in (*spec.inputs[:3], *spec.outputs)):
        return "floats only"
    return None if spec.attrs.get("softcap", 0) == 0 else "no cap of scores"


TABLE["attention"] = in_floats(attention), attention_takes


SHARE = 10
"""16-bit products on tensor cores that take as long as one f32 product"""


def product_steps(spec: Spec) -> Dim:
    """Return the operations of a product or convolution, in f32 ones: 16-bit ones count 1 / SHARE, 8-bit ones half of that."""
    x, weight = spec.inputs[:2]
    terms = x.shape[-1] if spec.op.name != "conv" else d.product(weight.shape[1:])
    return d.product(spec.outputs[0].shape) * terms * 2 // {1: 2 * SHARE, 2: SHARE}.get(x.dtype.itemsize, 1)


def attention_steps(spec: Spec) -> Dim:
    """Return the operations on all keys (causal: on half of them), as f32 operations."""
    q, k = spec.inputs[:2]
    share = (SHARE if q.dtype.itemsize == 2 else 1) * (2 if spec.attrs["causal"] else 1)
    return d.product((*q.shape, k.shape[0])) * 4 // share


def tf32_steps(spec: Spec) -> Dim:
    """Return the operations of a product at half the rate of 16-bit products."""
    return d.product(spec.outputs[0].shape) * spec.inputs[0].shape[-1] * 4 // SHARE


ARITHMETIC = {"attention": attention_steps, **dict.fromkeys(("linear", "scaled_linear", "dot", "conv"), product_steps)}


def kernels() -> list[Kernel]:
    plain = backend.kernels_of(NAME, TABLE, __name__, on_stream=True, arithmetic=ARITHMETIC)
    other = backend.kernels_of(NAME, {"attention": (cudnn_attention, cudnn_attention_takes)}, __name__, True, ARITHMETIC)
    products_tf32 = {"rounded_linear": (linear_tf32, to_tf32), "rounded_dot": (dot_tf32, to_tf32)}
    rounded = backend.kernels_of(NAME, products_tf32, __name__, True, dict.fromkeys(products_tf32, tf32_steps))
    return [*plain, *(replace(k, name=f"{k.name}_cudnn") for k in other),
            *(replace(k, requirements={"arch": FROM_80}) for k in rounded),
            *_scaled("", scaled_linear, False, FROM_89), *_scaled("_fast", scaled_linear_fast, False, FROM_89),
            *_scaled("_rows", scaled_linear, True, FROM_89[1:])]


def _scaled(mark: str, function: ops.Function, of_rows: bool, arch: tuple[str, ...]) -> list[Kernel]:
    table = {"scaled_linear": (function, partial(scaled_linear_takes, of_rows))}
    reads = backend.DTYPES | backend.ONLY_READ
    return [replace(k, name=f"{k.name}{mark}", requirements={"arch": arch})
            for k in backend.kernels_of(NAME, table, __name__, True, ARITHMETIC, reads)]


def copy(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    outs[0].copy_(ins[0])


def copy_kernel() -> Kernel:
    return Kernel(name=f"{NAME}.copy", backend=NAME, op="copy", build=lambda spec: HostCall(copy, True), accepts=lambda spec: None,
                  source=source_of(copy), module=__name__, build_copy=build_copy)


def build_copy(shape: Sequence[Dim], out_strides: Sequence[Dim], in_strides: Sequence[Dim], itemsize: int) -> HostCall | None:
    """Return the copy call, None where an operand may have negative strides, which torch tensors cannot have."""
    return HostCall(copy, True) if all(dim_ge(s, 0) is True for s in in_strides) else None
