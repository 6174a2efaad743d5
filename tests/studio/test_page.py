"""Pages: one file that loads nothing, whose names cannot do anything, and whose data says what the plan says."""

from __future__ import annotations

import html
import json
import random
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.choice.path_listing import list_paths
from tensor_graphs.language.graph import Graph
from tensor_graphs.records import open_database
from tensor_graphs.studio.data import page_data
from tensor_graphs.studio.page import html_page
from tests.cli.command import tg as command

LAYERS = 5
HOSTILE = "</script><script>alert(1)</script>"
NUMPY = ("numpy",)


class Elements(HTMLParser):
    """The elements of a page with what is in them, and all attributes that would load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.loads: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag not in ("meta", "link"):
            self.inside.append(tag)
            self.texts.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, before = self.texts[-1]
            self.texts[-1] = tag, before + data


@pytest.fixture(scope="module")
def layered() -> Graph:
    n = tg.dim("n", 1, 64)
    x = tg.input("x", (n, 32))
    for i in range(LAYERS):
        x = tg.add(x, tg.linear(tg.rms_norm(x), tg.parameter(f"layers.{i}.w", (32, 32))))
    return tg.graph({"y": tg.softmax(x)})


@pytest.fixture(scope="module")
def data(layered: Graph) -> dict[str, Any]:
    plan = tg.compile(layered, backends=NUMPY)
    return page_data(layered, plan, HOSTILE, {"n": 4}, paths=list(list_paths(layered, backends=NUMPY, limit=3)))


def boxes_in(block: dict[str, Any]) -> list[int]:
    return [n for e in block["elements"] if e is not None for n in (boxes_in(e) if isinstance(e, dict) else [e])]


def test_the_file_loads_nothing_and_names_end_no_element(data: dict[str, Any]) -> None:
    page = html_page(data)
    elements = Elements(page)
    assert not elements.inside and not elements.loads
    assert [tag for tag, _ in elements.texts].count("script") == 2 and "alert(1)</script>" not in page
    (stored,) = [text for tag, text in elements.texts if tag == "script" and text.startswith("{")]
    assert json.loads(stored) == json.loads(json.dumps(data)) and json.loads(stored)["title"] == HOSTILE
    assert [text.strip() for tag, text in elements.texts if tag == "h1"] == [HOSTILE]
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_every_box_of_a_picture_has_one_place_and_equal_layers_are_one_block(data: dict[str, Any]) -> None:
    for picture in (*data["pictures"].values(), *data["definitions"].values()):
        assert sorted(map(str, boxes_in(picture["block"]))) == sorted(picture["boxes"])
    times = [e["times"] for e in data["pictures"]["graph"]["block"]["elements"] if isinstance(e, dict)]
    assert times == [LAYERS]


def test_composites_open_to_their_definitions_and_kernels_say_why_they_were_chosen(data: dict[str, Any]) -> None:
    composites = {box["lines"][0]: box["key"] for box in data["pictures"]["graph"]["boxes"].values() if box["fill"] != "#ffffff"}
    for name in ("softmax", "rms_norm", "linear"):
        inner = data["definitions"][composites[name]]
        assert {"exp", "mul", "dot", "reduce_sum"} & {box["lines"][0] for box in inner["boxes"].values()}, name
    timed = [box for box in data["pictures"]["kernels"]["boxes"].values() if box["share"] is not None]
    assert timed and all(box["key"] in data["steps"] for box in timed)
    for step in data["steps"].values():
        assert step["kernel"] and step["why"] is not None and step["calls"] >= 1
    assert [len(path["ways"]) > 0 for path in data["paths"]] == [True] * 3


def test_buffers_of_the_arena_lie_in_it_and_do_not_overlap_while_both_are_alive(data: dict[str, Any]) -> None:
    memory = data["memory"]
    for i, (first, last, at, size, _, device) in enumerate(memory["buffers"]):
        assert 0 <= first <= last < len(memory["steps"]) and at + size <= memory["arenas"][device]
        for other_first, other_last, other_at, other_size, _, other in memory["buffers"][:i]:
            together = device == other and first <= other_last and other_first <= last
            assert not together or at + size <= other_at or other_at + other_size <= at


def test_the_verb_writes_a_page_with_a_run_on_it(tmp_path: Path) -> None:
    file = tmp_path / "softmax.html"
    done = command("studio", "examples/softmax.tg", "--backends", "numpy", "--run", "--paths", "2", "--html", file)
    assert done.returncode == 0 and "open it in a browser" in done.stdout
    stored = re.search(r'id="data">(.*?)</script>', file.read_text(), re.DOTALL)
    assert stored is not None
    page = json.loads(stored[1])
    assert page["title"] == "softmax.tg" and len(page["paths"]) == 2 and page["run"]["traceEvents"]


DRIVEN = """
(async () => {
  const faults = [], seen = {}, rest = () => new Promise(resolve => setTimeout(resolve, 20));
  window.addEventListener("error", event => faults.push(event.message));
  const boxes = () => [...document.querySelectorAll("g.box")];
  const named = text => boxes().find(box => box.getAttribute("aria-label").startsWith(text));
  const press = box => box.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const overlaps = () => {
    const places = [...document.querySelectorAll("g.box > rect:not(.frame), g.box > ellipse")].map(box => box.getBBox());
    return places.flatMap((a, i) => places.slice(0, i).filter(b => a.x < b.x + b.width - 0.01 && b.x < a.x + a.width - 0.01
      && a.y < b.y + b.height - 0.01 && b.y < a.y + a.height - 0.01)).length;
  };
  seen.tabs = [];
  for (const tab of [...document.querySelectorAll("[role=tab]")]) {
    tab.click(); await rest();
    seen.tabs.push([tab.textContent, document.querySelectorAll("#view *").length]);
  }
  location.hash = "Graph"; await rest();
  seen.boxes = boxes().length;
  press(named("softmax")); await rest();
  seen.opened = boxes().length; seen.overlaps = overlaps();
  boxes()[0].focus();
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true })); await rest();
  seen.focus = document.activeElement.getAttribute("aria-label");
  press(named("5 times")); await rest();
  seen.folded = boxes().length;
  location.hash = "Steps"; await rest();
  document.querySelector("#view tbody tr").click();
  seen.details = document.getElementById("details").textContent;
  document.body.setAttribute("data-seen", JSON.stringify({ ...seen, faults }));
})();
"""


LARGE = """
(async () => {
  const seen = {}, rest = () => new Promise(resolve => setTimeout(resolve, 50)), view = document.getElementById("view");
  const names = () => [...document.querySelectorAll("g.box")].map(box => box.getAttribute("aria-label"));
  seen.first = names();
  // without a screen the browser may send no event of its own for a scroll
  const until = async holds => {
    for (let i = 0; i < 60 && !holds(); i++) { view.dispatchEvent(new Event("scroll")); await rest(); }
  };
  view.scrollTo(0, view.scrollHeight); await until(() => names().at(-1).startsWith("last"));
  seen.last = names();
  view.scrollTo(0, 0); await until(() => names()[0].startsWith("x"));
  const find = document.querySelector("input[type=search]");
  find.value = "floor"; find.dispatchEvent(new Event("input")); await until(() => document.querySelector("g.box.chosen"));
  seen.found = [...document.querySelectorAll("g.box.chosen")].map(box => box.getAttribute("aria-label"));
  document.body.setAttribute("data-seen", JSON.stringify(seen));
})();
"""


def driven(page: str, script: str, folder: Path) -> dict[str, Any]:
    """Return what a script stores as JSON in the attribute data-seen of the body of a page that a browser shows."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "apt install chromium"
    file = folder / "page.html"
    file.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--window-size=1500,1100")
    done = subprocess.run([program, *options, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    stored = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert stored is not None, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(html.unescape(stored[1]))
    return seen


@pytest.mark.long
def test_a_browser_holds_only_the_boxes_near_the_window(tmp_path: Path) -> None:
    x = tg.input("x", (8, 8))
    ops, drawn = [tg.exp, tg.sin, tg.abs, tg.tanh, tg.neg], random.Random(0)
    for i in range(1000):
        x = tg.floor(x) if i == 700 else drawn.choice(ops)(x)
    graph = tg.graph({"last": x})
    seen = driven(html_page(page_data(graph, tg.compile(graph, backends=NUMPY), "long", {})), LARGE, tmp_path)
    assert 10 < len(seen["first"]) < 200 and 10 < len(seen["last"]) < 200
    assert seen["first"][0].startswith("x") and seen["last"][-1].startswith("last") and "floor" not in str(seen["first"])
    assert [name.split(",")[0] for name in seen["found"]] == ["floor"]


FORMS = """
(async () => {
  const faults = [], seen = {}, rest = () => new Promise(resolve => setTimeout(resolve, 20));
  const details = document.getElementById("details");
  window.addEventListener("error", event => faults.push(event.message));
  location.hash = "Paths"; await rest();
  seen.paths = document.querySelectorAll("#view table:first-of-type tbody tr").length;
  seen.differing = document.querySelectorAll("#view td.differs").length;
  location.hash = "Front"; await rest();
  const points = [...document.querySelectorAll("#view circle.point")], told = [];
  for (const point of points) {
    point.dispatchEvent(new MouseEvent("click", { bubbles: true })); await rest();
    told.push(details.textContent);
  }
  document.body.setAttribute("data-seen", JSON.stringify({ ...seen, told, faults }));
})();
"""


@pytest.mark.long
def test_a_browser_compares_paths_and_says_what_the_points_of_the_front_do_otherwise(layered: Graph, tmp_path: Path) -> None:
    with open_database(tmp_path / "own.db") as database:
        plan = tg.compile(layered, backends=NUMPY, database=database)
        paths = list(list_paths(layered, backends=NUMPY, database=database, limit=3))
        front = tg.pareto(layered, backends=NUMPY, points=3, database=database, at={"n": 4})
    page = html_page(page_data(layered, plan, "forms", {"n": 4}, paths=paths, front=front, statistic="norm"))
    seen = driven(page, FORMS, tmp_path)
    assert seen["faults"] == [] and seen["paths"] == 3 and seen["differing"] > 0
    assert len(seen["told"]) == len(front) >= 1
    for point, told in zip(front, seen["told"], strict=True):
        same = {*point.plan.variants[0].path.choices.values()} == {*plan.variants[0].path.choices.values()}
        assert (point.id or "as written") in told and ("It runs the same kernels." in told or not same)


@pytest.mark.long
def test_a_browser_opens_and_folds_boxes_and_shows_reasons(data: dict[str, Any], tmp_path: Path) -> None:
    seen = driven(html_page(data), DRIVEN, tmp_path)
    assert seen["faults"] == [] and [name for name, _ in seen["tabs"]] == ["Graph", "Kernels", "Steps", "Paths", "Memory"]
    assert all(count > 5 for _, count in seen["tabs"])
    assert seen["boxes"] < seen["opened"] > seen["folded"] and seen["overlaps"] == 0
    assert seen["focus"] and "numpy." in seen["details"] and "why" in seen["details"]
