"""moves: rows of ops that make and move elements: shapes, slices, gathers, scatters, padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tensor_graphs.frontends.onnx.call import Built, OnnxNode, along, row
from tensor_graphs.frontends.onnx.errors import NotSupported
from tensor_graphs.frontends.onnx.tensor_data import dtype_of
from tensor_graphs.frontends.onnx.values import MOST_KNOWN, OnnxValue, dims_array
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import dim_ge, proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bool_, i64, parse_dtype
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_shape, broadcast_to

MOST_WRITTEN = 4096
"""elements up to which a tensor of one value, or of numbers in a row, is an array"""

# ---- sources ---------------------------------------------------------------------------------------------------------


@row("Constant")
def _constant(n: OnnxNode) -> Built:
    for name in ("value_int", "value_ints", "value_float", "value_floats"):
        if (value := n.get(name)) is not None:
            return np.array(value, np.float32 if "float" in name else np.int64)
    tensor = n.get("value")
    return n.refuse("Constant of strings, or of a sparse tensor") if tensor is None else n.importer.stored_array(tensor)


@row("ConstantOfShape")
def _constant_of_shape(n: OnnxNode) -> Built:
    tensor, shape = n.get("value"), tuple(n.dims(0))
    value = np.zeros(1, np.float32) if tensor is None else n.importer.stored_array(tensor).ravel()
    if all(isinstance(s, int) for s in shape) and math.prod(shape) <= MOST_WRITTEN and value.dtype.kind in "iub":
        return np.full(shape, value[0])
    return broadcast_to(leaves.constant(value[0].item(), parse_dtype(value.dtype)), shape)


row("Shape")(lambda n: dims_array(n.value(0).shape[slice(n.get("start", 0), n.get("end"))]))
row("Size")(lambda n: dims_array([d.product(n.value(0).shape)]).reshape(()))
row("Trilu")(lambda n: (c.triu if n.get("upper", 1) else c.tril)(n.x(), int(n.scalar(1, 0))))


@row("Range")
def _range(n: OnnxNode) -> Built:
    (start, stop, step), dtype = (n.scalar(i) for i in range(3)), n.value(0).dtype
    if any(isinstance(v, d.Expr) for v in (start, stop, step)):
        if not isinstance(step, int) or step <= 0:
            n.refuse("Range by a negative step, up to a dim")
        size = d.dim_max((stop - start + step - 1) // step, 0)
        return atomic.iota((size,), 0, dtype) * step + leaves.constant(start, dtype)
    count = max(math.ceil((stop - start) / step), 0)
    if dtype.is_integer and count <= MOST_WRITTEN:
        return np.arange(start, stop, step, dtype=dtype.numpy)
    return atomic.iota((count,), 0, i64).cast(dtype) * step + start


@row("EyeLike")
def _eye(n: OnnxNode) -> Node:
    value, to = n.value(0), n.get("dtype")
    rows, columns = value.shape
    return c.eye(rows, columns, n.get("k", 0), value.dtype if to is None else dtype_of(to, "the result of EyeLike"))


@row("OneHot")
def _one_hot(n: OnnxNode) -> Node:
    index, depth, values = n.x(), n.known(1).ravel()[0], n.x(2)
    depth, axis = depth if isinstance(depth, d.Expr) else int(depth), n.axis(-1, index.rank + 1)
    spot = c.stack(positive(index, leaves.constant(depth, i64)), axis=axis)
    shape = tuple(depth if i == axis else s for i, s in enumerate(spot.shape))
    return c.where(c.equals(broadcast_to(spot, shape), atomic.iota(shape, axis, i64)), values[1], values[0])


# ---- shapes ----------------------------------------------------------------------------------------------------------


def _reshaped(value: OnnxValue, shape: Sequence[Dim]) -> Built:
    """Return a value in another shape, known where it was known."""
    if value.array is not None and all(isinstance(s, int) for s in shape):
        return OnnxValue(value.dtype, array=value.array.reshape([s for s in shape if isinstance(s, int)]))
    return value.node().reshape(tuple(shape))


@row("Reshape", since=5)
def _reshape(n: OnnxNode) -> Built:
    x, shape = n.value(0), n.dims(1)
    if not n.get("allowzero", 0):
        shape = [x.shape[i] if isinstance(s, int) and s == 0 else s for i, s in enumerate(shape)]
    rest = [s for s in shape if not (isinstance(s, int) and s == -1)]
    if len(rest) == len(shape) - 1 and any(isinstance(s, d.Expr) for s in (*rest, *x.shape)):
        part, total = d.product(rest), d.product(x.shape)
        if proved_equal((total // part) * part, total):
            shape[shape.index(-1)] = total // part
    return _reshaped(x, shape)


@row("Flatten")
def _flatten(n: OnnxNode) -> Built:
    shape, axis = n.value(0).shape, n.get("axis", 1)
    axis = len(shape) if axis == len(shape) else n.axis(1, len(shape))
    return _reshaped(n.value(0), (d.product(shape[:axis]), d.product(shape[axis:])))


@row("Squeeze")
def _squeeze(n: OnnxNode) -> Built:
    shape, axes = n.value(0).shape, n.axes()
    axes = [i for i, s in enumerate(shape) if s == 1] if axes is None else n.places(axes, max(len(shape), 1))
    return _reshaped(n.value(0), [s for i, s in enumerate(shape) if i not in axes])


@row("Unsqueeze")
def _unsqueeze(n: OnnxNode) -> Built:
    axes, shape = n.axes() or [], list(n.value(0).shape)
    for axis in sorted(n.places(axes, len(shape) + len(axes))):
        shape.insert(axis, 1)
    return _reshaped(n.value(0), shape)


@row("Transpose")
def _transpose(n: OnnxNode) -> Built:
    x, order = n.value(0), tuple(n.get("perm", range(len(n.value(0).shape))[::-1]))
    return OnnxValue(x.dtype, array=x.array.transpose(order)) if x.array is not None else n.x().permute(order)


@row("Expand")
def _expand(n: OnnxNode) -> Built:
    x, shape = n.value(0), n.dims(1)
    if x.array is not None and all(isinstance(s, int) for s in shape) and math.prod(shape) <= MOST_WRITTEN:
        return OnnxValue(x.dtype, array=np.broadcast_to(x.array, np.broadcast_shapes(x.array.shape, shape)))
    wanted = atomic.expand(c.zeros((1,) * len(shape), bool_), shape)
    return broadcast_to(n.x(), broadcast_shape("Expand", n.x(), wanted))


@row("Tile", since=6)
def _tile(n: OnnxNode) -> Node:
    x, repeats = n.x(), n.dims(1)
    apart = x.reshape(tuple(s for size in x.shape for s in (1, size)))
    wide = atomic.expand(apart, [s for size, by in zip(x.shape, repeats, strict=True) for s in (by, size)])
    return wide.reshape(tuple(s * by for s, by in zip(x.shape, repeats, strict=True)))


@row("Concat", since=4)
def _concat(n: OnnxNode) -> Built:
    values = [n.value(i) for i in range(len(n.inputs))]
    axis = n.axis(0, len(values[0].shape))
    arrays = [v.array for v in values if v.array is not None and v.array.dtype.kind in "iubO"]
    if len(arrays) == len(values):
        return OnnxValue(values[0].dtype, array=np.concatenate(arrays, axis))
    return c.concat(*n.all(), axis=axis) if len(values) > 1 else n.x()


@row("Split")
def _split(n: OnnxNode) -> Built:
    x, axis, count = n.x(), n.axis(0), n.get("num_outputs", n.wanted)
    parts: Sequence[Dim] | None = n.dims(1) if n.has(1) else n.get("split")
    if count != n.wanted:
        n.refuse(f"Split into {count} parts, of which {n.wanted} are named")
    if parts is None:
        part = (x.shape[axis] + count - 1) // count
        parts = [*[part] * (count - 1), x.shape[axis] - part * (count - 1)]
    return list(c.split(x, tuple(parts), axis=axis))


@row("DepthToSpace", "SpaceToDepth")
def _depth_and_space(n: OnnxNode) -> Node:
    x, by, channels_last = n.x(), n.get("blocksize"), n.get("mode", "DCR") == "DCR"
    b, ch, h, w = x.shape
    if n.op == "SpaceToDepth":
        apart, order = x.reshape(b, ch, h // by, by, w // by, by), (0, 3, 5, 1, 2, 4) if channels_last else (0, 1, 3, 5, 2, 4)
        return apart.permute(order).reshape(b, ch * by * by, h // by, w // by)
    deep = d.product([ch]) // (by * by)
    apart = x.reshape(b, by, by, deep, h, w) if channels_last else x.reshape(b, deep, by, by, h, w)
    return apart.permute((0, 3, 4, 1, 5, 2) if channels_last else (0, 1, 4, 2, 5, 3)).reshape(b, deep, h * by, w * by)


# ---- slices ----------------------------------------------------------------------------------------------------------


def _bound(value: Dim, size: Dim, low: Dim, high: Dim) -> Dim:
    """Return a bound of a slice, counted from the back if it is negative, and clamped to low … high."""
    least, most = d.bounds(value)
    if least < 0 <= most:
        raise NotSupported("the sign of a slice's bound depends on a dim")
    value = size + value if most < 0 else value
    value = value if dim_ge(value, low) is True else d.dim_max(value, low)
    return value if dim_ge(high, value) is True else d.dim_min(value, high)


@row("Slice")
def _slice(n: OnnxNode) -> Built:
    value, newer = n.value(0), n.opset >= 10
    starts, stops = (n.dims(1), n.dims(2)) if newer else (n.get("starts"), n.get("ends"))
    axes = (n.ints(3) if n.has(3) else None) if newer else n.get("axes")
    steps = n.ints(4) if newer and n.has(4) else [1] * len(starts)
    bounds: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in value.shape]
    places = n.places(axes or range(len(starts)), len(value.shape))
    for start, stop, axis, step in zip(starts, stops, places, steps, strict=True):
        size, back = value.shape[axis], int(step < 0)
        first = _bound(start, size, 0, size - back)      # backwards, a start before 0 is 0, unlike numpy
        last = _bound(stop, size, -back, size - back)
        if back:
            last = last if dim_ge(first, last) is True else d.dim_min(last, first)
        else:
            last = last if dim_ge(last, first) is True else d.dim_max(last, first)
        bounds[axis] = (0, 0, 1) if proved_equal(first, last) else (first, last, step)
    cuts = [atomic.python_slice(a, b, step) for a, b, step in bounds if isinstance(a, int) and isinstance(b, int)]
    if value.array is not None and len(cuts) == len(bounds):
        return OnnxValue(value.dtype, array=value.array[tuple(cuts)])
    return atomic.slice(value.node(), bounds)


@row("Pad", since=2)
def _pad(n: OnnxNode) -> Node:
    x, mode, value = n.x(), n.get("mode", "constant"), n.scalar(2, n.get("value", 0))
    amounts = n.dims(1) if n.has(1) else n.get("pads")
    axes, half = n.places(n.ints(3), x.rank) if n.has(3) else range(x.rank), len(amounts) // 2
    by = dict(zip(axes, zip(amounts[:half], amounts[half:], strict=True), strict=True))
    padding = [by.get(axis, (0, 0)) for axis in range(x.rank)]
    fixed = [all(isinstance(amount, int) for amount in pair) for pair in padding]
    x = atomic.slice(x, [(max(-low, 0), s - max(-high, 0), 1) if ok else (0, s, 1)
                         for s, (low, high), ok in zip(x.shape, padding, fixed, strict=True)])
    grown = [(max(low, 0), max(high, 0)) if ok else (low, high) for (low, high), ok in zip(padding, fixed, strict=True)]
    if mode == "constant":
        return atomic.pad(x, grown, bool(value) if x.dtype is bool_ else value if x.dtype.is_float else int(value))
    return c.pad_edges(x, grown, mode=mode)


# ---- gathers and scatters --------------------------------------------------------------------------------------------


def positive(index: Node, size: Dim | Node) -> Node:
    """Return indices with negative ones counted from the back."""
    index = index.cast(i64)
    return c.where(index < 0, index + size, index)


@row("Gather")
def _gather(n: OnnxNode) -> Built:
    x, index = n.value(0), n.value(1)
    axis, places = n.axis(0, len(x.shape)), index.array if index.array is None or index.array.dtype != object else None
    if x.array is not None and places is not None and x.array.size <= MOST_KNOWN:
        n.indices(index.node(), x.shape[axis])
        return OnnxValue(x.dtype, array=np.asarray(np.take(x.array, places.astype(np.int64), axis), x.array.dtype))
    where = n.indices(index.node(), x.shape[axis])
    if places is not None and places.ndim == 0:
        return x.node()[(*(slice(None),) * axis, int(places))]
    return atomic.gather(x.node(), positive(where, x.shape[axis]), axis)


def _coordinates(n: OnnxNode, sizes: Sequence[Dim], batch: int = 0) -> Node:
    """Return operand 1[…, k] counted from the front, behind the element's own place along each of the first `batch` axes."""
    own = [positive(n.indices(n.x(1)[(..., k)], size), size) for k, size in enumerate(sizes)]
    return c.stack(*(atomic.iota(own[0].shape, axis, i64) for axis in range(batch)), *own, axis=-1)


def _scattered(n: OnnxNode, read: Callable[[Node], Node], write: Callable[[Node, Node, str], Node]) -> Node:
    """Return operand 0 with operand 2 put there by ONNX's `reduction`. read: elements at the places; write: puts them."""
    base, updates, how = n.x(), n.x(2), n.get("reduction", "none")
    if how != "mul":
        return write(base, updates, {"none": "set"}.get(how, how))
    size, count = d.product(base.shape), d.product(updates.shape)
    place = read((atomic.iota((size,), 0, i64) + 1).reshape(base.shape)).reshape(1, count) - 1     # −1: out of range
    hit = c.equals(atomic.iota((size, count), 0, i64), atomic.expand(place, (size, count)))
    return base * c.prod(c.where(hit, updates.reshape(1, count), 1), 1).reshape(base.shape)


@row("GatherElements", "Scatter", "ScatterElements")
def _elements(n: OnnxNode) -> Node:
    axis = n.axis(0)
    index = positive(n.indices(n.x(1), n.x().shape[axis]), n.x().shape[axis])
    if n.op == "GatherElements":
        return c.take_along_axis(n.x(), index, axis)
    return _scattered(n, lambda x: c.take_along_axis(x, index, axis),
                      lambda x, updates, how: c.put_along_axis(x, index, updates, axis, mode=how))


@row("GatherND", "ScatterND")
def _nd(n: OnnxNode) -> Node:
    batch = n.get("batch_dims", 0)
    index = _coordinates(n, n.x().shape[batch:batch + n.static_size(n.x(1).shape[-1])], batch)
    if n.op == "GatherND":
        return c.gather_nd(n.x(), index)
    return _scattered(n, lambda x: c.gather_nd(x, index), lambda x, u, how: c.scatter_nd(x, index, u, mode=how))


@row("TensorScatter", since=24)
def _tensor_scatter(n: OnnxNode) -> Node:
    past, update, axis, starts = n.x(), n.x(1), n.axis(-2), n.optional(2)
    place = atomic.iota(update.shape, axis, i64)
    place = place if starts is None else place + along(starts.cast(i64), 0, past.rank)
    circular = n.get("mode", "linear") == "circular"
    place = c.mod(place, past.shape[axis]) if circular else n.indices(place, past.shape[axis], back=False)
    return c.put_along_axis(past, place, update, axis)


@row("ReverseSequence")
def _reverse_sequence(n: OnnxNode) -> Node:
    x, time = n.x(), n.get("time_axis", 0)
    last = n.indices(n.x(1).cast(i64) - 1, x.shape[time])
    lengths, step = along(last + 1, n.get("batch_axis", 1), x.rank), atomic.iota(x.shape, time, i64)
    return c.take_along_axis(x, c.where(step < lengths, lengths - 1 - step, step), time)


@row("Compress")
def _compress(n: OnnxNode) -> Node:
    x, places = n.x(), leaves.constant(np.nonzero(n.known(1))[0], i64)
    x, axis = (x.reshape(d.product(x.shape)), 0) if n.get("axis") is None else (x, n.axis(0))
    return atomic.gather(x, n.indices(places, x.shape[axis], back=False), axis)


# ---- of known values only --------------------------------------------------------------------------------------------


@row("NonZero", "Unique", "NonMaxSuppression", opaque=True)
def _by_reference(n: OnnxNode) -> Built:
    """Return what the onnx package's reference evaluator computes of known operands: the results' shapes depend on their values."""
    from onnx import helper, reference

    n.read.update(n.attributes)
    operands = {name: n.known(i) for i, name in enumerate(n.proto.input) if n.has(i)}
    graph = helper.make_graph([n.proto], n.op, [helper.make_empty_tensor_value_info(name) for name in operands],
                              [helper.make_empty_tensor_value_info(name) for name in n.proto.output if name])
    results = iter(reference.ReferenceEvaluator(graph, opsets=dict(n.opsets)).run(None, operands))
    return [np.asarray(next(results)) if name else None for name in n.proto.output]
