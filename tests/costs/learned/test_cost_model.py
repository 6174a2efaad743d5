"""The learned cost model: it learns what rows say, is used where it is on file, and does without LightGBM once it is."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tensor_graphs as tg
from benchmarks.cost_model import compared, samples_elsewhere
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.database_keys import graph_record
from tensor_graphs.costs.learned import cost_model, fit
from tensor_graphs.costs.learned.features import features_of
from tensor_graphs.costs.learned.fit import LEAST, CannotTrain, Sample, checked, fitted, samples_of, tree_of
from tensor_graphs.costs.learned.trees import HIGH, MIDDLE, Estimate, Model, Tree
from tensor_graphs.costs.learned.user_model import CostModelError
from tensor_graphs.costs.roofline import estimate_seconds
from tensor_graphs.devices.checksummed_files import read
from tensor_graphs.devices.write_checksummed_files import keep
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.records.database import Database, open_database
from tests.choice.conftest import add_row

pytestmark = pytest.mark.processes

SLOW, FAST = 8.0, 2.0
"""times its roofline that numpy's and C's kernels take in these rows"""


@pytest.fixture(autouse=True)
def _no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache folder of its own, in which no model is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cost_model.of_machine.cache_clear()
    yield
    cost_model.of_machine.cache_clear()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Rows of two backends that take SLOW and FAST times what their rooflines say, give or take a tenth."""
    rng = random.Random(0)
    with open_database(tmp_path_factory.mktemp("rows") / "bench.db") as made:
        for rows in (1, 3, 8, 40, 200, 900):
            for wide in (16, 100, 640, 3000):
                for op in (tg.softmax, tg.argmax, tg.rms_norm):
                    s = signature_of(op(tg.input("x", (rows, wide))))
                    for backend, times in (("numpy", SLOW), ("c", FAST)):
                        kernel = kernel_named(f"{backend}.{s.spec.op.name}")
                        seconds = estimate_seconds(s, {}, backend) * times * math.exp(rng.gauss(0.0, 0.1))
                        add_row(made, kernel, s)
                        add_row(made, kernel, s, {}, us=seconds * 1e6)
        yield made


@pytest.fixture(scope="module")
def samples(database: Database) -> list[Sample]:
    return samples_of(database, ("c", "numpy"))


@pytest.fixture(scope="module")
def model(samples: list[Sample]) -> Model:
    return fitted(samples)


def test_a_sample_is_what_a_row_says_of_a_kernel(samples: list[Sample]) -> None:
    assert len(samples) == 6 * 4 * 3 * 2
    assert {s.kernel for s in samples} == {f"{b}.{op}" for b in ("c", "numpy") for op in ("softmax", "argmax", "rms_norm")}
    for s in samples:
        assert s.off == pytest.approx(math.log(SLOW if s.kernel.startswith("numpy") else FAST), abs=0.6)


def test_a_kernel_with_several_outputs_is_a_sample(tmp_path: Path) -> None:
    s = signature_of(tg.topk(tg.input("x", (8, 64)), k=4)[0].inputs[0])
    assert len(s.spec.outputs) == 2
    with open_database(tmp_path / "bench.db") as made:
        add_row(made, kernel_named("numpy.topk"), s)
        add_row(made, kernel_named("numpy.topk"), s, {}, us=5.0)
        (sample,) = samples_of(made, ("numpy",))
    assert (sample.kernel, sample.graph, sample.features["outputs"]) == ("numpy.topk", s.key, 2.0)
    assert sample.seconds == pytest.approx(5e-6)


def test_a_row_of_an_op_that_is_not_here_is_left_out(tmp_path: Path) -> None:
    s = signature_of(tg.softmax(tg.input("x", (8, 64))))
    with open_database(tmp_path / "bench.db") as made:
        record = graph_record(s)
        made.ensure_graph(replace(record, json=record.json.replace('"softmax"', '"softmax_of_tomorrow"')))
        add_row(made, kernel_named("numpy.softmax"), s)
        add_row(made, kernel_named("numpy.softmax"), s, {}, us=5.0)
        assert samples_of(made, ("numpy",)) == []


def test_the_model_learns_what_the_rows_say(model: Model, samples: list[Sample]) -> None:
    for s in samples:
        found = model.estimate(s.features)
        assert found.off == pytest.approx(math.log(SLOW if s.kernel.startswith("numpy") else FAST), abs=0.35)
        assert 0.0 <= found.spread < 0.6


def test_trees_say_what_lightgbm_says(samples: list[Sample], model: Model) -> None:
    import lightgbm
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 5))
    y = np.where(x[:, 0] > 0.3, x[:, 1], x[:, 2] * x[:, 3])
    booster = lightgbm.train({"objective": "quantile", "alpha": 0.5, "verbosity": -1, "min_data_in_leaf": 3},
                             lightgbm.Dataset(x, y), num_boost_round=20)
    trees = [tree_of(t["tree_structure"]) for t in booster.dump_model()["tree_info"]]
    ours = [sum(t.at(row) for t in trees) for row in x]
    np.testing.assert_allclose(ours, booster.predict(x), rtol=1e-9, atol=1e-12)


def test_a_tree_of_one_leaf_has_one_value() -> None:
    assert Tree((), (), (), (), (0.5,)).at([1.0]) == 0.5
    assert tree_of({"leaf_value": 0.25}).at([]) == 0.25


def test_a_model_survives_its_file(model: Model, samples: list[Sample]) -> None:
    cost_model.keep(model)
    again = cost_model.of_machine()
    assert again is not None and again == model and again.estimate(samples[0].features) == model.estimate(samples[0].features)


def test_a_file_of_another_format_or_machine_is_left_out(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    path = cost_model.keep(model)
    content = read(path)
    assert content is not None
    for broken in (b'{"format": 99}', b"{", content.replace(model.machine.encode(), b"0" * 64)):
        keep(path, [broken], len(content))
        cost_model.of_machine.cache_clear()
        assert cost_model.of_machine() is None and "left out" in caplog.text
        caplog.clear()


def test_a_file_that_was_cut_or_changed_is_left_out_and_the_log_says_what_to_do(
        model: Model, caplog: pytest.LogCaptureFixture) -> None:
    path = cost_model.keep(model)
    whole = path.read_bytes()
    for broken in (b"", whole[:-9], whole.replace(b"0.5", b"0.6", 1)):
        path.write_bytes(broken)
        cost_model.of_machine.cache_clear()
        assert cost_model.of_machine() is None and "damaged" in caplog.text and "fix: tg costs train" in caplog.text
        caplog.clear()


def test_what_is_off_is_not_read(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    cost_model.keep(model)
    monkeypatch.setenv(cost_model.VARIABLE, "off")
    assert cost_model.of_machine() is None and cost_model.version() == ""


def test_guesses_are_the_models_where_one_is_on_file(model: Model, database: Database) -> None:
    s = signature_of(tg.softmax(tg.input("x", (77, 333))))
    kernel = kernel_named("numpy.softmax")
    request = Request(tg.graph(tg.softmax(tg.input("x", (77, 333)))), None, ("numpy",), database)
    before = CostTable.of(request, ESTIMATE_MARGIN).estimate(kernel, s, {})
    cost_model.keep(model)
    book = CostTable.of(request, ESTIMATE_MARGIN)
    found = book.estimate(kernel, s, {})
    assert not before.learned and found.learned and f"learned from {model.rows} times" in found.note
    expected = found.seconds / found.margin
    assert expected == pytest.approx(SLOW * estimate_seconds(s, {}, "numpy"), rel=0.5) and 1.0 <= found.margin < 2.0
    assert CostTable.of(request).estimate(kernel, s, {}).seconds == pytest.approx(expected)


def test_a_plan_says_that_a_price_was_learned_and_expects_no_margin(model: Model, tmp_path: Path) -> None:
    cost_model.keep(model)
    with open_database(tmp_path / "empty.db") as empty:
        plan = compile_graph(tg.graph(tg.softmax(tg.input("x", (64, 64)))), database=empty, backends=("numpy",))
    (choice,) = [e for e in plan.variants[0].evidence if e.calls]
    assert "learned from" in choice.note and choice.margin >= 1.0
    assert plan.variants[0].predicted == pytest.approx(choice.seconds + plan.variants[0].around)


def test_looking_for_a_model_makes_no_folder() -> None:
    assert cost_model.of_machine() is None and not cost_model.file_of_machine().parent.exists()


def test_what_is_on_file_decides_which_plan_is_read(model: Model) -> None:
    assert cost_model.version() == ""
    cost_model.keep(model)
    assert cost_model.version()


def test_on_graphs_that_were_not_seen_it_is_better_than_the_roofline(samples: list[Sample]) -> None:
    by_name = {q.name: q for q in checked(samples)}
    ours, roofline = by_name["learned"], by_name["roofline"]
    assert ours.factor < 1.4 < roofline.factor
    assert ours.pairs >= 0.9 and ours.top1 <= 1.1 and ours.top5 == 1.0


def test_what_is_predicted_was_not_learned_from(samples: list[Sample]) -> None:
    asked = [s for s in samples if "softmax" in s.kernel]
    by_name = {q.name: q for q in compared([*samples, *asked], asked)}
    assert by_name == {q.name: q for q in compared([s for s in samples if s not in asked], asked)}
    assert by_name["learned"].factor < by_name["roofline"].factor
    with pytest.raises(CannotTrain, match="0 measurements"):
        compared(asked, asked)


def test_times_of_another_machine_are_those_of_kernels_by_name(database: Database, samples: list[Sample],
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "environment_of", lambda *_: None)    # what is here is not asked for
    found = samples_elsewhere(database)
    assert {(s.workload, s.kernel, s.seconds) for s in found} == {(s.workload, s.kernel, s.seconds) for s in samples}
    assert {s.machine for s in found} == {cost_model.machine()}


def test_too_few_rows_are_refused_with_what_to_do(samples: list[Sample]) -> None:
    with pytest.raises(CannotTrain, match=f"5 measurements .* needs {LEAST}\n  fix: tg profile"):
        fitted(samples[:5])
    with pytest.raises(CannotTrain, match=f"^0 measurements .* needs {LEAST}\n  fix: tg profile"):
        checked([])
    with pytest.raises(CannotTrain, match=f"^{LEAST} measurements .* one fifth .* are left, .* needs {LEAST}\n  fix: tg profile"):
        checked(samples[:LEAST])


def test_without_lightgbm_training_says_what_to_install(samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(CannotTrain, match=r"fix: pip install 'tensor_graphs\[tuning\]'"):
        fitted(samples)


def test_asking_a_model_imports_no_lightgbm() -> None:
    heavy = "{'lightgbm', 'tensor_graphs.costs.learned.trees'}"
    code = f"import sys, tensor_graphs.choice.cost_table; raise SystemExit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_features_know_sizes_and_who_computes() -> None:
    s = signature_of(tg.linear(tg.input("x", (4, 64), tg.bf16), tg.parameter("w", (128, 64), tg.bf16)))
    found = features_of(s, {}, "c", "c.linear", 1e-6)
    assert found["backend c"] == found["kernel c.linear"] == found["product"] == 1.0
    assert found["itemsize"] == 2.0 and found["last axis of the output"] == pytest.approx(math.log2(129))
    assert found["bytes"] == pytest.approx(math.log2(2 * (4 * 64 + 128 * 64 + 4 * 128) + 1))
    assert Model(("bytes",), {MIDDLE: (Tree((0,), (9.0,), (-1,), (-2,), (1.0, 2.0)),), HIGH: (Tree((), (), (), (), (2.5,)),)}, 1,
                 "m").estimate(found) == Estimate(2.0, 0.5)


class Fixed:
    """A cost model of a user: each call takes `factor` times its roofline."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def of_call(self, *call: Any) -> Estimate:
        return Estimate(math.log(self.factor), 0.0)


@pytest.fixture
def _own() -> Iterator[None]:
    yield
    cost_model.use(None)


def test_a_model_of_the_callers_own_prices_what_is_not_measured_and_enters_what_plans_depend_on(
        model: Model, _own: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cost_model.keep(model)
    on_file = cost_model.version()
    s, kernel = signature_of(tg.softmax(tg.input("x", (77, 333)))), kernel_named("numpy.softmax")
    with open_database(tmp_path / "empty.db") as empty:
        request = Request(tg.graph(tg.softmax(tg.input("x", (77, 333)))), None, ("numpy",), empty)
        costs, versions = [], []
        for factor in (3.0, 12.0):
            cost_model.use(Fixed(factor), version=f"mine {factor}")
            costs.append(CostTable.of(request).estimate(kernel, s, {}))
            versions.append(cost_model.version())
    assert costs[1].seconds == pytest.approx(4.0 * costs[0].seconds) and "by the cost model mine 3.0" in costs[0].note
    assert len({*versions, on_file, ""}) == 4
    monkeypatch.setenv(cost_model.VARIABLE, "off")
    assert cost_model.of_calls() is None and cost_model.version() == ""
    monkeypatch.delenv(cost_model.VARIABLE)
    cost_model.use(None)
    assert cost_model.of_calls() is cost_model.of_machine() is not None and cost_model.version() == on_file


@pytest.mark.parametrize(("wrong", "version", "why"), [
    (3, "a", "a cost model has a method of_call, and this is of type int\n  fix: an object with of_call"),
    (Fixed, "a", r"Fixed is a class, and a cost model is an object\n  fix: cost_model.use\(Fixed\(\), …\)"),
    (Fixed(1.0), "", "the version of a cost model is ''\n  fix: a text"),
    (Fixed(1.0), 3, "the version of a cost model is 3\n  fix: a text")])
def test_what_is_no_cost_model_is_refused_with_the_fix(wrong: Any, version: Any, why: str) -> None:
    with pytest.raises(CostModelError, match=why):
        cost_model.use(wrong, version)
    assert cost_model.of_calls() is None


@pytest.mark.parametrize(("found", "why"), [
    (2.0, "returned 2.0"), (None, "returned None"), (Estimate(math.nan, 0.0), "returned Estimate.*"),
    (Estimate(0.0, -1.0), "returned Estimate.*"), (Estimate(-1000.0, 0.3), "returned Estimate.*"),
    (Estimate(0.0, 1e9), "returned Estimate.*")])
def test_what_a_cost_model_returns_is_checked(found: Any, why: str, _own: None) -> None:
    class Odd:
        def of_call(self, *call: Any) -> Any:
            return found

    cost_model.use(Odd(), "odd")
    with pytest.raises(CostModelError, match=f"the cost model 'odd' {why} for numpy.softmax on softmax .*\n  fix: return "):
        compile_graph(tg.graph(tg.softmax(tg.input("x", (64, 64)))), database=":memory:", backends=("numpy",))
