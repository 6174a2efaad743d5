"""conformance: the node tests of the installed onnx package, each imported, run and compared with the values that come with it.

`tg conformance --onnx` writes the table. A test whose shapes depend on inputs is imported with these inputs' values. Outputs are
compared with the test's own tolerances; what differs by no more than ROUNDED units of the output's dtype, relative to its largest
element, is counted apart: there the expected values were rounded in another order.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.frontends.onnx.errors import NotSupported
from tensor_graphs.frontends.onnx.importer import OnnxModel, from_onnx_with, onnx_package
from tensor_graphs.frontends.onnx.tensor_data import DTYPES, read_tensor
from tensor_graphs.language.dtypes import dtype_of
from tensor_graphs.meaning.interpreter import interpret

STATUSES = ("native", "function", "opaque", "refused", "wrong")
"""computed by rows of the table; by an ONNX function body, in part at least; refused by name; wrong, or another error"""

ROUNDED = 2
"""units of an output's dtype"""

Run = Callable[[OnnxModel, Mapping[str, np.ndarray]], Mapping[str, Any]]
"""run(model, inputs by the graph's names) -> outputs by the graph's names"""


@dataclass(frozen=True)
class Judged:
    """The result of one test. plain: its inputs and outputs are tensors of dtypes that exist here. values: inputs that had to be
    known. rounded: an output differs by its dtype's rounding."""

    name: str
    op: str
    plain: bool
    status: str
    reason: str = ""
    values: tuple[str, ...] = ()
    rounded: bool = False


@dataclass(frozen=True)
class NodeTest:
    """A node test. data_sets: (inputs, outputs) in the model's order, as arrays or TensorProtos."""

    name: str
    model: Any
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


def node_tests() -> list[NodeTest]:
    """Return the node tests of the installed onnx package, in its order."""
    onnx_package()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                  # the package computes its cases, some of which overflow on purpose
        from onnx.backend.test.loader import load_model_tests

        return [_read(test) for test in load_model_tests(kind="node")]


def _read(test: Any) -> NodeTest:
    """Return a test of the package, whose older versions (before 1.18) have them as files."""
    if test.model is not None:
        return NodeTest(test.name, test.model, test.data_sets or (), test.rtol, test.atol)
    onnx, folder = onnx_package(), Path(test.model_dir)
    model, sets = onnx.load(folder / "model.onnx"), []
    for data in sorted(folder.glob("test_data_set_*")) if is_plain(model) else ():
        files = [[data / f"{kind}_{i}.pb" for i in range(len(list(data.glob(f"{kind}_*.pb"))))] for kind in ("input", "output")]
        sets.append(tuple([onnx.TensorProto.FromString(file.read_bytes()) for file in part] for part in files))
    return NodeTest(test.name, model, sets, test.rtol, test.atol)  # type: ignore[arg-type]


def by_interpreter(model: OnnxModel, inputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """Return the outputs as the interpreter computes them, every value rounded as written."""
    return interpret(model.graph, inputs, model.weights, mode="as_written").outputs


def is_plain(proto: Any) -> bool:
    """Return True if all inputs and outputs of a model are tensors of dtypes that exist here."""
    return all(item.type.WhichOneof("value") == "tensor_type" and item.type.tensor_type.elem_type in DTYPES
               for item in (*proto.graph.input, *proto.graph.output))


def judge(test: NodeTest, run: Run = by_interpreter) -> Judged:
    """Import a node test, run it on each of its data sets and compare. Wrong values and unexpected errors have status "wrong"."""
    proto = test.model
    plain, op = is_plain(proto), proto.graph.node[0].op_type if len(proto.graph.node) == 1 else test.name.removeprefix("test_")
    values: tuple[str, ...] = ()
    try:
        rounded, functions, opaque = False, False, False
        for inputs, outputs in test.data_sets if plain else [((), ())]:
            arrays = {item.name: _array(x) for item, x in zip(proto.graph.input, inputs, strict=False)}
            model = from_onnx_with(proto, arrays)
            values = model.values
            functions = functions or bool(model.nodes.get("function"))
            opaque = opaque or bool(model.nodes.get("opaque"))
            results = run(model, {model.inputs[name]: x for name, x in arrays.items() if name in model.inputs}) if plain else {}
            for item, expected in zip(proto.graph.output, outputs, strict=False):
                why = _difference(np.asarray(results[model.outputs[item.name]]), _array(expected), test.rtol, test.atol)
                if why not in ("", "rounded"):
                    return Judged(test.name, op, plain, "wrong", f"{item.name}: {why}", values)
                rounded = rounded or why == "rounded"
    except NotSupported as e:
        return Judged(test.name, op, plain, "refused", e.message)
    except Exception as e:
        return Judged(test.name, op, plain, "wrong", f"{type(e).__name__}: {e}")
    return Judged(test.name, op, plain, "opaque" if opaque else "function" if functions else "native", "", values, rounded)


def _array(x: Any) -> np.ndarray:
    return read_tensor(x, None) if hasattr(x, "data_type") else np.asarray(x)


def _difference(actual: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> str:
    """Return how an output differs: "" within the tolerances, "rounded" within its dtype's rounding, else a reason."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
    dtype = dtype_of(expected)
    if not dtype.is_float:
        return "" if np.array_equal(actual, expected) else f"{int(np.sum(actual != expected))} of {expected.size} elements differ"
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if np.allclose(a, b, rtol, atol, equal_nan=True):
        return ""
    finite = np.abs(b[np.isfinite(b)])
    limit = ROUNDED * dtype.epsilon * (float(finite.max()) if finite.size else 0.0)
    return "rounded" if np.allclose(a, b, 0, limit, equal_nan=True) else f"it is off by up to {np.nanmax(np.abs(a - b)):.1e}"


def document(rows: Sequence[Judged]) -> dict[str, Any]:
    """Return the results as {"onnx", "plain": counts, "other": counts, "tests": {name: …}}."""
    plain, other = (dict(Counter(r.status for r in rows if r.plain == plain)) for plain in (True, False))
    return {"onnx": onnx_package().__version__, "plain": plain, "other": other,
            "tests": {r.name: {"op": r.op, "status": r.status, "reason": r.reason, "values": list(r.values), "rounded": r.rounded}
                      for r in rows}}


def markdown(rows: Sequence[Judged]) -> str:
    """Return the page: counts, then a line for each op with tests, then what is refused and why."""
    plain, other = [r for r in rows if r.plain], [r for r in rows if not r.plain]
    lines = ["# ONNX node tests", "",
             (f"Written by `tg conformance --onnx`; do not edit. Node tests of onnx {onnx_package().__version__}, each imported "
              "by `tg.from_onnx`, run by the interpreter as written, compared with the test's values and tolerances."), "",
             "| tests | in all | native | by function | refused | wrong |", "|---|--:|--:|--:|--:|--:|"]
    for title, part in (("plain numeric dtypes", plain), ("strings, sequences, optionals, dtypes of 4 bits and others", other)):
        count = Counter(r.status for r in part)
        lines.append(f"| {title} | {len(part)} | " + " | ".join(str(count[s]) for s in STATUSES) + " |")
    passed = [r for r in plain if r.status in STATUSES[:3]]
    lines += ["", (f"{len(passed)} of {len(plain)} with plain dtypes pass ({len(passed) / max(len(plain), 1):.1%}). In "
                   f"{sum(bool(r.values) for r in passed)} of them inputs on which shapes depend were given (`values`); in "
                   f"{sum(r.rounded for r in passed)} an output differs by its dtype's rounding ({ROUNDED} units of the largest "
                   "element at most). \"By function\": by the body that the op's schema defines, in part at least."), "",
              "| op | native | by function | refused | wrong |", "|---|--:|--:|--:|--:|"]
    for op in sorted({_subject(r) for r in plain}, key=str.lower):
        count = Counter(r.status for r in plain if _subject(r) == op)
        lines.append(f"| {op} | " + " | ".join(str(count[s]) if count[s] else "" for s in STATUSES) + " |")
    lines += ["", "Refused, of plain dtypes:", ""]
    lines += [f"- {r.name}: {r.reason}" for r in plain if r.status == "refused"]
    wrong = [f"- {r.name}: {r.reason}" for r in rows if r.status == "wrong"]
    return "\n".join([*lines, *(["", "Wrong:", "", *wrong] if wrong else [])]) + "\n"


def _subject(r: Judged) -> str:
    """Return the op that a test is of; tests of written-out functions are one line."""
    return "(functions, written out)" if r.name.endswith("_expanded") or "_expanded_" in r.name else (
        r.op if r.op[0].isupper() else "(several ops)")


