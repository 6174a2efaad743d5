"""Composites: a definition is matcher, oracle and documentation; names alone mean nothing."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language import composite as c
from tensor_graphs.language.call_errors import CallError
from tensor_graphs.language.errors import AttributeValueError, DTypeError, LanguageError
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.interpreter import interpret
from tests.language.messages import said
from tests.language.written_graphs import scaled, split, total

X = tg.input("x", (2, 3))
Y = tg.input("y", (2, 3))


def test_calling_a_composite_makes_one_node_with_its_attributes():
    made = scaled(X, by=3.0)
    assert made.op is scaled and made.inputs == (X,) and made.attrs["by"] == 3.0
    assert made.type == X.type and scaled.__doc__ == "by · x, and y added if there is one."


def test_an_absent_operand_is_part_of_the_identity():
    assert scaled(X).attrs["absent"] == ("y",) and "absent" not in scaled(X, Y).attrs
    assert scaled.roles(scaled(X)) == {"x": X}
    assert scaled.roles(scaled(X, Y)) == {"x": X, "y": Y}


def test_operands_are_known_by_role_also_when_there_are_many():
    assert total.roles(total(X, Y, X)) == {"xs": [X, Y, X]}
    assert total.by_role(["a", "b"], {}) == {"xs": ["a", "b"]}


def test_a_default_and_the_same_value_written_out_are_one_node():
    assert scaled(X) is scaled(X, by=2.0) is scaled(x=X)


def test_expanding_gives_the_definition_on_the_operands():
    assert c.expand(scaled(X, Y, by=3.0)) == (X * 3.0 + Y,)
    assert c.expand(total(X, Y)) == ((X + Y) * 1.0,)
    assert c.expand(scaled(X), inputs=[Y]) == (Y * 2.0,)


def test_several_outputs_come_as_a_tuple():
    left, right = split(X, at=1)
    assert left.shape == (2, 1) and right.shape == (2, 2)
    assert c.expand(left.inputs[0]) == (X[:, :1], X[:, 1:])


def test_expanding_everything_leaves_atomic_ops_only():
    left, right = split(scaled(tg.softmax(X), Y), at=2)
    for out in (left, right):
        kinds = {n.op.kind for n in walk(c.expand_all([out]))}
        assert kinds <= {"atomic", "leaf"}
    assert c.expand_all([left, right])[1].type == right.type


def test_expanding_everything_but_some_keeps_those():
    deep = scaled(tg.softmax(X))
    kept = c.expand_all([deep], keep=lambda n: n.is_op("softmax"))
    names = {n.op.name for n in walk(kept)}
    assert "softmax" in names and "scaled" not in names


def test_an_opaque_composite_is_never_expanded():
    @tg.composite(opaque=True)
    def sealed(x: Node) -> Node:
        return x + x

    made = sealed(X)
    assert c.expand_all([made]) == [made]


def test_two_composites_of_one_name_are_two_ops_and_differ_by_their_definition():
    def make(factor: float) -> c.CompositeOp:
        def activation(x: Node) -> Node:
            return x * factor

        return tg.composite(activation)

    twice, thrice, again = make(2.0), make(3.0), make(2.0)
    assert twice(X) is not thrice(X) and twice(X).digest != thrice(X).digest
    assert twice(X).digest == again(X).digest


def test_the_digest_of_a_composite_does_not_depend_on_its_source_text():
    def one(x: Node) -> Node:
        return x + x

    def other(x: Node) -> Node:
        """The same, said at length."""
        same = x
        return same + x

    assert tg.composite(name="double")(one)(X).digest == tg.composite(name="double")(other)(X).digest


def test_a_definition_is_built_once_for_given_types_and_attributes():
    calls = []

    @tg.composite
    def counted(x: Node, *, by: float) -> Node:
        calls.append(by)
        return x * by

    for _ in range(3):
        counted(X, by=1.0)
        counted(Y, by=1.0)
    assert calls == [1.0]
    counted(X, by=2.0)
    counted(X.cast(tg.f16), by=1.0)
    assert calls == [1.0, 2.0, 1.0]


def test_a_library_name_is_taken_only_once():
    with pytest.raises(ValueError, match="two library composites are named softmax"):
        c.library(name="softmax")(lambda x: x)


def test_lists_and_numpy_scalars_become_plain_attributes():
    @tg.composite
    def tagged(x: Node, *, axes: tuple[int, ...], dtype: tg.DType) -> Node:
        return tg.sum(x, axes).cast(dtype)

    made = tagged(X, axes=[np.int64(0), 1], dtype=tg.f16)
    assert made.attrs["axes"] == (0, 1) and type(made.attrs["axes"][0]) is int
    assert made is tagged(X, axes=(0, 1), dtype=tg.f16)


def test_dims_in_attributes_get_their_values():
    n = tg.dim("n", 1, 8)
    found = c.resolve_attributes({"a": n + 1, "b": (2, (n, "x")), "c": 1.5}, {"n": 3})
    assert found == {"a": 4, "b": (2, (3, "x")), "c": 1.5}


def test_a_wrong_call_shows_the_signature():
    assert said(lambda: split(X), CallError) == (
        "CallError at HERE: split(x, *, at): missing a required argument: 'at'\n  fix: call it like split(x, *, at)")
    assert said(lambda: split(X, at=1, colour=2), CallError) == (
        "CallError at HERE: split(x, *, at) has no argument 'colour'\n  fix: its arguments are: x, at")


def test_an_operand_that_is_no_tensor_is_refused():
    assert said(lambda: scaled(3.0), DTypeError) == (
        "DTypeError at HERE: scaled: operand 'x' is float, a tensor is needed\n"
        "  fix: wrap numbers and arrays with tg.constant")


def test_an_attribute_that_is_a_tensor_is_refused():
    message = said(lambda: scaled(X, by=Y), AttributeValueError)
    assert message.startswith("AttributeValueError at HERE: scaled: attribute 'by' cannot be <input f32[2, 3]")
    assert message.endswith("\n  fix: numbers, strings, dtypes, dims and tuples of them; tensors come before the *")


@pytest.mark.parametrize("build", [3, "silu", X], ids=["number", "text", "tensor"])
def test_a_composite_is_defined_by_a_function(build):
    message = said(lambda: tg.composite(build), AttributeValueError)
    assert "a composite of " in message and message.endswith("\n  fix: @tg.composite above def silu(x): …, which returns a tensor")


def test_the_name_of_a_composite_is_a_text():
    assert said(lambda: tg.composite(name=3), AttributeValueError) == (
        "AttributeValueError at HERE: a composite is named 3, of type int\n  fix: a text: name=\"silu\"")


def test_a_definition_that_returns_no_tensor_is_refused():
    @tg.composite
    def broken(x: Node) -> Node:
        return 3.0  # type: ignore[return-value]

    assert said(lambda: broken(X), LanguageError) == (
        "LanguageError at HERE: the definition of broken returned 3.0, a tensor is needed")


def test_a_node_without_a_definition_cannot_be_expanded():
    assert said(lambda: c.expand(X), LanguageError) == (
        "LanguageError at HERE: input is not a composite, it has no definition")


def test_a_direct_evaluation_is_used_by_the_oracle_and_agrees_with_the_definition():
    seen = []

    def by_numpy(roles, attrs, out_types):
        seen.append((sorted(roles), attrs, out_types))
        return roles["x"] * attrs["by"]

    @tg.composite(direct=by_numpy)
    def times(x: Node, *, by: tg.Dim) -> Node:
        return x * by

    n = tg.dim("n", 1, 8)
    values = np.arange(6.0).reshape(2, 3)
    found = interpret(tg.graph(times(X, by=n)), {"x": values}, dims={"n": 4}).outputs["out"]
    np.testing.assert_array_equal(found, values * 4)
    assert seen == [(["x"], {"by": 4}, (X.type,))]


def tower(levels: int) -> Node:
    """A call of a definition that calls another twice, and so on, `levels` deep; what is inside changes from call to call."""
    def twice(inner: c.CompositeOp, level: int) -> c.CompositeOp:
        return c.composite(lambda x: inner(inner(x)), name=f"f{level}")

    op: c.CompositeOp = c.composite(lambda x: atomic.sin(x), name="f0")
    for level in range(1, levels + 1):
        op = twice(op, level)
    made: Node = op(X)
    return made


def test_definitions_that_double_with_each_level_are_written_out_up_to_a_limit():
    assert len(walk(c.expand_all([tower(10)]))) == 2 ** 10 + 1
    message = said(lambda: c.expand_all([tower(40)]), c.TooManyNodesError)
    assert f"more than {c.MOST_WRITTEN_OUT} nodes when they are written out; the last one was f1" in message and "fix:" in message


def test_an_attribute_that_stands_before_the_star_is_told_where_it_belongs():
    bad = c.composite(lambda x, scale=2.0: x * scale, name="bad")
    for call in (lambda: bad(X, 3.0), lambda: bad(X)):
        assert said(call, DTypeError).endswith("fix: an attribute stands behind a *: def bad(x, *, scale=2.0)")


def test_a_definition_is_written_out_once_for_all_that_use_it():
    """f(a, b) = g(a, b) · g(b, a), 60 levels deep, is 120 nodes, not 2⁶⁰."""
    def both(inner: c.CompositeOp, level: int) -> c.CompositeOp:
        return c.composite(lambda x, y: atomic.mul(inner(x, y), inner(y, x)), name=f"g{level}")

    op: c.CompositeOp = c.composite(lambda x, y: atomic.add(x, y), name="g0")
    for level in range(1, 61):
        op = both(op, level)
    assert len(walk(c.expand_all([op(X, Y)]))) < 200


def test_a_dtype_may_be_named_wherever_one_is_an_attribute():
    key, ids = tg.input("key", (2,), tg.u32), tg.input("ids", (3,), tg.i32)
    x, w = tg.input("x", (2, 16), tg.f8e4m3), tg.input("w", (4, 16), tg.f8e4m3)
    table = tg.input("table", (5, 4))
    calls = {"scaled_linear": lambda dtype: tg.scaled_linear(x, w, dtype=dtype),
             "one_hot": lambda dtype: tg.one_hot(ids, size=5, dtype=dtype),
             "embedding": lambda dtype: tg.embedding(table, ids, dtype=dtype),
             "uniform": lambda dtype: tg.uniform(key, shape=(4,), dtype=dtype),
             "normal": lambda dtype: tg.normal(key, shape=(4,), dtype=dtype),
             "rope_table": lambda dtype: tg.rope_table(ids, head_dim=4, theta=1e4, dtype=dtype)[0]}
    takes = {name for name, op in c.LIBRARY.items() for p in op.signature.parameters.values() if isinstance(p.default, tg.DType)}
    assert takes <= calls.keys()
    for name, call in calls.items():
        assert call("float16").dtype is tg.f16 and call(np.float32) is not None, name
        for wrong in (None, "f99", 3):
            with pytest.raises(DTypeError, match=r"(?s) is no dtype.*fix: one of f16"):
                call(wrong)
