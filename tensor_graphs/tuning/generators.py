"""generators: the generators of kernels whose schedules are searched, and what a search asks of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from tensor_graphs.codegen import (
    backend,
    backend_cuda,
    compiled_libraries,
    cuda_schedule,
    interpret,
    interpret_loops,
    schedule_actions,
    spec_to_loops,
    tile_schedule,
)
from tensor_graphs.codegen.evaluate import StageError
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.loop_program import LoopProgram
from tensor_graphs.codegen.schedule_actions import Action, Again, Parts, Schedule
from tensor_graphs.codegen.tuned_kernel import CUDA_LOOPS, LOOPS, TILES, launched
from tensor_graphs.kernels.kernel import LaunchCall, Spec
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.tuning.timing import Paired, ScheduleBench, WrongOutputs
from tensor_graphs.tuning.timing import compiled as compiled_for_host

SMALL, SMALL_LOOPS = 1 << 16, 1 << 13
"""most iterations of a program that the interpreter checks, if it is cut or lowered differently; of loops for a GPU, which it
checks for races, too"""


class TimingBench(Protocol):
    """Operands of a signature at given sizes, on which programs are called and timed. operands: those of a set, as arrays."""

    ints: dict[str, int]
    operands: list[np.ndarray]

    def load(self, program: Any) -> Any: ...
    def compare(self, run: Any) -> None: ...
    def pairs(self, run: Any, seed: Any, rounds: int) -> Paired: ...


@dataclass(frozen=True)
class CudaKernels:
    """Kernels for a GPU as loops, and their call."""

    loops: LoopProgram
    call: LaunchCall


@dataclass(frozen=True)
class Generator:
    """A generator. kernel: the kernel with the rules' schedule, the seed of every search. timer: what times its kernels. task: what
    of a spec is generated. The rest are functions of a task, or of programs that `program` returns. text: equal for equal programs.
    runnable: what a bench loads. eager: compilers run at the same time, so all neighbours of the seed are compiled first."""

    kernel: str
    backend: str
    timer: str
    bench: Callable[[Signature, Mapping[str, int]], TimingBench]
    task: Callable[[Spec], Any]
    seed: Callable[[Any], Schedule]
    choices: Callable[[Any, Schedule], list[list[Action]]]
    changed: Callable[[Any, Schedule, Action], Schedule]
    program: Callable[[Any, Schedule], Any]
    text: Callable[[Any], str]
    compiled: Callable[[Iterable[Any]], list[str | None]]
    runnable: Callable[[Any], Any]
    interpret: Callable[[Any, Any, tuple[Schedule, Schedule], list[np.ndarray], Mapping[str, int]], None]
    eager: bool = True


def host_interpreted(program: StageProgram, seed: StageProgram, schedules: tuple[Schedule, Schedule], operands: list[np.ndarray],
                     dims: Mapping[str, int]) -> None:
    """Check a small program that is lowered or cut differently with the interpreter. Raises WrongOutputs if it differs."""
    own, its = ([a for a in schedule if isinstance(a, (Again, Parts))] for schedule in schedules)
    if own != its and max(turns(seed), turns(program)) <= SMALL:
        flat = [x.reshape(-1) for x in operands]
        _same(interpret.run(program, flat, dims), interpret.run(seed, flat, dims))


def device_interpreted(program: CudaKernels, seed: CudaKernels, schedules: tuple[Schedule, Schedule], operands: list[np.ndarray],
                       dims: Mapping[str, int]) -> None:
    """Check small kernels with the interpreter of loops, which reports races. Raises WrongOutputs."""
    if turns(program.loops.source) > SMALL_LOOPS:
        return
    flat = [x.reshape(-1) for x in operands]
    try:
        results = interpret_loops.run(program.loops, flat, dims)
    except StageError as e:
        raise WrongOutputs(f"the interpreter of loops reports: {e}") from e
    _same(results, interpret.run(seed.loops.source, flat, dims))


def _same(results: Sequence[np.ndarray], meant: Sequence[np.ndarray]) -> None:
    for output, ref in zip(results, meant, strict=True):
        if not np.allclose(output, ref, rtol=1e-7, atol=1e-7, equal_nan=True):
            raise WrongOutputs("the interpreter computes something else than from the rules' schedule")


def turns(program: StageProgram) -> int:
    """Return the iterations of all stages at the largest sizes."""
    axes = ((*n.axes[:s.level], *s.axes, *s.reduce) for n in program.nests for s in n.stages)
    return sum(int(np.prod([d.bounds(a.size)[1] for a in own], dtype=float)) for own in axes)


def _on_device(signature: Signature, binding: Mapping[str, int]) -> TimingBench:
    from tensor_graphs.tuning.device_timing import DeviceBench  # a door: most machines have no such device

    return DeviceBench(signature, binding)


def _compiled_for_device(calls: Iterable[LaunchCall]) -> list[str | None]:
    from tensor_graphs.tuning.device_timing import compiled  # a door: as above

    return compiled(calls)


def _kernels(task: cuda_schedule.KernelTask, schedule: Schedule) -> CudaKernels:
    loops = cuda_schedule.program(task, schedule)
    return CudaKernels(loops, launched(task, loops))


def _opaque(program: Any, seed: Any, schedules: tuple[Schedule, Schedule], operands: list[np.ndarray],
            dims: Mapping[str, int]) -> None:
    """Check nothing: instructions of tensor cores run on a GPU only."""


HOST = Generator(
    LOOPS, backend.NAME, "perf_counter", lambda *operands: ScheduleBench(*operands), spec_to_loops.definition_of,
    schedule_actions.seed, schedule_actions.choices, schedule_actions.changed,
    lambda task, schedule: schedule_actions.replay(task, schedule), lambda program: compiled_libraries.code_of(program).symbol,
    lambda programs: compiled_for_host(list(programs)), lambda program: program, host_interpreted, eager=False)

DEVICE = Generator(
    CUDA_LOOPS, backend_cuda.NAME, "events", _on_device, cuda_schedule.task_of, cuda_schedule.seed,
    cuda_schedule.choices, cuda_schedule.changed, _kernels, lambda program: str(program.call.text),
    lambda programs: _compiled_for_device(program.call for program in programs), lambda program: program.call,
    device_interpreted)

OF_TILES = tuple(Generator(
    name, backend_cuda.NAME, "events", _on_device, partial(tile_schedule.task_of, template), tile_schedule.seed,
    tile_schedule.choices, tile_schedule.changed, tile_schedule.program, lambda call: str(call.text), _compiled_for_device,
    lambda call: call, _opaque, eager=False) for name, template in TILES.items())

GENERATORS: Mapping[str, Generator] = {one.kernel: one for one in (HOST, DEVICE, *OF_TILES)}
"""the name of the kernel with the rules' schedule -> its generator"""
