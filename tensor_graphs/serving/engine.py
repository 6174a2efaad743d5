"""engine: one thread answers many requests at once: it packs steps, runs them, picks tokens and hands them to their readers."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.devices.free_memory import free_memory
from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.language.dims import bounds
from tensor_graphs.models.transformer import Pool
from tensor_graphs.serving.generate import check_room
from tensor_graphs.serving.pages import Pages
from tensor_graphs.serving.requests import EngineClosedError, EngineStatus, Finish, GenerationRequest, NewToken, QueueFullError
from tensor_graphs.serving.sampling import Sampler, likeliest
from tensor_graphs.serving.scheduler import Scheduler, StepTimes, TokenSequence
from tensor_graphs.serving.step import LANES, BatchStep

if TYPE_CHECKING:
    from tensor_graphs.choice.request import Precision
    from tensor_graphs.frontends.huggingface.load import LoadedModel
    from tensor_graphs.records.database import Database

log = logging.getLogger(__name__)

SHARE = 0.5
"""share of the free memory that the pool of pages takes at most, if no limit is named"""

Item = NewToken | BaseException | None
"""what a reader gets: a token, an error, or None for the end"""


class _Generation:
    """A submitted request: its tokens on the engine's side, a queue of new ones on the reader's."""

    def __init__(self, request: GenerationRequest, tokens: int, lengths: tuple[int, int | None] | None) -> None:
        self.request, self.left = request, tokens
        self.sequence, self.sampler = TokenSequence(list(request.prompt), lengths), Sampler(request.sampling)
        self.finish: Finish | None = None
        self.stop: NewToken | None = None
        self.cached_tokens, self.cancelled = 0, False
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[NewToken]:
        while (item := self._items.get()) is not None:
            if isinstance(item, BaseException):
                self._items.put(item)                                   # the next reader gets it too
                raise item
            yield item
        self._items.put(None)

    def with_stop(self) -> Iterator[NewToken]:
        """Yield the new tokens, and the stop id that ended them, if one did."""
        yield from self
        if self.stop is not None:
            yield self.stop

    def cancel(self) -> None:
        self.cancelled = True

    def end(self, finish: Finish, error: BaseException | None = None) -> None:
        self.finish = finish
        self._items.put(error)

    def pick(self, logits: np.ndarray[Any, Any]) -> Finish | None:
        """Pick the next token, hand it to the reader, and return why it is the last, if it is."""
        request, tokens = self.request, self.sequence.tokens
        row = logits
        if request.allowed is not None and (mask := request.allowed(tokens[self.sequence.prompt:])) is not None:
            row = np.where(mask, logits, -np.inf).astype(logits.dtype)
        token, count = self.sampler.pick(row, tokens), request.log_probabilities
        new = NewToken(token) if count is None else NewToken(token, *likeliest(logits, token, count))
        if token in request.stop_ids:
            self.stop = new
            return "stop"
        self._items.put(new)
        tokens.append(token)
        self.left -= 1
        return None if self.left else "length"


class PagedEngine:
    """The engine (see `requests.Engine`) of a paged decoder. sequences: most that run together; waiting: most that wait."""

    def __init__(self, step: BatchStep, *, max_positions: int, sequences: int, waiting: int = 1024) -> None:
        self.vocabulary = bounds(step.compiled.graph.outputs["logits"].shape[1])[1]
        self.max_positions, self.most_waiting, self.compiled = max_positions, waiting, step.compiled
        self._step, self._pages = step, Pages(step.pool.pages, step.pool.page)
        self._scheduler = Scheduler(self._pages, tokens=step.pool.tokens, sequences=min(sequences, step.pool.asked))
        self._times = StepTimes()
        self._generations: dict[TokenSequence, _Generation] = {}
        self._prompt = self._shared = self._new = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest) -> _Generation:
        """Queue a request. Raises FrontendError for one that can never run, QueueFullError when too many are waiting."""
        most = self.max_positions - len(request.prompt) + 1
        check_room(request.prompt, 1 if request.tokens is None else request.tokens, self.max_positions, self.vocabulary)
        generation = _Generation(request, most if request.tokens is None else request.tokens, self._step.lengths)
        pages = -(-(len(request.prompt) + max(generation.left, 1) - 1) // self._pages.page)
        if pages > self._pages.count:
            raise FrontendError(f"the request needs {pages} pages of {self._pages.page} tokens, the pool has {self._pages.count}",
                                fix="fewer tokens, or a larger --memory-limit")
        if generation.left < 1:
            generation.end("length")
            return generation
        with self._changed:
            if self._closed:
                raise EngineClosedError("the engine is closed", fix="start another one")
            if len(self._scheduler.waiting) >= self.most_waiting:
                raise QueueFullError(f"{len(self._scheduler.waiting)} requests are waiting", fix="try again later")
            self._generations[generation.sequence] = generation
            self._scheduler.add(generation.sequence)
            self._prompt += len(request.prompt)
            self._changed.notify()
        return generation

    def status(self) -> EngineStatus:
        with self._changed:
            return EngineStatus(len(self._scheduler.running), len(self._scheduler.waiting), self._pages.count, self._pages.free,
                                self._prompt, self._shared, self._new, self._scheduler.preemptions)

    def close(self) -> None:
        """Cancel what runs and end the engine's thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        error: BaseException | None = None
        try:
            while self._turn():
                pass
        except BaseException as e:                                      # a kernel that failed: every reader has to know
            log.exception("the engine stops")
            error = e
        with self._changed:
            self._closed = True
            for generation in list(self._generations.values()):
                self._end(generation, "cancelled", error)

    def _turn(self) -> bool:
        """Run one step, after waiting for work; return False once the engine is closed."""
        with self._changed:
            while not (self._generations or self._closed):
                self._changed.wait()
            if self._closed:
                return False
            for generation in [g for g in self._generations.values() if g.cancelled]:
                self._end(generation, "cancelled")
            fresh = [s for s in self._scheduler.waiting if s.shared is None]
            pieces = self._scheduler.step(self._times.prompts(self._scheduler.decoding))
            for sequence in fresh:
                self._generations[sequence].cached_tokens = sequence.shared or 0
            self._shared += sum(sequence.shared or 0 for sequence in fresh)
        if not pieces:
            return True
        began = time.perf_counter()
        logits = self._step.run(pieces)                                 # without the lock: requests may come meanwhile
        decoding = sum(piece.last and piece.count == 1 for piece in pieces)
        self._times.note(decoding, sum(piece.count for piece in pieces) - decoding, time.perf_counter() - began)
        last = [self._generations[piece.sequence] for piece in pieces if piece.last]
        with self._changed:
            self._scheduler.done(pieces)
        for generation, row in zip(last, logits, strict=True):
            error, finish, before = None, None, generation.left
            try:
                finish = generation.pick(row)
            except Exception as e:                                      # of a mask, or of logits that are no numbers
                finish, error = "cancelled", e
            with self._changed:
                self._new += before - generation.left
                if finish is not None:
                    self._end(generation, finish, error)
        return True

    def _end(self, generation: _Generation, finish: Finish, error: BaseException | None = None) -> None:
        self._scheduler.remove(generation.sequence)
        del self._generations[generation.sequence]
        generation.end(finish, error)


def start_engine(model: LoadedModel, *, sequences: int = 32, tokens: int = 256, page: int = 16, pages: int | None = None,
                 lengths: Sequence[int] | None = None, waiting: int = 1024, invariant: bool = False,
                 backends: Sequence[str] | None = None, database: Database | str | Path | None = None,
                 memory_limit: int | None = None, threads: int | None = None, precision: Precision = None,
                 progress: Callable[[str], None] | None = None) -> PagedEngine:
    """Compile a decoder for many sequences, bind it and start its engine.

    sequences: most that run together. tokens: most in one step. pages: size of the pool, of `page` tokens each (default: what
    texts of these lengths, or `sequences` of the model's max_positions, take, as far as memory_limit, or half of the free memory,
    allows). waiting: most
    requests that wait. precision: words, as in `tg.compile`. invariant: the tokens of a request do not depend on the requests it
    shares steps with, bit by bit. Raises FrontendError where that is not possible; else as `tg.compile` does.
    """
    from tensor_graphs.choice.compile import answer
    from tensor_graphs.choice.request import Request
    from tensor_graphs.runtime.compiled_graph import bind

    if model.encoder:
        raise FrontendError(f"{model.name} is an encoder, which generates no tokens", fix="a decoder")
    rows = LANES if invariant else 1
    sequences, tokens = -(-sequences // rows) * rows, -(-max(tokens, sequences) // rows) * rows
    if pages is None:
        pages = pool_pages(model, lengths or [model.max_positions] * sequences, page, memory_limit)
    pool = Pool(pages, page, tokens, sequences, rows)
    graph = model.paged_graph(pool)
    one_choice = ("t", "w", "m") if invariant else ("w", "m")
    if invariant and backends is None:
        backends = ("c", "gen")                                         # libraries choose their kernels by the number of rows
    typical = {"t": max(rows, sequences // 2), "m": max(rows, sequences // 2), "w": min(8, bounds(graph.dims["w"])[1])}
    plan = answer(Request(graph, None, backends, database, typical, memory_limit=memory_limit, reuse_outputs=True, threads=threads,
                          precision=precision, invariant=one_choice), progress)
    return PagedEngine(BatchStep(bind(plan, model.weights), pool, invariant=invariant, lengths=model.facts.lengths),
                       max_positions=model.max_positions, sequences=sequences, waiting=waiting)


def pool_pages(model: LoadedModel, lengths: Sequence[int], page: int, memory_limit: int | None) -> int:
    """Return the pages that texts of these lengths in tokens take, or as many as memory allows. Raises FrontendError where the
    longest one has no room."""
    facts, most = model.facts, memory_limit
    wanted, longest = sum(-(-length // page) for length in lengths), -(-max(lengths) // page)
    nbytes = 2 * len(facts.layers) * facts.kv_heads * facts.head_dim * page * model.activations.itemsize
    weights = sum(int(node.type.nbytes()) for node in model.graph.parameters.values())
    if most is None and (free := free_memory()) is not None:
        most = int(SHARE * free)
    pages = wanted if most is None else min(wanted, (most - weights) // nbytes)
    if pages < longest:
        raise FrontendError(f"the pool has memory for {max(pages, 0)} pages of {page} tokens, one sequence may take {longest}",
                            fix="a larger --memory-limit, or fewer --max-positions")
    return pages
