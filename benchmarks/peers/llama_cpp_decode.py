"""llama_cpp_decode: llama.cpp's decoding of a Gemma 3 folder, as a peer to be measured against.

    python benchmarks/peers/llama_cpp_decode.py gemma_f32 --dtype float32 --threads 2 --steps 64 > peer.json

The interpreter needs llama-cpp-python, gguf and numpy, and nothing of this package, so it can live in a venv of its own:

    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_BUILD_COMMON=OFF -DLLAVA_BUILD=OFF" pip install llama-cpp-python gguf

`LlamaCppDecoder` has the interface of `TransformersDecoder`: greedy, batch 1, on the CPU. The folder is first written as a GGUF
file without a tokenizer (`write_gguf`); a GGUF file in place of the folder is read as it is. `LlamaCppProcess` is the same decoder
in another interpreter, for a caller that cannot import llama_cpp: it answers each line with a line of JSON, and times each step
itself, so the pipe costs nothing.

llama.cpp's own defaults are kept except for the key and value cache, which is f32 for an f32 model (its default of f16 would
change the tokens). Its weights are mapped from a file that is deleted once it is open.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = ("float32", "bfloat16")
CONTEXT = 1024
"""Positions in the cache: prompt and generated tokens together."""

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}
"""Hugging Face's name of a tensor within a layer -> GGUF's."""


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor of Gemma3ForCausalLM. Raises ValueError for a name that it does not have."""
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    parts = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    if len(parts) != 2 or not parts[0].isdigit() or parts[1] not in LAYER_NAMES:
        raise ValueError(f"tensor {name} is not one of a Gemma 3 text model with tied embeddings and no biases")
    return f"blk.{parts[0]}.{LAYER_NAMES[parts[1]]}.weight"


def read_tensors(file: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """(name, f32 array) of every tensor in a safetensors file. Raises ValueError for one that is neither f32 nor bf16."""
    with file.open("rb") as stream:
        header = stream.read(int.from_bytes(stream.read(8), "little"))
        start = stream.tell()
    data = np.memmap(file, dtype=np.uint8, mode="r", offset=start)
    for name, entry in json.loads(header).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = np.asarray(data[begin:end])
        if entry["dtype"] == "F32":
            found = raw.view("<f4")
        elif entry["dtype"] == "BF16":
            found = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            raise ValueError(f"{file}: {name} is {entry['dtype']}, and F32 or BF16 is needed")
        yield name, found.reshape(entry["shape"])


def read_config(folder: Path) -> dict[str, Any]:
    """config.json, once nothing in it is beyond what llama.cpp's Gemma 3 computes. Raises ValueError."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a model folder: it has no config.json")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    layers = config["num_hidden_layers"]
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == 62 else config["head_dim"]
    needed = {"model_type": "gemma3_text", "tie_word_embeddings": True, "attention_bias": False, "attn_logit_softcapping": None,
              "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar}
    for key, value in needed.items():
        if config[key] != value:
            raise ValueError(f"{path}: {key} is {config[key]}, and llama.cpp's Gemma 3 computes {value} only")
    for kind, rope in config["rope_parameters"].items():
        if rope["rope_type"] != "default":
            raise ValueError(f"{path}: {kind} scales its positions ({rope['rope_type']}), which is not converted")
    return config


def write_gguf(folder: str | Path, dtype: str, file: str | Path) -> None:
    """Write a Gemma 3 folder as GGUF, without a tokenizer. Matrices are stored in `dtype` ("float32" or "bfloat16", rounded to
    nearest, ties to even), vectors in f32. A norm's weight w acts as 1 + w, and llama.cpp multiplies by what is stored, so 1 + w
    is; w is rounded to `dtype` first, as transformers holds it.

    Raises ValueError for an unknown dtype and for a model that llama.cpp's Gemma 3 does not compute.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r}: one of {', '.join(DTYPES)}")
    gguf = importlib.import_module("gguf")
    config = read_config(Path(folder))
    rope = config["rope_parameters"]
    writer = gguf.GGUFWriter(file, "gemma3")
    bf16 = gguf.GGMLQuantizationType.BF16
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if dtype == "bfloat16" else gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
    if config["sliding_window"]:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_array("gemma3.attention.sliding_window_pattern", [k == "sliding_attention" for k in config["layer_types"]])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    for name, tensor in read_tensors(Path(folder) / "model.safetensors"):
        if tensor.ndim == 1:
            held = gguf.dequantize(gguf.quantize(tensor, bf16), bf16) if dtype == "bfloat16" else tensor
            writer.add_tensor(gguf_name(name), held + np.float32(1))
        elif dtype == "bfloat16":
            writer.add_tensor(gguf_name(name), gguf.quantize(tensor, bf16), raw_dtype=bf16)
        else:
            writer.add_tensor(gguf_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCppDecoder:
    """Greedy decoding of one text. Raises ValueError for a missing folder, an unknown dtype, a step before a prefill and a text
    longer than `CONTEXT`; RuntimeError when llama.cpp fails."""

    def __init__(self, folder: str | Path, dtype: str = "float32", threads: int = 2) -> None:
        self.llama = llama = importlib.import_module("llama_cpp")
        self.dtype, self.threads = dtype, threads
        self._log = llama.llama_log_callback(self._report)
        llama.llama_log_set(self._log, None)
        llama.llama_backend_init()
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(folder) if Path(folder).is_file() else Path(scratch) / "model.gguf"
            if file != Path(folder):
                write_gguf(folder, dtype, file)
            self._model = llama.llama_model_load_from_file(str(file).encode(), llama.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp did not load {folder}")
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = CONTEXT
        params.n_threads = params.n_threads_batch = threads
        if dtype == "float32":
            params.type_k = params.type_v = llama.GGML_TYPE_F32
        self._context = llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp made no context")
        self.vocab_size = int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model)))
        self.logits: np.ndarray[Any, Any] | None = None
        self._token: int | None = None
        self._past = 0

    def prefill(self, ids: Sequence[int]) -> int:
        """Read a prompt into an empty cache; the first new token. `logits` is then f32 [vocabulary] of the last position, until
        the next call."""
        self.reset()
        return self._run(list(ids))

    def step(self) -> int:
        """Feed the token returned last; the next one."""
        if self._token is None:
            raise ValueError("step() before prefill(): there is no text to continue")
        return self._run([self._token])

    def feed(self, token: int) -> int:
        """Feed this token in place of the one returned last; the next one."""
        return self._run([token])

    def reset(self) -> None:
        """Forget the text; the model stays loaded."""
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self._context), True)
        self._token, self.logits, self._past = None, None, 0

    def _run(self, ids: list[int]) -> int:
        if self._past + len(ids) > CONTEXT:
            raise ValueError(f"a text of {self._past + len(ids)} tokens, and the cache holds {CONTEXT}")
        fed = (self.llama.llama_token * len(ids))(*ids)
        status = self.llama.llama_decode(self._context, self.llama.llama_batch_get_one(fed, len(ids)))
        if status:
            raise RuntimeError(f"llama_decode failed with status {status}")
        self._past += len(ids)
        found = ctypes.cast(self.llama.llama_get_logits_ith(self._context, -1), ctypes.POINTER(ctypes.c_float))
        self.logits = np.ctypeslib.as_array(found, (self.vocab_size,))
        self._token = int(self.logits.argmax())
        return self._token

    @staticmethod
    def _report(level: int, text: bytes, _: object) -> None:
        if level == 4:  # GGML_LOG_LEVEL_ERROR
            sys.stderr.write(text.decode(errors="replace"))


def serve(decoder: LlamaCppDecoder) -> None:
    """Answer lines of stdin until it ends: "prefill [ids]", "step", "feed id" and "reset", each with {"token", "seconds"} on
    stdout."""
    for line in sys.stdin:
        command, _, ids = line.strip().partition(" ")
        token = None
        start = time.perf_counter()
        if command == "prefill":
            token = decoder.prefill(json.loads(ids))
        elif command == "step":
            token = decoder.step()
        elif command == "feed":
            token = decoder.feed(int(ids))
        elif command == "reset":
            decoder.reset()
        else:
            raise ValueError(f"unknown command {command!r}")
        sys.stdout.write(json.dumps({"token": token, "seconds": time.perf_counter() - start}) + "\n")
        sys.stdout.flush()


class LlamaCppProcess:
    """A `LlamaCppDecoder` in the interpreter `python`; `seconds` is what the last call took there. Close it after use.

    Raises RuntimeError when the process ends early; what it said is on stderr.
    """

    def __init__(self, python: str, folder: str | Path, dtype: str = "float32", threads: int = 2) -> None:
        command = [python, __file__, str(folder), "--dtype", dtype, "--threads", str(threads), "--serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds = math.nan
        self._ask("reset")

    def prefill(self, ids: Sequence[int]) -> int:
        return int(self._ask(f"prefill {json.dumps(list(ids))}")["token"])

    def step(self) -> int:
        return int(self._ask("step")["token"])

    def feed(self, token: int) -> int:
        return int(self._ask(f"feed {token}")["token"])

    def reset(self) -> None:
        self._ask("reset")

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            answer = ""
        else:
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"llama.cpp's process ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        self.seconds = found["seconds"]
        return found


def installed(python: str) -> str | None:
    """The version of llama-cpp-python that an interpreter has, or None: no such interpreter, no llama_cpp, no gguf."""
    try:
        found = subprocess.run([python, "-c", "import gguf, llama_cpp; print(llama_cpp.__version__)"], check=False,
                               capture_output=True, text=True)
    except OSError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def measure(folder: str | Path, dtype: str = "float32", threads: int = 2, prompt: int = 128, steps: int = 64,
            repeats: int = 3, seed: int = 0) -> dict[str, Any]:  # fmt: skip
    """Time `repeats` prefills of `prompt` random ids and, after the last, `steps` single-token steps.

    One prefill and three steps warm up and are not counted. Returns plain JSON values under the names that the transformers peer
    uses; the same seed gives the same prompt there.
    """
    decoder = LlamaCppDecoder(folder, dtype, threads)
    ids = [random.Random(seed).randrange(decoder.vocab_size) for _ in range(prompt)]
    decoder.prefill(ids)
    for _ in range(3):
        decoder.step()
    prefill_ms: list[float] = []
    tokens: list[int] = []
    for _ in range(repeats):
        decoder.reset()
        start = time.perf_counter()
        token = decoder.prefill(ids)
        prefill_ms.append((time.perf_counter() - start) * 1e3)
        tokens = [token]
    step_s: list[float] = []
    for _ in range(steps):
        start = time.perf_counter()
        tokens.append(decoder.step())
        step_s.append(time.perf_counter() - start)
    return {
        "peer": "llama.cpp", "dtype": dtype, "threads": threads, "prompt_length": prompt, "prefill_ms": prefill_ms,
        "prefill_ms_median": statistics.median(prefill_ms), "step_s": step_s,
        "step_ms_median": statistics.median(step_s) * 1e3 if step_s else None, "tokens": tokens,
        "distinct_tokens": len(set(tokens)), "prompt_ids": ids, "seed": seed,
        "versions": {"llama-cpp-python": decoder.llama.__version__, "python": platform.python_version(),
                     "system": decoder.llama.llama_print_system_info().decode()},
        "machine": {"processor": platform.processor(), "cores": os.cpu_count()},
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure and print JSON to stdout; with --serve, answer the lines of stdin instead."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128, help="length of the prompt, in tokens")
    parser.add_argument("--steps", type=int, default=64, help="tokens to decode after it")
    parser.add_argument("--repeats", type=int, default=3, help="how often the prefill is timed")
    parser.add_argument("--seed", type=int, default=0, help="of the prompt's random ids")
    parser.add_argument("--serve", action="store_true", help='answer "prefill [ids]", "step", "feed id" and "reset" on stdin')
    args = parser.parse_args(arguments)
    for name in ("threads", "prompt", "repeats"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: at least 1")
    try:
        if args.serve:
            serve(LlamaCppDecoder(args.folder, args.dtype, args.threads))
            return 0
        result = measure(args.folder, args.dtype, args.threads, args.prompt, args.steps, args.repeats, args.seed)
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
