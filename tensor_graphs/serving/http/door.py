"""door: what stands before all routes: the key, limits of bodies and of waiting for clients, the access log, counts."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensor_graphs.serving.http.errors import RequestFailure
from tensor_graphs.serving.http.metrics import Metrics
from tensor_graphs.serving.http.served import RequestLimits

log = logging.getLogger("tensor_graphs.serving.http.access")

PATIENCE = 60.0
"""seconds that a client may take to send its body, or to read a chunk of the response"""
OPEN = frozenset({"/", "/health", "/metrics", "/docs", "/openapi.json"})
"""paths that need no key"""


class Door:
    """ASGI middleware in front of an app. is_stopping: new requests get 503."""

    def __init__(self, app: ASGIApp, limits: RequestLimits, metrics: Metrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self.is_stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, size, complete = time.perf_counter(), 0, 0, False

        async def limited() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), PATIENCE)
            except TimeoutError:
                raise HTTPException(408, f"the body did not come within {PATIENCE:g} s") from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > self._limits.body:
                raise HTTPException(413, f"the body has more than {self._limits.body} bytes")
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            async with asyncio.timeout(PATIENCE):
                await send(message)

        try:
            refused = self._refusal(scope)
            await (self._app if refused is None else refused.response)(scope, limited, noted)
        finally:
            seconds, route = time.perf_counter() - started, getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status or 499)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            log.info("%s %s %r %d %.1f ms", (scope.get("client") or ("-",))[0], scope["method"], scope["path"][:200], status or 499,
                     seconds * 1e3)

    def _refusal(self, scope: Scope) -> RequestFailure | None:
        """Return the failure for a request that no route should see, before its body is read."""
        headers = dict(scope["headers"])
        if self.is_stopping:
            return RequestFailure(503, "the server stops")
        if self._limits.key is not None and scope["path"] not in OPEN:
            kind, _, sent = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(sent.strip(), self._limits.key.encode()):
                return RequestFailure(401, "a valid key is needed: Authorization: Bearer KEY")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._limits.body:
            return RequestFailure(413, f"the body has more than {self._limits.body} bytes")
        return None
