"""Which steps become one part, and that what is compiled with such parts says the same."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import walk
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites.candidate import Offer
from tensor_graphs.rewrites.passes import fuse as module
from tensor_graphs.rewrites.passes.fuse import fuse
from tensor_graphs.rewrites.passes.offer_recipes import formed
from tests.counted_lines import lines_run
from tests.rewrites.parts_in import parts_in

N = tg.dim("n", 1, 64)
X, Y, G = tg.input("x", (N, 32)), tg.input("y", (N, 32)), tg.input("g", (32,))
W = tg.parameter("w", (32, 32))


def test_a_chain_of_steps_is_one_part() -> None:
    made = fuse(tg.graph(tg.rms_norm(tg.tanh(X) + Y, G)))
    (op,) = parts_in(made.graph)
    assert op.alone and len(op.written.arguments) == 3 and parts_in(made.graph)[op] == 1


def test_a_piece_of_equal_layers_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_pieces", {})
    built: list[PartOp] = []
    original = module.part_between
    monkeypatch.setattr(module, "part_between", lambda outputs, operands: built.append(original(outputs, operands)) or built[-1])
    fused = fuse(layers(6))
    count = len(built)
    more = fuse(layers(9))
    assert count > 0 and len(built) == count and {op.key for op in parts_in(fused.graph)} == {op.key for op in parts_in(more.graph)}
    monkeypatch.setattr(module, "_pieces", {})
    assert fuse(layers(9)).graph.structural_key == more.graph.structural_key


def test_a_product_of_many_rows_is_in_no_part_and_what_surrounds_it_is_in_two() -> None:
    x, y = tg.input("x", (64, 32)), tg.input("y", (64, 32))
    before, after = tg.rms_norm(x * 2.0, G), tg.silu(tg.linear(tg.rms_norm(x * 2.0, G), W)) + y
    made = fuse(tg.graph({"a": before, "b": after}))
    assert len(parts_in(made.graph)) == 2 and [n.op.name for n in made.graph.nodes].count("linear") == 1


@pytest.mark.parametrize("rows", [64, N], ids=["many", "few"])
def test_what_a_product_lies_between_is_joined_with_it_for_few_rows_and_not_around_it(rows: Dim) -> None:
    x, y = tg.input("x", (rows, 32)), tg.input("y", (rows, 32))
    h = tg.tanh(x) + y                                              # read by the product, and added to what comes out of it
    graph = tg.graph(tg.linear(h, W) * 2.0 + h)
    made = fuse(graph)
    whole = {op: n for op, n in parts_in(made.graph).items() if any(i.op.name == "linear" for i in walk(op.written.outputs))}
    assert len(whole) == (rows is N) and all(sum(n.op is op for n in made.graph.nodes) == 1 for op in whole)
    count = 64 if rows == 64 else 3
    values = {"x": np.ones((count, 32), np.float32), "y": np.full((count, 32), 0.5, np.float32)}
    weights = {"w": np.eye(32, dtype=np.float32)}
    said, written = (interpret(g, values, weights, dims={"n": 3} if rows is N else {}).outputs["out"] for g in (made.graph, graph))
    np.testing.assert_array_equal(said, written)


def test_two_products_that_are_a_part_already_are_joined_with_what_uses_their_elements() -> None:
    x, w, u = (tg.input(name, (256, 256)) for name in "xwu")
    gate, up = tg.linear(x, w), tg.linear(x, u)
    offer = Offer((x, w, u), (gate, up), frozenset((gate, up)), ())             # as recipes offer one product in place of two
    of_two = tg.graph(tg.silu(gate) * up)
    fused = fuse(formed(of_two, [offer], {}, of_two.roots).graph, tiles=True)
    (part,) = (n for n in fused.graph.nodes if isinstance(n.op, PartOp))
    assert part.type.shape == (256, 256) and len(part.inputs) == 3


def test_the_steps_around_products_of_few_rows_are_parts_in_their_part() -> None:
    gate, up = (tg.parameter(name, (64, 32)) for name in ("gate", "up"))
    stream = X + tg.rms_norm(Y, G)
    h = tg.rms_norm(stream, G)
    made = fuse(tg.graph({"stream": stream, "out": tg.silu(tg.linear(h, gate)) * tg.linear(h, up)}))
    (whole,) = parts_in(made.graph)
    inside = [n.op.name for n in walk(whole.written.outputs) if n.op.kind == "composite"]
    assert len(whole.written.outputs) == 2 and len(inside) == 4 and inside.count("linear") == 2


def test_products_one_behind_the_other_are_in_two_parts() -> None:
    first = tg.silu(tg.linear(tg.rms_norm(X, G), W))
    parts = parts_in(fuse(tg.graph(tg.linear(first, W) + Y)).graph)
    assert sorted(sum(n.op.name == "linear" for n in walk(op.written.outputs)) for op in parts) in ([0, 1, 1], [1, 1])


def test_what_takes_the_results_of_a_product_together_is_not_joined_with_it() -> None:
    made = fuse(tg.graph(tg.softmax(tg.linear(X, W))))
    assert not parts_in(made.graph)


def test_what_follows_from_sizes_alone_is_said_again_in_the_step_that_reads_it() -> None:
    rows, columns = (tg.iota((64, 64), axis, tg.i32) for axis in (0, 1))
    dear = tg.greater(tg.sin(tg.cast(rows, tg.f32)), 0.5), tg.less(columns % 7, 3)
    for mask, inside in ((tg.less_equal(columns, rows), True), *((each, False) for each in dear)):
        made = fuse(tg.graph(tg.where(mask, tg.input("x", (64, 64)), -1.0)))
        assert (len(parts_in(made.graph)) == 1) is inside
        if inside:
            (op,) = parts_in(made.graph)
            assert len(op.written.arguments) == 1


def test_a_product_of_few_rows_reads_the_narrow_numbers_that_its_weight_is_made_of() -> None:
    q, scale = tg.parameter("q", (64, 32), tg.i8), tg.parameter("s", (64, 1))
    one = tg.input("x", (1, 32))
    (op,) = parts_in(fuse(tg.graph(tg.linear(one, q.cast(tg.f32) * scale))).graph)
    assert sorted(a.dtype.name for a in op.written.arguments) == ["f32", "f32", "i8"]
    wide = tg.parameter("v", (64, 32))
    assert not parts_in(fuse(tg.graph(tg.linear(one, wide * scale))).graph)   # as many bytes: it is made when it is bound
    assert not parts_in(fuse(tg.graph(tg.linear(one, tg.sin(q.cast(tg.f32))))).graph)     # dear, at every run


def test_such_a_product_is_right_and_of_many_rows_its_weight_is_made_when_it_is_bound(store: Database) -> None:
    draw = np.random.default_rng(5)
    weights = {"q": draw.integers(-127, 128, (256, 128)).astype(np.int8), "s": draw.random((256, 1), np.float32)}
    q, scale = tg.parameter("q", (256, 128), tg.i8), tg.parameter("s", (256, 1))
    for rows in (3, 200):
        g = tg.graph({"y": tg.gelu(tg.linear(tg.input("x", (rows, 128)), q.cast(tg.f32) * scale))})
        plan = tg.compile(g, backends=("c", "gen", "numpy"), database=store)
        x = draw.standard_normal((rows, 128)).astype(np.float32)
        found = tg.bind(plan, weights).run({"x": x})["y"]
        np.testing.assert_allclose(found, interpret(g, {"x": x}, weights).outputs["y"], rtol=1e-4, atol=1e-3)
        if rows == 200:
            assert any(c.label.startswith("linear") for c in plan.variants[0].program.instructions)


def test_a_part_may_have_several_outputs() -> None:
    h = X + Y
    made = fuse(tg.graph({"h": h, "normed": tg.rms_norm(h, G)}))
    (op,) = parts_in(made.graph)
    assert len(op.written.outputs) == 2


def test_views_between_two_steps_are_said_in_their_part() -> None:
    heads = tg.tanh(X).reshape(N, 4, 8).permute((1, 0, 2))
    made = fuse(tg.graph(tg.softmax(heads * 0.5)))
    (op,) = parts_in(made.graph)
    assert len(op.written.arguments) == 1 and sum(n.op is op for n in made.graph.nodes) == 1
    values = {"x": np.linspace(-2, 2, 96, dtype=np.float32).reshape(3, 32)}
    said, written = (interpret(g, values, dims={"n": 3}).outputs for g in (made.graph, tg.graph(tg.softmax(heads * 0.5))))
    np.testing.assert_array_equal(*said.values(), *written.values())


def test_what_reads_a_copy_to_a_device_is_in_the_part_and_the_copy_is_not() -> None:
    there = tg.copy_to(X, "cpu")
    made = fuse(tg.graph(tg.copy_to(tg.where(tg.less(there, 0.0), 1.0, -1.0) * tg.expm1(tg.abs(there) * -2.0), "cpu")))
    (op,) = parts_in(made.graph)
    assert [n.op.name for n in made.graph.nodes if n.op.kind != "leaf" or n.op.name == "copy_to"] == ["copy_to", op.name, "copy_to"]


def test_a_weight_for_each_channel_is_read_as_it_is_and_not_spread_over_the_image() -> None:
    gain, image = tg.parameter("g", (12,)), tg.input("x", (2, 12, 8, 8))
    (op,) = parts_in(fuse(tg.graph(tg.tanh(image * tg.reshape(gain, (12, 1, 1))))).graph)
    assert sorted(int(a.type.size()) for a in op.written.arguments) == [12, 2 * 12 * 8 * 8]


def test_a_norm_between_reshapes_is_one_part_with_what_scales_it() -> None:
    gain, image = tg.parameter("g", (12,)), tg.input("x", (4, 12, 8, 8))
    norm = tg.reshape(tg.layer_norm(tg.reshape(image, (4 * 3, 4 * 8 * 8))), image.shape)
    (op,) = parts_in(fuse(tg.graph(norm * tg.reshape(gain, (12, 1, 1)))).graph)
    assert any(n.op.name == "layer_norm" for n in walk(op.written.outputs))


def test_what_saves_no_pass_is_not_joined() -> None:
    total = (X * Y).sum()                                           # everything is read before anything can be multiplied
    (op,) = parts_in(fuse(tg.graph(Y * total)).graph)
    assert op.name.startswith("mul_sum_") and len(op.written.arguments) == 2


def test_a_graph_compiled_with_generated_loops_is_one_call_and_right(store: Database) -> None:
    graph = tg.graph(tg.softmax(X * 0.125) * tg.tanh(Y) + tg.gelu(X))
    plan = tg.compile(graph, backends=("gen", "numpy"), database=store)
    assert [i.kernel for i in plan.variants[0].program.instructions] == ["gen.loops"]
    rng = np.random.default_rng(0)
    for n in (1, 7, 64):
        values = {name: rng.standard_normal((n, 32)).astype(np.float32) for name in "xy"}
        made = tg.bind(plan).run(values)["out"]
        np.testing.assert_allclose(made, interpret(graph, values, dims={"n": n}).outputs["out"], rtol=2e-6, atol=1e-6)


def test_a_part_has_the_dims_of_its_operands_and_no_others() -> None:
    n = tg.dim("n", 1, 9)
    x = tg.input("x", (4,))
    wide = tg.expand(tg.reshape(tg.tanh(x), (4, 1)), (4, n))
    made = fuse(tg.graph(wide * 2.0 + 1.0)).graph
    parts = [node for node in made.nodes if isinstance(node.op, PartOp)]
    assert all(any("n" in str(size) for size in i.shape) for node in parts for i in node.inputs if "n" in str(node.shape))
    y = tg.input("y", (4, n))
    assert any(isinstance(node.op, PartOp) for node in fuse(tg.graph(wide * y + 1.0)).graph.nodes)


def test_dims_of_other_ranges_are_no_renaming(store: Database) -> None:
    """Two dims are in a part whose operands name only sums of them: which is which is tried."""
    n, m = tg.dim("n", 0, 9), tg.dim("m", 1, 6)
    g = tg.graph(tg.tanh(tg.input("x", (m + 2 * n,)) + 1.0))
    x = np.linspace(-1, 1, 7, dtype=np.float32)
    model = tg.bind(tg.compile(g, backends=("gen", "numpy"), database=store), {})
    np.testing.assert_allclose(model.run({"x": x}, dims={"n": 2, "m": 3})["out"], np.tanh(x + 1.0), rtol=1e-5)


def test_what_is_empty_is_reshaped_by_no_remainder(store: Database) -> None:
    x = tg.input("x", (0, 6))
    g = tg.graph(tg.reshape(tg.tanh(x + 1.0), (2, 0, 3)) * 2.0)
    model = tg.bind(tg.compile(g, backends=("gen", "numpy"), database=store), {})
    assert model.run({"x": np.zeros((0, 6), np.float32)})["out"].shape == (2, 0, 3)


def decoder_layer() -> tg.Graph:
    """A layer's attention over a cache, with norms and rotations of queries and keys."""
    n, p = tg.dim("n", 1, 16), tg.dim("p", 0, 15)
    k, v = tg.state("k", (16, 1, 8)), tg.state("v", (16, 1, 8))
    x, g = tg.input("x", (n, 16)), tg.parameter("g", (8,))
    cos, sin = tg.rope_table(tg.input("at", (n,), tg.i32), head_dim=8, theta=1e4)

    def head(name: str, count: int) -> tg.Tensor:
        return tg.linear(x, tg.parameter(name, (count * 8, 16))).reshape(n, count, 8)

    q, keys = (tg.rope(tg.rms_norm(head(name, count), g), cos, sin) for name, count in (("q", 2), ("k", 1)))
    written = {k: k.write(keys, at=p), v: v.write(head("v", 1), at=p)}
    seen = tg.attention(q, written[k][:p + n], written[v][:p + n], scale=0.3, causal=True, start=p)
    return tg.graph({"seen": seen}, written)


def test_what_attention_reads_is_made_and_written_into_its_caches_by_one_part() -> None:
    made = fuse(decoder_layer())
    (whole,) = [n for n in made.graph.nodes if isinstance(n.op, PartOp) and len(n.types) == 3]
    assert {made.graph.updates[name].inputs[0] for name in ("k", "v")} == {whole}
    assert [str(d) for d in whole.op.dims] == ["p"] and whole.attrs == {"dims": whole.op.dims}
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((3, 16)).astype(np.float32), "at": np.arange(3, dtype=np.int32)}
    weights = {name: rng.standard_normal(node.shape).astype(np.float32) for name, node in made.graph.parameters.items()}
    states = {name: rng.standard_normal((16, 1, 8)).astype(np.float32) for name in ("k", "v")}
    said, written = (interpret(g, values, weights, states, dims={"p": 4}) for g in (made.graph, decoder_layer()))
    np.testing.assert_array_equal(said.outputs["seen"], written.outputs["seen"])
    for name in states:
        np.testing.assert_array_equal(said.updates[name], written.updates[name])


def test_steps_that_one_reads_beside_each_other_are_one_part_and_steps_of_each_other_are_not() -> None:
    x, y = tg.input("x", (64, 32)), tg.input("y", (64, 32))
    made = fuse(tg.graph(tg.dot(tg.softmax(x), tg.rms_norm(y, G).T)))
    assert [len(op.written.outputs) for op in parts_in(made.graph)] == [2]
    first = tg.softmax(x, axis=0)
    assert not parts_in(fuse(tg.graph(tg.dot(first, tg.softmax(first, axis=0).T))).graph)


def test_rows_of_a_state_that_is_read_in_the_same_part_are_written_apart() -> None:
    """As one part it would be the whole state that is made."""
    s, p = tg.state("s", (64, 32)), tg.dim("p", 0, 60)
    x = tg.input("x", (4, 32))
    graph = tg.graph({"sum": s.read() * 2.0 + s.write(x, at=p) * 3.0}, {s: s.write(x, at=p)})
    made = fuse(graph)
    update = made.graph.updates["s"]
    assert update.op.name == "write_rows" and not any(update is i for op in parts_in(made.graph) for i in walk(op.written.outputs))


def test_a_write_at_rows_that_an_input_numbers_stays_a_step() -> None:
    s, at = tg.state("s", (64, 32)), tg.input("at", (4,), tg.i32)
    made = fuse(tg.graph({}, {s: s.write(tg.tanh(tg.input("x", (4, 32))) + 1.0, at=at)}))
    assert made.graph.updates["s"].op.name == "write_at_index"


def layers(count: int) -> tg.Graph:
    y = tg.input("x", (1, 32))
    for _ in range(count):
        y = y + tg.linear(tg.relu(y), W)
    return tg.graph({"y": y})


def test_a_chain_of_layers_is_fused_with_work_in_proportion_to_its_length() -> None:
    fuse(layers(3))
    assert lines_run(lambda: fuse(layers(200))) < 2.2 * lines_run(lambda: fuse(layers(100)))


def test_parts_that_read_each_other_in_a_long_row_are_formed_however_many_they_are() -> None:
    made = fuse(layers(500))                                        # each was formed inside of the one that reads it
    assert sum(parts_in(made.graph).values()) >= 500


def test_steps_that_read_one_large_value_are_one_part_where_that_saves_a_pass() -> None:
    x, small = tg.input("x", (65536, 256)), tg.input("x", (64, 256))
    (op,) = parts_in(fuse(tg.graph({"m": tg.mean(x, axis=0), "v": tg.var(x, axis=0)})).graph)
    assert len(call_of(op.written).launches) == 2
    (op,) = parts_in(fuse(tg.graph({"t": tg.tanh(x), "e": tg.exp(x)})).graph)
    assert len(call_of(op.written).launches) == 1
    assert not parts_in(fuse(tg.graph({"m": tg.max(x, axis=0), "v": tg.sum(x, axis=0)})).graph), "each reads all of it"
    assert not parts_in(fuse(tg.graph({"m": tg.mean(small, axis=0), "v": tg.var(small, axis=0)})).graph), "it stays in the cache"
