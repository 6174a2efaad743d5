"""generate: generates tokens with a compiled decoder: prefill of the prompt, then one token at a time, on one session.

A session is a conversation. `session.transcript.fed` lists the tokens in its caches. The last generated token is not among them: it
is pending, and the next call feeds it before its own prompt.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tensor_graphs.argument_checks import ArgumentError, function, whole
from tensor_graphs.frontends.errors import ConversationError, FrontendError, SamplingError
from tensor_graphs.language.dims import bounds
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.phase_times import phase
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.runtime.session import Session, Transcript
from tensor_graphs.serving.sampling import Sampler, Sampling, log_probability


@dataclass
class Generation:
    """Result of a generation; times in seconds. ids: the new ids. stopped: True if a stop id or stop text ended it.
    log_probabilities: natural logarithm of the probability that the model gave each new token (None: not recorded)."""

    ids: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    stopped: bool = False
    log_probabilities: list[float] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, from the median decode step; 0 when there was none."""
        return 1.0 / float(np.median(self.step_seconds)) if self.step_seconds else 0.0


def check_room(prompt: Sequence[int], tokens: int, max_positions: int, vocabulary: int, most: int | None = None) -> None:
    """Raise FrontendError for a prompt that does not fit the cache, or ids outside of the vocabulary.

    max_positions: number of tokens that the cache holds; most: number of positions of the model (None: no limit).
    """
    if not prompt:
        raise FrontendError("the prompt is empty", fix="at least one token id is needed to predict the next")
    needed = len(prompt) + max(tokens, 1) - 1                        # the last token is not put into the cache
    if needed > max_positions:
        message = f"the prompt has {len(prompt)} tokens and {tokens} more are asked for, the cache holds {max_positions}"
        if most is None or needed <= most:
            raise FrontendError(message, fix=f"--max-positions {needed}, a shorter prompt, or fewer --tokens")
        longer = f"--max-positions {most} and " if most > max_positions else ""
        raise FrontendError(f"{message}; the model has positions for {most}",
                            fix=f"{longer}--tokens {most - len(prompt) + 1} or fewer" if len(prompt) <= most else
                                f"a prompt of at most {most} tokens")
    check_ids(prompt, vocabulary)


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raise FrontendError for an id outside of the vocabulary."""
    wrong = [i for i in ids if not 0 <= i < vocabulary]
    if wrong:
        raise FrontendError(f"token id {wrong[0]} is outside of the vocabulary, 0 to {vocabulary - 1}",
                            fix="ids of this model's own tokenizer")


def cache_length(compiled: CompiledGraph) -> int:
    """Return the number of tokens that the caches of a decoder's sessions hold. Raises FrontendError for other graphs."""
    if not isinstance(compiled, CompiledGraph):
        fix = "tg.bind(tg.compile(model.graph), model.weights) makes one of a model that was loaded"
        raise ArgumentError(f"{compiled!r:.80} is no compiled model\n  fix: {fix}")
    if "ids" not in compiled.graph.inputs or "p" not in compiled.graph.dims:
        raise FrontendError("the graph is no decoder's: it has no input ids, or no dim p", fix="tg.load_model(folder).graph")
    return bounds(compiled.graph.dims["p"])[1] + 1


@worded
def stream(compiled: CompiledGraph, session: Session, prompt: Sequence[int], tokens: int | None, *,
           sampling: Sampling | Sampler | None = None, stop: Sequence[int] = (),
           result: Generation | None = None) -> Iterator[int]:
    """Yield up to `tokens` new token ids (None: until the cache is full); stop after an id that is in `stop`, which is yielded too.

    compiled: of a decoder's graph; a graph that outputs `token` (see `gemma3_graph`) decodes greedily only. sampling: a Sampler
    continues its draws, a Sampling starts new ones; its repetition penalty counts all tokens of the conversation. result: receives
    timings and ids, and log probabilities if it has a list for them.

    On a session that was streamed to before, the conversation continues: the first run feeds the pending token (the last one
    yielded) and then the prompt, after the tokens in the caches; an empty prompt continues the answer. A token counts as fed once
    its run is done, so a caller may stop at any token. `session.reset()` starts a new conversation.

    The session is locked from the request for the first token until the last token is computed, or the generator is closed: another
    `generate`, `stream` or `reset` on it raises RunError. A `generate` of another thread is waited for.

    Raises ConversationError, before anything is computed, when the cache has no room for the prompt and `tokens` more, and when the
    session's states were set from outside; with tokens None, when the cache is full and no stop came. Raises SamplingError for NaN
    or infinite logits, and where draws, a penalty or log probabilities are requested of a graph that outputs only the likeliest
    token; FrontendError when there is nothing to feed.
    """
    with ExitStack() as turn:
        turn.enter_context(_held(session).turn(left_open=True))
        for number, token in enumerate(_stream(compiled, session, prompt, tokens, sampling, stop, result), 1):
            if number == tokens or token in stop:
                turn.close()                         # no more is computed, and many callers stop here
            yield token


def _held(session: Session) -> Session:
    if not isinstance(session, Session):
        raise ArgumentError(f"session is {session!r:.80}\n  fix: compiled.session()")
    return session


def _stream(compiled: CompiledGraph, session: Session, prompt: Sequence[int], tokens: int | None,
            sampling: Sampling | Sampler | None, stop: Sequence[int], result: Generation | None) -> Iterator[int]:
    """Yield the tokens of `stream`, for a caller that has locked the session."""
    capacity = cache_length(compiled)
    if tokens is not None:
        whole("tokens", tokens, 0)
    sampler = sampling if isinstance(sampling, Sampler) else Sampler(sampling or Sampling())
    result = result if result is not None else Generation()
    if "logits" not in compiled.graph.outputs and (sampler.sampling.needs_logits or result.log_probabilities is not None):
        raise SamplingError("the graph gives the likeliest token only; draws, a repetition penalty and log probabilities need all "
                            "logits", fix="compile the model's `graph`, or decode greedily (temperature 0) without them")
    transcript = _transcript(session)
    feed = [*transcript.pending, *_ids_of(compiled, prompt)]
    if not feed:
        raise FrontendError("the prompt is empty", fix="at least one token id is needed to predict the next")
    _require_room(len(transcript.fed), len(feed), tokens or 1, capacity)
    for number in itertools.count() if tokens is None else range(tokens):
        started = time.perf_counter()
        past, ids = len(transcript.fed), np.asarray(feed, dtype=np.int32)
        _require_room(past, len(feed), 1, capacity)
        with phase("next tokens" if number else "first token"):
            outputs = compiled.run({"ids": ids}, dims={"p": past, "m": 1}, session=session)
            transcript.fed += feed
            transcript.pending = []                  # none until the next is picked: it was fed
            try:
                token = (sampler.pick(outputs["logits"][-1], transcript.fed) if "logits" in outputs else checked_token(outputs))
            except SamplingError as e:
                raise _with_source(e, compiled, session, ids, past) from None
        seconds = time.perf_counter() - started
        if number == 0:
            result.prefill_seconds = seconds
        else:
            result.step_seconds.append(seconds)
        feed, transcript.pending = [token], [token]
        result.ids.append(token)
        if result.log_probabilities is not None:
            result.log_probabilities.append(log_probability(outputs["logits"][-1], token))
        yield token
        if token in stop:
            result.stopped = True
            return


class TextDecoder(Protocol):
    """Decoder of tokens that arrive one by one to text (`tokenizer.StreamingDecoder`)."""

    @property
    def stopped(self) -> bool: ...

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


def stream_text(compiled: CompiledGraph, session: Session, prompt: Sequence[int], tokens: int | None, decoder: TextDecoder,
                result: Generation, *, sampling: Sampling | Sampler | None = None, stop: Sequence[int] = (),
                hidden: Sequence[int] = (), in_turn: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (id, text) of each new token of `stream`, up to the token that completes a stop text of the decoder.

    A text is often "", while a character is not complete or a stop text may have begun; text that was held back comes with the last
    token. hidden: ids without a text. in_turn: the caller has locked the session. Raises the errors of `stream`.
    """
    new = (_stream(compiled, session, prompt, tokens, sampling, stop, result) if in_turn else
           stream(compiled, session, prompt, tokens, sampling=sampling, stop=stop, result=result))
    for number, token in enumerate(new, 1):
        text = "" if token in hidden else decoder.push(token)
        stopped = decoder.stopped
        result.stopped |= stopped
        yield token, text + (decoder.finish() if stopped or number == tokens or token in stop else "")
        if stopped:
            return


def _ids_of(compiled: CompiledGraph, prompt: Sequence[int]) -> list[int]:
    """Return a prompt's token ids. Raises ArgumentError for another type, FrontendError for an id outside of the vocabulary."""
    fix = "one list of token ids, like model.tokenizer.encode(text)"
    if isinstance(prompt, str) or not hasattr(prompt, "__iter__"):
        raise ArgumentError(f"the prompt is {prompt!r:.80}\n  fix: {fix}")
    ids = [whole("a token id of the prompt", i, least=-sys.maxsize, fix=fix) for i in prompt]
    check_ids(ids, vocabulary_of(compiled))
    return ids


def vocabulary_of(compiled: CompiledGraph) -> int:
    """Return the size of a decoder's vocabulary: the number of rows of the table in which `ids` are looked up."""
    graph = compiled.plan.given or compiled.plan.written or compiled.graph     # parts may contain the look-up
    rows = [bounds(n.inputs[0].shape[0])[1] for n in graph.nodes if n.op.facts.reads is not None
            and graph.inputs["ids"] in n.inputs[1:]]
    return min(rows, default=sys.maxsize)


def _transcript(session: Session) -> Transcript:
    if session.transcript is None:
        raise ConversationError(
            "the session's states were set from outside, so nobody knows which tokens they hold",
            fix="session.reset(), or tell: session.transcript = Transcript(fed=[…]) (tensor_graphs.runtime.session)")
    return session.transcript


def _require_room(past: int, new: int, tokens: int, capacity: int) -> None:
    """Raise ConversationError unless the cache has room for its tokens, the new ones, and all requested ones but the last."""
    needed, fewer = past + new + tokens - 1, capacity - past - new + 1
    if needed > capacity:
        before = f"the conversation has {past} tokens in the cache, {new} are to come" if past else f"the prompt has {new} tokens"
        rest = (f"; or ask for {fewer} at most" if fewer > 0 else "") + ("; or a new conversation: session.reset()" if past else "")
        raise ConversationError(
            f"{before} and {tokens} more are asked for: {needed} in all, and the cache holds {capacity}", needed=needed,
            fix=f"load_model(…, max_positions={needed}) or more (tg: --max-positions), if the model has so many positions{rest}")


def _with_source(error: SamplingError, compiled: CompiledGraph, session: Session, ids: np.ndarray, past: int) -> SamplingError:
    """Return the error with the tensor that held the first NaN. The run is repeated for it, and writes equal cache rows."""
    source = compiled.first_nan({"ids": ids}, dims={"p": past, "m": 1}, session=session)
    if source is None:
        return error
    message = str(error).removeprefix("SamplingError: ").partition("\n")[0]
    return SamplingError(f"{message}; the first NaN is in {source}",
                         fix="repair the weights of the model" if source.startswith("parameter") else
                             "verify this kernel: tg conformance, tg db failures")


def checked_token(outputs: Mapping[str, np.ndarray]) -> int:
    """Return the last position's token. Raises SamplingError when its logit is NaN or infinite: the model is wrong."""
    logit, token = float(outputs["logit"][-1]), int(outputs["token"][-1])
    if not math.isfinite(logit):
        raise SamplingError(f"the largest logit, of token {token}, is {logit}",
                            fix="the model's output is wrong: verify its kernels and weights before sampling")
    return token


@worded
def generate(compiled: CompiledGraph, prompt: Sequence[int], tokens: int, *, session: Session | None = None,
             sampling: Sampling | Sampler | None = None, stop: Sequence[int] = (),
             on_token: Callable[[int], None] | None = None, log_probabilities: bool = False) -> Generation:
    """Generate up to `tokens` ids by `stream`, on a new session or, continuing its conversation, on the given one. on_token: called
    with each id. log_probabilities: record these too. Calls of several threads on one session run one after the other, each to its
    end. Raises ArgumentError, the errors of `stream`, and RunError where a stream is open on the session or `on_token` requests
    more of it."""
    function("on_token", on_token, "the id of a token")
    cache_length(compiled)
    whole("tokens", tokens, 0)
    result = Generation(log_probabilities=[] if log_probabilities else None)
    session = compiled.session() if session is None else _held(session)
    with session.turn():
        for token in _stream(compiled, session, prompt, tokens, sampling, stop, result):
            if on_token is not None:
                on_token(token)
    return result
