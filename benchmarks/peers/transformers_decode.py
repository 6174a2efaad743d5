"""transformers_decode: Hugging Face transformers' eager decoding of a Gemma 3 folder, as a peer to be measured against.

    python benchmarks/peers/transformers_decode.py gemma_f32 --dtype float32 --threads 2 --steps 64 > peer.json

As a class it can be stepped in turn with another decoder, so that both see the same neighbours on a shared machine:

    peer = TransformersDecoder("gemma_f32", dtype="float32", threads=2)
    token = peer.prefill(ids)          # the first new token
    token = peer.step()                # the next one, from the one before
    peer.reset()                       # forgets the text, keeps the model

"Eager": the model as `from_pretrained` gives it, no torch.compile; attention is torch's fused one, as transformers
chooses. Greedy, batch 1, on the CPU. Nothing is fetched: HF_HUB_OFFLINE is set before transformers is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
import transformers
from transformers import AutoModelForCausalLM

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TransformersDecoder:
    """Greedy decoding of one text. Raises ValueError for a missing folder, an unknown dtype or a step before a prefill.

    threads: torch's; the setting is the whole process's, so decoders that alternate in one process share it.
    """

    def __init__(self, folder: str | Path, dtype: str = "float32", threads: int = 2) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r}: one of {', '.join(DTYPES)}")
        if not (Path(folder) / "config.json").is_file():
            raise ValueError(f"{folder} is not a model folder: it has no config.json")
        torch.set_num_threads(threads)
        self.threads = threads
        self.dtype = dtype
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True).eval()
        self.logits: torch.Tensor | None = None
        self._cache: Any = None
        self._token: int | None = None

    @property
    def vocab_size(self) -> int:
        """How many ids the model knows."""
        return int(self.model.config.vocab_size)

    def prefill(self, ids: Sequence[int]) -> int:
        """Read a prompt into a new cache; the first new token. `logits` is then f32 or bf16 [vocabulary] of the last
        position."""
        self.reset()
        return self._run(list(ids))

    def step(self) -> int:
        """Feed the token returned last; the next one."""
        if self._token is None:
            raise ValueError("step() before prefill(): there is no text to continue")
        return self._run([self._token])

    def reset(self) -> None:
        """Forget the text; the model stays loaded."""
        self._cache, self._token, self.logits = None, None, None

    def _run(self, ids: list[int]) -> int:
        with torch.inference_mode():
            out = self.model(torch.tensor([ids]), past_key_values=self._cache, use_cache=True, logits_to_keep=1)
            self._cache, self.logits = out.past_key_values, out.logits[0, -1]
            self._token = int(self.logits.argmax())
        return self._token


def measure(folder: str | Path, dtype: str = "float32", threads: int = 2, prompt: int = 128, steps: int = 64,
            repeats: int = 3, seed: int = 0) -> dict[str, Any]:  # fmt: skip
    """Time `repeats` prefills of `prompt` random ids and, after the last, `steps` single-token steps.

    One prefill and three steps warm up and are not counted. Returns plain JSON values: `prefill_ms` (one per repeat),
    `step_s` (one per step, seconds), their medians, `tokens` (those generated), `prompt_ids`, and with what it was
    measured.
    """
    decoder = TransformersDecoder(folder, dtype, threads)
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
        "peer": "transformers eager",
        "dtype": dtype,
        "threads": threads,
        "prompt_length": prompt,
        "prefill_ms": prefill_ms,
        "prefill_ms_median": statistics.median(prefill_ms),
        "step_s": step_s,
        "step_ms_median": statistics.median(step_s) * 1e3 if step_s else None,
        "tokens": tokens,
        "distinct_tokens": len(set(tokens)),
        "prompt_ids": ids,
        "seed": seed,
        "versions": {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": {"processor": _processor(), "cores": os.cpu_count()},
    }


def _processor() -> str:
    """The processor's name as Linux gives it, else as Python does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and print JSON to stdout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128, help="length of the prompt, in tokens")
    parser.add_argument("--steps", type=int, default=64, help="tokens to decode after it")
    parser.add_argument("--repeats", type=int, default=3, help="how often the prefill is timed")
    parser.add_argument("--seed", type=int, default=0, help="of the prompt's random ids")
    args = parser.parse_args(arguments)
    for name in ("threads", "prompt", "repeats"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: at least 1")
    try:
        result = measure(args.folder, args.dtype, args.threads, args.prompt, args.steps, args.repeats, args.seed)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
