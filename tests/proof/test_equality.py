"""`equal` proves what is equal, refutes what is not, and is never wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.language.errors import GraphError
from tensor_graphs.proof import counterexample, fingerprint
from tensor_graphs.proof.equality import equal
from tests.proof.equal_pairs import EQUAL, UNREFUTED
from tests.proof.near_misses import MISSES, UNDECIDED
from tests.proof.pairs import Pair
from tests.proof.random_graphs import differ, random_pair

X, W = tg.input("x", (3, 8)), tg.parameter("w", (4, 8))


@pytest.mark.parametrize("pair", EQUAL, ids=lambda pair: pair.name)
def test_an_equal_pair_is_proved_but_where_a_number_meets_a_size(pair: Pair) -> None:
    a, b = pair.graphs()
    verdict, other_way = equal(a, b, bits=pair.bits), equal(b, a, bits=pair.bits)
    if pair.tested_at:
        assert verdict.status == other_way.status == "tested" and set(pair.tested_at) <= set(verdict.tested_at), verdict.show()
        return
    assert verdict.proved and other_way.proved, verdict.show()
    if verdict.status == "fingerprint":
        assert verdict.probability is not None and verdict.probability <= 2.0**-24


@pytest.mark.parametrize("pair", MISSES, ids=lambda pair: pair.name)
def test_a_near_miss_is_refuted_with_a_counterexample(pair: Pair) -> None:
    a, b = pair.graphs()
    verdict = equal(a, b, bits=pair.bits)
    assert verdict.status == "refuted", verdict.show()
    example = verdict.counterexample
    assert example is not None
    if example.shapes is None:
        assert example.left is not None and example.right is not None and abs(example.left - example.right) > example.noise
    else:
        assert example.shapes[0] != example.shapes[1]


@pytest.mark.parametrize("pair", UNDECIDED, ids=lambda pair: pair.name)
def test_a_miss_that_is_too_near_is_never_called_equal(pair: Pair) -> None:
    a, b = pair.graphs()
    for one, other in ((a, b), (b, a)):
        verdict = equal(one, other, bits=pair.bits)
        assert verdict.status in ("refuted", "unknown"), verdict.show()
        assert (verdict.counterexample is not None) == (verdict.status == "refuted")
        assert verdict.status == "refuted" or verdict.reason


@pytest.mark.parametrize("pair", UNREFUTED, ids=lambda pair: pair.name)
def test_an_equal_pair_that_float64_does_not_show_is_never_refuted(pair: Pair) -> None:
    a, b = pair.graphs()
    for one, other in ((a, b), (b, a)):
        assert equal(one, other, bits=pair.bits).status != "refuted"


@pytest.mark.parametrize("start", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(20, 200, 20))])
def test_random_pairs_get_no_wrong_verdict(start: int) -> None:
    decided = 0
    for seed in range(start, start + 20):
        pair = random_pair(seed)
        verdict = equal(pair.left, pair.right)
        if pair.equal:
            assert verdict.status != "refuted", (seed, pair.changes, verdict.show())
            decided += verdict.proved
        elif verdict.proved:                                # then the change made no difference, and float64 says so too
            assert differ(pair.left, pair.right, seed) is not True, (seed, pair.changes, verdict.show())
        else:
            decided += verdict.status == "refuted"
    assert decided >= 10


def test_one_function_of_differently_named_leaves_is_not_the_same_function() -> None:
    x, y = tg.input("x", (3,)), tg.input("y", (3,))
    assert equal(tg.graph(x - y), tg.graph(y - x)).status == "refuted"
    assert equal(tg.graph(x), tg.graph(y)).status == "refuted"


def test_dims_are_matched_by_the_leaves_that_have_them() -> None:
    n, k = tg.dim("n", 1, 64), tg.dim("k", 2, 100)
    one, other = tg.graph(tg.input("x", (n,)).sum()), tg.graph((tg.input("x", (k,)) * 1.0).sum())
    assert equal(one, other).proved and equal(one, tg.graph((tg.input("x", (8,)) * 2.0).sum() * 0.5)).proved
    assert "size" in equal(tg.graph(tg.input("x", (4,)).sum()), tg.graph(tg.input("x", (5,)).sum())).reason


def test_a_verdict_says_at_which_sizes_two_graphs_can_be_compared_at_all() -> None:
    def made(dim: tg.Dim, twice: bool = False) -> tg.Graph:
        x = tg.input("x", (dim,))
        return tg.graph(x + x if twice else x * 2.0)

    n, k = tg.dim("n", 1, 64), tg.dim("k", 2, 100)
    for one, other, common in ((n, 5, "n = 5"), (n, k, "n from 2 to 64"), (k, tg.dim("k", 1, 50), "k from 2 to 50"),
                             (k, 2 * tg.dim("j", 1, 50), "k = 2*j")):
        for twice in (False, True):
            for a, b in ((made(one), made(other, twice)), (made(other, twice), made(one))):
                verdict = equal(a, b)
                assert verdict.proved and verdict.assuming[0] in (common, common.replace("n from", "k from")), verdict.show()
                assert verdict.assuming[0] in verdict.show() and verdict.as_json()["assuming"][0] == verdict.assuming[0]
    assert "=" not in "".join(equal(made(n), made(n, True)).assuming) and not equal(made(n), made(n)).assuming
    apart = equal(made(n), made(tg.dim("n", 65, 80)))
    assert apart.status == "unknown" and "n from 1 to 64" in apart.reason and "n from 65 to 80" in apart.reason
    assert "n, from 1 to 64" in equal(made(n), made(65)).reason
    assert "does not cover" in equal(made(n), made(2 * tg.dim("j", 1, 50))).reason


def test_a_threshold_that_no_number_shows_makes_a_verdict_unknown() -> None:
    n = tg.dim("n", 1, 4096)
    x = tg.input("x", (n,))
    late = tg.where(tg.iota((n,)) // 9 // 9 // 9 < 2, x, 0.0)
    assert equal(tg.graph(x), tg.graph(late)).status in ("refuted", "unknown")


def test_a_pole_in_one_graph_alone_is_no_proof() -> None:
    x = tg.input("x", (5,))
    assert equal(tg.graph(tg.relu(x) / tg.relu(x)), tg.graph(x * 0.0 + 1.0)).status == "unknown"


def test_a_verdict_is_not_a_truth_value_and_has_a_form_for_machines() -> None:
    x = tg.input("x", (tg.dim("n", 1, 9),))
    verdict = tg.equal(tg.graph(x + x), tg.graph(x * 2.0))
    with pytest.raises(TypeError, match="six values"):
        bool(verdict)
    data = json.loads(json.dumps(verdict.as_json(), allow_nan=False))
    assert data["verdict"] == "fingerprint" and 0 < data["probability"] <= 2.0**-24 and data["sizes"][0] == {"n": 4}
    refuted = equal(tg.graph(x), tg.graph(x + 1.0))
    data = json.loads(json.dumps(refuted.as_json(), allow_nan=False))
    assert data["verdict"] == "refuted" and data["counterexample"]["leaves"]["x"]["values"]
    assert "out[" in refuted.show() and "x float64" in refuted.show()


def test_shapes_that_differ_are_said_in_text_and_json() -> None:
    x = tg.input("x", (3, 5))
    verdict = equal(tg.graph({"o": tg.exp(x)}), tg.graph({"o": tg.reshape(x, (5, 3))}))
    assert verdict.show() == "not equal:\nthe shapes differ: o is [3, 5] in one graph and [5, 3] in the other"
    data = json.loads(json.dumps(verdict.as_json(), allow_nan=False))["counterexample"]
    assert data["shapes"] == [[3, 5], [5, 3]] and data["left"] is None and data["output"] == "o"
    assert equal(tg.graph(x), tg.graph(x + 1.0)).as_json()["counterexample"]["shapes"] is None


def _where(make: Callable[[tg.Node], tg.Node], shape: tuple[int, ...], dtype: tg.DType = tg.f32) -> tg.Graph:
    return tg.graph(make(tg.input("x", shape, dtype)))


@pytest.mark.parametrize("shape", [(8,), ()], ids=str)
@pytest.mark.parametrize(("one", "other"), [
    (lambda x: x, lambda x: tg.where((x > 123.0) & (x < 123.5), x + 1.0, x)),
    (lambda x: tg.where(x < 1000.0, x, x), lambda x: tg.where(x < 1000.0, x, x + 1.0)),
    (lambda x: x, lambda x: tg.where(x < -77.0, x * 2.0, x))], ids=["between", "above", "below"])
def test_what_differs_beyond_a_number_of_the_graph_is_refuted(one: Any, other: Any, shape: tuple[int, ...]) -> None:
    assert equal(_where(one, shape), _where(other, shape)).status == "refuted"


def test_a_reason_that_nothing_is_known_does_not_read_like_a_refutation() -> None:
    verdict = equal(_where(lambda i: i % 8, (8,), tg.i32), _where(lambda i: i & 7, (8,), tg.i32))
    assert verdict.status == "unknown" and "as they may for equal graphs" in verdict.reason


def _causal(window: int) -> tg.Graph:
    s = tg.dim("s", 1, 2048)
    q, k, v = tg.input("q", (s, 4, 8)), tg.input("k", (s, 2, 8)), tg.input("v", (s, 2, 8))
    return tg.graph(tg.attention(q, k, v, scale=0.35, causal=True, window=window))


def test_a_run_is_charged_for_what_a_composite_hides_so_that_none_takes_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, attempt = [], counterexample.attempt

    def counted(left: Any, right: Any, binding: Any, *rest: Any) -> Any:
        sizes.append(binding["s"])
        return attempt(left, right, binding, *rest)

    monkeypatch.setattr(counterexample, "attempt", counted)
    assert equal(_causal(2048), _causal(0)).status == "unknown"     # equal, as no s is larger, but too much to prove
    assert sizes and max(sizes) < 800
    sizes.clear()
    assert equal(_causal(512), _causal(513)).status == "refuted" and max(sizes) == 513
    assert counterexample.cost(_causal(2047).roots, {"s": 2048}) > 10 * counterexample.cost(_causal(2047).roots, {"s": 512})


def test_perturbed_runs_end_when_no_difference_can_count_any_more() -> None:
    x, y = tg.input("x", (64,)), tg.input("y", (64,))
    always = tg.graph(tg.expand(tg.reshape(tg.constant(True), (1,)), (64,)))
    for below, runs in ((tg.less(0.0, tg.erfc(x * x + 40.0)), 1),       # e^-1600 is below the range of float64
                        (tg.less(tg.erf(x * x + 20.0), 1.0), 20),       # at 1 each run falls on either side
                        (tg.less(x * 0.5, y + y), counterexample.RUNS)):
        trial = counterexample.attempt(tg.graph(below).outputs, always.outputs, {}, 0, 0)
        assert trial is not None and trial.perturbed <= runs
        assert (trial.example is not None) == (runs == counterexample.RUNS) == (trial.perturbed == counterexample.RUNS)


def test_a_run_with_an_integer_that_float64_does_not_hold_refutes_nothing() -> None:
    i = tg.input("i", (64,), tg.i64)
    for make, counts in ((lambda x: tg.cast(x, tg.f64), False), (lambda x: tg.bit_and(x, 1), True)):
        left, right = tg.graph(make(i)), tg.graph(make(tg.bit_xor(i, 1)))
        trials = [counterexample.attempt(left.outputs, right.outputs, {}, 4, seed) for seed in range(3)]
        assert all(trial is not None and (trial.example is not None) == counts for trial in trials)
    small = counterexample.attempt(tg.graph(tg.cast(i, tg.f64)).outputs, tg.graph(tg.cast(i + i, tg.f64)).outputs, {}, 2, 0)
    assert small is not None and small.example is not None    # up to 2^53 each is held


@pytest.mark.parametrize("dtype", [tg.u8, tg.i8])
def test_integers_of_few_values_are_refuted_by_the_one_value_that_differs(dtype: tg.DType) -> None:
    u = tg.input("u", (3,), dtype)
    verdict = equal(tg.graph((u + 1) > u), tg.graph(tg.equals(u, u)))
    assert verdict.counterexample is not None, verdict.show()
    assert set(verdict.counterexample.leaves["u"].tolist()) == {int(dtype.max)}


def test_what_is_no_graph_is_refused() -> None:
    x = tg.input("x", (3,))
    with pytest.raises(GraphError, match=r"equal takes a graph, and this is a tensor(?s:.*)fix: tg\.graph\(tensor\)"):
        tg.equal(tg.graph(x), x)  # type: ignore[arg-type]


def test_known_numbers_are_compared_as_far_as_their_bounds_tell_them_apart() -> None:
    s, third, tenth = tg.input("s", (), tg.f64), tg.reciprocal(tg.constant(3.0, tg.f64)), tg.constant(0.1, tg.f64)
    large = tg.constant(1e10, tg.f64)
    for condition in (tg.less(tenth * 3.0, third), tg.less(0.0, tg.exp(third - 700.0)), tg.less(0.0, (large + 1e-3) - large),
                      tg.less((large + 1e-3) - large, 1.1e-3)):
        verdict = equal(tg.graph(tg.where(condition, s, s + 1.0)), tg.graph(s * 1.0))
        assert verdict.proved, verdict.show()
    for condition in (tg.less(tenth * 3.0, third - 0.1 / 3.0), tg.less(0.0, tg.exp(third - 800.0)),
                      tg.less(0.0, (large + 1e-7) - large)):
        verdict = equal(tg.graph(tg.where(condition, s, s + 1.0)), tg.graph(s * 1.0))
        assert not verdict.proved, verdict.show()


def test_no_update_wins_where_a_scatter_writes_twice_to_one_place() -> None:
    u, index = tg.input("u", (2,)), tg.input("i", (2,), tg.i32)
    none, twice = tg.constant([0.0, 0.0]), tg.constant([0, 0])
    for update in (u[0], u[1]):
        verdict = equal(tg.graph(tg.scatter(none, twice, u)[0]), tg.graph(update))
        assert verdict.status == "unknown" and "two writes" in verdict.reason, verdict.show()
    verdict = equal(tg.graph(tg.scatter(none, index, u)), tg.graph(tg.scatter(none, index[::-1], u[::-1])))
    assert verdict.proved and "no two writes of a scatter to one place" in verdict.assuming, verdict.show()


def test_a_maximum_over_rows_of_which_there_are_none_is_like_any_other() -> None:
    x = tg.input("x", (1, 0), tg.f16) + 1.0
    assert equal(tg.graph(tg.max(tg.expand(x, (3, 0)), axis=0)), tg.graph(tg.max(x, axis=0))).proved


def test_many_outputs_are_compared_with_one_look_at_the_degrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work on each output's own nodes may not be repeated for all nodes for each output."""
    calls, degrees = [], fingerprint.degrees

    def counted(order: Any, *rest: Any) -> Any:
        calls.append(len(order))
        return degrees(order, *rest)

    monkeypatch.setattr(fingerprint, "degrees", counted)
    looks = []
    for count in (2, 40):
        a, b = tg.input("a", (3,)), tg.input("b", (3,))
        xs = [tg.input(f"x{i}", (3,)) for i in range(count)]
        one = tg.graph({f"y{i}": x * (a + b) for i, x in enumerate(xs)})
        other = tg.graph({f"y{i}": x * a + x * b for i, x in enumerate(xs)})
        assert equal(one, other).status == "fingerprint"
        looks.append(len(calls))
        calls.clear()
    assert looks[0] == looks[1]


@pytest.mark.parametrize("licensed, plain, licences", [
    (tg.rounded(X, to="tf32"), X, ("rounded to tf32",)),
    (tg.rounded_linear(X, W, to="bf16x2"), tg.linear(X, W), ("rounded_linear to bf16x2",)),
    (tg.rounded(X, to="tf32"), tg.rounded(X, to="bf16x2"), ("rounded to tf32", "rounded to bf16x2")),
    (tg.cast(tg.cast(X, tg.bf16), tg.f32), X, ("cast to bf16",)),
])
def test_what_differs_by_licences_to_round_alone_is_proved_over_the_reals_and_never_structural(
        licensed: tg.Node, plain: tg.Node, licences: tuple[str, ...]) -> None:
    math, bits = (tg.equal(tg.graph({"y": licensed}), tg.graph({"y": plain}), bits=bits) for bits in (False, True))
    assert math.status == "fingerprint" and math.licences == licences == bits.licences and not bits.proved
    assert f"licences to round: {', '.join(licences)}; over the real numbers they change nothing" in math.show()
    assert f"licences to round: {', '.join(licences)}; with bits they count" in bits.show()
    same = tg.equal(tg.graph({"y": licensed}), tg.graph({"y": licensed}), bits=True)
    assert same.status == "structural" and "licences" not in same.show()
