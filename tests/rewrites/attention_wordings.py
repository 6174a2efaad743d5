"""Attention as people write it: where scores are scaled, how they are hidden, where weights are divided, heads repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.node import Node

N, S = tg.dim("n", 1, 64), tg.dim("s", 1, 96)
HIDDEN = -float("inf")


@dataclass(frozen=True)
class Wording:
    """graph: softmax(…) · v. says: attributes of the attention that it is, where they are not the defaults."""

    graph: tg.Graph
    says: Mapping[str, Any] = field(default_factory=dict)


def turned(x: Node) -> Node:
    return tg.permute(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def qkv(lead: tuple[Any, ...], n: Any = 6, s: Any = 9, d: int = 8, own: tuple[Any, ...] | None = None) -> tuple[Node, Node, Node]:
    own = lead if own is None else own
    return tg.input("q", (*lead, n, d)), tg.input("k", (*own, s, d)), tg.input("v", (*own, s, d))


def places(n: Any, s: Any, start: Any = 0) -> tuple[Node, Node]:
    """Where each query is, and each key."""
    return atomic.iota((n, s), 0, tg.i32) + atomic.dim_fill(start, (n, s)), atomic.iota((n, s), 1, tg.i32)


def attended(scores: Node, v: Node) -> tg.Graph:
    return tg.graph(tg.dot(tg.softmax(scores), v))


def plain(change: Callable[[Node, Node], Node], lead: tuple[Any, ...] = ()) -> tg.Graph:
    q, k, v = qkv(lead)
    return attended(change(q, k), v)


def by_exponentials(divided: str, lead: tuple[Any, ...] = ()) -> tg.Graph:
    q, k, v = qkv(lead)
    scores = tg.dot(q, turned(k)) * 0.25
    e = tg.exp(scores - tg.max(scores, axis=-1, keepdims=True))
    total = tg.sum(e, axis=-1, keepdims=True)
    return tg.graph({"first": lambda: tg.dot(e / total, v), "last": lambda: tg.dot(e, v) / total,
                     "by its reciprocal": lambda: tg.dot(e, v) * tg.reciprocal(total)}[divided]())


def hidden(change: Callable[[Node, Node, Node], Node], n: Any = 6, s: Any = 9, start: Any = 0,
           lead: tuple[Any, ...] = (2,)) -> tg.Graph:
    """change: scores, places of queries, places of keys."""
    q, k, v = qkv(lead, n, s)
    return attended(change(tg.dot(q, turned(k)) * 0.25, *places(n, s, start)), v)


def spread(mask: Node, scores: Node) -> Node:
    return tg.expand(tg.reshape(mask, (*(1,) * (scores.rank - 2), *mask.shape)), scores.shape)


def repeated(x: Node, times: int) -> Node:
    (g, s, d) = x.shape
    return tg.reshape(tg.expand(tg.reshape(x, (g, 1, s, d)), (g, times, s, d)), (g * times, s, d))


def grouped() -> tg.Graph:
    q, k, v = qkv((4,), own=(2,))
    return attended(tg.dot(q, turned(repeated(k, 2))) * 0.25, repeated(v, 2))


def one_head_for_all() -> tg.Graph:
    q, k, v = qkv((4,), own=(1,))
    return attended(tg.dot(q, turned(k)) * 0.25, v)


def groups_as_an_axis() -> tg.Graph:
    q, k, v = qkv((2, 3), own=(2, 1))
    return attended(tg.dot(q, turned(k)) * 0.25, v)


CAUSAL = {"causal": True}

WORDINGS: dict[str, Wording] = {
    "scores times a number": Wording(plain(lambda q, k: tg.dot(q, turned(k)) * 0.25)),
    "scores over a number": Wording(plain(lambda q, k: tg.dot(q, turned(k)) / 4.0)),
    "scale first": Wording(plain(lambda q, k: tg.dot(q * 0.25, turned(k)))),
    "keys scaled": Wording(plain(lambda q, k: tg.dot(q, turned(k * 0.25)))),
    "both scaled": Wording(plain(lambda q, k: tg.dot(q * 0.5, turned(k * 0.5)))),
    "as a linear": Wording(plain(lambda q, k: tg.linear(q, k) * 0.25)),
    "exponentials": Wording(by_exponentials("first")),
    "divide last": Wording(by_exponentials("last")),
    "times a reciprocal": Wording(by_exponentials("by its reciprocal")),
    "heads": Wording(plain(lambda q, k: tg.dot(q, turned(k)) * 0.25, (3,))),
    "heads, divide last": Wording(by_exponentials("last", (3,))),
    "a batch of heads": Wording(plain(lambda q, k: tg.dot(q * 0.25, turned(k)), (2, 3))),
    "lengths that are bounded": Wording(attended(tg.dot((x := qkv((2,), N, S))[0], turned(x[1])) * 0.25, x[2])),
    "causal": Wording(hidden(lambda x, i, j: tg.where(tg.less_equal(j, i), x, HIDDEN)), CAUSAL),
    "causal, hidden": Wording(hidden(lambda x, i, j: tg.where(tg.less(i, j), HIDDEN, x)), CAUSAL),
    "causal, greater": Wording(hidden(lambda x, i, j: tg.where(tg.greater_equal(i, j), x, HIDDEN)), CAUSAL),
    "causal, not later": Wording(hidden(lambda x, i, j: tg.where(atomic.logical_not(tg.less(i, j)), x, HIDDEN)), CAUSAL),
    "causal, by a difference": Wording(hidden(lambda x, i, j: tg.where(tg.less(j - i, 1), x, HIDDEN)), CAUSAL),
    "causal, spread over heads": Wording(hidden(lambda x, i, j: tg.where(spread(tg.less_equal(j, i), x), x, HIDDEN)), CAUSAL),
    "causal, added": Wording(hidden(lambda x, i, j: x + tg.where(tg.less_equal(j, i), 0.0, HIDDEN)), CAUSAL),
    "causal, added where hidden": Wording(hidden(lambda x, i, j: x + tg.where(tg.less(i, j), HIDDEN, 0.0)), CAUSAL),
    "causal, later": Wording(hidden(lambda x, i, j: tg.where(tg.less_equal(j, i), x, HIDDEN), start=3), {**CAUSAL, "start": 3}),
    "causal, bounded lengths": Wording(hidden(lambda x, i, j: tg.where(tg.less_equal(j, i), x, HIDDEN), N, N + S, S),
                                       {**CAUSAL, "start": S}),
    "causal batch of heads": Wording(hidden(lambda x, i, j: tg.where(tg.less_equal(j, i), x, HIDDEN), lead=(2, 2)), CAUSAL),
    "window": Wording(hidden(lambda x, i, j: tg.where(tg.bit_and(tg.less_equal(j, i), tg.less(i - j, 4)), x, HIDDEN)),
                      {**CAUSAL, "window": 4}),
    "window, from a place on": Wording(
        hidden(lambda x, i, j: tg.where(tg.bit_and(tg.less_equal(j, i), tg.less(i, j + 4)), x, HIDDEN), start=3),
        {**CAUSAL, "window": 4, "start": 3}),
    "window that looks ahead": Wording(hidden(lambda x, i, j: tg.where(tg.less(i - j, 2), x, HIDDEN)), {"window": 2}),
    "grouped heads": Wording(grouped()),
    "one head of keys": Wording(one_head_for_all()),
    "groups as an axis": Wording(groups_as_an_axis()),
}


def masked(change: Callable[[Node, Node], Node] = lambda m, x: tg.where(m, x, HIDDEN)) -> tg.Graph:
    """A mask that is given: some queries may see nothing."""
    q, k, v = qkv((2,))
    m = tg.input("m", (6, 9), tg.bool_)
    scores = tg.dot(q, turned(k)) * 0.25
    return attended(change(spread(m, scores), scores), v)


def given(graph: tg.Graph, sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Random values; of a mask the last query sees nothing."""
    rng = np.random.default_rng(0)
    found = {}
    for name, x in graph.inputs.items():
        shape = [int(d.evaluate(s, sizes or {})) for s in x.shape]
        found[name] = rng.standard_normal(shape).astype(np.float32) if x.dtype.is_float else rng.random(shape) < 0.6
        if x.dtype == tg.bool_:
            found[name][-1] = False
    return found
