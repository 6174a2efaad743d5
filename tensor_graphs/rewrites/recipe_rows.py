"""recipe_rows: recipes of graphs as rows of the database, so that a graph is searched once and not by each process.

    rows = RecipeRows(database)
    found = rows.kept(graph, lambda: search(graph))

A recipe (a graph that means the same as a part) is an implementation of the type GRAPH_RECIPE: the graph of the part, the
equivalent graph, the numeric class, and as sources the rules and the derivation. Its comparison with the oracle (check_recipe.py)
is a trace, passed or not. A row of `recipe_searches` lists the parts of a searched graph. Rows are checked: the listed piece must
be the part of the recipe, and a recipe's graph must have the recorded key. Imported recipes count only once they are trusted, or
once a search on this machine finds them, too.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from tensor_graphs.costs.database_keys import graph_record, verify_workload
from tensor_graphs.devices.environment import Environment, fingerprint
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import between, over, part_between
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.node import Node, apply
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tensor_graphs.records.errors import DatabaseError
from tensor_graphs.records.queries import RecipeRow
from tensor_graphs.records.rows import ImplementationRecord, NumericClass, SourceRecord, TraceRecord
from tensor_graphs.rewrites.candidate import Offer, Other
from tensor_graphs.rewrites.check_recipe import VERIFIER, Compared, compare
from tensor_graphs.rewrites.outlines import code_digest
from tensor_graphs.rewrites.subgraphs import fed

log = logging.getLogger(__name__)

RULES, DERIVATION = "rules.txt", "derivation.txt"
"""Names of a recipe's two sources."""


class RecipeRows:
    """Access to the recipes in one database. notes: remarks for people on what was left out."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.notes: list[str] = []
        self._verdicts: dict[tuple[str, str], bool] | None = None
        """For (recipe, workload): whether the comparison passed."""

    def kept(self, graph: Graph, search: Callable[[], list[Offer]], users: str = "") -> list[Offer]:
        """Return the offers found in this graph, now by `search` or earlier, that are as accurate as the original. A search that
        adds notes is not filed, so that the next one adds them, too. users: the digest of the user-registered rules."""
        key = hashlib.sha256(f"{code_digest()} {users} {graph_to_json(graph)}".encode()).hexdigest()
        offers = self._read(key, graph)
        if offers is None:
            notes_before = len(self.notes)
            offers = search()
            if len(self.notes) == notes_before:
                self._write(key, graph, offers)
        return [usable for offer in offers if (usable := self._usable(offer)) is not None]

    def _read(self, key: str, graph: Graph) -> list[Offer] | None:
        """Return the offers on file; None if the graph was not searched, or if a recipe on file may not be used."""
        try:
            places = queries.recipe_search(self.database, key)
            if places is None:
                return None
            rows = queries.recipes(self.database, [str(s) for place in places for s in place["recipes"]])
            waiting = [row.name for row in rows.values() if not row.trusted]
            if waiting:
                log.info("not trusted yet, so searched for again: %s", ", ".join(waiting))
                return None
            return [_offer(graph, place, rows) for place in places]
        except (DatabaseError, TensorGraphsError, LookupError, TypeError, ValueError, AttributeError) as e:
            first = (str(e).splitlines() or [type(e).__name__])[0]
            self.notes.append(f"rows of recipes are left out, and searched for again: {first}")
            log.warning("%s: %s", self.database.location, self.notes[-1])
            return None

    def _write(self, key: str, graph: Graph, offers: Sequence[Offer]) -> None:
        number = {n: i for i, n in enumerate(graph.nodes)}
        places, graphs, recipes = [], [], []
        for offer in offers:
            part, ways = _signatures(offer)
            mine = [recipe_record(part, way, other) for way, other in zip(ways, offer.others, strict=True)]
            places.append({"operands": [number[o] for o in offer.operands], "outputs": [number[o] for o in offer.outputs],
                           "inside": sorted(number[n] for n in offer.inside), "recipes": [r.signature for r in mine]})
            graphs += [graph_record(s) for s in (part, *ways)]
            recipes += mine
        try:
            self.database.add_recipes(key, places, graphs, recipes)
        except DatabaseError as e:
            log.info("recipes are not kept: %s", e)

    def _usable(self, offer: Offer) -> Offer | None:
        """Return an offer with the recipes that passed the comparison, or None. Recipes not compared yet are compared now."""
        part, ways = _signatures(offer)
        passed = [other for way, other in zip(ways, offer.others, strict=True) if self._passes(offer, part, way, other)]
        return replace(offer, others=tuple(passed)) if passed else None

    def _passes(self, offer: Offer, part: Signature, way: Signature, other: Other) -> bool:
        if self._verdicts is None:
            rows = queries.latest_traces(self.database, oracle_environment(), "verify", verifier=VERIFIER)
            self._verdicts = {key: row.status == "PASSED" and not row.refuted for key, row in rows.items()}
        key = way.key, verify_workload(part).key
        if key in self._verdicts:
            return self._verdicts[key]
        comparison = compared(offer, other)
        self._verdicts[key] = comparison.passed
        try:
            self.database.ensure_graph(graph_record(part))
            self.database.ensure_graph(graph_record(way))
            self.database.add_trace(verdict(part, way, other, comparison))
        except DatabaseError as e:
            log.info("the comparison of a recipe is not kept: %s", e)
        return comparison.passed


def compared(offer: Offer, other: Other) -> Compared:
    """Compare a recipe of an offer with the original piece."""
    own, new = offer.alone(offer.outputs), offer.alone(other.outputs)
    assert own is not None and new is not None                      # or it would be no offer
    return compare(own, new)


def recipe_record(part: Signature, way: Signature, other: Other) -> ImplementationRecord:
    """Return the row of a recipe. Its name does not depend on its derivation, of which there may be several."""
    sources = (SourceRecord(RULES, "\n".join(other.rules), trusted=True), SourceRecord(DERIVATION, other.derivation, trusted=True))
    return ImplementationRecord("GRAPH_RECIPE", f"{part.spec.op.name} as {way.key[:12]}", "recipe", way.key, part.key, way.key,
                                numeric_class=cast(NumericClass, other.numeric_class), sources=sources)


def verdict(part: Signature, way: Signature, other: Other, comparison: Compared) -> TraceRecord:
    """Return the comparison of a recipe as a trace, with the errors of the recipe and of the original piece."""
    return TraceRecord(
        recipe_record(part, way, other), verify_workload(part), oracle_environment(), "verify",
        "PASSED" if comparison.passed else "INCORRECT_NUMERICAL", max_relative_error=comparison.error, tolerance=comparison.allowed,
        seed=None if comparison.error is None else 0, verifier=VERIFIER,
        conditions={"as_written": comparison.own, "sizes": dict(comparison.sizes), "rests_on_rules": comparison.error is None},
        log="" if comparison.passed else f"off by {comparison.error:.3g}; as it is written {comparison.own:.3g}")


@functools.cache
def oracle_environment() -> Environment:
    """Return the environment in which recipes are compared: the interpreter on numpy."""
    return fingerprint("oracle", libs={"numpy": np.__version__})


def _signature(outputs: Sequence[Node], operands: Sequence[Node]) -> Signature:
    """Return the signature of the piece between operands and outputs, as one op."""
    return signature_of(apply(part_between(outputs, operands), operands, {}))


def _signatures(offer: Offer) -> tuple[Signature, list[Signature]]:
    """Return the signatures of the part and of its recipes."""
    return (_signature(offer.outputs, offer.operands), [_signature(other.outputs, offer.operands) for other in offer.others])


def _offer(graph: Graph, place: Any, rows: dict[str, RecipeRow]) -> Offer:
    """Return the offer that a row of `recipe_searches` describes. Raises ValueError and others if this graph does not have it."""
    nodes = graph.nodes

    def at(numbers: Sequence[int]) -> tuple[Node, ...]:
        if any(type(i) is not int or i < 0 for i in numbers):
            raise ValueError(f"{list(numbers)[:5]} are no numbers of nodes")
        return tuple(nodes[i] for i in numbers)

    operands, outputs, inside = at(place["operands"]), at(place["outputs"]), frozenset(at(place["inside"]))
    part = _signature(outputs, operands)
    others = []
    for row in (rows[str(s)] for s in place["recipes"]):
        if row.graph_key != part.key:
            raise ValueError(f"{row.name} is of another part than the one that it is filed for")
        others.append(_other(row, operands))
    whole = _inside(outputs, operands)
    if not others or not inside <= whole or (whole - inside) & fed(nodes):    # what follows from no leaf is with whoever reads it
        raise ValueError("a place without recipes, or that is no whole piece")
    return Offer(operands, outputs, inside, tuple(others))


def _inside(outputs: Sequence[Node], operands: Sequence[Node]) -> frozenset[Node]:
    return frozenset(n for n in between(outputs, operands) if n.op.kind != "leaf")


def _other(row: RecipeRow, operands: Sequence[Node]) -> Other:
    """Return the recipe of a row, over these operands. Raises ValueError if its key is not the filed one, and what parsing raises.
    """
    graph = graph_from_json(row.recipe_json)
    (op,) = {n.op for n in graph.nodes if isinstance(n.op, DefinedOp)}
    written = op.define([o.type for o in operands], {})
    outputs = over(written.outputs, written.arguments, operands)
    if _signature(outputs, operands).key != row.recipe_key:
        raise ValueError(f"the graph of {row.name} is not the one that was filed")
    return Other(outputs, tuple(row.sources[RULES].splitlines()), row.sources[DERIVATION], str(row.numeric_class))
