"""tuned_kernel: generated kernels for one signature, with loops arranged by a schedule. The kernel's source is JSON with the
schedule: part of its identity, stored with it in the database, and enough to rebuild it in any process.

Schedules are those of schedule_actions.py (`gen.loops`), cuda_schedule.py (`gencuda.loops`) and tile_schedule.py (`gencuda.tiles`,
`gencuda.turned`): of the kernel that has the rules' schedule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from tensor_graphs.codegen import (
    backend,
    backend_cuda,
    compiled_libraries,
    cuda_schedule,
    schedule_actions,
    spec_to_loops,
    tile_schedule,
)
from tensor_graphs.codegen.cuda_schedule import KernelTask
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.loop_program import LoopProgram
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.codegen.print.cuda_loops import printed
from tensor_graphs.codegen.print.cuda_program import ALIGNED
from tensor_graphs.codegen.refusals import cached, why_not
from tensor_graphs.codegen.schedule_actions import Schedule
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Kernel, LaunchCall, NativeCall, NotLowered, Spec
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.dims import Dim

LOOPS, CUDA_LOOPS = f"{backend.NAME}.loops", f"{backend_cuda.NAME}.loops"
TILES = {f"{backend_cuda.NAME}.{name}": template for name, template in tile_schedule.SHAPED.items()}

READ: Mapping[str, Callable[[str], Schedule]] = {
    LOOPS: schedule_actions.from_json, CUDA_LOOPS: partial(schedule_actions.from_json, kinds=cuda_schedule.ACTIONS),
    **dict.fromkeys(TILES, partial(schedule_actions.from_json, kinds=tile_schedule.ACTIONS))}
"""the kernel with the rules' schedule -> what reads its schedules"""


@dataclass(frozen=True)
class _Source:
    """The content of a tuned kernel's source. kernel: the one with the rules' schedule; computes: the key of the signature; op: the
    name of its op."""

    kernel: str
    computes: str
    op: str
    schedule: Schedule


def tuned(signature: Signature, schedule: Schedule, kernel: str = LOOPS) -> Kernel:
    """Return the kernel of a signature with its loops arranged by a schedule. kernel: name of the one with the rules' schedule."""
    content = {"kernel": kernel, "computes": signature.key, "op": signature.spec.op.name,
               "actions": json.loads(schedule_actions.to_json(schedule))}
    return kernel_from(json.dumps(content, sort_keys=True))


def kernel_from(text: str) -> Kernel:
    """Return the kernel that a source describes. Raises IllegalAction."""
    source = _read(text)
    own = source.kernel.partition(".")[0]
    name = f"{own}.tuned_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if source.kernel != LOOPS:
        rules = next(k for k in backend_cuda.kernels() if k.name == source.kernel)
        return replace(rules, name=name, op=source.op, build=partial(_launched, text), accepts=partial(_refuse_launch, text),
                       source=text, module=__name__, shares=None, prepare=None, extends=None, remade=kernel_from.__name__)
    return Kernel(name=name, backend=own, op=source.op, build=partial(_build, text), accepts=partial(_refuse, text),
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
    name = _read(kernel.source).kernel
    if name == LOOPS:
        rules = schedule_actions.seed(spec_to_loops.definition_of(spec))
    elif name == CUDA_LOOPS:
        rules = cuda_schedule.seed(cuda_schedule.task_of(spec))
    else:
        rules = tile_schedule.seed(tile_schedule.task_of(TILES[name], spec))
    return "; ".join(str(a) for a in schedule_of(kernel) if a not in rules)


def schedule_of(kernel: Kernel) -> Schedule:
    """Return the schedule of a tuned kernel."""
    return _read(kernel.source).schedule


@lru_cache(maxsize=1024)
def _read(text: str) -> _Source:
    try:
        read = json.loads(text)
        name = str(read["kernel"])
        return _Source(name, str(read["computes"]), str(read["op"]), READ[name](json.dumps(read["actions"])))
    except (KeyError, TypeError, ValueError) as e:
        raise schedule_actions.IllegalAction(f"{text[:80]!r} says no tuned kernel: {type(e).__name__}: {e}") from e


def _own(text: str, spec: Spec) -> Schedule:
    """Return the schedule of a source. Raises NotLowered where it is of another signature."""
    source = _read(text)
    if spec.single_node_graph().structural_key != source.computes:
        raise NotLowered(f"it was tuned for another {source.op}")
    return source.schedule


# ---- on a GPU ------------------------------------------------------------------------------------------------------------------


def launch_call(task: KernelTask, schedule: Schedule) -> LaunchCall:
    """Return the call of kernels as a schedule arranges them. Operands that are not aligned are for the rules' kernels. Raises
    IllegalAction, NotLowered and LanguageError."""
    return launched(task, cuda_schedule.program(task, schedule))


def launched(task: KernelTask, program: LoopProgram) -> LaunchCall:
    """Return the call of a task's kernels."""
    rules, whole = backend_cuda.call_of(task.definition), printed(program)
    return LaunchCall(whole.text, whole.launches, program.source.dims, whole.scratch, ALIGNED, rules.otherwise or rules)


@cached(maxsize=1024)
def _scheduled_launch(text: str, asked: spec_to_loops.AskedSpec) -> LaunchCall:
    schedule, kernel = _own(text, asked.spec), _read(text).kernel
    try:
        if kernel in TILES:
            return tile_schedule.program(tile_schedule.task_of(TILES[kernel], asked.spec), schedule)
        task = cuda_schedule.task_of(asked.spec)
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


def _refuse_launch(text: str, spec: Spec) -> str | None:
    return why_not(_launched, text, spec)


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
