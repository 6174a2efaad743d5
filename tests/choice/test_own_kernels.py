"""A user's kernels for graphs, in numpy, C and torch, said in atomic ops: found in models that do not name them, judged, chosen."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from benchmarks.own_kernels import GRAPHS, registered, two_layers
from benchmarks.own_kernels_in_models import MODELS
from tensor_graphs.choice.path_listing import list_paths, signatures_of
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.registry import by_op, load_backend, matching
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.node import walk
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites.passes.apply_precision import written_for_kernels
from tests.choice.conftest import add_row

TOOLS = ("numpy", "c", "torch")


def test_both_graphs_are_found_in_a_decode_step_and_in_two_layers() -> None:
    with registered(("numpy",)) as kernels:
        for make, _, least in MODELS.values():
            prepared = prepare(make(), recipes=False)                # with recipes some are in a part that is said otherwise
            worded = expand_all(prepared.graph.roots, lambda n: not isinstance(n.op, PartOp) or n.op.somebodys, written_for_kernels)
            parts = [n for n in walk(worded) if isinstance(n.op, PartOp)]
            for kernel in kernels:
                places = sum(kernel.computes(Spec.of(n)) for n in parts)
                assert places >= least and f"parts: {places} " in prepared.note.replace(", ", " parts: "), prepared.note


def test_each_of_them_is_judged_in_its_place_and_timed(database: Database) -> None:
    with registered() as kernels:
        report = tg.profile(two_layers(), kernels=[k.name for k in kernels], database=database, per_kernel=0.005, budget=120.0,
                            backends=TOOLS)
        assert {(v.kernel, v.status) for v in report.verdicts} == {(k.name, "PASSED") for k in kernels} and len(kernels) == 12


@pytest.mark.parametrize("own", [30.0, 500.0])
@pytest.mark.parametrize("tool", TOOLS)
def test_the_faster_of_two_is_chosen_where_its_row_is_faster_than_the_words(database: Database, tool: str, own: float) -> None:
    """An op takes 40 µs, and each graph is at least two: a kernel of 30 µs is faster, one of 500 is not, and a slow one never."""
    graph, numpys = two_layers(), list(load_backend("numpy"))
    with registered((tool,)) as kernels:
        table = by_op([*numpys, *kernels])
        for s in signatures_of(prepare(graph).graph):
            for kernel in matching(s.spec, table):
                us = 40.0 if kernel in numpys else 8 * own if ".slow_" in kernel.name else own
                add_row(database, kernel, s)
                add_row(database, kernel, s, {}, us=us)
        backends = tuple(dict.fromkeys(("numpy", tool)))
        plan = tg.compile(graph, database=database, backends=backends)
        chosen = {name: plan.variants[0].path.calls[key] for key, name in plan.variants[0].path.choices.items()
                  if "_norm" in name and name.startswith((f"{tool}.own", f"{tool}.slow"))}
        wanted = {f"{tool}.own_{name}": 2 for name in GRAPHS} if own < 40 else {}
        assert chosen == wanted
        assert all(name in tg.explain(plan) for name in wanted)
        first = next(list_paths(graph, database=database, backends=backends))
        assert all(f"{name:20s} × 2" in line for name in wanted for line in [str(first)]), str(first)
