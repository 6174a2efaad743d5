"""Device constants are measured once per environment, look like a computer's, and are measured again when they are old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tensor_graphs.profiling import calibration
from tensor_graphs.profiling.calibration import known_rates, measure_device, read_bandwidth
from tensor_graphs.profiling.judge import environment_of
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database


def test_constants_are_measured_once_and_again_after_a_month(shared: Database) -> None:
    now = datetime.now(UTC)
    found = measure_device(shared, ("c", "numpy"), threads=2)
    assert set(found) == {"c", "numpy"}
    for each in found.values():
        assert 2e8 < each["read_bandwidth"] < 5e12 and 1e8 < each["flops_f32"] < 1e14
    assert measure_device(shared, ("c", "numpy"), threads=2) == {}
    assert measure_device(shared, ("numpy",), threads=2, now=now + timedelta(days=29)) == {}
    assert set(measure_device(shared, ("numpy",), threads=2, now=now + timedelta(days=31))) == {"numpy"}
    units = {name: c.unit for name, c in queries.constants(shared, environment_of("numpy", 2)).items()}
    assert units == {"read_bandwidth": "byte/s", "flops_f32": "flop/s"}


def test_the_best_backend_says_what_the_device_can_do(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_rates(shared, ("numpy",), threads=3) is None
    monkeypatch.setattr(calibration, "read_bandwidth", lambda: 5e9)
    monkeypatch.setattr(calibration, "flops_f32", lambda backend: {"c": 3e9, "numpy": 4e9}[backend])
    measure_device(shared, ("c", "numpy"), threads=3)
    rates = known_rates(shared, ("c", "numpy"), threads=3)
    assert rates is not None and rates.bandwidth == 5e9 and rates.flops == 4e9


def test_bandwidth_is_measured_without_a_compiler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "why_missing", lambda name: "no compiler")
    assert 1e8 < read_bandwidth(32 << 20) < 5e12
