"""worker: the process in which candidates run. It is given a job, makes the inputs from the seed, runs the kernel, returns outputs.

It never holds an expected output or the database, and its parent kills it (with all its children) when a job takes too long.
Protocol: pickled dicts, each behind its length (8 bytes, little-endian), on the standard streams; outputs as files in a folder
that the parent names. The candidate's own printing goes to standard error.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

LLC_BYTES = 64 << 20
"""inputs are rotated over at least this much memory for cold times: beyond the last-level cache of the machines we know"""


def write_frame(stream: BinaryIO, value: dict[str, Any]) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    head = stream.read(8)
    if len(head) < 8:
        return None
    data = stream.read(int.from_bytes(head, "little"))
    return pickle.loads(data)  # type: ignore[no-any-return]


def load_module(name: str, file: str | None) -> None:
    """Import what registers a kernel: by name, or from its file when the name is not importable here."""
    if name in sys.modules:
        return
    try:
        importlib.import_module(name)
    except ImportError:
        if file is None:
            raise
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def digest(arrays: dict[str, np.ndarray]) -> str:
    """Of the bytes of all arrays; of a large one, of what its 64-bit words xor and add up to (memory speed, and any write shows)."""
    h = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        data = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8) if arrays[name].size else np.empty(0, np.uint8)
        if data.size > 1 << 22:
            words = data[:data.size // 8 * 8].view(np.uint64)
            h.update(int(np.bitwise_xor.reduce(words)).to_bytes(8, "little") + int(np.add.reduce(words)).to_bytes(8, "little"))
            data = data[data.size // 8 * 8:]
        h.update(data.data)
    return h.hexdigest()


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Run one kernel on one signature at several sizes; write outputs to files; time it at the sizes asked for."""
    from tensor_graphs.kernels.registry import kernel_named
    from tensor_graphs.language.text import parse_graph
    from tensor_graphs.profiling.inputs import make_inputs
    from tensor_graphs.profiling.single import single_kernel_plan
    from tensor_graphs.runtime.compiled_graph import bind

    for name, file in job["modules"]:
        load_module(name, file)
    if job.get("threads"):
        from tensor_graphs.runtime.threads import set_threads

        set_threads(job["threads"])
    graph = parse_graph(job["graph"])
    kernel = kernel_named(job["kernel"])
    folder = Path(job["folder"])
    compiled = bind(single_kernel_plan(graph, kernel))
    reply: dict[str, Any] = {"status": "RAN", "points": []}
    for number, (binding, seed) in enumerate(job["points"]):
        inputs = make_inputs(graph, binding, seed)
        before = digest(inputs)
        shapes = {n: tuple(int(s) for s in node.type.at(binding).shape) for n, node in graph.outputs.items()}
        out = {n: poisoned(shapes[n], node.dtype.numpy) for n, node in graph.outputs.items()}
        results = compiled.run(inputs, dims=binding, out=out)
        files = {}
        for name, array in results.items():
            files[name] = str(folder / f"{job['id']}-{number}-{name}.bin")
            np.ascontiguousarray(array).view(np.uint8).tofile(files[name]) if array.size else Path(files[name]).write_bytes(b"")
        reply["points"].append({"files": files, "shapes": {n: a.shape for n, a in results.items()},
                                "mutated": digest(inputs) != before})
    if job.get("time_at") is not None:
        reply["samples"] = time_kernel(graph, compiled, job["time_at"], job["seed"], job["budget"])
    return reply


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array full of a pattern that is NaN in every float format."""
    return np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF if dtype.kind != "b" else 1, dtype=np.uint8).view(dtype).reshape(shape)


def time_kernel(graph: Any, compiled: Any, binding: dict[str, int], seed: int, budget: float) -> list[float]:
    """Cold samples in seconds: operands rotate over more memory than the last-level cache holds; at least 5, at most 50."""
    from tensor_graphs.profiling.inputs import make_inputs

    first = make_inputs(graph, binding, seed)
    nbytes = sum(a.nbytes for a in first.values()) or 1
    copies = max(1, min(64, -(-2 * LLC_BYTES // nbytes)))
    sets = [first] + [{n: a.copy() for n, a in first.items()} for _ in range(copies - 1)]
    out = {n: np.empty(tuple(int(s) for s in node.type.at(binding).shape), dtype=node.dtype.numpy) for n, node in graph.outputs.items()}
    steps = len(compiled.executors[0].program.instructions)
    samples: list[float] = []
    started = time.perf_counter()
    for k in range(52):
        seconds = np.zeros(steps)
        compiled._run(sets[k % copies], binding, None, out, seconds=seconds)
        if k >= 2:
            samples.append(float(seconds.sum()))
        if len(samples) >= 5 and time.perf_counter() - started > budget:
            break
    return samples


def main() -> None:
    """Serve jobs until the input ends."""
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                                                   # what a candidate prints must not reach the protocol
    write_frame(stdout, {"status": "READY"})
    while True:
        job = read_frame(stdin)
        if job is None:
            return
        try:
            reply = run_job(job)
        except BaseException as e:
            reply = {"status": "RUNTIME_ERROR", "log": "".join(traceback.format_exception(e))[-8000:]}
            if isinstance(e, (KeyboardInterrupt, SystemExit)):
                write_frame(stdout, reply)
                return
            if type(e).__name__ == "ToolchainError":
                reply["status"] = "COMPILE_ERROR"
        write_frame(stdout, reply)


if __name__ == "__main__":
    main()
