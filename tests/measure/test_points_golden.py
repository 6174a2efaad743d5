"""The points at which kernels are compared, and the values at them, are those looked at last: moving code about changes none.

A point is written as the values of its fields, without their names. What changes here changes verdicts, and needs a new VERIFIER.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.registry import all_kernels, by_op, matching
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.dims import bounds
from tensor_graphs.language.node import Node
from tensor_graphs.measure import judge as module
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.inputs import Point, point_inputs
from tensor_graphs.records.database import open_database
from tests.conftest import Snapshot

SECRET, TYPICAL, MOST_VALUES = 12_345, 24, 20_000
N, M = tg.dim("n", 1, 96), tg.dim("m", 1, 64)


def x(*shape: tg.Dim | int, dtype: tg.DType = tg.f32, name: str = "x") -> Node:
    return tg.input(name, shape, dtype)


GRAPHS: dict[str, Node] = {
    "add": tg.add(x(N, 8), x(N, 8, name="y")),
    "cast": tg.cast(x(N, M), tg.bf16),
    "sum": tg.sum(x(N, M), axis=-1),
    "max": tg.max(x(N, M), axis=0),
    "softmax": tg.softmax(x(N, M)),
    "softmax bf16": tg.softmax(x(N, M, dtype=tg.bf16)),
    "rms_norm": tg.rms_norm(x(N, 40), x(40, name="w")),
    "layer_norm": tg.layer_norm(x(N, M)),
    "linear": tg.linear(x(N, 32), tg.parameter("w", (48, 32), tg.f32)),
    "linear bf16": tg.linear(x(N, 32, dtype=tg.bf16), tg.parameter("w", (48, 32), tg.bf16)),
    "dot": tg.dot(x(N, 16), x(16, M, name="y")),
    "gather": tg.gather(x(N, 8), x(M, dtype=tg.i32, name="i"), axis=0),
    "topk": tg.topk(x(N, 32), k=4)[0].inputs[0],
    "concat": tg.concat(x(N, 4), x(M, 4, name="y"), axis=0),
    "integers": x(N, dtype=tg.i32) % x(N, dtype=tg.i32, name="y"),
    "attention": tg.attention(x(N, 2, 16), x(M, 2, 16, name="k"), x(M, 2, 16, name="v"), scale=0.25),
}


def plain(point: Point) -> str:
    return repr(tuple(getattr(point, field.name) for field in fields(point)))


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def values(signature: Signature, point: Point) -> Iterator[bytes]:
    for name, array in sorted(point_inputs(signature.graph, point).items()):
        yield name.encode() + str((array.dtype, array.shape)).encode() + np.ascontiguousarray(array).tobytes()


def lines(judge: Judge) -> Iterator[str]:
    table = by_op(all_kernels(("numpy",)))
    for title, node in GRAPHS.items():
        signature = signature_of(node)
        kernel = matching(signature.spec, table)[0]
        points = judge.points(kernel, signature, {n: min(TYPICAL, bounds(dim)[1]) for n, dim in signature.graph.dims.items()})
        small = [p for p in points if math.prod(n for _, n in p.sizes) <= MOST_VALUES]
        yield (f"{title}: {len(points)} points {digest(*(plain(p).encode() for p in points))}, "
               f"values of {len(small)} {digest(*(part for p in small for part in values(signature, p)))}")


def test_points_and_their_values_are_those_looked_at_last(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot) -> None:
    monkeypatch.setattr(Judge, "secret", lambda judge, signature: SECRET)
    monkeypatch.setattr(module, "SLOW", math.inf)                   # where the oracle is slow, fewer points are drawn
    with open_database(":memory:") as database, Judge(database) as judge:
        snapshot.check("points.txt", "\n".join(lines(judge)) + "\n")
