"""The picture of listed paths: every path is a point where its time and error put it, the front is what no path beats."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest

from tensor_graphs.paths.path import Path
from tensor_graphs.views.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, axis
from tensor_graphs.views.pareto import front, picture

SVG = "{http://www.w3.org/2000/svg}"


def paths(*points: tuple[float, float | None]) -> list[Path]:
    return [Path("0" * 64, {"k": f"numpy.{i}"}, us * 1e-6, i % 2 == 0, error, calls={"k": 1}, seconds=us * 1e-6)
            for i, (us, error) in enumerate(points)]


def test_the_front_is_what_no_other_path_beats_in_time_and_error() -> None:
    assert front(paths((5, 1e-6), (1, 1e-3), (2, 1e-3), (3, 1e-4), (9, 0.0), (4, None), (3, 2e-4))) == [1, 3, 0, 4]
    assert front(paths((1, None))) == []


def test_every_path_is_a_point_inside_the_axes_in_the_order_of_its_numbers() -> None:
    listed = paths((1, 1e-3), (10, 1e-6), (100, None), (1000, 0.0))
    root = ET.fromstring(picture(listed, "4 paths of <a> & b"))
    points = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    titles = [c.text or "" for circle in root.iter(f"{SVG}circle") for c in circle]
    at = {titles[i].split(":")[0]: p for i, p in enumerate(points)}
    assert len(points) == 4 and all(listed[int(n) - 1].id in t for n, t in zip(at, titles, strict=True))
    assert all(LEFT < x < WIDTH - RIGHT and TOP < y < HEIGHT - BOTTOM for x, y in points)
    assert at["1"][0] < at["2"][0] < at["3"][0] < at["4"][0]        # time to the right
    assert at["3"][1] < at["1"][1] < at["2"][1] < at["4"][1]        # unknown on top, then large errors, then small ones, then none
    assert at["2"][0] - at["1"][0] == pytest.approx(at["3"][0] - at["2"][0], abs=0.2)                   # logarithmic
    texts = [t.text or "" for t in root.iter(f"{SVG}text")]
    assert {"4 paths of <a> & b", "unknown", "0", "time of a run [µs], logarithmic", "1", "2", "3", "4", "0.001"} <= set(texts)
    assert sum(line.attrib["stroke"] == "#c33" for line in root.iter(f"{SVG}line")) == 2                # 1 - 2 - 4


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 3.1], [1.0, 8.0], [1e-7, 1e3], [1.0, 1e30]])
def test_ticks_are_few_different_and_within_the_axis(values: list[float]) -> None:
    place, ticks = axis(values, 100.0, 500.0)
    assert 1 <= len(ticks) <= 10 and len({f"{t:.3g}" for t in ticks}) == len(ticks)
    assert all(100 <= place(t) <= 500 for t in ticks) and all(100 < place(v) < 500 for v in values)


def test_labels_do_not_lie_on_each_other() -> None:
    text = picture(paths(*((100 + i / 10, 1e-6) for i in range(40))), "many")
    labels = [tuple(map(float, m)) for m in re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*fill="#3?(?:6c|c33)">', text)]
    assert 1 < len(labels) < 40 and all(math.dist(a, b) > 15 for a in labels for b in labels if a != b)
