"""generate: tokens from a compiled decoder: prefill the prompt, then one token at a time, on one session."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensor_graphs.frontends.errors import FrontendError, SamplingError
from tensor_graphs.frontends.sampling import Sampler, Sampling
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.runtime.session import Session


@dataclass
class Generation:
    """What a generation did. times in seconds; ids: the new ones."""

    ids: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    stopped: bool = False

    @property
    def tokens_per_second(self) -> float:
        """From the median decode step; 0 when there was none."""
        return 1.0 / float(np.median(self.step_seconds)) if self.step_seconds else 0.0


def check_room(prompt: Sequence[int], tokens: int, max_positions: int, vocabulary: int, most: int | None = None) -> None:
    """Raise FrontendError for a prompt that does not fit the cache, or ids outside of the vocabulary.

    max_positions: tokens that the cache holds; most: those for which the model has positions (None: any number).
    """
    if not prompt:
        raise FrontendError("the prompt is empty", fix="at least one token id is needed to predict the next")
    needed = len(prompt) + max(tokens, 1) - 1                        # the last token is not put into the cache
    if needed > max_positions:
        said = f"the prompt has {len(prompt)} tokens and {tokens} more are asked for, the cache holds {max_positions}"
        if most is None or needed <= most:
            raise FrontendError(said, fix=f"--max-positions {needed}, a shorter prompt, or fewer --tokens")
        longer = f"--max-positions {most} and " if most > max_positions else ""
        raise FrontendError(f"{said}; the model has positions for {most}",
                            fix=f"{longer}--tokens {most - len(prompt) + 1} or fewer" if len(prompt) <= most else
                                f"a prompt of at most {most} tokens")
    wrong = [i for i in prompt if not 0 <= i < vocabulary]
    if wrong:
        raise FrontendError(f"token id {wrong[0]} is outside of the vocabulary, 0 to {vocabulary - 1}")


def stream(compiled: CompiledGraph, session: Session, prompt: Sequence[int], tokens: int, *, sampling: Sampling | None = None,
           stop: Sequence[int] = (), result: Generation | None = None) -> Iterator[int]:
    """Yield up to `tokens` new token ids; stops behind one that is in `stop` (which is yielded too).

    compiled: of a decoder's graph; one whose output is `token` (see `gemma3_graph`) decodes greedily only. The session's caches
    must be empty (fresh or reset). Timings and ids go into `result`. Raises SamplingError for logits that are no numbers, and
    where draws are asked of a graph that gives the likeliest token only.
    """
    sampler = Sampler(sampling or Sampling())
    if "logits" not in compiled.graph.outputs and not sampler.sampling.greedy:
        raise SamplingError("the graph gives the likeliest token only, and a draw needs all logits",
                            fix="compile the model's `graph`, or decode greedily (temperature 0)")
    result = result if result is not None else Generation()
    ids = np.asarray(prompt, dtype=np.int32)
    past = 0
    for number in range(tokens):
        started = time.perf_counter()
        outputs = compiled.run({"ids": ids}, dims={"p": past, "m": 1}, session=session)
        try:
            token = sampler.pick(outputs["logits"][-1]) if "logits" in outputs else checked_token(outputs)
        except SamplingError as e:
            raise _with_source(e, compiled, session, ids, past) from None
        seconds = time.perf_counter() - started
        if number == 0:
            result.prefill_seconds = seconds
        else:
            result.step_seconds.append(seconds)
        past += len(ids)
        ids = np.array([token], dtype=np.int32)
        result.ids.append(token)
        yield token
        if token in stop:
            result.stopped = True
            return


def _with_source(error: SamplingError, compiled: CompiledGraph, session: Session, ids: np.ndarray, past: int) -> SamplingError:
    """The error, and which tensor held the first NaN: the run is made again, which writes the same rows of the caches."""
    source = compiled.first_nan({"ids": ids}, dims={"p": past, "m": 1}, session=session)
    if source is None:
        return error
    said = str(error).removeprefix("SamplingError: ").partition("\n")[0]
    return SamplingError(f"{said}; the first NaN is in {source}",
                         fix="repair the weights of the model" if source.startswith("parameter") else
                             "verify this kernel: tg conformance, tg db failures")


def checked_token(outputs: Mapping[str, np.ndarray]) -> int:
    """The last position's token. Raises SamplingError when its logit is NaN or infinite: the model is wrong."""
    logit, token = float(outputs["logit"][-1]), int(outputs["token"][-1])
    if not math.isfinite(logit):
        raise SamplingError(f"the largest logit, of token {token}, is {logit}",
                            fix="the model's output is wrong: verify its kernels and weights before sampling")
    return token


def generate(compiled: CompiledGraph, prompt: Sequence[int], tokens: int, *, session: Session | None = None,
             sampling: Sampling | None = None, stop: Sequence[int] = (),
             on_token: Callable[[int], None] | None = None) -> Generation:
    """Run `stream` to its end; on_token is called with each id."""
    result = Generation()
    for token in stream(compiled, session or compiled.session(), prompt, tokens, sampling=sampling, stop=stop, result=result):
        if on_token is not None:
            on_token(token)
    return result
