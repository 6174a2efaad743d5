"""inputs: generates legal, seeded values for the operands of a graph. Counter-based: (seed, input name) fixes every number.

Floats are normally distributed, with a few awkward values mixed in (zeros of both signs, tiny, large), and one row of many is
small, so that an eps shows. Integers are in the range that their use allows (row numbers of a table, positions), with some out of
range where the op defines that. A `Point` holds a kernel's sizes, values and memory layout in a comparison."""

from __future__ import annotations

import hashlib
import math
import mmap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensor_graphs.language import dims as d
from tensor_graphs.language.composites.scan import SCAN
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.measure.definition_analysis import adds_products, definition_of, one_sided_operands, padded_operands
from tensor_graphs.measure.isolation import reused_arrays
from tensor_graphs.measure.isolation.memory_guards import BIG_BYTES, bytes_of
from tensor_graphs.measure.points import fewer_rows
from tensor_graphs.measure.points.extremes import Kind, begins_late, extreme_values, integer_values, one_sided_values, rising_values
from tensor_graphs.measure.points.input_descriptors import Given, values
from tensor_graphs.normal_numbers import quantiles

POSITIONS = {"rope_table"}
"""ops whose integers are token positions, which get a moderate range"""

DRAWN_AT_ONCE, FROM_TABLE = 1 << 14, 512
"""numbers of a large operand drawn in one piece, to stay in a cache; count above which they come from a table (`_normal`)"""

BIG_INPUT = 1 << 22
"""elements above which an operand (a weight matrix) has the same values for every seed, generated once; smaller operands vary"""

Form = Literal["apart", "in_place", "views", "windows", "strided", "backwards", "repeated", "uniform", "gaps", "turned",
               "same", "overlapping", "unaligned"]
"""layout of operands. apart: each in its own memory; in_place: an output in its operand's memory; views: axes reversed; windows:
parts of wider arrays; strided: every other element; backwards: reversed along an axis; repeated: stride 0 along an axis; uniform:
one number for all; gaps: cut along one axis out of wider arrays, each of another width; turned: all axes but the last reversed;
same: two operands in the same memory; overlapping: memory that overlaps by all but a row; unaligned: begins off a vector boundary
(outputs too)"""

STORED: frozenset[Form] = frozenset({"views", "windows", "strided", "backwards", "repeated", "uniform", "gaps", "turned"})
"""forms in which a plan passes a window of another array (single_op_plans.py builds them)"""

SAME_VALUES: frozenset[Form] = frozenset({"repeated", "uniform", "same", "overlapping"})
"""forms that constrain the operands' values"""

PAIRED: frozenset[Form] = frozenset({"same", "overlapping"})
"""forms in which two operands share memory"""

Perturb = tuple[tuple[str, int, tuple[int, ...]], ...]
"""(operand, position, sources): the values from this flat position on are replaced by the earlier values at `sources`"""

STRETCH, FEW = 64, 3
"""most values of one operand that a perturbation changes: many show in a sum of thousands, few may escape a kernel that samples"""


@dataclass(frozen=True)
class Point:
    """One comparison of a kernel with the oracle: sizes, values, memory.

    like: the values come from `seed`, except the first and last number of each float operand (and all integers), which come from
    the seed `like`. The operands have the addresses at which the worker has just run those of `like`, so that a kernel that
    remembers answers is found. special: NaN and infinities among the floats. perturbed: perturbation of a few values. extreme: kind
    of all floats (extremes.py). given: operands whose values come from descriptors (input_descriptors.py). anew: a seed, and the
    operands whose values come from it. axis: axis of a form that has one; of `in_place` the index of the pair; of structured values
    the first structure. only: the only operand that is special or extreme (default: the first float; all floats) or has a form of
    `STORED` (default: all). integers: full-range integers, and indices at the ends of tables. rows: a dim, or a fixed axis
    (fewer_rows.py), and the number of distinct rows along it, of which all rows are copies. beside: many runs in parallel with
    another thread (concurrent_runs.py)."""

    sizes: tuple[tuple[str, int], ...]
    seed: int
    like: int | None = None
    form: Form = "apart"
    special: bool = False
    perturbed: Perturb = ()
    extreme: Kind | None = None
    given: Given = ()
    anew: tuple[int, tuple[str, ...]] | None = None
    axis: int = 0
    only: str | None = None
    integers: bool = False
    rows: tuple[str, int] | None = None
    beside: bool = False

    @property
    def binding(self) -> dict[str, int]:
        return dict(self.sizes)

    @property
    def values(self) -> Point:
        """Return the point with equal values and sizes in ordinary memory; the oracle's answer depends on nothing else."""
        if self.form in SAME_VALUES:
            return self
        return replace(self, form="apart", axis=self.axis if self.extreme is not None else 0, beside=False)

    def __str__(self) -> str:
        where = ", ".join(f"{k}={v}" for k, v in self.sizes) or "its only size"
        where_in = f" in {self.only}" if self.only is not None else ""
        notes = [*(["other values at the same addresses"] if self.like is not None else []),
                 *([f"NaN and infinities{where_in}"] if self.special else []),
                 *([f"{self.extreme} values{where_in}"] if self.extreme is not None else []),
                 *(["integers of full range, ends of tables"] if self.integers else []),
                 *(f"{name} = {descriptor}" for name, descriptor in self.given),
                 *(["in a timed run"] if self.perturbed or self.anew else []),
                 *(["one of many runs under load"] if self.beside else []),
                 *([DESCRIPTIONS[self.form].format(axis=self.axis) + (where_in if self.form in STORED else "")]
                   if self.form != "apart" else [])]
        return f"{where} ({', '.join(notes)})" if notes else where


DESCRIPTIONS: Mapping[Form, str] = {
    "in_place": "in place", "views": "strided operands", "windows": "windows of wider arrays", "strided": "every other element",
    "backwards": "backwards along axis {axis}", "repeated": "stride 0 along axis {axis}",
    "uniform": "one number for all elements", "gaps": "cut along axis {axis} out of wider arrays",
    "turned": "all axes but the last turned around", "same": "two operands in the same memory",
    "overlapping": "operands that overlap", "unaligned": "unaligned"}


def pairs(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return sizes in the form of `Point.sizes`."""
    return tuple(sorted((n, int(size)) for n, size in sizes.items()))


def generator(seed: int, name: str) -> np.random.Generator:
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key))               # `key=` asks the system for a seed besides: 50 of 60 µs


@lru_cache(maxsize=4096)
def is_index(graph: Graph, name: str) -> bool:
    """Return whether an integer input is an index or position: in the definition it reaches the index of a gather or scatter, or an
    op of POSITIONS. Its values then have a range; those of other integer inputs have none."""
    if any(u.op.name in POSITIONS and graph.inputs[name] in u.inputs for u in graph.nodes):
        return True
    whole = definition_of(graph)
    reached = {whole.inputs[name]} if name in whole.inputs else set()
    for node in whole.nodes:
        if node.op.group == "index" and node.inputs[1] in reached:
            return True
        if node.dtype.kind in ("int", "uint") and any(i in reached for i in node.inputs):
            reached.add(node)
    return False


@lru_cache(maxsize=4096)
def rows_read_by(graph: Graph, name: str) -> str | None:
    """Return the input that selects the rows (along the first axis) of a table input if only selected rows are read; else None."""
    whole = definition_of(graph)
    if name not in whole.inputs:
        return None
    readers = [n for n in whole.nodes if whole.inputs[name] in n.inputs]
    if len(readers) != 1 or readers[0].op.name != "gather" or readers[0].attrs["axis"] != 0:
        return None
    index = readers[0].inputs[1]
    while index.op.facts.rearranges or index.op.name == "cast":
        index = index.inputs[0]
    names = {node: input_name for input_name, node in whole.inputs.items()}
    return names.get(index) if readers[0].inputs[0] is whole.inputs[name] else None


def integer_range(node: Node, users: list[tuple[Node, int]], binding: Mapping[str, int]) -> tuple[int, int]:
    """Return (low, high) with low ≤ value < high for an integer operand, derived from the ops that read it."""
    for user, position in users:
        name, rows = user.op.name, user.op.facts.reads or user.op.facts.writes
        if rows is not None and rows.at == position:
            size = int(d.evaluate(user.inputs[rows.of].shape[user.attrs.get("axis", 0)], binding))
            within = name == "write_at_index"                      # elsewhere out of range is defined, so tested, at each end
            return (0, max(1, size)) if within else (-1, size + 1)
        if name == "rope_table":
            return 0, 4096
        if name == "one_hot":
            return 0, max(1, int(user.attrs["size"]) if isinstance(user.attrs["size"], int) else 8)
    return (0, 100) if node.dtype.kind == "uint" else (-50, 100)


def make_inputs(graph: Graph, binding: Mapping[str, int], seed: int, names: Iterable[str] | None = None,
                by_rows: bool = False) -> dict[str, np.ndarray]:
    """Return an array per input, or for `names` only. by_rows: large arrays may be read-only views whose rows overlap in memory."""
    users, out = _users(graph), dict[str, np.ndarray]()
    for name in graph.inputs if names is None else names:
        node = graph.inputs[name]
        t = node.type.at(binding)
        if is_big(t):
            big = _big_input(graph, name, t)
            big.restore()
            out[name] = big.rows if by_rows and not big.is_table else big.shown
            continue
        rng = generator(seed, name)
        read_by = users.get(node, [])
        if t.dtype.kind == "float":
            out[name] = floats(rng, t, positive=any(u.op.facts.positive for u, _ in read_by))
            if len(t.shape) > 1 and _in_each_iteration(read_by):
                out[name] = _scaled(out[name])
        elif t.dtype.kind == "bool":
            out[name] = rng.integers(0, 4, t.shape) > 0            # mostly true: a mask of all zeros says little
        elif _requires_distinct(read_by):
            low, high = integer_range(node, read_by, binding)
            count = int(t.size())                                  # no duplicates: `set` does not define them
            pool = np.arange(low, max(high, low + count))
            out[name] = rng.permutation(pool)[:count].reshape(t.shape).astype(t.dtype.numpy)
        else:
            low, high = integer_range(node, read_by, binding)
            info = np.iinfo(t.dtype.numpy)
            out[name] = rng.integers(max(low, info.min), min(high, int(info.max)), t.shape).astype(t.dtype.numpy)
    _hold_rows_read(graph, binding, out)
    return out


def _users(graph: Graph) -> dict[Node, list[tuple[Node, int]]]:
    """Return node -> [(op node that reads it, its position among that op's operands)]."""
    users: dict[Node, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for position, i in enumerate(node.inputs):
            users.setdefault(i, []).append((node, position))
    return users


def _in_each_iteration(read_by: Sequence[tuple[Node, int]]) -> bool:
    """Return whether one of these readers is a loop that reads the operand in each iteration."""
    return any(u.op is SCAN and p >= u.attrs["carries"] + u.attrs["slices"] for u, p in read_by)


def _scaled(values: np.ndarray) -> np.ndarray:
    """Return a random matrix scaled so that repeated products do not grow: n columns would add a factor of √n."""
    return (values / math.sqrt(max(1, values.shape[-1]))).astype(values.dtype)


def line_bytes(t: TensorType) -> int:
    """Return the size in bytes of the line of random numbers from which the rows of a large operand are cut (`_BigInput`)."""
    *rows, last = (int(s) for s in t.shape)
    return (min(STEP, last) * (math.prod(rows) - 1) + last) * t.dtype.itemsize


class _BigInput:
    """Values of a large operand: each row, along the last axis, is a piece of one line of random numbers, STEP numbers after that
    of the previous row. So no two rows are equal, and all can be read (`rows`) without memory for each.

    If the operand is a table of which only selected rows are read (`rows_read_by`), memory is filled only for these rows, their
    neighbours, and the first and last ones; the rest is zero. Some rows may be altered temporarily; `restore` undoes that."""

    def __init__(self, number: int, t: TensorType, is_table: bool) -> None:
        shape = tuple(int(s) for s in t.shape)
        step = min(STEP, shape[-1])
        line = floats(generator(number, "large"), TensorType((line_bytes(t) // t.dtype.itemsize,), t.dtype), positive=False)
        strides = [step * int(np.prod(shape[i + 1:-1])) for i in range(len(shape) - 1)]
        bits = line.view(f"u{line.itemsize}")                       # numpy's as_strided does not know every dtype of ml_dtypes
        self.rows = as_strided(bits, shape, [s * line.itemsize for s in (*strides, 1)], writeable=False).view(line.dtype)
        self.is_table, self.altered = is_table, list[tuple[np.ndarray, np.ndarray]]()
        self.held = np.zeros(len(self.rows), bool)
        """for a table: mask of the rows that were filled"""

    @cached_property
    def memory(self) -> np.ndarray:
        array = _page_by_page(self.rows.shape, self.rows.dtype) if self.is_table else np.array(self.rows, order="C")
        if self.is_table:                                           # a kernel that clamps row numbers reads no zeros
            self._hold(array, np.array([0, 1, 2, len(array) - 3, len(array) - 2, len(array) - 1]))
        return array

    @cached_property
    def shown(self) -> np.ndarray:
        """Return a read-only view of the memory."""
        view = self.memory.view()
        view.flags.writeable = False
        return view

    def hold(self, index: np.ndarray) -> None:
        """Fill these rows of a table, and their neighbours."""
        near = np.unique(index).astype(np.int64)
        self._hold(self.memory, np.concatenate([near - 1, near, near + 1]))

    def _hold(self, memory: np.ndarray, wanted: np.ndarray) -> None:
        wanted = np.unique(wanted[(wanted >= 0) & (wanted < len(memory))])
        missing = wanted[~self.held[wanted]]
        memory[missing] = self.rows[missing]
        self.held[missing] = True

    def restore(self) -> None:
        while self.altered:
            rows, saved = self.altered.pop()
            self.memory[rows] = saved

    def alter(self, rows: np.ndarray, values: np.ndarray) -> None:
        self.altered.append((rows, self.memory[rows].copy()))
        self.memory[rows] = values

    def is_whole(self) -> bool:
        """Return whether the memory is unchanged: equal to `rows`, or for a table, equal in filled rows and zero elsewhere."""
        if not self.is_table:
            count = max(1, COMPARED_AT_ONCE // self.rows[0].nbytes)
            return all(_same_bits(self.memory[a:a + count], self.rows[a:a + count]) for a in range(0, len(self.rows), count))
        at = np.flatnonzero(self.held)
        between = zip([0, *(at + 1)], [*at, len(self.held)], strict=True)
        return _same_bits(self.memory[at], self.rows[at]) and not any(
            bytes_of(self.memory[a:b]).any() for a, b in between if b > a)


def _page_by_page(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Return zeros whose memory the system allocates in pages of 4 KB as they are written. numpy requests pages of 2 MB for large
    arrays, so that a few thousand scattered rows took the memory of the entire table."""
    count = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):                            # of Linux
        with suppress(OSError):                                     # a kernel that was built without them
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.ndarray(tuple(shape), dtype, buffer=memory)


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays of one shape hold equal bits; a view whose last axis is contiguous is not copied."""
    bits = np.dtype(f"u{a.itemsize}")
    return bool((a.view(bits) == b.view(bits)).all())


COMPARED_AT_ONCE = 1 << 20
"""bytes of a large operand that are compared in one piece, so that the result stays in a cache"""

STEP = 17
"""distance in numbers between the starts of two rows of a large operand: small, so that the line is short; prime, so that a kernel
that reads a wrong row or element is not right by chance"""

_kept_big_input = lru_cache(maxsize=2)(_BigInput)
"""large operands that are no tables; they are never altered, so all threads share them"""

_making = threading.Lock()


@lru_cache(maxsize=32)
def _kept_tables(thread: int) -> Callable[[int, TensorType, bool], _BigInput]:
    """Return the cache of tables of one thread: rows of tables are altered for a point. At most 32 threads have caches."""
    return lru_cache(maxsize=2)(_BigInput)


def forget_tables() -> None:
    """Free the tables of all threads."""
    _kept_tables.cache_clear()


def _big_input(graph: Graph, name: str, t: TensorType) -> _BigInput:
    alike = [n for n, node in graph.inputs.items() if node.dtype == t.dtype and len(node.shape) == len(t.shape)]
    is_table = rows_read_by(graph, name) is not None
    with _making:                                                   # the second of two threads that need the same operand finds it
        make = _kept_tables(threading.get_ident()) if is_table else _kept_big_input
        return make(alike.index(name), t, is_table)


def _hold_rows_read(graph: Graph, binding: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
    """Fill the rows of large tables that their current indices select."""
    for name in arrays:
        t = graph.inputs[name].type.at(binding)
        index = rows_read_by(graph, name) if is_big(t) else None
        if index is not None and index in arrays:
            _big_input(graph, name, t).hold(arrays[index])


def seal(graph: Graph, binding: Mapping[str, int], name: str) -> Callable[[], bool]:
    """Return a function that checks whether a large operand is unchanged."""
    big = _big_input(graph, name, graph.inputs[name].type.at(binding))

    def is_whole() -> bool:
        big.restore()
        return big.is_whole()

    return is_whole


def is_big(t: TensorType, most: int = BIG_INPUT) -> bool:
    """Return whether an operand has more than `most` floats; with the default, its values do not depend on the seed."""
    return t.dtype.kind == "float" and int(t.size()) > most


def floats(rng: np.random.Generator, t: TensorType, positive: bool) -> np.ndarray:
    """Return normal numbers of standard deviation 1; more than 2^20 are uniform instead (ten times as fast)."""
    shape = tuple(int(s) for s in t.shape)
    count = int(np.prod(shape))
    if count > 1 << 20:
        values = reused_arrays.empty((count,), np.float32)
        for start in range(0, count, DRAWN_AT_ONCE):
            part = values[start:start + DRAWN_AT_ONCE]
            rng.random(dtype=np.float32, out=part)                 # 24 random bits
            part *= np.float32(4.0)
            part -= np.float32(2.0)                                # −2 … 2
    else:
        values = _normal(rng, count)
        if count >= 64:
            at = rng.integers(0, count, 4)
            values[at] = np.array([0.0, -0.0, 1e-30, 8.0], dtype=np.float32)
        if len(shape) > 1 and shape[0] >= 3 and t.dtype.smallest_normal < 1e-6:     # what is as small keeps all its digits
            values.reshape(shape[0], -1)[int(rng.integers(0, shape[0]))] *= np.float32(1e-3)
    if positive:
        values = np.abs(values) + np.float32(1e-3)
    if t.dtype.name == "f64":                                       # all of its bits: an f32 in between has to show
        fine = rng.integers(-(1 << 20), 1 << 20, count, dtype=np.int32)
        return (values * (1.0 + fine * 2.0 ** -46)).reshape(shape)
    return values.astype(t.dtype.numpy, copy=False).reshape(shape)


def _normal(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return independent normal f32 numbers. Many are computed as one of 2^14 quantiles, drawn at random, times a random factor of
    1 … 1.0625: it takes a third of the time, and few are equal."""
    if count <= FROM_TABLE:
        return rng.standard_normal(count, dtype=np.float32)
    pool, values = quantiles(14), np.empty(count, np.float32)
    for start in range(0, count, DRAWN_AT_ONCE):
        part = values[start:start + DRAWN_AT_ONCE]
        bits = rng.bit_generator.random_raw((part.size + 1) // 2).view(np.uint32)[:part.size]
        np.take(pool, bits >> np.uint32(18), out=part, mode="clip")     # 14 bits, so that none is clipped; "raise" makes a copy
        bits &= np.uint32((1 << 18) - 1)
        factors = bits.astype(np.float32)
        factors *= np.float32(2.0 ** -22)
        factors += np.float32(1.0)
        part *= factors
    return values


def point_inputs(graph: Graph, point: Point, by_rows: bool = False) -> dict[str, np.ndarray]:
    """Return the input arrays of one point; the worker that runs the kernel and the judge that evaluates the oracle get equal ones.
    by_rows: as in `make_inputs`. Raises InputError when values from descriptors are missing or do not fit."""
    if point.rows is None:
        return _values(graph, point, by_rows)
    return all_rows(graph, point, _values(*few_of(graph, point), by_rows))


def few_of(graph: Graph, point: Point) -> tuple[Graph, Point]:
    """Return the graph and the point reduced to one copy of each distinct row."""
    assert point.rows is not None
    name, count = point.rows
    if not fewer_rows.is_fixed(name):
        return graph, few_rows(point)
    few = fewer_rows.fewer(graph, name, count)
    assert few is not None, (graph, name)
    return few.graph, replace(point, rows=None, form=point.form if point.form in SAME_VALUES else "apart")


def all_rows(graph: Graph, point: Point, few: Mapping[str, np.ndarray], outputs: bool = False) -> dict[str, np.ndarray]:
    """Return the inputs (or outputs) of a point, expanded from its distinct rows."""
    assert point.rows is not None
    (name, count), numbers = point.rows, row_numbers(point)
    if not fewer_rows.is_fixed(name):
        nodes = graph.outputs if outputs else graph.inputs
        return {key: take_rows(array, nodes[key], name, numbers) for key, array in few.items()}
    smaller = fewer_rows.fewer(graph, name, count)
    assert smaller is not None, (graph, name)
    return fewer_rows.taken(few, smaller.outputs if outputs else smaller.inputs, numbers)


def few_rows(point: Point) -> Point:
    """Return the point reduced to one copy of each distinct row."""
    assert point.rows is not None
    dim, count = point.rows
    return replace(point, rows=None, form="apart", sizes=tuple((n, count if n == dim else v) for n, v in point.sizes))


def row_numbers(point: Point) -> np.ndarray:
    """Return for each row the number of the distinct row that it copies; every distinct row occurs. Read-only."""
    assert point.rows is not None
    name, count = point.rows
    return _row_numbers(point.seed, name, count, fewer_rows.size_of(name) if fewer_rows.is_fixed(name) else point.binding[name])


@lru_cache(2)
def _row_numbers(seed: int, name: str, count: int, size: int) -> np.ndarray:
    """Draw the numbers, then write each of them once into a separate part of the array: shuffling millions takes ten times as long.
    Cached, as inputs and outputs of a point need equal numbers."""
    rng = generator(seed, f"rows of {name}")
    numbers = rng.integers(0, count, size, dtype=np.int32).astype(np.intp)
    share = size // count
    numbers[share * np.arange(count) + rng.integers(0, share, count)] = rng.permutation(count)
    numbers.flags.writeable = False
    return numbers


def take_rows(array: np.ndarray, node: Node, dim: str, numbers: np.ndarray) -> np.ndarray:
    """Return rows of an array, selected along each axis of the node whose size is exactly this dim."""
    for axis, size in enumerate(node.shape):
        if isinstance(size, d.Expr) and str(size) == dim:
            array = reused_arrays.take(array, numbers, axis)
    return array


def _values(graph: Graph, point: Point, by_rows: bool) -> dict[str, np.ndarray]:
    arrays = make_inputs(graph, point.binding, point.seed, by_rows=by_rows)
    for name, descriptor in point.given:
        array = values(name, descriptor, graph.inputs[name].type.at(point.binding))
        arrays[name] = arrays[name] if array is None else array
    if point.like is not None:
        earlier = make_inputs(graph, point.binding, point.like, by_rows=by_rows)
        for name, array in arrays.items():
            if graph.inputs[name].dtype.is_float and array.size > 2 and array.flags.writeable:
                flat, old = array.reshape(-1), earlier[name].reshape(-1)
                flat[0], flat[-1] = old[0], old[-1]
            else:
                arrays[name] = earlier[name]
    if point.integers:
        _make_integers(graph, point, arrays)
        _hold_rows_read(graph, point.binding, arrays)
    if point.special:
        _make_special(graph, point, arrays)
    if point.extreme is not None:
        _make_extreme(graph, point, arrays)
    if point.anew is not None:
        seed, names = point.anew
        arrays.update(make_inputs(graph, point.binding, seed, names))
    perturb(arrays, point.perturbed, arrays)
    _follow_form(graph, point, arrays)
    return arrays


def _replace(graph: Graph, point: Point, arrays: dict[str, np.ndarray], name: str, make: Callable[[Shape], np.ndarray]) -> None:
    """Replace an operand by `make(shape)`; of a large operand, only the rows that are read."""
    t = graph.inputs[name].type.at(point.binding)
    if not is_big(t):
        arrays[name] = make(arrays[name].shape)
        return
    index = rows_read_by(graph, name)
    if index is not None:
        rows = np.unique(arrays[index])
        rows = rows[(rows >= 0) & (rows < t.shape[0])].astype(np.int64)
        _big_input(graph, name, t).alter(rows, make((len(rows), *(int(n) for n in t.shape[1:]))))


Shape = tuple[int, ...]

SPECIALS = (math.nan, math.inf, -math.inf)


def _make_special(graph: Graph, point: Point, arrays: dict[str, np.ndarray]) -> None:
    """Put NaN and both infinities (or the single one that the point's axis selects) into one operand, no two in the same row,
    column or plane, where one would hide another."""
    for name, node in graph.inputs.items():
        array = arrays[name]
        if not node.dtype.is_float or array.size < 1 or point.only not in (None, name):
            continue
        if is_big(node.type.at(point.binding)) and rows_read_by(graph, name) is None:
            continue

        def make(shape: Shape, array: np.ndarray = array, name: str = name) -> np.ndarray:
            result = array if shape == array.shape else array[:shape[0]].copy()
            rng = generator(point.seed, f"special {name}")
            places = [rng.permutation(size) for size in result.shape]
            wanted = SPECIALS if point.axis == 0 else SPECIALS[point.axis - 1:point.axis]
            for k, value in enumerate(wanted[:min(result.shape, default=1)]):
                result[tuple(order[k] for order in places)] = np.float32(value)
            return result

        _replace(graph, point, arrays, name, make)
        return


def _make_extreme(graph: Graph, point: Point, arrays: dict[str, np.ndarray]) -> None:
    kind = point.extreme
    assert kind is not None
    if kind in BY_OPERANDS:
        BY_OPERANDS[kind](graph, point, arrays)
        return
    positive = {i for node in graph.nodes if node.op.facts.positive for i in node.inputs}
    floats = [name for name, node in graph.inputs.items() if node.dtype.kind == "float" and point.only in (None, name)]
    for name, node in graph.inputs.items():
        if name in floats:
            rng = generator(point.seed, f"{kind} {name}")

            def make(shape: Shape, rng: np.random.Generator = rng, node: Node = node, own: int = floats.index(name)) -> np.ndarray:
                return extreme_values(rng, kind, shape, node.dtype, positive=node in positive, first=point.axis,
                                      squared=adds_products(graph), among=(own, len(floats)))

            _replace(graph, point, arrays, name, make)


def _pad(graph: Graph, point: Point, arrays: dict[str, np.ndarray]) -> None:
    """Make rows of a maximum's operands begin with padding: −∞, or masked elements. The last element of a row is never padding."""
    padded = padded_operands(graph)
    for name, axis in padded.floats.items():
        rng, dtype = generator(point.seed, f"padded {name}"), graph.inputs[name].dtype
        make = partial(extreme_values, rng, "padded", dtype=dtype, first=axis)
        _replace(graph, point, arrays, name, make)
    for name, axis in padded.masks.items():
        mask = np.moveaxis(arrays[name], axis, -1)
        late = begins_late(generator(point.seed, f"padded {name}"), mask.shape)
        arrays[name] = np.ascontiguousarray(np.moveaxis(~late, -1, axis))


def _put_on_one_side(graph: Graph, point: Point, arrays: dict[str, np.ndarray]) -> None:
    """Make all numbers in each row of a maximum's operand far below zero, or far above; a mask hides every third row."""
    operands = one_sided_operands(graph)
    for i, (name, axes) in enumerate((operands.straight or operands.multiplied).items()):
        rng, dtype = generator(point.seed, f"one-sided {name}"), graph.inputs[name].dtype
        make = partial(one_sided_values, rng, dtype=dtype, axes=axes, first=point.axis, power=not operands.straight)
        if dtype.is_float or not is_index(graph, name):
            _replace(graph, point, arrays, name, make if operands.straight or not i else partial(rising_values, dtype=dtype))
    for name, axis in padded_operands(graph).masks.items():
        rows = np.moveaxis(arrays[name], axis, -1)
        rows[np.arange(math.prod(rows.shape[:-1])).reshape(rows.shape[:-1]) % 3 == 0] = False


BY_OPERANDS: Mapping[Kind, Callable[[Graph, Point, dict[str, np.ndarray]], None]] = {
    "padded": _pad, "one-sided": _put_on_one_side}
"""kinds of values that depend on how the op uses an operand"""


def _make_integers(graph: Graph, point: Point, arrays: dict[str, np.ndarray]) -> None:
    """Set integer values to numbers of their full range, and indices to the ends of theirs."""
    users, values = _users(graph), dict[str, np.ndarray]()
    for name, node in graph.inputs.items():
        if node.dtype.kind not in ("int", "uint"):
            continue
        rng, shape = generator(point.seed, f"integers {name}"), arrays[name].shape
        if not is_index(graph, name):
            arrays[name] = integer_values(rng, shape, node.dtype)
            with np.errstate(all="ignore"):
                near = next((a for n, a in values.items() if a.shape == shape and a.dtype == arrays[name].dtype), None)
                if near is not None:                                # next to the other operand's: a comparison has to look closely
                    arrays[name] = np.where(rng.random(shape) < 0.5, near + rng.choice(
                        np.array([0, 1, node.dtype.max], near.dtype), shape), arrays[name])
            values[name] = arrays[name]
        elif not _requires_distinct(users.get(node, [])):
            low, high = integer_range(node, users.get(node, []), point.binding)
            ends = [e for e in (low, low + 1, low + 2, high - 3, high - 2, high - 1) if low <= e < high]
            if low < 0:                                             # beyond the ends too: in fewer bits, these would lie within
                within = (0, (low + high) // 2, high - 2)
                ends += [side * (1 << bits) + e for bits in (8, 16, 32, 48) for side in (-1, 1) for e in within]
            ends = [e for e in ends if node.dtype.min <= e <= node.dtype.max]
            arrays[name] = rng.choice(ends, shape).astype(node.dtype.numpy)


def _requires_distinct(read_by: Sequence[tuple[Node, int]]) -> bool:
    """Return whether an op leaves the result for equal indices undefined."""
    return any((u.op.name == "write_at_index" and p == 2) or (u.op.name == "scatter" and p == 1 and u.attrs["mode"] == "set")
               for u, p in read_by)


def pair_of_operands(graph: Graph, arrays: Mapping[str, np.ndarray], seed: int) -> tuple[str, str] | None:
    """Return two operands that can be the same array and are no indices (a random pair of all such), or None. The first one's
    values suit both: an operand that a loop multiplies by in each iteration comes before one that it carries."""
    names = [n for n, a in arrays.items() if a.size and (a.dtype.kind not in "iu" or not is_index(graph, n)) and
             not is_big(TensorType(a.shape, graph.inputs[n].dtype))]
    users = _users(graph)
    names.sort(key=lambda n: not _in_each_iteration(users.get(graph.inputs[n], [])))
    pairs = [(x, y) for i, x in enumerate(names) for y in names[i + 1:]
             if arrays[x].shape == arrays[y].shape and arrays[x].dtype == arrays[y].dtype]
    return pairs[int(generator(seed, "pair").integers(len(pairs)))] if pairs else None


def _follow_form(graph: Graph, point: Point, arrays: dict[str, np.ndarray]) -> None:
    """Give operands the values that the point's layout implies."""
    chosen = {n: a for n, a in arrays.items() if point.only in (None, n) and not is_big(graph.inputs[n].type.at(point.binding))}
    if point.form == "repeated":
        for name, array in chosen.items():
            if array.ndim > point.axis and array.size:
                first = array.take([0], axis=point.axis)
                arrays[name] = np.ascontiguousarray(np.broadcast_to(first, array.shape))
    elif point.form == "uniform":
        for name, array in chosen.items():
            if array.size:
                arrays[name] = np.full_like(array, array.flat[0])
    elif point.form in ("same", "overlapping"):
        pair = pair_of_operands(graph, arrays, point.seed)
        if pair is not None:
            x, y = pair
            if point.form == "same":
                arrays[y] = arrays[x].copy()
            elif arrays[x].ndim:
                arrays[y] = np.concatenate([arrays[y][:1], arrays[x][:-1]])


def changeable(graph: Graph, sizes: tuple[tuple[str, int], ...], fixed: Sequence[str] = ()) -> dict[str, int]:
    """Return the operands that may change between timed runs -> their numbers of values. fixed: operands that must not change (what
    a kernel prepared from them is not prepared again). Large ones do not change, nor do integers if equal indices are undefined."""
    integers = not any(rows.at is not None for node in graph.nodes if (rows := node.op.facts.writes))
    counts = {name: int(node.type.at(dict(sizes)).size()) for name, node in graph.inputs.items()
              if name not in fixed and (integers or node.dtype.kind == "float")}
    return {name: size for name, size in counts.items() if 1 < size and size * graph.inputs[name].dtype.itemsize <= BIG_BYTES}


def perturbed(graph: Graph, sizes: tuple[tuple[str, int], ...], seed: int, number: int, fixed: Sequence[str] = ()) -> Perturb:
    """Return a perturbation of the `changeable` operands: some values are replaced by others of the operand, which are legal."""
    rng = generator(seed, f"stir {number}")
    ways = []
    for name, size in changeable(graph, sizes, fixed).items():
        length = max(1, min(STRETCH if number % 2 else FEW, size // 2))
        sources = rng.integers(0, size, length).tolist()
        ways.append((name, int(rng.integers(0, size - length + 1)), tuple(sources)))
    return tuple(ways)


def perturb(arrays: Mapping[str, np.ndarray], how: Perturb, pristine: Mapping[str, np.ndarray]) -> None:
    """Change values of these C-contiguous arrays, whose contents equal `pristine`."""
    for name, at, sources in how:
        arrays[name].reshape(-1)[at:at + len(sources)] = pristine[name].reshape(-1)[list(sources)]


def restore(arrays: Mapping[str, np.ndarray], how: Perturb, pristine: Mapping[str, np.ndarray]) -> None:
    """Undo `perturb`."""
    for name, at, sources in how:
        arrays[name].reshape(-1)[at:at + len(sources)] = pristine[name].reshape(-1)[at:at + len(sources)]


def work_points(graph: Graph, typical: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the sizes at which a kernel is compared with the oracle: typical, smallest, and odd ones around small blocks. They
    expose a kernel that is wrong only at n = 1 or in the last row of a block, or that confuses two dims: the dims have different
    sizes, in both orders."""
    names = sorted(graph.dims)

    def at(base: int, step: int) -> dict[str, int]:
        return {n: d.clamp(base + step * i, graph.dims[n]) for i, n in enumerate(names)}

    second = {n: d.clamp(d.bounds(graph.dims[n])[0] + 1, graph.dims[n]) for n in names}
    points = [{n: int(typical[n]) for n in names}, at(0, 0), second, at(3, 2), at(17, 3), at(64, -7)]
    return list({tuple(p.items()): p for p in points}.values())


def held_by_oracle(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Return the bytes of all inputs and outputs at these sizes, stored and in float64: a lower bound of the oracle's memory."""
    types = [node.type.at(sizes) for node in (*graph.inputs.values(), *graph.outputs.values())]
    return sum(int(t.size()) * (t.dtype.itemsize + 8) for t in types)


def is_held(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Return whether these sizes make the oracle hold at most MOST_CHOSEN bytes more than the smallest sizes do: a table of 2^32
    rows takes memory, even if four are read."""
    least = {n: d.bounds(s)[0] for n, s in graph.dims.items()}
    return held_by_oracle(graph, sizes) <= MOST_CHOSEN + held_by_oracle(graph, least)


MOST_CHOSEN = 1 << 31
"""bytes of memory, for `is_held`"""


def largest_sizes(graph: Graph) -> list[dict[str, int]]:
    """Return sizes that the oracle can hold, largest first: at the dims' upper bounds, at 1024 and at 257."""
    out: list[dict[str, int]] = []
    for cap in (1 << 62, 1024, 257):
        sizes = {n: min(cap, d.bounds(s)[1]) for n, s in graph.dims.items()}
        if all(sizes[n] >= d.bounds(s)[0] for n, s in graph.dims.items()) and sizes not in out and is_held(graph, sizes):
            out.append(sizes)
    return out
