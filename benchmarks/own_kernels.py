"""own_kernels: kernels as a user writes them, in numpy, C and torch, for two graphs that are said in atomic ops.

`linear(rms_norm(x, g), w)` and `residual + rms_norm(linear(x, w), g)`, with 1 + g as Gemma has it: a mean of squares, the
reciprocal of a root, products, and sums of products. Each kernel comes twice: as it should be, and (`slow_…`) computed REPEATED
times.

Importing it registers nothing; `registered()` does, and what imports it in a worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import tensor_graphs as tg  # before numpy, whose threads would spin otherwise
from tensor_graphs.kernels.kernel import Kernel, Spec
from tensor_graphs.kernels.registry import unregister
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import Node

Arrays = Sequence[np.ndarray]
EPS = 1e-6
REPEATED = 8

N, K, M = tg.dim("n", 1, 4096), tg.dim("k", 1, 65536), tg.dim("m", 1, 65536)


def normed(x: Node, g: Node, width: Dim) -> Node:
    """x / sqrt(mean(x²) + eps) · (1 + g) over the last axis."""
    mean = tg.sum(x * x, axis=-1, keepdims=True) * tg.reciprocal(tg.constant(width, tg.f32))
    by = tg.reciprocal(tg.sqrt(mean + EPS))
    return x * tg.expand(by, x.shape) * tg.expand(tg.reshape(1.0 + g, (1, width)), x.shape)


def product(x: Node, w: Node) -> Node:
    """x · wᵀ, as a sum of products."""
    whole = (N, M, K)
    return tg.sum(tg.expand(tg.reshape(x, (N, 1, K)), whole) * tg.expand(tg.reshape(w, (1, M, K)), whole), axis=-1)


def norm_linear() -> tg.Graph:
    return tg.graph(product(normed(tg.input("x", (N, K)), tg.input("g", (K,)), K), tg.input("w", (M, K))))


def linear_norm_add() -> tg.Graph:
    h = product(tg.input("x", (N, K)), tg.input("w", (M, K)))
    return tg.graph(tg.input("residual", (N, M)) + normed(h, tg.input("g", (M,)), M))


GRAPHS = {"norm_linear": norm_linear(), "linear_norm_add": linear_norm_add()}


def by_name(graph: tg.Graph, arrays: Arrays) -> dict[str, Any]:
    """Operands come in the order of their first use."""
    names = {node: name for name, node in graph.inputs.items()}
    return dict(zip((names[n] for n in graph.nodes if n in names), arrays, strict=True))


def numpy_norm(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        return np.asarray(wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + EPS) * (1.0 + g), np.float32)


def torch_norm(x: Any, g: Any) -> Any:
    import torch

    wide = x.double()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + EPS) * (1.0 + g)).float()


def numpy_norm_linear(x: np.ndarray, g: np.ndarray, w: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(numpy_norm(x, g).astype(np.float64) @ w.T.astype(np.float64))


def numpy_linear_norm_add(x: np.ndarray, w: np.ndarray, residual: np.ndarray, g: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(residual + numpy_norm(x.astype(np.float64) @ w.T.astype(np.float64), g))


def torch_norm_linear(x: Any, g: Any, w: Any) -> Any:
    return torch_norm(x, g).double() @ w.double().T


def torch_linear_norm_add(x: Any, w: Any, residual: Any, g: Any) -> Any:
    return residual + torch_norm(x.double() @ w.double().T, g)


FUNCTIONS = {"numpy.norm_linear": numpy_norm_linear, "numpy.linear_norm_add": numpy_linear_norm_add,
             "torch.norm_linear": torch_norm_linear, "torch.linear_norm_add": torch_linear_norm_add}

C_NORM = """#include <stdlib.h>
#include "product.h"
#include "loops.h"

/* out = x / sqrt(mean(x^2) + eps) (1 + g), plus what is in `more`; out may be x. */
static void norm(float *out, const float *x, const float *g, const float *more, int64_t d, double eps) {
    double squares = 0;
    for (int64_t i = 0; i < d; i++) squares += (double)x[i] * x[i];
    const double by = 1.0 / __builtin_sqrt(squares / (double)d + eps);
    for (int64_t i = 0; i < d; i++) out[i] = (float)(x[i] * by * (1.0 + g[i])) + (more ? more[i] : 0.0f);
}
"""

C_SOURCES = {
    "norm_linear": C_NORM + """
/* ptr: out, x, g, w.  ints: n, m, k, times.  floats: eps. */
TG_KERNEL(own_norm_linear) {
    const int64_t n = ints[0], k = ints[2];
    float *h = malloc((size_t)(n * k) * 4 + 4);
    for (int64_t time = 0; time < ints[3]; time++) {
        for (int64_t i = 0; i < n; i++) norm(h + i * k, (const float *)ptr[1] + i * k, ptr[2], NULL, k, floats[0]);
        tg_linear_f32((void *const[]){ptr[0], h, ptr[3], NULL}, ints, NULL);
    }
    free(h);
}""",
    "linear_norm_add": C_NORM + """
/* ptr: out, residual, x, w, g.  ints: n, m, k, times.  floats: eps. */
TG_KERNEL(own_linear_norm_add) {
    const int64_t n = ints[0], m = ints[1];
    for (int64_t time = 0; time < ints[3]; time++) {
        float *out = ptr[0];
        tg_linear_f32((void *const[]){out, ptr[2], ptr[3], NULL}, ints, NULL);
        for (int64_t i = 0; i < n; i++, out += m) norm(out, out, ptr[4], (const float *)ptr[1] + i * m, m, floats[0]);
    }
}"""}


def declare(tool: str, name: str, times: int) -> Kernel:
    """The kernel of one of GRAPHS in one of the tools, that computes so many times."""
    graph, title = GRAPHS[name], f"{tool}.{'slow_' if times > 1 else 'own_'}{name}"
    order = [n for n in graph.nodes if n in graph.inputs.values()]
    at = {known: order.index(node) for known, node in graph.inputs.items()}
    if tool == "c":
        def sizes(spec: Spec) -> list[Dim]:
            x, w = spec.inputs[at["x"]], spec.inputs[at["w"]]
            return [x.shape[0], w.shape[0], x.shape[1], times]

        pointers = [at[p] for p in (("x", "g", "w") if name == "norm_linear" else ("residual", "x", "w", "g"))]
        return tg.c_kernel(graph, name=title, source=C_SOURCES[name], entry=f"own_{name}", dtypes=["f32"], floats=[EPS],
                           pointers=pointers, ints=sizes)
    function = FUNCTIONS[f"{tool}.{name}"]

    def run(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        given = by_name(graph, ins)
        if tool == "torch":
            import torch

            given = {known: torch.from_numpy(array) for known, array in given.items()}
        for _ in range(times):
            outs[0][...] = np.asarray(function(**given))

    return tg.kernel(graph, name=title, backend=tool, contiguous=tool == "torch")(run)


def declared(tools: Sequence[str] = ("numpy", "c", "torch")) -> list[Kernel]:
    return [declare(tool, name, times) for tool in tools for name in GRAPHS for times in (1, REPEATED)]


@contextmanager
def registered(tools: Sequence[str] = ("numpy", "c", "torch")) -> Iterator[list[Kernel]]:
    """The kernels of these tools, while it lasts."""
    made = declared(tools)
    try:
        yield made
    finally:
        for kernel in made:
            unregister(kernel.name)


def two_layers(hidden: int = 16, rows: int = 4) -> tg.Graph:
    """A model that names neither graph: in each layer a norm before a product, and one behind it, added to what came in."""
    x = tg.input("x", (rows, hidden))
    for i in range(2):
        before, after = (tg.parameter(f"{name}{i}", (hidden,)) for name in ("before", "after"))
        up, down = tg.parameter(f"up{i}", (2 * hidden, hidden)), tg.parameter(f"down{i}", (hidden, 2 * hidden))
        inner = tg.tanh(tg.linear(tg.rms_norm(x, before, eps=EPS, offset=1.0), up))
        x = x + tg.rms_norm(tg.linear(inner, down), after, eps=EPS, offset=1.0)
    return tg.graph(x)


if os.environ.get("TENSOR_GRAPHS_WORKER"):
    declared()
