"""What an input's values are said to be is read, checked against the input, and made: from a number or from a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tensor_graphs as tg
from tensor_graphs.costs.database_keys import timed_workload
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.dtypes import bf16, bool_, f32, i8, i32
from tensor_graphs.language.node import TensorType
from tensor_graphs.measure.isolation.memory_guards import BIG_BYTES
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.input_descriptors import RANDOM, Descriptor, InputError, check, given_of, read_descriptor, values
from tensor_graphs.measure.points.inputs import Point, point_inputs
from tensor_graphs.measure.queue.next_measurements import Question, answer, unanswered
from tensor_graphs.records.database import Database

N = tg.dim("n", 1, 64)
LINEAR = signature_of(tg.linear(tg.input("x", (N, 16), f32), tg.input("w", (12, 16), f32)))
WEIGHT = np.arange(12 * 16, dtype=np.float32).reshape(12, 16) / 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    save_file({"lin.weight": WEIGHT, "half": WEIGHT.astype(np.float16), "norm": np.ones(16, np.float32)}, path)
    return path


def at(file: Path, key: str = "lin.weight") -> Descriptor:
    return read_descriptor("w", f"{file}:{key}")


# ---- reading ----


@pytest.mark.parametrize(("said", "found"), [
    ("random", RANDOM), ({"type": "random"}, RANDOM), ("3", Descriptor("scalar", 3)), ("-0.5", Descriptor("scalar", -0.5)),
    ("1e3", Descriptor("scalar", 1000.0)), ({"type": "scalar", "value": True}, Descriptor("scalar", True)),
    ({"type": "scalar", "value": "Infinity"}, Descriptor("scalar", math.inf)),
    ("/a/m.safetensors:b:c", Descriptor("safetensors", path="/a/m.safetensors", tensor_key="b:c")),
    ("/a/folder:b", Descriptor("safetensors", path="/a/folder", tensor_key="b")),
    ({"type": "safetensors", "path": "/a/m.safetensors", "tensor_key": "b"},
     Descriptor("safetensors", path="/a/m.safetensors", tensor_key="b")),
])  # fmt: skip
def test_a_description_is_read_from_words_and_from_json_and_written_as_json(said: Any, found: Descriptor) -> None:
    assert read_descriptor("w", said) == found
    text = json.dumps(found.to_json(), allow_nan=False)
    assert read_descriptor("w", json.loads(text)) == read_descriptor("w", found) == found


@pytest.mark.parametrize("said", [
    "", "nonsense", "m.safetensors:", ":key", {}, {"type": "scalar"}, {"type": "scalar", "value": "x"}, {"type": "zeros"},
    {"type": "safetensors", "path": "m"},
])  # fmt: skip
def test_what_says_nothing_is_refused_with_the_forms_there_are(said: Any) -> None:
    with pytest.raises(InputError, match="input 'w': [^$]*fix: [^$]*random"):
        read_descriptor("w", said)


def test_a_path_means_the_folder_in_which_it_was_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert read_descriptor("w", "m.safetensors:norm").path == str(file)


# ---- values ----


def test_a_tensor_is_what_the_file_holds_and_a_small_one_may_be_changed(file: Path) -> None:
    found = values("w", at(file), TensorType((12, 16), f32))
    assert found is not None
    np.testing.assert_array_equal(found, WEIGHT)
    found[0, 0] = 5
    again = values("w", at(file), TensorType((12, 16), f32))
    assert again is not None and again[0, 0] == 0


def test_a_large_tensor_shares_the_files_memory_and_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    count = BIG_BYTES // 4 + 4
    for k in (1, 2):
        save_file({"w": np.full(count * k, k, np.float32)}, path)
        found = values("w", at(path, "w"), TensorType((count * k,), f32))
        assert found is not None and not found.flags.writeable and found[-1] == k


def test_a_number_fills_an_input_of_one_element_that_can_hold_it() -> None:
    for type, value in ((TensorType((), i32), 7), (TensorType((1, 1), i32), 7.0), (TensorType((1,), bf16), 0.5),
                        (TensorType((), f32), math.inf), (TensorType((), bool_), True)):  # fmt: skip
        found = values("s", Descriptor("scalar", value), type)
        assert found is not None and found.shape == type.shape and found.dtype == type.dtype.numpy and found.item() == value
    assert values("s", RANDOM, TensorType((3,), f32)) is None


@pytest.mark.parametrize(("descriptor", "type", "message"), [
    (Descriptor("scalar", 3), TensorType((2,), f32), r"input 'w' is f32\[2\], and one number is given: 3\n  fix: a tensor"),
    (Descriptor("scalar", 300), TensorType((), i8), r"input 'w' is i8\[\], which does not hold 300\n  fix: .*-128 to 127"),
    (Descriptor("scalar", 0.5), TensorType((), i32), "does not hold 0.5"),
    (Descriptor("scalar", math.nan), TensorType((), i32), "does not hold nan"),
])  # fmt: skip
def test_a_number_that_does_not_fit_is_refused(descriptor: Descriptor, type: TensorType, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check("w", descriptor, type)


def test_a_tensor_that_is_not_there_or_does_not_fit_is_refused_with_what_where_and_the_fix(file: Path) -> None:
    wanted = TensorType((12, 16), f32)
    check("w", at(file), wanted)
    for descriptor, type, *words in (
        (at(file.parent / "no.safetensors"), wanted, "there is no such file", str(file.parent / "no.safetensors")),
        (at(file, "lin.weigh"), wanted, "there is no tensor 'lin.weigh'", "did you mean lin.weight?", str(file)),
        (at(file, "norm"), wanted, "is f32[12, 16]", "'norm' has the shape [16]", str(file)),
        (at(file), TensorType((11, 16), f32), "has the shape [12, 16]", "--at"),
        (at(file, "half"), wanted, "is f32[12, 16]", "holds f16", str(file)),
    ):
        with pytest.raises(InputError) as caught:
            check("w", descriptor, type)
        assert all(word in str(caught.value) for word in ("input 'w'", "fix: ", *words)), str(caught.value)


# ---- measuring ----


def test_the_values_of_a_point_come_from_the_file_and_the_others_from_the_seed(file: Path) -> None:
    plain = point_inputs(LINEAR.graph, Point((("n", 3),), 4))
    found = point_inputs(LINEAR.graph, Point((("n", 3),), 4, given=(("x1", at(file)),)))
    np.testing.assert_array_equal(found["x1"], WEIGHT)
    np.testing.assert_array_equal(found["x0"], plain["x0"])
    assert "lin.weight" in str(Point((), 4, given=(("x1", at(file)),)))


def test_a_time_on_real_values_is_filed_under_a_workload_that_names_them(shared: Database, file: Path) -> None:
    given = (("x1", at(file)),)
    plain, real = (Question(kernel_named("numpy.linear"), LINEAR, {"n": 3}, 1.0, g) for g in ((), given))
    with Judge(shared) as judge:
        done = list(answer(judge, [plain, real], budget=60.0, per_kernel=0.01))
    assert [status for _, status in done] == ["PASSED", "PASSED"]
    assert unanswered(shared, [plain, real], "another verifier") == [plain, real]
    workload = timed_workload(LINEAR, {"n": 3}, given)
    assert workload.key != timed_workload(LINEAR, {"n": 3}).key
    assert workload.inputs == ({"name": "x1", "type": "safetensors", "path": str(file), "tensor_key": "lin.weight"},)
    assert given_of(workload.inputs) == given
    assert given_of(({"name": "x", "type": "random"}, {"name": "y", "generator": "normal"})) == ()


def test_a_file_that_goes_away_is_nobodys_failure(shared: Database, file: Path) -> None:
    given = (("x1", at(file)),)
    with Judge(shared) as judge:
        seen = judge.examine(kernel_named("numpy.linear"), LINEAR, {"n": 3}, time_at={"n": 3}, verify=False, given=given)
        assert seen.status == "PASSED"
        file.unlink()                                               # the judge remembers the answer; the worker has to read again
        with pytest.raises(InputError, match="there is no such file"):
            judge.examine(kernel_named("numpy.linear"), LINEAR, {"n": 3}, time_at={"n": 3}, verify=False, given=given)
