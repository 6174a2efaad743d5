"""choices: one answer to a request, from the engine's tokens to pieces of text on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tensor_graphs.frontends.text.tokenizer import StreamingDecoder, Tokenizer
from tensor_graphs.serving.http.errors import RequestFailure, log
from tensor_graphs.serving.requests import NewToken, RunningGeneration

Ending = Literal["stop", "length"]


@dataclass(frozen=True)
class TextPiece:
    """Text of a choice that became certain. start: number of the answer's characters before it. token: the token that it came
    with, None at the end. ending: reason of the end, with the last piece."""

    choice: int
    text: str
    start: int
    token: NewToken | None = None
    ending: Ending | None = None


class AnswerChoices:
    """The answers to one request. Each is read by a thread of its own, since an engine's iterators block.

    tokens: number of new tokens so far. Whoever reads the pieces calls `cancel` at the end, however it comes.
    """

    def __init__(self, running: Sequence[RunningGeneration], tokenizer: Tokenizer, stop_texts: Sequence[str],
                 seconds: float) -> None:
        self._running, self._tokenizer, self._loop = running, tokenizer, asyncio.get_running_loop()
        self._queue: asyncio.Queue[TextPiece | Exception] = asyncio.Queue()
        late = RequestFailure(504, f"the answer took longer than {seconds:g} s")
        self._deadline = self._loop.call_later(seconds, self._queue.put_nowait, late)
        self.tokens = 0
        for work in enumerate(running):
            decoder = tokenizer.stream(stop_texts=stop_texts)
            threading.Thread(target=self._read, args=(*work, decoder), name="choice", daemon=True).start()

    @property
    def cached_tokens(self) -> int:
        """Tokens of prompts whose keys and values were shared with earlier requests, counted once for each choice."""
        return sum(generation.cached_tokens for generation in self._running)

    def cancel(self) -> None:
        """End all generations that still run."""
        self._deadline.cancel()
        for generation in self._running:
            generation.cancel()

    async def pieces(self) -> AsyncIterator[TextPiece]:
        """Yield the pieces of all choices as they come. Raises RequestFailure when the engine fails, closes, or takes too long."""
        open_choices = len(self._running)
        while open_choices:
            piece = await self._queue.get()
            await asyncio.sleep(0)                   # `get` of a full queue gives way to nobody: not to a client that leaves either
            if isinstance(piece, Exception):
                raise piece
            self.tokens += piece.token is not None
            open_choices -= piece.ending is not None
            yield piece

    def _read(self, choice: int, generation: RunningGeneration, decoder: StreamingDecoder) -> None:
        """Put the pieces of a choice into the queue: the work of its thread."""
        start = 0
        try:
            for token in generation:
                # a model may have more ids than its vocabulary: tables are padded
                text = decoder.push(token.id) if self._tokenizer.splitter.id_to_token(token.id) is not None else ""
                self._put(TextPiece(choice, text, start, token))
                start += len(text)
                if decoder.stopped:
                    generation.cancel()
                    break
            ending: Ending = "stop" if decoder.stopped or generation.finish == "stop" else "length"
            if generation.finish == "cancelled" and not decoder.stopped:
                self._put(RequestFailure(503, "the server stops"))
            else:
                self._put(TextPiece(choice, decoder.finish(), start, ending=ending))
        except Exception as error:
            log.exception("a generation failed")
            self._put(RequestFailure(500, f"the generation failed: {type(error).__name__}"))

    def _put(self, item: TextPiece | Exception) -> None:
        with contextlib.suppress(RuntimeError):      # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
