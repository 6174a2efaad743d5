"""torch_op_info: PyTorch's own samples of its ops (OpInfo), converted to graphs and compared with eager torch.

    python benchmarks/torch_op_info.py --results build/all.jsonl --out docs/conformance      # all samples of core ops: see PAGE
    python benchmarks/torch_op_info.py --results build/all.jsonl --others --most 3           # then samples of other ops
    python benchmarks/torch_op_info.py --ops add,softmax --dtypes f32 --show
    python benchmarks/torch_op_info.py --control relu_accuracy_error_TESTING_ONLY            # a wrong backend must be noticed

Each sample's call is traced to core ATen ops as torch.compile does it, compiled for numpy and run; no kernel is compared with
the oracle beforehand, as the outputs are compared with torch's (`--oracle`: the oracle evaluates the graphs, nothing is
compiled). Right: all outputs are within OpInfo's tolerance; opaque: torch would run some op of it between graphs; late: not
done after SECONDS; wrong: any other. Gradients: of samples that require them, by the traced backward pass. What is in the file
of results is not run again; `--part 0/2` runs every second op.
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._functorch.aot_autograd import aot_function
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tensor_graphs as tg
from benchmarks.torch_samples import op_db
from tensor_graphs.frontends.torch.backend import CompiledModule, boxed, decompositions, forget
from tensor_graphs.frontends.torch.exchange import to_numpy, to_tensor
from tensor_graphs.frontends.torch.fx import GraphStep

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "i64": torch.int64, "bool": torch.bool}
UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""ops whose values are not defined: shapes and dtypes are compared"""
TIES = {"topk": (0,), "sort": (0,), "argsort": ()}
"""ops with indices of equal elements in any order (unless stable) -> the outputs that are compared"""
LARGE = 20_000  # elements of a sample beyond which the oracle takes too long
SECONDS = 60


@dataclass
class Verdict:
    """Result of one sample. status: right, wrong, opaque, late, skipped (torch itself does not trace or run it). core: all ATen ops
    of the traced call are core ops. reason: of all but right."""

    op: str
    dtype: str
    status: str
    core: bool
    reason: str
    overloads: tuple[str, ...]


def samples(info: Any, dtype: torch.dtype, gradients: bool = False) -> Iterator[Any]:
    """Yield the samples of an op whose tensors are small; none where OpInfo has none."""
    if dtype not in info.supported_dtypes("cpu") or (gradients and not info.supports_autograd):
        return
    torch.manual_seed(0)
    for sample in info.sample_inputs("cpu", dtype, requires_grad=gradients):
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        if sum(t.numel() for t in leaves if isinstance(t, torch.Tensor)) <= LARGE:
            yield sample


class Interpreted(CompiledModule):
    """A compiled module whose graphs the oracle evaluates, so that nothing is compiled."""

    def _runner(self, step: Any, request: Any) -> Any:
        return _Oracle(step) if isinstance(step, GraphStep) else super()._runner(step, request)


class _Oracle:
    def __init__(self, step: GraphStep) -> None:
        self.step = step

    def __call__(self, scope: Any) -> None:
        arrays = {name: to_numpy(scope.values[node], self.step.orders.get(name)) for name, node in self.step.inputs.items()}
        result = tg.interpret(self.step.graph, arrays, dims=self.step.further_sizes(scope.size))
        for name, node in self.step.outputs.items():
            with np.errstate(all="ignore"):
                array = np.array(np.asarray(result.outputs[name]).astype(self.step.graph.outputs[name].dtype.numpy))
            scope.values[node] = to_tensor(array, self.step.orders.get(name))


class ByNumpy(CompiledModule):
    """A compiled module whose graphs are run by kernels of numpy, after `trust_kernels` without a comparison beforehand."""

    def __init__(self, module: Any, request: Any, strict: bool) -> None:
        super().__init__(module, {"backends": ("numpy",), "database": ":memory:"}, strict)


def trust_kernels() -> None:
    """Have this process use kernels that were never compared with the oracle, and store no plans and no queue."""
    from tensor_graphs.choice.cost_table import CostTable
    from tensor_graphs.choice.search import _Chooser
    from tensor_graphs.records.measurements import KnownTime

    os.environ["TENSOR_GRAPHS_PLANS"] = "off"
    passed = KnownTime("", "", "PASSED", True, False, 0.0, None, 0, 1, 1, 0)
    CostTable.verdict = lambda self, kernel, signature: passed  # type: ignore[method-assign]
    _Chooser.queue_misses = lambda self, *, file: ()  # type: ignore[method-assign]


def judge_sample(info: Any, name: str, sample: Any, gradients: bool = False,
                 compiled: type[CompiledModule] = Interpreted, backend: str = "") -> Verdict:
    """Return the verdict on one sample of an op. compiled: the class that runs the converted modules. backend: of torch.compile, in
    place of this package."""
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]
    tensors = [flat[i] for i in places]
    if any(t.layout != torch.strided or t.is_complex() for t in tensors):
        return Verdict(info.name, name, "skipped", False, "no dense tensors of real numbers", ())
    wanted = [t for t in tensors if t.requires_grad]
    modules: list[CompiledModule] = []
    graphs: list[Any] = []

    def call(*values: torch.Tensor, wide: bool = False) -> list[torch.Tensor]:
        filled = [torch.float64 if wide and v in (torch.bfloat16, torch.float32) else v for v in flat]
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        first, args, keywords = pytree.tree_unflatten(filled, spec)
        out = info.op(first, *args, **keywords)
        out = sample.output_process_fn_grad(out) if gradients else out
        return [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]

    def compiler(module: Any, _: Any) -> Any:
        graphs.append(module)
        modules.append(compiled(module, {}, False))
        return boxed(modules[-1])

    def results(function: Any) -> list[torch.Tensor]:
        outs = function(*tensors)
        if not gradients:
            return list(outs)
        smooth = [o for o in outs if o.requires_grad and not o.is_complex()]
        slopes = torch.autograd.grad([o.sum() for o in smooth], wanted, allow_unused=True) if smooth else []
        return [*outs, *(g for g in slopes if g is not None)]

    with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(0)
            expected = results(call)
        except Exception as error:
            return Verdict(info.name, name, "skipped", False, f"torch: {line_of(error)}", ())
        if any(t.layout != torch.strided for t in expected):
            return Verdict(info.name, name, "skipped", False, "a sparse result", ())
        try:
            torch.manual_seed(0)
            actual = results(torch.compile(call, backend=backend, dynamic=False) if backend else aot_function(
                call, fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions()))
            for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
                if info.name in UNDEFINED or (number not in TIES.get(info.name, (number,)) and not sample.kwargs.get("stable")):
                    assert (one.shape, one.dtype) == (other.shape, other.dtype)
                    continue
                atol, rtol = tolerance(info, other.dtype)
                try:
                    torch.testing.assert_close(one.detach(), other.detach(), equal_nan=True, check_stride=False, **(
                        {} if atol is None else {"atol": atol, "rtol": rtol}))
                except AssertionError:
                    if other.dtype not in (torch.bfloat16, torch.float32) or not nearer(one, other, exact(results, call)[number]):
                        raise
            status, reason = "right", ""
        except Exception as error:
            status = "late" if isinstance(error, TimeoutError) else "wrong" if graphs or backend else "skipped"
            reason = line_of(error)
    ops = [n.target for g in graphs for n in g.graph.nodes
           if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)]
    names = tuple(sorted({str(o).removeprefix("aten.") for o in ops}))
    core = all(torch.Tag.core in o.tags for o in ops)
    opaque = "; ".join(sorted({f"{n.removeprefix('aten.')}: {why}" for m in modules for n, why in m.opaque.items()}))
    drawn = any(torch.Tag.nondeterministic_seeded in o.tags for o in ops)      # torch draws, though in another order than eager
    if "complex" in opaque or any("complex" in str(o.dtype) for o in expected):
        status, reason = "skipped", "complex numbers"
    elif opaque and (status == "right" or drawn):
        status, reason = "opaque", opaque
    elif "would depend on an order" in reason:
        status, reason = "skipped", "several values for one place: torch leaves open which one stays"
    return Verdict(info.name, name, status, core, reason, names)


def exact(results: Any, call: Any) -> list[torch.Tensor]:
    """Return the results of eager torch in f64, on the same inputs."""
    return results(lambda *values: call(*(v.double() if v.is_floating_point() else v for v in values), wide=True))


def nearer(one: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return whether a result is no further from the exact one than that of eager torch, which rounds after each op."""
    errors = [(t.detach().double() - reference.detach().double()).abs() for t in (one, eager)]
    same = (one.detach() == eager.detach()) | (one.isnan() & eager.isnan())
    return bool((same | (errors[0] <= errors[1].max() * 1.01) | (errors[0] <= 0.01 * reference.detach().abs())).all())


def line_of(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def tolerance(info: Any, dtype: torch.dtype) -> tuple[float | None, float | None]:
    """Return OpInfo's own (atol, rtol) for an op where it states one, else None: torch's default."""
    for decorator in info.decorators:
        overrides = getattr(decorator, "tol", None) or getattr(decorator, "tols", None)
        if isinstance(overrides, dict) and dtype in overrides:
            return overrides[dtype].atol, overrides[dtype].rtol
    return None, None


def is_core(info: Any) -> bool:
    """Return whether a call of an op is one ATen op, which is a core op, apart from views of its operands."""
    for dtype in DTYPES.values():
        for sample in samples(info, dtype):
            flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
            places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]

            def call(*values: torch.Tensor, flat: Any = flat, spec: Any = spec, places: Any = places) -> Any:
                filled = [values[places.index(i)] if i in places else v for i, v in enumerate(flat)]
                first, args, keywords = pytree.tree_unflatten(filled, spec)
                return info.op(first, *args, **keywords)

            try:
                traced = make_fx(call)(*(flat[i] for i in places))
            except Exception:
                return False
            ops = [n.target for n in traced.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
            work = [o for o in ops if not o.is_view]
            return len(work or ops[:1]) == 1 and torch.Tag.core in (work or ops)[0].tags
    return False


def late(*_: Any) -> None:
    raise TimeoutError(f"not done after {SECONDS} s")


def control(backend: str) -> list[Verdict]:
    """Return the verdicts on samples of relu, compiled by a backend of torch.compile, as those of torch named …_TESTING_ONLY."""
    info = copy.copy(next(info for info in op_db if info.name == "nn.functional.relu"))
    info.op = torch.relu
    verdicts = []
    for sample in samples(info, torch.float32):
        torch._dynamo.reset()
        if sample.input.numel() and sample.input.dim():
            sample.input = sample.input.requires_grad_() * 1            # no leaf: one of these backends takes leaves alone
            verdicts.append(judge_sample(info, "f32", sample, backend=backend))
    return verdicts


def run(options: argparse.Namespace, done: set[str], file: Any) -> list[Verdict]:
    """Return the verdicts on samples that are not done, and write each to a file of lines of JSON."""
    verdicts: list[Verdict] = []
    chosen = set(options.ops.split(",")) if options.ops else None
    part, parts = map(int, options.part.split("/"))
    signal.signal(signal.SIGALRM, late)
    for place, info in enumerate(op_db):
        if (chosen is not None and info.name not in chosen) or place % parts != part or (
                chosen is None and is_core(info) == options.others):
            continue
        forget()
        for name in options.dtypes.split(","):
            for number, sample in enumerate(samples(info, DTYPES[name], options.gradients)):
                key = f"{place} {info.name} {info.variant_test_name} {name} {number} {options.gradients}"
                if number >= options.most:
                    break
                if key in done:
                    continue
                signal.alarm(SECONDS)
                verdict = judge_sample(info, name, sample, options.gradients, Interpreted if options.oracle else ByNumpy)
                signal.alarm(0)
                verdicts.append(verdict)
                if file is not None:
                    file.write(json.dumps({"key": key, **dataclasses.asdict(verdict)}) + "\n")
                    file.flush()
                if options.show and (verdict.status in ("wrong", "late") or (verdict.status == "opaque" and verdict.core)):
                    print(f"{verdict.status} {verdict.op} {name} #{number}: {verdict.reason}", flush=True)
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="names, separated by commas; default: the core ops")
    parser.add_argument("--others", action="store_true", help="the ops that are no core ops")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--most", type=int, default=10_000, help="samples per op and dtype")
    parser.add_argument("--part", default="0/1", help="which of how many parts of the ops")
    parser.add_argument("--results", type=Path, default=None, help="file of lines of JSON to which verdicts are added")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table of all results")
    parser.add_argument("--oracle", action="store_true", help="evaluate the graphs by the oracle")
    parser.add_argument("--control", default="", help="a backend of torch.compile that must be noticed as wrong")
    parser.add_argument("--show", action="store_true", help="print what is not right")
    options = parser.parse_args()
    logging.getLogger("tensor_graphs").setLevel(logging.ERROR)
    if options.control:
        verdicts = control(options.control)
        print("\n".join(f"{v.status}: {v.reason}" for v in verdicts))
        sys.exit(0 if verdicts and all(v.status == "wrong" for v in verdicts) else 1)
    trust_kernels()
    old = [json.loads(line) for line in options.results.open()] if options.results and options.results.exists() else []
    with open(options.results or os.devnull, "a") as file:
        verdicts = run(options, {row.pop("key") for row in old}, file)
    report([*(Verdict(**row) for row in old), *verdicts], options.out)


PAGE = """# PyTorch's samples of its ops, as graphs

Written by `python benchmarks/torch_op_info.py --results FILE --out docs/conformance`, compiled for numpy. Ops that a run leaves out
keep their rows: of ops that are no core ATen ops, of max_pool2d_with_indices_backward, and of a quarter of the core ops after
`nn.functional.max_pool3d` in PyTorch's order, there are three samples of each variant, run by the oracle; of other core ops all
samples, of max pools at least 100 of a dtype. The backends of torch named …_TESTING_ONLY fail, as they must (`--control`).
Right: within OpInfo's tolerance of eager torch, or no further than it from torch in f64. Opaque: torch runs an op of the call
between graphs, for the reason in the last column. Skipped: complex numbers, sparse tensors, values that torch leaves open. Ops
whose samples are all right: [torch_ops.json](torch_ops.json).
"""


def markdown(table: dict[str, Any], counted: list[str]) -> str:
    """Return the table as a page: the counts, then the ops and dtypes of which a sample is not right, with the reasons."""
    lines = [*PAGE.splitlines(), "", *(f"- {c}" for c in counted), "",
             "| op and dtype | right | opaque | wrong | skipped | reasons |", "|---|---|---|---|---|---|"]
    for name, row in sorted(table.items()):
        if row["opaque"] or row["wrong"] or row.get("late"):
            reasons = "; ".join(row["reasons"])[:160].replace("|", "\\|")
            lines.append(f"| {name} | {row['right']} | {row['opaque']} | {row['wrong']} | {row['skipped']} | {reasons} |")
    return "\n".join(lines) + "\n"


def report(verdicts: list[Verdict], out: Path | None) -> None:
    """Print the counts, and write the table: for each op and dtype the counts, and the reasons of what is not right. What the table
    has of ops without verdicts stays."""
    counted = []
    for title, rows in (("samples of this run", verdicts), ("of them, with core ATen ops only", [v for v in verdicts if v.core])):
        by_status = collections.Counter(v.status for v in rows)
        total = sum(by_status.values()) - by_status["skipped"]
        counted.append(f"{title}: " + ", ".join(f"{n} {status}" for status, n in by_status.most_common())
                       + f"; right {100 * by_status['right'] / max(total, 1):.1f} % of {total}")
    print("\n".join(counted))
    reasons = collections.Counter(r for v in verdicts if v.status == "opaque" for r in v.reason.split("; "))
    for reason, count in reasons.most_common(60):
        print(f"{count:6} {reason}")
    if out is not None:
        old = out / "torch_ops.json"
        ran = {f"{v.op} {v.dtype}" for v in verdicts}
        table: dict[str, Any] = {n: row for n, row in json.loads(old.read_text()).items() if n not in ran} if old.exists() else {}
        for v in verdicts:
            counts = {"right": 0, "wrong": 0, "opaque": 0, "late": 0, "skipped": 0}
            row = table.setdefault(f"{v.op} {v.dtype}", {**counts, "reasons": []})
            row[v.status] += 1
            if v.reason and v.reason not in row["reasons"]:
                row["reasons"].append(v.reason)
        (out / "torch_ops.md").write_text(markdown(table, counted), encoding="utf-8")
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(table.items()))
        (out / "torch_ops.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
