"""lower: converts one path of a graph to a flat list of instructions over buffers. Views cost nothing where strides can express
them.

In: a graph and a kernel for each of its nodes. Out: instructions in an order in which every operand is written before it is read,
with in-place writes where proved safe, copies where a kernel needs contiguous memory, and copies between devices (residency.py).
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from tensor_graphs.devices.device import UnknownDevice
from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Call, Kernel, Preparation, Sharing, Spec, Transfer
from tensor_graphs.kernels.registry import device_of
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.kernels.strides import contiguous_strides, is_contiguous
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType, alike, consumers, walk
from tensor_graphs.paths.memory import Interval
from tensor_graphs.paths.residency import Whereabouts, arriving, handed_out, pieces_of, under_views, viewed

BufferKind = Literal["arena", "parameter", "input", "state", "output", "constant", "dims", "bound"]

class PlanError(TensorGraphsError):
    """A graph that cannot be lowered or run on a device as requested."""


@dataclass(frozen=True)
class Operand:
    """A typed, strided window into a buffer. offset in bytes, strides in elements; all may be expressions of dims."""

    buffer: int
    offset: Dim
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dtype: DType

    @property
    def contiguous(self) -> bool:
        return _contiguous(self.shape, self.strides)


@functools.lru_cache(1 << 12)
def _sized(t: TensorType) -> tuple[Dim, tuple[Dim, ...]]:
    """Return the number of bytes and the strides of a contiguous value."""
    return t.nbytes(), contiguous_strides(t.shape)


@functools.lru_cache(1 << 12)
def _contiguous(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    """Return `is_contiguous`, cached: equal layers have equal layouts."""
    return is_contiguous(shape, strides)


@dataclass(frozen=True)
class Instruction:
    """One call, as plain data. kernel: name of the kernel. waits: indices of the instructions whose results it reads or overwrites.
    device: where it computes, or (a copy between devices) writes. backend: whose array type the operands are passed as."""

    label: str
    kernel: str
    op: str
    signature: str
    call: Call
    attrs: Mapping[str, Any]
    outs: tuple[Operand, ...]
    ins: tuple[Operand, ...]
    written_at: str = ""
    waits: tuple[int, ...] = ()
    device: str = HOST.name
    backend: str = ""

    @property
    def reads(self) -> tuple[Operand, ...]:
        """The operands that the call is given: those that it has pointers to, or all."""
        pointers = self.call.pointers
        return self.ins if pointers is None else tuple(self.ins[p] for p in dict.fromkeys(pointers) if p is not None)


@dataclass
class Buffer:
    """Memory of a value on `device`. first, last: the first and last instructions that use it (arena only)."""

    kind: BufferKind
    name: str
    nbytes: Dim
    first: int = -1
    last: int = -1
    value: Any = None                  # constants: ArrayValue or number; dims: the expression
    alias: int | None = None           # shares the memory of another buffer (written in place)
    dtype: DType | None = None
    device: str = HOST.name


@dataclass
class Program:
    """Instructions to run at every call, and others to run at bind time, over one table of buffers."""

    graph: Graph
    buffers: list[Buffer] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    bind_instructions: list[Instruction] = field(default_factory=list)
    outputs: dict[str, Operand] = field(default_factory=dict)
    values: dict[Node, Operand] = field(default_factory=dict)
    signatures: dict[str, Signature] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that hold any of the buffers, the host first."""
        return tuple(dict.fromkeys([HOST.name, *(b.device for b in self.buffers)]))

    def device(self, operand: Operand) -> str:
        return self.buffers[operand.buffer].device

    def home(self, buffer: int) -> int:
        """Return the index of the buffer whose memory `buffer` uses: its own, or that of the buffer it aliases."""
        while (alias := self.buffers[buffer].alias) is not None:
            buffer = alias
        return buffer


def reshape_strides(shape: Sequence[Dim], strides: Sequence[Dim], new: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """Return the strides that view the memory of a value under a new shape, or None where a reshape needs a copy."""
    if is_contiguous(shape, strides):
        return contiguous_strides(new)
    old = [(s, st) for s, st in zip(shape, strides, strict=True) if s != 1]
    out: list[Dim] = [0] * len(new)
    axes = [(axis, s) for axis, s in enumerate(new) if s != 1]
    i = j = 0
    while i < len(old) and j < len(axes):
        oi, nj = i + 1, j + 1
        a, b = old[i][0], axes[j][1]
        while not same_dim(a, b):
            grow_old = dim_ge(b, a)
            if grow_old is None or (oi >= len(old) if grow_old else nj >= len(axes)):
                return None
            if grow_old:
                a, oi = a * old[oi][0], oi + 1
            else:
                b, nj = b * axes[nj][1], nj + 1
        for k in range(i, oi - 1):                       # the merged old axes must be one run of memory
            if old[k][1] != old[k + 1][1] * old[k + 1][0]:
                return None
        step: Dim = old[oi - 1][1]
        for k in range(nj - 1, j - 1, -1):
            out[axes[k][0]] = step
            step = step * axes[k][1]
        i, j = oi, nj
    return tuple(out) if i == len(old) and j == len(axes) else None


def window_of(node: Node, x: Operand) -> Operand | None:
    """Return the result of a view op as another window into x's buffer; None where strides cannot express it."""
    name = node.op.name
    if name == "copy_to":
        return x
    if name == "permute":
        axes = node.attrs["axes"]
        return replace(x, shape=node.shape, strides=tuple(x.strides[a] for a in axes))
    if name == "expand":
        strides = tuple(0 if not same_dim(a, b) else st for a, b, st in zip(x.shape, node.shape, x.strides, strict=True))
        return replace(x, shape=node.shape, strides=strides)
    if name == "slice":
        offset = x.offset
        for (start, _, _), st in zip(node.attrs["bounds"], x.strides, strict=True):
            offset = offset + start * st * x.dtype.itemsize
        steps = tuple(st * step for (_, _, step), st in zip(node.attrs["bounds"], x.strides, strict=True))
        return replace(x, offset=offset, shape=node.shape, strides=steps)
    assert name == "reshape", name
    strides_or_none = reshape_strides(x.shape, x.strides, node.shape)
    return None if strides_or_none is None else replace(x, shape=node.shape, strides=strides_or_none)


def read_in_place(kernel: Kernel, spec: Spec, ins: Sequence[Operand]) -> tuple[Call | None, list[bool]]:
    """Return (call, for each operand whether the kernel reads it in place, without a copy). The call is None where the call for
    contiguous operands fits. Of operands with gaps or repeats, as many are read in place as the kernel allows, from the first on.
    """
    call: Call | None = None
    direct = {i for i, x in enumerate(ins) if not kernel.contiguous or x.contiguous}
    rest = [i for i in range(len(ins)) if i not in direct]
    if kernel.strided is not None and rest:
        for more in (set(rest), *({i} for i in rest)):
            if not more <= direct:
                strides = [x.strides if i in direct | more else contiguous_strides(x.shape) for i, x in enumerate(ins)]
                other = kernel.strided(spec, strides)
                call, direct = (call, direct) if other is None else (other, direct | more)
    if kernel.positive_strides:
        direct -= {i for i, x in enumerate(ins) if any(dim_ge(s, 0) is not True for s in x.strides)}
    return call, [i in direct for i in range(len(ins))]


NOTHING_SHARED = Sharing()

ChooseKernel = Callable[[Node], Kernel]
"""Function from a node to its kernel; alike nodes (equal op, attributes and types) have the same kernel."""


@dataclass(frozen=True)
class _Question:
    """The kernel, signature and device of all nodes that are alike. constant: their attributes, operands and results contain no
    dims. calls: shapes and strides of the operands -> (the call, for each operand whether it is read in place)."""

    kernel: Kernel
    signature: Signature
    device: str
    constant: bool
    calls: dict[tuple[tuple[tuple[Dim, ...], tuple[Dim, ...]], ...], tuple[Call, list[bool]]] = field(default_factory=dict)

    @functools.cached_property
    def preparations(self) -> tuple[Preparation, ...]:
        return () if self.kernel.prepare is None else self.kernel.prepare(self.signature.spec)

    @functools.cached_property
    def sharing(self) -> Sharing:
        return self.kernel.sharing(self.signature.spec)

    def reads(self, ins: Sequence[Operand]) -> tuple[Call, list[bool]]:
        """Return (the call for operands of these layouts, for each operand whether it is read in place, without a copy)."""
        key = tuple([(x.shape, x.strides) for x in ins])
        if key not in self.calls:
            call, in_place = read_in_place(self.kernel, self.signature.spec, ins)
            self.calls[key] = call or self.kernel.build(self.signature.spec), in_place
        return self.calls[key]


Finals = Mapping[tuple[str, str], Operand]
"""("output" or "state", name) -> the operand with its value at the end of a run"""


class Lowering:
    def __init__(self, graph: Graph, roots: Sequence[Node], choose: ChooseKernel, copiers: Sequence[Kernel]) -> None:
        self.graph, self.choose, self.copiers = graph, choose, copiers
        self.program = Program(graph)
        self.values: dict[tuple[Node, str], tuple[Operand, ...]] = {}
        self.where, self.arriving = Whereabouts(), dict[Node, str]()
        self.counts: dict[str, int] = {}
        self.roots = dict(zip([("output", n) for n in graph.outputs] + [("state", n) for n in graph.updates], roots, strict=True))
        self.state_devices = {n: self.computed_on(root) for (kind, n), root in self.roots.items() if kind == "state"}
        self.names: dict[tuple[str, str, str], int] = {}
        self.sharing: dict[str, Sharing] = {}                       # label of an instruction -> its sharing
        self.preparations: dict[tuple[str, Preparation, tuple[Operand, ...]], tuple[Operand, ...]] = {}
        self.same: dict[Node, Node] = {}
        self.questions: dict[Node, _Question] = {}                  # by the first of the nodes that are alike

    def computed_on(self, root: Node) -> str:
        """Return the device of the kernel that computes a value. A state is stored on the device that computes its new value."""
        node = under_views(root)
        return HOST.name if node.op.kind == "leaf" else device_of(self.choose(node).backend).name

    # ---- buffers ----

    def buffer(self, kind: BufferKind, name: str, nbytes: Dim, device: str, **more: Any) -> int:
        self.program.buffers.append(Buffer(kind, name, nbytes, device=device, **more))
        return len(self.program.buffers) - 1

    def named(self, kind: BufferKind, name: str, t: TensorType, device: str = HOST.name, **more: Any) -> Operand:
        key = (kind, name, device)
        nbytes, strides = _sized(t)
        if key not in self.names:
            self.names[key] = self.buffer(kind, name[:8] if kind == "constant" else name, nbytes, device, dtype=t.dtype, **more)
        return Operand(self.names[key], 0, t.shape, strides, t.dtype)

    def fresh(self, t: TensorType, label: str, bind: bool, device: str) -> Operand:
        nbytes, strides = _sized(t)
        index = self.buffer("bound" if bind else "arena", label, nbytes, device, dtype=t.dtype)
        return Operand(index, 0, t.shape, strides, t.dtype)

    def is_bound(self, operand: Operand) -> bool:
        return self.program.buffers[operand.buffer].kind in ("parameter", "constant", "bound")

    # ---- nodes ----

    def constant(self, node: Node, device: str) -> Operand:
        """Return a constant, or the value of a dim, in the memory of a device."""
        value, t = node.attrs["value"], node.type
        if isinstance(value, d.Expr):
            return self.named("dims", f"{t.dtype.name} {d.format_dim(value)}", t, device, value=value)
        return self.named("constant", node.digest, t, device, value=value)

    def leaf(self, node: Node) -> None:
        kinds: dict[Any, BufferKind] = {leaves.INPUT: "input", leaves.PARAMETER: "parameter", leaves.STATE: "state"}
        if node.op not in kinds:
            raise PlanError(f"a graph to run may not hold a bare {node.op.name}")
        name = str(node.attrs["name"])
        device = self.state_devices.get(name, HOST.name) if node.op is leaves.STATE else self.arriving.get(node, HOST.name)
        self.put(node, device, (self.named(kinds[node.op], name, node.type, device),))

    def put(self, node: Node, device: str, operands: tuple[Operand, ...]) -> None:
        self.values[node, device] = operands
        self.where.put(node, device)

    def at(self, node: Node, device: str) -> Operand:
        """Return a node's value on a device. A value that is not on that device is copied there, once."""
        if (node, device) in self.values:
            return self.values[node, device][0]
        if node.op is leaves.CONSTANT:
            value = self.constant(node, device)
        else:
            carrier = self.where.carrier(node, device)
            if carrier is node:
                source = self.where.first(node)
                assert source is not None
                value = self.transfer(self.at(node, source), device, str(node.location or ""))
                self.where.put(node, device)
            else:
                if carrier is not None:
                    self.at(carrier, device)
                under = viewed(node)
                assert under is not None
                value = self.window(node, self.at(under, device))
        self.values[node, device] = (value,)
        return value

    def window(self, node: Node, x: Operand) -> Operand:
        """Return a view as a window into the operand x, or into a contiguous copy of x where strides cannot express the view."""
        result = window_of(node, x) or window_of(node, self.copy(x, why="contiguous"))
        assert result is not None
        return result

    def label(self, op: str) -> str:
        self.counts[op] = self.counts.get(op, -1) + 1
        return f"{op}.{self.counts[op]}"

    def emit(self, node_op: str, kernel: Kernel, call: Call, attrs: Mapping[str, Any], outs: tuple[Operand, ...],
             ins: tuple[Operand, ...], signature: str, written_at: str, bind: bool, sharing: Sharing = NOTHING_SHARED) -> None:
        target = self.program.bind_instructions if bind else self.program.instructions
        label = self.label(node_op)
        target.append(Instruction(label, kernel.name, node_op, signature, call, attrs, outs, ins, written_at,
                                  device=device_of(kernel.backend).name, backend=kernel.backend))
        self.sharing[label] = sharing

    def copy(self, x: Operand, into: Operand | None = None, why: str = "copy", bind: bool | None = None) -> Operand:
        """Emit a contiguous copy of x, into an operand or a new transient buffer, and return the copy."""
        t = TensorType(x.shape, x.dtype)
        if bind is None:
            bind = self.is_bound(x) and into is None and not d.has_dims((*x.shape, *x.strides, x.offset))
        device = self.program.device(x)
        out = into if into is not None else self.fresh(t, why, bind, device)
        for kernel in self.copiers:
            if device_of(kernel.backend).name == device and kernel.build_copy is not None:
                call = kernel.build_copy(x.shape, out.strides, x.strides, x.dtype.itemsize)
                if call is not None:                        # None: the kernel does not take this rank
                    self.emit(why, kernel, call, {}, (out,), (x,), "", "", bind)
                    return out
        raise PlanError(f"a value has to be copied on the device {device}, and no backend in use has a kernel for that\n"
                        "  fix: a backend there with copy_kernel() (docs/backends.md)")

    def transfer(self, x: Operand, device: str, written_at: str) -> Operand:
        """Emit a contiguous copy of a value to another device, and return the copy."""
        source = self.program.device(x)
        bind = self.is_bound(x) and not d.has_dims((*x.shape, *x.strides, x.offset))
        whole = x if x.contiguous else self.copy(x, why="contiguous")
        out = self.fresh(TensorType(x.shape, x.dtype), f"copy on {device}", bind, device)
        target = self.program.bind_instructions if bind else self.program.instructions
        target.append(Instruction(self.label("copy_to"), f"{source} -> {device}", "copy_to", "", Transfer(source, device), {},
                                  (out,), (whole,), written_at, device=device))
        return out

    def run(self, order: Sequence[Node]) -> None:
        self.same, self.where, self.arriving = alike(order), Whereabouts(pieces_of(order)), arriving(order, self.roots.values())
        for node in order:
            if node.op.kind == "leaf":
                if node.op is not leaves.CONSTANT:
                    self.leaf(node)
            elif node.op is leaves.ITEM:
                device = self.where.first(node.inputs[0])
                assert device is not None
                self.put(node, device, (self.values[node.inputs[0], device][node.attrs["index"]],))
            elif node.op.facts.view:
                target = device_asked(node) if node.op is leaves.COPY_TO else self.where.first(node)
                if target is not None:                      # None: a view of a constant is made on each device that reads it
                    self.at(node, target)
            else:
                self.kernel_node(node)

    def question(self, node: Node) -> _Question:
        """Return the `_Question` of a node, shared by all nodes that are alike."""
        first = self.same[node]
        if first not in self.questions:
            kernel = self.choose(first)
            constant = all(d.is_static(s) for t in (*first.types, *(i.type for i in first.inputs)) for s in t.shape)
            self.questions[first] = _Question(kernel, signature_of(first), device_of(kernel.backend).name,
                                              bool(first.inputs) and constant and not d.has_dims(first.attrs))
        return self.questions[first]

    def kernel_node(self, node: Node) -> None:
        question = self.question(node)
        kernel, signature, device = question.kernel, question.signature, question.device
        ins = tuple([self.at(i, device) for i in node.inputs])
        bind = question.constant and all(self.is_bound(i) for i in ins)
        call, in_place = question.reads(ins)
        prepared = [x if direct else self.copy(x, why="contiguous") for x, direct in zip(ins, in_place, strict=True)]
        written_at = str(node.location or "")
        for p in question.preparations:
            prepared += self.prepared(node.op.name, kernel, p, prepared, signature.key, written_at)
        outs = tuple([self.fresh(t, node.op.name, bind, device) for t in node.types])
        self.program.signatures[signature.key] = signature
        self.emit(node.op.name, kernel, call, node.attrs, outs, tuple(prepared), signature.key, written_at, bind, question.sharing)
        self.put(node, device, outs)

    def prepared(self, op: str, kernel: Kernel, p: Preparation, operands: Sequence[Operand], signature: str,
                 written_at: str) -> tuple[Operand, ...]:
        """Return the results of a kernel's preparation of these operands, computed once for all nodes with equal preparations."""
        ins = tuple(operands[i] for i in p.operands)
        key = (kernel.name, p, ins)
        if key not in self.preparations:
            bind = all(self.is_bound(i) for i in ins)
            device = device_of(kernel.backend).name
            outs = tuple(self.fresh(t, f"{op} prepared", bind, device) for t in p.outputs)
            target = self.program.bind_instructions if bind else self.program.instructions
            target.append(Instruction(self.label(f"prepare_{op}"), kernel.name, op, signature, p.call, {}, outs, ins, written_at,
                                      device=device, backend=kernel.backend))
            self.preparations[key] = outs
        return self.preparations[key]

    def finish(self, order: Order | None) -> Program:
        p, roots = self.program, self.roots
        # an output ends on the device that the graph requests, a state on the device that computes it
        finals: Finals = {(kind, name): self.at(root, handed_out(root) if kind == "output" else self.state_devices[name])
                          for (kind, name), root in roots.items()}
        finals = order(self, finals) if order is not None else finals
        last_use = {o.buffer: at for at, ins in enumerate(p.instructions) for o in (*ins.ins, *ins.outs)}
        self._in_place(last_use, finals)
        self._copy_before_updates()
        # final values into outputs and states
        late: list[tuple[Operand, Operand]] = []
        for (kind, name), root in roots.items():
            value = finals[kind, name]
            t = root.type
            home = p.home(value.buffer)
            b = p.buffers[home]
            whole = value.contiguous and value.offset == 0 and same_dim(b.nbytes, t.nbytes())
            if kind == "output":
                if b.kind == "arena" and whole:             # no other output has it
                    b.kind, b.name = "output", name
                    p.outputs[name] = value
                else:
                    out = self.named("output", name, t, handed_out(root))
                    p.outputs[name] = out
                    late.append((value, out))
            elif not (b.kind == "state" and b.name == name and whole):
                late.append((value, self.named("state", name, t, self.state_devices[name])))
        # a state may be the source of one copy and the target of another: read everything before writing any state
        written = {p.home(into.buffer) for _, into in late if p.buffers[into.buffer].kind == "state"}
        staged = [(self.copy(v, why="stage", bind=False) if p.home(v.buffer) in written else v, into) for v, into in late
                  if p.home(v.buffer) != p.home(into.buffer) or v != into]
        for v, into in staged:
            self.copy(v, into=into, why="store", bind=False)
        self._liveness()
        self._waits()
        for (node, _), operands in self.values.items():
            if len(operands) == 1:
                p.values.setdefault(node, operands[0])
        return p

    def _in_place(self, last_use: Mapping[int, int], finals: Finals) -> None:
        """Let outputs share memory with operands that die at the same instruction: first with the states that the outputs become.
        """
        becomes = {name: value.buffer for (kind, name), value in finals.items() if kind == "state"}
        final = {value.buffer for value in finals.values()}
        for t, ins in enumerate(self.program.instructions):
            pairs = self.sharing[ins.label].pairs if ins.label in self.sharing else ()
            for own in (True, False):
                for out_index, in_index in pairs:
                    if in_index < len(ins.ins):
                        x, out = ins.ins[in_index], ins.outs[out_index]
                        b = self.program.buffers[x.buffer]
                        if (b.kind == "state" and becomes.get(b.name) == out.buffer) == own and self._may_lie_in(
                                x, out, ins, last_use[x.buffer] > t or x.buffer in final, becomes):
                            self.program.buffers[out.buffer].alias = self.program.home(x.buffer)   # no chain of aliases

    def _may_lie_in(self, x: Operand, out: Operand, ins: Instruction, lives_on: bool, updated: Collection[str]) -> bool:
        """Return whether an output may be written over an operand that the kernel allows it to share memory with."""
        p = self.program
        home = p.home(x.buffer)
        b, target = p.buffers[home], p.buffers[out.buffer]
        if lives_on or target.kind != "arena" or target.alias is not None or not same_dim(b.nbytes, target.nbytes):
            return False
        if not (x.contiguous and x.offset == 0 and x.shape == out.shape and x.dtype == out.dtype):
            return False
        if sum(p.home(o.buffer) == home for o in (*ins.ins, *ins.outs)) > 1:
            return False                                # another operand or output is in that memory
        return b.kind == "arena" or (b.kind == "state" and b.name in updated)   # a state that is never updated keeps its value

    def _copy_before_updates(self) -> None:
        """Insert a copy of the old value into each output of which a kernel writes only some elements, unless in place."""
        p = self.program
        for program in (p.instructions, p.bind_instructions):
            listed = list(program)
            program.clear()
            for ins in listed:
                for o, i in self.sharing[ins.label].updated if ins.label in self.sharing else ():
                    out, x = ins.outs[o], ins.ins[i]
                    if p.home(out.buffer) != p.home(x.buffer):
                        self.copy(x, into=out, why="before_update", bind=program is p.bind_instructions)
                program.append(ins)

    def _liveness(self) -> None:
        p = self.program
        for t, ins in enumerate(p.instructions):
            for o in (*ins.outs, *ins.reads):
                b = p.buffers[p.home(o.buffer)]
                b.first = t if b.first < 0 else b.first
                b.last = t

    def _waits(self) -> None:
        """Set the dependences of each instruction by memory: read after write, write after read, write after write."""
        p = self.program
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        for t, ins in enumerate(p.instructions):
            reads, writes = ({p.home(o.buffer) for o in operands} for operands in (ins.ins, ins.outs))
            waits = {writer[home] for home in reads | writes if home in writer}
            waits.update(*(readers.get(home, ()) for home in writes))
            for home in reads - writes:
                readers.setdefault(home, []).append(t)
            for home in writes:
                writer[home], readers[home] = t, []
            p.instructions[t] = replace(ins, waits=tuple(sorted(waits)))


Order = Callable[[Lowering, Finals], Finals]
"""Function that changes the order of a draft, whose buffers are each written once, and repeats instructions (run_order.py)."""


def schedule(roots: Sequence[Node], states: Mapping[str, Node] = MappingProxyType({})) -> list[Node]:
    """Return the nodes in an order in which operands precede their users, and (where possible) readers of a state precede the node
    that overwrites it. states: name of each state -> its new value."""
    order = walk(roots)
    users = consumers(roots)
    index = {n: i for i, n in enumerate(order)}
    extra: list[tuple[Node, Node]] = []
    ancestors_cache: dict[Node, set[Node]] = {}

    def ancestors(n: Node) -> set[Node]:
        if n not in ancestors_cache:
            ancestors_cache[n] = set(walk([n]))
        return ancestors_cache[n]

    for node in order:
        if node.op is not leaves.STATE or len(set(users[node])) < 2:
            continue
        new = states.get(node.attrs["name"])
        new = None if new is None else under_views(new)
        writers = [u for u in set(users[node]) if u is new or ((rows := u.op.facts.writes) and u.inputs[rows.of] is node)]
        readers: list[Node] = []                        # of the state's memory, through views too
        stack = [u for u in set(users[node]) if u not in writers]
        while stack:
            u = stack.pop()
            readers.append(u)
            if u.op.facts.view:
                stack.extend(users[u])
        for w in writers[:1]:
            extra += [(r, w) for r in readers if w not in ancestors(r)]
    if not extra:
        return order
    before: dict[Node, set[Node]] = {n: set(n.inputs) for n in order}
    for r, w in extra:
        before[w].add(r)
    after: dict[Node, list[Node]] = {n: [] for n in order}
    for n, needs in before.items():
        for m in needs:
            after[m].append(n)
    missing = {n: len(needs) for n, needs in before.items()}
    ready = [index[n] for n in order if missing[n] == 0]
    heapq.heapify(ready)
    out: list[Node] = []
    while ready:
        n = order[heapq.heappop(ready)]
        out.append(n)
        for u in after[n]:
            missing[u] -= 1
            if missing[u] == 0:
                heapq.heappush(ready, index[u])
    return out if len(out) == len(order) else order     # a cycle (two writers that read each other): copies instead


def device_asked(node: Node) -> str:
    """Return the name of the device to which a copy_to node copies. Raises PlanError where this machine lacks that device."""
    try:
        return device_named(node.attrs["device"]).name
    except UnknownDevice as e:
        raise PlanError(f"copy_to({node.attrs['device']!r}) at {node.location}: {e}") from None


def lower(graph: Graph, roots: Sequence[Node], choose: ChooseKernel, copiers: Sequence[Kernel],
          order: Order | None = None) -> Program:
    """Return the program of a graph. roots: the graph's roots after expansion of its definitions, in the order of graph.roots; each
    of their nodes has a kernel. copiers: kernels for explicit copies, in the order in which they are tried (registry.copy_kernels).
    order: changes the order of a run and repeats instructions.

    Raises PlanError for a copy to a device that this machine lacks, or within a device for which no backend has a copy kernel.
    """
    lowering = Lowering(graph, roots, choose, copiers)
    lowering.run(schedule(roots, {name: root for (kind, name), root in lowering.roots.items() if kind == "state"}))
    return lowering.finish(order)


def arena_buffers(program: Program) -> list[int]:
    """Return the indices of the buffers that have arena memory of their own, in table order (an alias uses its home's)."""
    return [i for i, b in enumerate(program.buffers) if b.kind == "arena" and b.alias is None and b.last >= 0]


def intervals_of(program: Program) -> list[Interval]:
    """Return the lifetime, size and device of each of the `arena_buffers`."""
    return [Interval(b.first, b.last, b.nbytes, b.name, b.device) for b in (program.buffers[i] for i in arena_buffers(program))]
