"""Decode speed of one GGUF file, and of llama.cpp on the same file: interleaved step by step, medians, all logits.

    python benchmarks/gguf_decode.py gemma-q8_0.gguf gemma-q4_0.gguf --llama-python /path/to/venv/bin/python --json gguf.json
    python benchmarks/gguf_decode.py gemma-q4_k.gguf --words written product=int8 --prefill 128 --threads 1

`tg convert FOLDER FILE.gguf --precision Q8_0` writes such files. We run in each of the forms of --words: as written (activations in
f32), or with activations rounded to integers (product=int8, as llama.cpp rounds them; product=int8x2). Printed per file and form:
milliseconds per token of each (medians), ours ÷ llama.cpp's, and limit ÷ ours, where the limit is the bytes of a token at the read
bandwidth of this run. --prefill N: a prompt of N tokens too. All read the same text, which llama.cpp continues greedily.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.decode import LONGEST, PAUSE, PROMPT, OurDecoder, prefills, quartiles, read_bandwidth
from benchmarks.peers.llama_cpp_decode import LlamaCppProcess, installed
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.meaning.precision import parse_form
from tensor_graphs.runtime.threads import set_threads

WRITTEN = "written"


def compare(path: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row for each form of ours."""
    model = load_model(path)
    vocabulary = int(model.graph.outputs["logits"].shape[-1])
    forms = [None if words == WRITTEN else parse_form(words) for words in options.words]
    ours = [OurDecoder(model, "logits", options.database, form) for form in forms]
    set_threads(options.threads)
    llama = LlamaCppProcess(options.llama_python, path, "float32" if options.f32_cache else "bfloat16", options.threads)
    try:
        prompt = [2, *np.random.default_rng(0).integers(5, vocabulary - 100, PROMPT - 1).tolist()]
        token = llama.prefill(prompt)
        for decoder in ours:
            decoder.prefill(prompt)
        seconds: list[list[float]] = [[] for _ in [*ours, llama]]
        agreeing = [0] * len(ours)
        for _ in range(options.steps + 3):                          # three warm up
            for samples, decoder in zip(seconds, ours, strict=False):
                time.sleep(PAUSE)
                decoder.last, start = token, time.perf_counter()
                decoder.step()
                samples.append(time.perf_counter() - start)
            time.sleep(PAUSE)
            token = llama.feed(token)
            seconds[-1].append(llama.seconds)
            agreeing = [n + (decoder.last == token) for n, decoder in zip(agreeing, ours, strict=True)]
        prompts = prefills(ours, llama, options.prefill, vocabulary) if options.prefill else None
    finally:
        llama.close()
    bandwidth, theirs = read_bandwidth([np.ones(512 << 20, dtype=np.uint8)]), seconds[-1][3:]
    rows = []
    for i, (words, decoder) in enumerate(zip(options.words, ours, strict=True)):
        limit, mine = decoder.bytes_read() / bandwidth, seconds[i][3:]
        rows.append({
            "file": path.name, "words": words, "threads": options.threads,
            "ours_ms": quartiles(mine), "llama_cpp_ms": quartiles(theirs), "ratio": float(np.median(mine) / np.median(theirs)),
            "paired_ratio": float(np.median(np.array(mine) / np.array(theirs))),
            "limit_ms": limit * 1e3, "limit_share": limit / float(np.median(mine)), "read_bandwidth_GBps": bandwidth / 1e9,
            "agreeing_tokens": agreeing[i], "compared_tokens": options.steps + 3,
            "prefill_ms": prompts and {"ours": prompts[i], "llama_cpp": prompts[-1]}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="GGUF files")
    parser.add_argument("--llama-python", required=True, help="an interpreter that has llama_cpp and gguf")
    parser.add_argument("--words", nargs="+", default=[WRITTEN, "product=int8"], help="our forms (default: written product=int8)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--prefill", type=int, default=0, help="tokens of a prompt that is timed too (default: none)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--f32-cache", action="store_true", help="llama.cpp's cache of keys and values in f32 (default: f16)")
    parser.add_argument("--database", default=None)
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    version = installed(options.llama_python)
    if not version or not 0 <= options.prefill <= LONGEST:
        parser.error(f"--prefill: 0 to {LONGEST} tokens" if version else f"{options.llama_python} cannot import llama_cpp and gguf")
    rows = [row for path in options.files for row in compare(path, options)]
    print(f"{'file':28s} {'words':14s} {'ours ms':>8s} {'llama.cpp':>9s} {'ratio':>6s} {'paired':>6s} {'limit/ours':>10s} "
          f"{'GB/s':>5s} tokens")
    for r in rows:
        print(f"{r['file']:28s} {r['words']:14s} {r['ours_ms'][1]:8.2f} {r['llama_cpp_ms'][1]:9.2f} {r['ratio']:6.2f} "
              f"{r['paired_ratio']:6.2f} {r['limit_share']:10.2f} {r['read_bandwidth_GBps']:5.1f} "
              f"{r['agreeing_tokens']}/{r['compared_tokens']}")
        for name, ms in (r["prefill_ms"] or {}).items():
            print(f"{'':28s} prompt of {options.prefill} tokens, {name}: {ms[1]:.1f} ms ({ms[0]:.1f} to {ms[2]:.1f})")
    if options.json:
        document = {"environment": str(fingerprint("c")), "llama-cpp-python": version, "rows": rows}
        Path(options.json).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
