"""paths/pin_file.py: a pin goes to a file and back; what is no pin, or was changed by hand, says so with a fix."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.pin_file import FORMAT, Pin, PinError
from tensor_graphs.paths.size_cells import Cell
from tests.plans import plan_of

N = tg.dim("n", 1, 64)
GRAPH = tg.graph(tg.softmax(tg.input("x", (N, 16))))


def pin() -> Pin:
    return plan_of(GRAPH).pin.made_of("softmax.tg")


def test_a_pin_goes_to_a_file_and_back_and_replaces_none_unasked(tmp_path: File) -> None:
    saved, file = pin(), tmp_path / "softmax.pin"
    saved.save(file)
    back = Pin.load(file)
    assert back.to_json() == saved.to_json() and back.source == "softmax.tg" and "softmax" in str(back.titles.values())
    assert [v.path.id for v in back.variants] == [v.path.id for v in saved.variants] and back.variants[0].path.cost == 0
    with pytest.raises(PinError, match=r"is there already\n  fix: --force"):
        saved.save(file)
    saved.save(file, overwrite=True)
    with pytest.raises(PinError, match=r"cannot be written: .*\n  fix: "):
        saved.save(tmp_path / "none" / "softmax.pin")


@pytest.mark.parametrize("file", [3, None, b"softmax.pin"])
def test_a_pin_is_saved_to_a_path_and_read_from_one(file: Any) -> None:
    for act in (pin().save, Pin.load):
        with pytest.raises(ArgumentError, match=r"^file is .*\n  fix: the path of a file, as \"softmax.pin\"$"):
            act(file)


def changed(**fields: Any) -> dict[str, Any]:
    return {**pin().to_json(), **fields}


def variants(*ranges: tuple[int, int]) -> list[dict[str, Any]]:
    (only,) = pin().to_json()["variants"]
    return [{**only, "cell": {"n": ends}} for ends in ranges]


@pytest.mark.parametrize(("data", "message"), [
    ([], r"^this is no pin: its format is None, not 'tensor_graphs pin 2'\n  fix: tg plan"),
    ({"format": "other 2"}, r"^this is no pin: its format is 'other 2'"),
    ({"format": FORMAT}, r"^this pin is damaged: it has no 'variants'\n  fix: pin the graph again"),
    (changed(variants=[]), r"^this pin is damaged: it holds no path\n"),
    (changed(variants=variants((1, 4), (6, 64))), r"its cells do not fill a box: n = 1\.\.4; n = 6\.\.64"),
    (changed(variants=variants((1, 4), (4, 64))), r"its cells overlap: n = 1\.\.4; n = 4\.\.64"),
    (changed(variants=[{**v, "cell": {}} for v in variants((1, 4), (5, 64))]), "2 paths, and no dim that says which"),
    (changed(variants=variants((4, 1))), r"its cells do not fill a box: n = 4\.\.1"),
    (changed(tolerance="much"), "^this pin is damaged: the tolerance 'much' ends in no number\n  fix: "),
    (changed(tolerance=float("nan")), "^this pin is damaged: its 'tolerance' is nan, and 0 or more is needed\n  fix: "),
    (changed(variants=[{}]), "^this pin is damaged: path 1 has no 'cell'\n  fix: "),
    (changed(variants=[{**v, "path": 3} for v in variants((1, 64))]), "'path' of path 1 is 3, and an object is needed\n"),
    (changed(variants=[{**v, "at": {"n": "x"}} for v in variants((1, 64))]), "'n' of 'at' of path 1 is 'x', and a whole number"),
    (changed(variants=[{**v, "cell": {"n": [1]}} for v in variants((1, 64))]), "the least and the most size are needed\n  fix: "),
    (changed(dims=3), "^this pin is damaged: 'dims' of it is 3, and a list is needed\n  fix: "),
    (changed(backends=[None]), "an entry of 'backends' is None, and a text is needed\n  fix: "),
    (changed(backends=[]), "^this pin is damaged: it names no backend\n  fix: pin the graph again"),
    (changed(devices=["cuda:0"]), r"^the pin is for the device 'cuda:0', and this machine has 'cpu'\n  fix: "),
], ids=lambda case: "")
def test_what_is_no_pin_says_so(data: Any, message: str) -> None:
    with pytest.raises(PinError, match=message):
        Pin.from_json(data)


def test_a_pin_that_was_changed_by_hand_is_refused_with_its_file(tmp_path: File) -> None:
    data, file = pin().to_json(), tmp_path / "a.pin"
    choices = data["variants"][0]["path"]["choices"]
    choices[next(iter(choices))] = "numpy.other"
    file.write_text(json.dumps(data))
    with pytest.raises(NoPathError, match=rf"^{file}: the saved path says it is [0-9a-f]+, its choices make it "):
        Pin.load(file)
    file.write_text("{")
    with pytest.raises(PinError, match=rf"^{file} is no pin: it is not JSON"):
        Pin.load(file)
    with pytest.raises(PinError, match=r"cannot be read: No such file or directory\n  fix: tg plan GRAPH --pin"):
        Pin.load(tmp_path / "none")


def test_it_is_priced_where_it_was_chosen_or_where_it_is_asked_for() -> None:
    m = tg.dim("m", 1, 64)                                          # the same graph, its dim by another name
    other = tg.graph(tg.softmax(tg.input("x", (m, 16))))
    two = Pin.from_json(changed(variants=[{**v, "at": {"n": v["cell"]["n"][0]}} for v in variants((1, 4), (5, 64))]))
    one, five = (v.path for v in two.variants)
    assert two.points(other, {}) == [(Cell.of({"m": (1, 4)}), {"m": 1}, one), (Cell.of({"m": (5, 64)}), {"m": 5}, five)]
    assert [sizes for _, sizes, _ in two.points(GRAPH, {"n": 9})] == [{"n": 1}, {"n": 9}]
    with pytest.raises(PinError, match=r"^the pin is for n from 1 to 4, the graph has 1 to 64\n  fix: "):
        replace(two, variants=two.variants[:1]).points(GRAPH, {})
    with pytest.raises(PinError, match=r"^the pin is for the dims \(none\), the graph has n\n  fix: "):
        replace(two, dims=()).points(GRAPH, {})
