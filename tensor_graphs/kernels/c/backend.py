"""backend: which op becomes which native symbol, for which specs, with which arguments.

One `Row` per symbol family. The comment above each symbol in the C sources states the order of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import Kernel, NativeCall, Spec
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, bool_, f32, i32, i64
from tensor_graphs.language.node import TensorType

NAME = "c"
SOURCES = Path(__file__).parent
WEIGHT_DTYPES = {f32: 0, bf16: 1}                      # enum TG_F32, TG_BF16 in tg.h
INDEX_DTYPES = {i32: 0, i64: 1}                        # enum TG_I32, TG_I64
MAX_COPY_RANK = 8


def available() -> str | None:
    ok, reason = library.available()
    return None if ok else reason


def versions() -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Row:
    """op -> call; `refuse` says why a spec is not taken (None: taken)."""

    op: str
    file: str
    refuse: Callable[[Spec], str | None]
    build: Callable[[Spec], NativeCall]
    in_place: tuple[tuple[int, int], ...] = ()
    updates: bool = False


def product(shape: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for s in shape:
        total = total * s
    return total


def only(*dtypes: DType) -> Callable[[Spec], str | None]:
    def refuse(spec: Spec) -> str | None:
        for t in (*spec.inputs, *spec.outputs):
            if t.dtype not in dtypes:
                return f"{t.dtype.name} is not among {', '.join(x.name for x in dtypes)}"
        return None

    return refuse


all_f32 = only(f32)


def _rows(t: TensorType) -> Dim:
    return product(t.shape[:-1])


def _weight(spec: Spec, name: str) -> tuple[int | None, int]:
    """(position of an optional weight, its dtype flag)."""
    at = spec.role_index().get(name)
    return (None, 0) if not isinstance(at, int) else (at, WEIGHT_DTYPES[spec.inputs[at].dtype])


def _weights_ok(spec: Spec) -> str | None:
    if spec.inputs[0].dtype != f32 or spec.outputs[0].dtype != f32:
        return "f32 activations only"
    if any(t.dtype not in WEIGHT_DTYPES for t in spec.inputs[1:]):
        return "f32 or bf16 weights only"
    return None


def _last_axis(spec: Spec) -> str | None:
    axis, rank = spec.attrs["axis"], spec.inputs[0].rank
    return all_f32(spec) or (None if rank and axis % rank == rank - 1 else "the last axis only")


def elementwise(op: str, symbol: str) -> Row:
    return Row(op, "elementwise.c", all_f32,
               lambda spec: NativeCall(symbol, tuple(range(len(spec.inputs))), (product(spec.outputs[0].shape),)),
               in_place=tuple((0, i) for i in range(2 if op in ("add", "sub", "mul", "max") else 1)))


def _linear(spec: Spec) -> NativeCall:
    x, w = spec.inputs[0], spec.inputs[1]
    bias = spec.role_index().get("bias")
    symbol = "tg_linear_f32" if w.dtype == f32 else "tg_linear_bf16"
    return NativeCall(symbol, (0, 1, bias if isinstance(bias, int) else None), (_rows(x), w.shape[0], x.shape[-1]))


def _linear_refuse(spec: Spec) -> str | None:
    bias = spec.role("bias")
    if bias is not None and bias.dtype != f32:
        return "f32 bias only"
    return _weights_ok(spec)


def _dot_refuse(spec: Spec) -> str | None:
    a, b = spec.inputs
    if all_f32(spec):
        return all_f32(spec)
    if a.rank < 2 or b.rank < 2:
        return "matrices only"
    lead_a, lead_b = a.shape[:-2], b.shape[:-2]
    if product(lead_a) != 1 and product(lead_b) != 1 and lead_a != lead_b:
        return "equal leading axes, or none on one side"
    return None


def _dot(spec: Spec) -> NativeCall:
    a, b = spec.inputs
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    batch = product(spec.outputs[0].shape[:-2])
    a_step: Dim = 0 if product(a.shape[:-2]) == 1 else m * k
    b_step: Dim = 0 if product(b.shape[:-2]) == 1 else k * n
    return NativeCall("tg_matmul_f32", (0, 1), (batch, m, n, k, m * n, n, 1, a_step, k, 1, b_step, n, 1))


def _rms_norm(spec: Spec) -> NativeCall:
    w, dtype = _weight(spec, "weight")
    return NativeCall("tg_rms_norm", (0, w), (_rows(spec.inputs[0]), spec.inputs[0].shape[-1], dtype),
                      (float(spec.attrs["eps"]), float(spec.attrs["offset"])))


def _layer_norm(spec: Spec) -> NativeCall:
    w, w_dtype = _weight(spec, "weight")
    b, b_dtype = _weight(spec, "bias")
    return NativeCall("tg_layer_norm", (0, w, b), (_rows(spec.inputs[0]), spec.inputs[0].shape[-1], w_dtype, b_dtype),
                      (float(spec.attrs["eps"]),))


GATES = {"gelu_tanh": "tg_gelu_tanh_mul", "gelu": "tg_gelu_erf_mul", "silu": "tg_silu_mul"}


def _gated(spec: Spec) -> NativeCall:
    t = spec.outputs[0]
    size = t.shape[-1] if t.rank else 1
    return NativeCall(GATES[spec.attrs["activation"]], (0, 1), (_rows(t), size, size, size))


def _attention_refuse(spec: Spec) -> str | None:
    mask = spec.role("mask")
    if mask is not None and mask.dtype != bool_:
        return "a bool mask only"
    if any(t.dtype != f32 for t in (*spec.inputs[:3], *spec.outputs)):
        return "f32 only"
    return None if same_dim(spec.inputs[1].shape[2], spec.inputs[2].shape[2]) else "keys and values of one width only"


def _attention(spec: Spec) -> NativeCall:
    q, k = spec.inputs[0], spec.inputs[1]
    mask = spec.role_index().get("mask")
    a = spec.attrs
    stride = k.shape[1] * k.shape[2]
    return NativeCall("tg_attention", (0, 1, 2, mask if isinstance(mask, int) else None),
                      (q.shape[0], k.shape[0], q.shape[1], k.shape[1], q.shape[2], int(bool(a["causal"])), a["window"], a["start"],
                       stride, stride), (float(a["scale"]), float(a["softcap"])))


def _embedding_refuse(spec: Spec) -> str | None:
    table, ids = spec.inputs
    if table.dtype not in WEIGHT_DTYPES or spec.outputs[0].dtype != f32:
        return "f32 or bf16 tables, f32 out"
    return None if ids.dtype in INDEX_DTYPES else "i32 or i64 indices only"


def _embedding(spec: Spec) -> NativeCall:
    table, ids = spec.inputs
    return NativeCall("tg_gather_rows", (0, 1), (product(ids.shape), table.shape[0], table.shape[1],
                      WEIGHT_DTYPES[table.dtype], INDEX_DTYPES[ids.dtype]), (float(spec.attrs["scale"]),))


def _write_rows(spec: Spec) -> NativeCall:
    base, value = spec.inputs
    return NativeCall("tg_write_rows", (1,), (base.shape[0], value.shape[0], product(base.shape[1:]) * base.dtype.itemsize,
                                              spec.attrs["start"]))


def _rope_table_refuse(spec: Spec) -> str | None:
    if spec.inputs[0].dtype != i32 or spec.inputs[0].rank != 1:
        return "i32 positions of rank 1 only"
    return None if all(t.dtype == f32 for t in spec.outputs) else "f32 tables only"


def _argmax_refuse(spec: Spec) -> str | None:
    rank = spec.inputs[0].rank
    if spec.inputs[0].dtype != f32 or spec.outputs[0].dtype not in INDEX_DTYPES:
        return "f32 to i32 or i64 only"
    return None if rank and spec.attrs["axis"] % rank == rank - 1 else "the last axis only"


ROWS: tuple[Row, ...] = (
    elementwise("add", "tg_add"), elementwise("sub", "tg_sub"), elementwise("mul", "tg_mul"), elementwise("max", "tg_max"),
    elementwise("div", "tg_div"), elementwise("exp", "tg_exp"), elementwise("tanh", "tg_tanh"), elementwise("silu", "tg_silu"),
    Row("gelu", "elementwise.c", all_f32, lambda spec: NativeCall(
        "tg_gelu_tanh" if spec.attrs["approximate"] == "tanh" else "tg_gelu_erf", (0,), (product(spec.outputs[0].shape),)),
        in_place=((0, 0),)),
    Row("gated", "elementwise.c", lambda spec: all_f32(spec) or (None if spec.attrs["activation"] in GATES else "no such gate"),
        _gated, in_place=((0, 0), (0, 1))),
    Row("linear", "linear.c", _linear_refuse, _linear),
    Row("dot", "matmul.c", _dot_refuse, _dot),
    Row("rms_norm", "norms.c", _weights_ok, _rms_norm, in_place=((0, 0),)),
    Row("layer_norm", "norms.c", _weights_ok, _layer_norm, in_place=((0, 0),)),
    Row("softmax", "norms.c", _last_axis, lambda spec: NativeCall(
        "tg_softmax", (0,), (_rows(spec.inputs[0]), spec.inputs[0].shape[-1])), in_place=((0, 0),)),
    Row("attention", "attention.c", _attention_refuse, _attention),
    Row("embedding", "movement.c", _embedding_refuse, _embedding),
    Row("write_rows", "movement.c", lambda spec: "axis 0 only" if spec.attrs["axis"] % spec.inputs[0].rank else None,
        _write_rows, in_place=((0, 0),), updates=True),
    Row("rope_table", "rope.c", _rope_table_refuse, lambda spec: NativeCall(
        "tg_rope_table", (0,), (spec.inputs[0].shape[0], spec.attrs["head_dim"] // 2),
        (float(spec.attrs["theta"]), float(spec.attrs["scaling"])))),
    Row("rope", "rope.c", all_f32, lambda spec: NativeCall("tg_rope", (0, 1, 2), tuple(spec.inputs[0].shape))),
    Row("argmax", "argmax.c", _argmax_refuse, lambda spec: NativeCall(
        f"tg_argmax_{spec.outputs[0].dtype.name}", (0,), (_rows(spec.inputs[0]), spec.inputs[0].shape[-1]))),
)


def _source(file: Path) -> str:
    """The text of all that a kernel of this file comes from."""
    return "\n".join(path.read_text() for path in library.code_of(file))


def kernels() -> list[Kernel]:
    """One kernel per row, identified by the sources its code comes from, their headers, the flags and the compiler."""
    return [Kernel(name=f"c.{row.op}", backend=NAME, op=row.op, build=row.build, accepts=row.refuse,
                   source=_source(SOURCES / row.file), module=__name__, toolchain=library.identity_of(SOURCES / row.file),
                   in_place=row.in_place, contiguous=True, updates=row.updates) for row in ROWS]


def copy_kernel() -> Kernel:
    """The strided copy behind explicit copies; its call is built from the operands' strides."""
    def dense(spec: Spec) -> NativeCall:
        t = spec.inputs[0]
        call = copy_call((product(t.shape),), (1,), (1,), t.dtype.itemsize)
        assert call is not None
        return call

    return Kernel(name="c.copy", backend=NAME, op="copy", build=dense, accepts=lambda spec: None, build_copy=copy_call,
                  source=_source(SOURCES / "movement.c"), module=__name__, toolchain=library.identity_of(SOURCES / "movement.c"))


def copy_call(shape: Sequence[Dim], out_strides: Sequence[Dim], in_strides: Sequence[Dim], itemsize: int) -> NativeCall | None:
    """The native call that copies one strided window into another; None beyond rank 8."""
    rank = len(shape)
    if rank > MAX_COPY_RANK:
        return None
    pad = (0,) * (MAX_COPY_RANK - rank)
    return NativeCall("tg_copy_strided", (0,), (rank, itemsize, *shape, *pad, *out_strides, *pad, *in_strides, *pad))

