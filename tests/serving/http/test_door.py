"""serving/http/door.py, errors.py: who comes in, with how much; and no body, however malformed, is an error of the server."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.serving.http import door
from tensor_graphs.serving.http.served import RequestLimits
from tests.serving.http.scripted import ScriptedEngine, client

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize")


@pytest.mark.parametrize(("header", "status"), [(None, 401), ("Bearer wrong", 401), ("secret", 401), ("Basic secret", 401),
                                                ("Bearer secret", 200), ("bearer secret", 200), ("Bearer sécret", 401)])
def test_a_key_is_asked_for_before_the_body_is_read(header: str | None, status: int, tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path, RequestLimits(key="secret", body=50))
    headers = {} if header is None else {"Authorization": header.encode()}
    response = server.post("/v1/completions", json={"prompt": "x" if status == 200 else "x" * 100}, headers=headers)
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["code"] == "invalid_api_key" and response.headers["www-authenticate"] == "Bearer"
    assert [server.get(path).status_code for path in ("/", "/health", "/metrics", "/docs", "/openapi.json")] == [200] * 5


def test_a_body_that_is_too_large_is_refused_by_its_length_or_by_what_comes(tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path, RequestLimits(body=100))

    def chunks() -> Iterator[bytes]:
        for _ in range(10):
            yield b" " * 20

    for content in (b" " * 101, chunks()):
        response = server.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"
    assert server.post("/v1/completions", json={"prompt": "x" * 80}).status_code == 200


def test_a_path_or_method_that_is_not_there_is_an_error_object(tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path)
    assert server.get("/v1/none").json()["error"]["code"] == "not_found"
    assert server.get("/v1/completions").json()["error"]["code"] == "method_not_allowed"


def test_a_request_is_one_line_of_the_log_without_its_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = client(ScriptedEngine("the answer"), tmp_path)
    with caplog.at_level(logging.INFO, logger=door.log.name):
        server.post("/v1/completions", json={"prompt": "the question"}, params={"q": "private"})
        server.get("/a%0Aforged line")
    first, second = [record.getMessage() for record in caplog.records if record.name == door.log.name]
    assert first.startswith("testclient POST '/v1/completions' 200 ") and "question" not in first and "private" not in first
    assert "\n" not in second and " 404 " in second


def test_a_server_that_stops_takes_no_more(tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path)
    server.app.is_stopping = True                                            # type: ignore[attr-defined]
    response = server.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 503 and response.headers["retry-after"] == "5"


MALFORMED = [b"", b"{", b"null", b"[]", b"1", b'"x"', b"\xff\xfe", b"{\"prompt\": " + b"9" * 5000 + b"}", b"[" * 100_000, b"{}",
             b'{"prompt": "\\ud800"}', b'{"messages": [{"role": "\\ud800", "content": "\\udfff"}]}', b'{"\\ud800": 1}',
             b'{"prompt": NaN}', b'{"prompt": "x", "temperature": Infinity}', b'{"prompt": "x", "temperature": 1e999}',
             b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"\\ud800": "\\ud800"}]}',
             b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"self": 1, "messages": 2, "": 3}}',
             b'{"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[[["}}, 7]}]}',
             b'{"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}',
             b'{"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "((("}}}}']


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:50]))
def test_a_malformed_body_is_the_clients_fault(body: bytes, path: str, tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path)
    for kind in ("application/json", "text/plain", "application/json; charset=utf-16", ""):
        response = server.post(path, content=body, headers={"Content-Type": kind})
        assert 200 <= response.status_code < 500, response.text
        assert response.status_code == 200 or response.json()["error"]["message"]


NAMES = st.sampled_from(["prompt", "messages", "input", "content", "tokens", "stream", "n", "stop", "seed", "temperature",
                         "logprobs", "top_logprobs", "response_format", "tools", "role", "type", "text", "json_schema", "schema",
                         "echo", "stream_options", "chat_template_kwargs", "tool_calls", "function", "arguments", "$ref"])
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(
    ["user", "json_object", "json_schema", "text", "#", "object", "\ud800"]))
DOCUMENTS: Any = st.recursive(LEAVES, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5)), max_leaves=12)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return client(ScriptedEngine("x", most=10**9), tmp_path_factory.mktemp("door"))


@settings(max_examples=150)
@given(path=st.sampled_from(PATHS), body=st.dictionaries(NAMES, DOCUMENTS, max_size=6))
def test_no_document_is_an_error_of_the_server(path: str, body: Any, server: Any) -> None:
    response = server.post(path, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    assert response.status_code < 500, (body, response.text)


@settings(max_examples=150)
@given(body=st.fixed_dictionaries({"prompt": st.text(min_size=1, max_size=5)}, optional={
    "stop": DOCUMENTS, "n": st.integers(-1, 4), "logprobs": st.integers(-1, 6), "stream": st.booleans(), "temperature": LEAVES,
    "response_format": DOCUMENTS, "seed": LEAVES, "max_tokens": st.integers(-1, 3)}))
def test_no_completion_is_an_error_of_the_server(body: Any, server: Any) -> None:
    response = server.post("/v1/completions", content=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    assert response.status_code < 500, (body, response.text)
