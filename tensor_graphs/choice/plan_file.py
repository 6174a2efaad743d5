"""plan_file: the plan of a request, stored in the user's cache folder. A repeated request in an equal environment needs no search.

    file = of(Request(graph, …))        # None: plans of this request are not stored
    plan = file.read()                  # None: search, then file.write(plan)

The file's name is a digest of everything that determines a plan, except the rows of the database: the graph, the request, this
package's code, the identities of all kernels, the software and the hardware. The file contains the generation of the database
(records/rows_digest.py) for which the plan was made; rows added since make it stale. A stale or damaged file is ignored and
replaced. This module imports nothing heavy: reading a plan needs neither rewriting nor the judge nor SQLAlchemy.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensor_graphs import blas_thread_sleep
from tensor_graphs.choice.request import Request
from tensor_graphs.choice.storing import is_on, package_digest
from tensor_graphs.costs.learned import cost_model
from tensor_graphs.devices.checksummed_files import read, user_place
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.kernels.registry import all_kernels, backend_module, why_missing
from tensor_graphs.language.errors import NOWHERE, written_at
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.node import Node
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.plan import Plan
from tensor_graphs.phase_times import phase
from tensor_graphs.records import open_database
from tensor_graphs.records.location import default_target, file_of
from tensor_graphs.records.rows_digest import generation, of_file
from tensor_graphs.rewrites import user_rules

if TYPE_CHECKING:
    from tensor_graphs.records.database import Database

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 20
"""most bytes of all plans together; the least recently used ones are deleted"""

FORMAT = b"tensor_graphs plan 3\n"


@dataclass(frozen=True)
class PlanFile:
    """The file of one request's plan."""

    path: Path
    request: Request

    @phase("read plan")
    def read(self) -> Plan | None:
        """Return the stored plan; None where there is none, or the database has other rows now."""
        content = read(self.path)
        if content is None:
            log.debug("no plan is on file for this request")
            return None
        try:
            head, rests_on, pickled = content.split(b"\n", 2)
            if head + b"\n" != FORMAT:
                raise ValueError("it is of another version")
            now = self._generation()
            if now is None or now.encode() != rests_on:
                raise ValueError("the database has other rows by now")
            with written_at(NOWHERE):                               # lines move; the caller follows the graph that it gave
                plan: Plan = pickle.loads(pickled)
        except Exception as e:                                      # of bytes that may be anything, reading may raise anything
            log.debug("the plan in %s is left out: %s", self.path, e)
            return None
        log.info("the plan is taken from %s", self.path)
        return replace(plan, images=Images(self.request, plan), given=self.request.graph, inputs=self.request.inputs)

    def _generation(self) -> str | None:
        named = self.request.database
        if named is None or isinstance(named, str | Path):
            file = file_of(named)
            if file is not None:
                return of_file(file)
            with open_database(named) as database:
                return generation(database)
        return generation(named)

    @phase("keep plan")
    def write(self, plan: Plan) -> None:
        try:
            pickled = pickle.dumps(plan)
        except Exception as e:                                      # a part that cannot be pickled: anyone's composite
            log.debug("the plan is not kept: %s", e)
            return
        from tensor_graphs.devices.write_checksummed_files import keep  # a door: most runs read a plan and write none

        keep(self.path, [FORMAT, plan.rests_on.encode(), b"\n", pickled], MOST_BYTES)


def of(request: Request) -> PlanFile | None:
    """Return the file of a request's plan, which may not exist yet. Return None where nothing is stored: TENSOR_GRAPHS_PLANS is
    off, a path was given, the database is in memory, or the cache folder cannot be used. Raises KernelError for an unknown backend,
    and ArgumentError where the variable is neither on nor off."""
    graph, database = request.graph, request.database
    if request.path is not None or not is_on() or _place(database) == ":memory:":
        return None
    with phase("read plan"):
        names = request.names
        what = {
            "graph": (graph.structural_key, graph_to_json(graph)),
            "asked": [*request.decides(), ("measured on", _measured_on(request))],
            "environments": [(name, why_missing(name), _environment(name) if why_missing(name) is None else "") for name in names],
            "kernels": sorted((k.name, k.identity) for k in all_kernels(names) if not k.remade),     # rows say which were tuned
            "rules": user_rules.digest(),
            "code": (package_digest(), sys.version, blas_thread_sleep.LATE, cost_model.version()),
            "database": _place(database),
        }
        path = user_place("plans", f"{hashlib.sha256(repr(sorted(what.items())).encode()).hexdigest()}.plan")
        return None if path is None else PlanFile(path, request)


def _measured_on(request: Request) -> tuple[str, str]:
    """Return the keys of the weights and inputs on which a request measures errors; "" where it measures none, or on drawn ones."""
    if (request.weights is None and request.inputs is None) or not request.accuracy.terms:
        return "", ""
    from tensor_graphs.choice.measured_accuracy import measured_accuracy  # a door: most graphs run as written

    return measured_accuracy(request).weights_key, measured_accuracy(request).inputs_key


class Images(Mapping[Node, Node]):
    """`Plan.images` of a plan read from a file, which does not contain them. They are seldom needed, so the graph is prepared again
    only on first access; until then no rewriting code is loaded."""

    def __init__(self, request: Request, plan: Plan) -> None:
        self.request, self.path = request, plan.variants[0].path

    @functools.cached_property
    def images(self) -> Mapping[Node, Node]:
        from tensor_graphs.choice.graph_forms import following  # doors: they import all that rewrites
        from tensor_graphs.choice.requested_path import form_of

        try:                                                        # without the database: it may be closed by now
            prepared, decided = form_of(self.request, self.path, True)
        except NoPathError as e:
            log.info("what became of the nodes of the graph is not known: %s", e)
            return {}
        return following(prepared.images, decided.images)

    def __getitem__(self, node: Node) -> Node:
        return self.images[node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.images)

    def __len__(self) -> int:
        return len(self.images)


def _place(database: Database | str | Path | None) -> str:
    """Return the location of a database, equal for a database object and for its name."""
    if database is None or isinstance(database, str | Path):
        file = file_of(database)
        return str(default_target() if database is None else database) if file is None else os.path.realpath(file)
    return os.path.realpath(database.location) if database.is_sqlite and database.location != ":memory:" else database.location


@functools.cache
def _environment(backend: str) -> str:
    return fingerprint(backend, libs=dict(backend_module(backend).versions())).key()
