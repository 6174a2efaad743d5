"""Accuracy: what is asked, its text both ways, which outputs it fits, and which draws meet it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.language.call_errors import CallError
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning import accuracy as tg_accuracy
from tensor_graphs.meaning.accuracy import RANGES, Accuracy, Term, as_written, cosine, kl, maximum, norm, parse, top1
from tensor_graphs.meaning.draw_bound import Spread, bound
from tensor_graphs.meaning.draw_statistics import EXACT, WRONG, Statistics

NAN, INF = math.nan, math.inf


@st.composite
def terms(draw: st.DrawFn) -> Term:
    statistic: Any = draw(st.sampled_from(list(RANGES)))
    allowed = RANGES[statistic]
    limit = draw(st.floats(allowed.least, allowed.most, allow_nan=False, allow_infinity=False))
    output = st.one_of(st.just(""), st.text(max_size=8), st.sampled_from(["a&b", "x:y", "state:k=1", "é %26", " 1e-3,"]))
    return Term(statistic, limit, draw(output))


@given(st.lists(terms(), max_size=4))
def test_the_text_of_an_accuracy_is_read_back(some: list[Term]):
    accuracy = Accuracy(tuple(some))
    assert parse(accuracy.text) == accuracy and parse(accuracy) is accuracy
    assert parse(accuracy.text.replace("&", " , ")) == accuracy
    assert Accuracy(tuple(reversed(some))).text == accuracy.text


@pytest.mark.parametrize("text, accuracy", [
    ("1e-5", maximum(1e-5)), ("logits=1e-2", maximum(1e-2, "logits")), ("max:1e-5", maximum(1e-5)), ("norm:1e-3", norm(1e-3)),
    ("norm:logits:1e-3", norm(1e-3, "logits")), ("kl:logits:0.01", kl("logits", 0.01)), ("kl:0.01", kl("", 0.01)),
    ("top1:logits:0.98", top1("logits", 0.98)), ("cosine:embedding:0.999", cosine("embedding", 0.999)),
    ("as_written:1.0", as_written(1.0)), ("cosine:-1", cosine("", -1.0)), ("written", Accuracy()), ("0", maximum(0.0)),
    ("norm:1e-3 & kl:logits:0.01", norm(1e-3) & kl("logits", 0.01)), ("a=1e-2,b=1e-3", maximum(1e-2, "a") & maximum(1e-3, "b")),
    ("norm:state:layers.0.k:1e-3", norm(1e-3, "state:layers.0.k")), ("state:k=1e-3", maximum(1e-3, "state:k")),
])
def test_texts_of_the_command_line_are_read(text: str, accuracy: Accuracy):
    assert parse(text) == accuracy


def test_values_of_python_are_read():
    assert parse(None) == Accuracy(()) == parse({}) == parse({"hidden": None})
    assert parse(1e-5) == parse(np.float64(1e-5)) == maximum(1e-5)
    assert parse(0) == maximum(0.0)
    assert parse({"logits": 1e-2, "hidden": None, "other": 1}) == maximum(1e-2, "logits") & maximum(1.0, "other")


def test_accuracies_are_read_by_people():
    assert str(parse(None)) == "as written" and parse(None).text == "written"
    assert str(parse(1e-5)) == "max error 1e-05"
    assert str(kl("logits", 0.01) & norm(1e-3, "logits")) == "norm 0.001 on logits and kl 0.01 on logits"
    assert str(as_written(1.5)) == "1.5 × the norm as written"


def test_both_of_two_accuracies_are_one_whatever_their_order():
    assert norm(1e-3) & kl("y", 0.1) == kl("y", 0.1) & norm(1e-3) & norm(1e-3) != norm(1e-3)
    assert norm(1e-3) & None == norm(1e-3) and norm(1e-3) & 1e-5 == maximum(1e-5) & norm(1e-3)
    assert len({norm(1e-3) & 1e-5, maximum(1e-5) & norm(1e-3)}) == 1
    assert norm(-0.0) == norm(0) and norm(-0.0).text == norm(0).text


@pytest.mark.parametrize("value, fault", [
    (-1e-5, "the tolerance is -1e-05"), (INF, "the tolerance is inf"), (NAN, "the tolerance is nan"),
    (True, "the tolerance is True"), ([1e-5], "the tolerance is [1e-05]"),
    ("inf", "the limit of max is inf"), ("nan", "the limit of max is nan"),
    ("abc", "the tolerance 'abc' ends in no number"), ("", "the tolerance '' ends in no number"),
    ("1e-5&", "the tolerance '' ends in no number"), ("kl:logits:", "the tolerance 'kl:logits:' ends in no number"),
    ("kl:logits", "the tolerance 'kl:logits' ends in no number"), ("mse:1e-3", "there is no statistic 'mse' of an error"),
    ("top1:logits:1.5", "the limit of top1 on 'logits' is 1.5"), ("cosine:y:-1.5", "the limit of cosine on 'y' is -1.5"),
    ("norm:-1", "the limit of norm is -1.0"), ({"y": -1}, "the limit of max on 'y' is -1"),
    ({"y": "1"}, "the limit of max on 'y' is '1'"), ({"": 1e-3}, "the tolerance names outputs by ''"),
    ({3: 1e-3}, "the tolerance names outputs by 3"),
])
def test_what_is_no_accuracy_is_refused_in_one_line_with_a_fix(value: Any, fault: str):
    with pytest.raises(ArgumentError) as raised:
        parse(value)
    message, fix = str(raised.value).split("\n")
    assert message == fault and fix.startswith("  fix: ")


def test_limits_of_constructors_are_checked():
    for wrong in (lambda: top1("y", 1.1), lambda: cosine("y", NAN), lambda: norm(INF), lambda: kl("y", -1), lambda: as_written(-1),
                  lambda: norm(1e-3, 3), lambda: Accuracy((Term("mse", 1.0),))):          # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="fix: "):
            wrong()


@pytest.mark.parametrize("call, fix", [
    (lambda: kl(0.01), 'call it like tg.accuracy.kl("logits", 0.01)'),                     # type: ignore[arg-type,call-arg]
    (lambda: kl(0.01, "logits"), 'the name of an output, as tg.accuracy.kl("logits", 0.01)'),       # type: ignore[arg-type]
    (lambda: top1(0.98), 'call it like tg.accuracy.top1("logits", 0.98)'),                 # type: ignore[arg-type,call-arg]
    (lambda: cosine("y"), 'call it like tg.accuracy.cosine("logits", 0.999)'),             # type: ignore[call-arg]
    (lambda: norm("y", 1e-3), 'the name of an output, as tg.accuracy.norm(0.001, "logits")'),       # type: ignore[arg-type]
    (lambda: maximum(), "call it like tg.accuracy.maximum(1e-05)"),                        # type: ignore[call-arg]
    (lambda: as_written(1.0, "y", 2), "call it like tg.accuracy.as_written(1)"),           # type: ignore[call-arg]
])
def test_a_wrong_call_of_a_constructor_is_refused_with_a_right_one(call: Callable[[], Accuracy], fix: str):
    with pytest.raises((ArgumentError, CallError)) as raised:
        call()
    assert str(raised.value).endswith(f"\n  fix: {fix}")


@pytest.mark.parametrize("text, fix", [
    ("kl:logits", "kl:logits:0.01"), ("kl", "kl:0.01"), ("norm:", "norm:0.001"), ("cosine:x:", "cosine:x:0.999"),
    ("norm:1e-3:logits", "norm:logits:1e-3"),
])
def test_a_text_with_a_statistic_and_no_limit_is_refused_with_one_that_has_it(text: str, fix: str):
    with pytest.raises(ArgumentError, match=f"\n  fix: {fix}$"):
        parse(text)
    parse(fix)


@pytest.fixture
def graph() -> Graph:
    n = tg.dim("n", 1, 8)
    x = tg.input("x", (n, 4))
    return tg.graph({"logits": x * 2, "token": tg.argmax(x, axis=-1), "loss": tg.sum(x),
                     "column": tg.sum(x, axis=-1, keepdims=True), "row": tg.sum(x, axis=-1)})


def test_an_accuracy_that_fits_a_graph_passes_the_check(graph: Graph):
    for fits in (None, 1e-5, {"loss": 1e-3, "token": None}, kl("logits", 0.1) & top1("logits", 0.9), cosine("row", 0.9), norm(1e-3),
                 as_written(1.0, "loss")):
        tg_accuracy.check(parse(fits), graph)
    only = tg.graph({"logits": graph.outputs["logits"], "token": graph.outputs["token"]})
    tg_accuracy.check(parse("kl:0.01"), only)
    assert tg_accuracy.named(parse("kl:0.01 & norm:1e-3"), only) == kl("logits", 0.01) & norm(1e-3, "logits")


@pytest.mark.parametrize("accuracy, fault, fix", [
    (norm(1e-3, "logit"), "norm 0.001 on logit: the graph has no such output; it has column, logits, loss, row, token",
     "norm:logits:0.001"),
    (kl("token", 0.1), "kl 0.1 on token: i32[n] has no rows of two floats or more", "kl:logits:0.1 or kl:row:0.1"),
    (top1("loss", 0.9), "top1 0.9 on loss: f32[] has no rows of two floats or more", "top1:logits:0.9 or top1:row:0.9"),
    (cosine("loss", 0), "cosine 0 on loss: f32[] has no rows of two floats or more", "cosine:logits:0.0 or cosine:row:0.0"),
    (kl("column", 1), "kl 1 on column: f32[n, 1] has no rows of two floats or more", "kl:logits:1.0 or kl:row:1.0"),
    (kl("", 0.1), "kl 0.1 names no output, and the graph has 4 of floats", "kl:logits:0.1 or kl:row:0.1"),
])
def test_an_accuracy_that_does_not_fit_a_graph_is_refused(graph: Graph, accuracy: Accuracy, fault: str, fix: str):
    with pytest.raises(ArgumentError) as raised:
        tg_accuracy.check(accuracy & norm(1e-3), graph)
    assert str(raised.value) == f"{fault}\n  fix: {fix}"


TYPICAL = Statistics(max=1e-3, p999=9e-4, norm=1e-4, kl=1e-6, top1=0.99, cosine=0.9999)
KNOWN = Spread(0.1, 10**6)


def draws(count: int = 8, **outputs: Statistics) -> list[dict[str, Statistics]]:
    return [dict(outputs) for _ in range(count)]


def test_as_written_needs_no_draw():
    decision = Accuracy().allows([])
    assert decision.allowed and decision.bound == 0 and decision.term is None


@pytest.mark.parametrize("statistic", ["max", "norm", "kl", "top1", "cosine"])
def test_a_term_is_met_up_to_its_bound_and_not_beyond(statistic: Any):
    measured = draws(y=TYPICAL)
    edge = bound([getattr(TYPICAL, statistic)] * 8, statistic, KNOWN)
    better = 1 if statistic in ("top1", "cosine") else -1           # the direction of stricter limits
    step = 1e-9 * abs(edge)
    for limit, within in ((edge, True), (edge - better * step, True), (edge + better * step, False)):
        decision = Accuracy((Term(statistic, limit, "y"),)).allows(measured, spread=KNOWN)
        assert (decision.allowed, decision.bound) == (within, edge), limit


def test_the_worst_term_is_reported_with_its_output():
    measured = draws(logits=TYPICAL, hidden=replace(TYPICAL, max=5e-2), token=EXACT)
    decision = (maximum(1e-1) & norm(1e-3, "logits") & top1("logits", 0.5)).allows(measured)
    assert decision.allowed and decision.term == Term("max", 1e-1, "hidden")
    decision = (maximum(1e-1) & kl("logits", 1e-8) & norm(1e-5)).allows(measured)
    assert not decision.allowed and decision.term == Term("kl", 1e-8, "logits")
    decision = (maximum(1e-3, "logits") & maximum(1.0, "hidden")).allows(measured)
    assert not decision.allowed and decision.term == Term("max", 1e-3, "logits"), "the bound is above the mean"


def test_exact_outputs_meet_a_limit_of_zero_and_others_do_not():
    strict = maximum(0) & norm(0) & kl("y", 0) & top1("y", 1) & cosine("y", 1) & as_written(0)
    assert strict.allows(draws(y=EXACT), draws(y=EXACT)).allowed
    for name in ("max", "norm", "kl", "top1", "cosine"):
        measured = draws(y=replace(EXACT, **{name: getattr(TYPICAL, name)}))
        assert not strict.allows(measured, draws(y=TYPICAL)).allowed, name


@pytest.mark.parametrize("accuracy", [maximum(1e99), norm(1e99), kl("y", 1e99), top1("y", 0), cosine("y", -1), as_written(1e99)])
def test_a_wrong_draw_and_one_that_is_missing_are_within_no_limit(accuracy: Accuracy):
    written = draws(y=TYPICAL)
    assert accuracy.allows(draws(y=TYPICAL), written).allowed
    assert not accuracy.allows([*draws(7, y=TYPICAL), {"y": WRONG}], written).allowed
    assert not accuracy.allows([], written).allowed
    assert not accuracy.allows([{"other": TYPICAL}, {"y": TYPICAL}], written).allowed


def test_an_output_of_some_draws_alone_counts_too():
    assert norm(1.0).allows([{"y": EXACT}, {"y": EXACT, "z": EXACT}]).term == Term("norm", 1.0, "z")


def test_as_written_is_relative_to_the_norm_of_the_graph_in_its_own_dtypes():
    written = [{"y": replace(TYPICAL, norm=norm)} for norm in (1e-2, 1e-4)]              # geometric mean 1e-3
    measured = draws(y=replace(TYPICAL, norm=2e-3))
    decision = as_written(2.5, "y").allows(measured, written)
    assert decision.allowed and decision.bound == pytest.approx(2.0)
    assert not as_written(1.9, "y").allows(measured, written).allowed
    assert not as_written(1e9).allows(measured).allowed, "nothing to compare with"
    assert not as_written(1e9).allows(measured, draws(y=EXACT)).allowed
    overflowed = draws(y=WRONG)
    assert as_written(1.0).allows(measured, overflowed).allowed
    for decision in (as_written(1.0).allows(overflowed, overflowed), as_written(1.0).allows(measured, [{}])):
        assert not decision.allowed and decision.bound == INF
