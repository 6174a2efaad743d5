"""accuracy: how far generated kernels are from the float64 oracle, beside kernels written by hand, on the same values.

    python benchmarks/accuracy.py suite [--only softmax] [--seeds 5] [--backend gen] [--json FILE]
    python benchmarks/accuracy.py grid [--only sum] [--share 0/4] [--backend gen] [--json FILE]

suite: the parts that a plan of each graph of kernels_cpu.py holds where only generated kernels may compute it (no profile). Each
part's kernel runs on --seeds sets of random values, and so do, on the same: every kernel of C and numpy for it, or else its
definition by numpy. Printed: the largest error of each, and ours ÷ that of C's kernel where there is one, else of numpy's. An error
within one rounding of an output's dtype is as small as can be, and counts as one rounding.

grid: each op at each dtype (the cases of `tg conformance`), by every generated kernel that takes it, at sizes 0, 1, 3, 17, 127, 129
and 1000 of each dim, as far as its bounds allow (so at both of its ends), with the other dims at 3 and at the same size. Outputs
have to be the oracle's within what conformance allows a dtype; integers exactly. --share: of the cells, this one of so many.

Ends with 1 where a ratio is above 1.5 (suite), or an output is wrong or no kernel takes what is defined (grid).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tensor_graphs as tg  # before numpy, whose threads would spin otherwise
from benchmarks.arguments import at_least, new_file
from benchmarks.cpu_graphs import cases
from benchmarks.kernels_cpu import error_of
from tensor_graphs.cli.options import progress
from tensor_graphs.costs.roofline import work
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.kernels.kernel import ANY_OP, Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, matching
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.errors import DTypeError
from tensor_graphs.language.node import TensorType, is_step, walk
from tensor_graphs.meaning.error_measure import unit_roundoff
from tensor_graphs.meaning.same_math import SAME_MATH
from tensor_graphs.measure.conformance.backend import keys
from tensor_graphs.measure.conformance.cases import instances, op_named
from tensor_graphs.measure.points.inputs import make_inputs
from tensor_graphs.measure.points.single_op_plans import plain_plan, prepared_names, single_kernel_plan, with_parameters
from tensor_graphs.paths.path import expanded
from tensor_graphs.paths.plan import Plan

OTHERS = ("c", "numpy")
"""whose kernels are compared; the first that has one for a part is the measure"""

LIMIT = 1.5
"""of ours ÷ the others'"""

SIZES = (0, 1, 3, 17, 127, 129, 1000)

BESIDE = 3
"""size of the other dims, besides all at one size"""

MOST_WORK = 2e8
"""flops and bytes beyond which a size is left out: the oracle would take seconds for it, and the next smaller one says the same"""

Values = Mapping[str, np.ndarray]


def ran(plan: Plan, inputs: Values, sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """The outputs of a plan on these values; those that are its parameters are bound."""
    model = tg.bind(plan, {name: inputs[name] for name in plan.graph.parameters})
    # dims that an input says are not said again: of two words one would have to be compared with the other
    said = {str(s) for node in plan.graph.inputs.values() for s in node.shape}
    dims = {name: size for name, size in (sizes or {}).items() if name in plan.graph.dims and name not in said}
    return model.run({name: inputs[name] for name in plan.graph.inputs}, dims=dims)


def deployed(signature: Signature, kernel: Kernel) -> Plan:
    """A plan of one part by one kernel; what it prepares something from are parameters."""
    return single_kernel_plan(with_parameters(signature.graph, prepared_names(signature.graph, kernel)), kernel)


def error(graph: tg.Graph, outputs: Values, expected: Values) -> float:
    """The largest relative error of all outputs."""
    names = list(graph.outputs)
    return error_of([outputs[n] for n in names], [np.asarray(expected[n]) for n in names], [graph.outputs[n] for n in names])


# ---- suite -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A part's largest errors: ours, and of each other way to compute it."""

    graph: str
    part: str
    ours: float
    others: Mapping[str, float]
    rounding: float

    @property
    def ratio(self) -> float:
        """Ours ÷ the measure's; what is within one rounding counts as one rounding."""
        measures = next(found for backend in OTHERS if (found := [e for n, e in self.others.items() if n.startswith(backend)]))
        ours, theirs = max(self.ours, self.rounding), max(self.rounding, *measures)
        return ours / theirs if theirs else 1.0 if ours == 0.0 else math.inf


def parts_of(plan: Plan) -> dict[str, tuple[Signature, Kernel]]:
    """Key -> part and kernel, of all that the plan's first variant runs."""
    variant = plan.variants[0]
    found = {}
    for node in walk(expanded(plan.graph.roots, variant.path)):
        name = variant.path.choices.get(signature_of(node).key) if is_step(node) else None
        if name is not None and name in variant.kernels:
            found[signature_of(node).key] = signature_of(node), variant.kernels[name]
    return found


def compared(graph: str, signature: Signature, kernel: Kernel, seeds: int) -> Compared:
    """One part, on `seeds` sets of values. Kernels of the others that refuse it are left out."""
    ways = {kernel.name: deployed(signature, kernel)}
    table = by_op(all_kernels(OTHERS))
    ways |= {k.name: deployed(signature, k) for k in matching(signature.spec, table) if k.name != kernel.name}
    if len(ways) == 1:
        plain = plain_plan(signature.graph)
        if plain is None:
            raise SystemExit(f"{signature.title()}: numpy does not compute it")
        ways["numpy, its definition"] = plain
    worst = dict.fromkeys(ways, 0.0)
    for seed in range(seeds):
        inputs = make_inputs(signature.graph, {}, seed)
        expected = tg.interpret(signature.graph, inputs).outputs
        for name, plan in ways.items():
            worst[name] = max(worst[name], error(signature.graph, ran(plan, inputs), expected))
    rounding = max((unit_roundoff(t.dtype) for t in signature.spec.outputs if t.dtype.is_float), default=0.0)
    ours = worst.pop(kernel.name)
    return Compared(graph, signature.title(), ours, worst, rounding)


def suite(given: argparse.Namespace) -> tuple[list[Any], list[str]]:
    import torch

    words = given.only.split(",")
    chosen = [c for c in cases(torch) if any(word in f"{c.kind}: {c.name}" for word in words)]
    rows: list[Compared] = []
    seen: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            plan = tg.compile(case.graph, backends=(given.backend, "numpy"), database=str(Path(folder) / "accuracy.db"))
            for key, (signature, kernel) in parts_of(plan).items():
                if kernel.backend != given.backend or key in seen:
                    continue
                seen.add(key)
                row = compared(f"{case.kind}: {case.name}", signature, kernel, given.seeds)
                rows.append(row)
                others = "  ".join(f"{n} {e:.1e}" for n, e in sorted(row.others.items()))
                print(f"{row.ratio:6.2f} {row.ours:8.1e}  {row.graph:34} {row.part[:60]:60}  {others}", flush=True)
    above = [f"{r.graph}: {r.part}: {r.ratio:.2f} × the error of the others" for r in rows if not r.ratio <= LIMIT]
    print(f"{len(rows)} generated kernels of {len(chosen)} graphs, {len(above)} with more than {LIMIT} × the error of the others")
    return [asdict(r) | {"ratio": r.ratio} for r in rows], above


# ---- grid --------------------------------------------------------------------------------------------------------------------


def bindings(signature: Signature) -> Iterator[dict[str, int]]:
    """Sizes at which a case is compared: each dim at each of SIZES, the others at BESIDE or at the same; each once."""
    names, seen = signature.dim_names, set()
    ranges = {str(s): d.bounds(s) for t in (*signature.spec.inputs, *signature.spec.outputs) for s in t.shape}

    def held(name: str, size: int) -> int:
        low, high = ranges.get(name, (0, size))
        return min(max(size, low), high)

    for size in SIZES:
        for one in (*names, None):
            sizes = {n: held(n, size if one in (n, None) else BESIDE) for n in names}
            key = tuple(sizes.values())
            if key not in seen and max(work(signature, tuple(sizes.items()))) <= MOST_WORK:
                seen.add(key)
                yield sizes


def allowed(t: TensorType) -> float:
    return SAME_MATH.get(t.dtype.name, 0.0)


def cell(op: str, dtype: str, kernels: Mapping[str, Sequence[Kernel]]) -> tuple[int, float, list[str]]:
    """(comparisons, the largest error ÷ what is allowed, what is wrong) of one op at one dtype."""
    try:
        nodes = instances(op, DTYPES[dtype])
    except DTypeError:
        return 0, 0.0, []
    if op_named(op).facts.view:
        return 0, 0.0, []
    count, worst, wrong = 0, 0.0, []
    taken = False
    for signature in map(signature_of, nodes):
        takers = [k for k in (*kernels.get(op, ()), *kernels.get(ANY_OP, ())) if k.accepts(signature.spec) is None]
        taken = taken or bool(takers)
        for kernel in takers:
            plan = deployed(signature, kernel)
            for seed, sizes in enumerate(bindings(signature)):
                inputs = make_inputs(signature.graph, sizes, seed)
                try:
                    expected = tg.interpret(signature.graph, inputs, dims=sizes).outputs
                except (tg.TensorGraphsError, ValueError, IndexError):
                    continue                                         # no meaning at these sizes: the maximum of nothing, windows
                count += 1
                try:
                    found = error(signature.graph, ran(plan, inputs, sizes), expected)
                except tg.TensorGraphsError as e:
                    wrong.append(f"{op} {dtype}: {kernel.name} on {signature.title()} at {sizes}: {str(e).splitlines()[0]}")
                    continue
                limit = max(allowed(t) for t in signature.spec.outputs)
                worst = max(worst, found / limit if limit else found)
                if not found <= limit:
                    wrong.append(f"{op} {dtype}: {kernel.name} on {signature.title()} at {sizes}: error {found:.1e}")
    return count, worst, wrong if taken else [*wrong, f"{op} {dtype}: no kernel takes it"]


def grid(given: argparse.Namespace) -> tuple[list[Any], list[str]]:
    number, of = given.share
    words = given.only.split(",")
    wanted = [(op, dtype) for op, dtype in keys() if any(word in op for word in words)][number::of]
    kernels = by_op(all_kernels((given.backend,)))
    rows, wrong = [], []
    with progress("comparing", quiet=False, total=len(wanted)) as show:
        for i, (op, dtype) in enumerate(wanted):
            show(i, len(wanted), f"{op} {dtype}")
            count, worst, found = cell(op, dtype, kernels)
            wrong += found
            if count:
                rows.append({"op": op, "dtype": dtype, "comparisons": count, "worst": worst})
    print(f"{len(rows)} cells, {sum(r['comparisons'] for r in rows)} comparisons, {len(wrong)} wrong; "
          f"the largest error ÷ what is allowed: {max((r['worst'] for r in rows), default=math.nan):.2g}")
    return rows, wrong


def share(text: str) -> tuple[int, int]:
    """A type for argparse: `1/4`, the second of four shares."""
    number, _, of = text.partition("/")
    if not (number.isdigit() and of.isdigit() and int(number) < int(of)):
        raise argparse.ArgumentTypeError(f"{text} is no share; it is like 0/4")
    return int(number), int(of)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("suite", "grid"))
    parser.add_argument("--only", default="", help="graphs or ops whose name holds one of these words, split by commas")
    parser.add_argument("--backend", default="gen")
    parser.add_argument("--seeds", type=at_least(1), default=5)
    parser.add_argument("--share", type=share, default=(0, 1))
    parser.add_argument("--json", type=new_file)
    given = parser.parse_args()
    run: Callable[[argparse.Namespace], tuple[list[Any], list[str]]] = {"suite": suite, "grid": grid}[given.what]
    rows, wrong = run(given)
    print(*wrong, sep="\n")
    if given.json:
        said = {"rows": rows, "wrong": wrong, "environment": asdict(fingerprint(given.backend))}
        given.json.write_text(json.dumps(said, indent=1, default=str))
    return int(bool(wrong) or not rows)


if __name__ == "__main__":
    sys.exit(main())
