"""The text of a kernel: what was written by hand by its name, what was generated for its part."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.views.kernel_text import texts_in, texts_named
from tests.plans import plan_of


def test_what_was_written_by_hand_is_shown_by_its_name() -> None:
    (python,), (c,) = texts_named("numpy.softmax"), texts_named("c.softmax")
    assert "def softmax(outs" in python.text and python.lines().startswith("# numpy.softmax: softmax on numpy, of ")
    assert "#include" in c.text and c.lines().startswith("// c.softmax: softmax on c") and c.identity[:16] in c.lines()
    with pytest.raises(KernelError, match="no kernel is named"):
        texts_named("c.nothing")
    with pytest.raises(KernelError, match=r"no text of its own: gen writes it .*\n  fix: a graph .*--source gen.loops"):
        texts_named("gen.loops")


def test_what_was_generated_is_shown_for_each_part_with_the_math_above() -> None:
    x, y = tg.input("x", (8, 16)), tg.input("y", (8,))
    plan = plan_of(tg.graph({"a": tg.exp(x), "b": tg.exp(y), "c": tg.exp(x + 1.0)}), ("gen",))
    (v,) = plan.variants
    v = replace(v, kernels={i.kernel: kernel_named(i.kernel) for i in v.program.instructions})
    found = {t.what: t for t in texts_in(plan, v, "gen.loops")}
    large, small = found["exp f32[8, 16]"], found["exp f32[8]"]
    assert len(large.steps) == 2
    assert set(large.steps) == {i.label for i in v.program.instructions if i.op == "exp"} - set(small.steps)
    assert large.text.startswith("/*") and "exp" in large.text.partition("*/")[0] and "#include" in large.text
    (one,) = texts_in(plan, v, small.steps[0])
    assert one.text == small.text != large.text
    with pytest.raises(KernelError, match=r"no step and no kernel named .exp.7.\n  fix: did you mean exp"):
        texts_in(plan, v, "exp.7")
