"""The C of stages as it was last reviewed: one text of each kind of stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import actions
from tensor_graphs.codegen.arrange import CHUNK, arranged
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.render_c import rendered
from tensor_graphs.language.node import Node
from tensor_graphs.language.part import part_between, part_of
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

if TYPE_CHECKING:
    from tests.conftest import Snapshot

N = tg.dim("n", 1, 512)
X = tg.input("x", (N, 64))

REVIEWED: dict[str, Node] = {
    "element_wise": tg.gelu(X.cast(tg.bf16)) * 2.0,
    "rows": tg.softmax(X * 0.125),
    "columns": X.sum(axis=0),
    "in_parts": tg.reduce_max(tg.input("x", (5 * CHUNK,))),
    "gather_and_pad": tg.pad(tg.embedding(tg.input("t", (100, 16)), tg.input("i", (N,), tg.i32)), ((1, 0), (0, 0))),
    "tiles": tg.input("t", (64, N)).permute((1, 0)) + X,
    "scan_of_rows": tg.cumsum(X),
    "scan_of_columns": tg.cumsum(X, axis=0),
    "scan_of_one_row": tg.cumsum(tg.input("x", (5 * CHUNK,), tg.i32)),
    "rows_apart": tg.rms_norm(X, tg.input("g", (64,))),
}


@pytest.mark.parametrize("name", REVIEWED)
def test_the_c_is_the_text_last_reviewed(name: str, snapshot: Snapshot) -> None:
    program = arranged(lower(part_of(tg.graph(REVIEWED[name])).written, apart=name == "rows_apart"))
    snapshot.check(f"{name}.c", rendered(program))


def test_a_size_that_is_a_product_is_one_number_where_turns_are_counted() -> None:
    """turn % 2 * n is not turn % (2 * n)."""
    n = tg.dim("n", 1, 64)
    graph = tg.graph(tg.input("x", (2 * n, 3, 5)).permute((1, 0, 2)) * 2.0)
    written = part_of(graph).written
    library = Library([arranged(lower(written))])
    assert "% (2 * d_n)" in rendered(library.programs[0])
    x = np.arange(8 * 15, dtype=np.float32).reshape(8, 3, 5)
    (out,) = library.run(0, written, [x], {"n": 4})
    np.testing.assert_array_equal(out, x.transpose(1, 0, 2) * 2)


def test_reductions_beside_each_other_have_variables_of_their_own() -> None:
    """Two of one row in lanes, and two of one value."""
    n, m = tg.dim("n", 1, 64), 21
    x, z = tg.input("x", (n, m), tg.i32), tg.input("z", (n, 1), tg.i32)
    lanes = actions.Accumulators(4, 0, 0), actions.Accumulators(4, 0, 1)
    values = {"x": np.random.default_rng(3).integers(-9, 9, (5, m), np.int32), "z": np.arange(-2, 3, dtype=np.int32)[:, None]}
    for reduced, schedule in ((x, lanes), (tg.expand(z, (n, m)), ())):
        both = tg.reduce_max(reduced, axis=1, keepdims=True) + reduced.sum(axis=1, keepdims=True)
        graph = tg.graph({"y": x * both})
        written = part_between(list(graph.outputs.values()), list(graph.inputs.values())).written
        library = Library([actions.replay(written, schedule)])
        assert [s.monoid for s in library.programs[0].nests[0].stages] == ["max", "sum", None]
        given = {k: values[k] for k in graph.inputs}
        (found,) = library.run(0, written, list(given.values()), {"n": 5})
        np.testing.assert_array_equal(found, interpret(graph, given).outputs["y"])
