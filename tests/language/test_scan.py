"""tests for language/composites/scan.py and language/subgraph.py: what a loop means, how it is written, what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.composite import expand
from tensor_graphs.language.errors import AttributeValueError, DTypeError, GraphError, LanguageError, ShapeError
from tensor_graphs.language.graph import replace_dims
from tensor_graphs.language.json_reader import JsonFormError, graph_from_json
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.leaves import item
from tensor_graphs.language.node import rebuild
from tensor_graphs.language.text import parse_graph, print_graph
from tensor_graphs.language.text_tokens import TextError
from tensor_graphs.meaning.running_error import running_error

LENGTHS = (0, 1, 3, 17, 127)
N, B = tg.dim("n", 0, 128), tg.dim("b", 1, 8)
X, H, W, U = tg.input("x", (B, N, 5)), tg.input("h", (B, 4)), tg.input("w", (4, 5)), tg.input("u", (4, 4))


def cell(h: tg.Node, x: tg.Node) -> tuple[tg.Node, tg.Node]:
    new = tg.tanh(tg.linear(x, W) + tg.linear(h, U) * 2.0)
    return new, new - h


def rnn(x: tg.Node = X, reverse: bool = False) -> tg.Graph:
    last, ys = tg.scan(cell, H, x, axis=1, reverse=reverse)
    return tg.graph({"last": last, "ys": ys})


def values(length: int, batch: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(length)
    shapes = {"x": (batch, length, 5), "h": (batch, 4), "w": (4, 5), "u": (4, 4)}
    return {name: (rng.standard_normal(shape) * 0.4).astype(np.float32) for name, shape in shapes.items()}


def by_hand(given: dict[str, np.ndarray], reverse: bool) -> tuple[np.ndarray, np.ndarray]:
    x, h, w, u = (given[k].astype(np.float64) for k in ("x", "h", "w", "u"))
    ys = np.empty((len(h), x.shape[1], 4))
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        new = np.tanh(x[:, t] @ w.T + h @ u.T * 2.0)
        ys[:, t], h = new - h, new
    return h, ys


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_scan_takes_its_step_once_for_each_slice(length, reverse):
    given = values(length)
    found = tg.interpret(rnn(reverse=reverse), given).outputs
    last, ys = by_hand(given, reverse)
    np.testing.assert_allclose(found["last"], last, rtol=1e-12, atol=0)
    np.testing.assert_allclose(found["ys"], ys, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("reverse", [False, True])
def test_turns_whose_number_is_known_may_be_written_out(reverse):
    x = tg.input("x", (3, 5))
    h = tg.input("h", (4,))
    _, ys = tg.scan(lambda h, x: ((new := tg.tanh(tg.linear(x, W) + tg.linear(h, U))), new * h), h, x, reverse=reverse)
    made = ys.inputs[0]
    given = values(3)
    given = {"x": given["x"][0], "h": given["h"][0], "w": given["w"], "u": given["u"]}
    loop, row = tg.graph(ys), tg.graph(expand(made)[1])
    assert "scan" not in {n.op.name for n in row.nodes}
    np.testing.assert_allclose(tg.interpret(row, given).outputs["out"], tg.interpret(loop, given).outputs["out"], rtol=1e-12)


def test_turns_whose_number_is_a_dim_are_not_written_out():
    with pytest.raises(LanguageError, match="a scan of n turns is not written out"):
        expand(rnn().outputs["last"].inputs[0])


def test_integers_wrap_and_carries_may_change_places():
    x = tg.input("x", (N,), tg.u8)
    zero = tg.constant(1, tg.u8)
    (a, b), ys = tg.scan(lambda c, x: ((c[1], c[0] + c[1] + x), (c[0], c[1])), (zero, zero), x)
    found = tg.interpret(tg.graph({"a": a, "b": b, "first": ys[0], "second": ys[1]}), {"x": np.zeros(20, np.uint8)}).outputs
    fibonacci = [1, 1]
    for _ in range(20):
        fibonacci.append((fibonacci[-1] + fibonacci[-2]) % 256)
    assert found["first"].tolist() == fibonacci[:20] and found["second"].tolist() == fibonacci[1:21]
    assert (int(found["a"]), int(found["b"])) == tuple(fibonacci[20:22])


def test_a_step_may_scan_too_and_read_what_the_outer_one_has():
    x = tg.input("x", (N, 3))

    def outer(total: tg.Node, row: tg.Node) -> tuple[tg.Node, tg.Node]:
        inner, _ = tg.scan(lambda h, v: (h * 0.5 + v * total, None), total, row)
        return inner, inner

    last, ys = tg.scan(outer, tg.constant(1.0), x)
    array = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    total, wanted = 1.0, []
    for row in array.astype(np.float64):
        h = total
        for v in row:
            h = h * 0.5 + v * total
        wanted.append(total := h)
    g = tg.graph({"last": last, "ys": ys})
    np.testing.assert_allclose(tg.interpret(g, {"x": array}).outputs["ys"], wanted, rtol=1e-12)
    assert parse_graph(print_graph(g)) == g and graph_from_json(graph_to_json(g)) == g


def test_a_scan_may_carry_nothing():
    x = tg.input("x", (N, 3))
    none, ys = tg.scan(lambda c, x: ((), x * 2.0), (), x)
    assert none == () and ys.type == x.type


def test_what_is_the_same_in_each_turn_is_computed_once_outside():
    x, w = tg.input("x", (N, 4)), tg.parameter("w", (4, 4))
    last, _ = tg.scan(lambda h, x: (tg.linear(h, w @ w) + x, None), tg.input("h", (4,)), x)
    (node,) = [n for n in tg.graph(last).nodes if n.op.name == "scan"]
    assert node.inputs[2].op.name == "dot"
    assert [n.op.name for n in node.attrs["step"].outputs[0].inputs] == ["linear", "argument"]


def test_the_number_of_a_dim_that_no_slice_has_is_read_as_a_tensor():
    x = tg.input("x", (N, 4))
    mean, _ = tg.scan(lambda h, x: (h + x / tg.constant(N, tg.f32), None), tg.input("h", (4,)), x)
    array = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    found = tg.interpret(tg.graph(mean), {"x": array, "h": np.zeros(4, np.float32)}).outputs["out"]
    np.testing.assert_allclose(found, array.astype(np.float64).mean(0), rtol=1e-12)


# ---- how it is written ------------------------------------------------------------------------------------------------------


def test_text_json_and_pickles_say_the_same_graph():
    g = rnn()
    assert parse_graph(print_graph(g)) == g
    assert graph_from_json(graph_to_json(g)) == g
    assert pickle.loads(pickle.dumps(g)) == g
    (node,) = [n for n in g.nodes if n.op.name == "scan"]
    body = node.attrs["step"]
    assert pickle.loads(pickle.dumps(body)) == body


def test_a_scan_can_be_written_by_hand():
    g = parse_graph("""tg 1
dim n 0..64
input h f32[3]
input x f32[n, 3]
define leak(h f32[3], x f32[3]) {
  new = h * 0.5 + x
  return new, new
}
(last, ys) = scan(h, x; step=leak, carries=1, slices=1)
output last = last
output ys = ys
""")
    last, ys = tg.scan(lambda h, x: ((new := h * 0.5 + x), new), tg.input("h", (3,)), tg.input("x", (tg.dim("n", 0, 64), 3)))
    assert g == tg.graph({"last": last, "ys": ys})


def test_names_of_dims_and_functions_are_not_in_the_key():
    def of_another_name(h, x):
        return cell(h, x)

    other = tg.input("x", (B, tg.dim("steps", 0, 128), 5))
    last, ys = tg.scan(of_another_name, H, other, axis=1)
    assert tg.graph({"last": last, "ys": ys}).structural_key == rnn().structural_key
    forwards, backwards = rnn(), rnn(reverse=True)
    assert forwards.structural_key != backwards.structural_key


def test_another_step_is_another_key():
    x, h = tg.input("x", (N, 3)), tg.input("h", (3,))
    keys = {tg.graph(tg.scan(step, h, x)[0]).structural_key
            for step in (lambda h, x: (h + x, None), lambda h, x: (h * x, None), lambda h, x: (h + x, h), lambda h, x: (x, None))}
    assert len(keys) == 4


def test_an_edited_step_under_its_old_digest_is_refused():
    text = graph_to_json(rnn())
    with pytest.raises(JsonFormError, match="was changed"):
        graph_from_json(text.replace('"op":"tanh"', '"op":"sigmoid"'))


def test_dims_are_replaced_inside_of_the_step_too():
    last, ys = replace_dims(list(rnn().outputs.values()), {"b": 3, "n": 7})
    assert (str(last.type), str(ys.type)) == ("f32[3, 4]", "f32[3, 7, 4]")
    given = values(7, 3)
    np.testing.assert_array_equal(tg.interpret(tg.graph({"last": last}), given).outputs["last"],
                                  tg.interpret(rnn(), given).outputs["last"])


# ---- errors -----------------------------------------------------------------------------------------------------------------


def test_the_running_error_is_carried_from_turn_to_turn():
    """A carry that is multiplied by 2 in each turn doubles what was lost before."""
    x, h = tg.input("x", (N,)), tg.input("h", ())
    _, ys = tg.scan(lambda h, x: ((new := h * 2.1 + x), new), h, x)
    given = {"x": np.random.default_rng(0).standard_normal(30).astype(np.float32), "h": np.float32(0.3)}
    error = running_error(tg.graph({"ys": ys}), given, {"n": 30})["ys"]
    exact = tg.interpret(tg.graph({"ys": ys}), given).outputs["ys"]
    rounded = tg.interpret(tg.graph({"ys": ys}), given, mode="as_written").outputs["ys"]
    assert error is not None and error[-1] > 1e5 * error[0] > 0
    assert np.all(np.abs(rounded - exact) <= 8 * error)


def fails(error, match, step, init=H, xs=X, axis=1):
    with pytest.raises(error, match=match):
        tg.scan(step, init, xs, axis=axis)


def test_what_is_no_step_is_refused():
    fails(GraphError, "the step returned a Node, a pair is needed", lambda h, x: h)
    fails(GraphError, "the step returned 3 values, a pair is needed", lambda h, x: (h, h, h))
    fails(DTypeError, "the carry that the step returned is float, a tensor", lambda h, x: (1.0, x))
    fails(GraphError, "init is a tensor, the carry that the step returned is a tuple of 1", lambda h, x: ((h,), x))
    fails(GraphError, "takes 2 carries and returned 1", lambda h, x: ((h[0],), x), init=(H, H))
    fails(GraphError, "carries nothing and returns nothing", lambda h, x: ((), None), init=())
    fails(ShapeError, r"the carry is f32\[b, 4\] before a turn and f32\[b, 5\] after it", lambda h, x: (x, x))
    fails(DTypeError, r"(?s)the carry is f32\[b, 4\] before a turn and f64\[b, 4\] after it.*tg.cast",
          lambda h, x: (tg.cast(h, tg.f64), x))
    fails(GraphError, "uses the dim n, which is in the shape of no tensor", lambda h, x: (h, tg.iota((N,), 0, tg.f32).sum() + x))


def test_a_step_that_cannot_be_called_with_a_carry_and_a_slice_is_refused():
    says = r"(?s)the step is called with 2 arguments \(carry, x\), and takes \(c\).*fix: def step\(carry, x\)"
    fails(GraphError, says, lambda c: c)
    fails(GraphError, r"(?s)the step is 3, which cannot be called.*fix: def step\(carry, x\)", 3)


def test_what_cannot_be_sliced_is_refused():
    step = cell
    fails(AttributeValueError, "xs is empty, so nothing says how many turns", step, xs=())
    fails(DTypeError, "xs is ndarray, a tensor", step, xs=np.zeros((2, 3)))
    fails(ShapeError, r"along axis 1 they have n and 5 slices", lambda h, x: (h, None), xs=(X, tg.input("y", (B, 5))))
    fails(AttributeValueError, "axis 3 of a tensor of rank 3", step, axis=3)
    fails(AttributeValueError, "axis of ys, 1 of a tensor of rank 1", lambda h, x: (h, x.sum()))


def test_a_text_with_a_wrong_scan_is_refused():
    text = print_graph(rnn())
    for old, new, why in (("carries=1", "carries=4", "of 4 carries and 1 sliced tensors has 4"),
                          ("slices=1", "slices=2", "have n and 4 slices"), ("carries=1", "carries=2", "the step takes"),
                          ("step=step", "step=2, other=step", "no attribute 'other'"),
                          ("reverse=false", "reverse=1", "true or false")):
        with pytest.raises(TextError, match=why):
            parse_graph(text.replace(old, new))


# ---- gradients --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", LENGTHS[1:4])
def test_a_gradient_is_that_of_the_turns_in_a_row(length, reverse):
    last, ys = replace_dims(list(rnn(reverse=reverse).outputs.values()), {"b": 2, "n": length})
    g = tg.graph({"last": last, "ys": ys})
    loop = last.inputs[0]
    in_a_row = rebuild([last, ys], lambda node, new: expand(loop)[node.attrs["index"]] if node in loop_items(loop) else None)

    def gradients(last, ys):
        total = (last * 1.5).sum() + (ys * ys).sum()
        return tg.interpret(tg.graph(tg.grad(total, list(g.inputs.values()))), values(length)).outputs.values()

    for found, wanted in zip(gradients(last, ys), gradients(*in_a_row), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


def loop_items(loop):
    return [item(loop, i) for i in range(2)]


def test_a_gradient_of_no_turns_is_that_of_the_carry_alone():
    last = rnn().outputs["last"]
    found = tg.interpret(tg.graph(tg.grad(last.sum(), [X, H, W])), values(0)).outputs
    assert found["out0"].shape == (2, 0, 5) and np.all(found["out1"] == 1.0) and np.all(found["out2"] == 0.0)


def test_integers_and_what_is_not_read_have_no_gradient():
    x, k = tg.input("x", (N,)), tg.input("k", (), tg.i32)
    (_, total), _ = tg.scan(lambda c, x: ((c[0] + 1, c[1] + x * tg.cast(c[0], tg.f32)), c[0]), (k, tg.constant(0.0)), x)
    found = tg.interpret(tg.graph(tg.grad(total, x)), {"x": np.ones(4, np.float32), "k": np.int32(3)}).outputs["out"]
    assert found.tolist() == [3.0, 4.0, 5.0, 6.0]


def test_a_gradient_can_be_differentiated_again():
    x = tg.input("x", (3,))
    last, _ = tg.scan(lambda h, x: (h * x, None), tg.constant(1.0), x)
    second = tg.grad(tg.grad(last, x).sum(), x)
    found = tg.interpret(tg.graph(second), {"x": np.array([2.0, 3.0, 5.0], np.float32)}).outputs["out"]
    assert found.tolist() == [8.0, 7.0, 5.0]
