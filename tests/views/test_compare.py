"""Two plans are compared step by step: the differences add up, and each says why it has not what the other has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.errors import GraphError
from tensor_graphs.paths.path import RECIPE
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records.database import Database
from tensor_graphs.views.compare import compare
from tests.choice.conftest import add_row
from tests.choice.test_recipes import GRAPH, ON, rows
from tests.choice.test_requested_path import SOFTMAX, TABLED, tabled


def the_differences_add_up(a: Plan, b: Plan) -> None:
    for r in filter(lambda r: r.priced_alike, compare(a, b).ranges):
        assert sum(d.seconds for d in r.differences) == pytest.approx(r.b.predicted - r.a.predicted, abs=1e-12)


def test_each_range_says_what_is_taken_instead_and_why(database: Database) -> None:
    tabled(database)
    numpy, both = (compile_graph(TABLED, database=database, backends=b, at={"n": 16}) for b in (("numpy",), ("numpy", "torch")))
    found = compare(numpy, both, ("numpy.pin", "now"), {"n": 16})
    assert [(r.cell, len(r.differences)) for r in found.ranges] == [(both.variants[i].cell, n) for i, n in ((1, 1), (0, 0))]
    text = "\n".join(found.lines())
    assert "A: numpy.pin · as written · backends numpy\nB: now · " in text
    assert f"{both.variants[0].cell}: the same path" in text
    assert "A: numpy.softmax × 1 9.0 µs (measured, error 1.0e-07)   B: torch.softmax × 1 1.0 µs (measured, error 1.0e-07)" in text
    assert "A has not torch.softmax: the backend torch was not allowed" in text
    assert "B has not numpy.softmax: 9.0 µs a call (measured), not 1.0 µs" in text
    assert tg.explain(numpy, against=both, at={"n": 16}).splitlines()[2:] == text.splitlines()[2:]
    the_differences_add_up(numpy, both)


def test_ranges_that_were_priced_at_other_sizes_are_priced_at_the_same_ones(database: Database) -> None:
    tabled(database)
    numpy, both = (compile_graph(TABLED, database=database, backends=b) for b in (("numpy",), ("numpy", "torch")))
    assert not all(r.priced_alike for r in compare(numpy, both).ranges), "else this compares nothing"
    asked = []

    def costed(plan: Plan, at: Mapping[str, int]) -> Plan:
        asked.append(dict(at))
        return compile_graph(TABLED, database=database, path=plan.pin, at=at)

    same, other = compare(numpy, both, costed=costed).ranges
    assert same.priced_alike and other.priced_alike and asked == [{"n": 16}]
    (difference,) = other.differences
    assert difference.seconds == pytest.approx(-8e-6) and dict(other.a.at) == {"n": 16}
    ratio = other.b.predicted / other.a.predicted
    assert ratio < 1 and f"B takes {ratio:.3g} × the time of A at n=16" in str(compare(numpy, both, costed=costed))


def test_a_tolerance_that_refuses_a_kernel_is_the_reason(database: Database) -> None:
    for name, us, error in (("numpy.softmax", 1.0, 1e-5), ("torch.softmax", 4.0, 1e-7)):
        add_row(database, kernel_named(name), signature_of(SOFTMAX), error=error)
        for n in (1, 4, 16, 64):
            add_row(database, kernel_named(name), signature_of(SOFTMAX), {"n": n}, us=us, error=error)
    loose, tight = (compile_graph(TABLED, database=database, backends=("numpy", "torch"), tolerance=t, precision="written")
                    for t in (1e-3, 1e-6))
    (r,) = compare(loose, tight).ranges
    (d,) = r.differences
    assert d.seconds == pytest.approx(3e-6) and d.b is not None
    assert d.b.why_not == "its error 1e-05 is beyond the tolerance 1e-06"
    ratio = (4e-6 + r.b.around) / (1e-6 + r.a.around)
    text = str(compare(loose, tight))
    assert f"B takes {ratio:.3g} × the time of A at n=1" in text and "error 1.0e-05, path" in text


def test_a_recipe_and_the_steps_that_it_brings_are_differences_that_add_up(database: Database) -> None:
    rows(database, 19.0)
    joined = compile_graph(GRAPH, database=database, **ON)
    listed = tg.list_paths(GRAPH, database=database, **ON)
    apart = next(p for p in listed if not any(name.startswith(RECIPE) for name in p.choices.values()))
    plain = compile_graph(GRAPH, database=database, path=apart, **ON)
    (r,) = compare(joined, plain).ranges
    assert r.differences[0].a is not None and r.differences[0].a.way.startswith("recipe join/two") and r.same >= 1
    assert {d.b.way for d in r.differences if d.a is None and d.b is not None} == {"numpy.linear"}
    the_differences_add_up(joined, plain)
    (v,) = plain.variants
    longer = replace(plain, variants=(replace(v, path=replace(v.path, seconds=v.path.seconds + 5e-6)),))     # as copies make it
    assert any(d.what.startswith("beside the steps") for d in compare(joined, longer).ranges[0].differences)
    the_differences_add_up(joined, longer)
    assert "made of parameters" not in str(compare(plain, plain)) and "bound " in str(compare(joined, plain))


def test_prices_at_other_sizes_are_not_compared_and_other_graphs_are_refused(database: Database) -> None:
    tabled(database)
    one, four = (compile_graph(TABLED, database=database, backends=("numpy",), at={"n": n}) for n in (2, 3))
    path = replace(four.variants[0].path, identities={"numpy.softmax": "0"})
    four = replace(four, variants=(replace(four.variants[0], path=path),))
    said = str(compare(one, four))
    assert "A is costed at n=2, B at n=3, so their times do not compare" in said and "its code is another one there" in said
    with pytest.raises(GraphError, match=r"plans of different graphs, [0-9a-f]+ and [0-9a-f]+"):
        compare(one, compile_graph(GRAPH, database=database, **ON))
