"""cost_model: how good the learned cost model is on ops and sizes that it has not seen; measures what it learns from, too.

    python benchmarks/cost_model.py [--graphs 24] [--budget 20] [--database FILE …] [--json FILE]
    python benchmarks/cost_model.py --schedules 4 --graphs 60 --database FILE
    python benchmarks/cost_model.py --measure-nothing --database FILE … [--held-out FILE …]

Graphs of ten random ops of random sizes are profiled (all kernels of all backends that are here), --budget seconds each at most,
into a database (default: an empty one; the same file goes on from there). Then each fifth of the canonical graphs is predicted from
the others, as `tg costs check` does: by the model, by the roofline, and by the nearest neighbour. Of several files all are learned
from, and the first one is measured into. With --held-out the graphs of those files are predicted from all of the others instead.
Files may be of another machine, all of the same one.

With --schedules, random schedules of generated kernels of one op or several are measured instead, each beside the rules' one, as a
search does. Where the files have such rows, the model of schedules is judged likewise: of each kernel's schedules, the rules' one
among them, which are the fastest?

Ends with 1 where the model's first choice takes more than 1.10 times the best, the best of its first five more than 1.03, or the
order of two kernels that differ by 5 % is right in less than 85 %, or the roofline or the neighbour is better in any of these,
of kernels or of schedules.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.arguments import at_least, new_file
from benchmarks.search import part
from tensor_graphs.cli.options import progress
from tensor_graphs.codegen.backend import NAME
from tensor_graphs.costs.learned.fit import Quality, Sample, checked, predicted, quality, samples_in
from tensor_graphs.costs.learned.search_samples import schedules_in
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.kernels.registry import BACKENDS, all_kernels, device_of, why_missing
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.node import Node
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.queries import environments, kernel_names
from tensor_graphs.tuning.space import Measured, TimeIsOver
from tensor_graphs.tuning.strategies import at_random
from tensor_graphs.tuning.tune import store

OPS = 10
"""in a graph"""

ELEMENTS = 1 << 22
"""of an operand, at most"""

PER_KERNEL = 0.1

PAIRS, TOGETHER = 11, 16
"""of samples of a schedule, and schedules that are compiled together"""

Maker = Callable[[random.Random, str], Node]


def given(rng: random.Random, name: str, *shape: int) -> Node:
    return tg.input(name, shape, rng.choice((tg.f32, tg.f32, tg.bf16)))


def sizes(rng: random.Random, most: int = ELEMENTS) -> tuple[int, int]:
    """Rows and columns, their logarithms drawn evenly."""
    while True:
        rows, columns = round(2 ** rng.uniform(0, 13)), round(2 ** rng.uniform(2, 13))
        if rows * columns <= most:
            return rows, columns


def of_rows(op: Callable[[Node], Node]) -> Maker:
    return lambda rng, name: op(given(rng, name, *sizes(rng)))


def of_two(op: Callable[[Node, Node], Node]) -> Maker:
    def made(rng: random.Random, name: str) -> Node:
        x = given(rng, name, *sizes(rng))
        return op(x, tg.input(f"{name}_y", x.shape, x.dtype))

    return made


def normed(rng: random.Random, name: str) -> Node:
    x = given(rng, name, *sizes(rng))
    return tg.rms_norm(x, tg.parameter(f"{name}_g", (x.shape[1],), x.dtype))


def product(rng: random.Random, name: str) -> Node:
    rows, inner, columns = (round(2 ** rng.uniform(low, high)) for low, high in ((0, 8), (4, 11), (4, 11)))
    x = given(rng, name, rows, inner)
    return tg.linear(x, tg.parameter(f"{name}_w", (columns, inner), x.dtype))


def small_products(rng: random.Random, name: str) -> Node:
    batch, *rest = (round(2 ** rng.uniform(low, high)) for low, high in ((0, 6), (2, 7), (2, 7), (2, 7)))
    x = given(rng, name, batch, rest[0], rest[1])
    return tg.dot(x, tg.input(f"{name}_y", (batch, rest[1], rest[2]), x.dtype))


def rows_read(rng: random.Random, name: str) -> Node:
    table = given(rng, name, *sizes(rng))
    return tg.embedding(table, tg.input(f"{name}_i", (round(2 ** rng.uniform(0, 10)),), tg.i32))


MAKERS: tuple[Maker, ...] = (
    of_rows(tg.softmax), of_rows(tg.log_softmax), of_rows(tg.logsumexp), of_rows(tg.tanh), of_rows(tg.exp), of_rows(tg.gelu),
    of_rows(tg.silu), of_rows(tg.relu), of_rows(tg.sigmoid), of_rows(tg.layer_norm), of_rows(lambda x: tg.sum(x, axis=1)),
    of_rows(lambda x: tg.sum(x, axis=0)), of_rows(lambda x: tg.max(x, axis=1)), of_rows(lambda x: tg.mean(x, axis=1)),
    of_rows(lambda x: tg.cumsum(x, axis=1)), of_rows(lambda x: tg.sqrt(x * x)), of_two(tg.add), of_two(tg.mul), of_two(tg.sub),
    of_two(tg.div), of_two(lambda x, y: tg.concat(x, y, axis=1)), normed, normed, product, product, product, small_products,
    rows_read,
)


def reduced(op: Callable[[Node, int], Node], axes: Sequence[int]) -> Maker:
    """Over one of some axes of two, three or one."""
    def made(rng: random.Random, name: str) -> Node:
        axis = rng.choice(axes)
        rows, columns = sizes(rng)
        outer = max(1, min(round(2 ** rng.uniform(0, 6)), ELEMENTS // (rows * columns)))
        shape = rng.choice(((rows, columns), (outer, rows, columns), (1, rows * columns)))
        return op(given(rng, name, *shape), len(shape) - 1 if axis else len(shape) - 2)

    return made


def fused(op: Callable[..., Node], *rest: str) -> Maker:
    """Several ops on rows as one part. rest: of each other operand whether it is a row or as large as the first."""
    def made(rng: random.Random, name: str) -> Node:
        x = given(rng, name, *sizes(rng))
        return part(op(x, *(tg.input(f"{name}_{i}", x.shape[-1:] if each == "row" else x.shape, x.dtype)
                            for i, each in enumerate(rest))))

    return made


SCHEDULED: tuple[Maker, ...] = (
    reduced(lambda x, axis: tg.softmax(x, axis=axis), (0, 1, 1)), reduced(lambda x, axis: tg.log_softmax(x, axis=axis), (0, 1, 1)),
    reduced(lambda x, axis: tg.logsumexp(x, axis=axis), (0, 1)), reduced(lambda x, axis: tg.sum(x, axis=axis), (0, 0, 1)),
    reduced(lambda x, axis: tg.reduce_max(x, axis=axis), (0, 1)), reduced(lambda x, axis: tg.mean(x, axis=axis), (0, 1)),
    reduced(tg.cumsum, (0, 1, 1)), of_rows(tg.layer_norm), normed, of_rows(tg.gelu), of_rows(tg.tanh), of_rows(tg.sigmoid),
    fused(lambda x, r, w: tg.rms_norm(x + r) * w, "all", "row"),
    fused(lambda x, r, w, b: tg.layer_norm(x + r, w, b), "all", "row", "row"),
    fused(lambda x, m: tg.softmax(x * 0.125 + m), "all"), fused(lambda x, b: tg.gelu(x + b), "row"),
    fused(lambda x, y: tg.silu(x) * y, "all"), fused(lambda x, y: tg.square(x - y).sum(axis=1), "all"),
    fused(lambda x: x * tg.rsqrt((x * x).sum(axis=1, keepdims=True) + 1e-6)), fused(lambda x: tg.var(x, axis=1)),
    fused(lambda x: x.permute((1, 0)) + 1.0), fused(lambda x, y: x.permute((1, 0)) * y.permute((1, 0)), "all"),
)
"""what generated loops compute, of which schedules are measured"""


def scheduled(seed: int) -> Node:
    rng = random.Random(f"schedule {seed}")
    return rng.choice(SCHEDULED)(rng, "x")


def graph_of(seed: int) -> tg.Graph:
    rng = random.Random(seed)
    return tg.graph({f"o{i}": rng.choice(MAKERS)(rng, f"x{i}") for i in range(OPS)})


def measure(file: str, numbers: range, budget: float) -> None:
    """Profile these graphs into a database."""
    backends = tuple(name for name in BACKENDS if why_missing(name) is None)
    with progress("profiling", quiet=False, total=len(numbers)) as show:
        for done, number in enumerate(numbers):
            graph = graph_of(number)
            ops = sorted({node.op.name for node in graph.outputs.values()})
            report = tg.profile(graph, ops=ops, budget=budget, per_kernel=PER_KERNEL, database=file, backends=backends)
            show(done + 1, len(numbers), f"graph {number}: {report.measured} measured, {report.left} left")


def measure_schedules(file: str, numbers: range, seconds: float) -> None:
    """File random schedules of the kernels of these numbers, looked at for so long each."""
    with progress("schedules", quiet=False, total=len(numbers)) as show, open_database(file) as database:
        for done, number in enumerate(numbers):
            signature = signature_of(scheduled(number))
            looked = 0
            try:
                space = Measured(signature, {}, seconds, first=PAIRS)
                with suppress(TimeIsOver):
                    at_random(space, random.Random(number), TOGETHER)
                store(database, signature, {}, space, "random", number)
                looked = len(space.looked)
            except NotLowered:
                pass                                                # such a kernel has no schedules: 0 are shown
            show(done + 1, len(numbers), f"kernel {number}, {signature.title()}: {looked} schedules")


def samples_elsewhere(database: Database) -> list[Sample]:
    """Return host times from any machine of kernels named as this machine's are: the hash of a kernel depends on other software,
    too."""
    measured_in = [e for _, e in environments(database) if e.backend in BACKENDS and why_missing(e.backend) is None
                   and device_of(e.backend).is_host]
    kernels = {k.name: k for k in all_kernels(tuple(e.backend for e in measured_in))}
    named = kernel_names(database)
    return samples_in(database, measured_in, {code: kernels[name] for code, name in named.items() if name in kernels})


def schedules_elsewhere(database: Database) -> list[Sample]:
    """Return the schedules timed on any machine."""
    return [sample for _, environment in environments(database) if environment.backend == NAME
            for sample in schedules_in(database, environment)]


def on_file(files: Sequence[str], read: Callable[[Database], list[Sample]]) -> list[Sample]:
    """What these databases have of backends that are here, each kernel or schedule on each workload once."""
    found: dict[tuple[str, str], Sample] = {}
    for file in files:
        with open_database(file) as database:
            for sample in read(database):
                found.setdefault((sample.workload, sample.kernel), sample)
    return list(found.values())


def compared(training: Sequence[Sample], asked: Sequence[Sample]) -> list[Quality]:
    """Return the qualities of the predictors on `asked`, fitted to the other graphs in `training`. Raises CannotTrain."""
    graphs = {s.graph for s in asked}
    predictions = predicted([s for s in training if s.graph not in graphs], dict(enumerate(asked)))
    return [quality(name, asked, times) for name, times in predictions.items()]


def judged(what: str, samples: Sequence[Sample], held_out: Sequence[Sample]) -> list[Quality]:
    """Print how good each way to predict is. Raises CannotTrain."""
    found = compared(samples, held_out) if held_out else checked(samples)
    asked = held_out or samples
    print(f"{len(asked)} times of {len({s.graph for s in asked})} canonical graphs, {len({s.kernel for s in asked})} {what}\n"
          f"{'':18s} {'off by':>7s} {'pairs':>6s} {'top 1':>6s} {'top 5':>6s}")
    for q in found:
        print(f"{q.name:18s} {q.factor:6.2f}× {q.pairs:6.1%} {q.top1:6.3f} {q.top5:6.3f}")
    return found


def is_good(found: Sequence[Quality]) -> bool:
    ours, *rivals = found
    good = ours.top1 <= 1.10 and ours.top5 <= 1.03 and ours.pairs >= 0.85
    return good and all(ours.top1 <= o.top1 and ours.pairs >= o.pairs and ours.factor <= o.factor for o in rivals)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=at_least(1), default=24)
    parser.add_argument("--first", type=at_least(0), default=0, help="seed of the first graph")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of profiling for each graph, at most")
    parser.add_argument("--schedules", type=float, metavar="SECONDS",
                        help="measure schedules of so many kernels instead, for as long each")
    parser.add_argument("--database", nargs="+", metavar="FILE", help="default: an empty one")
    parser.add_argument("--measure-nothing", action="store_true", help="what is in the files is all there is")
    parser.add_argument("--held-out", nargs="+", default=[], metavar="FILE", help="what is predicted, instead of folds")
    parser.add_argument("--json", type=new_file)
    given = parser.parse_args()
    if given.measure_nothing and not given.database:
        parser.error("--measure-nothing needs --database: there would be nothing to learn from")
    numbers = range(given.first, given.first + given.graphs)
    with tempfile.TemporaryDirectory() as folder:
        files = given.database or [str(Path(folder) / "bench.db")]
        if not given.measure_nothing and given.schedules:
            measure_schedules(files[0], numbers, given.schedules)
        elif not given.measure_nothing:
            measure(files[0], numbers, given.budget)
        on = {what: (on_file(files, read), on_file(given.held_out, read))
              for what, read in (("kernels", samples_elsewhere), ("schedules", schedules_elsewhere))}
    machines = len({s.machine for each in on.values() for samples in each for s in samples})
    if machines > 1:
        parser.error(f"these times are of {machines} machines, and a cost model is of one")
    found = {what: judged(what, *each) for what, each in on.items() if each[0]}
    if given.json is not None:
        said = {what: {"rows": len(on[what][1] or on[what][0]), "checked": [asdict(q) for q in each]}
                for what, each in found.items()}
        Path(given.json).write_text(json.dumps(said, indent=1))
    return 0 if found and all(map(is_good, found.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
