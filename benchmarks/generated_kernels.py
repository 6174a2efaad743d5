"""Generated loops beside torch eager: one process, in turns, two threads.

    python benchmarks/generated_kernels.py [--turns 30]

Each graph is computed by the loops that codegen writes for it, called with raw addresses, and by torch; both outputs are compared.
Printed: the median microseconds of both, torch ÷ ours, and the geometric mean. Ends with 1 where outputs differ.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tensor_graphs as tg
from benchmarks.arguments import at_least
from tensor_graphs.codegen.backend import build
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.language.node import Node, apply
from tensor_graphs.language.part import part_of

Case = tuple[str, Node, Callable[..., Any], dict[str, np.ndarray]]


def cases(torch: Any) -> list[Case]:
    """Name, graph, the same in torch, operands in the graph's order."""
    f, rng = torch.nn.functional, np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}

    def given(name: str, *shape: int) -> Node:
        arrays[name] = rng.standard_normal(shape).astype(np.float32)
        return tg.input(name, shape)

    x, y, g, b = given("x", 2048, 1024), given("y", 2048, 1024), given("g", 1024), given("b", 1024)
    s, u, image = given("s", 1024, 1024), given("u", 1024, 1024), given("image", 32, 64, 28, 28)
    arrays["i"] = rng.integers(0, 1000, 1 << 20).astype(np.int32)
    i = tg.input("i", (1 << 20,), tg.i32)
    over = (0, 2, 3)
    found: list[tuple[str, Node, Callable[..., Any]]] = [
        ("softmax", tg.softmax(x), lambda x: x.softmax(-1)),
        ("scaled softmax", tg.softmax(x * 0.125), lambda x: (x * 0.125).softmax(-1)),
        ("softmax down columns", tg.softmax(x, axis=0), lambda x: x.softmax(0)),
        ("log_softmax", tg.log_softmax(x), lambda x: x.log_softmax(-1)),
        ("logsumexp", tg.logsumexp(x), lambda x: x.logsumexp(-1)),
        ("gelu(tanh) * y", tg.gelu(x, approximate="tanh") * y, lambda x, y: f.gelu(x, approximate="tanh") * y),
        ("gelu", tg.gelu(x), lambda x: f.gelu(x)),
        ("silu * y", tg.silu(x) * y, lambda x, y: f.silu(x) * y),
        ("tanh", tg.tanh(x), lambda x: x.tanh()),
        ("exp", tg.exp(x), lambda x: x.exp()),
        ("bias, relu, residual", tg.relu(x + b) + y, lambda x, b, y: (x + b).relu() + y),
        ("a x + b y + sqrt", x * 0.9 + y * 0.1 + tg.sqrt(y * y + 1e-8), lambda x, y: x * 0.9 + y * 0.1 + (y * y + 1e-8).sqrt()),
        ("layer_norm", tg.layer_norm(x, g, b), lambda x, g, b: f.layer_norm(x, (1024,), g, b)),
        ("layer_norm, gelu", tg.gelu(tg.layer_norm(x, g, b)), lambda x, g, b: f.gelu(f.layer_norm(x, (1024,), g, b))),
        ("rms_norm", tg.rms_norm(x, g), lambda x, g: f.rms_norm(x, (1024,), g, 1e-6)),
        ("residual, rms_norm", tg.rms_norm(x + y, g), lambda x, y, g: f.rms_norm(x + y, (1024,), g, 1e-6)),
        ("batch_norm", (image - tg.mean(image, axis=over, keepdims=True))
         * tg.rsqrt(tg.var(image, axis=over, keepdims=True) + 1e-5), lambda image: f.batch_norm(image, None, None, training=True)),
        ("var of rows", tg.var(x, axis=1), lambda x: x.var(-1, correction=0)),
        ("sum of all", x.sum(), lambda x: x.sum()),
        ("sum of columns", x.sum(axis=0), lambda x: x.sum(0)),
        ("max of columns", tg.reduce_max(x, axis=0), lambda x: x.amax(0)),
        ("max of rows", tg.reduce_max(x, axis=1), lambda x: x.amax(1)),
        ("concat", tg.concat(s, u, axis=1), lambda s, u: torch.cat([s, u], 1)),
        ("transpose + add", s.permute((1, 0)) + u, lambda s, u: s.T + u),
        ("transpose", s.permute((1, 0)) * 1.0, lambda s: s.T * 1.0),
        ("int32 arithmetic", (i * 3 + 7) * i, lambda i: (i * 3 + 7) * i),
    ]
    return [(name, out, same, {n: arrays[n] for n in tg.graph(out).inputs}) for name, out, same in found]


def call_of(output: Node, operands: dict[str, np.ndarray]) -> tuple[Callable[[], None], np.ndarray]:
    """The generated kernel as a function without arguments, and what it writes."""
    graph = tg.graph(output)
    part = part_of(graph)
    node = apply(part, list(graph.inputs.values()), {})
    made = build(Spec.of(node))
    out = np.empty([int(s) for s in node.shape], node.dtype.numpy)  # type: ignore[call-overload]
    arrays = [out, *operands.values()]
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    ints, floats = (ctypes.c_int64 * 1)(), (ctypes.c_double * 1)()
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    function = kernel(library.load().address(made.symbol, made.image))
    return lambda: function(pointers, ints, floats), out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=at_least(3), default=30, help="times each is run")
    turns = parser.parse_args().turns
    import torch

    torch.set_num_threads(2)
    library.set_threads(2)
    ratios, wrong = [], False
    print(f"{'graph':24s} {'ours µs':>9s} {'torch µs':>9s} {'torch ÷ ours':>13s}")
    for name, output, same, operands in cases(torch):
        ours, out = call_of(output, operands)
        tensors = {n: torch.from_numpy(a) for n, a in operands.items()}
        ours()
        expected = same(**tensors).numpy()
        right = np.allclose(out, expected, rtol=1e-4, atol=1e-4)
        wrong = wrong or not right
        taken: tuple[list[float], list[float]] = ([], [])
        for turn in range(2 * turns):
            time.sleep(0.002)                                       # torch's threads spin for a while behind each call
            start = time.perf_counter()
            if turn % 2:
                same(**tensors)
            else:
                ours()
            taken[turn % 2].append(time.perf_counter() - start)
        mine, theirs = (statistics.median(t) * 1e6 for t in taken)
        ratios.append(theirs / mine)
        print(f"{name:24s} {mine:9.0f} {theirs:9.0f} {ratios[-1]:13.2f}{'' if right else '   DIFFERENT'}", flush=True)
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f} of {len(ratios)}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
