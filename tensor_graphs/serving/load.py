"""load: measures an engine under a load: a number of clients, each of which sends its next request when the last is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensor_graphs.serving.requests import Engine, GenerationRequest


@dataclass(frozen=True)
class LoadResult:
    """Measurements at one load; times in seconds. first_token: from the request to its first token, for each request; token:
    between two tokens of a request, for each pair."""

    clients: int
    seconds: float
    prompt_tokens: int
    shared_tokens: int
    new_tokens: int
    preemptions: int
    first_token: tuple[float, ...]
    token: tuple[float, ...]

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, of all clients together."""
        return self.new_tokens / self.seconds


def random_requests(count: int, *, vocabulary: int, prompt: tuple[int, int], tokens: tuple[int, int],
                    seed: int) -> list[GenerationRequest]:
    """Return greedy requests of random ids. prompt, tokens: least and largest number of tokens of a prompt, and of an answer."""
    draw = np.random.default_rng(seed)
    return [GenerationRequest(tuple(draw.integers(0, vocabulary, int(draw.integers(prompt[0], prompt[1] + 1))).tolist()),
                              int(draw.integers(tokens[0], tokens[1] + 1))) for _ in range(count)]


def measure_load(engine: Engine, requests: Sequence[GenerationRequest], clients: int) -> LoadResult:
    """Answer the requests with this many clients. Raises what a generation raises."""
    left, lock = list(reversed(requests)), threading.Lock()
    first: list[float] = []
    between: list[float] = []
    errors: list[BaseException] = []

    def client() -> None:
        while not errors:
            with lock:
                if not left:
                    return
                request = left.pop()
            began = time.perf_counter()
            try:
                times = [time.perf_counter() for _ in engine.submit(request)]
            except BaseException as e:
                errors.append(e)
                return
            with lock:
                first.extend(t - began for t in times[:1])
                between.extend(np.diff(times).tolist())

    before, began = engine.status(), time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, after = time.perf_counter() - began, engine.status()
    if errors:
        raise errors[0]
    return LoadResult(clients, seconds, after.prompt_tokens - before.prompt_tokens, after.shared_tokens - before.shared_tokens,
                      after.new_tokens - before.new_tokens, after.preemptions - before.preemptions, tuple(first), tuple(between))
