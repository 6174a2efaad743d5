"""tests for codegen/print/scan_cuda.py: a scan as one kernel of a GPU, whose blocks take rows through all turns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.backend_cuda import HEADER
from tensor_graphs.codegen.interpret_loops import run
from tensor_graphs.codegen.mapping.scans import map_scan
from tensor_graphs.codegen.print import scan_cuda
from tensor_graphs.codegen.spec_to_loops import asked
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.kernel import LaunchCall, Spec
from tensor_graphs.language.leaves import item
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen import emulated, launched

N, B = tg.dim("n", 0, 40), tg.dim("b", 1, 64)
Loop = Callable[[], Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("turns")


def of(name: str, *shape: Any, dtype: tg.DType = tg.f32) -> Node:
    return tg.input(name, shape, dtype)


def rnn(rows: Any = 6, width: int = 16, length: Any = N, dtype: tg.DType = tg.f32, reverse: bool = False) -> Any:
    u = of("u", width, width, dtype=dtype)

    def cell(h: Node, x: Node) -> tuple[Node, Node]:
        new = tg.tanh(x + tg.linear(h, u))
        return new, new

    return tg.scan(cell, of("h", rows, width, dtype=dtype), of("x", length, rows, width, dtype=dtype), reverse=reverse)


def gru() -> Any:
    """Three gates of one product, with biases that all rows share."""
    u, b = of("u", 24, 8), of("bias", 24)

    def cell(h: Node, x: Node) -> tuple[Node, Node]:
        gates = tg.linear(h, u, b)
        update, reset = tg.sigmoid(gates[:, :8] + x[:, :8]), tg.sigmoid(gates[:, 8:16] + x[:, 8:16])
        new = update * h + (1.0 - update) * tg.tanh(reset * gates[:, 16:] + x[:, 16:])
        return new, new * 2.0

    return tg.scan(cell, of("h", 5, 8), of("x", N, 5, 24))


def lstm() -> Any:
    u = of("u", 32, 8)

    def cell(c: tuple[Node, ...], x: Node) -> tuple[Any, Any]:
        h, memory = c
        gates = tg.linear(h, u) + x
        memory = tg.sigmoid(gates[:, :8]) * memory + tg.sigmoid(gates[:, 8:16]) * tg.tanh(gates[:, 16:24])
        h = tg.sigmoid(gates[:, 24:]) * tg.tanh(memory)
        return (h, memory), h

    return tg.scan(cell, (of("h", 4, 8), of("c", 4, 8)), of("x", N, 4, 32))


def selective(rows: Any = B) -> Any:
    """A state space: decay and input are of the row, what is read of the turn."""
    def turn(h: Node, at: tuple[Node, ...]) -> tuple[Node, Node]:
        gate, new, read = at
        h = tg.sigmoid(gate) * h + new
        return h, (h * read).sum(axis=-1)

    return tg.scan(turn, of("h", rows, 16), (of("a", N, rows, 16), of("b", N, rows, 16), of("c", N, 16)))


def in_turns() -> Any:
    """Carries that change places, values that come back twice, one that is handed on."""
    def step(c: tuple[Node, ...], x: Node) -> tuple[Any, Any]:
        new = c[0] * 0.5 + x
        return (new, new, c[1]), (new, c[2], x)

    return tg.scan(step, (of("p", 7, 5), of("q", 7, 5), of("r", 7, 5)), of("x", N, 7, 5))


def normed() -> Any:
    """Nests that read what others have made of a row: its mean, its square."""
    w = of("w", 40)

    def step(h: Node, x: Node) -> tuple[Node, Node]:
        h = tg.rms_norm(h + x, w) * 0.9
        return h, tg.softmax(h, -1)

    return tg.scan(step, of("h", 3, 40), of("x", N, 3, 40))


def long_rows() -> Any:
    """Several long rows in each row of a batch: threads of a block wait for each other, once for each."""
    def step(h: Node, x: Node) -> tuple[Node, Node]:
        h = (h + x) * 0.5
        return h, h.sum(-1)

    return tg.scan(step, of("h", 2, 3, 1500), of("x", N, 2, 3, 1500))


def down_columns() -> Any:
    """Sums across memory, of more columns than a block takes at once."""
    return tg.scan(lambda h, x: (h * 0.5 + x, h.sum(1)), of("h", 2, 70, 140), of("x", N, 2, 70, 140))


def averages() -> Any:
    """Rows of one number, many of which a block takes."""
    return tg.scan(lambda h, x: (h * 0.9 + x * 0.1, h), of("h", 4096), of("x", N, 4096))


def counts() -> Any:
    return tg.scan(lambda h, x: (h + x, h * 3), of("h", 9, 4, dtype=tg.u8), of("x", N, 9, 4, dtype=tg.u8))


LOOPS: list[Loop] = [rnn, lambda: rnn(16, 16), lambda: rnn(B, 24), lambda: rnn(reverse=True), lambda: rnn(5, 8, dtype=tg.bf16),
                     lambda: rnn(3, 7), lambda: rnn(2, 40, dtype=tg.f64), gru, lstm, selective, lambda: selective(1056), in_turns,
                     normed, long_rows, down_columns, averages, counts]
IDS = ["rnn", "as many rows as columns", "rows are a dim", "reverse", "bf16", "odd", "f64", "gru", "lstm", "selective",
       "several rows of a block", "in turns", "normed", "long rows", "down columns", "averages", "counts"]


def loop_of(made: Any) -> Node:
    last, _ = made
    node = last[0] if isinstance(last, tuple) else last
    return node.inputs[0] if node.op.name == "item" else node


def drawn(node: Node, dims: dict[str, int]) -> list[np.ndarray]:
    rng, found = np.random.default_rng(3), []
    for x in node.inputs:
        t = x.type.at(dims)
        values = rng.standard_normal(t.shape) * 0.2 if t.dtype.is_float else rng.integers(0, 200, t.shape)
        found.append(values.astype(t.dtype.numpy))
    return found


def oracle(node: Node, arrays: list[np.ndarray], dims: dict[str, int]) -> list[np.ndarray]:
    g = tg.graph({f"y{i}": item(node, i) for i in range(len(node.types))})
    given = {x.attrs["name"]: a for x, a in zip(node.inputs, arrays, strict=True)}
    made = interpret(g, {n: given[n] for n in g.inputs}, dims={n: dims[n] for n in g.dims}).outputs
    return [np.asarray(made[f"y{i}"]) for i in range(len(node.types))]


def compared(found: list[np.ndarray], wanted: list[np.ndarray], dtype: tg.DType) -> None:
    near = {"bf16": 0.05, "f32": 3e-5, "f64": 1e-11, "u8": 0.0}[dtype.name]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=near, atol=near)


def call_of(node: Node) -> LaunchCall:
    spec = Spec.of(node)
    assert scan_cuda.refuse(spec) is None
    return scan_cuda.build(spec)


@pytest.mark.parametrize("loop", LOOPS, ids=IDS)
def test_the_turns_are_the_oracles_at_every_length(folder: Path, loop: Loop) -> None:
    node = loop_of(loop())
    call = call_of(node)
    for n, b in ((0, 2), (1, 3), (2, 1), (5, 4)):
        dims = {"n": n, "b": b}
        arrays = drawn(node, dims)
        wanted = oracle(node, arrays, dims)
        outs = [(tuple(t.at(dims).shape), t.dtype.numpy) for t in node.types]
        for shift in (0, 1) if n == 5 and call.otherwise is not None else (0,):
            compared(emulated.run(folder, call, outs, arrays, dims, shift), wanted, node.types[0].dtype)


@pytest.mark.parametrize("loop", LOOPS, ids=IDS)
def test_the_loops_are_the_oracles_and_no_thread_reads_what_another_may_still_write(loop: Loop) -> None:
    node = loop_of(loop())
    program = map_scan(scan_cuda._turns_of(asked(Spec.of(node))), True)
    for n, b in ((0, 2), (1, 3), (5, 2)):
        dims = {"n": n, "b": b}
        arrays = drawn(node, dims)
        wanted = oracle(node, arrays, dims)
        outputs = [y.reshape(x.shape) for y, x in zip(run(program, arrays, dims), wanted, strict=True)]
        compared(outputs, wanted, node.types[0].dtype)


def test_rows_that_a_launch_would_sum_in_parts_stay_whole_in_a_block(folder: Path) -> None:
    """Parts of a row would be nests with blocks of another size, which a loop does not take."""
    node = loop_of(tg.scan(lambda h, x: (h * 0.5 + x.sum(-1), h), of("h", 2), of("x", N, 2, 33_000)))
    call = call_of(node)
    assert "in parts" not in call.text and [launch.grid for launch in call.launches] == [2]
    arrays = drawn(node, {"n": 2})
    outs = [(tuple(t.at({"n": 2}).shape), t.dtype.numpy) for t in node.types]
    compared(emulated.run(folder, call, outs, arrays, {"n": 2}, 0), oracle(node, arrays, {"n": 2}), node.types[0].dtype)


@pytest.mark.parametrize("loop", LOOPS, ids=IDS)
def test_texts_compile(loop: Loop) -> None:
    call = call_of(loop_of(loop()))
    for form in filter(None, (call, call.otherwise)):
        assert nvrtc.compiled(form.text, "sm_90", HEADER.parent)[:4] == b"\x7fELF"
        assert all(launch.shared <= 100 << 10 for launch in form.launches) and len(form.launches) == 1
        assert "*__restrict__ in" not in form.text                  # numbers.cuh, after_those_before


def test_a_block_has_one_row_where_there_are_few_and_several_where_there_are_many() -> None:
    for loop, blocks in ((lambda: rnn(64, 64), 64), (lambda: selective(1056), 264), (averages, 512), (lambda: rnn(B, 24), B)):
        assert call_of(loop_of(loop())).launches[0].grid == blocks


def test_slices_of_the_next_turns_are_on_their_way_where_their_size_allows() -> None:
    for loop, at_once in ((lambda: rnn(64, 64), {"16"}), (lambda: rnn(3, 7), {"4"}), (lambda: rnn(3, 7, dtype=tg.bf16), set()),
                          (down_columns, set())):
        assert set(re.findall(r"copy_ahead<(\d+)>", call_of(loop_of(loop())).text)) == at_once


def test_what_no_turn_changes_is_read_in_the_first_one_where_a_thread_has_one_turn_of_a_nest() -> None:
    for loop, rows in ((lambda: rnn(64, 64), 1), (lambda: rnn(3, 7), 0), (gru, 3), (lambda: rnn(4, 150), 0), (selective, 0)):
        text = call_of(loop_of(loop())).text
        before, _, turns = text.partition(" _iteration = 0;")
        first, later = ({*re.findall(r"(row_\w+)\[\w+\] = pack_at", part)} for part in (before, turns))
        assert len(first) == rows and not first & later and all(f"= {row}[" in turns for row in first), text


def test_what_a_step_returns_twice_is_written_where_it_is_made() -> None:
    text = call_of(loop_of(rnn(64, 64))).text
    assert re.search(r"y0\[_i1_\] = v(\d+);\s+again1\[_i1_\] = v\1;", text), text


def test_rows_that_depend_on_each_other_are_refused_with_the_op() -> None:
    for step, said in ((lambda h, x: (tg.softmax(h + x, 0), h), "takes several rows together"),
                       (lambda h, x: (h + x - tg.sum(x, 0, keepdims=True), h), "takes several rows together"),
                       (lambda h, x: (h[::-1] + x, h), "slice takes several rows together"),
                       (lambda h, x: (tg.permute(tg.permute(h, (1, 0)) * 2.0, (1, 0)) + x, h), "permute takes several rows"),
                       (lambda h, x: (h + tg.linear(x, h), h), ""),
                       (lambda h, x: (h + tg.cast(tg.iota((6, 6), 0), tg.f32) + x, h), "")):
        why = scan_cuda.refuse(Spec.of(loop_of(tg.scan(step, of("h", 6, 6), of("x", N, 6, 6)))))
        assert why is not None and why.startswith("its rows depend on each other: ") and said in why, why


def test_other_steps_are_refused_with_the_reason() -> None:
    scalar = tg.scan(lambda h, x: (h + x, h), of("h"), of("x", N))
    wide = rnn(4, 256)
    dims = tg.scan(lambda h, x: (h + x, h), of("h", 4, B), of("x", N, 4, B))
    for made, said in ((scalar, "it carries no rows"), (wide, "each turn reads more than 96 KB that all rows share"),
                       (dims, "sizes of its step are dims")):
        why = scan_cuda.refuse(Spec.of(loop_of(made)))
        assert why is not None and said in why, why


@pytest.mark.gpu
@pytest.mark.parametrize("loop", LOOPS, ids=IDS)
def test_a_gpu_takes_the_same_turns(loop: Loop) -> None:
    node, device = loop_of(loop()), device_named("cuda:0")
    call = call_of(node)
    for n, b in ((0, 2), (1, 3), (5, 4), (40, 64)):
        dims = {"n": n, "b": b}
        arrays = drawn(node, dims)
        for shift in (0, 1):
            found = launched.run_call(device, call, [item(node, i) for i in range(len(node.types))], arrays, dims, shift)
            compared(found, oracle(node, arrays, dims), node.types[0].dtype)
