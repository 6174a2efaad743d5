"""serving/http/app.py: what clients of OpenAI's API ask and get."""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tensor_graphs.frontends.errors import SamplingError
from tensor_graphs.serving.http.app import app
from tensor_graphs.serving.http.door import Door
from tensor_graphs.serving.http.metrics import Metrics
from tensor_graphs.serving.http.served import RequestLimits
from tensor_graphs.serving.requests import EngineClosedError
from tests.serving.http.scripted import END, ScriptedEngine, client, served, until

USER = [{"role": "user", "content": "hello"}]


def events(response: Any) -> list[Any]:
    """The documents of a stream, which has to end with [DONE]."""
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream"), response.text
    blocks = response.text.split("\n\n")
    assert blocks.pop() == "" and blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def asked(server: TestClient, path: str, **body: Any) -> Any:
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: TestClient, path: str, status: int, **body: Any) -> dict[str, Any]:
    """The error object of a request that has to fail."""
    response = server.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def test_a_completion_has_the_text_the_reason_of_its_end_and_the_numbers_of_tokens(tmp_path: Path) -> None:
    engine = ScriptedEngine("four")
    answer = asked(client(engine, tmp_path), "/v1/completions", model="scripted", prompt="one two", max_tokens=3)
    assert answer["object"] == "text_completion" and answer["model"] == "scripted" and answer["id"].startswith("cmpl-")
    assert answer["choices"] == [{"index": 0, "text": "fou", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10,
                               "prompt_tokens_details": {"cached_tokens": 3}}
    assert engine.prompts() == ["one two"] and engine.generations[0].request.stop_ids == {END}


def test_settings_of_a_request_reach_the_sampler(tmp_path: Path) -> None:
    engine = ScriptedEngine("x")
    server = client(engine, tmp_path)
    asked(server, "/v1/completions", prompt="a", temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2, seed=-1,
          n=2, ignore_eos=True)
    asked(server, "/v1/chat/completions", messages=USER, max_completion_tokens=9)
    first, second, plain = (generation.request for generation in engine.generations)
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (0.5, 0.9, 7)
    assert (first.sampling.min_p, first.sampling.repetition_penalty, first.stop_ids) == (0.1, 1.2, frozenset())
    assert (first.sampling.seed, second.sampling.seed) == (2**64 - 1, 0)
    assert (plain.sampling.temperature, plain.sampling.top_p, plain.tokens) == (1, 1, 9)


def test_without_a_seed_two_requests_draw_apart(tmp_path: Path) -> None:
    engine = ScriptedEngine("x")
    server = client(engine, tmp_path)
    for _ in range(2):
        asked(server, "/v1/completions", prompt="a")
    first, second = (generation.request.sampling.seed for generation in engine.generations)
    assert first != second


def test_prompts_come_as_texts_or_ids_one_or_several_each_with_n_answers(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda request, number: f"answer {number}")
    server = client(engine, tmp_path)
    for prompt, texts in (("ab", ["ab"]), (["ab", "c"], ["ab", "c"]), ([97, 98], ["ab"]), ([[97], [98, 99]], ["a", "bc"])):
        engine.generations.clear()
        answer = asked(server, "/v1/completions", prompt=prompt, n=2)
        assert engine.prompts() == [text for text in texts for _ in range(2)]
        assert [choice["text"] for choice in answer["choices"]] == [f"answer {i}" for i in range(2 * len(texts))]
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts) * 2))
        assert answer["usage"]["prompt_tokens"] == sum(map(len, texts))


def test_a_stream_is_the_answer_in_pieces(tmp_path: Path) -> None:
    server = client(ScriptedEngine("a long answer"), tmp_path)
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": USER})):
        whole = asked(server, path, **body)
        chunks = events(server.post(path, json={**body, "stream": True, "stream_options": {"include_usage": True}}))
        *pieces, last = chunks
        assert last["choices"] == [] and last["usage"] == whole["usage"] and len({chunk["id"] for chunk in chunks}) == 1
        choices = [chunk["choices"][0] for chunk in pieces]
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
        if "prompt" in body:
            assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"] == "a long answer"
        else:
            assert choices[0]["delta"] == {"role": "assistant", "content": ""} and choices[-1]["delta"] == {}
            assert "".join(choice["delta"].get("content", "") for choice in choices) == whole["choices"][0]["message"]["content"]
            assert whole["object"] == "chat.completion" and last["object"] == "chat.completion.chunk"


def test_several_choices_of_a_stream_are_told_apart_by_their_index(tmp_path: Path) -> None:
    server = client(ScriptedEngine(lambda request, number: "abc"[number] * 3), tmp_path)
    texts: dict[int, str] = {}
    for chunk in events(server.post("/v1/completions", json={"prompt": "x", "n": 3, "stream": True})):
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "aaa", 1: "bbb", 2: "ccc"}


@pytest.mark.parametrize("text", ["Grüße 😀👩‍👩‍👧 ∑ 漢字", "😀", "\N{GREEK SMALL LETTER ALPHA}"])
def test_a_character_of_several_tokens_is_never_split(text: str, tmp_path: Path) -> None:
    chunks = events(client(ScriptedEngine(text), tmp_path).post("/v1/completions", json={"prompt": "😀", "stream": True}))
    pieces = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(pieces) == text and "\ufffd" not in "".join(pieces)


def test_an_id_that_the_vocabulary_does_not_have_has_no_text(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda request, number: [97, 259, 98])
    answer = asked(client(engine, tmp_path), "/v1/completions", prompt="x", logprobs=0)
    assert answer["choices"][0]["text"] == "ab" and answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["logprobs"]["tokens"] == ["a", "", "b"]


def test_half_a_character_at_the_end_is_a_replacement_character(tmp_path: Path) -> None:
    answer = asked(client(ScriptedEngine("a😀"), tmp_path), "/v1/completions", prompt="x", max_tokens=3)
    assert answer["choices"][0]["text"] == "a\ufffd"


@pytest.mark.parametrize(("stop", "text"), [("\n\n", "one"), (["four", "three"], "one\n\ntwo "), ("nowhere", "one\n\ntwo three"),
                                            ([], "one\n\ntwo three")])
def test_an_answer_ends_before_a_stop_text_also_where_that_spans_several_chunks(stop: Any, text: str, tmp_path: Path) -> None:
    engine = ScriptedEngine("one\n\ntwo three")
    server = client(engine, tmp_path)
    answer = asked(server, "/v1/completions", prompt="x", stop=stop)
    chunks = events(server.post("/v1/completions", json={"prompt": "x", "stop": stop, "stream": True}))
    assert answer["choices"][0]["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert all(generation.cancelled.is_set() for generation in engine.generations)


def test_log_probabilities_have_the_form_of_their_api(tmp_path: Path) -> None:
    server = client(ScriptedEngine("é!"), tmp_path)
    logs = asked(server, "/v1/completions", prompt="x", logprobs=2)["choices"][0]["logprobs"]
    assert logs["tokens"] == ["\ufffd", "\ufffd", "!"] and logs["token_logprobs"] == [-0.5] * 3 and logs["text_offset"] == [0, 0, 1]
    assert logs["top_logprobs"][2] == {"!": -0.5, "x": -9999.0}
    chat = asked(server, "/v1/chat/completions", messages=USER, logprobs=True, top_logprobs=1)["choices"][0]["logprobs"]
    assert [entry["bytes"] for entry in chat["content"]] == [[0xC3], [0xA9], [33]]
    assert chat["content"][2]["top_logprobs"] == [{"token": "!", "logprob": -0.5, "bytes": [33]}]
    chunks = events(server.post("/v1/chat/completions", json={"messages": USER, "logprobs": True, "stream": True}))
    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == [{**entry, "top_logprobs": []} for entry in chat["content"]]


def test_messages_go_through_the_template_with_parts_tools_and_variables(tmp_path: Path) -> None:
    engine = ScriptedEngine("ok")
    tool = {"type": "function", "function": {"name": "weather"}}
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Jena"}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "brief"}, {"role": "user", "content": parts, "name": "me"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "rain", "tool_call_id": "1"}]
    server = client(engine, tmp_path)
    asked(server, "/v1/chat/completions", messages=messages, tools=[tool], tool_choice="auto",
          chat_template_kwargs={"mood": "good"})
    asked(server, "/v1/chat/completions", messages=USER, tools=[tool], tool_choice="none")
    first = (f"[system] brief\n[user] ab\n[assistant] None\nJena\n[tool] rain\ntools: [{json.dumps(tool)}]\nmood: good\n"
             "[assistant] ")
    assert engine.prompts() == [first, "[user] hello\n[assistant] "]


def test_a_template_that_refuses_says_so_in_its_own_words(tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path)
    error = refused(server, "/v1/chat/completions", 400, messages=[{"role": "pirate", "content": "arr"}])
    assert error["message"] == "the chat template refuses the messages: only users, assistants, tools and systems may speak"
    assert "no chat template" in refused(client(ScriptedEngine("x"), tmp_path, template=None), "/v1/chat/completions", 400,
                                         messages=USER)["message"]


@pytest.mark.parametrize(("field", "value"), [
    ("frequency_penalty", 0.5), ("presence_penalty", -1), ("logit_bias", {"5": 1}), ("best_of", 2), ("suffix", "x"), ("top_p", 0),
    ("temperature", -1), ("temperature", "1"), ("n", 0), ("n", 1000), ("max_tokens", 0), ("max_tokens", 1.5), ("stop", [""]),
    ("seed", 1 << 64), ("grammar", ""), ("logprobs", 21), ("prompt", []), ("prompt", [[]]), ("prompt", [-1]), ("prompt", None),
    ("response_format", {"type": "xml"}), ("stream", "yes"), ("echo", True), ("min_p", 2)])
def test_a_field_that_is_wrong_or_not_supported_is_named(field: str, value: Any, tmp_path: Path) -> None:
    error = refused(client(ScriptedEngine("x"), tmp_path), "/v1/completions", 400, **{"prompt": "x", field: value})
    assert error["param"].split(".")[0] == field and error["type"] == "invalid_request_error" and field in error["message"]


@pytest.mark.parametrize("field", ["frequency_penalty", "presence_penalty", "logit_bias", "best_of", "suffix", "stop", "n", "seed",
                                   "temperature", "top_p", "max_tokens", "stream_options", "response_format", "user", "model"])
def test_null_is_a_field_left_out(field: str, tmp_path: Path) -> None:
    assert asked(client(ScriptedEngine("x"), tmp_path), "/v1/completions", prompt="a", **{field: None})["choices"][0]["text"] == "x"


def test_parts_that_are_no_text_are_refused(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:"}}
    error = refused(client(ScriptedEngine("x"), tmp_path), "/v1/chat/completions", 400,
                    messages=[{"role": "user", "content": [part]}])
    assert "messages.0.content" in error["message"]


def test_a_prompt_that_is_too_long_says_how_long_it_may_be(tmp_path: Path) -> None:
    from tensor_graphs.serving.http.served import RequestLimits

    server = client(ScriptedEngine("x"), tmp_path, RequestLimits(prompt=10))
    error = refused(server, "/v1/completions", 400, prompt="x" * 11)
    assert error["code"] == "context_length_exceeded" and "11 tokens" in error["message"] and "10 tokens" in error["message"]
    assert "4096" in refused(server, "/v1/completions", 400, prompt="x", max_tokens=4097)["message"]
    asked(server, "/v1/completions", prompt="x" * 10, max_tokens=4087)


def test_another_model_is_not_there(tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path)
    assert refused(server, "/v1/completions", 404, model="gpt-4", prompt="x")["code"] == "model_not_found"
    assert server.get("/v1/models/gpt-4").status_code == 404
    assert server.get("/v1/models/scripted").json() == server.get("/v1/models").json()["data"][0]


def test_routes_are_there_without_a_version_and_a_model_may_have_several_names(tmp_path: Path) -> None:
    model = dataclasses.replace(served(ScriptedEngine("ab"), tmp_path), other_names=frozenset({"gpt-9"}))
    metrics = Metrics(None)
    server = TestClient(Door(app(model, RequestLimits(), metrics), RequestLimits(), metrics))
    for prefix in ("/v1", ""):
        for name in ("scripted", "gpt-9"):
            answer = asked(server, prefix + "/completions", prompt="x", model=name)
            assert answer["model"] == "scripted" and answer["system_fingerprint"].startswith("b")
        assert server.get(prefix + "/models").json()["data"][0]["id"] == "scripted"
        assert refused(server, prefix + "/chat/completions", 404, messages=USER, model="gpt-8")["code"] == "model_not_found"
    assert "/completions" not in server.get("/openapi.json").json()["paths"]


def test_when_too_many_wait_all_answers_of_the_request_are_withdrawn(tmp_path: Path) -> None:
    engine = ScriptedEngine("x", most=3)
    response = client(engine, tmp_path).post("/v1/completions", json={"prompt": "x", "n": 4})
    assert response.status_code == 429 and response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
    assert len(engine.generations) == 3 and all(generation.cancelled.is_set() for generation in engine.generations)


def test_an_engine_that_was_closed_is_not_the_requests_fault(tmp_path: Path) -> None:
    def closed(request: Any, number: int) -> str:
        raise EngineClosedError("the engine is closed")

    error = refused(client(ScriptedEngine(closed), tmp_path), "/v1/completions", 503, prompt="x")
    assert error["message"] == "the engine is closed"


def test_an_engine_that_fails_is_an_error_of_the_server_in_a_stream_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine("ab")
    engine.failure = SamplingError("3 of 9 logits are NaN")
    server = client(engine, tmp_path)
    error = refused(server, "/v1/completions", 500, prompt="x")
    assert error["type"] == "server_error" and "SamplingError" in error["message"] and "NaN" in caplog.text
    last = server.post("/v1/completions", json={"prompt": "x", "stream": True}).text.split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: ")) == {"error": error}


def test_an_answer_that_the_engine_cuts_is_an_error_that_asks_to_come_again(tmp_path: Path) -> None:
    engine = ScriptedEngine("ab")
    engine.gate.clear()
    server = client(engine, tmp_path)
    closing = threading.Thread(target=lambda: (until(lambda: engine.generations), engine.close()))
    closing.start()
    assert refused(server, "/v1/completions", 503, prompt="x")["code"] == "unavailable"
    closing.join()


def test_an_answer_that_takes_too_long_is_cut(tmp_path: Path) -> None:
    from tensor_graphs.serving.http.served import RequestLimits

    engine = ScriptedEngine("ab")
    engine.gate.clear()
    server = client(engine, tmp_path, RequestLimits(seconds=0.1))
    assert "0.1 s" in refused(server, "/v1/completions", 504, prompt="x")["message"]
    assert '"code": "timeout"' in server.post("/v1/completions", json={"prompt": "x", "stream": True}).text
    assert all(generation.cancelled.is_set() for generation in engine.generations)


def test_json_of_a_schema_is_all_that_a_masked_answer_may_hold(tmp_path: Path) -> None:
    text = '{"name": "x", "age": 7}'
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
              "required": ["name", "age"], "additionalProperties": False}
    engine = ScriptedEngine(text)
    server = client(engine, tmp_path)
    for response_format in ({"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}},
                            {"type": "json_object"}):
        answer = asked(server, "/v1/chat/completions", messages=USER, response_format=response_format)
        assert json.loads(answer["choices"][0]["message"]["content"]) == {"name": "x", "age": 7}
    allowed = engine.generations[0].request.allowed
    assert allowed is not None and allowed(list(text.encode()))[END]
    asked(server, "/v1/chat/completions", messages=USER, response_format={"type": "text"})
    assert engine.generations[-1].request.allowed is None
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    assert "schema" in refused(server, "/v1/chat/completions", 400, messages=USER, response_format=bad)["message"]


def test_embeddings_of_an_encoder_as_numbers_or_in_base64(tmp_path: Path) -> None:
    server = client(None, tmp_path)
    answer = asked(server, "/v1/embeddings", input=["ab", "c"])
    assert [row["embedding"] for row in answer["data"]] == [[2, 195, 0.5], [1, 99, 0.5]]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    packed = asked(server, "/v1/embeddings", input=[97, 98], encoding_format="base64")["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == [2, 195, 0.5]
    for too_long in ("x" * 514, [97] * 514):
        error = refused(server, "/v1/embeddings", 400, input=too_long)
        assert error["code"] == "context_length_exceeded" and "512" in error["message"]
    assert refused(server, "/v1/embeddings", 400, input="x", dimensions=2)["param"] == "dimensions"
    assert "encoder" in refused(server, "/v1/completions", 400, prompt="x")["message"]
    assert "does not embed" in refused(client(ScriptedEngine("x"), tmp_path), "/v1/embeddings", 400, input="x")["message"]
    assert server.get("/v1/models").json()["data"][0]["takes"] == ["embeddings"]


def test_tokens_of_a_text_and_back(tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path)
    assert asked(server, "/tokenize", content="aé") == {"tokens": [97, 195, 169]}
    assert asked(server, "/detokenize", tokens=[97, 195, 169]) == {"content": "aé"}
    assert "no token 300" in refused(server, "/detokenize", 400, tokens=[300])["message"]


def test_metrics_count_requests_and_show_the_engine(tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path)
    asked(server, "/v1/completions", prompt="a")
    server.get("/no/such/path")
    text = server.get("/metrics").text
    for line in ('tensor_graphs_requests_total{route="/v1/completions",status="200"} 1.0', "tensor_graphs_engine_waiting 2.0",
                 'tensor_graphs_requests_total{route="other",status="404"} 1.0', "tensor_graphs_engine_new_tokens_total 70.0",
                 "tensor_graphs_first_token_seconds_count 1.0"):
        assert line in text, text


def test_the_api_describes_itself_and_the_page_asks_no_other_server(tmp_path: Path) -> None:
    server = client(ScriptedEngine("x"), tmp_path)
    paths = server.get("/openapi.json").json()["paths"]
    assert {"/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/embeddings"} <= set(paths)
    assert server.get("/docs").status_code == 200 and server.get("/health").json() == {"status": "ok"}
    page = server.get("/")
    assert "http:" not in page.text and "https:" not in page.text
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert 'lang="en"' in page.text and 'aria-live="polite"' in page.text and "prefers-color-scheme" in page.text
