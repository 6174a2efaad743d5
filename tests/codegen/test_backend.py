"""The kernel of `gen` on operands with gaps: read where they lie, and copied where elements of a row lie apart."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.backend import SHORT_ROW, strided
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.language.node import Node

X, Y = tg.input("x", (6, 4, 40)), tg.input("y", (6, 4, 40))
WIDE = np.random.default_rng(0).standard_normal((20, 9, 80)).astype(np.float32)

LIES: dict[str, np.ndarray] = {
    "gaps between rows": WIDE[:6, :4, :40],
    "gaps between groups": WIDE[:12:2, 1:5, 5:45],
    "axes in the other order": WIDE[:4, :6, :40].transpose(1, 0, 2),
    "one row repeated": np.broadcast_to(WIDE[0, 0, :40], (6, 4, 40)),
    "one group repeated": np.broadcast_to(WIDE[0, :4, :40], (6, 4, 40)),
}


def steps(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


@pytest.mark.parametrize("lies", LIES)
@pytest.mark.parametrize(("node", "same"), [
    (tg.softmax(X), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    (tg.minimum(X, Y), np.minimum),
    (tg.cumsum(X, axis=1), lambda x: x.cumsum(1)),
], ids=["softmax", "minimum", "cumsum"])
def test_rows_are_read_wherever_they_lie(node: Node, same: object, lies: str) -> None:
    arrays = [LIES[lies], np.ascontiguousarray(WIDE[3:9, 2:6, 7:47])][:len(node.inputs)]
    call = strided(Spec.of(node), [steps(a) for a in arrays])
    assert call is not None
    out = np.full((6, 4, 40), np.nan, np.float32)
    pointers = (ctypes.c_void_p * (1 + len(arrays)))(out.ctypes.data, *(a.ctypes.data for a in arrays))
    ints = (ctypes.c_int64 * len(call.ints))(*(int(i) for i in call.ints))  # type: ignore[arg-type]
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    kernel(library.load().address(call.symbol, call.image))(pointers, ints, None)
    np.testing.assert_allclose(out, same(*arrays), rtol=2e-6, atol=1e-6)  # type: ignore[operator]


@pytest.mark.parametrize(("shape", "strides"), [
    ((6, 40), (1, 6)),                                              # turned: elements of a row lie apart
    ((6, 40), (80, 2)),
    ((6, 40), (-40, 1)),                                            # backwards
    ((6, SHORT_ROW - 1), (SHORT_ROW, 1)),
])
def test_what_lies_otherwise_is_copied_first(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert strided(Spec.of(tg.tanh(tg.input("x", shape))), [strides]) is None
