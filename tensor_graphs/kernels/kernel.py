"""kernel: what a kernel declares — the op it computes, the specs it accepts, how it is called, and its identity."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.device_requirements import problem
from tensor_graphs.kernels.identity import Code, base_folder, code_of, code_text
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language import dims, leaves
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.node import Node, Op, TensorType, apply
from tensor_graphs.language.part import PartOp, known_same

if TYPE_CHECKING:
    from tensor_graphs.meaning.precision import Precision

ANY_OP = "*"
"""the `op` of a kernel that computes whatever its `accepts` takes"""

ALL_STEPS = "all steps"
"""the `op` of a kernel that runs all steps of a graph (`Kernel.whole`), and what a path chooses it for"""


RUNNER = "tensor_graphs.measure.run_unisolated"
"""module whose `run_alone(kernel, arrays, attributes)` runs a kernel: a room below, loaded by name when it is asked to"""


class KernelError(TensorGraphsError):
    """A kernel that cannot be declared, found or built."""


class NotLowered(TensorGraphsError):
    """A definition that no generated kernel can say, and why."""


class ParcelError(TensorGraphsError):
    """A kernel uses something that no other process can be given."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The call that a kernel is built for: an op with its attributes, and the types (dims may be symbolic) of operands and
    outputs."""

    op: Op
    attrs: Mapping[str, Any]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    @staticmethod
    def of(node: Node) -> Spec:
        return Spec(node.op, node.attrs, tuple(i.type for i in node.inputs), node.types)

    def role_index(self) -> dict[str, int | list[int]]:
        """Operand name -> position in `inputs` (a variadic name -> list of positions); absent operands are missing."""
        positions = list(range(len(self.inputs)))
        if isinstance(self.op, CompositeOp):
            return self.op.by_role(positions, self.attrs)
        return {str(i): i for i in positions}

    def role(self, name: str) -> TensorType | None:
        """The type of a named operand, None when it is absent."""
        at = self.role_index().get(name)
        return self.inputs[at] if isinstance(at, int) else None

    def single_node_graph(self) -> Graph:
        """The graph of this op alone: inputs x0, x1, …, outputs y0, … Its text, oracle and database key are this spec's."""
        xs = [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(self.inputs)]
        node = apply(self.op, xs, self.attrs)
        return graph({f"y{i}": leaves.item(node, i) for i in range(len(node.types))})


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of a Python function on its backend's views: run(outs, ins, attrs); attrs have their dims evaluated. on_stream: all
    that it does is begun on the current stream of its backend's library, the same whatever the operands hold, so that it may be
    captured (`captured` of the backend) and run again without it."""

    engine: ClassVar[str] = "host"
    scratch: ClassVar[Dim] = 0
    run: Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], None]
    on_stream: bool = False


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call of a native symbol. Pointers: every output, then `pointers` (positions of operands, None = null)."""

    engine: ClassVar[str] = "native"
    symbol: str
    pointers: tuple[int | None, ...]
    ints: tuple[Dim, ...]
    floats: tuple[float, ...] = ()
    scratch: Dim = 0
    """bytes of memory of its own that the call uses at most, on all threads together; kept by the pool for the next call"""
    image: str = ""
    """the shared library that has the symbol, in the cache folder; "": that of our own kernels"""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of a contiguous value from one device to another, by their names."""

    engine: ClassVar[str] = "transfer"
    scratch: ClassVar[Dim] = 0
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of an image. grid: blocks; block: threads of each; shared: bytes of memory that a block is given at the launch.
    waits: it begins with `after_those_before()` (numbers.cuh), so that it may be placed on the device while what was launched
    before it ends; such a kernel writes nothing before that, and reads nothing but `ints` and the operands numbered in `early`:
    where something that is launched with it writes one of these, it is placed when all before it have ended."""

    entry: str
    grid: Dim
    block: int
    shared: int = 0
    waits: bool = False
    early: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchCall:
    """Kernels of one image, launched one after the other on their device. Their arguments are addresses, 64 bits each: of outputs,
    operands, `ints` if any (64 bits each, in the device's memory, so that a captured launch reads their present values), and
    `pieces` of scratch (bytes of each, multiples of 256). text: of the image; its device compiles it, and keeps the result.
    alignment: bytes of which every address must be a multiple; elsewhere `otherwise` is launched."""

    engine: ClassVar[str] = "launch"
    text: str
    launches: tuple[Launch, ...]
    ints: tuple[Dim, ...] = ()
    pieces: tuple[Dim, ...] = ()
    alignment: int = 1
    otherwise: LaunchCall | None = None

    @property
    def scratch(self) -> Dim:
        total: Dim = sum(self.pieces, 0)
        return total if self.otherwise is None else dims.dim_max(total, self.otherwise.scratch)


Call = HostCall | NativeCall | LaunchCall | Transfer
"""engine: which kind of segment runs it (runtime/segments)"""


@dataclass(frozen=True, slots=True)
class Preparation:
    """A value that a kernel computes from some of its operands before its call: a packed or quantised copy of a weight matrix.

    call: computes it, from the operands numbered in `operands`; its outputs have the types `outputs`, without dims. Where the
    operands are parameters it runs once at bind time, for all instructions that prepare the same; elsewhere at every run."""

    call: Call
    operands: tuple[int, ...]
    outputs: tuple[TensorType, ...]


Pairs = tuple[tuple[int, int], ...]
"""(output, operand), by their numbers"""


@dataclass(frozen=True, slots=True)
class Sharing:
    """pairs: that may share memory; the kernel is right whether they do or not.  updated: outputs of which it stores only what
    differs from the operand; where the two share no memory, the operand is copied there first."""

    pairs: Pairs = ()
    updated: Pairs = ()


@dataclass(frozen=True, eq=False)
class Kernel:
    """Code that computes one op on one backend, into outputs it is given.

    accepts(spec): None, or why not.  build(spec): the call.  in_place: pairs (output, input) that may share memory; the kernel is
    right whether they do or not.  updates: output 0 is stored only where it differs from operand 0; where the two share no memory,
    operand 0 is copied there first.  shares(spec): of a kernel for any op, in place of in_place and updates.
    contiguous: operands must be C-contiguous.  positive_strides: no operand may run backwards.  module: what a separate process
    imports to know this kernel.  build_copy(shape, out strides, in strides, itemsize): of the copy kernel.  source: for people,
    part of the identity too.  sources: further files (C code, tables), relative to the folder of `module`.
    prepare(spec): computed from parameters before; its outputs follow the op's operands in the kernel's call. Its operands are
    taken as parameters when the kernel is compared and timed.  traffic(spec): bytes moved, where fewer than operands and outputs
    have.  arithmetic(spec): operations, where the definition says another number.  requirements: of the device
    (device_requirements.py); elsewhere the kernel is no candidate.
    strided(spec, strides): of a kernel whose operands must be contiguous, the call for these strides (elements, a tuple for each
    operand; 0 along an axis where all indices are one element). None, or no such function: operands that are not contiguous are
    copied first. Outputs are contiguous. The judge compares it on the strides that it takes (measure/points/coverage.py).
    together(specs): makes what the calls of all these specs need at once (one run of a compiler); for each None, or why it cannot
    be built. `build` makes what is still missing.
    composite: of a kernel whose `op` is a composite outside the library; any composite of that name with the same definition is
    computed, and of a part (language/part.py) all that was proved to be the same.  crash_note: for people, what to look at first
    when it ends its process, with a fix; no part of its identity.
    whole: of a kernel that runs all steps of a graph (op: ALL_STEPS): reads a graph for the segment that launches it
    (runtime/segments/decoder_kernel.py); raises NotLowered with the reason where it cannot.
    remade: of a kernel that a generator has made for one question, the name of the function of its module that makes it again from
    its `source` in another process; it computes what its `accepts` takes of the op of this name.
    precision: of operands of f32 after rounding; it is held to that, and used where a tolerance allows it.
    assuming: conditions on values (meaning/assumptions.py): it is compared where they hold, and used where a caller assumes them.
    """

    name: str
    backend: str
    op: str
    build: Callable[[Spec], Call]
    accepts: Callable[[Spec], str | None]
    source: str
    module: str
    toolchain: str = ""
    in_place: Pairs = ()
    contiguous: bool = False
    positive_strides: bool = False
    updates: bool = False
    build_copy: Callable[[Sequence[Dim], Sequence[Dim], Sequence[Dim], int], Call | None] | None = None
    requirements: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Spec], tuple[Preparation, ...]] | None = None
    traffic: Callable[[Spec], Dim] | None = None
    arithmetic: Callable[[Spec], Dim] | None = None
    sources: Sequence[str | Path] = ()
    strided: Callable[[Spec, Sequence[Strides]], Call | None] | None = None
    together: Callable[[Sequence[Spec]], Sequence[str | None]] | None = None
    shares: Callable[[Spec], Sharing] | None = None
    composite: CompositeOp | None = None
    crash_note: str = ""
    remade: str = ""
    whole: Callable[[Graph], Any] | None = None
    precision: Precision | None = None
    assuming: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wrong = problem(self.requirements)
        if wrong is not None:
            raise KernelError(f"the requirements of kernel {self.name!r} {wrong}")
        object.__setattr__(self, "requirements", dict(self.requirements))    # as they were checked
        # ours are read when they are asked for: importing stays quick
        if isinstance(self.module, str) and not self.module.startswith("tensor_graphs."):
            _ = self.identity

    def __repr__(self) -> str:
        return self.name

    @property
    def ours(self) -> bool:
        """Return whether it belongs to this package."""
        return self.module.startswith("tensor_graphs.")

    def run(self, arrays: Sequence[Any] | Mapping[str, Any], **attributes: Any) -> Any:
        """Run the kernel once, in this process, on numpy arrays: the op's operands. Returns its output, or a tuple of several.

            kernel.run([x, weight], eps=1e-6)          # or by name: {"x": x, "weight": weight}

        Raises KernelError where it does not take them, and what the op raises for operands that do not fit each other."""
        return importlib.import_module(RUNNER).run_alone(self, arrays, attributes)

    def sharing(self, spec: Spec) -> Sharing:
        """Return which outputs may lie in the memory of which operands."""
        return Sharing(self.in_place, ((0, 0),) if self.updates else ()) if self.shares is None else self.shares(spec)

    def computes(self, spec: Spec) -> bool:
        """Return whether it is a kernel of this spec's op, and not of a namesake."""
        if self.op == ANY_OP or self.remade:
            return self.op in (ANY_OP, spec.op.name)
        if self.composite is None or self.composite is spec.op:
            return self.composite is spec.op or ATOMIC.get(self.op) is spec.op or LIBRARY.get(self.op) is spec.op
        part = isinstance(self.composite, PartOp)
        if not isinstance(spec.op, CompositeOp) or (spec.op.name != self.op and not part) or LIBRARY.get(spec.op.name) is spec.op:
            return False
        try:
            ours = self.composite.define(spec.inputs, spec.attrs)
        except Exception:                                           # anyone's definition, of another namesake's operands
            return False
        theirs = spec.op.define(spec.inputs, spec.attrs)
        return ours.digest == theirs.digest or known_same(ours, theirs)

    @cached_property
    def identity(self) -> str:
        """sha256 of all that the kernel is made of (identity.py), as it was when the kernel was declared: other code is another
        kernel, and measurements do not carry over. Raises KernelError when a file of `sources` is missing."""
        declared = (self.name, self.toolchain, self.in_place, self.contiguous, self.positive_strides, self.updates)
        return hashlib.sha256(f"{declared}{self.precision or ''}{self.assuming or ''}\0{self.code.digest}".encode()).hexdigest()

    @cached_property
    def code(self) -> Code:
        """The code of the kernel when it was declared. Raises KernelError."""
        return self.read_code()

    def read_code(self) -> Code:
        """Read the code of the kernel as it is now; modules count as they were imported. Raises KernelError."""
        named = [self.sources] if isinstance(self.sources, (str, Path)) else self.sources
        folder = base_folder(self.module)
        files = [folder / name for name in named]
        for name, file in zip(named, files, strict=True):
            if not file.is_file():
                raise KernelError(f"kernel {self.name!r} names {str(name)!r} in its sources, and there is no such file: {file}\n"
                                  f"  fix: a path from the folder of its module ({folder}), or an absolute one")
        functions = (self.build, self.accepts, self.prepare, self.traffic, self.arithmetic, self.build_copy, self.strided,
                     *(function for function in (self.together, self.shares) if function is not None))
        try:
            return code_of(self.module, functions, files, self.source)
        except OSError as e:
            raise KernelError(f"the code of kernel {self.name!r} cannot be read, so it has no identity: {e}\n"
                              "  fix: make the file readable, or take it out of `sources`") from e


def make_together(wanted: Sequence[tuple[Kernel, Spec]]) -> list[str | None]:
    """Make what the calls of these kernels need, as far as that is cheaper together (`Kernel.together`); for each None, or why it
    cannot be built."""
    reasons: list[str | None] = [None] * len(wanted)

    def make(kernel: Kernel) -> None:
        at = [i for i, (other, _) in enumerate(wanted) if other is kernel]
        assert kernel.together is not None
        for i, why in zip(at, kernel.together([wanted[i][1] for i in at]), strict=True):
            reasons[i] = why

    kernels = list(dict.fromkeys(kernel for kernel, _ in wanted if kernel.together is not None))
    if len(kernels) > 1:                                            # each waits for compilers of its own
        with ThreadPoolExecutor(len(kernels)) as pool:
            list(pool.map(make, kernels))
    else:
        list(map(make, kernels))
    return reasons


def source_of(function: Callable[..., Any]) -> str:
    """The text of a Python function, for people; of code that has none (it was made by `exec`, say), a name that is equal for equal
    code. Raises KernelError for what is no Python function."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        if code is None:
            raise KernelError(f"the source of {function!r} is not at hand, so its kernel has no identity\n"
                              "  fix: a function defined with def that calls it, or Kernel(source=…) with its text") from None
        return code_text(code)
