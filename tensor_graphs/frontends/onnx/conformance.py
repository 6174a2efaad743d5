"""conformance: the tests that come with the onnx package, each model imported, run and compared with its expected values.

`tg conformance --onnx` writes the table. A test whose shapes depend on inputs is imported with these inputs' values. Outputs are
compared with the test's own tolerances; what differs by no more than ROUNDED units of the output's dtype, relative to its largest
element, is counted apart: there the expected values were rounded in another order. Where onnxruntime is installed, it runs the same
models on the same inputs, compared in the same way.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.onnx.errors import NotSupported
from tensor_graphs.frontends.onnx.importer import OnnxModel, from_onnx_with, onnx_package
from tensor_graphs.frontends.onnx.tensor_data import DTYPES, read_tensor
from tensor_graphs.language.dtypes import dtype_of
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.runtime.compiled_graph import bind

SETS = {"node": "node tests", "simple": "simple: small models", "pytorch-converted": "pytorch-converted: layers of torch",
        "pytorch-operator": "pytorch-operator: operators of torch", "light": "light: networks with weights of one value"}
"""the package's sets of tests"""

STATUSES = ("native", "function", "opaque", "refused", "wrong")
"""computed by rows of the table; in part by an ONNX function body; in part by the package's reference evaluator, of known values;
refused by name; wrong, or another error"""

ROUNDED = 2
"""units of an output's dtype"""

Run = Callable[[OnnxModel, Mapping[str, np.ndarray]], Mapping[str, Any]]
"""run(model, inputs by the graph's names) -> outputs by the graph's names"""


@dataclass(frozen=True)
class NodeTest:
    """A test. data_sets: (inputs, outputs) in the model's order, as arrays or TensorProtos."""

    kind: str
    name: str
    model: Any
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    @property
    def plain(self) -> bool:
        """True if all inputs and outputs are tensors of dtypes that exist here."""
        return all(item.type.WhichOneof("value") == "tensor_type" and item.type.tensor_type.elem_type in DTYPES
                   for item in (*self.model.graph.input, *self.model.graph.output))

    def arrays(self) -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """Return the inputs and the outputs of each data set by their names; nothing of tests that are not plain."""
        graph = self.model.graph
        stored = {tensor.name for tensor in graph.initializer}
        names = [item.name for item in graph.input if item.name not in stored], [item.name for item in graph.output]
        for parts in self.data_sets if self.plain else [((), ())]:
            inputs, outputs = ({name: read_tensor(x, None) if hasattr(x, "data_type") else np.asarray(x)
                                for name, x in zip(own, part, strict=False)} for own, part in zip(names, parts, strict=True))
            yield inputs, outputs


@dataclass(frozen=True)
class Judged:
    """The result of a test. values: inputs that had to be known. rounded: an output differs by its dtype's rounding. peer: the
    result of onnxruntime ("pass", "refused", "wrong"), "" without it."""

    test: NodeTest
    status: str
    reason: str = ""
    values: tuple[str, ...] = ()
    rounded: bool = False
    peer: str = ""

    @property
    def op(self) -> str:
        nodes = self.test.model.graph.node
        return nodes[0].op_type if len(nodes) == 1 else self.test.name.removeprefix("test_")


def node_tests(*kinds: str) -> list[NodeTest]:
    """Return the tests of the installed onnx package, in its order. kinds: those of SETS, "node" by default."""
    onnx_package()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                  # the package computes its cases, some of which overflow on purpose
        from onnx.backend.test.loader import load_model_tests

        return [_read(kind, test) for kind in kinds or ("node",)
                for test in load_model_tests(kind="real" if kind == "light" else kind)]


def _read(kind: str, test: Any) -> NodeTest:
    """Return a test of the package, which has some of them as files."""
    onnx, model, sets = onnx_package(), test.model, list[Any](test.data_sets or ())

    def tensors(folder: Path, pattern: str) -> list[Any]:
        files = sorted(folder.glob(pattern), key=lambda file: (len(file.name), file.name))
        return [onnx.TensorProto.FromString(file.read_bytes()) for file in files]

    if kind == "light":                                  # its inputs are the runner's: the numbers i / size
        file = Path(str(onnx.__file__)).parents[1] / test.url
        model = onnx.load(file)
        stored = {tensor.name for tensor in model.graph.initializer}
        shapes = [[s.dim_value for s in i.type.tensor_type.shape.dim] for i in model.graph.input if i.name not in stored]
        inputs = [(np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32) for shape in shapes]
        sets = [(inputs, tensors(file.parent, f"{file.stem}_output_*.pb"))]
    elif model is None:
        model = onnx.load(Path(test.model_dir) / "model.onnx")
        if NodeTest(kind, test.name, model, (), 0, 0).plain:
            sets = [(tensors(data, "input_*.pb"), tensors(data, "output_*.pb")) for data in sorted(
                Path(test.model_dir).glob("test_data_set_*"))]
    return NodeTest(kind, test.name, model, sets, test.rtol, test.atol)


def by_interpreter(model: OnnxModel, inputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """Return the outputs as the interpreter computes them, every value rounded as written."""
    return interpret(model.graph, inputs, model.weights, mode="as_written").outputs


def by_plan(model: OnnxModel, inputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """Return the outputs of a compiled plan."""
    return bind(compile_graph(model.graph, database=":memory:"), model.weights).run(inputs)


def judge(test: NodeTest, run: Run | None = None) -> Judged:
    """Import a test, run it on each of its data sets and compare. run: by_interpreter by default, by_plan for networks. Wrong
    values and unexpected errors have status "wrong"."""
    run = run or (by_plan if test.kind == "light" else by_interpreter)
    values, kinds, rounded, peer = tuple[str, ...](), set[str](), False, peer_result(test)
    try:
        for inputs, outputs in test.arrays():
            model = from_onnx_with(test.model, inputs)
            values, kinds = model.values, kinds | set(model.nodes)
            results = run(model, {model.inputs[name]: x for name, x in inputs.items() if name in model.inputs}) if outputs else {}
            for name, expected in outputs.items():
                why = _difference(np.asarray(results[model.outputs[name]]), expected, test)
                if why not in ("", "rounded"):
                    return Judged(test, "wrong", f"{name}: {why}", values, peer=peer)
                rounded = rounded or why == "rounded"
    except NotSupported as e:
        return Judged(test, "refused", e.message, peer=peer)
    except Exception as e:
        return Judged(test, "wrong", f"{type(e).__name__}: {e}", peer=peer)
    return Judged(test, next((kind for kind in ("opaque", "function") if kind in kinds), "native"), "", values, rounded, peer)


def peer_result(test: NodeTest) -> str:
    """Return what onnxruntime makes of a plain test: "pass", "refused" or "wrong"; "" of others, and where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return ""
    onnxruntime.set_default_logger_severity(4)           # its refusals are counted here, not printed
    try:
        session = onnxruntime.InferenceSession(test.model.SerializeToString(), providers=["CPUExecutionProvider"])
        same = all(_difference(np.asarray(result), expected, test) in ("", "rounded") for inputs, outputs in test.arrays()
                   for result, expected in zip(session.run(None, inputs), outputs.values(), strict=True) if outputs)
    except Exception:                                    # its errors have no class in common
        return "refused" if test.plain else ""
    return ("pass" if same else "wrong") if test.plain else ""


def _difference(actual: np.ndarray, expected: np.ndarray, test: NodeTest) -> str:
    """Return how an output differs: "" within the tolerances, "rounded" within its dtype's rounding, else a reason."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
    dtype = dtype_of(expected)
    if not dtype.is_float:
        return "" if np.array_equal(actual, expected) else f"{int(np.sum(actual != expected))} of {expected.size} elements differ"
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if np.allclose(a, b, test.rtol, test.atol, equal_nan=True):
        return ""
    finite = np.abs(b[np.isfinite(b)])
    limit = ROUNDED * dtype.epsilon * (float(finite.max()) if finite.size else 0.0)
    return "rounded" if np.allclose(a, b, 0, limit, equal_nan=True) else f"it is off by up to {np.nanmax(np.abs(a - b)):.1e}"


def document(rows: Sequence[Judged]) -> dict[str, Any]:
    """Return the results as {"onnx", "plain": counts, "other": counts, "tests": {name: …}}."""
    plain, other = (dict(Counter(r.status for r in rows if r.test.plain == plain)) for plain in (True, False))
    return {"onnx": onnx_package().__version__, "plain": plain, "other": other,
            "tests": {r.test.name: {"set": r.test.kind, "op": r.op, "status": r.status, "reason": r.reason,
                                    "values": list(r.values), "rounded": r.rounded, "onnxruntime": r.peer} for r in rows}}


def _cells(statuses: Iterable[str], names: Sequence[str] = STATUSES) -> list[str]:
    count = Counter(statuses)
    return [str(count[name] or "") for name in names]


def markdown(rows: Sequence[Judged]) -> str:
    """Return the page: counts by set, then a line for each op with node tests, then what is refused and why."""
    node = [r for r in rows if r.test.kind == "node"]
    plain, refused = [r for r in node if r.test.plain], [r for r in rows if r.status == "refused"]
    parts = {"node tests of plain numeric dtypes": plain,
             "node tests of strings, sequences, optionals, dtypes of 4 bits and others": [r for r in node if not r.test.plain],
             **{SETS[kind]: [r for r in rows if r.test.kind == kind] for kind in SETS if kind != "node"}}
    lines = ["# ONNX's own tests", "",
             (f"Written by `tg conformance --onnx`; do not edit. Tests of onnx {onnx_package().__version__}, each model imported "
              "by `tg.from_onnx`, run by the interpreter as written (networks: by a compiled plan), compared with the test's "
              "values and tolerances; and by onnxruntime, where it is installed, compared in the same way."), "",
             "| tests | in all | native | by function | opaque | refused | wrong | onnxruntime: pass | refused | wrong |",
             "|---|" + "--:|" * 9]
    for title, part in parts.items():
        cells = [*_cells(r.status for r in part), *_cells((r.peer for r in part), ("pass", "refused", "wrong"))]
        lines += [f"| {title} | {len(part)} | {' | '.join(cells)} |"] if part else []
    passed = [r for r in plain if r.status in STATUSES[:3]]
    lines += ["", (f"{len(passed)} of {len(plain)} node tests with plain dtypes pass ({len(passed) / max(len(plain), 1):.1%}). In "
                   f"{sum(bool(r.values) for r in passed)} of them inputs on which shapes depend were given (`values`); in "
                   f"{sum(r.rounded for r in passed)} an output differs by its dtype's rounding ({ROUNDED} units of the largest "
                   "element at most). \"By function\": by the body that the op's schema defines, in part at least. \"Opaque\": by "
                   "the reference evaluator of the onnx package while the graph is built, in part at least; its operands were "
                   "given, as the result's shape depends on their values."), "",
              "| op | native | by function | opaque | refused | wrong |", "|---|--:|--:|--:|--:|--:|"]
    for op in sorted({_subject(r) for r in plain}, key=str.lower):
        lines.append(f"| {op} | {' | '.join(_cells(r.status for r in plain if _subject(r) == op))} |")
    for title, part in (("Refused, of plain dtypes:", [r for r in refused if r.test.plain]),
                        ("Wrong:", [r for r in rows if r.status == "wrong"])):
        lines += ["", title, "", *(f"- {r.test.name}: {r.reason}" for r in part)] if part else []
    return "\n".join(lines) + "\n"


def _subject(r: Judged) -> str:
    """Return the op that a test is of; tests of written-out functions are one line."""
    return "(functions, written out)" if r.test.name.endswith("_expanded") or "_expanded_" in r.test.name else (
        r.op if r.op[0].isupper() else "(several ops)")
