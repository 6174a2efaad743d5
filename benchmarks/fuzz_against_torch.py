"""fuzz_against_torch: random graphs along several backends, against torch and numpy in float64.

    python benchmarks/fuzz_against_torch.py --seeds 0..5000 [--processes 2] [--store fuzz_against_torch.jsonl]

The oracle shares nothing with the package: OPS says for each op of docs/ops how a call is drawn and how torch or numpy computes it.
A graph is evaluated unrounded in float64, with each value rounded to its dtype, with subnormal numbers flushed to zero, and
several times with random errors of a few roundings at each inexact value. The spread of these is what rounding explains: elements
whose class (finite, ±inf, NaN) or whole number differs between them are not compared; the others are held to the error measure,
|out - ref| / max(|ref|, rms(row), floor) <= TOLERANCE + SPREAD * their spread, integers and booleans exactly.
A failure is made smaller and printed with its seed. The exit code is 1 when something is wrong or crashes. Seeds in --store are
skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
import tensor_graphs as tg
from benchmarks.against_torch_ops import OPS, UNCERTAIN, Draw, Op, Step, drawn
from benchmarks.arguments import at_least
from benchmarks.renewed_processes import renewed_map
from tensor_graphs.language.dims import evaluate
from tensor_graphs.language.text import print_graph

TOLERANCE = {"f64": 1e-8, "f32": 1e-4, "f16": 4e-3, "bf16": 3e-2, "f8e4m3": 0.15, "f8e5m2": 0.3}
"""Error that is allowed on top of the spread: a kernel's documented error, or some roundings of the output's dtype."""

AMPLITUDE = {"f64": 1e-14, "f32": 2e-6, "f16": 1e-3, "bf16": 8e-3, "f8e4m3": 0.07, "f8e5m2": 0.13}
"""The relative size of the random errors: a few roundings."""

SPREAD, NOISY = 16.0, 12
BACKENDS = (("numpy",), ("c", "numpy"), ("gen",), ("torch", "numpy"), ("numpy", "c", "gen", "torch"))
ORACLE = ("interpreter", "definitions")
"""The package's own oracle, and the definitions of composites evaluated by it: these are always compared."""
SHRINKS, LIFE = 60, 50

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Program:
    """The steps of a graph, which of them are outputs, each state's (leaf, new value), and the sizes of each run."""

    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    updates: tuple[tuple[int, int], ...]
    runs: tuple[dict[str, int], ...]
    seed: int


@dataclass(frozen=True)
class Failure:
    kind: str                                                       # "wrong" or "crash"
    backends: tuple[str, ...]
    output: int | None                                              # a step of the program
    why: str


@dataclass
class Report:
    """The counts of some seeds, and the text of each failure."""

    counts: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)


def program(seed: int) -> Program:
    """The graph of a seed. Calls that the package refuses while they are written are drawn again."""
    draw = Draw(np.random.default_rng(seed))
    wanted, names = int(draw.r.integers(3, 26)), sorted(OPS)
    for _ in range(4 * wanted):
        if sum(not s.leaf for s in draw.steps) >= wanted:
            break
        drawn(draw, names[draw.r.integers(len(names))])
    used = {a for s in draw.steps for a in s.args}
    ends = [i for i, s in enumerate(draw.steps) if i not in used and not s.leaf]
    updates = []
    for i, s in enumerate(draw.steps):
        if s.op == "state":
            alike = [j for j, n in enumerate(draw.nodes) if n.type == draw.nodes[i].type and j != i and draw.steps[j].op != "state"]
            updates.append((i, alike[draw.r.integers(len(alike))] if alike else i))
    ends = ends[-4:] or [len(draw.steps) - 1]
    runs = [{"n": 1, "m": 0}, {"n": draw.hi, "m": draw.hi}, {n: int(draw.r.integers(1, draw.hi + 1)) for n in "nm"}]
    draw.r.shuffle(runs)                                            # type: ignore[arg-type]
    return trimmed(Program(tuple(draw.steps), tuple(ends), tuple(updates), tuple(runs), seed))


def trimmed(p: Program) -> Program:
    """The program without the steps that no output needs."""
    needed, before = set(p.outputs), -1
    while len(needed) > before:
        before = len(needed)
        needed |= {a for i in needed for a in p.steps[i].args} | {new for leaf, new in p.updates if leaf in needed}
    new_index = {old: new for new, old in enumerate(sorted(needed))}
    steps = tuple(replace(p.steps[i], args=tuple(new_index[a] for a in p.steps[i].args)) for i in sorted(needed))
    return Program(steps, tuple(new_index[i] for i in p.outputs),
                   tuple((new_index[a], new_index[b]) for a, b in p.updates if a in needed and b in needed), p.runs, p.seed)


def graph_of(p: Program) -> tuple[tg.Graph, list[tg.Node]]:
    """The program in the package's language."""
    nodes: list[tg.Node] = []
    states = {}
    for i, step in enumerate(p.steps):
        if step.op == "state":
            states[i] = tg.state(f"v{i}", step.attrs["shape"], step.attrs["dtype"])
            nodes.append(states[i].read())
        elif step.leaf and step.op == "constant":
            nodes.append(tg.constant(leaf_data(p, i, 0), step.attrs["dtype"]))
        elif step.leaf:
            nodes.append(getattr(tg, step.op)(f"v{i}", step.attrs["shape"], step.attrs["dtype"]))
        else:
            nodes.append(OPS[step.op].call(*(nodes[a] for a in step.args), **step.attrs))
    return tg.graph({f"out{i}": nodes[i] for i in p.outputs}, {states[a]: states[a].write(nodes[b]) for a, b in p.updates}), nodes


def leaf_data(p: Program, i: int, run: int) -> np.ndarray:
    """The values of a leaf in a run, in its own dtype."""
    step = p.steps[i]
    if step.data is not None:
        return step.data[run]
    again = run if step.op == "input" else 0
    shape = tuple(evaluate(s, p.runs[again]) for s in step.attrs["shape"])
    size = evaluate(step.attrs.get("size", 0), p.runs[again])
    return values(np.random.default_rng((p.seed, step.attrs["key"], again)), step.attrs["style"], shape, step.attrs["dtype"], size)


def values(r: np.random.Generator, style: str, shape: tuple[int, ...], dtype: tg.DType, size: int) -> np.ndarray:
    """Random values of a style: what kernels get wrong is rarely seen among normal numbers."""
    count = int(np.prod(shape, dtype=np.int64))
    if style == "index":
        return np.clip(r.integers(-2, size + 3, shape), dtype.min, dtype.max).astype(dtype.numpy)
    if style == "distinct":
        return r.permutation(np.arange(-2 if dtype.is_signed else 0, size + 5))[:count].reshape(shape).astype(dtype.numpy)
    if not dtype.is_float:
        wide = style in ("specials", "wide", "huge") and dtype.name != "bool"
        low, high = (dtype.min, dtype.max) if wide else (max(dtype.min, -4), min(dtype.max, 6))
        return r.integers(low, high, shape, np.uint64 if high > 2**62 and not low else np.int64, endpoint=True).astype(dtype.numpy)
    x = np.asarray(r.normal(size=shape))
    match style:
        case "tiny" | "huge" | "wide":
            x = x * 10.0 ** {"tiny": -30, "huge": 30, "wide": r.choice([-30, 0, 30], shape)}[style]
        case "large mean":
            x = x + 1000 * r.normal()
        case "equal rows":
            x = np.broadcast_to(x[..., :1], shape).copy() if shape else x
        case "whole":
            x = np.rint(3 * x)
        case "angles":
            x = x * 10.0 ** r.integers(0, 7, shape)
        case "specials":
            x = np.where(r.random(shape) < 0.15, r.choice([np.inf, -np.inf, np.nan, -0.0, 0.0, 1.0, -1.0], shape), x)
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(dtype.numpy)


class Reference:
    """The program evaluated by torch and numpy, run after run. mode: exact, rounded, flushed, or the number of a noisy one; of two
    noisy ones, 2k and 2k + 1, the errors are opposite, so that they lie on both sides of a step; the first pair rounds, too."""

    def __init__(self, p: Program, nodes: Sequence[tg.Node], mode: str | int) -> None:
        self.p, self.nodes, self.mode, self.states = p, nodes, mode, {}
        self.r = np.random.default_rng((p.seed, mode // 2 if isinstance(mode, int) else 99))
        self.sign = -1 if isinstance(mode, int) and mode % 2 else 1

    def run(self, run: int) -> Arrays:
        """The value of each step: floats as float64."""
        sizes, out = self.p.runs[run], []
        for i, step in enumerate(self.p.steps):
            dtype = self.nodes[i].dtype
            if step.leaf:
                shape = tuple(evaluate(s, sizes) for s in step.attrs["shape"])
                x = self.states.get(i, np.zeros(shape, dtype.numpy)) if step.op == "state" else leaf_data(self.p, i, run)
                out.append(np.asarray(x, np.float64 if dtype.is_float else None))
                continue
            op, args = OPS[step.op], [out[a] for a in step.args]
            if op.mixes and isinstance(self.mode, int):
                args = [self.noisy(a, "f32" if op.mixes == 2 and dtype.name != "f64" else dtype.name, a != 0)
                        if self.nodes[j].dtype.is_float and dtype.is_float else a for a, j in zip(args, step.args, strict=True)]
            with np.errstate(all="ignore"):
                x = op.reference(*args, **{k: resolved(v, sizes) for k, v in step.attrs.items()}, **op.needs(dtype, sizes))
                x = self.on_the_way(op, np.asarray(x), dtype, args, {k: resolved(v, sizes) for k, v in step.attrs.items()})
            out.append(self.kept(x, dtype, op.exact))
        self.states = {a: out[b] for a, b in self.p.updates}
        return out

    def on_the_way(self, op: Op, x: np.ndarray, dtype: tg.DType, args: Arrays, attrs: dict[str, Any]) -> np.ndarray:
        """A result that f32 may not come to: uncertain where a value on the way is beyond f32, and moved by a rounding there."""
        if dtype.name == "f64" or self.mode == "exact":
            return x
        if op.on_the_way is not None:
            limits = np.finfo(np.float32)
            for size in op.on_the_way(*args, **attrs):
                x = np.where((np.abs(size) > limits.max) | ((size != 0) & (np.abs(size) < limits.tiny)), next(UNCERTAIN), x)
        return x + self.sign * op.rounds * self.r.uniform(-1, 1, x.shape) if op.rounds else x

    def kept(self, x: np.ndarray, dtype: tg.DType, exact: bool) -> np.ndarray:
        """A result as this evaluation keeps it."""
        if not dtype.is_float:
            return x.astype(dtype.numpy)
        if self.mode == "exact":
            return x.astype(np.float64)
        if isinstance(self.mode, int) and not exact:
            with np.errstate(all="ignore"):
                x = self.noisy(x, dtype.name, x.astype(np.float32 if dtype.name == "f64" else dtype.numpy) != x)
        if isinstance(self.mode, str) or self.mode < NOISY // 2:
            with np.errstate(all="ignore"):
                x = x.astype(dtype.numpy).astype(np.float64)
        if self.mode == "flushed":
            x = np.where(np.abs(x) < dtype.smallest_normal, np.copysign(0.0, x), x)
        zeros = -x if self.mode == "flushed" else self.sign * self.r.choice([0.0, -0.0], x.shape)
        return x if exact or self.mode == "rounded" else np.where(x == 0, zeros, x)

    def noisy(self, x: np.ndarray, name: str, where: Any) -> np.ndarray:
        return np.where(where, x * (1 + self.sign * AMPLITUDE[name] * self.r.uniform(-1, 1, x.shape)), x)


def resolved(value: Any, sizes: dict[str, int]) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(resolved(v, sizes) for v in value)
    return evaluate(value, sizes) if isinstance(value, tg.Expr) else value


def difference(out: np.ndarray, references: Arrays, dtype: tg.DType) -> tuple[str | None, int]:
    """(what is wrong with a value, or None; how many of its elements are not compared). references: the exact one first."""
    exact = references[0]
    if out.shape != exact.shape or out.dtype != dtype.numpy:
        return f"{out.dtype}{out.shape} instead of {dtype.numpy}{exact.shape}", 0
    if not dtype.is_float:
        sure = np.all([r == exact for r in references], axis=0)
        bad = sure & (out != exact)
        return (_first(bad, out, exact) if bad.any() else None), int((~sure).sum())
    out = out.astype(np.float64)
    sure = np.all([(_class(r) == _class(exact)) for r in references], axis=0)
    bad = sure & (_class(out) != _class(exact))
    both = sure & (_class(out) == 0) & (_class(exact) == 0)
    with np.errstate(all="ignore"):
        finite = np.where(both, exact, 0.0)
        largest = np.abs(finite).max(axis=-1, keepdims=True, initial=0) if exact.ndim else np.abs(finite)
        unit = np.where(largest > 0, largest, 1)
        rows = unit * np.sqrt(np.mean((finite / unit)**2, axis=-1, keepdims=True)) if exact.ndim else np.abs(finite)
        scale = np.maximum(np.maximum(np.abs(finite), rows), dtype.smallest_normal)
        spread = np.max([np.abs(np.where(both, r, 0) - finite) / scale for r in references], axis=0)
        error = np.abs(np.where(both, out, 0) - finite) / scale
    bad |= both & ~(error <= TOLERANCE[dtype.name] + SPREAD * spread)
    return (_first(bad, out, exact, error) if bad.any() else None), int((~sure).sum())


def _class(x: np.ndarray) -> np.ndarray:
    """0 for finite numbers, 1 and -1 for infinities, 2 for NaN."""
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))


def _first(bad: np.ndarray, out: np.ndarray, ref: np.ndarray, error: np.ndarray | None = None) -> str:
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    text = f"{int(bad.sum())} of {bad.size} elements, at {at} {out[at]} instead of {ref[at]}"
    return text if error is None else f"{text} (error {float(error[at]):.2g})"


def runner(graph: tg.Graph, parameters: dict[str, np.ndarray], backends: tuple[str, ...],
           database: str) -> Callable[[dict[str, np.ndarray], dict[str, int]], dict[str, Any]]:
    """A function that runs the graph again and again, with the states that the runs before it left."""
    if backends[0] not in ORACLE:
        model = tg.bind(tg.compile(graph, backends=backends, database=database), parameters)
        session = model.session() if graph.states else None
        return lambda inputs, dims: model.run(inputs, dims=dims, session=session)
    states: dict[str, np.ndarray] = {}
    types = {name: node.dtype.numpy for name, node in (*graph.outputs.items(), *graph.updates.items())}

    def interpreted(inputs: dict[str, np.ndarray], dims: dict[str, int]) -> dict[str, Any]:
        result = tg.interpret(graph, inputs, parameters, states, dims, use_direct=backends[0] == "interpreter")
        with np.errstate(over="ignore"):
            states.update({name: x.astype(types[name]) for name, x in result.updates.items()})
            return {name: x.astype(types[name]) for name, x in result.outputs.items()}
    return interpreted


def failure_along(p: Program, backends: tuple[str, ...], counts: Counter[str], database: str) -> Failure | None:
    """Compile, run at each size and compare; None where all agrees, or where the package refuses for a reason."""
    nodes: list[tg.Node] = []
    try:
        graph, nodes = graph_of(p)
        run_once = runner(graph, {name: leaf_data(p, int(name[1:]), 0) for name in graph.parameters}, backends, database)
        references = [Reference(p, nodes, mode) for mode in ("exact", "rounded", "flushed", *range(NOISY))]
        for run, sizes in enumerate(p.runs):
            outs = run_once({name: leaf_data(p, int(name[1:]), run) for name in graph.inputs},
                            {name: sizes[name] for name in graph.dims})
            expected = [reference.run(run) for reference in references]
            for i in p.outputs:
                why, left_out = difference(np.asarray(outs[f"out{i}"]), [e[i] for e in expected], nodes[i].dtype)
                counts["elements"] += expected[0][i].size
                counts["not compared"] += left_out
                if why:
                    return Failure("wrong", backends, i, f"{p.steps[i].op} at {sizes}: {why}")
    except tg.TensorGraphsError as e:
        counts["refused"] += 1
        counts[f"refused: {type(e).__name__}"] += 1
        return None
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        return Failure("crash", backends, None, f"{type(e).__name__}: {str(e)[:300]} ({Path(where.filename).name}:{where.lineno})")
    return None


def smaller(p: Program) -> Iterator[Program]:
    """Simpler programs: one output, an earlier one, one run, and inner values given as inputs."""
    for i in p.outputs if len(p.outputs) > 1 else p.steps[p.outputs[0]].args:
        if not p.steps[i].leaf:
            yield trimmed(replace(p, outputs=(i,)))
    if len(p.runs) > 1 and not p.updates:
        for run in range(len(p.runs)):
            steps = [replace(s, data=s.data and (s.data[run],)) if s.leaf else s for s in p.steps]
            if all(s.data or s.op != "input" for s in steps):
                yield replace(p, steps=tuple(steps), runs=(p.runs[run],))
    nodes = graph_of(p)[1]
    rounded = Reference(p, nodes, "rounded")
    runs = [rounded.run(run) for run in range(len(p.runs))]
    for i in reversed(range(len(p.steps))):
        step = p.steps[i]
        if (step.op == "input" and step.data is None) or (not step.leaf and i not in p.outputs):
            given = tuple(run[i].astype(nodes[i].dtype.numpy) for run in runs)
            leaf = Step("input", (), {"shape": nodes[i].shape, "dtype": nodes[i].dtype, "key": i, "style": "given"}, given)
            yield trimmed(replace(p, steps=(*p.steps[:i], leaf, *p.steps[i + 1:])))


def shrunk(p: Program, failure: Failure, database: str) -> tuple[Program, Failure]:
    """The smallest program found that fails in the same kind along the same backends."""
    tries, again = 0, True
    while again and tries < SHRINKS:
        again = False
        for candidate in smaller(p):
            tries += 1
            other = failure_along(candidate, failure.backends, Counter(), database)
            if other is not None and other.kind == failure.kind:
                p, failure, again = candidate, other, True
                break
            if tries >= SHRINKS:
                break
    return p, failure


def told(p: Program, failure: Failure) -> str:
    """The failure, with the graph and what its leaves hold."""
    leaves = [f"  v{i}: {s.attrs['style']} {leaf_data(p, i, run).ravel()[:8]}" for i, s in enumerate(p.steps)
              if s.leaf and s.op != "state" for run in ([0] if s.op != "input" else range(len(p.runs)))]
    return (f"seed {p.seed}: {failure.kind} along {','.join(failure.backends)}: {failure.why}\n{print_graph(graph_of(p)[0])}\n"
            + "\n".join(leaves))


def examine(seed: int, database: str, sets: int = len(BACKENDS), shrink: bool = True) -> Report:
    """Compare one graph by the oracle and on some sets of backends; each seed has other sets."""
    report = Report(Counter(graphs=1))
    try:
        p = program(seed)
        for names in [(name,) for name in ORACLE] + [BACKENDS[(seed + 2 * i) % len(BACKENDS)] for i in range(sets)]:
            report.counts["graphs x backends"] += 1
            failure = failure_along(p, names, report.counts, database)
            if failure is not None:
                report.counts[failure.kind] += 1
                report.texts.append(told(*(shrunk(p, failure, database) if shrink else (p, failure))))
    except Exception:                                               # while the graph is written, or in a reference
        report.counts["crash"] += 1
        report.texts.append(f"seed {seed}: crash outside of a run\n{traceback.format_exc()}")
    return report


def seed_range(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or int(first) + 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=seed_range, default=range(200), help="A..B, B excluded (default: 0..200)")
    parser.add_argument("--processes", type=at_least(1), default=1)
    parser.add_argument("--sets", type=at_least(0), default=len(BACKENDS),
                        help="sets of backends for each graph (default: all); 0: the oracle alone")
    parser.add_argument("--store", type=Path, help="a file of lines: seeds in it are skipped, new ones appended")
    arguments = parser.parse_args()
    os.environ["TENSOR_GRAPHS_PLANS"] = "off"
    lines = arguments.store.read_text().splitlines() if arguments.store and arguments.store.exists() else []
    done = {json.loads(line)["seed"] for line in lines}
    seeds, total, begin = [s for s in arguments.seeds if s not in done], Counter[str](), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        one = partial(examine, database=f"{folder}/fuzz.db", sets=arguments.sets)
        for seed, report in zip(seeds, renewed_map(one, seeds, arguments.processes, LIFE), strict=True):
            total += report.counts
            for text in report.texts:
                print(f"\n{text}", flush=True)
            if arguments.store:
                with arguments.store.open("a") as file:
                    file.write(json.dumps({"seed": seed, **report.counts}) + "\n")
            if total["graphs"] % 10 == 0:
                print(f"{total['graphs']} graphs, {total['wrong']} wrong, {total['crash']} crashes, {total['refused']} refused, "
                      f"{time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(total.items())))
    return int(bool(total["wrong"] or total["crash"]))


if __name__ == "__main__":
    sys.exit(main())
