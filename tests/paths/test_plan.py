"""paths/plan.py: memory as a function of the dims, and what is said when it is too much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.paths.fit_terminal import SCREEN_LINES, SCREEN_WIDTH, human
from tensor_graphs.paths.plan import Evidence, PlanError, midpoint
from tensor_graphs.paths.size_cells import Cell
from tensor_graphs.rewrites.passes.apply_precision import apply_form
from tests.plans import plan_of

N = tg.dim("n", 1, 1000)


def step() -> tg.Graph:
    """A state of 4 kB, a parameter of 1 kB, and n rows through two kernels that may not share memory."""
    s, x, w = tg.state("cache", (64, 16)), tg.input("x", (N, 16)), tg.parameter("w", (16, 16))
    h = tg.linear(tg.tanh(x), w)
    return tg.graph({"y": tg.sum(h * tg.softmax(h), 1)}, {s: s.write(x, at=0)})


def test_every_byte_of_a_plan_is_told_by_kind() -> None:
    use = plan_of(step()).memory(n=10)
    assert use.parameters == 16 * 16 * 4 and use.states == 64 * 16 * 4 and use.outputs == 64 and use.device == "cpu"
    assert use.arena == plan_of(step()).variants[0].layout.offsets({"n": 10})[1]["cpu"] > 0
    assert use.total == use.allocated + use.parameters == use.parameters + use.states + use.arena + use.outputs + use.constants
    assert use.to_json() == {"parameters": 1024, "states": 4096, "arena": use.arena, "outputs": 64, "constants": use.constants,
                             "bound": 0, "scratch": 0, "inputs": 0, "total": use.total, "bind_peak": 0, "bind_only": 0}


def test_parameters_that_only_binding_reads_are_not_among_those_of_a_run() -> None:
    x, w, v = tg.input("x", (N, 64)), tg.parameter("w", (64, 64)), tg.parameter("v", (64, 64))
    graph = tg.graph({"y": tg.linear(tg.linear(x, w), v)})
    plain, narrow, one = (plan_of(apply_form(graph, form).graph).memory(n=4)
                          for form in ({}, {"weight": "bf16"}, {"weight:w": "bf16"}))
    assert (plain.parameters, plain.bound, plain.bind_only) == (2 * 64 * 64 * 4, 0, 0)
    assert (narrow.parameters, narrow.bound, narrow.bind_only) == (0, 2 * 64 * 64 * 2, 2 * 64 * 64 * 4)
    assert (one.parameters, one.bound, one.bind_only) == (64 * 64 * 4, 64 * 64 * 2, 64 * 64 * 4)
    assert narrow.total < one.total < plain.total and narrow.most >= narrow.bind_only + narrow.total


def test_dims_that_are_not_given_are_at_their_largest() -> None:
    plan = plan_of(step(), largest={"n": 500})
    assert plan.memory() == plan.memory(n=500) and plan.binding({}) == {"n": 500}
    assert plan.memory(n=1000).arena > plan.memory().arena


def test_dims_that_the_graph_does_not_have_are_named() -> None:
    plan = plan_of(step())
    with pytest.raises(PlanError, match=r"^the graph has no dim named k, m; it has n\n  fix: sizes of those only$"):
        plan.memory(k=1, m=2)
    with pytest.raises(PlanError, match=r"^dim n = 1001 is outside of its range, 1 to 1000\n  fix: a size in that range"):
        plan.memory(n=1001)
    with pytest.raises(PlanError, match=r"^the graph has no dim named k; it has none\n  fix: sizes of those only$"):
        plan_of(tg.graph(tg.constant(1.0))).memory(k=1)


def test_too_much_memory_is_explained_by_the_largest_live_set() -> None:
    plan = plan_of(step())
    plan.check_capacity({"n": 1000})                    # no limit
    plan.check_capacity({"n": 10}, capacity=plan.memory(n=10).total)
    with pytest.raises(PlanError) as caught:
        plan.check_capacity({"n": 1000}, capacity=100_000)
    use = plan.memory(n=1000)
    assert str(caught.value) == (
        f"device cpu may use 100.0 kB, the plan needs {human(use.total)} at n=1000: parameters 1.0 kB, states 4.1 kB, "
        f"outputs 4.0 kB, arena {human(use.arena)}\n"
        "  largest live set, 128.0 kB: tanh 64.0 kB, linear 64.0 kB\n"
        "  fix: smaller dims, a shorter cache, or a higher memory limit")
    with pytest.raises(PlanError, match=r"\n  largest live set, 0 B: nothing transient\n"):
        plan_of(tg.graph(tg.constant(1.0))).check_capacity({}, capacity=10)


def test_a_variant_serves_the_sizes_of_its_cell() -> None:
    plan = plan_of(step())
    small, large = (replace(plan.variants[0], cell=Cell.of({"n": ends})) for ends in ((1, 4), (5, 1000)))
    tabled = replace(plan, variants=(small, large))
    assert tabled.variant({"n": 4}) is small and tabled.variant({"n": 5}) is large and plan.variant({"n": 5}) is plan.variants[0]


@pytest.mark.parametrize(("sizes", "says"), [
    (3, r"^sizes is 3\n  fix: sizes by name, \{'n': …\}$"), ({"m": 3}, r"^the graph has no dim named m; it has n\n  fix: "),
    ({"n": 1001}, r"^sizes n = 1001 is outside of its range, 1 to 1000\n  fix: "),
    ({"n": "x"}, r"^sizes n is given as 'x'\n  fix: ")])
def test_no_variant_serves_what_are_no_sizes_of_the_graph(sizes: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan_of(step()).variant(sizes)


def test_a_dim_whose_variant_is_not_asked_for_is_at_its_largest() -> None:
    plan = plan_of(step(), largest={"n": 4})
    small, large = (replace(plan.variants[0], cell=Cell.of({"n": ends})) for ends in ((1, 4), (5, 1000)))
    assert replace(plan, variants=(small, large)).variant({}) is small


def test_bytes_for_people() -> None:
    assert [human(n) for n in (0, 999, 1000, 1_234_567, 5e9, 5e13)] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 GB", "50000.0 GB"]


def test_a_typical_size_lies_between_the_bounds() -> None:
    assert [midpoint(tg.dim("n", lo, hi)) for lo, hi in ((0, 0), (1, 1), (1, 100), (0, 4), (500, 1000), (1, 10**6))] == [
        0, 1, 10, 2, 500, 256]


def test_a_plan_is_printed_on_one_screen():
    plan = plan_of(step())
    (v,) = plan.variants
    lines = str(plan).splitlines()
    assert lines[0] == repr(plan) and repr(plan).startswith(f"<plan of graph {plan.graph.structural_key[:12]}: 1 variant of ")
    assert any(line.startswith(f"path {v.path.id}") for line in lines) and "tg.explain(plan)" in lines[-1]
    long = "x" * 300
    steps = tuple(Evidence(long, str(i), f"numpy.kernel_{i}", 18, 1e-3 * i, i % 2 == 0, None, "", ()) for i in range(50))
    many = replace(v, evidence=steps)
    crowded = replace(plan, notes=(long,) * 9, prepared=long, precision=long,
                      variants=tuple(replace(many, cell=Cell.of({"n": (i, i)})) for i in range(30)))
    text = str(crowded)
    assert len(text.splitlines()) <= SCREEN_LINES and max(map(len, text.splitlines())) <= SCREEN_WIDTH
    assert "… 22 more variants" in text and "ms in" not in text and "in 36 more" in text
    shown = [line for line in text.splitlines() if "numpy.kernel_" in line]
    assert "numpy.kernel_49" in shown[0] and "estimate" in shown[0] and "measured" in shown[1]     # the most expensive first
