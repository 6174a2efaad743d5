"""cpu_scans: running values on a CPU: along memory in blocks, computed first and accumulated next, and across it in columns."""

from __future__ import annotations

from tensor_graphs.codegen.loop_ir import Array, Running, Stage
from tensor_graphs.codegen.loop_program import FunctionCall, Loop, Store, Take
from tensor_graphs.codegen.mapping.cpu_body import Bounds, CpuBody, index
from tensor_graphs.codegen.mapping.cpu_reductions import is_narrow, sum_type
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


def scan(body: CpuBody, s: Stage, bounds: Bounds | None) -> None:
    """Write a scan. bounds: of the first axis that is not scanned."""
    running = s.scan
    assert running is not None
    at = s.axes.index(running.along)
    outer, inner = s.axes[:at], s.axes[at + 1:]
    with body.loops((*outer, *inner[:-1]), bounds):
        if not inner:
            _along(body, s, running)
            return
        own = (bounds if len(s.axes) == 2 else None) or (0, inner[-1].size)
        with body.strips("_first", "_past", own, s.advice.columns) as strip:
            _columns(body, s, running, strip)


def _begun(body: CpuBody, s: Stage, scan: Running, size: Dim, count: Dim) -> Array:
    """Return the running values of some columns at the beginning."""
    name, dtype = f"running{s.value.number}", sum_type(s)
    if scan.start is None:
        return body.local(name, dtype, size, scan.monoid, count)
    running, at = body.local(name, dtype, size, scan.monoid, 0), d.dim("_at", 0, d.bounds(count)[1]) if size != 1 else 0
    store = Store(running, at, body.here(scan.start))
    body.add(store if size == 1 else Loop("_at", count, "serial", (store,)))
    return running


def _columns(body: CpuBody, s: Stage, scan: Running, strip: Bounds) -> None:
    axis, (first, past) = s.axes[-1], strip
    running, at = _begun(body, s, scan, s.advice.columns, past - first), axis.symbol - first
    with body.loop(scan.along), body.loop(axis, "vector", strip):
        value = body.here(s.value)
        if not scan.before:
            body.take(running, at, scan.monoid, value)
        body.put(s, body.values.load(running, at))
        if scan.before:
            body.take(running, at, scan.monoid, value)


def _along(body: CpuBody, s: Stage, scan: Running) -> None:
    axis, shift, load = scan.along, int(scan.before), body.values.load
    running = _begun(body, s, scan, 1, 1)
    with body.strips("_begin", "_end", (0, axis.size), s.advice.block) as strip:
        begin, end = strip
        block = body.local(f"block{s.value.number}", s.value.dtype, s.advice.block + shift)
        if scan.before:
            body.store(block, 0, load(running, 0))
        with body.loop(axis, "vector", strip):
            body.store(block, axis.symbol - begin + shift, s.value)
        at = index("_at", s.advice.block)
        accumulate = Loop("_at", end - begin + shift, "serial", (
            Take(running, 0, scan.monoid, load(block, at)), Store(block, at, load(running, 0))), shift)
        arguments = (block, shift), end - begin, (running, 0)
        body.add(FunctionCall("f32_running_sum", arguments, (accumulate,)) if is_narrow(s) else accumulate)
        with body.loop(axis, "vector", strip):
            body.put(s, load(block, axis.symbol - begin))
