"""compiled_graph: what a user holds after compile and bind: run it, time its parts, look inside.

    compiled = tg.compile(graph).bind(weights)
    out = compiled.run({"ids": ids})["logits"]
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.conditions import conditions_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.paths.lower import Instruction, Operand
from tensor_graphs.paths.path import expanded
from tensor_graphs.paths.plan import MemoryUse, Plan
from tensor_graphs.rewrites.widen import widened_value
from tensor_graphs.runtime.arrays import as_array, as_output, solve_dims
from tensor_graphs.runtime.errors import RunError
from tensor_graphs.runtime.executor import Executor, Frame, bytes_of
from tensor_graphs.runtime.session import Session


class CompiledGraph:
    """A plan with its parameters bound. Thread-safe: each run takes a frame (tables and arena) of its own.

    Made by `bind`. Parameters are kept as given (no copy where they are contiguous and of the right dtype).
    """

    def __init__(self, plan: Plan, parameters: Mapping[str, Any]) -> None:
        self.plan = plan
        self.graph: Graph = plan.graph
        self.dims = tuple(self.graph.dims)
        self._lock = threading.Lock()
        self.parameters: dict[str, np.ndarray] = {}
        for name, node in self.graph.parameters.items():
            if name not in parameters:
                raise RunError(f"parameter {name!r} ({node.type}) is not given")
            self.parameters[name] = self._checked(name, parameters[name])
        extra = sorted(set(parameters) - set(self.parameters)) if not _is_lazy(parameters) else []
        if extra:
            raise RunError(f"the graph has no parameter named {', '.join(extra[:4])}")
        self.executors = [Executor(v, self.dims) for v in plan.variants]
        shared: dict[Hashable, np.ndarray] = {}          # variants read the same parameters: what is made of them is made once
        for e in self.executors:
            e.bind(self.parameters, shared=shared)
        self._frames: list[list[Frame]] = [[] for _ in self.executors]
        self._reused: dict[tuple[int, ...], dict[str, np.ndarray]] = {}
        self._input_types = {n: node.type for n, node in self.graph.inputs.items()}
        self._output_types = {n: node.type for n, node in self.graph.outputs.items()}
        self._state_types = {n: node.type for n, node in self.graph.states.items()}
        self._conditions = conditions_of(self.graph.roots)
        self._gaps = d.compile_dims([c.gap for c in self._conditions], self.dims)
        self._allowed: tuple[int, ...] | None = None         # the sizes of the last run, at which every condition holds

    def _checked(self, name: str, value: Any) -> np.ndarray:
        t = self.graph.parameters[name].type
        array = as_array(name, value, t, "parameter")
        if array.shape != t.shape:
            raise RunError(f"parameter {name!r} is {t}, the array has shape {array.shape}")
        return array

    # ---- running ----

    def session(self) -> Session:
        """Fresh states, all zero."""
        return Session(self.graph)

    def run(self, inputs: Mapping[str, Any] | None = None, *, dims: Mapping[str, int] | None = None,
            session: Session | None = None, out: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Compute the outputs, and move the session's states on.

        inputs: an array per graph input. dims: sizes that follow from no input. out: arrays that receive outputs (right type,
        C-contiguous, DLPack tensors on the CPU too); the others are new arrays, or (plan.reuse_outputs) the ones of the last run
        at these sizes. An input that shares memory with an output or a state is copied first. Raises RunError before anything runs.
        """
        return self._run({} if inputs is None else inputs, dims or {}, session, out)

    def _run(self, inputs: Mapping[str, Any], dims: Mapping[str, int], session: Session | None,
             out: Mapping[str, np.ndarray] | None, **options: Any) -> dict[str, np.ndarray]:
        if session is not None and not isinstance(session, Session):
            raise RunError(f"session is {session!r}, a {type(session).__name__}\n  fix: session=compiled.session()")
        arrays = self._inputs(inputs)
        binding = solve_dims(self._input_types, {n: a.shape for n, a in arrays.items()}, self.graph.dims, dims)
        sizes = tuple(binding[n] for n in self.dims)
        if sizes != self._allowed:
            self._check_sizes(sizes)
        if self.plan.capacity is not None:
            self.plan.check_capacity(binding)
        if self.graph.states and session is None:
            raise RunError("the graph has states: run(…, session=compiled.session())")
        index = self._variant(binding)
        executor = self.executors[index]
        results = self._outputs(sizes, binding, out)
        self._keep_apart(arrays, results, session, out)
        bases: dict[int, np.ndarray] = {}
        for name, base in executor.input_bases.items():
            bases[base] = bytes_of(arrays[name])
        for name, base in executor.output_bases.items():
            bases[base] = bytes_of(results[name])
        frame = self._take(index)
        try:
            if session is None:
                executor.run(frame, sizes, bases, **options)
            else:
                if session.types != self._state_types:
                    session.check(self.graph)
                with session.lock:
                    for name, base in executor.state_bases.items():
                        bases[base] = session.memory[name]
                    executor.run(frame, sizes, bases, **options)
        finally:
            with self._lock:
                self._frames[index].append(frame)
        return results

    def _check_sizes(self, sizes: tuple[int, ...]) -> None:
        """Raise RunError when an op would leave an axis at these sizes: each is in range, but not all of them together."""
        for c, gap in zip(self._conditions, self._gaps(*sizes), strict=True):
            if gap < 0:
                at = ", ".join(f"{n} = {s}" for n, s in zip(self.dims, sizes, strict=True))
                raise RunError(f"{c}; here {at}\n  fix: sizes with {c.wanted}, or other bounds where the dim is made")
        self._allowed = sizes

    def _keep_apart(self, arrays: dict[str, np.ndarray], results: Mapping[str, np.ndarray], session: Session | None,
                    out: Mapping[str, np.ndarray] | None) -> None:
        """Copy inputs that this run may write over (a kernel reads them after it wrote elsewhere); refuse outputs that overlap."""
        written = [results[n] for n in out] if out else list(results.values()) if self.plan.reuse_outputs else []
        if out:
            for i, (name, a) in enumerate(zip(out, written, strict=True)):
                for other, b in zip(list(out)[:i], written, strict=False):
                    if np.may_share_memory(a, b):
                        raise RunError(f"out[{name!r}] and out[{other!r}] share memory")
                if session is not None and session.holds(a):
                    raise RunError(f"out[{name!r}] shares memory with a state of the session")
        for name, array in arrays.items():
            # an array that owns its memory cannot be a view of a state: those are only handed out as views
            if any(np.may_share_memory(array, w) for w in written) or (
                    session is not None and not array.flags.owndata and session.holds(array)):
                arrays[name] = array.copy()

    def _variant(self, binding: Mapping[str, int]) -> int:
        plan = self.plan
        if plan.table_dim is not None:
            value = binding[plan.table_dim]
            for i, v in enumerate(plan.variants):
                if v.low <= value <= v.high:
                    return i
        return 0

    def _inputs(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        types = self._input_types
        if not isinstance(inputs, Mapping):
            named = ", ".join(f"{n!r}: …" for n in types)
            raise RunError(f"inputs are given by name, this is a {type(inputs).__name__}\n  fix: run({{{named}}})")
        missing = [n for n in types if n not in inputs]
        extra = [n for n in inputs if n not in types]
        if missing or extra:
            raise RunError(f"the graph takes the inputs {', '.join(f'{n}: {t}' for n, t in types.items()) or 'none'}"
                           + (f"; missing: {', '.join(missing)}" if missing else "")
                           + (f"; unknown: {', '.join(extra)}" if extra else ""))
        return {n: as_array(n, inputs[n], t) for n, t in types.items()}

    def _outputs(self, sizes: tuple[int, ...], binding: Mapping[str, int],
                 given: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        if self.plan.reuse_outputs and given is None:
            found = self._reused.get(sizes)
            if found is None:
                if len(self._reused) > 8:
                    self._reused.clear()
                found = self._reused[sizes] = self._new_outputs(binding, {})
            return dict(found)
        arrays: dict[str, np.ndarray] = {}
        for name, array in (given or {}).items():
            if name not in self._output_types:
                raise RunError(f"the graph has no output {name!r}; it has {', '.join(self._output_types)}")
            arrays[name] = as_output(name, array, self._output_types[name].at(binding))
        return self._new_outputs(binding, arrays)

    def _new_outputs(self, binding: Mapping[str, int], given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = {}
        for n, t in self._output_types.items():
            out[n] = given[n] if n in given else np.empty(
                tuple(int(d.evaluate(s, binding)) for s in t.shape), dtype=t.dtype.numpy)
        return out

    def _take(self, index: int) -> Frame:
        with self._lock:
            if self._frames[index]:
                frame = self._frames[index].pop()
            else:
                frame = Frame(self.executors[index])
            for other, frames in enumerate(self._frames):       # one arena in all between runs: others give theirs back
                if other != index:
                    for f in frames:
                        if f.arena.nbytes > (1 << 20):
                            f.arena = np.empty(0, dtype=np.uint8)
                            f.layout_key = f.binding = None
                            f.memory[1] = None
        return frame

    # ---- parameters ----

    def rebind(self, name: str, value: Any) -> None:
        """Replace one parameter; what depends on it alone is evaluated again, nothing else. Not while a run is under way."""
        if name not in self.parameters:
            raise RunError(f"the graph has no parameter named {name!r}; it has {', '.join(self.parameters)}")
        self.parameters[name] = self._checked(name, value)
        shared: dict[Hashable, np.ndarray] = {}
        for e in self.executors:
            e.bind(self.parameters, {name}, shared)

    # ---- looking inside ----

    def memory(self, **dims: int) -> MemoryUse:
        """Bytes at these dims; see Plan.memory."""
        return self.plan.memory(**dims)

    def profile(self, inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None, session: Session | None = None,
                repeats: int = 5) -> list[tuple[str, str, float]]:
        """(instruction, kernel, median seconds) of each step over `repeats` runs, in order."""
        samples: list[np.ndarray] = []
        binding = solve_dims(self._input_types, {n: a.shape for n, a in self._inputs(inputs).items()}, self.graph.dims, dims or {})
        executor = self.executors[self._variant(binding)]
        for _ in range(repeats):
            seconds = np.zeros(len(executor.program.instructions))
            self._run(inputs, dims or {}, session, None, seconds=seconds)
            samples.append(seconds)
        return [(ins.label, ins.kernel, statistics.median(float(s[i]) for s in samples))
                for i, ins in enumerate(executor.program.instructions)]

    def trace(self, inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None,
              session: Session | None = None) -> list[tuple[str, str, list[np.ndarray]]]:
        """(instruction, where it was written, copies of its outputs) of every step, in order."""
        seen: list[tuple[str, str, list[np.ndarray]]] = []
        self._run(inputs, dims or {}, session, None,
                  after=lambda ins, arrays: seen.append((ins.label, ins.written_at, [a.copy() for a in arrays])))
        return seen

    def tap(self, names: str | Node | list[str | Node], inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None,
            session: Session | None = None) -> dict[str | Node, np.ndarray]:
        """Values inside the graph, by what was asked: an instruction's name (`rms_norm.3`, see `explain`; `rope_table.0/1` is its
        second output) or a node. Moves the session on, like a run. A node of a graph that is run with float64 intermediates
        gives its value in float64.

        Raises RunError for a node whose value no instruction of a run makes: it is inside a kernel, a leaf, or of bind time.
        """
        wanted = names if isinstance(names, list) else [names]
        binding = solve_dims(self._input_types, {n: a.shape for n, a in self._inputs(inputs).items()}, self.graph.dims, dims or {})
        index = self._variant(binding)
        program, path = self.executors[index].program, self.plan.variants[index].path
        made = {ins.label: ins for ins in program.instructions}
        known = ", ".join(list(made)[:8]) + (", …" if len(made) > 8 else "")
        by_buffer = {o.buffer: (ins.label, i) for ins in program.instructions for i, o in enumerate(ins.outs)}
        taps: dict[str | Node, tuple[str, int, Operand]] = {}
        for w in wanted:
            if isinstance(w, Node):
                run = w
                if self.plan.written is not None and w not in self.graph.nodes:       # of the graph before it was widened
                    wide = widened_value(self.plan.written, w, last_step=True)
                    run = w if wide is None else wide
                operand = program.values.get(expanded([run], path)[0])
                if operand is None or operand.buffer not in by_buffer:
                    raise RunError(f"no instruction of a run makes the value of {w!r}; there are {known}")
                taps[w] = (*by_buffer[operand.buffer], operand)
            else:
                label, _, number = w.partition("/")
                outs = made[label].outs if label in made else ()
                if not (number or "0").isdecimal() or not int(number or 0) < len(outs):
                    raise RunError(f"no instruction is named {w!r}; there are {known}" if not outs else
                                   f"{label} has {len(outs)} output{'s' if len(outs) > 1 else ''}, {w!r} asks for another")
                taps[w] = (label, int(number or 0), outs[int(number or 0)])
        found: dict[str | Node, np.ndarray] = {}

        def keep(ins: Instruction, arrays: list[np.ndarray]) -> None:
            for asked, (label, i, operand) in taps.items():
                if ins.label == label:
                    found[asked] = _window(operand, np.ascontiguousarray(arrays[i]), binding)

        self._run(inputs, dims or {}, session, None, after=keep)
        return found

    def first_nan(self, inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None,
                  session: Session | None = None) -> str | None:
        """Where a NaN comes from; None when there is none. Moves the session on, like a run.

        An input, a parameter or a state that holds one already, else the first instruction whose output does, with its line.
        """
        given = [("input", self._inputs(inputs)), ("parameter", self.parameters),
                 ("state", {} if session is None else session.snapshot())]
        for kind, arrays in given:
            for name, array in arrays.items():
                if _has_nan(array):
                    return f"{kind} {name}"
        found: list[str] = []

        def look(ins: Any, arrays: list[np.ndarray]) -> None:
            if not found and any(map(_has_nan, arrays)):
                found.append(f"{ins.label} ({ins.kernel}), written at {ins.written_at}")

        self._run(inputs, dims or {}, session, None, after=look)
        return found[0] if found else None

    @contextmanager
    def no_op(self) -> Iterator[None]:
        """Inside this context every kernel does nothing: what a run costs then is the walk itself. Outputs are garbage."""
        undo: list[Callable[[], None]] = []
        for e in self.executors:
            undo.append(e.silence())
        try:
            yield
        finally:
            for u in undo:
                u()

    def time(self, inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None, session: Session | None = None,
             repeats: int = 5) -> float:
        """Median seconds of a run, after one warm-up."""
        samples = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            self.run(inputs, dims=dims, session=session)
            samples.append(time.perf_counter() - start)
        return statistics.median(samples[1:])


def _window(operand: Operand, whole: np.ndarray, binding: Mapping[str, int]) -> np.ndarray:
    """A copy of what an operand reads of the contiguous value that fills its buffer."""
    t = TensorType(operand.shape, operand.dtype).at(binding)
    if 0 in t.shape:
        return np.empty(t.shape, dtype=t.dtype.numpy)
    offset = int(d.evaluate(operand.offset, binding))
    strides = tuple(int(d.evaluate(s, binding)) * t.dtype.itemsize for s in operand.strides)
    return np.ndarray(t.shape, dtype=t.dtype.numpy, buffer=bytes_of(whole), offset=offset, strides=strides).copy()


def _has_nan(array: np.ndarray) -> bool:
    return array.size > 0 and array.dtype.kind in "fV" and bool(np.isnan(array).any())      # V: bf16


def _is_lazy(parameters: Mapping[str, Any]) -> bool:
    """A mapping that loads on access (a weights file) may hold more than the graph needs."""
    return not isinstance(parameters, dict)


def bind(plan: Plan, parameters: Mapping[str, Any] | None = None) -> CompiledGraph:
    """Give a plan its parameters: an array per graph parameter (a lazy mapping is read by name). Raises RunError."""
    return CompiledGraph(plan, parameters or {})
