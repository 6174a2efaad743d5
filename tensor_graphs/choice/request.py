"""request: a request for a plan in one value, which `compile_graph`, `list_paths` and `profile` make of their arguments.

Nothing heavy is imported here, and no database is opened before `store` is read: a stored plan needs neither (plan_file.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_graphs.argument_checks import ArgumentError, names, number, place, whole
from tensor_graphs.devices.environment import most_threads
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS, why_missing
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.accuracy import Accuracy, check, parse
from tensor_graphs.meaning.assumptions import CONDITIONS
from tensor_graphs.meaning.precision import parse_form
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.path import Path as GraphPath

if TYPE_CHECKING:
    from tensor_graphs.choice.accuracy_inputs import Inputs
    from tensor_graphs.paths.pin_file import Pin
    from tensor_graphs.records.database import Database

Tolerance = Accuracy | float | Mapping[str, float | None] | str | None
"""An accuracy, or a value that `accuracy.parse` reads as one."""

LARGEST_TO_NORM = {"max": 1.0, "norm": 10.0}
"""ratio of the largest error of an element to the limited statistic; 6 to 10 for the logits of decoders"""

Precision = str | Mapping[str, str] | None
"""Words for sites of a graph, as `meaning.precision.parse_form` reads them."""

CONDITION = f"one or several of {', '.join(map(repr, CONDITIONS))}, or leave it out"
USUAL = f"backends={DEFAULT_BACKENDS} (tg: --backends {','.join(DEFAULT_BACKENDS)}), or leave it out"


@dataclass(frozen=True)
class Request:
    """A graph, as written, and the options for it; each field is the argument of that name of `compile_graph`, unchanged.
    database: open, or its name, or None for the usual one. path: in place of a choice; of a pin, tolerance and backends count where
    none are given."""

    graph: Graph
    tolerance: Tolerance = None
    backends: Sequence[str] | None = None
    database: Database | str | Path | None = None
    at: Mapping[str, int] | None = None
    largest: Mapping[str, int] | None = None
    memory_limit: int | None = None
    reuse_outputs: bool = False
    threads: int | None = None
    precision: Precision = None
    simplify: bool = True
    path: GraphPath | Pin | None = None
    assuming: str | Sequence[str] = ()
    weights: Mapping[str, Any] | None = None
    accuracy_seconds: float = 10.0
    inputs: Inputs = None
    invariant: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raise ArgumentError for a value of another kind or out of range, before a kernel is judged with it and the verdict is
        filed."""
        check(parse(self.tolerance), self.graph)
        parse_form(self.precision)
        if self.accuracy.terms and not (self.weights is None and self.inputs is None):
            from tensor_graphs.choice.accuracy_inputs import check_kinds  # a door: most graphs run as written

            check_kinds(self.weights, self.inputs)
        number("accuracy_seconds", self.accuracy_seconds, "seconds for measuring a plan's error, 0 or more", infinite=True)
        if strange := [name for name in self.invariant if name not in self.graph.dims]:
            dims = ", ".join(self.graph.dims)
            raise ArgumentError(f"invariant names {strange[0]!r}, which is no dim of the graph\n  fix: some of {dims}")
        if self.memory_limit is not None:
            number("memory_limit", self.memory_limit, "bytes that the device may use in all, as 8e9", 1.0)
        if self.threads is not None:
            whole("threads", self.threads, 1, most_threads(), f"a whole number from 1 to {most_threads()}, or leave it out")
        if self.database is not None and not hasattr(self.database, "location"):
            place("database", self.database, "the path or URL of a database, an open one, or leave it out")
        if not isinstance(self.simplify, bool):
            raise ArgumentError(f"simplify is {self.simplify!r}\n  fix: simplify=True or simplify=False")
        unknown = [condition for condition in self.assumed if condition not in CONDITIONS]
        if unknown:
            raise ArgumentError(f"assuming names {unknown[0]!r}, which is no condition\n  fix: {CONDITION}")
        if self.backends is not None and not names("backends", self.backends, USUAL):
            raise ArgumentError(f"backends names no backend: it is {self.backends!r}\n  fix: {USUAL}")

    def decides(self) -> list[tuple[str, str]]:
        """Return all that decides about a plan except weights, inputs, the graph, the database and a path."""
        apart = ("graph", "database", "path", "tolerance", "weights", "inputs", "precision")
        values: list[tuple[str, Any]] = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name not in apart]
        values += [("accuracy", self.accuracy.text), ("words", self.words)]
        return [(n, repr(sorted(value.items(), key=str) if isinstance(value, Mapping) else value)) for n, value in values]

    @cached_property
    def assumed(self) -> tuple[str, ...]:
        """Conditions on values that are assumed."""
        return tuple(condition.replace(">=", "≥") for condition in names("assuming", self.assuming, CONDITION))

    @property
    def pin(self) -> Pin | None:
        """The path, where it is a pin."""
        return None if self.path is None or isinstance(self.path, GraphPath) else self.path

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the backends that may be used, here or not."""
        chosen = self.pin.backends if self.backends is None and self.pin is not None else self.backends
        return names("backends", DEFAULT_BACKENDS if chosen is None else chosen, USUAL)

    @cached_property
    def here(self) -> tuple[str, ...]:
        """Backends that may be used and are here. Raises NoPathError where none of them is, KernelError for an unknown name."""
        available = tuple(name for name in self.names if why_missing(name) is None)
        if not available:
            raise NoPathError("\n  ".join(["no backend is available", *self.notes, f"fix: {USUAL}"]))
        return available

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes for people on the backends that are not here."""
        missing = ((name, why_missing(name)) for name in self.names)
        return tuple(f"backend {name} is not available: {why}" for name, why in missing if why is not None)

    @cached_property
    def store(self) -> Database:
        """The database, open. Raises what `open_database` raises."""
        from tensor_graphs.records.database import Database, open_database  # here: SQLAlchemy takes 0.2 s to import

        database = self.database
        return database if isinstance(database, Database) else open_database(database, make_folder=database is None)

    @cached_property
    def accuracy(self) -> Accuracy:
        """The requested accuracy; without terms: as written, nothing narrower than the graph says."""
        return parse(self.pin.tolerance if self.tolerance is None and self.pin is not None else self.tolerance)

    @cached_property
    def words(self) -> dict[str, str]:
        """The words for sites of the graph that are asked for; {} if none are."""
        return parse_form(self.precision)

    @cached_property
    def allowed(self) -> float | None:
        """Error beyond which a kernel is not tried for this accuracy; None if nothing limits it."""
        limits = [term.limit * LARGEST_TO_NORM.get(term.statistic, math.inf) for term in self.accuracy.terms]
        return None if not limits or math.isinf(min(limits)) else min(limits)


def as_given(path: GraphPath | Pin | str | os.PathLike[str] | None) -> GraphPath | Pin | None:
    """Return the path of an argument of `compile_graph`. Raises what `as_pin` raises."""
    if path is None or isinstance(path, GraphPath):
        return path
    from tensor_graphs.paths.pin_file import as_pin  # a door: most plans are chosen, and not given

    return as_pin(path)


def roundoff(dtype: DType) -> float:
    """Return the largest relative error of rounding to a dtype: half of its epsilon; 0 for what is no float."""
    return dtype.epsilon / 2 if dtype.is_float else 0.0
