"""serving/load.py: every request is answered once, by as many clients as asked for, and what fails is raised."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tensor_graphs.cli import options
from tensor_graphs.cli.bench_serve import document, ends, quantiles
from tensor_graphs.serving.load import measure_load, random_requests
from tensor_graphs.serving.requests import EngineStatus, GenerationRequest, NewToken


class SlowEngine:
    """An engine that takes 1 ms per token and counts what runs at a time."""

    vocabulary, max_positions = 10, 100

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.lock = fails, threading.Lock()
        self.open = self.most = self.prompt = self.new = 0

    def submit(self, request: GenerationRequest) -> Any:
        return self._answer(request)

    def _answer(self, request: GenerationRequest) -> Iterator[NewToken]:
        with self.lock:
            self.open += 1
            self.most = max(self.most, self.open)
            self.prompt += len(request.prompt)
        for i in range(request.tokens or 0):
            time.sleep(1e-3)
            if self.fails:
                raise ValueError("no answer")
            with self.lock:
                self.new += 1
            yield NewToken(i)
        with self.lock:
            self.open -= 1

    def status(self) -> EngineStatus:
        return EngineStatus(self.open, 0, 1, 1, self.prompt, 0, self.new, 0)

    def close(self) -> None: ...


def test_each_request_is_answered_once_at_the_load_asked_for() -> None:
    requests, engine = random_requests(12, vocabulary=10, prompt=(2, 5), tokens=(3, 6), seed=0), SlowEngine()
    result = measure_load(engine, requests, 3)
    assert engine.most <= 3 and engine.open == 0
    assert result.new_tokens == sum(request.tokens or 0 for request in requests)
    assert result.prompt_tokens == sum(len(request.prompt) for request in requests)
    assert len(result.first_token) == 12 and len(result.token) == result.new_tokens - 12
    assert min(result.first_token + result.token) >= 1e-3 and result.tokens_per_second <= 3000
    assert document(result)["first_token_ms"]["median"] >= 1.0


def test_what_a_generation_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="no answer"):
        measure_load(SlowEngine(fails=True), random_requests(4, vocabulary=10, prompt=(2, 2), tokens=(3, 3), seed=0), 2)


def test_ranges_of_the_command() -> None:
    assert (ends("32-256", "--new-tokens"), ends("8", "--new-tokens")) == ((32, 256), (8, 8))
    for text in ("", "0", "9-3", "a", "1-2-3"):
        with pytest.raises(options.UsageError, match="--new-tokens"):
            ends(text, "--new-tokens")
    assert quantiles(()) == (0.0, 0.0)
