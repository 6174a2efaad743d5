"""matrix_products: matrix products of the backend `cuda`: on tensor cores for many or a few dozen rows, and a general one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.cuda.source_text import (
    ALIGNED,
    FLOATS,
    MULTIPROCESSORS,
    SHARE,
    STORED,
    TILES_BYTES,
    accumulated,
    matrix_map,
    read,
    rows_of,
    static,
    stored_as,
    text_of,
)
from tensor_graphs.kernels.kernel import Launch, LaunchCall, Preparation, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, bool_, f8e4m3, f8e5m2, f16, f32
from tensor_graphs.language.node import TensorType

TILE_ROWS = 128
"""rows of a tile of tensor_tiles.cu"""

STEPS_OF_A_SPLIT, MOST_STAGES = (8, 4), 8
"""constants for tensor_tiles.cu: least steps of each part of a split sum (16-bit operands, f32 operands); most stages"""

STEP_BYTES = 128
"""bytes of each row in a step of tensor_tiles.cu"""

PIECE_OF_FLOATS, PIECES_OF_EIGHT_BITS = 4, {f32: 1}
"""steps whose sum stays in tensor cores (tensor_tiles.cu): for parts of f32; for 8-bit floats by the result's dtype, default 4"""

EIGHT_BITS = {f8e4m3: "E4m3", f8e5m2: "E5m2"}

LEAST_PADDED = 64
"""least length of f32 rows whose parts may be padded to a multiple of 8"""



# ---- products of many rows ---------------------------------------------------------------------------------------------


SUMS, BY_TILES = "product_sums.cu", "one_element.cu plain_elements.cu product_tiles.cu tensor_tiles.cu"
OF_FEW_ROWS = "one_element.cu plain_elements.cu skinny_product.cu"
TILED, SKINNY = f"{SUMS} {BY_TILES}", f"{SUMS} {OF_FEW_ROWS}"
"""files of the sources of tiled products, and of products of few rows"""


@dataclass(frozen=True)
class Printed:
    """Text of a product's operands, as macros, and of `ended`, what becomes of its sums. operands: how many there are. x, weights:
    those that are multiplied: the same x by each weight, all of as many columns as y. head: lines before everything else."""

    text: str
    operands: int
    x: int = 0
    weights: tuple[int, ...] = (1,)
    head: str = ""


def printed_operands(operands: Sequence[tuple[str, str]], x: str, weights: Sequence[str], ended: Sequence[str]) -> str:
    """Return the text of a product's operands, each a type and a name, and of `ended`, whose lines follow them."""
    of_w = weights[0] if len(weights) == 1 else f"((number) ? {weights[1]} : {weights[0]})"
    return "\n".join((f"#define TG_OPERANDS {', '.join(f'const {kind} * {name}' for kind, name in operands)}",
                      f"#define TG_GIVEN {', '.join(name for _, name in operands)}", f"#define TG_X {x}",
                      f"#define TG_W(number) {of_w}", *ended)) + "\n"


ENDED = "TG_INLINE float ended(const Sums &sums, int64_t row, int64_t column, TG_OPERANDS)"


def as_written(spec: Spec, prepared: bool) -> Printed:
    """Return the operands of a product or a convolution alone: its sums times the scales, plus the bias. prepared: parts of w come
    behind them."""
    scales = {name: scale for name in ("x_scale", "weight_scale") if (scale := spec.role(name)) is not None}
    operands = [("X", "x"), ("W", "w"), *(("float", name) for name in scales)]
    at = {"x_scale": "row", "weight_scale": "column"}               # one number, or one of each row of x, of each column of y
    value = " * ".join(("sums.at[0]", *(f"{name}[{at[name] if scale.rank else 0}]" for name, scale in scales.items())))
    if spec.role("bias") is not None:
        operands, value = [*operands, ("B", "bias")], f"{value} + WIDE_B(bias[column])"
    operands += [("uint16_t", "w_parts")] * prepared
    return Printed(printed_operands(operands, "x", ("w",), (f"{ENDED} {{ return {value}; }}",)), len(spec.inputs))


def source_of(files: str, numbers: dict[str, object], types: Mapping[str, DType], printed: Printed) -> str:
    """Return the source of a product or a convolution by `files`."""
    return printed.head + text_of(SUMS, numbers | {"PRODUCTS": len(printed.weights)}, types) + printed.text + read(files)


def _matrices(spec: Spec) -> tuple[int, int, int, Dim, int, int, int]:
    """Return (matrices of y, of x, of w, rows of a matrix of x, k, columns, 1 where w is stored as [k][columns] else 0)."""
    x, w = spec.inputs[:2]
    if spec.op.name != "dot":
        return 1, 1, 1, rows_of(x), int(w.shape[1]), int(w.shape[0]), 0
    k, columns = (int(s) for s in w.shape[-2:])
    of_w = int(d.evaluate(d.product(w.shape[:-2]), {}))
    if of_w == 1:
        return 1, 1, 1, rows_of(x), k, columns, 1
    return of_w, of_w if d.product(x.shape[:-2]) != 1 else 1, of_w, x.shape[-2], k, columns, 1


def _matrices_differ(spec: Spec) -> str | None:
    """Return None where leading axes give one batch of matrix products, else the reason why not."""
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
    if (why := _matrices_differ(spec) or static(*w.shape)) is not None:
        return why
    matrices, _, _, rows, k, columns, across = _matrices(spec)
    if k == 0 or columns == 0:
        return "empty rows"
    if spec.attrs.get("to"):
        return _along_rows(spec)
    if (k % 8 or (across and columns % 8)) and (kinds != (f32, f32) or min(k, columns) < LEAST_PADDED):
        return "rows of a multiple of 8 elements only, or of many floats"
    high = d.bounds(rows)[1]
    return None if max(matrices * high * max(k, columns), matrices * k * columns) < 1 << 40 and high < 1 << 31 else "too many rows"


def is_prepared(spec: Spec) -> bool:
    """Return whether w is split into parts in a preparation: for a linear of f32, whose weight is mostly a parameter."""
    return spec.op.name in ("linear", "rounded_linear") and spec.inputs[1].dtype is f32 and not is_tf32(spec)


def is_tf32(spec: Spec) -> bool:
    """Return whether operands of f32 are rounded to TF32 instead of split into parts."""
    return spec.attrs.get("to") == "tf32"


def parts_of(spec: Spec) -> tuple[int, int]:
    """Return the numbers of 16-bit parts of an element of x and of w: 3 for f32, 2 where it is rounded to two of bf16, else 1."""
    of_floats = {"tf32": 1, "bf16x2": 2}.get(spec.attrs.get("to", ""), 3)
    of_x, of_w = (of_floats if t.dtype is f32 else 1 for t in spec.inputs[:2])
    return of_x, of_w


def pairs_of(of_x: int, of_w: int) -> int:
    """Return the number of pairs of parts that are multiplied; of 3 by 3 parts the products below 2^-25 are left out, of 2 by 2 the
    one below 2^-16."""
    return {9: 6, 4: 3}.get(of_x * of_w, of_x * of_w)


def product_prepares(spec: Spec, weights: Sequence[int] = (1,)) -> tuple[Preparation, ...]:
    """Return the preparation of each f32 weight of a linear: its bf16 parts; none for others. weights: their operands."""
    if not is_prepared(spec):
        return ()
    columns, k = (int(s) for s in spec.inputs[1].shape)
    parts = parts_of(spec)[1]
    call = LaunchCall(text_of("weight_parts.cu", {"ROWS": columns, "WIDTH": k, "PITCH": _pitch(k), "PARTS": parts}, {}),
                      (Launch("weight_parts", min(-(-columns * _pitch(k) // 1024), 16 * MULTIPROCESSORS), 256),), ())
    return tuple(Preparation(call, (w,), (TensorType((parts, columns, _pitch(k)), bf16),)) for w in weights)


def _pitch(elements: int, itemsize: int = 2) -> int:
    """Return the row length of parts or rounded floats: copied rows must begin at multiples of 16 bytes."""
    of_pack = ALIGNED // itemsize
    return -(-elements // of_pack) * of_pack


def scaled_takes(spec: Spec) -> str | None:
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    if not (x.dtype in EIGHT_BITS and w.dtype in EIGHT_BITS) and (x.dtype, w.dtype) not in ((bf16, bf16), (f16, f16)):
        return "floats of eight bits, or two of bf16 or of f16 only"
    if any(t.dtype not in FLOATS for t in (*spec.inputs[2:], y)):
        return "a result and a bias of f32, bf16 or f16"
    return _along_rows(spec)


def fast_takes(spec: Spec) -> str | None:
    """Return why this spec is refused where sums stay in tensor cores, which those of 16 bits do anyway."""
    return scaled_takes(spec) if spec.inputs[0].dtype in EIGHT_BITS else "floats of eight bits only"


def _along_rows(spec: Spec) -> str | None:
    """Return None where tiles can be copied unchanged from rows of both operands, else the reason why not."""
    x, w = spec.inputs[:2]
    if (why := static(*w.shape)) is not None:
        return why
    (columns, k), of_pack = (int(s) for s in w.shape), ALIGNED // x.dtype.itemsize
    if k == 0 or columns == 0 or k % of_pack:
        return f"rows of a multiple of {of_pack} elements only"
    high = d.bounds(rows_of(x))[1]
    return None if max(high * max(k, columns), k * columns) < 1 << 40 and high < 1 << 31 else "too many rows"


def _steps(spec: Spec) -> int:
    """Return the number of steps of a sum."""
    itemsize = 4 if is_tf32(spec) else min(spec.inputs[0].dtype.itemsize, 2)
    return -(-_matrices(spec)[4] * itemsize // STEP_BYTES)


def _piece(spec: Spec) -> int:
    """Return the number of steps whose sum stays in tensor cores; 0: all steps."""
    if is_tf32(spec):
        return 0
    if spec.inputs[0].dtype in EIGHT_BITS:
        return PIECES_OF_EIGHT_BITS.get(spec.outputs[0].dtype, PIECE_OF_FLOATS)
    return PIECE_OF_FLOATS if f32 in (spec.inputs[0].dtype, spec.outputs[0].dtype) else 0


@dataclass(frozen=True)
class TileShape:
    """Sizes of a product by tiles. columns: of a tile. splits: parts of a sum, for the blocks of a cluster. stages: steps of the
    sums whose operands are in shared memory at once."""

    columns: int
    splits: int
    stages: int


def product(spec: Spec, fast: bool = False, printed: Printed | None = None, shape: TileShape | None = None) -> LaunchCall:
    """Return the call. fast: sums of 8-bit products stay in tensor cores. printed: other operands and another use of the sums.
    shape: in place of the rule's."""
    piece, products = 0 if fast else _piece(spec), 1 if printed is None else len(printed.weights)
    matrices, _, _, rows, _, columns, _ = _matrices(spec)
    shape = product_shape(spec, products, piece) if shape is None else shape
    across = -(-columns // (shape.columns // products))
    return _by_tiles(spec, shape, d.ceil_div(rows, TILE_ROWS) * (matrices * across), piece, printed=printed)


def product_shape(spec: Spec, products: int = 1, piece: int | None = None) -> TileShape:
    """Return the shape that is estimated to be fastest. products: number of weights. piece: as from `_piece`."""
    matrices, _, _, rows, _, columns, _ = _matrices(spec)
    down = matrices * -(-d.bounds(rows)[1] // TILE_ROWS)
    wide = _columns_of_a_tile(spec, down, _piece(spec) if piece is None else piece, products)
    return _shape(spec, wide, down * -(-columns // (wide // products)), products, False)


def _shape(spec: Spec, wide: int, most: int, products: int, turned: bool) -> TileShape:
    """Return the shape of tiles with a number of columns. most: largest number of tiles."""
    of_x, of_w = parts_of(spec)
    return TileShape(wide, split_sums(most, _steps(spec), of_x * of_w), most_stages(spec, wide, products, turned))


def most_stages(spec: Spec, wide: int, products: int, turned: bool) -> int:
    """Return the most stages that shared memory has room for."""
    return min(TILES_BYTES // _stage(spec, wide, products, turned), MOST_STAGES)


def _stage(spec: Spec, wide: int, products: int, turned: bool) -> int:
    """Return the bytes of a step of both operands."""
    of_x, of_w = parts_of(spec)
    of_rows, of_columns = (of_w * products, of_x) if turned else (of_x, of_w)
    return (of_rows * TILE_ROWS + of_columns * wide) * STEP_BYTES


def shape_differs(spec: Spec, shape: TileShape, products: int, turned: bool) -> str | None:
    """Return None where tiles can have a shape, else the reason why not."""
    most = (128 if _piece(spec) else MOST_TURNED) // (products if turned else 1)
    if shape.columns > most or (not turned and shape.columns not in _columns_that_fit(spec, products)):
        return f"a tile has at most {most} columns, and no more than the result"
    room, (of_x, of_w) = most_stages(spec, shape.columns, products, turned), parts_of(spec)
    if not min(2, room) <= shape.stages <= room:
        return "its stages are at least two, and what shared memory has room for"
    fits = shape.splits in dict(HOPPER.clustered) and shape.splits <= _steps(spec) // STEPS_OF_A_SPLIT[of_x * of_w > 1]
    return None if fits or shape.splits == 1 else "a cluster has no such number of blocks, or a sum too few steps"


def _columns_that_fit(spec: Spec, products: int) -> list[int]:
    """Return the columns of a tile of which at least half are those of the result."""
    columns = _matrices(spec)[5] * products
    return [wide for wide in FASTER if wide == min(FASTER) or columns > wide // 2]


def _by_tiles(spec: Spec, shape: TileShape, tiles: Dim, piece: int, turned: bool = False, printed: Printed | None = None,
              ) -> LaunchCall:
    """Return the call. tiles: how many there are. piece: as from `_piece`. turned: rows of a tile are rows of w, its columns rows
    of x."""
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    matrices, of_x, of_w, rows, k, columns, across = _matrices(spec)
    bias, prepared, tf32 = spec.role("bias"), is_prepared(spec), is_tf32(spec)
    parts_x, parts_w = parts_of(spec)
    printed = as_written(spec, prepared) if printed is None else printed
    weights, operands = printed.weights, printed.operands
    itemsize = 4 if tf32 else 2
    stage, wide, splits, stages = _stage(spec, shape.columns, len(weights), turned), shape.columns, shape.splits, shape.stages
    kinds = [EIGHT_BITS.get(t.dtype) for t in ((w, x) if turned else (x, w))]
    kind = "Tf32" if tf32 else "F16" if x.dtype is f16 else "Bf16"
    pitch_x, pitch_w = _pitch(k, itemsize), _pitch(columns if across else k, itemsize)
    numbers: dict[str, object] = {
        "KIND": kind if None in kinds else f"Eight<{kinds[0]}, {kinds[1]}>", "KIND_Y": "F16" if y.dtype is f16 else "Bf16",
        "INNER": k, "WIDTH": columns, "COLUMNS": wide * (len(weights) if turned else 1),
        "STAGES": stages, "SPLITS": splits, "PIECE": piece,
        "PARTS_X": parts_x, "PARTS_W": parts_w, "ACROSS": across, "MATRICES": matrices, "MATRICES_X": of_x, "MATRICES_W": of_w,
        "PITCH_X": pitch_x, "PITCH_W": pitch_w}
    types = {"X": x.dtype, "W": w.dtype, "B": f32 if bias is None else bias.dtype, "Y": y.dtype}
    more = {name: 1 for name, holds in (("W_PREPARED", prepared), ("TURNED", turned), ("ROUNDED", tf32)) if holds}
    text = source_of(BY_TILES, numbers | more, types, printed)
    results, pieces = rows * (matrices * columns), list[Dim]()
    of_weights = tuple(range(operands, operands + len(weights))) if prepared else weights
    scratch = 2 + operands + len(weights) * prepared                # the argument behind the result, the operands and the sizes
    x_word = scratch if parts_x > 1 else 1 + printed.x
    words = (scratch + 1,) if parts_w > 1 and not prepared else tuple(1 + w for w in of_weights)
    size = x.dtype.itemsize if None not in kinds else itemsize
    maps_x = [matrix_map(x_word, k, rows, parts_x * of_x, wide if turned else TILE_ROWS, pitch_x, size)]
    box = TILE_ROWS if turned else 64 if across else wide // len(weights)
    maps_w = [matrix_map(word, *((columns, k) if across else (k, columns)), parts_w * of_w, box, pitch_w, size)
              for word in words]
    early = of_weights if parts_w == 1 or prepared else ()
    launches = [tile_launch(tiles, splits, stages * stage, early)]
    if parts_x > 1:
        elements = rows * (of_x * _pitch(k))
        pieces.append(d.ceil_div(elements * 2 * parts_x, 256) * 256)
        if parts_w > 1 and not prepared:
            pieces.append(-(-of_w * k * _pitch(columns) * 2 * parts_w // 256) * 256)
            elements = elements + of_w * k * _pitch(columns)
        launches.insert(0, Launch("parts", d.dim_min(d.ceil_div(elements, 1024), 16 * MULTIPROCESSORS), 256, waits=True))
    plain = LaunchCall(text, (Launch("plain", d.ceil_div(results, 256), 256, waits=True),), (rows,))
    maps = [*maps_w, *maps_x] if turned else [*maps_x, *maps_w]
    return LaunchCall(text, tuple(launches), (rows,), tuple(pieces), ALIGNED, plain, tuple(maps))


def split_sums(tiles: int, steps: int, parts: int) -> int:
    """Return the number of parts into which sums of `steps` steps are split, so that all multiprocessors have a tile. parts:
    product of the numbers of parts of an element of both operands."""
    wanted = min(steps // STEPS_OF_A_SPLIT[parts > 1], MULTIPROCESSORS // max(1, tiles))
    return max((splits for splits, at_once in HOPPER.clustered if splits <= wanted and tiles * splits <= at_once), default=1)


def tile_launch(tiles: Dim, splits: int, nbytes: int, early: tuple[int, ...]) -> Launch:
    """Return the launch of tensor_tiles.cu. nbytes: shared memory of all stages. early: weights that are copied before the wait."""
    grid = tiles * splits if splits > 1 else d.dim_min(tiles, MULTIPROCESSORS)
    return Launch("tensor_tiles", grid, 384, nbytes + 1024, waits=True, early=early)


FASTER, STORING, MEETING = {64: 1.0, 128: 1.4, 256: 1.5}, 5, 390
TURNED_FASTER = {16: 0.5, 32: 0.75, **FASTER}
"""FASTER: columns of a tile -> relative speed of its products. STORING, MEETING: time to store a column, and to join split sums, in
units of one step of one column (3.6 ns on an H200)"""


def _columns_of_a_tile(spec: Spec, down: int, piece: int, products: int) -> int:
    """Return the number of columns of a tile for which the product is estimated to be fastest. down: number of rows of tiles.
    products: number of weights, which share the columns of a tile."""
    columns = _matrices(spec)[5] * products
    return min((w for w in _columns_that_fit(spec, products) if w <= (128 if piece else 256)),
               key=lambda wide: _time(spec, down * -(-columns // wide), wide))


def _time(spec: Spec, tiles: int, wide: int) -> float:
    """Return the estimated time of tiles with this many columns."""
    (of_x, of_w), steps = parts_of(spec), _steps(spec)
    splits = split_sums(tiles, steps, of_x * of_w)
    of_tile = wide * (-(-steps // splits) * pairs_of(of_x, of_w) / TURNED_FASTER[wide] + STORING)
    return -(-tiles // MULTIPROCESSORS) * of_tile + MEETING * (splits > 1)


BOXED, BOXED_ROWS = Fraction(3, 2), Fraction(21, 20)
"""time to read a weight in boxes beside those of many rows of x, and beside those of few, in times to read it row by row"""


def product_traffic(spec: Spec, boxed: Fraction = BOXED) -> Dim:
    """Return the bytes moved: operands, those of a weight times `boxed`, and results; of f32 operands their parts (of 2 bytes) too,
    written and read. Of a prepared weight only the parts are read."""
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    moved: Dim = d.product(y.shape) * y.dtype.itemsize
    for t, parts, prepared in ((x, parts_of(spec)[0], False), (w, parts_of(spec)[1], is_prepared(spec))):
        itemsize = t.dtype.itemsize
        read = d.product(t.shape) * (2 * parts if prepared else itemsize + 4 * parts if parts > 1 else itemsize)
        moved = moved + (d.ceil_div(read * boxed.numerator, boxed.denominator) if t is w else read)
    return moved


def product_steps(spec: Spec, products: int = 1) -> Dim:
    """Return the operations that all multiprocessors could do while those with tiles do these, complete ones, divided by SHARE
    (16-bit products), twice that (8 bits) or half of it (TF32). A product of two f32 numbers takes six 16-bit products, of two that
    are rounded to two parts three, f32 by bf16 three. products: number of weights."""
    matrices, _, _, rows, _, columns, _ = _matrices(spec)
    shape = product_shape(spec, products)
    return _in_waves(spec, d.ceil_div(rows, TILE_ROWS) * (matrices * -(-columns * products // shape.columns)), shape)


def _in_waves(spec: Spec, tiles: Dim, shape: TileShape) -> Dim:
    waves = d.ceil_div(tiles * shape.splits, MULTIPROCESSORS)
    return waves * (MULTIPROCESSORS * TILE_ROWS * 2 * shape.columns * _summed(spec) // (SHARE * shape.splits))


def _summed(spec: Spec) -> int:
    """Return the number of 16-bit products that take as long as the products of one element of y."""
    k = _matrices(spec)[4]
    return 2 * k if is_tf32(spec) else k * pairs_of(*parts_of(spec)) * min(spec.inputs[0].dtype.itemsize, 2) // 2


# ---- products of a few dozen rows --------------------------------------------------------------------------------------

MOST_TURNED = 256
"""most rows of x that are the columns of one tile, where tiles are turned (rows of a tile are rows of w)"""


def turned_takes(takes: Callable[[Spec], str | None], spec: Spec) -> str | None:
    """Return None, or the reason for a refusal of turned tiles. takes: the same check for tiles that are not turned."""
    if (why := takes(spec)) is not None:
        return why
    return None if d.bounds(rows_of(spec.inputs[0]))[1] <= 4 * MOST_TURNED else "a few hundred rows only"


def _columns_of_turned(spec: Spec, products: int = 1) -> int:
    """Return the number of columns of a turned tile, for which it is estimated to be fastest: a power of two that has no more room
    than all rows need. products: weights, each with sums of its own."""
    rows, wide, down = d.bounds(rows_of(spec.inputs[0]))[1], 16, -(-int(spec.inputs[1].shape[0]) // TILE_ROWS)
    while wide < min(rows, (128 if _piece(spec) else MOST_TURNED) // products):
        wide *= 2
    fitting = (w for w in TURNED_FASTER if min(wide, *FASTER) <= w <= wide)
    return min(fitting, key=lambda w: _time(spec, down * -(-rows // w), w))


def turned_steps(spec: Spec, products: int = 1) -> Dim:
    """Return the operations as `product_steps` does, of turned tiles."""
    rows, columns, shape = rows_of(spec.inputs[0]), int(spec.inputs[1].shape[0]), turned_shape(spec, products)
    return _in_waves(spec, d.ceil_div(rows, shape.columns) * -(-columns // TILE_ROWS), shape) * products


def turned(spec: Spec, printed: Printed | None = None, shape: TileShape | None = None) -> LaunchCall:
    """Return the call. printed, shape: as in `product`."""
    shape = turned_shape(spec, 1 if printed is None else len(printed.weights)) if shape is None else shape
    tiles = d.ceil_div(rows_of(spec.inputs[0]), shape.columns) * -(-int(spec.inputs[1].shape[0]) // TILE_ROWS)
    return _by_tiles(spec, shape, tiles, _piece(spec), True, printed)


def turned_shape(spec: Spec, products: int = 1) -> TileShape:
    """Return the shape of turned tiles by rule. products: number of weights."""
    wide, down = _columns_of_turned(spec, products), -(-int(spec.inputs[1].shape[0]) // TILE_ROWS)
    return _shape(spec, wide, down * -(-d.bounds(rows_of(spec.inputs[0]))[1] // wide), products, True)


SKINNY_ROWS, SKINNY_REGISTERS, FEW_TILES = 16, 128, 4
"""constants of skinny_product.cu: most rows of a block; registers of a thread for operands and sums; most tiles for 16 warps"""

ROW_OF_X = Fraction(3, 10)
"""time to read a row of x, which is in the cache, in times to read a row of a weight"""


def skinny_takes(spec: Spec) -> str | None:
    x, w = spec.inputs[:2]
    if (x.dtype, w.dtype) not in ((bf16, bf16), (f16, f16), (f32, bf16)):
        return "bf16, f16, and f32 by bf16 only"
    if any(t.dtype not in FLOATS for t in (*spec.inputs[2:], *spec.outputs)) or spec.outputs[0].dtype is not x.dtype:
        return "a result as x, a bias of f32, bf16 or f16"
    if (why := static(*w.shape)) is not None:
        return why
    columns, k = (int(s) for s in w.shape)
    if k % 8 or k == 0 or columns == 0:
        return "rows of a multiple of 8 elements only"
    return None if d.bounds(rows_of(x))[1] * max(k, columns) < 1 << 31 else "too many rows"


def _skinny_tiles(columns: int, products: int, groups: int, parts: int) -> int:
    """Return the tiles of 16 columns of a block with which the busiest multiprocessor reads least. groups: of eight rows of x."""
    most = (SKINNY_REGISTERS - 8 * groups * parts) // ((8 + 4 * groups) * products)

    def time(tiles: int) -> Fraction:
        return -(-columns // (16 * tiles * MULTIPROCESSORS)) * (16 * tiles * products + ROW_OF_X * 8 * groups)

    return min(range(1, max(1, most) + 1), key=time)


def skinny(spec: Spec, printed: Printed | None = None) -> LaunchCall:
    """Return the call of skinny_product.cu. printed: as in `product`."""
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    rows, (columns, k) = rows_of(x), (int(s) for s in w.shape)
    bias, parts = spec.role("bias"), 3 if x.dtype is f32 else 1
    printed = as_written(spec, False) if printed is None else printed
    weights = printed.weights
    groups = 1 if d.bounds(rows)[1] <= 8 else SKINNY_ROWS // 8
    tiles = _skinny_tiles(columns, len(weights), groups, parts)
    warps = 16 if tiles * len(weights) <= FEW_TILES else 8
    numbers: dict[str, object] = {
        "KIND": "F16" if x.dtype is f16 else "Bf16", "INNER": k, "WIDTH": columns, "ACROSS": 0, "MATRICES": 1, "MATRICES_X": 1,
        "MATRICES_W": 1, "PARTS_X": parts, "TILES": tiles, "GROUPS": groups, "WARPS": warps}
    types = {"X": x.dtype, "W": w.dtype, "B": f32 if bias is None else bias.dtype, "Y": y.dtype}
    text = source_of(OF_FEW_ROWS, numbers, types, printed)
    shared = 4 * warps * 8 * groups * (16 * tiles * len(weights) + 4)
    launch = Launch("skinny_product", d.ceil_div(rows, 8 * groups) * -(-columns // (16 * tiles)), 32 * warps, shared, waits=True,
                    early=weights)
    plain = LaunchCall(text, (Launch("plain", d.ceil_div(rows * columns, 256), 256, waits=True),), (rows,))
    return LaunchCall(text, (launch,), (rows,), (), ALIGNED, plain)


def skinny_traffic(spec: Spec) -> Dim:
    """Return the bytes moved: all of w once per SKINNY_ROWS rows, and x by each block, from the cache."""
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    columns, k = (int(s) for s in w.shape)
    of_x, of_y = d.product(x.shape) * x.dtype.itemsize, d.product(y.shape) * y.dtype.itemsize
    blocks = -(-columns // (16 * _skinny_tiles(columns, 1, SKINNY_ROWS // 8, 1)))
    return d.ceil_div(rows_of(x), SKINNY_ROWS) * (columns * k * w.dtype.itemsize) + of_y + d.ceil_div(
        of_x * (blocks * ROW_OF_X.numerator), ROW_OF_X.denominator)


def skinny_steps(spec: Spec) -> Dim:
    """Return the operations of complete tiles, at a third of the rate of large products."""
    w, parts = spec.inputs[1], 3 if spec.inputs[0].dtype is f32 else 1
    return d.ceil_div(rows_of(spec.inputs[0]), 8) * (8 * 2 * int(w.shape[0]) * int(w.shape[1]) * parts * 3 // SHARE)


# ---- products of whatever there is -------------------------------------------------------------------------------------

SIDE, SHORT_SIDE = 64, 32
DEPTHS = {SIDE: 16, SHORT_SIDE: 64}
"""constants of any_product.cu: rows (and columns) of a tile; those for small matrices; of either, the numbers of k in a step"""


def any_product_takes(spec: Spec) -> str | None:
    x = spec.inputs[0]
    if any(t.dtype is bool_ or t.dtype.is_float is not x.dtype.is_float for t in (*spec.inputs, *spec.outputs)):
        return "numbers of one kind only"
    return _matrices_differ(spec)


def _sizes(spec: Spec) -> tuple[Dim, Dim, Dim, Dim]:
    """Return (matrices of y, rows of each, columns, k) of a product; sizes may be symbolic."""
    x, w = spec.inputs[:2]
    k, columns = (w.shape[1], w.shape[0]) if spec.op.name == "linear" else w.shape[-2:]
    matrices = d.product(w.shape[:-2])
    return matrices, rows_of(x) if matrices == 1 else x.shape[-2], columns, k


def _side(spec: Spec) -> int:
    """Return the number of rows, which is also that of columns, of a tile."""
    _, rows, columns, _ = _sizes(spec)
    return SHORT_SIDE if min(d.bounds(rows)[1], d.bounds(columns)[1]) <= SHORT_SIDE else SIDE


def any_product(spec: Spec) -> LaunchCall:
    x, w, y = spec.inputs[0], spec.inputs[1], spec.outputs[0]
    matrices, rows, columns, inner = _sizes(spec)
    one, side = matrices == 1, _side(spec)
    one_x = one or d.product(x.shape[:-2]) == 1
    bias = spec.role("bias")
    added = accumulated(x.dtype)[0]
    numbers: dict[str, object] = {"ACROSS": int(spec.op.name != "linear"), "MATRICES_X": int(one_x), "MATRICES_W": int(one),
                                  "SIDE": side, "DEPTH": DEPTHS[side]}
    types: dict[str, DType | str] = {"A": added}
    for name, dtype in (("X", x.dtype), ("W", w.dtype), ("B", x.dtype if bias is None else bias.dtype), ("Y", y.dtype)):
        types[name] = dtype if dtype in STORED else stored_as(dtype)
        if dtype not in STORED:
            numbers |= {f"WIDE_{name}": f"({added})", f"NARROW_{name}": f"({stored_as(dtype)})"}
    numbers |= {} if bias is None else {"BIAS": 1}
    for at, (name, size) in enumerate((("ROWS", rows), ("COLUMNS", columns), ("INNER", inner))):
        numbers[name] = f"{int(d.evaluate(size, {}))}LL" if d.is_static(size) else f"sizes[{at}]"
    launch = Launch("any_product", matrices * d.ceil_div(rows, side) * d.ceil_div(columns, side), 256, waits=True)

    def call(**packs: int) -> LaunchCall:
        return LaunchCall(text_of("any_product.cu", numbers | packs, types), (launch,), (rows, columns, inner))

    most = side * DEPTHS[side] // 256                               # elements of a thread
    packs = {name: _pack_of(t, line, most) for name, t, line in
             (("PACK_X", x, inner), ("PACK_W", w, columns if numbers["ACROSS"] else inner))}
    single = call(PACK_X=1, PACK_W=1)
    return single if set(packs.values()) == {1} else replace(call(**packs), alignment=ALIGNED, otherwise=single)


def _pack_of(t: TensorType, line: Dim, most: int) -> int:
    """Return the elements per load, up to `most`, from lines of length `line`; 1 where such packs may not divide a line."""
    pack = min(ALIGNED // t.dtype.itemsize, most)
    return pack if d.is_static(line) and int(d.evaluate(line, {})) % pack == 0 else 1


def any_product_steps(spec: Spec) -> Dim:
    """Return the operations of complete tiles, at a third of the f32 peak rate."""
    matrices, rows, columns, inner = _sizes(spec)
    side = _side(spec)
    return matrices * d.ceil_div(rows, side) * d.ceil_div(columns, side) * inner * (side * side * 2 * 3)
