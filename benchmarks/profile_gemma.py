"""Does profiling pay? Gemma-3-270M's decode step as it is compiled before and after profiling, step by step in turns.

    python benchmarks/profile_gemma.py --budget 3000 --json profile_gemma.json

On an empty database: compile (every price is a guess), profile until nothing is left or the budget is spent, compile again, profile
again. Printed: what the profiles did, how much of the step's predicted time rests on rows before and after, the median of after ÷
before over pairs of steps in turns (whoever goes first goes second in the next pair) with its quartiles, both explanations. Ends
with 1 where the rows cover less than 95 %, after ÷ before is above 1.02, or the second profile measures anything.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.arguments import at_least, new_file
from benchmarks.decode import PAUSE, OurDecoder
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.views.explain import explain

AT = {"n": 1, "m": 1, "p": 64}
LEAST_SHARE, MOST_RATIO = 0.95, 1.02


def in_turns(before: OurDecoder, after: OurDecoder, pairs: int) -> list[float]:
    """After ÷ before, pair by pair. Raises SystemExit where their tokens differ."""
    prompt = [2, *np.random.default_rng(0).integers(5, 262000, 31).tolist()]
    tokens: dict[int, list[int]] = {id(d): [d.prefill(prompt), d.step(), d.step()] for d in (before, after)}
    ratios = []
    for pair in range(pairs):
        seconds = {}
        for decoder in (before, after) if pair % 2 else (after, before):
            time.sleep(PAUSE)
            start = time.perf_counter()
            tokens[id(decoder)].append(decoder.step())
            seconds[id(decoder)] = time.perf_counter() - start
        ratios.append(seconds[id(after)] / seconds[id(before)])
    if tokens[id(before)] != tokens[id(after)]:
        raise SystemExit(f"the tokens differ, so the times say nothing: {list(tokens.values())}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--budget", type=float, default=3000.0, help="seconds of measuring, at most")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--pairs", type=at_least(2), default=60)
    parser.add_argument("--json", type=new_file, default=None)
    args = parser.parse_args()
    model = load_model("gemma-3-270m", dtype=args.dtype, random_seed=0)
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "bench.db")
        before = OurDecoder(model, "logits", database)
        reports = []
        for which in ("first", "second"):
            reports.append(profile_graph(model.graph, budget=args.budget, database=database, at=AT))
            report = reports[-1]
            print(f"the {which} profile: {report.measured} measured, {report.already_known} known already, {report.failed} failed, "
                  f"{report.deployed} steps measured in place, {report.left} left, in {report.seconds:.0f} s", flush=True)
        after = OurDecoder(model, "logits", database)
        shares = [d.plan.variant(AT).measured_share for d in (before, after)]
        ratios = in_turns(before, after, args.pairs)
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    again = reports[1].measured + reports[1].deployed
    print(f"rows cover {shares[0]:.1%} of the step before, {shares[1]:.1%} after; after ÷ before {middle:.3f} "
          f"({low:.3f} to {high:.3f}, {len(ratios)} pairs); the second profile measured {again}")
    for title, decoder in (("before", before), ("after", after)):
        print(f"\n{title}:\n{explain(decoder.plan, AT, rows=8)}")
    if args.json:
        args.json.write_text(json.dumps({"reports": [asdict(r) for r in reports], "shares": shares, "ratios": ratios}, indent=1,
                                        default=str) + "\n", encoding="utf-8")
    sys.exit(0 if shares[1] >= LEAST_SHARE and middle <= MOST_RATIO and not again else 1)


if __name__ == "__main__":
    main()
