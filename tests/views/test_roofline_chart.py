"""Steps beside their roof: what is least is the slower of bytes and arithmetic, what is beyond it is lost; the picture has all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

import tensor_graphs as tg
from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.paths.plan import Evidence, Plan
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.rows import DeviceConstant
from tensor_graphs.views.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from tensor_graphs.views.roofline_chart import KernelTable, kernel_table, picture
from tests.plans import plan_of

SVG = "{http://www.w3.org/2000/svg}"
GB = 10e9


@pytest.fixture
def rated() -> Iterator[Database]:
    """A device of 10 GB/s, 250 Gflop/s in f32 and 50 in f64."""
    with open_database(":memory:") as made:
        made.add_constants(environment_of("numpy"), [DeviceConstant("read_bandwidth", GB, "byte/s"),
                                                     DeviceConstant("flops_f32", 250e9, "flop/s"),
                                                     DeviceConstant("flops_f64", 50e9, "flop/s")])
        yield made


def planned() -> Plan:
    """A product that arithmetic bounds, a sum of two that memory bounds, and the same in f64; 1 ms each, the last one a guess."""
    x, w, y = tg.input("x", (512, 512)), tg.parameter("w", (512, 512)), tg.input("y", (1024, 256), tg.f64)
    plan = plan_of(tg.graph({"a": tg.linear(x, w), "b": tg.add(x, x), "c": tg.add(y, y)}))
    (v,) = plan.variants
    evidence = tuple(Evidence(ins.op, ins.signature, ins.kernel, 1, 1e-3, i < 2, None, "", (), margin=1.0 if i < 2 else 2.0)
                     for i, ins in enumerate(v.program.instructions))
    kernels = {ins.kernel: kernel_named(ins.kernel) for ins in v.program.instructions}
    return replace(plan, variants=(replace(v, evidence=evidence, kernels=kernels),))


def test_the_least_is_the_slower_of_bytes_and_arithmetic_and_the_rest_is_lost(rated: Database) -> None:
    table = kernel_table(planned(), rated)
    by = {(s.kernel, s.nbytes): s for s in table.steps}
    product, small = by["numpy.linear", 3 * 4 * 512 ** 2], by["numpy.add", 3 * 4 * 512 ** 2]
    wide = by["numpy.add", 3 * 8 * 1024 * 256]
    assert product.bound == "arithmetic" and product.least == pytest.approx(2 * 512 ** 3 / 250e9, rel=0.01)
    assert small.bound == wide.bound == "memory" and small.least == pytest.approx(3 * 4 * 512 ** 2 / GB)
    assert wide.peak == "flops_f64" and product.peak == small.peak == "flops_f32"
    assert small.lost == pytest.approx(1e-3 - small.least) and product.lost == 0.0 and product.share > 1
    assert not wide.measured and wide.seconds == 1e-3
    assert [s.lost for s in table.steps] == sorted((s.lost for s in table.steps), reverse=True)
    lines = table.lines(2)
    assert lines[0] == "roof of cpu: read 10.0 GB/s, f32 250.0 Gflop/s, f64 50.0 Gflop/s (measured)"
    assert lines[-1].endswith("in 1 more (--rows)") and "numpy.add" in lines[3] and "memory" in lines[3]


def test_a_constant_that_a_measured_product_beats_is_raised_to_it_and_named(rated: Database) -> None:
    plan = planned()
    (v,) = plan.variants
    fast = tuple(replace(e, seconds=5e-4 if e.chosen == "numpy.linear" else 1e-9) for e in v.evidence)
    table = kernel_table(replace(plan, variants=(replace(v, evidence=fast),)), rated)
    assert next(s.share for s in table.steps if s.kernel == "numpy.linear") == 1.0
    assert table.roofs[0].flops == {"flops_f32": pytest.approx(2 * 512 ** 3 / 5e-4, rel=0.01), "flops_f64": 50e9}
    said = "f32 was measured as 250.0 Gflop/s, and numpy.linear reaches more: tg devices --measure)"
    assert table.lines(2)[0].startswith("roof of cpu: read 10.0 GB/s, f32 53") and table.lines(2)[0].endswith(said)


def test_without_measured_constants_the_roof_says_so(rated: Database) -> None:
    with open_database(":memory:") as empty:
        lines = kernel_table(planned(), empty).lines(9)
    assert "(priors)" in lines[0] and "tg devices --measure" in lines[1]


def test_the_picture_has_every_step_below_a_roof_for_each_dtype(rated: Database) -> None:
    table = kernel_table(planned(), rated)
    root = ET.fromstring(picture(table, "steps of <a>"))
    circles = list(root.iter(f"{SVG}circle"))
    assert len(circles) == 3 and sum(c.attrib["fill"] == "white" for c in circles) == 1
    assert all(LEFT < float(c.attrib["cx"]) < WIDTH - RIGHT and TOP < float(c.attrib["cy"]) < HEIGHT - BOTTOM for c in circles)
    texts = {t.text or "" for t in root.iter(f"{SVG}text")}
    assert {"steps of <a>", "cpu f32 250.0 Gflop/s, 10.0 GB/s", "cpu f64 50.0 Gflop/s, 10.0 GB/s"} <= texts
    empty = KernelTable({}, (), ())
    assert ET.fromstring(picture(empty, "none")) is not None and empty.lines(3)[0].startswith("all steps: 0.0 µs")
