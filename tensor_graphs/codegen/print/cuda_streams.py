"""cuda_streams: products of few rows (skinny_product.py) as CUDA C. Each warp has a row of a weight, in packs of 16 bytes that it
loads into registers before it waits for the product's other factor.

For one row everything is one kernel, whose blocks divide the columns of all products. Each block recomputes the stages before the
products in shared memory, which saves a launch; block 0 stores those that are outputs. For several rows these stages are launched
before (cuda_source.py), and a warp loops over the rows with its part of the weight.

In: an arranged program of streams.  Out: its source; `NotLowered` where its products differ in form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, Value, parallel, values_in
from tensor_graphs.codegen.print.cuda_source import Rendered, _Cuda, _divides, _Loop, _widened
from tensor_graphs.codegen.print.values import c_of, c_type, element_bytes, element_type, is_number
from tensor_graphs.codegen.skinny_product import weight_of
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32

STREAM_WARPS = 8
"""warps of a block, which share what it computes before the products"""

MOST_TAKEN = 12
"""most packs of weights that a thread loads before it waits"""

MANY_COLUMNS = ((4224, 1), (32768, 2))
"""(most columns, columns per warp) for the first entry that fits; beyond the last entry a warp has four columns"""

MADE_AGAIN = 40 << 10
"""most bytes that each block recomputes for one row"""

STEPS_AGAIN = 1 << 14
"""most elements of everything that a block recomputes"""

LINE = 128
"""bytes of a cache line"""


def is_streams(program: StageProgram) -> bool:
    return any(s.product for nest in program.nests for s in nest.stages)


def rendered(program: StageProgram, aligned: bool = True, prefix: str = "nest") -> Rendered:
    """Return the CUDA source of a program of streams, in the form of cuda_source.rendered. Raises NotLowered."""
    return _CudaStreams(program, aligned, prefix).rendered()


def traffic_of(program: StageProgram) -> Dim:
    """Return the bytes moved: each weight once for each row, everything else once."""
    streams = [_stream(nest) for nest in program.nests if any(s.product for s in nest.stages)]
    weights = {p.weight.attr[0] for stream in streams for p in stream.products}
    once = sum(a.size * a.dtype.itemsize for a in (*program.operands, *program.outputs) if a not in weights)
    return once + sum(a.size * a.dtype.itemsize * d.product(axis.size for axis in stream.rows)
                      for stream in streams for a in {p.weight.attr[0] for p in stream.products})


@dataclass(frozen=True)
class _Product:
    """A product of a nest: its stage, its weight, the other factor, and the axis that is summed."""

    stage: Stage
    weight: Value
    other: Value
    along: Axis


@dataclass(frozen=True)
class _Stream:
    """A nest of products. columns, rows: its axes on which the weights depend, and the rest."""

    nest: Nest
    products: tuple[_Product, ...]
    columns: tuple[Axis, ...]
    rows: tuple[Axis, ...]

    @property
    def count(self) -> Dim:
        return d.product(a.size for a in self.columns)

    def kinds(self) -> list[tuple[str, str, Dim]]:
        """Return the element types and the length of each product."""
        return [(element_type(p.weight.attr[0]), element_type(p.other.attr[0]), p.along.size) for p in self.products]


class _CudaStreams(_Cuda):
    def __init__(self, program: StageProgram, aligned: bool, prefix: str) -> None:
        super().__init__(program, aligned, prefix)
        self.streams = [_stream(nest) for nest in program.nests if any(s.product for s in nest.stages)]
        self.before = program.nests[:len(program.nests) - len(self.streams)]
        first = self.streams[0]
        self.row_count = d.product(a.size for a in first.rows)
        self.alike = first.kinds()
        for stream in self.streams:
            if stream.kinds() != self.alike:
                raise NotLowered("products beside each other that are not alike")
            if not same_dim(d.product(a.size for a in stream.rows), self.row_count):
                raise NotLowered("products beside each other of other numbers of rows")
        if len({stream[2] for stream in self.alike}) != 1 or len({kind for kind, _, _ in self.alike}) != 1:
            raise NotLowered("products of one column that are not alike")
        if not d.is_static(first.products[0].along.size) or not all(d.is_static(stream.count) for stream in self.streams):
            raise NotLowered("a weight whose sizes are known when it runs")
        self.length = int(d.evaluate(first.products[0].along.size, {}))
        self.widths = [int(d.evaluate(stream.count, {})) for stream in self.streams]
        self.products = len(first.products)
        self.columns_each = next((n for most, n in MANY_COLUMNS if sum(self.widths) <= most), 4)
        self.blocks = [-(-n // (STREAM_WARPS * self.columns_each)) for n in self.widths]
        self.pack, self.pack_other = self.packs_of_products()
        self.turns = -(-self.length // (32 * self.pack))
        self.held_turns = max(1, min(self.turns, MOST_TAKEN // (self.columns_each * self.products)))

    def packs_of_products(self) -> tuple[int, int]:
        """Return the elements per load of a weight, and of the other factor."""
        products = [p for stream in self.streams for p in stream.products]
        pack = 16 // element_bytes(products[0].weight.attr[0]) if self.aligned else 1
        while not all(_divides(pack, x) for p in products for x in (self.length, p.weight.attr[1] - p.along.symbol)):
            pack //= 2
        other = min(pack, *(16 // element_bytes(p.other.attr[0]) for p in products))
        while not all(_divides(other, p.other.attr[1] - p.along.symbol) for p in products):
            other //= 2
        return pack, other

    # ---- kernels ----

    def bodies(self) -> list[list[str]]:
        one, several = self.when()
        bodies = []
        if several != 0:
            self.times: Dim = several
            bodies += [self.apart(partial(self.nest, i, nest)) for i, nest in enumerate(self.before)]
            bodies.append(self.apart(partial(self.stream_kernel, "rows", several, None)))
        if one != 0:
            bodies.append(self.apart(partial(self.stream_kernel, "row", one, self.made_again())))
        return bodies

    def enter(self, entry: str, grid: Dim, block: int, shared: int = 0, early: tuple[int, ...] = (),
              dims: Mapping[str, int] | None = None) -> None:
        super().enter(entry, grid * self.times, block, shared, early, dims)

    def when(self) -> tuple[Dim, Dim]:
        """Return two dims of 0 or 1: if one kernel computes everything for one row, and if the kernels for several rows run."""
        if self.made_again() is None:
            return 0, 1
        if d.is_static(self.row_count):
            return 1, 0
        several = d.dim_min(1, self.row_count // 2)
        return d.dim_min(1, self.row_count) - several, several

    def one_row(self) -> dict[str, int] | None:
        """Return the values of the dims if there is one row; None where they are not determined by that, or there never is."""
        symbols = d.symbols(self.row_count)
        if not symbols:
            return {} if int(d.evaluate(self.row_count, {})) == 1 else None
        may_be_one = len(symbols) == 1 and same_dim(self.row_count, symbols[0]) and d.bounds(symbols[0])[0] <= 1
        return {str(symbols[0]): 1} if may_be_one else None

    def made_again(self) -> dict[Array, int] | None:
        """Return the byte offsets in shared memory of values computed before the products; None where blocks do not recompute
        them."""
        if (dims := self.one_row()) is None:
            return None
        at, steps = 0, 0
        places: dict[Array, int] = {}
        for nest in self.before:
            outer = nest.axes[:parallel(nest)]
            if not self.is_flat(nest) and self.size_at(d.product(a.size for a in outer), dims) != 1:
                return None
            for s in nest.stages:
                if s.scan is not None or s.held:
                    return None
                turns = self.size_at(d.product(a.size for a in (*nest.axes[:s.level], *s.axes, *s.reduce)), dims)
                if turns is None:
                    return None
                steps += turns
                array = s.target
                if array.level == 0 and array not in places:
                    size = self.size_at(array.size, dims)
                    if size is None:
                        return None
                    places[array] = at
                    at += -(-size * element_bytes(array) // 16) * 16
        return places if at <= MADE_AGAIN and steps <= STEPS_AGAIN else None

    def size_at(self, size: Dim, dims: dict[str, int]) -> int | None:
        return None if set(map(str, d.symbols(size))) - set(dims) else int(d.evaluate(size, dims))

    # ---- a kernel of all products ----

    def stream_kernel(self, what: str, times: Dim, again: dict[Array, int] | None) -> None:
        """Write the kernel of all products. `again`: offsets of the factors that each block recomputes; None: they are in
        memory."""
        write, first = self.write, self.streams[0]
        self.times = times
        dims = self.one_row() or {}
        used = sum(-(-(self.size_at(a.size, dims) or 0) * element_bytes(a) // 16) * 16 for a in again or ())
        plans = []
        for nest in self.before if again is not None else ():
            if not self.is_flat(nest):
                loops, group = self.shared_among(nest, nest.axes[:parallel(nest)], 32 * STREAM_WARPS)
                in_shared, in_scratch, used = self.places(nest, loops, 1, used)
                if in_scratch:
                    raise NotLowered("a row before products that is too long to be made again")
                plans.append((nest, loops, group, in_shared))
            else:
                plans.append((nest, {}, 32 * STREAM_WARPS, []))
        weights = tuple(dict.fromkeys(p.weight.attr[0].number for stream in self.streams for p in stream.products))
        self.enter(f"{self.name}_{what}", sum(self.blocks), 32 * STREAM_WARPS, used, weights, dims if again is not None else None)
        write("const int lane = threadIdx.x % 32;")
        self.which()
        kind = element_type(first.products[0].weight.attr[0])
        for p in range(self.products):
            write(f"const {kind} *w{p}[{self.columns_each}];")
            write(f"Pack<{kind}, {self.pack}> taken{p}[{self.held_turns}][{self.columns_each}];")
        with self.open(f"for (int c = 0; c < {self.columns_each}; c++)", "unroll"):
            write("const index_t place = column + c < columns ? column + c : columns - 1;")
            for stream in self.branches():
                self.split_index("place", stream.columns)
                for p, product in enumerate(stream.products):
                    array, offset, _ = product.weight.attr
                    write(f"w{p}[c] = {array.name} + {c_of(offset - product.along.symbol)};")
                self.shut(stream.columns)
        self.take("0")
        self.bring_near(again)
        write("after_those_before();")
        for array in again or ():
            if array.role == "output":
                write(f"{element_type(array)} *const whole_{array.name} = {array.name};")
        with self.open():
            if again is not None:
                if used:
                    write("extern __shared__ __align__(16) char rows[];")
                self.make_again(again, plans, dims)
            self.each_row()
        write.close()

    def which(self) -> None:
        """Write the choice of a block's nest, and of a warp's first column."""
        write = self.write
        firsts = [sum(self.blocks[:k]) for k in range(len(self.blocks))]

        def chosen(numbers: Sequence[int]) -> str:
            text = str(numbers[0])
            for first, number in zip(firsts[1:], numbers[1:], strict=True):
                text = f"((int)blockIdx.x >= {first} ? {number} : {text})"
            return text

        if len(self.streams) > 1:
            write(f"const int which = {chosen(range(len(firsts)))};")
        write(f"const index_t columns = {chosen(self.widths)};")
        block = f"((int)blockIdx.x - {chosen(firsts)})"
        write(f"const index_t column = ((index_t){block} * {STREAM_WARPS} + (int)threadIdx.x / 32) * {self.columns_each};")

    def branches(self) -> Iterator[_Stream]:
        """Yield each nest, inside of the condition that the block has columns of it."""
        for k, stream in enumerate(self.streams):
            with self.open(f"if (which == {k})" if len(self.streams) > 1 else ""):
                yield stream

    def take(self, turn: str) -> None:
        """Write the loads of the weights for the iterations from `turn` on."""
        write = self.write
        with self.open(f"for (int t = 0; t < {self.held_turns}; t++)", "unroll"):
            write(f"const int k = (({turn} + t) * 32 + lane) * {self.pack};")
            with self.open(f"for (int c = 0; c < {self.columns_each}; c++)", "unroll"), self.open(f"if (k < {self.length})"):
                for p in range(self.products):
                    write(f"taken{p}[t][c] = pack_now<{self.pack}>(w{p}[c] + k);")

    def bring_near(self, again: dict[Array, int] | None) -> None:
        """Prefetch operands that the recomputed stages read completely and for every row, such as the weights of norms."""
        operands: dict[Array, None] = {}
        for nest in self.before if again is not None else ():
            outer = {a.name for a in nest.axes}
            for s in nest.stages:
                for v in values_in(s.value):
                    if v.op == "load" and v.attr[0].role == "operand" and not v.symbols & outer and not v.args \
                            and d.is_static(v.attr[0].size) and not v.symbols & set(self.program.gathered):
                        operands[v.attr[0]] = None
        begin = 0
        for array in operands:
            lines = -(-int(d.evaluate(array.size, {})) * element_bytes(array) // LINE)
            if lines <= 64:
                self.write(f"if (threadIdx.x >= {begin} && threadIdx.x < {begin + lines}) "
                           f"bring((const char *){array.name} + (threadIdx.x - {begin}) * {LINE});")
                begin = (begin + lines) % (32 * STREAM_WARPS - 64)

    def make_again(self, again: dict[Array, int], plans: list[tuple[Nest, dict[int, _Loop], int, list[tuple[Array, int]]]],
                   dims: dict[str, int]) -> None:
        write, threads = self.write, 32 * STREAM_WARPS
        for array, at in again.items():
            write(f"{element_type(array)} *const {array.name} = ({element_type(array)} *)(rows + {at});")
        for _, _, _, in_shared in plans:
            for array, at in in_shared:
                write(f"{c_type(array.dtype)} *const {array.name} = ({c_type(array.dtype)} *)(rows + {at});")
        write("const int thread = threadIdx.x;")
        for nest, loops, group, _ in plans:
            self.of_warps(nest, loops, group)
        for nest, loops, group, _ in plans:
            with self.open():
                self.held = {}
                if self.is_flat(nest):
                    self.registers = {}
                    self.later, self.loaded = {}, {}
                    for s in nest.stages:
                        axes = (*nest.axes, *s.axes)
                        write(f"/* {s.note} */")
                        with self.open():
                            pack = self.pack_of([(s, axes[-1])]) if axes else 1
                            loop = _Loop(axes, pack, threads, 0, False)
                            with self.pack_loop(loop):
                                self.lanes([s], axes, pack)
                else:
                    outer = nest.axes[:parallel(nest)]
                    for axis in outer:
                        write(f"const index_t {axis.name} = 0;")
                        self.open_axes.append(axis.name)
                    self.ahead(nest, loops)
                    self.turn(nest, len(outer), loops, group, "true")
                    self.shut(outer)
                write("__syncthreads();")
        outputs = [a for a in again if a.role == "output"]
        if outputs:
            with self.open("if (blockIdx.x == 0)"):
                for a in outputs:
                    size = self.size_at(a.size, dims)
                    write(f"for (int e = thread; e < {size}; e += {threads}) whole_{a.name}[e] = {a.name}[e];")

    def each_row(self) -> None:
        """Write the dot products of each row with the weights in a warp's registers, and the stages that use the results."""
        write, many = self.write, self.held_turns < self.turns
        with self.open(f"for (index_t row = 0; row < {c_of(self.row_count)}; row++)"):
            for p in range(self.products):
                write(f"const {element_type(self.streams[0].products[p].other.attr[0])} *with{p};")
                write(f"float part{p}[{self.columns_each}] = {{}};")
            for stream in self.branches():
                self.split_index("row", stream.rows)
                for p, product in enumerate(stream.products):
                    array, offset, _ = product.other.attr
                    write(f"with{p} = {array.name} + {c_of(offset - product.along.symbol)};")
                self.shut(stream.rows)
            with self.open(f"for (int turn = 0; turn < {self.turns}; turn += {self.held_turns})"):
                if many:
                    with self.open("if (row > 0 || turn > 0)"):
                        self.take("turn")
                with self.open(f"for (int t = 0; t < {self.held_turns}; t++)", "unroll"):
                    write(f"const int k = ((turn + t) * 32 + lane) * {self.pack};")
                    with self.open(f"if (k < {self.length})"):
                        self.multiply_pack()
            with self.open(f"for (int c = 0; c < {self.columns_each}; c++)", "unroll"):
                for p in range(self.products):
                    write(f"const float total{p} = reduced<32>(part{p}[c], Sum(), (float *)0);")
                with self.open("if (lane == 0 && column + c < columns)"):
                    write("const index_t place = column + c;")
                    for stream in self.branches():
                        self.split_index("place", stream.columns)
                        self.split_index("row", stream.rows)
                        at = {product.stage: p for p, product in enumerate(stream.products)}
                        for s in stream.nest.stages:
                            write(f"/* {s.note} */")
                            if s in at:
                                text = f"total{at[s]}"
                            else:
                                self.declare(s.value)
                                text = self.ref(s.value)
                            if is_number(s.target):
                                write(f"const {c_type(s.target.dtype)} {s.target.name} = {text};")
                            else:
                                self.put(s, text)
                        self.shut((*stream.columns, *stream.rows))

    def multiply_pack(self) -> None:
        """Write the update of a thread's sums with the products of one pack of weights."""
        write, firsts = self.write, self.streams[0].products
        shared = all((p.other.attr[:2], p.along) == (stream.products[0].other.attr[:2], stream.products[0].along)
                     for stream in self.streams for p in stream.products)          # all products of a nest multiply the same
        with self.open(f"for (int half = 0; half < {self.pack}; half += {self.pack_other})", "unroll"):
            for p in range(self.products):
                if p == 0 or not shared:
                    kind = element_type(firsts[p].other.attr[0])
                    write(f"const Pack<{kind}, {self.pack_other}> of{p} = pack_at<{self.pack_other}>(with{p} + k + half);")
            with (self.open(f"for (int e = 0; e < {self.pack_other}; e++)", "unroll"),
                  self.open(f"for (int c = 0; c < {self.columns_each}; c++)", "unroll")):
                for p, product in enumerate(firsts):
                    x = _widened(product.other.attr[0], f"of{0 if shared else p}.at[e]")
                    w = _widened(product.weight.attr[0], f"taken{p}[t][c].at[half + e]")
                    write(f"part{p}[c] = fmaf({x}, {w}, part{p}[c]);")


def _stream(nest: Nest) -> _Stream:
    products = []
    for s in nest.stages:
        if not s.product:
            if s.monoid is not None or s.scan is not None or s.axes:
                raise NotLowered("a reduction beside products")
            continue
        weight = weight_of(s)
        if weight is None or len(s.reduce) != 1 or s.axes or s.value.dtype is not f32 or any(a.op != "load" for a in s.value.args):
            raise NotLowered("a product that is no sum of f32 along one axis")
        (other,) = [v for v in s.value.args if v is not weight] or [weight]
        products.append(_Product(s, weight, other, s.reduce[0]))
    names = _names(products[0].weight)
    columns = tuple(a for a in nest.axes if a.name in names)
    if not columns:
        raise NotLowered("a weight of one row")
    rows = tuple(a for a in nest.axes if a not in columns)
    for p in products:
        if {a.name for a in columns} != {a.name for a in nest.axes if a.name in _names(p.weight)} \
                or {a.name for a in columns} & _names(p.other):
            raise NotLowered("products of one column that do not share their rows")
    return _Stream(nest, tuple(products), columns, rows)


def _names(load: Value) -> set[str]:
    """Return the symbols in the offset of a load."""
    return set(map(str, d.symbols(load.attr[1])))
