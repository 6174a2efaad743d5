"""moves: rows of ops that make and move elements: shapes, slices, gathers, scatters, padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tensor_graphs.frontends.onnx.call import Built, OnnxNode, row
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

# ---- sources ---------------------------------------------------------------------------------------------------------


@row("Constant")
def _constant(n: OnnxNode) -> Built:
    if n.has(0):
        n.refuse("Constant takes no operand")
    for name in ("value_int", "value_ints", "value_float", "value_floats"):
        kind = np.float32 if "float" in name else np.int64
        if (value := n.get(name)) is not None:
            return OnnxValue.of(np.array(value, kind))
    if n.get("value") is None:
        n.refuse("Constant of strings, or of a sparse tensor")
    return OnnxValue.of(n.importer.stored_array(n.get("value")))


@row("ConstantOfShape")
def _constant_of_shape(n: OnnxNode) -> Built:
    tensor = n.get("value")
    value = np.zeros(1, np.float32) if tensor is None else n.importer.stored_array(tensor).ravel()
    shape = tuple(n.dims(0))
    if all(isinstance(s, int) for s in shape) and math.prod(shape) <= 4096 and value.dtype.kind in "iub":
        return OnnxValue.of(np.full(shape, value[0]))
    return broadcast_to(leaves.constant(value[0].item(), parse_dtype(value.dtype)), shape)


@row("Shape")
def _shape(n: OnnxNode) -> Built:
    return OnnxValue.of(dims_array(n.value(0).shape[slice(n.get("start", 0), n.get("end"))]))


@row("Size")
def _size(n: OnnxNode) -> Built:
    return OnnxValue.of(dims_array([d.product(n.value(0).shape)]).reshape(()))


@row("Range")
def _range(n: OnnxNode) -> Built:
    start, stop, step = (n.scalar(i) for i in range(3))
    dtype = n.value(0).dtype
    if all(isinstance(v, int) for v in (start, stop, step)) and step:
        size = len(range(start, stop, step))
        if size <= 4096:
            return OnnxValue.of(np.arange(start, stop, step, dtype=dtype.numpy))
        return atomic.iota((size,), 0, dtype) * step + start
    if isinstance(step, int) and step > 0:
        count = d.dim_max((stop - start + step - 1) // step, 0)
        return atomic.iota((count,), 0, dtype) * step + leaves.constant(start, dtype)
    if any(isinstance(v, d.Expr) for v in (start, stop, step)):
        n.refuse("Range by a negative step, up to a dim")
    size = max(math.ceil((stop - start) / step), 0)
    return atomic.iota((size,), 0, i64).cast(dtype) * step + start


@row("EyeLike")
def _eye(n: OnnxNode) -> Node:
    value, to = n.value(0), n.get("dtype")
    rows, columns = value.shape
    return c.eye(rows, columns, n.get("k", 0), value.dtype if to is None else dtype_of(to, "the result of EyeLike"))


@row("OneHot")
def _one_hot(n: OnnxNode) -> Node:
    index, values = n.x(), n.x(2)
    depth = n.known(1).ravel()[0]
    depth = depth if isinstance(depth, d.Expr) else int(depth)
    axis = n.axis(-1, index.rank + 1)
    index = index if index.dtype.is_integer else index.cast(i64)
    index = c.where(index < 0, index + leaves.constant(depth, index.dtype), index).cast(i64)
    spot = c.stack(index, axis=axis)
    shape = tuple(depth if i == axis else s for i, s in enumerate(spot.shape))
    hit = c.equals(broadcast_to(spot, shape), atomic.iota(shape, axis, i64))
    return c.where(hit, values[1], values[0])


# ---- shapes ----------------------------------------------------------------------------------------------------------


def reshaped(n: OnnxNode, value: OnnxValue, shape: Sequence[Dim]) -> Built:
    """Return a value in another shape, known where it was known."""
    if value.array is not None and all(isinstance(s, int) for s in shape):
        return OnnxValue(value.dtype, array=value.array.reshape([s for s in shape if isinstance(s, int)]))
    return value.node().reshape(tuple(shape))


@row("Reshape", since=5)
def _reshape(n: OnnxNode) -> Built:
    x, shape = n.value(0), n.dims(1)
    if not n.get("allowzero", 0):
        shape = [x.shape[i] if isinstance(s, int) and s == 0 else s for i, s in enumerate(shape)]
    unknown = [i for i, s in enumerate(shape) if isinstance(s, int) and s == -1]
    if unknown and len(unknown) == 1 and any(isinstance(s, d.Expr) for s in (*shape, *x.shape)):
        rest, total = d.product([s for s in shape if not (isinstance(s, int) and s == -1)]), d.product(x.shape)
        if proved_equal((total // rest) * rest, total):
            shape[unknown[0]] = total // rest
    return reshaped(n, x, shape)


@row("Flatten")
def _flatten(n: OnnxNode) -> Built:
    x = n.value(0)
    axis = n.axis(1, len(x.shape)) if n.get("axis", 1) != len(x.shape) else len(x.shape)
    return reshaped(n, x, (d.product(x.shape[:axis]), d.product(x.shape[axis:])))


def _axes(n: OnnxNode, rank: int) -> list[int] | None:
    axes = n.ints(1) if n.has(1) else n.get("axes")
    return None if axes is None else n.places(axes, rank)


@row("Squeeze")
def _squeeze(n: OnnxNode) -> Built:
    x = n.value(0)
    axes = _axes(n, max(len(x.shape), 1))
    if axes is None:
        axes = [i for i, s in enumerate(x.shape) if isinstance(s, int) and s == 1]
    return reshaped(n, x, [s for i, s in enumerate(x.shape) if i not in axes])


@row("Unsqueeze")
def _unsqueeze(n: OnnxNode) -> Built:
    x, count = n.value(0), len(n.ints(1) if n.has(1) else n.get("axes"))
    axes, rest = _axes(n, len(x.shape) + count), list(x.shape)
    for axis in sorted(axes or ()):
        rest.insert(axis, 1)
    return reshaped(n, x, rest)


@row("Transpose")
def _transpose(n: OnnxNode) -> Built:
    x, perm = n.value(0), n.get("perm")
    order = tuple(reversed(range(len(x.shape)))) if perm is None else tuple(perm)
    return OnnxValue(x.dtype, array=x.array.transpose(order)) if x.array is not None else n.x().permute(order)


@row("Expand")
def _expand(n: OnnxNode) -> Built:
    x, shape = n.value(0), n.dims(1)
    if x.array is not None and all(isinstance(s, int) for s in shape) and math.prod(shape) <= 4096:
        return OnnxValue(x.dtype, array=x.array * np.ones(shape, np.int64) if x.array.dtype == object else np.broadcast_to(
            x.array, np.broadcast_shapes(x.array.shape, shape)))
    wanted = atomic.expand(c.zeros((1,) * len(shape), bool_), shape)
    return broadcast_to(n.x(), broadcast_shape("Expand", n.x(), wanted))


@row("Tile", since=6)
def _tile(n: OnnxNode) -> Node:
    x, repeats = n.x(), n.dims(1)
    apart = [s for size in x.shape for s in (1, size)]
    full = [s for size, by in zip(x.shape, repeats, strict=True) for s in (by, size)]
    return atomic.expand(x.reshape(tuple(apart)), full).reshape(tuple(s * by for s, by in zip(x.shape, repeats, strict=True)))


@row("Concat", since=4)
def _concat(n: OnnxNode) -> Built:
    values = [n.value(i) for i in range(len(n.inputs))]
    axis = n.axis(0, len(values[0].shape))
    if all(v.array is not None and v.array.dtype.kind in "iubO" for v in values):
        return OnnxValue(values[0].dtype, array=np.concatenate([v.array for v in values], axis))
    nodes = [v.node() for v in values]
    return c.concat(*nodes, axis=axis) if len(nodes) > 1 else nodes[0]


@row("Split")
def _split(n: OnnxNode) -> Built:
    x, count = n.x(), n.get("num_outputs", n.wanted)
    axis = n.axis(0)
    size = x.shape[axis]
    parts: Sequence[Dim] | None = n.dims(1) if n.has(1) else n.get("split")
    if count != n.wanted:
        n.refuse(f"Split into {count} parts, of which {n.wanted} are named")
    if parts is None:
        part = (size + count - 1) // count
        parts = [*[part] * (count - 1), size - part * (count - 1)]
    return list(c.split(x, tuple(parts), axis=axis))


@row("DepthToSpace", "SpaceToDepth")
def _depth_and_space(n: OnnxNode) -> Node:
    x, by, channels_last = n.x(), n.get("blocksize"), n.get("mode", "DCR") == "DCR"
    b, ch, h, w = x.shape
    if n.op == "SpaceToDepth":
        apart = x.reshape(b, ch, h // by, by, w // by, by)
        order = (0, 3, 5, 1, 2, 4) if channels_last else (0, 1, 3, 5, 2, 4)
        return apart.permute(order).reshape(b, ch * by * by, h // by, w // by)
    deep = d.product([ch]) // (by * by)
    apart = x.reshape(b, by, by, deep, h, w) if channels_last else x.reshape(b, deep, by, by, h, w)
    return apart.permute((0, 3, 4, 1, 5, 2) if channels_last else (0, 1, 4, 2, 5, 3)).reshape(b, deep, h * by, w * by)


row("Trilu")(lambda n: (c.triu if n.get("upper", 1) else c.tril)(n.x(), int(n.scalar(1, 0))))

# ---- slices ----------------------------------------------------------------------------------------------------------


def _bound(value: Dim, size: Dim, low: Dim, high: Dim) -> Dim:
    """Return a bound of a slice, counted from the back if it is negative, and clamped to low … high."""
    least, most = d.bounds(value)
    if most < 0:
        value = size + value
    elif least < 0:
        raise NotSupported("the sign of a slice's bound depends on a dim")
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
        size = value.shape[axis]
        if step > 0:
            first, last = _bound(start, size, 0, size), _bound(stop, size, 0, size)
            last = last if dim_ge(last, first) is True else d.dim_max(last, first)
        else:
            first, last = _bound(start, size, 0, size - 1), _bound(stop, size, -1, size - 1)   # a start before 0 is 0, unlike numpy
            last = last if dim_ge(first, last) is True else d.dim_min(last, first)
        bounds[axis] = (0, 0, 1) if proved_equal(first, last) else (first, last, step)
    cuts = [atomic.python_slice(a, b, step) for a, b, step in bounds if isinstance(a, int) and isinstance(b, int)]
    if value.array is not None and len(cuts) == len(bounds):
        return OnnxValue(value.dtype, array=value.array[tuple(cuts)])
    return atomic.slice(value.node(), bounds)


def _no_less_than_0(amount: Dim) -> Dim:
    return max(amount, 0) if isinstance(amount, int) else amount


@row("Pad", since=2)
def _pad(n: OnnxNode) -> Node:
    x, mode = n.x(), n.get("mode", "constant")
    amounts = n.dims(1) if n.has(1) else n.get("pads")
    axes = n.places(n.ints(3), x.rank) if n.has(3) else list(range(x.rank))
    value = n.scalar(2, n.get("value", 0))
    half = len(amounts) // 2
    padding: list[tuple[Dim, Dim]] = [(0, 0)] * x.rank
    for i, axis in enumerate(axes):
        padding[axis] = (amounts[i], amounts[half + i])
    cut = [(max(-low, 0), s - max(-high, 0), 1) if isinstance(low, int) and isinstance(high, int) else (0, s, 1)
           for s, (low, high) in zip(x.shape, padding, strict=True)]
    x = atomic.slice(x, cut)
    grown = [(_no_less_than_0(low), _no_less_than_0(high)) for low, high in padding]
    if mode == "constant":
        return atomic.pad(x, grown, bool(value) if x.dtype is bool_ else value if x.dtype.is_float else int(value))
    return c.pad_edges(x, grown, mode=mode)


# ---- gathers and scatters --------------------------------------------------------------------------------------------


def positive(index: Node, size: Dim) -> Node:
    """Return indices with negative ones counted from the back."""
    index = index.cast(i64)
    return c.where(index < 0, index + size, index)


@row("Gather")
def _gather(n: OnnxNode) -> Built:
    x, index = n.value(0), n.value(1)
    axis = n.axis(0, len(x.shape))
    if x.array is not None and index.array is not None and index.array.dtype != object and x.array.size <= MOST_KNOWN:
        size = x.array.shape[axis]
        if index.array.size and not (-size <= index.array.min() and index.array.max() < size):
            n.refuse(f"Gather of index {index.array.tolist()} from {size} elements")
        return OnnxValue(x.dtype, array=np.asarray(np.take(x.array, index.array.astype(np.int64), axis),
                                               object if x.array.dtype == object else None))
    if index.array is not None and index.array.dtype != object and index.array.ndim == 0:
        return x.node()[(*(slice(None),) * axis, int(index.array))]
    return atomic.gather(x.node(), positive(index.node(), x.shape[axis]), axis)


def _coordinates(index: Node, sizes: Sequence[Dim], batch: int = 0) -> Node:
    """Return index[…, k] counted from the front, behind the element's own place along each of the first `batch` axes."""
    own = [positive(index[(..., k)], size) for k, size in enumerate(sizes)]
    return c.stack(*(atomic.iota(own[0].shape, axis, i64) for axis in range(batch)), *own, axis=-1)


Read = Callable[[Node], Node]
Write = Callable[[Node, Node, str], Node]


def _scattered(n: OnnxNode, read: Read, write: Write) -> Node:
    """Return operand 0 with operand 2 put there by ONNX's `reduction`. read: elements at the places; write: puts them."""
    base, updates, how = n.x(), n.x(2), n.get("reduction", "none")
    if how != "mul":
        return write(base, updates, {"none": "set"}.get(how, how))
    size, count = d.product(base.shape), d.product(updates.shape)
    place = read((atomic.iota((size,), 0, i64) + 1).reshape(base.shape)).reshape(1, count) - 1     # −1: out of range
    hit = c.equals(atomic.iota((size, count), 0, i64), atomic.expand(place, (size, count)))
    return base * c.prod(c.where(hit, updates.reshape(1, count), 1), 1).reshape(base.shape)


@row("GatherElements")
def _gather_elements(n: OnnxNode) -> Node:
    x, axis = n.x(), n.axis(0)
    return c.take_along_axis(x, positive(n.x(1), x.shape[axis]), axis)


@row("Scatter", "ScatterElements")
def _scatter_elements(n: OnnxNode) -> Node:
    axis = n.axis(0)
    index = positive(n.x(1), n.x().shape[axis])
    return _scattered(n, lambda x: c.take_along_axis(x, index, axis),
                      lambda x, updates, how: c.put_along_axis(x, index, updates, axis, mode=how))


@row("GatherND")
def _gather_nd(n: OnnxNode) -> Node:
    x, index, batch = n.x(), n.x(1), n.get("batch_dims", 0)
    return c.gather_nd(x, _coordinates(index, x.shape[batch:batch + n.static_size(index.shape[-1])], batch))


@row("ScatterND")
def _scatter_nd(n: OnnxNode) -> Node:
    index = _coordinates(n.x(1), n.x().shape[:n.static_size(n.x(1).shape[-1])])
    return _scattered(n, lambda x: c.gather_nd(x, index), lambda x, u, how: c.scatter_nd(x, index, u, mode=how))


@row("TensorScatter", since=24)
def _tensor_scatter(n: OnnxNode) -> Node:
    past, update, axis, starts = n.x(), n.x(1), n.axis(-2), n.optional(2)
    place = atomic.iota(update.shape, axis, i64)
    place = place if starts is None else place + starts.cast(i64).reshape((-1, *(1,) * (past.rank - 1)))
    place = c.mod(place, past.shape[axis]) if n.get("mode", "linear") == "circular" else place
    return c.put_along_axis(past, place, update, axis)


@row("ReverseSequence")
def _reverse_sequence(n: OnnxNode) -> Node:
    x, time, batch = n.x(), n.get("time_axis", 0), n.get("batch_axis", 1)
    lengths = n.x(1).cast(i64).reshape(tuple(-1 if i == batch else 1 for i in range(x.rank)))
    step = atomic.iota(x.shape, time, i64)
    return c.take_along_axis(x, c.where(step < lengths, lengths - 1 - step, step), time)


# ---- of known values only --------------------------------------------------------------------------------------------


@row("NonZero")
def _non_zero(n: OnnxNode) -> Built:
    return OnnxValue.of(np.array(np.nonzero(n.known(0)), np.int64))


@row("Compress")
def _compress(n: OnnxNode) -> Node:
    x, places = n.x(), np.nonzero(n.known(1))[0]
    if n.get("axis") is None:
        return atomic.gather(x.reshape(d.product(x.shape)), leaves.constant(places, i64), 0)
    return atomic.gather(x, leaves.constant(places, i64), n.axis(0))


@row("Unique")
def _unique(n: OnnxNode) -> Built:
    x, axis, ordered = n.known(0), n.get("axis"), n.get("sorted", 1)
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.ravel()
    if not ordered:
        order = np.argsort(first)
        rank = np.argsort(order)
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return [OnnxValue.of(np.asarray(v, x.dtype if i == 0 else np.int64)) for i, v in enumerate((values, first, inverse, counts))]


