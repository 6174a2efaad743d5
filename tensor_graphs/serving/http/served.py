"""served: the model behind a server and its limits; prompts of requests become generation requests here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tensor_graphs.frontends.text.token_bytes import token_bytes
from tensor_graphs.frontends.text.tokenizer import Tokenizer
from tensor_graphs.serving.http.errors import RequestFailure
from tensor_graphs.serving.http.schemas import ChatBody, CompletionBody, GenerationBody
from tensor_graphs.serving.json_masks import JsonMasks
from tensor_graphs.serving.requests import Engine, GenerationRequest, RunningGeneration


@dataclass(frozen=True)
class RequestLimits:
    """Limits of a server. prompt: tokens. body: bytes. waiting: requests that wait for an encoder (an engine counts its own).
    seconds: from a request to the end of its answer. key: what clients send as a bearer token; None lets everyone in."""

    prompt: int | None = None
    body: int = 16 << 20
    waiting: int = 64
    seconds: float = 600.0
    key: str | None = None


@dataclass(frozen=True)
class Served:
    """A model behind a server: a decoder with an engine, or an encoder with `embed` (ids of texts -> vectors). other_names: names
    that requests may use, too.

    Raises TokenizerError of the tokenizer where a prompt cannot become tokens, RequestFailure for requests out of limits.
    """

    name: str
    tokenizer: Tokenizer
    max_positions: int
    engine: Engine | None = None
    embed: Callable[[Sequence[Sequence[int]]], Sequence[np.ndarray[Any, Any]] | np.ndarray[Any, Any]] | None = None
    end_ids: frozenset[int] = frozenset()
    other_names: frozenset[str] = frozenset()

    @cached_property
    def masks(self) -> JsonMasks:
        assert self.engine is not None
        return JsonMasks(self.tokenizer, self.engine.vocabulary, sorted(self.end_ids))

    def decoder(self) -> Engine:
        if self.engine is None:
            raise RequestFailure(400, f"{self.name} is an encoder, which embeds and does not generate", field="model")
        return self.engine

    def check_name(self, name: str | None) -> None:
        if name is not None and name != self.name and name not in self.other_names:
            raise RequestFailure(404, f"there is no model {name!r:.200} here; this server has {self.name}", field="model",
                                 code="model_not_found")

    def prompts(self, body: GenerationBody) -> list[list[int]]:
        """Return the ids of each prompt of a body."""
        if isinstance(body, ChatBody):
            text = self.tokenizer.chat([message.plain for message in body.messages], **body.variables)
            return [self.tokenizer.encode(text, special_tokens=False)]
        assert isinstance(body, CompletionBody)
        return self.encoded(body.prompt, "prompt")

    def encoded(self, prompt: Any, field: str) -> list[list[int]]:
        """Return lists of ids for a text, texts, ids, or lists of ids. Raises RequestFailure for a text that would be cut."""
        items = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        prompts = [self.tokenizer.encode_and_cut(item) if isinstance(item, str) else (item, 0) for item in items]
        for ids, cut in prompts:
            if cut:
                raise RequestFailure(400, f"the text has {cut} tokens more than the {len(ids)} that {self.name} reads", field=field,
                                     code="context_length_exceeded")
        return [ids for ids, _ in prompts]

    def check_length(self, prompt: Sequence[int], tokens: int, most: int | None, field: str) -> None:
        """Raise RequestFailure for a prompt with too many tokens, alone or together with the new ones."""
        if len(prompt) + tokens - 1 > self.max_positions or (most is not None and len(prompt) > most):
            room = self.max_positions if most is None else min(most, self.max_positions)
            more = f" and {tokens} more are asked for" if tokens > 1 else ""
            raise RequestFailure(400, f"the prompt has {len(prompt)} tokens{more}; {self.name} takes prompts of {room} tokens, and "
                                      f"{self.max_positions} with the answer", field=field, code="context_length_exceeded")

    def requests(self, body: GenerationBody, limits: RequestLimits) -> list[GenerationRequest]:
        """Return the requests of a body: n for each prompt. Slow (templates, grammars): not for the event loop."""
        self.decoder()
        field = "messages" if isinstance(body, ChatBody) else "prompt"
        prompts = self.prompts(body)
        for prompt in prompts:
            self.check_length(prompt, body.most_tokens or 1, limits.prompt, field)
        each_prompt = [prompt for prompt in prompts for _ in range(body.n or 1)]
        schema, stop_ids = body.json_schema, frozenset() if body.ignore_eos else self.end_ids
        return [GenerationRequest(tuple(prompt), body.most_tokens, sampling, stop_ids, body.likeliest,
                                  None if schema is None else self.masks.mask(schema))
                for prompt, sampling in zip(each_prompt, body.samplings(len(each_prompt)), strict=True)]

    def submit(self, requests: Sequence[GenerationRequest]) -> list[RunningGeneration]:
        """Queue all requests, or none: when one is refused, the others are cancelled."""
        running: list[RunningGeneration] = []
        try:
            for request in requests:
                running.append(self.decoder().submit(request))
        except BaseException:
            for generation in running:
                generation.cancel()
            raise
        return running

    def token_text(self, token: int) -> tuple[str, list[int]]:
        """Return a token's text (U+FFFD for a part of a character) and its bytes."""
        data = token_bytes(self.tokenizer, token)
        return data.decode(errors="replace"), list(data)
