"""scatter.cu, as C++ on the host beside the oracle, and on a GPU; its texts are compiled."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices import cuda, nvrtc
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.cuda import scatter as scattering
from tensor_graphs.kernels.cuda.scatter import AVERAGE, CHUNK, RUNS, SLOTS, TILE, scatter, scatter_takes
from tensor_graphs.kernels.kernel import LaunchCall, Spec
from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen import emulated, launched

N, M = tg.dim("n", 0, 100_000), tg.dim("m", 0, 4096)
NEAR = {"f64": 1e-14, "f32": 2e-7, "bf16": 2.0**-8, "f16": 2.0**-11, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}
"""of a sum beside the largest of them: its rounding to what it is stored in, once"""


@dataclass(frozen=True)
class Case:
    """shape: of the base; count: the shape of the index; which: how indices are drawn (`index_of`)."""

    shape: tuple[Dim, ...]
    count: tuple[Dim, ...]
    dtype: DType = tg.f32
    mode: str = "add"
    axis: int = 0
    of_index: DType = tg.i32
    which: str = "any"
    n: int = 0
    m: int = 0

    @property
    def node(self) -> Node:
        of_updates = (*self.shape[:self.axis], *self.count, *self.shape[self.axis + 1:])
        base, index = tg.input("base", self.shape, self.dtype), tg.input("index", self.count, self.of_index)
        return atomic.scatter(base, index, tg.input("updates", of_updates, self.dtype), axis=self.axis, mode=self.mode)

    @property
    def dims(self) -> dict[str, int]:
        return {"n": self.n, "m": self.m}

    def drawn(self) -> list[np.ndarray]:
        draw = np.random.default_rng(11)
        base, index, updates = (tuple(int(d.evaluate(s, self.dims)) for s in i.shape) for i in self.node.inputs)
        indices = self.index_of(draw, index, base[self.axis])
        return [self.values(draw, base), indices, self.values(draw, updates)]

    def values(self, draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        if self.dtype.is_float:
            return draw.standard_normal(shape).astype(self.dtype.numpy)
        return draw.integers(0, 2, shape).astype(bool) if self.dtype is tg.bool_ else draw.integers(
            self.dtype.min, self.dtype.max, shape, self.dtype.numpy, endpoint=True)

    def index_of(self, draw: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
        """any: some out of range on both sides; one: all equal; few: runs of equal ones of different lengths; all_out: none in
        range; different: no two are equal; mixed: rows with one, with some and with many."""
        count = int(np.prod(shape))
        lowest = 0 if self.of_index.kind == "uint" else -3
        if self.which == "any":
            found = draw.integers(lowest, min(size + 3, self.of_index.max), count)
        elif self.which == "one":
            found = np.full(count, size // 2)
        elif self.which == "few":
            found = np.minimum(draw.geometric(0.3, count) - 1, size - 1)
        elif self.which == "mixed":
            found = np.where(draw.random(count) < 0.6, draw.integers(0, max(size, 1), count), size - draw.geometric(0.04, count))
        elif self.which == "all_out":
            found = np.where(draw.random(count) < 0.5, lowest or size, np.array(self.of_index.max, self.of_index.numpy))
        else:
            found = draw.permutation(max(size, count))[:count]
        return found.astype(self.of_index.numpy).reshape(shape)


def wanted(case: Case, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The oracle's result; with equal indices in mode set, of which it says nothing, without all but the last of them."""
    base, index, updates = arrays
    if case.mode == "set":
        flat = index.reshape(-1).copy()
        seen: set[int] = set()
        for i in reversed(range(len(flat))):
            row = int(flat[i])
            flat[i] = case.of_index.max if row in seen else row
            seen.add(row)
        index = flat.reshape(index.shape)
    with np.errstate(all="ignore"):
        outputs = interpret(make_graph({"y": case.node}), {"base": base, "index": index, "updates": updates},
                            dims={x: size for x, size in case.dims.items() if x in used(case.node)}).outputs
    return np.asarray(outputs["y"])


def used(node: Node) -> set[str]:
    return {str(s) for i in node.inputs for x in i.shape for s in d.symbols(x)}


def check(case: Case, found: np.ndarray, expected: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
    if case.dtype.is_float:
        wide, got = (x.astype(np.float64) for x in (expected, found))
        near = NEAR[case.dtype.name] if case.mode == "add" else 0
        np.testing.assert_allclose(got, wide, rtol=near, atol=near * np.abs(wide[np.isfinite(wide)]).max(initial=1e-30))
    else:
        np.testing.assert_array_equal(found, expected)
    flat, axis, size = arrays[1].reshape(-1), case.axis, found.shape[case.axis]
    untouched = np.delete(np.arange(size), flat[(flat >= 0) & (flat < size)].astype(np.int64))
    assert found.take(untouched, axis).tobytes() == arrays[0].take(untouched, axis).tobytes()


def in_place(folder: Path, call: LaunchCall, arrays: Sequence[np.ndarray], dims: Mapping[str, int]) -> np.ndarray:
    """The output of a call whose output lies where its first operand does."""
    held = [emulated._aligned(a.nbytes, 0) for a in arrays]
    for memory, a in zip(held, arrays, strict=True):
        memory[...] = a.reshape(-1).view(np.uint8)
    pieces = [emulated._aligned(int(d.evaluate(p, dims)), 0) for p in call.pieces]
    sizes = np.array([int(d.evaluate(i, dims)) for i in call.ints], np.int64)
    words = np.array([x.ctypes.data for x in (held[0], *held, sizes, *pieces)], np.uint64)
    library = emulated._library(call.text, tuple(each.entry for each in call.launches), len(words), folder)
    for each in call.launches:
        entry = ctypes.cast(getattr(library, f"call_{each.entry}"), ctypes.c_void_p)
        grid = int(d.evaluate(each.grid, dims))
        assert library.tg_run(entry, words.ctypes.data_as(ctypes.c_void_p), grid, each.block, each.shared, 0, 0xFF, 1) == 0
    return held[0].view(arrays[0].dtype).reshape(arrays[0].shape)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


SMALL = [
    Case((40, 12), (70,)),
    Case((40, 16), (70,)),                                          # rows with as many bytes as their slots: counted
    Case((40, 16), (70,), mode="max", which="few"),
    Case((40, 12), (70,), mode="set", which="different"),
    Case((40, 12), (70,), mode="set"),
    Case((40, 12), (70,), mode="max"),
    Case((9, 3), (5, 6), of_index=tg.i64),                          # an index of two axes, rows of an odd length
    Case((3, 7, 4), (20,), axis=1),
    Case((3, 7, 4), (20,), axis=1, mode="max", dtype=tg.i16),
    Case((3, 7, 4), (4,), axis=1, mode="set", which="different"),
    Case((2, 50), (200,), axis=1, which="few"),                     # rows of one element
    Case((300,), (500,), which="few", dtype=tg.f64),
    Case((6, 8), ()),                                               # one index
    Case((6, 8), (), mode="set", of_index=tg.u8, which="one"),
    *(Case((11, 16), (90,), dtype=dtype) for dtype in DTYPES.values() if dtype is not tg.bool_),
    *(Case((11, 16), (90,), dtype=dtype, mode="max") for dtype in (tg.bf16, tg.f16, tg.f64, tg.i8, tg.i64, tg.u8, tg.u32, tg.u64)),
    *(Case((11, 16), (9,), dtype=dtype, mode="set", which="different") for dtype in (tg.bool_, tg.bf16, tg.i16, tg.f64, tg.u64)),
    *(Case((11, 4), (50,), of_index=of_index) for of_index in DTYPES.values() if of_index.is_integer),
    *(Case((11, 4), (50,), of_index=of_index, mode="set") for of_index in (tg.i8, tg.u64)),
]

MANY = [
    *(Case((8, 8), (count,), which="few") for count in (CHUNK - 1, CHUNK, 2 * CHUNK, TILE - 1, TILE, TILE + 1, 3 * TILE)),
    Case((5, 4), (5000,), which="one"),
    Case((5, 4), (5000,), which="one", mode="set"),
    Case((5, 4), (5000,), which="one", dtype=tg.bf16),
    Case((5, 16), (3000,), which="one", dtype=tg.i8),
    Case((2, 5, 3), (400,), which="one", axis=1, mode="max"),
    Case((1, 4000), (90,), which="one"),                            # a chunk for several blocks
    Case((3000, 2), (5000,)),
    *(Case((600, 32), (900,), which="mixed", dtype=dtype) for dtype in (tg.f32, tg.bf16, tg.i32, tg.f64)),
    *(Case((40, 17), (AVERAGE * 40 + more,), which="mixed") for more in (0, 1)),    # counted, and sorted at once
    *(Case((64, 16), (SLOTS + more,), which="one") for more in (0, 1)),
    Case((2, 300, 16), (500,), axis=1, which="mixed"),
    Case((9000, 2), (40,)),
    Case((700,), (RUNS * TILE + 5,), dtype=tg.i64),                 # a second round of joining runs
]

DYNAMIC = [
    *(Case((M, 6), (N,), n=n, m=m) for n, m in ((0, 5), (1, 1), (33, 9), (5, 0), (1500, 40))),
    *(Case((M, 6), (N,), mode="set", n=n, m=m) for n, m in ((0, 5), (30, 9), (5, 0))),
    *(Case((M, 16), (N,), n=n, m=m, which="mixed") for n, m in ((60, 30), (61, 30), (1500, 900), (0, 0), (0, 7), (9, 0))),
    *(Case((90, M), (N,), n=150, m=m, which="mixed") for m in (15, 16, 33)),
    *(Case((50, M), (N,), n=n, m=m, which="few") for n, m in ((200, 3), (7, 0), (0, 2))),
    Case((M, 10, N), (20,), axis=1, n=4, m=3, which="few"),
    Case((40, 12), (N,), n=3000, dtype=tg.bf16, which="few"),
    Case((N, 12), (70,), n=50, mode="max"),
]

EMPTY = [
    Case((0, 4), (6,)), Case((0, 4), (6,), mode="set"), Case((5, 0), (6,)), Case((5, 0), (40,), mode="set"), Case((5, 4), (0,)),
    Case((5, 4), (0,), mode="set"), Case((0, 5, 4), (70,), axis=1), Case((9, 4), (70,), which="all_out"),
    Case((9, 4), (70,), which="all_out", mode="set"), Case((9, 4), (70,), which="all_out", of_index=tg.u64),
]


@pytest.mark.parametrize("case", [*SMALL, *EMPTY, *(pytest.param(case, marks=[pytest.mark.long] * (i % 2))
                                                    for i, case in enumerate([*MANY, *DYNAMIC]))], ids=str)
def test_rows_go_where_the_index_says(folder: Path, case: Case) -> None:
    spec = Spec.of(case.node)
    assert scatter_takes(spec) is None
    call, arrays = scatter(spec), case.drawn()
    expected = wanted(case, arrays)
    for shift in ((0, 1) if call.otherwise is not None else (0,)):
        found, = emulated.run(folder, call, [(expected.shape, case.dtype.numpy)], arrays, case.dims, shift)
        check(case, found, expected, arrays)
        if shift == 0:
            assert in_place(folder, call, arrays, case.dims).tobytes() == found.tobytes()


@pytest.mark.parametrize("mode", ["set", "add", "max"])
@pytest.mark.parametrize(("dtype", "inner"), [(tg.f32, 256), (tg.bf16, 12), (tg.f64, N), (tg.u8, 16)])
@pytest.mark.parametrize("architecture", [pytest.param("sm_80", marks=pytest.mark.long), "sm_90"])
def test_texts_compile(mode: str, dtype: DType, inner: Dim, architecture: str) -> None:
    call = scatter(Spec.of(Case((32768, inner), (N,), dtype, mode).node))
    for form in (call, call.otherwise):
        if form is not None:
            assert nvrtc.compiled(form.text, architecture, cuda.HEADERS)[:4] == b"\x7fELF"


def test_what_is_not_finite_is_added_where_it_belongs(folder: Path) -> None:
    for dtype in (tg.f32, tg.bf16, tg.f64):
        for mode in ("add", "max"):
            case = Case((9, 8), (80,), dtype=dtype, mode=mode, which="few")
            base, index, updates = case.drawn()
            index[:6] = [1, 1, 2, 3, 8, 8]
            updates[:6, 3] = [np.inf, -np.inf, np.nan, np.inf, 2, 3]
            base[4, 0], base[7], updates[index == 7] = np.nan, -np.inf, -np.inf
            expected = wanted(case, [base, index, updates])
            found, = emulated.run(folder, scatter(Spec.of(case.node)), [(expected.shape, dtype.numpy)], [base, index, updates], {})
            np.testing.assert_array_equal(np.isfinite(found.astype(float)), np.isfinite(expected.astype(float)))
            check(case, found, expected, [base, index, updates])


@pytest.mark.parametrize("mode", ["add", "max"])
def test_zeros_keep_their_signs(folder: Path, mode: str) -> None:
    case = Case((3, 4), (70,), mode=mode)
    base, updates = np.full((3, 4), -0.0, np.float32), np.full((70, 4), -0.0, np.float32)
    index = np.repeat(np.array([0, 2], np.int32), [65, 5])          # the first has a chunk of its own
    updates[-1, 1] = base[0, 2] = 0.0
    arrays = [base, index, updates]
    expected = wanted(case, arrays)
    found, = emulated.run(folder, scatter(Spec.of(case.node)), [(expected.shape, np.dtype(np.float32))], arrays, {})
    assert np.signbit(expected).sum() == 10
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_a_sum_of_many_is_rounded_once(folder: Path) -> None:
    case = Case((2, 4), (4000,), which="one")
    arrays = case.drawn()
    arrays[2][...] = np.float32(0.1)
    found, = emulated.run(folder, scatter(Spec.of(case.node)), [((2, 4), np.dtype(np.float32))], arrays, {})
    exact = arrays[0][1].astype(float) + 4000 * float(np.float32(0.1))
    np.testing.assert_allclose(found[1], exact, rtol=6e-8)


@pytest.mark.parametrize("count", [10, N])
@pytest.mark.parametrize("inner", [1, 15, 16, 640])
def test_what_it_notes_of_rows_is_no_more_than_the_rows(inner: int, count: Dim) -> None:
    rows = 1 << 20
    call = scatter(Spec.of(Case((rows, inner), (count,)).node))
    for n in (1, 10, 100_000):
        scratch = sum(int(d.evaluate(p, {"n": n})) for p in call.pieces)
        sorting = n * (8 + 8 + 4) + n // CHUNK * inner * 8
        assert scratch <= (rows + 2) * 4 + rows * inner * 4 + sorting + 256 * len(call.pieces)


def test_it_needs_no_more_scratch_for_fewer_updates() -> None:
    call = scatter(Spec.of(Case((30_000, 16), (N,)).node))
    taken = [sum(int(d.evaluate(p, {"n": n})) for p in call.pieces) for n in (0, 1, 59_999, 60_000, 60_001, 100_000)]
    assert taken == sorted(taken)


def test_the_text_and_its_call_have_the_same_numbers() -> None:
    text = (Path(scattering.__file__).parent / scattering.FILE).read_text()
    said = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)\b", text, re.MULTILINE)}
    names = ("TILE", "RUNS", "SHARES", "JOINING", "CHUNK", "CLEARED", "AT_ONCE", "SLOTS", "AVERAGE", "UPDATING")
    assert {name: said[name] for name in names} == {name: getattr(scattering, name) for name in names}


@pytest.mark.parametrize(("shape", "count", "why"), [
    ((1 << 31,), (4,), "2^31 rows"), ((4,), (1 << 31,), "2^31 rows"), ((tg.dim("k", 1, 1 << 40),), (4,), "2^31 rows"),
    ((1 << 20, 1 << 20), (4,), "2^39 elements")])
def test_what_it_does_not_take_is_said(shape: tuple[Dim, ...], count: tuple[Dim, ...], why: str) -> None:
    said = scatter_takes(Spec.of(Case(shape, count).node))
    assert said is not None and why in said


LARGE = [
    *(Case((32768, 256), (16384,), mode=mode, which=which) for mode in ("add", "set", "max")
      for which in ("any", "one", "few", "mixed")),
    *(Case((32768, 16), (count,), which="mixed") for count in (20_000, 60_000, 70_000)),
    Case((32000, 1000), (8192,), dtype=tg.bf16), Case((32000, 512), (N,), dtype=tg.bf16, n=4096, which="few"),
    Case((300,), (1 << 20,), dtype=tg.i32), Case((4, 500, 64), (3000,), axis=1, dtype=tg.f16), Case((1 << 20, 2), (300_000,)),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*SMALL[:12], *MANY, *DYNAMIC, *EMPTY, *LARGE], ids=str)
def test_rows_go_where_the_index_says_on_a_gpu(case: Case) -> None:
    device, call, arrays = device_named("cuda:0"), scatter(Spec.of(case.node)), case.drawn()
    expected = wanted(case, arrays)
    for shift in (0, 1):
        found, = launched.run_call(device, call, [case.node], arrays, case.dims, shift)
        check(case, found, expected, arrays)
        again, = launched.run_call(device, call, [case.node], arrays, case.dims, shift)
        assert again.tobytes() == found.tobytes()                   # whatever the order of threads
    base, index, updates = (launched.uploaded(device, a) for a in arrays)
    launched.Launched(device, call, [base], [base, index, updates], case.dims)()
    check(case, launched.downloaded(device, base, arrays[0]), expected, arrays)
