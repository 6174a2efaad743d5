"""Plans whose error is measured as a whole: what is chosen for an accuracy, what is stored, and what is refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice.compile import answer
from tensor_graphs.choice.measured_accuracy import measured_accuracy, weights_key
from tensor_graphs.choice.request import Request
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.views.explain import explain

pytestmark = pytest.mark.processes
N = tg.dim("n", 1, 64)


def deep(dtype: tg.DType = tg.bf16) -> tg.Graph:
    x = tg.input("x", (N, 32), dtype)
    for i in range(3):
        x = x + tg.silu(tg.linear(tg.rms_norm(x), tg.parameter(f"w{i}", (32, 32), dtype)))
    return tg.graph({"y": x})


def steep() -> tg.Graph:
    return tg.graph({"y": tg.sin(tg.linear(tg.input("x", (N, 32), tg.bf16), tg.parameter("w", (16, 32), tg.bf16)))})


def compiled(graph: tg.Graph, database: Database, tolerance: Any, **options: Any) -> tg.Plan:
    at = {"n": 16} if "n" in graph.dims else None
    return tg.compile(graph, tolerance=tolerance, database=database, backends=("numpy",), at=at, **options)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which kernels and recipes of `deep` were compared, in all forms that are tried, and no plan was measured."""
    file = tmp_path_factory.mktemp("judged") / "bench.db"
    with open_database(file) as database:
        compiled(deep(), database, 1e-5)
        compiled(deep(), database, "norm:4e-3")
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("DELETE FROM benchmark_traces WHERE implementation_id IN "
                    "(SELECT id FROM implementations WHERE name LIKE 'plan %')")
        raw.commit()
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


@pytest.fixture
def database(judged: Path, tmp_path: Path) -> Iterator[Database]:
    with open_database(shutil.copy(judged, tmp_path / "bench.db")) as copied:
        assert not stored(copied)
        yield copied


def form(plan: tg.Plan) -> str:
    return plan.precision.partition(",")[0]


def conditions(database: Database) -> list[dict[str, Any]]:
    with database.reading() as connection:
        rows = connection.execute(sa.text("SELECT t.conditions FROM benchmark_traces t JOIN implementations i "
                                          "ON i.id = t.implementation_id WHERE i.name LIKE 'plan %'")).scalars().all()
    return [json.loads(row) for row in rows]


def stored(database: Database) -> int:
    return len(conditions(database))


@pytest.mark.parametrize(("tolerance", "expected"), [
    (0.2, "as written"), (1e-5, "f32"), ("norm:3e-2", "as written"), ("norm:4e-3", "between f32 · state f32 · product bf16"),
    ("cosine:y:0.999", "as written")])
def test_the_least_wide_form_within_the_bound_is_chosen(database: Database, tolerance: Any, expected: str) -> None:
    plan = compiled(deep(), database, tolerance)
    assert form(plan) == expected or ("product" in expected and form(plan) == "f32")
    assert "2 draws, drawn inputs, drawn weights" in plan.measured and f"accuracy: {plan.measured}" in explain(plan)


def test_a_bound_on_the_error_holds_for_further_draws(database: Database) -> None:
    graph = deep()
    for tolerance in (0.1, 2e-2):
        plan = compiled(graph, database, tolerance)
        rng = np.random.default_rng(7)
        weights = {n: (rng.standard_normal(p.shape) / 6).astype(p.dtype.numpy) for n, p in graph.parameters.items()}
        model = tg.bind(plan, weights)
        for _ in range(10):
            given = {"x": rng.standard_normal((16, 32)).astype(tg.bf16.numpy)}
            exact = tg.interpret(graph, given, weights).outputs["y"]
            error = np.abs(model.run(given)["y"].astype(np.float64) - exact) - 2.0**-8 * np.abs(exact)
            assert (error / np.maximum(np.abs(exact), np.sqrt(np.mean(exact**2, -1, keepdims=True)))).max() <= tolerance


def test_draws_are_rows_that_are_used_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_PLANS", "off")
    first = compiled(deep(), database, 0.2)
    rows = stored(database)
    again = compiled(deep(), database, 0.2)
    assert rows == stored(database) >= 1 and first.measured == again.measured


def test_other_weights_are_measured_where_they_are_bound(database: Database) -> None:
    plan = compiled(steep(), database, 0.1)
    rng = np.random.default_rng(0)
    mild, wild = ({"w": (rng.standard_normal((16, 32)) * size).astype(tg.bf16.numpy)} for size in (0.2, 1e4))
    tg.bind(plan, mild)
    rows = stored(database)
    tg.bind(plan, mild)                                             # measured once
    assert stored(database) == rows
    with pytest.raises(tg.AccuracyError, match=r"on these weights may be larger than asked: max error 0.1 on y: bound .*\n  on "
                                               r"random weights, in the form as written, .*\n  fix: tg.compile"):
        tg.bind(plan, wild)
    assert tg.bind(plan, wild, check=False).run({"x": np.ones((2, 32), tg.bf16.numpy)})
    measured = compiled(steep(), database, 0.1, weights=wild)
    assert form(measured) != "as written" and "given weights" in measured.measured
    tg.bind(measured, wild)


def test_weights_have_a_key_of_their_content(database: Database) -> None:
    graph = tg.graph(tg.parameter("a", (700, 700)) * tg.parameter("b", (3,))[0])
    weights = {"a": np.zeros((700, 700), np.float32), "b": np.ones(3, np.float32)}
    key = weights_key(weights, graph)
    assert key == weights_key(dict(reversed(weights.items())), graph) and len(key) == 64
    weights["b"][2] = 2
    other = weights_key(weights, graph)
    weights["a"][:] = 1
    assert len({key, other, weights_key(weights, graph)}) == 3


def texts(size: float, count: int = 3) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(int(size * 100))
    return [{"x": (size * rng.standard_normal((16, 32))).astype(tg.bf16.numpy)} for _ in range(count)]


def weights_of(graph: tg.Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {n: (rng.standard_normal(p.shape) / 6).astype(p.dtype.numpy) for n, p in graph.parameters.items()}


def test_the_form_is_chosen_for_the_inputs_that_are_given(database: Database) -> None:
    small, large = (compiled(steep(), database, 0.2, inputs=texts(size)) for size in (0.01, 300.0))
    assert form(small) == "as written" and form(large) != "as written"          # the sine of a large number is steep
    assert "(3 draws, given inputs, drawn weights)" in small.measured
    both = compiled(steep(), database, 0.2, inputs=texts(0.01), weights=weights_of(steep()))
    assert "given inputs, given weights" in both.measured


def test_draws_of_other_inputs_are_not_pooled(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_PLANS", "off")
    counts = []
    for inputs in (None, texts(1.0), texts(1.0), lambda seed: texts(1.0)[seed], lambda seed: texts(1.0)[seed], texts(2.0), None):
        compiled(deep(), database, 0.2, inputs=inputs)
        counts.append(stored(database))
    drawn, first, same, function, again, other, last = counts
    assert drawn < first == same < function == again < other == last            # three draws of a list, two of a function
    keys = {row["inputs"] for row in conditions(database)}
    assert len(keys) == 4 and {key.partition(" ")[0] for key in keys} == {"drawn", "given"}


def test_other_weights_are_measured_on_the_inputs_of_the_plan(database: Database) -> None:
    plan = compiled(steep(), database, 0.2, inputs=texts(0.01))
    tg.bind(plan, weights_of(steep()))
    wild = {name: (array * 5000).astype(array.dtype) for name, array in weights_of(steep()).items()}
    with pytest.raises(tg.AccuracyError, match="given inputs, given weights"):
        tg.bind(plan, wild)


def test_statistics_of_a_task_on_random_values_say_so(database: Database) -> None:
    real = {"inputs": texts(1.0), "weights": weights_of(deep())}
    for options in ({}, {"inputs": real["inputs"]}, {"weights": real["weights"]}):
        assert "; cosine says little unless both are real)" in compiled(deep(), database, "cosine:y:0.9", **options).measured
    assert "says little" not in compiled(deep(), database, "cosine:y:0.9", **real).measured
    assert "says little" not in compiled(deep(), database, 0.2).measured


@pytest.mark.parametrize(("inputs", "message"), [
    (5, r"^inputs are 5\n  fix: a list with a mapping"), ([], r"^inputs are \[\]\n  fix: "), ({"x": 1}, "^inputs are .*\n  fix: "),
    (lambda seed: 3, r"^the inputs of draw 0 are 3\n  fix: "), ([{"z": 1}], "^inputs lack 'x'\n  fix: "),
    ([*texts(1.0), {"x": np.ones((16, 32))}], "input 'x' is bf16.*, the array holds float64\n  fix: ")])
def test_inputs_that_do_not_fit_are_refused(database: Database, inputs: Any, message: str) -> None:
    with pytest.raises(tg.TensorGraphsError, match=message):
        compiled(steep(), database, 0.1, inputs=inputs)
    assert stored(database) == 0


def test_without_seconds_the_plan_says_that_nothing_was_measured(database: Database) -> None:
    plan = compiled(tg.graph({"y": tg.softmax(tg.input("x", (N, 32)))}), database, 1e-3, accuracy_seconds=0)
    assert "predicted, not measured: accuracy_seconds=0" in plan.measured and stored(database) == 0
    with pytest.raises(NoPathError, match="predicted, not measured"):
        compiled(deep(), database, "norm:1e-1", accuracy_seconds=0)


def test_what_no_form_reaches_is_refused_with_what_one_does(database: Database) -> None:
    graph = tg.graph({"y": tg.sin(tg.linear(tg.input("x", (N, 32)), tg.parameter("w", (16, 32))))})    # stored in float32
    with pytest.raises(NoPathError, match=r"^no path is as accurate as asked: norm 1e-30\n  f64: norm 1e-30 on y: bound"
                                          r"(.|\n)*\n  fix: norm:y:\S+, which the graph reaches with f64$") as refused:
        compiled(graph, database, "norm:1e-30")
    advised = str(refused.value).rpartition("fix: ")[2].partition(",")[0]
    assert compiled(graph, database, advised).measured


@pytest.mark.parametrize("tolerance, precision", [(1e-5, "f16"), (1e-5, {"weight": "bf16"}), ("cosine:0.9999999999", "bf16")])
def test_words_that_keep_a_graph_from_an_accuracy_are_in_the_fix_and_forms_are_listed_once(
        database: Database, tolerance: Any, precision: Any) -> None:
    x = tg.input("x", (N, 64))
    graph = tg.graph({"y": tg.linear(tg.relu(tg.linear(x, tg.parameter("a.0.w", (64, 64)))), tg.parameter("a.1.w", (64, 64)))})
    with pytest.raises(NoPathError, match="^no path is as accurate as asked: ") as refused:
        compiled(graph, database, tolerance, precision=precision)
    *lines, fix = str(refused.value).splitlines()[1:]
    assert len({line.partition(":")[0] for line in lines}) == len(lines)
    word = "f16" if precision == "f16" else "bf16" if precision == "bf16" else "weight bf16"
    assert fix.startswith(f"  fix: no precision=, which asks for {word}; or ")
    assert compiled(graph, database, tolerance).measured


def test_words_that_are_not_the_obstacle_are_not_in_the_fix(database: Database) -> None:
    graph = tg.graph({"y": tg.sin(tg.linear(tg.input("x", (N, 32)), tg.parameter("w", (16, 32))))})
    with pytest.raises(NoPathError, match=r"fix: norm:y:\S+, which the graph reaches with "):
        compiled(graph, database, "norm:1e-30", precision={"weight": "bf16"})


def test_a_step_that_leaps_on_computed_floats_is_refused_by_its_name(database: Database) -> None:
    graph = tg.graph({"y": tg.floor(tg.softmax(tg.input("x", (N, 32))).sum(axis=1))})
    assert compiled(graph, database, None).variants
    with pytest.raises(NoPathError, match="floor of computed floats may leap, and what decides it is closer than rounding errors"):
        compiled(graph, database, 1e-3)


@pytest.mark.parametrize("tolerance", [{"z": 1e-3}, "kl:z:0.1", "cosine:2", float("inf"), "softmax:1"])
def test_an_accuracy_that_does_not_fit_is_refused_before_anything_runs(database: Database, tolerance: Any) -> None:
    with pytest.raises(tg.TensorGraphsError, match="\n  fix: "):
        compiled(deep(), database, tolerance)
    assert stored(database) == 0


def test_a_pin_keeps_what_was_asked(database: Database, tmp_path: Path) -> None:
    for tolerance, expected in (("norm:3e-2", "norm::0.03"), (0.2, 0.2), (None, None)):
        plan = compiled(deep(), database, tolerance)
        assert plan.tolerance == expected or plan.tolerance == str(expected).replace("::", ":")
        plan.pin.save(tmp_path / "a.pin", overwrite=True)
        again = tg.compile(deep(), database=database, path=str(tmp_path / "a.pin"))
        assert again.accuracy == plan.accuracy and again.graph.structural_key == plan.graph.structural_key


def test_a_given_path_is_measured_too(database: Database, tmp_path: Path) -> None:
    compiled(deep(), database, None).pin.save(tmp_path / "a.pin")
    assert compiled(deep(), database, 0.2, path=str(tmp_path / "a.pin")).measured
    with pytest.raises(NoPathError, match="^no path is as accurate as asked: max error 1e-09"):
        compiled(deep(), database, 1e-9, path=str(tmp_path / "a.pin"))


def test_a_product_at_the_end_is_as_wide_as_what_comes_before(database: Database) -> None:
    x, w = tg.input("x", (8, 64), tg.bf16), tg.parameter("w", (64, 64), tg.bf16)
    plan = compiled(tg.graph({"y": tg.linear(tg.linear(x, w), w)}), database, 1e-6)
    assert form(plan) == "f32"


def test_a_floor_with_a_margin_is_met_by_wider_values(database: Database) -> None:
    x, w = tg.input("x", (8, 64), tg.bf16), tg.parameter("w", (64, 64), tg.bf16)
    assert compiled(tg.graph({"y": tg.floor(tg.linear(x, w) * 4.0)}), database, 1e-3).measured


def test_an_error_that_only_large_sizes_have_is_seen(database: Database) -> None:
    n = tg.dim("n", 1, 512)
    h = tg.linear(tg.input("x", (n, 32), tg.bf16), tg.parameter("w", (32, 32), tg.bf16)).reshape(n, 2, 16)
    plan = tg.compile(tg.graph({"y": tg.attention(h, h, h, scale=0.25, causal=True)}), tolerance=1e-3, at={"n": 1},
                      database=database, backends=("numpy",))
    assert form(plan) != "as written"                               # which has no error at n = 1, and 9e-3 at 100


def test_an_output_of_few_elements_is_drawn_more_often(database: Database) -> None:
    plan = compiled(tg.graph({"y": tg.sum(tg.softmax(tg.input("x", (8, 32), tg.bf16))[0, :4])}), database, 0.3)
    assert "(8 draws," in plan.measured


def test_nothing_below_the_rounding_of_accumulations_is_promised_by_draws_without_an_error(database: Database) -> None:
    x, w = tg.input("x", (8, 64), tg.bf16), tg.parameter("w", (64, 64), tg.bf16)
    assert form(compiled(tg.graph({"y": tg.linear(x, w)}), database, 1e-12)) == "f64"
    assert form(compiled(tg.graph({"y": tg.relu(x)}), database, 0)) == "as written"      # which rounds nothing


@pytest.mark.parametrize(("weights", "message"), [
    ({}, r"^weights lack the parameter 'w', bf16\[16, 32\]\n  fix: an array for each of w$"),
    (5, r"^weights are 5\n  fix: an array"),
    ({"w": np.zeros((16, 32), np.float32)}, "parameter 'w' is bf16.*, the array holds float32\n  fix: ")])
def test_weights_that_do_not_fit_are_refused(database: Database, weights: Any, message: str) -> None:
    with pytest.raises(tg.TensorGraphsError, match=message):
        compiled(steep(), database, 0.1, weights=weights)


def test_an_integer_output_has_no_error_to_limit(database: Database) -> None:
    x = tg.input("x", (N, 32))
    with pytest.raises(tg.TensorGraphsError, match="only floats have an error\n  fix: max:y:0.001"):
        compiled(tg.graph({"y": tg.exp(x), "i": tg.argmax(x)}), database, {"i": 1e-3})


def test_errors_on_file_are_of_the_outputs_with_these_names(database: Database) -> None:
    """The rows of equal graphs are shared, whatever the names of their outputs."""
    x, w = tg.input("x", (8, 64)), tg.parameter("w", (32, 64))
    product = tg.linear(x, w)
    there, exchanged = tg.graph({"p": product, "q": tg.exp(product)}), tg.graph({"q": product, "p": tg.exp(product)})
    assert there.structural_key == exchanged.structural_key
    rng = np.random.default_rng(0)
    weights = {"w": (rng.standard_normal((32, 64)) / 4).astype(np.float32)}
    bounds = {}
    for name, graph in (("there", there), ("exchanged", exchanged)):
        request = Request(graph, {"q": 0.5}, ("numpy",), database, precision="product=bf16", weights=weights)
        accuracy = measured_accuracy(request)
        bounds[name] = accuracy.of(answer(request)).allowed.bound
        assert all(row["graph"] == accuracy.graph_key for row in accuracy.rows())
    assert bounds["there"] != bounds["exchanged"]


def test_a_weight_of_another_shape_is_refused_by_name(database: Database) -> None:
    graph = tg.graph(tg.linear(tg.input("x", (8, 64)), tg.parameter("w", (32, 64))))
    with pytest.raises(ArgumentError, match=r"the weight 'w' has the shape \[3, 64\](.|\n)*fix: an array of that shape"):
        tg.compile(graph, tolerance=1e-3, weights={"w": np.ones((3, 64), np.float32)}, database=database)


def test_weights_that_are_no_numbers_are_within_no_tolerance(database: Database) -> None:
    graph = tg.graph(tg.linear(tg.input("x", (8, 64)), tg.parameter("w", (32, 64))))
    with pytest.raises(NoPathError):
        tg.compile(graph, tolerance=1e-3, weights={"w": np.full((32, 64), np.nan, np.float32)}, backends=("numpy",),
                   database=database)


def test_the_graph_as_written_is_as_accurate_as_written(database: Database) -> None:
    x, w, v = tg.input("x", (8, 256)), tg.parameter("w", (256, 256)), tg.parameter("v", (32, 256))
    graph = tg.graph(tg.linear(tg.gelu(tg.linear(x, w)), v))
    plan = tg.compile(graph, tolerance="as_written:1", backends=("numpy",), database=database)
    assert not plan.words
