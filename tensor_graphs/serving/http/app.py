"""app: the routes of the server."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from anyio.to_thread import run_sync
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tensor_graphs.serving.http.choices import AnswerChoices
from tensor_graphs.serving.http.errors import DOCUMENTED, RequestFailure, handle_errors
from tensor_graphs.serving.http.metrics import Metrics
from tensor_graphs.serving.http.responses import Answer, ChatAnswer, usage
from tensor_graphs.serving.http.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    GenerationBody,
    TokenizeBody,
)
from tensor_graphs.serving.http.served import RequestLimits, Served
from tensor_graphs.serving.requests import QueueFullError

PAGE = Path(__file__).with_name("page.html")
PAGE_POLICY = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
               "base-uri 'none'")
STREAMED: dict[int | str, Any] = {200: {"content": {"text/event-stream": {}}}}


class EventStream(StreamingResponse):
    """Server-sent events; the generations end with the response, also where a client leaves before its first byte."""

    def __init__(self, events: AsyncIterator[bytes], choices: AnswerChoices) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._choices = choices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._choices.cancel()


class Routes:
    """Handlers of the routes, over one model."""

    def __init__(self, served: Served, limits: RequestLimits, metrics: Metrics) -> None:
        self._served, self._limits, self._metrics = served, limits, metrics
        self._encoder = anyio.CapacityLimiter(1)
        self._started = int(time.time())

    def router(self) -> APIRouter:
        router = APIRouter(responses=DOCUMENTED)
        router.get("/health")(self.health)
        router.get("/metrics", response_class=PlainTextResponse)(self.metrics)
        router.get("/", include_in_schema=False)(self.page)
        for prefix in ("/v1", ""):                   # some clients' base URL ends with /v1, that of others does not
            shown = prefix != ""
            router.get(prefix + "/models", include_in_schema=shown)(self.models)
            router.get(prefix + "/models/{name:path}", include_in_schema=shown)(self.model)
            router.post(prefix + "/completions", responses=STREAMED, include_in_schema=shown)(self.completions)
            router.post(prefix + "/chat/completions", responses=STREAMED, include_in_schema=shown)(self.chat)
            router.post(prefix + "/embeddings", include_in_schema=shown)(self.embeddings)
        router.post("/tokenize")(self.tokenize)
        router.post("/detokenize")(self.detokenize)
        return router

    async def health(self) -> dict[str, Any]:
        return {"status": "ok"}

    async def metrics(self) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def page(self) -> Response:
        return HTMLResponse(PAGE.read_bytes(), headers={"Content-Security-Policy": PAGE_POLICY})

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [await self.model(self._served.name)]}

    async def model(self, name: str) -> dict[str, Any]:
        self._served.check_name(name)
        served = self._served
        chats = ["chat"] if served.tokenizer.has_chat_template else []
        takes = ["embeddings"] if served.engine is None else ["completions", *chats]
        return {"id": served.name, "object": "model", "created": self._started, "owned_by": "tensor_graphs",
                "max_model_len": served.max_positions, "takes": takes}

    async def completions(self, body: CompletionBody, request: Request) -> Response:
        return await self._answer(body, request)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        if body.top_logprobs is not None and not body.logprobs:
            raise RequestFailure(400, "top_logprobs needs logprobs: true", field="top_logprobs")
        return await self._answer(body, request)

    async def _answer(self, body: GenerationBody, request: Request) -> Response:
        started, served = time.perf_counter(), self._served
        served.check_name(body.model)
        requests = await run_sync(served.requests, body, self._limits)
        logs = body.likeliest is not None
        form = ChatAnswer(served, logs) if isinstance(body, ChatBody) else Answer(served, logs)
        running = await run_sync(served.submit, requests)
        choices = AnswerChoices(running, served.tokenizer, body.stop_texts, self._limits.seconds)
        prompt_tokens = sum(len(r.prompt) for r in requests) // (body.n or 1)

        def counted() -> dict[str, Any]:
            return usage(prompt_tokens, choices.cached_tokens, choices.tokens)

        async def pieces() -> AsyncIterator[Any]:
            async for piece in choices.pieces():
                if piece.token is not None and choices.tokens == 1:
                    self._metrics.first_token.observe(time.perf_counter() - started)
                yield piece

        async def events() -> AsyncIterator[bytes]:
            try:
                for first in form.first(len(requests)):
                    yield event(first)
                async for piece in pieces():
                    if (chunk := form.chunk(piece)) is not None:
                        yield event(chunk)
                if body.stream_options is not None and body.stream_options.include_usage:
                    yield event(form.usage(counted()))
                yield b"data: [DONE]\n\n"
            except RequestFailure as failure:
                yield event(failure.document)

        if body.stream:
            return EventStream(events(), choices)
        try:
            return JSONResponse(form.whole(await while_connected(request, collected(pieces())), counted()))
        finally:
            choices.cancel()

    async def embeddings(self, body: EmbeddingBody) -> Response:
        served = self._served
        served.check_name(body.model)
        if served.embed is None:
            raise RequestFailure(400, f"{served.name} generates text and does not embed", field="model")
        if body.dimensions is not None:
            raise RequestFailure(400, "dimensions: vectors are as long as the model makes them", field="dimensions")
        inputs = await run_sync(served.encoded, body.input, "input")
        for ids in inputs:
            served.check_length(ids, 1, self._limits.prompt, "input")
        if self._encoder.statistics().tasks_waiting >= self._limits.waiting:
            raise QueueFullError(f"{self._limits.waiting} requests are waiting already")
        embed = served.embed
        vectors = await run_sync(lambda: [np.asarray(vector, dtype="<f4") for vector in embed(inputs)], limiter=self._encoder)
        data = [{"object": "embedding", "index": i,
                 "embedding": base64.b64encode(v.tobytes()).decode() if body.encoding_format == "base64" else v.tolist()}
                for i, v in enumerate(vectors)]
        count = sum(map(len, inputs))
        return JSONResponse({"object": "list", "data": data, "model": served.name,
                             "usage": {"prompt_tokens": count, "total_tokens": count}})

    async def tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        return {"tokens": self._served.tokenizer.encode(body.content, special_tokens=bool(body.add_special))}

    async def detokenize(self, body: DetokenizeBody) -> dict[str, Any]:
        return {"content": self._served.tokenizer.decode(body.tokens)}


def event(document: Any) -> bytes:
    """Return a server-sent event with a JSON document."""
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()


async def collected(pieces: AsyncIterator[Any]) -> list[Any]:
    return [piece async for piece in pieces]


async def while_connected(request: Request, work: Any) -> Any:
    """Return the result of a coroutine, which is cancelled when the client leaves. Raises RequestFailure then."""
    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        raise RequestFailure(499, "the client left")
    finally:
        for task in tasks:
            task.cancel()


def app(served: Served, limits: RequestLimits, metrics: Metrics) -> FastAPI:
    """Return the application without its door."""
    application = FastAPI(title=f"tensor_graphs: {served.name}", redoc_url=None)
    application.include_router(Routes(served, limits, metrics).router())
    handle_errors(application)
    return application
