"""scatter: the call of scatter.cu for one spec. Rows are written, summed or compared in an order that does not depend on threads.
For equal indices in mode `set` the last one wins, as on a CPU; the op's definition leaves that open."""

from __future__ import annotations

from dataclasses import replace

from tensor_graphs.kernels.cuda.source_text import ALIGNED, MULTIPROCESSORS, text_of
from tensor_graphs.kernels.kernel import Launch, LaunchCall, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64

FILE = "scatter.cu"

COMBINED = {f32: "double", bf16: "float", f16: "float", f8e4m3: "float", f8e5m2: "float", f64: "double"}
"""dtype -> C type in which floats are summed; long sums of f32 in f32 would lose more than a change of their order does"""

COMPARED = {f32: "float", bf16: "float", f16: "float", f8e4m3: "float", f8e5m2: "float", f64: "double"}

TILE, RUNS, SHARES, JOINING, CHUNK, CLEARED, AT_ONCE = 1024, 16, 4, 1024, 64, 4096, 3
"""constants of scatter.cu: indices that a block sorts; sorted runs merged together; threads per merged word; threads of a block of
the first merge; adjacent updates combined ahead; words that a block clears; packs that a thread loads simultaneously"""

MOST = 1 << 31
"""limit of rows and of indices, exclusive: a row and the number of its update share a word of 64 bits"""

MOST_ELEMENTS = (1 << 39) - (1 << 20)
"""limit of elements of results and updates, exclusive, so that a thread per element and COPYING blocks fit into a grid"""

ELEMENTS_OF_A_BLOCK, MOST_BLOCKS = 1024, 16
"""constants of the launch `chunked`: elements per block of a chunk; most blocks of a chunk"""

COPYING = 2048
"""most blocks that copy; more would waste time in place, where they have nothing to do but must start"""

SLOTS, AVERAGE, UPDATING = 16, 2, 4 * MULTIPROCESSORS
"""constants of scatter.cu: updates that are listed per row; most updates per row on average for such lists; most blocks that apply
listed and sorted updates"""


def scatter_takes(spec: Spec) -> str | None:
    base, index, updates = spec.inputs
    if max(d.bounds(base.shape[_axis(spec)])[1], d.bounds(d.product(index.shape))[1]) >= MOST:
        return "fewer than 2^31 rows and indices only"
    fits = all(d.bounds(d.product(t.shape))[1] < MOST_ELEMENTS for t in (base, updates))
    return None if fits else "a million fewer than 2^39 elements only"


def scatter(spec: Spec) -> LaunchCall:
    base, axis = spec.inputs[0], _axis(spec)
    inner = d.product(base.shape[axis + 1:])
    pack = ALIGNED // base.dtype.itemsize
    if not d.is_static(inner) or int(d.evaluate(inner, {})) % pack:
        return _call(spec, 1)
    return replace(_call(spec, pack), alignment=ALIGNED, otherwise=_call(spec, 1))


def _axis(spec: Spec) -> int:
    return int(spec.attrs["axis"]) % spec.inputs[0].rank


def _call(spec: Spec, pack: int) -> LaunchCall:
    """Return the call. pack: elements of a thread."""

    base, index, _ = spec.inputs
    axis, mode = _axis(spec), spec.attrs["mode"]
    sizes = (d.product(base.shape[:axis]), base.shape[axis], d.product(index.shape), d.product(base.shape[axis + 1:]))
    outer, rows, count, inner = sizes
    numbers: dict[str, object] = {"PACK": pack, "SET": int(mode == "set")}
    for at, (name, size) in enumerate(zip(("OUTER", "SIZE", "COUNT", "INNER"), sizes, strict=True)):
        numbers[name] = f"{int(d.evaluate(size, {}))}LL" if d.is_static(size) else f"sizes[{at}]"
    types: dict[str, DType | str] = {"Index": _integer(index.dtype)}
    packs, of_updates = (d.ceil_div(outer * lines * inner, pack) for lines in (rows, count))
    if mode == "set":
        types["T"] = f"uint{base.dtype.bits}_t"
        copying = d.dim_min(COPYING, d.ceil_div(packs, 256))
        launches = [Launch("cleared", d.ceil_div(rows, CLEARED), 256, waits=True),
                    Launch("chosen", d.ceil_div(count, 256), 256, waits=True),
                    Launch("written", d.ceil_div(of_updates, 256) + copying, 256, waits=True)]
        return LaunchCall(text_of(FILE, numbers, types), tuple(launches), sizes, (_bytes(rows, 4),))

    how, of_what = _combined(base.dtype, mode)
    run, most = TILE, d.bounds(count)[1]
    wide = d.dim_min(1, inner * base.dtype.itemsize // (4 * SLOTS))  # 1 where rows have as many bytes as their slots
    few = wide * d.dim_min(1, AVERAGE * rows // d.dim_max(1, count))   # 1 where updates are counted
    launches = [Launch("cleared", d.ceil_div(rows + 2, CLEARED), 256, waits=True),
                Launch("slotted", d.ceil_div(count, 256) * few, 256, waits=True),
                Launch("sorted_tiles", d.ceil_div(count, TILE), TILE // 2, waits=True)]
    merges = list[Launch]()
    while run < most:                                               # no block of it where one run has all
        threads, shared = (JOINING, RUNS * TILE * 4) if run == TILE else (256, 0)
        joined = d.ceil_div(count, threads // SHARES) * d.dim_min(1, count // (run + 1))
        merges.append(Launch(f"merged_{len(merges)}", joined, threads, shared, waits=True))
        run *= RUNS
    launches += merges
    chunks = count // CHUNK
    blocks = d.dim_max(1, d.dim_min(MOST_BLOCKS, d.ceil_div(outer * inner, ELEMENTS_OF_A_BLOCK)))
    launches.append(Launch("chunked", chunks * blocks + d.ceil_div(count, 256), 256, waits=True))
    every = d.dim_min(COPYING, d.ceil_div(packs, 256 * AT_ONCE))    # blocks that take all rows
    updating = d.dim_min(UPDATING, d.ceil_div(of_updates, 256))
    launches.append(Launch("combined", updating + every, 256, waits=True))
    of_a = {"double": 8, "float": 4}.get(str(of_what["A"]), base.dtype.itemsize)
    noted = few if d.is_static(few) else wide                       # of a size that moves, as much as any smaller one needs
    pieces = (_bytes(count, 8), _bytes(count, 8) if run > TILE else 0, _bytes(chunks * outer * inner, of_a),
              _bytes(rows + 2, 4), _bytes(rows * noted, 4 * SLOTS), _bytes(count * noted, 4))
    return LaunchCall(text_of(FILE, numbers | how, types | of_what), tuple(launches), sizes, pieces)


def _integer(dtype: DType) -> str:
    return f"{'u' if dtype.kind == 'uint' else ''}int{dtype.bits}_t"


def _combined(dtype: DType, mode: str) -> tuple[dict[str, object], dict[str, DType | str]]:
    """Return (macros that combine numbers, C types in which they are stored, T, and combined, A)."""
    how: dict[str, object] = {"COMBINE": "Sum" if mode == "add" else "Max"}
    if dtype.is_float:
        wide = (COMBINED if mode == "add" else COMPARED)[dtype]
    else:                                                           # sums wrap: of unsigned numbers that is defined
        wide = _integer(dtype) if mode == "max" else f"uint{dtype.bits}_t"
    if dtype.is_float and dtype is not f64:
        return how, {"T": dtype, "A": wide}
    return how | {"WIDE_T": f"({wide})", "NARROW_T": f"({wide})"}, {"T": wide, "A": wide}


def _bytes(count: Dim, of_one: int) -> Dim:
    return d.ceil_div(count * of_one, 256) * 256
