"""scan_cuda: a scan as one GPU kernel, in which each block takes its rows through all iterations.

Independent rows (row_independence.py) need not wait for each other: a block has some of them, keeps their carries in shared memory
between iterations, and never waits for other blocks. cuda_source.py writes the nests of a step for so few rows; here they become
functions, whose blocks are groups of threads of the scan's block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensor_graphs.codegen.loop_ir import StageProgram, computed_in
from tensor_graphs.codegen.passes.row_independence import FewRows, RowsMeet, few_rows
from tensor_graphs.codegen.print.cuda_program import ALIGNED, HEADER, program_of
from tensor_graphs.codegen.print.cuda_source import SHARED, WAIT, _Cuda
from tensor_graphs.codegen.print.scan_c import each_once
from tensor_graphs.codegen.print.values import STORED
from tensor_graphs.codegen.refusals import cached, refused, why_not
from tensor_graphs.codegen.spec_to_loops import AskedSpec, asked, loops_of
from tensor_graphs.devices import nvrtc
from tensor_graphs.kernels.kernel import Kernel, Launch, LaunchCall, NotLowered, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.composites.scan import SCAN
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import Node
from tensor_graphs.language.subgraph import Turns, slice_type

THREADS = 1024
"""most threads of a block"""

ENOUGH, FEW_ELEMENTS = 264, 256
"""blocks (two per multiprocessor) from which on each may have several rows, and the most carry elements of such a block"""

NEAR = 96 << 10
"""most bytes of operands without rows that each iteration reads: they stay in a multiprocessor's cache"""

KEPT_WORDS = 32 << 10
"""most 4-byte words that a block's threads keep between iterations: half of the registers of a multiprocessor"""

SLOTS = 4
"""iterations whose slices have room in shared memory, a power of two; the slices of all but one are being copied meanwhile"""

A_TURN = 3 << 20
"""bytes that the device moves in the time of one iteration of a nest, about half a microsecond"""


@dataclass(frozen=True, eq=False)
class _RowsInTurns:
    """A scan by rows. turns: operands by role. few: the step on `count` of `rows` rows; program: its loops. places: for each output
    the index of its value in the step, which may return one twice. length: iterations."""

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
    """Return why a scan cannot be one kernel; None where it can."""
    return why_not(_call, asked(spec))


def build(spec: Spec) -> LaunchCall:
    """Return the call of a scan. Raises NotLowered."""
    return _call(asked(spec))


def traffic(spec: Spec) -> Dim:
    """Return the bytes of a scan's operands and outputs, and those that could be moved while iterations wait for each other."""
    scan = _turns_of(asked(spec))
    return sum(t.nbytes() for t in (*spec.inputs, *spec.outputs)) + scan.length * len(scan.program.nests) * A_TURN


@cached(maxsize=1024)
def _turns_of(asked: AskedSpec) -> _RowsInTurns:
    spec = asked.spec
    if spec.op is not SCAN:
        raise NotLowered(f"{spec.op.name} is no scan")
    turns = Turns(spec.inputs, spec.attrs)
    carries = len(turns.carries)
    try:
        rows = turns.carries[0].shape[0] if carries and turns.carries[0].rank else 1
        count = _count(turns, rows)
        few = few_rows(turns.step, carries, count)
    except RowsMeet as e:
        raise NotLowered(f"its rows depend on each other: {e}") from None
    step, places = each_once(few.step)
    with refused("in its step: "):
        loops_of(step, updates=False)
        program = program_of(step, alone=True)
    if program.dims:
        raise NotLowered("sizes of its step are dims")
    if any(s.scan is not None for s in program.stages):
        raise NotLowered("a running sum in its step is not written for GPUs")
    if not all(few.of_outputs):
        raise NotLowered("what it returns has no rows")
    types = (*map(slice_type, turns.sliced), *turns.others)
    apart = [t for t, has in zip(types, few.of_arguments[carries:], strict=True) if not has]
    if sum(int(d.evaluate(t.nbytes(), {})) for t in apart) > NEAR:
        raise NotLowered(f"each turn reads more than {NEAR >> 10} KB that all rows share")
    return _RowsInTurns(turns, few, count, program, places, rows, turns.sliced[0].shape[0])


def _count(turns: Turns, rows: Dim) -> int:
    """Return the rows of a block: as many as keep its carries small, where there are enough blocks; a divisor of all rows."""
    if not isinstance(rows, int) or rows == 0:
        return 1
    elements = sum(math.prod(int(d.bounds(s)[1]) for s in t.shape[1:]) for t in turns.carries)
    most = min(rows // ENOUGH, FEW_ELEMENTS // max(1, elements))
    return max((n for n in range(2, most + 1) if rows % n == 0), default=1)


@cached(maxsize=1024)
def _call(asked: AskedSpec) -> LaunchCall:
    scan = _turns_of(asked)
    whole, other = _text(asked.spec, scan, True), _text(asked.spec, scan, False)
    single = LaunchCall(*other, (scan.length, scan.rows), ())
    return single if whole == other else LaunchCall(*whole, (scan.length, scan.rows), (), ALIGNED, single)


def _text(spec: Spec, scan: _RowsInTurns, aligned: bool) -> tuple[str, tuple[Launch, ...]]:
    """Return the kernel's source and its launch. Raises NotLowered."""
    few = scan.few
    values = [*few.step.arguments, *few.step.outputs]
    if aligned and any(_size(x) * x.dtype.itemsize % ALIGNED for x in values):
        return _text(spec, scan, False)                            # rows begin where no pack does
    cuda, bodies, waits, block = _nests(scan, aligned, True)
    if cuda.kept and (cuda.kept_words * block > KEPT_WORDS or any(_threads(launch) > block for launch in cuda.launches)):
        cuda, bodies, waits, block = _nests(scan, aligned, False)  # too much to keep, or of several turns for one thread
    own = max(launch.shared * (block // launch.block) for launch in cuda.launches)
    rooms = ((_Room(scan, aligned, slots), most) for slots, most in ((SLOTS, SHARED // 2), (2, SHARED // 2), (0, SHARED)))
    room = next((r for r, most in rooms if r.nbytes + own <= most), None)
    if room is None:
        raise NotLowered(f"its rows take more than {SHARED} bytes of shared memory")
    lines = [*cuda.preamble(), *_functions(cuda, bodies), *_loop(spec, scan, cuda, waits, block, room)]
    return "\n".join(lines) + "\n", (Launch("turns", d.ceil_div(scan.rows, scan.count), block, room.nbytes + own, waits=True),)


def _nests(scan: _RowsInTurns, aligned: bool, keep: bool) -> tuple[_Cuda, list[list[str]], list[bool], int]:
    """Return the renderer of a step, the lines of each nest, whether its threads wait for each other, and the threads of a block.
    keep: what a thread reads in each iteration stays in its registers. Raises NotLowered."""
    sliced, arguments = len(scan.turns.carries) + len(scan.turns.sliced), len(scan.few.step.arguments)
    lasting = [f"x{k}" for k in range(sliced, arguments)] if keep else []
    cuda = _Cuda(scan.program, aligned, "step", True, lasting, _copies(scan))
    bodies = cuda.bodies()
    if cuda.long_rows:
        raise NotLowered("a row of its step is in scratch")
    waits = [any(_WAITS.search(line) and "extern __shared__" not in line for line in body) for body in bodies]
    return cuda, bodies, waits, _block(cuda.launches, waits)


def _copies(scan: _RowsInTurns) -> dict[str, list[str]]:
    """Return the extra parameters for values that a step returns repeatedly: the first output's name -> the others' names."""
    again: dict[str, list[str]] = {}
    for k, u in enumerate(scan.places):
        if scan.places.index(u) != k:
            again.setdefault(f"y{u}", []).append(f"again{k}")
    return again


_WAITS = re.compile(r"__syncthreads|__shared__|reduced<(64|128|256|512|1024)>")


def _block(launches: Sequence[Launch], waits: Sequence[bool]) -> int:
    """Return the threads of a block. If threads of a nest wait for each other, it is that nest's block; else all groups of the
    largest nest fit, up to THREADS. Raises NotLowered."""
    fixed = {launch.block for launch, one in zip(launches, waits, strict=True) if one}
    wanted = max(map(_threads, launches))
    if len(fixed) > 1:
        raise NotLowered("its nests have blocks of several sizes whose threads wait for each other")
    largest = max(launch.block for launch in launches)
    block = fixed.pop() if fixed else max(largest, min(THREADS, wanted) // largest * largest)
    if any(block % launch.block for launch in launches):
        raise NotLowered("its nests have blocks of several sizes")
    return block


def _threads(launch: Launch) -> int:
    """Return the threads of all groups of a nest."""
    return launch.block * int(d.evaluate(launch.grid, {}))


def _size(x: Node) -> int:
    return math.prod(int(s) for s in x.shape)


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


class _Room:
    """The layout of a block's shared memory: each carry twice (a, b: one iteration reads what the previous wrote), slices of some
    iterations (s), and scratch of a step; rows of nests follow. ahead: operand number -> bytes of one asynchronous copy; other
    slices are read directly from global memory."""

    def __init__(self, scan: _RowsInTurns, aligned: bool, slots: int) -> None:
        self.at: dict[str, tuple[str, int]] = {}
        self.slots = slots
        self.ahead: dict[int, int] = {}
        self.nbytes = 0
        carries = len(scan.turns.carries)
        for k, x in enumerate(scan.few.step.arguments[:carries + len(scan.turns.sliced)]):
            nbytes, at_once = _size(x) * x.dtype.itemsize, ALIGNED if aligned else x.dtype.itemsize
            for place in "ab" if k < carries else "":
                self._put(f"{place}{k}", STORED[x.dtype.name], nbytes)
            if k >= carries and slots and nbytes and at_once >= 4:
                self.ahead[k] = at_once
                self._put(f"s{k}", STORED[x.dtype.name], slots * _padded(nbytes))
        for a in (a for a in scan.program.scratch if a.level == 0):
            dtype = computed_in(a.dtype)
            self._put(a.name, STORED[dtype.name], int(d.evaluate(a.size, {})) * dtype.itemsize)

    def _put(self, name: str, kind: str, nbytes: int) -> None:
        self.at[name] = kind, self.nbytes
        self.nbytes += _padded(nbytes)

    def lines(self) -> list[str]:
        return [f"    {kind} *const {name} = ({kind} *)(rows + {begin});" for name, (kind, begin) in self.at.items()]


def _functions(cuda: _Cuda, bodies: Sequence[Sequence[str]]) -> list[str]:
    """Return the nests of a step, each as a function that runs one of its blocks."""
    types = {a.name: STORED[a.dtype.name] for a in cuda.program.outputs}
    parameters = [cuda.parameters(), *(f"{types[of]} *{name}" for of, names in cuda.copies.items() for name in names)]
    lines = []
    if cuda.kept:
        lines += ["\nstruct Kept {", *(f"    {field}" for field in cuda.kept), "};"]
        parameters += ["Kept &kept", "const bool first"]
    for k, (launch, body) in enumerate(zip(cuda.launches, bodies, strict=True)):
        lines += [(f"\nstatic __device__ __forceinline__ void turn{k}({', '.join(parameters)}, char *own_rows, index_t sub_block, "
                  "int sub_thread) {"),
                  f"    const index_t sub_blocks = {int(d.evaluate(launch.grid, {}))};", "    (void)own_rows, (void)sub_blocks;",
                  *map(_of_a_group, body[body.index(f"    {WAIT}") + 1:-1]), "}"]
    return lines


def _places(scan: _RowsInTurns, room: _Room) -> tuple[dict[str, str], list[str], dict[int, str]]:
    """Return the address of each operand and value of a step in an iteration, the destination of each output, and the source of
    each slice that is copied ahead."""
    few, carries, sliced = scan.few, len(scan.turns.carries), len(scan.turns.carries) + len(scan.turns.sliced)
    row_of_slice = f"(slice * (all_rows / {scan.count}) + row)"
    values, sources = {}, {}
    for k, (x, has) in enumerate(zip(few.step.arguments, few.of_arguments, strict=True)):
        begin = (row_of_slice if has else "slice") if k < sliced else "row" if has else "0"
        values[f"x{k}"] = f"(turn % 2 ? b{k} : a{k})" if k < carries else f"in{k} + {begin} * {_size(x)}"
        if k in room.ahead:
            sources[k], values[f"x{k}"] = values[f"x{k}"], _slot(x, k, room)
    into = [f"(turn % 2 ? a{k} : b{k})" if k < carries else f"out{k} + {row_of_slice} * {_size(x)}"
            for k, x in enumerate(few.step.outputs)]
    values |= {f"y{u}": into[scan.places.index(u)] for u in set(scan.places)}
    return values, into, sources


def _slot(x: Node, k: int, room: _Room) -> str:
    return f"(s{k} + (int)(turn & {room.slots - 1}) * {_padded(_size(x) * x.dtype.itemsize) // x.dtype.itemsize})"


def _ahead(scan: _RowsInTurns, room: _Room, sources: Mapping[int, str], block: int) -> list[str]:
    """Return the lines that request the slices of an iteration, as one group of copies, which may be empty."""
    lines = ["    const auto ahead = [&](int64_t turn) {", "        if (turn < turns) {",
             f"            const int64_t slice = {_slice(scan)};"]
    for k, source in sources.items():
        x, at_once = scan.few.step.arguments[k], room.ahead[k]
        step, count = at_once // x.dtype.itemsize, _size(x) * x.dtype.itemsize // at_once
        lines += [f"            for (int i = threadIdx.x; i < {count}; i += {block})",
                  f"                copy_ahead<{at_once}>({_slot(x, k, room)} + i * {step}, {source} + i * {step});"]
    return [*lines, "        }", "        copies_end();", "    };"]


def _slice(scan: _RowsInTurns) -> str:
    return "turns - 1 - turn" if scan.turns.reverse else "turn"


def _loop(spec: Spec, scan: _RowsInTurns, cuda: _Cuda, waits: Sequence[bool], block: int, room: _Room) -> list[str]:
    """Return the kernel: carries are copied to shared memory, iterations run in order, and the carries are copied back."""
    program, carried = scan.program, scan.few.step.arguments[:len(scan.turns.carries)]
    values, into, sources = _places(scan, room)
    values |= {f"again{k}": to for k, to in enumerate(into)}
    arguments = ", ".join([*(values.get(a.name, a.name) for a in (
        *program.outputs, *program.operands, *(a for a in program.scratch if a.level == 0))),
        *(values[name] for names in cuda.copies.values() for name in names), *(["kept", "turn == 0"] if cuda.kept else [])])

    def copied(size: int, to: str, source: str) -> str:
        return f"for (int i = threadIdx.x; i < {size}; i += {block}) ({to})[i] = ({source})[i];"

    outs = [f"{STORED[t.dtype.name]} *__restrict__ out{k}" for k, t in enumerate(spec.outputs)]
    ins = [f"const {STORED[t.dtype.name]} *in{k}" for k, t in enumerate(spec.inputs)]
    arrived = [f"copies_wait<{room.slots - 2}>();"] if sources else []
    lines = [(f'\nextern "C" __global__ void __launch_bounds__({block}) turns({", ".join([*outs, *ins])}, '
             "const int64_t *__restrict__ sizes) {"),
             "    extern __shared__ __align__(16) char rows[];", f"    {WAIT}",
             "    const int64_t turns = sizes[0], all_rows = sizes[1], row = blockIdx.x;", *room.lines(),
             *(["    Kept kept;"] if cuda.kept else []), *(_ahead(scan, room, sources, block) if sources else []),
             *(f"    ahead({turn});" for turn in range(room.slots - 1) if sources),
             *(f"    {copied(_size(x), f'a{k}', f'in{k} + row * {_size(x)}')}" for k, x in enumerate(carried)),
             *(f"    {line}" for line in arrived),
             "    __syncthreads();", "    for (int64_t turn = 0; turn < turns; turn++) {",
             f"        const int64_t slice = {_slice(scan)};", *([f"        ahead(turn + {room.slots - 1});"] if sources else [])]
    for k, (launch, one) in enumerate(zip(cuda.launches, waits, strict=True)):
        group = f"threadIdx.x / {launch.block}"
        lines += [f"        for (int sub = {group}; sub < {int(d.evaluate(launch.grid, {}))}; sub += {block // launch.block}) {{",
                  (f"            turn{k}({arguments}, rows + {room.nbytes} + {group} * {launch.shared}, sub, "
                  f"threadIdx.x % {launch.block});")]
        if one or launch.shared:                                    # the next one writes where this one still reads
            lines.append(f"            {'__syncthreads' if one else '__syncwarp'}();")
        lines += ["        }", *(f"        {line}" for line in arrived if k + 1 == len(waits)), "        __syncthreads();"]
    return [*lines, "    }", *(f"    {copied(_size(x), f'out{k} + row * {_size(x)}', f'turns % 2 ? b{k} : a{k}')}"
                               for k, x in enumerate(carried)), "}"]


def _of_a_group(line: str) -> str:
    """Return a line of a nest's kernel, rewritten for a group of threads in place of a block."""
    return (line.replace("extern __shared__ __align__(16) char rows[];", "char *const rows = own_rows;")
            .replace("blockIdx.x", "sub_block").replace("gridDim.x", "sub_blocks").replace("threadIdx.x", "sub_thread"))
