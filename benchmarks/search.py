"""search: how good each strategy of tuning is on equal wall-clock, beside the best that is known.

    python benchmarks/search.py [--seconds 10] [--seeds 5] [--kernels 24] [--strategies descent,beam,…] [--times 10] [--json FILE]

Each strategy searches each kernel from each seed for --seconds; a descent of --times as long, from a seed of its own, says what the
best may be. What a search has found is timed once more, in pairs with the rules' schedule: its score there counts, 1 where the
rules' stays. The table has, for each strategy: the geometric mean of scores, of score ÷ best known (of all searches of that kernel,
the long one included), in how many searches it found something faster than the rules, and how many schedules it looked at.

Ends with 1 where a winner is slower than the rules' schedule by more than 2 % in those pairs: no search is worse than its seed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.arguments import at_least, new_file
from tensor_graphs.cli.options import progress
from tensor_graphs.codegen.actions import Schedule
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.node import Node
from tensor_graphs.language.part import part_between
from tensor_graphs.tuning.space import Measured
from tensor_graphs.tuning.strategies import STRATEGIES, walk

PAIRS = 31
"""of the last comparison"""

WORSE = 1.02


def f32(name: str, *shape: int) -> Node:
    return tg.input(name, shape, tg.f32)


def part(*outputs: Node) -> Node:
    """Several ops as the one part that fusing them makes."""
    graph = tg.graph({f"y{i}": y for i, y in enumerate(outputs)})
    leaves = list(graph.inputs.values())
    return part_between(list(graph.outputs.values()), leaves)(*leaves)


def residual_norm() -> Node:
    x = f32("x", 256, 640) + f32("r", 256, 640)
    return part(tg.rms_norm(x) * f32("w", 640))


KERNELS: Mapping[str, Callable[[], Node]] = {
    "softmax of long rows": lambda: tg.softmax(f32("x", 64, 8192)),
    "softmax of short rows": lambda: tg.softmax(f32("x", 8192, 64)),
    "softmax of one row": lambda: tg.softmax(f32("x", 1, 32768)),
    "softmax of columns": lambda: tg.softmax(f32("x", 2048, 128), axis=0),
    "log_softmax": lambda: tg.log_softmax(f32("x", 256, 1000)),
    "logsumexp": lambda: tg.logsumexp(f32("x", 512, 1024), axis=1),
    "layer_norm": lambda: tg.layer_norm(f32("x", 512, 768)),
    "layer_norm, few rows": lambda: tg.layer_norm(f32("x", 4, 4096)),
    "rms_norm": lambda: tg.rms_norm(f32("x", 512, 1024)),
    "rms_norm of one row": lambda: tg.rms_norm(f32("x", 1, 2048)),
    "residual + rms_norm": residual_norm,
    "gelu": lambda: tg.gelu(f32("x", 1024, 1024)),
    "silu · y": lambda: part(tg.silu(f32("x", 512, 2048)) * f32("y", 512, 2048)),
    "tanh, small": lambda: tg.tanh(f32("x", 32, 64)),
    "sum of rows": lambda: f32("x", 1024, 1024).sum(axis=1),
    "sum of few columns": lambda: f32("x", 65536, 16).sum(axis=0),
    "sum of columns": lambda: f32("x", 2048, 512).sum(axis=0),
    "sum of all": lambda: f32("x", 1 << 21).sum(axis=0),
    "maximum of rows": lambda: tg.reduce_max(f32("x", 2048, 512), axis=1),
    "maximum of columns": lambda: tg.reduce_max(f32("x", 8192, 64), axis=0),
    "transpose + 1": lambda: part(f32("x", 1024, 1024).permute((1, 0)) + 1.0),
    "transpose, narrow": lambda: part(f32("x", 65536, 16).permute((1, 0)) * 2.0),
    "cumsum of rows": lambda: tg.cumsum(f32("x", 512, 1024), 1),
    "cumsum of one row": lambda: tg.cumsum(f32("x", 1 << 20), 0),
}


@dataclass(frozen=True)
class SearchRun:
    """One search. score: of its winner in the last comparison; looked: schedules that it measured."""

    kernel: str
    strategy: str
    seed: int
    seconds: float
    score: float
    looked: int
    actions: tuple[str, ...]


def searched(kernel: str, strategies: Sequence[str], seeds: int, seconds: float, times: int,
             show: Callable[[str], None]) -> list[SearchRun]:
    """All searches of a kernel, and their winners compared."""
    signature = signature_of(KERNELS[kernel]())
    asked = [(name, seed, seconds) for name in strategies for seed in range(seeds)] + [("long", 1000, times * seconds)]
    random.Random(kernel).shuffle(asked)                            # no strategy has all of a quiet hour
    found: list[tuple[str, int, float, Schedule, int]] = []
    space: Measured | None = None
    for name, seed, each in asked:
        show(f"{kernel}: {name}, seed {seed}")
        space = Measured(signature, {}, each)
        walk(space, "descent" if name == "long" else name, random.Random(seed))
        found.append((name, seed, each, space.winner()[0], len(space.looked)))
    assert space is not None
    scores = compared(space, {schedule for *_, schedule, _ in found})
    return [SearchRun(kernel, name, seed, each, scores[schedule], looked, tuple(str(a) for a in schedule if a not in space.seed))
            for name, seed, each, schedule, looked in found]


def compared(space: Measured, schedules: set[Schedule]) -> dict[Schedule, float]:
    """Each in pairs with the seed, in one process."""
    space.deadline = math.inf
    space.scores(list(schedules))
    return {s: 1.0 if s == space.seed else
            space.bench.pairs(space.bench.load(space.programs[s]), space.run_seed, PAIRS).ratio for s in schedules}


def mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(runs: Sequence[SearchRun]) -> list[dict[str, object]]:
    """A line for each strategy, the best first."""
    best = {kernel: min(1.0, *(r.score for r in runs if r.kernel == kernel)) for kernel in {r.kernel for r in runs}}
    lines = []
    for name in {r.strategy for r in runs}:
        own = [r for r in runs if r.strategy == name]
        lines.append({"strategy": name, "searches": len(own), "score": mean([r.score for r in own]),
                      "to_best": mean([r.score / best[r.kernel] for r in own]), "worst": max(r.score for r in own),
                      "faster": sum(bool(r.actions) for r in own), "looked": sum(r.looked for r in own) / len(own)})
    return sorted(lines, key=lambda line: line["to_best"])          # type: ignore[arg-type,return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=at_least(1), default=10)
    parser.add_argument("--seeds", type=at_least(1), default=5)
    parser.add_argument("--kernels", type=at_least(1), default=len(KERNELS), help="the first so many")
    parser.add_argument("--kernel", action="append", choices=list(KERNELS), metavar="NAME", help="this one; repeatable")
    parser.add_argument("--times", type=at_least(1), default=10, help="as long does the search take that says what the best may be")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--json", type=new_file)
    given = parser.parse_args()
    strategies = given.strategies.split(",")
    unknown = [name for name in strategies if name not in STRATEGIES]
    if unknown:
        parser.error(f"no strategy is named {unknown[0]!r}; there are {', '.join(STRATEGIES)}")
    runs: list[SearchRun] = []
    names = given.kernel or list(KERNELS)[:given.kernels]
    total = len(names) * (len(strategies) * given.seeds + 1)
    with progress("searching", False) as show:
        def say(what: str) -> None:
            show(len(runs), total, what)

        for kernel in names:
            runs += searched(kernel, strategies, given.seeds, given.seconds, given.times, say)
    print(f"{'strategy':10s} {'searches':>8s} {'score':>6s} {'÷ best':>7s} {'worst':>6s} {'faster':>6s} {'looked at':>9s}")
    for line in table(runs):
        print(f"{line['strategy']:10s} {line['searches']:8d} {line['score']:6.3f} {line['to_best']:7.3f} {line['worst']:6.3f} "
              f"{line['faster']:6d} {line['looked']:9.1f}")
    worse = [r for r in runs if r.score > WORSE]
    for r in worse:
        print(f"worse than its seed: {r.kernel}, {r.strategy}, seed {r.seed}: {r.score:.3f}: {'; '.join(r.actions)}")
    if given.json:
        said = {"environment": fingerprint("gen").key(), "runs": [asdict(r) for r in runs]}
        Path(given.json).write_text(json.dumps(said, indent=1))
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
