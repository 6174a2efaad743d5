"""A prompt through a Llama of 1.2 billion parameters on a GPU, all logits, next to transformers there (eager).

    python benchmarks/prompt_cuda.py [--tokens 128,512,2048] [--layers 16] [--profile 0] [--runs 12] [--dtype float32]
                                     [--precision written,bf16x2,tf32] [--tf32] [--steps 40]

A folder with random weights of Llama 3.2 1B's shape is written. Both read it in one process; logits stay on the device. Runs are
interleaved: milliseconds of one, median and quartiles, the device waited for. Errors are ‖logits − exact‖ / ‖exact‖, exact being
transformers on the same weights in float32 without TF32, for --dtype float32 in float64. --precision: words of ours, one plan for
each. --tf32: products of transformers round their operands to TF32. Ends with 1 where ours as written is wrong: its error beyond
1.2 times that of transformers. --steps: tokens one by one first, with the cache; the error is that of the largest logit of each
step, and the time of a replay is the device's. Needs a GPU and transformers.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tensor_graphs as tg
from benchmarks import decode_cuda
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.views.explain import explain

MOST_ERROR = 1.2
"""times transformers' error"""


def written(folder: Path, layers: int) -> None:
    """Write a folder of random weights, of Llama 3.2 1B's shape."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=64, rms_norm_eps=1e-5, rope_theta=500000.0,
                         max_position_embeddings=131072, tie_word_embeddings=True)
    torch.manual_seed(0)
    with torch.device("cuda:0"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)         # in any dtype, the weights have the bits of bf16
    model.save_pretrained(folder)


def decoded(loaded: Any, folder: Path, exact_model: Any, args: argparse.Namespace, backends: tuple[str, ...],
            database: str) -> bool:
    """Print how long steps of one token take, and their error; return whether they are right."""
    import torch

    if args.profile:
        profile_graph(loaded.greedy_graph, budget=args.profile, backends=backends, database=database, at=decode_cuda.AT,
                      largest=decode_cuda.LARGEST)
    ours, theirs = decode_cuda.Ours(loaded, backends, database), decode_cuda.Theirs(folder, None)
    print(f"one token: compiled in {ours.seconds:.1f} s")
    print("\n".join(line[:150] for line in explain(ours.plan, at=decode_cuda.AT, rows=14).splitlines()))
    ids = np.random.default_rng(1).integers(0, 128256, args.steps).tolist()
    with torch.no_grad():
        exact = exact_model(torch.tensor([ids]).to("cuda:0")).logits[0].max(-1).values.cpu().numpy()
    logits: dict[str, list[float]] = {"ours": [], "transformers": []}
    times: dict[str, list[float]] = {"ours": [], "transformers": []}
    for token in ids:
        for name, decoder in (("ours", ours), ("transformers", theirs)):
            decoder.last = token
            times[name].append(decoder.timed_step())
            logits[name].append(decoder.logit)
    errors = {name: float(np.linalg.norm(np.array(each) - exact) / np.linalg.norm(exact)) for name, each in logits.items()}
    print("; ".join(f"{name} {np.median(each[5:]):.3f} ms, error {errors[name]:.1e}" for name, each in times.items()))
    for launches, _, us in ours.replays():
        print(f"a replay of {launches} launches: {us:.0f} µs", flush=True)
    return errors["ours"] <= MOST_ERROR * errors["transformers"] + 1e-3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", default="128,512,2048")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--backends", default="cuda,gencuda,torchcuda,triton")
    parser.add_argument("--profile", type=float, default=0.0, help="seconds in which the graph is profiled before, for each length")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--precision", default="written", help="words of all sites, split by commas; one plan for each")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--steps", type=int, default=0, help="tokens that are decoded one by one; default: none")
    args = parser.parse_args()
    lengths, backends, wrong = [int(n) for n in args.tokens.split(",") if n], tuple(args.backends.split(",")), 0
    with tempfile.TemporaryDirectory() as name:
        import torch
        from transformers import AutoModelForCausalLM

        folder, database = Path(name) / "model", str(Path(name) / "bench.db")
        written(folder, args.layers)
        loaded = load_model(folder, dtype=args.dtype, max_positions=max([decode_cuda.ROOM + 1, *lengths]))
        graph = tg.graph({"logits": tg.copy_to(loaded.graph.outputs["logits"], "cuda:0")}, dict(loaded.graph.updates))
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype)).to("cuda:0").eval()
        torch.backends.cuda.matmul.allow_tf32 = False
        wider = torch.float64 if args.dtype == "float32" else torch.float32
        exact_model = AutoModelForCausalLM.from_pretrained(folder, dtype=wider).to("cuda:0").eval()
        if args.steps:
            wrong += not decoded(loaded, folder, exact_model, args, backends, database)
        for n, words in itertools.product(lengths, args.precision.split(",")):
            at = {"n": n, "m": n, "p": 0}
            begun = time.perf_counter()
            if args.profile:
                profile_graph(graph, budget=args.profile, backends=backends, database=database, at=at, largest=at)
            plan = compile_graph(graph, backends=backends, database=database, at=at, largest=at, precision=words,
                                 reuse_outputs=True)
            print(f"{n} tokens, {words}: compiled in {time.perf_counter() - begun:.1f} s; {plan!r}", flush=True)
            lines = (line[:150] for line in explain(plan, at=at, rows=12).splitlines() if "compared at" not in line)
            print("\n".join(lines), flush=True)
            model = bind(plan, loaded.weights)
            session, device = model.session(), device_named("cuda:0")
            ids = np.random.default_rng(n).integers(0, 128256, n).astype(np.int32)
            there = torch.from_numpy(ids.astype(np.int64))[None].to("cuda:0")

            def ours(model: Any = model, session: Any = session, ids: Any = ids, n: int = n, device: Any = device) -> Any:
                out = model.run({"ids": ids}, dims={"p": 0, "m": n}, session=session)["logits"]
                device.synchronise()
                return out

            def peer(there: Any = there) -> Any:
                torch.backends.cuda.matmul.allow_tf32 = args.tf32
                out = theirs(there).logits
                torch.cuda.synchronize()
                torch.backends.cuda.matmul.allow_tf32 = False
                return out

            with torch.no_grad():
                exact = exact_model(there).logits[0]
                differences = [out.reshape(exact.shape).to(exact.dtype) - exact for out in (torch.from_dlpack(ours()), peer())]
                errors = [float(torch.linalg.vector_norm(x) / torch.linalg.vector_norm(exact)) for x in differences]
                del exact, differences
                times: dict[str, list[float]] = {"ours": [], "transformers": []}
                for _ in range(args.runs):
                    for what, run in (("ours", ours), ("transformers", peer)):
                        start = time.perf_counter()
                        run()
                        times[what].append((time.perf_counter() - start) * 1e3)
            quarters = {what: np.quantile(taken[2:], [0.25, 0.5, 0.75]) for what, taken in times.items()}
            shown = "; ".join(f"{what} {q[1]:.2f} ms ({q[0]:.2f} to {q[2]:.2f})" for what, q in quarters.items())
            print(f"{n} tokens, {words}: {shown}; ours ÷ transformers {quarters['ours'][1] / quarters['transformers'][1]:.2f}; "
                  f"error {errors[0]:.1e}, transformers {errors[1]:.1e}", flush=True)
            wrong += words == "written" and not errors[0] <= MOST_ERROR * errors[1]
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
