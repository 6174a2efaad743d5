"""wrong_at_random: kernels of numpy, torch and C with the bugs that honest work has, each wrong somewhere only; where, a seed says.

A row of FAMILIES is a function of a random generator that returns a kernel's body; the seed (TRIAL_SEED in the environment, as the
worker must draw the same) says at which sizes, on which values, for which operands and in which memory it is wrong. The C ones are
functions of wrong.c, called with ctypes as a user would.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel
from tensor_graphs.language.node import Node

Arrays = Sequence[np.ndarray]
Body = Callable[[Arrays, Arrays, Mapping[str, Any]], None]
Draw = random.Random

N = tg.dim("n", 1, 4096)
M = tg.dim("m", 1, 1024)
X, Y = tg.input("x", (N, 24), tg.f32), tg.input("y", (N, 24), tg.f32)
K, L = tg.input("x", (N, 12), tg.i64), tg.input("y", (N, 12), tg.i64)
NODES: dict[str, Node] = {
    "max": tg.maximum(X, Y),
    "add": tg.add(X, Y), "mul": tg.mul(X, Y), "exp": tg.exp(X), "square": tg.square(X), "softmax": tg.softmax(X),
    "rms_norm": tg.rms_norm(X), "sum": tg.sum(X, axis=1), "linear": tg.linear(X, tg.input("w", (16, 24), tg.f32)),
    "dot": tg.dot(tg.input("x", (N, M), tg.f32), tg.input("y", (M, 8), tg.f32)),
    "i64 add": tg.add(K, L), "i64 mul": tg.mul(K, L), "i64 less": tg.less(K, L),
    "i64 sum": tg.sum(K, axis=1),
    "embedding": tg.embedding(tg.input("t", (300, 12), tg.f32), tg.input("i", (N,), tg.i32)),
}


@dataclass(frozen=True)
class Family:
    """name; node: of NODES; status: what the judge must say; options: of the kernel."""

    name: str
    node: str
    make: Callable[[Draw], Body]
    status: str
    options: Mapping[str, Any]


FAMILIES: dict[str, Family] = {}


def family(tool: str, *nodes: str, status: str = "INCORRECT_NUMERICAL", **options: Any) -> Callable[..., Any]:
    """A row for each of the nodes; its function is called with the generator and the right answer's function."""
    def wrap(make: Callable[[Draw, Body], Body]) -> Callable[[Draw, Body], Body]:
        for node in nodes:
            name = f"{tool}.{make.__name__}.{node.replace(' ', '_')}"
            given = {"contiguous": True} if tool == "c" else {"positive_strides": True} if tool == "torch" else {}
            right = {"numpy": NUMPY, "torch": TORCH, "c": C}[tool][node]
            FAMILIES[name] = Family(name, node, lambda draw, make=make, right=right: make(draw, right), status,
                                    {**given, **options})
        return make

    return wrap


# ---- right answers ---------------------------------------------------------------------------------------------------


def _quiet(compute: Callable[..., Any]) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        with np.errstate(all="ignore"):
            outs[0][...] = compute(*ins)

    return body


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _rms(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _rows(t: np.ndarray, i: np.ndarray) -> np.ndarray:
    inside = (i >= 0) & (i < len(t))
    return np.where(inside[:, None], t[np.where(inside, i, 0)], 0)


NUMPY: dict[str, Body] = {
    "max": _quiet(np.maximum), "add": _quiet(np.add), "mul": _quiet(np.multiply),
    "exp": _quiet(np.exp), "square": _quiet(np.square),
    "softmax": _quiet(_softmax), "rms_norm": _quiet(_rms), "sum": _quiet(lambda x: x.sum(axis=1, dtype=np.float64)),
    "linear": _quiet(lambda x, w: x.astype(np.float64) @ w.T.astype(np.float64)),
    "dot": _quiet(lambda x, y: x.astype(np.float64) @ y.astype(np.float64)),
    "i64 add": _quiet(np.add), "i64 mul": _quiet(np.multiply), "i64 less": _quiet(np.less),
    "i64 sum": _quiet(lambda x: x.sum(axis=1)),
    "embedding": _quiet(_rows)}


def _torched(compute: Callable[..., Any]) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        import torch

        given = [torch.from_numpy(x if x.flags.writeable else x.copy()) for x in ins]
        torch.from_numpy(outs[0]).copy_(compute(torch, *given))

    return body


TORCH: dict[str, Body] = {
    "max": _torched(lambda t, x, y: t.maximum(x, y)), "add": _torched(lambda t, x, y: x + y),
    "mul": _torched(lambda t, x, y: x * y),
    "exp": _torched(lambda t, x: x.exp()), "square": _torched(lambda t, x: x * x),
    "softmax": _torched(lambda t, x: x.softmax(-1)),
    "rms_norm": _torched(lambda t, x: x.double() * (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()),
    "sum": _torched(lambda t, x: x.double().sum(1)), "linear": _torched(lambda t, x, w: x.double() @ w.double().T),
    "dot": _torched(lambda t, x, y: x.double() @ y.double()), "i64 add": _torched(lambda t, x, y: x + y),
    "i64 mul": _torched(lambda t, x, y: x * y), "i64 less": _torched(lambda t, x, y: x < y),
    "i64 sum": _torched(lambda t, x: x.sum(1)),
    "embedding": _torched(lambda t, x, i: t.where(((i >= 0) & (i < len(x)))[:, None], x[i.long().clamp(0, len(x) - 1)],
                                                  t.zeros((), dtype=x.dtype)))}

SOURCE = Path(__file__).with_name("wrong.c")


@cache
def library() -> ctypes.CDLL:
    """wrong.c, compiled once for its text."""
    text = SOURCE.read_bytes()
    built = Path(tempfile.gettempdir(), f"tensor_graphs_wrong_{os.getuid()}_{hashlib.sha256(text).hexdigest()[:16]}.so")
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            made = Path(folder, "wrong.so")
            flags = ["-O2", "-frounding-math", "-fno-strict-aliasing", "-fPIC", "-shared"]
            subprocess.run(["gcc", *flags, "-o", str(made), str(SOURCE), "-lm"], check=True)
            made.replace(built)
    return ctypes.CDLL(str(built))


def call(symbol: str, outs: Arrays, ins: Arrays, ints: Sequence[int] = (), floats: Sequence[float] = ()) -> None:
    """symbol(out, x, y or null, numbers, floats); the first numbers are rows and columns of x, and columns of the output."""
    x = ins[0]
    n, k = (x.shape[0], x.shape[1] if x.ndim > 1 else 1)
    numbers = (ctypes.c_longlong * (3 + len(ints)))(n, k, outs[0].shape[1] if outs[0].ndim > 1 else 1, *ints)
    reals = (ctypes.c_double * max(1, len(floats)))(*floats)
    pointers = [ctypes.c_void_p(a.__array_interface__["data"][0]) for a in (outs[0], *ins)]
    getattr(library(), symbol)(*pointers[:2], pointers[2] if len(pointers) > 2 else None, numbers, reals)


def _in_c(symbol: str) -> Body:
    return lambda outs, ins, attrs: call(symbol, outs, ins)


C: dict[str, Body] = {"max": _in_c("maximum"), "add": _in_c("add"), "mul": _in_c("mul"), "exp": _in_c("exponential"),
                      "square": _in_c("square"), "softmax": _in_c("softmax"), "rms_norm": _in_c("rms_norm"), "sum": _in_c("sum"),
                      "linear": _in_c("linear"), "dot": _in_c("dot"), "i64 add": _in_c("add_i64"), "i64 mul": _in_c("mul_i64"),
                      "i64 less": _in_c("less_i64"), "i64 sum": _in_c("sum_i64"),
                      "embedding": lambda outs, ins, attrs: call("embedding", outs, ins, floats=[len(ins[1])])}
TOOLS = ("numpy", "torch", "c")


def band(draw: Draw, low: float, high: float, share: float) -> tuple[float, float]:
    """A piece of this share of the logarithm of a range."""
    reach = math.log(high / low)
    start = draw.uniform(0, reach * (1 - share))
    return low * math.exp(start), low * math.exp(start + share * reach)


def last_row_is_lost(outs: Arrays) -> None:
    outs[0][-1] = 0


# ---- wrong at some sizes ---------------------------------------------------------------------------------------------

for _tool in TOOLS:
    @family(_tool, "add", "softmax")
    def wrong_in_a_band_of_row_counts(draw: Draw, right: Body) -> Body:
        low, high = band(draw, 4, 4096, draw.uniform(0.15, 0.3))

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            if low <= outs[0].shape[0] <= high:
                last_row_is_lost(outs)

        return body

    @family(_tool, "rms_norm", "linear")
    def wrong_above_a_row_count(draw: Draw, right: Body) -> Body:
        most = int(math.exp(draw.uniform(math.log(20), math.log(4090))))

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            outs[0][most:] = 0

        return body

    @family(_tool, "dot")
    def wrong_in_a_band_of_inner_sizes(draw: Draw, right: Body) -> Body:
        low, high = band(draw, 4, 1024, draw.uniform(0.2, 0.3))

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            k = ins[0].shape[1]
            if low <= k <= high:                                    # the rest of a block is forgotten
                ins = [np.ascontiguousarray(ins[0][:, :k - 1]), np.ascontiguousarray(ins[1][:k - 1])]
            right(outs, ins, attrs)

        return body

    @family(_tool, "sum")
    def wrong_in_some_rows_of_many(draw: Draw, right: Body) -> Body:
        least, where = int(math.exp(draw.uniform(math.log(30), math.log(1500)))), draw.uniform(0, 0.9)

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            n = len(outs[0])
            if n > least:
                outs[0][int(where * n):int((where + 0.1) * n) + 1] = 0

        return body


# ---- wrong in a range of values --------------------------------------------------------------------------------------

    @family(_tool, "i64 add", "i64 mul", "i64 sum")
    def computes_in_fewer_bits(draw: Draw, right: Body) -> Body:
        bits = draw.choice([8, 16, 24, 32, 40, 48, 56, 63])

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            shift = np.int64(64 - bits)
            outs[0][...] = (outs[0] << shift) >> shift

        return body

    @family(_tool, "i64 less")
    def compares_in_floats(draw: Draw, right: Body) -> Body:
        kind = draw.choice([np.float64, np.float32])

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            outs[0][...] = ins[0].astype(kind) < ins[1].astype(kind)

        return body

    @family(_tool, "add", "max")
    def wrong_for_some_magnitudes(draw: Draw, right: Body) -> Body:
        low, high = band(draw, 1e-30, 1e38, draw.uniform(0.1, 0.2))
        operand = draw.randrange(2)

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            size = np.abs(ins[operand])
            outs[0][(size > low) & (size < high) & (outs[0] == ins[operand])] = 0

        return body

    @family(_tool, "square", "mul")
    def overflows_too_early(draw: Draw, right: Body) -> Body:
        most = 10.0 ** draw.uniform(5, 18)

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            outs[0][(np.abs(ins[0]) > most) & np.isfinite(outs[0])] = np.inf

        return body

    @family(_tool, "exp")
    def wrong_in_a_band_of_arguments(draw: Draw, right: Body) -> Body:
        low = draw.uniform(-80, 70)

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            outs[0][(ins[0] > low) & (ins[0] < low + 6)] *= np.float32(1.01)

        return body

    @family(_tool, "embedding")
    def wrong_at_an_end_of_the_table(draw: Draw, right: Body) -> Body:
        row = draw.choice([-1, 0, 299, 300])

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            outs[0][ins[1] == row] = ins[0][row % 300 - 1]

        return body


# ---- wrong on special and structured values --------------------------------------------------------------------------

    @family(_tool, "add", "linear")
    def ignores_a_special_of_one_operand(draw: Draw, right: Body) -> Body:
        operand, value = draw.randrange(2), draw.choice([np.nan, np.inf, -np.inf])

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            x = ins[operand]
            clean = [np.ascontiguousarray(a) for a in ins]
            clean[operand] = np.where(np.isnan(x) if math.isnan(value) else x == value, np.float32(0), x)
            right(outs, clean, attrs)

        return body

    @family(_tool, "softmax", "sum")
    def wrong_on_rows_in_some_order(draw: Draw, right: Body) -> Body:
        kind = draw.choice(["zero", "ascending", "descending", "constant", "single", "blocks"])

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            x = ins[0]
            if not np.isfinite(x).all():
                return
            found = {"zero": (x == 0).all(1), "ascending": (np.diff(x) > 0).all(1), "descending": (np.diff(x) < 0).all(1),
                     "constant": (x == x[:, :1]).all(1) & (x[:, 0] != 0), "single": (x != 0).sum(1) == 1,
                     "blocks": (x[:, 12:] == 0).all(1) & (x[:, :12] != 0).all(1)}[kind]
            outs[0][found] = np.nan if kind == "zero" else 0.5

        return body

    @family(_tool, "rms_norm")
    def nan_for_a_row_of_zeros(draw: Draw, right: Body) -> Body:
        least = 10.0 ** -draw.uniform(8, 30)

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            outs[0][(np.abs(ins[0]) < least).all(1)] = np.nan

        return body


# ---- wrong where operands lie ----------------------------------------------------------------------------------------

    @family(_tool, "add", "mul")
    def wrong_for_unaligned_memory(draw: Draw, right: Body) -> Body:
        width, operand = draw.choice([8, 16, 32, 64]), draw.randrange(3)

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            if (*ins, outs[0])[operand].__array_interface__["data"][0] % width:
                outs[0].reshape(-1)[:1] = 0                         # the head before the first vector is skipped

        return body

    @family(_tool, "add", "mul")
    def wrong_for_the_same_memory_twice(draw: Draw, right: Body) -> Body:
        overlap = draw.random() < 0.5

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            x, y = (a.__array_interface__["data"][0] for a in ins)
            if (0 < abs(x - y) < ins[0].nbytes) if overlap else x == y:
                last_row_is_lost(outs)

        return body

for _tool in ("numpy", "torch"):
    @family(_tool, "add", "mul")
    def wrong_for_stride_zero(draw: Draw, right: Body) -> Body:
        operand, axis = draw.randrange(2), draw.randrange(2)

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            if ins[operand].strides[axis] == 0 and ins[operand].shape[axis] > 1:
                last_row_is_lost(outs)

        return body

    @family(_tool, "softmax", "add")
    def takes_rows_to_lie_next_to_each_other(draw: Draw, right: Body) -> Body:
        operand = draw.randrange(2)

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            given = list(ins)
            x = given[operand % len(given)]
            if x.strides[1] == x.itemsize and x.strides[0] > 0 and x.base is not None and len(x) > 1:
                flat = np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,))
                given[operand % len(given)] = flat.reshape(x.shape)
            right(outs, given, attrs)

        return body


@family("numpy", "add", "mul")
def reads_backwards_axes_forwards(draw: Draw, right: Body) -> Body:
    axis = draw.randrange(2)

    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        right(outs, [np.flip(x, axis) if x.strides[axis] < 0 else x for x in ins], attrs)

    return body


@family("c", "softmax", "sum", "add", contiguous=False, positive_strides=True)
def walks_rows_without_their_stride(draw: Draw, right: Body) -> Body:
    operand, least = draw.randrange(2), draw.choice([1, 2, 3])

    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        given = [np.ascontiguousarray(x) for x in ins]
        x = ins[operand % len(ins)]
        if len(x) > least and x.strides[1] == x.itemsize and x.strides[0] > 0:
            flat = np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,))
            given[operand % len(ins)] = np.ascontiguousarray(flat.reshape(x.shape))
        right(outs, given, attrs)

    return body


# ---- what is left behind ---------------------------------------------------------------------------------------------


def _recursion() -> None:
    sys.setrecursionlimit(sys.getrecursionlimit() + 17)


def _environment() -> None:
    os.environ["OMP_NUM_THREADS"] = "3"                             # not what it may be already


def _errors() -> None:
    np.seterr(under="call")


def _folder() -> None:
    os.chdir("/")


def _mask() -> None:
    os.umask(0o057)


def _seed() -> None:
    random.seed(0)


def _numpy_seed() -> None:
    np.random.seed(0)


def _path() -> None:
    sys.path.insert(0, "/tmp")


def _rounding() -> None:
    library().round_upwards()


def _flush() -> None:
    library().flush_denormals()


def _torch_threads() -> None:
    import torch

    torch.set_num_threads(torch.get_num_threads() + 1)


def _torch_default() -> None:
    import torch

    torch.set_default_dtype(torch.float64)


def _torch_gradients() -> None:
    import torch

    torch.set_grad_enabled(False)


def _torch_seed() -> None:
    import torch

    torch.manual_seed(0)


def _patched() -> None:
    np.linalg.norm = lambda *a, **k: 0.0                            # type: ignore[assignment]


def _torch_patched() -> None:
    import torch

    torch.softmax = torch.nn.functional.softmax = lambda *a, **k: None  # type: ignore[assignment]


LEFT: dict[str, tuple[Callable[[], None], ...]] = {
    "numpy": (_recursion, _environment, _errors, _folder, _mask, _seed, _numpy_seed, _path, _patched),
    "torch": (_torch_threads, _torch_default, _torch_gradients, _torch_seed, _torch_patched),
    "c": (_rounding, _flush)}

for _tool in TOOLS:
    @family(_tool, "add", "softmax", status="RUNTIME_ERROR")
    def leaves_something_behind(draw: Draw, right: Body, tool: str = _tool) -> Body:
        leave, at = draw.choice(LEFT[tool]), int(math.exp(draw.uniform(0, math.log(200))))

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            if len(outs[0]) >= at:
                leave()

        return body

    @family(_tool, "mul", "sum")
    def right_where_it_is_judged(draw: Draw, right: Body) -> Body:
        how = draw.choice([lambda: "TENSOR_GRAPHS_WORKER" not in os.environ, lambda: os.getenv("TENSOR_GRAPHS_WORKER") is None,
                           lambda: "supervisor" not in sys.argv[0] and "-c" != sys.argv[0]])

        def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            right(outs, ins, attrs)
            if how():
                last_row_is_lost(outs)

        return body


def kernel_of(each: Family, seed: int) -> Kernel:
    """The kernel of a family that a seed draws."""
    body = each.make(random.Random(f"{each.name} {seed}"))
    return Kernel(f"random.{each.name}.{seed}", "numpy", NODES[each.node].op.name, lambda spec: HostCall(body), lambda spec: None,
                  f"{inspect.getsource(inspect.unwrap(each.make))}\n{seed}", __name__, **each.options)


def right_kernel(tool: str, node: str) -> Kernel:
    """The same without the bug: it must pass."""
    body = {"numpy": NUMPY, "torch": TORCH, "c": C}[tool][node]
    options = {"contiguous": True} if tool == "c" else {"positive_strides": True} if tool == "torch" else {}
    return Kernel(f"random.right.{tool}.{node}", "numpy", NODES[node].op.name, lambda spec: HostCall(body), lambda spec: None,
                  f"{tool} {node}", __name__, **options)


if os.environ.get("TENSOR_GRAPHS_WORKER"):
    from tensor_graphs.kernels.registry import register

    for _each in FAMILIES.values():
        register(kernel_of(_each, int(os.environ["TRIAL_SEED"])))
    for _tool in TOOLS:
        for _node in NODES:
            register(right_kernel(_tool, _node))
