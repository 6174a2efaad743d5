"""source_text: CUDA C behind the numbers and types of one spec, and the constants that all kernels of this backend share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64
from tensor_graphs.language.node import TensorType

HERE = Path(__file__).resolve().parent

ALIGNED = 16
"""bytes that are loaded at once"""

FLOATS = (f32, bf16, f16)
"""of kernels that are written for packs of these; those for numbers of any dtype have what is said below"""

MULTIPROCESSORS = 132
"""of the GPU for which grids are laid out"""

TILES_BYTES = 200 << 10
"""of shared memory for tiles, at most"""

SHARE = 12
"""products of bf16 that tensor cores make in the time of one operation of f32 (H100: 660 and 51 Tflop/s)"""

FROM_80 = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""architectures with products of 16 bits as mma.sync has them, and copies that are not waited for"""

WIDE = {f32: "(float)", bf16: "bf16_to_f32", f16: "f32_of_f16", f8e4m3: "f32_of_f8e4m3", f8e5m2: "f32_of_f8e5m2"}
STORED = {f32: "float", bf16: "uint16_t", f16: "uint16_t", f8e4m3: "uint8_t", f8e5m2: "uint8_t"}
NARROW = {f32: "(float)", bf16: "bf16_of_f32", f16: "f16_of_f32", f8e4m3: "f8e4m3_of_f32", f8e5m2: "f8e5m2_of_f32"}

OF_SIZE = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}


def text_of(files: str, numbers: Mapping[str, object], types: Mapping[str, DType | str]) -> str:
    """Files (their names, spaces between) behind numbers and types; of a dtype also how an element is widened and narrowed."""
    lines = ['#include "numbers.cuh"', *(f"#define {name} {value}" for name, value in numbers.items())]
    for name, dtype in types.items():
        if isinstance(dtype, DType):
            lines += [f"#define WIDE_{name} {WIDE[dtype]}", f"#define NARROW_{name} {NARROW[dtype]}"]
        lines.append(f"typedef {STORED[dtype] if isinstance(dtype, DType) else dtype} {name};")
    return "\n".join(lines) + "\n" + read(files)


def read(files: str) -> str:
    """Text of these files of this folder, concatenated."""
    return "".join((HERE / file).read_text() for file in files.split())


def stored_as(dtype: DType) -> str:
    """The C type of an element; integers wrap, so they have no sign."""
    return STORED.get(dtype, "double" if dtype is f64 else OF_SIZE[dtype.itemsize])


def accumulated(dtype: DType) -> tuple[str, str]:
    """C types in which numbers are added: a few of them, and sums of many."""
    return ("float", "double") if dtype in STORED else (stored_as(dtype),) * 2


def rows_of(x: TensorType) -> Dim:
    return d.product(x.shape[:-1])


def static(*dims: Dim) -> str | None:
    return None if all(d.is_static(x) for x in dims) else "sizes that are known only"
