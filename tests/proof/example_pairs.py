"""example_pairs: the pairs of examples/equality, and how their sides are compared: ties, ends of dtypes, all bytes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.node import Node, walk
from tensor_graphs.language.text import parse_graph
from tensor_graphs.meaning.interpreter import evaluate

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "equality"
STYLES = ("normal", "ties", "whole", "large", "constant", "zero")
_BOUNDED = frozenset({"exp2", "sin", "log2"})


def names() -> list[str]:
    return sorted(p.name.removesuffix(".a.tg") for p in FOLDER.glob("*.a.tg"))


def pair(name: str) -> tuple[tg.Graph, tg.Graph]:
    left, right = (parse_graph((FOLDER / f"{name}.{side}.tg").read_text()) for side in "ab")
    return left, right


def _floats(rng: np.random.Generator, shape: tuple[int, ...], style: str) -> np.ndarray:
    size = int(np.prod(shape))
    values = {
        "normal": lambda: rng.standard_normal(size),
        "ties": lambda: rng.integers(-6, 7, size) * 0.5,
        "whole": lambda: rng.integers(-9, 10, size).astype(float),
        "constant": lambda: np.full(size, float(rng.integers(-3, 4))),
        "large": lambda: rng.choice(
            [-3e9, -4096.0, -256.5, -128.5, -128.0, 0.5, 127.0, 127.5, 255.5, 256.0, 4096.0, 3e9], size
        ),
        "zero": lambda: np.zeros(size),
    }[style]()
    return values.astype(np.float32).astype(np.float64).reshape(shape)


def _integers(rng: np.random.Generator, node: Node, shape: tuple[int, ...], style: str) -> np.ndarray:
    low, high = int(node.dtype.min), int(node.dtype.max)
    if style == "normal":
        return rng.integers(low, high, shape, endpoint=True, dtype=node.dtype.numpy)
    if style == "large":
        ends = [low, low + 1, high, high - 1, 0, 1, high // 2, high // 2 + 1]
        return np.array(
            [ends[int(k)] for k in rng.integers(0, len(ends), int(np.prod(shape)))], dtype=node.dtype.numpy
        ).reshape(shape)
    return rng.integers(max(low, -4), min(high, 12), shape, endpoint=True, dtype=node.dtype.numpy)


def disagreement(left: tg.Graph, right: tg.Graph, seed: int = 0, rounds: int = 2) -> str:
    """Return where the sides differ by more than rounding; "" where they do not. At least one element is compared."""
    roots = [*left.roots, *right.roots]
    leaves = {**left.inputs, **left.parameters, **right.inputs, **right.parameters}
    bounded = any(n.op.name in _BOUNDED for n in walk(expand_all(roots)))
    ranges = {name: d.bounds(x) for name, x in {**left.dims, **right.dims}.items()}
    bytes_ = [node for node in leaves.values() if node.dtype in (tg.u8, tg.i8)]
    seen = False
    for number, (style, _) in enumerate(itertools.product(STYLES, range(rounds))):
        if bounded and style == "large":
            continue
        rng = np.random.default_rng([seed, number])
        high = max((r[1] for r in ranges.values()), default=0)
        every = len(bytes_) == len(leaves) and high >= 65536 and number < 2
        at = {
            name: 65536 if every else min(max(low, (7, 1, 64, 2, 5, 33)[number % 6]), top)
            for name, (low, top) in ranges.items()
        }
        shapes = {name: tuple(int(s) for s in node.type.at(at).shape) for name, node in leaves.items()}
        values: dict[Node, np.ndarray] = {}
        for name, node in leaves.items():
            shape = shapes[name]
            if every:  # all pairs of bytes
                grid = np.arange(65536)
                values[node] = ((grid // 256 if node is bytes_[-1] and len(bytes_) > 1 else grid % 256).astype(np.uint8)).view(
                    node.dtype.numpy
                )
            else:
                values[node] = (
                    rng.integers(0, 2, shape).astype(np.bool_)
                    if node.dtype.kind == "bool"
                    else _integers(rng, node, shape, style)
                    if node.dtype.is_integer
                    else _floats(rng, shape, style)
                )
                if node.dtype == tg.bf16:
                    values[node] = np.round(values[node])
                    values[node][np.abs(values[node]) > 128] = 128.0
        results = evaluate(roots, values, at)
        for x, y in zip(results[: len(left.roots)], results[len(left.roots) :], strict=True):
            if x.shape != y.shape or x.dtype != y.dtype:
                return f"{x.dtype}{x.shape} and {y.dtype}{y.shape}"
            with np.errstate(all="ignore"):
                defined = np.isfinite(x) & np.isfinite(y) if x.dtype.kind == "f" else np.ones(x.shape, np.bool_)
                gap = np.abs(x - y) > 1e-9 * np.max(np.abs(x[defined]), initial=1.0) if x.dtype.kind == "f" else x != y
            seen |= bool(defined.any())
            wrong = defined & gap
            if wrong.any():
                place = tuple(int(k) for k in np.argwhere(wrong)[0])
                return f"{x[place]!r} and {y[place]!r} at {list(place)}, {style}, {at}"
    return "" if seen else "nothing was defined"
