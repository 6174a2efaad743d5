"""What is measured of a device looks like a computer and says what is missing; a constant's name says its working set."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from tensor_graphs.kernels.c import library
from tensor_graphs.measure.rates import table
from tensor_graphs.measure.rates.table import (
    CALL,
    FLOPS,
    READ,
    RUN,
    WORKING_SETS,
    backend_names,
    copying,
    fastest,
    flops,
    flops_kernel,
    memory_names,
    memory_speeds,
    reading,
    sized,
    working_set,
)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory measured up to 16 MiB only."""
    monkeypatch.setattr(table, "WORKING_SETS", WORKING_SETS[:6])
    monkeypatch.setattr(table, "STREAM_BYTES", WORKING_SETS[5])


def test_working_sets_go_from_a_first_cache_to_beyond_the_last_in_powers_of_four() -> None:
    assert WORKING_SETS[0] <= 32 << 10 and WORKING_SETS[-1] == table.STREAM_BYTES == 256 << 20
    assert all(b == 4 * a for a, b in pairwise(WORKING_SETS))


def test_a_name_says_its_working_set() -> None:
    for nbytes in WORKING_SETS:
        assert working_set(sized(READ, nbytes)) == (READ, nbytes)
    assert working_set(READ) is None and sized(READ, 65536) == "read_bandwidth[65536 B]"
    assert len(set(memory_names())) == len(memory_names()) == 2 * (1 + len(WORKING_SETS))


def test_memory_is_measured_at_every_size_and_the_largest_is_the_one_without_a_size(short: None) -> None:
    found = memory_speeds()
    assert set(found) == set(memory_names())
    assert all(2e8 < s.value < 1e13 and s.unit == "byte/s" for s in found.values())
    for name in (READ, table.COPY):
        assert found[name] == found[sized(name, table.STREAM_BYTES)]


@pytest.mark.parametrize("native", [True, False])
def test_memory_is_read_and_copied_as_often_as_is_said_with_a_compiler_or_without(native: bool,
                                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(table, "why_missing", lambda name: "no compiler")
    data = np.arange(1 << 15, dtype=np.uint64)
    copying(data, 3)()
    np.testing.assert_array_equal(data[1 << 14:], np.arange(1 << 14))
    few, many = (fastest(reading(data, times)) for times in (2, 400))
    assert many > 3 * few, "two hundred times as much is read"


def test_a_small_working_set_is_not_the_price_of_going_through_python() -> None:
    """One pass over 16 KiB takes 0.3 µs, and a call from Python several."""
    data = np.zeros(WORKING_SETS[0] // 8, dtype=np.uint64)
    together = fastest(reading(data, 512)) / 512
    one_by_one = fastest(reading(data, 1))
    assert together < one_by_one / 3


@pytest.mark.parametrize("backend", ["c", "numpy"])
@pytest.mark.parametrize("name", FLOPS)
def test_our_backends_have_arithmetic_in_each_dtype(backend: str, name: str) -> None:
    assert name in backend_names(backend)
    assert 1e7 < flops(backend, name, 128) < 1e14


def test_a_dtype_without_a_kernel_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table.by_op
    monkeypatch.setattr(table, "by_op", lambda kernels: {"linear": whole(kernels)["linear"][:1]})
    assert flops_kernel("c", "flops_f64") == "c.linear takes f32 activations only"
    assert backend_names("c") == ("flops_f32", "flops_bf16_weights")
    with pytest.raises(ValueError, match="c has no flops_f64: c.linear takes f32 activations only"):
        flops("c", "flops_f64", 8)
    monkeypatch.setattr(table, "by_op", lambda kernels: {})
    assert flops_kernel("numpy", "flops_f32") == "no kernel for linear" and backend_names("numpy") == ()
    assert table.backend_speeds("numpy") == {}


def test_a_call_is_what_one_more_in_a_plan_costs() -> None:
    one, many = table.run_seconds("numpy", 1), table.run_seconds("numpy", 65)
    assert 1e-7 < (many - one) / 64 < 1e-3
    native = (table.run_seconds("c", 65) - table.run_seconds("c", 1)) / 64
    assert native < (many - one) / 64, "a native call costs less than one through Python"
    assert {CALL, RUN} <= set(backend_names("c"))


def test_the_price_of_a_run_of_c_asks_for_no_library_that_only_some_graphs_need(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    part = library.NativeLibrary.part
    monkeypatch.setattr(library.NativeLibrary, "part", lambda self, name: (asked.append(name), part(self, name))[1])
    assert 0 < table.run_speed("c").value < 0.1 and set(asked) <= {library.CORE, *library.AHEAD}
    assert 0 < table.run_speed("torch").value < 0.1


def test_the_fastest_of_a_few_runs_counts_and_slow_ones_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def taking(*seconds: float) -> tuple[float, int]:
        left = list(seconds)

        def run() -> None:
            clock[0] += left.pop(0)

        return fastest(run), len(seconds) - len(left)

    assert taking(9.0, 0.02, 0.01, 0.03) == (pytest.approx(0.01), 4)
    assert taking(9.0, 0.5, 0.01, 0.03) == (pytest.approx(0.5), 2)
