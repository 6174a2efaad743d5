"""scheduler: packs the next step of many sequences: tokens that decode first, then pieces of prompts, within a budget of tokens.

Sequences are served in order of arrival, except that one whose prompt begins with pages that another one is computing waits for
these. When no page is left for one that decodes, the one that arrived last gives its pages back
and waits; its tokens, generated ones too, are computed again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensor_graphs.serving.pages import Pages


@dataclass(eq=False)
class TokenSequence:
    """Tokens of one request, prompt and generated. lengths: as in `Facts`. prompt: how many are of the prompt. computed: how many
    have keys and values in `pages`. shared: how many of the prompt were there already; None before the first step."""

    tokens: list[int]
    lengths: tuple[int, int | None] | None = None
    prompt: int = 0
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    shared: int | None = None

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    @property
    def missing(self) -> int:
        """Tokens whose keys and values are not computed."""
        return len(self.tokens) - self.computed

    def ends(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return i32[stop - start]: the length of the text when each of these tokens came, which rotations may depend on."""
        assert self.lengths is not None
        return np.clip(np.maximum(self.prompt, np.arange(start, stop, dtype=np.int32) + 1), *self.lengths)

    def names(self, start: int, stop: int) -> Sequence[Hashable]:
        """Return what the keys and values of these tokens depend on, besides earlier tokens."""
        tokens = self.tokens[start:stop]
        return tokens if self.lengths is None else list(zip(tokens, self.ends(start, stop).tolist(), strict=True))


@dataclass(frozen=True)
class Portion:
    """`count` tokens of a sequence in one step, from number `start` on."""

    sequence: TokenSequence
    start: int
    count: int

    @property
    def last(self) -> bool:
        """True if the step computes the sequence's last token, whose logits give the next."""
        return self.start + self.count == len(self.sequence.tokens)


class Scheduler:
    """Sequences that run and that wait. tokens: most in one step; sequences: most that run together, tokens ≥ sequences."""

    def __init__(self, pages: Pages, *, tokens: int, sequences: int) -> None:
        self.pages, self.tokens, self.sequences = pages, tokens, sequences
        self.running: list[TokenSequence] = []                       # in order of arrival
        self.waiting: deque[TokenSequence] = deque()
        self.preemptions = 0

    def add(self, sequence: TokenSequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """Forget a sequence that ended or was cancelled; its pages are free, and full ones may be shared."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    @property
    def decoding(self) -> int:
        """Number of sequences that get one token each in the next step."""
        return sum(sequence.missing == 1 for sequence in self.running)

    def step(self, prompts: int | None = None) -> list[Portion]:
        """Return the pieces of the next step; none if nothing runs or waits. prompts: most tokens of those that do not decode."""
        pieces, left = [], self.tokens
        for sequence in [s for s in self.running if s.missing == 1]:
            while sequence in self.running and not self._room(sequence, 1):
                self._preempt()
            if sequence in self.running:
                pieces.append(Portion(sequence, sequence.computed, 1))
                left -= 1
        left = left if prompts is None else min(left, prompts)
        for sequence in [s for s in self.running if s.missing > 1]:
            left -= self._add_piece(pieces, sequence, left)
        for sequence in list(self.waiting):
            if not left or len(self.running) == self.sequences:
                break
            sequence.pages = self.pages.shared(sequence.names(0, len(sequence.tokens)))
            if self._prefix_is_coming(sequence):
                self._release(sequence)
                continue
            needed = -(-len(sequence.tokens) // self.pages.page) - len(sequence.pages)
            if needed + len(self.running) > self.pages.free:        # those that run may each need another page soon
                self._release(sequence)
                break
            sequence.computed = len(sequence.pages) * self.pages.page
            if sequence.shared is None:
                sequence.shared = sequence.computed
            self.waiting.remove(sequence)
            self.running.append(sequence)
            left -= self._add_piece(pieces, sequence, left)
        if not pieces and len(self.running) > 1:                # prompts in pieces wait for each other's pages
            self._preempt()
            return self.step(prompts)
        return pieces

    def done(self, pieces: list[Portion]) -> None:
        """Note that the keys and values of these pieces are computed. Pages that became full may be shared from now on."""
        page = self.pages.page
        for piece in pieces:
            sequence = piece.sequence
            sequence.computed = piece.start + piece.count
            for index in range(piece.start // page, sequence.computed // page):
                self.pages.full(sequence.pages, index, sequence.names(index * page, (index + 1) * page))

    def _prefix_is_coming(self, sequence: TokenSequence) -> bool:
        """Return whether a sequence that runs computes the next full page of this one's prompt."""
        end = (len(sequence.pages) + 1) * self.pages.page
        return end < len(sequence.tokens) and any(other.computed < end <= len(other.tokens)
                                                  and other.names(0, end) == sequence.names(0, end) for other in self.running)

    def _add_piece(self, pieces: list[Portion], sequence: TokenSequence, left: int) -> int:
        """Append a piece of at most `left` tokens, as many as pages have room for, and return its length."""
        count = min(left, sequence.missing)
        self._room(sequence, count)
        count = min(count, len(sequence.pages) * self.pages.page - sequence.computed)
        if count > 0:
            pieces.append(Portion(sequence, sequence.computed, count))
        return count

    def _room(self, sequence: TokenSequence, count: int) -> bool:
        """Return whether the sequence has pages for `count` more tokens, after it took those that are free."""
        needed = -(-(sequence.computed + count) // self.pages.page)
        while len(sequence.pages) < needed:
            page = self.pages.take()
            if page is None:
                return False
            sequence.pages.append(page)
        return True

    def _preempt(self) -> None:
        last = self.running.pop()
        self._release(last)
        self.waiting.appendleft(last)
        self.preemptions += 1

    def _release(self, sequence: TokenSequence) -> None:
        self.pages.give_back(sequence.pages)
        sequence.pages, sequence.computed = [], 0


class StepTimes:
    """Seconds that steps took, as seconds of a step that only decodes plus seconds for each token of a prompt. From these follows
    how many tokens of prompts a step takes without making those that decode wait longer than STALL such steps."""

    STALL = 2.0
    LEAST, FIRST = 16, 32
    """tokens of prompts in a step: at least, and before any was timed"""

    def __init__(self) -> None:
        self._alone: float | None = None
        self._token: float | None = None

    def note(self, decoding: int, prompts: int, seconds: float) -> None:
        """Note a step of a number of sequences that decode and of tokens of prompts."""
        def average(before: float | None, now: float) -> float:
            return now if before is None else before + 0.2 * (now - before)

        if not prompts:
            self._alone = average(self._alone, seconds)
        elif self._alone is not None or not decoding:
            self._token = average(self._token, max(seconds - (self._alone or 0.0), 0.0) / prompts)

    def prompts(self, decoding: int) -> int | None:
        """Return the most tokens of prompts in a step next to this number of sequences that decode; None: no limit."""
        if not decoding:
            return None
        if self._alone is None or not self._token:
            return self.FIRST
        return max(self.LEAST, int((self.STALL - 1.0) * self._alone / self._token))
