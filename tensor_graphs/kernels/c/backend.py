"""backend: the table of C kernels: op -> native symbol, the specs that it takes and its arguments.

One `CRow` per symbol family; the comment above each symbol in the C sources gives the order of its arguments. Ops with a separate
source for f64 (`wide_*.c`) have a second row: another kernel, whose symbols end in `_f64`. Weights may be narrower than
activations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

from tensor_graphs.devices import toolchain
from tensor_graphs.kernels.c import convolutions, library, scratch, screened_argmax
from tensor_graphs.kernels.kernel import Kernel, NativeCall, Preparation, Spec
from tensor_graphs.kernels.strides import Strides, contiguous_strides, is_contiguous, merged, rows
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.composites.blocks import FORMATS
from tensor_graphs.language.composites.rounded import LEVELS, PART
from tensor_graphs.language.dims import Dim, bounds, ceil_div, product
from tensor_graphs.language.dtypes import DType, bf16, bool_, f16, f32, f64, i32, i64, u8
from tensor_graphs.language.node import TensorType

NAME = "c"
SOURCES = Path(__file__).parent
COPIES = SOURCES / "movement.c"
LIKELY = (*library.AHEAD, "convolutions")
"""libraries whose kernels are usually chosen where they fit; instead of other libraries' kernels, generated ones mostly are"""
WEIGHT_DTYPES = {f32: 0, bf16: 1, f64: 2}              # enum TG_F32, TG_BF16, TG_F64 in tg.h
WEIGHTS_OF = {f32: (f32, bf16), f64: (f32, bf16, f64)}
"""activation dtype -> weight dtypes that may be combined with it"""
INDEX_DTYPES = {i32: 0, i64: 1}                        # enum TG_I32, TG_I64
MAX_COPY_RANK = 8
PARTS = 24
"""cost of splitting an f32 number into three bfloat16 numbers (amx_product.c), as a number of f32 operations"""

ROUNDED = (None, *LEVELS)
"""how a product by blocks may round x, in the order of packed_blocks.h"""

Refusal = Callable[[Spec], str | None]
Build = Callable[[Spec], NativeCall]
Strided = Callable[[Spec, Sequence[Strides]], NativeCall | None]


def available() -> str | None:
    ok, reason = library.available()
    return None if ok else reason


def versions() -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class CRow:
    """A row of the table: one kernel. file: C file that declares its symbols. refuse(spec): None, or the reason for a refusal.
    mark: end of the kernel's name. arch: instruction sets, one of which it needs. The other fields are as in `Kernel`."""

    op: str
    file: str
    refuse: Refusal
    build: Build
    in_place: tuple[tuple[int, int], ...] = ()
    updates: bool = False
    mark: str = ""
    strided: Strided | None = None
    prepare: Callable[[Spec], tuple[Preparation, ...]] | None = None
    arithmetic: Callable[[Spec], Dim] | None = None
    arch: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{NAME}.{self.op}{self.mark}"


def only(*dtypes: DType) -> Refusal:
    """Return a refusal function that takes only specs whose operands and outputs all have one of these dtypes."""
    def refuse(spec: Spec) -> str | None:
        for t in (*spec.inputs, *spec.outputs):
            if t.dtype not in dtypes:
                return f"{t.dtype.name} is not among {', '.join(x.name for x in dtypes)}"
        return None

    return refuse


def _mark(dtype: DType) -> str:
    """Return the suffix of symbols for an activation dtype."""
    return "_f64" if dtype == f64 else ""


def _rows(t: TensorType) -> Dim:
    return product(t.shape[:-1])


def _weight(spec: Spec, name: str) -> tuple[int | None, int]:
    """Return (position of an optional weight, its flag in WEIGHT_DTYPES); (None, 0) for an absent one."""
    at = spec.role_index().get(name)
    return (None, 0) if not isinstance(at, int) else (at, WEIGHT_DTYPES[spec.inputs[at].dtype])


def _weights_ok(a: DType) -> Refusal:
    def refuse(spec: Spec) -> str | None:
        if spec.inputs[0].dtype != a or spec.outputs[0].dtype != a:
            return f"{a.name} activations only"
        if any(t.dtype not in WEIGHTS_OF[a] for t in spec.inputs[1:]):
            return f"{' or '.join(t.name for t in WEIGHTS_OF[a])} weights only"
        return None

    return refuse


def _last_axis(spec: Spec) -> str | None:
    axis, rank = spec.attrs["axis"], spec.inputs[0].rank
    return None if rank and axis % rank == rank - 1 else "the last axis only"


def _linear(a: DType) -> Build:
    def build(spec: Spec) -> NativeCall:
        x, w = spec.inputs[0], spec.inputs[1]
        bias, bias_dtype = _weight(spec, "bias")
        n, k = _rows(x), x.shape[-1]
        needs = scratch.linear(n, k, a.itemsize, w.dtype.itemsize, w.shape[0])
        if a == f32:
            return NativeCall(f"tg_linear_{w.dtype.name}", (0, 1, bias), (n, w.shape[0], k), scratch=needs)
        return NativeCall("tg_linear_f64", (0, 1, bias), (n, w.shape[0], k, WEIGHT_DTYPES[w.dtype], bias_dtype), scratch=needs)

    return build


def _linear_refuse(a: DType) -> Refusal:
    def refuse(spec: Spec) -> str | None:
        bias = spec.role("bias")
        if a == f32 and bias is not None and bias.dtype != f32:
            return "f32 bias only"
        return _weights_ok(a)(spec)

    return refuse


def _narrow_linear_refuse(spec: Spec) -> str | None:
    bias = spec.role("bias")
    if bias is not None and bias.dtype not in (bf16, f32):
        return "bf16 or f32 bias only"
    if spec.role("x_scale") is not None or spec.role("weight_scale") is not None:
        return "no scales"
    if any(t.dtype != bf16 for t in spec.inputs[:2]):
        return "bf16 only"
    return None if spec.outputs[0].dtype in (bf16, f32) else "results of bf16 or f32 only"


def _narrow_linear(spec: Spec) -> NativeCall:
    x, w = spec.inputs[:2]
    bias, bias_dtype = _weight(spec, "bias")
    n, m, k = _rows(x), w.shape[0], x.shape[-1]
    return NativeCall("tg_linear_narrow", (0, 1, bias), (n, m, k, bias_dtype, WEIGHT_DTYPES[spec.outputs[0].dtype]),
                      scratch=scratch.narrow_linear(n, m, k))


def _products(spec: Spec) -> Dim:
    """Return two operations per multiply-add."""
    return 2 * product(spec.outputs[0].shape) * spec.inputs[0].shape[-1]


def _narrow_steps(spec: Spec) -> Dim:
    """Return two operations per multiply-add, or one where an instruction for pairs of bf16 does two multiply-adds."""
    return (1 if library.load().pairs() else 2) * product(spec.outputs[0].shape) * spec.inputs[0].shape[-1]


def _amx_steps(spec: Spec) -> Dim:
    """Return the f32 operations that take as long as an AMX product: 15/8 per multiply-add of f32 by f32 (six bf16 products, as
    measured), 6/8 of f32 by bf16, 2/8 of bf16 by bf16; and PARTS per f32 number that is split into bf16 parts before."""
    eighths = {(f32, f32): 15, (f32, bf16): 6, (bf16, bf16): 2}[spec.inputs[0].dtype, spec.inputs[1].dtype]
    apart = sum((product(t.shape) for t in spec.inputs[:2] if t.dtype == f32), 0)
    return ceil_div(product(spec.outputs[0].shape) * spec.inputs[0].shape[-1] * eighths, 8) + apart * PARTS


def _amx_linear_refuse(spec: Spec) -> str | None:
    return _narrow_linear_refuse(spec) if spec.inputs[0].dtype == bf16 else _linear_refuse(f32)(spec)


def _amx_linear(spec: Spec) -> NativeCall:
    x, w = spec.inputs[:2]
    bias, bias_dtype = _weight(spec, "bias")
    n, m, k = _rows(x), w.shape[0], x.shape[-1]
    dtypes = (WEIGHT_DTYPES[x.dtype], WEIGHT_DTYPES[w.dtype], bias_dtype, WEIGHT_DTYPES[spec.outputs[0].dtype])
    return NativeCall("tg_linear_amx", (0, 1, bias), (n, m, k, *dtypes),
                      scratch=scratch.amx_linear(n, m, k, x.dtype == bf16, w.dtype == bf16))


def _gather_linear_refuse(spec: Spec) -> str | None:
    x, weight, index = spec.inputs[:3]
    if x.dtype != f32 or spec.outputs[0].dtype != f32 or (spec.inputs[3:] and spec.inputs[3].dtype != f32):
        return "f32 activations and bias only"
    if weight.dtype not in WEIGHTS_OF[f32] or index.dtype not in INDEX_DTYPES:
        return "f32 or bf16 weights, i32 or i64 indices only"
    if x.shape[:-1] == index.shape or x.shape[:-1] == (*index.shape[:-1], 1):
        return None
    return "leading axes of x as the index has them, but for the last only"


def _gather_linear(spec: Spec) -> NativeCall:
    x, weight, index = spec.inputs[:3]
    matrices, m, k = weight.shape
    pairs = product(index.shape)
    # plans whose smallest batch is a whole vector are those of batches with invariant rows
    even = not isinstance(pairs, int) and bounds(pairs)[0] >= scratch.EVEN
    per: Dim = 1 if x.shape[:-1] == index.shape else index.shape[-1]
    return NativeCall(f"tg_gather_linear_{weight.dtype.name}", (0, 1, 2, _weight(spec, "bias")[0]),
                      (pairs, per, matrices, m, k, INDEX_DTYPES[index.dtype], int(even)),
                      scratch=scratch.gather_linear(pairs, m, k, weight.dtype.itemsize, even))


def _block_linear_refuse(spec: Spec) -> str | None:
    bias = spec.role("bias")
    if bias is not None and bias.dtype != f32:
        return "f32 bias only"
    return None if all(isinstance(s, int) for s in spec.inputs[1].shape) else "weights of fixed sizes only"


def _block_linear(spec: Spec) -> NativeCall:
    """Return the call on x, the packed weight, which follows the operands, and the bias."""
    x, w = spec.inputs[:2]
    n, k, m, to = _rows(x), x.shape[-1], w.shape[0], spec.attrs.get("to")
    format = list(FORMATS).index(spec.attrs["format"])
    needs = scratch.decoded_linear(n, k) if to is None else scratch.rounded_rows(n, k)
    return NativeCall("tg_block_linear", (0, len(spec.inputs), _weight(spec, "bias")[0]), (n, m, k, format, ROUNDED.index(to)),
                      scratch=needs)


def packed_bytes(format: str, m: int, k: int) -> int:
    """Return the bytes of m rows of k numbers as packed_blocks.h has them: tiles of 16 rows, codes first, then scales."""
    bits = {"Q8_0": 8, "Q6_K": 6, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5}.get(format, 4)
    parts_of_block = FORMATS[format].values // PART
    of_block = 32 + 32 * (format in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")) + 256 * (parts_of_block > 1)
    scales = -(-(k // FORMATS[format].values * of_block) // 64) * 64
    return -(-m // 16) * (k // PART * (256 + 64 * (bits - 4)) + scales)


def _pack_blocks(spec: Spec) -> tuple[Preparation, ...]:
    """Return the preparation of a weight in blocks: 16 rows side by side."""
    (m, nbytes), k, format = spec.inputs[1].shape, spec.inputs[0].shape[-1], spec.attrs["format"]
    call = NativeCall("tg_pack_blocks", (0,), (m, k, list(FORMATS).index(format), nbytes))
    return (Preparation(call, (1,), (TensorType((packed_bytes(format, cast(int, m), cast(int, k)),), u8),)),)


def _block_products(spec: Spec) -> Dim:
    """Return two operations per multiply-add; where an instruction multiplies four bytes, a quarter of them for each byte of x."""
    steps = 8 if spec.attrs.get("to") is None or not library.load().four_bytes() else 2 * ROUNDED.index(spec.attrs["to"])
    return ceil_div(product(spec.outputs[0].shape) * spec.inputs[0].shape[-1] * steps, 4)


def _dot_refuse(*dtypes: DType) -> Refusal:
    def refuse(spec: Spec) -> str | None:
        left, right = spec.inputs
        if only(*dtypes)(spec):
            return only(*dtypes)(spec)
        if left.rank < 2 or right.rank < 2:
            return "matrices only"
        lead_a, lead_b = left.shape[:-2], right.shape[:-2]
        if product(lead_a) != 1 and product(lead_b) != 1 and lead_a != lead_b:
            return "equal leading axes, or none on one side"
        return None

    return refuse


def _dense(strided: Strided) -> Build:
    """Return a `build` function that calls `strided` for contiguous operands."""
    def build(spec: Spec) -> NativeCall:
        call = strided(spec, [contiguous_strides(t.shape) for t in spec.inputs])
        assert call is not None
        return call

    return build


def _only_first(spec: Spec, strides: Sequence[Strides]) -> bool:
    """Return whether all operands but the first are contiguous."""
    return all(is_contiguous(t.shape, s) for t, s in zip(spec.inputs[1:], strides[1:], strict=True))


def _by_rows(build: Build) -> Strided:
    """Return a `strided` function for a kernel that reads its first operand row by row. It appends the layout of the rows (`rows`
    of strides.py) to the ints of the call."""
    def strided(spec: Spec, strides: Sequence[Strides]) -> NativeCall | None:
        at = rows(spec.inputs[0].shape, strides[0])
        if at is None or not _only_first(spec, strides):
            return None
        call = build(spec)
        return replace(call, ints=(*call.ints, *at))

    return strided


def _with_rows(build: Build) -> Build:
    """Return a `build` function that appends the layout of contiguous rows (0, 0, 0) to the ints of the call."""
    def dense(spec: Spec) -> NativeCall:
        call = build(spec)
        return replace(call, ints=(*call.ints, 0, 0, 0))

    return dense


def _strided_dot(spec: Spec, strides: Sequence[Strides]) -> NativeCall | None:
    """Return the matmul call for operands of any strides; None where the leading axes cannot be merged into one."""
    m, n = spec.outputs[0].shape[-2:]
    left, batch = spec.inputs[0], product(spec.outputs[0].shape[:-2])
    k = left.shape[-1]
    leads = [merged(t.shape[:-2], s[:-2]) for t, s in zip(spec.inputs, strides, strict=True)]
    if any(len(lead) > 1 for lead, _ in leads):
        return None
    first, second = (steps[0] if lead else 0 for lead, (steps,) in leads)
    apart, (size, (steps,)) = strides[0][-2], merged(left.shape[:-1], strides[0][:-1])
    if second == 0 and len(size) == 1 and same_dim(product(left.shape[:-2]), batch):    # one matrix on the right: read once for all
        batch, m, first, apart = 1, batch * m, 0, steps[0]
    ints = (batch, m, n, k, m * n, n, 1, first, apart, strides[0][-1], second, *strides[1][-2:])
    pairs = left.dtype == bf16 and library.load().pairs()
    needs = scratch.matmul(k, max(4, left.dtype.itemsize), batch * m, pairs)
    return NativeCall(f"tg_matmul_{left.dtype.name}", (0, 1), ints, scratch=needs)


def _strided_amx_dot(spec: Spec, strides: Sequence[Strides]) -> NativeCall | None:
    call = _strided_dot(spec, strides)
    if call is None:
        return None
    (batch, _, n, k), dtype = call.ints[:4], spec.inputs[0].dtype
    return NativeCall("tg_dot_amx", (0, 1), (*call.ints, WEIGHT_DTYPES[dtype]), scratch=scratch.amx_dot(batch, n, k, dtype == bf16))


def _rms_norm(spec: Spec) -> NativeCall:
    x = spec.inputs[0]
    w, dtype = _weight(spec, "weight")
    return NativeCall("tg_rms_norm", (0, w), (_rows(x), x.shape[-1], dtype),
                      (float(spec.attrs["eps"]), float(spec.attrs["offset"])))


def _attention_refuse(a: DType) -> Refusal:
    def refuse(spec: Spec) -> str | None:
        mask = spec.role("mask")
        if mask is not None and mask.dtype != bool_:
            return "a bool mask only"
        if any(t.dtype != a for t in (*spec.inputs[:3], *spec.outputs)):
            return f"{a.name} only"
        return None if same_dim(spec.inputs[1].shape[2], spec.inputs[2].shape[2]) else "keys and values of one width only"

    return refuse


def _strided_attention(spec: Spec, strides: Sequence[Strides]) -> NativeCall | None:
    """Return the call for gaps between positions or heads, and for arrays that are stored head by head; None for other strides."""
    q, k = spec.inputs[:2]
    mask = spec.role_index().get("mask")
    a = spec.attrs
    (n, hq, d), (s, hkv, _) = q.shape, k.shape
    heads = [d if t.shape[1] == 1 else lie[1] for t, lie in zip(spec.inputs[:3], strides[:3], strict=True)]
    if 0 in heads or (d != 1 and any(lie[2] != 1 for lie in strides[:3])) or any(
            not is_contiguous(t.shape, lie) for t, lie in zip(spec.inputs[3:], strides[3:], strict=True)):
        return None
    return NativeCall(f"tg_attention{_mark(q.dtype)}", (0, 1, 2, mask if isinstance(mask, int) else None),
                      (n, s, hq, hkv, d, int(bool(a["causal"])), a["window"], a["start"], strides[1][0], strides[2][0],
                       strides[0][0], *heads),
                      (float(a["scale"]), float(a["softcap"])), scratch.attention(n * (hq // hkv), hkv, d, q.dtype.itemsize))


def _narrow_attention(spec: Spec) -> NativeCall:
    (n, hq, d), (s, hkv, _) = spec.inputs[0].shape, spec.inputs[1].shape
    floats = 2 * (n * hq * d + s * hkv * d)
    needs = scratch.attention(n * (hq // hkv), hkv, d, f32.itemsize) + floats * f32.itemsize + scratch.PAGE
    return replace(_dense(_strided_attention)(spec), symbol="tg_attention_bf16", scratch=needs)


def _paged_attention_refuse(spec: Spec) -> str | None:
    q, k, v = spec.inputs[:3]
    if q.dtype not in (f32, bf16) or k.dtype not in (f32, bf16) or k.dtype != v.dtype:
        return "f32 or bf16, one of them for keys and values"
    if any(t.dtype != f32 for t in spec.inputs[5:]):
        return "sinks of f32 only"
    return None if same_dim(k.shape[2], v.shape[2]) else "keys and values of one width only"


def _paged_attention(spec: Spec) -> NativeCall:
    q, k = spec.inputs[:2]
    (n, hq, d), (rows_of_pool, hkv, _), a = q.shape, k.shape, spec.attrs
    ints = (n, hq, hkv, d, spec.inputs[3].shape[1], a["page"], rows_of_pool, a["window"], WEIGHT_DTYPES[k.dtype],
            WEIGHT_DTYPES[q.dtype])
    pointers = (0, 1, 2, 3, 4, _weight(spec, "sinks")[0])
    return NativeCall("tg_paged_attention", pointers, ints, (float(a["scale"]), float(a["softcap"])),
                      scratch.paged_attention(n, hq // hkv, hq, d, q.dtype == bf16))


def _write_rows(spec: Spec) -> NativeCall:
    base, value = spec.inputs
    return NativeCall("tg_write_rows", (1,), (base.shape[0], value.shape[0], product(base.shape[1:]) * base.dtype.itemsize,
                                              spec.attrs["start"], 0))


def _write_at_index_refuse(spec: Spec) -> str | None:
    base, _, index = spec.inputs
    if spec.attrs["axis"] % base.rank:
        return "axis 0 only"
    return None if index.dtype in INDEX_DTYPES else "an index of i32 or i64"


def _write_at_index(spec: Spec) -> NativeCall:
    base, _, index = spec.inputs
    row = product(base.shape[1:]) * base.dtype.itemsize
    return NativeCall("tg_write_at_index", (1, 2), (base.shape[0], product(index.shape), row, INDEX_DTYPES[index.dtype]))


def _strided_write_rows(spec: Spec, strides: Sequence[Strides]) -> NativeCall | None:
    """Return the call for a value with gaps between its rows, None for other gaps."""
    (base, value), (first, apart) = spec.inputs, strides
    if not is_contiguous(base.shape, first) or not is_contiguous(value.shape[1:], apart[1:]) or apart[0] == 0:
        return None
    call = _write_rows(spec)
    return replace(call, ints=(*call.ints[:-1], apart[0] * value.dtype.itemsize))


def _rope_table_refuse(spec: Spec) -> str | None:
    if spec.inputs[0].dtype != i32 or spec.inputs[0].rank != 1:
        return "i32 positions of rank 1 only"
    return None if all(t.dtype in WEIGHTS_OF for t in spec.outputs) else "f32 or f64 tables only"


def _rope_table(spec: Spec) -> NativeCall:
    return NativeCall(f"tg_rope_table{_mark(spec.outputs[0].dtype)}", (0,), (spec.inputs[0].shape[0], spec.attrs["head_dim"] // 2),
                      (float(spec.attrs["theta"]), float(spec.attrs["scaling"])))


def _argmax_refuse(spec: Spec) -> str | None:
    if spec.inputs[0].dtype not in WEIGHTS_OF or spec.outputs[0].dtype not in INDEX_DTYPES:
        return "f32 or f64 to i32 or i64 only"
    return _last_axis(spec)


def _argmax(spec: Spec) -> NativeCall:
    x = spec.inputs[0]
    return NativeCall(f"tg_argmax{_mark(x.dtype)}_{spec.outputs[0].dtype.name}", (0,), (_rows(x), x.shape[-1]))


def _scatter_refuse(spec: Spec) -> str | None:
    base, index, updates = spec.inputs
    if base.dtype not in (f32, f64, i32, i64) or updates.dtype != base.dtype:
        return f"{base.dtype.name} is not among f32, f64, i32, i64"
    if index.dtype not in INDEX_DTYPES:
        return "i32 or i64 indices only"
    return "only what is written or added" if spec.attrs["mode"] not in ("set", "add") else None


def _scatter(spec: Spec) -> NativeCall:
    base, index, _ = spec.inputs
    axis, count = spec.attrs["axis"], product(index.shape)
    rows, add = base.shape[axis], int(spec.attrs["mode"] == "add")
    sizes = (product(base.shape[:axis]), rows, count, product(base.shape[axis + 1:]), INDEX_DTYPES[index.dtype], add)
    return NativeCall(f"tg_scatter_{base.dtype.name}", (0, 1, 2), sizes, scratch=scratch.scatter(rows, count))


def rows_for(a: DType) -> tuple[CRow, ...]:
    """Return the table's rows for f32 or f64 activations, of the ops that have code for both."""
    mark, wide = _mark(a), "wide_" if a == f64 else ""
    same = only(a)

    def row(op: str, file: str, refuse: Refusal, build: Build, *in_place: tuple[int, int], strided: Strided | None = None) -> CRow:
        return CRow(op, wide + file, refuse, build, in_place, mark=mark, strided=strided)

    def by_rows(op: str, file: str, refuse: Refusal, build: Build, *in_place: tuple[int, int]) -> CRow:
        return row(op, file, refuse, _with_rows(build), *in_place, strided=_by_rows(build))

    return (
        row("linear", "product.c", _linear_refuse(a), _linear(a)),
        row("dot", "product.c", _dot_refuse(a), _dense(_strided_dot), strided=_strided_dot),
        by_rows("softmax", "softmax.c", lambda spec: same(spec) or _last_axis(spec), lambda spec: NativeCall(
            f"tg_softmax{mark}", (0,), (_rows(spec.inputs[0]), spec.inputs[0].shape[-1])), (0, 0)),
        row("attention", "attention.c", _attention_refuse(a), _dense(_strided_attention), strided=_strided_attention),
    )


ROWS: tuple[CRow, ...] = (
    *rows_for(f32), *rows_for(f64),
    *(CRow(op, "product.c", _narrow_linear_refuse, _narrow_linear, mark="_bf16", arithmetic=_narrow_steps)
      for op in ("linear", "scaled_linear")),
    CRow("dot", "product.c", _dot_refuse(bf16), _dense(_strided_dot), mark="_bf16", strided=_strided_dot, arithmetic=_narrow_steps),
    CRow("dot", "product.c", _dot_refuse(f16), _dense(_strided_dot), mark="_f16", strided=_strided_dot),
    CRow("linear", "amx_product.c", _amx_linear_refuse, _amx_linear, mark="_amx", arithmetic=_amx_steps, arch=("amx_bf16",)),
    CRow("scaled_linear", "amx_product.c", _narrow_linear_refuse, _amx_linear, mark="_amx", arithmetic=_amx_steps,
         arch=("amx_bf16",)),
    CRow("dot", "amx_product.c", _dot_refuse(f32, bf16), _dense(_strided_amx_dot), mark="_amx", strided=_strided_amx_dot,
         arithmetic=_amx_steps, arch=("amx_bf16",)),
    CRow("attention", "narrow_attention.c", _attention_refuse(bf16), _narrow_attention, mark="_bf16"),
    CRow("paged_attention", "attention.c", _paged_attention_refuse, _paged_attention),
    CRow("gather_linear", "product.c", _gather_linear_refuse, _gather_linear),
    *(CRow(op, "block_product.c", _block_linear_refuse, _block_linear, prepare=_pack_blocks, arithmetic=_block_products)
      for op in ("block_linear", "rounded_block_linear")),
    CRow("rms_norm", "rms_norm.c", _weights_ok(f32), _with_rows(_rms_norm), in_place=((0, 0),), strided=_by_rows(_rms_norm)),
    CRow("write_rows", "movement.c", lambda spec: "axis 0 only" if spec.attrs["axis"] % spec.inputs[0].rank else None,
         _write_rows, in_place=((0, 0),), updates=True, strided=_strided_write_rows),
    CRow("write_at_index", "movement.c", _write_at_index_refuse, _write_at_index, in_place=((0, 0),), updates=True),
    CRow("rope_table", "rope_table.c", _rope_table_refuse, _rope_table),
    CRow("argmax", "argmax.c", _argmax_refuse, _with_rows(_argmax), strided=_by_rows(_argmax)),
    # before the plain one: where their estimates are equal, these are faster
    CRow("conv", "direct_conv.c", convolutions.refuse_direct, convolutions.build_direct, mark="_direct",
         prepare=convolutions.prepare, arithmetic=convolutions.arithmetic),
    CRow("conv", "depthwise.c", convolutions.refuse_depthwise, convolutions.build_depthwise, mark="_depthwise"),
    CRow("conv", "product.c", convolutions.refuse, convolutions.build, arithmetic=convolutions.arithmetic),
    CRow("conv", "wide_product.c", convolutions.refuse_f64, convolutions.build, mark="_f64"),
    CRow("scatter", "scatter.c", _scatter_refuse, _scatter, in_place=((0, 0),)),
)


def _source(file: Path, files: Callable[[Path], Iterable[Path]] = library.code_of) -> str:
    """Return the concatenated text of a C file and of all other C files that its kernels use."""
    return "\n".join(path.read_text() for path in files(file))


def kernels() -> list[Kernel]:
    """Return one kernel per row; its identity covers its C sources, their headers, the flags and the compiler."""
    own, files = cache(toolchain.source_identity), cache(library.code_of)      # caches of this call: rows share files
    source, identity = cache(lambda file: _source(file, files)), cache(lambda file: library.identity_of(file, own, files))
    return [Kernel(name=row.name, backend=NAME, op=row.op, build=row.build, accepts=row.refuse,
                   source=source(SOURCES / row.file), module=__name__, toolchain=identity(SOURCES / row.file),
                   in_place=row.in_place, contiguous=True, updates=row.updates, strided=row.strided,
                   prepare=row.prepare, arithmetic=row.arithmetic, requirements={"arch": row.arch} if row.arch else {},
                   together=_together(SOURCES / row.file)) for row in ROWS] + [
            screened_argmax.kernel(identity(screened_argmax.SOURCE), __name__, _together(screened_argmax.SOURCE))]


def _together(file: Path) -> Callable[[Sequence[Spec]], Sequence[str | None]]:
    """Return a `together` function that compiles the library of a C file: for each spec None, or why that fails."""
    def compile_all(specs: Sequence[Spec]) -> list[str | None]:
        return [library.why_missing(library.part_of(file))] * len(specs)

    return compile_all


def compile_ahead(ops: Collection[str]) -> None:
    """Start threads that compile the libraries in LIKELY that have a kernel of one of these ops. The copy kernel is compiled too:
    comparisons of such kernels copy operands first."""
    parts = {library.part_of(SOURCES / row.file) for row in ROWS if row.op in ops}
    parts |= {library.part_of(screened_argmax.SOURCE)} if screened_argmax.OP in ops else set()
    likely = [part for part in LIKELY if part in parts]
    library.ahead([part for part in LIKELY if part in likely or (likely and part == library.part_of(COPIES))])


def copy_kernel() -> Kernel:
    """Return the kernel of explicit copies; `build_copy` builds its call from the strides."""
    def dense(spec: Spec) -> NativeCall:
        t = spec.inputs[0]
        call = copy_call((product(t.shape),), (1,), (1,), t.dtype.itemsize)
        assert call is not None
        return call

    return Kernel(name="c.copy", backend=NAME, op="copy", build=dense, accepts=lambda spec: None, build_copy=copy_call,
                  source=_source(COPIES), module=__name__, toolchain=library.identity_of(COPIES))


def copy_call(shape: Sequence[Dim], out_strides: Sequence[Dim], in_strides: Sequence[Dim], itemsize: int) -> NativeCall | None:
    """Return the native call that copies one strided window into another; None beyond rank 8."""
    rank = len(shape)
    if rank > MAX_COPY_RANK:
        return None
    pad = (0,) * (MAX_COPY_RANK - rank)
    return NativeCall("tg_copy_strided", (0,), (rank, itemsize, *shape, *pad, *out_strides, *pad, *in_strides, *pad))

