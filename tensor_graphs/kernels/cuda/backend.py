"""backend: `cuda`, kernels written by hand for what stages say badly: weights read once for few rows, attention with its keys in
parts, rows of a state in place. A text is a file of this folder behind the numbers of one spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tensor_graphs.devices import nvrtc
from tensor_graphs.kernels.cuda.scatter import scatter, scatter_takes
from tensor_graphs.kernels.kernel import Kernel, Launch, LaunchCall, Preparation, Spec
from tensor_graphs.kernels.strides import Strides, contiguous_strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, bool_, f16, f32, f64
from tensor_graphs.language.node import TensorType

NAME = "cuda"
DEVICE = "cuda"
HERE = Path(__file__).resolve().parent
HEADER = HERE.parent.parent / "codegen" / "numbers.cuh"
TENSOR_CORES = HEADER.with_name("tensor_cores.cuh")
ALIGNED = 16
FLOATS = (f32, bf16, f16)
WIDE = {f32: "(float)", bf16: "bf16_to_f32", f16: "f32_of_f16"}
STORED = {f32: "float", bf16: "uint16_t", f16: "uint16_t"}
NARROW = {f32: "(float)", bf16: "bf16_of_f32", f16: "f16_of_f32"}

OF_SIZE = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}

ROWS, ROW_WARPS = 8, 4
"""of few_rows.cu"""

BEST_COLUMNS, BEST_RESIDENT, MULTIPROCESSORS = 2, 6, 132
"""of few_rows.cu where it looks for the largest: columns of a warp, blocks of each of so many multiprocessors"""

TILE_ROWS, TILES_BYTES = 128, 200 << 10
"""of tensor_product.cu: rows of a tile; bytes of shared memory for boxes, at most"""

STEPS_OF_A_SPLIT, MOST_SPLITS = 24, 8
"""of tensor_product.cu where there are few tiles: steps of 64 products of each part of a sum, at least; parts of one, at most"""

SHARE = 12
"""products of bf16 that tensor cores make in the time of one operation of f32 (H100: 660 and 51 Tflop/s)"""

FROM_80 = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""architectures with products of 16 bits as mma.sync has them, and copies that are not waited for"""

MOST_PARTS = 32
"""parts into which keys are cut"""

KEYS_OF_A_PART = 64
"""of the longest row of keys"""

BLOCKS_OF_PARTS = 8 * MULTIPROCESSORS
"""blocks of attention.cu from which on keys are not cut"""


def available() -> str | None:
    from tensor_graphs.devices import cuda

    return cuda.why_missing()


def versions() -> dict[str, str]:
    return {"nvrtc": nvrtc.version()}


def _text(files: str, numbers: Mapping[str, object], types: Mapping[str, DType | str]) -> str:
    """Files (their names, spaces between) behind numbers and types; of a dtype also how an element is widened and narrowed."""
    said = ['#include "numbers.cuh"', *(f"#define {name} {value}" for name, value in numbers.items())]
    for name, dtype in types.items():
        if isinstance(dtype, DType):
            said += [f"#define WIDE_{name} {WIDE[dtype]}", f"#define NARROW_{name} {NARROW[dtype]}"]
        said.append(f"typedef {STORED[dtype] if isinstance(dtype, DType) else dtype} {name};")
    return "\n".join(said) + "\n" + _read(files)


def _read(files: str) -> str:
    return "".join((HERE / file).read_text() for file in files.split())


def stored_as(dtype: DType) -> str:
    """The C type of an element; integers wrap, so they have no sign."""
    return STORED.get(dtype, "double" if dtype is f64 else OF_SIZE[dtype.itemsize])


def accumulated(dtype: DType) -> tuple[str, str]:
    """What numbers are added in: a few of them, and sums of many."""
    return ("float", "double") if dtype in STORED else (stored_as(dtype),) * 2


def _static(*dims: Dim) -> str | None:
    return None if all(d.is_static(x) for x in dims) else "sizes that are known only"


# ---- linear ------------------------------------------------------------------------------------------------------------


def _rows(x: TensorType) -> Dim:
    return d.product(x.shape[:-1])


def linear_takes(spec: Spec) -> str | None:
    x, w = spec.inputs[:2]
    if any(t.dtype not in FLOATS for t in (*spec.inputs, *spec.outputs)):
        return "f32, bf16 and f16 only"
    if (why := _static(*w.shape)) is not None:
        return why
    pack = ALIGNED // w.dtype.itemsize
    if int(w.shape[1]) % max(pack, ALIGNED // x.dtype.itemsize):
        return f"rows of a multiple of {pack} elements only"
    return None if int(w.shape[0]) < 1 << 30 else "too many columns"


def linear(spec: Spec) -> LaunchCall:
    return _few_rows(spec)


def _few_rows(spec: Spec, best: bool = False) -> LaunchCall:
    x, w = spec.inputs[:2]
    columns, k = (int(s) for s in w.shape)
    pack = ALIGNED // w.dtype.itemsize
    rows = _rows(x)
    beside = BEST_COLUMNS if best else 1 if columns <= 1024 else 2 if columns <= 32768 else 4
    bias = spec.role("bias")
    types = {"X": x.dtype, "W": w.dtype, "B": f32 if bias is None else bias.dtype, "Y": spec.outputs[0].dtype}
    blocks = -(-columns // (ROW_WARPS * beside))
    blocks = min(blocks, BEST_RESIDENT * MULTIPROCESSORS) if best else blocks
    several = d.dim_min(1, rows // 2)
    launches = [Launch("few_rows", blocks * d.ceil_div(rows, ROWS) * several, 32 * ROW_WARPS, waits=True, early=(1,)),
                Launch("one_row", blocks * (d.dim_min(1, rows) - several), 32 * ROW_WARPS, waits=True, early=(1,))]
    pieces: tuple[Dim, ...] = ()
    more = {"BLOCKS": blocks, "RESIDENT": BEST_RESIDENT if best else 1} | ({} if bias is None else {"BIAS": 1})
    if best:
        more["BEST"] = 1
        launches.append(Launch("best_of_row", rows, 256, waits=True))
        pieces = (d.ceil_div(rows * (4 * blocks), 256) * 256,) * 2

    def text(pack: int) -> str:
        of_x = min(pack, ALIGNED // x.dtype.itemsize)
        numbers = {"PACK": pack, "PACK_X": of_x, "COLUMNS": beside, "K": k, "N": columns}
        return _text("few_rows.cu", {**numbers, **more}, types)

    single = LaunchCall(text(1), tuple(launches), (rows,), pieces)
    return LaunchCall(text(pack), tuple(launches), (rows,), pieces, ALIGNED, single)


def linear_argmax_takes(spec: Spec) -> str | None:
    """Of narrower outputs, which elements are equal is another question."""
    return "f32 values only" if spec.outputs[0].dtype is not f32 else linear_takes(replace(spec, outputs=spec.outputs[:1]))


def linear_argmax(spec: Spec) -> LaunchCall:
    return _few_rows(spec, best=True)


def linear_traffic(spec: Spec) -> Dim:
    """All of w for every few rows of x, from the second time on out of the cache (a fifth of the time)."""
    x, w = spec.inputs[:2]
    rows = _rows(x)
    of_w = int(w.shape[0]) * int(w.shape[1]) * w.dtype.itemsize
    small = rows * (int(w.shape[1]) * x.dtype.itemsize + int(w.shape[0]) * spec.outputs[0].dtype.itemsize)
    return of_w + of_w // 5 * (d.ceil_div(rows, ROWS) - 1) + small


def linear_steps(spec: Spec) -> Dim:
    """Of several rows, which are multiplied number by number, an eighth of what the units for floats do."""
    rows, w = _rows(spec.inputs[0]), spec.inputs[1]
    each = 2 * int(w.shape[0]) * int(w.shape[1])
    return each + (d.dim_max(1, rows) - 1) * (each * 8)


# ---- products of many rows ---------------------------------------------------------------------------------------------


TILED, SKINNY = "one_element.cu tensor_product.cu", "one_element.cu skinny_product.cu"
"""the files of their texts"""


def _matrices(spec: Spec) -> tuple[int, int, int, Dim, int, int, int]:
    """(matrices of y, of x, and of w; rows of each of x; k, columns; 1 where w lies as [k][columns]) of a product."""
    x, w = spec.inputs[:2]
    if spec.op.name == "linear":
        return 1, 1, 1, _rows(x), int(w.shape[1]), int(w.shape[0]), 0
    k, columns = (int(s) for s in w.shape[-2:])
    of_w = int(d.evaluate(d.product(w.shape[:-2]), {}))
    if of_w == 1:
        return 1, 1, 1, _rows(x), k, columns, 1
    return of_w, of_w if d.product(x.shape[:-2]) != 1 else 1, of_w, x.shape[-2], k, columns, 1


def _matrices_differ(spec: Spec) -> str | None:
    """Why matrices beside each other are not those of one product; None where they are."""
    x, w = spec.inputs[:2]
    if x.rank < 2 or w.rank < 2:
        return "matrices only"
    one_for_all = d.product(w.shape[:-2]) == 1 or d.product(x.shape[:-2]) == 1
    fit = spec.op.name == "linear" or one_for_all or x.shape[:-2] == w.shape[:-2]
    return None if fit else "equal leading axes, or none on a side"


def product_takes(spec: Spec) -> str | None:
    x, w = spec.inputs[:2]
    kinds = (x.dtype, w.dtype)
    if kinds not in ((bf16, bf16), (f16, f16), (f32, bf16), (f32, f32)):
        return "bf16, f16, f32, and f32 by bf16 only"
    if any(t.dtype not in FLOATS for t in (*spec.inputs[2:], *spec.outputs)) or spec.outputs[0].dtype is not x.dtype:
        return "a result as x, a bias of f32, bf16 or f16"
    if (why := _matrices_differ(spec) or _static(*w.shape)) is not None:
        return why
    matrices, _, _, rows, k, columns, across = _matrices(spec)
    if k % 8 or k == 0 or columns == 0 or (across and columns % 8):
        return "rows of a multiple of 8 elements only"
    high = d.bounds(rows)[1]
    return None if max(matrices * high * max(k, columns), matrices * k * columns) < 1 << 40 and high < 1 << 31 else "too many rows"


def _is_prepared(spec: Spec) -> bool:
    """Whether the parts of w are made when it is bound: that of a linear is a parameter, mostly."""
    return spec.op.name == "linear" and spec.inputs[1].dtype is f32


def product_prepares(spec: Spec) -> tuple[Preparation, ...]:
    """The three parts of a weight of floats."""
    if not _is_prepared(spec):
        return ()
    w = spec.inputs[1]
    count = int(d.evaluate(d.product(w.shape), {}))
    call = LaunchCall(_text("weight_parts.cu", {"COUNT": f"{count}LL"}, {}),
                      (Launch("weight_parts", min(-(-count // 1024), 16 * MULTIPROCESSORS), 256),), ())
    return (Preparation(call, (1,), (TensorType((3, *w.shape), bf16),)),)


def product(spec: Spec) -> LaunchCall:
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    matrices, of_x, of_w, rows, k, columns, across = _matrices(spec)
    bias, prepared = spec.role("bias"), _is_prepared(spec)
    parts_x, parts_w = 3 if x.dtype is f32 else 1, 3 if w.dtype is f32 else 1
    down = matrices * -(-d.bounds(rows)[1] // TILE_ROWS)
    wide = _columns_of_a_tile(down, columns, 128 if parts_x == 3 else 256)
    stages = TILES_BYTES // ((TILE_ROWS + wide) * 128)
    tiles = d.ceil_div(rows, TILE_ROWS) * (matrices * -(-columns // wide))
    steps = -(-k // 64) * (6 if parts_w == 3 else parts_x)
    splits = max(1, min(MULTIPROCESSORS // (down * -(-columns // wide)), steps // STEPS_OF_A_SPLIT, MOST_SPLITS))
    numbers: dict[str, object] = {
        "KIND": "F16" if x.dtype is f16 else "Bf16", "INNER": k, "WIDTH": columns, "COLUMNS": wide, "STAGES": stages,
        "SPLITS": splits, "PARTS_X": parts_x, "PARTS_W": parts_w, "ACROSS": across, "MATRICES": matrices, "MATRICES_X": of_x,
        "MATRICES_W": of_w}
    types = {"X": x.dtype, "W": w.dtype, "B": f32 if bias is None else bias.dtype, "Y": y.dtype}
    more = ({} if bias is None else {"BIAS": 1}) | ({"W_PREPARED": 1} if prepared else {})
    text = _text(TILED, numbers | more, types)
    shared = stages * (TILE_ROWS + wide) * 128 + 1024
    launches = [Launch("tensor_product", d.dim_min(tiles * splits, MULTIPROCESSORS), 384, shared, waits=True)]
    made = rows * (matrices * columns)
    pieces: list[Dim] = [256 * MULTIPROCESSORS, d.ceil_div(made * (4 * splits), 256) * 256 if splits > 1 else 256]
    if splits > 1:
        launches.append(Launch("joined", d.dim_min(d.ceil_div(made, 256), 16 * MULTIPROCESSORS), 256, waits=True))
    if parts_x == 3:
        pieces.append(d.ceil_div(rows * (of_x * k * 6), 256) * 256)
        elements = rows * (of_x * k)
        if parts_w == 3 and not prepared:
            pieces.append(-(-of_w * k * columns * 6 // 256) * 256)
            elements = elements + of_w * k * columns
        launches.insert(0, Launch("parts", d.dim_min(d.ceil_div(elements, 1024), 16 * MULTIPROCESSORS), 256, waits=True))
    plain = LaunchCall(text, (Launch("plain", d.ceil_div(made, 256), 256, waits=True),), (rows,))
    return LaunchCall(text, tuple(launches), (rows,), tuple(pieces), ALIGNED, plain)


def _columns_of_a_tile(tiles_down: int, columns: int, most: int) -> int:
    """The most with which all multiprocessors have a tile, or nearly; no more than there are."""
    for wide in sorted({most, 128}, reverse=True):
        if columns > wide // 2 and tiles_down * -(-columns // wide) * 10 >= 9 * MULTIPROCESSORS:
            return wide
    return 64


def product_traffic(spec: Spec) -> Dim:
    """Operands and results; floats are read once, and their parts, 6 bytes of each, written and read; those of a weight read."""
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    moved: Dim = d.product(y.shape) * y.dtype.itemsize
    for t, made in ((x, False), (w, _is_prepared(spec))):
        moved = moved + d.product(t.shape) * (6 if made else 16 if t.dtype is f32 else t.dtype.itemsize)
    return moved


def product_steps(spec: Spec) -> Dim:
    """Of whole tiles, SHARE products of which take as long as one of f32; two floats take six of them, a float by bf16 three."""
    matrices, _, _, rows, k, columns, _ = _matrices(spec)
    pairs = {(f32, f32): 6, (f32, bf16): 3}.get((spec.inputs[0].dtype, spec.inputs[1].dtype), 1)
    return d.ceil_div(rows, TILE_ROWS) * (TILE_ROWS * 2 * matrices * k * columns * pairs // SHARE)


# ---- products of a few dozen rows --------------------------------------------------------------------------------------

SKINNY_WARPS, SKINNY_STAGES, SKINNY_ROWS = 4, 6, 64
"""of skinny_product.cu: warps of a block, turns that are copied ahead; rows of a block, at most"""

SKINNY_BYTES = 64 << 10
"""of x in shared memory, at most: two blocks of a multiprocessor"""


def skinny_takes(spec: Spec) -> str | None:
    x, w = spec.inputs[:2]
    if (x.dtype, w.dtype) not in ((bf16, bf16), (f16, f16), (f32, bf16)):
        return "bf16, f16, and f32 by bf16 only"
    if any(t.dtype not in FLOATS for t in (*spec.inputs[2:], *spec.outputs)) or spec.outputs[0].dtype is not x.dtype:
        return "a result as x, a bias of f32, bf16 or f16"
    if (why := _static(*w.shape)) is not None:
        return why
    columns, k = (int(s) for s in w.shape)
    if k % 8 or k == 0 or columns == 0:
        return "rows of a multiple of 8 elements only"
    return None if d.bounds(_rows(x))[1] * max(k, columns) < 1 << 31 else "too many rows"


def skinny(spec: Spec) -> LaunchCall:
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    rows, (columns, k) = _rows(x), (int(s) for s in w.shape)
    bias, parts = spec.role("bias"), 3 if x.dtype is f32 else 1
    tiles = 1
    while tiles * 16 < min(SKINNY_ROWS, d.bounds(rows)[1]):
        tiles *= 2
    blocks = -(-columns // (16 * SKINNY_WARPS))
    most = SKINNY_BYTES // (tiles * 32 * parts) // 64 * 64
    wanted = max(1, -(-2 * MULTIPROCESSORS // blocks))              # spans that keep a GPU busy
    span = max(64, min(most, -(-k // wanted // 64) * 64))
    splits = -(-k // span)
    numbers: dict[str, object] = {
        "KIND": "F16" if x.dtype is f16 else "Bf16", "INNER": k, "WIDTH": columns, "ACROSS": 0, "MATRICES": 1, "MATRICES_X": 1,
        "MATRICES_W": 1, "PARTS_X": parts, "TILES": tiles, "SPAN": span, "SPLITS": splits, "WARPS": SKINNY_WARPS,
        "STAGES": SKINNY_STAGES}
    types = {"X": x.dtype, "W": w.dtype, "B": f32 if bias is None else bias.dtype, "Y": y.dtype}
    text = _text(SKINNY, numbers | ({} if bias is None else {"BIAS": 1}), types)
    shared = parts * tiles * 32 * span + SKINNY_WARPS * SKINNY_STAGES * 2048
    launches = [Launch("skinny_product", d.ceil_div(rows, 16 * tiles) * (blocks * splits), 32 * SKINNY_WARPS, shared, waits=True,
                       early=(1,))]
    made, pieces = rows * columns, tuple[Dim, ...]()
    if splits > 1:
        launches.append(Launch("skinny_joined", d.ceil_div(made, 256), 256, waits=True))
        pieces = (d.ceil_div(made * (4 * splits), 256) * 256,)
    plain = LaunchCall(text, (Launch("plain", d.ceil_div(made, 256), 256, waits=True),), (rows,))
    return LaunchCall(text, tuple(launches), (rows,), pieces, ALIGNED, plain)


def skinny_traffic(spec: Spec) -> Dim:
    """All of w for every few dozen rows, from the second time on out of the cache."""
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    of_w = int(w.shape[0]) * int(w.shape[1]) * w.dtype.itemsize
    small = d.product(x.shape) * x.dtype.itemsize + d.product(y.shape) * y.dtype.itemsize
    return of_w + of_w // 5 * (d.dim_max(1, d.ceil_div(_rows(x), SKINNY_ROWS)) - 1) + small


def skinny_steps(spec: Spec) -> Dim:
    """Of whole tiles, a third of what the largest products reach."""
    w, parts = spec.inputs[1], 3 if spec.inputs[0].dtype is f32 else 1
    return d.ceil_div(_rows(spec.inputs[0]), 16) * (16 * 2 * int(w.shape[0]) * int(w.shape[1]) * parts * 3 // SHARE)


# ---- products of whatever there is -------------------------------------------------------------------------------------

SIDE = 64
"""of any_product.cu: rows, and columns, of a tile"""


def any_product_takes(spec: Spec) -> str | None:
    x = spec.inputs[0]
    if any(t.dtype is bool_ or t.dtype.is_float is not x.dtype.is_float for t in (*spec.inputs, *spec.outputs)):
        return "numbers of one kind only"
    return _matrices_differ(spec)


def any_product(spec: Spec) -> LaunchCall:
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    linear, one = spec.op.name == "linear", d.product(w.shape[:-2]) == 1
    inner, columns = (w.shape[1], w.shape[0]) if linear else w.shape[-2:]
    matrices = 1 if one else d.product(w.shape[:-2])
    rows = _rows(x) if one else x.shape[-2]
    one_x = one or (d.product(x.shape[:-2]) == 1)
    bias = spec.role("bias")
    added = accumulated(x.dtype)[0]
    numbers: dict[str, object] = {"ACROSS": int(not linear), "MATRICES_X": int(one_x), "MATRICES_W": int(one)}
    types: dict[str, DType | str] = {"A": added}
    for name, dtype in (("X", x.dtype), ("W", w.dtype), ("B", x.dtype if bias is None else bias.dtype), ("Y", y.dtype)):
        types[name] = dtype if dtype in STORED else stored_as(dtype)
        if dtype not in STORED:
            numbers |= {f"WIDE_{name}": f"({added})", f"NARROW_{name}": f"({stored_as(dtype)})"}
    text = _text("any_product.cu", numbers | ({} if bias is None else {"BIAS": 1}), types)
    grid = matrices * d.ceil_div(rows, SIDE) * d.ceil_div(columns, SIDE)
    return LaunchCall(text, (Launch("any_product", grid, 256, waits=True),), (rows, columns, inner))


def any_product_steps(spec: Spec) -> Dim:
    """Of whole tiles, at a third of what the units for floats do."""
    w = spec.inputs[1]
    inner, columns = (w.shape[1], w.shape[0]) if spec.op.name == "linear" else w.shape[-2:]
    one = d.product(w.shape[:-2]) == 1
    rows = _rows(spec.inputs[0]) if one else spec.inputs[0].shape[-2]
    matrices = 1 if one else d.product(w.shape[:-2])
    return matrices * d.ceil_div(rows, SIDE) * d.ceil_div(columns, SIDE) * inner * (SIDE * SIDE * 2 * 3)


# ---- attention ---------------------------------------------------------------------------------------------------------


def _lay(width: int, pack: int) -> tuple[int, int]:
    """(lanes of a key, packs of a lane)."""
    lanes = min(32, max(1, width // pack))
    return lanes, width // (lanes * pack)


def _held(width: int, group: int, lanes: int, warps: int) -> int:
    """Bytes of shared memory in which the warps of a block of attention.cu leave their sums."""
    return warps * (32 // lanes) * group * (width + 2) * 4


def _said(spec: Spec) -> dict[str, object]:
    """The numbers of a spec of attention, as all texts of it have them."""
    q, k = spec.inputs[:2]
    return {"D": int(q.shape[2]), "GROUP": int(q.shape[1]) // int(k.shape[1]), "HEADS": int(k.shape[1]),
            "SCALE": repr(float(spec.attrs["scale"])), "CAP": repr(float(spec.attrs["softcap"])),
            "CAUSAL": int(bool(spec.attrs["causal"])), "WINDOW": int(spec.attrs["window"])}


def _stored(spec: Spec) -> dict[str, DType | str]:
    return {name: t.dtype for name, t in zip("QKVY", (*spec.inputs[:3], spec.outputs[0]), strict=True)}


def attention_takes(spec: Spec) -> str | None:
    if spec.role("mask") is not None:
        return "no mask"
    q, k, v = spec.inputs[:3]
    if any(t.dtype not in FLOATS for t in (*spec.inputs, *spec.outputs)) or k.dtype is not v.dtype:
        return "f32, bf16 and f16, keys and values of one type"
    if (why := _static(*q.shape[1:], *k.shape[1:], *v.shape[1:])) is not None:
        return why
    if int(v.shape[2]) != int(q.shape[2]):
        return "keys and values of one length only"
    width, group = int(q.shape[2]), int(q.shape[1]) // int(k.shape[1])
    for pack in (ALIGNED // k.dtype.itemsize, 1):
        lanes, chunks = _lay(width, pack)
        if lanes & (lanes - 1) or lanes * chunks * pack != width:
            return "heads whose length is a power of two, or a multiple of 32 packs of 16 bytes"
        if group * chunks * pack > 64 or _held(width, group, lanes, 4) > 48 << 10:
            return "too many heads for one head of keys"
    if d.bounds(q.shape[0])[1] * int(q.shape[1]) * width > 1 << 31:
        return "too many queries: parts of so many rows are not kept"
    return None


def attention(spec: Spec) -> LaunchCall:
    q, k = spec.inputs[:2]
    n, s, width, heads = q.shape[0], k.shape[0], int(q.shape[2]), int(k.shape[1])
    group = int(q.shape[1]) // heads
    parts = max(1, min(MOST_PARTS, -(-d.bounds(s)[1] // KEYS_OF_A_PART)))
    numbers = _said(spec) | {"SPLITS": parts}
    rows = n * (heads * group)
    here = d.dim_min(parts, d.ceil_div(BLOCKS_OF_PARTS, d.dim_max(1, n) * heads))
    given = s, spec.attrs["start"], here
    pieces = (d.ceil_div(rows * here * (width * 4), 256) * 256, d.ceil_div(rows * here * 8, 256) * 256)

    def form(pack: int) -> LaunchCall:
        warps = 8 if _held(width, group, _lay(width, pack)[0], 8) <= 48 << 10 else 4
        packs = {"PACK": pack, "PACK_Q": min(pack, ALIGNED // q.dtype.itemsize)}
        text = _text("attention.cu", {**numbers, **packs, "WARPS": warps}, _stored(spec))
        launches = (Launch("attention_parts", n * here * heads, 32 * warps, waits=True),
                    Launch("attention_joined", rows, 256, waits=True))
        return LaunchCall(text, launches, given, pieces)

    return replace(form(ALIGNED // k.dtype.itemsize), alignment=ALIGNED, otherwise=form(1))


def attention_traffic(spec: Spec) -> Dim:
    """All keys and values for every query."""
    q, k = spec.inputs[:2]
    each = 2 * k.shape[0] * (int(k.shape[1]) * int(k.shape[2]) * k.dtype.itemsize)
    small = 2 * q.shape[0] * (int(q.shape[1]) * int(q.shape[2]) * q.dtype.itemsize)
    return each + each * (q.shape[0] - 1) // 5 + small


# ---- attention of many queries -----------------------------------------------------------------------------------------

WHOLE_ROWS = "seen_keys.cu plain_attention.cu"
"""what a text of attention begins with"""

TENSOR_KEYS = {64: 128, 128: 128, 192: 80, 256: 80}
"""of tensor_attention.cu: keys of a tile, by the length of heads up to a multiple of 64"""

QUERY_GROUPS = {64: 3, 128: 2, 192: 2, 256: 2}
"""of tensor_attention.cu: warpgroups, with 64 queries each"""


def tensor_attention_takes(spec: Spec) -> str | None:
    if spec.role("mask") is not None:
        return "no mask"
    q, k, v = spec.inputs[:3]
    if q.dtype not in (bf16, f16) or any(t.dtype is not q.dtype for t in (k, v, *spec.outputs)):
        return "bf16 or f16, one type for all"
    if (why := _static(*q.shape[1:], *k.shape[1:], *v.shape[1:])) is not None:
        return why
    width = int(q.shape[2])
    if int(v.shape[2]) != width or width % 8 or not 0 < width <= max(TENSOR_KEYS):
        return f"heads of one length only, a multiple of 8 up to {max(TENSOR_KEYS)}"
    many = max(d.bounds(q.shape[0])[1] * int(q.shape[1]), d.bounds(k.shape[0])[1] * int(k.shape[1])) * width
    return None if many < 1 << 40 and max(d.bounds(t.shape[0])[1] for t in (q, k)) < 1 << 30 else "too many queries or keys"


def tensor_attention(spec: Spec, near: bool = False) -> LaunchCall:
    """near: weights keep twice as many bits for their products with values, which then take twice as long."""
    q, k = spec.inputs[:2]
    n, s, width = q.shape[0], k.shape[0], int(q.shape[2])
    padded = -(-width // 64) * 64
    keys, groups = TENSOR_KEYS[padded], 2 if near else QUERY_GROUPS[padded]
    rows = 64 * groups
    stages = min(4, (TILES_BYTES - rows * padded * 2 + (24 << 10)) // (4 * keys * padded))
    kind = "F16" if q.dtype is f16 else "Bf16"
    numbers = _said(spec) | {"KIND": kind, "PADDED": padded, "KEYS": keys, "STAGES": stages, "GROUPS": groups,
                            "NEAR": int(near)}
    text = _text(f"{WHOLE_ROWS} tensor_attention.cu", numbers, _stored(spec))
    shared = rows * padded * 2 + 4 * stages * keys * padded + 1024
    given = n, s, spec.attrs["start"]
    launches = (Launch("attention_maps", d.dim_min(1, n), 96, waits=True),
                Launch("tensor_attention", d.ceil_div(n, rows) * int(q.shape[1]), 128 * (groups + 1), shared, waits=True))
    plain = LaunchCall(text, (Launch("plain", d.ceil_div(n * int(q.shape[1]), 8), 256, waits=True),), given)
    return LaunchCall(text, launches, given, (512,), ALIGNED, plain)


def near_attention(spec: Spec) -> LaunchCall:
    return tensor_attention(spec, near=True)


def near_attention_steps(spec: Spec) -> Dim:
    return tensor_attention_steps(spec) * 3 // 2


def tensor_attention_traffic(spec: Spec) -> Dim:
    """Operands and results, once."""
    return sum((d.product(t.shape) * t.dtype.itemsize for t in (*spec.inputs[:3], *spec.outputs)), 0)


def tensor_attention_steps(spec: Spec) -> Dim:
    """Of all keys that are seen, by so many blocks as there are multiprocessors, SHARE products in the time of one of f32."""
    q, k = spec.inputs[:2]
    n, s, padded = q.shape[0], k.shape[0], -(-int(q.shape[2]) // 64) * 64
    seen = s - n // 2 if spec.attrs["causal"] else s
    window = int(spec.attrs["window"])
    rows = 64 * QUERY_GROUPS[padded]
    seen = d.dim_min(seen, window + rows) if window else seen
    waves = d.ceil_div(d.ceil_div(n, rows) * int(q.shape[1]), MULTIPROCESSORS)
    return waves * seen * (MULTIPROCESSORS * rows * padded * 4 // SHARE)


FLOAT_TILES = {64: (64, 3, 2), 128: (32, 2, 2), 192: (32, 2, 1), 256: (32, 1, 1)}
"""of float_attention.cu, by the length of heads up to a multiple of 64: keys of a tile, tiles copied ahead, warpgroups"""


def float_attention_takes(spec: Spec) -> str | None:
    if any(t.dtype is not f32 for t in (*spec.inputs, *spec.outputs)):
        return "f32 only"
    half = [TensorType(t.shape, bf16) for t in spec.inputs], [TensorType(t.shape, bf16) for t in spec.outputs]
    return tensor_attention_takes(replace(spec, inputs=tuple(half[0]), outputs=tuple(half[1])))


def float_attention(spec: Spec) -> LaunchCall:
    q, k, v = spec.inputs[:3]
    n, s, width, heads, all_heads = q.shape[0], k.shape[0], int(q.shape[2]), int(k.shape[1]), int(q.shape[1])
    padded = -(-width // 64) * 64
    keys, stages, groups = FLOAT_TILES[padded]
    rows = 64 * groups
    numbers = _said(spec) | {"PADDED": padded, "KEYS": keys, "STAGES": stages, "GROUPS": groups}
    text = _text(f"{WHOLE_ROWS} float_attention.cu", numbers, _stored(spec))
    shared = 6 * padded * (rows + 2 * stages * keys) + 1024
    given = n, s, spec.attrs["start"]
    elements = n * (all_heads * width) + s * (2 * heads * width)
    launches = (Launch("attention_parts", d.dim_min(d.ceil_div(elements, 1024), 16 * MULTIPROCESSORS), 256, waits=True),
                Launch("float_attention", d.ceil_div(n, rows) * all_heads, 128 * (groups + 1), shared, waits=True))
    plain = LaunchCall(text, (Launch("plain", d.ceil_div(n * all_heads, 8), 256, waits=True),), given)
    pieces: tuple[Dim, ...] = (512, *(d.ceil_div(t.shape[0] * (int(t.shape[1]) * width * 6), 256) * 256 for t in (q, k, v)))
    return LaunchCall(text, launches, given, pieces, ALIGNED, plain)


def float_attention_traffic(spec: Spec) -> Dim:
    """Operands and results once, and their parts, 6 bytes of each, written and read."""
    moved: Dim = d.product(spec.outputs[0].shape) * 4
    for t in spec.inputs[:3]:
        moved = moved + d.product(t.shape) * 16
    return moved


def float_attention_steps(spec: Spec) -> Dim:
    """Six products of tensor_attention's, which do not run while scores are weighed."""
    return tensor_attention_steps(spec) * 12


# ---- attention of few queries over keys of 16 bits ---------------------------------------------------------------------

ROWS_OF_QUERIES, QUERY_WARPS = 16, 4
"""of few_queries.cu: rows of a tile; warps of a block"""

MOST_QUERY_PARTS, LEAST_KEYS, JOINED_COLUMNS = 256, 128, 64
"""of few_queries.cu: parts of the keys; keys of a part of the most keys, at least; columns that a block of queries_joined has"""


def few_queries_takes(spec: Spec) -> str | None:
    why = tensor_attention_takes(spec)
    if why is not None:
        return why
    q, k = spec.inputs[:2]
    if int(q.shape[2]) % 64:
        return "heads whose length is a multiple of 64"
    if int(q.shape[1]) // int(k.shape[1]) > ROWS_OF_QUERIES:
        return "too many heads for one head of keys"
    if d.bounds(q.shape[0])[1] * int(q.shape[1]) * int(q.shape[2]) > 1 << 31:
        return "too many queries: parts of so many rows are not kept"
    return None


def few_queries(spec: Spec) -> LaunchCall:
    q, k = spec.inputs[:2]
    n, s, width, heads = q.shape[0], k.shape[0], int(q.shape[2]), int(k.shape[1])
    group = int(q.shape[1]) // heads
    tiles = d.ceil_div(n, ROWS_OF_QUERIES // group) * heads
    most = max(1, min(MOST_QUERY_PARTS, -(-d.bounds(s)[1] // LEAST_KEYS)))      # whatever s is: a longer cache is the same launch
    resident = 2 if width <= 128 else 1
    parts = d.dim_min(most, d.ceil_div(resident * MULTIPROCESSORS, d.dim_max(1, tiles)))
    stages = 4 if width == 64 else 3
    kind = "F16" if q.dtype is f16 else "Bf16"
    numbers = _said(spec) | {"KIND": kind, "WARPS": QUERY_WARPS, "STAGES": stages, "JOINED": JOINED_COLUMNS}
    rows = n * (heads * group)
    shared = max(stages * 2 * 16 * width * 2, 16 * width * 4) * QUERY_WARPS
    launches = (Launch("queries_parts", tiles * parts, 32 * QUERY_WARPS, shared, waits=True),
                Launch("queries_joined", rows * (width // JOINED_COLUMNS), 256, waits=True))
    pieces = (d.ceil_div(rows * parts * (width * 4), 256) * 256, d.ceil_div(rows * parts * 8, 256) * 256)
    given = n, s, spec.attrs["start"], parts
    text = _text("seen_keys.cu few_queries.cu", numbers, _stored(spec))
    return LaunchCall(text, launches, given, pieces, ALIGNED, tensor_attention(spec).otherwise)


def few_queries_traffic(spec: Spec) -> Dim:
    """Keys and values, once for each tile of rows: the first time from memory, then from the cache."""
    q, k = spec.inputs[:2]
    each = 2 * k.shape[0] * (int(k.shape[1]) * int(k.shape[2]) * k.dtype.itemsize)
    tiles = d.ceil_div(q.shape[0], ROWS_OF_QUERIES // (int(q.shape[1]) // int(k.shape[1])))
    small = 2 * q.shape[0] * (int(q.shape[1]) * int(q.shape[2]) * q.dtype.itemsize)
    return each + each * (d.dim_max(1, tiles) - 1) // 5 + small


# ---- sums of all before ------------------------------------------------------------------------------------------------

WARPS_WANTED, LEAST_TURNS = 2048, 4
"""of cumsum.cu: warps that keep a GPU busy; turns of a part, at least"""

MOST_LINE_PARTS = 1024
"""parts of a line; each adds up the totals of those before it"""


def cumsum_takes(spec: Spec) -> str | None:
    x = spec.inputs[0]
    axis = int(spec.attrs["axis"]) % x.rank
    if x.dtype is bool_ or x.dtype.itemsize not in OF_SIZE:
        return "numbers only"
    return _static(*x.shape[axis + 1:])


def cumsum(spec: Spec) -> LaunchCall:
    x = spec.inputs[0]
    axis, dtype = int(spec.attrs["axis"]) % x.rank, x.dtype
    outer, count, inner = d.product(x.shape[:axis]), x.shape[axis], int(d.evaluate(d.product(x.shape[axis + 1:]), {}))
    kinds, stored = accumulated(dtype), stored_as(dtype)
    lines = max(1, d.bounds(outer)[0]) * inner
    longest = d.bounds(count)[1]

    def call(pack: int) -> LaunchCall:
        beside = 1 if inner == 1 else 32
        turns = -(-longest // (32 * pack if inner == 1 else 8))
        parts = max(1, min(WARPS_WANTED * beside // lines, turns // LEAST_TURNS, MOST_LINE_PARTS))
        numbers: dict[str, object] = {"INNER": inner, "PACK": pack, "PARTS": parts}
        types: dict[str, DType | str] = {"T": dtype if dtype in STORED else stored, "A": kinds[0], "C": kinds[1]}
        if dtype not in STORED:
            numbers |= {"WIDE_T": f"({kinds[0]})", "NARROW_T": f"({stored})"}
        threads = outer * (32 if inner == 1 else inner)
        launches = [Launch("cumsum", d.ceil_div(threads * parts, 256), 256, waits=True)]
        pieces: tuple[Dim, ...] = ()
        if parts > 1:
            launches.insert(0, Launch("totals", d.ceil_div(threads * (parts - 1), 256), 256, waits=True))
            pieces = (d.ceil_div(outer * (inner * (parts - 1) * 8), 256) * 256,)
        return LaunchCall(_text("cumsum.cu", numbers, types), tuple(launches), (outer, count), pieces)

    pack = ALIGNED // dtype.itemsize
    if inner > 1 or not d.is_static(count) or int(d.evaluate(count, {})) % pack:
        return call(1)
    return replace(call(pack), alignment=ALIGNED, otherwise=call(1))


# ---- rows of a state ---------------------------------------------------------------------------------------------------


def write_rows_takes(spec: Spec) -> str | None:
    base, value = spec.inputs
    if int(spec.attrs["axis"]) % len(base.shape) != 0 or base.dtype is not value.dtype or base.dtype.itemsize not in OF_SIZE:
        return "rows along the first axis only"
    return _static(*base.shape[1:])


def write_rows(spec: Spec) -> LaunchCall:
    return _written(spec, _width(spec))


def _width(spec: Spec) -> int:
    """Elements of a row."""
    return int(d.evaluate(d.product(spec.inputs[0].shape[1:]), {}))


def rows_apart(spec: Spec, strides: Sequence[Strides]) -> LaunchCall | None:
    """The call for rows that lie apart."""
    base, value = spec.inputs
    ours, theirs = strides
    if not _as_rows(base, ours, 0) or not _as_rows(value, theirs, 1) or not d.is_static(theirs[0]):
        return None
    step = int(d.evaluate(theirs[0], {}))
    return _written(spec, step) if step >= 0 else None


def _as_rows(t: TensorType, strides: Strides, first: int) -> bool:
    """Whether its elements follow each other from an axis on."""
    axes = list(zip(t.shape, strides, contiguous_strides(t.shape), strict=True))[first:]
    return all(size == 1 or lies == follows for size, lies, follows in axes)


def _written(spec: Spec, step: int) -> LaunchCall:
    """step: elements from one row of the value to the next."""
    base, value = spec.inputs
    itemsize, given = base.dtype.itemsize, (value.shape[0], base.shape[0], spec.attrs["start"])
    width, step = _width(spec) * itemsize, step * itemsize

    def call(unit: int, kind: str) -> LaunchCall:
        count = width // unit
        said = {"WIDTH": max(1, count), "STEP": step // unit}
        text = _text("write_rows.cu", said, {"U": kind})
        return LaunchCall(text, (Launch("write_rows", d.ceil_div(value.shape[0] * count, 256), 256, waits=True),), given)

    single = call(itemsize, OF_SIZE[itemsize])
    if width % ALIGNED or step % ALIGNED:
        return single
    return replace(call(ALIGNED, "Pack<uint32_t, 4>"), alignment=ALIGNED, otherwise=single)


# ---- the backend -------------------------------------------------------------------------------------------------------


def kernels() -> list[Kernel]:
    def made(op: str, build: Callable[[Spec], LaunchCall], accepts: Callable[[Spec], str | None], file: str, *,
             traffic: Callable[[Spec], Dim] | None = None, state: bool = False,
             prepare: Callable[[Spec], tuple[Preparation, ...]] | None = None,
             strided: Callable[[Spec, Sequence[Strides]], LaunchCall | None] | None = None, mark: str = "",
             arithmetic: Callable[[Spec], Dim] | None = None, arch: tuple[str, ...] = (), header: Path = HEADER) -> Kernel:
        return Kernel(name=f"{NAME}.{op}{mark}", backend=NAME, op=op, build=build, accepts=accepts,
                      source=_read(file), module=__name__, toolchain=nvrtc.made_with(header), contiguous=True,
                      traffic=traffic, in_place=((0, 0),) if state else (), updates=state, strided=strided,
                      arithmetic=arithmetic, prepare=prepare, requirements={"arch": arch} if arch else {})

    def tensor_product(op: str) -> Kernel:
        return made(op, product, product_takes, TILED, mark="_tensor", traffic=product_traffic,
                    arithmetic=product_steps, arch=("sm_90",), header=TENSOR_CORES, prepare=product_prepares)

    def any_of(op: str) -> Kernel:
        return made(op, any_product, any_product_takes, "any_product.cu", mark="_any", arithmetic=any_product_steps)

    return [made("linear", linear, linear_takes, "few_rows.cu", traffic=linear_traffic, arithmetic=linear_steps),
            made("linear_argmax", linear_argmax, linear_argmax_takes, "few_rows.cu", traffic=linear_traffic),
            tensor_product("linear"), tensor_product("dot"), any_of("linear"), any_of("dot"),
            made("linear", skinny, skinny_takes, SKINNY, mark="_skinny", traffic=skinny_traffic, arithmetic=skinny_steps,
                 arch=FROM_80, header=TENSOR_CORES),
            made("attention", attention, attention_takes, "attention.cu", traffic=attention_traffic),
            made("attention", tensor_attention, tensor_attention_takes, f"{WHOLE_ROWS} tensor_attention.cu", mark="_tensor",
                 traffic=tensor_attention_traffic, arithmetic=tensor_attention_steps, arch=("sm_90",), header=TENSOR_CORES),
            made("attention", near_attention, tensor_attention_takes, f"{WHOLE_ROWS} tensor_attention.cu", mark="_tensor_near",
                 traffic=tensor_attention_traffic, arithmetic=near_attention_steps, arch=("sm_90",), header=TENSOR_CORES),
            made("attention", float_attention, float_attention_takes, f"{WHOLE_ROWS} float_attention.cu", mark="_floats",
                 traffic=float_attention_traffic, arithmetic=float_attention_steps, arch=("sm_90",), header=TENSOR_CORES),
            made("attention", few_queries, few_queries_takes, "seen_keys.cu few_queries.cu", mark="_few",
                 traffic=few_queries_traffic, arch=FROM_80, header=TENSOR_CORES),
            made("cumsum", cumsum, cumsum_takes, "cumsum.cu"),
            replace(made("scatter", scatter, scatter_takes, "scatter.cu"), in_place=((0, 0),)),
            made("write_rows", write_rows, write_rows_takes, "write_rows.cu", state=True, strided=rows_apart)]


def copy_kernel() -> Kernel:
    return Kernel(name=f"{NAME}.copy", backend=NAME, op="copy", build=_no_copy, accepts=lambda spec: None,
                  source=(HERE / "copy.cu").read_text(), module=__name__, toolchain=nvrtc.made_with(HEADER), build_copy=build_copy)


def _no_copy(spec: Spec) -> LaunchCall:
    raise AssertionError("copies are built by build_copy")


def build_copy(shape: Sequence[Dim], out_strides: Sequence[Dim], in_strides: Sequence[Dim], itemsize: int) -> LaunchCall:
    """The call that copies a strided window into another."""
    axes = [axis for axis in zip(shape, out_strides, in_strides, strict=True) if axis[0] != 1] or [(1, 0, 0)]
    text = _text("copy.cu", {"RANK": len(axes)}, {"T": OF_SIZE[itemsize]})
    grid = d.ceil_div(d.product(shape), 256)
    sizes = tuple(x for column in zip(*axes, strict=True) for x in column)
    return LaunchCall(text, (Launch("copy", grid, 256, waits=True),), sizes)
