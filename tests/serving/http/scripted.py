"""scripted: an engine that says what a test tells it to, a tokenizer of single bytes, and a server over both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from fastapi.testclient import TestClient

from tensor_graphs.frontends.text.token_bytes import byte_level_characters
from tensor_graphs.frontends.text.tokenizer import Tokenizer
from tensor_graphs.serving.http.app import app
from tensor_graphs.serving.http.door import Door
from tensor_graphs.serving.http.metrics import Metrics
from tensor_graphs.serving.http.served import RequestLimits, Served
from tensor_graphs.serving.requests import EngineStatus, Finish, GenerationRequest, NewToken, QueueFullError

END = 256
"""id of <end>"""

CHAT = ("{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}"
        "{{ raise_exception('only users, assistants, tools and systems may speak') }}{% endif %}"
        "[{{ m.role }}] {{ m.content }}\n"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}\n{% endif %}{% endfor %}"
        "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{% if mood %}mood: {{ mood }}\n{% endif %}[assistant] ")


def byte_tokenizer(folder: Path, template: str | None = CHAT) -> Tokenizer:
    """A token per byte (id = its value), and <end>."""
    splitter = tokenizers.Tokenizer(tokenizers.models.BPE(dict(byte_level_characters()), merges=[]))
    splitter.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitter.decoder = tokenizers.decoders.ByteLevel()
    splitter.add_special_tokens(["<end>"])
    return Tokenizer(folder, splitter, end_ids=(END,), template=template)


@dataclass
class ScriptedGeneration:
    """Yields ids, or the bytes of a text, up to one that the mask forbids; waits for the gate before each one."""

    text: str | list[int]
    request: GenerationRequest
    gate: threading.Event
    finish: Finish | None = None
    cached_tokens: int = 3
    cancelled: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None

    def __iter__(self) -> Iterator[NewToken]:
        new: list[int] = []
        for number, byte in enumerate(self.text.encode() if isinstance(self.text, str) else self.text):
            while not self.gate.wait(0.005) and not self.cancelled.is_set():
                pass
            if self.cancelled.is_set():
                self.finish = "cancelled"
                return
            if number == self.request.tokens:
                self.finish = "length"
                return
            if self.request.allowed is not None and not self.request.allowed(new)[byte]:     # type: ignore[index]
                self.finish = "stop"
                return
            new.append(byte)
            count = self.request.log_probabilities
            yield NewToken(byte) if count is None else NewToken(byte, -0.5, ((byte, -0.5), (120, -float("inf")))[:count])
        if self.failure is not None:
            raise self.failure
        self.finish = "length" if len(new) == self.request.tokens else "stop"

    def cancel(self) -> None:
        self.cancelled.set()


class ScriptedEngine:
    """says: function from a request and its number to the answer, a text or ids. most: requests before QueueFullError."""

    vocabulary, max_positions = 260, 4096

    def __init__(self, says: Callable[[GenerationRequest, int], str | list[int]] | str, most: int = 1000) -> None:
        self.says = (lambda request, number: says) if isinstance(says, str) else says
        self.most, self.generations, self.gate, self.failure = most, [], threading.Event(), None
        self.gate.set()
        self.closed = 0

    def submit(self, request: GenerationRequest) -> ScriptedGeneration:
        if len(self.generations) >= self.most:
            raise QueueFullError(f"{self.most} requests are waiting already")
        text = self.says(request, len(self.generations))
        self.generations.append(ScriptedGeneration(text, request, self.gate, failure=self.failure))
        return self.generations[-1]

    def status(self) -> EngineStatus:
        return EngineStatus(1, 2, 30, 4, 500, 60, 70, 8)

    def close(self) -> None:
        self.closed += 1
        for generation in self.generations:
            generation.cancel()

    def prompts(self) -> list[str]:
        """The texts that were asked for."""
        return [bytes(generation.request.prompt).decode() for generation in self.generations]


def served(engine: ScriptedEngine, folder: Path, template: str | None = CHAT) -> Served:
    return Served("scripted", byte_tokenizer(folder, template), engine.max_positions, engine, end_ids=frozenset({END}))


def client(engine: ScriptedEngine | None, folder: Path, limits: RequestLimits | None = None,
           template: str | None = CHAT) -> TestClient:
    """A client of a server in this process; an encoder without an engine."""
    limits = limits or RequestLimits()

    def embed(texts: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
        return np.array([[len(ids), sum(ids), 0.5] for ids in texts], np.float32)

    reader = byte_tokenizer(folder)
    reader.splitter.enable_truncation(512)
    model = Served("vectors", reader, 512, embed=embed) if engine is None else served(engine, folder, template)
    metrics = Metrics(engine)
    return TestClient(Door(app(model, limits, metrics), limits, metrics), raise_server_exceptions=False)


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait for a condition; fail when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
