"""`tg profile --inputs`: real values of inputs, and what is said when they cannot be had."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tensor_graphs.cli.options import UsageError
from tensor_graphs.cli.profile import named
from tests.cli.command import assert_complains, document, tg


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({"lin.weight": np.ones((4, 8), np.float32)}, tmp_path / "m.safetensors")
    (tmp_path / "g.tg").write_text("tg 1\ninput x f32[3, 8]\nparameter w f32[4, 8]\noutput y = linear(x, w)\n")
    return tmp_path


def test_each_input_is_named_once_with_its_values() -> None:
    assert named(["w=m.safetensors:a=b", "s=0.5"]) == {"w": "m.safetensors:a=b", "s": "0.5"} and named([]) == {}
    for wrong in (["w"], ["=3"], ["w="], ["w=3", "w=4"]):
        with pytest.raises(UsageError, match="--inputs: '.*\n  fix: "):
            named(wrong)


def test_a_profile_with_real_weights_stores_which_they_were(folder: Path) -> None:
    at = folder / "own.db"
    said = document(tg("profile", folder / "g.tg", "--budget", 60, "--backends", "numpy", "--db", at, "--json",
                       "--inputs", f"w={folder / 'm.safetensors'}:lin.weight"))  # fmt: skip
    assert said["measured"] >= 2 and said["failed"] == 0 and said["unused_inputs"] == []
    with sqlite3.connect(at) as connection:
        stored = [json.loads(text) for (text,) in connection.execute("SELECT input_descriptors FROM workloads")]
    file = str(folder / "m.safetensors")
    assert [{"name": "x1", "type": "safetensors", "path": file, "tensor_key": "lin.weight"}] in stored


def test_a_missing_tensor_is_said_with_the_file_and_the_fix(folder: Path) -> None:
    said = tg("profile", folder / "g.tg", "--db", folder / "own.db", "--inputs", f"w={folder / 'm.safetensors'}:lin.weigh")
    assert said.returncode == 1 and said.stdout == ""
    assert said.stderr.startswith("error: input 'w': there is no tensor 'lin.weigh'") and "did you mean lin.weight?" in said.stderr


MINE = """
import numpy as np
import tensor_graphs as tg

def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)

@tg.kernel("softmax", name="numpy.mine")
def mine(outs, ins, attrs):
    outs[0][...] = softmax(ins[0], attrs["axis"])

@tg.kernel("softmax", name="numpy.wrong")
def wrong(outs, ins, attrs):
    outs[0][...] = softmax(2 * ins[0], attrs["axis"])

@tg.kernel("softmax", name="numpy.raising")
def raising(outs, ins, attrs):
    raise ValueError("no such shape")

@tg.kernel("softmax", name="numpy.elsewhere", requirements={"arch": ["sm_90"]})
def elsewhere(outs, ins, attrs):
    outs[0].fill(0)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with kernels of somebody's own, and a graph that they may run."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "g.tg").write_text("tg 1\ndim n 1..64\ninput x f32[n, 32]\noutput y = softmax(x)\n")
    return tmp_path


def test_one_kernel_of_an_imported_file_is_judged_and_a_wrong_one_is_an_exit_code(mine: Path) -> None:
    def ask(*kernels: str) -> tuple[int, str]:
        named = [word for name in kernels for word in ("--kernel", name)]
        done = tg("profile", mine / "g.tg", "--at", "n=8", "--db", mine / "own.db", "--import", mine / "mine.py", *named)
        return done.returncode, done.stdout + done.stderr

    code, said = ask("numpy.mine", "numpy.elsewhere")
    assert code == 1 and "error: numpy.elsewhere: not offered for this graph" in said and "fix: without it, or --op" in said
    assert "PASSED      numpy.mine" in said and "softmax f32[n, 32] at n=8" in said
    assert re.search(r"µs  [0-9.e+]+ × the time of (c.softmax|numpy.softmax|gen.loops), [0-9.]+ µs  error", said), said
    assert "NOT OFFERED numpy.elsewhere" in said and "it needs sm_90, which this device (cpu) has not" in said
    code, said = ask("numpy.wrong", "numpy.mine")
    assert code == 1 and "INCORRECT_NUMERICAL numpy.wrong" in said and "known already" in said


def test_the_summary_says_what_failed_where_and_how_to_ask_for_one_size(mine: Path) -> None:
    done = tg("profile", mine / "g.tg", "--db", mine / "own.db", "--import", mine / "mine.py", "--kernel", "numpy.raising")
    line, counts, failed, sizes = done.stdout.splitlines()
    assert done.returncode == 1 and line.startswith("RUNTIME_ERROR numpy.raising") and ", 4 failed, " in counts
    assert failed.startswith("failed at 4 sizes: numpy.raising on softmax f32[n, 32]: RUNTIME_ERROR: ValueError: no such shape at ")
    where = f"mine.py:{MINE[: MINE.index('raise ValueError')].count(chr(10)) + 1} in raising"
    assert failed.endswith(f"{where}, at n=1") and where in line
    assert sizes == "no size was given of n, so that n=1; n=4; n=16; n=64 were asked about; --at n=16 asks for one"


def test_candidates_and_those_that_are_left_out_are_said_by_every_verb_that_lists_kernels(mine: Path) -> None:
    own = ("--at", "n=8", "--db", mine / "own.db", "--import", mine / "mine.py")
    listed = tg("list-paths", mine / "g.tg", *own)
    assert "numpy.mine" in listed.stdout and "numpy.elsewhere" not in listed.stdout
    assert "note: kernel numpy.elsewhere is left out: it needs sm_90, which this device (cpu) has not" in listed.stderr
    told = tg("explain", mine / "g.tg", *own).stdout
    assert "refused: numpy.elsewhere: it needs sm_90, which this device (cpu) has not" in told
    assert "numpy.mine" not in tg("list-paths", mine / "g.tg", "--db", mine / "own.db").stdout


def test_the_places_of_a_kernel_for_a_graph_are_counted(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("""
import numpy as np
import tensor_graphs as tg
n = tg.dim("n", 1, 64)
@tg.kernel(tg.graph(tg.relu(tg.input("x", (n,)) + tg.input("y", (n,)))))
def added(outs, ins, attrs):
    np.maximum(ins[0] + ins[1], 0, out=outs[0])
""")
    text = "tg 1\ninput a f32[8]\ninput b f32[8]\ns = add(a, b)\nr = relu(s)\nt = add(r, b)\noutput y = relu(t)\n"
    (tmp_path / "g.tg").write_text(text)
    done = tg("list-paths", tmp_path / "g.tg", "--import", tmp_path / "part.py", "--db", tmp_path / "own.db", "--limit", "1")
    assert done.returncode == 0 and "parts: 2 add_relu_" in done.stderr


def test_a_file_of_a_graph_may_call_a_composite_of_an_imported_module(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import tensor_graphs as tg\n@tg.composite\ndef hinge(x):\n    return tg.relu(1.0 - x)\n")
    (tmp_path / "g.tg").write_text("tg 1\ninput a f32[8]\noutput y = hinge(a)\n")
    asked = ("list-paths", tmp_path / "g.tg", "--db", tmp_path / "own.db", "--limit", "1")
    done = tg(*asked, "--import", tmp_path / "own.py")
    assert done.returncode == 0, done.stderr
    assert_complains(tg(*asked), "no op is named 'hinge'", "of a composite in Python, --import its file")
    assert_complains(tg("list-paths", tmp_path / "own.py"), "is a Python file", f"fix: --import {tmp_path / 'own.py'}")


def test_a_file_that_cannot_be_imported_is_named(mine: Path) -> None:
    def complains(file: str, *said: str) -> None:
        assert_complains(tg("list-paths", mine / "g.tg", "--import", mine / file), f"--import: {mine / file}", *said)

    (mine / "broken.py").write_text("x = \n")
    complains("broken.py", "cannot be imported: SyntaxError", "line 1", "fix: python ", "broken.py says where it fails")
    (mine / "ends.py").write_text("raise SystemExit(3)\n")
    complains("ends.py", "cannot be imported: SystemExit: 3", "fix: python ")
    assert_complains(tg("list-paths", mine / "g.tg", "--import", "."), "cannot be imported", "fix: the path of a Python module")
    (mine / "random.py").write_text("")
    complains("random.py", "has the name of another module, random", "fix: give the file another name")
    (mine / "twice.py").write_text(MINE + MINE)
    complains("twice.py", "cannot be imported: a kernel named 'numpy.mine' is registered already")
    assert_complains(tg("list-paths", mine / "g.tg", "--import", mine / "none.py"), f"there is no file {mine / 'none.py'}")


def test_a_kernel_that_is_not_there_is_named_with_the_near_ones(mine: Path) -> None:
    done = tg("profile", mine / "g.tg", "--kernel", "numpy.softmx", "--db", mine / "own.db")
    assert_complains(done, "no kernel is named 'numpy.softmx' here", "did you mean numpy.softmax", "--import FILE")


def test_paths_of_a_model_are_listed(gemma: Path, tmp_path: Path) -> None:
    found = document(tg("list-paths", gemma, "--limit", 2, "--db", tmp_path / "own.db", "--json"))
    assert len(found) == 2 and all(any("attention" in step["op"] for step in path["steps"]) for path in found)


def test_paths_are_walked_over_and_later_calls_know_them(folder: Path) -> None:
    asked = ("profile", folder / "g.tg", "--paths", 1, "--budget", 60, "--backends", "numpy", "--db", folder / "own.db")
    first, again = document(tg(*asked, "--json")), tg(*asked).stdout
    for _ in range(3):                                              # what was measured may put another path first
        again = again if again.startswith("0 paths") else tg(*asked).stdout
    assert first["measured"] == len(first["walked"]) == 3 and first["walked_share"] == 1.0
    # the first, numpy's definition in its steps, and that with all steps written out
    assert [p["written_out"] for p in first["walked"]] == [False, False, True] and all(p["seconds"] > 0 for p in first["walked"])
    assert again.startswith("0 paths measured, 3 known already") and "covered: 3 of 3 paths (100%)" in again
    assert first["walked"][2]["path"] in again
    assert_complains(tg(*asked, "--kernel", "numpy.linear"), "--paths measures whole paths", "fix: --paths, or --kernel", code=2)


def test_a_search_for_schedules_is_of_a_whole_graph_and_by_a_strategy_that_there_is(mine: Path) -> None:
    own = ("profile", mine / "g.tg", "--db", mine / "own.db", "--tune", "1")
    assert_complains(tg(*own, "--kernel", "numpy.softmax"), "--tune goes with a whole graph", "fix: --tune, or --kernel", code=2)
    assert_complains(tg(*own[:-2], "--strategy", "beam"), "--strategy says how --tune searches", "fix: --tune SECONDS", code=2)
    for without_effect in (("--tune", "0"), ("--paths", "0")):
        assert tg(*own[:-2], *without_effect).returncode == 2
    assert_complains(tg(*own, "--strategy", "desent"), "no strategy is named 'desent'", "did you mean descent?")
