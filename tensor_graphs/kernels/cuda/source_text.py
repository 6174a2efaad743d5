"""source_text: builds CUDA sources: #defines and typedefs for one spec, then files of this folder. Constants of the backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.kernel import TensorMap
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64
from tensor_graphs.language.node import TensorType

HERE = Path(__file__).resolve().parent

ALIGNED = 16
"""bytes that one instruction loads"""

FLOATS = (f32, bf16, f16)
"""dtypes of kernels that work on packs of floats; kernels for any dtype use the tables below"""

MULTIPROCESSORS = HOPPER.units
"""multiprocessors of the GPU for which grids are sized"""

TILES_BYTES = 200 << 10
"""most bytes of shared memory for tiles"""

SHARE = 12
"""bf16 operations that tensor cores do in the time of one f32 operation (H100: 660 and 51 Tflop/s)"""

FROM_80 = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""architectures with 16-bit matrix products by mma.sync, and asynchronous copies"""

WIDE = {f32: "(float)", bf16: "bf16_to_f32", f16: "f32_of_f16", f8e4m3: "f32_of_f8e4m3", f8e5m2: "f32_of_f8e5m2"}
STORED = {f32: "float", bf16: "uint16_t", f16: "uint16_t", f8e4m3: "uint8_t", f8e5m2: "uint8_t"}
NARROW = {f32: "(float)", bf16: "bf16_of_f32", f16: "f16_of_f32", f8e4m3: "f8e4m3_of_f32", f8e5m2: "f8e5m2_of_f32"}

MAP_KINDS = {1: "u8", 2: "u16", 4: "tf32"}
"""kinds of tensor maps by the bytes of an element; floats of 32 bits are rounded as they are copied"""

OF_SIZE = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}


def text_of(files: str, numbers: Mapping[str, object], types: Mapping[str, DType | str]) -> str:
    """Return a source: a #define per number, a typedef per type, with macros WIDE_ and NARROW_ (conversion from and to f32) for a
    DType; then the text of `files` (names with spaces between)."""
    lines = ['#include "numbers.cuh"', *(f"#define {name} {value}" for name, value in numbers.items())]
    for name, dtype in types.items():
        if isinstance(dtype, DType):
            lines += [f"#define WIDE_{name} {WIDE[dtype]}", f"#define NARROW_{name} {NARROW[dtype]}"]
        lines.append(f"typedef {STORED[dtype] if isinstance(dtype, DType) else dtype} {name};")
    return "\n".join(lines) + "\n" + read(files)


def read(files: str) -> str:
    """Return the concatenated text of files of this folder (names with spaces between)."""
    return "".join((HERE / file).read_text() for file in files.split())


def matrix_map(word: int, size: Dim, rows: Dim, matrices: Dim, box: int, pitch: Dim | None = None, itemsize: int = 2) -> TensorMap:
    """Return a map of matrices that lie one after the other. word: the argument. size, pitch: elements of a row, and from one row
    to the next. box: rows of a box, each of 128 bytes."""
    step = (size if pitch is None else pitch) * itemsize
    return TensorMap(word, MAP_KINDS[itemsize], (size, rows, matrices), (step, step * rows), (128 // itemsize, box, 1), (1, 1, 1))


def stored_as(dtype: DType) -> str:
    """Return the C type of an element; integers are unsigned, so that they wrap."""
    return STORED.get(dtype, "double" if dtype is f64 else OF_SIZE[dtype.itemsize])


def accumulated(dtype: DType) -> tuple[str, str]:
    """Return the C types in which numbers are summed: (of few terms, of many terms)."""
    return ("float", "double") if dtype in STORED else (stored_as(dtype),) * 2


def rows_of(x: TensorType) -> Dim:
    return d.product(x.shape[:-1])


def static(*dims: Dim) -> str | None:
    return None if all(d.is_static(x) for x in dims) else "sizes that are known only"
