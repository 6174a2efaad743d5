"""importer: reads an ONNX file and builds its graph node by node. `from_onnx` is `tg.from_onnx`.

Dims that the file names (dim_params) become `tg.dim`s; initialisers become parameters, and small ones constants. A node is built by
the newest row that its opset allows; without a row by the function of the model, or the one that the op's schema defines.
"""

from __future__ import annotations

import functools
import keyword
import os
import re
from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tensor_graphs.argument_checks import place
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.frontends.onnx import control_flow, moves, neural, ops, quantised, sampling, sequences, signals
from tensor_graphs.frontends.onnx.call import OPAQUE, ROWS, Built, OnnxNode, row_of
from tensor_graphs.frontends.onnx.errors import NotSupported, OnnxError, ValueNeeded
from tensor_graphs.frontends.onnx.tensor_data import dtype_of, number_of, read_tensor, shape_of
from tensor_graphs.frontends.onnx.values import OnnxValue
from tensor_graphs.frontends.torch.index_ranges import RangeCheck
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import NOWHERE, written_at
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import solve

TABLES = (ops, moves, neural, quantised, sampling, sequences, signals, control_flow)
"""the modules whose rows are in the table"""

MOST_DIM, LEAST_MOST_DIM = 4096, 16
"""upper bound of dims to which `dims` gives no range; it is halved, down to the second number, until the shapes fit"""

MOST_NESTED = 32
"""depth to which functions and bodies may be nested"""

MOST_NODES = 50_000
"""nodes of the file with its functions and bodies written out"""

SMALL = 16
"""number of elements up to which an initialiser of integers is a constant; of floats, one element"""

Scope = ChainMap[str, OnnxValue]


@dataclass(frozen=True)
class OnnxModel:
    """An imported model. `tg.bind(tg.compile(model.graph), model.weights)` runs it.

    inputs, outputs: the file's name -> the graph's, which differ where a name has spaces or quotes. values: inputs that are fixed;
    unused: inputs that no output depends on; defaults: inputs with the values that the file stores for them; the graph has none of
    these. nodes: number of the file's nodes that were computed "native" (by a row of the table), by "function" and "opaque" (by the
    onnx package, of known values); opsets: version by domain; checks: of inputs that have indices.
    """

    name: str
    graph: Graph
    weights: Mapping[str, np.ndarray]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    values: tuple[str, ...]
    unused: tuple[str, ...]
    opsets: Mapping[str, int]
    nodes: Mapping[str, int]
    defaults: tuple[str, ...] = ()
    checks: tuple[RangeCheck, ...] = ()

    def require_indices(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Raise IndexRangeError for an input, by its name in the graph, that has an index out of range for the axis that an op
        reads or writes at it; a run reads 0 there, and writes nothing. Raises OnnxError for an input without an array."""
        missing = [name for name in self.graph.inputs if name not in inputs]
        if missing:
            raise OnnxError(f"the input {missing[0]!r} has no array", fix="an array for each input of the graph")
        sizes = solve(self.graph, {name: np.shape(array) for name, array in inputs.items()})
        for check in self.checks:
            check.require(np.asarray(inputs[check.name]), sizes.__getitem__)


def onnx_package() -> ModuleType:
    """Return the package `onnx`. Raises OnnxError where it is not installed."""
    try:
        import onnx
        import onnx.helper
    except ImportError as e:
        raise OnnxError(f"an ONNX file is read with the package onnx, which cannot be imported: {e}",
                        fix="pip install 'tensor_graphs[onnx]'") from None
    return onnx


def from_onnx(source: str | os.PathLike[str] | Any, *, dims: Mapping[str, int | tuple[int, int]] | None = None,
              values: Mapping[str, Any] | None = None) -> OnnxModel:
    """Return an ONNX model as a graph with its weights.

    source: a path, or an onnx.ModelProto. dims: for a symbolic size of the file, an int that fixes it or its range (lo, hi); by
    default it ranges from 1 to 4096, or to the largest power of two at which the shapes fit (a table of 64 positions allows 64). A
    size without a name is named after its input and axis: x_0. values: inputs that are fixed to these arrays, for inputs on which
    shapes depend; the graph has no such inputs. An input for which the file stores a default is a parameter, or a constant, with
    the array of `values` instead of the default.

    Raises OnnxError for a malformed file, missing external data, and names in `dims` and `values` that the model does not have;
    NotSupported for an op, a dtype or an attribute that has no counterpart, with the node's name, op, domain and opset;
    ValueNeeded where a shape depends on the values of an input.
    """
    onnx = onnx_package()
    if isinstance(source, onnx.ModelProto):
        return _narrowed(source, None, dims or {}, values or {}, onnx, source.graph.name or "model")
    path = Path(place("source", source, "the path of an ONNX file, or an onnx.ModelProto"))
    try:
        proto = onnx.ModelProto.FromString(path.read_bytes())
    except OSError as e:
        raise OnnxError(f"it cannot be read: {e.strerror}", file=path, fix="the path of an ONNX file") from None
    except Exception:
        raise OnnxError("it is not an ONNX file, or it is cut off", file=path, fix="export it again") from None
    try:
        return _narrowed(proto, path.parent, dims or {}, values or {}, onnx, path.stem)
    except OnnxError as e:
        raise e.again(file=path) from None


def from_onnx_with(source: str | os.PathLike[str] | Any, arrays: Mapping[str, np.ndarray],
                   dims: Mapping[str, int | tuple[int, int]] | None = None) -> OnnxModel:
    """Return an ONNX model as `from_onnx` does, with those inputs fixed to their `arrays` on which shapes depend, or for which the
    file stores a default."""
    values: dict[str, np.ndarray] = {}
    while True:
        try:
            model = from_onnx(source, dims=dims, values=values)
            missing = {name: arrays[name] for name in model.defaults if name in arrays}
            if not missing:
                return model
        except ValueNeeded as e:
            missing = {name: arrays[name] for name in e.inputs if name in arrays and name not in values}
            if not missing:
                raise
        values.update(missing)


def _narrowed(proto: Any, folder: Path | None, dims: Mapping[str, Any], values: Mapping[str, Any], onnx: Any,
              name: str) -> OnnxModel:
    """Return the model with the largest bounds of its dims at which it can be built. Raises the error of the first ones."""
    free: set[str] = set()                               # dims without a range of the caller's

    def build(most: Mapping[str, int]) -> OnnxModel | OnnxError:
        try:
            with written_at(NOWHERE):
                return _Importer(proto, folder, dims, values, onnx, most, free).model(name)
        except OnnxError as e:
            return e
        except TensorGraphsError as e:
            return OnnxError(getattr(e, "message", str(e)), fix="a graph that can be built")
        except (TypeError, ValueError, AttributeError) as e:  # a text of the file that is not UTF-8, …
            return OnnxError(f"it is malformed ({type(e).__name__}: {e})", fix="export it again")

    most, first = MOST_DIM, build({})
    model = first
    while isinstance(model, OnnxError):
        most //= 2
        if isinstance(first, ValueNeeded) or not free or most < LEAST_MOST_DIM:
            assert isinstance(first, OnnxError)
            raise first from None
        model = build(dict.fromkeys(free, most))
    narrow = dict.fromkeys(free, most)
    for wide in sorted(free) if most < MOST_DIM and len(free) > 1 else ():      # those that are not at fault keep their range
        wider = build({**narrow, wide: MOST_DIM})
        if isinstance(wider, OnnxModel):
            model, narrow = wider, {**narrow, wide: MOST_DIM}
    return model


class _Importer:
    """The walk over one model. free: filled with the dims that have no range of the caller's."""

    def __init__(self, proto: Any, folder: Path | None, dims: Mapping[str, Any], values: Mapping[str, Any], onnx: Any,
                 most: Mapping[str, int], free: set[str]) -> None:
        self.proto, self.folder, self.dims, self.values, self.onnx = proto, folder, dims, values, onnx
        self.most, self.free = most, free
        self.weights, self.stored, self.maps = dict[str, np.ndarray](), dict[int, tuple[Any, OnnxValue]](), dict[Path, np.ndarray]()
        self.symbols, self.dim_names, self.names = dict[str, Dim](), dict[str, str](), dict[str, str]()
        self.counts, self.depth, self.built = Counter[str](), 0, 0
        self.checks, self.always = list[RangeCheck](), True             # always: what is built is computed in every run
        self.opsets = _opsets(proto.opset_import)
        self.functions = {(f.domain, f.name): f for f in proto.functions}

    def model(self, name: str) -> OnnxModel:
        if not self.opsets or not self.proto.HasField("graph"):
            raise OnnxError("it has no graph or names no opset", fix="export it again")
        newest = self.onnx.defs.onnx_opset_version()
        if self.opsets.get("", 1) > newest:
            raise NotSupported(f"it uses opset {self.opsets['']}, and the installed onnx package knows up to {newest}",
                               fix="a newer onnx package")
        main, scope, inputs = self.proto.graph, Scope(), dict[str, str]()
        self._initialisers(main, scope)
        for item in main.input:
            if item.name not in scope:
                inputs[item.name], scope[item.name] = self._named(item.name), self._input(item)
            elif item.name in self.values:
                self._replace_default(item, scope)
        self._check_names(main.input)
        self._nodes(main.node, scope, self.opsets)
        for item in main.output:
            self._check_output(item, scope)
        if not main.output:
            raise OnnxError("its graph has no outputs", fix="export it again")
        names = {item.name: self._named(item.name) for item in main.output}
        built = graph({own: scope[name].node() for name, own in names.items()})
        weights = {n: self.weights[n] for n in built.parameters}
        used = {k: v for k, v in inputs.items() if v in built.inputs}
        unused = tuple(k for k in inputs if k not in used and k not in self.values)
        defaults = tuple(item.name for item in main.input if item.name not in {*inputs, *self.values})
        checks = tuple(check for check in self.checks if check.name in built.inputs)
        return OnnxModel(name, built, weights, used, names, tuple(self.values), unused, self.opsets, dict(+self.counts), defaults,
                         checks)

    # ---- leaves ----

    def _named(self, name: str) -> str:
        """Return a name that the language allows, the same one at each call."""
        if name not in self.names:
            clean = re.sub(r"[\s\"\\]", "_", name) or "_"
            while clean in self.names.values():
                clean += "_"
            self.names[name] = clean
        return self.names[name]

    def stored_array(self, tensor: Any) -> np.ndarray:
        return read_tensor(tensor, self.folder, self.maps)

    def _initialisers(self, graph: Any, scope: Scope) -> None:
        if graph.sparse_initializer:
            raise NotSupported("it has sparse initialisers", fix="dense ones")
        for tensor in graph.initializer:
            what = f"the initialiser {tensor.name!r}"
            dtype, shape = dtype_of(tensor.data_type, what), shape_of(tensor)
            count = int(np.prod(shape, dtype=object))
            if count <= (1 if dtype.is_float else SMALL):
                scope[tensor.name] = OnnxValue.of(self.stored_array(tensor))
                continue
            if id(tensor) not in self.stored:                # else of a body that is written out several times
                name = self._named(tensor.name)
                while name in self.weights:                  # of another body, in which the name means another tensor
                    name += "_"
                self.weights[name] = self.stored_array(tensor)
                self.stored[id(tensor)] = tensor, OnnxValue(dtype, leaves.parameter(name, shape, dtype))     # held, so its id stays
            scope[tensor.name] = self.stored[id(tensor)][1]

    def _input(self, item: Any) -> OnnxValue:
        what = f"the input {item.name!r}"
        kind = item.type.WhichOneof("value")
        if kind != "tensor_type":
            raise NotSupported(f"{what} is no tensor ({(kind or 'without a type').replace('_type', '')})",
                               fix="a model whose inputs are tensors")
        tensor = item.type.tensor_type
        dtype = dtype_of(tensor.elem_type, what)
        if item.name in self.values:
            return OnnxValue.of(self._fixed(item, dtype))
        if not tensor.HasField("shape"):
            raise NotSupported(f"{what} has no rank", fix="declare its shape, or fix its value: tg.from_onnx(file, values={…})")
        shape = tuple(self._size(size, f"{item.name}_{axis}") for axis, size in enumerate(tensor.shape.dim))
        return OnnxValue.of(leaves.input(self._named(item.name), shape, dtype))

    def _replace_default(self, item: Any, scope: Scope) -> None:
        """Give an input the array of `values` instead of the default that the file stores."""
        default, name = scope[item.name], self._named(item.name)
        array = self._fixed(item, default.dtype)
        if name in self.weights and array.shape == default.shape:
            self.weights[name] = array
        else:
            scope[item.name] = OnnxValue.of(array)

    def _check_names(self, inputs: Sequence[Any]) -> None:
        """Raise OnnxError for names of `values` and `dims` that the model does not have."""
        for what, names, there in (("values", self.values, [item.name for item in inputs]),
                                   ("dims", self.dims, [*self.dim_names, *self.dim_names.values()])):
            unknown = [name for name in names if name not in there]
            if unknown:
                raise OnnxError(f"{what} names {unknown[0]!r}, which the model does not have",
                                fix=f"its names are {', '.join(dict.fromkeys(there)) or 'none'}")

    def _fixed(self, item: Any, dtype: DType) -> np.ndarray:
        """Return the array of `values` for an input. Raises OnnxError where it has another dtype or shape than the input."""
        array, sizes = np.asarray(self.values[item.name]), item.type.tensor_type.shape.dim
        whole = array.dtype.kind in "iub" and dtype.is_integer and bool((array.astype(dtype.numpy) == array).all())
        if array.dtype != dtype.numpy and not whole and not (array.dtype.kind in "fiu" and dtype.is_float):
            raise OnnxError(f"values[{item.name!r}] is an array of {array.dtype}", fix=f"an array of {dtype.numpy}")
        if item.type.tensor_type.HasField("shape") and (len(sizes) != array.ndim or any(
                size.HasField("dim_value") and size.dim_value != own for size, own in zip(sizes, array.shape, strict=True))):
            shown = [size.dim_value if size.HasField("dim_value") else size.dim_param or "?" for size in sizes]
            raise OnnxError(f"values[{item.name!r}] has the shape {list(array.shape)}", fix=f"an array of shape {shown}")
        return array.astype(dtype.numpy, copy=False)

    def _check_output(self, item: Any, scope: Scope) -> None:
        """Raise OnnxError where an output is not computed, or has another dtype, rank or fixed size than the file declares."""
        if item.name not in scope:
            raise OnnxError(f"the output {item.name!r} is computed by no node", fix="export it again")
        node, tensor = scope[item.name].node(), item.type.tensor_type
        declared = dtype_of(tensor.elem_type, f"the output {item.name!r}") if tensor.elem_type else node.dtype
        sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
        fits = not tensor.HasField("shape") or (len(sizes) == node.rank and all(
            size is None or d.bounds(own)[0] <= size <= d.bounds(own)[1] for size, own in zip(sizes, node.shape, strict=True)))
        if declared is not node.dtype or not fits:
            shown = ", ".join("?" if size is None else str(size) for size in sizes)
            raise OnnxError(f"the output {item.name!r} is {node.type}, and is declared as {declared}[{shown}]",
                            fix="the type and the shape that its nodes compute")

    def _size(self, size: Any, without_name: str) -> Dim:
        if size.HasField("dim_value"):
            return int(size.dim_value)
        written = size.dim_param or without_name
        if written not in self.symbols:
            name = re.sub(r"\W", "_", written)
            name = name if name.isidentifier() and not keyword.iskeyword(name) and name not in ("min", "max") else f"dim_{name}"
            while name in self.dim_names.values():
                name += "_"
            self.dim_names[written] = name
            chosen = self.dims.get(written, self.dims.get(name))
            if chosen is None:
                self.free.add(name)
                chosen = (1, self.most.get(name, MOST_DIM))
            ends = chosen if isinstance(chosen, (tuple, list)) else (chosen, chosen)
            if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, (int, np.integer)) for end in ends) or not (
                    0 <= ends[0] <= ends[1]):
                raise OnnxError(f"dims[{written!r}] is {chosen!r}", fix="a size, or its range (lowest, highest)")
            self.symbols[written] = d.dim(name, int(ends[0]), int(ends[1])) if ends is chosen else int(ends[0])
        return self.symbols[written]

    # ---- nodes ----

    def _nodes(self, nodes: Sequence[Any], scope: Scope, opsets: Mapping[str, int]) -> None:
        for number, proto in enumerate(nodes):
            for name in proto.input:
                if name and name not in scope:
                    before, later = (any(name in other.output for other in part) for part in (nodes[:number], nodes[number:]))
                    raise (NotSupported if before else OnnxError)(f"the node {_shown(proto)} reads {name!r}, which " + (
                        "is a result that has no counterpart here" if before else
                        "is computed after it: a cycle, or nodes out of order" if later else "nothing computes"),
                        fix="nodes in the order in which they are computed" if not before else None)
            self.built += 1
            if self.built > MOST_NODES:
                raise NotSupported(f"functions and bodies, written out, are more than {MOST_NODES} nodes", fix="fewer iterations")
            results = self._node(proto, [scope[name] if name else None for name in proto.input], scope, opsets)
            if more := [name for name in proto.output[len(results):] if name]:
                raise NotSupported(f"the output {more[0]!r} of {_shown(proto)} has no counterpart here")
            for name, result in zip(proto.output, results, strict=False):
                if name in scope.maps[0]:
                    raise OnnxError(f"the tensor {name!r} is computed twice, again by {_shown(proto)}",
                                    fix="a name of its own for each tensor")
                if name and result is not None:
                    scope[name] = result

    def _node(self, proto: Any, inputs: Sequence[OnnxValue | None], scope: Scope,
              opsets: Mapping[str, int]) -> list[OnnxValue | None]:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        opset = opsets.get(domain, 0)
        where = f"in the node {_shown(proto)} (op {proto.op_type}, domain {domain or 'ai.onnx'}, opset {opset})"
        try:
            function = self.functions.get((proto.domain, proto.op_type))
            if function is None and not opset:
                raise NotSupported("the model imports no opset of this domain", fix="an opset_import for it")
            attributes = {a.name: _attribute(self.onnx, a) for a in proto.attribute}
            missing = [] if function is not None else [n for n in _required(proto.op_type, opset, domain) if n not in attributes]
            if missing:
                raise OnnxError(f"the attribute {missing[0]} of {proto.op_type}, which the op requires, is missing",
                                fix=f"a node with {missing[0]}, or export it again")
            call = OnnxNode(proto, domain, opset, inputs, attributes, self, scope, opsets)
            result: Built | None = None if function is not None else ops.fold(call)
            if function is None and result is None and (build := row_of(domain, proto.op_type, opset)) is not None:
                result = build(call)
                if result is not None and (unread := call.unread()) is not None:
                    raise NotSupported(f"{unread} of {proto.op_type} has no counterpart here")
            kind = "function" if result is None else "opaque" if proto.op_type in OPAQUE else "native"
            results = self._by_function(call, function) if result is None else _listed(result)
            self.counts[kind] += self.depth == 0
            return results
        except OnnxError as e:
            raise e if e.located else e.again(message=f"{e.message} {where}", located=True) from None
        except TensorGraphsError as e:
            raise OnnxError(f"{getattr(e, 'message', str(e))} {where}", fix=self._fix(), located=True) from None
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError) as e:
            raise OnnxError(f"its operands or attributes do not fit ({type(e).__name__}: {e}) {where}", fix=self._fix(),
                            located=True) from e

    def _fix(self) -> str:
        """Return the fix for operands that do not fit."""
        ranges = [f"{name!r}: (1, 64)" for name in sorted(self.free)]
        return "operands that the op takes" + (
            f"; where a dim is too large: tg.from_onnx(file, dims={{{', '.join(ranges)}}})" if ranges else "")

    def subgraph(self, graph: Any, call: OnnxNode, inputs: Sequence[OnnxValue], always: bool = True) -> list[OnnxValue]:
        """Return the outputs of a body (GraphProto) on these inputs. Its names are its own; those around it are read. always: each
        run of the node around it runs the body too."""
        scope: Scope = call.scope.new_child({})
        around, self.always = self.always, self.always and always
        self._deeper()
        self._initialisers(graph, scope)
        if len(graph.input) != len(inputs):
            raise OnnxError(f"the body {graph.name!r} has {len(graph.input)} inputs, and is given {len(inputs)}")
        scope.update({item.name: value for item, value in zip(graph.input, inputs, strict=True)})
        self._nodes(graph.node, scope, call.opsets)
        self.depth, self.always = self.depth - 1, around
        missing = [item.name for item in graph.output if item.name not in scope]
        if missing:
            raise OnnxError(f"the output {missing[0]!r} of the body {graph.name!r} is computed by no node")
        return [scope[item.name] for item in graph.output]

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise OnnxError(f"functions and bodies are nested more than {MOST_NESTED} deep, or without end",
                            fix="functions that do not call themselves")

    def _by_function(self, call: OnnxNode, function: Any) -> list[OnnxValue | None]:
        """Return the outputs of a node, computed by the nodes of a function: the model's, or that of the op's schema."""
        attributes = {a.name: a for a in call.proto.attribute}
        if function is None:
            try:
                schema = self.onnx.defs.get_schema(call.op, call.opset, call.domain)
                function = self._defined(schema, call)
            except self.onnx.defs.SchemaError:
                function = None
            if function is None:
                first = [since for since, _ in ROWS.get((call.domain, call.op), ())][:1]
                since = f" before opset {first[0]}" if first else ""
                raise NotSupported(f"the op {call.op} of the domain {call.domain or 'ai.onnx'} has no counterpart here{since}",
                                   fix=f"export the model with opset {first[0]}" if first else "export the model without it")
            unknown = [name for name in call.attributes if name not in schema.attributes]
            if unknown or len(call.inputs) > schema.max_input:
                what = f"the attribute {unknown[0]}" if unknown else f"operand {len(call.inputs) - 1}"
                raise NotSupported(f"{what} of {call.op} has no counterpart here")
            for name, attribute in schema.attributes.items():
                if name not in attributes and attribute.default_value.name:
                    attributes[name] = attribute.default_value
        for a in function.attribute_proto:
            attributes.setdefault(a.name, a)
        self._deeper()
        scope = Scope()
        scope.update({name: value for name, value in zip(function.input, call.inputs, strict=False) if value is not None})
        nodes = [_bound(node, attributes) for node in function.node]
        for node in nodes:                                   # an absent optional operand is passed on as an absent one
            node.input[:] = ["" if name in function.input and name not in scope else name for name in node.input]
        self._nodes(nodes, scope, {**self.opsets, **_opsets(function.opset_import)})
        self.depth -= 1
        return [scope.get(name) for name in function.output]

    def _defined(self, schema: Any, call: OnnxNode) -> Any:
        """Return the function that a schema defines for this call, as a FunctionProto; None without one."""
        for kind in ("function", "context_dependent_function"):
            versions = getattr(schema, f"{kind}_opset_versions")
            fitting = [v for v in versions if v <= call.opset] or (versions[:1] if kind == "function" else [])
            if fitting and getattr(schema, f"has_{kind}"):
                context = () if kind == "function" else (call.proto.SerializeToString(), [self._type(v) for v in call.inputs])
                body = getattr(schema, f"get_{kind}_with_opset_version")(fitting[-1], *context)
                return body and self.onnx.FunctionProto.FromString(body if isinstance(body, bytes) else body.SerializeToString())
        return None

    def _type(self, value: OnnxValue | None) -> bytes:
        if value is None:
            return bytes(self.onnx.TypeProto().SerializeToString())
        shape = [size if isinstance(size, int) else str(size) for size in value.shape]
        return bytes(self.onnx.helper.make_tensor_type_proto(number_of(value.dtype), shape).SerializeToString())


@functools.cache
def _required(op: str, opset: int, domain: str) -> tuple[str, ...]:
    """Return the attributes that the op's schema requires; none where the onnx package has no schema."""
    defs = onnx_package().defs
    try:
        return tuple(name for name, attribute in defs.get_schema(op, opset, domain).attributes.items() if attribute.required)
    except defs.SchemaError:
        return ()


def _opsets(imports: Sequence[Any]) -> dict[str, int]:
    return {"" if item.domain == "ai.onnx" else item.domain: int(item.version) for item in imports}


def _shown(proto: Any) -> str:
    return repr(proto.name or f"{proto.op_type} → {', '.join(proto.output)}")


def _listed(built: Built) -> list[OnnxValue | None]:
    if isinstance(built, (Node, OnnxValue, np.ndarray)):
        return [OnnxValue.of(built)]
    return [None if x is None else OnnxValue.of(x) for x in built]


def _attribute(onnx: Any, a: Any) -> Any:
    value = onnx.helper.get_attribute_value(a)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value] if a.type in (6, 7, 8) else value


def _bound(node: Any, attributes: Mapping[str, Any]) -> Any:
    """Return a node of a function with the attributes that refer to the function's own ones replaced, in bodies too."""
    copy = type(node).FromString(node.SerializeToString())
    for a in list(copy.attribute):
        if a.ref_attr_name:
            copy.attribute.remove(a)
            if a.ref_attr_name in attributes:
                own = copy.attribute.add()
                own.CopyFrom(attributes[a.ref_attr_name])
                own.name = a.name
        elif a.HasField("g"):
            inner = [_bound(n, attributes) for n in a.g.node]
            del a.g.node[:]
            a.g.node.extend(inner)
    return copy
