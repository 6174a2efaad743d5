"""What kernels written by hand (`c`) are worth beside generated ones (`gen`): the same rows in turns, with both errors.

    python benchmarks/hand_written.py
    python benchmarks/hand_written.py --only norm,rope --rounds 5 --json hand_written.json

A row is one op at sizes of Gemma 3 270M (a token of decoding, a prompt of 128), of MiniLM (32 tokens) or of kernels_cpu.py. Each
kernel of `c` that takes it, and the kernel of `gen` if it does, runs it alone: with operands out of the caches (cold: the least of
--rounds runs), then many times on the same ones (hot: the least of as many means). c ÷ gen: more than 1 where the generated kernel
is faster. errors: the largest relative ones against the float64 oracle, the rounding of the result included, of as many draws as
have DRAWN numbers, as one draw of a small row says little of its largest error. Weights are inputs here. Products are left out, as
`gen` computes none, and write_rows, which writes a few rows of a state in place where `gen` makes another.

Ends with 1 where a kernel by hand has nothing to say for itself: it takes rows that `gen` takes, and on none of them is it both
right and faster (by 3 %) or more accurate (1.5 times) than `gen`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tensor_graphs as tg  # before numpy, whose threads would spin otherwise
from benchmarks.arguments import at_least, new_file
from benchmarks.cpu_graphs import Given
from benchmarks.in_turns import flushing
from benchmarks.kernels_cpu import geomean
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.one_op_signature import signature_of_graph
from tensor_graphs.kernels.registry import by_op, load_backend, matching
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.measure.points.single_op_plans import prepared_names, single_kernel_plan, with_parameters
from tensor_graphs.measure.timing.settle_threads import settle, warm_up

FASTER, MORE_ACCURATE = 1.03, 1.5
"""by so much a kernel by hand is better than a generated one"""

HOT_SECONDS = 3e-4
"""of runs whose mean is one hot time"""

DRAWN, MOST_DRAWS = 1 << 20, 32
"""numbers of all operands of the draws whose largest error counts; draws at most"""

F32, BF16, F64, I32 = tg.f32, tg.bf16, tg.f64, tg.i32
Of = Callable[..., tg.Node]


@dataclass(frozen=True)
class Row:
    """One op of operands. where: whose sizes these are. shift: added to the first operand."""

    name: str
    where: str
    given: tuple[Given, ...]
    op: Of
    shift: float = 0.0

    @property
    def graph(self) -> tg.Graph:
        return tg.graph(self.op(*(each.node(f"x{i}") for i, each in enumerate(self.given))))


def rows(a: tg.DType) -> Iterator[Row]:
    """All rows whose activations have a dtype, with weights of it."""
    def x(*shape: int) -> Given:
        return Given(shape, a)

    def ids(count: int, below: int) -> Given:
        return Given((count,), I32, low=0, high=below)

    def row(name: str, where: str, op: Of, *given: Given) -> Row:
        return Row(name, where, given, op)

    tokens = (("decode", 1), ("prefill", 128))
    chains = [("decode", (1, 640)), ("prefill", (128, 640)), ("minilm", (32, 384)), ("suite", (2048, 1024))]
    for where, shape in chains:
        for name, pair in (("add", tg.add), ("sub", tg.sub), ("mul", tg.mul), ("max", tg.maximum), ("div", tg.div)):
            yield row(name, where, pair, x(*shape), x(*shape))
    wide = [("decode", (1, 2048)), ("prefill", (128, 2048)), ("minilm", (32, 1536)), ("suite", (2048, 1024))]
    unary: dict[str, Of] = {"exp": tg.exp, "tanh": tg.tanh, "silu": tg.silu, "gelu": tg.gelu,
                            "gelu tanh": lambda v: tg.gelu(v, approximate="tanh")}
    for where, shape in wide:
        for name, one in unary.items():
            yield row(name, where, one, x(*shape))
        for activation in ("gelu_tanh", "gelu", "silu"):
            yield row(f"gated {activation}", where, partial(tg.gated, activation=activation), x(*shape), x(*shape))
    for where, n in tokens:
        yield row("rms_norm", where, lambda v, w: tg.rms_norm(v, w, offset=1.0), x(n, 640), x(640))
        yield row("rms_norm head", where, lambda v, w: tg.rms_norm(v, w, offset=1.0), x(n, 4, 256), x(256))
        yield row("rope", where, tg.rope, x(n, 4, 256), x(n, 128), x(n, 128))
        yield row("embedding", where, lambda t, i: tg.embedding(t, i, dtype=a, scale=25.0), x(20000, 640), ids(n, 20000))
        yield row("argmax", where, lambda v: tg.argmax(v, axis=-1), x(n, 262144 // n))
        yield row("softmax", where, tg.softmax, x(4 * n, 512))
        yield row("attention", where, lambda q, k, v: tg.attention(q, k, v, scale=0.0625, causal=True,
                                                                 start=512 - q.shape[0]),
                  x(n, 4, 256), x(512, 1, 256), x(512, 1, 256))
        yield row("rope_table", where, lambda p: tg.rope_table(p, head_dim=256, theta=1e4, dtype=a), ids(n, 4096))
    yield row("layer_norm", "minilm", tg.layer_norm, x(32, 384), x(384), x(384))
    yield Row("layer_norm, mean 100", "minilm", (x(32, 384), x(384), x(384)), tg.layer_norm, shift=100.0)
    yield row("embedding", "minilm", lambda t, i: tg.embedding(t, i, dtype=a), x(30522, 384), ids(32, 30522))
    yield row("softmax", "minilm", tg.softmax, x(12, 32, 32))
    yield row("attention", "minilm", lambda q, k, v: tg.attention(q, k, v, scale=0.2), x(32, 12, 32), x(32, 12, 32), x(32, 12, 32))
    yield row("softmax", "suite", tg.softmax, x(2048, 1024))
    yield row("layer_norm", "suite", tg.layer_norm, x(2048, 1024), x(1024), x(1024))
    yield row("rms_norm", "suite", tg.rms_norm, x(2048, 1024), x(1024))
    yield row("argmax", "suite", lambda v: tg.argmax(v, axis=-1), x(2048, 1024))
    for where, count, size, width in (("minilm", 32, 30522, 384), ("suite", 16384, 4096, 64)):
        for mode in ("add", "set"):
            index = ids(count, size)
            yield row(f"scatter {mode}", where, lambda b, i, u, mode=mode: tg.scatter(b, i, u, axis=0, mode=mode),
                      x(size, width), index, x(count, width))
    for where, shape in wide:
        for old in {F32: (BF16, F64), F64: (F32, BF16)}[a]:
            yield row(f"cast {old}", where, lambda v: tg.cast(v, a), Given(shape, old))


class Running:
    """A kernel that runs a row alone, prepared on several sets of operands. outs: where it writes, for all kernels the same arrays:
    how two lie to each other is worth a fifth of a short run."""

    def __init__(self, kernel: Kernel, graph: tg.Graph, sets: Sequence[dict[str, np.ndarray]],
                 outs: Sequence[dict[str, np.ndarray]]) -> None:
        names = self.names = prepared_names(graph, kernel)
        plan = single_kernel_plan(with_parameters(graph, names), kernel)
        self.kernel, self.cold, self.hot = kernel, list[float](), list[float]()
        self.models = [tg.bind(plan, {n: each[n] for n in names}) for each in sets]
        self.runs = [m.prepared({n: v for n, v in each.items() if n not in names}, out=out)
                     for m, each, out in zip(self.models, sets, outs, strict=True)]

    def run_anew(self, changed: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """On the second set, whose arrays have other values."""
        for n in self.names:
            self.models[1].rebind(n, changed[n])
        return self.runs[1].run()

    def turn(self, cache: np.ndarray) -> None:
        warm, cold = (r.run for r in self.runs)
        settle()
        cache.sum()
        warm_up(warm)
        began = time.perf_counter()
        cold()
        self.cold.append(time.perf_counter() - began)
        many = max(1, round(HOT_SECONDS / max(min(self.cold), 1e-7)))
        for _ in range(3):
            began = time.perf_counter()
            for _ in range(many):
                cold()
            self.hot.append((time.perf_counter() - began) / many)


def measured(each: Row, dtype: tg.DType, rounds: int, cache: np.ndarray) -> list[dict[str, Any]]:
    """A line of the table for each kernel of `c` that takes the row."""
    rng, graph = np.random.default_rng(0), each.graph
    spec = signature_of_graph(graph).spec
    hand, made = (matching(spec, by_op(load_backend(name))) for name in ("c", "gen"))
    if not hand or not made:
        return []
    sets = [_drawn(each, rng) for _ in range(2)]
    outs = [{n: np.empty([int(s) for s in o.shape], o.dtype.numpy) for n, o in graph.outputs.items()} for _ in sets]
    running = [Running(k, graph, sets, outs) for k in (*hand, made[0])]
    errors = [0.0] * len(running)
    for _ in range(max(1, min(MOST_DRAWS, DRAWN // sum(x.size for x in sets[1].values())))):
        for n, values in _drawn(each, rng).items():
            np.copyto(sets[1][n], values)
        oracle = tg.interpret(graph, sets[1]).outputs
        for i, r in enumerate(running):
            found = r.run_anew(sets[1])
            errors[i] = max(errors[i], *(measure(np.asarray(found[n]), np.asarray(oracle[n]), o.dtype).max_relative_error
                                         for n, o in graph.outputs.items()))
    for number in range(rounds):
        for r in running if number % 2 else reversed(running):
            r.turn(cache)
    gen, gen_error = running[-1], errors[-1]
    return [{"row": each.name, "where": each.where, "dtype": dtype.name, "kernel": r.kernel.name,
             "cold_us": (min(r.cold) * 1e6, min(gen.cold) * 1e6), "hot_us": (min(r.hot) * 1e6, min(gen.hot) * 1e6),
             "cold": min(r.cold) / min(gen.cold), "hot": min(r.hot) / min(gen.hot), "errors": (error, gen_error)}
            for r, error in zip(running[:-1], errors[:-1], strict=True)]


def _drawn(row: Row, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Operands of a row."""
    made = {f"x{i}": _numbers(g, rng) for i, g in enumerate(row.given)}
    if row.shift:
        made["x0"] += made["x0"].dtype.type(row.shift)
    return made


def _numbers(given: Given, rng: np.random.Generator) -> np.ndarray:
    if given.dtype.kind != "float" and given.shape[0] <= given.high - given.low:   # indices that are written to are different ones
        return (rng.permutation(given.high - given.low)[:given.shape[0]] + given.low).astype(given.dtype.numpy)
    return given.array(rng)


def verdicts(lines: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Kernel by hand -> what it is worth, for people; "" where nothing speaks for it."""
    found = {}
    for kernel in dict.fromkeys(line["kernel"] for line in lines):
        own = [line for line in lines if line["kernel"] == kernel]
        faster = [f"{line['row']} {line['where']} {line['dtype']} {min(line['cold'], line['hot']):.2f}" for line in own
                  if max(line["cold"], line["hot"]) < 1 / FASTER]
        closer = [f"{line['row']} {line['where']} {line['dtype']}: error {line['errors'][1]:.1e}, not {line['errors'][0]:.1e}"
                  for line in own if line["errors"][1] > MORE_ACCURATE * line["errors"][0]]
        found[kernel] = "; ".join([*faster, *closer])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name, place or dtype holds one of these words, split by commas")
    parser.add_argument("--rounds", type=at_least(3), default=9)
    parser.add_argument("--json", type=new_file)
    given = parser.parse_args()
    words, cache, lines = given.only.split(","), flushing(), list[dict[str, Any]]()
    print(f"{'row':38} {'kernel':20} {'cold µs: c':>10} {'gen':>8} {'hot: c':>8} {'gen':>8} {'cold':>5} {'hot':>5} "
          f"{'error c':>8} {'gen':>8}", flush=True)
    for dtype in (F32, F64):
        for each in rows(dtype):
            title = f"{each.name}: {each.where} {dtype.name}"
            if not any(word in title for word in words):
                continue
            for line in measured(each, dtype, given.rounds, cache):
                lines.append(line)
                times = " ".join(f"{us:8.1f}" for us in (*line["cold_us"], *line["hot_us"]))
                print(f"{title:38} {line['kernel']:20}   {times} {line['cold']:5.2f} {line['hot']:5.2f} "
                      f"{line['errors'][0]:8.1e} {line['errors'][1]:8.1e}", flush=True)
    said = verdicts(lines)
    print("\nc ÷ gen, geometric means, cold and hot, and the least of both:")
    for kernel, why in said.items():
        own = [line for line in lines if line["kernel"] == kernel]
        cold, hot = ([line[t] for line in own] for t in ("cold", "hot"))
        print(f"{kernel:20} {geomean(cold):5.2f} {geomean(hot):5.2f} {min(cold + hot):5.2f}  {why or 'nothing speaks for it'}")
    if given.json:
        given.json.write_text(json.dumps({"lines": lines, "verdicts": said}, indent=1))
    return int(not all(said.values()))


if __name__ == "__main__":
    sys.exit(main())
