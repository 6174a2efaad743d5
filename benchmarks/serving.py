"""Throughput of `tg serve` next to one request at a time and to llama.cpp's server, on the same GGUF file and slots, over HTTP.

    python benchmarks/serving.py [--llama-server …/llama-server] [--precision F32] [--requests 64] [--slots 16] [--rounds 2]
    python benchmarks/serving.py --piece ours --results FILE      # one round of one server; repeat, then:
    python benchmarks/serving.py --report --results FILE

The recipe is nano-vllm's, scaled: requests of 32 to 256 random ids, answers of 32 to 256 tokens, seed 0, all sent at once
(`alone`: an eighth of them, one after another). The model has the shape of SmolLM2-135M and random weights, written once to
--folder. A server runs only while it is measured, on the same number of threads; rounds of all are interleaved. Prints tokens per
second of each round, medians, and the ratios ours ÷ alone and ours ÷ llama.cpp. llama.cpp's server is built from the sources in
llama-cpp-python's package:

    cmake -S vendor/llama.cpp -B build -DGGML_NATIVE=ON -DLLAMA_CURL=OFF && cmake --build build --target llama-server
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.llama_server_tests import CONFIG
from tensor_graphs.frontends.gguf import write
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.frontends.text.token_bytes import byte_level_characters
from tensor_graphs.serving.load import random_requests
from tensor_graphs.serving.requests import GenerationRequest

SHAPE = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
         "vocab_size": 49152, "rope_theta": 100000.0, "max_position_embeddings": 512}
IDS = SHAPE["vocab_size"] - 1
"""ids of prompts are below this one, which ends a text, and which random weights hardly ever give"""


def write_folder(folder: Path) -> None:
    """Write a configuration, and a tokenizer whose tokens are bytes and pairs of bytes."""
    folder.mkdir(exist_ok=True)
    tokens = dict(byte_level_characters())
    merges = list(itertools.islice(itertools.product(tokens, tokens), IDS - len(tokens)))
    tokens |= {a + b: number for number, (a, b) in enumerate(merges, len(tokens))}
    splitter = tokenizers.Tokenizer(tokenizers.models.BPE(tokens, merges))
    splitter.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    splitter.decoder = tokenizers.decoders.ByteLevel()
    splitter.add_special_tokens(["<end>"])
    splitter.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({**CONFIG, **SHAPE, "eos_token_id": IDS}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))


def gguf(folder: Path, precision: str) -> Path:
    """Return the model's file, which is written where it is missing."""
    path = folder / f"smollm2-135m-{precision}.gguf"
    if not path.exists():
        write_folder(folder / "model")
        write.write_model(load_model(folder / "model", random_seed=0), path, precision=precision)
    return path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def served(command: Sequence[str], port: int) -> Iterator[None]:
    """Run a server until the block ends; the block begins once /health answers."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                if urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200:
                    break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"{command[0]} ended with {process.returncode}") from None
                time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def post(port: int, path: str, body: dict[str, Any]) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as response:
        return json.load(response)


def of_ours(port: int, request: GenerationRequest) -> int:
    answer = post(port, "/v1/completions", {"model": "model", "prompt": list(request.prompt), "max_tokens": request.tokens,
                                            "temperature": 0})
    return int(answer["usage"]["completion_tokens"])


def of_llama(port: int, request: GenerationRequest) -> int:
    answer = post(port, "/completion", {"prompt": list(request.prompt), "n_predict": request.tokens, "temperature": 0,
                                        "ignore_eos": True, "cache_prompt": True})
    return int(answer["tokens_predicted"])


def piece(name: str, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one round of `ours`, `alone` or `llama`: the new tokens of all requests, and seconds."""
    path, port = gguf(options.folder, options.precision), free_port()
    requests = random_requests(options.requests, vocabulary=IDS, prompt=(32, 256), tokens=(32, 256), seed=0)[number::options.rounds]
    if name == "alone":
        requests = requests[:max(1, len(requests) // 8)]
    if name == "llama":
        command = [options.llama_server, "-m", path, "-np", options.slots, "-c", 512 * options.slots, "-t", options.threads, "-tb",
                   options.threads, "--port", port]
    else:
        command = [sys.executable, "-m", "tensor_graphs.cli.main", "serve", path, "--name", "model", "--sequences", options.slots,
                   "--threads", options.threads, "--port", port, "--max-positions", 512, "--db", options.folder / "measurements.db"]
    ask = of_llama if name == "llama" else of_ours
    with served([str(part) for part in command], port), ThreadPoolExecutor(1 if name == "alone" else len(requests)) as clients:
        ask(port, GenerationRequest(tuple(range(256)), 8))                # what happens once
        began = time.perf_counter()
        tokens = sum(clients.map(lambda request: ask(port, request), requests))
        seconds = time.perf_counter() - began
    return {"name": name, "round": number, "requests": len(requests), "tokens": tokens, "seconds": seconds,
            "tokens_per_second": tokens / seconds, "precision": options.precision, "slots": options.slots}


def report(results: Sequence[dict[str, Any]]) -> None:
    rates: dict[str, list[float]] = {}
    for result in results:
        rates.setdefault(result["name"], []).append(result["tokens_per_second"])
    for name, values in rates.items():
        print(f"{name:6}  {statistics.median(values):8.1f} tokens/s  of {', '.join(f'{value:.1f}' for value in values)}")
    for other in ("alone", "llama"):
        if {"ours", other} <= rates.keys():
            print(f"ours ÷ {other}: {statistics.median(rates['ours']) / statistics.median(rates[other]):.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", help="llama.cpp's server (default: without)")
    parser.add_argument("--folder", type=Path, default=Path(os.environ.get("TMPDIR", "/tmp")) / "tg-serving", help="of the model")
    parser.add_argument("--precision", default="F32", help="of the matrices in the file: F32, Q8_0, …")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16, help="requests that run together")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=2, help="parts into which requests are cut, measured one after another")
    parser.add_argument("--piece", choices=("ours", "alone", "llama"), help="measure one round of this alone")
    parser.add_argument("--results", type=Path, help="file that results are appended to, one a line")
    parser.add_argument("--report", action="store_true", help="print what is in --results")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    lines = options.results.read_text().splitlines() if options.results and options.results.exists() else []
    results = [json.loads(line) for line in lines]
    if not options.report:
        names = [options.piece] if options.piece else ["ours", "alone", *(["llama"] if options.llama_server else [])]
        rounds = [sum(r["name"] == options.piece for r in results) % options.rounds] if options.piece else range(options.rounds)
        for name, number in [(name, number) for number in rounds for name in names]:
            results.append(piece(name, number, options))
            print(json.dumps(results[-1]), flush=True)
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    report(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
