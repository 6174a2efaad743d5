"""Diagrams: a box for each step that costs, arrows where one reads another, equal layers once, as SVG and for Graphviz."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

import tensor_graphs as tg
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.plan import Evidence, Plan
from tensor_graphs.views.diagram import in_common, of_graph, of_plan
from tests.plans import paths_of, plan_of

LAYERS = 6


@pytest.fixture(scope="module")
def layered() -> Graph:
    """Layers of a norm, a product with a weight of its own, a state, and a residual; a table that the first layer meets first."""
    n = tg.dim("n", 1, 64)
    x = tg.input("x", (n, 32))
    shift = tg.exp(tg.parameter("positions", (32,)))
    updates = {}
    for i in range(LAYERS):
        y = tg.linear(tg.rms_norm(x), tg.parameter(f"layers.{i}.w", (32, 32)))
        kept = tg.state(f"layers.{i}.sum", (32,))
        updates[kept] = tg.add(kept.read(), tg.sum(y, axis=0))
        x = tg.add(x, tg.mul(y, tg.expand(tg.reshape(tg.add(shift, updates[kept]), (1, 32)), (n, 32))))
    return tg.graph({"y": tg.softmax(x)}, updates)


@pytest.fixture(scope="module")
def planned(layered: Graph) -> Plan:
    """Every kernel takes an estimated 2 µs, products 20 µs."""
    plan = plan_of(layered, ("c", "numpy"))
    (v,) = plan.variants
    seen = {ins.signature: ins for ins in v.program.instructions}
    evidence = tuple(Evidence(ins.op, key, ins.kernel, 1, 2e-6 * (10 if ins.op == "linear" else 1), False, None, "", (), margin=1.5)
                     for key, ins in seen.items())
    return replace(plan, variants=(replace(v, evidence=evidence),))


def boxes(text: str) -> dict[str, str]:
    """Of each box its label; every arrow joins two of them, and brackets are closed."""
    found = dict(re.findall(r'^ *(b\d+) \[label="((?:[^"\\]|\\.)*)"', text, re.MULTILINE))
    ends = re.findall(r"^  (b\d+) -> (b\d+)", text, re.MULTILINE)
    assert ends and all(a in found and b in found for a, b in ends)
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert bare.count("{") == bare.count("}") and bare.count("[") == bare.count("]")
    return found


def test_equal_layers_of_a_graph_are_one_with_their_number_and_what_they_have_in_common(layered: Graph) -> None:
    text = of_graph(layered, 'six "layers"').dot()
    labels = boxes(text)
    assert text.count("subgraph") == 1 and f'label="× {LAYERS}"' in text and 'label="six \\"layers\\""' in text
    linear = [label for label in labels.values() if label.startswith("linear")]
    assert linear == ["linear\\nf32[n, 32]\\nparameter layers.*.w f32[32, 32]"]
    assert any("state layers.*.sum f32[32]\\nupdates layers.*.sum" in label for label in labels.values())
    assert {"x\\nf32[n, 32]", "y\\nf32[n, 32]"} <= set(labels.values()) and not any("expand" in label for label in labels.values())
    assert text.index('label="exp') < text.index("subgraph") < text.index('label="softmax')      # the table is no part of a layer
    assert "style=dashed, constraint=false" in text and "N times in a row" in text


def test_boxes_of_a_plan_say_kernel_time_and_share_and_are_coloured_by_backend(planned: Plan) -> None:
    text = of_plan(planned, {}, "layers").dot()
    labels = boxes(text)
    linear = next(label for label in labels.values() if label.startswith("c.linear"))
    assert re.fullmatch(r"c\.linear\\nf32\[n, 32\]\\nparameter layers\.\*\.w\\n20.0 µs × 6 \(estimate\) · ([\d.]+)%", linear)
    shares = [float(found) for label in labels.values() for found in re.findall(r"· ([\d.]+)%$", label)]
    assert sum(shares) == pytest.approx(100.0, abs=0.1 * len(shares))
    colour = dict(re.findall(r'<td bgcolor="(#\w+)" color="#\w+">backend (\w+)', text))
    by_backend = {name: shade for shade, name in colour.items()}
    assert set(by_backend) == {label.partition(".")[0] for label in labels.values() if re.match(r"\w+\.", label)}
    assert re.search(rf'c\.linear[^\n]*fillcolor="{by_backend["c"]}"', text)
    heights = {float(s): float(h) for s, h in re.findall(r'· ([\d.]+)%"[^\n]*height=([\d.]+)', text)}
    assert heights[max(heights)] == max(heights.values()) > heights[min(heights)]


@pytest.mark.usefixtures("fake")
def test_devices_are_borders_and_copies_between_them_are_boxes() -> None:
    x = tg.input("x", (8, 8))
    g = tg.graph({"y": tg.sin(tg.add(x, x))})
    paths = paths_of(g, ("numpy", "fake"))
    first = paths.cheapest()
    there = replace(first, choices={k: n.replace("numpy.sin", "fake.sin") for k, n in first.choices.items()}, identities={})
    text = of_plan(plan_of(g, ("numpy", "fake"), path=there), {}, "two devices").dot()
    labels, border = boxes(text), dict(re.findall(r'color="(#\w+)">on (\w+)', text))
    assert {label.split("\\n")[0] for label in labels.values()} == {"x", "numpy.add", "cpu -> fake", "fake.sin", "fake -> cpu", "y"}
    assert set(border.values()) == {"cpu", "fake"} and border[re.findall(r'fake.sin[^\n]*, color="(#\w+)"', text)[0]] == "fake"


def test_names_that_differ_in_numbers_are_one_with_stars() -> None:
    assert in_common(["a.1.w f32[8]", "a.12.w f32[8]", "a.3.w f32[8]"]) == "a.*.w f32[8]"
    assert in_common(["same"]) == "same" and in_common(["left", "right"]) == "left, …"


def test_a_picture_has_every_box_once_and_an_arrow_for_each_that_reads(layered: Graph, planned: Plan) -> None:
    for diagram in (of_graph(layered, "a < b"), of_plan(planned, {}, "a < b")):
        picture = ET.fromstring(diagram.svg())
        space = {"svg": "http://www.w3.org/2000/svg"}
        groups = picture.findall(".//svg:g[@id]", space)
        assert [g.get("id") for g in groups] == [f"b{n}" for n in diagram.boxes]
        assert [[t.text for t in g.findall("svg:text", space)] for g in groups] == [list(b.lines) for b in diagram.boxes.values()]
        ends = [tuple(map(int, path.get("data-ends", "").split())) for path in picture.findall(".//svg:path[@data-ends]", space)]
        assert set(ends) == set(diagram.arrows)
        assert len(picture.findall(".//svg:path[@marker-end]", space)) == len(diagram.arrows)
        assert any(text.text == "a < b" for text in picture.findall("svg:text", space))
        assert any(text.text == f"× {LAYERS}" for text in picture.findall(".//svg:text", space))


def test_a_notebook_shows_graphs_and_plans(layered: Graph, planned: Plan) -> None:
    assert "<svg" in layered._repr_html_() and "rms_norm" in layered._repr_html_()
    assert "<svg" in planned._repr_html_() and "c.linear" in planned._repr_html_()
