"""search: how good each strategy of tuning is on equal wall-clock, beside the best that is known.

    python benchmarks/search.py [--seconds 4] [--seeds 5] [--set held-out] [--strategies descent,beam,…] [--times 10] [--json FILE]
    python benchmarks/search.py --ranked --strategies descent        # with the model of `tg costs train`, too
    python benchmarks/search.py --share 1/8 --json one.json          # kernels 1, 9, 17, …, beside seven others
    python benchmarks/search.py --gather one.json two.json …         # the table of all shares

Each strategy searches each kernel from each seed for --seconds; a descent of --times as long, from a seed of its own, says what the
best may be. Each search compiles what it looks at: what another search of the kernel compiled is removed before. What a search has
found is timed once more, in pairs with the rules' schedule: its score there counts, 1 where the rules' stays. The table has, for
each strategy, over kernels × seeds: score ÷ that of the long search (the median, and what nine of ten keep), score ÷ best known (of
all searches of that kernel, the long one included), the geometric mean of scores, the worst, in how many searches it found
something faster than the rules, how many schedules it looked at, and seconds that it really took, its winner's test included.

With --ranked each strategy also searches with ranking: of what it proposes is measured what this machine's model of schedules ranks
first (`tg costs train`). The others, and the long search, measure all that they propose.

The kernels of the set `held-out` are for the table; what strategies are developed with is the set `development`. A share writes its
file after each kernel, so that one that is cut short counts for those that it has.

Ends with 1 where a winner is slower than the rules' schedule by more than 2 % in those pairs (no search is worse than its seed), or
the median of the default strategy ÷ the long search is above 1.05.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean, median
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.arguments import at_least, new_file
from tensor_graphs.cli.options import progress
from tensor_graphs.codegen.compiled_libraries import code_of
from tensor_graphs.codegen.schedule_actions import Schedule
from tensor_graphs.costs.learned import cost_model
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.node import Node
from tensor_graphs.tuning.ranked_space import ranked
from tensor_graphs.tuning.space import Measured
from tensor_graphs.tuning.strategies import STRATEGIES, walk
from tensor_graphs.tuning.timing import Paired

PAIRS = 21
"""of the last comparison, at each place in memory"""

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


def masked_softmax() -> Node:
    scores, mask = f32("scores", 8, 128, 512), f32("mask", 128, 512)
    return part(tg.softmax(scores * 0.125 + mask))


def residual_layer_norm() -> Node:
    x = f32("x", 384, 768) + f32("r", 384, 768)
    return part(tg.layer_norm(x, f32("w", 768), f32("b", 768)))


def normalised() -> Node:
    """Rows of length one."""
    x = f32("x", 2048, 256)
    return part(x * tg.rsqrt((x * x).sum(axis=1, keepdims=True) + 1e-6))


def bias_gelu() -> Node:
    x, b = f32("x", 256, 3072), f32("b", 3072)
    return part(tg.gelu(x + b))


def bf16(*shape: int) -> Node:
    return tg.input("x", shape, tg.bf16)


DEVELOPMENT: Mapping[str, Callable[[], Node]] = {
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

HELD_OUT: Mapping[str, Callable[[], Node]] = {
    "masked softmax": masked_softmax,
    "softmax, bf16": lambda: tg.softmax(bf16(512, 2000)),
    "softmax of a middle axis": lambda: tg.softmax(f32("x", 16, 200, 96), axis=1),
    "log_softmax of one row": lambda: tg.log_softmax(f32("x", 1, 50000)),
    "logsumexp of columns": lambda: tg.logsumexp(f32("x", 3000, 300), axis=0),
    "residual + layer_norm": residual_layer_norm,
    "layer_norm, bf16": lambda: tg.layer_norm(bf16(128, 2304)),
    "group_norm": lambda: tg.group_norm(f32("x", 4, 64, 28, 28), groups=8),
    "rms_norm of short rows": lambda: tg.rms_norm(f32("x", 6144, 96)),
    "rms_norm, bf16, few rows": lambda: tg.rms_norm(bf16(3, 5120)),
    "rows of length one": normalised,
    "bias + gelu": bias_gelu,
    "softplus": lambda: tg.softplus(f32("x", 700, 900)),
    "sigmoid, bf16": lambda: tg.sigmoid(bf16(1500, 1100)),
    "(x - y)² of rows": lambda: part(tg.square(f32("x", 900, 1300) - f32("y", 900, 1300)).sum(axis=1)),
    "variance of rows": lambda: part(tg.var(f32("x", 1200, 600), axis=1)),
    "mean of columns": lambda: part(tg.mean(f32("x", 5000, 200), axis=0)),
    "sum of a middle axis": lambda: f32("x", 12, 500, 160).sum(axis=1),
    "minimum of rows": lambda: tg.reduce_min(f32("x", 300, 5000), axis=1),
    "maximum of all": lambda: tg.reduce_max(f32("x", 3_000_000), axis=0),
    "transpose of heads": lambda: part(f32("x", 12, 300, 64).permute((1, 0, 2)) * 0.5),
    "transpose, bf16": lambda: part(bf16(1200, 800).permute((1, 0)) * 2.0),
    "cumsum of short rows": lambda: tg.cumsum(f32("x", 20000, 40), 1),
    "cumsum of columns": lambda: tg.cumsum(f32("x", 1500, 250), 0),
}
"""no strategy, rule or limit was chosen by these"""

SETS: Mapping[str, Mapping[str, Callable[[], Node]]] = {"held-out": HELD_OUT, "development": DEVELOPMENT}
KERNELS = {**DEVELOPMENT, **HELD_OUT}
LONG = "long"
"""the search that says what the best may be"""

RANKED = ", ranked"
"""what stands after a strategy whose proposals the model ranks"""

MEDIAN_LIMIT = 1.05


@dataclass(frozen=True)
class SearchRun:
    """One search. seconds: that it was given; took: with its winner's test; score: of its winner in the last comparison; looked:
    schedules that it measured."""

    kernel: str
    strategy: str
    seed: int
    seconds: float
    took: float
    score: float
    looked: int
    actions: tuple[str, ...]


def searched(kernel: str, strategies: Sequence[str], seeds: int, seconds: float, times: int,
             show: Callable[[str], None]) -> list[SearchRun]:
    """All searches of a kernel, and their winners compared."""
    signature = signature_of(KERNELS[kernel]())
    asked = [(name, seed, seconds) for name in strategies for seed in range(seeds)] + [(LONG, 1000, times * seconds)]
    random.Random(kernel).shuffle(asked)                            # no strategy has all of a quiet hour
    found: list[tuple[str, int, float, float, Schedule, int]] = []
    space = Measured(signature, {}, 0.0)                            # the rules' schedule is compiled before the first clock starts
    for name, seed, each in asked:
        show(f"{kernel}: {name}, seed {seed}")
        forget(space)
        begun = time.perf_counter()
        space = Measured(signature, {}, each)
        strategy = "descent" if name == LONG else name.removesuffix(RANKED)
        walk(ranked(space) if name.endswith(RANKED) else space, strategy, random.Random(seed))
        winner = space.winner()[0]
        found.append((name, seed, each, time.perf_counter() - begun, winner, len(space.looked)))
    scores = compared(space, {winner for *_, winner, _ in found})
    forget(space)
    return [SearchRun(kernel, name, seed, each, took, scores[winner], looked, tuple(str(a) for a in winner if a not in space.seed))
            for name, seed, each, took, winner, looked in found]


def forget(space: Measured) -> None:
    """Remove what a search has compiled, but for the rules' schedule: the next one pays for what it looks at itself."""
    kept = code_of(space.programs[space.seed]).path
    for program in space.programs.values():
        path = code_of(program).path
        if path != kept:
            path.unlink(missing_ok=True)


def compared(space: Measured, schedules: set[Schedule]) -> dict[Schedule, float]:
    """Each in pairs with the seed, in one process, at several places in memory."""
    space.deadline = math.inf
    space.scores(list(schedules))
    benches = space.elsewhere()
    return {s: 1.0 if s == space.seed else Paired.joined(space.beside_seed(s, benches, PAIRS)).ratio for s in schedules}


def mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))


@dataclass(frozen=True)
class Line:
    """Of the table: a strategy."""

    strategy: str
    searches: int
    median: float
    nine_of_ten: float
    to_best: float
    score: float
    worst: float
    faster: int
    looked: float
    took: float

    TITLES: ClassVar[str] = ("| strategy | searches | median ÷ long | 9 of 10 ÷ long | ÷ best known | score | worst | faster "
                             "| looked at | seconds |")

    def __str__(self) -> str:
        return (f"| {self.strategy} | {self.searches} | {self.median:.3f} | {self.nine_of_ten:.3f} | {self.to_best:.3f} | "
                f"{self.score:.3f} | {self.worst:.3f} | {self.faster} | {self.looked:.1f} | {self.took:.1f} |")


def table(runs: Sequence[SearchRun]) -> list[Line]:
    """A line for each strategy, the best first."""
    best = {kernel: min(1.0, *(r.score for r in runs if r.kernel == kernel)) for kernel in {r.kernel for r in runs}}
    long = {r.kernel: r.score for r in runs if r.strategy == LONG}
    lines = []
    for name in {r.strategy for r in runs}:
        own = [r for r in runs if r.strategy == name]
        to_long = sorted(r.score / long[r.kernel] for r in own)
        lines.append(Line(name, len(own), median(to_long), to_long[math.ceil(0.9 * len(own)) - 1],
                          mean([r.score / best[r.kernel] for r in own]), mean([r.score for r in own]), max(r.score for r in own),
                          sum(bool(r.actions) for r in own), fmean(r.looked for r in own), fmean(r.took for r in own)))
    return sorted(lines, key=lambda line: line.to_best)


def printed(runs: Sequence[SearchRun]) -> int:
    """Print the table, and what is not as it should be; the status to end with."""
    lines = table(runs)
    print(f"{len({r.kernel for r in runs})} kernels\n{Line.TITLES}\n|---|" + "---:|" * (len(fields(Line)) - 1))
    for line in lines:
        print(line)
    worse = [r for r in runs if r.score > WORSE]
    for r in worse:
        print(f"worse than its seed: {r.kernel}, {r.strategy}, seed {r.seed}: {r.score:.3f}: {'; '.join(r.actions)}")
    default = [line.median for line in lines if line.strategy == next(iter(STRATEGIES))]
    return int(bool(worse) or max(default, default=0.0) > MEDIAN_LIMIT)


def share(text: str) -> tuple[int, int]:
    """A type for argparse: i/n, the i-th of n."""
    i, n = map(int, text.split("/"))
    if not 1 <= i <= n:
        raise argparse.ArgumentTypeError(f"{text}: there is no share {i} of {n}")
    return i, n


def written(file: Path, runs: Sequence[SearchRun]) -> None:
    file.write_text(json.dumps({"environment": fingerprint("gen").key(), "runs": [asdict(r) for r in runs]}, indent=1))


def gathered(files: Sequence[Path]) -> list[SearchRun]:
    """The searches of several shares. Raises ValueError where they are of several environments."""
    found = [json.loads(file.read_text()) for file in files]
    if len({each["environment"] for each in found}) > 1:
        raise ValueError("these searches ran on different machines, or with other software")
    return [SearchRun(**{**run, "actions": tuple(run["actions"])}) for each in found for run in each["runs"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=at_least(1), default=4, help="of a search")
    parser.add_argument("--seeds", type=at_least(1), default=5)
    parser.add_argument("--set", choices=list(SETS), default=next(iter(SETS)))
    parser.add_argument("--kernel", action="append", choices=list(KERNELS), metavar="NAME", help="this one; repeatable")
    parser.add_argument("--share", type=share, default=(1, 1), metavar="I/N", help="every N-th kernel from the I-th on")
    parser.add_argument("--times", type=at_least(1), default=10, help="as long does the search take that says what the best may be")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--ranked", action="store_true", help="each strategy also with what it proposes ranked by the cost model")
    parser.add_argument("--json", type=new_file)
    parser.add_argument("--gather", nargs="+", type=Path, metavar="FILE", help="search nothing: the table of what --json wrote")
    given = parser.parse_args()
    if given.gather:
        return printed(gathered(given.gather))
    strategies = given.strategies.split(",")
    unknown = [name for name in strategies if name not in STRATEGIES]
    if unknown:
        parser.error(f"no strategy is named {unknown[0]!r}; there are {', '.join(STRATEGIES)}")
    if given.ranked:
        if cost_model.of_machine(cost_model.SCHEDULES) is None:
            parser.error("--ranked needs a model of this machine's schedules: tg costs train")
        strategies += [f"{name}{RANKED}" for name in strategies]
    runs: list[SearchRun] = []
    first, step = given.share
    names = (given.kernel or list(SETS[given.set]))[first - 1::step]
    total = len(names) * (len(strategies) * given.seeds + 1)
    with progress("searching", False) as show:
        def say(what: str) -> None:
            show(len(runs), total, what)

        for kernel in names:
            runs += searched(kernel, strategies, given.seeds, given.seconds, given.times, say)
            if given.json:
                written(given.json, runs)
    return printed(runs)


if __name__ == "__main__":
    sys.exit(main())
