"""responses: documents of answers in OpenAI's two forms, completions and chats, whole or as chunks of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from tensor_graphs.choice.storing import package_digest
from tensor_graphs.serving.http.choices import TextPiece
from tensor_graphs.serving.http.served import Served
from tensor_graphs.serving.requests import NewToken

FINGERPRINT = f"b{package_digest()[:12]}"
"""what clients compare to learn that answers to the same seed may differ: the code of this package"""

LEAST_LOG = -9999.0
"""logarithm reported for a probability of 0, which JSON cannot say otherwise"""


class Answer:
    """Form of the answer to /v1/completions. logs: with log probabilities."""

    name, chunk_name, prefix = "text_completion", "text_completion", "cmpl-"

    def __init__(self, served: Served, logs: bool) -> None:
        self._served, self._logs = served, logs
        self._frame = {"id": self.prefix + secrets.token_hex(12), "created": int(time.time()), "model": served.name,
                       "system_fingerprint": FINGERPRINT}

    def whole(self, pieces: Sequence[TextPiece], usage: dict[str, Any]) -> dict[str, Any]:
        """Return the document of all choices."""
        endings = {piece.choice: piece.ending for piece in pieces if piece.ending}
        choices = []
        for number in sorted(endings):
            own = [piece for piece in pieces if piece.choice == number]
            choices.append(self._choice(number, "".join(piece.text for piece in own), own, endings[number], True))
        return {**self._frame, "object": self.name, "choices": choices, "usage": usage}

    def chunk(self, piece: TextPiece) -> dict[str, Any] | None:
        """Return the chunk for a piece; None when it would be empty."""
        if not piece.text and piece.ending is None and not self._logs:
            return None
        return self._chunk([self._choice(piece.choice, piece.text, [piece], piece.ending, False)])

    def first(self, count: int) -> list[dict[str, Any]]:
        """Return the chunks before all pieces."""
        return []

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk with the numbers of tokens."""
        return {**self._chunk([]), "usage": usage}

    def _chunk(self, choices: list[Any]) -> dict[str, Any]:
        return {**self._frame, "object": self.chunk_name, "choices": choices}

    def _choice(self, number: int, text: str, pieces: Sequence[TextPiece], ending: str | None, whole: bool) -> dict[str, Any]:
        return self._with(number, {"text": text}, pieces, ending)

    def _with(self, number: int, text: dict[str, Any], pieces: Sequence[TextPiece], ending: str | None) -> dict[str, Any]:
        tokens = [(piece.token, piece.start) for piece in pieces if piece.token is not None]
        logs = self._log_probabilities(tokens) if self._logs and tokens else None
        return {"index": number, **text, "logprobs": logs, "finish_reason": ending}

    def _log_probabilities(self, tokens: Sequence[tuple[NewToken, int]]) -> dict[str, Any]:
        """Return the form's logarithms of tokens and of their alternatives. tokens: each with the characters before it."""
        return {"tokens": [self._text(token.id) for token, _ in tokens], "token_logprobs": [_log(token) for token, _ in tokens],
                "top_logprobs": [{self._text(i): max(log, LEAST_LOG) for i, log in token.likeliest} for token, _ in tokens],
                "text_offset": [start for _, start in tokens]}

    def _text(self, token: int) -> str:
        return self._served.token_text(token)[0]


class ChatAnswer(Answer):
    """Form of the answer to /v1/chat/completions."""

    name, chunk_name, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def first(self, count: int) -> list[dict[str, Any]]:
        return [self._chunk([self._with(i, {"delta": {"role": "assistant", "content": ""}}, (), None)]) for i in range(count)]

    def _choice(self, number: int, text: str, pieces: Sequence[TextPiece], ending: str | None, whole: bool) -> dict[str, Any]:
        if whole:
            return self._with(number, {"message": {"role": "assistant", "content": text, "refusal": None}}, pieces, ending)
        return self._with(number, {"delta": {"content": text} if text else {}}, pieces, ending)

    def _log_probabilities(self, tokens: Sequence[tuple[NewToken, int]]) -> dict[str, Any]:
        return {"content": [{**self._entry(token.id, _log(token)),
                             "top_logprobs": [self._entry(i, log) for i, log in token.likeliest]} for token, _ in tokens],
                "refusal": None}

    def _entry(self, token: int, log: float) -> dict[str, Any]:
        text, data = self._served.token_text(token)
        return {"token": text, "logprob": max(log, LEAST_LOG), "bytes": data}


def _log(token: NewToken) -> float:
    return LEAST_LOG if token.log_probability is None else max(token.log_probability, LEAST_LOG)


def usage(prompt: int, cached: int, new: int) -> dict[str, Any]:
    """Return the numbers of tokens in OpenAI's form."""
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": cached}}
