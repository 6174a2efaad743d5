"""whole: the text of one kernel for all steps compiles; its table and the order of its weights are right. No GPU is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tensor_graphs.codegen.backend_cuda import HEADER
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.c_code import ToolchainError
from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.decoder import one_kernel
from tensor_graphs.kernels.decoder.one_kernel import (
    Attention,
    DecoderSizes,
    HeadRows,
    Kind,
    Likeliest,
    NormRows,
    OneKernel,
    PlainRows,
)
from tensor_graphs.kernels.kernel import Launch, LaunchCall, NotLowered
from tests.codegen import emulated

SIZES = DecoderSizes(hidden=640, heads=4, dim=256, room=1024, vocabulary=262144, eps=1e-6, scale=1 / 16, embedded=25.25)


CALLED = """
extern "C" __global__ void called(u64 *into, const u64 *a, const u64 *b, const u64 *c) {{
    pack(into, a, b, c, {numbers}); }}
"""


def decoder(layers: int) -> list[Kind]:
    kinds: list[Kind] = []
    for layer in range(layers):
        kinds += [NormRows(1536), Attention(layer, 512 if layer % 6 < 5 else 0, int(layer % 6 == 5)), HeadRows(640),
                  NormRows(4096, parts=4, pairs=True), PlainRows(640)]
    return [*kinds, Likeliest()]


def test_the_text_compiles() -> None:
    assert nvrtc.compiled(OneKernel(decoder(18), SIZES).text(), "sm_90a", HEADER.parent)[:4] == b"\x7fELF"


def test_layers_are_written_once() -> None:
    text = OneKernel(decoder(18), SIZES).text()
    assert "times < 18" in text
    assert text.count("(attend))") == 1


@pytest.mark.parametrize("layers", [1, 2, 7, 18])
def test_what_is_brought_lies_over_nothing_that_is_still_to_be_read(layers: int) -> None:
    steps = [s for s in OneKernel(decoder(layers), SIZES).steps if s.loads]
    waited = 0                                                      # one thread brings all, in this order
    for i, step in enumerate(steps):
        end, waited = step.common + step.common_bytes, max(waited, step.wait)
        assert end <= one_kernel.RING
        assert step.wait <= step.number, "a step that waits for itself, or for one after it, never ends"
        for before in steps[:i]:
            if before.pack < end and step.pack < before.common + before.common_bytes:
                assert before.last_read < waited
        if i >= one_kernel.SLOTS:
            assert steps[i - one_kernel.SLOTS].full == step.full
            assert steps[i - one_kernel.SLOTS].last_read < waited


def test_the_first_rows_of_the_head_wait_for_what_lies_there() -> None:
    made = OneKernel(decoder(3), SIZES)
    nbytes = one_kernel.SET * SIZES.hidden * 2
    waited = max(s.wait for s in made.steps)
    for slot in made._order:
        waited = max(waited, made._waits[slot])
        for step in made.steps:
            if step.loads and step.pack < (slot + 1) * nbytes and slot * nbytes < step.common + step.common_bytes:
                assert step.last_read < waited
    assert sorted(made._order) == list(range(one_kernel.WARPS * one_kernel.STAGES))


def test_a_row_of_the_table_is_the_struct_of_the_text() -> None:
    made = OneKernel(decoder(2), SIZES)
    assert len(made.table()) == 80 * len(made.steps)                # 16 int, a long long, 2 int


def test_each_step_reads_what_the_one_before_it_wrote() -> None:
    made = OneKernel(decoder(3), SIZES)
    given = [s for s in made.steps if not s.early and s.step is not None]
    assert all(after.reads == before.writes for before, after in pairwise(given))
    ends = [s.writes + made.kinds[s.step].words(SIZES) for s in given if s.step is not None]
    assert all(end <= after.writes for end, after in zip(ends, given[1:], strict=False))
    assert ends[-1] <= made.words


@pytest.mark.parametrize(("step", "warps", "lanes", "rows", "columns"), [
    (0, 10, 8, 1536, 640), (3, 10, 8, 4096, 640), (4, 8, 32, 640, 2048)])
def test_lanes_find_their_rows_in_packed_weights(step: int, warps: int, lanes: int, rows: int, columns: int) -> None:
    """Read as `dots` of one_kernel.cu does: 8 elements of a lane at a time, 4 of each half of the warp's columns."""
    weight = np.arange(rows * columns, dtype=np.uint32).astype(np.uint16).reshape(rows, columns)
    packed = OneKernel(decoder(1), SIZES).packed(step, weight).reshape(one_kernel.BLOCKS, warps, -1, 32, 8)
    of_block, width = rows // one_kernel.BLOCKS, columns // warps
    for block, warp, lane in ((0, 0, 0), (127, warps - 1, 31), (64, 3, 17)):
        for turn in range(packed.shape[2]):
            row = lane // lanes + 32 // lanes * turn
            if row < of_block:
                at = [warp * width + half * (width // 2) + lane % lanes * 4 + e for half in range(2) for e in range(4)]
                assert np.array_equal(packed[block, warp, turn, lane], weight[block * of_block + row, at])


def test_rows_behind_attention_are_packed_by_heads() -> None:
    weight = np.arange(640 * 1024, dtype=np.uint32).astype(np.uint16).reshape(640, 1024)
    packed = OneKernel(decoder(1), SIZES).packed(2, weight).reshape(one_kernel.BLOCKS, 8, 3, 32, 8)
    block, warp, lane, turn = 70, 5, 14, 1                          # head 2; its rows 120 to 139; row 3 + 8 of them
    columns = [2 * 256 + warp * 32 + half * 16 + lane % 4 * 4 + e for half in range(2) for e in range(4)]
    assert np.array_equal(packed[block, warp, turn, lane], weight[(block % 32) * 20 + lane // 4 + 8 * turn, columns])
    assert not packed[block, warp, 2, 31].any()                     # row 23 of 20


def test_steps_have_room_in_shared_memory() -> None:
    assert OneKernel(decoder(19), SIZES).shared <= HOPPER.shared_alone
    assert nvrtc.compiled(OneKernel(decoder(19), SIZES).text(), "sm_90a", HEADER.parent)
    whole, room = OneKernel(decoder(18), SIZES).text(), 221648 + 80 * 128
    smaller = whole.replace(f"MOST_SHARED {HOPPER.shared_alone}", f"MOST_SHARED {room - 1}")
    with pytest.raises(ToolchainError, match="more steps than have room"):      # the struct has as many bytes as are counted here
        nvrtc.compiled(smaller, "sm_90a", HEADER.parent)
    assert OneKernel(decoder(18), SIZES).shared == 221648 + 80 * 128


@pytest.mark.parametrize(("kinds", "sizes", "what"), [
    (decoder(1), dataclasses.replace(SIZES, hidden=768), "768 columns"),
    (decoder(1), dataclasses.replace(SIZES, dim=128), "heads of 128"),
    (decoder(1)[:-1], SIZES, "the likeliest"),
    (decoder(20), SIZES, "20 layers"),
    ([NormRows(512), *decoder(1)[1:]], SIZES, "behind NormRows"),
    ([PlainRows(640), Likeliest()], SIZES, "begin with PlainRows"),
    ([*decoder(1)[:3], NormRows(4096, parts=1, pairs=True), *decoder(1)[4:]], SIZES, "behind HeadRows"),
    ([NormRows(1000), Likeliest()], SIZES, "1000 rows"),
    (decoder(1), dataclasses.replace(SIZES, vocabulary=1000), "a head of 1000 rows"),
])
def test_other_sizes_are_refused(kinds: Sequence[Kind], sizes: DecoderSizes, what: str) -> None:
    with pytest.raises(NotLowered, match=what):
        OneKernel(kinds, sizes)


@pytest.mark.parametrize(("step", "rows"), [(0, (1024, 256, 256)), (2, (640,)), (3, (2048, 2048)), (4, (640,))])
def test_the_device_packs_the_same(step: int, rows: tuple[int, ...], tmp_path: Path) -> None:
    made = OneKernel(decoder(1), SIZES)
    columns = {2: 1024, 4: 2048}.get(step, 640)
    weights = [np.random.default_rng(i).integers(0, 1 << 16, (n, columns)).astype(np.uint16) for i, n in enumerate(rows)]
    whole_matrix = np.stack(weights, 1).reshape(-1, columns) if step == 3 else np.concatenate(weights)
    numbers = made.packing(step, rows)
    text = one_kernel.packing_text(7, 64) + CALLED.format(numbers=", ".join(map(str, numbers)))
    call = LaunchCall(text, (Launch("called", 7, 64),))
    expected = made.packed(step, whole_matrix)
    operands = [*weights, *weights[:1] * (3 - len(weights))]
    (found,) = emulated.run(tmp_path, call, [((expected.size,), np.dtype(np.uint16))], operands, {})
    assert np.array_equal(found, expected)
