"""What a plan chose is run again elsewhere; what cannot be run again says why, and what to do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path as File

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.errors import GraphError
from tensor_graphs.paths.path import RECIPE, NoPathError
from tensor_graphs.paths.pin_file import Pin, PinError
from tensor_graphs.paths.size_cells import Cell
from tensor_graphs.records import CorruptDatabase, upkeep
from tensor_graphs.records.database import Database, open_database
from tests.choice.conftest import add_row
from tests.choice.test_recipes import GRAPH, ON, rows

ROOT = File(__file__).parents[2]
N = tg.dim("n", 1, 64)
SOFTMAX = tg.softmax(tg.input("x", (N, 16)))
TABLED = tg.graph(SOFTMAX)


def tabled(database: Database) -> None:
    """Rows by which the kernel of a softmax is the fastest up to four rows, and torch's from there on."""
    for name in ("numpy.softmax", "torch.softmax"):
        add_row(database, kernel_named(name), signature_of(SOFTMAX))
        for n in (1, 4, 16, 64):
            us = 1.0 if (n <= 4) == name.startswith("numpy") else 9.0
            add_row(database, kernel_named(name), signature_of(SOFTMAX), {"n": n}, us=us)


def test_a_pin_runs_again_with_all_its_ranges(database: Database, tmp_path: File) -> None:
    tabled(database)
    plan = compile_graph(TABLED, database=database, backends=("numpy", "torch"), tolerance=2e-3)
    assert len(plan.variants) == 2 and plan.pin.variants[1].cell.ranges[0][2] == 64
    file = tmp_path / "a.pin"
    plan.pin.save(file)
    for given in (plan.pin, file, str(file)):                       # backends and tolerance are the pin's
        again = compile_graph(TABLED, database=database, path=given)
        assert again.pin == plan.pin and (again.tolerance, again.backends) == (2e-3, ("numpy", "torch"))
    x = np.random.default_rng(0).standard_normal((9, 16)).astype(np.float32)
    np.testing.assert_allclose(tg.bind(again).run({"x": x})["out"].sum(axis=1), np.ones(9), rtol=1e-5)
    with pytest.raises(GraphError, match="path is 3"):
        compile_graph(TABLED, database=database, path=3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="plan.pin"):
        plan.path  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["recipe", "f64", *(pytest.param(form, marks=pytest.mark.long) for form in (
    "without recipes", "as written"))])
def test_a_pin_of_each_form_of_a_graph_runs_in_another_process(database: Database, tmp_path: File, form: str) -> None:
    rows(database, 1.0)
    options = {"f64": {"precision": "f64"}, "as written": {"simplify": False}}.get(form, {})
    limit = compile_graph(GRAPH, database=database, **ON).memory().most - 1 if form == "without recipes" else None
    plan = compile_graph(GRAPH, database=database, memory_limit=limit, **ON, **options)  # type: ignore[arg-type]
    assert any(name.startswith(RECIPE) for name in plan.variants[0].path.choices.values()) == (form in ("recipe", "f64"))
    plan.pin.save(tmp_path / "a.pin")
    code = ("import sys; from tests.choice.test_recipes import GRAPH, tg\n"
            "plan = tg.compile(GRAPH, path=sys.argv[1], database=sys.argv[2])\n"
            "print(plan.variants[0].path.id, plan.graph.structural_key, len(plan.variants[0].program.instructions))")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.pin"), database.location], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [plan.variants[0].path.id, plan.graph.structural_key,
                                   str(len(plan.variants[0].program.instructions))]


def test_a_pin_of_another_graph_says_of_which(database: Database) -> None:
    rows(database, 1.0)
    pin = compile_graph(GRAPH, database=database, **ON).pin
    said = (r"^the pin is of another graph, [0-9a-f]{12}; this is .*: it was made of m --dtype f32\n  fix: the same graph "
            r"\(of a model, the same --dtype and --max-positions")
    with pytest.raises(NoPathError, match=said):
        compile_graph(TABLED, database=database, path=pin.made_of("m --dtype f32"))
    said = r"^the pin is of this graph, but what was .*\n  there: recogn.*\n  here: recogn.*\n  fix: import"
    with pytest.raises(NoPathError, match=said):
        other = replace(pin.variants[0], path=replace(pin.variants[0].path, graph_key="0" * 64))
        compile_graph(GRAPH, database=database, path=replace(pin, variants=(other,)))


def test_a_stale_pin_says_why_and_the_fix(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    tabled(database)
    pin = compile_graph(TABLED, database=database, backends=("numpy", "torch")).pin

    def refused(given: Pin, said: str, **options: object) -> None:
        with pytest.raises(NoPathError, match=said):
            compile_graph(TABLED, database=database, path=given, **options)  # type: ignore[arg-type]

    again = r"or choose again \(tg plan --pin, tg list-paths\)"
    refused(pin, r"is not available here: the backend torch is not among those that may be used\n  fix: --backends numpy,torch, "
            + again, backends=("numpy",))
    refused(pin, r"^the path [0-9a-f]+ chooses 'numpy\.softmax' for softmax f32\[n, 16\], which is not available here: its error "
            r"1e-07 is beyond the tolerance 1e-09\n  fix: a larger tolerance, " + again, tolerance=1e-9)

    def with_path(name: str) -> Pin:
        (v, *_), key = pin.variants, signature_of(SOFTMAX).key
        path = replace(v.path, choices={key: name}, identities={name: "0" * 64})
        return replace(pin, variants=(replace(v, cell=Cell.of({"n": (1, 64)}), path=path),))

    refused(with_path("numpy.softmax"), r"means another numpy\.softmax for softmax f32\[n, 16\]: 0{12}, here it is .*\n  fix: ")
    refused(with_path("numpy.gone"), r"is not available here: no kernel is named 'numpy.gone' here\n  fix: import the module that "
            r"defines it first \(--import\), " + again)
    refused(with_path("numpy.add"), r"is not available here: it does not take this today\n  fix: the version that it was ")
    add_row(database, kernel_named("numpy.softmax"), signature_of(SOFTMAX), status="INCORRECT_NUMERICAL")
    refused(pin, r"is not available here: INCORRECT_NUMERICAL when compared with the oracle.*\n  fix: tg db history numpy\.softmax")
    monkeypatch.setattr(registry, "why_missing", lambda name: "no compiler" if name == "torch" else None)
    for room in ("cost_table", "requested_path", "request"):
        monkeypatch.setattr(f"tensor_graphs.choice.{room}.why_missing", registry.why_missing)
    late = replace(pin, variants=(replace(pin.variants[1], cell=Cell.of({"n": (1, 64)})),))
    refused(late, r"is not available here: backend torch is not available: no compiler\n  fix: make the backend available, "
            + again)


def test_a_pin_verifies_what_has_no_verdict_here(database: Database, tmp_path: File) -> None:
    tabled(database)
    pin = compile_graph(TABLED, database=database, backends=("numpy", "torch")).pin
    with open_database(tmp_path / "elsewhere.db") as empty:
        plan = compile_graph(TABLED, database=empty, path=pin)
        assert upkeep.stats(empty).rows["benchmark_traces"] == 2 and upkeep.stats(empty).rows["profile_queue"] == 0
        assert [v.path.id for v in plan.variants] == [v.path.id for v in pin.variants]


def test_a_pin_runs_where_the_database_cannot_be_used_and_a_choice_does_not(database: Database, tmp_path: File,
                                                                            caplog: pytest.LogCaptureFixture) -> None:
    tabled(database)
    pin = compile_graph(TABLED, database=database, backends=("numpy",)).pin
    broken = tmp_path / "broken.db"
    broken.write_text("no database, and long enough to be one" * 100)
    plan = compile_graph(TABLED, database=broken, path=pin)
    assert [v.path.id for v in plan.variants] == [v.path.id for v in pin.variants]
    assert f"the pinned plan is made without the database: {broken} is not a database" in caplog.text
    with pytest.raises(CorruptDatabase):
        compile_graph(TABLED, database=broken)


def test_a_file_that_is_no_pin_is_refused(tmp_path: File) -> None:
    with pytest.raises(PinError, match="cannot be read"):
        compile_graph(TABLED, path=tmp_path / "none.pin")
