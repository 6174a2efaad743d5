"""backend: `gen`, whose one kernel computes whatever stages can say. It is offered for every op and every part, and takes those
that it can lower and that are no product: what is multiplied and summed again and again wants registers and tiles, not loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tensor_graphs.codegen import libraries, render_c
from tensor_graphs.codegen.arrange import arranged
from tensor_graphs.codegen.lower import FARTHEST, NotLowered, lower, stays
from tensor_graphs.codegen.stages import StageProgram
from tensor_graphs.codegen.steps import steps_of
from tensor_graphs.devices.toolchain import ToolchainError
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import ANY_OP, Kernel, NativeCall, Spec
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import CompositeOp, Definition, definition_digest
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.leaves import argument
from tensor_graphs.language.node import apply

NAME = "gen"

MOST_TURNS = 24
"""turns of the innermost loops for each element that is read or written: what takes more is a product"""


def available() -> str | None:
    ok, reason = library.available()
    return None if ok else reason


def versions() -> dict[str, str]:
    return {}


def kernels() -> list[Kernel]:
    return [Kernel(name=f"{NAME}.loops", backend=NAME, op=ANY_OP, build=build, accepts=refuse, source="stages rendered as C",
                   module=__name__, arithmetic=arithmetic, together=together, toolchain=libraries.made_with(), contiguous=True,
                   strided=strided)]


def refuse(spec: Spec) -> str | None:
    """Why no loops are written for a spec; None where they are."""
    found = _program(spec)
    return found if isinstance(found, str) else None


def build(spec: Spec) -> NativeCall:
    """The call of the kernel of a spec, compiled now unless the cache has it. Raises NotLowered, ToolchainError."""
    return _call(_program(spec), len(spec.inputs))


def strided(spec: Spec, strides: Sequence[Strides]) -> NativeCall | None:
    """The call where rows lie anywhere, one loop for all steps between them; None where elements of a row lie apart, or are few."""
    longest = max((d.bounds(t.shape[-1])[1] for t in spec.inputs if t.rank), default=0)
    steps: list[Dim] = []
    for t, lie in zip(spec.inputs, strides, strict=True):
        if t.rank and t.shape[-1] != 1 and lie[-1] != 1:
            return None
        if any(d.dim_ge(s, 0) is not True or d.bounds(s)[1] > FARTHEST for s in lie):
            return None
        steps += lie[:-1]
    program = loops_of(_definition(spec), apart=True)
    if longest < SHORT_ROW or isinstance(program, str):
        return None
    call = _call(program, len(spec.inputs))
    return replace(call, ints=(*call.ints[:len(call.ints) - len(steps)], *steps))


def _call(program: StageProgram | str, operands: int) -> NativeCall:
    """Raises NotLowered, ToolchainError."""
    if isinstance(program, str):
        raise NotLowered(program)
    code = libraries.code_of(program)
    if not code.path.exists():
        (why,) = libraries.compiled([program])
        if why is not None:
            raise ToolchainError(why)
    shared, own = render_c.scratch_bytes(program)
    threads = library.load().threads()
    return NativeCall(code.symbol, tuple(range(operands)), program.dims, (),
                      shared + own * threads + PAGE * (threads + 1), str(code.path))


def text_of(spec: Spec) -> str:
    """The C text of the kernel of a spec, with the math as a comment. Raises NotLowered."""
    program = _program(spec)
    if isinstance(program, str):
        raise NotLowered(program)
    return render_c.rendered(program)


def together(specs: Sequence[Spec]) -> list[str | None]:
    """Compile the kernels of specs in as few runs of the compiler as can be; for each None, or why it cannot be built. Raises
    CacheFolderError."""
    programs = [_program(spec) for spec in specs]
    made = {p: None for p in programs if not isinstance(p, str)}
    whys = dict(zip(made, libraries.compiled(list(made)), strict=True))
    return [p if isinstance(p, str) else whys[p] for p in programs]


def arithmetic(spec: Spec) -> Dim:
    """Element steps of the loops of a spec. Raises NotLowered."""
    program = _program(spec)
    if isinstance(program, str):
        raise NotLowered(program)
    return steps_of(program)


SHORT_ROW = 16
"""elements of rows that are copied together rather than read where they lie: a loop over each takes longer"""

PAGE = 4096
"""to which the pool rounds each block up"""


def _program(spec: Spec) -> StageProgram | str:
    return loops_of(_definition(spec))


def _definition(spec: Spec) -> Definition:
    """What a spec says, over placeholders: of a composite its definition, of an op that is not written out itself."""
    if isinstance(spec.op, CompositeOp) and not spec.op.opaque and not stays(spec.op, spec.outputs[0].dtype):
        return spec.op.define(spec.inputs, spec.attrs)
    arguments = tuple(argument(i, t) for i, t in enumerate(spec.inputs))
    outputs = (apply(spec.op, arguments, spec.attrs),)
    return Definition(arguments, outputs, definition_digest(outputs))


@lru_cache(maxsize=4096)
def loops_of(definition: Definition, apart: bool = False) -> StageProgram | str:
    """The loops of a definition, or why there are none. apart: for operands whose rows lie anywhere."""
    try:
        program = arranged(lower(definition, apart))
    except (NotLowered, LanguageError) as e:                        # a size that may be 0 where an index is divided by it
        return str(e)
    arrays = (*program.operands, *program.outputs)
    if len(arrays) > library.MAX_PTR or len(program.dims) > library.MAX_INT:
        return f"it has {len(arrays)} operands and outputs and {len(program.dims)} dims, more than a call takes"
    elements = sum(d.bounds(a.size)[1] for a in arrays)
    turns = 0
    for nest in program.nests:
        for s in nest.stages:
            of_stage = 1
            for axis in (*nest.axes[:s.level], *s.axes, *s.reduce):
                of_stage *= d.bounds(axis.size)[1]
            turns += of_stage
    if turns > MOST_TURNS * max(elements, 1):
        return f"its loops have {turns} turns for {elements} elements: a product, or a sum of sums"
    return program
