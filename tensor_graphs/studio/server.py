"""server: the page and its views of a database on this machine alone, read-only; new rows reach the page as they are stored."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tensor_graphs.records import browsing
from tensor_graphs.records.database import Database
from tensor_graphs.records.errors import DatabaseError
from tensor_graphs.serving.http.server import QuietServer
from tensor_graphs.studio.database import ViewError, rows_of, view
from tensor_graphs.studio.page import json_text

HOST = "127.0.0.1"
"""the only address: the page has no key"""

POLICY = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
          "form-action 'none'; frame-ancestors 'none'")
EVERY, SILENT = 0.5, 20
"""seconds between two looks for new rows; looks without any after which a line keeps the connection alive"""


class StudioRoutes:
    """Handlers over one page and one database; none changes anything. stopping: ends the streams of new rows."""

    def __init__(self, page: str, database: Database) -> None:
        self._page, self._database = page, database
        self.stopping = asyncio.Event()

    def app(self) -> Starlette:
        """Return the routes. Only requests that name this machine are answered, so that no other site's script reads the rows."""
        routes = [Route("/", self.page), Route("/api/rows", self.rows), Route("/api/{name}", self.view)]
        return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])])

    async def page(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        return HTMLResponse(self._page, headers=headers)

    async def view(self, request: Request) -> Response:
        try:
            rows = await run_in_threadpool(view, self._database, request.path_params["name"], dict(request.query_params))
        except ViewError as error:
            return JSONResponse({"error": str(error)}, 404)
        except DatabaseError as error:
            return JSONResponse({"error": str(error)}, 503)
        return Response(json_text(rows), media_type="application/json", headers={"Cache-Control": "no-store"})

    async def rows(self, request: Request) -> Response:
        return StreamingResponse(self._new_rows(request), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _new_rows(self, request: Request) -> AsyncIterator[bytes]:
        last = await run_in_threadpool(browsing.last_trace, self._database)
        yield f"retry: 2000\nevent: last\ndata: {last}\n\n".encode()
        quiet = 0
        while not self.stopping.is_set() and not await request.is_disconnected():
            traces = await run_in_threadpool(browsing.traces_after, self._database, last)
            quiet = 0 if traces else quiet + 1
            if traces:
                last = traces[-1].trace_id
                yield f"data: {json_text(rows_of(traces))}\n\n".encode()
            elif quiet % SILENT == 0:
                yield b": nothing new\n\n"
            try:
                await asyncio.wait_for(self.stopping.wait(), EVERY)
            except TimeoutError:
                continue


class _StudioServer(QuietServer):
    """A server that ends the streams of new rows before it stops."""

    def __init__(self, config: uvicorn.Config, routes: StudioRoutes, ready: Callable[[], None]) -> None:
        super().__init__(config, ready)
        self._routes = routes

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._routes.stopping.set()
        await super().shutdown(sockets)


def serve(page: str, database: Database, address: socket.socket, ready: Callable[[], None]) -> None:
    """Answer requests on a bound socket until SIGTERM or SIGINT; in the main thread. ready: called once requests are accepted."""
    routes = StudioRoutes(page, database)
    config = uvicorn.Config(routes.app(), log_config=None, access_log=False, server_header=False, lifespan="off",
                            log_level="warning", timeout_graceful_shutdown=2)
    _StudioServer(config, routes, ready).run(sockets=[address])
