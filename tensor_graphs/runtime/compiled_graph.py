"""compiled_graph: the class CompiledGraph, the result of compile and bind: runs, timings, values of inner nodes.

    compiled = tg.bind(tg.compile(graph), weights)
    out = compiled.run({"ids": ids})["logits"]
"""

from __future__ import annotations

import bisect
import inspect
import itertools
import logging
import statistics
import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensor_graphs.devices.array_address import address
from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device import Device, Memory
from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.devices.free_memory import LARGE, require_memory
from tensor_graphs.errors import close_to, counted, listed
from tensor_graphs.language import dims as d
from tensor_graphs.language.call_errors import CallError, misfit
from tensor_graphs.language.conditions import conditions_of
from tensor_graphs.language.dim_functions import compile_dims
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.paths.fit_terminal import human
from tensor_graphs.paths.lower import Instruction, Operand
from tensor_graphs.paths.plan import MemoryUse, Plan
from tensor_graphs.paths.size_cells import Cell
from tensor_graphs.phase_times import phase
from tensor_graphs.runtime.arrays import as_array, as_input, as_output, solve_dims
from tensor_graphs.runtime.checked_call import Array, Placed, check_places
from tensor_graphs.runtime.device_array import empty, overlap
from tensor_graphs.runtime.errors import RunError
from tensor_graphs.runtime.executor import Executor
from tensor_graphs.runtime.prepared_run import Prepared
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.segments.native import check
from tensor_graphs.runtime.session import Session
from tensor_graphs.runtime.write_row_checks import check_rows, rows_from_inputs

if TYPE_CHECKING:
    from tensor_graphs.runtime.node_instructions import NodeValues

log = logging.getLogger(__name__)

WHOLE = 0x101
"""bits of numpy's flags for C-contiguous and aligned"""

FILLABLE = WHOLE | 0x400
"""bits of numpy's flags for C-contiguous, aligned and writeable"""

ROOMY = 256
"""least number of sizes of a dim whose memory need is checked together"""

MOST_KNOWN = 256
"""most combinations of input shapes that are remembered"""


@dataclass(frozen=True, slots=True)
class _CheckedShapes:
    """The data of a run at input shapes that were checked before. inputs: bases, in order. outputs: (name, shape, dtype, base)."""

    variant: int
    executor: Executor
    sizes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[tuple[str, tuple[int, ...], np.dtype[Any], int], ...]


class CompiledGraph:
    """A plan with bound parameters, created by `bind`. It is thread-safe: each run takes a separate frame (tables and arenas).
    Parameters that are contiguous and of the right dtype are not copied."""

    @phase("bind")
    def __init__(self, plan: Plan, parameters: Mapping[str, Any]) -> None:
        self.plan = plan
        self.graph: Graph = plan.graph
        self._cells = plan.cells
        self.dims = tuple(self.graph.dims)
        self._lock = threading.Lock()
        self.parameters: dict[str, np.ndarray] = {}
        is_dict = isinstance(parameters, dict)               # else it loads on access, and may hold more than the graph needs
        for name, node in self.graph.parameters.items():
            if name not in parameters:
                strange = [n for n in parameters if n not in self.graph.parameters] if is_dict else []
                near = close_to(name, strange)
                raise RunError(f"parameter {name!r} ({node.type}) is not given\n  fix: "
                               + (f"the graph has no parameter {near[0]!r}, which is given: did you mean {name!r}?" if near else
                                  f"tg.bind(plan, {{{name!r}: …}}), with all of: {listed(self.graph.parameters)}"))
            with phase("load weights"):
                self.parameters[name] = self._checked(name, parameters[name])
        extra = sorted(set(parameters) - set(self.parameters)) if is_dict else []
        if extra:
            raise self._no_parameter(extra)
        self.executors = [Executor(v, self.dims) for v in plan.variants]
        shared: dict[Hashable, Memory] = {}          # variants read the same parameters: what is made of them is made once
        self._parameter_memory = {name: memory_of(array) for name, array in self.parameters.items()}
        for e in self.executors:
            e.bind(self._parameter_memory, shared=shared)
        self._elsewhere = [device_named(name) for name in plan.elsewhere]
        self._limited = plan.capacity is not None or bool(self._elsewhere)
        self._roomy: tuple[tuple[int, int], ...] | None = None      # sizes of which all are known to fit
        self._frames: list[list[Frame]] = [[] for _ in self.executors]
        self._reused: dict[tuple[int, ...], dict[str, Array]] = {}
        self._input_types = {n: node.type for n, node in self.graph.inputs.items()}
        self._output_types = {n: node.type for n, node in self.graph.outputs.items()}
        self._input_dims, output_dims = ({str(s) for t in types.values() for size in t.shape for s in d.symbols(size)}
                                         for types in (self._input_types, self._output_types))
        self._output_sizes = tuple(i for i, n in enumerate(self.dims) if n in output_dims)
        self._ranges = {n: d.bounds(x) for n, x in self.graph.dims.items()}
        self._dims_of_shapes: dict[tuple[tuple[tuple[int, ...], ...], tuple[str, ...]], dict[str, int]] = {}
        self._output_forms: dict[tuple[int, ...], list[tuple[str, tuple[int, ...], np.dtype[Any]]]] = {}
        self._state_types = {n: node.type for n, node in self.graph.states.items()}
        self._conditions = conditions_of(self.graph.roots)
        self._gaps = compile_dims([c.gap for c in self._conditions], self.dims)
        self.written_rows = rows_from_inputs(self.graph)
        self._planned: Cell | None = plan.cells.box          # the sizes that kernels were chosen for; None once others were logged
        self._allowed: tuple[int, ...] | None = None         # the sizes of the last run, at which every condition holds
        self._plain_inputs = [(n, t.dtype.numpy) for n, t in self._input_types.items()]
        self._checked_shapes: dict[tuple[tuple[int, ...], ...], _CheckedShapes] = {}
        self._parameter_ranges: list[tuple[int, int]] | None = None      # where parameters lie; made when first asked for

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n} {t}" for n, t in self._input_types.items())
        outputs = ", ".join(f"{n} {t}" for n, t in self._output_types.items())
        held = sum(a.nbytes for a in self.parameters.values())
        counts = [(len(self.parameters), "parameter", f" ({human(held)})"), (len(self._state_types), "state", "")]
        rest = "".join(f"; {counted(n, what)}{more}" for n, what, more in counts if n)
        return f"<compiled graph: {inputs or 'no inputs'} -> {outputs or 'no outputs'}{rest}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return `bind` with the plan and all parameters, for pickle: they are bound again in the process that unpickles."""
        return bind, (self.plan, self.parameters)

    def _checked(self, name: str, value: Any) -> np.ndarray:
        t = self.graph.parameters[name].type
        array = as_array(name, value, t, "parameter")
        if array.shape != t.shape:
            raise RunError(f"parameter {name!r} is {t}, the array has shape {array.shape}"
                           + ("\n  fix: array.T" if array.shape[::-1] == t.shape else
                              f"\n  fix: an array of shape {t.shape}, or tg.parameter({name!r}, {array.shape}, …)"))
        return array

    def _no_parameter(self, names: Sequence[str]) -> RunError:
        near = close_to(names[0], self.graph.parameters)
        fix = f"did you mean {near[0]}?" if near else f"its parameters are {listed(self.graph.parameters) or 'none'}"
        return RunError(f"the graph has no parameter named {listed(names)}\n  fix: {fix}")

    # ---- running ----

    def __call__(self, *arguments: object, **named: object) -> NoReturn:
        """Raise CallError: the method is `run`."""
        raise CallError("a compiled graph is not called", fix=f"model.run({_by_name(self._input_types)})")

    @worded
    def session(self) -> Session:
        """Return a new session, with all states zero."""
        return Session(self.graph, self.executors[0].state_devices)

    def run(self, inputs: Mapping[str, Any] | None = None, *, dims: Mapping[str, int] | None = None,
            session: Session | None = None, out: Mapping[str, Any] | None = None, **unknown: Any) -> dict[str, Any]:
        """Compute the outputs, and update the session's states. Returns name -> numpy array; an output that the graph defines as
        `copy_to(y, "cuda:0")` is a `DeviceArray`, which may still be being computed at the return.

        inputs: an array per graph input. An input that the graph uses only in `copy_to(x, "cuda:0")` may be a torch or CuPy tensor
        on that device; it is not copied (DLPack). dims: sizes that follow from no input. out: arrays for outputs (right type,
        C-contiguous; DLPack tensors too). Other outputs are new arrays, or (plan.reuse_outputs) those of the last run at these
        sizes. Inputs that share memory with an output or a state are copied first. Raises RunError before any work; CallError.
        """
        if unknown:
            raise self._no_argument("run", unknown)
        if session is None and not dims and type(inputs) is dict:
            results = self._again(inputs, out)
            if results is not None:
                return results
        return self._run({} if inputs is None else inputs, dims or {}, session, out)

    def prepared(self, inputs: Mapping[str, Any] | None = None, *, dims: Mapping[str, int] | None = None,
                 session: Session | None = None, out: Mapping[str, Any] | None = None, **unknown: Any) -> Prepared:
        """Return a run on fixed arrays, to be repeated: `prepared.run()` reads their current contents and writes the outputs.

        The arguments are those of `run`. Inputs must have the right dtype, be C-contiguous, and share no memory with outputs and
        states; nothing is copied. Outputs not in `out` are new arrays, used by every run. Raises RunError, CallError.
        """
        if unknown:
            raise self._no_argument("prepared", unknown)
        if inputs is None and self._input_types:
            raise RunError("a prepared run keeps the arrays that it reads, and none are given\n"
                           f"  fix: prepared({_by_name(self._input_types)}), then write into them before each run()")
        return Prepared(self, {} if inputs is None else inputs, dims or {}, session, out)

    def _no_argument(self, name: str, unknown: Mapping[str, Any]) -> CallError:
        """Return the error for keywords that `run` or `prepared` does not have; mostly they are names of inputs."""
        inputs = [word for word in unknown if word in self._input_types]
        if inputs:
            return CallError(f"{name}({inputs[0]}=…): inputs are one argument, by name",
                             fix=f"{name}({_by_name(self._input_types)})")
        signature = inspect.signature(getattr(type(self), name))
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        return misfit(name, signature.replace(parameters=parameters), unknown, TypeError())

    def _again(self, inputs: dict[str, Any], out: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Run the graph as one native call, without checks, at input shapes that a run has checked before. Returns None, without a
        run, where that is not possible, or where `out` needs an error message or a copy."""
        wanted = self._plain_inputs
        if len(inputs) != len(wanted):
            return None
        shapes, places = [], []
        for name, dtype in wanted:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype or array.flags.num & WHOLE != WHOLE:
                return None
            shapes.append(array.shape)
            places.append(address(array))
        checked = self._checked_shapes.get(tuple(shapes))
        if checked is None or (out is not None and not self._may_receive(out, checked, inputs, places)):
            return None
        try:
            frame = self._frames[checked.variant].pop()
        except IndexError:
            return None
        try:
            if frame.binding != checked.sizes or frame.bound != checked.executor.bound:
                return None
            bases = frame.bases                                     # and `_run` has let go of the memory that it put there
            for base, place in zip(checked.inputs, places, strict=True):
                bases[base] = place
            results = {}
            for name, shape, dtype, base in checked.outputs:
                result = results[name] = np.empty(shape, dtype) if out is None or name not in out else out[name]
                bases[base] = address(result)
            assert frame.call is not None                           # `_note` has looked
            check(frame.call())
        finally:
            self._frames[checked.variant].append(frame)
        return results

    def _may_receive(self, out: Mapping[str, np.ndarray], checked: _CheckedShapes, inputs: dict[str, Any],
                     places: list[int]) -> bool:
        """Return whether `out` can receive outputs directly: right types, no memory shared with others, inputs or parameters."""
        if type(out) is not dict:
            return False
        wanted = {name: (shape, dtype) for name, shape, dtype, _ in checked.outputs}
        taken = [(place, place + inputs[name].nbytes) for place, (name, _) in zip(places, self._plain_inputs, strict=True)]
        if self._parameter_ranges is None:
            self._parameter_ranges = _joined(self.parameters.values())
        held = self._parameter_ranges
        for name, array in out.items():
            if type(array) is not np.ndarray or array.flags.num & FILLABLE != FILLABLE \
                    or wanted.get(name) != (array.shape, array.dtype):
                return False
            low = address(array)
            high = low + array.nbytes
            if any(low < end and start < high for start, end in taken):
                return False
            before = bisect.bisect_left(held, (high,)) - 1               # the last range of parameters that begins below `high`
            if before >= 0 and held[before][1] > low:
                return False
            taken.append((low, high))
        return True

    def _note(self, call: Placed) -> None:
        """Remember for `_again` that arrays of these shapes passed all checks. Large outputs are left out, to check free memory."""
        ins, outs = call.executor.input_bases, call.executor.output_bases
        if not call.executor.one_native_call or self.graph.states or self.plan.reuse_outputs:
            return
        if len(self._checked_shapes) >= MOST_KNOWN or set(ins) != set(call.arrays) or set(outs) != set(call.results):
            return
        if sum(a.nbytes for a in call.results.values()) >= LARGE:
            return
        if not all(isinstance(a, np.ndarray) and a.size for a in (*call.arrays.values(), *call.results.values())):
            return
        self._checked_shapes[tuple(a.shape for a in call.arrays.values())] = _CheckedShapes(
            call.variant, call.executor, call.sizes, tuple(ins[n] for n in call.arrays),
            tuple((n, a.shape, a.dtype, outs[n]) for n, a in call.results.items()))

    def placed(self, inputs: Mapping[str, Any], dims: Mapping[str, int], session: Session | None,
               out: Mapping[str, Any] | None) -> Placed:
        """Check the arguments of a run and return them, with arrays for all outputs. Raises RunError."""
        if session is not None and not isinstance(session, Session):
            raise RunError(f"session is {session!r}, a {type(session).__name__}\n  fix: session=compiled.session()")
        arrays = self._inputs(inputs)
        binding = self._binding(arrays, dims)
        sizes = tuple(binding[n] for n in self.dims)
        if sizes != self._allowed:
            self._check_sizes(sizes)
        if self.written_rows:
            check_rows(self.written_rows, arrays, binding)
        if self._limited:
            self._check_room(sizes)
        if self.graph.states and session is None:
            raise RunError("the graph has states, and no session holds them\n  fix: session = compiled.session(), given to each "
                           "run, trace, tap or profile that goes on from the last")
        if session is not None and session.types != self._state_types:
            session.check(self.graph)
        index = self._cells.index(binding)
        executor = self.executors[index]
        check_places(arrays, executor.input_devices, "input {!r}", "the graph reads it",
                     "a graph that reads it by tg.copy_to(…, {!r}) alone")
        results = self._outputs(sizes, binding, out, executor.output_devices)
        if out:
            check_places(results, executor.output_devices, "out[{!r}]", "the graph hands it out",
                         "tg.copy_to(…, {!r}) as that output of the graph")
        return Placed(index, executor, sizes, arrays, results)

    def _binding(self, arrays: Mapping[str, Array], dims: Mapping[str, int]) -> dict[str, int]:
        """Return the size of every dim. Sizes from input shapes are remembered by the shapes, which stay the same while a state
        grows and only a size in `dims` changes. Raises RunError."""
        key = tuple(a.shape for a in arrays.values()), tuple(dims) if isinstance(dims, Mapping) else ()
        sizes = self._dims_of_shapes.get(key)
        if sizes is not None and isinstance(dims, Mapping) and all(
                type(size) is int and self._ranges[n][0] <= size <= self._ranges[n][1] for n, size in dims.items()):
            return {**sizes, **dims}
        binding = solve_dims(self._input_types, {n: a.shape for n, a in arrays.items()}, self.graph.dims, dims)
        if not self._input_dims & set(dims) and len(self._dims_of_shapes) < MOST_KNOWN:
            self._dims_of_shapes[key] = {n: size for n, size in binding.items() if n not in dims}
        return binding

    def _run(self, inputs: Mapping[str, Any], dims: Mapping[str, int], session: Session | None,
             out: Mapping[str, Any] | None, **options: Any) -> dict[str, Any]:
        call = self.placed(inputs, dims, session, out)
        self._keep_apart(call.arrays, call.results, session, out)
        if not options and not dims:
            self._note(call)
        frame = self._take(call.variant)
        try:
            bases = call.bases(frame)
            call.send(bases)
            if session is None:
                call.executor.run(frame, call.sizes, bases, **options)
            else:
                with session.lock:
                    states: dict[int, Memory] = {}
                    if frame.states is not session.places:          # else the frame has their addresses
                        frame.states, states = None, call.state_bases(session)
                    call.executor.run(frame, call.sizes, bases | states, **options)
                    frame.states = session.places
            call.fetch(bases)
        finally:
            frame.let_go(bases if call.executor.one_native_call else call.elsewhere())
            with self._lock:
                self._frames[call.variant].append(frame)
        return call.results

    def _check_room(self, sizes: tuple[int, ...]) -> None:
        """Raise PlanError where a device has too little memory. Boxes of sizes are checked by their corners, as buffer sizes are
        monotonic in between: the box of all sizes, else smaller ones around these sizes (a power of two wide, then ROOMY). So a
        growing state is not checked at each length."""
        if self._roomy is not None and all(low <= s <= high for s, (low, high) in zip(sizes, self._roomy, strict=True)):
            return
        bounds = [d.bounds(self.graph.dims[n]) for n in self.dims]
        tried = [[max(ROOMY, 1 << s.bit_length() >> 1) for s in sizes], [ROOMY] * len(sizes)]
        if self._roomy is None:                                     # the first time: all sizes that there are
            tried.insert(0, [high + 1 for _, high in bounds])
        for widths in tried:
            blocks = [(s // w * w, (s // w + 1) * w) for s, w in zip(sizes, widths, strict=True)]
            box = tuple((max(low, lo), min(high, hi)) for (low, high), (lo, hi) in zip(blocks, bounds, strict=True))
            corners = (dict(zip(self.dims, corner, strict=True)) for corner in itertools.product(*map(set, box)))
            if len(box) <= 4 and all(self.plan.over_capacity(corner) is None for corner in corners):
                self._roomy = box
                return
        self.plan.check_capacity(dict(zip(self.dims, sizes, strict=True)))

    def _check_sizes(self, sizes: tuple[int, ...]) -> None:
        """Raise RunError when an op would exceed an axis at these sizes, which are each in range but not together. Warn (log) about
        the first sizes outside the plan's cells."""
        for c, gap in zip(self._conditions, self._gaps(*sizes), strict=True):
            if gap < 0:
                at = ", ".join(f"{n} = {s}" for n, s in zip(self.dims, sizes, strict=True))
                raise RunError(f"{c}\n  fix: {c.otherwise}" if d.is_static(c.gap) else
                               f"{c}; here {at}\n  fix: sizes with {c.wanted}, or {c.otherwise}")
        if self._planned is not None and not self._planned.holds(binding := dict(zip(self.dims, sizes, strict=True))):
            beyond = {name: binding[name] for name, low, high in self._planned.ranges if not low <= binding[name] <= high}
            text = ", ".join(f"{n} = {s}" for n, s in beyond.items())
            log.warning("a run at %s takes the kernels that were chosen for %s, and may be slow; other such runs are not logged\n"
                        "  fix: tg.compile(graph, largest=%s)", text, self._planned, beyond)
            self._planned = None
        self._allowed = sizes

    def _keep_apart(self, arrays: dict[str, Array], results: Mapping[str, Array], session: Session | None,
                    out: Mapping[str, Any] | None) -> None:
        """Copy inputs that share memory with outputs or states, as the run may overwrite these; refuse outputs that overlap."""
        written = [results[n] for n in out] if out else list(results.values()) if self.plan.reuse_outputs else []
        if out:
            self.refuse_shared({n: results[n] for n in out}, session)
        for name, array in arrays.items():
            # an array that owns its memory cannot be a view of a state: those are only handed out as views
            if any(overlap(array, w) for w in written) or (
                    session is not None and isinstance(array, np.ndarray) and not array.flags.owndata and session.holds(array)):
                arrays[name] = array.copy()

    def refuse_shared(self, out: Mapping[str, Array], session: Session | None) -> None:
        """Raise RunError where an array of `out` shares memory with another one, a state, or a parameter. Parameters are not copied
        at `bind`, so later runs would read the output."""
        for i, (name, array) in enumerate(out.items()):
            for other in list(out)[:i]:
                if overlap(array, out[other]):
                    raise RunError(f"out[{name!r}] and out[{other!r}] share memory\n  fix: an array for each")
            if session is not None and isinstance(array, np.ndarray) and session.holds(array):
                raise RunError(f"out[{name!r}] shares memory with a state of the session\n  fix: an array of its own")
            for parameter, held in self.parameters.items():
                if overlap(array, held):
                    raise RunError(f"out[{name!r}] shares memory with the parameter {parameter!r}\n  fix: an array of its own")

    def _inputs(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        types = self._input_types
        if not isinstance(inputs, Mapping):
            raise RunError(f"inputs are given by name, this is a {type(inputs).__name__}\n  fix: run({_by_name(types)})")
        missing = [n for n in types if n not in inputs]
        extra = [n for n in inputs if n not in types]
        if missing or extra:
            raise RunError(f"the graph takes the inputs {', '.join(f'{n}: {t}' for n, t in types.items()) or 'none'}"
                           + (f"; missing: {', '.join(missing)}" if missing else "")
                           + (f"; unknown: {', '.join(map(str, extra))}" if extra else "") + f"\n  fix: run({_by_name(types)})")
        return {n: as_input(n, inputs[n], t) for n, t in types.items()}

    def _outputs(self, sizes: tuple[int, ...], binding: Mapping[str, int], out: Mapping[str, Any] | None,
                 devices: Mapping[str, Device]) -> dict[str, Array]:
        if self.plan.reuse_outputs and out is None:
            if sizes not in self._reused:
                if len(self._reused) > 8:
                    self._reused.clear()
                self._reused[sizes] = self._new_outputs(sizes, binding, {}, devices)
            return dict(self._reused[sizes])
        if out is not None and not isinstance(out, Mapping):
            raise RunError(f"outputs are given by name, this is a {type(out).__name__}\n  fix: out={_by_name(self._output_types)}")
        arrays: dict[str, Array] = {}
        for name, array in ({} if out is None else out).items():
            if name not in self._output_types:
                near = close_to(name, self._output_types)
                raise RunError(f"the graph has no output {name!r}; it has {', '.join(self._output_types)}"
                               + (f"\n  fix: did you mean {near[0]}?" if near else ""))
            arrays[name] = as_output(name, array, self._output_types[name].at(binding))
        return self._new_outputs(sizes, binding, arrays, devices)

    def _new_outputs(self, sizes: tuple[int, ...], binding: Mapping[str, int], callers: Mapping[str, Array],
                     devices: Mapping[str, Device]) -> dict[str, Array]:
        key = tuple(sizes[i] for i in self._output_sizes)
        if not callers and key in self._output_forms:
            return {n: np.empty(shape, dtype) for n, shape, dtype in self._output_forms[key]}
        types = {n: t.at(binding) for n, t in self._output_types.items() if n not in callers}
        there = {n: empty(device, [int(s) for s in types[n].shape], types[n].dtype) for n, device in devices.items()
                 if device is not HOST and n in types}
        if (nbytes := sum(int(t.nbytes()) for n, t in types.items() if n not in there)) >= LARGE:
            require_memory(nbytes, "the output " + ", ".join(f"{n} {t}" for n, t in types.items()), "smaller sizes")
        out: dict[str, Array] = {n: callers[n] if n in callers else there[n] if n in there else
                                 np.empty(types[n].shape, dtype=types[n].dtype.numpy) for n in self._output_types}
        if not callers and not there and nbytes < LARGE and len(self._output_forms) < MOST_KNOWN:
            self._output_forms[key] = [(n, a.shape, a.dtype) for n, a in out.items()]
        return out

    def _take(self, index: int) -> Frame:
        with self._lock:
            frame = self._frames[index].pop() if self._frames[index] else Frame(self.executors[index])
            for other, frames in enumerate(self._frames):       # one arena in all between runs: others give theirs back
                if other != index:
                    for f in frames:
                        f.release_large()
        return frame

    def wait(self) -> None:
        """Wait until all started work on the plan's devices is done. Outputs on the host are complete when a run returns."""
        for device in self._elsewhere:
            device.synchronise()

    # ---- parameters ----

    @worded
    def rebind(self, name: str, value: Any) -> None:
        """Replace one parameter, and evaluate again the bind-time values that depend on it. Must not be called during a run."""
        if name not in self.parameters:
            raise self._no_parameter([name])
        self.parameters[name] = self._checked(name, value)
        self._parameter_ranges = None
        self._parameter_memory[name] = memory_of(self.parameters[name])
        shared: dict[Hashable, Memory] = {}
        for e in self.executors:
            e.bind(self._parameter_memory, {name}, shared)

    # ---- looking inside ----

    def memory(self, *arguments: object, **dims: int) -> MemoryUse:
        """Return the bytes that the plan needs at these dims; see Plan.memory."""
        return self.plan.memory(*arguments, **dims)

    @worded
    def profile(self, inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None, session: Session | None = None,
                repeats: int = 5) -> list[tuple[str, str, float]]:
        """Return (instruction, kernel, median seconds over `repeats` runs) for each instruction, in order."""
        samples: list[np.ndarray] = []
        instructions = self._instructions(inputs, dims)
        for _ in range(repeats):
            samples.append(np.zeros(len(instructions)))
            self._run(inputs, dims or {}, session, None, seconds=samples[-1])
        return [(ins.label, ins.kernel, statistics.median(float(s[i]) for s in samples)) for i, ins in enumerate(instructions)]

    @worded
    def trace(self, inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None,
              session: Session | None = None) -> list[tuple[str, str, list[np.ndarray]]]:
        """Run, and return (instruction, location in the user's source, copies of outputs) of every instruction, in order."""
        seen: list[tuple[str, str, list[np.ndarray]]] = []
        self._run(inputs, dims or {}, session, None,
                  after=lambda ins, arrays: seen.append((ins.label, ins.written_at, [a.copy() for a in arrays])))
        if all(at for _, at, _ in seen):
            return seen
        tapped = self._tapped(self._sizes_of(inputs, dims))          # of a plan from a file
        return [(label, at or tapped.written_at(label), arrays) for label, at, arrays in seen]

    @worded
    def spans(self, inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None,
              session: Session | None = None) -> list[tuple[Instruction, float, float]]:
        """Run, and return (instruction, start, end) for each instruction, in order, in seconds of the host's clock. Each is a
        separate call from Python that waits for its device, so that nothing overlaps. Updates the session, like a run."""
        seen: list[tuple[int, float, float]] = []
        instructions = self._instructions(inputs, dims)
        self._run(inputs, dims or {}, session, None, spans=seen)
        return [(instructions[index], start, end) for index, start, end in seen]

    @worded
    def tap(self, names: str | Node | list[str | Node], inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None,
            session: Session | None = None) -> dict[str | Node, np.ndarray]:
        """Run, and return inner values of the graph by the given keys: names of instructions (`rms_norm.3`, see `explain`;
        `rope_table.0/1` is its second output) or nodes. Updates the session, like a run. Raises RunError for a node that no
        instruction of a run outputs: inside a kernel, a leaf, a bind-time value."""
        wanted = names if isinstance(names, list) else [names]
        binding = self._sizes_of(inputs, dims)
        tapped = self._tapped(binding)
        program = tapped.program
        instructions = {ins.label: ins for ins in program.instructions}
        labels = ", ".join(list(instructions)[:8]) + (", …" if len(instructions) > 8 else "")
        taps: dict[str | Node, tuple[str, int, Operand]] = {}
        for w in wanted:
            if isinstance(w, Node):
                found_at = tapped.at(w)
                if found_at is None:
                    why, fix = tapped.why_not(w)
                    raise RunError(f"no instruction of a run makes the value of {w!r}{why}; there are {labels}{fix}")
                taps[w] = found_at
            else:
                label, _, number = str(w).partition("/")
                outs = instructions[label].outs if label in instructions else ()
                if not (number or "0").isdecimal() or not int(number or 0) < len(outs):
                    near = close_to(label, instructions)
                    meant = f"\n  fix: did you mean {near[0]}?" if near else ""
                    raise RunError(f"no instruction is named {w!r}; there are {labels}{meant}" if not outs else
                                   f"{label} has {len(outs)} output{'s' if len(outs) > 1 else ''}, {w!r} asks for another")
                taps[w] = (label, int(number or 0), outs[int(number or 0)])
        values: dict[str | Node, np.ndarray] = {}

        def keep(ins: Instruction, arrays: list[np.ndarray]) -> None:
            for asked, (label, i, operand) in taps.items():
                if ins.label == label:
                    values[asked] = _window(operand, np.ascontiguousarray(arrays[i]), binding)

        self._run(inputs, dims or {}, session, None, after=keep)
        return values

    @worded
    def first_nan(self, inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None,
                  session: Session | None = None) -> str | None:
        """Run, and return the source of a NaN: the first input, parameter or state that contains one, else the first instruction
        whose output does, with its source line; None without NaN. Updates the session, like a run."""
        sources: list[tuple[str, Mapping[str, Any]]] = [("input", self._inputs(inputs)), ("parameter", self.parameters),
                 ("state", {} if session is None else session.snapshot())]
        for kind, arrays in sources:
            for name, array in arrays.items():
                if _has_nan(np.asarray(array)):
                    return f"{kind} {name}"
        first: list[Instruction] = []

        def look(ins: Instruction, arrays: list[np.ndarray]) -> None:
            if not first and any(map(_has_nan, arrays)):
                first.append(ins)

        self._run(inputs, dims or {}, session, None, after=look)
        if not first:
            return None
        (ins,) = first
        at = ins.written_at or self._tapped(self._sizes_of(inputs, dims)).written_at(ins.label)
        return f"{ins.label} ({ins.kernel})" + (f", written at {at}" if at else "")

    def _sizes_of(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None) -> dict[str, int]:
        """Return the sizes of the dims in a run on these inputs."""
        return solve_dims(self._input_types, {n: a.shape for n, a in self._inputs(inputs).items()}, self.graph.dims, dims or {})

    def _instructions(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None) -> Sequence[Instruction]:
        return self.executors[self._cells.index(self._sizes_of(inputs, dims))].program.instructions

    def _tapped(self, binding: Mapping[str, int]) -> NodeValues:
        """Return the node values of the variant for these sizes."""
        from tensor_graphs.runtime.node_instructions import NodeValues  # most callers never look inside

        index = self._cells.index(binding)
        return NodeValues(self.plan, self.plan.variants[index].path, self.executors[index].program)

    @contextmanager
    def no_op(self) -> Iterator[None]:
        """Return a context in which kernels do nothing, to measure the runtime's overhead alone. Outputs are undefined."""
        with ExitStack() as undo:
            for e in self.executors:
                undo.callback(e.silence())
            yield

    @worded
    def time(self, inputs: Mapping[str, Any], *, dims: Mapping[str, int] | None = None, session: Session | None = None,
             repeats: int = 5) -> float:
        """Return the median seconds of a run, after one warm-up."""
        samples = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            self.run(inputs, dims=dims, session=session)
            self.wait()
            samples.append(time.perf_counter() - start)
        return statistics.median(samples[1:])


def _by_name(names: Iterable[str]) -> str:
    """Return the text of a dict with these names as keys, `{'x': …}`, for messages."""
    return f"{{{', '.join(f'{n!r}: …' for n in names)}}}"


def _joined(arrays: Iterable[np.ndarray]) -> list[tuple[int, int]]:
    """Return the address ranges of contiguous arrays, sorted; overlapping ranges are joined."""
    ranges: list[tuple[int, int]] = []
    for low, high in sorted((address(a), address(a) + a.nbytes) for a in arrays):
        if ranges and low < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], high))
        else:
            ranges.append((low, high))
    return ranges


def _window(operand: Operand, whole: np.ndarray, binding: Mapping[str, int]) -> np.ndarray:
    """Return a copy of the window that an operand reads of its buffer's value `whole`."""
    t = TensorType(operand.shape, operand.dtype).at(binding)
    if 0 in t.shape:
        return np.empty(t.shape, dtype=t.dtype.numpy)
    offset = int(d.evaluate(operand.offset, binding))
    strides = tuple(int(d.evaluate(s, binding)) * t.dtype.itemsize for s in operand.strides)
    return np.ndarray(t.shape, dtype=t.dtype.numpy, buffer=memory_of(whole).owner, offset=offset, strides=strides).copy()


def _has_nan(array: np.ndarray) -> bool:
    return array.size > 0 and array.dtype.kind in "fV" and bool(np.isnan(array).any())      # V: bf16


@worded
def bind(plan: Plan, parameters: Mapping[str, Any] | None = None) -> CompiledGraph:
    """Bind parameters to a plan and return the compiled graph. parameters: name -> array; a lazy mapping is read name by name.

    A contiguous array of the right dtype is used without a copy, so changing it changes later runs. Raises RunError.
    """
    if not isinstance(plan, Plan):
        raise RunError(f"bind takes a plan, this is {plan!r}"
                       + ("\n  fix: tg.bind(tg.compile(graph), parameters)" if isinstance(plan, Graph) else ""))
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RunError(f"parameters are given by name, this is a {type(parameters).__name__}\n"
                       f"  fix: tg.bind(plan, {_by_name(list(plan.graph.parameters)[:8])})")
    return CompiledGraph(plan, parameters or {})
