"""turns_cuda: a scan as one kernel of a GPU: each block takes its rows through all turns.

Rows that do not depend on each other (rows_apart.py) need not wait for each other either: a block has some of them, keeps what they
carry from turn to turn in shared memory, and waits for nobody. What a turn computes are the nests that render_cuda.py writes for a
step of so few rows, as functions; their blocks are groups of threads of this one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tensor_graphs.codegen.cuda_program import ALIGNED, HEADER, program_of
from tensor_graphs.codegen.loops import AskedSpec, asked, loops_of
from tensor_graphs.codegen.lower import NotLowered
from tensor_graphs.codegen.render_c import STORED
from tensor_graphs.codegen.render_cuda import WAIT, _Cuda
from tensor_graphs.codegen.rows_apart import FewRows, RowsMeet, few_rows
from tensor_graphs.codegen.stages import StageProgram, computed_in
from tensor_graphs.devices import nvrtc
from tensor_graphs.kernels.kernel import Kernel, Launch, LaunchCall, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.body import Turns, slice_type
from tensor_graphs.language.composite import Definition, definition_digest
from tensor_graphs.language.composites.scan import SCAN
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bf16, f16

THREADS = 1024
"""of a block, at most"""

ENOUGH, FEW_ELEMENTS = 264, 256
"""blocks from which on one may have several rows (two for each multiprocessor), and elements of its carries up to which it has"""

NEAR = 96 << 10
"""bytes of operands without rows that each turn reads, at most: they stay in the cache of a multiprocessor"""

MOST_SHARED = 96 << 10
"""bytes of shared memory of a block"""

A_TURN = 3 << 20
"""bytes that the device moves in the time of a turn of a nest, about half a microsecond"""


@dataclass(frozen=True, eq=False)
class _RowsInTurns:
    """turns: operands by role. few: the step on `count` rows, of all `rows`; program: its loops. places: of each output which of
    the values that the step returns it is, as it may return one twice. length: turns."""

    turns: Turns
    few: FewRows
    count: int
    program: StageProgram
    places: tuple[int, ...]
    rows: Dim
    length: Dim


def kernel(backend: str) -> Kernel:
    return Kernel(name=f"{backend}.scan", backend=backend, op="scan", build=build, accepts=refuse,
                  source="stages rendered as CUDA, in a loop", module=__name__, traffic=traffic,
                  toolchain=nvrtc.made_with(HEADER), contiguous=True)


def refuse(spec: Spec) -> str | None:
    """Why a scan is no kernel; None where it is."""
    made = _call(asked(spec))
    return made if isinstance(made, str) else None


def build(spec: Spec) -> LaunchCall:
    """The call of a scan. Raises NotLowered."""
    made = _call(asked(spec))
    if isinstance(made, str):
        raise NotLowered(made)
    return made


def traffic(spec: Spec) -> Dim:
    """The bytes of its operands and outputs, and those that could be moved while its turns wait for each other."""
    found = _turns_of(asked(spec))
    if isinstance(found, str):
        raise NotLowered(found)
    moved: Dim = 0
    for t in (*spec.inputs, *spec.outputs):
        moved = moved + t.nbytes()
    return moved + found.length * len(found.program.nests) * A_TURN


@lru_cache(maxsize=1024)
def _turns_of(asked: AskedSpec) -> _RowsInTurns | str:
    spec = asked.spec
    if spec.op is not SCAN:
        return f"{spec.op.name} is no scan"
    turns = Turns(spec.inputs, spec.attrs)
    carries = len(turns.carries)
    try:
        rows = turns.carries[0].shape[0] if carries and turns.carries[0].rank else 1
        count = _count(turns, rows)
        few = few_rows(turns.step, carries, count)
        distinct = tuple(dict.fromkeys(few.step.outputs))
        step = Definition(few.step.arguments, distinct, definition_digest(distinct))
        why = loops_of(step, updates=False)
        if isinstance(why, str):
            return f"in its step: {why}"
        program = program_of(step)
    except RowsMeet as e:
        return f"its rows depend on each other: {e}"
    except NotLowered as e:
        return f"in its step: {e}"
    if program.dims:
        return "sizes of its step are dims"
    if any(s.scan is not None for nest in program.nests for s in nest.stages):
        return "a running sum in its step is not written for GPUs"
    if not all(few.of_outputs):
        return "what it returns has no rows"
    given = (*map(slice_type, turns.sliced), *turns.others)
    apart = [t for t, has in zip(given, few.of_arguments[carries:], strict=True) if not has]
    if sum(int(d.evaluate(t.nbytes(), {})) for t in apart) > NEAR:
        return f"each turn reads more than {NEAR >> 10} KB that all rows share"
    places = tuple(distinct.index(o) for o in few.step.outputs)
    return _RowsInTurns(turns, few, count, program, places, rows, turns.sliced[0].shape[0])


def _count(turns: Turns, rows: Dim) -> int:
    """Rows of a block: as many as have few elements, where there are blocks enough; they divide all rows."""
    if not isinstance(rows, int) or rows == 0:
        return 1
    each = sum(math.prod(int(d.bounds(s)[1]) for s in t.shape[1:]) for t in turns.carries)
    return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or (n * each <= FEW_ELEMENTS and rows // n >= ENOUGH)))


@lru_cache(maxsize=1024)
def _call(asked: AskedSpec) -> LaunchCall | str:
    found = _turns_of(asked)
    if isinstance(found, str):
        return found
    try:
        whole, other = _text(asked.spec, found, True), _text(asked.spec, found, False)
    except NotLowered as e:
        return str(e)
    single = LaunchCall(*other, (found.length, found.rows), ())
    return single if whole == other else LaunchCall(*whole, (found.length, found.rows), (), ALIGNED, single)


def _text(spec: Spec, found: _RowsInTurns, aligned: bool) -> tuple[str, tuple[Launch, ...]]:
    """The kernel's text, and its launch. Raises NotLowered."""
    turns, few, count, program = found.turns, found.few, found.count, found.program
    carries, slices = len(turns.carries), len(turns.sliced)
    types = [x.type for x in (*few.step.arguments, *few.step.outputs)]
    sizes = [math.prod(int(s) for s in t.shape) for t in types]
    if aligned and any(n * t.dtype.itemsize % ALIGNED for n, t in zip(sizes, types, strict=True)):
        return _text(spec, found, False)                            # rows begin where no pack does
    cuda = _Cuda(program, aligned, "step")
    bodies = cuda.bodies()
    if cuda.long_rows:
        raise NotLowered("a row of its step is in scratch")
    parameters = cuda.parameters()
    names = [p.rsplit("*", 1)[1].split()[-1] for p in parameters.split(", ")]
    block = _block(cuda.launches, bodies)
    lines = ["/* " + str(program).replace("\n", "\n * ").replace("*/", "* /") + " */"]
    lines += ["#define NARROW"] if all(a.dtype in (bf16, f16) for a in program.outputs) else []
    lines += ['#include "numbers.cuh"', "", f"typedef {'int64_t' if cuda.wide else 'int'} index_t;"]
    own = 0
    for k, (launch, body) in enumerate(zip(cuda.launches, bodies, strict=True)):
        inner = body[body.index(f"    {WAIT}") + 1:-1]
        grid = int(d.evaluate(launch.grid, {}))
        lines.append(f"\nstatic __device__ __forceinline__ void turn{k}({parameters}, char *own_rows, index_t sub_block, "
                     "int sub_thread) {")
        lines += [f"    const index_t sub_blocks = {grid};", "    (void)own_rows, (void)sub_blocks;"]
        lines += [_of_a_group(line) for line in inner]
        lines.append("}")
        own = max(own, launch.shared * max(1, block // launch.block))
    # ---- the loop
    room, at = 0, dict[str, int]()

    def shared(name: str, nbytes: int) -> None:
        nonlocal room
        at[name] = room
        room += -(-nbytes // 16) * 16

    for k, t in enumerate(types[:carries]):
        for place in "ab":
            shared(f"{place}{k}", sizes[k] * t.dtype.itemsize)
    for a in program.scratch:
        if a.level == 0:
            shared(a.name, int(d.evaluate(a.size, {})) * computed_in(a.dtype).itemsize)
    if room + own > MOST_SHARED:
        raise NotLowered(f"its rows take {room + own} bytes of shared memory")
    outs = [f"{STORED[t.dtype.name]} *__restrict__ out{k}" for k, t in enumerate(spec.outputs)]
    ins = [f"const {STORED[t.dtype.name]} *__restrict__ in{k}" for k, t in enumerate(spec.inputs)]
    lines.append(f'\nextern "C" __global__ void __launch_bounds__({block}) turns({", ".join([*outs, *ins])}, '
                 "const int64_t *__restrict__ sizes) {")
    lines += ["    extern __shared__ __align__(16) char rows[];", f"    {WAIT}",
              "    const int64_t turns = sizes[0], all_rows = sizes[1], row = blockIdx.x;"]
    for k, t in enumerate(types[:carries]):
        kind = STORED[t.dtype.name]
        lines += [f"    {kind} *const a{k} = ({kind} *)(rows + {at[f'a{k}']}), *const b{k} = ({kind} *)(rows + {at[f'b{k}']});",
                  f"    for (int i = threadIdx.x; i < {sizes[k]}; i += {block}) a{k}[i] = in{k}[row * {sizes[k]} + i];"]
    for a in program.scratch:
        if a.level == 0:
            kind = STORED[computed_in(a.dtype).name]
            lines.append(f"    {kind} *const {a.name} = ({kind} *)(rows + {at[a.name]});")
    lines += ["    __syncthreads();", "    for (int64_t turn = 0; turn < turns; turn++) {",
              f"        const int64_t slice = {'turns - 1 - turn' if turns.reverse else 'turn'};"]
    values: dict[str, str] = {}
    for k in range(len(types) - len(few.step.outputs)):
        has, size = few.of_arguments[k], sizes[k]
        if k < carries:
            text = f"(turn % 2 ? b{k} : a{k})"
        elif k < carries + slices:
            text = f"in{k} + " + (f"(slice * (all_rows / {count}) + row) * {size}" if has else f"slice * {size}")
        else:
            text = f"in{k} + " + (f"row * {size}" if has else "0")
        values[f"x{k}"] = text
    into = []
    for k in range(len(few.step.outputs)):
        size = sizes[len(few.step.arguments) + k]
        into.append(f"(turn % 2 ? a{k} : b{k})" if k < carries else f"out{k} + (slice * (all_rows / {count}) + row) * {size}")
    for u in range(max(found.places) + 1):
        values[f"y{u}"] = into[found.places.index(u)]
    given = [values.get(name, name) for name in names]
    for k, launch in enumerate(cuda.launches):
        grid, groups = int(d.evaluate(launch.grid, {})), block // launch.block
        lines.append(f"        for (int sub = threadIdx.x / {launch.block}; sub < {grid}; sub += {groups})")
        lines.append(f"            turn{k}({', '.join(given)}, rows + {room} + threadIdx.x / {launch.block} * {launch.shared}, "
                     f"sub, threadIdx.x % {launch.block});")
        lines.append("        __syncthreads();")
    for k, u in enumerate(found.places):
        if found.places.index(u) != k:
            size = sizes[len(few.step.arguments) + k]
            lines.append(f"        for (int i = threadIdx.x; i < {size}; i += {block}) ({into[k]})[i] = "
                         f"({into[found.places.index(u)]})[i];")
    if any(found.places.index(u) != k and k < carries for k, u in enumerate(found.places)):
        lines.append("        __syncthreads();")
    lines.append("    }")
    for k in range(carries):
        lines.append(f"    for (int i = threadIdx.x; i < {sizes[k]}; i += {block}) out{k}[row * {sizes[k]} + i] = "
                     f"(turns % 2 ? b{k} : a{k})[i];")
    text = "\n".join([*lines, "}"]) + "\n"
    return text, (Launch("turns", d.ceil_div(found.rows, count), block, room + own, waits=True),)


_WAITS = re.compile(r"__syncthreads|__shared__|reduced<(64|128|256|512|1024)>")


def _block(launches: Sequence[Launch], bodies: Sequence[Sequence[str]]) -> int:
    """Threads of a block: those of a nest whose threads wait for each other, else as many as all groups of the largest nest have.
    Raises NotLowered."""
    fixed = {launch.block for launch, body in zip(launches, bodies, strict=True)
             if any(_WAITS.search(line) and "extern __shared__" not in line for line in body)}
    wanted = max(launch.block * int(d.evaluate(launch.grid, {})) for launch in launches)
    if len(fixed) > 1:
        raise NotLowered("its nests have blocks of several sizes whose threads wait for each other")
    largest = max(launch.block for launch in launches)
    block = fixed.pop() if fixed else max(largest, min(THREADS, wanted) // largest * largest)
    if any(block % launch.block for launch in launches):
        raise NotLowered("its nests have blocks of several sizes")
    return block


def _of_a_group(line: str) -> str:
    """A line of a nest's kernel, for a group of threads as one of its blocks."""
    return (line.replace("extern __shared__ __align__(16) char rows[];", "char *const rows = own_rows;")
            .replace("blockIdx.x", "sub_block").replace("gridDim.x", "sub_blocks").replace("threadIdx.x", "sub_thread"))
