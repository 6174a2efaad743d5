"""The point at which a kernel was wrong is in its row and in a file, and is run again from either."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure import failing_point
from tensor_graphs.measure.failing_point import FailingPointError, compared, inputs_of, kept, point_of, read, write
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.inputs import Point, point_inputs
from tensor_graphs.records import queries
from tensor_graphs.records.database import open_database
from tests.measure.wrong_kernels import NODES, WRONG

POINT = Point((("n", 5),), 3, like=2, form="views", perturbed=(("x0", 2, (0, 1)),), only="x0")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def square(outs: list[np.ndarray], ins: list[np.ndarray], attrs: dict[str, object]) -> None:
    outs[0][...] = ins[0] * ins[0]
    outs[0][1:] *= 2


KERNEL = Kernel("numpy.own", "numpy", "square", lambda spec: HostCall(square), lambda spec: None, source_of(square), __name__)


@pytest.mark.parametrize("point", [POINT, Point((("n", 2),), 1, extreme="huge", rows=("n", 1))], ids=str)
def test_a_point_comes_back_from_json(point: Point) -> None:
    graph = signature_of(NODES["square"]).graph
    document = json.loads(json.dumps(kept(graph, point)))["wrong_at"]
    assert point_of(graph, document) == point
    other = signature_of(tg.square(tg.input("x", (tg.dim("m", 1, 96), 24)))).graph
    assert point_of(other, document).sizes == (("m", point.binding["n"]),)


def test_inputs_of_any_dtype_are_read_as_they_were_written() -> None:
    for dtype in (tg.f32, tg.bf16, tg.f8e4m3, tg.f16):
        graph = tg.graph(tg.square(tg.input("x", (tg.dim("n", 1, 9), 4), dtype)))
        point = Point((("n", 5),), 3)
        name = write(graph, point)
        again, inputs = read(failing_point.folder() / name)
        assert again.structural_key == graph.structural_key
        expected = point_inputs(graph, point)["x"]
        assert inputs["x"].dtype == dtype.numpy and inputs["x"].tobytes() == expected.tobytes()


def test_files_are_bounded_in_size_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tg.graph(tg.square(tg.input("x", (4,))))
    monkeypatch.setattr(failing_point, "MOST_FILES", 3)
    names = [write(graph, Point((), seed)) for seed in range(6)]
    assert len(set(names)) == 6 and len(list(failing_point.folder().iterdir())) == 3
    monkeypatch.setattr(failing_point, "MOST_BYTES", 15)
    assert write(graph, Point((), 7)) == ""


def test_a_point_is_run_again_from_its_seed_or_from_its_file() -> None:
    graph = signature_of(NODES["square"]).graph
    conditions = kept(graph, Point((("n", 4),), 11))
    for same_judge in (True, False):
        point, inputs, origin = inputs_of(graph, json.loads(json.dumps(conditions)), same_judge)
        assert ("seed 11" in origin) is same_judge and (point is not None) is same_judge
        (output,) = compared(KERNEL, graph, point, inputs)
        assert not output.right and output.words.endswith("elements are wrong (rows from 1 on of 4)")
    with pytest.raises(FailingPointError, match="no point at which"):
        inputs_of(graph, {}, True)
    with pytest.raises(FailingPointError, match="tg db retry"):
        inputs_of(graph, {**conditions, "inputs": "gone.npz"}, False)


def test_a_verdict_says_which_rows_are_wrong_and_its_row_has_the_point(tmp_path: Path) -> None:
    candidate = next(c for c in WRONG if c.name == "a_thousandth_off_in_one_element")
    signature = signature_of(NODES[candidate.node])
    database = open_database(tmp_path / "bench.db")
    with Judge(database, timeout=60.0) as judge:
        verdict = judge.examine(candidate.kernel, signature, dict.fromkeys(signature.dim_names, 20))
        judge.record(candidate.kernel, signature, verdict, None)
    assert " elements are wrong (row " in verdict.log or " element is wrong" in verdict.log, verdict.log
    (trace, _), = queries.all_traces(database)
    conditions = queries.trace_conditions(database, trace.trace_id)[trace.trace_id]
    assert point_of(signature.graph, conditions["wrong_at"]) == verdict.point
    assert (failing_point.folder() / conditions["inputs"]).is_file()
