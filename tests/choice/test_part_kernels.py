"""Kernels of graphs: candidates wherever the graph's math occurs, judged there, and chosen where the rows say so."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice.path_listing import not_offered, signatures_of
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.kernels.registry import all_kernels, by_op, kernel_named, matching, unregister
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.anonymous_composite import PartOp, part_of
from tensor_graphs.paths.path import EXPAND, Cost, Paths
from tensor_graphs.records.database import Database
from tests.choice.conftest import add_row
from tests.choice.part_kernels import ADD_NORM, CAREFUL, FORGETFUL, FUSED, NAIVE, declare_add_relu, norm_linear, registered

HIDDEN = 16


def two_layers() -> tg.Graph:
    """One norm feeds the two products of a layer."""
    x = tg.input("x", (4, HIDDEN))
    for i in range(2):
        h = tg.rms_norm(x, tg.parameter(f"g{i}", (HIDDEN,)))
        a, b = (tg.linear(h, tg.parameter(f"{name}{i}", (HIDDEN, HIDDEN))) for name in "ab")
        x = a + b
    return tg.graph(x)


def is_somebodys(op: object) -> bool:
    """Whether an op is a part that somebody has a kernel for, and not one that rules can say otherwise."""
    return isinstance(op, PartOp) and not op.recipes


@pytest.fixture
def fused() -> Iterator[None]:
    with registered(FUSED):
        yield


def rows(database: Database, graph: tg.Graph, us: dict[str, float]) -> None:
    """A verdict and a time for numpy's kernel of each op, and for the kernel of the part; a product takes as long as it is wide."""
    for s in signatures_of(prepare(graph).graph):
        part = is_somebodys(s.spec.op)
        kernel = FUSED if part else next((k for k in all_kernels(("numpy",)) if k.computes(s.spec) and k is not FUSED), None)
        if kernel is not None:
            add_row(database, kernel, s)
            wide = int(s.spec.inputs[1].shape[0]) / HIDDEN if s.spec.op.name == "linear" else 1.0
            us_one = us["part" if part else s.spec.op.name if s.spec.op.name in us else "other"]
            add_row(database, kernel, s, {}, us=us_one * wide)


@pytest.mark.parametrize(("part", "chosen"), [(9.0, True), (11.5, False)])
def test_it_is_chosen_exactly_where_it_costs_less_than_what_it_stands_for(database: Database, fused: None, part: float,
                                                                        chosen: bool) -> None:
    """A norm of 2 µs and two products of 9 µs: 20 µs for both, as the norm is computed once; two parts of 11.5 µs take longer,
    though each is no more than a norm and a product."""
    graph = two_layers()
    rows(database, graph, {"part": part, "rms_norm": 2.0, "linear": 9.0, "other": 40.0})
    plan = tg.compile(graph, backends=("numpy",), database=database)
    assert (FUSED.name in plan.variants[0].kernels) == chosen
    sums = 2 * 40.0
    assert plan.variants[0].path.cost == pytest.approx(1e-6 * (sums + (4 * part if chosen else 2 * 2.0 + 4 * 9.0)))
    assert "parts: 4 rms_norm_linear_" in tg.explain(plan)


def test_it_is_judged_in_place_and_the_plan_gives_what_the_graph_says(database: Database, fused: None) -> None:
    graph = two_layers()
    rows(database, graph, {"part": 1.0, "other": 40.0})
    plan = pickle.loads(pickle.dumps(tg.compile(graph, backends=("numpy",), database=database)))
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal([int(n) for n in p.shape]).astype(np.float32) for name, p in graph.parameters.items()}
    x = rng.standard_normal((4, HIDDEN)).astype(np.float32)
    assert plan.variants[0].kernels.keys() >= {FUSED.name}
    with_it = tg.bind(plan, weights).run({"x": x})["out"]
    without = tg.bind(tg.compile(graph, backends=("numpy",), database=database, simplify=False), weights).run({"x": x})["out"]
    np.testing.assert_allclose(with_it, without, rtol=1e-4, atol=1e-5)


def test_a_wrong_one_is_refused_and_a_right_one_passes(database: Database) -> None:
    x, g, w = tg.input("x", (4, HIDDEN)), tg.parameter("g", (HIDDEN,)), tg.parameter("w", (8, HIDDEN))
    graph = tg.graph(tg.linear(tg.rms_norm(x, g), w))
    with registered(FUSED, FORGETFUL):
        report = tg.profile(graph, kernels=(FUSED.name, FORGETFUL.name), backends=("numpy",), database=database, per_kernel=0.01)
        assert {v.kernel: v.status for v in report.verdicts} == {FUSED.name: "PASSED", FORGETFUL.name: "INCORRECT_NUMERICAL"}
        (right,) = (v for v in report.verdicts if v.kernel == FUSED.name)
        assert "its definition" in right.alone and "µs, predicted" in right.alone
        plan = tg.compile(graph, backends=("numpy",), database=database)
        assert FORGETFUL.name not in plan.variants[0].kernels
        (wrong,) = (v for v in report.verdicts if v.kernel == FORGETFUL.name)      # who unpacks them in another order sees it
        order = f"; its operands come as {', '.join(FORGETFUL.composite.order)}"   # type: ignore[union-attr]
        assert wrong.why.endswith(order) and order in tg.explain(plan) and not right.why


def test_two_kernels_of_one_graph_are_two_ways_of_one_part() -> None:
    with registered(FUSED, replace(FORGETFUL, composite=part_of(norm_linear()))):
        graph = prepare(two_layers(), backends=("numpy",)).graph
        (part,) = {s.key: s for s in signatures_of(graph) if is_somebodys(s.spec.op)}.values()
        assert {k.name for k in matching(part.spec, by_op(all_kernels(("numpy",))))} == {FUSED.name, FORGETFUL.name}


def test_what_is_no_op_and_no_graph_is_refused_where_the_kernel_is_declared() -> None:
    for wrong, says in ((lambda outs, ins, attrs: None, "of type function"), (tg.input("x", (3,)), "is a tensor")):
        with pytest.raises(KernelError, match=says):
            tg.kernel(wrong)                                        # type: ignore[arg-type]


def test_a_part_without_a_name_of_its_own_is_told_with_its_ops_and_the_kernel_that_computes_it(database: Database) -> None:
    graph = _atomic(7, 24)
    with registered(replace(FUSED, name="trial.whole", op=(op := part_of(WHOLE)).name, composite=op)):
        said = "(mul \u00d7 2, sum, mul, add, sqrt, div, dot; trial.whole)"
        assert said in repr(tg.list_paths(graph, backends=("numpy",), database=database))
        for s in signatures_of(prepare(graph, backends=("numpy",)).graph):      # its definition is measured, and far faster
            for kernel in (k for k in all_kernels(("numpy",)) if k.computes(s.spec)):
                add_row(database, kernel, s)
                if kernel.name != "trial.whole":
                    add_row(database, kernel, s, {}, us=1e-3)
        text = tg.explain(tg.compile(graph, backends=("numpy",), database=database))
        assert f"parts: 1 part_{op.written.digest[:6]} {said}" in text
        (line,) = (each for each in text.splitlines() if "by its definition: part_" in each)
        assert "next: trial.whole " in line and line.endswith("estimate")


def test_a_part_is_told_with_one_kernel_of_a_backend_that_was_asked_for() -> None:
    op, graph = part_of(WHOLE), _atomic(7, 24)
    here, second = (replace(FUSED, name=name, op=op.name, composite=op) for name in ("trial.whole", "trial.second"))
    with registered(replace(here, name="torch.whole", backend="torch"), here, second):
        said = [prepare(graph, backends=names).parts.splitlines()[0] for names in (("numpy",), ("torch",), ("numpy", "torch"))]
        assert [line.rpartition("; ")[2] for line in said] == ["trial.whole)", "torch.whole)", "torch.whole)"]
        assert prepare(graph, backends=("c",)).parts.splitlines()[0].endswith("dot)")


def test_a_listing_shows_its_next_paths_takes_none_away_and_ends_at_its_limit(database: Database) -> None:
    graph = tg.graph(tg.softmax(tg.linear(tg.input("x", (4, 8)), tg.parameter("w", (8, 8)))))
    every = [p.id for p in tg.list_paths(graph, backends=("numpy",), database=database)]
    listing = tg.list_paths(graph, backends=("numpy",), database=database, limit=2)
    assert all(id in repr(listing) for id in every[:2]) and "tg.list_paths(graph, limit=10)" in repr(listing)
    assert [p.id for p in listing] == every[:2] and repr(listing) == "<paths: none left>"
    for wrong in (0, -1, "3", True):
        with pytest.raises(ArgumentError, match="^limit is .*\n  fix: a whole number of 1 or more$"):
            tg.list_paths(graph, limit=wrong, database=database)                # type: ignore[arg-type]


def test_without_the_kernel_the_graph_is_as_it_was(database: Database) -> None:
    graph = two_layers()
    with registered(FUSED):
        formed = prepare(graph, backends=("numpy",))
        assert any(is_somebodys(s.spec.op) for s in signatures_of(formed.graph))
    assert not any(is_somebodys(s.spec.op) for s in signatures_of(prepare(graph, backends=("numpy",)).graph))


def test_paths_of_a_graph_with_parts_are_each_listed_once_with_the_price_of_what_they_run(fused: None) -> None:
    graph = prepare(two_layers(), backends=("numpy",)).graph
    table = by_op([FUSED, *(kernel_named(f"numpy.{name}") for name in ("linear", "rms_norm", "add"))])

    def cost(kernel: object, s: Signature) -> Cost:
        return Cost({"linear": 9.0, "rms_norm": 2.0}.get(s.spec.op.name, 1.0 if s.spec.op.kind != "composite" else 12.0))

    paths = Paths(graph, table, cost, expand=True)
    found = [p for p in paths if all(name != EXPAND or key in {s.key for s in paths.parts} for key, name in p.choices.items())]
    assert len({p.id for p in found}) == len(found) == 2            # both layers ask one question
    assert [(p.small, p.cost) for p in found] == sorted((p.small, p.cost) for p in found)
    by_definition = next(p for p in found if EXPAND in p.choices.values())
    assert by_definition.calls[next(s.key for s in paths.known() if s.spec.op.name == "rms_norm")] == 2


def test_the_kernel_of_the_page_is_found_in_a_model_that_does_not_name_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")
    block = page.partition("## A kernel for a graph")[2].partition("```python\n")[2].partition("```")[0]
    space: dict[str, object] = {"__name__": "page"}
    exec(block, space)
    try:
        assert "parts: 4 rms_norm_linear_" in prepare(two_layers()).note
    finally:
        unregister("numpy.norm_linear")


def test_a_c_kernel_may_be_declared_for_a_graph(database: Database) -> None:
    declare_add_relu()
    try:
        p, q = tg.input("p", (64,)), tg.input("q", (64,))
        (verdict,) = tg.profile(tg.graph(tg.relu(q + p) * p), kernels="c.add_relu", database=database, per_kernel=0.01).verdicts
        assert verdict.status == "PASSED" and verdict.error is not None and verdict.error < 1e-7
    finally:
        unregister("c.add_relu")


def _model(dtype: tg.DType = tg.f32, eps: float = 1e-6, norm: bool = True) -> tg.Graph:
    x, g, w = tg.input("x", (4, HIDDEN), dtype), tg.parameter("g", (HIDDEN,), dtype), tg.parameter("w", (HIDDEN, HIDDEN), dtype)
    return tg.graph(tg.linear(tg.rms_norm(x, g, eps=eps) if norm else tg.layer_norm(x, g), w))


N, K = tg.dim("n", 1, 4096), tg.dim("k", 1, 65536)
WHOLE = tg.graph(tg.linear(tg.rms_norm(tg.input("x", (N, K)), tg.input("g", (K,)), eps=1e-6), tg.input("w", (K, K))))


@pytest.mark.parametrize(("graph", "says"), [
    (_model(tg.f16), "linear is f32 in the part, and f16 in the graph"),
    (_model(eps=1e-5), "eps of rms_norm is 1e-06 in the part, and 1e-05 in the graph"),
    (_model(norm=False), "where the part has rms_norm, the graph has layer_norm"),
    (tg.graph(tg.softmax(tg.input("x", (4, HIDDEN)))), "the part's last op is linear, and the graph has none; it has softmax"),
    (tg.graph(tg.linear(tg.rms_norm(tg.input("x", (2, 4, 8)), tg.input("g", (8,)), eps=1e-6), tg.input("w", (8, 8)))),
     "operand 0 is f32[n, k] in the part, and f32[2, 4, 8] in the graph: another rank"),
    (tg.graph(tg.linear(tg.rms_norm(tg.input("x", (5000, 8)), tg.input("g", (8,)), eps=1e-6), tg.input("w", (8, 8)))),
     "axis 0 of operand 0 (n) is 1..4096 in the part, and 5000 in the graph"),
    (tg.graph(tg.linear(tg.rms_norm(y := tg.input("x", (8, 8)), tg.input("g", (8,)), eps=1e-6), y)),
     "operands 0 and 2 are one value in the graph"),
])  # fmt: skip
def test_a_part_that_is_found_nowhere_is_told_with_what_differs(graph: tg.Graph, says: str, database: Database) -> None:
    kernel = replace(FUSED, name="trial.whole", op=(op := part_of(WHOLE)).name, composite=op)
    with registered(kernel):
        (note,) = (text for text in not_offered(graph, ("numpy",)) if "trial.whole" in text)
        assert "found nowhere" in note and says in note
        with pytest.raises(KernelError, match="found nowhere") as caught:
            tg.profile(graph, kernels="trial.whole", database=database)
        assert says in str(caught.value) and "\n  fix: " in str(caught.value)
        if not says.startswith(("the part", "linear")):
            assert "linear occurs (test_part_kernels.py:" in note


def _atomic(rows: int = 4, width: int = HIDDEN, eps: float = 1e-6, factor: float = 1.0) -> tg.Graph:
    """What `WHOLE` says, in atomic ops and with its sizes as numbers."""
    x, g, w = tg.input("x", (rows, width)), tg.parameter("g", (width,)), tg.parameter("w", (width, width))
    squares = tg.sum(x * x, axis=-1, keepdims=True) * (factor / width)
    return tg.graph(tg.dot((x * g) / tg.sqrt(squares + eps), tg.permute(w, (1, 0))))


@pytest.mark.parametrize(("graph", "says", "fix"), [
    (_atomic(rows=5000), "); axis 0 of operand 0 (n) is 1..4096 in the part, and 5000 in the graph",
     "dims whose ranges hold the sizes that the graph has"),
    (_atomic(eps=1e-5), ("add, sqrt, div, dot over the input x f32[4, 16], the parameter g f32[16], the parameter w f32[16, 16] "
     "was compared with the part, and is another function: out["), "declare the kernel for the graph that is"),
])
def test_in_other_words_what_was_tried_is_told_and_where_and_what_to_do(graph: tg.Graph, says: str, fix: str) -> None:
    with registered(replace(FUSED, name="trial.whole", op=(op := part_of(WHOLE)).name, composite=op)):
        (note,) = not_offered(graph, ("numpy",))
        assert "occurs (test_part_kernels.py:" in note and says in note and fix in note


@pytest.mark.parametrize("graph", [_atomic(), _atomic(7, 600), _atomic(4095, 1023)], ids=["small", "large", "odd"])
def test_a_part_in_atomic_ops_is_found_at_any_size(graph: tg.Graph) -> None:
    with registered(replace(FUSED, name="trial.whole", op=(op := part_of(WHOLE)).name, composite=op)):
        assert not_offered(graph, ("numpy",)) == []


def test_a_part_that_is_found_is_not_told(fused: None) -> None:
    assert not_offered(two_layers(), ("numpy",)) == []


def test_a_kernel_with_two_outputs_runs_wherever_both_are_needed_and_is_right(database: Database) -> None:
    """Two layers of s = x + linear(x), x = s + linear(relu(rms_norm(s)))."""
    x = tg.input("x", (4, HIDDEN))
    weights: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> tg.Node:
        weights[name] = (rng.standard_normal(shape) / 4).astype(np.float32)
        return tg.parameter(name, shape)

    value = x
    for i in range(2):
        s = value + tg.linear(value, weight(f"a{i}", HIDDEN, HIDDEN))
        value = s + tg.linear(tg.relu(tg.rms_norm(s, weight(f"g{i}", HIDDEN))), weight(f"b{i}", HIDDEN, HIDDEN))
    graph, start = tg.graph(value), rng.standard_normal((4, HIDDEN)).astype(np.float32)
    with registered(ADD_NORM):
        plan = tg.compile(graph, backends=("numpy",), database=database)
        assert ADD_NORM.name in plan.variants[0].kernels and "parts: 2 add_rms_norm_" in tg.explain(plan)
        (out,) = tg.bind(plan, weights).run({"x": start}).values()
    expected = start.astype(np.float64)
    for i in range(2):
        s = expected + expected @ weights[f"a{i}"].T.astype(np.float64)
        normed = s / np.sqrt(np.mean(s * s, axis=-1, keepdims=True) + 1e-6) * weights[f"g{i}"]
        expected = s + np.maximum(normed, 0) @ weights[f"b{i}"].T
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_why_a_kernel_with_two_outputs_is_nowhere_names_the_output() -> None:
    x = tg.input("x", (4, HIDDEN))
    with registered(ADD_NORM), pytest.raises(KernelError, match="was found nowhere in this one: output 1 of 2: .*rms_norm"):
        tg.profile(tg.graph(tg.softmax(x + tg.input("y", (4, HIDDEN)))), kernels=[ADD_NORM.name], database=":memory:",
                   backends=("numpy",), budget=1)


# ---- kernels that assume something of values ----


def test_a_kernel_that_assumes_no_overflow_is_judged_without_it_and_used_where_the_caller_assumes_it(database: Database) -> None:
    graph = tg.graph(tg.softmax(tg.input("x", (8, 32))))
    (s,) = (s for s in signatures_of(graph) if s.spec.op.name == "softmax")
    with registered(NAIVE, CAREFUL):
        report = tg.profile(graph, kernels=[NAIVE.name, CAREFUL.name], database=database, backends=("numpy",), budget=5)
        verdicts = {v.kernel: v.status for v in report.verdicts}
        assert verdicts[NAIVE.name] == "INCORRECT_NUMERICAL" and verdicts[CAREFUL.name] == "PASSED"
        add_row(database, CAREFUL, s, {}, us=0.001)
        without = tg.compile(graph, backends=("numpy",), database=database)
        plan = tg.compile(graph, backends=("numpy",), database=database, assuming="no overflow")
        assert CAREFUL.name not in without.variants[0].kernels and CAREFUL.name in plan.variants[0].kernels
        assert "it assumes no overflow, which is not assumed here" in tg.explain(without)


def test_conditions_that_are_unknown_or_cannot_be_checked_are_refused() -> None:
    unchecked = "assumes .*, which is no condition that can be checked\n  fix: assuming= one or several of 'no overflow'"
    for wrong in ("no cancellation", "no overflw", 3, ["no overflow", None]):
        with pytest.raises(KernelError, match=unchecked):
            tg.kernel("softmax", name="numpy.mine", assuming=wrong)(lambda outs, ins, attrs: None)   # type: ignore[arg-type]
    for wrong in ("no overflw", 3):
        with pytest.raises(ArgumentError, match="assuming .*\n  fix: one or several of 'no overflow'"):
            tg.compile(tg.graph(tg.softmax(tg.input("x", (4,)))), assuming=wrong)                    # type: ignore[arg-type]
