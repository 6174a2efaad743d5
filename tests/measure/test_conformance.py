"""profiling/conformance: today's ops all have cells, cells say what a new judgement says, wrong ones are red."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.kernels import registry
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.same_math import SAME_MATH
from tensor_graphs.measure.conformance import cases as conformance_cases
from tensor_graphs.measure.conformance.backend import KINDS, Conformance, ConformanceError, TableCell, judge_backend, keys
from tensor_graphs.measure.conformance.cases import CaseDraw, CaseError, instances, ops
from tensor_graphs.measure.conformance.table import document, json_text, markdown
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.database import open_database

FOLDER = Path(__file__).parents[2] / "docs" / "conformance"
BACKENDS = ("numpy", "torch", "c")
RENEW = "renew the tables with `make conformance`, look at what moved, and say in the commit why"


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with open_database(":memory:") as database, Judge(database) as one:
        yield one


@lru_cache
def committed(backend: str) -> dict[str, dict[str, dict[str, Any]]]:
    cells: dict[str, dict[str, dict[str, Any]]] = json.loads((FOLDER / f"{backend}.json").read_text(encoding="utf-8"))["cells"]
    return cells


# ---- the committed tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_committed_table_has_exactly_the_ops_and_dtypes_of_today(backend: str) -> None:
    known = {(op, dtype) for op, row in committed(backend).items() for dtype in row}
    today = {(op, dtype) for op in (*ATOMIC, *LIBRARY) for dtype in DTYPES}
    assert known == today, f"{backend}: {sorted({op for op, _ in known ^ today})} came or went; {RENEW}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_cell_says_why(backend: str) -> None:
    for op, row in committed(backend).items():
        for dtype, cell in row.items():
            assert cell["status"] in KINDS and len(cell["reason"]) > 5, (op, dtype)
            if cell["status"] == "pass":
                assert 0 <= cell["error"] <= max(SAME_MATH.values()) and 0 < cell["claimed"] <= cell["instances"], (op, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_committed_table_is_of_a_device_that_has_all_that_kernels_require(backend: str) -> None:
    """Else the sample below fails wherever there is more."""
    lacked = {c["reason"] for row in committed(backend).values() for c in row.values() if "which this device" in c["reason"]}
    assert not lacked, "make conformance on a processor with amx_bf16"


@pytest.mark.parametrize("backend", BACKENDS)
def test_page_and_document_are_one_table(backend: str) -> None:
    """Written by hand, or by another version: either shows here."""
    cells = tuple(TableCell(op, dtype, c["status"], c["reason"], float(c["error"]) if "error" in c else None, c.get("instances", 0),
                       c.get("claimed", 0)) for op, row in committed(backend).items() for dtype, c in row.items())
    table = Conformance(backend, cells)
    assert json_text(table) == (FOLDER / f"{backend}.json").read_text(encoding="utf-8"), RENEW
    assert markdown(table) == (FOLDER / f"{backend}.md").read_text(encoding="utf-8"), RENEW


@pytest.mark.parametrize("many", [(5, 2), pytest.param((16, 6), marks=pytest.mark.long)], ids=["few", "more"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sample_of_cells_judged_now_says_what_the_committed_table_says(backend: str, many: tuple[int, int], judge: Judge) -> None:
    """many: of the cells with a kernel, and of the others."""
    rng = np.random.default_rng(7)
    today = [key for key in keys() if key[1] in committed(backend).get(key[0], {})]
    tried = [k for k in today if committed(backend)[k[0]][k[1]]["status"] in ("pass", "fail", "not claimed")]
    others = [k for k in today if k not in tried]
    groups = zip((tried, others), many, strict=True)
    sample = [group[int(i)] for group, n in groups for i in rng.choice(len(group), n, replace=False)]
    for cell in judge_backend(backend, judge, cells=sample).cells:
        was = committed(backend)[cell.op][cell.dtype]
        if cell.status == "not claimed" and any(k.op == cell.op and registry.lacking(k) for k in registry.all_kernels([backend])):
            continue                                                # the table is of a device that has what these kernels require
        assert cell.status == was["status"], f"{backend} {cell.op} {cell.dtype}: {cell} was {was}; {RENEW}"


def test_numpy_is_right_wherever_it_claims_to_be() -> None:
    statuses = [cell["status"] for row in committed("numpy").values() for cell in row.values()]
    assert statuses.count("pass") > 350 and "fail" not in statuses and "not claimed" not in statuses
    assert not {cell["status"] for op in ATOMIC for cell in committed("numpy")[op].values()} - {"pass", "view", "undefined"}


# ---- kernels that are wrong ---------------------------------------------------------------------------------------------------

WRONG = '''
import os
import numpy as np
from tensor_graphs.kernels.kernel import HostCall, Kernel
from tensor_graphs.kernels.registry import register_backend

NAME = "wrong"
def available(): return None
def versions(): return {}

def last_row(outs, ins, attrs):
    np.add(ins[0], ins[1], out=outs[0])
    if outs[0].size > 300:
        outs[0].reshape(-1)[-1] = 0
def right(outs, ins, attrs):
    np.multiply(ins[0], ins[1], out=outs[0])
def raises(outs, ins, attrs):
    raise RuntimeError("no such device")
def dies(outs, ins, attrs):
    os._exit(3)
def writes_operands(outs, ins, attrs):
    np.exp2(ins[0], out=outs[0])
    ins[0][...] = 0
def undecided(spec):
    return spec.attrs["no such attribute"]
def speechless(spec):
    return ""

def kernel(op, run, accepts=lambda spec: None):
    return Kernel(name=f"wrong.{op}", backend=NAME, op=op, build=lambda spec: HostCall(run), accepts=accepts, source=op,
                  module=__name__)
def kernels():
    return [kernel("add", last_row), kernel("mul", right), kernel("sqrt", raises), kernel("sin", dies),
            kernel("exp2", writes_operands), kernel("less", right, undecided), kernel("max", right, speechless)]
register_backend(NAME, __name__)
'''


def test_wrong_kernels_are_red_and_right_ones_beside_them_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                  judge: Judge) -> None:
    (tmp_path / "wrong_backend.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("wrong_backend")
    try:
        judge.worker.kill()                                         # the next one starts with this path
        wanted = [(op, "f32") for op in ("add", "mul", "sqrt", "sin", "exp2", "less", "max", "where", "slice", "idiv")]
        table = judge_backend("wrong", judge, cells=wanted)
    finally:
        registry.unregister_backend("wrong")
        judge.worker.kill()
    found = {c.op: c for c in table.cells}
    assert {c.op for c in table.failed} == {"add", "sqrt", "sin", "exp2"}
    assert found["mul"].status == "pass" and found["mul"].error is not None and found["mul"].error < 1e-6
    assert found["add"].reason.startswith("INCORRECT_NUMERICAL: wrong.add on add f32[n0")
    assert found["add"].error is not None and found["add"].error > 1e-4
    assert found["sqrt"].reason.startswith("RUNTIME_ERROR: ")
    assert "RuntimeError: no such device at wrong_backend.py:" in found["sqrt"].reason
    assert found["sin"].reason.startswith("RUNTIME_ERROR: ") and "the worker died (exit 3)" in found["sin"].reason
    assert found["exp2"].reason.startswith("MUTATED_INPUT: ")
    assert found["less"].status == found["max"].status == "not claimed"
    assert found["less"].reason == "wrong.less's accepts raised KeyError: 'no such attribute'"
    assert found["max"].reason == "wrong.max says no without a word"
    assert (found["where"].status, found["slice"].status, found["idiv"].status) == ("no kernel", "view", "undefined")
    page = markdown(table)
    assert page.count("**FAIL** (") == 4 and "the worker died (exit 3)" in page
    assert json.loads(json_text(table)) == json.loads(json.dumps(document(table)))


def test_a_time_comes_with_its_size(judge: Judge) -> None:
    table = judge_backend("numpy", judge, cells=[("add", "f32"), ("add", "bool")], timed=True)
    timed, undefined = table.cells
    assert timed.status == "pass" and timed.seconds is not None and 0 < timed.seconds < 10
    assert timed.timed.startswith("add f32[256, 1024") and undefined.seconds is None
    assert document(table)["cells"]["add"]["f32"]["timed"] == timed.timed in markdown(table)


def test_steps_are_told_in_order(judge: Judge) -> None:
    told: list[tuple[int, int, str]] = []
    judge_backend("torch", judge, cells=[("idiv", "f32"), ("reshape", "u8")], on_step=lambda *step: told.append(step))
    assert told == [(0, 2, "idiv f32"), (1, 2, "reshape u8"), (2, 2, "")]


# ---- the cases ----------------------------------------------------------------------------------------------------------------


def test_every_op_has_instances_at_some_dtype_and_says_why_not_at_the_others() -> None:
    for op in ops():
        made = 0
        for dtype in DTYPES.values():
            try:
                found = instances(op, dtype)
            except conformance_cases.DTypeError:
                continue
            made += 1
            assert found and all(n.op.name == op for n in found)
            assert [n.digest for n in found] == [n.digest for n in instances(op, dtype)], "a case that draws by chance"
        assert made, op


def test_as_many_variants_as_choices_show_each_choice() -> None:
    approximations = {n.attrs["approximate"] for n in instances("gelu", DTYPES["f32"])}
    assert approximations == {"tanh", "none"}
    assert {n.rank for n in instances("add", DTYPES["f32"])} == {0, 1, 2, 3}
    assert {n.dtype for n in instances("cast", DTYPES["f32"])} == set(DTYPES.values()) - {DTYPES["f32"]}


def test_an_elementwise_op_without_a_row_has_instances_and_another_says_where_its_row_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensor_graphs.language.composite import CompositeOp

    def twice(x: Node) -> Node:
        return x + x

    def scaled(x: Node, *, factor: float) -> Node:
        return x * factor

    monkeypatch.setitem(LIBRARY, "twice", CompositeOp(twice))
    monkeypatch.setitem(LIBRARY, "scaled", CompositeOp(scaled))
    assert {"twice", "scaled"} <= set(ops()) and len(instances("twice", DTYPES["f32"])) == 4
    with pytest.raises(CaseError, match=r"no instance of 'scaled' can be made(.|\n)*fix: a row for it in CASES"):
        instances("scaled", DTYPES["f32"])
    monkeypatch.setitem(conformance_cases.CASES, "scaled", lambda draw: draw.tensor((2,)) + draw.tensor((2,)))
    with pytest.raises(CaseError, match=r"^the case of 'scaled' makes 'add'"):
        conformance_cases.instance("scaled", CaseDraw(0, DTYPES["f32"]))


def test_unknown_names_are_told() -> None:
    with pytest.raises(ConformanceError, match=r"^'sofmax' is no op\n  fix: did you mean softmax\? It is an atomic op or a "):
        keys(["add", "sofmax"])


def test_a_backend_that_is_missing_says_why(monkeypatch: pytest.MonkeyPatch, judge: Judge) -> None:
    monkeypatch.setattr(registry.backend_module("torch"), "available", lambda: "torch is not installed")
    registry.reset("torch")
    try:
        with pytest.raises(ConformanceError, match=r"^the backend 'torch' is not available here: torch is not installed\n  fix: "):
            judge_backend("torch", judge)
    finally:
        monkeypatch.undo()
        registry.reset("torch")
