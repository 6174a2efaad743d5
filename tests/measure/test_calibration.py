"""Device constants are measured once per environment, are stored with their units, and are measured again when they are old."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.costs.measured_rates import FLOPS, READ, known_rates, prior_rates
from tensor_graphs.costs.roofline import DeviceRates
from tensor_graphs.measure.rates import calibration, table
from tensor_graphs.measure.rates.calibration import calibrate, measure_device
from tensor_graphs.measure.rates.table import Speed, backend_names, memory_names
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.rows import DeviceConstant

NOW = datetime(2026, 1, 21, 12, tzinfo=UTC)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "bench.db") as made:
        yield made


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured, in order; the values are made up."""
    done: list[str] = []

    def memory() -> dict[str, Speed]:
        done.append("memory")
        return {name: Speed(5e9, "byte/s") for name in memory_names()}

    def backend(name: str) -> dict[str, Speed]:
        done.append(name)
        return {n: Speed({"c": 3e9, "numpy": 4e9}[name], "flop/s") for n in backend_names(name)}

    monkeypatch.setattr(calibration, "memory_speeds", memory)
    monkeypatch.setattr(calibration, "backend_speeds", backend)
    return done


def test_everything_is_measured_and_stored_with_its_unit_within_seconds(database: Database) -> None:
    found = measure_device(database, ("c", "numpy"), threads=2, now=NOW)
    assert set(found) == {"c", "numpy"}
    for backend, values in found.items():
        stored = queries.constants(database, environment_of(backend, 2))
        assert set(values) == set(stored) == {*memory_names(), *backend_names(backend)}
        assert {n: c.value for n, c in stored.items()} == values and {c.timestamp for c in stored.values()} == {NOW}
        units = {n: c.unit for n, c in stored.items()}
        assert {units[n] for n in memory_names()} == {"byte/s"} and {units[n] for n in table.FLOPS} == {"flop/s"}
        assert units["call_overhead"] == units["run_overhead"] == "s"
        assert 2e8 < values["read_bandwidth"] < 5e12 and 1e8 < values["flops_f32"] < 1e14
        # which of the two is larger on a busy machine is chance
        assert 0 <= values["call_overhead"] < 0.1 and 0 < values["run_overhead"] < 0.1
    assert found["c"]["read_bandwidth"] == found["numpy"]["read_bandwidth"], "memory is measured once"


def test_constants_are_measured_once_and_again_after_a_month_or_when_asked(database: Database, counted: list[str]) -> None:
    assert set(measure_device(database, ("c", "numpy"), threads=2, now=NOW)) == {"c", "numpy"}
    assert counted == ["memory", "c", "numpy"]
    assert measure_device(database, ("c", "numpy"), threads=2, now=NOW + timedelta(days=29)) == {}
    assert set(measure_device(database, ("numpy",), threads=2, now=NOW + timedelta(days=31))) == {"numpy"}
    assert set(measure_device(database, ("c", "numpy"), threads=2, now=NOW + timedelta(days=32))) == {"c"}
    assert set(measure_device(database, ("c", "numpy"), threads=2, now=NOW + timedelta(days=33), anew=True)) == {"c", "numpy"}
    assert set(measure_device(database, ("c",), threads=1, now=NOW)) == {"c"}, "another number of threads is another environment"


def test_a_database_that_has_only_some_of_the_constants_gets_the_others(database: Database, counted: list[str]) -> None:
    database.add_constants(environment_of("c", 2), [DeviceConstant("read_bandwidth", 9e9, "byte/s", timestamp=NOW),
                                                    DeviceConstant("flops_f32", 9e9, "flop/s", timestamp=NOW)])
    assert set(measure_device(database, ("c",), threads=2, now=NOW)) == {"c"}
    assert set(queries.constants(database, environment_of("c", 2))) == {*memory_names(), *backend_names("c")}


def test_a_kernel_that_raises_costs_its_own_constants_only(database: Database, counted: list[str],
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> dict[str, Speed]:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(calibration, "backend_speeds", broken)
    assert set(measure_device(database, ("c",), threads=2, now=NOW)["c"]) == set(memory_names())


def test_the_best_backend_says_what_the_device_can_do(database: Database, counted: list[str]) -> None:
    assert known_rates(database, ("numpy",), threads=3) is None
    measure_device(database, ("c", "numpy"), threads=3)
    rates = known_rates(database, ("c", "numpy"), threads=3)
    assert rates is not None and rates.bandwidth == 5e9 and rates.flops == 4e9


def test_the_first_constants_are_measured_once_for_a_process_and_only_where_none_are_known(
        database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def read() -> Speed:
        done.append("read")
        return Speed(5e9, "byte/s")

    def no_kernel(backend: str) -> Speed:
        raise ValueError("no kernel")

    monkeypatch.setattr(calibration, "reading_speed", read)
    monkeypatch.setattr(calibration, "flops_speed", lambda backend: Speed({"c": 3e9, "numpy": 4e9}[backend], "flop/s"))
    monkeypatch.setattr(calibration, "run_speed", lambda backend: Speed(2e-6, "s") if backend == "c" else no_kernel(backend))
    calibration._first.cache_clear()
    try:
        calibrate(database, ("c", "numpy"))
        assert known_rates(database, ("c", "numpy")) == DeviceRates(5e9, 4e9, 2e-6) and done == ["read"]
        calibrate(database, ("c", "numpy"))
        with open_database(tmp_path / "other.db") as other:
            calibrate(other, ("c", "numpy"))
            assert known_rates(other, ("c", "numpy")) == DeviceRates(5e9, 4e9, 2e-6) and done == ["read"]
        assert set(queries.constants(database, environment_of("numpy"))) == {"read_bandwidth", "flops_f32"}
    finally:
        calibration._first.cache_clear()


def test_constants_that_a_kernel_beats_are_measured_again_and_raised_once(database: Database, counted: list[str],
                                                                          caplog: pytest.LogCaptureFixture) -> None:
    measure_device(database, ("c", "numpy"), threads=2, now=NOW)
    assert calibration.correct_flops(database, {"c": 3.2e9, "numpy": 4e9}, 2) == [] and counted == ["memory", "c", "numpy"]
    assert calibration.correct_flops(database, {"c": 6e9, "numpy": 4e9}, 2) == ["c"] and counted[3:] == ["memory", "c"]
    assert queries.constants(database, environment_of("c", 2))[FLOPS].value == 6e9 and "a kernel has reached 6e+09" in caplog.text
    assert calibration.correct_flops(database, {"c": 6e9}, 2) == []


def test_reading_memory_is_measured_again_where_copying_it_seemed_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "STREAM_BYTES", 1 << 16)
    monkeypatch.setattr(table, "WORKING_SETS", (1 << 14, 1 << 16))
    monkeypatch.setattr(table, "LEAST_BYTES", 1)
    monkeypatch.setattr(table, "reading", lambda data, times=1: ("read", data.nbytes))
    monkeypatch.setattr(table, "copying", lambda data, times=1: ("copy", data.nbytes))
    took = iter([1.0, 8.0, 1.0, 4.0, 6.0, 2.0])                      # disturbed, once more in the first second look
    monkeypatch.setattr(table, "fastest", lambda run: next(took))
    found = table.memory_speeds()
    assert found["read_bandwidth"] == found[f"read_bandwidth[{1 << 16} B]"] == Speed((1 << 16) / 2.0, "byte/s")
    assert found["copy_bandwidth"].value == (1 << 16) / 4.0 and not list(took)


def test_a_speed_is_that_of_a_run_that_nothing_disturbed_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    monkeypatch.setattr(table, "_switches", lambda: len(runs) if len(runs) < 9 else 9)
    table.fastest(lambda: runs.append(1))
    assert len(runs) == 10, "one that does not count, eight that were disturbed, and one that was not"


def test_the_first_constants_are_speeds() -> None:
    assert 1e8 < table.reading_speed().value < 1e12 and 0 < table.run_speed("numpy").value < 0.1


def test_what_the_host_reaches_says_nothing_of_another_device(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what was stored for its backends by whoever took it for the device's own."""
    from tests.fake import backend

    backend.make_known()
    monkeypatch.setattr(calibration, "reading_speed", lambda: Speed(3e10, "byte/s"))
    monkeypatch.setattr(calibration, "flops_speed", lambda backend: Speed(4e9, "flop/s"))
    monkeypatch.setattr(calibration, "run_speed", lambda backend: Speed(2e-6, "s"))
    calibration._first.cache_clear()
    try:
        calibrate(database, ("numpy", backend.NAME))
        assert known_rates(database, [backend.NAME]) is None and known_rates(database, ["numpy"]) is not None
        rows = [DeviceConstant(READ, 1e9, "byte/s"), DeviceConstant(FLOPS, 1e9, "flop/s")]
        database.add_constants(environment_of(backend.NAME), rows)
        book = CostTable(database, ("numpy", backend.NAME), 1e-3).load()
        assert book.rates["cpu"].bandwidth == 3e10 and book.rates["fake"] == prior_rates(backend.make_known())
    finally:
        backend.forget()
        calibration._first.cache_clear()
