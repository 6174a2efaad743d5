"""Each verb takes an .onnx file; `tg run` runs one once, on inputs of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.cli.command import assert_complains, document, tg
from tests.frontends.onnx.files import INT64, info, model, one, perceptron

NUMPY = ("--backends", "numpy")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("onnx") / "small.onnx"
    onnx.save(perceptron(), file)
    return file


def test_a_file_is_run_on_the_inputs_of_another_one(file: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    shown = tg("run", file, "--inputs", tmp_path / "x.npz", "--out", tmp_path / "y.npz", *NUMPY)
    assert shown.returncode == 0 and shown.stdout == f"y float32[4, 3]\nwritten: {tmp_path / 'y.npz'}\n", shown.stderr
    (expected,) = ReferenceEvaluator(perceptron()).run(None, {"x": x})
    assert np.allclose(np.load(tmp_path / "y.npz")["y"], expected, rtol=1e-5, atol=1e-6)


def test_an_input_on_which_a_shape_depends_is_fixed_to_its_array(tmp_path: Path) -> None:
    inputs = {"x": np.arange(6, dtype=np.float32), "to": np.array([2, 3])}
    onnx.save(one("Reshape", inputs), tmp_path / "reshape.onnx")
    np.savez(tmp_path / "x.npz", **inputs)
    printed = document(tg("run", tmp_path / "reshape.onnx", "--inputs", tmp_path / "x.npz", "--json", *NUMPY))
    assert printed["outputs"]["y"]["values"] == [[0, 1, 2], [3, 4, 5]]
    assert_complains(tg("run", tmp_path / "reshape.onnx"), "depends on the input to", "fix:")


def test_without_inputs_they_are_random(file: Path) -> None:
    printed = document(tg("run", file, "--json", *NUMPY))
    assert printed["file"] is None and np.asarray(printed["outputs"]["y"]["values"]).shape == (4, 3)


def test_inputs_that_do_not_fit_are_refused(file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "z.npz", z=np.zeros(3))
    assert_complains(tg("run", file, "--inputs", tmp_path / "z.npz"), "has z", "fix: the model's inputs: x")
    assert_complains(tg("run", file, "--prompt", "w2"), "--prompt is for decoders", "--inputs", code=2)
    assert_complains(tg("run", file, "--tokens", 32, "--no-chat"), "--tokens is for decoders", "fix: leave it out", code=2)
    assert_complains(tg("run", "gemma-3-270m", "--random-weights", 0, "--ids", "2", "--out", tmp_path / "y.npz"),
                     "--inputs, --dims and --out are for .onnx files", code=2)


def test_inputs_that_are_no_npz_file_are_refused_with_the_fault(file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "whole.npz", x=np.zeros(3))
    data = (tmp_path / "whole.npz").read_bytes()
    contents = {"cut.npz": data[:-40], "empty.npz": b"", "bent.npz": data.replace(b"NUMPY", b"NAMPY")}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    faults = ("not a zip file", "No data left", "Bad CRC", "one array without a name")
    for name, says in zip((*contents, "one.npy"), faults, strict=True):
        assert_complains(tg("run", file, "--inputs", tmp_path / name), f"{name} cannot be read: ", says, "fix: an .npz file")


def test_outputs_are_written_to_the_file_that_is_named(file: Path, tmp_path: Path) -> None:
    shown = tg("run", file, "--dims", "batch=0", "--out", tmp_path / "y.txt", *NUMPY)
    assert shown.stdout.endswith(f"written: {tmp_path / 'y.txt'}\n"), shown.stderr
    assert np.load(tmp_path / "y.txt")["y"].shape == (0, 3)
    assert_complains(tg("run", file, "--out", tmp_path, *NUMPY), f"--out {tmp_path} cannot be written: Is a directory", "fix:")


def test_an_index_that_is_out_of_range_is_refused_with_its_node_and_a_default_may_be_replaced(tmp_path: Path) -> None:
    table, node = np.arange(6, dtype=np.float32).reshape(3, 2), helper.make_node("Gather", ["table", "i"], ["y"], name="rows")
    proto = model([node], [info("i", (2,), INT64), info("table", (3, 2))], [info("y", (2, 2))], {"table": table})
    onnx.save(proto, tmp_path / "rows.onnx")
    np.savez(tmp_path / "out.npz", i=[0, 3])
    assert_complains(tg("run", tmp_path / "rows.onnx", "--inputs", tmp_path / "out.npz", *NUMPY),
                     "Gather 'rows': index 3 is out of bounds for an axis of size 3", "fix: indices from -3 to 2")
    np.savez(tmp_path / "x.npz", i=[0, -1], table=-table)
    printed = document(tg("run", tmp_path / "rows.onnx", "--inputs", tmp_path / "x.npz", "--json", *NUMPY))
    (expected,) = ReferenceEvaluator(proto).run(None, {"i": np.array([0, -1]), "table": -table})
    assert printed["outputs"]["y"]["values"] == expected.tolist()


def test_a_missing_file_and_a_folder_are_refused_as_files(tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    for verb in ("run", "show"):
        assert_complains(tg(verb, tmp_path / "none.onnx"), "cannot be read: No such file", "fix: the path of an ONNX file")
        assert_complains(tg(verb, tmp_path / "folder.onnx"), "cannot be read: Is a directory", "fix: the path of an ONNX file")


def test_its_dims_are_fixed_or_given_a_range(file: Path) -> None:
    printed = document(tg("run", file, "--dims", "batch=2", "--json", *NUMPY))
    assert np.asarray(printed["outputs"]["y"]["values"]).shape == (2, 3)
    assert "dim batch 1..64" in tg("show", file, "--dims", "batch=1..64").stdout
    assert_complains(tg("show", file, "--dims", "rows=2"), "dims names 'rows'", "fix: its names are batch")
    assert_complains(tg("show", file, "--dims", "batch=two"), "'batch=two' is no size", "fix: each dim once", code=2)
    assert_complains(tg("show", file, "--dims", "batch=5..2"), "'batch=5..2' is no size and no range", "fix: each dim once", code=2)
    assert_complains(tg("show", "gemma-3-270m", "--dims", "n=2"), "--dims n=2 is for .onnx files", code=2)


@pytest.mark.parametrize(("verb", "says"), [
    (("show",), "parameter w1 f32[6, 5]"), (("plan", *NUMPY), "numpy."), (("list-paths", *NUMPY, "--limit", "1"), "numpy."),
    pytest.param(("explain", *NUMPY), "batch = 1", marks=pytest.mark.long),
    pytest.param(("profile", *NUMPY, "--budget", "0.1"), "measured", marks=pytest.mark.long),
])
def test_verbs_take_a_file(verb: tuple[str, ...], says: str, file: Path, tmp_path: Path) -> None:
    shown = tg(verb[0], file, *verb[1:], *(() if verb[0] == "show" else ("--db", tmp_path / "own.db")))
    assert shown.returncode == 0 and says in shown.stdout, shown.stderr


def test_a_file_is_equal_to_the_graph_that_show_prints_of_it(file: Path, tmp_path: Path) -> None:
    (tmp_path / "small.tg").write_text(tg("show", file).stdout)
    shown = tg("equal", file, tmp_path / "small.tg")
    assert shown.returncode == 0 and shown.stdout.startswith("equal"), shown.stdout + shown.stderr


def test_a_damaged_file_is_one_error(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(file.read_bytes()[:100])
    assert_complains(tg("show", tmp_path / "cut.onnx"), "not an ONNX file", "fix: export it again")


@pytest.mark.long
def test_the_table_of_node_tests_is_printed_by_op() -> None:
    shown = tg("conformance", "--onnx", "--ops", "Gelu")
    assert shown.returncode == 0 and "| Gelu | 4 |  |  |  |" in shown.stdout, shown.stderr


def test_the_table_of_node_tests_is_of_no_backend() -> None:
    assert_complains(tg("conformance", "--onnx", "--backend", "numpy"), "--onnx judges ONNX files", code=2)
