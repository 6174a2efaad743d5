"""choice/error_calibration.py: errors that were measured correct the predicted errors of other forms of the graph."""

from __future__ import annotations

import math

import pytest

from tensor_graphs.choice.error_calibration import PRIOR, STEP, calibrated, logs_of
from tensor_graphs.choice.measured_accuracy import measured_accuracy
from tensor_graphs.choice.mixed_forms import MixedForms
from tensor_graphs.choice.precision_forms import estimate
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.records.database import Database
from tests.choice.test_mixed_forms import _fewer_bits_are_faster as _fewer_bits_are_faster
from tests.choice.test_mixed_forms import compiled, layers, weights
from tests.choice.test_mixed_forms import database as database


def test_measurements_overrule_the_prior_the_more_there_are() -> None:
    factors = [calibrated("kl", [math.log(4.0)] * count) for count in (0, 2, 100)]
    assert factors == sorted(factors) and abs(math.log(factors[0]) - PRIOR["kl"]) <= STEP / 2
    assert factors[-1] == pytest.approx(4.0, rel=STEP)


def test_saturated_divergences_and_rows_without_a_prediction_do_not_count() -> None:
    rows = [{"predicted": {"y": {"kl": p, "norm": 0.1}}, "measured": {"y": {"kl": 2 * p, "norm": 0.2}}} for p in (0.01, 0.5)]
    rows += [{"predicted": {}, "measured": {"y": {"kl": 1.0}}}, {}]
    assert logs_of(rows, "y", "kl", "kl") == [pytest.approx(math.log(2))]
    assert logs_of(rows, "y", "norm", "norm") == [pytest.approx(math.log(2))] * 2
    assert logs_of(rows, "z", "norm", "norm") == []


def test_the_rows_of_draws_have_what_was_predicted(database: Database) -> None:
    compiled(database, "norm:2e-2")
    graph = layers()
    request = Request(graph, "norm:2e-2", None, database, weights=weights(graph))
    accuracy = measured_accuracy(request)
    logs = logs_of(accuracy.rows(), "y", "norm", "norm")
    assert logs and all(abs(log) < 0.7 for log in logs)
    prepared = prepare(graph, backends=request.here).graph
    mixed = MixedForms(prepared, accuracy, estimate(prepared, request))
    before = mixed.error({"weight": "bf16"})
    assert before is not None and mixed.predicted({}) == {}
    raw = mixed.predicted({"weight": "bf16"})["y"]["norm"]
    assert math.sqrt(before) * 2e-2 == pytest.approx(raw * calibrated("norm", logs), rel=1e-3)
