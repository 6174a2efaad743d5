"""A user's kernel of narrow floats computes a region of its own, which stays as written where the rest of the graph is wider."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.graph_forms import GraphForm
from tensor_graphs.choice.path_listing import list_paths, signatures_of
from tensor_graphs.choice.precision_forms import FOR_ACCURACY, candidates, formed, own_pieces
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.kernels.kernel import Kernel, KernelError
from tensor_graphs.kernels.registry import load_backend, unregister
from tensor_graphs.meaning.precision import WRITTEN, parse_form
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.records.database import Database
from tests.choice.conftest import add_row
from tests.choice.narrow_kernels import LEANING, NORMED, OUT, WIDE, N, leaning, normed, rows
from tests.choice.part_kernels import registered

BACKENDS = ("numpy",)
ONE_ROUNDING = 2.0**-8
"""of bf16 to the nearest, relative to the smallest number that is rounded to the same power of two"""

ALONE = tg.graph(normed(rows()))
OF_COMPOSITE = tg.graph(leaning(rows(), by=0.5))
AMID = tg.graph(tg.exp(tg.sin(normed(tg.cos(rows())))))
"""rounds what goes into the piece, and amplifies what comes out"""


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    with registered(NORMED, LEANING):
        yield


def form(graph: tg.Graph, backends: tuple[str, ...] = BACKENDS) -> GraphForm:
    """The graph with f32 between its ops, except the pieces that users' kernels compute."""
    prepared = prepare(graph, backends=backends).graph
    pieces = {f"between:{s.spec.op.name}": WRITTEN for s in own_pieces(prepared, backends)}
    return formed(prepared, {**parse_form("f32"), **pieces}, FOR_ACCURACY, backends)


def of(graph: tg.Graph, kernel: Kernel) -> bool:
    """Whether the kernel computes something of a graph."""
    return any(kernel.computes(s.spec) for s in signatures_of(graph))


def given(graph: tg.Graph, n: int = 9) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    leaves = {**graph.inputs, **graph.parameters}
    return {name: draw.standard_normal([n if s == N else int(s) for s in leaf.shape]).astype(ml_dtypes.bfloat16)
            for name, leaf in leaves.items()}


def errors(graph: tg.Graph, plan: tg.Plan) -> float:
    values = given(graph)
    inputs, parameters = ({k: values[k] for k in names} for names in (graph.inputs, graph.parameters))
    exact = tg.interpret(graph, inputs, parameters).outputs["out"]
    found = tg.bind(plan, parameters).run(inputs)["out"].astype(np.float64)
    return float(np.max(np.abs(found - exact) / np.abs(exact)))


@pytest.mark.parametrize(("graph", "kernel"), [(ALONE, NORMED), (OF_COMPOSITE, LEANING), (AMID, NORMED)])
@pytest.mark.parametrize("backends", [("numpy",), ("c", "gen", "numpy")])
def test_a_kernel_of_a_whole_graph_has_its_place(graph: tg.Graph, kernel: Kernel, backends: tuple[str, ...]) -> None:
    made = form(graph, backends=backends)
    assert of(made.graph, kernel) and bool(made.words) == (graph is AMID), "alone it is the graph as written"
    if graph is AMID:
        assert "f32 · " in made.text and made.text.count("written") == 1


@pytest.mark.parametrize(("graph", "kernel"), [(ALONE, NORMED), (OF_COMPOSITE, LEANING)])
def test_it_is_judged_by_default_and_chosen_where_it_is_faster(graph: tg.Graph, kernel: Kernel, database: Database) -> None:
    report = tg.profile(graph, kernels=[kernel.name], database=database, backends=BACKENDS, at={"n": 9}, per_kernel=0.01)
    assert [v.status for v in report.verdicts] == ["PASSED"], report
    for s in signatures_of(prepare(graph, backends=BACKENDS).graph):
        for each in load_backend("numpy"):
            if each.computes(s.spec):
                add_row(database, each, s)
                add_row(database, each, s, {"n": 9}, us=1e6)
    plan = tg.compile(graph, database=database, backends=BACKENDS, at={"n": 9})
    assert [i.kernel for i in plan.variant({"n": 9}).program.instructions] == [kernel.name]
    assert errors(graph, plan) <= ONE_ROUNDING


@pytest.mark.parametrize(("graph", "kernel"), [(ALONE, NORMED), (OF_COMPOSITE, LEANING)])
def test_where_another_way_is_taken_values_are_rounded_once_too(graph: tg.Graph, kernel: Kernel, database: Database) -> None:
    plan = tg.compile(graph, database=database, backends=("gen", "numpy"))
    assert kernel.name not in {i.kernel for i in plan.variants[0].program.instructions}
    assert errors(graph, plan) <= ONE_ROUNDING
    unregister(kernel.name)
    rough = tg.compile(graph, database=database, backends=("numpy",), precision="written")
    assert errors(graph, rough) > ONE_ROUNDING


def test_amid_a_graph_it_has_its_place_as_written_and_in_one_of_two_wider_forms(database: Database) -> None:
    prepared = prepare(AMID, backends=BACKENDS).graph
    assert of(prepared, NORMED)
    tried = [(words.get("between", WRITTEN), of(formed(prepared, words, FOR_ACCURACY, BACKENDS).graph, NORMED))
             for words, _ in candidates(prepared, Request(AMID, 1e-6, BACKENDS, database))]
    assert {(WRITTEN, True), *((word, own) for word in ("f32", "f64") for own in (True, False))} <= set(tried)
    named = {**parse_form("f32"), f"between:{NORMED.op}": WRITTEN}
    assert NORMED.name in {i.kernel for v in tg.compile(AMID, precision=named, backends=BACKENDS, database=database).variants
                           for i in v.program.instructions}


def test_a_composite_that_has_no_place_is_told_so() -> None:
    graph = tg.graph(tg.exp(tg.sin(leaning(tg.cos(rows())))))
    here = r"leaning occurs in the graph as written(.|\n)*fix: precision=.* for profile and compile"
    assert tg.profile(graph, kernels=[LEANING.name], database=":memory:", backends=BACKENDS, budget=0).left
    with pytest.raises(KernelError, match=f"{here}$"):
        tg.profile(graph, kernels=[LEANING.name], database=":memory:", backends=BACKENDS, precision="f32")


def test_a_value_between_two_pieces_is_rounded_by_the_one_that_makes_it() -> None:
    made = form(tg.graph(leaning(normed(rows()))))
    assert of(made.graph, LEANING) and of(made.graph, NORMED) and "cast" not in {n.op.name for n in made.graph.nodes}


def test_wider_values_that_are_asked_for_are_everywhere() -> None:
    prepared = prepare(ALONE, backends=BACKENDS).graph
    for word in ("f32", "f64"):
        assert not of(formed(prepared, parse_form(word), FOR_ACCURACY, BACKENDS).graph, NORMED)


def test_a_path_and_a_pin_are_run_again(database: Database, tmp_path: Path) -> None:
    backends = ("gen", "numpy")
    path = next(p for p in list_paths(ALONE, database=database, backends=backends) if NORMED.name not in p.choices.values())
    plan = tg.compile(ALONE, database=database, backends=backends, path=path)
    assert plan.variants[0].path.choices == path.choices and errors(ALONE, plan) <= ONE_ROUNDING
    plan.pin.save(tmp_path / "pinned.json")
    again = tg.compile(ALONE, database=database, backends=backends, path=str(tmp_path / "pinned.json"))
    assert again.variants[0].path.choices == plan.variants[0].path.choices


def test_a_pin_of_a_kernel_of_ones_own_is_run_in_another_process(database: Database, tmp_path: Path) -> None:
    plan = tg.compile(ALONE, database=database, backends=BACKENDS)
    assert [i.kernel for i in plan.variants[0].program.instructions] == [NORMED.name]
    plan.pin.save(tmp_path / "pinned.json")
    program = """
import sys, tensor_graphs as tg
from tensor_graphs.kernels.registry import register
from tests.choice.narrow_kernels import NORMED, normed, rows
if __name__ == "__main__":
    register(NORMED)
    plan = tg.compile(tg.graph(normed(rows())), database=sys.argv[1], backends=("numpy",), path=sys.argv[2])
    print(plan.precision, [i.kernel for i in plan.variants[0].program.instructions])
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "other.db"), str(tmp_path / "pinned.json")], check=False,
                          text=True, capture_output=True, timeout=60)
    assert done.stdout.startswith("as written") and f"['{NORMED.name}']" in done.stdout, done.stderr


def test_a_pin_of_a_kernel_that_is_gone_names_it(database: Database) -> None:
    plan = tg.compile(OF_COMPOSITE, database=database, backends=BACKENDS)
    unregister(LEANING.name)
    for given in (plan.pin, plan.variants[0].path):
        with pytest.raises(NoPathError, match=r"chooses 'numpy.run_leaning' .*: no kernel is named '\S+' here\n  fix: import"):
            tg.compile(OF_COMPOSITE, database=database, backends=BACKENDS, path=given)


@pytest.mark.parametrize("make", [
    lambda x: leaning(x.T),
    lambda x: leaning(x.reshape((N * WIDE,))),
    lambda x: leaning(x[:, ::2]),
], ids=["transposed", "reshaped", "sliced"])
def test_what_only_moves_before_a_piece_rounds_nothing(make: Callable[[tg.Node], tg.Node]) -> None:
    made = form(tg.graph(make(rows())))
    assert of(made.graph, LEANING) and tg.bf16 not in {n.dtype for n in made.graph.nodes if n.op.name == "cast"}


def test_a_kernel_of_a_backend_that_is_not_named_is_measured_in_its_place(database: Database) -> None:
    report = tg.profile(ALONE, kernels=[NORMED.name], database=database, backends=("c",), at={"n": 9}, per_kernel=0.01)
    assert [v.status for v in report.verdicts] == ["PASSED"], report


def test_values_inside_and_behind_are_tapped(database: Database) -> None:
    x = rows()
    first = tg.cos(x)
    piece = leaning(first, by=0.5)
    graph = tg.graph({"out": piece.reshape((N * WIDE,))})
    plan = tg.compile(graph, database=database, backends=BACKENDS)
    values = given(graph)
    found = tg.bind(plan).tap([first, piece], values)
    exact = np.cos(values["x"].astype(np.float64))
    np.testing.assert_allclose(found[first].astype(np.float64), exact, rtol=ONE_ROUNDING)
    np.testing.assert_allclose(found[piece].astype(np.float64), exact / (1 + np.exp(-0.5 * exact)) + exact, rtol=3 * ONE_ROUNDING)


def test_what_is_said_in_other_words_is_the_same_piece() -> None:
    gain, weight = tg.parameter("gain", (WIDE,), tg.bf16), tg.parameter("weight", (OUT, WIDE), tg.bf16)
    x = rows()
    squares = tg.mean(x * x, axis=-1, keepdims=True)
    graph = tg.graph(tg.tanh(tg.linear((x * gain) * tg.rsqrt(squares + 1e-6), weight) * 2.0))
    assert of(form(graph).graph, NORMED)
