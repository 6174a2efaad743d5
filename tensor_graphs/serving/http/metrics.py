"""metrics: counts and times of a server for Prometheus."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tensor_graphs.serving.requests import Engine

NOW = {"running", "waiting", "pages", "free_pages"}
"""fields of an engine's status that may fall; the others are totals"""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counts and times of requests, and the engine's status, read when they are asked for."""

    def __init__(self, engine: Engine | None) -> None:
        self._registry, self._engine = CollectorRegistry(), engine
        self.requests = Counter("tensor_graphs_requests", "requests by route and HTTP status", ("route", "status"),
                                registry=self._registry)
        self.seconds = Histogram("tensor_graphs_request_seconds", "from a request to the end of its response", ("route",),
                                 buckets=SECONDS, registry=self._registry)
        self.first_token = Histogram("tensor_graphs_first_token_seconds", "from a request to the first token of its answer",
                                     buckets=SECONDS, registry=self._registry)
        if engine is not None:
            self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's status, for the registry."""
        assert self._engine is not None
        for name, value in dataclasses.asdict(self._engine.status()).items():
            kind = GaugeMetricFamily if name in NOW else CounterMetricFamily
            yield kind(f"tensor_graphs_engine_{name}", f"{name.replace('_', ' ')} of the engine", value=value)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
