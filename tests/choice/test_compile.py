"""From a graph to a plan: what is verified, what is chosen, what is refused and how the refusal reads."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice import search
from tensor_graphs.choice.choice_evidence import Choice
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN
from tensor_graphs.choice.path_listing import list_paths
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.choice.search import sizes_to_cost
from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.costs.roofline import DeviceRates
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import kernel_named, lacking, register, unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import atomic
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.fit_terminal import duration
from tensor_graphs.paths.lower import PlanError, Program
from tensor_graphs.paths.path import NoPathError, Path, is_way_on
from tensor_graphs.paths.plan import Plan, WholeRun
from tensor_graphs.paths.plan_text import added_up
from tensor_graphs.records import queries, upkeep
from tensor_graphs.records.database import Database
from tensor_graphs.records.errors import CorruptDatabase
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.views.explain import age, explain, explain_data
from tests.choice.conftest import add_row
from tests.choice.trial_kernels import EXACT, ROUGH, USELESS

N = tg.dim("n", 1, 64)
X = tg.input("x", (N, 16), tg.f32)
W = tg.parameter("w", (12, 16), tg.f32)
SOFTMAX = tg.softmax(X)
GRAPH = tg.graph({"y": SOFTMAX})
LAYER = tg.graph({"y": tg.softmax(tg.linear(X, W))})
FIXED = tg.graph({"y": tg.softmax(tg.input("x", (5, 16), tg.f32))})
SIGNATURE = signature_of(SOFTMAX)


@pytest.fixture
def trial() -> Any:
    """Registers kernels for one test."""
    names: list[str] = []

    def add(*kernels: Kernel) -> None:
        for k in kernels:
            register(k)
            names.append(k.name)

    yield add
    for name in names:
        unregister(name)


def kernels_of(plan: Plan) -> set[str]:
    return {ins.kernel for v in plan.variants for ins in v.program.instructions}


def test_compile_verifies_what_it_uses_and_only_that(database: Database) -> None:
    plan = compile_graph(LAYER, database=database, backends=("numpy",))
    here = queries.latest_traces(database, environment_of("numpy"))
    used = {(v.kernels[e.chosen].identity, e.signature) for v in plan.variants for e in v.evidence if not is_way_on(e.chosen)}
    assert {source for source, _ in here} == {identity for identity, _ in used}
    assert len(here) == len(used)
    assert all(row.status == "PASSED" and row.median_ms is None for row in here.values())


def test_the_same_graph_is_never_verified_or_measured_twice(database: Database, starts: list[int]) -> None:
    compile_graph(LAYER, database=database, backends=("numpy",))
    began = len(starts)
    assert began
    rows = upkeep.stats(database).rows["benchmark_traces"]
    compile_graph(LAYER, database=database, backends=("numpy",))
    a, b = tg.input("a", (tg.dim("m", 1, 64), 16), tg.f32), tg.parameter("b", (12, 16), tg.f32)
    renamed = tg.graph({"out": tg.softmax(tg.linear(a, b))})
    compile_graph(renamed, database=database, backends=("numpy",))
    assert len(starts) == began and upkeep.stats(database).rows["benchmark_traces"] == rows


@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 16), (0, 4), (30, 90), (7, 9)])
def test_a_product_with_large_weights_compiles_for_every_range_of_a_dim(store: Database, low: int, high: int) -> None:
    x, w = tg.input("x", (tg.dim("n", low, high), 256), tg.f32), tg.parameter("w", (256, 256), tg.f32)
    plan = compile_graph(tg.graph({"y": tg.linear(x, w)}), database=store, backends=("numpy", "c"))
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((256, 256), dtype=np.float32)
    model = bind(plan, {"w": weights})
    for n in {low, high}:
        rows = rng.standard_normal((n, 256), dtype=np.float32)
        assert measure(model.run({"x": rows})["y"], rows.astype(np.float64) @ weights.T.astype(np.float64), tg.f32).within(1e-5)


def test_kernels_out_of_reach_of_a_tolerance_are_refused_with_the_one_that_would_do(store: Database) -> None:
    wanted: Any = {"database": store, "backends": ("numpy",)}
    with pytest.raises(NoPathError) as caught:
        compile_graph(LAYER, tolerance=1e-9, precision="written", **wanted)
    text = str(caught.value)
    assert text.startswith("no path is within the tolerance 1e-09\n")
    assert "softmax f32[n, 12]: best error" in text and "numpy.softmax: its error" in text
    advised = re.search(r"fix: a tolerance of (\S+) or more", text)
    assert advised is not None and 1e-8 < float(advised[1]) < 1e-5
    assert compile_graph(LAYER, tolerance=10 * float(advised[1]), precision="written", **wanted).variants
    assert compile_graph(LAYER, tolerance=1e-9, **wanted).precision.startswith("f64")


def test_what_rounds_nothing_meets_every_tolerance(store: Database) -> None:
    ends = tg.graph({"kept": tg.relu(tg.input("y", (4, 8))), "largest": tg.max(X)})
    assert compile_graph(ends, database=store, backends=("numpy",), tolerance=0.0).variants


@pytest.mark.usefixtures("every_verdict_is_new")
def test_a_comparison_that_is_not_found_again_ends_the_search(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unasked:
        """A judge of which nothing is wanted."""

        def __init__(self, *args: Any, **options: Any) -> None: ...
        def begin(self) -> None: ...
        def foresee(self, *args: Any) -> None: ...
        def close(self) -> None: ...

    # compares and files nothing, as it looks where the rows of a kernel were changed from outside
    monkeypatch.setattr("tensor_graphs.choice.search.compare_all", lambda *args: {})
    monkeypatch.setattr("tensor_graphs.choice.search.open_judge", lambda database, *more: Unasked(database))
    with pytest.raises(CorruptDatabase, match=r"what was just filed of numpy\.softmax on .* is not found there\n  fix: another"):
        compile_graph(GRAPH, database=database, backends=("numpy",))


def test_a_tolerance_below_what_the_kernels_of_a_graph_reach_is_met_by_wider_values(store: Database) -> None:
    tolerance = 1.5e-7
    plan = compile_graph(LAYER, database=store, backends=("numpy",), tolerance=tolerance)
    assert plan.precision.startswith("f64, for") and "precision: f64, for" in explain(plan)
    assert explain_data(plan)["precision"] == plan.precision
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((7, 16), (12, 16)))
    out = bind(plan, {"w": w}).run({"x": x})
    expected = interpret(LAYER, {"x": x}, {"w": w}).outputs
    for name, node in LAYER.outputs.items():
        assert out[name].dtype == node.dtype.numpy
        assert measure(out[name], expected[name], node.dtype).max_relative_error <= tolerance


def test_words_for_the_precision_are_checked(store: Database) -> None:
    assert compile_graph(GRAPH, database=store, precision="written", tolerance=1e-4).precision.startswith("as written")
    assert compile_graph(GRAPH, database=store, precision="f64").precision == "f64, asked for"
    for wrong, message in {"wide": "precision 'wide' is no dtype\n  fix: one word",
                           "layer=f32": "precision names the site 'layer'\n  fix: a kind",
                           "f32,f64": "cannot be read\n  fix: one word", "a=b=c": "cannot be read\n  fix: one word",
                           "weight=bf16,state=f32,weight =f16": "precision names weight 2 times\n  fix: one of weight=bf16 or",
                           "product:q=bf16": "the graph has no such site\n  fix: it has no site product:"}.items():
        with pytest.raises(ArgumentError, match=message):
            compile_graph(GRAPH, database=store, precision=wrong)
    with pytest.raises(ArgumentError, match="did you mean 'product:w'"):
        compile_graph(LAYER, database=store, precision={"product:W": "bf16"})
    with pytest.raises(ArgumentError, match=r"several words for 'product:w', by patterns of one length: product:\*, product:\?"):
        compile_graph(LAYER, database=store, precision={"product:*": "bf16", "product:?": "f16"})
    assert compile_graph(LAYER, database=store, precision=" f64 ").precision == "f64, asked for"


def test_what_is_asked_for_is_refused_where_it_is_less_accurate_than_asked(store: Database) -> None:
    for word in ("written", "bf16"):
        wanted: Any = {"database": store, "precision": word}
        graph = tg.graph({"y": tg.exp(tg.silu(tg.input("x", (8, 64), tg.bf16)).cast(tg.f32) * 3.0)})
        assert compile_graph(graph, tolerance=0.5, **wanted).measured
        with pytest.raises(NoPathError, match="^no path is as accurate as asked: max error 1e-07\n"):
            compile_graph(graph, tolerance=1e-7, **wanted)


def gated(dtype: tg.DType) -> tg.Graph:
    x, y = (tg.input(name, (8, 64), dtype) for name in "xy")
    return tg.graph({"out": tg.silu(x) * y})


@pytest.mark.parametrize("dtype", [tg.bf16, tg.f16], ids=lambda t: t.name)
def test_values_between_narrow_ops_are_kept_in_f32_where_that_is_wide_enough_and_stay_in_one_kernel(
        store: Database, dtype: tg.DType) -> None:
    graph = gated(dtype)
    for tolerance in (1e-4, 1e-5):                                  # beyond the outputs' last rounding
        plan = compile_graph(graph, database=store, tolerance=tolerance)
        assert plan.precision == "f32, for the accuracy that was asked for", plan.precision
        assert [i.kernel for i in plan.variants[0].program.instructions] == ["gen.loops"]
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((8, 64)).astype(dtype.numpy) for n in "xy"}
    found, expected = bind(plan, {}).run(given)["out"], interpret(graph, given).outputs["out"]
    rounded = expected.astype(dtype.numpy)
    error, best = (measure(each, expected, dtype).max_relative_error for each in (found, rounded))
    assert found.dtype == dtype.numpy and error <= 1.01 * best


def test_a_narrow_output_is_made_in_f64_where_f32_would_cost_more_than_the_tolerance(store: Database) -> None:
    x, y = tg.input("x", (8, 64), tg.bf16), tg.input("y", (8, 64), tg.f32)
    graph = tg.graph({"out": tg.softmax(tg.tanh(x.cast(tg.f32)) * y)})
    plan = compile_graph(graph, database=store, tolerance=1.5e-7)
    assert plan.precision.startswith("f64, for")


def test_a_value_between_ops_is_found_in_the_form_with_f32_between_them(store: Database) -> None:
    x = tg.input("x", (8, 64), tg.bf16)
    inner = tg.silu(x)
    graph = tg.graph({"out": inner * x})
    model = bind(compile_graph(graph, database=store, backends=("numpy", "c"), tolerance=1e-4), {})
    given = {"x": np.linspace(-3, 3, 512, dtype=np.float32).reshape(8, 64).astype(tg.bf16.numpy)}
    found = model.tap(inner, given)[inner]
    assert model.plan.precision.startswith("f32") and found.dtype == np.float32
    np.testing.assert_allclose(found, interpret(tg.graph({"out": inner}), given).outputs["out"], rtol=1e-6)


@pytest.mark.parametrize("word", ["f32", "f64"])
@pytest.mark.parametrize("backends", [("numpy",), ("c", "gen", "numpy")], ids=["op by op", "joined"])
def test_a_saved_path_of_a_form_with_wider_values_is_run_in_it(store: Database, word: Any, backends: tuple[str, ...]) -> None:
    graph = gated(tg.bf16)
    wide = compile_graph(graph, database=store, backends=backends, precision=word)
    again = compile_graph(graph, database=store, backends=backends, path=wide.variants[0].path)
    assert again.graph.structural_key == wide.graph.structural_key and again.precision == f"{word}, as the given path has it"


def gated_twice() -> tg.Graph:
    x, up, down = tg.input("x", (24, 64)), tg.parameter("up", (96, 64), tg.bf16), tg.parameter("down", (64, 96), tg.bf16)
    return tg.graph({"out": tg.rms_norm(tg.linear(tg.silu(tg.linear(x, up)), down) + x)})


@pytest.mark.parametrize("backends", [("numpy",), ("c", "gen", "numpy")], ids=["op by op", "joined"])
def test_products_are_made_of_bf16_values_where_that_is_asked_for(store: Database, backends: tuple[str, ...]) -> None:
    graph, rng = gated_twice(), np.random.default_rng(0)
    inner = next(n for n in graph.nodes if n.op.name == "silu")
    plan = compile_graph(graph, database=store, backends=backends, precision="product=bf16")
    assert plan.tolerance is None and plan.precision == "product bf16, asked for"
    weights = {n: (rng.standard_normal(p.shape) / 8).astype(p.dtype.numpy) for n, p in graph.parameters.items()}
    given = {"x": rng.standard_normal((24, 64)).astype(np.float32)}
    model = bind(plan, weights)
    found, expected = model.run(given)["out"], interpret(graph, given, weights).outputs["out"]
    assert found.dtype == np.float32 and measure(found, expected, tg.f32).max_relative_error < 0.05
    if backends == ("numpy",):                                       # generated kernels may hold operands in f32, and more
        assert measure(found, expected, tg.f32).max_relative_error > 1e-5
        assert model.tap(inner, given)[inner].dtype == np.float32
    again = compile_graph(graph, database=store, backends=backends, path=plan.variants[0].path)
    assert again.graph.structural_key == plan.graph.structural_key
    assert again.precision == "product bf16, as the given path has it"


def test_rounded_operands_are_multiplied_as_narrow_numbers_where_a_kernel_does_that(store: Database) -> None:
    plan = compile_graph(gated_twice(), database=store, backends=("c", "gen", "numpy"), precision="product=bf16")
    recipes = [recipe.rules for node in plan.graph.nodes if isinstance(node.op, PartOp) for recipe in node.op.recipes]
    assert recipes == [("product/linear-of-sixteen-bits",)] * 2
    products = {name.rpartition("_")[0] for name in plan.variants[0].kernels if "linear" in name}
    if any(lacking(kernel_named(f"c.scaled_linear_{mark}")) is None for mark in ("bf16", "amx")):
        assert products == {"c.scaled_linear"}


def test_a_saved_path_of_the_wide_form_is_run_in_it(store: Database) -> None:
    wide = compile_graph(GRAPH, database=store, backends=("numpy",), precision="f64")
    again = compile_graph(GRAPH, database=store, backends=("numpy",), path=wide.variants[0].path)
    assert again.graph == wide.graph and again.precision == "f64, as the given path has it"


def test_what_is_listed_measured_and_compiled_is_one_form_of_the_graph(database: Database) -> None:
    deep = tg.graph(tg.tanh(tg.tanh(tg.tanh(tg.input("x", (64,))))))                 # predicted: 6e-7
    for tolerance, form in ((1e-6, "as written"), (1e-9, "f64, for")):
        listed = next(list_paths(deep, database=database, backends=("numpy",), tolerance=tolerance))
        assert profile_graph(deep, database=database, backends=("numpy",), tolerance=tolerance, budget=30).left == 0
        plan = compile_graph(deep, database=database, backends=("numpy",), tolerance=tolerance)
        assert plan.precision.startswith(form) and listed.graph_key == plan.graph.structural_key
        assert (plan.graph == deep) == (form == "as written")
        assert all(v.measured_share == 1.0 for v in plan.variants)


def test_where_nothing_computes_the_wide_form_the_request_is_refused(database: Database) -> None:
    x = tg.input("x", (64,))
    deep = tg.graph(tg.tanh(tg.tanh(tg.tanh(x))))
    add_row(database, kernel_named("numpy.cast"), signature_of(tg.cast(x, tg.f64)), status="INCORRECT_NUMERICAL")
    with pytest.raises(NoPathError, match="numpy.cast: INCORRECT_NUMERICAL"):
        compile_graph(deep, database=database, backends=("numpy",), tolerance=1e-12)
    assert compile_graph(deep, database=database, backends=("numpy",), tolerance=1e-6).graph == deep


def test_a_graph_of_float64_has_no_wider_form(store: Database) -> None:
    g = tg.graph(tg.tanh(tg.input("x", (64,), tg.f64)))
    plan = compile_graph(g, database=store, backends=("numpy",), tolerance=1e-15)
    assert plan.graph == g and plan.precision.startswith("as written")


def test_different_tolerances_give_different_kernels(database: Database, trial: Any) -> None:
    trial(ROUGH, EXACT)
    for at in sizes_to_cost(GRAPH):
        add_row(database, ROUGH, SIGNATURE, at, us=0.001, error=2e-5)
        add_row(database, EXACT, SIGNATURE, at, us=0.5)
    loose = compile_graph(GRAPH, database=database, backends=("numpy",), tolerance=1e-3)
    tight = compile_graph(GRAPH, database=database, backends=("numpy",), tolerance=1e-5)
    assert kernels_of(loose) == {"trial.rough"} and kernels_of(tight) == {"trial.exact"}
    assert loose.variants[0].evidence[0].error == pytest.approx(2e-5, rel=0.05)
    refused = dict(tight.variants[0].evidence[0].refused)
    assert "beyond the tolerance 1e-05" in refused["trial.rough"]


def test_a_kernel_found_wrong_is_replaced_and_listed(database: Database, trial: Any) -> None:
    trial(USELESS)
    for at in sizes_to_cost(GRAPH):
        add_row(database, USELESS, SIGNATURE, at, us=0.001)
    plan = compile_graph(GRAPH, database=database, backends=("numpy",))
    assert "trial.useless" not in kernels_of(plan)
    assert any(name == "trial.useless" and "INCORRECT_NUMERICAL" in why for name, why in plan.variants[0].evidence[0].refused)


def test_a_measured_row_changes_the_choice(database: Database) -> None:
    assert kernels_of(compile_graph(GRAPH, database=database, backends=("c", "numpy"))) == {"c.softmax"}
    for at in sizes_to_cost(GRAPH):
        add_row(database, kernel_named("c.softmax"), SIGNATURE, at, us=900.0)
        add_row(database, kernel_named("numpy.softmax"), SIGNATURE, at, us=0.01)
    plan = compile_graph(GRAPH, database=database, backends=("c", "numpy"))
    assert kernels_of(plan) == {"numpy.softmax"}
    assert all(v.measured_share == 1.0 for v in plan.variants)


def test_one_plan_holds_other_kernels_for_other_sizes_and_merges_equal_neighbours(database: Database) -> None:
    c, plain = kernel_named("c.softmax"), kernel_named("numpy.softmax")
    points = sizes_to_cost(GRAPH)
    for at in points:
        small = at["n"] <= 4
        add_row(database, c, SIGNATURE, at, us=0.08 if small else 0.01)
        add_row(database, plain, SIGNATURE, at, us=0.01 if small else 0.02)
    plan = compile_graph(GRAPH, database=database, backends=("c", "numpy"))
    # 8 times as much at 4, half as much at 16: alike where three quarters of the way are done, 4 · 4^0.75 = 11.3
    assert len(points) == 4 and [str(v.cell) for v in plan.variants] == ["n = 1..11", "n = 12..64"]
    assert [next(iter(v.path.choices.values())) for v in plan.variants] == ["numpy.softmax", "c.softmax"]
    compiled = tg.bind(plan)
    for n in (1, 11, 12, 64):
        x = np.random.default_rng(n).standard_normal((n, 16)).astype(np.float32)
        y = compiled.run({"x": x})["y"]
        np.testing.assert_allclose(y, interpret(GRAPH, {"x": x}).outputs["y"], rtol=1e-5)
    assert "n = 1..11: path" in explain(plan) and "n = 12..64: path" in explain(plan)


def test_each_choice_without_a_row_is_queued_once(database: Database) -> None:
    plan = compile_graph(LAYER, database=database, backends=("numpy",))
    waiting = upkeep.stats(database).waiting
    estimated = {(e.signature, tuple(v.at.items())) for v in plan.variants for e in v.evidence if not is_way_on(e.chosen)}
    assert waiting == len(estimated) == len(plan.unmeasured) > 0
    compile_graph(LAYER, database=database, backends=("numpy",))
    assert upkeep.stats(database).waiting == waiting


def test_what_is_computed_when_the_graph_is_bound_has_no_price_and_is_not_queued(database: Database) -> None:
    made = tg.linear(tg.input("x", (5, 16)), tg.exp2(tg.parameter("w", (12, 16))))
    plan = compile_graph(tg.graph({"y": made}), database=database, backends=("gen", "numpy"))
    (variant,) = plan.variants
    assert [i.op for i in variant.program.bind_instructions] == ["exp2"]
    assert [i.op for i in variant.program.instructions] == ["linear"]
    (paid,) = [e for e in variant.evidence if e.calls]
    assert variant.predicted - variant.around == pytest.approx(paid.seconds) and "exp2" not in str(plan)
    assert upkeep.stats(database).waiting == len(plan.unmeasured) == 1


def test_a_path_is_replayed_as_it_was_saved(store: Database) -> None:
    for path in islice(list_paths(FIXED, database=store, backends=("numpy",)), 1, 4):
        saved = json.loads(json.dumps(path.to_json()))
        again = Path(saved["graph"], saved["choices"], 0.0, False, None)
        plan = compile_graph(FIXED, database=store, backends=("numpy",), path=again)
        (variant,) = plan.variants
        assert variant.path.id == path.id and variant.path.choices == path.choices
        assert variant.path.cost > 0 and all(e.calls > 0 for e in variant.evidence)
        x = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
        y = tg.bind(plan).run({"x": x})["y"]
        np.testing.assert_allclose(y, interpret(FIXED, {"x": x}).outputs["y"], rtol=1e-5)


def test_a_path_through_a_kernel_that_is_wrong_is_refused(database: Database, trial: Any) -> None:
    trial(USELESS)
    path = Path(FIXED.structural_key, {signature_of(FIXED.outputs["y"]).key: "trial.useless"}, 0.0, False, None)
    with pytest.raises(NoPathError, match="'trial.useless' for softmax"):
        compile_graph(FIXED, database=database, backends=("numpy",), path=path)


def test_a_filled_database_needs_no_worker(store: Database, starts: list[int]) -> None:
    compile_graph(LAYER, database=store, backends=("numpy",))
    starts.clear()
    plan = compile_graph(LAYER, database=store, backends=("numpy",))
    assert starts == [] and kernels_of(plan)


def test_too_little_memory_is_refused_before_anything_runs_and_names_what_is_alive(store: Database) -> None:
    h = tg.linear(tg.linear(X, W), tg.parameter("v", (16, 12), tg.f32))
    g = tg.graph({"y": tg.softmax(h)})
    with pytest.raises(PlanError) as caught:
        compile_graph(g, database=store, backends=("numpy",), memory_limit=5000, largest={"n": 64})
    text = str(caught.value)
    for needed in ("device cpu may use 5.0 kB, the plan needs", "at n=64", "largest live set, ", "linear", "fix: "):
        assert needed in text
    assert compile_graph(g, database=store, backends=("numpy",), memory_limit=100_000, largest={"n": 64}).variants


def test_a_plan_is_held_to_the_largest_sizes_it_will_be_used_at_and_the_advice_is_the_most_that_fits(store: Database) -> None:
    limit = 3000
    with pytest.raises(PlanError, match="device cpu may use 3.0 kB, the plan needs .* at n=64") as caught:
        compile_graph(GRAPH, database=store, backends=("numpy",), memory_limit=limit)       # though it fits at small sizes
    found = re.search(r'fix: largest=\{"n": (\d+)\} .*--largest n=\1\), or a higher memory limit', str(caught.value))
    assert found is not None and "largest live set, " in str(caught.value)
    most = int(found[1])
    plan = compile_graph(GRAPH, database=store, backends=("numpy",), memory_limit=limit, largest={"n": most})
    assert plan.memory(n=most).total <= limit
    with pytest.raises(PlanError):
        compile_graph(GRAPH, database=store, backends=("numpy",), memory_limit=limit, largest={"n": most + 1})
    with pytest.raises(PlanError, match="fix: a higher memory limit: it does not fit at the smallest sizes either"):
        compile_graph(GRAPH, database=store, backends=("numpy",), memory_limit=10)


def test_sizes_that_only_fit_together_are_advised_together(store: Database) -> None:
    n, m = tg.dim("n", 1, 64), tg.dim("m", 1, 64)
    g = tg.graph({"a": tg.softmax(tg.input("x", (n, 16))), "b": tg.softmax(tg.input("y", (m, 16)))})
    with pytest.raises(PlanError, match='"m": ') as caught:
        compile_graph(g, database=store, backends=("numpy",), memory_limit=3000)
    found = re.search(r'largest=\{"m": (\d+), "n": (\d+)\}', str(caught.value))
    assert found is not None
    compile_graph(g, database=store, backends=("numpy",), memory_limit=3000, largest={"m": int(found[1]), "n": int(found[2])})


def test_prices_are_asked_for_at_sizes_that_can_run(store: Database) -> None:
    n, p = tg.dim("n", 1, 64), tg.dim("p", 0, 63)
    cache = tg.state("k", (64, 16))
    k = cache.write(tg.input("x", (n, 16)), at=p)
    g = tg.graph(tg.softmax(atomic.slice(k, ((0, n + p, 1), (0, 16, 1)))), {cache: k})
    asked = sizes_to_cost(g)
    assert all(b["n"] + b["p"] <= 64 for b in asked) and asked[-1]["n"] == 64


def test_a_node_of_the_written_graph_is_found_in_the_plan_that_keeps_float64(store: Database) -> None:
    x = tg.input("x", (3, 4))
    inner = tg.exp(x)
    g = tg.graph(tg.softmax(inner + 1.0))
    plan = compile_graph(g, database=store, backends=("numpy",), precision="f64")
    given = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
    found = bind(plan).tap(inner, {"x": given})[inner]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.exp(given.astype(np.float64)), rtol=1e-12)


def test_a_path_is_priced_at_the_size_that_was_asked_for(store: Database) -> None:
    for n in (1, 16, 40):
        plan = compile_graph(GRAPH, database=store, backends=("numpy",), at={"n": n})
        assert plan.variant({"n": n}).at["n"] == n


def test_by_default_nothing_is_widened_and_the_rounding_of_outputs_is_in_no_tolerance(store: Database) -> None:
    g = tg.graph(tg.exp(tg.input("x", (3, 5), tg.bf16)))
    plan = compile_graph(g, database=store, backends=("numpy",))
    assert plan.tolerance is None and plan.graph == g and plan.precision.startswith("as written")
    assert compile_graph(g, database=store, backends=("numpy",), tolerance=1e-6).tolerance == 1e-6


def test_sizes_of_unknown_dims_are_refused(store: Database) -> None:
    for given in ({"at": {"m": 3}}, {"largest": {"m": 3}}):
        with pytest.raises(PlanError, match="no dim named m; it has n"):
            compile_graph(GRAPH, database=store, backends=("numpy",), **given)  # type: ignore[arg-type]


def test_sizes_outside_of_a_dims_range_are_refused_wherever_they_are_given(store: Database) -> None:
    """None of them reaches a measurement: the sizes are looked at before a worker is started."""
    plan = compile_graph(GRAPH, database=store, backends=("numpy",), at={"n": np.int64(64)})
    said = r"^at n = 65 is outside of its range, 1 to 64\n  fix: a size in that range, or a wider range where the dim is made$"
    at = {"n": 65}
    for wrong in (lambda: compile_graph(GRAPH, database=store, at=at), lambda: list_paths(GRAPH, database=store, at=at),
                  lambda: profile_graph(GRAPH, database=store, at=at), lambda: explain(plan, at=at),
                  lambda: profile_graph(GRAPH, database=store, at=at, kernels=("numpy.softmax",))):
        with pytest.raises(PlanError, match=said):
            wrong()
    with pytest.raises(PlanError, match=r"^largest n = 0 is outside of its range, 1 to 64"):
        compile_graph(GRAPH, database=store, largest={"n": 0})
    with pytest.raises(PlanError, match=r"^at n is given as '16'\n  fix: a whole number from 1 to 64$"):
        compile_graph(GRAPH, database=store, at={"n": "16"})  # type: ignore[dict-item]
    with pytest.raises(PlanError, match=r"^at is 16\n  fix: sizes by name, \{'n': …\}$"):
        compile_graph(GRAPH, database=store, at=16)  # type: ignore[arg-type]


def test_explain_names_rows_their_age_what_else_there_was_and_what_was_refused(database: Database, trial: Any) -> None:
    trial(USELESS)
    signature = signature_of(FIXED.outputs["y"])
    add_row(database, USELESS, signature, status="INCORRECT_NUMERICAL", log="output y0: error 3 > 0.0001\nmore of the log")
    verdict = add_row(database, kernel_named("numpy.softmax"), signature, error=2e-7)
    when = datetime.now(UTC) - timedelta(days=3, hours=1)
    row = add_row(database, kernel_named("numpy.softmax"), signature, {}, us=2.5, when=when)
    plan = compile_graph(FIXED, database=database, backends=("numpy",))
    (choice,) = plan.variants[0].evidence
    assert isinstance(choice, Choice) and choice.trace == row and choice.verdict_trace == verdict
    data = json.loads(json.dumps(explain_data(plan)))
    (found,) = data["variants"][0]["choices"]
    assert found["kernel"] == "numpy.softmax" and found["measured"] and found["us_per_call"] == pytest.approx(2.5)
    assert found["trace"] == row and found["verdict_trace"] == verdict and found["error"] == 2e-7
    assert 3 * 86400 < found["age_seconds"] < 4 * 86400 and found["measured_at"].startswith("20")
    assert found["others"] and found["others"][0]["kernel"] == "expand" and not found["others"][0]["measured"]
    why = "INCORRECT_NUMERICAL when compared with the oracle: output y0: error 3 > 0.0001"
    assert found["refused"][0] == {"kernel": "trial.useless", "why": why}
    assert data["memory"]["total"] > 0 and data["variants"][0]["measured_share"] == 1.0
    text = explain(plan)
    for needed in (f"measured, trace {row}, 3 days error 2.0e-07", "next: expand", f"refused: trial.useless: {why}\n",
                   "100% of it from measured rows", "memory: "):
        assert needed in text


def test_explain_says_at_which_sizes_it_priced_and_what_the_memory_is_there(store: Database) -> None:
    plan = compile_graph(GRAPH, database=store, backends=("numpy",), at={"n": 16})
    (dim,) = GRAPH.dims
    beyond = explain(plan, at={dim: 3})
    assert f"not at {dim}=3 (tg.compile(graph, at={{'{dim}': 3}}) costs it there)" in beyond and f"\nmemory at {dim}=3: " in beyond
    assert "costs it there" not in explain(plan, at={dim: 16}) and f"\nmemory at {dim}=8: " in explain(plan, {dim: 8}, at={dim: 3})
    assert f"\nmemory at {dim}={plan.largest[dim]}: " in explain(plan)


def test_explain_says_where_it_guesses(store: Database) -> None:
    plan = compile_graph(GRAPH, database=store, backends=("numpy",))
    assert "estimate" in explain(plan) and "0% of it from measured rows" in explain(plan)
    choice = explain_data(plan)["variants"][0]["choices"][0]
    assert choice["margin"] == ESTIMATE_MARGIN
    assert not choice["measured"] and choice["trace"] is None and choice["age_seconds"] is None and "estimate" in choice["why"]


def test_the_times_of_steps_add_up_to_what_is_predicted(store: Database) -> None:
    plan = compile_graph(GRAPH, database=store, backends=("numpy",))
    v = plan.variants[0]
    steps = [e.calls * e.seconds for e in v.evidence if e.calls and not is_way_on(e.chosen)]
    assert sum(steps) + v.around == pytest.approx(v.predicted)
    line = (f"  = {duration(sum(steps))}, and {duration(v.around)} around the calls; "
            f"the choice counts estimates × {ESTIMATE_MARGIN:g}, so that measurements win")
    assert line in explain(plan).splitlines() and line in str(plan).splitlines()
    measured = replace(v, evidence=tuple(replace(e, margin=1.0, measured=True) for e in v.evidence))
    assert added_up(measured) == [f"  = {duration(sum(steps))}, and {duration(v.around)} around the calls"]
    assert added_up(replace(v, whole=WholeRun(3e-3, 1, 2))) == [
        f"  = {duration(sum(steps))}; measured as a whole: 3.00 ms; {line.partition('; ')[2]}"]


@pytest.mark.parametrize(("seconds", "text"), [(5, "just now"), (80, "1 minute"), (600, "10 minutes"), (5 * 3600, "5 hours"),
                                              (30 * 3600, "30 hours"), (4 * 86400, "4 days")])
def test_ages_are_for_people(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_the_home_of_a_buffer_is_one_step_away_in_a_chain_of_thousands(store: Database) -> None:
    """In-place steps that share one buffer: each look for its home walked along the whole chain, 25 s for 10,000 sums."""
    x = tg.input("x", (16,), tg.f32)
    y = x
    for _ in range(3000):
        y = y + x
    (variant,) = compile_graph(tg.graph(y), database=store, backends=("numpy",)).variants
    assert len(variant.program.instructions) >= 3000
    assert max(_hops(variant.program, i) for i in range(len(variant.program.buffers))) == 1


def _hops(program: Program, buffer: int) -> int:
    """How many buffers are passed until the one that has memory of its own."""
    hops = 0
    while (alias := program.buffers[buffer].alias) is not None:
        buffer, hops = alias, hops + 1
    return hops


def test_the_largest_of_long_rows_are_found_by_a_kernel_that_sorts(store: Database) -> None:
    """The definition ranks by counting: 256 · 1024 · 1024 elements, which took 9 minutes to compare."""
    values, at = tg.topk(tg.input("x", (256, 1024), tg.f32), k=8)
    plan = compile_graph(tg.graph({"values": values, "at": at}), database=store, backends=("numpy",))
    assert [i.kernel for i in plan.variants[0].program.instructions] == ["numpy.topk"]
    assert plan.memory().arena == 0


def test_a_compiled_plan_is_pickled_with_what_it_rests_on(store: Database) -> None:
    x, w = tg.input("x", (tg.dim("n", 1, 64), 8)), tg.parameter("w", (4, 8))
    g = tg.graph(tg.softmax(tg.linear(x, w)))
    rows, weights = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8), {"w": np.ones((4, 8), np.float32)}
    for precision in ("written", "f64"):
        plan = compile_graph(g, database=store, backends=("numpy",), precision=precision)
        again = pickle.loads(pickle.dumps(plan))
        assert explain_data(again) | {"variants": []} == explain_data(plan) | {"variants": []}
        assert [v.evidence for v in again.variants] == [v.evidence for v in plan.variants] and str(again) == str(plan)
        outs = [bind(p, weights).run({"x": rows})["out"] for p in (plan, again)]
        np.testing.assert_array_equal(*outs)
        assert (again.written is None) == (precision == "written") and again.written == plan.written


def test_what_is_predicted_leaves_out_the_margin_on_guesses_and_counts_the_run(database: Database) -> None:
    guessed_plan = compile_graph(FIXED, database=database, backends=("numpy",))
    estimated = guessed_plan.variants[0]
    (choice,) = (e for e in estimated.evidence if e.calls and not is_way_on(e.chosen))
    assert choice.margin == ESTIMATE_MARGIN > 1
    assert estimated.predicted == pytest.approx(estimated.path.cost / choice.margin + DeviceRates.run_seconds)
    signature = signature_of(FIXED.outputs["y"])
    add_row(database, kernel_named(choice.chosen), signature, {}, us=3.0)
    known = compile_graph(FIXED, database=database, backends=("numpy",)).variants[0]
    assert known.predicted == pytest.approx(3e-6 + DeviceRates.run_seconds)
    assert pickle.loads(pickle.dumps(guessed_plan)).variants[0].predicted == estimated.predicted


def test_the_first_compile_of_a_graph_that_moves_much_calibrates(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(search, "calibrate", lambda *given: asked.append(given))
    compile_graph(FIXED, database=database, backends=("numpy",))
    assert not asked                                       # microseconds: nobody waits half a second for them
    monkeypatch.setattr(search, "MOVES", 1)
    compile_graph(FIXED, database=database, backends=("numpy",))
    assert len(asked) == 1
