"""engine_alone: answers one request after the other on one session; it stands in until the batching engine is there."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import numpy as np

from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.serving.generate import cache_length, check_room, vocabulary_of
from tensor_graphs.serving.requests import EngineStatus, Finish, GenerationRequest, NewToken, QueueFullError
from tensor_graphs.serving.sampling import Sampler, log_probability


class _Generation:
    def __init__(self, request: GenerationRequest) -> None:
        self.request, self.cached_tokens, self.is_cancelled = request, 0, False
        self.finish: Finish | None = None
        self.tokens: queue.SimpleQueue[NewToken | Exception | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[NewToken]:
        while (token := self.tokens.get()) is not None:
            if isinstance(token, Exception):
                raise token
            yield token

    def cancel(self) -> None:
        self.is_cancelled = True


class EngineAlone:
    """Engine over a bound decoder that outputs logits; the session keeps the prefix that a prompt shares with the one before."""

    def __init__(self, compiled: CompiledGraph, most_waiting: int) -> None:
        self.vocabulary, self.max_positions = vocabulary_of(compiled), cache_length(compiled)
        self._compiled, self._session, self._most_waiting = compiled, compiled.session(), most_waiting
        self._queue: queue.Queue[_Generation | None] = queue.Queue()
        self._running: _Generation | None = None
        self._is_closed, self._counts = False, [0, 0, 0]
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest) -> _Generation:
        check_room(request.prompt, request.tokens or 1, self.max_positions, self.vocabulary)
        if self._is_closed or self._queue.qsize() >= self._most_waiting:
            raise QueueFullError(f"{self._most_waiting} requests are waiting already", fix="later, or --most-waiting")
        self._queue.put(generation := _Generation(request))
        return generation

    def status(self) -> EngineStatus:
        return EngineStatus(int(self._running is not None), self._queue.qsize(), 1, int(self._running is None), self._counts[0],
                            self._counts[1], self._counts[2], 0)

    def close(self) -> None:
        self._is_closed = True
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (generation := self._queue.get()) is not None:
            self._running = generation
            try:
                generation.finish = self._answer(generation)
            except Exception as error:
                generation.tokens.put(error)
            self._running = None
            generation.tokens.put(None)

    def _answer(self, generation: _Generation) -> Finish:
        request, transcript, sampler = generation.request, self._session.transcript, Sampler(generation.request.sampling)
        new: list[int] = []
        assert transcript is not None
        same = next((i for i, (a, b) in enumerate(zip(transcript.fed, request.prompt, strict=False)) if a != b),
                    min(len(transcript.fed), len(request.prompt)))
        generation.cached_tokens = min(same, len(request.prompt) - 1)
        transcript.rewind(generation.cached_tokens)
        feed = list(request.prompt[generation.cached_tokens:])
        self._counts = [a + b for a, b in zip(self._counts, (len(request.prompt), generation.cached_tokens, 0), strict=True)]
        while not (generation.is_cancelled or self._is_closed):
            past = len(transcript.fed)
            if len(new) == request.tokens or past + len(feed) > self.max_positions:
                return "length"
            ids = np.asarray(feed, np.int32)
            row = self._compiled.run({"ids": ids}, dims={"p": past, "m": 1}, session=self._session)["logits"][-1]
            transcript.fed += feed
            allowed = None if request.allowed is None else request.allowed(new)
            token = sampler.pick(row if allowed is None else np.where(allowed, row, -np.inf), transcript.fed)
            if token in request.stop_ids:
                return "stop"
            new, feed, self._counts[2] = [*new, token], [token], self._counts[2] + 1
            count = request.log_probabilities
            best = tuple((int(i), log_probability(row, int(i))) for i in np.argsort(-row, kind="stable")[:count or 0])
            generation.tokens.put(NewToken(token, None if count is None else log_probability(row, token), best))
        return "cancelled"
