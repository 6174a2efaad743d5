"""A trace has a slice for each step of one run, in order, without overlap, within the run, on the lane of its device."""

from __future__ import annotations

import itertools

import pytest

import tensor_graphs as tg
from tensor_graphs.records.database import open_database
from tensor_graphs.views.timeline import RUNS, timeline
from tests.plans import plan_of
from tests.views.test_roofline_chart import planned


def test_slices_follow_each_other_within_the_run_and_say_what_was_predicted() -> None:
    with open_database(":memory:") as empty:
        made = timeline(planned(), empty, {}, "three steps")
    slices = [e for e in made["traceEvents"] if e["ph"] == "X"]
    run, steps = slices[0], slices[1:]
    assert run["name"] == "run" and [e["name"].partition(".")[0] for e in steps] == ["linear", "add", "add"]
    for before, after in itertools.pairwise(steps):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-3
    assert 0 <= steps[0]["ts"] and steps[-1]["ts"] + steps[-1]["dur"] <= run["dur"] + 1e-3 and all(e["dur"] > 0 for e in steps)
    assert [e["args"]["predicted_us"] for e in steps] == [1000.0, 1000.0, 1000.0]
    assert [e["args"]["predicted_from"] for e in steps] == ["a measurement", "a measurement", "an estimate"]
    assert steps[0]["args"]["bytes"] == 3 * 4 * 512 ** 2
    assert steps[0]["args"]["kernel"] == "numpy.linear" and steps[0]["cat"] == "numpy"
    said = made["otherData"]
    assert 0 < said["in_steps_us"] <= said["step_by_step_us"] and said["one_go_us"] > 0 and RUNS > 1


@pytest.mark.usefixtures("fake")
def test_each_device_has_a_lane_and_copies_are_slices() -> None:
    x = tg.input("x", (8, 8))
    with open_database(":memory:") as empty:
        plan = plan_of(tg.graph({"y": tg.add(tg.copy_to(tg.add(x, x), "fake"), tg.copy_to(x, "fake"))}), ("fake", "numpy"))
        made = timeline(plan, empty, {}, "two devices")
    lanes = {e["args"]["name"]: e["tid"] for e in made["traceEvents"] if e["name"] == "thread_name"}
    assert set(lanes) == {"run", "cpu", "fake"}
    copies = [e for e in made["traceEvents"] if e.get("cat") == "copy"]
    assert copies and {e["tid"] for e in copies} <= {lanes["cpu"], lanes["fake"]}
