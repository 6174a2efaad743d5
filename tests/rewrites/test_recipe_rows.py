"""What was found of a graph is found again in another process, in the rows of the database; whatever lies there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import tensor_graphs as tg
from tensor_graphs.records import queries, upkeep
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.portable import export_file, import_file
from tensor_graphs.rewrites import check_recipe, recipe_rows
from tensor_graphs.rewrites.candidate import Offer
from tensor_graphs.rewrites.check_recipe import compare
from tensor_graphs.rewrites.find_recipes import offers
from tensor_graphs.rewrites.recipe_rows import RecipeRows
from tensor_graphs.rewrites.rules import ALL
from tests.rewrites.test_find_recipes import chain, heads, mlp


def times_a_number() -> tg.Node:
    """Of which a number, made to fit, is part of whoever reads it."""
    x, w = tg.input("x", (tg.dim("n", 1, 64), 32)), tg.parameter("w", (48, 32))
    return tg.tanh(tg.linear(x, w) * 2.0)


GRAPHS = {"mlp": tg.graph(mlp()), "heads": tg.graph(heads()), "chain": tg.graph(chain()),
          "times a number": tg.graph(times_a_number())}
MLP = GRAPHS["mlp"]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "recipes.db") as made:
        yield made


def never() -> list[Offer]:
    raise AssertionError("searched again")


def found_in(database: Database, graph: tg.Graph = MLP) -> list[Offer]:
    return offers(graph, ALL, rows=RecipeRows(database))


def again_in(database: Database, graph: tg.Graph = MLP) -> list[Offer]:
    """What is read; the search would fail."""
    return RecipeRows(database).kept(graph, never)


def said(found: list[Offer]) -> list[object]:
    return [(o.operands, o.outputs, o.inside, [(x.outputs, x.rules, x.derivation, x.numeric_class) for x in o.others])
            for o in found]


def change(database: Database, statement: str) -> None:
    with database.writing() as connection:
        assert connection.execute(sa.text(statement)).rowcount
    database._forget()


@pytest.mark.parametrize("name", GRAPHS)
def test_what_was_found_is_read_and_not_searched_again(database: Database, name: str) -> None:
    found = found_in(database, GRAPHS[name])
    assert found and said(again_in(database, GRAPHS[name])) == said(found) == said(offers(GRAPHS[name], ALL))


def test_what_was_searched_in_vain_is_not_searched_again(database: Database) -> None:
    graph = tg.graph(tg.softmax(tg.input("x", (3, 4))))
    assert RecipeRows(database).kept(graph, list) == [] == again_in(database, graph)


def test_a_recipe_is_a_row_with_its_verdict_beside_the_words_that_stand_there(database: Database) -> None:
    (offer,) = found_in(database)
    (row,) = queries.history(database, _names(database)[0])
    assert (row.implementation_type, row.kind, row.status) == ("GRAPH_RECIPE", "verify", "PASSED")
    assert row.numeric_class == offer.others[0].numeric_class and row.verifier == check_recipe.VERIFIER
    own = queries.trace_conditions(database, row.trace_id)[row.trace_id]["as_written"]
    assert row.max_relative_error is not None and row.tolerance is not None
    assert 0 < own and 0 < row.max_relative_error <= row.tolerance
    assert {s.path: s.content for s in queries.sources(database, row.signature)} == {
        "rules.txt": "\n".join(offer.others[0].rules), "derivation.txt": offer.others[0].derivation}
    assert upkeep.check(database).ok


def _names(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.execute(sa.text("SELECT name FROM implementations WHERE type = 'GRAPH_RECIPE'")).scalars())


def test_a_recipe_that_is_off_is_not_offered_and_a_row_says_by_how_much(database: Database,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_recipe, "WORSE", 1e-9)
    monkeypatch.setattr(check_recipe, "ROUNDOFFS", 1e-9)
    assert found_in(database) == []
    monkeypatch.undo()
    assert again_in(database) == []                                 # the verdict is on file
    failed = queries.failures(database)
    assert failed and all(f.trace.status == "INCORRECT_NUMERICAL" and f.reason.startswith("off by ") for f in failed)
    monkeypatch.setattr(recipe_rows, "VERIFIER", "another comparison")
    assert again_in(database)


def test_a_comparison_says_which_output_is_wrong() -> None:
    x = tg.input("x0", (4, 8))
    right = tg.graph({"a": tg.exp(x), "b": tg.sin(x)})
    assert compare(right, right).passed
    wrong = compare(right, tg.graph({"a": tg.exp(x), "b": tg.cos(x)}))
    assert not wrong.passed and wrong.error is not None and wrong.error > 0.1


@pytest.mark.parametrize("statement", [
    "UPDATE recipe_searches SET found = '{'",
    "UPDATE recipe_searches SET found = '[1]'",
    "UPDATE recipe_searches SET found = REPLACE(found, '\"operands\": [', '\"operands\": [999, ')",
    "UPDATE recipe_searches SET found = REPLACE(found, '\"inside\": [', '\"inside\": [0, ')",
    "UPDATE recipe_searches SET found = REPLACE(found, '\"recipes\": [\"', '\"recipes\": [\"0')",
    "UPDATE canonical_graphs SET json = '{}' WHERE id IN (SELECT recipe_graph_id FROM implementations)",
    ("UPDATE canonical_graphs SET json = (SELECT g.json FROM canonical_graphs g JOIN implementations i"
     " ON g.id = i.canonical_graph_id) WHERE id IN (SELECT recipe_graph_id FROM implementations)"),
    "UPDATE implementation_sources SET content = 'x'",
    "DELETE FROM implementation_sources",
])
def test_damaged_rows_are_left_out_and_the_graph_is_searched_again(database: Database, statement: str) -> None:
    found = said(found_in(database))
    change(database, statement)
    rows = RecipeRows(database)
    with pytest.raises(AssertionError, match="searched again"):
        rows.kept(MLP, never)
    assert said(found_in(database)) == found
    if "found" in statement or "json" in statement:
        assert "rows of recipes are left out" in rows.notes[0]


def test_a_recipe_filed_for_another_part_is_left_out(database: Database) -> None:
    """Of two parts each place names the other's recipe: both are sound rows, and neither means what stands there."""
    for name in ("mlp", "chain"):
        found_in(database, GRAPHS[name])
    with database.reading() as connection:
        one, two = connection.execute(sa.text("SELECT MIN(signature) FROM implementations GROUP BY canonical_graph_id")).scalars()
    change(database, f"UPDATE recipe_searches SET found = REPLACE(REPLACE(REPLACE(found, '{one}', 'x'), '{two}', '{one}'), 'x', "
                     f"'{two}')")
    rows = RecipeRows(database)
    with pytest.raises(AssertionError, match="searched again"):
        rows.kept(MLP, never)
    assert "of another part" in rows.notes[0]


def test_other_code_searches_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    found_in(database)
    monkeypatch.setattr(recipe_rows, "code_digest", lambda: "edited")
    with pytest.raises(AssertionError, match="searched again"):
        again_in(database)


def test_an_imported_recipe_waits_for_trust_or_until_it_is_found_here(database: Database, tmp_path: Path) -> None:
    found = said(found_in(database))
    export_file(database, tmp_path / "rows.jsonl.gz")
    for way in ("trusted", "found here"):
        with open_database(tmp_path / f"{way}.db") as other:
            report = import_file(other, tmp_path / "rows.jsonl.gz")
            assert len(report.untrusted) == len(_names(database)) and report.new["recipe_searches"] == 1
            with pytest.raises(AssertionError, match="searched again"):
                again_in(other)
            if way == "trusted":
                assert [upkeep.trust(other, signature) for signature, _ in report.untrusted] == [2] * len(report.untrusted)
            else:
                assert said(found_in(other)) == found
            assert said(again_in(other)) == found and queries.waiting_for_trust(other) == ()
            assert import_file(other, tmp_path / "rows.jsonl.gz").new["implementations"] == 0


def test_a_database_that_cannot_be_written_keeps_nothing_and_fails_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensor_graphs.records.errors import DatabaseReadOnly

    def refused(*_: object) -> None:
        raise DatabaseReadOnly("no writing here")

    with open_database(tmp_path / "recipes.db") as database:
        monkeypatch.setattr(database, "add_recipes", refused)
        monkeypatch.setattr(database, "ensure_graph", refused)
        assert found_in(database) and sum(upkeep.stats(database).rows.values()) == 0


def test_a_graph_with_a_loop_of_several_outputs_is_compared() -> None:
    x, w, r = tg.input("x", (3, 2, 4)), tg.input("w", (1, 12, 4)), tg.input("r", (1, 12, 3))
    out, _ = tg.lstm(x, w, r)
    compared = compare(tg.graph(out), tg.graph(out + 0.0))
    assert compared.error == compared.own is not None
