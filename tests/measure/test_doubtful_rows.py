"""Large ops that cancel somewhere: what rounding explains in the rows in doubt is explained, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import part_of
from tensor_graphs.language.dtypes import f32
from tensor_graphs.meaning.error_measure import measure, neighbours_error
from tensor_graphs.meaning.same_math import SAME_MATH
from tensor_graphs.measure.isolation.replies import ReportedOutput
from tensor_graphs.measure.judge import Judge, Verdict
from tensor_graphs.measure.points.doubtful_rows import MOST, doubtful, moves_of_rows
from tensor_graphs.measure.points.inputs import Point, point_inputs

Step = Callable[..., np.ndarray]

N, LIMIT = 1 << 20, SAME_MATH["f32"]
SEED, CANCELS = 29, 209_876
"""of values that cancel at this place"""

P, G, V = (tg.input(name, (N,), tg.f32) for name in "pgv")
STEP = part_of(tg.graph(P / tg.sqrt(V * 0.999 + G * G * 0.001)))(P, V, G)


def said_of(judge: Judge, signature: Signature, seed: int, out: np.ndarray) -> Verdict | None:
    told = ReportedOutput(shapes={"y0": out.shape}, outside=(), mutated=False)
    return judge._compare(signature, Point((), seed), told, lambda count: out.reshape(-1).view(np.uint8)[:count], [0.0] * 4)


def step(p: np.ndarray, v: np.ndarray, g: np.ndarray, squared: Step | None = None) -> np.ndarray:
    """One f32 operation after the other, as numpy does it."""
    with np.errstate(all="ignore"):
        moment = v * np.float32(0.999) + (squared or np.square)(g) * np.float32(0.001)
        made: np.ndarray = p / np.sqrt(moment)
        return made


def in_bf16(g: np.ndarray) -> np.ndarray:
    kept = (g.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.square(kept)


def test_one_operation_after_the_other_is_right_where_it_cancels(judge: Judge) -> None:
    signature = signature_of(STEP)
    inputs = point_inputs(signature.graph, Point((), SEED))
    out, answer = step(inputs["x0"], inputs["x1"], inputs["x2"]), judge.expected(signature, Point((), SEED))
    assert answer is not None
    neighbours = measure(out, answer["y0"], f32, rounding=neighbours_error(answer["y0"], f32))
    assert neighbours.max_relative_error > LIMIT and neighbours.worst is not None and neighbours.worst.index == (CANCELS,)
    assert said_of(judge, signature, SEED, out) is None


@pytest.mark.parametrize("wrong", ["a factor", "squares of bf16", "the one that cancels", "one that does not", "one is not there"])
def test_what_rounding_does_not_explain_is_refused(judge: Judge, wrong: str) -> None:
    signature = signature_of(STEP)
    p, v, g = point_inputs(signature.graph, Point((), SEED)).values()
    out = step(p, v, g, in_bf16 if wrong == "squares of bf16" else None)
    sound = int(np.nanargmin(np.abs(np.abs(out) - 1.0)))
    match wrong:
        case "a factor":
            out *= np.float32(1.0005)
        case "the one that cancels":
            out[CANCELS] *= np.float32(1.02)
        case "one that does not":
            out[sound] += np.float32(10.0)                          # the rms of its row is some 10^3
        case "one is not there":
            out[sound] = np.nan
    verdict = said_of(judge, signature, SEED, out)
    assert verdict is not None and verdict.status == "INCORRECT_NUMERICAL"


def test_a_generated_kernel_passes_whatever_is_drawn(judge: Judge) -> None:
    verdict = judge.examine(kernel_named("gen.loops"), signature_of(STEP), {})
    assert verdict.status == "PASSED", verdict.log


X = tg.input("x", (64, 512), tg.f32)


def moves(node: tg.Node, doubt: np.ndarray) -> np.ndarray | None:
    signature = signature_of(node)
    inputs = point_inputs(signature.graph, Point((), 1))
    answer = tg.interpret(signature.graph, inputs).outputs
    return moves_of_rows(signature.graph, {}, lambda: inputs, lambda: answer, "y0", doubt, np.zeros(doubt.shape))


def test_only_rows_in_doubt_are_evaluated() -> None:
    doubt = np.zeros((64, 512), bool)
    assert moves(tg.softmax(X), doubt) is None
    doubt[[3, 40], 7] = True
    found = moves(tg.softmax(X), doubt)
    assert found is not None and np.array_equal(np.flatnonzero(found.any(axis=1)), [3, 40]) and found[3].all()


def test_rows_that_depend_on_each_other_and_too_many_are_not() -> None:
    doubt = np.zeros((64, 512), bool)
    doubt[3, 7] = True
    assert moves(tg.softmax(X.reshape((64 * 512,))).reshape((64, 512)).inputs[0], doubt.reshape(-1)) is None
    large = tg.exp(tg.input("x", (1 << 20,), tg.f32))
    many = np.zeros(1 << 20, bool)
    many[:MOST << 14] = True
    assert moves(large, many) is not None
    many[:MOST << 16] = True
    assert moves(large, many) is None


def test_doubtful_is_what_the_measure_finds() -> None:
    rng = np.random.default_rng(1)
    ref = rng.standard_normal((40, 30)) * np.exp2(rng.integers(-20, 20, (40, 1)))
    ref[2] = 0.0
    out = (ref * (1 + rng.choice([0.0, 1e-4, 3e-4], ref.shape))).astype(np.float32)
    out[2, 5] = 1e-42
    rounding = np.abs(ref) * rng.choice([0.0, 1e-5, 1e-2], ref.shape)
    found = doubtful(out, ref, f32, rounding, LIMIT)
    for at in np.ndindex(*ref.shape):
        one = ref.astype(np.float32)
        one[at] = out[at]
        assert measure(one, ref, f32, rounding=rounding).within(LIMIT) == (not found[at]), at
    assert 10 < found.sum() < 600


def test_one_number_that_is_wrong_is_in_doubt_by_itself_and_has_no_rows() -> None:
    """`tg conformance` ended in numpy's error where a kernel of scalars was wrong."""
    doubt = doubtful(np.array(3.0, np.float32), np.array(2.0), f32, np.array(0.0), LIMIT)
    assert doubt.shape == () and doubt
    assert not doubtful(np.array(2.0, np.float32), np.array(2.0), f32, np.array(0.0), LIMIT)
    x = tg.input("x", (), tg.f32)
    graph = signature_of(tg.exp(x)).graph
    assert moves_of_rows(graph, {}, dict, dict, next(iter(graph.outputs)), doubt, np.array(0.0)) is None
