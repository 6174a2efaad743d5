"""requests: generation requests, their tokens, and the protocol of an engine that answers many of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.serving.sampling import Sampling

TokenMask = Callable[[Sequence[int]], "np.ndarray[Any, Any] | None"]
"""Function from the new ids so far to the ids that may follow, bool [vocabulary]; None allows all."""

Finish = Literal["length", "stop", "cancelled"]


class QueueFullError(FrontendError):
    """A request that was refused as too many others are waiting."""


class EngineClosedError(FrontendError):
    """A request to an engine that was closed, or that a failed kernel ended."""


@dataclass(frozen=True)
class GenerationRequest:
    """Prompt and settings of one generation.

    prompt: ids. tokens: most new ids (None: as many as positions allow). stop_ids: ids that end it; they are not yielded.
    log_probabilities: number of likeliest ids to report beside each new id (None: no logarithms at all). allowed: mask for
    constrained decoding, called before each choice.
    """

    prompt: tuple[int, ...]
    tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    log_probabilities: int | None = None
    allowed: TokenMask | None = None


@dataclass(frozen=True)
class NewToken:
    """Generated id. log_probability: natural logarithm of the model's probability of it; likeliest: (id, logarithm) pairs."""

    id: int
    log_probability: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()


class RunningGeneration(Protocol):
    """Handle of a submitted request, used by one reader thread; `cancel` may be called from any thread."""

    finish: Finish | None
    """reason of the end; None while it runs"""

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt whose keys and values were shared with earlier requests."""
        ...

    def __iter__(self) -> Iterator[NewToken]: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True)
class EngineStatus:
    """Counts of an engine at one moment; totals run from its start. pages: size of the page pool."""

    running: int
    waiting: int
    pages: int
    free_pages: int
    prompt_tokens: int
    shared_tokens: int
    new_tokens: int
    preemptions: int


class Engine(Protocol):
    """Answers many requests at once; its methods may be called from any thread."""

    vocabulary: int
    max_positions: int

    def submit(self, request: GenerationRequest) -> RunningGeneration:
        """Queue a request. Raises FrontendError for one that can never run, QueueFullError when too many are waiting."""
        ...

    def status(self) -> EngineStatus: ...

    def close(self) -> None:
        """Cancel what runs and end the engine's thread."""
        ...
