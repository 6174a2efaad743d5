"""Random graphs against torch and numpy in float64 (`make fuzz` runs thousands), and the comparison itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from benchmarks import against_torch_ops, fuzz_against_torch
from benchmarks.fuzz_against_torch import Program, Reference, Step, difference, examine, graph_of, program, trimmed
from tensor_graphs.language.composite import LIBRARY


def test_random_graphs_compute_what_torch_computes(tmp_path: Path) -> None:
    """By the oracle each; along one set of backends some, since kernels that were never compared take seconds."""
    for seed in range(15):
        report = examine(seed, str(tmp_path / "fuzz.db"), sets=int(seed % 5 == 0))
        assert not report.texts, report.texts[0]


def test_every_op_has_a_reference() -> None:
    """Atomic ops by the names of their functions. torch has no op that may round or not, as a licence does."""
    names = {"max": "maximum", "min": "minimum", "idiv": "floor_div", "and": "bit_and", "xor": "bit_xor"}
    ops = {names.get(path.stem, path.stem) for path in (Path(__file__).parents[1] / "docs" / "ops").glob("*.md")}
    licences = {name for name, op in LIBRARY.items() if op.facts.licence}
    assert ops - {"README", "functions"} - licences <= set(against_torch_ops.OPS)


@pytest.mark.long
def test_the_random_graphs_hold_every_op() -> None:
    seen = {step.op for seed in range(200) for step in program(seed).steps}
    assert set(against_torch_ops.OPS) <= seen


@pytest.mark.parametrize("wrong", [1.001, np.nan, np.inf, -np.inf])
def test_one_wrong_element_is_seen(wrong: float) -> None:
    right = np.linspace(1, 2, 12).reshape(3, 4)
    out = right.astype(np.float32)
    assert difference(out, [right, right], tg.f32) == (None, 0)
    out[1, 2] *= wrong
    assert "1 of 12 elements, at (1, 2)" in str(difference(out, [right, right], tg.f32)[0])
    assert difference(out, [right, right * wrong], tg.f32)[0] is None   # a spread that explains it


def test_one_wrong_integer_and_a_wrong_type_are_seen() -> None:
    right = np.arange(6)
    assert difference(right.copy(), [right], tg.i64)[0] is None
    assert difference(right + (right == 3), [right], tg.i64)[0] == "1 of 6 elements, at (3,) 4 instead of 3"
    assert difference(right.astype(np.int32), [right], tg.i64)[0] == "int32(6,) instead of int64(6,)"
    assert difference(right[:5], [right], tg.i64)[0] == "int64(5,) instead of int64(6,)"


def test_a_wrong_kernel_is_found_and_its_graph_made_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the reference is the wrong one: what is seen is that the two differ."""
    steps = (Step("input", (), {"shape": (tg.dim("n", 1, 3), 4), "dtype": tg.f32, "key": 0, "style": "normal", "size": 0}),
             Step("neg", (0,), {}), Step("exp", (1,), {}), Step("abs", (2,), {}))
    p = trimmed(Program(steps, (3,), (), ({"n": 1}, {"n": 3}), 0))
    monkeypatch.setattr(fuzz_against_torch, "program", lambda seed: p)
    assert not examine(0, str(tmp_path / "fuzz.db"), sets=1).texts
    monkeypatch.setitem(against_torch_ops.OPS, "exp", against_torch_ops.Op(against_torch_ops.unary(tg.f32), np.exp2, tg.exp))
    texts = examine(0, str(tmp_path / "fuzz.db"), sets=1).texts
    assert [text.partition(" at ")[0] for text in texts] == [f"seed 0: wrong along {who}: exp" for who in (
        "interpreter", "definitions", "numpy")]
    assert not any(name in text for name in ("neg", "abs") for text in texts)


def test_the_reference_of_a_state_moves_with_the_runs() -> None:
    state = {"shape": (3,), "dtype": tg.f32, "key": 0, "style": "normal", "size": 0}
    p = Program((Step("state", (), state), Step("add", (0,), {"y": 2.0})), (1,), ((0, 1),), ({}, {}, {}), 0)
    reference = Reference(p, graph_of(p)[1], "rounded")
    assert [reference.run(i)[1].tolist() for i in range(3)] == [[2.0] * 3, [4.0] * 3, [6.0] * 3]
