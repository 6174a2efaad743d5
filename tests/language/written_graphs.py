"""written_graphs: graphs that are hard to write down, one per thing that could get lost on the way to text or JSON and back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.dtypes import bf16, f16, f32, f64, i32, i64, u32, u64
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, apply

N = tg.dim("n", 1, 6)
X = tg.input("x", (2, 3))


@tg.composite
def scaled(x: Node, y: Node | None = None, *, by: float = 2.0) -> Node:
    """by · x, and y added if there is one."""
    out = x * by
    return out if y is None else out + y


@tg.composite
def split(x: Node, *, at: int) -> tuple[Node, Node]:
    """The first `at` columns and the rest."""
    return x[:, :at], x[:, at:]


@tg.composite
def total(*xs: Node, weight: float = 1.0) -> Node:
    """The weighted sum of any number of tensors."""
    out = xs[0]
    for x in xs[1:]:
        out = out + x
    return out * weight


@tg.composite
def nested(x: Node, *, by: float) -> Node:
    """A composite made of composites of the user."""
    left, right = split(scaled(x, by=by), at=1)
    return tg.concat(left, right, axis=1)


@tg.composite(name="softmax")
def other_softmax(x: Node) -> Node:
    """Something else under the name of a library composite."""
    return x + 1.0


@tg.composite(name="a name, with (signs)")
def oddly_named(x: Node) -> Node:
    return x + 1.0


@tg.composite
def indifferent(x: Node, y: Node, *, k: int) -> Node:
    """Its definition depends neither on y nor on k."""
    return x * 1.0


def names() -> Graph:
    """Names that look like other things."""
    odd = ["x=1", "input", "a;b", "n.T", "%0", "f32", "é", "1", "a.b.c", "true", "output", "#comment", "{n}", "model.layers.0.w"]
    found = {f"out {name}": tg.input(name, (2,)) * 2.0 for name in odd}
    return tg.graph({**found, "": X, 'quote " backslash \\': X, "line\nbreak": X, "n": tg.input("n", (N,))})


def one_name_for_all() -> Graph:
    state = tg.state("x", (2,))
    x = tg.input("x", (2,)) + tg.parameter("x", (2,)) + state.read()
    return tg.graph({"x": x}, {state: x})


def dims_with_odd_names() -> Graph:
    dims = [tg.dim(name, 1, 3) for name in ("inf", "f32", "true", "input", "a0", "exp", "none")]
    return tg.graph(tg.exp(tg.input("x", dims)) * tg.constant(dims[0] + dims[2], f32))


def dims_in_attributes() -> Graph:
    base = tg.input("base", (8, 3))
    return tg.graph(tg.write_rows(base, X, start=N * 2 - 1) + atomic.dim_fill(N // 2 * 2 + tg.dim("m", 0, 5) % 3, (8, 3), f32))


def a_state_that_is_only_written() -> Graph:
    cache, other = tg.state("cache", (2, 3)), tg.state("other", (2, 3))
    return tg.graph({"y": tg.input("cache", (2, 3))}, {other: X, cache: X * 2.0})


def scalars() -> Graph:
    floats = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-6, 0.1, 1 / 3, 1e300, 5e-324, -1.5)
    return tg.graph([*(tg.constant(v, t) for v in floats for t in (f32, f64, bf16)), tg.constant(2**64 - 1, u64),
                     tg.constant(-2**63, i64), tg.constant(True), tg.constant(False), tg.constant(N * N + 1, i64),
                     tg.constant(N, f32)])


def arrays() -> Graph:
    payloads = np.array([0x7FC00001, 0x7F800001, 0xFFC00000, 0x80000000], np.uint32).view(np.float32)
    many = [payloads, np.zeros((0, 3), np.float32), np.arange(40), np.array([[True, False]]), np.array([1.5, -0.0]),
            np.array([], np.int32), np.arange(6, dtype=np.float16).reshape(2, 3), np.array([np.inf, np.nan]),
            np.array([2**64 - 1], np.uint64)]
    return tg.graph([*map(tg.constant, many), tg.constant(np.array([1, 2.5, 3]), bf16)])


def special_pads() -> Graph:
    return tg.graph([tg.pad(X, [(0, 1), (N, 0)], value) for value in (float("-inf"), float("nan"), -0.0, 0.0, 7.25)])


def users_composites() -> Graph:
    left, right = split(X, at=1)
    return tg.graph([scaled(X), scaled(X, X, by=3.0), left, right, total(X, X * 2.0, X), nested(X, by=0.5), other_softmax(X),
                     tg.softmax(X), scaled(tg.input("z", (N, 4))), scaled(X, by=float("nan"))])


def definitions_that_differ_in_nothing_but_attributes() -> Graph:
    return tg.graph([indifferent(X, X, k=1), indifferent(X, X, k=2), indifferent(X, tg.input("z", (5,)), k=2)])


def absent_operands() -> Graph:
    return tg.graph([tg.layer_norm(X, None, tg.parameter("b", (3,))), tg.layer_norm(X), tg.layer_norm(X, tg.parameter("b", (3,))),
                     tg.linear(X, tg.parameter("w", (4, 3)))])


def ops_that_change_nothing() -> Graph:
    return tg.graph([apply(ATOMIC["reshape"], (X,), {"shape": (2, 3)}), apply(ATOMIC["cast"], (X,), {"dtype": f32}),
                     apply(ATOMIC["sum"], (X,), {"axes": ()})])


def one_of_several_outputs() -> Graph:
    return tg.graph({"where": tg.topk(X, k=2)[1]})


def devices() -> Graph:
    return tg.graph(leaves.copy_to(X, 'cuda:0 "second"\n'))


def random_numbers() -> Graph:
    key = tg.input("key", (2,), u32)
    return tg.graph([tg.uniform(key, shape=(N, 3)), tg.normal(key, shape=(2,), dtype=f16),
                     tg.one_hot(tg.input("i", (2,), i32), size=N)])


def a_graph_of_nothing_but_a_leaf() -> Graph:
    return tg.graph({"x": X, "again": X})


def a_deep_graph() -> Graph:
    x = X
    for _ in range(1500):
        x = tg.sin(x)
    return tg.graph(x)


def a_name_with_spaces() -> Graph:
    return tg.graph(oddly_named(X))


HARD: dict[str, Callable[[], Graph]] = {f.__name__: f for f in (
    names, one_name_for_all, dims_with_odd_names, dims_in_attributes, a_state_that_is_only_written, scalars, arrays, special_pads,
    users_composites, definitions_that_differ_in_nothing_but_attributes, absent_operands, ops_that_change_nothing,
    one_of_several_outputs, devices, random_numbers, a_graph_of_nothing_but_a_leaf, a_deep_graph, a_name_with_spaces)}
