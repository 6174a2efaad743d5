"""Products of few rows as CUDA: the values of each kind of part for one row and for several, and what one launch makes."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import backend_cuda, interpret_loops
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.codegen.mapping.streams import MANY_COLUMNS
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.devices.target import HOPPER, TINY
from tensor_graphs.kernels.kernel import LaunchCall, NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp, part_between
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen import emulated, launched
from tests.codegen.test_skinny_product import CASES, Kind, gated, norms, residual, several


def embedded(m: int, k: int, dtype: tg.DType) -> tuple[list[Node], list[Node]]:
    """RowForm of a table that an input names, normed: what each block makes again is gathered."""
    ids = tg.input("ids", (tg.dim("n", 1, 300),), tg.i32)
    table, g, w = (tg.parameter(name, shape, dtype) for name, shape in (("t", (50, k)), ("g", (k,)), ("w", (m, k))))
    x = tg.embedding(table, ids)
    return [x, tg.linear(tg.rms_norm(x, g), w)], [ids, table, g, w]


def turned_rows(m: int, k: int, dtype: tg.DType) -> tuple[list[Node], list[Node]]:
    """Two products of the same rows in other orders, so that neither axes nor factors are shared."""
    x = tg.input("x", (2, tg.dim("n", 1, 300), k))
    w, v = (tg.parameter(name, (m, k), dtype) for name in "wv")
    return [tg.linear(tg.permute(x, (1, 0, 2)), w), tg.linear(x, v)], [x, w, v]


def heads(m: int, k: int, dtype: tg.DType) -> tuple[list[Node], list[Node]]:
    """A query of more columns than a key and a value have, of rows that are normed in each block."""
    x, g = tg.input("x", (tg.dim("n", 1, 300), k)), tg.parameter("g", (k,), dtype)
    w = [tg.parameter(f"w{i}", (size, k), dtype) for i, size in enumerate((2 * m, m, m))]
    h = tg.rms_norm(x, g)
    return [tg.linear(h, each) for each in w], [x, g, *w]


Case = tuple[Kind, tuple[int, int], tg.DType]

PARTS = [*CASES[::7], (embedded, (24, 128), tg.bf16), (turned_rows, (24, 32), tg.bf16), (norms, (5, 2560), tg.bf16),
         (several, (520, 64), tg.f32), (heads, (24, 128), tg.bf16), (gated, (4300, 8), tg.f32), (residual, (3, 6144), tg.bf16)]
"""beside those of C: packs that are loaded in turns, blocks of several products, several columns of a warp"""


def call_of(kind: Kind, sizes: tuple[int, int], dtype: tg.DType) -> tuple[LaunchCall, PartOp, list[Node], list[Node]]:
    outputs, operands = kind(*sizes, dtype)
    part = part_between(outputs, operands)
    return backend_cuda.call_of(part.written), part, outputs, operands


def given_and_expected(outputs: list[Node], operands: list[Node], n: int) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    random = np.random.default_rng(zlib.crc32(str(outputs).encode()))
    arrays = {}
    for x in operands:
        shape = tuple(int(d.evaluate(s, {"n": n})) for s in x.shape)
        drawn = random.integers(0, 50, shape) if x.dtype is tg.i32 else random.standard_normal(shape) / max(1.0, shape[-1] ** 0.5)
        arrays[x.attrs["name"]] = drawn.astype(x.dtype.numpy)
    inputs = {x.attrs["name"] for x in operands if x.op is leaves.INPUT}
    made = interpret(tg.graph({f"y{i}": y for i, y in enumerate(outputs)}), {k: a for k, a in arrays.items() if k in inputs},
                      parameters={k: a for k, a in arrays.items() if k not in inputs}, dims={"n": n})
    return arrays, [made.outputs[f"y{i}"] for i in range(len(outputs))]


def assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for out, ref in zip(found, expected, strict=True):
        bound = 2e-2 if out.dtype == ml_dtypes.bfloat16 else 2e-5
        error = np.abs(out.astype(np.float64) - ref).max() / max(np.abs(ref).max(), 1e-30)
        assert error <= bound


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


def test_rows_that_are_never_one_have_the_kernels_for_several(folder: Path) -> None:
    x, g, w = tg.input("x", (tg.dim("n", 2, 300), 64)), tg.parameter("g", (64,)), tg.parameter("w", (24, 64))
    outputs, operands = [tg.linear(tg.rms_norm(x, g), w)], [x, g, w]
    call = backend_cuda.call_of(part_between(outputs, operands).written)
    arrays, expected = given_and_expected(outputs, operands, 3)
    kinds = [(expected[0].shape, np.dtype(np.float32))]
    assert_close(emulated.run(folder, call, kinds, [arrays[name] for name in "xgw"], {"n": 3}, 0), expected)


@pytest.mark.parametrize("case", PARTS, ids=lambda case: f"{case[0].__name__}-{case[1][0]}x{case[1][1]}-{case[2]}")
def test_one_row_and_several_agree_with_the_oracle(folder: Path, case: Case) -> None:
    call, _, outputs, operands = call_of(*case)
    many = case[1][0] > MANY_COLUMNS[0][0]                          # thousands of columns take seconds each here
    for n, shift in ((1, 1),) if many else ((1, 0), (1, 1), (6, 0)):
        arrays, expected = given_and_expected(outputs, operands, n)
        kinds = [(ref.shape, np.dtype(y.dtype.numpy)) for y, ref in zip(outputs, expected, strict=True)]
        assert_close(emulated.run(folder, call, kinds, [arrays[x.attrs["name"]] for x in operands], {"n": n}, shift), expected)


@pytest.mark.parametrize("kind", [norms, several, gated, residual, embedded, turned_rows, heads], ids=lambda kind: kind.__name__)
def test_their_loops_agree_with_the_oracle_and_have_no_races(kind: Kind) -> None:
    for sizes in ((5, 7), (24, 32)):
        outputs, operands = kind(*sizes, tg.bf16)
        program = program_of(part_between(outputs, operands).written)
        for target, rows in ((TINY, (1, 6)), (HOPPER, (1,))):
            for aligned, n in itertools.product((True, False), rows):
                arrays, expected = given_and_expected(outputs, operands, n)
                inputs = [arrays[x.attrs["name"]] for x in operands]
                results = interpret_loops.run(map_loops(program, target, aligned), inputs, {"n": n}, target.warp)
                rounded = [out.astype(y.dtype.numpy) for out, y in zip(results, outputs, strict=True)]
                assert_close(rounded, [ref.reshape(-1) for ref in expected])


@pytest.mark.parametrize("kind", [norms, several, gated, residual, embedded, heads], ids=lambda kind: kind.__name__)
def test_one_row_is_one_launch(kind: Kind) -> None:
    call, *_ = call_of(kind, (24, 128), tg.bf16)
    assert [each.entry for each in call.launches if d.evaluate(each.grid, {"n": 1})] == ["nest_row"]
    assert len([each for each in call.launches if d.evaluate(each.grid, {"n": 5})]) == len(call.launches) - 1


def test_weights_that_are_stored_in_other_dtypes_are_no_streams_beside_each_other() -> None:
    x, w, v = tg.input("x", (3, 64)), tg.parameter("w", (24, 64), tg.bf16), tg.parameter("v", (24, 64), tg.f16)
    with pytest.raises(NotLowered, match="not alike"):
        backend_cuda.call_of(part_between([tg.linear(x, w), tg.linear(x, v)], [x, w, v]).written)


def test_weights_are_read_before_the_wait_and_named() -> None:
    call, _, _, operands = call_of(norms, (24, 128), tg.bf16)
    (row,) = [each for each in call.launches if each.entry == "nest_row"]
    assert [operands[i].attrs["name"] for i in row.early] == ["w"] and row.waits
    body = call.text[call.text.index("nest_row("):]
    assert body.index("pack_now") < body.index("after_those_before") < body.index("reduced<256>")


def turned(m: int, k: int, dtype: tg.DType) -> tuple[list[Node], list[Node]]:
    """Norms of queries, and of keys whose rows go into a state from p on, beside values that go into another."""
    n, p = tg.dim("n", 1, 30), tg.dim("p", 0, 32)
    q, key, value = tg.input("q", (n, 4, k)), tg.input("key", (n, k)), tg.input("value", (n, k))
    keys, values, g = tg.input("keys", (64, k)), tg.input("values", (64, k)), tg.parameter("g", (k,), dtype)
    outputs = [tg.rms_norm(q, g), tg.write_rows(keys, tg.rms_norm(key, g), start=p),
               tg.write_rows(values, value, start=p)]
    return outputs, [q, key, value, keys, values, g]


def test_what_has_nothing_to_do_with_each_other_is_one_launch_that_stores_rows_alone(folder: Path) -> None:
    outputs, operands = turned(0, 256, tg.bf16)
    part = part_between(outputs, operands)
    call = backend_cuda.call_of(part.written)
    assert len(call.launches) == 1
    for n, p in ((1, 5), (3, 0)):
        random = np.random.default_rng(n)
        arrays = {x.attrs["name"]: random.standard_normal([int(d.evaluate(s, {"n": n})) for s in x.shape]).astype(x.dtype.numpy)
                  for x in operands}
        graph = tg.graph({f"y{i}": y for i, y in enumerate(outputs)})
        made = interpret(graph, {k: a for k, a in arrays.items() if k != "g"}, {"g": arrays["g"]}, dims={"n": n, "p": p})
        expected = [made.outputs[f"y{i}"] for i in range(3)]
        kinds = [(ref.shape, np.dtype(np.float32)) for ref in expected]
        whole, *rows = emulated.run(folder, call, kinds, [arrays[x.attrs["name"]] for x in operands], {"n": n, "p": p})
        assert_close([whole, *(out[p:p + n] for out in rows)], [expected[0], *(ref[p:p + n] for ref in expected[1:])])
        for out in rows:
            assert len(np.unique(np.delete(out.view(np.uint8), range(p, p + n), 0))) == 1       # as it was filled


def test_nests_that_read_each_other_or_fill_the_device_are_launches_of_their_own() -> None:
    x, g = tg.input("x", (64, 256)), tg.parameter("g", (256,))
    first = tg.rms_norm(x, g)
    for second, launches in ((tg.rms_norm(tg.flip(first, axis=0), g), 2), (tg.rms_norm(tg.flip(x, axis=0), g), 1)):
        assert len(backend_cuda.call_of(part_between([first, second], [x, g]).written).launches) == launches
    x, y = tg.input("x", (16384, 256)), tg.input("y", (16000, 256))
    large = part_between([tg.rms_norm(x, g), tg.rms_norm(y, g)], [x, y, g])
    assert len(backend_cuda.call_of(large.written).launches) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *PARTS], ids=lambda case: f"{case[0].__name__}-{case[1][0]}x{case[1][1]}-{case[2]}")
def test_streams_agree_with_the_oracle_on_a_gpu(case: Case) -> None:
    call, _, outputs, operands = call_of(*case)
    device = device_named("cuda:0")
    for n, shift in ((1, 0), (1, 1), (2, 0), (7, 0)):
        arrays, expected = given_and_expected(outputs, operands, n)
        given = [arrays[x.attrs["name"]] for x in operands]
        assert_close(launched.run_call(device, call, outputs, given, {"n": n}, shift), expected)
