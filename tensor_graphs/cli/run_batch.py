"""run_batch: answers several prompts of `tg run` at once: each step of the model computes tokens of many of them."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensor_graphs.cli import option_groups, options

if TYPE_CHECKING:
    from tensor_graphs.serving.engine import PagedEngine
    from tensor_graphs.serving.generate import Generation, TextDecoder
    from tensor_graphs.serving.requests import GenerationRequest

TOGETHER = 32
"""prompts that run at a time"""

LEAST = 1024
"""tokens for which a pool has pages at least"""


@dataclass(frozen=True)
class PromptToken:
    """A new token of prompt number `prompt`, with its text; the last item of a prompt has no token. result: all tokens so far."""

    prompt: int
    token: int | None
    text: str
    result: Generation
    cached_tokens: int


def started(loaded: Any, lengths: Sequence[int], choice: option_groups.ModelOptions, decoder: option_groups.DecoderOptions,
            *, invariant: bool, quiet: bool) -> tuple[PagedEngine, float]:
    """Return an engine with pages for the `TOGETHER` longest texts (prompt and answer, in tokens), and the seconds that it took."""
    from tensor_graphs.serving.engine import start_engine

    began = time.perf_counter()
    longest = sorted(lengths)[-TOGETHER:]
    rest = (1 << (max(sum(longest), LEAST) - 1).bit_length()) - longest[-1]     # rounded up: other texts find the plan on file
    with options.status("compiling", quiet) as update:
        engine = start_engine(loaded, sequences=TOGETHER, lengths=(longest[-1], rest), waiting=TOGETHER, invariant=invariant,
                              precision=choice.precision, backends=options.given_backends(choice.backends),
                              database=options.database(decoder.db), memory_limit=decoder.memory_limit, threads=choice.threads,
                              progress=update)
    return engine, time.perf_counter() - began


def answers(engine: PagedEngine, requests: Sequence[GenerationRequest],
            decoder: Callable[[], TextDecoder]) -> Iterator[PromptToken]:
    """Yield the tokens of all requests as they come, each prompt's in order. Raises what a generation raises; the engine is closed
    at the end, however it comes."""
    from tensor_graphs.serving.generate import Generation

    items: queue.SimpleQueue[PromptToken | BaseException] = queue.SimpleQueue()

    def answer(number: int, request: GenerationRequest) -> None:
        logs = None if request.log_probabilities is None else list[float]()
        result, text, began = Generation(log_probabilities=logs), decoder(), time.perf_counter()
        try:
            generation = engine.submit(request)
            for token in generation.with_stop():
                now = time.perf_counter()
                result.ids.append(token.id)
                if len(result.ids) == 1:
                    result.prefill_seconds = now - began
                else:
                    result.step_seconds.append(now - began)
                began = now
                if logs is not None and token.log_probability is not None:
                    logs.append(token.log_probability)
                items.put(PromptToken(number, token.id, text.push(token.id), result, generation.cached_tokens))
                if text.stopped:
                    generation.cancel()
                    break
            result.stopped = text.stopped or generation.finish == "stop"
            items.put(PromptToken(number, None, text.finish(), result, generation.cached_tokens))
        except BaseException as error:
            items.put(error)

    with ThreadPoolExecutor(TOGETHER) as readers:
        try:
            for work in enumerate(requests):
                readers.submit(answer, *work)
            left = len(requests)
            while left:
                item = items.get()
                if isinstance(item, BaseException):
                    raise item
                left -= item.token is None
                yield item
        finally:
            readers.shutdown(wait=False, cancel_futures=True)
            engine.close()
