"""Of an output that is an operand but for some rows only those rows are told and compared, and nothing wrong in it is missed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.isolation.memory_guards import bytes_of
from tensor_graphs.measure.isolation.replies import ProtocolError, ReportedOutput
from tensor_graphs.measure.judge import Judge, Verdict
from tensor_graphs.measure.points.changed_rows import Updated, bases, changed_rows, updated
from tensor_graphs.measure.points.inputs import Form, Point, point_inputs

N, P = tg.dim("n", 1, 64), tg.dim("p", 0, 8191)
ROWS, WIDTH, AT = 8192, 256, {"n": 3, "p": 17}
CACHE, VALUES = tg.input("cache", (ROWS, 1, WIDTH), tg.f32), tg.input("values", (N, 1, WIDTH), tg.f32)
WRITE = signature_of(tg.write_rows(CACHE, VALUES, start=P))
SIZES = tuple(AT.items())


Array = np.ndarray


def forgets_the_last_row(out: Array, base: Array, value: Array, at: int) -> None:
    last = base[-1].copy()
    write(out, base, value, at)
    out[-1] = last


def clears_a_number_far_away(out: Array, base: Array, value: Array, at: int) -> None:
    write(out, base, value, at)
    if at < 4000:
        out[5000, 0, 9] = 0.0


def keeps_what_was_in_the_output(out: Array, base: Array, value: Array, at: int) -> None:
    out[at:at + len(value)] = value[:max(0, len(out) - at)]


def write(out: Array, base: Array, value: Array, at: int) -> None:
    if out is not base:
        np.copyto(out, base)
    out[at:at + len(value)] = value[:max(0, len(out) - at)]


BODIES = {"right": write, "forgets": forgets_the_last_row, "clears": clears_a_number_far_away,
          "keeps": keeps_what_was_in_the_output}


def kernel_of(name: str) -> Kernel:
    def run(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        BODIES[name](outs[0], *ins, attrs["start"])

    return Kernel(f"updated_rows.{name}", "numpy", "write_rows", lambda spec: HostCall(run), lambda spec: None, name, __name__,
                  contiguous=True, in_place=((0, 0),))


if os.environ.get("TENSOR_GRAPHS_WORKER"):
    from tensor_graphs.kernels.registry import register

    for _name in BODIES:
        register(kernel_of(_name))


def verdict_on(judge: Judge, point: Point, spoil: Callable[[np.ndarray], Any]) -> Verdict | None:
    """What the judge says of the right output, after something was done to it."""
    inputs = point_inputs(WRITE.graph, point)
    ((name, operand),) = bases(WRITE.graph, point.binding).items()
    out = interpret(WRITE.graph, inputs, dims=point.binding).outputs[name].astype(np.float32)
    spoil(out)
    rows = changed_rows(out, inputs[operand])
    assert len(rows) < 100
    data = [bytes_of(rows.astype(np.int64)), bytes_of(out.reshape(-1, WIDTH)[rows])]
    told = ReportedOutput({name: out.shape}, (), False, {name: len(rows)})
    left = iter(data)
    return judge._compare(WRITE, point, told, lambda count: next(left)[:count], [0.0] * 4)


def test_an_output_into_an_operands_place_is_known_by_its_definition() -> None:
    others: list[Node] = [tg.write_rows(tg.input("c", (64, 1, WIDTH), tg.f32), VALUES, start=P), tg.add(CACHE, CACHE),
                          tg.write_rows(tg.relu(CACHE), VALUES, start=P)]
    assert bases(WRITE.graph, AT) == {"y0": "x0"}
    assert all(bases(signature_of(each).graph if each is not others[2] else tg.graph(each), AT) == {} for each in others)


@pytest.mark.parametrize(("form", "special"), [("apart", False), ("in_place", False), ("uniform", False), ("apart", True)])
def test_a_right_output_passes(judge: Judge, form: Form, special: bool) -> None:
    assert verdict_on(judge, Point(SIZES, 5, form=form, special=special, only="x0" if special else None), lambda out: None) is None


def set_to(place: tuple[int, int, int], value: float) -> Callable[[np.ndarray], Any]:
    return lambda out: out.__setitem__(place, value)


@pytest.mark.parametrize("spoil", [
    set_to((5000, 0, 7), 3.0), set_to((18, 0, 255), 0.0), set_to((ROWS - 1, 0, 0), np.nan), set_to((0, 0, 0), np.inf),
    lambda out: out.__setitem__(slice(17, 21), np.roll(out[17:21], 1, axis=0)),
    lambda out: out.__setitem__(19, point_inputs(WRITE.graph, Point(SIZES, 5))["x0"][19])],
    ids=["another row", "the last number of a row", "NaN in the last row", "infinity in the first", "a row too far", "not written"])
def test_a_wrong_number_anywhere_is_refused(judge: Judge, spoil: Callable[[np.ndarray], Any]) -> None:
    found = verdict_on(judge, Point(SIZES, 5), spoil)
    assert found is not None and found.status == "INCORRECT_NUMERICAL"


def test_an_infinity_in_the_operand_that_is_not_in_the_output_is_refused(judge: Judge) -> None:
    point = Point(SIZES, 5, special=True, only="x0", axis=2)
    (place,) = np.argwhere(np.isinf(point_inputs(WRITE.graph, point)["x0"]))
    found = verdict_on(judge, point, set_to(tuple(map(int, place)), 1.0))
    assert found is not None and found.status == "INCORRECT_NUMERICAL"


def test_answers_are_kept_as_rows_and_come_back_whole(judge: Judge) -> None:
    point = Point(SIZES, 6)
    kept, inputs = judge._stored_answer(WRITE, point), point_inputs(WRITE.graph, point)
    wanted = interpret(WRITE.graph, inputs, dims=AT).outputs["y0"]
    answer = judge.expected(WRITE, point)
    assert kept is not None and answer is not None
    assert isinstance(kept["y0"], Updated) and kept["y0"].rows.tolist() == [17, 18, 19]
    np.testing.assert_array_equal(answer["y0"], wanted)
    assert answer["y0"].dtype == np.float64
    assert isinstance(updated(np.zeros((ROWS, 4)), np.ones((ROWS, 4), np.float32), "x0"), np.ndarray)


@pytest.mark.parametrize(("rows", "count"), [([4, 3], 2), ([3, 3], 2), ([-1], 1), ([ROWS], 1), ([3], 2), ([], ROWS + 1)])
def test_rows_that_are_none_are_no_answer(judge: Judge, rows: list[int], count: int) -> None:
    data = iter([bytes_of(np.array(rows, np.int64)), np.zeros(count * WIDTH * 4, np.uint8)])
    told = ReportedOutput({"y0": (ROWS, 1, WIDTH)}, (), False, {"y0": count})
    with pytest.raises(ProtocolError):
        judge._compare(WRITE, Point(SIZES, 5), told, lambda count: next(itertools.chain(data))[:count], [0.0] * 4)


@pytest.mark.parametrize("name", BODIES)
def test_a_worker_tells_the_rows_of_right_and_of_wrong_kernels(judge: Judge, name: str) -> None:
    told: list[ReportedOutput] = []

    class Noting(Judge):
        def _compare(self, signature: Signature, point: Point, found: ReportedOutput, *more: Any, **named: Any) -> Verdict | None:
            told.append(found)
            return super()._compare(signature, point, found, *more, **named)

    with Noting(judge.database) as noting:
        verdict = noting.examine(kernel_of(name), WRITE, AT)
    assert verdict.status == ("PASSED" if name == "right" else "INCORRECT_NUMERICAL"), verdict.log
    assert any(found.rows for found in told)
    if name == "right":
        assert verdict.error == 0.0 and {"in_place", "unaligned"} <= set(verdict.covered["layouts"])
        assert all(found.rows["y0"] <= 64 + 3 for found in told if found.rows)
