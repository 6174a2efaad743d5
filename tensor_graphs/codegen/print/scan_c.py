"""scan_c: a scan printed as C: the loops of its step as a function, and a loop that calls it for each slice.

A carry alternates between its output's memory and scratch, so that a step reads old carries while it writes new ones, and the last
iteration writes the output. The first iteration reads the given carries directly. Iterations run in order; within each, threads
share a step's nests as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensor_graphs.codegen import compiled_libraries
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.mapping import cpu_parts
from tensor_graphs.codegen.passes.buffer_rows import with_rows
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.codegen.print.values import c_of, dim_name
from tensor_graphs.codegen.refusals import cached, refused, why_not
from tensor_graphs.codegen.spec_to_loops import PAGE, AskedSpec, asked, loops_of
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import NativeCall, NotLowered, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition, definition_digest
from tensor_graphs.language.composites.scan import SCAN
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.subgraph import Turns, slice_type

CARRIES = 2
"""the pool's scratch block for carries; the loops of the step have blocks 0 and 1"""


@dataclass(frozen=True, eq=False)
class TurnsProgram:
    """The loops of a scan. step: those of one iteration. carried, sliced, stacked: bytes of each carry, and of one slice of each
    sliced operand and of each stacked output. places: for each output the index of its value in the step, which may return one
    twice. dims: those of the step and of the length, in the order of the call."""

    step: StageProgram
    length: Dim
    carried: tuple[Dim, ...]
    sliced: tuple[Dim, ...]
    stacked: tuple[Dim, ...]
    places: tuple[int, ...]
    others: int
    reverse: bool
    dims: tuple[d.Expr, ...]

    def rendered(self, name: str) -> str:
        """Return the C source. Its entry is TG_KERNEL(name); ptr: outputs, then operands; ints: the dims."""
        c = c_of
        count, outs = len(self.carried), len(self.carried) + len(self.stacked)
        ins = len(self.carried) + len(self.sliced) + self.others
        out = [c_loops.rendered(self.step, f"{name}_step"), f"TG_KERNEL({name}) {{", "    (void)floats, (void)ints;"]
        for i, dim in enumerate(self.dims):
            out += [f"    const int64_t {dim_name(str(dim))} = ints[{i}];", f"    (void){dim_name(str(dim))};"]
        inner = ", ".join(dim_name(str(dim)) for dim in self.step.dims) or "0"
        firsts = [self.places.index(u) for u in range(max(self.places) + 1)]    # the first output of each value
        out += [f"    const int64_t inner[] = {{{inner}}}, turns = {c(self.length)};",
                f"    void *out[{outs}], *at[{len(firsts) + ins}];"]
        if count:
            out.append(f"    char *other = tg_scratch({CARRIES}, {c(_scratch(self.carried))});")
        out.append("    for (int64_t turn = 0; turn < turns; turn++) {")
        out.append(f"        const int64_t slice = {'turns - 1 - turn' if self.reverse else 'turn'}, left = turns - 1 - turn;")
        place: Dim = 0
        for k, size in enumerate(self.carried):
            scratch = f"other + {c(place)}"
            out.append(f"        out[{k}] = left % 2 ? {scratch} : (char *)ptr[{k}];")
            before = f"left % 2 ? (char *)ptr[{k}] : {scratch}"
            out.append(f"        at[{len(firsts) + k}] = turn == 0 ? (char *)ptr[{outs + k}] : {before};")
            place = place + _padded(size)
        for k, size in enumerate(self.stacked, count):
            out.append(f"        out[{k}] = (char *)ptr[{k}] + slice * {c(size)};")
        for k, size in enumerate(self.sliced, count):
            out.append(f"        at[{len(firsts) + k}] = (char *)ptr[{outs + k}] + slice * {c(size)};")
        for k in range(count + len(self.sliced), ins):
            out.append(f"        at[{len(firsts) + k}] = ptr[{outs + k}];")
        out += [f"        at[{u}] = out[{k}];" for u, k in enumerate(firsts)]
        out += ["        (void)slice, (void)left;", f"        {name}_step(at, inner, floats);"]
        for k, (u, size) in enumerate(zip(self.places, (*self.carried, *self.stacked), strict=True)):
            if firsts[u] != k:
                out.append(f"        memcpy(out[{k}], out[{firsts[u]}], (size_t)({c(size)}));")
        out.append("    }")
        for k, size in enumerate(self.carried):
            out.append(f"    if (turns == 0) memcpy(ptr[{k}], ptr[{outs + k}], (size_t)({c(size)}));")
        return "\n".join([*out, "}"]) + "\n"


def _padded(size: Dim) -> Dim:
    return d.ceil_div(size, 64) * 64


def _scratch(carried: tuple[Dim, ...]) -> Dim:
    return sum(map(_padded, carried))


def refuse(spec: Spec) -> str | None:
    """Return why a scan's step cannot be lowered; None where it can."""
    return why_not(program_of, asked(spec))


@cached(maxsize=1024)
def program_of(asked: AskedSpec) -> TurnsProgram:
    """Return the loops of a scan. Raises NotLowered."""
    spec = asked.spec
    if spec.op is not SCAN:
        raise NotLowered(f"{spec.op.name} is no scan")
    turns = Turns(spec.inputs, spec.attrs)
    definition, places = each_once(turns.step.definition)
    with refused("in its step: "):
        step = loops_of(definition, updates=False)
    length = turns.sliced[0].shape[0]
    dims = tuple({str(s): s for s in (*step.dims, *d.symbols_in(length))}.values())
    if len(dims) > library.MAX_INT:
        raise NotLowered(f"it has {len(dims)} dims, more than a call takes")
    stacked = tuple(slice_type(t).nbytes() for t in spec.outputs[len(turns.carries):])
    sliced = tuple(slice_type(t).nbytes() for t in turns.sliced)
    return TurnsProgram(with_rows(step), length, tuple(t.nbytes() for t in turns.carries), sliced, stacked,
                        places, len(turns.others), turns.reverse, dims)


def each_once(step: Definition) -> tuple[Definition, tuple[int, ...]]:
    """Return the step without duplicate outputs, and for each old output its index among the new ones."""
    distinct = tuple(dict.fromkeys(step.outputs))
    return Definition(step.arguments, distinct, definition_digest(distinct)), tuple(map(distinct.index, step.outputs))


def build(spec: Spec) -> NativeCall:
    """Return the call of the loops of a scan; they are compiled on first use. Raises NotLowered."""
    program = program_of(asked(spec))
    code = compiled_libraries.later(program)
    shared, own = cpu_parts.scratch_bytes(program.step)
    threads = library.load().threads()
    return NativeCall(code.symbol, tuple(range(len(spec.inputs))), program.dims, (),
                      shared + own * threads + _scratch(program.carried) + PAGE * (threads + 2), str(code.path))


def text_of(spec: Spec) -> str:
    """Return the C source of a scan: the loops of its step, and the loop over its slices. Raises NotLowered."""
    return program_of(asked(spec)).rendered("scan")


def together(specs: Sequence[Spec]) -> list[str | None]:
    """Compile the loops of several scans together; return None for each, or why it cannot be built. Raises CacheFolderError."""
    return compiled_libraries.compiled_together([lambda spec=spec: [program_of(asked(spec))] for spec in specs])  # type: ignore[misc]
