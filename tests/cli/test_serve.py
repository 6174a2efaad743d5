"""tg serve, as a process: OpenAI's own client and curl talk with it; a client that leaves ends its answers; signals end it."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tests.cli.command import TALK, TG, TINY, assert_complains, environment, tg, with_words
from tests.serving.http.scripted import until

NUMPY = ("--backends", "numpy")
USER: Any = [{"role": "user", "content": "w5 w6"}]


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30) -> tuple[int, str]:
        """Exit code and log after a signal."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=seconds)
        return self.process.returncode, log

    def metric(self, name: str) -> float:
        line = next(line for line in httpx.get(self.url + "/metrics").text.splitlines() if line.startswith(name + " "))
        return float(line.split()[1])


def start(*arguments: object) -> Server:
    process = subprocess.Popen([*TG, "serve", *map(str, arguments), "--port", "0", "--json"], env=environment(), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return Server(process, json.loads(line)["url"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Gemma whose answers end only where its cache does."""
    root = tmp_path_factory.mktemp("serve")
    write_gemma3_folder(root / "gemma", TINY, seed=0)
    return with_words(root / "gemma", root / "words", template=TALK, end=())


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    running = start(folder, "--api-key", "secret", "--most-waiting", "1")
    yield running
    code, log = running.stop()
    assert code == 0 and "Traceback" not in log and "POST '/v1/completions' 200" in log


@pytest.fixture(scope="module")
def openai_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0)


def test_openais_client_gets_what_tg_run_prints(openai_client: openai.OpenAI, folder: Path) -> None:
    expected = json.loads(tg("run", folder, "--prompt", "w5 w6", "--tokens", "6", "--json").stdout)
    chat = openai_client.chat.completions.create(model="words", messages=USER, max_tokens=6, temperature=0)
    assert chat.choices[0].message.content == expected["text"] and chat.choices[0].finish_reason == "length"
    stream = openai_client.chat.completions.create(model="words", messages=USER, max_tokens=6, temperature=0, stream=True,
                                                   stream_options={"include_usage": True})
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected["text"]
    assert last.usage is not None and last.usage.completion_tokens == 6
    for cached in (0, 16):                                          # the second time, the first page of 16 tokens is there
        long: Any = [{"role": "user", "content": "w5 w6 " * 9}]
        usage = openai_client.chat.completions.create(model="words", messages=long, max_tokens=1).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == cached
    plain = openai_client.completions.create(model="words", prompt="w5 w6", max_tokens=3, temperature=0, logprobs=1)
    assert plain.choices[0].logprobs is not None and len(plain.choices[0].logprobs.tokens or ()) == 3
    assert [model.id for model in openai_client.models.list()] == ["words"]


def test_a_seed_draws_the_same_answer_again(openai_client: openai.OpenAI) -> None:
    texts = [openai_client.completions.create(model="words", prompt="w5", max_tokens=8, temperature=1, seed=seed).choices[0].text
             for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_openais_client_raises_its_own_errors(server: Server, openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).models.list()
    with pytest.raises(openai.BadRequestError, match="the prompt has 300 tokens") as refused:
        openai_client.completions.create(model="words", prompt="w5 " * 300)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="frequency_penalty"):
        openai_client.completions.create(model="words", prompt="w5", frequency_penalty=1)
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-5'"):
        openai_client.completions.create(model="gpt-5", prompt="w5")


def test_curl_shows_the_events_of_a_stream(server: Server) -> None:
    curl = shutil.which("curl")
    assert curl is not None
    body = json.dumps({"prompt": "w5 w6", "max_tokens": 2, "stream": True, "temperature": 0})
    done = subprocess.run([curl, "-sN", server.url + "/v1/completions", "-H", "Content-Type: application/json", "-H",
                           "Authorization: Bearer secret", "-d", body], capture_output=True, text=True, timeout=60, check=True)
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines) and len(lines) == 4


@pytest.fixture
def slow(folder: Path) -> Iterator[Server]:
    """A server without a key whose answers are long: cancelled ones are seen."""
    running = start(folder)
    yield running
    if running.process.poll() is None:
        running.stop()


LONG: dict[str, Any] = {"prompt": "w5", "n": 60, "temperature": 1}


def test_a_client_that_leaves_ends_its_answers_within_a_second(slow: Server) -> None:
    def open_answers() -> float:
        return slow.metric("tensor_graphs_engine_running") + slow.metric("tensor_graphs_engine_waiting")

    for stream in (True, False):
        with pytest.raises(httpx.ReadTimeout), httpx.stream("POST", slow.url + "/v1/completions", timeout=0.5,
                                                            json={**LONG, "stream": stream}) as response:
            lines = response.iter_lines()
            next(lines)
            assert open_answers() > 50
            raise httpx.ReadTimeout("the first event is enough")
        left = time.monotonic()
        until(lambda: open_answers() == 0)
        assert time.monotonic() - left < 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_running_answer_end(number: int, slow: Server) -> None:
    with httpx.stream("POST", slow.url + "/v1/completions", json={"prompt": "w5", "max_tokens": 100, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        slow.process.send_signal(number)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert slow.process.wait(20) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(slow.url + "/health")


def test_an_address_that_is_taken_is_said_before_the_model_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_complains(tg("serve", "no-such-folder", "--port", port), f"cannot listen on 127.0.0.1:{port}", "--port 0")
    assert_complains(tg("serve", "no-such-folder", "--port", "0"), "no such folder")


def test_an_encoder_gives_openais_client_the_vectors_of_tg_embed(minilm: Path) -> None:
    texts = ["A cat sleeps.", "Matrix products."]
    expected = json.loads(tg("embed", minilm, *NUMPY, "--text", texts[0], "--text", texts[1], "--json").stdout)["embeddings"]
    server = start(minilm, *NUMPY, "--name", "minilm")
    try:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        answer = client.embeddings.create(model="minilm", input=texts)
        assert [len(row.embedding) for row in answer.data] == [384, 384] and answer.usage.prompt_tokens == 11
        for row, vector in zip(answer.data, expected, strict=True):
            assert row.embedding == pytest.approx(vector, abs=1e-6)
    finally:
        assert server.stop()[0] == 0
