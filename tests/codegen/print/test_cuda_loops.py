"""CUDA C of stages: its text, what the compiler makes of it, and on a GPU what it computes, beside the oracle."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.backend_cuda import HEADER, build_copy, call_of
from tensor_graphs.codegen.mapping import rows as mapped_rows
from tensor_graphs.codegen.passes import split_reduction
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.c_code import ToolchainError
from tensor_graphs.devices.device import Device
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.kernel import Launch, LaunchCall, NativeCall, NotLowered
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.dtypes import DTYPES, DType, bf16, parse_dtype
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen import emulated
from tests.codegen.launched import run
from tests.codegen.test_generated import CASES, CLOSE, EIGHT, drawn, expected_of, is_close, rounded_to

N = tg.dim("n", 1, 4096)


def definition_of(*outputs: Node) -> Definition:
    written: Definition = part_between(outputs, list(make_graph(dict(enumerate_names(outputs))).inputs.values())).written
    return written


def enumerate_names(outputs: tuple[Node, ...]) -> list[tuple[str, Node]]:
    return [(f"y{i}", y) for i, y in enumerate(outputs)]


X, R, G = tg.input("x", (8192, 4096), tg.bf16), tg.input("r", (8192, 4096), tg.bf16), tg.input("g", (4096,), tg.bf16)
TEXTS = {"softmax": (tg.softmax(X),), "rms_norm_residual": (tg.rms_norm(X + R, G), X + R), "tanh": (tg.tanh(X),),
         "column_sum": (X.sum(axis=0),), "transpose_add": (tg.permute(X, (1, 0)) + tg.input("z", (4096, 8192), tg.bf16),)}


@pytest.mark.parametrize("name", ["softmax", "column_sum"])
def test_the_text_is_the_one_last_reviewed(name: str, snapshot: object) -> None:
    snapshot.check(f"{name}.cu", call_of(definition_of(*TEXTS[name])).text)  # type: ignore[attr-defined]


def test_a_row_of_which_only_numbers_come_is_read_past_the_first_cache_and_a_weight_that_all_read_is_not() -> None:
    w = tg.input("w", (4096,), tg.bf16)
    numbers = call_of(definition_of((tg.exp(X - X.max(axis=1, keepdims=True)) * w).sum(axis=1))).text
    weighed = call_of(definition_of(tg.max(X * w, axis=1, keepdims=True) * (X * w).sum(axis=1, keepdims=True))).text
    assert "pack_once<8>(x0 + (4096 * _i0" in numbers
    for text in (numbers, weighed):
        assert "pack_once<8>(x1" not in text and "pack_at<8>(x1" in text
    assert "pack_once" not in call_of(definition_of(*TEXTS["softmax"])).text, "it is written too"


@pytest.mark.parametrize("name", TEXTS)
def test_what_lies_together_is_loaded_and_stored_as_packs_and_what_does_not_is_not(name: str) -> None:
    call = call_of(definition_of(*TEXTS[name]))
    assert "pack_at<8>" in call.text and call.alignment == 16
    assert call.otherwise is not None and "pack_at" not in call.otherwise.text


def test_a_row_is_loaded_once_and_its_exponentials_stay_in_registers() -> None:
    call = call_of(definition_of(*TEXTS["softmax"]))
    text = call.text
    assert len(re.findall(r"pack_at<8>\(x0", text)) == 1 and call.launches[0].shared <= 2 * 16, "a number of each warp, twice"


def test_sizes_that_are_dims_are_arguments() -> None:
    x = tg.input("x", (N, 24))
    call = call_of(definition_of(tg.softmax(x)))
    assert [str(i) for i in call.ints] == ["n"] and "const index_t d_n = (index_t)sizes[0];" in call.text


def test_a_product_whose_greatest_is_taken_off_is_rounded_and_one_with_a_power_of_two_is_exact() -> None:
    x, w = tg.input("x", (64, 128)), tg.input("w", (128,))
    assert call_of(definition_of(tg.softmax(x * w))).text.count("__fmul_rn(") == 2
    assert "__fmul_rn(" not in call_of(definition_of(tg.softmax(x * 0.25))).text
    assert "__fmul_rn(" not in call_of(definition_of(tg.softmax(x) * w)).text


@pytest.mark.parametrize("name", TEXTS)
def test_the_compiler_takes_the_text_of_both_forms(name: str) -> None:
    call = call_of(definition_of(*TEXTS[name]))
    for form in (call, call.otherwise):
        assert form is not None and nvrtc.compiled(form.text, "sm_90", HEADER.parent)[:4] == b"\x7fELF"


def test_what_the_compiler_refuses_is_shown_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"(?s)generated\.cu\(2\).*undefined"):
        nvrtc.compiled('// first\nextern "C" __global__ void f() { nothing = 1; }\n', "sm_90", HEADER.parent, cache=tmp_path / "c")


def test_what_is_compiled_is_kept_and_others_may_not_write_to_it(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void f() {}\n'
    made = nvrtc.compiled(text, "sm_90", HEADER.parent, cache=tmp_path / "c")
    (kept,) = (tmp_path / "c").iterdir()
    assert kept.stat().st_mode & 0o077 == 0 and nvrtc.compiled(text, "sm_90", HEADER.parent, cache=tmp_path / "c") == made


# ---- as C++, on the host ---------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is compiled lies."""
    return tmp_path_factory.mktemp("emulated")


def given(name: str, dtype: DType, *shape: int) -> Node:
    return tg.input(name, shape, dtype)


def small(dtype: DType) -> dict[str, tuple[Node, ...]]:
    """A case of each form of a nest, with rows and columns that fill no block."""
    x, t, r, g = given("x", dtype, 136, 200), given("t", dtype, 200, 136), given("r", dtype, 9, 264), given("g", dtype, 264)
    batch, q, label = given("x", dtype, 3, 72, 80), given("q", dtype, 5, 3, 32), given("label", tg.i32, 9)
    c, s = given("c", tg.f32, 5, 16), given("s", tg.f32, 5, 16)
    hit = tg.equals(tg.reshape(tg.iota(264, dtype=tg.i32), (1, 264)), tg.reshape(label, (9, 1)))
    wide = tg.cast(r, tg.f32)
    image, gain = given("x", dtype, 3, 12, 6, 10), given("g", dtype, 12)
    return {"across": (tg.permute(x, (1, 0)) + t,), "across in a batch": (tg.permute(batch, (0, 2, 1)) * 2.0,),
            "two across": (tg.permute(x, (1, 0)) + tg.permute(given("z", dtype, 136, 200), (1, 0)),),
            "halves": (tg.rope(q, c, s),), "rows": (tg.softmax(r * 20.0),), "rows twice": (tg.rms_norm(r, g), r + 1.0),
            "one of a row": (tg.logsumexp(wide) - tg.where(hit, wide, 0.0).sum(axis=1),), "columns": (x.sum(axis=0),),
            "columns in parts": (given("x", dtype, 600, 72).sum(axis=0),), "flat": (tg.gelu(x * 3.0),),
            "tails": (tg.erfc(x * 3.0),), "outputs of each other": of_each_other(r, given("u", dtype, 9, 264)),
            "groups": (tg.silu(tg.group_norm(image, gain, gain, groups=3)),), "groups of one": (tg.group_norm(image, groups=12),),
            "groups between reshapes": (tg.reshape(tg.layer_norm(tg.reshape(image, (9, 240))), image.shape)
                                        * tg.reshape(gain, (12, 1, 1)),),
            "windows": (tg.max_pool2d(image, 3, stride=2, padding=1),), "sums of windows": (tg.avg_pool2d(image, 2),),
            "windows of a channel each": (tg.conv(image, given("w", dtype, 12, 1, 3, 3), padding=1, groups=12),),
            "long rows in parts": (tg.mean(given("x", dtype, 70, 2, 520), axis=(0, 2)),),
            "the largest of long rows": (tg.reduce_max(given("x", dtype, 2, 40_000), axis=1),),
            "weights of eight bits": ((tg.cast(given("q", tg.i8, 5, 8192), tg.f32) * given("r", tg.f32, 1, 8192)).sum(axis=1),),
            "outputs of each other, one by one": of_each_other(given("r", dtype, 7, 5), given("u", dtype, 7, 5))}


def of_each_other(x: Node, y: Node) -> tuple[Node, ...]:
    mean = x * 0.9 + y * 0.1
    over = tg.less(mean, x)
    return mean, x - mean * y, over, tg.where(over, mean * mean, y)


def test_outputs_of_each_other_are_threads_of_their_elements() -> None:
    """No block has to wait for itself, and nothing is read back."""
    x, y = given("x", tg.f32, 1 << 20), given("y", tg.f32, 1 << 20)
    (launch,) = call_of(definition_of(*of_each_other(x, y))).launches
    assert launch.grid == (1 << 20) // (4 * launch.block)
    assert "pack_at<4>(y" not in call_of(definition_of(*of_each_other(x, y))).text


def test_a_group_is_a_turn_whose_threads_share_its_sums() -> None:
    image = given("x", tg.f32, 4, 64, 16, 16)
    for norm in (tg.group_norm(image, groups=8), tg.reshape(tg.layer_norm(tg.reshape(image, (32, 2048))), image.shape)):
        call = call_of(definition_of(tg.silu(norm)))
        assert [launch.grid for launch in call.launches] == [4 * 8] and "reduced<" in call.text


def test_a_window_is_reduced_by_one_thread() -> None:
    call = call_of(definition_of(tg.max_pool2d(given("x", tg.f32, 4, 8, 32, 32), 2)))
    assert [launch.grid for launch in call.launches] == [4 * 8 * 16 * 16 // 256] and "shared" not in call.text


@pytest.mark.parametrize("dtype", [tg.f32, bf16])
def test_a_window_of_one_channel_is_stored_by_the_thread_that_sums_it(dtype: DType) -> None:
    call = call_of(definition_of(tg.conv(given("x", dtype, 4, 8, 32, 32), given("w", dtype, 8, 1, 3, 3), padding=1, groups=8)))
    assert [launch.grid for launch in call.launches] == [4 * 8 * 32 * 32 // 256] and "shared" not in call.text


def test_a_reduction_that_something_else_reads_too_is_not_handed_on() -> None:
    total = given("x", tg.f32, 64, 8, 300).sum(axis=2)
    program = program_of(definition_of(tg.reshape(total, (8, 64)), tg.exp(total)))
    assert sum(s.monoid is not None for nest in program.nests for s in nest.stages) == 1
    assert [a.name for a in program.scratch], "it is kept for both"


def test_long_rows_that_are_few_are_summed_by_many_blocks() -> None:
    call = call_of(definition_of(tg.mean(given("x", tg.f32, 256, 64, 784), axis=(0, 2))))
    first, _ = call.launches
    assert first.grid == split_reduction.BLOCKS


@pytest.mark.parametrize("shape", [(64, 4096), (split_reduction.FEW + 1, 1 << 16)])
def test_rows_that_are_short_or_many_stay_whole(shape: tuple[int, ...]) -> None:
    assert not program_of(definition_of(given("x", tg.f32, *shape).sum(axis=1))).scratch


def test_a_warp_reads_the_widest_of_very_different_operands_in_whole_lines() -> None:
    q, x = given("q", tg.i8, 2048, 8192), given("x", tg.f32, 1, 8192)
    text = call_of(definition_of((tg.cast(q, tg.f32) * x).sum(axis=1))).text
    assert "Pack<float, 4>" in text and "Pack<int8_t, 4>" in text and "Pack<float, 16>" not in text


def test_a_long_sum_goes_on_in_f64_once_for_each_pack() -> None:
    text = call_of(definition_of(given("x", tg.f32, 1000, 100_000).sum(axis=1))).text
    assert text.count("(double)") == 1


def on_host(folder: Path, outputs: tuple[Node, ...], values: dict[str, np.ndarray], shift: int) -> None:
    """Run what is generated, as C++, beside the oracle."""
    graph, definition = make_graph(dict(enumerate_names(outputs))), definition_of(*outputs)
    kinds = [(tuple(int(s) for s in o.shape), np.dtype(o.dtype.numpy)) for o in definition.outputs]
    expected = interpret(graph, values).outputs.values()
    for out, ref in zip(emulated.run(folder, definition, kinds, list(values.values()), {}, shift), expected, strict=True):
        kind = parse_dtype(out.dtype)
        report = measure(out, ref, kind)
        assert is_close(report, kind), f"{call_of(definition).text}\n{report}"


def test_a_cast_to_eight_bits_rounds_inside_of_a_kernel(folder: Path) -> None:
    nodes, expected = rounded_to("f8e4m3")
    definition = definition_of(*nodes.values())
    kinds = [(expected[name].shape, np.dtype(node.dtype.numpy)) for name, node in nodes.items()]
    for name, out in zip(nodes, emulated.run(folder, definition, kinds, [EIGHT], {}), strict=True):
        np.testing.assert_allclose(out.astype(np.float64), expected[name].astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("name", small(tg.f32))
def test_each_form_is_what_the_oracle_says(name: str, kind: str, folder: Path) -> None:
    outputs = small(DTYPES[kind])[name]
    values = _values(make_graph(dict(enumerate_names(outputs))))
    if "label" in values:
        values["label"][:4] = [-1, 264, 263, -(2**31)]
    for shift in (0, 1) if kind == "bf16" else (0,):
        on_host(folder, outputs, values, shift)


EDGES = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-38, 3e38, -3e38, 1e31, 1e-31, 9.1, 9.5, -9.5, 12.5, 88.0,
         -88.0, -95.0, -104.0, 100.0, 1e30, 1e-30, 5e-39, 1e20, 1e-20]


@pytest.mark.parametrize("name", ["rows", "rows twice", "one of a row"])
def test_rows_of_large_operands_are_brought_near_before_it_waits(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = small(bf16)[name]
    assert "bring(" not in call_of(definition_of(*outputs)).text
    monkeypatch.setattr(mapped_rows, "FAR", 1)
    text = call_of(definition_of(*outputs)).text
    before, after = text.split("after_those_before();")
    assert "bring(x0 + (" in before and "bring(" not in after and "bring(x2" not in text, "what all rows share is near"
    on_host(folder, outputs, _values(make_graph(dict(enumerate_names(outputs)))), 0)


def test_columns_beside_each_other_share_their_room(folder: Path) -> None:
    """Two sums in one launch, of which each takes 18 KB; the 600 rows are 8 parts of 75."""
    given_here = [given(name, bf16, 600, 256) for name in "abcde"]
    outputs = tuple(x.sum(axis=0) for x in given_here)
    call = call_of(definition_of(*outputs))
    assert len(call.launches) == 6 and all(each.shared <= 18 << 10 for each in call.launches)
    nvrtc.compiled(call.text, "sm_90", HEADER.parent)
    on_host(folder, outputs, _values(make_graph(dict(enumerate_names(outputs)))), 0)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("op", ["divided", "exp", "erfc"])
def test_at_the_edges_of_a_dtype_functions_are_what_the_oracle_says(op: str, kind: str, folder: Path) -> None:
    dtype, n = DTYPES[kind], len(EDGES)
    x, by = given("x", dtype, n, n), given("by", dtype, n)
    y = {"divided": lambda: x / tg.reshape(by, (n, 1)), "exp": lambda: tg.exp(x), "erfc": lambda: tg.erfc(x)}[op]()
    edges = np.array(EDGES, np.float32).astype(dtype.numpy)
    values = {"x": np.tile(edges, (n, 1)), "by": edges}
    alone = tg.reshape(y, (n * n, 1))                               # each its own row: no error is small beside another number
    on_host(folder, (alone,), {k: v for k, v in values.items() if k in make_graph({"y": y}).inputs}, 0)


@pytest.mark.parametrize(("body", "says"), [
    ("__shared__ float t[128]; t[threadIdx.x] = threadIdx.x; y[threadIdx.x] = t[(threadIdx.x + 1) % 128];", "order of threads"),
    ("if (threadIdx.x % 32 < 5) __syncthreads(); else __syncwarp(); y[threadIdx.x] = 1;", "different barriers"),
    ("y[threadIdx.x + 1] = 1;", "behind an output")])
def test_what_is_run_on_the_host_shows_what_is_wrong_between_threads(body: str, says: str, folder: Path) -> None:
    text = f'#include "numbers.cuh"\nextern "C" __global__ void __launch_bounds__(128) f(float *y) {{ {body} }}\n'
    call = LaunchCall(text, (Launch("f", 1, 128),))
    with pytest.raises(AssertionError, match=says):
        emulated.run(folder, call, [((128,), np.dtype(np.float32))], [], {})


# ---- on a GPU ------------------------------------------------------------------------------------------------------------------


@cache
def gpu() -> Device:
    return device_named("cuda:0")


def check(definition: Definition, values: dict[str, np.ndarray], expected: list[np.ndarray], shift: int) -> None:
    for out, ref in zip(run(gpu(), definition, list(values.values()), {}, shift), expected, strict=True):
        kind = parse_dtype(out.dtype)
        report = measure(out, ref, kind)
        assert is_close(report, kind), f"{call_of(definition).text}\n{report}"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", CASES)
def test_what_is_launched_for_an_op_is_what_the_oracle_says(op: str, dtype: str) -> None:
    made = drawn(op, dtype, 0)
    if made is None:
        return
    graph, definition, values = made
    try:
        call_of(definition)
    except NotLowered:
        return
    expected = expected_of(graph, values)
    check(definition, values, expected, 0)
    check(definition, values, expected, 1)


def _values(graph: object, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (rng.integers(0, 96, x.shape) if not x.dtype.is_float else rng.standard_normal(x.shape)).astype(x.dtype.numpy)
            for name, x in graph.inputs.items()}  # type: ignore[attr-defined]


def _shapes(kind: str) -> list[tuple[Node, ...]]:
    """Sizes at which other forms are written: short, long, odd and very long rows, few and many columns."""
    dtype = DTYPES[kind]
    found: list[tuple[Node, ...]] = []
    for rows, columns in ((1, 1), (3, 5), (7, 64), (600, 96), (40, 1000), (5, 4096), (2, 40960), (1, 200000), (1500, 33),
                          (5000, 8)):
        x, y, g = tg.input("x", (rows, columns), dtype), tg.input("y", (rows, columns), dtype), tg.input("g", (columns,), dtype)
        found += [(tg.softmax(x),), (tg.rms_norm(x + y, g), x + y), (tg.layer_norm(x, g, g),), (x.sum(axis=0),), (x.sum(axis=1),),
                  (x.sum(),), (tg.reduce_max(x, axis=0),), (tg.logsumexp(x),), (tg.permute(x, (1, 0)) * 2.0,),
                  (tg.softmax(x, axis=0),), (tg.gelu(x) * y,), (x + g,), (tg.var(x, axis=1),)]
    q, k = tg.input("q", (2, 70, 2), dtype), tg.input("k", (2, 4, 2), dtype)
    i = tg.input("i", (77,), tg.i32)
    table = tg.input("table", (96, 40), dtype)
    found += [(tg.embedding(table, i),), (tg.pad(table, ((3, 5), (1, 7))) * 2.0,),
              (tg.reduce_max((tg.reshape(q, (2, 70, 1, 2)) * tg.reshape(k, (2, 1, 4, 2))), axis=2),)]
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["f32", "bf16", "f64"])
def test_every_form_is_what_the_oracle_says_at_many_sizes(kind: str) -> None:
    for outputs in _shapes(kind):
        graph = make_graph(dict(enumerate_names(outputs)))
        values = _values(graph)
        expected = list(interpret(graph, values).outputs.values())
        check(definition_of(*outputs), values, expected, 0)
        check(definition_of(*outputs), values, expected, 1)


@pytest.mark.gpu
def test_a_dim_is_whatever_it_is_at_a_launch() -> None:
    x = tg.input("x", (N, 24), tg.f32)
    for y in (tg.softmax(x), x.sum(axis=0), tg.tanh(x) * 2.0, tg.softmax(x, axis=0)):
        graph, definition = make_graph({"y": y}), definition_of(y)
        for n in (1, 2, 17, 4096):
            given = {"x": np.random.default_rng(n).standard_normal((n, 24)).astype(np.float32)}
            (out,) = run(gpu(), definition, [given["x"]], {"n": n})
            assert measure(out, interpret(graph, given).outputs["y"], tg.f32).within(CLOSE["f32"])


def test_a_copy_is_launched_with_its_strides() -> None:
    call = build_copy((5, 7), (7, 1), (1, -5), 4)
    assert isinstance(call, LaunchCall) and not isinstance(call, NativeCall) and "x0[(_j0 - 5 * _j1)]" in call.text
