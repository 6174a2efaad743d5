"""errors: failures of requests, as HTTP statuses with OpenAI's error objects."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.serving.requests import EngineClosedError, QueueFullError

log = logging.getLogger(__name__)

CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "request_too_large",
         429: "rate_limit_exceeded", 500: "internal_error", 503: "unavailable", 504: "timeout"}
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "5"}}
STATUSES: dict[type[TensorGraphsError], int] = {QueueFullError: 429, EngineClosedError: 503}
"""errors of the package that are not the request's fault"""
DOCUMENTED: dict[int | str, Any] = {status: {"description": "an error object"} for status in (400, *CODES)}
"""responses of every route, for OpenAPI"""


class RequestFailure(Exception):
    """A request that gets an error: HTTP status, message, name of the faulty field, OpenAI's code, further headers."""

    def __init__(self, status: int, message: str, *, field: str | None = None, code: str | None = None,
                 headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.field, self.code = status, field, code or CODES.get(status)
        self.headers = headers or HEADERS.get(status)

    @property
    def document(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "server_error" if self.status >= 500 else "rate_limit_error" if self.status == 429 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.code}}

    @property
    def response(self) -> Response:
        # ASCII: a message may quote half of a surrogate pair, which is no UTF-8
        return Response(json.dumps(self.document), self.status, self.headers, "application/json")


def refusal(error: TensorGraphsError) -> RequestFailure:
    """Return the failure for an error of the package: its sentence, without files and fixes, which are for the server's owner."""
    sentence = str(error).removeprefix(f"{type(error).__name__}: ").partition("\n")[0]
    return RequestFailure(STATUSES.get(type(error), 400), sentence)


def invalid(errors: Sequence[Any]) -> RequestFailure:
    """Return the failure for a body that does not fit its schema; it names the first faulty field."""
    first, *others = errors
    field = ".".join(str(part) for part in first["loc"][1:])
    more = f" ({len(others)} more)" if others else ""
    reason = "this server has no such field" if first["type"] == "extra_forbidden" else first["msg"]
    return RequestFailure(400, f"{field or 'the body'}: {reason}{more}"[:1000], field=field[:200] or None)


def handle_errors(app: FastAPI) -> None:
    """Let every error of a route become a response."""

    def of_status(error: HTTPException) -> RequestFailure:
        return RequestFailure(error.status_code, str(error.detail), headers=error.headers)

    def internal(error: Exception) -> RequestFailure:
        return RequestFailure(500, "internal error; the server's log has more")

    for kind, failure in ((RequestFailure, lambda e: e), (TensorGraphsError, refusal), (HTTPException, of_status),
                          (RequestValidationError, lambda e: invalid(e.errors())), (Exception, internal)):
        async def handler(request: Request, error: Any, failure: Any = failure) -> Response:
            response: Response = failure(error).response
            return response

        app.add_exception_handler(kind, handler)
