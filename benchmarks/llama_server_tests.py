"""Runs llama.cpp's tests of its HTTP server on `tg serve` with a model of random weights, and says which of them pass.

    LLAMA_CPP_SOURCES=…/llama.cpp python benchmarks/llama_server_tests.py [--venv PYTHON]

The tests are read from the sources. PYTHON has pytest, requests, openai, filelock and wget. A test's server is `tg serve` of a tiny
Llama or BERT whose tokens are bytes; texts are not compared, since they are those of llama.cpp's model. Tests of what the API here
does not have (`ELSEWHERE`) do not apply.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import tokenizers

from tensor_graphs.frontends.text.token_bytes import byte_level_characters

NAMES = ("tiny", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "davinci-002", "text-embedding-3-small")
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 257}
CONFIG = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 2, "eos_token_id": 256,
          "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
ENCODER = {**SIZES, "architectures": ["BertModel"], "model_type": "bert", "max_position_embeddings": 512, "type_vocab_size": 2}
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "

FILES = ("basic", "chat_completion", "completion", "embedding", "ignore_eos", "security", "stream", "tokenize")
"""files of tests on routes of OpenAI's API, of tokens and of keys; others are on slots, adapters, drafts, tools"""

ELSEWHERE = {
    r"props|slots|no_ui|split_model|multiple_addresses|aliases_and_tags|stream_resume|stream_stop_during|apply_chat|static_assets"
    r"|cors|local_media|proxy|with_pieces|anthropic_header|token_count|server_models|public_endpoint\[/v1/models":
        "a route or an option of llama.cpp's server",
    r"test_completion\[|test_completion_stream\[|stream_vs_non_stream|same_seed|different_seed|different_batch|nocache|tokens_input"
    r"|unified|n_probs|logit_bias|cancel_request|prompt_cache|ignore_eos|response_fields|mtmd|mtm_error"
    r"|correct_api_key$|public_endpoint\[/models|pooling_none$|embedding_multiple|mixed_input|prompt_too_long|same_prompt|content_text":
        "llama.cpp's own routes",
    r"prefill|continue_final|chat_template|timings|context_size|grammar|json_schema\[|return_progress|verbose|multiple_choices":
        "fields of llama.cpp",
    r"cached_tokens|chat_completion\[|chat_completion_stream\[|with_bos|usage_single|usage_multiple":
        "numbers of tokens of llama.cpp's model",
}

DIFFERENT = {
    "messages7": "two answers in a row are the chat template's business",
    "logprobs_stream": "the first chunk of a chat has an empty text, as OpenAI's, and not null",
    "pooling_none_oai": "the route has no option for pooling",
    "incorrect_api_key": "an error of a key has OpenAI's type, invalid_request_error",
}
"""tests that fail, and why"""

PLUGIN = '''
import os, subprocess, sys, time
sys.path.insert(0, os.environ["LLAMA_SERVER_TESTS"])
import requests, utils
servers = {}

def start(self, timeout_seconds=60):
    kind = self.api_key, "encoder" if self.server_embeddings else "decoder"
    if kind not in servers:
        port = 8400 + len(servers)
        key = ["--api-key", self.api_key] if self.api_key else []
        model = os.path.join(os.getcwd(), kind[1])
        command = [*os.environ["SERVER_COMMAND"].split("|"), "--port", str(port), model, *key]
        servers[kind] = port, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2000):
            try:
                requests.get(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except Exception:
                time.sleep(0.1)
    self.server_port = servers[kind][0]

def pytest_unconfigure(config):
    for _, process in servers.values():
        process.terminate()
        process.wait()

utils.ServerProcess.start = start
utils.ServerProcess.stop = lambda self: None
utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.match_regex = lambda regex, text: True
'''


def write_model(folder: Path, config: dict[str, Any]) -> None:
    """Write a configuration, a tokenizer whose tokens are bytes, and a chat template."""
    splitter = tokenizers.Tokenizer(tokenizers.models.BPE(dict(byte_level_characters()), merges=[]))
    splitter.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitter.decoder = tokenizers.decoders.ByteLevel()
    splitter.add_special_tokens(["<end>"])
    folder.mkdir()
    if config is ENCODER:                                           # the mean of all tokens, scaled to length 1
        kinds = ("Transformer", "Pooling", "Normalize")
        (folder / "modules.json").write_text(json.dumps([
            {"type": f"sentence_transformers.models.{kind}", "path": "" if kind == "Transformer" else f"{i}_{kind}"}
            for i, kind in enumerate(kinds)]))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean", "embedding_dimension": 32}))
    splitter.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<end>"}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", default=sys.executable, help="the Python that runs the tests")
    options = parser.parse_args()
    tests = Path(os.environ["LLAMA_CPP_SOURCES"]) / "tools/server/tests"
    files = [str(tests / "unit" / f"test_{name}.py") for name in FILES]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "served_by_tg.py").write_text(PLUGIN)
        for name, config in (("decoder", CONFIG), ("encoder", ENCODER)):
            write_model(Path(folder) / name, config)
        serve = [sys.executable, "-m", "tensor_graphs.cli.main", "serve", "--random-weights", "0",
                 *(part for name in NAMES for part in ("--name", name))]
        env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path(__file__).parents[1]}", "LLAMA_SERVER_TESTS": str(tests),
               "SERVER_COMMAND": "|".join(serve)}
        command = [options.venv, "-m", "pytest", "-p", "served_by_tg", "-p", "no:cacheprovider", "--rootdir", folder, "-q", "-rA",
                   "--tb=line", *files]
        out = subprocess.run(command, env=env, cwd=folder, text=True, capture_output=True, timeout=3600, check=False).stdout
    counts: Counter[str] = Counter()
    for outcome, test in re.findall(r"^(PASSED|FAILED|ERROR) \S*?::(.*?)(?: - .*)?$", out, re.M):
        reason = next((why for pattern, why in ELSEWHERE.items() if re.search(pattern, test)), None)
        kind = outcome.lower() if reason is None else "does not apply"
        counts[kind] += 1
        why = reason if outcome == "PASSED" else reason or next((why for part, why in DIFFERENT.items() if part in test), None)
        print(f"{kind:14}  {test:90.90}  {why or ''}")
    apply = counts["passed"] + counts["failed"] + counts["error"]
    print(dict(counts), f"{counts['passed'] / max(1, apply):.0%} of those that apply")
    return 0


if __name__ == "__main__":
    sys.exit(main())
