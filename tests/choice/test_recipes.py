"""A recipe of a part is a way like a kernel: priced, chosen, explained, saved and replayed; what it makes of parameters is free."""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice import precision_forms
from tensor_graphs.choice import prepare as prepare_room
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.path_listing import list_paths, signatures_of
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.profile_graph import in_place
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.database_keys import VERIFIER, graph_record, part_environment, part_implementation, timed_workload
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.node import Node, walk
from tensor_graphs.measure.judge import Judge
from tensor_graphs.paths.lower import PlanError
from tensor_graphs.paths.path import RECIPE, Cost, NoPathError, Path, Paths, takes_memory
from tensor_graphs.paths.path_reader import path_from_json
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records import upkeep
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import TraceRecord
from tensor_graphs.rewrites import find_recipes
from tests.choice.conftest import add_row
from tests.rewrites.attention_wordings import WORDINGS

WIDTH, HIDDEN = 16, 48
ON = {"backends": ("numpy",)}


def mlp(x: Node) -> tuple[Node, Node]:
    gate, up = (tg.linear(x, tg.parameter(name, (HIDDEN, WIDTH))) for name in ("gate", "up"))
    return gate, tg.linear(tg.silu(gate) * up, tg.parameter("down", (WIDTH, HIDDEN)))


X = tg.input("x", (4, WIDTH))
GATE, OUT = mlp(X)
GRAPH = tg.graph(OUT)


def rows(database: Database, us: float, graph: tg.Graph = GRAPH) -> None:
    """A product of the narrow weights takes 10 µs, one of the joined ones `us`; what is made of weights takes a second."""
    for s in signatures_of(prepare(graph, backends=NO_LOOPS).graph):
        kernel = next((k for k in all_kernels(("numpy",)) if k.computes(s.spec)), None)
        if kernel is not None:
            joined = s.spec.op.name in ("linear", "dot") and s.spec.outputs[0].shape == (4, 2 * HIDDEN)
            add_row(database, kernel, s)
            add_row(database, kernel, s, {}, us=us if joined else 1e6 if s.spec.op.name == "concat" else 10.0)


NO_LOOPS = ("c", "numpy")
"""with loops from definitions, what is looked at here is inside of larger parts"""


def recipe_of(plan: Plan) -> str:
    return next((name for name in plan.variants[0].path.choices.values() if name.startswith(RECIPE)), "")


def given() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal([int(s) for s in p.shape]).astype(np.float32) for name, p in GRAPH.parameters.items()}
    return weights, rng.standard_normal((4, WIDTH)).astype(np.float32)


def test_recipes_are_found_where_values_are_kept_in_float64_too(database: Database) -> None:
    plan = tg.compile(GRAPH, database=database, precision="f64", **ON)
    parts = [n.op for n in plan.graph.nodes if isinstance(n.op, PartOp)]
    assert {r.name.split()[1] for op in parts for r in op.recipes} >= {"join/two"}
    weights, x = given()
    model = tg.bind(plan, weights)
    wanted = tg.interpret(GRAPH, {"x": x}, weights).outputs["out"]
    np.testing.assert_allclose(model.run({"x": x})["out"], wanted, rtol=1e-6, atol=1e-5)
    gate = model.tap(GATE, {"x": x})[GATE]
    assert gate.dtype == np.float64
    np.testing.assert_allclose(gate, tg.interpret(tg.graph(GATE), {"x": x}, weights).outputs["out"], rtol=1e-6, atol=1e-6)
    book = CostTable(database, ("numpy",), 1e-3, margin=ESTIMATE_MARGIN).load()
    listed = book.paths(plan.graph, by_op(all_kernels(("numpy",))), {}, lambda k, s: book.cost(k, s, {}, True))
    path = next(p for p in listed if any(c.startswith(f"{RECIPE}join/two ") for c in p.choices.values()))
    again = tg.compile(GRAPH, database=database, path=replace(path, form=plan.words), **ON)
    assert again.precision.startswith("f64") and recipe_of(again).startswith(f"{RECIPE}join/two ")
    np.testing.assert_allclose(tg.bind(again, weights).run({"x": x})["out"], wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("said", "approximate"), [
    (lambda x: 0.5 * x * (1.0 + tg.erf(x / math.sqrt(2.0))), "none"),
    (lambda x: x * (0.5 * (1.0 + tg.erf(x * math.sqrt(0.5)))), "none"),
    (lambda x: 0.5 * x * (1.0 + tg.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))), "tanh"),
    (lambda x: 0.5 * x * (1.0 + tg.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * tg.pow(x, 3.0)))), "tanh"),
], ids=["erf", "erf, half inside", "tanh", "tanh of a power"])
@pytest.mark.parametrize("atomic", [False, True], ids=["composites", "atomic ops"])
def test_a_gelu_of_the_textbooks_may_be_computed_as_gelu(said: Callable[[Node], Node], approximate: str, atomic: bool) -> None:
    inner = said(tg.linear(X, tg.parameter("up", (HIDDEN, WIDTH))))
    words = expand_all([inner], lambda node: node.op.name == "linear")[0] if atomic else inner
    made = prepare(tg.graph(tg.linear(words, tg.parameter("down", (WIDTH, HIDDEN)))), backends=NO_LOOPS).graph
    (part,) = {n.op: n for n in made.nodes if isinstance(n.op, PartOp)}.values()
    (recipe,) = part.op.recipes
    assert recipe.name.startswith(f"{RECIPE}algebra/gelu-by-")
    (gelu,) = [n for n in walk(recipe.op.written.outputs) if n.op.name == "gelu"]
    assert gelu.attrs["approximate"] == approximate


@pytest.mark.parametrize(("us", "chosen"), [(19.0, True), (21.0, False)])
def test_it_is_chosen_exactly_where_it_is_measured_to_be_faster(database: Database, us: float, chosen: bool) -> None:
    rows(database, us)
    plan = tg.compile(GRAPH, database=database, **ON)
    assert recipe_of(plan).startswith(f"{RECIPE}join/two ") == chosen
    # gate and up lie in one array, row by row, and are read there
    assert plan.variants[0].path.cost == pytest.approx(1e-6 * (min(us, 20.0) + 10.0 + 10.0), abs=0.5e-6)
    assert plan.unmeasured == () and plan.variants[0].measured_share == 1.0
    assert ("× 1   recipe join/two" in tg.explain(plan)) == chosen
    assert ("= slice(linear(x, concat(gate, up; axis=0))" in tg.explain(plan)) == chosen


def test_the_plan_gives_what_the_graph_says_also_where_it_was_sent(database: Database) -> None:
    rows(database, 1.0)
    weights, x = given()
    plan = tg.compile(GRAPH, database=database, **ON)
    plain = tg.bind(tg.compile(GRAPH, database=database, simplify=False, **ON), weights).run({"x": x})["out"]
    assert recipe_of(plan)
    for one in (plan, pickle.loads(pickle.dumps(plan))):
        assert len(one.variants[0].program.bind_instructions) >= 1
        np.testing.assert_allclose(tg.bind(one, weights).run({"x": x})["out"], plain, rtol=1e-4, atol=1e-4)


def test_a_value_of_the_written_graph_is_found_behind_a_recipe(database: Database) -> None:
    rows(database, 1.0)
    weights, x = given()
    model = tg.bind(tg.compile(GRAPH, database=database, **ON), weights)
    np.testing.assert_allclose(model.tap(GATE, {"x": x})[GATE], x @ weights["gate"].T, rtol=1e-4, atol=1e-4)


def test_what_a_compile_finds_is_read_by_the_next_one(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [*list_paths(GRAPH, database=database, **ON)]
    monkeypatch.setattr(prepare_room, "_formed", WeakKeyDictionary())   # as in another process
    monkeypatch.setattr(find_recipes, "_RewordSearch", None)
    assert [p.id for p in list_paths(GRAPH, database=database, **ON)] == [p.id for p in found]
    assert upkeep.stats(database).rows["recipe_searches"] == 1


def test_paths_with_and_without_it_are_listed_saved_and_run_again(database: Database) -> None:
    rows(database, 19.0)
    found = list(list_paths(GRAPH, database=database, all_kernels_count=False, **ON))
    order = [(p.small, p.cost) for p in found]
    assert order == sorted(order) and len({p.id for p in found}) == len(found)
    kinds = {any(name.startswith(RECIPE) for name in p.choices.values()): p for p in reversed(found)}
    assert kinds.keys() == {True, False} and kinds[True].cost < kinds[False].cost
    for uses, path in kinds.items():
        again = path_from_json(json.loads(json.dumps(path.to_json())))
        plan = tg.compile(GRAPH, database=database, path=again, **ON)
        assert plan.variants[0].path.id == path.id and bool(recipe_of(plan)) == uses


def test_a_saved_recipe_that_is_not_found_any_more_is_refused(database: Database) -> None:
    rows(database, 1.0)
    path = tg.compile(GRAPH, database=database, **ON).variants[0].path
    other = Path(path.graph_key, {k: v[:-4] + "0000" if v.startswith(RECIPE) else v for k, v in path.choices.items()}, 0.0, False,
                 None, identities=path.identities)
    with pytest.raises(NoPathError, match=r"chooses 'recipe join/two [0-9a-f]{8}0000'"):
        tg.compile(GRAPH, database=database, path=other, **ON)


def test_where_memory_is_short_nothing_is_joined(database: Database) -> None:
    x = tg.input("x", (4, 1024))
    gate, up = (tg.linear(x, tg.parameter(name, (512, 1024))) for name in ("gate", "up"))
    graph = tg.graph(gate * up)
    roomy = tg.compile(graph, database=database, **ON)
    plain = tg.compile(graph, database=database, simplify=False, **ON)
    assert recipe_of(roomy) and roomy.memory().most > plain.memory().most + 4_000_000
    short = tg.compile(graph, database=database, memory_limit=plain.memory().most + 1_000_000, **ON)
    assert not recipe_of(short)
    with pytest.raises(PlanError, match="memory"):
        tg.compile(graph, database=database, memory_limit=1_000_000, **ON)


def test_what_has_to_be_copied_before_it_is_read_counts() -> None:
    """c.scatter reads contiguous operands only, numpy's product of two arrays as they lie, and what is handed out is one array."""
    x = tg.input("x", (tg.dim("n", 1, 512), 64))
    gate, up = (tg.linear(x, tg.parameter(name, (64, 64))) for name in ("gate", "up"))
    table = by_op(all_kernels(("c", "numpy")))

    def cheapest(graph: tg.Graph, copy: float, by_width: bool = False) -> Path:
        def cost(k: Kernel, s: Signature) -> Cost:
            seconds = 1e-6 if k.backend == "c" or k.op == "mul" else 1e-5
            return Cost(seconds * (int(s.spec.outputs[0].shape[-1]) / 64 if by_width else 1))

        return Paths(prepare(graph, backends=NO_LOOPS).graph, table, cost, copied=lambda t: copy).cheapest()

    def joined(path: Path) -> bool:
        return any(name.startswith(RECIPE) for name in path.choices.values())

    row, rows = tg.input("row", (1,), tg.i32), tg.input("rows", (1, 64))
    product, added = tg.graph(gate * up), tg.graph({n: tg.scatter(v, row, rows, axis=0) for n, v in (("g", gate), ("u", up))})
    handed = tg.graph({"g": gate, "u": up})
    assert not joined(cheapest(added, 1e-7, by_width=True))         # the joined product is twice as wide, and as dear as both
    for graph, steps, copies in ((product, 2, 0), (added, 3, 2), (handed, 1, 2)):
        path = cheapest(graph, 0.4e-6)
        assert joined(path) and path.cost == pytest.approx(1e-6 * steps + 0.4e-6 * copies, abs=0.03e-6)
        assert joined(cheapest(graph, 0.6e-6)) == (copies == 0)


def test_a_kernel_pays_for_the_copies_that_it_needs() -> None:
    """Of two kernels the dearer one is chosen where it reads what the other has copied first."""
    x, row, rows = tg.input("x", (64, 32)), tg.input("row", (1,), tg.i32), tg.input("rows", (1, 64))
    table = by_op(all_kernels(("c", "numpy")))

    def chosen(graph: tg.Graph, copy: float, in_place: bool = False) -> str:
        found = Paths(graph, table, lambda k, s: Cost(1e-6 if k.backend == "c" else 3e-6, in_place=in_place),
                      copied=lambda t: copy).cheapest()
        return next(name for name in found.choices.values())

    turned = tg.graph(tg.scatter(tg.permute(x, (1, 0)), row, rows, axis=0))
    assert [chosen(turned, copy) for copy in (1e-6, 3e-6)] == ["c.scatter", "numpy.scatter"]
    assert chosen(turned, 3e-6, in_place=True) == "c.scatter"       # what was measured in the graph holds its copies
    assert chosen(tg.graph(tg.scatter(tg.reshape(x, (32, 64)), row, rows, axis=0)), 3e-6) == "c.scatter"


def test_what_variants_make_of_parameters_is_there_whichever_runs(database: Database) -> None:
    """Of two variants one joins the weights; both are bound, so the joined ones take memory at all sizes."""
    n = tg.dim("n", 1, 512)
    x = tg.input("x", (n, 64))
    gate, up = (tg.linear(x, tg.parameter(name, (256, 64))) for name in ("gate", "up"))
    casts = {"g": tg.cast(gate, tg.f64), "u": tg.cast(up, tg.f64)}      # each of a copy, which is dear for many rows
    plan = tg.compile(tg.graph(casts), backends=NO_LOOPS, database=database, at={"n": 1})
    joins = [any(name.startswith(RECIPE) for name in v.path.choices.values()) for v in plan.variants]
    assert joins[0] and not joins[-1], "else this compares nothing"
    assert plan.memory(n=1).bound == plan.memory(n=512).bound >= 2 * 256 * 64 * 4


def numpy_paths(database: Database) -> Paths:
    book = CostTable(database, ("numpy",), 1e-3, margin=ESTIMATE_MARGIN).load()
    graph = prepare(GRAPH, recipes=database, backends=NO_LOOPS).graph
    return book.paths(graph, by_op(all_kernels(("numpy",))), {}, lambda k, s: book.cost(k, s, {}))


def whole(database: Database, words: float, recipe: float) -> None:
    """The part of both products takes so many µs as a whole, in its own words and by its recipe, with the kernels of today."""
    paths = numpy_paths(database)
    (part,) = paths.parts
    for way in paths.alternatives(part):
        steps = paths.steps(part, way, lambda i: paths.best(i)[1])
        assert steps
        target = way.target(part)
        for s in (part, target):
            database.ensure_graph(graph_record(s))
        database.add_trace(TraceRecord(part_implementation(part, target, steps), timed_workload(part, {}), part_environment(steps),
                                       "in_graph", "PASSED", (1e-3 * (recipe if way.recipe else words),), verifier=VERIFIER))


@pytest.mark.parametrize(("us", "words", "recipe", "chosen"), [(19.0, 15.0, 16.0, False), (21.0, 16.0, 15.0, True)])
def test_what_a_part_took_as_a_whole_decides_and_not_the_sum_of_its_steps(database: Database, us: float, words: float,
                                                                          recipe: float, chosen: bool) -> None:
    rows(database, us)
    assert bool(recipe_of(tg.compile(GRAPH, database=database, **ON))) is not chosen
    whole(database, words, recipe)
    plan = tg.compile(GRAPH, database=database, **ON)
    assert bool(recipe_of(plan)) is chosen
    assert plan.variants[0].path.cost == pytest.approx(1e-6 * (15.0 + 10.0 + 10.0), abs=0.2e-6)
    assert " | as a whole 15.0 µs, measured, trace " in tg.explain(plan)


@pytest.mark.parametrize(("recipe", "chosen"), [(14.9, False), (14.8, True)])
def test_what_makes_much_of_parameters_has_to_gain_a_percent(database: Database, recipe: float, chosen: bool) -> None:
    rows(database, 19.0)
    whole(database, 15.0, recipe)
    assert bool(recipe_of(tg.compile(GRAPH, database=database, **ON))) is chosen


def test_what_makes_nothing_of_parameters_is_not_charged() -> None:
    a, b, c = (tg.input(name, shape) for name, shape in (("a", (64, 64)), ("b", (64, 64)), ("c", (64, 1))))
    graph = prepare(tg.graph(tg.dot(tg.dot(a, b), c)), backends=NO_LOOPS).graph
    (part,) = Paths(graph, {}, lambda k, s: None).parts
    assert [takes_memory(part.spec.op, r) for r in part.spec.op.recipes] == [False] * len(part.spec.op.recipes) != []
    (joined,) = Paths(prepare(GRAPH, backends=NO_LOOPS).graph, {}, lambda k, s: None).parts
    assert [takes_memory(joined.spec.op, r) for r in joined.spec.op.recipes] == [True]


def test_a_time_as_a_whole_with_other_kernels_does_not_count(database: Database) -> None:
    rows(database, 19.0)
    whole(database, 15.0, 16.0)
    graph = prepare(GRAPH, recipes=database, backends=NO_LOOPS).graph
    for s in signatures_of(graph):                                  # the narrow products are faster by another kernel now
        kernel = next((k for k in all_kernels(("numpy",)) if k.name == "numpy.dot" and k.computes(s.spec)), None)
        if kernel is not None:
            add_row(database, kernel, s, {}, us=5.0)
    paths = numpy_paths(database)
    (part,) = paths.parts
    own = next(a for a in paths.alternatives(part) if a.name == "expand")
    assert not own.cost.measured and paths.seconds(part, own) == pytest.approx(10e-6)


def test_profile_runs_both_wordings_of_a_part_and_files_each_as_a_whole(database: Database) -> None:
    rows(database, 19.0)
    graph = prepare(GRAPH, recipes=database, backends=NO_LOOPS).graph
    with Judge(database) as judge:
        assert in_place(judge, graph, {}, Request(GRAPH, 1e-3, ("numpy",), database), time.perf_counter() + 60, lambda text: None)
    with database.reading() as connection:
        found = connection.exec_driver_sql(
            "SELECT i.name FROM benchmark_traces t JOIN implementations i ON i.id = t.implementation_id"
            " WHERE i.type = 'GRAPH_RECIPE' AND t.kind = 'in_graph'").scalars().all()
    kinds = {" as its own words by " in name for name in found}
    assert kinds == {True, False}
    assert "as a whole" in tg.explain(tg.compile(GRAPH, database=database, **ON))


SHOWN = ("scores over a number", "both scaled", "exponentials", "divide last", "heads", "a batch of heads",
         "lengths that are bounded", "causal", "causal, by a difference", "causal, added", "causal, bounded lengths",
         "causal batch of heads", "window", "grouped heads", "one head of keys", "groups as an axis")
"""wordings that differ in the graph around the kernel; all are recognised in tests/rewrites/test_attention_masks.py"""


@pytest.mark.parametrize("name", [name if name in SHOWN else pytest.param(name, marks=pytest.mark.long) for name in WORDINGS])
def test_attention_in_any_words_is_one_kernel_that_keeps_no_scores(database: Database, name: str) -> None:
    """Where each kernel takes 10 µs, one is the fastest; how it comes about is said."""
    graph = WORDINGS[name].graph
    at = {dim: d.bounds(size)[1] for dim, size in graph.dims.items()}
    for s in signatures_of(prepare(graph, backends=NO_LOOPS).graph):
        for kernel in all_kernels(("numpy",)):
            if kernel.computes(s.spec):
                add_row(database, kernel, s)
                add_row(database, kernel, s, {n: at[n] for n in s.dim_names}, us=10.0)
    plan = tg.compile(graph, database=database, at=at, **ON)
    ran = [call.op for call in plan.variants[0].program.instructions]
    several = "heads" in name or graph.outputs["out"].rank > 2      # they are put behind each other
    assert ran == ["attention", "store"][:1 + several]
    text = tg.explain(plan)
    assert recipe_of(plan) in text and "  1. " in text


def test_a_users_rule_is_a_way_that_is_listed_explained_and_chosen_where_it_is_faster(database: Database) -> None:
    x, y = tg.input("x", (64, 48)), tg.input("y", (64, 48))
    graph = tg.graph(x * x - y * y)
    before = prepare(graph, recipes=database, backends=("numpy",)).graph
    assert not any(isinstance(n.op, PartOp) for n in before.nodes)         # a graph without a product: no rule is looked for

    tg.rule("sub(mul(x, x), mul(y, y))", dtypes="float", name="mine/squares")(lambda x, y: (x - y) * (x + y))
    for kernel in all_kernels(("numpy",)):
        for s in signatures_of(prepare(graph, recipes=database, backends=("numpy",)).graph):
            if kernel.computes(s.spec):
                add_row(database, kernel, s)
                add_row(database, kernel, s, {}, us=100.0 if s.spec.op.name == "mul" else 10.0)
    listed = [set(path.choices.values()) for path in list_paths(graph, database=database, **ON)]
    assert 0 < sum(any(name.startswith(f"{RECIPE}mine/squares") for name in names) for names in listed) < len(listed)
    plan = tg.compile(graph, database=database, **ON)
    assert recipe_of(plan).startswith(f"{RECIPE}mine/squares")
    said = tg.explain(plan)
    assert "mine/squares →" in said and "sub" in said
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 48)).astype(np.float32) for _ in range(2))
    got = tg.bind(plan, {}).run({"x": a, "y": b})["out"]
    np.testing.assert_allclose(got, np.float64(a)**2 - np.float64(b)**2, rtol=1e-3, atol=1e-6)


def recipes_in(node: Node) -> list[tuple[str, ...]]:
    return [recipe.rules for recipe in node.op.recipes] if isinstance(node.op, PartOp) else []


def test_a_form_is_searched_for_recipes_once_per_database(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_forms, "_applied", WeakKeyDictionary())
    words = {"product": "bf16"}
    first = precision_forms.formed(GRAPH, words, "asked for", ON["backends"], rows=database).graph
    monkeypatch.setattr(precision_forms, "_applied", WeakKeyDictionary())
    monkeypatch.setattr(find_recipes, "_RewordSearch", None)        # a search would fail
    again = precision_forms.formed(GRAPH, words, "asked for", ON["backends"], rows=database).graph
    assert again.structural_key == first.structural_key and list(map(recipes_in, again.nodes)) == list(map(recipes_in, first.nodes))
    assert any(map(recipes_in, first.nodes))
    with pytest.raises(TypeError):
        monkeypatch.setattr(precision_forms, "_applied", WeakKeyDictionary())
        precision_forms.formed(GRAPH, words, "asked for", ON["backends"])
