"""The e-graph: hash-consing, congruence, types, analyses, snapshots, and proofs that can be read back."""

from __future__ import annotations

import random

import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.errors import UnionError
from tests.counted_lines import lines_run

X, Y, Z = (tg.input(name, (3, 4)) for name in "xyz")


def test_commuted_operands_are_one_e_node() -> None:
    e = EGraph()
    assert e.find(e.add(X + Y)) == e.find(e.add(Y + X))
    assert e.find(e.add(X - Y)) != e.find(e.add(Y - X))
    e.check_invariants()


def test_a_union_of_operands_makes_their_users_equal_at_any_depth() -> None:
    e = EGraph()
    a, b, x, y = e.add(tg.exp2(tg.sin(X) + Z)), e.add(tg.exp2(tg.sin(Y) + Z)), e.add(X), e.add(Y)
    e.rebuild()
    assert e.find(a) != e.find(b)
    assert e.union(x, y, "said so")
    e.rebuild()
    e.check_invariants()
    assert e.find(a) == e.find(b)
    assert not e.union(a, b, "known")


def test_a_later_node_falls_into_the_class_of_its_congruent_one() -> None:
    e = EGraph()
    a = e.add(tg.sin(X))
    e.union(e.add(X), e.add(Y), "said so")
    e.rebuild()
    assert e.find(e.add(tg.sin(Y))) == e.find(a)
    e.check_invariants()


def test_random_unions_keep_the_invariants() -> None:
    for seed in range(15):
        r, e = random.Random(seed), EGraph()
        nodes = [X, Y, Z]
        for _ in range(25):
            f = r.choice([atomic.add, atomic.mul, atomic.max])
            nodes.append(r.choice([f(r.choice(nodes), r.choice(nodes)), tg.sin(r.choice(nodes))]))
        terms = [e.add(n) for n in nodes]
        for _ in range(6):
            e.union(r.choice(terms), r.choice(terms), "at random")
            e.rebuild()
            e.check_invariants()


def test_values_of_two_types_are_never_joined() -> None:
    e = EGraph()
    with pytest.raises(UnionError, match=r"bad says that a value of f32\[3, 4\] is one of f32\[4, 3\]"):
        e.union(e.add(X), e.add(X.T), "bad")


def test_shapes_that_are_proved_equal_are_one_type() -> None:
    n = tg.dim("n", 1, 9)
    e = EGraph()
    assert e.union(e.add(tg.input("p", (n + n,))), e.add(tg.input("q", (2 * n,))), "said so")


def test_outputs_of_one_node_have_classes_of_their_own() -> None:
    e = EGraph()
    values, indices = tg.topk(X, k=2)
    assert e.find(e.add(values)) != e.find(e.add(indices))
    assert e.of(e.add(indices)).type.dtype == tg.i32


def test_a_number_is_known_through_views_and_unions() -> None:
    e = EGraph()
    two = e.add(atomic.fill(2.0, (3, 4), tg.f32))
    assert e.of(two).splat == 2.0
    view = e.add(X.T)
    e.union(e.add(X), two, "said so")
    e.rebuild()
    assert e.of(view).splat == 2.0
    third = e.add(tg.constant(0.1, tg.f32))
    assert e.of(third).splat == 0.1                                # as written, not as f32 holds it


def test_what_needs_no_input_is_known_when_bound() -> None:
    e, n = EGraph(), tg.dim("n", 1, 9)
    w = tg.parameter("w", (3, 4))
    assert e.of(e.add(tg.exp(w) + 1.0)).bound
    assert not e.of(e.add(w + X)).bound
    assert not e.of(e.add(tg.iota((n,)))).bound                    # its size is not


def test_a_snapshot_does_not_see_later_unions() -> None:
    e = EGraph()
    a, b = e.add(X), e.add(Y)
    before = e.view()
    e.union(a, b, "said so")
    e.rebuild()
    assert before.find(a) != before.find(b) and e.view().find(a) == e.view().find(b)


def test_a_copy_to_a_device_is_refused() -> None:
    with pytest.raises(tg.TensorGraphsError, match="no value of its own"):
        EGraph().add(tg.copy_to(X, "cpu"))


def test_the_invariant_check_sees_a_stale_e_node() -> None:
    e = EGraph()
    e.add(tg.sin(X)), e.add(tg.sin(Y))
    e.union(e.add(X), e.add(Y), "said so")
    with pytest.raises(AssertionError, match="not rebuilt"):
        e.check_invariants()
    e._pending.clear()
    with pytest.raises(AssertionError):
        e.check_invariants()


def test_a_chain_that_is_added_step_by_step_is_work_in_proportion_to_its_length() -> None:
    def add_all(steps: int) -> None:
        e, y = EGraph(), X
        for _ in range(steps):
            y = tg.sin(y) + X
            e.add(y)

    add_all(3)
    assert lines_run(lambda: add_all(400)) < 2.2 * lines_run(lambda: add_all(200))
