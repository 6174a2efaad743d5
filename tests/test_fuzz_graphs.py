"""Random graphs over every op, along several paths each, against the oracle; and mistakes that are planted, which it finds.

`make fuzz` runs thousands. A failing graph is printed small, with its seed, its values, its path and how to run it again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice import prepare
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.anonymous_composite import PartRecipe, part_between
from tensor_graphs.paths import lower
from tensor_graphs.rewrites.passes import offer_recipes
from tests.fuzzing.cases import Case, Point, Runs, Ungrown, Way, case_of, everything_known, ways_of
from tests.fuzzing.grow import NAMES, grown
from tests.fuzzing.shrink import Failure, as_text, failure_of, from_text, shrunk, told

SEEDS, BLOCK = 200, 25
EACH = 3
"""ways of each graph here; `make fuzz` goes all"""

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def somebodys_kernel() -> Iterator[None]:
    with everything_known():
        yield


def failures(seeds: range, only: int | None = None, ungrown: list[int] | None = None) -> Iterator[tuple[int, Failure]]:
    """only: the number of the one way that is gone. ungrown: gets the seeds without a case."""
    for seed in seeds:
        try:
            case = case_of(seed)
        except Ungrown:
            if ungrown is not None:
                ungrown.append(seed)
            continue
        runs, ways = Runs(case), ways_of(seed)
        for way in [ways[(seed + i) % len(ways)] for i in range(EACH)] if only is None else [ways[only]]:
            why = runs.why_wrong(way)
            if why is not None:
                yield seed, Failure(case, way, why)


@pytest.mark.parametrize("first", [pytest.param(n, marks=[pytest.mark.long] * (n >= SEEDS // 4)) for n in range(0, SEEDS, BLOCK)])
def test_random_graphs_give_the_oracles_values_along_every_path(first: int) -> None:
    ungrown: list[int] = []
    for seed, failure in failures(range(first, first + BLOCK), ungrown=ungrown):
        pytest.fail(told(shrunk(failure), seed), pytrace=False)
    assert len(ungrown) <= BLOCK // 4, "graphs without a value say nothing"


def test_the_graphs_hold_every_op_and_what_makes_paths_different() -> None:
    """So that the test above compares more than nothing: parts with recipes, views backwards, states, dims made of others."""
    names: set[str] = set()
    seen = dict.fromkeys(("states", "several outputs", "dims of dims", "backwards", "recipes", "somebody's part", "empty",
                          "narrow"), 0)
    for seed in range(SEEDS):
        graph = grown(seed).graph
        names |= {n.op.name for n in graph.nodes}
        shapes = [s for n in graph.nodes for t in n.types for s in t.shape]
        seen["states"] += bool(graph.updates)
        seen["several outputs"] += len(set(graph.outputs.values())) > 1
        seen["dims of dims"] += any(isinstance(s, tg.Expr) and str(s) not in graph.dims for s in shapes)
        seen["backwards"] += any(step < 0 for n in graph.nodes if n.op.name == "slice" for _, _, step in n.attrs["bounds"])
        seen["empty"] += 0 in shapes
        seen["narrow"] += any(n.dtype.name in ("f16", "bf16") for n in graph.nodes if len(n.types) == 1)
        if min(seen["recipes"], seen["somebody's part"]) < 2 and any(n.op.name in ("linear", "dot") for n in graph.nodes):
            note = prepare.prepare(graph).note
            seen["recipes"] += "recipes:" in note
            seen["somebody's part"] += "parts:" in note
    assert min(seen.values()) >= 2, seen
    missing = set(NAMES) - names
    assert len(missing) <= len(NAMES) // 10, missing                # drawn, each by chance


# ---- mistakes ----------------------------------------------------------------------------------------------------------------


def forgets_negative_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    window_of = lower.window_of

    def forward(node: tg.Node, x: lower.Operand) -> lower.Operand | None:
        found = window_of(node, x)
        if found is None or node.op.name != "slice":
            return found
        strides, offset = list(found.strides), found.offset
        for axis, (_, _, step) in enumerate(node.attrs["bounds"]):
            if step < 0:                                            # from the other end on, so that it stays inside
                offset = offset + strides[axis] * (node.shape[axis] - 1) * x.dtype.itemsize
                strides[axis] = -1 * strides[axis]
        return replace(found, strides=tuple(strides), offset=offset)

    monkeypatch.setattr(lower, "window_of", forward)


def writes_in_place_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over operands that are read once more."""
    in_place = lower.Lowering._in_place
    monkeypatch.setattr(lower.Lowering, "_in_place",
                        lambda self, last_use, finals: in_place(self, dict.fromkeys(last_use, -1), finals))


def leaves_a_copy_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old value, where a kernel changes only some rows of it."""
    monkeypatch.setattr(lower.Lowering, "_copy_before_updates", lambda self: None)


def has_a_wrong_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """In what recipes compute, by half a percent, and after they were compared."""
    def wrong(op: Any, *rest: Any) -> PartRecipe:
        outputs = [o * 1.005 if o.dtype.is_float else o for o in op.written.outputs]
        return PartRecipe(part_between(outputs, op.written.arguments), *rest)

    monkeypatch.setattr(offer_recipes, "PartRecipe", wrong)


@pytest.mark.parametrize(("plant", "way"), [(forgets_negative_steps, 0), (writes_in_place_too_early, 1), (leaves_a_copy_out, 1),
                                            (has_a_wrong_constant, 3)])
def test_a_planted_mistake_is_found(plant: Callable[[pytest.MonkeyPatch], None], way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare._formed.clear()
    plant(monkeypatch)
    seed, failure = next(failures(range(SEEDS), way))
    monkeypatch.undo()
    prepare._formed.clear()
    assert failure_of(failure.case, failure.way) is None, f"seed {seed} fails without it too: {failure.why}"


# ---- what fails is made small --------------------------------------------------------------------------------------------------


def test_what_fails_is_made_small_and_runs_again_from_its_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    writes_in_place_too_early(monkeypatch)
    seed, failure = next(failures(range(SEEDS)))
    small = shrunk(failure, 8.0)
    assert len(small.case.graph.nodes) <= 6 and len(small.case.points) == 1 and len(small.case.graph.roots) <= 2
    text = as_text(small)
    again = from_text(text)
    assert again.case.graph == small.case.graph and as_text(again) == text
    assert failure_of(again.case, again.way) is not None
    assert f"seed {seed}" in told(small, seed) and "--replay FILE" in told(small, seed)
    monkeypatch.undo()
    assert failure_of(again.case, again.way) is None
    file = tmp_path / "small.tg"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, ROOT / "benchmarks" / "fuzz_graphs.py", "--replay", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "it runs as it should\n"), done.stderr


def case(graph: tg.Graph, **inputs: np.ndarray) -> Case:
    return Case(graph, (Point({}, inputs),), {}, {})


def test_values_of_all_sorts_are_kept_in_a_text() -> None:
    x, y, z = tg.input("x", (4,)), tg.input("y", (0, 3), tg.i64), tg.input("z", (2,), tg.u64)
    given = {"x": np.array([np.nan, -np.inf, -0.0, 1e-45], np.float32), "y": np.zeros((0, 3), np.int64),
             "z": np.array([2 ** 64 - 1, 2 ** 63 + 1], np.uint64)}
    made = Failure(case(tg.graph([x, y, z]), **given), Way("written", ("numpy",), "coarse"), "why")
    (point,) = from_text(as_text(made)).case.points
    assert {n: a.tobytes() for n, a in point.inputs.items()} == {n: a.tobytes() for n, a in given.items()}
    assert json.loads(as_text(made).splitlines()[0].removeprefix("# fuzz "))["why"] == "why"


# ---- what is right -------------------------------------------------------------------------------------------------------------


def answer(node: tg.Node, **inputs: np.ndarray) -> Any:
    made = case(tg.graph(node), **inputs)
    return Runs(made).answer(made.points[0], {})


def test_what_hangs_on_rounding_is_no_mistake_and_what_does_not_is_one() -> None:
    x = tg.input("x", (3,))
    third = np.array([1 / 3, 0.5, 0.9], np.float32)
    cut = answer(tg.floor(tg.exp2(tg.log2(x)) * 3.0), x=third)       # 1 or 0, by the last bit
    assert cut.why_wrong(0, np.array([0, 1, 2], np.float32)) is None and cut.why_wrong(0, np.array([1, 1, 2], np.float32)) is None
    assert cut.why_wrong(0, np.array([1, 0, 2], np.float32)) is not None
    cancelled = answer(tg.sin(x) - tg.sin(x + 1e-6), x=third)
    value = cancelled.values[0].astype(np.float32)
    assert cancelled.why_wrong(0, value * np.float32(1.02)) is None
    assert cancelled.why_wrong(0, value * np.float32(3)) is not None
    whole = answer(tg.cast(x * 7.0, tg.i32), x=third)
    assert whole.why_wrong(0, np.array([2, 3, 6], np.int32)) is None
    assert whole.why_wrong(0, np.array([2, 4, 6], np.int32)) is not None
    exact = answer(tg.floor(x * 2.0), x=third)
    assert exact.why_wrong(0, np.array([0, 0, 1], np.float32)) is not None


def test_infinities_have_their_places_unless_they_do_not_matter() -> None:
    x = tg.input("x", (3,))
    wild = np.array([np.inf, 1.0, np.nan], np.float32)
    found = answer(x * 2.0, x=wild)
    assert found.why_wrong(0, np.array([np.inf, 2, np.nan], np.float32)) is None
    for wrong in ([-np.inf, 2, np.nan], [np.inf, 2, 0], [np.inf, np.nan, np.nan]):
        assert found.why_wrong(0, np.array(wrong, np.float32)) is not None
    assert found.why_wrong(0, np.array([5, 2, 7], np.float32), reworded=True) is None       # recipes are about real numbers
    assert answer(x * 2.0, x=np.ones(3, np.float32)).why_wrong(0, np.array([2, 3, 2], np.float32), reworded=True) is not None


MOST, BEYOND = float(tg.f32.max), float(tg.f64.max)


def hidden_overflow() -> Case:
    """The variance overflows in f32, and what that leaves is a NaN only behind a logarithm; seed 3853."""
    x, v = tg.input("x", (1, 1, 4)), tg.input("v", (1,))
    return case(tg.graph(tg.log1p(tg.group_norm(x, v, v, groups=1))), x=np.array([[[MOST, 1, 2, MOST]]], np.float32),
                v=np.array([-0.9], np.float32))


def largest_of_overflows() -> Case:
    """Sums of three of the largest numbers, which some orders of adding give; and one with infinities in bf16; seed 4473."""
    x, w = tg.input("x", (1, 3)), tg.input("w", (20, 3))
    values = np.full((20, 3), 0.5, np.float32)
    values[-1] = MOST, -MOST, MOST
    return case(tg.graph(tg.linear_argmax(x, tg.cast(w, tg.bf16))[1]), x=np.array([[MOST, -MOST, MOST]], np.float32), w=values)


def zeros_of_a_padding() -> Case:
    """0 · ∞ of a padding, beside an infinity of the image itself; seed 6135."""
    x, w = tg.input("x", (1, 1, 3, 3)), tg.input("w", (1, 1, 3, 3))
    weight = np.zeros((1, 1, 3, 3), np.float32)
    weight[0, 0, 0, 0], weight[0, 0, 1, 1] = np.inf, -np.inf
    return case(tg.graph(tg.conv(x, w, padding=((1, 1), (1, 1)))), x=np.ones((1, 1, 3, 3), np.float32), w=weight)


def cancelled_in_a_scatter() -> Case:
    """What is left of the largest numbers hangs on the order in which a scatter adds; seed 6374."""
    x, i, u = tg.input("x", (3,), tg.f64), tg.input("i", (3,), tg.i32), tg.input("u", (3,), tg.f64)
    return case(tg.graph(tg.scatter(x, i, u, mode="add")), x=np.zeros(3), i=np.zeros(3, np.int32),
                u=np.array([1e4, -BEYOND, BEYOND]))


def bits_of_a_nan() -> Case:
    """The sign of a NaN, read as an integer; seed 9786."""
    x = tg.input("x", (1,))
    return case(tg.graph(tg.bitcast(tg.logsumexp(x), tg.i32)), x=np.array([np.nan], np.float32))


def sums_that_overflow_on_the_way(terms: Sequence[float] = (-0.5, -0.84, 0.9)) -> Case:
    """Three numbers whose sum is one of f32, and that of two is none; many of them, as each was met by chance; seed 6052. terms: of
    the largest number, and once with the other sign."""
    x, w, i = tg.input("x", (2, 1, 3), tg.bf16), tg.input("w", (3, 40, 3), tg.bf16), tg.input("i", (2, 1), tg.i32)
    factors = np.array([[terms], [[-t for t in terms]]], np.float32) * np.float32(MOST / 2)
    return case(tg.graph(tg.gather_linear(x, w, i)), x=factors.astype(tg.bf16.numpy), w=np.full((3, 40, 3), 2.0, tg.bf16.numpy),
                i=np.array([[0], [2]], np.int32))


def overflow_behind_a_norm() -> Case:
    """A norm of the largest number: 0 where its squares overflow, else what makes an infinity, which is multiplied by 0; seed
    7731."""
    x, g, ones = tg.input("x", (1, 6)), tg.input("g", (6,)), tg.input("ones", (6, 1))
    large, zeros = tg.input("large", (1, 6)), tg.input("zeros", (6, 1))
    values = np.array([[-0.8, 0.4, 1.2, -1.2, 1.1, MOST]], np.float32)
    graph = tg.graph(tg.dot(tg.dot(tg.dot(tg.rms_norm(x, g), ones), large), zeros))
    return case(graph, x=values, g=np.ones(6, np.float32), ones=np.ones((6, 1), np.float32), large=values,
                zeros=np.zeros((6, 1), np.float32))


@pytest.mark.parametrize("made", [hidden_overflow, largest_of_overflows, zeros_of_a_padding, cancelled_in_a_scatter, bits_of_a_nan,
                                  sums_that_overflow_on_the_way, overflow_behind_a_norm])
def test_what_once_was_taken_for_a_mistake_is_none_along_any_path(made: Callable[[], Case]) -> None:
    small = made()
    for backend in ("numpy", "torch", "c"):
        for taste in ("coarse", "fine"):
            failure = failure_of(small, Way("written", (backend, "numpy"), taste))
            assert failure is None, f"{backend}, {taste}: {failure.why}"


def test_what_looks_like_those_is_a_mistake_where_nothing_is_in_doubt() -> None:
    padded = zeros_of_a_padding()
    found = Runs(padded).answer(padded.points[0], {})
    right = np.array([[[[-np.inf, -np.inf, -np.inf], [-np.inf, np.nan, np.nan], [-np.inf, np.nan, np.nan]]]], np.float32)
    assert found.why_wrong(0, right) is None
    for index, wrong in (((0, 0, 0, 0), 1.0), ((0, 0, 0, 1), np.inf), ((0, 0, 1, 1), -np.inf)):
        value = right.copy()
        value[index] = wrong
        assert found.why_wrong(0, value) is not None, index
    summed = sums_that_overflow_on_the_way((-0.5, -0.3, 0.9))       # −0.8 at least in any order: none leaves the range
    right = np.repeat(np.array([[[0.1]], [[-0.1]]], np.float32) * np.float32(MOST), 40, axis=2)
    found = Runs(summed).answer(summed.points[0], {})
    assert found.why_wrong(0, found.values[0].astype(tg.bf16.numpy)) is None
    for wrong in (np.inf, -np.inf, np.nan, 0.0):
        assert found.why_wrong(0, np.where(right < 0, wrong, right).astype(tg.bf16.numpy)) is not None, wrong
    scattered = tg.scatter(tg.input("x", (3,)), tg.input("i", (2,), tg.i32), tg.input("u", (2,)), mode="add")
    added = answer(scattered, x=np.array([0.1, 0.2, 0.3], np.float32), i=np.array([0, 0], np.int32),
                   u=np.array([1e4, -1e4], np.float32))
    assert added.why_wrong(0, np.array([0.0996, 0.2, 0.3], np.float32)) is None
    assert added.why_wrong(0, np.array([0.1, 0.2001, 0.3], np.float32)) is not None, "nothing was added there"
    assert added.why_wrong(0, np.array([1.1, 0.2, 0.3], np.float32)) is not None
    kept = answer(tg.bitcast(tg.input("x", (2,)), tg.i32), x=np.array([np.nan, -1.5], np.float32))
    assert kept.why_wrong(0, np.array([-4194304, -1.5], np.float32).view(np.int32)) is None
    assert kept.why_wrong(0, np.array([np.nan, 1.5], np.float32).view(np.int32)) is not None


def test_no_value_is_no_case() -> None:
    with pytest.raises(TensorGraphsError):
        answer(tg.scatter(tg.input("x", (3,)), tg.input("i", (2,), tg.i32), tg.input("u", (2,)), axis=0, mode="set"),
               x=np.zeros(3, np.float32), i=np.zeros(2, np.int32), u=np.zeros(2, np.float32))
