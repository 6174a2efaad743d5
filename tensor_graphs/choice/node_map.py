"""node_map: what became of the nodes of a graph in a plan that is read from a file, which holds none of it.

It is seldom asked for, so the graph is prepared again only then; before that nothing that rewrites is loaded.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping

from tensor_graphs.choice.request import Request
from tensor_graphs.language.node import Node
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.plan import Plan

log = logging.getLogger(__name__)


class Images(Mapping[Node, Node]):
    """`Plan.images` of the plan of a request."""

    def __init__(self, request: Request, plan: Plan) -> None:
        self.request, self.path = request, plan.variants[0].path

    @functools.cached_property
    def images(self) -> Mapping[Node, Node]:
        from tensor_graphs.choice.replay import form_of  # a door: it imports all that rewrites

        try:                                                        # without the database: it may be closed by now
            prepared, decided = form_of(self.request, self.path, True)
        except NoPathError as e:
            log.info("what became of the nodes of the graph is not known: %s", e)
            return {}
        return {**prepared.images, **decided.images}

    def __getitem__(self, node: Node) -> Node:
        return self.images[node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.images)

    def __len__(self) -> int:
        return len(self.images)
