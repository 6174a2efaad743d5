"""regret: is the way that is chosen the fastest of all? Small graphs, each deployed along every path that there is, up to a cap.

    python benchmarks/regret.py [--graphs 30] [--budget 12] [--paths 40] [--rounds 9] [--json FILE]

Each graph is profiled for --budget seconds at most, and compiled. Then its paths (recipes × definitions × kernels of each part) are
deployed and timed on the whole graph in turns (in_turns.py): code and activations are warm, weights cold. Where there are more
paths than --paths, what is timed are the first half of them in the order of the enumeration, the first path with each way of each
part that is on none of those, and others at random. The fastest, the chosen and the greedy one are deployed anew, nine times
each, on weights of their own, and timed again as often; only these times are compared, the median of the nine. For where weights
lie makes a path 10 to 20 % slower or faster, cold, as long as the process lives (three products of 2.9 MB: 400 µs from 16 bytes
behind a cache line on, 420 to 500 from a page's start on), and a path that joins weights reads others than one that takes them as
they are.

regret: time of the choice ÷ the best time. greedy: the cheapest kernel for each op as it is written, no recipe, no definition where
there is a kernel. random: mean time of the paths ÷ the best. tau: Kendall's, of the order of predicted times against the measured
order, over the pairs of paths whose quartiles do not overlap. noise: the slowest of the nine deployments of the chosen path ÷ the
fastest. elsewhere: the best time ÷ the best of all wordings of the same (same family, same sizes).

Ends with 1 where outputs differ, or the median of the regret is above 1.03, the worst above 1.10, or the median of tau below 0.8.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tensor_graphs as tg  # before numpy, whose threads would spin otherwise
from benchmarks.arguments import at_least, new_file
from benchmarks.in_turns import Timed, flushing, in_turns
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.path_listing import list_paths
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.cli.options import progress
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.kernels.registry import all_kernels, by_op
from tensor_graphs.language.node import Node
from tensor_graphs.paths.path import RECIPE, NoPathError
from tensor_graphs.paths.path import Path as GraphPath

BACKENDS = ("c", "gen", "numpy")
LISTED = 2000
"""paths that are looked at of each graph"""

FINALISTS = 5
"""of the fastest paths that are timed again"""

ANEW = 9
"""deployments of each of those, each on a copy of the weights"""

AGREED = 1e-2
"""of an output's size, by which paths may differ"""

# ---- graphs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """family: graphs of one family and equal sizes say the same in other words."""

    family: str
    name: str
    graph: tg.Graph


def x_of(n: int, d: int, name: str = "x") -> Node:
    return tg.input(name, (n, d))


def w_of(name: str, *shape: int) -> Node:
    return tg.parameter(name, shape)


def turned(x: Node) -> Node:
    return tg.permute(x, (1, 0))


def naive_attention(n: int, s: int, d: int, words: str) -> Node:
    q, k, v = x_of(n, d, "q"), x_of(s, d, "k"), x_of(s, d, "v")
    if words == "scale first":
        scores = tg.dot(q * d ** -0.5, turned(k))
    elif words == "as a linear":
        scores = tg.linear(q, k) * d ** -0.5
    else:
        scores = tg.dot(q, turned(k)) * d ** -0.5
    if words == "divide last":
        e = tg.exp(scores - tg.expand(tg.max(scores, axis=1, keepdims=True), (n, s)))
        return tg.dot(e, v) / tg.expand(tg.sum(e, axis=1, keepdims=True), (n, d))
    if words == "exponentials":
        e = tg.exp(scores - tg.expand(tg.max(scores, axis=1, keepdims=True), (n, s)))
        return tg.dot(e / tg.expand(tg.sum(e, axis=1, keepdims=True), (n, s)), v)
    return tg.dot(tg.softmax(scores), v)


def mlp(n: int, d: int, wide: int, activation: Callable[[Node], Node]) -> Node:
    x = x_of(n, d)
    return tg.linear(activation(tg.linear(x, w_of("gate", wide, d))) * tg.linear(x, w_of("up", wide, d)), w_of("down", d, wide))


def qkv(n: int, d: int, heads: int) -> dict[str, Node]:
    x = tg.rms_norm(x_of(n, d), w_of("g", d))
    q, k, v = (tg.linear(x, w_of(name, width, d)) for name, width in (("q", d), ("k", d // heads), ("v", d // heads)))
    return {"q": tg.rms_norm(tg.reshape(q, (n, heads, d // heads)), w_of("gq", d // heads)), "k": tg.rms_norm(k), "v": v * 1.0 + k}


def chain(n: int, d: int, inner: int, words: str) -> Node:
    """A · (B · x), as it is or with A · B first; A and B are activations, so nothing is known beforehand."""
    a, b, x = x_of(d, inner, "a"), x_of(inner, d, "b"), x_of(d, n)
    return tg.dot(a, tg.dot(b, x)) if words == "right" else tg.dot(tg.dot(a, b), x)


def low_rank(n: int, d: int, inner: int) -> Node:
    return tg.linear(tg.linear(x_of(n, d), w_of("b", inner, d)), w_of("a", d, inner))


def norm_product(n: int, d: int, wide: int, words: str) -> Node:
    x, g = x_of(n, d), w_of("g", d)
    if words == "folded":
        return tg.linear(tg.rms_norm(x), w_of("w", wide, d) * tg.expand(tg.reshape(g, (1, d)), (wide, d)))
    if words == "atomic":
        by = tg.reciprocal(tg.sqrt(tg.mean(x * x, axis=1, keepdims=True) + 1e-6))
        return tg.linear(x * tg.expand(by, (n, d)) * tg.expand(tg.reshape(g, (1, d)), (n, d)), w_of("w", wide, d))
    return tg.linear(tg.rms_norm(x, g), w_of("w", wide, d))


def log_sum(n: int, d: int, wide: int, words: str) -> Node:
    x = tg.linear(x_of(n, d), w_of("w", wide, d))
    if words == "naive":
        return tg.log(tg.sum(tg.exp(x), axis=1))
    if words == "safe":
        most = tg.max(x, axis=1, keepdims=True)
        return tg.log(tg.sum(tg.exp(x - tg.expand(most, (n, wide))), axis=1)) + tg.reshape(most, (n,))
    return tg.logsumexp(x)


def turned_product(n: int, d: int, wide: int, words: str) -> Node:
    x, w = x_of(n, d), w_of("w", wide, d)
    return {"dot": lambda: tg.dot(x, turned(w)), "twice": lambda: turned(tg.dot(w, turned(x)))}[words]()


def both(n: int, d: int, wide: int) -> Node:
    x = x_of(n, d)
    return tg.linear(x, w_of("a", wide, d)) + tg.linear(x, w_of("b", wide, d))


def cases() -> list[Case]:
    """Thirty of them; the first few are of all families."""
    found = [Case(f"attention {n}x{s}", f"attention {n}x{s}, {words}", tg.graph(naive_attention(n, s, 64, words)))
             for (n, s), all_words in (((64, 64), ("softmax", "exponentials", "scale first", "divide last")),
                                       ((1, 256), ("softmax", "as a linear", "divide last")), ((128, 128), ("softmax",)))
             for words in all_words]
    found += [Case(f"mlp {n} {name}", f"mlp {n}x512, {name}", tg.graph(mlp(n, 512, 1408, activation)))
              for n, name, activation in ((1, "silu", tg.silu), (1, "gelu", tg.gelu), (16, "silu", tg.silu))]
    found += [Case(f"qkv {n}", f"qkv {n}x640", tg.graph(qkv(n, 640, 4))) for n in (1, 3, 24)]
    found += [Case(f"chain {n} {d} {inner}", f"chain {words}, {d}x{inner}x{d} of {n}", tg.graph(chain(n, d, inner, words)))
              for n, d, inner in ((1, 512, 32), (512, 256, 8)) for words in ("left", "right")]
    found += [Case(f"low rank {n}", f"low rank 512x16x512 of {n}", tg.graph(low_rank(n, 512, 16))) for n in (1, 32)]
    found += [Case(f"norm {n}", f"norm {n}x640, {words}", tg.graph(norm_product(n, 640, 1024, words)))
              for n, words in ((1, "norm"), (1, "folded"), (1, "atomic"), (16, "norm"))]
    found += [Case("log sum", f"log of sums, {words}", tg.graph(log_sum(8, 256, 2048, words))) for words in ("naive", "safe", "op")]
    found += [Case("turned", f"turned product, {words}", tg.graph(turned_product(16, 512, 512, words)))
              for words in ("dot", "twice")]
    found += [Case("both", "two products of one", tg.graph(both(4, 512, 512)))]
    by_family: dict[str, list[Case]] = {}
    for each in found:
        by_family.setdefault(each.family.split()[0], []).append(each)
    return [each for layer in itertools.zip_longest(*by_family.values()) for each in layer if each is not None]


# ---- paths -----------------------------------------------------------------------------------------------------------


def greedy_path(graph: tg.Graph, book: CostTable) -> GraphPath:
    """The cheapest kernel of each op of a graph as it is written; the definition only where there is no kernel."""
    paths = book.paths(graph, by_op(all_kernels(BACKENDS)), {}, lambda k, s: book.cost(k, s, {}, True))
    choices: dict[str, str] = {}
    stack = [s for s, _ in paths.top]
    while stack:
        s = stack.pop()
        ways = paths.alternatives(s)
        kernels = [a for a in ways if a.kernel is not None]
        best = min(kernels, key=lambda a: a.seconds) if kernels else ways[0]
        choices[s.key] = best.name
        stack += [i for i, _ in paths.inner(s)] if best.kernel is None else []
    return paths.costed(GraphPath(graph.structural_key, choices, 0.0, False, None))


def some_of(listed: Sequence[GraphPath], cap: int) -> list[int]:
    """Which paths are timed, by their places in the enumeration."""
    if len(listed) <= cap:
        return list(range(len(listed)))
    taken = dict.fromkeys(range(cap // 2))
    seen = {pair for i in taken for pair in listed[i].choices.items()}
    for i, path in enumerate(listed):
        if len(taken) < cap and not seen >= set(path.choices.items()):
            taken[i] = None
            seen |= set(path.choices.items())
    rest = [i for i in range(len(listed)) if i not in taken]
    return sorted([*taken, *random.Random(0).sample(rest, cap - len(taken))])


# ---- times -----------------------------------------------------------------------------------------------------------


class Deployed(Timed):
    """A path bound to two sets of weights: one warms code and activations up, the other's run counts."""

    def __init__(self, plan: Any, weights: Sequence[Mapping[str, np.ndarray]], inputs: Mapping[str, np.ndarray]) -> None:
        self.anew = lambda: Deployed(plan, [{n: a.copy() for n, a in each.items()} for each in weights], inputs)
        warm, cold = (tg.bind(plan, each) for each in weights)
        super().__init__(lambda: warm.run(inputs), lambda: cold.run(inputs))


def deployed(graph: tg.Graph, path: GraphPath, weights: Sequence[Mapping[str, np.ndarray]], inputs: Mapping[str, np.ndarray],
             options: Mapping[str, Any]) -> Deployed | None:
    """None where a kernel of the path turns out to be wrong, or beyond the tolerance."""
    try:
        return Deployed(tg.compile(graph, path=path, **options), weights, inputs)
    except NoPathError:
        return None


def kendall(order: Sequence[Deployed]) -> tuple[float, int]:
    """Kendall's tau of an order of paths against their times, and over how many pairs; nan over none."""
    signs = []
    for a, b in itertools.combinations(order, 2):
        (low_a, high_a), (low_b, high_b) = a.quartiles, b.quartiles
        if high_a < low_b or high_b < low_a:
            signs.append(1 if a.median < b.median else -1)
    return (sum(signs) / len(signs) if signs else math.nan), len(signs)


def other_than(expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> bool:
    return any(not np.linalg.norm(found[n] - a) <= AGREED * np.linalg.norm(a) for n, a in expected.items())


def regret_of(case: Case, database: str, given: argparse.Namespace, cache: np.ndarray) -> dict[str, Any]:
    """One row. Raises SystemExit where two paths give different outputs."""
    graph = case.graph
    began = time.perf_counter()
    report = tg.profile(graph, budget=given.budget, database=database, backends=BACKENDS)
    profiled = time.perf_counter() - began
    options: dict[str, Any] = {"database": database, "backends": BACKENDS}
    plan = tg.compile(graph, **options)
    chosen = plan.variants[0].path
    listed = list(itertools.islice(list_paths(graph, **options), LISTED))
    if chosen.id not in {p.id for p in listed}:                     # run as a whole it was the fastest, and it is not cheap
        listed.append(chosen)
    ids = [p.id for p in listed]
    rng = np.random.default_rng(0)
    weights = [{n: (0.05 * rng.standard_normal(p.shape)).astype(np.float32) for n, p in graph.parameters.items()} for _ in range(2)]
    inputs = {n: rng.standard_normal(p.shape).astype(np.float32) for n, p in graph.inputs.items()}
    places = sorted({*some_of(listed, given.paths), ids.index(chosen.id)})
    timed = {i: made for i in places if (made := deployed(graph, listed[i], weights, inputs, options)) is not None}
    plain = prepare(graph, recipes=False).graph
    greedy = greedy_path(plain, CostTable.of(Request(graph, **options), ESTIMATE_MARGIN))
    by_greed = deployed(plain, greedy, weights, inputs, {**options, "simplify": False})
    if by_greed is None:
        raise SystemExit(f"{case.name}: the greedy path may not be used")
    everyone = [*timed.values(), by_greed]
    choice = timed[ids.index(chosen.id)]
    expected = choice.run_cold()
    for each in everyone:
        if other_than(expected, each.run_cold()):
            raise SystemExit(f"{case.name}: a path gives other outputs than the chosen one {chosen.id}")
    in_turns(everyone, given.rounds, cache)
    tau, pairs = kendall([timed[i] for i in sorted(timed, key=lambda i: listed[i].cost)])
    mean = float(np.mean([each.median for each in timed.values()]))
    fastest = sorted(timed.values(), key=lambda each: each.median)[:FINALISTS]
    finalists = list(dict.fromkeys([*fastest, choice, by_greed]))
    anew = {each: [each.anew() for _ in range(ANEW)] for each in finalists}
    in_turns([d for several in anew.values() for d in several], given.rounds, cache)
    of_choice = [d.median for d in anew[choice]]
    final = {each: float(np.median([d.median for d in several])) for each, several in anew.items()}
    best = min(finalists, key=final.__getitem__)
    steps = greedy.lines() if best is by_greed else next(listed[i].lines() for i, each in timed.items() if each is best)
    return {"family": case.family, "graph": case.name, "paths": len(listed), "timed": len(timed), "best_us": final[best] * 1e6,
            "choice_us": final[choice] * 1e6, "regret": final[choice] / final[best], "greedy": final[by_greed] / final[best],
            "random": mean / min(each.median for each in finalists),
            "noise": max(of_choice) / min(of_choice), "tau": tau, "pairs": pairs, "predicted_us": chosen.seconds * 1e6,
            "recipe": any(c.startswith(RECIPE) for c in chosen.choices.values()), "profiled_s": profiled, "left": report.left,
            "chosen": chosen.lines(), "best": steps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=at_least(1), default=30, help="how many of the graphs, of all families first")
    parser.add_argument("--only", default="", help="those whose name holds this")
    parser.add_argument("--budget", type=float, default=12.0, help="seconds of profiling for each graph, at most")
    parser.add_argument("--paths", type=at_least(2), default=40, help="paths of a graph that are timed, at most")
    parser.add_argument("--rounds", type=at_least(3), default=9)
    parser.add_argument("--database", help="default: an empty one")
    parser.add_argument("--json", type=new_file)
    given = parser.parse_args()
    cache = flushing()
    chosen = [c for c in cases() if given.only in c.name][:given.graphs]
    rows: list[dict[str, Any]] = []
    columns = ("paths", "timed", "best µs", "regret", "noise", "greedy", "random", "tau", "prof. s")
    print(f"{'graph':34} {' '.join(f'{c:>8}' for c in columns)}  chosen", flush=True)
    with tempfile.TemporaryDirectory() as folder, progress("graphs", False, len(chosen)) as update:
        for number, case in enumerate(chosen):
            update(number, len(chosen), case.name)
            row = regret_of(case, given.database or str(Path(folder) / "bench.db"), given, cache)
            rows.append(row)
            numbers = (f"{row['paths']:8}", f"{row['timed']:8}", f"{row['best_us']:8.1f}", f"{row['regret']:8.3f}",
                       f"{row['noise']:8.3f}",
                       f"{row['greedy']:8.3f}", f"{row['random']:8.2f}", f"{row['tau']:8.2f}", f"{row['profiled_s']:8.1f}")
            print(f"{row['graph']:34} {' '.join(numbers)}  {'recipe' if row['recipe'] else 'as written'}"
                  + (f", {row['left']} questions left" if row["left"] else ""), flush=True)
    best: dict[str, float] = {}
    for row in rows:
        best[row["family"]] = min(best.get(row["family"], math.inf), row["best_us"])
    for row in rows:
        row["elsewhere"] = row["best_us"] / best[row["family"]]
    regrets = np.array([row["regret"] for row in rows])
    taus = np.array([row["tau"] for row in rows if not math.isnan(row["tau"])])
    summary = {"regret_median": float(np.median(regrets)), "regret_worst": float(regrets.max()),
               "greedy_median": float(np.median([r["greedy"] for r in rows])), "greedy_worst": max(r["greedy"] for r in rows),
               "noise_median": float(np.median([r["noise"] for r in rows])),
               "random_median": float(np.median([r["random"] for r in rows])),
               "tau_median": float(np.median(taus)) if len(taus) else math.nan,
               "elsewhere_worst": max(r["elsewhere"] for r in rows)}
    print("  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in summary.items()))
    for row in sorted(rows, key=lambda r: -r["regret"])[:3]:
        if row["regret"] > 1.03:
            print(f"{row['graph']}: regret {row['regret']:.3f}", "chosen:", *row["chosen"], "best:", *row["best"], sep="\n  ")
    for row in rows:
        if row["elsewhere"] > 1.10:
            print(f"{row['graph']}: another wording of the same is {row['elsewhere']:.2f} times as fast")
    if given.json:
        environments = {name: asdict(fingerprint(name)) for name in BACKENDS}
        given.json.write_text(json.dumps({"summary": summary, "rows": rows, "environments": environments}, indent=1, default=str))
    wrong = summary["regret_median"] > 1.03 or summary["regret_worst"] > 1.10 or not summary["tau_median"] >= 0.8
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
