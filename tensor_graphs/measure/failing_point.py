"""failing_point: stores the point at which a kernel was wrong, so that it can be run again: the point in the trace's row, its
inputs in a file.

From the point (sizes, seed, kind of values) the same version of the judge generates the same inputs. The file, in the user's cache
folder, has the arrays and the graph's text, for other versions and for programs of a user's own:

    with numpy.load(file) as z:
        kernel.run([z["x0"], z["x1"]])     # 8- and 16-bit floats but float16 are stored as unsigned integers of their width"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from tensor_graphs.devices.cache_folder import private_folder, user_folder
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.text import parse_graph, print_graph
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.same_math import licensed_unit, same_math_limit
from tensor_graphs.measure.points.inputs import STORED, Form, Point, point_inputs
from tensor_graphs.measure.run_unisolated import run_on
from tensor_graphs.measure.where_wrong import in_words, wrong_elements

log = logging.getLogger(__name__)

MOST_BYTES, MOST_FILES = 64 << 20, 32
"""most uncompressed bytes of a point's inputs that are written; most files in the folder, beyond which the oldest is removed"""

GRAPH = "graph"
"""name of the array in a file that holds the graph's text"""


class FailingPointError(TensorGraphsError):
    """Failing point that is no longer on this machine, or whose file cannot be read."""


def folder() -> Path:
    """Return the folder that holds the files of inputs."""
    return user_folder("failures")


def kept(graph: Graph, point: Point) -> dict[str, Any]:
    """Return a trace's conditions for a failing point, its dims numbered as in `axes`; write the point's inputs to a file."""
    numbered = _renamed(point, {n: f"d{i}" for i, n in enumerate(graph.dim_order)})
    fields = {f.name: getattr(numbered, f.name) for f in dataclasses.fields(Point)}
    defaults = {f.name: f.default for f in dataclasses.fields(Point)}
    return {"wrong_at": {name: value for name, value in fields.items() if value != defaults[name]}, "inputs": write(graph, point)}


def _renamed(point: Point, names: Mapping[str, str]) -> Point:
    rows = None if point.rows is None else (names.get(point.rows[0], point.rows[0]), point.rows[1])
    return dataclasses.replace(point, sizes=tuple((names.get(n, n), size) for n, size in point.sizes), rows=rows)


def point_of(graph: Graph, document: Mapping[str, Any]) -> Point:
    """Return the point that `kept` described, with the dim names of this graph. Raises FailingPointError."""
    try:
        point = Point(**{name: _tuples(value) for name, value in document.items()})
        return _renamed(point, {f"d{i}": n for i, n in enumerate(graph.dim_order)})
    except TypeError as e:
        raise FailingPointError(f"the row's point is of another version: {e}\n  fix: retry the trace (tg db retry TRACE)") from e


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def write(graph: Graph, point: Point) -> str:
    """Write the inputs of a point; return the file's name, or "" where they are too large or the folder is not writable."""
    arrays = point_inputs(graph, point)
    if sum(a.nbytes for a in arrays.values()) > MOST_BYTES:
        return ""
    text = print_graph(graph)
    name = hashlib.sha256(f"{text}\0{point!r}".encode()).hexdigest()[:24] + ".npz"
    stored = {n: a if a.dtype.kind in "biuf" else a.view(f"u{a.itemsize}") for n, a in arrays.items()}
    data, save = io.BytesIO(), cast("Callable[..., None]", np.savez_compressed)
    save(data, **{GRAPH: np.array(text)}, **stored)
    try:
        place = private_folder(folder())
        for old in sorted(place.glob("*.npz"), key=lambda f: f.stat().st_mtime)[:-MOST_FILES + 1 or None]:
            old.unlink(missing_ok=True)
        (place / name).write_bytes(data.getvalue())
    except (OSError, TensorGraphsError) as e:
        log.warning("the inputs at which a kernel is wrong are not kept: %s", e)
        return ""
    return name


def read(file: Path) -> tuple[Graph, dict[str, np.ndarray]]:
    """Return the graph and the inputs of a file. Raises FailingPointError."""
    try:
        with np.load(file, allow_pickle=False) as z:
            graph = parse_graph(str(z[GRAPH]))
            return graph, {n: z[n].view(leaf.dtype.numpy) for n, leaf in graph.inputs.items()}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, TensorGraphsError) as e:
        raise FailingPointError(f"the inputs of the failing point cannot be read from {file}: {e}\n"
                                "  fix: retry the trace (tg db retry TRACE), which writes them again if it is still wrong") from e


@dataclasses.dataclass(frozen=True)
class ReplayedOutput:
    """Output of a kernel at a point, compared with the oracle. words: describes the largest error and the wrong elements."""

    output: str
    error: float
    limit: float
    words: str

    @property
    def right(self) -> bool:
        """Return whether the error is within the limit, without the larger errors that rounding may explain."""
        return self.error <= self.limit


def beyond_one_call(point: Point | None) -> str:
    """Return the message for a kernel that was wrong in the judge's run and is right in a single call of its unedited code."""
    if point is not None and point.form != "apart" and point.form not in STORED:
        return ("the arrays lie apart here, and it was wrong where they do not: " + str(dataclasses.replace(point, sizes=())) +
                "\n  fix: in a program of yours, the function on arrays that lie so")
    if point is None or not (point.like is not None or point.beside or point.perturbed or point.anew):
        return ("one call of a new process is right, so the kernel depends on the calls before it\n"
                "  fix: call it many times, with other sizes and values in between, and compare the last outputs with the first")
    if point.beside:
        return ("one call alone says nothing here: it was wrong in one of many calls, beside or in the middle of another\n"
                "  fix: look for memory that calls share (static, global), or call it from two threads at once and compare")
    return ("one call alone says nothing here: it was wrong on new values in the same arrays as in the call before\n"
            "  fix: call it twice on the same arrays, with x[...] = y in between: it may remember an answer")


def inputs_of(graph: Graph, conditions: Mapping[str, Any], same_judge: bool) -> tuple[Point | None, dict[str, np.ndarray], str]:
    """Return the point of a trace's conditions (None if read from the file), its inputs, and their origin as a phrase. Inputs are
    generated from the row's seed if this version of the judge wrote it, else read. Raises FailingPointError, InputError."""
    if "wrong_at" not in conditions:
        raise FailingPointError("the trace says no point at which the kernel was wrong\n"
                                "  fix: retry it (tg db retry TRACE): a verdict INCORRECT_NUMERICAL of today says one")
    if same_judge:
        point = point_of(graph, conditions["wrong_at"])
        return point, point_inputs(graph, point), f"made again from the seed {point.seed}"
    file = folder() / Path(str(conditions.get("inputs") or "none")).name
    _, inputs = read(file)
    return None, inputs, f"read from {file}"


def compared(kernel: Kernel, graph: Graph, point: Point | None, inputs: Mapping[str, np.ndarray]) -> list[ReplayedOutput]:
    """Run the kernel once in this process on these inputs, and compare its outputs with the oracle. Raises KernelError."""
    form: Form = "apart"
    axis, left = 0, list[str]()
    if point is not None and point.form in STORED:
        form, axis, left = point.form, point.axis, [n for n in inputs if point.only not in (None, n)]
    outputs = run_on(kernel, graph, inputs, form, axis, left)
    expected = interpret(graph, inputs).outputs
    compared_outputs = []
    for name, node in graph.outputs.items():
        out, ref, limit = outputs[name], np.asarray(expected[name]), same_math_limit((node.type,), licensed_unit(graph.roots))
        report = measure(out, ref, node.dtype)
        off = in_words(wrong_elements(out, ref, node.dtype, limit))
        worst = report.mismatch or ("" if report.worst is None else str(report.worst))
        compared_outputs.append(ReplayedOutput(name, report.max_relative_error, limit, "; ".join(filter(None, (worst, off)))))
    return compared_outputs
