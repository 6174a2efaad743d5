"""kernel: the class Kernel (the op it computes, the specs it accepts, its call, its identity) and the types of its calls."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.device_requirements import problem
from tensor_graphs.kernels.identity import Code, base_folder, code_of, code_text
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language import dims, leaves
from tensor_graphs.language.anonymous_composite import PartOp, known_same
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.node import Node, Op, TensorType, apply

ANY_OP = "*"
"""`Kernel.op` of a kernel that computes every op whose spec its `accepts` takes"""

ALL_STEPS = "all steps"
"""`Kernel.op` of a kernel that runs all steps of a graph (`Kernel.whole`); a path lists the kernel under this name"""


RUNNER = "tensor_graphs.measure.run_unisolated"
"""module whose `run_alone(kernel, arrays, attributes)` runs a kernel; imported by name at use, as this package may not import it"""


class KernelError(TensorGraphsError):
    """A kernel that cannot be declared, found or built."""


class NotLowered(TensorGraphsError):
    """A definition for which no kernel can be generated; the message gives the reason."""


class ParcelError(TensorGraphsError):
    """A kernel uses a value that cannot be sent to another process."""


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
        """Return operand name -> position in `inputs` (variadic name -> list of positions), without absent operands."""
        positions = list(range(len(self.inputs)))
        if isinstance(self.op, CompositeOp):
            return self.op.by_role(positions, self.attrs)
        return {str(i): i for i in positions}

    def role(self, name: str) -> TensorType | None:
        """Return the type of a named operand, None when it is absent."""
        at = self.role_index().get(name)
        return self.inputs[at] if isinstance(at, int) else None

    def single_node_graph(self) -> Graph:
        """Return the graph of this op alone, with inputs x0, x1, … and outputs y0, … Its text, oracle values and structural key are
        used for the spec."""
        xs = [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(self.inputs)]
        node = apply(self.op, xs, self.attrs)
        return graph({f"y{i}": leaves.item(node, i) for i in range(len(node.types))})


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of a Python function on arrays of its backend: run(outs, ins, attrs); dims in attrs are numbers. on_stream: the
    function starts all its work on the current stream of the backend's library, and the same work whatever the operands hold, so
    that the work may be captured (`captured` of the backend) and replayed."""

    engine: ClassVar[str] = "host"
    pointers: ClassVar[None] = None
    scratch: ClassVar[Dim] = 0
    run: Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], None]
    on_stream: bool = False


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call of a native symbol. Its arguments are all outputs, then the operands at positions `pointers` (None: null pointer)."""

    engine: ClassVar[str] = "native"
    symbol: str
    pointers: tuple[int | None, ...]
    ints: tuple[Dim, ...]
    floats: tuple[float, ...] = ()
    scratch: Dim = 0
    """upper bound of the call's scratch memory in bytes, on all threads together; the pool keeps it for the next call"""
    image: str = ""
    """path of the shared library with the symbol, in the cache folder; "": a library of the built-in C kernels"""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of a contiguous value between two devices. source, target: names of the devices."""

    engine: ClassVar[str] = "transfer"
    pointers: ClassVar[None] = None
    scratch: ClassVar[Dim] = 0
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of one GPU kernel of an image. grid: number of blocks. block: threads per block. shared: bytes of dynamic shared
    memory per block. waits: the kernel begins with `after_those_before()` (numbers.cuh), so that its blocks may start while earlier
    launches end. Before that call it writes nothing, and reads only `ints` and the operands numbered in `early`. Where a launch of
    the same sequence writes one of those operands, the kernel starts after all earlier launches have ended."""

    entry: str
    grid: Dim
    block: int
    shared: int = 0
    waits: bool = False
    early: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A map by which a GPU copies boxes of an array to shared memory (CUDA driver API, cuTensorMapEncodeTiled); 128 bytes of a box
    lie along the fastest axis, in the swizzle of 128 bytes, and what is outside of the array is 0.

    word: number of the argument that is the array's address. kind: "u8", "u16" or "tf32" (f32, rounded as it is copied). sizes:
    elements along each axis, the fastest first. steps: bytes from one element to the next, along all axes but the fastest. box,
    every: elements of a box along these axes, and every how many-th is copied."""

    word: int
    kind: str
    sizes: tuple[Dim, ...]
    steps: tuple[Dim, ...]
    box: tuple[int, ...]
    every: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchCall:
    """GPU kernels of one image, launched one after the other on their device. Their arguments are 64-bit addresses: of the outputs,
    the operands, the array of `ints` if any (64 bits each, in device memory, so that a captured launch reads the current values),
    and the pieces of scratch; then all tensor maps as one argument, by value. pieces: bytes of each piece, multiples of 256. text:
    source of the image; the device compiles and caches it. alignment: bytes of which every address must be a multiple; where one is
    not, `otherwise` is launched."""

    engine: ClassVar[str] = "launch"
    pointers: ClassVar[None] = None
    text: str
    launches: tuple[Launch, ...]
    ints: tuple[Dim, ...] = ()
    pieces: tuple[Dim, ...] = ()
    alignment: int = 1
    otherwise: LaunchCall | None = None
    maps: tuple[TensorMap, ...] = ()

    @property
    def scratch(self) -> Dim:
        total: Dim = sum(self.pieces, 0)
        return total if self.otherwise is None else dims.dim_max(total, self.otherwise.scratch)


Call = HostCall | NativeCall | LaunchCall | Transfer
"""any call; its `engine` names the kind of segment that runs it (runtime/segments)"""


@dataclass(frozen=True, slots=True)
class Preparation:
    """A value that a kernel computes from some of its operands before its call: a packed or quantised copy of a weight matrix.

    call: computes the value from the operands numbered in `operands`; the outputs have the types `outputs`, without symbolic dims.
    Where the operands are parameters, the call runs once at bind time, shared by all instructions with an equal preparation;
    elsewhere it runs at every run."""

    call: Call
    operands: tuple[int, ...]
    outputs: tuple[TensorType, ...]


Pairs = tuple[tuple[int, int], ...]
"""pairs (number of an output, number of an operand)"""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The outputs that may share memory with operands. pairs: may share memory or not; the kernel is correct either way. updated:
    the kernel stores only the elements that differ from the operand; without shared memory the operand is first copied to the
    output."""

    pairs: Pairs = ()
    updated: Pairs = ()


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel: code that computes one op on one backend, into preallocated outputs.

    accepts(spec): return None, or the reason for a refusal.  build(spec): return the call.  in_place: pairs (output, operand) that
    may share memory; the kernel is correct either way.  updates: output 0 is stored only where it differs from operand 0; without
    shared memory operand 0 is first copied there.  shares(spec): replaces in_place and updates, for a kernel of any op.
    contiguous: operands must be C-contiguous.  positive_strides: operands must have no negative strides.  module: imported by
    another process to get the kernel.  build_copy(shape, out strides, in strides, itemsize): return the call, for a copy kernel.
    source: text for people, and part of the identity.  sources: further files (C code, tables), relative to the folder of `module`.
    prepare(spec): values computed before the call, from parameters; in the call they follow the op's operands. When the kernel is
    compared and timed, the operands that they are computed from are taken as parameters.  traffic(spec): bytes moved, where fewer
    than in operands and outputs.  arithmetic(spec): operations, where not as in the definition.  requirements: of the device
    (device_requirements.py); elsewhere the kernel is no candidate.
    extends(spec): (name of a kernel, node) where this kernel is that one on that node, with more in it: a measured time of that one
    corrects the estimate of this one.
    strided(spec, strides): return the call for operands that are not contiguous. strides: in elements, a tuple for each operand; 0
    along an axis where all indices are one element. Where it is missing or returns None, such operands are copied first. Outputs
    are contiguous. The comparison with the oracle covers the strides that it takes (measure/points/point_plan.py).
    together(specs): build what the calls of all these specs need in one run of a compiler; return for each None, or why it cannot
    be built. `build` builds what is still missing.
    composite: the op, where `op` names a composite outside the library. The kernel computes every composite of that name with the
    same definition; for a part (language/anonymous_composite.py), every part proved equal.  crash_note: advice, with a fix, shown
    when the kernel ends its process; no part of the identity.
    whole(graph): of a kernel that runs all steps of a graph (op: ALL_STEPS): read a graph for the segment that launches the kernel
    (runtime/segments/decoder_kernel.py). Raises NotLowered with the reason where the graph does not fit.
    remade: name of the function in `module` that builds the kernel from its `source` in another process, for a kernel that a
    generator has built for one spec. It computes the specs that `accepts` takes of the op named `op`.
    assuming: conditions on values (meaning/assumptions.py): compared where they hold, used where a caller assumes them.
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
    extends: Callable[[Spec], tuple[str, Node]] | None = None
    sources: Sequence[str | Path] = ()
    strided: Callable[[Spec, Sequence[Strides]], Call | None] | None = None
    together: Callable[[Sequence[Spec]], Sequence[str | None]] | None = None
    shares: Callable[[Spec], Sharing] | None = None
    composite: CompositeOp | None = None
    crash_note: str = ""
    remade: str = ""
    whole: Callable[[Graph], Any] | None = None
    assuming: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wrong = problem(self.requirements)
        if wrong is not None:
            raise KernelError(f"the requirements of kernel {self.name!r} {wrong}")
        object.__setattr__(self, "requirements", dict(self.requirements))    # as they were checked
        # identities of built-in kernels are computed at first use, so that importing stays quick
        if isinstance(self.module, str) and not self.module.startswith("tensor_graphs."):
            _ = self.identity

    def __repr__(self) -> str:
        return self.name

    @property
    def ours(self) -> bool:
        """Return whether the kernel belongs to this package."""
        return self.module.startswith("tensor_graphs.")

    def run(self, arrays: Sequence[Any] | Mapping[str, Any], **attributes: Any) -> Any:
        """Run the kernel once, in this process, on the op's operands as numpy arrays. Returns its output, or a tuple of several.

            kernel.run([x, weight], eps=1e-6)          # or by name: {"x": x, "weight": weight}

        Raises KernelError where the kernel refuses the call, and the op's errors for operands that do not fit each other."""
        return importlib.import_module(RUNNER).run_alone(self, arrays, attributes)

    def sharing(self, spec: Spec) -> Sharing:
        """Return which outputs may share memory with which operands."""
        return Sharing(self.in_place, ((0, 0),) if self.updates else ()) if self.shares is None else self.shares(spec)

    def computes(self, spec: Spec) -> bool:
        """Return whether the kernel computes this spec's op, and not a namesake of it."""
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
        """Return the sha256 of all code that the kernel depends on (identity.py), as it was at its declaration. Changed code makes
        another kernel without measurements. Raises KernelError when a file of `sources` is missing."""
        declared = (self.name, self.toolchain, self.in_place, self.contiguous, self.positive_strides, self.updates)
        return hashlib.sha256(f"{declared}{self.assuming or ''}\0{self.code.digest}".encode()).hexdigest()

    @cached_property
    def code(self) -> Code:
        """Return the code of the kernel as it was at its declaration. Raises KernelError where a file cannot be read."""
        return self.read_code()

    def read_code(self) -> Code:
        """Read the kernel's code as it is now (modules as they were imported). Raises KernelError where a file cannot be read."""
        named = [self.sources] if isinstance(self.sources, (str, Path)) else self.sources
        folder = base_folder(self.module)
        files = [folder / name for name in named]
        for name, file in zip(named, files, strict=True):
            if not file.is_file():
                raise KernelError(f"kernel {self.name!r} names {str(name)!r} in its sources, and there is no such file: {file}\n"
                                  f"  fix: a path from the folder of its module ({folder}), or an absolute one")
        functions = (self.build, self.accepts, self.prepare, self.traffic, self.arithmetic, self.build_copy, self.strided,
                     *(function for function in (self.together, self.shares, self.extends) if function is not None))
        try:
            return code_of(self.module, functions, files, self.source)
        except OSError as e:
            raise KernelError(f"the code of kernel {self.name!r} cannot be read, so it has no identity: {e}\n"
                              "  fix: make the file readable, or take it out of `sources`") from e


def make_together(wanted: Sequence[tuple[Kernel, Spec]]) -> list[str | None]:
    """Build the libraries that these calls need, for kernels that can build several together (`Kernel.together`). Return for each
    pair None, or the reason why it cannot be built."""
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
    """Return the source text of a Python function. For code without text (from `exec`, for example), return a name that is equal
    for equal code. Raises KernelError for anything that is no Python function."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        if code is None:
            raise KernelError(f"the source of {function!r} is not at hand, so its kernel has no identity\n"
                              "  fix: a function defined with def that calls it, or Kernel(source=…) with its text") from None
        return code_text(code)
