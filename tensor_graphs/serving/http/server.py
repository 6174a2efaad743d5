"""server: listens on an address, and ends in order: SIGTERM and SIGINT let running answers end, for some seconds."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.serving.http.app import app
from tensor_graphs.serving.http.door import Door
from tensor_graphs.serving.http.metrics import Metrics
from tensor_graphs.serving.http.served import RequestLimits, Served

GRACE = 10.0
"""seconds that running answers have to end after a signal; then they are cut"""


class AddressError(FrontendError):
    """An address on which no server can listen."""


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, and does not listen yet. Raises AddressError."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        opened = socket.socket(family, kind)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except (OSError, UnicodeError) as error:
        raise AddressError(f"cannot listen on {host}:{port}: {error}",
                           fix="another --host or --port; --port 0 takes a free one") from None
    return opened


class QuietServer(uvicorn.Server):
    """uvicorn's server, with a stop that is a success: no signal is raised again. ready: called once requests are accepted."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Server(QuietServer):
    """A server that closes the engine of its model when it stops."""

    def __init__(self, config: uvicorn.Config, door: Door, served: Served, ready: Callable[[], None]) -> None:
        super().__init__(config, ready)
        self._door, self._engine = door, served.engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._door.is_stopping = True
        loop = asyncio.get_running_loop()
        loop.call_later(GRACE, loop.run_in_executor, None, self.close_engine)
        await super().shutdown(sockets)

    def close_engine(self) -> None:
        """End all generations; a second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def serve(served: Served, limits: RequestLimits, address: socket.socket, ready: Callable[[], None]) -> None:
    """Answer requests on a bound socket until SIGTERM or SIGINT; in the main thread. ready: called once requests are accepted."""
    metrics = Metrics(served.engine)
    door = Door(app(served, limits, metrics), limits, metrics)
    config = uvicorn.Config(door, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=int(GRACE) + 5,
                            log_level="warning")
    server = _Server(config, door, served, ready)
    try:
        server.run(sockets=[address])
    finally:
        server.close_engine()
