"""`tg plan` writes what was chosen; other verbs run it again; what cannot be run again is told with a fix."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command import ROOT, assert_complains, document, tg

SOFTMAX = ROOT / "examples" / "softmax.tg"


def test_what_is_pinned_runs_again_with_the_same_tokens(gemma: Path, tmp_path: Path) -> None:
    pin, run = tmp_path / "gemma.pin", ("run", gemma, "--ids", "2,9,10", "--tokens", 4, "--json")
    shown = tg("plan", gemma, "--pin", pin, "--backends", "numpy")
    assert shown.returncode == 0 and f"pinned: {pin}" in shown.stdout and "path " in shown.stdout
    said = document(tg(*run, "--plan", pin))
    paths = [v["path"]["id"] for v in json.loads(pin.read_text())["variants"]]
    assert said["path"] == paths[0] and said["ids"] == document(tg(*run))["ids"]        # numpy's path, though c is allowed
    explained = tg("explain", gemma, "--plan", pin)
    assert all(path in explained.stdout for path in paths) and "backends numpy" in explained.stdout
    assert_complains(tg(*run, "--plan", pin, "--temperature", 1), "the pin is of another graph",
                     f"it was made of {gemma} --dtype float32", "--logits where tokens are drawn")
    assert_complains(tg(*run, "--plan", pin, "--backends", "c"), "the backend numpy is not among those", "fix: --backends c,numpy")
    logits = document(tg("plan", gemma, "--logits", "--json", "--backends", "numpy"))
    assert logits["file"] is None and logits["pin"]["source"] == f"{gemma} --dtype float32 --logits"


def test_two_plans_are_compared_in_both_forms(tmp_path: Path) -> None:
    pin, at = tmp_path / "softmax.pin", ("--at", "n=16", "--db", tmp_path / "own.db")    # other tests run this graph as a whole
    assert tg("plan", SOFTMAX, "--pin", pin, "--backends", "numpy", *at).returncode == 0
    said = document(tg("explain", SOFTMAX, "--diff", pin, "now", "--backends", "c", *at, "--json"))
    (first, *_) = said["ranges"]
    assert all(low <= 16 <= high for low, high in first["cell"].values())
    assert first["priced_alike"] and said["backends"] == [["numpy"], ["c"]]
    assert {d["a"]["way"]: d["b"]["way"] for d in first["differences"]} == {
        "numpy.softmax": "c.softmax", "numpy.linear": "c.linear", "numpy.rms_norm": "c.rms_norm"}
    shown = tg("explain", SOFTMAX, "--diff", pin, "backends=c").stdout        # ranges that were priced elsewhere are priced again
    assert "do not compare" not in shown
    assert first["a"]["path"] in shown and "A has not c.softmax: the backend c was not allowed" in shown
    same = tg("explain", SOFTMAX, "--diff", pin, "backends=numpy").stdout
    assert "the same path" in same and "in both" in same
    assert_complains(tg("explain", SOFTMAX, "--diff", pin, "tolerance=much"), "'much' ends in no number", "fix: ", code=2)
    assert_complains(tg("explain", SOFTMAX, "--diff", pin, "bakends=c"), "the pin bakends=c cannot be read", "fix: ")


def test_the_steps_of_a_plan_stand_beside_their_roof(tmp_path: Path) -> None:
    asked = ("explain", SOFTMAX, "--at", "n=16", "--backends", "numpy", "--roofline", tmp_path / "r.svg")
    said, shown = document(tg(*asked, "--json")), tg(*asked, "--kernels").stdout
    assert [k["kernel"] for k in said["kernels"]] and said["at"] == {"n": 16} and "roof of cpu: read " in shown
    assert all(k["kernel"] in shown and k["lost_us"] >= 0 for k in said["kernels"]) and said["least_us"] > 0
    assert (tmp_path / "r.svg").read_text().count("<circle") == len(said["kernels"])
    assert_complains(tg(*asked, "--diff", "now", "now"), "are of one plan", "fix: without --diff", code=2)


def test_a_run_is_traced_into_a_file(tmp_path: Path) -> None:
    asked = ("trace", SOFTMAX, "--at", "n=16", "--backends", "numpy", "--out")
    said = document(tg(*asked, tmp_path / "t.json", "--json"))
    slices = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert said["steps"] == len(slices) - 1 == 3 and said["at"] == {"n": 16} and said["one_go_us"] > 0
    assert {e["args"].get("kernel") for e in slices} == {None, "numpy.rms_norm", "numpy.linear", "numpy.softmax"}
    assert_complains(tg(*asked, tmp_path / "none" / "t.json"), "--out ", "cannot be written", "fix:")


def test_the_text_of_a_kernel_is_shown_by_name_and_by_step() -> None:
    named, step = tg("show", "--source", "numpy.softmax").stdout, ("show", SOFTMAX, "--source", "softmax.0", "--backends", "numpy")
    assert "def softmax(outs" in named and tg(*step).stdout.endswith(named.partition("identity")[2].partition("\n")[2])
    assert [(t["kernel"], t["steps"]) for t in document(tg(*step, "--json"))] == [("numpy.softmax", ["softmax.0"])]
    assert_complains(tg("show", "--source", "numpy.sofmax"), "no kernel is named 'numpy.sofmax'", "fix:")
    assert_complains(tg("show"), "which graph?", "--source KERNEL", code=2)


def test_a_pin_is_not_replaced_unasked_and_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    pin = tmp_path / "softmax.pin"
    asked = ("plan", SOFTMAX, "--pin", pin, "--backends", "numpy")
    assert document(tg(*asked, "--json"))["pin"] == json.loads(pin.read_text())
    assert_complains(tg(*asked), f"{pin} is there already", "fix: --force")
    assert_complains(tg("plan", SOFTMAX, "--pin", tmp_path), f"{tmp_path} is a folder", "fix: a file in it")
    again = document(tg(*asked, "--force", "--plan", pin, "--json"))
    assert again["pin"]["variants"] == json.loads(pin.read_text())["variants"]
    assert_complains(tg("explain", SOFTMAX, "--plan", SOFTMAX), f"{SOFTMAX} is no pin", "fix: tg plan GRAPH --pin FILE")
    assert_complains(tg("explain", SOFTMAX, "--plan", tmp_path / "none"), "cannot be read: No such file", "fix:")


def test_listed_paths_are_drawn_into_a_file(tmp_path: Path) -> None:
    asked = ("list-paths", SOFTMAX, "--limit", 3, "--backends", "numpy", "--at", "n=16", "--json")
    said = document(tg(*asked, "--svg", tmp_path / "a.svg"))
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.startswith("<svg ") and drawn.count("<circle") == 3 and all(path["id"] in drawn for path in said)
    assert "3 paths of softmax.tg at n=16" in drawn
    assert_complains(tg(*asked, "--svg", tmp_path / "none" / "a.svg"), "--svg ", "cannot be written", "fix:")


def test_graphs_and_plans_are_drawn_and_written_as_text_for_graphviz(tmp_path: Path) -> None:
    for verb in (("show", SOFTMAX), ("plan", SOFTMAX, "--backends", "numpy")):
        assert tg(*verb, "--svg", tmp_path / "a.svg", "--dot", tmp_path / "a.dot").returncode == 0
        text, picture = (tmp_path / "a.dot").read_text(), (tmp_path / "a.svg").read_text()
        assert text.startswith("digraph {") and picture.startswith("<svg ")
        assert all("softmax.tg" in drawn and "parameter w" in drawn and "rms_norm" in drawn for drawn in (text, picture))
        for option in ("--dot", "--svg"):
            assert_complains(tg(*verb, option, tmp_path / "none" / "a"), f"{option} ", "cannot be written", "fix:")
    assert all("numpy.softmax" in drawn and "backend numpy" in drawn and "for n = " in drawn for drawn in (text, picture))
    assert document(tg("show", SOFTMAX, "--svg", tmp_path / "a.svg", "--json"))["nodes"]


def test_every_verb_keeps_values_between_ops_as_it_is_asked_to(tmp_path: Path) -> None:
    file, asked = tmp_path / "gated.tg", ("--backends", "numpy", "--precision", "product=bf16")
    file.write_text("""tg 1
input x f32[3, 32]
parameter up bf16[48, 32]
parameter down bf16[32, 48]
output y = rms_norm(add(linear(silu(linear(x, up)), down), x))
""")
    profiled = tg("profile", file, "--op", "linear", "--budget", "2", *asked)
    assert profiled.returncode == 0 and "linear f32[3, 32] bf16[48, 32]" in profiled.stdout, profiled.stdout + profiled.stderr
    for verb in ("explain", "plan"):
        assert "precision: product bf16, asked for" in tg(verb, file, *asked).stdout
    assert "cast f32[3, 32]" in tg("list-paths", file, "--limit", 1, *asked).stdout
    assert "cast f32[3, 32]" not in tg("list-paths", file, "--limit", 1, *asked[:2]).stdout
    assert document(tg("trace", file, "--out", tmp_path / "t.json", "--json", *asked))["steps"] == 9
    assert_complains(tg("plan", file, "--precision", "half"), "--precision half: precision 'half' is no dtype",
                     "fix: one word (f64, f32, f16, bf16, f8e4m3, tf32, bf16x2, int8, int8x2, q8_0, ", code=2)
