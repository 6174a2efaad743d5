"""stage_runs: random stage programs through every form that codegen gives them, as the stage interpreter says and as the rendered C
computes; with the pool of the package, or in a process of their own with the compiler's sanitizers.

A form is what is done to a program between lowering and rendering. Thresholds are made small, so that small programs are cut too.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np

from tensor_graphs.codegen import default_schedule, interpret, pipelines
from tensor_graphs.codegen.loop_ir import Stage, StageProgram, Value, values_in
from tensor_graphs.codegen.passes import split_reduction
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.codegen.schedule_actions import Accumulators, Columns, NarrowRows, SumBlock, Unroll
from tensor_graphs.devices import c_code, toolchain
from tensor_graphs.kernels.c import library
from tensor_graphs.language import dims as d
from tests.codegen.generated import GUARD, HEADERS
from tests.fuzzing.stage_programs import Program, binding_of, operands_of, stage_program


def advised(program: StageProgram) -> StageProgram:
    """With other advice than the rules', for each stage that takes it: small blocks, and more accumulators."""
    program = program.made_of(replace(nest, advice=replace(nest.advice, grain=1, tile=16)) for nest in program.nests)
    for i, nest in enumerate(program.nests):
        for j, stage in enumerate(nest.stages):
            for kind, size in ((SumBlock, 8), (Accumulators, 4), (Unroll, 4), (Columns, 16), (NarrowRows, 4)):
                action = kind(size, i, j)
                if action.unfit(stage) is None:
                    program = action.taken(program)
    return program


FORMS: Mapping[str, tuple[Callable[[StageProgram], StageProgram], Mapping[tuple[object, str], int]]] = {
    "as drawn": (lambda p: p, {}),
    "arranged": (pipelines.arranged, {}),
    "in parts, small blocks": (lambda p: advised(pipelines.arranged(p)), {
        (default_schedule, "CHUNK"): 16, (default_schedule, "LEAST_TILE"): 2}),
    "columns in parts": (lambda p: split_reduction.columns_in_parts(pipelines.arranged(p)), {
        (split_reduction, "LEAST_ROWS"): 4, (split_reduction, "PARALLEL"): 1 << 12, (default_schedule, "LEAST_TILE"): 2})}
"""name -> what is done to the program, and what is patched for it"""


def form_of(seed: int) -> str:
    """The one form of a seed where not all are gone through."""
    return list(FORMS)[seed % len(FORMS)]


POINTS = 2
"""sizes at which each program runs"""

Edit = tuple[str, int, int, int, int]
"""what is left out of a program, to make it smaller: see `edited`"""


@dataclass(frozen=True)
class Case:
    """A seed's program in a form, with edits that make it smaller."""

    seed: int
    form: str
    edits: tuple[Edit, ...] = ()

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.form}" + (f", without {len(self.edits)} pieces of it" if self.edits else "")


@contextmanager
def patched(form: str) -> Iterator[None]:
    patches = [mock.patch.object(where, name, value) for (where, name), value in FORMS[form][1].items()]
    for p in patches:
        p.start()
    try:
        yield
    finally:
        for p in patches:
            p.stop()


def drawn(case: Case) -> Program:
    made = stage_program(case.seed)
    for edit in case.edits:
        edited(made, edit)
    return made


def formed(case: Case) -> tuple[Program, str]:
    """The program in its form, and its text. Raises what arranging and rendering raise."""
    made = drawn(case)
    with patched(case.form):
        made.program = FORMS[case.form][0](made.program)
        return made, c_loops.rendered(made.program, "kernel")


# ---- one call --------------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """A program at one point: sizes, operands, and what the interpreter gives for the program as it was drawn."""

    case: Case
    made: Program
    binding: Mapping[str, int]
    operands: list[np.ndarray]
    expected: list[np.ndarray]

    def sizes(self) -> list[int]:
        return [int(self.binding[str(s)]) for s in self.made.program.dims]

    def lengths(self) -> list[int]:
        return [d.evaluate(a.size, self.binding) for a in self.made.program.outputs]

    def why_wrong(self, found: Sequence[np.ndarray]) -> str | None:
        """found: the outputs, in their own dtypes or as float64."""
        outputs = self.made.program.outputs
        for array, out, ref, (most, relative) in zip(outputs, found, self.expected, self.made.errors, strict=True):
            if array.dtype.is_float:
                with np.errstate(all="ignore"):
                    out, ref = out.astype(np.float64), ref.astype(np.float64)
                    held = np.where(np.abs(ref) > float(array.dtype.max), np.copysign(np.inf, ref), ref)
                    right = (np.abs(out - ref) <= most + relative * np.abs(ref)) | (out == held) | (np.isnan(out) & np.isnan(ref))
            else:
                right = out == ref
            if not right.all():
                k = int(np.argmin(right))
                return (f"{int((~right).sum())} of {right.size} numbers of {array}, the first at {k}: {out[k]} instead of "
                        f"{ref[k]}, at {dict(self.binding)}")
        return None


def calls(case: Case, made: Program) -> list[Call]:
    """Raises AssertionError where the interpreter does not give the same for the form as for what was drawn."""
    found = []
    plain = drawn(case)
    for number in range(POINTS):
        binding = binding_of(plain, case.seed, number)
        operands = operands_of(plain, 10 * case.seed + number, binding)
        expected = interpret.run(plain.program, operands, binding)
        call = Call(case, made, binding, operands, expected)
        why = call.why_wrong(interpret.run(made.program, operands, binding))
        assert why is None, f"{case}: the interpreter gives something else for the form: {why}"
        found.append(call)
    return found


# ---- the package's own pool --------------------------------------------------------------------------------------------------


def _formed_all(cases: Sequence[Case]) -> tuple[list[tuple[Case, list[Call], str]], list[tuple[Case, str]]]:
    """The calls and the C text of each case, and those of which there are none, with the reason."""
    ready: list[tuple[Case, list[Call], str]] = []
    wrong: list[tuple[Case, str]] = []
    for case in cases:
        try:
            made, text = formed(case)
            ready.append((case, calls(case, made), text))
        except Exception as e:
            wrong.append((case, f"{type(e).__name__}: {e}"))
    return ready, wrong


def failures(cases: Sequence[Case], keep: bool = True) -> list[tuple[Case, str]]:
    """What goes wrong among some cases, which are compiled together. keep: what is compiled stays in the cache."""
    ready, wrong = _formed_all(cases)
    if not ready:
        return wrong
    try:
        path = _compiled([text for _, _, text in ready])
        ours = ctypes.CDLL(str(path))
        if not keep:
            path.unlink()
    except c_code.ToolchainError as e:
        if len(ready) == 1:
            return [*wrong, (ready[0][0], f"ToolchainError: {e}")]
        for case, _, _ in ready:                                    # one of them does not compile
            wrong += failures([case], keep)
        return wrong
    for number, (case, points, _) in enumerate(ready):
        for call in points:
            why = _run(getattr(ours, f"kernel{number}"), call)
            if why is not None:
                wrong.append((case, why))
                break
    return wrong


PER_FILE = 12
"""programs of one C file"""


def _compiled(texts: Sequence[str]) -> Path:
    ours = library.load()
    named = [text.replace("kernel", f"kernel{i}") for i, text in enumerate(texts)]
    files = [c_code.Text(f"stages{i}.c", "\n".join(named[i:i + PER_FILE]), HEADERS)
             for i in range(0, len(named), PER_FILE)]
    return toolchain.build_library(files, name="stages", folders=(library.FOLDER,), against=ours.paths("\n".join(named)),
                                   cache=ours.path.parent)


def _run(function: ctypes._CFuncPtr, call: Call) -> str | None:
    outs = []
    for array, length in zip(call.made.program.outputs, call.lengths(), strict=True):
        outs.append(np.full(length * array.dtype.itemsize + GUARD, 0xA5, np.uint8))
    pointers = [o.ctypes.data for o in outs] + [a.ctypes.data for a in call.operands]
    before = [a.tobytes() for a in call.operands]
    sizes = call.sizes()
    function.restype = None
    function((ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * max(1, len(sizes)))(*sizes), (ctypes.c_double * 1)())
    if [a.tobytes() for a in call.operands] != before:
        return "an operand was written"
    if any((o[-GUARD:] != 0xA5).any() for o in outs):
        return "it wrote behind an output"
    return call.why_wrong([o[:-GUARD].view(a.dtype.numpy) for o, a in zip(outs, call.made.program.outputs, strict=True)])


# ---- with sanitizers ---------------------------------------------------------------------------------------------------------

SANITIZED = ("-w", "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")

DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tg.h"

/* One part after another, many of them, the last first; scratch that ends where it was asked for. */
static void *kept[2];
void tg_parallel(void (*body)(void *ctx, int part, int parts), void *ctx, int parts) {
    for (int part = parts - 1; part >= 0; part--) body(ctx, part, parts);
}
int tg_threads(void) { return 3; }
int tg_parts(int64_t units, int64_t least) { return (void)least, (int)tg_min(tg_max_i(units, 1), 5); }
void *tg_scratch(int slot, size_t bytes) {
    free(kept[slot]);
    return kept[slot] = aligned_alloc(64, tg_ceil((int64_t)bytes, 64) * 64);
}

static int64_t number(void) {
    int64_t x;
    if (fread(&x, 8, 1, stdin) != 1) exit(3);
    return x;
}

/* For each call: kernel, outputs, their bytes, operands, their bytes and contents, sizes; out come the outputs. */
int main(void) {
    for (int64_t kernel; fread(&kernel, 8, 1, stdin) == 1;) {
        fprintf(stderr, "kernel %lld\n", (long long)kernel);
        void *ptr[TG_MAX_PTR];
        int64_t bytes[TG_MAX_PTR], ints[TG_MAX_INT];
        double floats[1] = {0};
        const int64_t outputs = number(), operands = number(), sizes = number();
        for (int64_t i = 0; i < outputs + operands; i++) {
            bytes[i] = number();
            ptr[i] = malloc((size_t)bytes[i]);
            if (i < outputs) memset(ptr[i], 0xA5, (size_t)bytes[i]);
            else if (bytes[i] && fread(ptr[i], (size_t)bytes[i], 1, stdin) != 1) exit(3);
        }
        for (int64_t i = 0; i < sizes; i++) ints[i] = number();
        KERNELS[kernel](ptr, ints, floats);
        for (int64_t i = 0; i < outputs; i++) fwrite(ptr[i], 1, (size_t)bytes[i], stdout);
        fflush(stdout);
        for (int64_t i = 0; i < outputs + operands; i++) free(ptr[i]);
    }
    return 0;
}
"""


def sanitized_failures(cases: Sequence[Case]) -> list[tuple[Case, str]]:
    """The same as `failures`, in a program that has every array of its exact size, cuts every nest into parts, and stops at what
    C leaves undefined."""
    ready, wrong = _formed_all(cases)
    if not ready:
        return wrong
    compiler, reason = c_code.find_compiler()
    assert compiler is not None, reason
    with tempfile.TemporaryDirectory() as folder:
        texts = [text.replace("kernel", f"kernel{i}") for i, (_, _, text) in enumerate(ready)]
        table = f"static const tg_kernel KERNELS[] = {{{', '.join(f'kernel{i}' for i in range(len(texts)))}}};\n"
        source, program = Path(folder, "stages.c"), Path(folder, "stages")
        source.write_text("\n".join([*texts, table, DRIVER]), encoding="utf-8")
        command = [*compiler.command, *toolchain.compile_flags(), *SANITIZED, f"-I{HEADERS}", f"-I{library.FOLDER}", str(source),
                   "-o", str(program), "-lm"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            if len(ready) == 1:
                return [*wrong, (ready[0][0], f"it does not compile: {built.stderr[:2000]}")]
            return [*wrong, *(each for case, _, _ in ready for each in sanitized_failures([case]))]
        given = [(number, call) for number, (_, points, _) in enumerate(ready) for call in points]
        # gcc 13 puts frames beside the stack to find such uses, aligned to 32 bytes, and moves vectors of 64 to them as if aligned.
        settings = {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
        while given:
            sent = b"".join(_sent(number, call) for number, call in given)
            ran = subprocess.run([program], input=sent, capture_output=True, check=False, env={**os.environ, **settings})
            said, at = ran.stderr.decode(errors="replace"), 0
            begun = [m.start() for m in re.finditer(r"^kernel \d+$", said, re.MULTILINE)]
            for k, (_, call) in enumerate(given):
                sizes = [n * a.dtype.itemsize for n, a in zip(call.lengths(), call.made.program.outputs, strict=True)]
                if ran.returncode and k == len(begun) - 1:
                    wrong.append((call.case, said[begun[-1]:][:1500]))
                    break
                outs = []
                for size, array in zip(sizes, call.made.program.outputs, strict=True):
                    outs.append(np.frombuffer(ran.stdout, np.uint8, size, at).view(array.dtype.numpy))
                    at += size
                why = call.why_wrong(outs)
                if why is not None:
                    wrong.append((call.case, why))
            else:
                break
            given = [pair for pair in given[k + 1:] if pair[0] != given[k][0]]
    return wrong


def _sent(number: int, call: Call) -> bytes:
    p, sizes = call.made.program, call.sizes()
    head = [number, len(p.outputs), len(p.operands), len(sizes)]
    parts = [struct.pack("<4q", *head)]
    parts += [struct.pack("<q", n * a.dtype.itemsize) for n, a in zip(call.lengths(), p.outputs, strict=True)]
    for values in call.operands:
        parts += [struct.pack("<q", values.nbytes), values.tobytes()]
    return b"".join([*parts, struct.pack(f"<{len(sizes)}q", *sizes)])


# ---- smaller -----------------------------------------------------------------------------------------------------------------


def shrunk(case: Case, fails: Callable[[Case], bool], most: int = 200) -> Case:
    """The same with as much left out as can be while it fails: stages that nobody reads, and what values are made of."""
    found = True
    while found and most:
        found = False
        for edit in _edits(drawn(case)):
            smaller = Case(case.seed, case.form, (*case.edits, edit))
            most -= 1
            if most <= 0:
                break
            try:
                calls(smaller, drawn(smaller))
            except Exception:                                       # it is no program any more
                continue
            if fails(smaller):
                case, found = smaller, True
                break
    return case


def _edits(made: Program) -> Iterator[Edit]:
    p = made.program
    read = {v.attr[0] for nest in p.nests for s in nest.stages for r in s.roots() for v in _all(p, r) if v.op == "load"}
    for i, nest in enumerate(p.nests):
        for j, s in enumerate(nest.stages):
            if s.target not in read and (s.target.role != "output" or len(p.outputs) > 1):
                yield "stage", i, j, 0, 0
    for i, nest in enumerate(p.nests):
        for j, s in enumerate(nest.stages):
            if s.scan is None and s.monoid is None:
                inside = sorted(values_in(s.value), key=lambda v: -v.number)
                for v in inside:
                    yield from (("value", i, j, v.number, a.number) for a in v.args if a.dtype is s.value.dtype and v is s.value)
            for v in values_in(s.value):
                yield from (("value", i, j, v.number, a.number) for a in v.args if a.dtype is v.dtype)


def edited(made: Program, edit: Edit) -> None:
    """Leave a piece of a program out: a stage (of a nest, its number), or an expression in favour of its argument."""
    kind, i, j, number, by = edit
    p = made.program

    def with_stage(new: list[Stage]) -> StageProgram:
        old = p.nests[i].stages[j]
        return p.made_of(nest.mapped(lambda s: new if s is old else [s]) for nest in p.nests)

    if kind == "stage":
        target, made.program = p.nests[i].stages[j].target, with_stage([])
        if target.role == "output":
            at = p.outputs.index(target)
            made.program = replace(made.program, outputs=(*p.outputs[:at], *p.outputs[at + 1:]))
            made.errors.pop(at)
        return
    stage, values = p.nests[i].stages[j], {v.number: v for v in values_in(p.nests[i].stages[j].value)}

    def one(v: Value) -> Value:
        if v.number == number:
            return values[by]
        args = tuple(one(a) for a in v.args)
        return v if args == v.args else p.values.make(v.op, v.dtype, *args, attr=v.attr)

    made.program = with_stage([replace(stage, value=one(stage.value))])


def _all(p: StageProgram, root: Value) -> Iterator[Value]:
    yield from values_in(root, *(v for name, v in p.gathered.items() if name in root.symbols))


def told(case: Case, why: str) -> str:
    """For people: what is wrong, and the program."""
    return f"{case}: {why}\n{drawn(case).program}\nagain: python benchmarks/fuzz_stages.py --seeds {case.seed}..{case.seed + 1}"

