"""worker: the process in which candidates run. It is given a job, makes the inputs from the seed, runs the kernel, returns outputs.

It never holds an expected output or the database, and its parent kills it (with all its children) when a job takes too long; when
the parent goes, it goes too. Protocol: pickled dicts, each behind its length (8 bytes, little-endian), on the standard streams;
outputs as files in a folder that the parent names. The candidate's own printing goes to standard error, and it reads nothing.

Every array that a candidate gets lies between two zones of known bytes, its outputs are poisoned before each run that counts, and
its operands are compared afterwards.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from tensor_graphs.language.graph import Graph
    from tensor_graphs.profiling.inputs import Point
    from tensor_graphs.runtime.compiled_graph import CompiledGraph

LLC_BYTES = 64 << 20
"""inputs are rotated over at least this much memory for cold times: beyond the last-level cache of the machines we know"""


GUARD_BYTES = 4096
"""the zone before and behind each array"""

GUARD = 0xA5
BIG_BYTES = 4 << 20
"""operands beyond this are not moved between guards"""

MAIN = "__main__"
INSIDE = "TENSOR_GRAPHS_WORKER"
"""set in the worker's environment: a candidate's module may not start another one"""


def write_frame(stream: BinaryIO, value: dict[str, Any]) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    head = stream.read(8)
    if len(head) < 8:
        return None
    data = stream.read(int.from_bytes(head, "little"))
    return pickle.loads(data)


def load_module(name: str, file: str | None) -> None:
    """Import what registers a kernel: by name, or from its file when the name is not importable here.

    A script that was started by hand is called __main__ there and __tensor_graphs_main__ here, so that what it guards does not run.
    """
    alias = "__tensor_graphs_main__" if name == MAIN else name
    if alias in sys.modules:
        return
    if name != MAIN:
        try:
            importlib.import_module(name)
            return
        except ImportError:
            if file is None:
                raise
    if file is None:
        raise ImportError("the kernel was defined in an interactive session; put it into a file")
    spec = importlib.util.spec_from_file_location(alias, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise


def digest(arrays: dict[str, np.ndarray]) -> str:
    """Of the bytes of all arrays; of a large one, of what its 64-bit words xor and add up to (memory speed; a write shows)."""
    h = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        data = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8) if arrays[name].size else np.empty(0, np.uint8)
        if data.size > 1 << 22:
            words = data[:data.size // 8 * 8].view(np.uint64)
            h.update(int(np.bitwise_xor.reduce(words)).to_bytes(8, "little") + int(np.add.reduce(words)).to_bytes(8, "little"))
            data = data[data.size // 8 * 8:]
        h.update(data.data)
    return h.hexdigest()


class Guarded:
    """An array between two zones of known bytes."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.nbytes = int(np.prod(shape)) * dtype.itemsize
        raw = np.empty(self.nbytes + 2 * GUARD_BYTES + 64, dtype=np.uint8)
        start = GUARD_BYTES + -(raw.ctypes.data + GUARD_BYTES) % 64
        self.before, self.after = raw[start - GUARD_BYTES:start], raw[start + self.nbytes:start + self.nbytes + GUARD_BYTES]
        self.before.fill(GUARD)
        self.after.fill(GUARD)
        self.bytes = raw[start:start + self.nbytes]
        self.array = np.ndarray(shape, dtype=dtype, buffer=raw, offset=start)

    def poison(self) -> None:
        """A pattern that is NaN in every float format (and true for a truth value)."""
        self.bytes.fill(1 if self.array.dtype.kind == "b" else 0xFF)

    def overrun(self) -> str:
        """Where bytes outside the array were changed; "" when none were."""
        if (self.before != GUARD).any():
            return "before its first element"
        return "behind its last element" if (self.after != GUARD).any() else ""


def guarded(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Guarded]]:
    """Copies between guards (large arrays as they are), and the guards."""
    guards = {n: Guarded(a.shape, a.dtype) for n, a in arrays.items() if a.nbytes <= BIG_BYTES}
    for name, g in guards.items():
        g.array[...] = arrays[name]
    return {n: guards[n].array if n in guards else a for n, a in arrays.items()}, guards


def execute(compiled: CompiledGraph, inputs: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray], binding: Mapping[str, int],
            seconds: np.ndarray | None = None) -> None:
    """Run a plan on exactly this memory: unlike `CompiledGraph.run`, an output may lie in an input's memory."""
    from tensor_graphs.runtime.executor import Frame, bytes_of

    executor = compiled.executors[0]
    found = getattr(compiled, "_worker_frame", None)
    if found is None:
        found = Frame(executor)
        compiled._worker_frame = found  # type: ignore[attr-defined]
    bases = {base: bytes_of(inputs[n]) for n, base in executor.input_bases.items()}
    bases |= {base: bytes_of(out[n]) for n, base in executor.output_bases.items()}
    executor.run(found, tuple(binding[n] for n in compiled.dims), bases, seconds=seconds)


class Bench:
    """One kernel on one graph: shows it points, keeps what it returned in files, times it."""

    def __init__(self, graph: Graph, kernel: Any, folder: Path, job: int) -> None:
        from tensor_graphs.profiling.single import prepared_names, single_kernel_plan, views_graph, with_parameters

        self.graph, self.kernel, self.folder, self.job = graph, kernel, folder, job
        self.parameters = prepared_names(graph, kernel)
        self.plan = single_kernel_plan(with_parameters(graph, self.parameters), kernel)
        self._make_views = lambda: single_kernel_plan(with_parameters(views_graph(graph), self.parameters), kernel)
        self._bound: dict[str, CompiledGraph] = {}
        self.replies: list[dict[str, Any]] = []
        self.last: tuple[Point, dict[str, np.ndarray], dict[str, Guarded]] | None = None

    def bound(self, inputs: Mapping[str, np.ndarray], form: str = "apart") -> CompiledGraph:
        """The plan, given what the kernel prepares from as parameters; a kernel that prepares nothing is bound once."""
        from tensor_graphs.runtime.compiled_graph import bind

        found = self._bound.get(form)
        if found is None:
            plan = self._make_views() if form == "views" else self.plan
            found = bind(plan, {n: inputs[n] for n in self.parameters})
            if not self.parameters:
                self._bound[form] = found
        return found

    def outputs(self, binding: Mapping[str, int]) -> dict[str, Guarded]:
        made = {}
        for name, node in self.graph.outputs.items():
            made[name] = Guarded(tuple(int(s) for s in node.type.at(binding).shape), node.dtype.numpy)
            made[name].poison()
        return made

    def show(self, point: Point) -> None:
        """Run the kernel at a point and keep its outputs."""
        from tensor_graphs.profiling.inputs import point_inputs
        from tensor_graphs.profiling.single import as_stored

        inputs, binding = point_inputs(self.graph, point), point.binding
        if point.form == "views":
            inputs = as_stored(self.graph, inputs)
        if point.like is not None and self.last is not None and self.last[0].sizes == point.sizes:
            _, memory, guards = self.last                          # the same addresses, other values
            for name, array in memory.items():
                if name in guards:
                    array[...] = inputs[name]
                else:
                    memory[name] = inputs[name]
            inputs = memory
        else:
            inputs, guards = guarded(inputs)
        self.last = (point, inputs, guards) if point.form == "apart" else None
        out = self.outputs(binding)
        shared = self.share(inputs, guards, out) if point.form == "in_place" else set()
        before = digest({n: a for n, a in inputs.items() if n not in shared})
        form = "views" if point.form == "views" else "apart"
        execute(self.bound(inputs, form), inputs, {n: g.array for n, g in out.items()}, binding)
        self.keep(inputs, guards, out, before, shared)

    def share(self, inputs: dict[str, np.ndarray], guards: Mapping[str, Guarded], out: dict[str, Guarded]) -> set[str]:
        """Put an output into the memory of the operand that the kernel says it may share with."""
        names, outputs = list(inputs), list(out)
        for o, i in self.kernel.in_place:
            if i < len(names) and names[i] in guards:
                x, y = inputs[names[i]], out[outputs[o]].array
                if x.shape == y.shape and x.dtype == y.dtype:
                    out[outputs[o]] = guards[names[i]]
                    return {names[i]}
        return set()

    def keep(self, inputs: Mapping[str, np.ndarray], guards: Mapping[str, Guarded], out: Mapping[str, Guarded], before: str,
             shared: set[str]) -> None:
        files = {}
        for name, g in out.items():
            files[name] = str(self.folder / f"{self.job}-{len(self.replies)}-{name}.bin")
            g.bytes.tofile(files[name])
        outside = [f"output {n}, {where}" for n, g in out.items() if (where := g.overrun())]
        outside += [f"operand {n}, {where}" for n, g in guards.items() if (where := g.overrun())]
        self.replies.append({"files": files, "shapes": {n: g.array.shape for n, g in out.items()}, "outside": outside,
                             "mutated": digest({n: a for n, a in inputs.items() if n not in shared}) != before})

    def time(self, points: tuple[Point, ...], budget: float, baseline: CompiledGraph | None) -> tuple[list[float], list[float]]:
        """Cold samples [s] of the kernel and, in the middle of them, of the plain path; then the points once more, to be compared.

        Operands rotate over more memory than the last-level cache holds. Before each run a number of an operand is changed, so
        that a remembered answer is of no use; at least 6 samples, at most 50.
        """
        from tensor_graphs.profiling.inputs import point_inputs
        from tensor_graphs.profiling.turns import settle

        binding = points[0].binding
        exact = [point_inputs(self.graph, p) for p in points]
        nbytes = sum(a.nbytes for a in exact[0].values()) or 1
        copies = max(1, min(64, -(-2 * LLC_BYTES // nbytes)))
        sets = [{n: a if k == 0 and a.nbytes > BIG_BYTES else a.copy() for n, a in exact[0].items()} for k in range(copies)]
        out = self.outputs(binding)
        arrays = {n: g.array for n, g in out.items()}
        bound = [self.bound(inputs) for inputs in sets]
        steps = len(bound[0].executors[0].program.instructions)
        plain_steps = len(baseline.executors[0].program.instructions) if baseline is not None else 0
        samples: list[float] = []
        plain: list[float] = []
        k = 0
        for turn in range(2):                                       # the kernel, the plain path, the kernel again
            settle()
            end = time.perf_counter() + budget / 2
            for count in range(27):
                inputs = sets[k % copies]
                stir(inputs, k)
                seconds = np.zeros(steps)
                execute(bound[k % copies], inputs, arrays, binding, seconds)
                k += 1
                if count >= 2:
                    samples.append(float(seconds.sum()))
                if count >= 4 and time.perf_counter() > end:
                    break
            for count in range(27 if baseline is not None and turn == 0 else 0):
                assert baseline is not None
                seconds = np.zeros(plain_steps)
                execute(baseline, sets[(k + count) % copies], arrays, binding, seconds)
                if count >= 1:
                    plain.append(float(seconds.sum()))
                if count >= 4 and sum(plain) > budget / 2:
                    break
        for inputs in exact:
            for g in out.values():
                g.poison()
            before = digest(inputs)
            execute(self.bound(inputs), inputs, arrays, binding)
            self.keep(inputs, {}, out, before, set())
        return samples, plain


def stir(inputs: Mapping[str, np.ndarray], k: int) -> None:
    """Change one number of the first float operand that may be changed: it takes its neighbour's value, or twice its own."""
    for a in inputs.values():
        if a.dtype.kind in "fV" and a.size and a.flags.writeable and a.nbytes <= BIG_BYTES:
            flat = a.reshape(-1)
            at = k % a.size
            flat[at] = flat[(at + 1) % a.size] if a.size > 1 else flat[at] * flat.dtype.type(2)
            return


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Run one kernel on one signature at several points; time it at the two points asked for, if any."""
    from tensor_graphs.kernels.registry import kernel_named
    from tensor_graphs.language.text import parse_graph
    from tensor_graphs.profiling.single import plain_plan
    from tensor_graphs.runtime.compiled_graph import bind

    for name, file in job["modules"]:
        load_module(name, file)
    if job.get("threads"):
        from tensor_graphs.runtime.threads import set_threads

        set_threads(job["threads"])
    if job.get("kind") == "deployed":
        from tensor_graphs.profiling.path_runs import run_deployed

        return run_deployed(job)
    graph = parse_graph(job["graph"])
    kernel = kernel_named(job["kernel"])
    if kernel.identity != job["identity"]:
        return {"status": "OTHER", "log": f"{kernel.name} is another kernel in the worker: its source is not the same there"}
    bench = Bench(graph, kernel, Path(job["folder"]), job["id"])
    for point in job["points"]:
        bench.show(point)
    reply: dict[str, Any] = {"status": "RAN"}
    if job["time"] is not None:
        plan = plain_plan(graph) if job["baseline"] else None
        if plan is not None and plan.memory(**job["time"][0].binding).arena > 1 << 30:
            plan = None
        reply["samples"], reply["plain"] = bench.time(job["time"], job["budget"], bind(plan) if plan is not None else None)
    return {**reply, "points": bench.replies}


def leave_with_parent() -> None:
    """End this process when its parent is gone, even in the middle of a job."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Serve jobs until the input ends."""
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)                                             # what a candidate reads must not come from the protocol …
    os.dup2(2, 1)                                                   # … and what it prints must not reach it
    leave_with_parent()
    write_frame(stdout, {"status": "READY"})
    while True:
        job = read_frame(stdin)
        if job is None:
            return
        try:
            reply = run_job(job)
        except BaseException as e:                                  # SystemExit and KeyboardInterrupt of a candidate too
            reply = {"status": "RUNTIME_ERROR", "log": "".join(traceback.format_exception(e))[-8000:]}
            if type(e).__name__ == "ToolchainError":
                reply["status"] = "COMPILE_ERROR"
        write_frame(stdout, reply)


if __name__ == "__main__":
    main()
