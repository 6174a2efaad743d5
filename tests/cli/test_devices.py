"""`tg devices`: what it shows of the constants on file and how old it says they are; `--measure` measures them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tensor_graphs.cli.devices import table
from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.measure.rates.table import WORKING_SETS, memory_names, sized
from tensor_graphs.records.database import open_database
from tensor_graphs.records.rows import DeviceConstant
from tests.cli.command import document, tg

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def of(age: timedelta, **values: float) -> dict[str, DeviceConstant]:
    return {n: DeviceConstant(n, v, "", timestamp=NOW - age) for n, v in values.items()}


def test_each_backend_has_a_row_with_its_age_and_says_what_it_has_no_kernel_for() -> None:
    lines = table(
        {
            "c": of(timedelta(days=3), flops_f32=4e10, flops_bf16_weights=3e10, call_overhead=5e-8, run_overhead=4e-5),
            "numpy": of(timedelta(hours=5), flops_f32=2e10),
        },
        {"c": {"flops_f64": "c.linear takes f32 activations only"}},
        NOW,
    )
    c, numpy = (next(line for line in lines if line.startswith(f"  {b} ")) for b in ("c", "numpy"))
    assert c.split() == ["c", "40", "none", "30", "0.05", "40", "3", "days", "ago"]
    assert numpy.split() == ["numpy", "20", "?", "?", "?", "?", "5", "hours", "ago"]
    assert "  none: c has no kernel for flops_f64: c.linear takes f32 activations only" in lines


def test_memory_is_shown_once_by_working_set_as_it_was_measured_last() -> None:
    old = of(timedelta(days=9), **{"read_bandwidth": 1e9, sized("read_bandwidth", 65536): 1e9})
    new = of(timedelta(days=2), **{"read_bandwidth": 5e9, sized("read_bandwidth", 65536): 4e10,
                                   sized("read_bandwidth", 4 << 20): 2e10, sized("copy_bandwidth", 65536): 3e10})  # fmt: skip
    lines = table({"c": old, "numpy": new}, {}, NOW)
    (read,) = (line for line in lines if line.startswith("  read"))
    (copy,) = (line for line in lines if line.startswith("  copy"))
    assert read.split() == ["read", "40.0", "20.0", "2", "days", "ago"]
    assert copy.split() == ["copy", "30.0", "?", "2", "days", "ago"]
    assert any(line.split()[:4] == ["64", "KiB", "4", "MiB"] for line in lines)
    (only,) = (line for line in table({"c": of(timedelta(0), read_bandwidth=5e9)}, {}, NOW) if line.startswith("  read"))
    assert only.split() == ["read", "5.0", "just", "now"], "a row of before working sets were measured"


def test_constants_are_shown_with_their_age_and_measure_renews_them(tmp_path: Path) -> None:
    at = tmp_path / "own.db"
    old = datetime.now(UTC) - timedelta(days=3, hours=2)
    with open_database(at) as database:
        database.add_constants(environment_of("numpy", 1), [DeviceConstant("read_bandwidth", 5e9, "byte/s", timestamp=old)])
    assert "3 days ago" in tg("devices", "--threads", 1, "--db", at).stdout
    said = document(tg("devices", "--measure", "--threads", 1, "--db", at, "--json"))
    assert said["transfers"] == [] and "one device" in said["why_no_transfers"]
    for backend in said["backends"]:
        if backend["backend"] not in ("c", "numpy"):
            continue
        constants = backend["constants"]
        assert set(constants) >= {*memory_names(), "flops_f32", "flops_f64", "call_overhead"}
        assert all(c["value"] >= 0 and 0 <= c["age_seconds"] < 60 for c in constants.values())
        assert constants[sized("read_bandwidth", WORKING_SETS[-1])]["value"] == pytest.approx(constants["read_bandwidth"]["value"])
        assert backend["no_kernel_for"] == {}
    others = tg("devices", "--threads", 3, "--db", at).stdout
    assert "nothing is measured yet: tg devices --measure" in others and "transfers  none: one device" in others
