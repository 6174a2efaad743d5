"""What is measured of a GPU: its memory by working set, its units, its backends' products; on one that is none, and on one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.cli.devices import table
from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.costs.measured_rates import known_rates, prior_rates
from tensor_graphs.devices.cuda import Cuda
from tensor_graphs.devices.device import Memory
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.devices.free_memory import OutOfMemory
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.composites import add, attention, linear
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.rates import calibration
from tensor_graphs.measure.rates import gpu as under
from tensor_graphs.measure.rates import table as rates
from tensor_graphs.measure.rates.calibration import measure_device
from tensor_graphs.measure.rates.table import sized
from tensor_graphs.measure.timing import launch_ahead
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.rows import DeviceConstant
from tensor_graphs.views.roofline_chart import Roof
from tests.fake import cuda as emulated


@pytest.fixture
def database() -> Iterator[Database]:
    with open_database(":memory:") as made:
        yield made


@pytest.fixture
def gpu_that_is_none(gpu_that_is_none: Cuda, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Whose measurements are small, as each thread takes its turn on the host."""
    monkeypatch.setattr(under, "WORKING_SETS", (1 << 12, 1 << 14))
    monkeypatch.setattr(under, "MOVED", 1 << 15)
    monkeypatch.setattr(under, "ROUNDS", 3)
    monkeypatch.setattr(under, "PRODUCT_SIZE", 32)
    monkeypatch.setattr(launch_ahead, "EMPTIED", 1 << 12)
    whole = rates.by_op
    monkeypatch.setattr(rates, "by_op", lambda kernels: whole(k for k in kernels if k.op != "linear" or k.name.endswith("_any")))
    return gpu_that_is_none


def test_a_gpu_delivers_at_most_what_its_clocks_and_units_do(gpu_that_is_none: Cuda) -> None:
    peaks = gpu_that_is_none.peaks()
    assert peaks["read_bandwidth"] == 2 * 3.2e9 * 6000 / 8
    assert peaks["flops_f32"] == 2 * 128 * 2 * 2e9 and peaks["flops_bf16"] == 16 * peaks["flops_f32"]
    rates = prior_rates(gpu_that_is_none)
    assert (rates.bandwidth, rates.flops) == (peaks["read_bandwidth"], peaks["flops_f32"])


@pytest.mark.parametrize(("capability", "has"), [((8, 0), 64), ((8, 6), 128), ((9, 0), 128), ((10, 3), 128), ((12, 1), 128)])
def test_every_generation_has_its_units(gpu_that_is_none: Cuda, capability: tuple[int, int], has: int) -> None:
    gpu_that_is_none.capability = capability
    peaks = gpu_that_is_none.peaks()
    assert peaks["flops_f32"] == 2 * has * 2 * 2e9
    assert ("flops_f8e4m3" in peaks) == (capability >= (8, 9)) and peaks["flops_bf16"] > peaks["flops_f32"] > peaks["flops_f64"]


def test_what_a_driver_does_not_say_is_left_out_and_no_time_is_implausible_by_it(gpu_that_is_none: Cuda, database: Database,
                                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gpu_that_is_none.peaks()
    monkeypatch.setitem(emulated.ATTRIBUTES, "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE", 0)
    assert gpu_that_is_none.peaks() == {name: value for name, value in whole.items() if name != "read_bandwidth"}
    assert prior_rates(gpu_that_is_none).flops == whole["flops_f32"] and 1e11 < prior_rates(gpu_that_is_none).bandwidth < 1e12
    assert "(priors)" in str(Roof.of("cuda:0", database, ("cuda",)))
    x = signature_of(add(leaves.input("x", (64,)), leaves.input("y", (64,))))
    assert Judge(database)._floor(kernel_named("cuda.linear_any"), x, {}) == 0.0
    monkeypatch.setitem(emulated.ATTRIBUTES, "CU_DEVICE_ATTRIBUTE_CLOCK_RATE", 0)
    assert gpu_that_is_none.peaks() == {}


def test_its_memory_is_read_and_copied_as_often_as_is_said(gpu_that_is_none: Cuda) -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 32, 4 * 37, dtype=np.uint32)      # no multiple of the threads
    data, to, out = (gpu_that_is_none.allocate(n) for n in (words.nbytes, words.nbytes, 16))
    host = device_named("cpu").allocate(words.nbytes)
    view = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint32 * words.size).from_address(host.address))
    view[:] = words
    gpu_that_is_none.upload(host, data)
    view[:] = 0
    under._launching(gpu_that_is_none, "copy_again", to, data, 37, 3)()
    gpu_that_is_none.download(to, host)
    np.testing.assert_array_equal(view, words)
    for seen in (False, True):                                      # the one word that a thread looks for
        words[1:] = 0
        words[0] = 0x9E3779B9 if seen else 5
        view[:] = words
        gpu_that_is_none.upload(host, data)
        gpu_that_is_none.fill(out, 0)
        under._launching(gpu_that_is_none, "read_again", out, data, 37, 1)()
        gpu_that_is_none.download(gpu_that_is_none.part(out, 0, 16), device_named("cpu").part(host, 0, 16))
        assert (view[0] == 0x9E3779B9) == seen


def test_all_that_is_said_is_measured_and_filed_for_each_backend(gpu_that_is_none: Cuda, database: Database) -> None:
    found = measure_device(database, ("cuda", "gencuda"), anew=True)
    own = {"call_overhead", "read_bandwidth", "copy_bandwidth", "flops_f32", "flops_f64", "clock",
           *(sized(name, n) for name in ("read_bandwidth", "copy_bandwidth") for n in under.WORKING_SETS)}
    links = {f"{way}_{what}" for way in ("upload", "download") for what in ("latency", "bandwidth")}
    assert set(found["gencuda"]) == {*own, *links}
    assert set(found["cuda"]) >= {*own, *links, "flops_bf16", "flops_f16"}
    assert all(value > 0 for value in found["cuda"].values())
    filed = queries.constants(database, environment_of("cuda"), "cuda:0")
    assert set(filed) == set(found["cuda"]) and filed["clock"].unit == "Hz"
    assert not queries.constants(database, environment_of("cuda")), "nothing is filed as if it were of the host"
    assert measure_device(database, ("cuda", "gencuda")) == {}


def test_what_was_measured_counts_before_its_makers_word(gpu_that_is_none: Cuda, database: Database) -> None:
    assert known_rates(database, ("cuda",)) is None
    assert CostTable(database, ("cuda", "numpy"), 1e-3).load().rates["cuda:0"] == prior_rates(gpu_that_is_none)
    measure_device(database, ("cuda",))
    assert known_rates(database, ("cuda",)) is None, "a profile asks for the link alone"
    database.add_constants(environment_of("cuda"), [DeviceConstant("read_bandwidth", 4e12, "byte/s", "cuda:0"),
                                                    DeviceConstant("flops_f32", 5e13, "flop/s", "cuda:0")])
    rates = CostTable(database, ("cuda", "numpy"), 1e-3).load().rates
    assert (rates["cuda:0"].bandwidth, rates["cuda:0"].flops) == (4e12, 5e13)
    assert rates["cpu"] == prior_rates(device_named("cpu"))


def test_the_roof_of_a_gpu_is_its_own(gpu_that_is_none: Cuda, database: Database) -> None:
    roof = Roof.of("cuda:0", database, ("cuda",))
    assert not roof.measured and roof.bandwidth == gpu_that_is_none.peaks()["read_bandwidth"]
    assert "4800.0 GB/s" in str(roof) and "bf16 16.4 Tflop/s" in str(roof)
    assert str(roof).endswith("(at most, by its clocks and units)")
    database.add_constants(environment_of("cuda"), [DeviceConstant("read_bandwidth", 4e12, "byte/s", "cuda:0"),
                                                    DeviceConstant("flops_f32", 5e11, "flop/s", "cuda:0")])
    roof = Roof.of("cuda:0", database, ("cuda",))
    assert roof.measured and roof.bandwidth == 4e12 and roof.flops["flops_f32"] == 5e11
    assert roof.flops["flops_bf16"] == gpu_that_is_none.peaks()["flops_bf16"]
    assert str(roof).endswith("(measured; f64, bf16, f16, f8e4m3 at most, by its clocks and units)")


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "f64"])
def test_products_stand_below_tensor_cores_and_all_else_below_units_for_floats(gpu_that_is_none: Cuda, database: Database,
                                                                               kind: str) -> None:
    roof = Roof.of("cuda:0", database, ("cuda",))
    x, w = (leaves.input(name, (16, 16), DTYPES[kind]) for name in "xw")
    q = leaves.input("q", (16, 2, 16), DTYPES[kind])
    assert {roof.peak(signature_of(node).spec) for node in (linear(x, w), attention(q, q, q, scale=0.25))} == {f"flops_{kind}"}
    assert roof.peak(signature_of(add(x, w)).spec) == ("flops_f64" if kind == "f64" else "flops_f32")


def test_a_backend_says_why_it_has_no_product(gpu_that_is_none: Cuda) -> None:
    assert set(under.no_kernel("gencuda")) == set(under.PRODUCTS) and "no kernel for linear" in under.no_kernel("gencuda").values()
    with pytest.raises(ValueError, match="gencuda has no flops_bf16: no kernel for linear"):
        under.product_speed("gencuda", "flops_bf16")


def test_devices_shows_a_gpu_beside_what_its_driver_says(gpu_that_is_none: Cuda, database: Database) -> None:
    measure_device(database, ("cuda",), anew=True)
    known = {"cuda": queries.constants(database, environment_of("cuda"), "cuda:0")}
    stamp = known["cuda"]["clock"].timestamp
    assert stamp is not None
    lines = table(known, {"cuda": {}}, stamp, gpu_that_is_none.peaks(), "cuda:0")
    assert lines[0] == "cuda:0:" and "f32 [Tflop/s]" in lines[1] and "clock [GHz]" in lines[1]
    assert lines[2].split() == ["at", "most", "1.02", "0.512", "16.4", "16.4", "32.8", "by", "its", "clocks", "and", "units"]
    assert lines[3].split()[0] == "cuda" and lines[3].endswith("just now")
    assert any(line.split()[:4] == ["4", "KiB", "16", "KiB"] for line in lines)
    assert "  at most 4800 GB/s of memory, by its clock and width" in lines
    before = table({}, {}, stamp, gpu_that_is_none.peaks(), "cuda:0")
    assert before[:3] == lines[:3] and before[-2] == "nothing is measured yet of cuda:0: tg devices --measure"


def test_what_cannot_be_measured_is_left_out_and_the_rest_is_kept(gpu_that_is_none: Cuda, database: Database, caplog: Any,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    def speed(backend: str, name: str) -> float:
        if name == "flops_bf16":
            raise RuntimeError("no such instruction")
        return 1e12

    allocate, most = type(gpu_that_is_none).allocate, under.WORKING_SETS[0]

    def allocated(self: Cuda, nbytes: int) -> Memory:
        if nbytes > most:
            raise OutOfMemory("others have it\n  fix: none")
        return allocate(self, nbytes)

    monkeypatch.setattr(type(gpu_that_is_none), "allocate", allocated)
    monkeypatch.setattr(under, "product_speed", speed)
    monkeypatch.setattr(under, "product_kernel", lambda backend, name: kernel_named("cuda.linear_any"))
    monkeypatch.setattr(calibration, "link_speeds", lambda device: {})
    found = measure_device(database, ("cuda",), anew=True)["cuda"]
    assert "flops_bf16" not in found and found["flops_f16"] == 1e12 and "flops_bf16 was not measured" in caplog.text
    assert sized("read_bandwidth", most) in found and sized("read_bandwidth", under.WORKING_SETS[1]) not in found


@pytest.mark.gpu
@pytest.mark.alone
def test_a_gpu_delivers_nearly_what_its_driver_says_and_never_more(database: Database) -> None:
    found = measure_device(database, ("cuda", "gencuda", "torchcuda"), anew=True)
    peaks = device_named("cuda:0").peaks()
    for backend, values in found.items():
        for name in peaks:
            if name in values:
                least = 0.5 if name in under.PRODUCTS else 0.8
                assert least * peaks[name] < values[name] < 1.02 * peaks[name], (backend, name, values[name], peaks[name])
        by_size = [values[sized("read_bandwidth", n)] for n in under.WORKING_SETS]
        assert max(by_size) > 1.2 * by_size[-1], "the second cache shows"
        assert 5e8 < values["clock"] < 3e9
