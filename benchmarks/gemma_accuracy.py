"""Is Gemma-3-270M, true shape, right? Against transformers (greedy tokens) and the float64 oracle (logits at every position).

    python benchmarks/gemma_accuracy.py --seeds 0,1,2 --lengths 1,7,128,600 --json accuracy.json

Random weights by the recipe of `frontends.huggingface_folder.random_gemma3_weights`. One compile at --tolerance serves every seed,
prompt length, prefill, decode and teacher forcing. Printed per case: distinct tokens of 64, whether all equal transformers' (a
difference is excused where the oracle's gap between its two best is below 10 × our logit error there), whether greedy decoding
without all logits (compiled once too) gives the same, and the largest and median error of our logits (DESIGN 4.4's measure) over
all positions, beside transformers' own in f32. Then the same comparison with mutants of the model, each of which must fail it.
--dtype bfloat16: weights, activations and caches are bf16, here and in transformers, whose tokens may be others; the oracle has the
rounded weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.huggingface.folder import GEMMA3_270M, write_gemma3_folder
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.language.dtypes import f32
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.serving.generate import generate
from tensor_graphs.views.explain import explain
from tests.models.mutants import MUTANTS

BLOCK = 64
"""positions whose logits are compared at a time: 64 × 262144 float64 numbers take 134 MB"""


def reference_tokens(folder: Path, dtype: str, prompt: list[int], count: int, ids: np.ndarray) -> tuple[list[int], np.ndarray]:
    """transformers' greedy tokens, eager, with its own cache; and its logits for `ids`, all positions at once."""
    import torch
    from transformers import Gemma3ForCausalLM

    model = Gemma3ForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    out: list[int] = []
    with torch.no_grad():
        past = None
        step_ids = torch.tensor([prompt])
        for _ in range(count):
            step = model(step_ids, past_key_values=past, use_cache=True)
            past = step.past_key_values
            out.append(int(step.logits[0, -1].argmax()))
            step_ids = torch.tensor([[out[-1]]])
        logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()
    return out, logits


def ours_all_positions(compiled: CompiledGraph, ids: np.ndarray, prompt: int) -> np.ndarray:
    """Our logits at every position, made as a generation makes them: the prompt at once, then token by token. f32[len, vocab]."""
    session = compiled.session()
    rows = [compiled.run({"ids": ids[:prompt]}, dims={"p": 0, "m": prompt}, session=session)["logits"].copy()]
    for i in range(prompt, len(ids)):
        rows.append(compiled.run({"ids": ids[i:i + 1]}, dims={"p": i, "m": 1}, session=session)["logits"].copy())
    return np.concatenate(rows)


def compare(rows: np.ndarray, reference: np.ndarray) -> list[float]:
    """The error of each position."""
    return [measure(rows[i:i + 1], reference[i:i + 1], f32).max_relative_error for i in range(len(rows))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--lengths", default="1,7,128,600")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--tolerance", type=float, default=2e-5)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--database", default=None)
    parser.add_argument("--no-mutants", action="store_true")
    parser.add_argument("--json", default=None)
    args = parser.parse_args()
    cases: list[dict[str, Any]] = []
    plan = greedy_plan = None
    compiles = 0
    lengths = [int(x) for x in args.lengths.split(",")]
    for seed in (int(s) for s in args.seeds.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            write_gemma3_folder(folder, GEMMA3_270M, seed, dtype=args.dtype)
            model = load_model(folder, dtype=args.dtype)
            if plan is None or greedy_plan is None:
                sizes: dict[str, Any] = {"at": {"n": 1, "m": 1, "p": 256}, "tolerance": args.tolerance, "database": args.database}
                plan = compile_graph(model.graph, **sizes, largest={"n": max(lengths), "m": max(lengths),
                                                                    "p": max(lengths) + args.tokens})
                greedy_plan = compile_graph(model.greedy_graph, **sizes, largest={"n": max(lengths), "m": 1,
                                                                                  "p": max(lengths) + args.tokens})
                compiles += 1
                print(explain(plan, {"n": 1, "m": 1, "p": 256}, rows=12))
            weights = {k: model.weights[k] for k in model.graph.parameters}
            compiled, greedy = bind(plan, weights), bind(greedy_plan, weights)
            for length in lengths:
                case = one_case(compiled, greedy, model.graph, weights, folder, args.dtype, seed, length, args.tokens,
                                args.tolerance)
                cases.append(case)
                print(case, flush=True)
            if not args.no_mutants and seed == 0:
                for row in mutants(model.graph, weights, args.database, args.tolerance):
                    print(row, flush=True)
                    cases.append(row)
    print(f"compiles: {compiles}")
    if args.json:
        Path(args.json).write_text(json.dumps({"compiles": compiles, "cases": cases}, indent=1))


def one_case(compiled: CompiledGraph, greedy: CompiledGraph, graph: Any, weights: dict[str, np.ndarray], folder: Path, dtype: str,
             seed: int, length: int, tokens: int, tolerance: float) -> dict[str, Any]:
    rng = np.random.default_rng([seed, length])
    prompt = [2, *rng.integers(5, 262000, length - 1).tolist()][:length]
    made = generate(compiled, prompt, tokens).ids
    without_logits = generate(greedy, prompt, tokens).ids
    ids = np.array([*prompt, *made[:-1]], dtype=np.int32)
    theirs, their_logits = reference_tokens(folder, dtype, prompt, tokens, ids)
    started = time.perf_counter()
    logits = ours_all_positions(compiled, ids, length)
    reference = interpret(graph, {"ids": ids}, parameters=weights, dims={"p": 0, "m": len(ids)}).outputs["logits"]
    errors, their_errors = compare(logits, reference), compare(their_logits, reference)
    excused, unexcused = 0, 0
    for k, (a, b) in enumerate(zip(made, theirs, strict=True)):
        if a != b:
            row = np.sort(reference[length - 1 + k])[-2:]
            at = length - 1 + k
            scale = np.abs(logits[at] - reference[at]).max()
            if row[1] - row[0] < 10 * scale:
                excused += 1
                break                                   # behind a tie the two go on from different texts
            unexcused += 1
            break
    return {"dtype": dtype, "seed": seed, "length": length, "distinct": len(set(made)), "equal": made == theirs, "excused": excused,
            "unexcused": unexcused, "equal_without_logits": without_logits == made, "error_max": max(errors),
            "error_median": float(np.median(errors)), "positions": len(errors),
            "positions_beyond": sum(not e <= tolerance for e in errors),
            "transformers_error_max": max(their_errors), "transformers_error_median": float(np.median(their_errors)),
            "oracle_seconds": round(time.perf_counter() - started, 1)}


def mutants(graph: Any, weights: dict[str, np.ndarray], database: str | None, tolerance: float) -> list[dict[str, Any]]:
    """Each mutant, compiled and run like the model, against the oracle of the true model: its error must be large."""
    rng = np.random.default_rng(5)
    ids = np.array([2, *rng.integers(5, 262000, 599)], dtype=np.int32)
    reference = interpret(graph, {"ids": ids}, parameters=weights, dims={"p": 0, "m": 4}).outputs["logits"]
    rows = []
    for mutant in MUTANTS:
        changed = mutant.apply(graph)
        plan = compile_graph(changed, database=database, tolerance=tolerance, at={"n": 600, "m": 4, "p": 0},
                             largest={"n": 600, "m": 4, "p": 0})
        compiled = bind(plan, {k: weights[k] for k in changed.parameters})
        out = compiled.run({"ids": ids}, dims={"p": 0, "m": 4}, session=compiled.session())["logits"]
        error = measure(out, reference, f32).max_relative_error
        rows.append({"mutant": mutant.name, "error": error, "caught": not error <= tolerance})
    return rows


if __name__ == "__main__":
    main()
