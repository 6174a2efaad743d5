"""Every rule is held to its class on random instances; rules that are wrong are refused with a counterexample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.rewrites.admission import INSTANCES, USER_RULES, admit, difference, instances
from tensor_graphs.rewrites.errors import PatternError, RewriteError, UnsoundRuleError
from tensor_graphs.rewrites.rule import Refused, Rule, make_rule
from tensor_graphs.rewrites.rules import REFUSED, RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_both_sides_of_a_rule_agree_within_its_class(rule: Rule) -> None:
    assert admit(rule, fingerprints=1 if rule.numeric_class == "reassociating" else 0).instances == INSTANCES >= 200


def test_no_two_rules_have_one_name() -> None:
    assert len({r.name for r in RULES}) == len(RULES)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_a_tempting_wrong_rule_is_refused(row: Refused) -> None:
    with pytest.raises(UnsoundRuleError):
        admit(row.rule())


UNSOUND: dict[str, tuple[str, str, tuple[str, ...], Callable[..., Any]]] = {
    "halving twice is a third": ("idiv(idiv(x, 2), 2)", "bitwise", ("int",),
                                 lambda x: atomic.idiv(x, atomic.fill(3, x.shape, x.dtype))),
    "double and halve": ("idiv(mul(x, 2), 2)", "bitwise", ("int", "uint"), lambda x: x),
    "narrow and wide": ("cast(cast(x, dtype=a), dtype=b)", "bitwise", ("int",), lambda x, b: x.cast(b)),
    "less or equal": ("less(x, add(y, 1))", "bitwise", ("int",), lambda x, y: tg.less_equal(x, y)),
    "abs is not negative": ("less(abs(x), 0)", "bitwise", ("int",), lambda x: atomic.fill(False, x.shape, tg.bool_)),
    "xor is addition": ("add(x, y)", "bitwise", ("uint",), lambda x, y: atomic.bit_xor(x, y)),
    "max of sums": ("add(max(x, y), z)", "bitwise", ("int",), lambda x, y, z: atomic.max(x + z, y + z)),
    "commuting sub": ("sub(x, y)", "reassociating", ("float",), lambda x, y: y - x),
    "sum of products": ("sum(mul(x, y), axes=a)", "reassociating", ("float",), lambda x, y, a: x.sum(a) * y.sum(a)),
    "max of a negation": ("neg(max(x, y))", "bitwise", ("float",), lambda x, y: atomic.max(-x, -y)),
    "division undone, in bits": ("mul(div(x, y), y)", "bitwise", ("float",), lambda x: x),
    "not less is less the other way": ("xor(less(x, y), True)", "bitwise", ("float",), lambda x, y: tg.less_equal(y, x)),
    "softmax is linear": ("softmax(add(x, y), axis=k)", "reassociating", ("float",), lambda x, y, k: tg.softmax(x, axis=k)),
    "a transpose is free": ("dot(x, y)", "reassociating", ("float",), lambda x, y: tg.dot(y, x)),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_rule_is_refused_with_its_counterexample(name: str) -> None:
    pattern, numeric_class, dtypes, replacement = UNSOUND[name]
    shapes = "x[n, n] y[n, n]" if "dot" in pattern else ""
    with pytest.raises(UnsoundRuleError) as refused:
        tg.rule(pattern, numeric_class, name=name, dtypes=dtypes, shapes=shapes)(replacement)
    text = str(refused.value)
    assert name in text and "instead of" in text and "is not" in text and "\n  x = " in text
    assert "input x " in text
    assert not any(r.name == name for r in USER_RULES)


def test_a_users_rule_is_a_few_lines_and_is_kept() -> None:
    @tg.rule("sub(mul(x, x), mul(y, y))", dtypes=("float",))
    def difference_of_squares(x: tg.Node, y: tg.Node) -> tg.Node:
        return (x - y) * (x + y)

    assert USER_RULES.pop() is difference_of_squares and difference_of_squares.numeric_class == "reassociating"


def test_a_rule_that_changes_the_shape_is_refused() -> None:
    with pytest.raises(UnsoundRuleError, match="replaces a value of"):
        admit(make_rule("permute(x, axes=a)", "bitwise", lambda x: x, name="lost"))


def test_a_rule_that_no_draw_fits_is_refused() -> None:
    with pytest.raises(RewriteError, match="only 0 fit"):
        admit(make_rule("add(x, y)", "bitwise", lambda x: None, name="never"), count=2)


@pytest.mark.parametrize(("pattern", "says"), [
    ("no_op(x)", "there is no op 'no_op'"), ("sum(x)", "the attribute 'axes' of sum is not said"),
    ("sum(x, axis=a)", "sum has no attribute 'axis'"), ("x", "applies no op"), ("add(x, ", "cannot be read"),
    ("add(x, y[2])", "is no part of a pattern")])
def test_a_pattern_that_is_none_is_an_error(pattern: str, says: str) -> None:
    with pytest.raises(PatternError, match=says):
        make_rule(pattern, "bitwise", lambda: None)


def test_a_replacement_may_ask_only_for_what_the_pattern_binds() -> None:
    with pytest.raises(PatternError, match="asks for 'q'"):
        make_rule("add(x, y)", "bitwise", lambda q: q, name="r")


def test_the_comparison_tells_zeros_and_infinities_apart() -> None:
    rule = make_rule("add(x, 0.0)", "bitwise", lambda x: x, name="z", dtypes=("float",))
    made = next(i for i in instances(rule, count=50) if i.left[0].shape == (2, 2))
    (leaf,) = made.values
    values = {leaf: np.array([[1.0, np.inf], [np.nan, 5e-324]]).astype(leaf.dtype.numpy)}
    assert difference(type(made)(made.left, made.right, values), "bitwise") is None
    values = {leaf: np.full((2, 2), -0.0).astype(leaf.dtype.numpy)}
    assert difference(type(made)(made.left, made.right, values), "bitwise") == "-0.0 instead of 0.0 at [0, 0]"
