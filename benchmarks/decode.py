"""Decode speed of a model of true shape beside transformers eager: same folder, same process, interleaved step by step, medians.

    python benchmarks/decode.py --dtypes float32,bfloat16 --steps 60 --threads 2 --json decode.json
    python benchmarks/decode.py --shape llama-3.2-1b --dtypes bfloat16
    python benchmarks/decode.py --prefill 128
    python benchmarks/decode.py --dtypes bfloat16 --prefill 128 --precision between=f32,state=f32

Ours twice: `token` is what `tg run` does when it decodes greedily (the likeliest token alone is asked for, and found exactly from
8-bit codes of the head and the few rows that may win); `logits` computes all of them, as transformers does.
Printed per dtype: milliseconds per step of each (median, quartiles), the ratios of transformers' step to ours, the bytes that the
step reads over the read bandwidth measured in the same run (the limit), how much of that bandwidth our step reaches (and below it
what reading the weights alone gives: a guest's memory is not all alike), and the price of the walk itself: a step in which every
kernel does nothing, over the real step. Steps take turns (token, logits, theirs), so that a noisy neighbour slows all.

--prefill N: a prompt of so many tokens as well, read into an empty cache, in turns like the steps: milliseconds of each.

llama.cpp is a second peer where `--llama-python` names an interpreter that has it (peers/llama_cpp_decode.py says how to install
it): its milliseconds, and the ratio of transformers' step to its. It runs in a process of its own, takes its turn after
transformers, and times itself. In float32 it must first find the same tokens as transformers, but for ties. Before each turn
all sleep for a moment, so that no idle threads spin beside the one measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers.llama_cpp_decode import LlamaCppProcess, installed
from benchmarks.peers.transformers_decode import TransformersDecoder
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.request import Precision
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.frontends.huggingface.folder import GEMMA3_270M, write_gemma3_folder
from tensor_graphs.frontends.huggingface.load import LoadedModel, load_model
from tensor_graphs.kernels.registry import native_library
from tensor_graphs.meaning.precision import parse_form
from tensor_graphs.records.database import open_database
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.runtime.threads import set_threads
from tensor_graphs.views.explain import explain
from tensor_graphs.views.roofline_chart import kernel_table

GEMMA = "gemma-3-270m"
PROMPT = 32
LONGEST = 128
"""Tokens that a prompt may have."""
PROOF = 32
"""Tokens of llama.cpp that are compared with transformers' before anything is measured."""
TIES, TIE = 3, 0.05
"""How many of those may differ in float32, and by how many standard deviations of the logits each may be behind. The likeliest of
262144 random logits is mostly 0.1 to 0.4 ahead; another window or scale of the scores changes all of them."""
PREFILLS = 9
"""Prompts of each that count."""
LARGE = 1 << 20
"""bytes of a weight, from which on it counts in what its memory gives: where weights lie may be read slower than other memory"""
PAUSE = 0.04
"""Seconds of sleep before each turn: longer than the threads of the one before it spin (OpenBLAS's do for 27 ms)."""


SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192}},
    "qwen3-0.6b": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "max_position_embeddings": 40960, "rope_theta": 1000000.0},
}
"""the sizes that the published config.json files give"""


def write_folder(folder: Path, shape: str, dtype: str) -> None:
    """A model of that shape with transformers' own random weights."""
    if shape == GEMMA:
        write_gemma3_folder(folder, GEMMA3_270M, 0)
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    settings = dict(SHAPES[shape])
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)


def read_bandwidth(arrays: Sequence[np.ndarray], seconds: float = 1.0) -> float:
    """byte/s that the pool's threads read from memory, streaming over these arrays; the best of several passes."""
    library, out = native_library(), np.zeros(1, dtype=np.uint32)
    nbytes, best = sum(a.nbytes for a in arrays), 0.0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for a in arrays:
            library.call("tg_read_stream", [out.ctypes.data, a.ctypes.data], [a.nbytes])
        best = max(best, nbytes / (time.perf_counter() - start))
    return best


class OurDecoder:
    """The same interface as the peer's: prefill, then steps."""

    def __init__(self, model: LoadedModel, output: str, database: str | None, precision: Precision = None) -> None:
        self.model, self.output, self.database = model, output, database
        self.graph = model.greedy_graph if output == "token" else model.graph
        self.plan = compile_graph(self.graph, database=database, at={"n": 1, "m": 1, "p": 64}, reuse_outputs=True,
                                  precision=precision, largest={"n": LONGEST, "m": 1, "p": 1024})
        self.compiled: CompiledGraph = bind(self.plan, self.model.weights)
        self.session = self.compiled.session()
        self.past = 0
        self.last = 0

    def prefill(self, ids: list[int]) -> int:
        """Read a prompt into an empty cache; the first new token."""
        self.session = self.compiled.session()
        found = self.compiled.run({"ids": np.array(ids, dtype=np.int32)}, dims={"p": 0, "m": 1}, session=self.session)
        self.past = len(ids)
        return self.pick(found)

    def pick(self, found: dict[str, np.ndarray]) -> int:
        self.last = int(found["token"][0] if self.output == "token" else found["logits"][0].argmax())
        return self.last

    def bytes_read(self) -> float:
        """By the calls of one step: of the likeliest token's search the 8-bit codes, of an embedding its row."""
        table = kernel_table(self.plan, open_database(self.database), {"n": 1, "m": 1, "p": 64})
        return sum(step.nbytes * step.calls for step in table.steps)

    def step(self) -> int:
        found = self.compiled.run({"ids": np.array([self.last], dtype=np.int32)}, dims={"p": self.past, "m": 1},
                                  session=self.session)
        self.past += 1
        return self.pick(found)

    def no_op_seconds(self, repeats: int = 200) -> float:
        """Median time of `run` in which every kernel does nothing (argmax not included)."""
        ids = np.array([self.last], dtype=np.int32)
        samples = []
        with self.compiled.no_op():
            for i in range(repeats):
                start = time.perf_counter()
                self.compiled.run({"ids": ids}, dims={"p": self.past + i, "m": 1}, session=self.session)
                samples.append(time.perf_counter() - start)
        return float(np.median(samples))

    def run_seconds(self, repeats: int = 20) -> float:
        """Median time of the real `run` alone."""
        ids = np.array([self.last], dtype=np.int32)
        samples = []
        for i in range(repeats):
            start = time.perf_counter()
            self.compiled.run({"ids": ids}, dims={"p": self.past + i, "m": 1}, session=self.session)
            samples.append(time.perf_counter() - start)
        return float(np.median(samples))


def quartiles(samples: list[float]) -> list[float]:
    return [float(q) * 1e3 for q in np.quantile(samples, [0.25, 0.5, 0.75])]


def agreeing_tokens(llama: LlamaCppProcess, theirs: TransformersDecoder, prompt: list[int]) -> int:
    """How many of `PROOF` tokens agree, both reading transformers' text. In float32 those that differ must be ties but for rounding
    (llama.cpp looks gelu up in a table of f16): few, and each less than `TIE` below transformers' likeliest."""
    expected, found, gaps = theirs.prefill(prompt), llama.prefill(prompt), []
    for i in range(PROOF):
        if found != expected:
            assert theirs.logits is not None
            gaps.append(float((theirs.logits[expected] - theirs.logits[found]) / theirs.logits.std()))
        if i + 1 < PROOF:
            fed, expected = expected, theirs.step()
            found = llama.feed(fed)
    if theirs.dtype == "float32" and (len(gaps) > TIES or max(gaps, default=0) > TIE):
        raise SystemExit(f"llama.cpp's tokens differ from transformers', so its times say nothing: {len(gaps)} of {PROOF}, and "
                         f"{', '.join(f'{g:.3f}' for g in gaps)} standard deviations of the logits below the likeliest")
    return PROOF - len(gaps)


def prefills(decoders: Sequence[Any], llama: LlamaCppProcess | None, tokens: int, vocabulary: int) -> list[list[float]]:
    """Milliseconds (quartiles) that each takes for a prompt of so many tokens, in turns; llama.cpp, which times itself, is last."""
    ids = [2, *np.random.default_rng(1).integers(5, vocabulary - 100, tokens - 1).tolist()]
    seconds: list[list[float]] = [[] for _ in [*decoders, *([llama] if llama else [])]]
    for round_ in range(PREFILLS + 1):                                # the first warms up
        for samples, decoder in zip(seconds, [*decoders, *([llama] if llama else [])], strict=True):
            time.sleep(PAUSE)
            start = time.perf_counter()
            decoder.prefill(ids)
            taken = time.perf_counter() - start
            if round_:
                samples.append(llama.seconds if llama is decoder else taken)
    return [quartiles(each) for each in seconds]


def compare(folder: Path, dtype: str, given: argparse.Namespace, llama: LlamaCppProcess | None) -> list[dict[str, Any]]:
    """One row for each of our two ways; of llama.cpp, which both rows hold, None without it."""
    steps, threads, database = given.steps, given.threads, given.database
    model = load_model(folder, dtype=dtype)
    ours = [OurDecoder(model, output, database, given.precision) for output in ("token", "logits")]
    theirs = TransformersDecoder(folder, dtype, threads)
    set_threads(threads)
    prompt = [2, *np.random.default_rng(0).integers(5, theirs.vocab_size - 100, PROMPT - 1).tolist()]
    agreeing = agreeing_tokens(llama, theirs, prompt) if llama else 0
    llama_seconds: list[float] = []
    if llama:
        llama.prefill(prompt)
        for _ in range(3):
            llama.step()
    tokens = [[d.prefill(prompt)] for d in (*ours, theirs)]
    for _ in range(3):
        for d, found in zip((*ours, theirs), tokens, strict=True):
            found.append(d.step())
    seconds: list[list[float]] = [[], [], []]
    for _ in range(steps):
        for samples, decoder, found in zip(seconds, (*ours, theirs), tokens, strict=True):
            time.sleep(PAUSE)
            start = time.perf_counter()
            found.append(decoder.step())
            samples.append(time.perf_counter() - start)
        if llama:
            time.sleep(PAUSE)
            llama.step()
            llama_seconds.append(llama.seconds)
    if tokens[0] != tokens[1] or (dtype == "float32" and tokens[0] != tokens[2]):
        raise SystemExit(f"the tokens differ, so the times say nothing: {tokens}")
    b = seconds[2]
    bandwidth = read_bandwidth([np.ones(512 << 20, dtype=np.uint8)])
    of_weights = read_bandwidth([a for a in ours[1].compiled.parameters.values() if a.nbytes >= LARGE])
    prompts = prefills([*ours, theirs], llama, given.prefill, theirs.vocab_size) if given.prefill else None
    beside = {"ms": quartiles(llama_seconds), "ratio": float(np.median(b) / np.median(llama_seconds)),
              "agreeing_tokens": agreeing, "compared_tokens": PROOF} if llama else None
    rows = []
    for i, (decoder, a) in enumerate(zip(ours, seconds, strict=False)):
        no_op, real = decoder.no_op_seconds(), decoder.run_seconds()
        limit = decoder.bytes_read() / bandwidth
        rows.append({
            "dtype": dtype, "output": decoder.output, "threads": threads, "ours_ms": quartiles(a), "transformers_ms": quartiles(b),
            "ratio": float(np.median(b) / np.median(a)), "paired_ratio": float(np.median(np.array(b) / np.array(a))),
            "read_bandwidth_GBps": bandwidth / 1e9, "weights_GBps": of_weights / 1e9,
            "limit_ms": limit * 1e3, "share_of_bandwidth": limit / float(np.median(a)),
            "planned_bytes": decoder.plan.memory(n=1, m=1, p=64).total,
            "prefill_ms": prompts and {"ours": prompts[i], "transformers": prompts[2], "llama_cpp": prompts[3] if llama else None},
            "no_op_ms": no_op * 1e3, "no_op_share": no_op / real, "tokens": tokens[0], "llama_cpp": beside,
            "explain": explain(decoder.plan, {"n": 1, "m": 1, "p": 64}, rows=8)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--prefill", type=int, default=0, help="tokens of a prompt that is timed too (default: none)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=[GEMMA, *SHAPES], default=GEMMA, help="of the model that is made (default: %(default)s)")
    parser.add_argument("--precision", type=parse_form, help="words of our plans, like product=bf16 (default: as written)")
    parser.add_argument("--folder", default=None, help="a model folder (default: one with random weights is made)")
    parser.add_argument("--database", default=None)
    parser.add_argument("--llama-python", default=None, help="an interpreter that has llama_cpp and gguf (default: without)")
    parser.add_argument("--json", default=None)
    args = parser.parse_args()
    if not 0 <= args.prefill <= LONGEST:
        parser.error(f"--prefill {args.prefill}: 0 to {LONGEST} tokens")
    version = installed(args.llama_python) if args.llama_python else None
    if args.llama_python and not version:
        parser.error(f"--llama-python {args.llama_python}: no such interpreter, or it cannot import llama_cpp and gguf")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(args.folder) if args.folder else Path(scratch) / "model"
        if not args.folder:
            write_folder(folder, args.shape, args.dtypes.split(",")[0])
        rows = []
        for dtype in args.dtypes.split(","):
            llama = LlamaCppProcess(args.llama_python, folder, dtype, args.threads) if version else None
            try:
                rows += compare(folder, dtype, args, llama)
            finally:
                if llama:
                    llama.close()
    print(f"{'dtype':10s} {'output':7s} {'ours ms':>9s} {'eager ms':>9s} {'ratio':>6s} {'paired':>7s} {'limit ms':>9s} "
          f"{'of GB/s':>8s} {'share':>6s} {'no-op':>6s} {'llama.cpp ms':>13s} {'ratio':>6s}")
    for r in rows:
        beside = r["llama_cpp"]
        last = f"{beside['ms'][1]:13.2f} {beside['ratio']:6.2f}" if beside else f"{'not given':>13s} {'':6s}"
        print(f"{r['dtype']:10s} {r['output']:7s} {r['ours_ms'][1]:9.2f} {r['transformers_ms'][1]:9.2f} {r['ratio']:6.2f} "
              f"{r['paired_ratio']:7.2f} {r['limit_ms']:9.2f} {r['read_bandwidth_GBps']:8.1f} {r['share_of_bandwidth']:6.1%} "
              f"{r['no_op_share']:6.2%} {last}".rstrip())
        print(f"{'':10s} the memory where the weights lie was read at {r['weights_GBps']:.1f} GB/s")
        if r["prefill_ms"]:
            print(f"{'':10s} prompt of {args.prefill} tokens, ms: "
                  + ", ".join(f"{name} {ms[1]:.1f} ({ms[0]:.1f} to {ms[2]:.1f})" for name, ms in r["prefill_ms"].items() if ms))
    if args.json:
        environment = fingerprint("c")
        found = {"environment": str(environment), "llama-cpp-python": version, "rows": rows}
        Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
