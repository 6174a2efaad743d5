"""tests for kernels/numpy/scan.py: a loop over the step, judged like every kernel, at every length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.numpy import scan
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.meaning.precision import parse_form
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.inputs import Point, point_inputs
from tensor_graphs.records.database import open_database
from tensor_graphs.rewrites.passes.apply_precision import apply_form
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tests.language.test_scan import LENGTHS, rnn, values


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with open_database(":memory:") as database, Judge(database) as one:
        yield one


def loop_of(g: tg.Graph) -> tg.Node:
    (node,) = [n for n in g.nodes if n.op.name == "scan"]
    return node


def plan(g: tg.Graph) -> CompiledGraph:
    return tg.bind(tg.compile(g, backends=("numpy",)), {})


SIZES = {"n": 17, "b": 2}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_compiled_recurrence_is_the_oracles_at_every_length(reverse):
    g = rnn(reverse=reverse)
    model = plan(g)
    for length in LENGTHS:
        given = values(length)
        found, wanted = model.run(given), tg.interpret(g, given).outputs
        for name in g.outputs:
            np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=2e-6)


def test_the_judge_compares_it_at_no_slices_at_one_and_at_many(judge, monkeypatch):
    monkeypatch.setattr(judge, "secret", lambda signature: 7)       # some lengths are drawn by it, 3 not always among them
    signature = signature_of(loop_of(rnn()))
    lengths = {p.binding["n"] for p in judge.points(kernel_named("numpy.scan"), signature, SIZES)}
    assert {0, 1, 3, 17} <= lengths and max(lengths) > 100
    verdict = judge.examine(kernel_named("numpy.scan"), signature, SIZES)
    assert verdict.status == "PASSED", verdict.log


@pytest.mark.parametrize("wrong", ["the last slice is left out", "the other way round", "from zeros"])
def test_a_loop_that_is_wrong_is_not_within_what_rounding_explains(judge, wrong):
    """The values that the judge draws show it: 17 turns later the carry still knows where it began."""
    signature = signature_of(loop_of(rnn()))
    point = Point(tuple(sorted(SIZES.items())), 5)
    expected = judge.expected(signature, point)
    assert expected is not None
    h, x, *others = point_inputs(signature.graph, point).values()
    attrs = dict(signature.spec.attrs) | {"step": signature.spec.attrs["step"].with_dims(SIZES)}
    outs = [np.zeros(t.at(SIZES).shape, np.float32) for t in signature.spec.outputs]
    scan.scan(outs, [h, x, *others], attrs)
    assert judge._error(signature, point, "y0", outs[0], expected["y0"], in_full=False).within(1e-4)
    if wrong == "the last slice is left out":
        scan.scan([outs[0], outs[1][:-1]], [h, x[:-1], *others], attrs)
    elif wrong == "the other way round":
        scan.scan(outs, [h, x, *others], attrs | {"reverse": True})
    else:
        scan.scan(outs, [np.zeros_like(h), x, *others], attrs)
    assert not judge._error(signature, point, "y1", outs[1], expected["y1"], in_full=False).within(1e-4) or (
        not judge._error(signature, point, "y0", outs[0], expected["y0"], in_full=False).within(1e-4))


def test_a_carry_that_is_handed_on_unchanged_or_swapped_is_kept():
    x = tg.input("x", (tg.dim("n", 0, 64),))
    a, b = tg.input("a", ()), tg.input("b", ())
    (p, q), ys = tg.scan(lambda c, x: ((c[1], c[0]), c[0] + x), (a, b), x)
    g = tg.graph({"p": p, "q": q, "ys": ys})
    model = plan(g)
    for length in (0, 1, 2, 5):
        given = {"x": np.arange(length, dtype=np.float32), "a": np.float32(1.0), "b": np.float32(2.0)}
        found, wanted = model.run(given), tg.interpret(g, given).outputs
        assert all(np.array_equal(found[k], wanted[k]) for k in g.outputs)


def test_a_step_with_an_op_that_has_no_function_here_is_refused():
    @tg.composite
    def mine(x):
        return x * 2.0

    x = tg.input("x", (4, 3))
    written_out = tg.scan(lambda h, x: (mine(h) + x, None), tg.input("h", (3,)), x)[0]
    assert scan.refuse(Spec.of(written_out)) is None
    opaque = tg.composite(lambda x: x * 2.0, name="closed", opaque=True)
    held = tg.scan(lambda h, x: (opaque(h) + x, None), tg.input("h", (3,)), x)[0]
    assert scan.refuse(Spec.of(held)) == "closed in the step has no function here"


def test_explain_and_the_list_of_paths_show_it():
    compiled = tg.compile(rnn(), backends=("numpy",))
    assert "numpy.scan" in str(tg.explain(compiled))
    first = next(iter(tg.list_paths(rnn(), backends=("numpy",))))
    assert "numpy.scan" in first.choices.values()


def test_wider_values_end_at_a_loop_whose_weights_are_parameters():
    w = tg.parameter("w", (3, 3))
    last, _ = tg.scan(lambda h, x: (tg.tanh(tg.linear(h, w) + x), None), tg.input("h", (3,)), tg.input("x", (tg.dim("n", 0, 8), 3)))
    wide = apply_form(tg.graph(tg.softmax(last)), parse_form("f64")).graph
    found = {n.op.name: n.types[0].dtype for n in wide.nodes if n.op.kind == "composite"}
    assert found == {"scan": tg.f32, "softmax": tg.f64}
    tg.compile(tg.graph(tg.softmax(last)), backends=("numpy",))
