"""inputs: legal, seeded values for the operands of a graph. Counter-based: (seed, input name) fixes every number.

Floats are normal with a few awkward values mixed in (zeros of both signs, tiny, large), and one row of many is small, so that
an eps shows; integers lie in the range that their use allows (row numbers of a table, positions), with some out of range where
the op defines that. A `Point` says at which sizes, on which values and in which memory a kernel is compared with the oracle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.profiling.descriptors import Given, values
from tensor_graphs.profiling.extremes import Extreme, extreme_values
from tensor_graphs.profiling.memory_guards import BIG_BYTES

POSITIVE = {"log2", "sqrt", "log", "rsqrt"}
"""ops whose operand is drawn positive (their behaviour elsewhere is NaN, which conformance tests cover)"""

BIG_INPUT = 1 << 22
"""elements: a larger operand (a weight matrix) has the same values whatever the seed, made once; the other operands vary"""


Form = Literal["apart", "in_place", "views"]
"""where operands lie: in memory of their own; an output in its operand's memory; operands as strided windows of other arrays"""


Stir = tuple[tuple[str, int, tuple[int, ...]], ...]
"""(operand, position, sources): its values from this position on become those that lay at these positions"""

STRETCH, FEW = 64, 3
"""values that a stir changes of one operand, at most: enough to show in a sum of thousands, or so few that a sample misses them"""


@dataclass(frozen=True)
class Point:
    """One comparison of a kernel with the oracle: sizes, values, memory.

    like: the values come from `seed`, but the first and last number of each float operand (and all integers) from the seed
    `like`, and they lie at the addresses at which the worker has just shown those of `like`: a kernel that remembers answers shows.
    special: NaN and infinities among the floats. stirred: which of the `stirs` has changed a few of the values.
    extreme: all floats are of this kind (extremes.py). given: operands whose values come from elsewhere (descriptors.py).
    anew: a seed, and the operands whose values come from it instead.
    """

    sizes: tuple[tuple[str, int], ...]
    seed: int
    like: int | None = None
    form: Form = "apart"
    special: bool = False
    stirred: Stir = ()
    extreme: Extreme | None = None
    given: Given = ()
    anew: tuple[int, tuple[str, ...]] | None = None

    @property
    def binding(self) -> dict[str, int]:
        return dict(self.sizes)

    @property
    def values(self) -> Point:
        """The same values at the same sizes, whatever the memory: what the oracle's answer depends on."""
        return replace(self, form="apart")

    def __str__(self) -> str:
        where = ", ".join(f"{k}={v}" for k, v in self.sizes) or "its only size"
        notes = [*(["other values at the same addresses"] if self.like is not None else []),
                 *(["NaN and infinities"] if self.special else []),
                 *([f"{self.extreme} values"] if self.extreme is not None else []),
                 *(f"{name} = {descriptor}" for name, descriptor in self.given),
                 *(["in a timed run"] if self.stirred or self.anew else []),
                 *({"in_place": ["in place"], "views": ["strided operands"], "apart": []}[self.form])]
        return f"{where} ({', '.join(notes)})" if notes else where


def generator(seed: int, name: str) -> np.random.Generator:
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key))


def integer_range(node: Node, users: list[tuple[Node, int]], binding: Mapping[str, int]) -> tuple[int, int]:
    """low ≤ value < high for an integer operand, from who reads it."""
    for user, position in users:
        name = user.op.name
        if name in ("gather", "scatter") and position == 1:
            size = int(d.evaluate(user.inputs[0].shape[user.attrs["axis"]], binding))
            return -1, size + 1                                    # one out of range at each end: defined, so tested
        if name == "embedding" and position == 1:
            return -1, int(d.evaluate(user.inputs[0].shape[0], binding)) + 1
        if name == "rope_table":
            return 0, 4096
        if name == "one_hot":
            return 0, max(1, int(user.attrs["size"]) if isinstance(user.attrs["size"], int) else 8)
        if name == "write_at_index" and position == 2:
            size = int(d.evaluate(user.inputs[0].shape[user.attrs["axis"]], binding))
            return 0, max(1, size)
    return (0, 100) if node.dtype.kind == "uint" else (-50, 100)


def make_inputs(graph: Graph, binding: Mapping[str, int], seed: int, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """An array per input of the graph at these dims, or for these of them."""
    users: dict[Node, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for position, i in enumerate(node.inputs):
            users.setdefault(i, []).append((node, position))
    out: dict[str, np.ndarray] = {}
    for name in graph.inputs if names is None else names:
        node = graph.inputs[name]
        t = node.type.at(binding)
        if t.dtype.kind == "float" and int(t.size()) > BIG_INPUT:
            out[name] = _big_input(name, t)
            continue
        rng = generator(seed, name)
        read_by = users.get(node, [])
        if t.dtype.kind == "float":
            out[name] = floats(rng, t, positive=any(u.op.name in POSITIVE for u, _ in read_by))
        elif t.dtype.kind == "bool":
            out[name] = rng.integers(0, 4, t.shape) > 0            # mostly true: a mask of all zeros says little
        elif any((u.op.name == "write_at_index" and p == 2) or (u.op.name == "scatter" and p == 1 and u.attrs["mode"] == "set")
                 for u, p in read_by):
            low, high = integer_range(node, read_by, binding)
            count = int(t.size())                                  # no duplicates: `set` does not define them
            pool = np.arange(low, max(high, low + count))
            out[name] = rng.permutation(pool)[:count].reshape(t.shape).astype(t.dtype.numpy)
        else:
            low, high = integer_range(node, read_by, binding)
            info = np.iinfo(t.dtype.numpy)
            out[name] = rng.integers(max(low, info.min), min(high, int(info.max)), t.shape).astype(t.dtype.numpy)
    return out


@lru_cache(maxsize=1)
def _big_input(name: str, t: TensorType) -> np.ndarray:
    array = floats(generator(0, name), t, positive=False)
    array.flags.writeable = False
    return array


def floats(rng: np.random.Generator, t: TensorType, positive: bool) -> np.ndarray:
    """Normal numbers of spread 1; of more than 2^20 elements, uniform ones made of random bits (ten times as fast)."""
    shape = tuple(int(s) for s in t.shape)
    count = int(np.prod(shape))
    if count > 1 << 20:
        bits = rng.integers(0, 1 << 24, count, dtype=np.uint32)
        values = bits.astype(np.float32)
        values *= np.float32(2.0 ** -22)
        values -= np.float32(2.0)                                  # −2 … 2
    else:
        values = rng.standard_normal(count).astype(np.float32)
        if count >= 64:
            at = rng.integers(0, count, 4)
            values[at] = np.array([0.0, -0.0, 1e-30, 8.0], dtype=np.float32)
        if len(shape) > 1 and shape[0] >= 3 and t.dtype.name != "f16":
            values.reshape(shape[0], -1)[int(rng.integers(0, shape[0]))] *= np.float32(1e-3)
    if positive:
        values = np.abs(values) + np.float32(1e-3)
    if t.dtype.name == "f64":                                       # all of its bits: an f32 in between has to show
        fine = rng.integers(-(1 << 20), 1 << 20, count, dtype=np.int32)
        return (values * (1.0 + fine * 2.0 ** -46)).reshape(shape)
    return values.astype(t.dtype.numpy).reshape(shape)


def point_inputs(graph: Graph, point: Point) -> dict[str, np.ndarray]:
    """The arrays of one point; the worker that runs the kernel and the judge that asks the oracle make the same.

    Raises InputError when values that come from elsewhere are not there or do not fit.
    """
    found = make_inputs(graph, point.binding, point.seed)
    for name, descriptor in point.given:
        array = values(name, descriptor, graph.inputs[name].type.at(point.binding))
        found[name] = found[name] if array is None else array
    if point.like is not None:
        kept = make_inputs(graph, point.binding, point.like)
        for name, array in found.items():
            if _is_float(array) and array.size > 2 and array.flags.writeable:
                flat, old = array.reshape(-1), kept[name].reshape(-1)
                flat[0], flat[-1] = old[0], old[-1]
            else:
                found[name] = kept[name]
    if point.special:
        for name, array in found.items():
            if _is_float(array) and array.size >= 3 and array.flags.writeable:
                at = generator(point.seed, f"special {name}").permutation(array.size)[:3]
                array.reshape(-1)[at] = np.array([np.nan, np.inf, -np.inf], dtype=np.float32).astype(array.dtype)
                break                                              # in one operand: inf − inf everywhere would hide the rest
    if point.extreme is not None:
        _make_extreme(graph, found, point.extreme, point.seed)
    if point.anew is not None:
        seed, names = point.anew
        found.update(make_inputs(graph, point.binding, seed, names))
    stir(found, point.stirred, found)
    return found


def _make_extreme(graph: Graph, arrays: dict[str, np.ndarray], kind: Extreme, seed: int) -> None:
    positive = {i for node in graph.nodes if node.op.name in POSITIVE for i in node.inputs}
    for name, node in graph.inputs.items():
        if node.dtype.kind == "float":
            arrays[name] = extreme_values(generator(seed, f"{kind} {name}"), kind, arrays[name].shape, node.dtype,
                                          positive=node in positive)


def changeable(graph: Graph, sizes: tuple[tuple[str, int], ...], kept: Sequence[str] = ()) -> dict[str, int]:
    """The operands that may change from one timed run to the next, and how many values each has.

    kept: operands that stay as they are (what a kernel prepared from them is not prepared again). So do large ones, and the
    integers of ops that do not define what equal ones mean.
    """
    integers = not any(node.op.name in ("write_at_index", "scatter") for node in graph.nodes)
    found = {}
    for name, node in graph.inputs.items():
        size = int(node.type.at(dict(sizes)).size())
        small = 1 < size and size * node.dtype.itemsize <= BIG_BYTES
        if name not in kept and small and (integers or node.dtype.kind == "float"):
            found[name] = size
    return found


def stirred(graph: Graph, sizes: tuple[tuple[str, int], ...], seed: int, number: int, kept: Sequence[str] = ()) -> Stir:
    """One of endlessly many ways to change some values of the `changeable` operands, for runs whose answer must not be a remembered
    one. Values only change places within an operand, so that they stay legal."""
    rng = generator(seed, f"stir {number}")
    found = []
    for name, size in changeable(graph, sizes, kept).items():
        length = max(1, min(STRETCH if number % 2 else FEW, size // 2))
        sources = rng.integers(0, size, length).tolist()
        found.append((name, int(rng.integers(0, size - length + 1)), tuple(sources)))
    return tuple(found)


def stir(arrays: Mapping[str, np.ndarray], how: Stir, pristine: Mapping[str, np.ndarray]) -> None:
    """Change values of these C-contiguous arrays, which hold what `pristine` holds."""
    for name, at, sources in how:
        arrays[name].reshape(-1)[at:at + len(sources)] = pristine[name].reshape(-1)[list(sources)]


def unstir(arrays: Mapping[str, np.ndarray], how: Stir, pristine: Mapping[str, np.ndarray]) -> None:
    """Undo `stir`."""
    for name, at, sources in how:
        arrays[name].reshape(-1)[at:at + len(sources)] = pristine[name].reshape(-1)[at:at + len(sources)]


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind in "fV" or array.dtype.name == "bfloat16"


def work_points(graph: Graph, typical: Mapping[str, int]) -> list[dict[str, int]]:
    """The sizes at which a kernel is compared with the oracle: typical, smallest, and odd ones around small blocks.

    A kernel that is wrong at n = 1 only, or in the last row of a block only, must show here, and so must one that takes one dim for
    another: where there are several, their sizes differ, in both orders.
    """
    names = sorted(graph.dims)

    def at(base: int, step: int) -> dict[str, int]:
        out = {}
        for i, n in enumerate(names):
            lo, hi = d.bounds(graph.dims[n])
            out[n] = min(hi, max(lo, base + step * i))
        return out

    second = {n: min(hi, lo + 1) for n in names for lo, hi in [d.bounds(graph.dims[n])]}
    points = [{n: int(typical[n]) for n in names}, at(0, 0), second, at(3, 2), at(17, 3), at(64, -7)]
    unique: list[dict[str, int]] = []
    for p in points:
        if p not in unique:
            unique.append(p)
    return unique


def largest_sizes(graph: Graph) -> list[dict[str, int]]:
    """Sizes far beyond the small ones, largest first: at the dims' upper bounds, at 1024 and at 257."""
    out: list[dict[str, int]] = []
    for cap in (1 << 62, 1024, 257):
        sizes = {n: min(cap, d.bounds(s)[1]) for n, s in graph.dims.items()}
        if all(sizes[n] >= d.bounds(s)[0] for n, s in graph.dims.items()) and sizes not in out:
            out.append(sizes)
    return out
