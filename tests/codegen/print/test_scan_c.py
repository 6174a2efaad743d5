"""tests for codegen/print/scan_c.py: a scan as loops in C, at every length, whatever a step returns."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.print import scan_c
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.language.leaves import item
from tensor_graphs.language.node import apply
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.views.kernel_text import texts_in
from tests.language.test_scan import LENGTHS, rnn, values

N = tg.dim("n", 0, 128)


def run(node: tg.Node, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the loops of a scan of inputs give, in memory that held something else."""
    g = tg.graph({f"y{i}": item(node, i) for i in range(len(node.types))})
    assert scan_c.refuse(Spec.of(node)) is None
    model = bind(single_kernel_plan(g, kernel_named("gen.scan")), {})
    sizes = model.run(given)
    out = {name: np.full_like(a, 7) for name, a in sizes.items()}
    model.run(given, out=out)
    wanted = tg.interpret(g, given).outputs
    for name in g.outputs:
        np.testing.assert_allclose(out[name], wanted[name], rtol=2e-5, atol=2e-5)
    return out


def scan_of(g: tg.Graph) -> tg.Node:
    (node,) = [n for n in g.nodes if n.op.name == "scan"]
    return node


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_turns_are_the_oracles_at_every_length(length, reverse):
    loop = scan_of(rnn(reverse=reverse))
    h, x, w, u = (tg.input(name, i.shape, i.dtype) for name, i in zip("hxwu", loop.inputs, strict=True))
    given = values(length)
    given["x"] = np.ascontiguousarray(given["x"].transpose(1, 0, 2))
    run(apply(loop.op, (h, x, w, u), loop.attrs), given)


@pytest.mark.parametrize("length", LENGTHS)
def test_values_that_a_step_returns_twice_or_hands_on_are_there_each_time(length):
    x, a, b = tg.input("x", (N, 5)), tg.input("a", (5,)), tg.input("b", (5,))

    def step(c, x):
        new = c[0] * 0.5 + x
        return (new, new, c[1]), (new, c[2], x)

    _, ys = tg.scan(step, (a, b, b), x)
    rng = np.random.default_rng(length)
    run(ys[0].inputs[0], {"x": rng.standard_normal((length, 5)).astype(np.float32), "a": np.ones(5, np.float32),
                          "b": np.full(5, 2.0, np.float32)})


def test_carries_may_change_places():
    x, a, b = tg.input("x", (N,)), tg.input("a", ()), tg.input("b", ())
    last, _ = tg.scan(lambda c, x: ((c[1], c[0]), c[0] + x), (a, b), x)
    for length in (0, 1, 2, 5):
        run(last[0].inputs[0], {"x": np.arange(length, dtype=np.float32), "a": np.float32(1.0), "b": np.float32(2.0)})


def test_the_text_has_one_function_for_a_turn_and_one_for_all():
    program = scan_c.program_of(spec_to_loops.asked(Spec.of(scan_of(rnn()))))
    assert isinstance(program, scan_c.TurnsProgram)
    text = program.rendered("loop")
    assert "TG_KERNEL(loop_step)" in text and "TG_KERNEL(loop)" in text and text.count("for (int64_t turn = 0; turn < turns") == 1
    assert program.places == (0, 1) and not program.reverse


def test_a_step_that_has_no_loops_says_which():
    x = tg.input("x", (N, 64, 512))
    last, _ = tg.scan(lambda h, x: (tg.linear(h, tg.input("w", (512, 512))) + x, None), tg.input("h", (64, 512)), x)
    why = scan_c.refuse(Spec.of(last))
    assert why is not None and why.startswith("in its step: its loops have")


def test_a_compile_chooses_the_loops():
    assert "gen.scan" in str(tg.explain(tg.compile(rnn(), backends=("gen", "numpy"))))


def test_the_text_of_a_scan_in_a_plan_can_be_looked_at():
    plan = single_kernel_plan(rnn(), kernel_named("gen.scan"))
    (text,) = texts_in(plan, plan.variants[0], "gen.scan")
    assert "for (int64_t turn = 0" in text.text and "scan_step(" in text.text


@pytest.mark.parametrize("width", [3, 5, 8, 9, 16, 17])
@pytest.mark.parametrize("dtype", [tg.f32, tg.f64], ids=str)
def test_a_product_by_a_product_in_a_step_is_no_register_tile(width, dtype):
    """Its right operand looks like a panel of one, and is neither as wide nor where that would be."""
    start, turns_of = tg.input("s", (2, width, width), dtype), tg.input("a", (2, 3), dtype)
    last, _ = tg.scan(lambda s, a: (tg.tanh(s @ (s @ s)), None), start, turns_of)
    rng = np.random.default_rng(width)
    run(last.inputs[0] if last.op.name == "item" else last,
        {"s": (rng.standard_normal((2, width, width)) / width).astype(dtype.numpy), "a": np.zeros((2, 3), dtype.numpy)})
