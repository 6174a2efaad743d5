"""Single kernels on a graph: a verdict wherever the op occurs, also inside definitions, and a clear word where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice import profile_kernels as module
from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.kernels.kernel_decorator import host_kernel
from tensor_graphs.kernels.registry import kernel_named, register, unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.points.input_descriptors import InputError
from tensor_graphs.measure.queue.profile_report import LEFT, Answered
from tensor_graphs.records.database import Database, open_database
from tests.choice.conftest import add_row
from tests.choice.trial_kernels import EXACT, ROUGH, USELESS
from tests.cli.command import document
from tests.cli.command import tg as command

N = tg.dim("n", 1, 24)


def attending() -> tg.Graph:
    """A softmax stands in the definition of attention only."""
    q, k, v = (tg.input(name, (N, 2, 8), tg.f32) for name in "qkv")
    return tg.graph(tg.attention(q, k, v, scale=0.35, causal=True))


@pytest.fixture
def trials() -> Iterator[None]:
    for kernel in (ROUGH, USELESS):
        register(kernel)
    yield
    for kernel in (ROUGH, USELESS):
        unregister(kernel.name)


def test_a_kernel_is_judged_inside_a_definition_at_the_sizes_asked_for(database: Database) -> None:
    heard: list[Answered] = []
    report = tg.profile(attending(), kernels=("numpy.softmax",), at={"n": 5}, database=database, per_kernel=0.01,
                        backends=("numpy",), on_verdict=heard.append)
    (found,) = report.verdicts
    assert heard == [found] and (report.measured, report.left, report.failed) == (1, 0, 0)
    assert (found.kernel, found.status, dict(found.at), found.known) == ("numpy.softmax", "PASSED", {"n": 5}, False)
    assert found.signature.startswith("softmax f32[") and found.seconds is not None and found.error is not None
    assert found.rival is None and found.alone.startswith("no other kernel takes it; its definition ")
    asked: dict[str, Any] = {"kernels": "numpy.softmax", "at": {"n": 5}, "database": database, "backends": "numpy"}
    (again,) = tg.profile(attending(), **asked).verdicts
    assert again.known and again.seconds == found.seconds
    (anew,) = tg.profile(attending(), per_kernel=0.01, again=True, **asked).verdicts
    assert not anew.known


def row_softmax() -> tg.Graph:
    return tg.graph(tg.softmax(tg.input("x", (N, 16), tg.f32)))


def test_the_best_other_kernel_is_timed_too_unless_one_was(database: Database, starts: list[int]) -> None:
    asked: dict[str, Any] = {"at": {"n": 5}, "database": database, "backends": "numpy", "per_kernel": 0.01}
    register(ROUGH)
    try:
        report = tg.profile(row_softmax(), kernels="numpy.softmax", **asked)
        (own,) = report.verdicts
        assert report.measured == 2 and own.rival is not None and own.rival[0] == ROUGH.name and own.seconds is not None
        assert own.ratio == own.seconds / own.rival[1] and f"× the time of {ROUGH.name}, " in str(report)
        starts.clear()
        register(EXACT)                                             # a third one, without a row
        (other,) = tg.profile(row_softmax(), kernels=ROUGH.name, **asked).verdicts
        assert starts == [] and other.rival == ("numpy.softmax", own.seconds)
    finally:
        unregister(ROUGH.name)
        unregister(EXACT.name)


def test_kernels_are_compared_by_their_times_alone_as_one_may_never_have_run_in_its_place(
        database: Database, trials: None, starts: list[int]) -> None:
    signature = signature_of(row_softmax().outputs["out"])
    for kernel, us in ((ROUGH, 20.0), (kernel_named("numpy.softmax"), 50.0)):
        add_row(database, kernel, signature)
        add_row(database, kernel, signature, {"n": 5}, us=us)
    add_row(database, kernel_named("numpy.softmax"), signature, {"n": 5}, us=5.0, kind="in_graph")
    (found,) = tg.profile(row_softmax(), kernels=ROUGH.name, at={"n": 5}, database=database, backends="numpy").verdicts
    assert starts == [] and found.rival is not None and found.ratio is not None
    assert found.rival[0] == "numpy.softmax" and round(found.ratio, 6) == 0.4


def test_a_kernel_that_is_wrong_gets_no_rival_and_a_rival_that_is_wrong_is_named(database: Database) -> None:
    asked: dict[str, Any] = {"at": {"n": 5}, "database": database, "backends": "numpy", "per_kernel": 0.01}
    register(USELESS)
    try:
        report = tg.profile(row_softmax(), kernels=USELESS.name, **asked)
        assert report.statuses == {"INCORRECT_NUMERICAL": 1} and report.left == 0
        with open_database(":memory:") as other:
            report = tg.profile(row_softmax(), kernels="numpy.softmax", **{**asked, "database": other})
        (found,) = report.verdicts
        assert (report.measured, report.failed, report.failed_at) == (1, 1, {})
        assert (found.status, found.rival) == ("PASSED", None)
        assert found.alone.startswith(f"{USELESS.name}: INCORRECT_NUMERICAL when compared with the oracle: output y0 at n=5: ")
    finally:
        unregister(USELESS.name)


def test_all_kernels_of_an_op_are_compared_with_each_other_and_a_wrong_one_is_told_once(database: Database, trials: None) -> None:
    graph = tg.graph(tg.softmax(tg.input("x", (N, 16), tg.f32)))
    report = tg.profile(graph, ops=("softmax",), backends=("numpy",), database=database, per_kernel=0.01)
    by = {}
    for v in report.verdicts:
        by.setdefault(v.kernel, []).append(v)
    assert by.keys() >= {"numpy.softmax", ROUGH.name, USELESS.name} and report.left == 0
    assert {v.status for v in by["numpy.softmax"]} == {"PASSED"} and len(by["numpy.softmax"]) == 4       # n = 1, 4, 16, 24
    (wrong,) = by[USELESS.name]
    assert wrong.status == "INCORRECT_NUMERICAL" and wrong.seconds is None and "error" in wrong.why
    last = report.verdicts[-1]
    assert last.rival is not None and last.rival[0] != last.kernel and last.rival[0] != USELESS.name


def test_what_the_budget_leaves_out_is_said_and_a_right_kernel_has_its_rival_all_the_same(database: Database, trials: None) -> None:
    report = tg.profile(row_softmax(), kernels=ROUGH.name, database=database, backends="numpy", budget=0.001)
    assert [v.status for v in report.verdicts] == ["PASSED", LEFT, LEFT, LEFT] and report.left == 6
    assert report.verdicts[0].rival is not None


def test_kernels_that_take_nothing_of_the_graph_are_an_error_with_why_and_what_is_offered(database: Database,
        starts: list[int]) -> None:
    def fill(outs: Any, ins: Any, attrs: Any) -> None:
        outs[0][...] = 0

    host_kernel("softmax", name="numpy.picky", accepts=lambda spec: "float64 only")(fill)
    host_kernel("softmax", name="numpy.far", requirements={"arch": "sm_90"})(fill)
    try:
        with pytest.raises(KernelError) as caught:
            tg.profile(attending(), kernels=("numpy.picky", "numpy.far"), database=database)
        said, *whys, fix = str(caught.value).splitlines()
        assert said == "numpy.far, numpy.picky: not offered for this graph"
        assert [why.split(" on softmax ")[0].strip() for why in whys] == ["numpy.picky", "numpy.far"]
        assert whys[0].endswith(": float64 only") and whys[1].endswith(": it needs sm_90, which this device (cpu) has not")
        assert fix.startswith("  fix: what is: ") and "numpy.softmax" in fix
        assert starts == []
    finally:
        unregister("numpy.picky")
        unregister("numpy.far")


@tg.composite
def halved(x: Any) -> Any:
    """x / 2."""
    return x * 0.5


def test_an_op_may_be_a_composite_of_ones_own(database: Database) -> None:
    def fill(outs: Any, ins: Any, attrs: Any) -> None:
        np.multiply(ins[0], 0.5, out=outs[0])

    host_kernel(halved, name="numpy.halved", requirements={"arch": "sm_90"})(fill)
    try:
        graph = tg.graph(halved(tg.input("x", (N, 16), tg.f32)))
        with pytest.raises(KernelError, match=r"numpy\.halved on halved .*: it needs sm_90.*\n  fix: what is: gen.loops$"):
            tg.profile(graph, ops="halved", database=database)
    finally:
        unregister("numpy.halved")
    with pytest.raises(KernelError, match="no op is named 'halved'"):
        tg.profile(graph, ops="halved", database=database)


@pytest.mark.parametrize(("asked", "said"), [
    ({"kernels": "numpy.softmx"}, "no kernel is named 'numpy.softmx' here\n  fix: did you mean numpy.softmax"),
    ({"ops": "softmx"}, "no op is named 'softmx'\n  fix: did you mean softmax"),
    ({"kernels": "c.conv"}, "c.conv computes conv, which does not occur in this graph, nor in the definitions of its ops"),
], ids=["kernel", "op", "elsewhere"])
def test_what_is_not_there_is_named_with_what_is(database: Database, asked: dict[str, str], said: str) -> None:
    with pytest.raises(KernelError) as error:
        tg.profile(attending(), database=database, **asked)  # type: ignore[arg-type]
    assert said in str(error.value)


def test_values_of_inputs_do_not_go_with_single_kernels(database: Database) -> None:
    with pytest.raises(InputError, match="fix: inputs, or kernels and ops"):
        tg.profile(attending(), kernels="numpy.softmax", inputs={"q": "random"}, database=database)


def test_a_worker_that_is_stopped_leaves_the_rest_for_the_next_call(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any, **more: Any) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(module, "answer", stopped)
    report = tg.profile(attending(), kernels="numpy.softmax", at={"n": 5}, database=database, backends="numpy")
    assert report.interrupted and report.left == 1 and [v.status for v in report.verdicts] == [LEFT]


MINE = """
import numpy as np
import tensor_graphs as tg

@tg.kernel("softmax", name="numpy.mine")
def mine(outs, ins, attrs):
    e = np.exp(ins[0] - ins[0].max(attrs["axis"], keepdims=True))
    outs[0][...] = e / e.sum(attrs["axis"], keepdims=True)
"""


def test_a_kernel_on_a_models_shapes_has_its_verdict_in_seconds(tmp_path: Path) -> None:
    """Only the shapes are needed: no weight is drawn, and nothing else of the model is measured."""
    (tmp_path / "mine.py").write_text(MINE)
    said = document(command("profile", "gemma-3-270m", "--kernel", "numpy.mine", "--import", tmp_path / "mine.py", "--db",
                            tmp_path / "own.db", "--json"))  # fmt: skip
    (verdict,) = said["verdicts"]
    assert (verdict["kernel"], verdict["status"], verdict["at"]) == ("numpy.mine", "PASSED", {"n": 1, "p": 256})
    assert np.isfinite(verdict["seconds"]) and said["statuses"] == {"PASSED": 2} and said["device_seconds"] == 0
    name, seconds = verdict["rival"]
    assert name in ("c.softmax", "numpy.softmax", "gen.loops") and verdict["ratio"] == verdict["seconds"] / seconds
