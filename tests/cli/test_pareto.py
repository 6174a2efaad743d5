"""`tg pareto`: the forms of a graph that no other one beats in time and error, as a table, a document and a picture."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import assert_complains, document, tg

LAYERS = """tg 1
input x f32[1, 64]
parameter a f32[64, 64]
parameter b f32[64, 64]
output y = linear(silu(linear(x, a)), b)
"""


def test_forms_are_listed_with_their_times_and_errors(tmp_path: Path) -> None:
    (file := tmp_path / "layers.tg").write_text(LAYERS)
    asked = ("pareto", file, "--points", "4", "--draws", "2", "--backends", "c,numpy", "--db", tmp_path / "a.db")
    forms = document(tg(*asked, "--json", "--svg", tmp_path / "front.svg"))
    assert [f["us"] for f in forms] == sorted(f["us"] for f in forms) and forms[-1]["error"] < 1e-6
    assert [f["error"] for f in forms] == sorted((f["error"] for f in forms), reverse=True)
    assert all(f["draws"] == 2 and f["error"] <= f["bound"] for f in forms)
    assert "norm of the error" in (tmp_path / "front.svg").read_text()
    lines = tg(*asked).stdout.splitlines()
    assert lines[0].split() == ["time", "spread", "norm", "bound", "predicted", "weights", "precision"] and len(lines) >= 2


def test_what_has_no_front_is_told(tmp_path: Path) -> None:
    (file := tmp_path / "layers.tg").write_text(LAYERS)
    assert_complains(tg("pareto", file, "--statistic", "top1"), "no front of 'top1'", "fix: one of")
    assert_complains(tg("pareto", file, "--output", "z"), "no float output z", "fix: one of y")
