"""tuned_kernel: generated kernels for one signature, with loops arranged by a schedule. The kernel's source is JSON with the schedule:
part of its identity, stored with it in the database, and enough to rebuild it in any process.

Schedules are those of schedule_actions.py (`gen`) and of cuda_schedule.py (`gencuda`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from tensor_graphs.codegen import backend, backend_cuda, compiled_libraries, cuda_schedule, schedule_actions, spec_to_loops
from tensor_graphs.codegen.cuda_schedule import Task
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.loop_program import LoopProgram
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.codegen.print.cuda_loops import printed
from tensor_graphs.codegen.print.cuda_program import ALIGNED, HEADER
from tensor_graphs.codegen.refusals import cached, why_not
from tensor_graphs.codegen.schedule_actions import Schedule
from tensor_graphs.devices import nvrtc
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Kernel, LaunchCall, NativeCall, NotLowered, Spec
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.dims import Dim

BACKENDS = (backend.NAME, backend_cuda.NAME)


@dataclass(frozen=True)
class _Source:
    """The content of a tuned kernel's source. computes: the key of the signature; op: the name of its op."""

    backend: str
    computes: str
    op: str
    schedule: Schedule


def tuned(signature: Signature, schedule: Schedule, backend_name: str = backend.NAME) -> Kernel:
    """Return the kernel of a signature with its loops arranged by a schedule of a backend."""
    content = {"backend": backend_name, "computes": signature.key, "op": signature.spec.op.name,
               "actions": json.loads(schedule_actions.to_json(schedule))}
    return kernel_from(json.dumps(content, sort_keys=True))


def kernel_from(text: str) -> Kernel:
    """Return the kernel that a source describes. Raises IllegalAction."""
    source = _read(text)
    name = f"{source.backend}.tuned_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if source.backend == backend_cuda.NAME:
        return Kernel(name=name, backend=source.backend, op=source.op, build=partial(_launched, text),
                      accepts=partial(why_not, _launched, text), source=text, module=__name__, traffic=backend_cuda.traffic,
                      arithmetic=backend_cuda.arithmetic, toolchain=nvrtc.made_with(HEADER), contiguous=True,
                      strided=backend_cuda.strided, remade=kernel_from.__name__)
    return Kernel(name=name, backend=source.backend, op=source.op, build=partial(_build, text), accepts=partial(_refuse, text),
                  source=text, module=__name__, traffic=partial(_traffic, text), arithmetic=partial(_arithmetic, text),
                  together=partial(_together, text), toolchain=compiled_libraries.made_with(), contiguous=True,
                  strided=backend.strided, remade=kernel_from.__name__)


def text_of(kernel: Kernel, spec: Spec) -> str:
    """Return the source code of a tuned kernel, with its schedule and its math as comments. Raises NotLowered."""
    chosen = "\n".join(f" * {action}" for action in schedule_of(kernel))
    on_gpu = kernel.backend == backend_cuda.NAME
    text = _launched(kernel.source, spec).text if on_gpu else c_loops.rendered(_found(kernel.source, spec))
    return f"/* schedule:\n{chosen}\n */\n{text}"


def differs(kernel: Kernel, spec: Spec) -> str:
    """Return the actions of a tuned kernel that differ from the rules' choice, as readable text."""
    on_gpu = kernel.backend == backend_cuda.NAME
    rules = cuda_schedule.seed(cuda_schedule.task_of(spec)) if on_gpu else schedule_actions.seed(spec_to_loops.definition_of(spec))
    return "; ".join(str(a) for a in schedule_of(kernel) if a not in rules)


def schedule_of(kernel: Kernel) -> Schedule:
    """Return the schedule of a tuned kernel."""
    return _read(kernel.source).schedule


@lru_cache(maxsize=1024)
def _read(text: str) -> _Source:
    try:
        read = json.loads(text)
        name, actions = str(read["backend"]), json.dumps(read["actions"])
        if name not in BACKENDS:
            raise ValueError(f"there are no schedules of {name}")
        schedule = cuda_schedule.from_json(actions) if name == backend_cuda.NAME else schedule_actions.from_json(actions)
        return _Source(name, str(read["computes"]), str(read["op"]), schedule)
    except (KeyError, TypeError, ValueError) as e:
        raise schedule_actions.IllegalAction(f"{text[:80]!r} says no tuned kernel: {type(e).__name__}: {e}") from e


def _own(text: str, spec: Spec) -> Schedule:
    """Return the schedule of a source. Raises NotLowered where it is of another signature."""
    source = _read(text)
    if spec.single_node_graph().structural_key != source.computes:
        raise NotLowered(f"it was tuned for another {source.op}")
    return source.schedule


# ---- on a GPU ------------------------------------------------------------------------------------------------------------------


def launch_call(task: Task, schedule: Schedule) -> LaunchCall:
    """Return the call of kernels as a schedule arranges them. Operands that are not aligned are for the rules' kernels. Raises
    IllegalAction, NotLowered and LanguageError."""
    return launched(task, cuda_schedule.program(task, schedule))


def launched(task: Task, program: LoopProgram) -> LaunchCall:
    """Return the call of a task's kernels."""
    rules, whole = backend_cuda.call_of(task.definition), printed(program)
    return LaunchCall(whole.text, whole.launches, program.source.dims, whole.scratch, ALIGNED, rules.otherwise or rules)


@cached(maxsize=1024)
def _scheduled_launch(text: str, asked: spec_to_loops.AskedSpec) -> LaunchCall:
    schedule, task = _own(text, asked.spec), cuda_schedule.task_of(asked.spec)
    try:
        program = cuda_schedule.program(task, schedule)
        if program.source.updated:
            raise NotLowered("it writes rows into what is there, of which no schedule is searched")
        return launched(task, program)
    except NotLowered:
        raise
    except TensorGraphsError as e:
        raise NotLowered(str(e)) from None


def _launched(text: str, spec: Spec) -> LaunchCall:
    return _scheduled_launch(text, spec_to_loops.asked(spec))


# ---- on a CPU ------------------------------------------------------------------------------------------------------------------


@cached(maxsize=4096)
def _scheduled(text: str, asked: spec_to_loops.AskedSpec) -> StageProgram:
    schedule, definition = _own(text, asked.spec), spec_to_loops.definition_of(asked.spec)
    if spec_to_loops.loops_of(definition).updated:
        raise NotLowered("it writes rows into what is there, of which no schedule is searched")
    try:
        return schedule_actions.replay(definition, schedule)
    except TensorGraphsError as e:
        raise NotLowered(str(e)) from None


def _found(text: str, spec: Spec) -> StageProgram:
    return _scheduled(text, spec_to_loops.asked(spec))


def _refuse(text: str, spec: Spec) -> str | None:
    return why_not(_found, text, spec)


def _build(text: str, spec: Spec) -> NativeCall:
    return backend.call_of(_found(text, spec), len(spec.inputs))


def _together(text: str, specs: Sequence[Spec]) -> list[str | None]:
    return compiled_libraries.compiled_together([partial(_programs, text, spec) for spec in specs])


def _programs(text: str, spec: Spec) -> list[StageProgram]:
    return [_found(text, spec), *backend.programs_apart(spec)]


def _arithmetic(text: str, spec: Spec) -> Dim:
    return backend.steps(_found(text, spec))


def _traffic(text: str, spec: Spec) -> Dim:
    return backend.traffic_in(_found(text, spec))
