"""diagram: draws a graph or a plan as boxes and arrows; equal layers are drawn once, with their number.

    diagram = of_graph(graph, "softmax.tg")
    diagram = of_plan(plan, {"n": 1}, "softmax.tg")     # the steps of the variant for these sizes
    diagram.svg(); diagram.dot()                        # as SVG, or in Graphviz's language

A box is an op that is no view, or an instruction. Views are part of the arrows. Parameters and states are lines in the boxes that
read them. In a plan the colour of a box shows its backend and the border its device; height and border width show its share of
the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape

from tensor_graphs.kernels.kernel import Transfer
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, is_step, walk
from tensor_graphs.paths.fit_terminal import duration
from tensor_graphs.paths.lower import Operand, Program
from tensor_graphs.paths.plan import Plan
from tensor_graphs.views.fold_repeats import Item, folded, shown_for, stands_for
from tensor_graphs.views.layout import Point, layout

COLOURS = ("#cfe3f7", "#fbe0c3", "#d6efd0", "#f6d3dc", "#e3d9f2", "#f5efb8", "#d0eeec", "#e6dfd5")
"""Colours of backends, in the order of their names."""

BORDERS = ("#555555", "#c0392b", "#1f6fb2", "#2e8b57", "#8e44ad")
"""Border colours of devices, the host first."""

LEAF = "#ffffff"

TALLER = 160.0
"""Pixels added to the height of a box with all of the time."""

THICKER = 7.0
"""Pixels added to the border of a box with all of the time."""

MOST_LINES, LONGEST = 6, 80
"""Most lines on the operands of a box, and most characters of one line."""

LINE, CHARACTER = 13.0, 6.1
"""Height of a line of text, and width of a character, in pixels."""

TIP = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
       '<path d="M0,0 L8,4 L0,8 z" fill="#777777"/></marker></defs>')
"""SVG of an arrow's tip."""

INCH = 72
"""Pixels of Graphviz's unit of sizes."""


@dataclass(frozen=True)
class Box:
    """One step. kind: equal for corresponding steps of equal layers. reads: numbers of the earlier boxes that it reads. group:
    decides its colour. leaf: True for an input or output. seconds: of one call, None if unknown; measured: False if estimated."""

    title: str
    kind: Hashable
    reads: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()
    group: str = ""
    device: str = ""
    seconds: float | None = None
    measured: bool = False
    leaf: bool = False
    key: str = ""


@dataclass
class Boxes:
    """All boxes of a picture, operands first. grouped: meaning of `Box.group`, for the legend."""

    grouped: str
    made: list[Box] = field(default_factory=list)

    def add(self, box: Box) -> int:
        self.made.append(box)
        return len(self.made) - 1


# ---- a graph ---------------------------------------------------------------------------------------------------------

def of_graph(graph: Graph, title: str) -> Diagram:
    """Return a drawing of a graph's ops as they are written. title: of the picture."""
    updated: dict[Node, list[str]] = {}
    for name, node in graph.updates.items():
        updated.setdefault(_made_by(node), []).append(name)
    return _of_nodes(graph.inputs, graph.nodes, graph.outputs, updated, title)


def of_definition(definition: Definition, names: Sequence[str], title: str) -> Diagram:
    """Return a drawing of what an op is defined as. names: of its operands."""
    outputs = {f"result {i}" if len(definition.outputs) > 1 else "result": node for i, node in enumerate(definition.outputs)}
    operands = dict(zip(names, definition.arguments, strict=True))
    nodes = [node for node in walk(definition.outputs) if node not in set(definition.arguments)]
    return _of_nodes(operands, nodes, outputs, {}, title)


def _of_nodes(inputs: Mapping[str, Node], nodes: Iterable[Node], outputs: Mapping[str, Node],
              updated: Mapping[Node, Sequence[str]], title: str) -> Diagram:
    boxes, at = Boxes("op"), dict[Node, int]()
    for name, node in inputs.items():
        at[node] = boxes.add(Box(name, ("input", name), lines=(str(node.type),), leaf=True))
    for node in nodes:
        if not is_step(node):
            continue
        sources = [_made_by(x) for x in node.inputs]
        named = [f"{x.op.name} {x.attrs['name']} {x.type}" for x in sources if x.op in (leaves.PARAMETER, leaves.STATE)]
        lines = (" ".join(map(str, node.types)), *named, *(f"updates {name}" for name in updated.get(node, ())))
        at[node] = boxes.add(Box(node.op.name, signature_of(node).key, tuple(dict.fromkeys(at[x] for x in sources if x in at)),
                                 lines, node.op.kind, key=signature_of(node).key))
    for name, node in outputs.items():
        source = _made_by(node)
        boxes.add(Box(name, ("output", name), (at[source],) if source in at else (), (str(node.type),), leaf=True))
    return _drawn(boxes, title)


def _made_by(node: Node) -> Node:
    """Return the node that a chain of views starts from."""
    while node.op.facts.view:
        node = node.inputs[0]
    return node


# ---- a plan ----------------------------------------------------------------------------------------------------------

def of_plan(plan: Plan, sizes: Mapping[str, int], title: str) -> Diagram:
    """Return a drawing of the instructions of the variant that serves these sizes (default: those it was costed at)."""
    v = plan.variant({**plan.variants[0].at, **sizes})
    costed = ", ".join(f"{name}={size}" for name, size in v.at.items())
    serves = f" for {v.cell}" if v.cell.ranges else ""
    more = "" if len(plan.variants) == 1 else f" ({len(plan.variants)} ranges in all; --at chooses)"
    boxes, program = Boxes("backend"), v.program
    evidence = {e.signature: e for e in v.evidence}
    links = {way: seconds / max(1, n) for way, (n, seconds) in v.path.copies.items()}
    writers: dict[int, int] = {}
    for i, b in enumerate(program.buffers):
        if b.kind == "input":
            writers[i] = boxes.add(Box(b.name, ("input", b.name), lines=(_type_of(program, b.name),), leaf=True))
    for ins in program.instructions:
        e = evidence.get(ins.signature)
        reads = [w for o in ins.ins if (w := _writer(program, writers, o)) is not None]
        named = [f"{NAMED[b.kind]} {b.name}" for o in ins.ins if (b := program.buffers[program.home(o.buffer)]).kind in NAMED]
        moved, prepares = isinstance(ins.call, Transfer), ins.label.startswith("prepare_")
        seconds = links.get(ins.kernel) if moved else None if e is None or prepares else e.seconds
        lines = (" ".join(f"{o.dtype.name}[{', '.join(map(str, o.shape))}]" for o in ins.outs), *dict.fromkeys(named))
        kind = ins.kernel, ins.signature, ins.op, prepares, len(ins.ins)
        number = boxes.add(Box(f"prepare for {ins.kernel}" if prepares else ins.kernel, kind, tuple(dict.fromkeys(reads)), lines,
                               "copy" if moved else ins.backend, ins.device, seconds, e is not None and e.measured,
                               key=ins.signature))
        for o in ins.outs:
            writers[o.buffer] = writers[program.home(o.buffer)] = number
    for name, o in program.outputs.items():
        writer = _writer(program, writers, o)
        boxes.add(Box(name, ("output", name), () if writer is None else (writer,), leaf=True))
    at = f" at {costed}" if costed else ""
    return _drawn(boxes, f"{title}{serves}{more}\n{duration(v.predicted)} predicted{at}, {v.measured_share:.0%} of it measured · "
                         f"path {v.path.id}")


NAMED = {"parameter": "parameter", "state": "state", "bound": "made of parameters:"}
"""Kinds of buffers that a box names -> the words for them."""


def _type_of(program: Program, name: str) -> str:
    return str(program.graph.inputs[name].type) if name in program.graph.inputs else ""


def _writer(program: Program, writers: Mapping[int, int], operand: Operand) -> int | None:
    """Return the box that wrote a value, or else the box that wrote the memory that the value is in."""
    return writers.get(operand.buffer, writers.get(program.home(operand.buffer)))


# ---- a diagram -------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class DrawnBox:
    """One drawn box. lines: of text, the title first. share: of all time, None without times. dashed: some time is an estimate.
    key: of its signature; "" for an input or output."""

    lines: tuple[str, ...]
    fill: str
    border: str
    leaf: bool
    share: float | None
    dashed: bool
    key: str = ""

    @property
    def size(self) -> Point:
        """Width and height in pixels."""
        room = 22 if self.leaf else 14
        return (max(map(len, self.lines)) * CHARACTER + room, len(self.lines) * LINE + 10 + TALLER * (self.share or 0.0))

    @property
    def stroke(self) -> float:
        return 1 + THICKER * (self.share or 0.0)


@dataclass(frozen=True)
class Diagram:
    """A drawing. arrows: (from, to) -> True for one to the next of several equal layers. legend: (text, colour to fill, colour of
    the border) of each line."""

    title: str
    items: tuple[Item, ...]
    boxes: Mapping[int, DrawnBox]
    arrows: Mapping[tuple[int, int], bool]
    legend: tuple[tuple[str, str, str], ...]

    def dot(self) -> str:
        """Return the drawing in Graphviz's language DOT."""
        out = ["digraph {",
               f"  label={_quoted(self.title)}; labelloc=t; fontsize=16; fontname=Helvetica; ranksep=0.3; nodesep=0.25;",
               "  node [shape=box, style=filled, fontname=Helvetica, fontsize=10, margin=\"0.12,0.05\", height=0.3];",
               "  edge [arrowsize=0.6, color=\"#777777\"];", *_clusters(self.items, self._dot_box, 1, [0])]
        out += [f"  b{a} -> b{b}" + (" [style=dashed, constraint=false];" if back else ";") for (a, b), back in self.arrows.items()]
        rows = "".join(f'<tr><td bgcolor="{fill}" color="{border}">{escape(line)}</td></tr>' for line, fill, border in self.legend)
        table = f'<table border="0" cellborder="1" cellspacing="2">{rows}</table>'
        out += [f'  legend [shape=plain, fillcolor="white", label=<{table}>];'] * bool(rows)
        return "\n".join([*out, "}", ""])

    def _dot_box(self, number: int) -> str:
        b = self.boxes[number]
        label = "\\n".join(map(_escaped, b.lines))
        if b.leaf:
            return f'b{number} [label="{label}", shape=oval, fillcolor="{b.fill}"];'
        look = f'fillcolor="{b.fill}", color="{b.border}"'
        if b.share is not None:
            look += f", height={b.size[1] / INCH:.2f}, penwidth={b.stroke:.1f}" + (', style="filled,dashed"' if b.dashed else "")
        return f'b{number} [label="{label}", {look}];'

    def svg(self) -> str:
        """Return the drawing as an SVG document."""
        placed = layout(self.items, {n: b.size for n, b in self.boxes.items()}, self.arrows)
        titles, rows = self.title.splitlines(), len(self.legend)
        top = 24 + 20 * len(titles)
        width = max(placed.width, *(9 * len(line) + 20 for line in titles), 300.0)
        height = top + placed.height + 20 + 20 * rows
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} '
                f'{height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="10" text-anchor="middle">')
        out = [head, TIP, '<rect width="100%" height="100%" fill="white"/>']
        out += [f'<text x="{width / 2:.0f}" y="{22 + 20 * i}" font-size="{15 if i == 0 else 12}">{escape(line)}</text>'
                for i, line in enumerate(titles)]
        out.append(f'<g transform="translate({(width - placed.width) / 2:.0f},{top})">')
        for f in placed.frames:
            at = f'x="{f.x:.1f}" y="{f.y:.1f}" width="{f.width:.1f}" height="{f.height:.1f}"'
            out += [f'<rect {at} rx="8" fill="none" stroke="#777777" stroke-dasharray="5 3"/>',
                    f'<text x="{f.x + f.width - 8:.1f}" y="{f.y + 15:.1f}" font-size="13" text-anchor="end">× {f.times}</text>']
        for (a, b), pieces in placed.arrows.items():
            last = max(pieces, key=lambda points: points[-1][1])
            out += [_arrow(_curve(points), f"{a} {b}", tip=points is last) for points in pieces]
        out += [_arrow("M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points), f"{a} {b}", dashed=True)
                for (a, b), points in placed.back.items()]
        out += [_svg_box(n, placed.boxes[n], b) for n, b in self.boxes.items()]
        out.append("</g>")
        for i, (line, fill, border) in enumerate(self.legend):
            y = top + placed.height + 12 + 20 * i
            out += [f'<rect x="14" y="{y:.0f}" width="26" height="14" fill="{fill}" stroke="{border}" stroke-width="1.5"/>',
                    f'<text x="48" y="{y + 11:.0f}" text-anchor="start">{escape(line)}</text>']
        return "\n".join([*out, "</svg>", ""])


def _drawn(boxes: Boxes, title: str) -> Diagram:
    ordered = _tables_first(boxes.made)
    items = folded([b.kind for b in ordered])
    many, shown = shown_for(items), stands_for(items)
    alike: dict[int, list[Box]] = {}
    for b, i in zip(ordered, shown, strict=True):
        alike.setdefault(i, []).append(b)
    groups = sorted({b.group for b in ordered if not b.leaf})
    colours = {g: COLOURS[i % len(COLOURS)] for i, g in enumerate(groups)}
    devices = list(dict.fromkeys(b.device for b in ordered if b.device))
    borders = {name: BORDERS[i % len(BORDERS)] for i, name in enumerate(devices)}
    total = sum(b.seconds or 0.0 for b in ordered)
    arrows: dict[tuple[int, int], bool] = {}                        # True: to the next of several equal layers
    for k, b in enumerate(ordered):
        for read in b.reads:
            ends = shown[read], shown[k]
            arrows[ends] = arrows.get(ends, True) and ends[0] >= ends[1]
    legend = [(f"{boxes.grouped} {name}", colour, BORDERS[0]) for name, colour in colours.items()]
    legend += [(f"on {name}", LEAF, colour) for name, colour in borders.items()] if len(borders) > 1 else []
    estimated, repeated = any(b.seconds and not b.measured for b in ordered), any(arrows.values())
    legend += [(line, LEAF, LEAF) for line, counts in (
        ("taller, thicker border: more of the time", total > 0),
        ("dashed border: an estimate, or no time", total > 0 and estimated),
        ("dashed frame × N: N times in a row", repeated), ("dashed arrow: to the next of these", repeated)) if counts]
    drawn = {i: _shown(of_one, many[i], total, colours, borders) for i, of_one in alike.items()}
    return Diagram(title, items, drawn, arrows, tuple(legend))


def _tables_first(all_boxes: Sequence[Box]) -> list[Box]:
    """Return the boxes reordered: first those that are neither on the longest chain nor read from it. Otherwise tables of positions
    and masks would make the first layer that reads them unlike all other layers."""
    depth: list[int] = []
    for b in all_boxes:
        depth.append(1 + max((depth[r] for r in b.reads), default=0))
    last = max(range(len(all_boxes)), key=depth.__getitem__, default=None)
    chain = set[int]()
    while last is not None:
        chain.add(last)
        last = max(all_boxes[last].reads, key=depth.__getitem__, default=None)
    follows: list[bool] = []
    for i, b in enumerate(all_boxes):
        follows.append(i in chain or any(follows[r] for r in b.reads))
    order = [i for i in range(len(all_boxes)) if not follows[i]] + [i for i in range(len(all_boxes)) if follows[i]]
    place = {old: new for new, old in enumerate(order)}
    return [replace(all_boxes[i], reads=tuple(place[r] for r in all_boxes[i].reads)) for i in order]


def _shown(alike: Sequence[Box], many: int, total: float, colours: Mapping[str, str], borders: Mapping[str, str]) -> DrawnBox:
    """Return the look of a box. alike: all boxes that it is drawn for; many: their number."""
    b = alike[0]
    lines = [in_common([box.lines[i] for box in alike if i < len(box.lines)])[:LONGEST] for i in range(len(b.lines))]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES - 1], f"… {len(lines) - MOST_LINES + 1} more"]
    lines.insert(0, in_common([box.title for box in alike]))
    times = [box.seconds for box in alike if box.seconds is not None]
    share = sum(times) / total if total else 0.0
    measured = all(box.measured for box in alike)
    if times:
        lines.append(f"{duration(sum(times) / len(times))}{f' × {many}' if many > 1 else ''}{'' if measured else ' (estimate)'} · "
                     f"{share:.1%}")
    return DrawnBox(tuple(lines), LEAF if b.leaf else colours[b.group], borders.get(b.device, BORDERS[0]), b.leaf,
                 share if total and not b.leaf else None, bool(total) and not measured, b.key)


# ---- text ------------------------------------------------------------------------------------------------------------

def _clusters(items: Sequence[Item], box: Callable[[int], str], depth: int, count: list[int]) -> list[str]:
    """Return the boxes as lines of DOT; those of a Repeat in a frame with its number. count: number of frames so far."""
    out, space = [], "  " * depth
    for item in items:
        if isinstance(item, int):
            out.append(space + box(item))
            continue
        count[0] += 1
        out.append(f"{space}subgraph cluster_{count[0]} {{ label=\"× {item.times}\"; labeljust=r; fontsize=14; "
                   "style=\"rounded,dashed\"; color=\"#777777\";")
        out += [*_clusters(item.inside, box, depth + 1, count), f"{space}}}"]
    return out


def in_common(names: Sequence[str]) -> str:
    """Return names that differ in numbers only as one name, with a star for each such number; else the first name and an ellipsis.

    >>> in_common(["layers.0.w f32[8]", "layers.1.w f32[8]"]), in_common(["a", "b"])
    ('layers.*.w f32[8]', 'a, …')
    """
    pieces = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(p[::2]) for p in pieces}) != 1:
        return f"{names[0]}, …"
    return "".join(same[0] if len(set(same)) == 1 else "*" for same in zip(*pieces, strict=True))


def _svg_box(number: int, centre: Point, b: DrawnBox) -> str:
    (x, y), (width, height) = centre, b.size
    stroke = f'fill="{b.fill}" stroke="{b.border}" stroke-width="{b.stroke:.1f}"' + (' stroke-dasharray="4 2"' if b.dashed else "")
    shape = (f'<ellipse cx="{x:.1f}" cy="{y:.1f}" rx="{width / 2:.1f}" ry="{height / 2:.1f}" {stroke}/>' if b.leaf else
             f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" {stroke}/>')
    first = y - LINE * (len(b.lines) - 1) / 2 + 3.5
    weights = [' font-weight="bold"', *[""] * (len(b.lines) - 1)]
    lines = "".join(f'<text x="{x:.1f}" y="{first + LINE * i:.1f}"{weight}>{escape(line)}</text>'
                    for i, (line, weight) in enumerate(zip(b.lines, weights, strict=True)))
    return f'<g id="b{number}">{shape}{lines}</g>'


def _arrow(path: str, ends: str, *, tip: bool = True, dashed: bool = False) -> str:
    look = ' marker-end="url(#tip)"' * tip + ' stroke-dasharray="4 3"' * dashed
    return f'<path d="{path}" data-ends="{ends}" fill="none" stroke="#777777"{look}/>'


def _curve(points: Sequence[Point]) -> str:
    """Return a path that is vertical at every point, and straight between two that are one above the other."""
    (x, y), *rest = points
    out = [f"M{x:.1f},{y:.1f}"]
    for to_x, to_y in rest:
        bend = (to_y - y) / 2
        out.append(f"L{to_x:.1f},{to_y:.1f}" if abs(to_x - x) < 0.5 else
                   f"C{x:.1f},{y + bend:.1f} {to_x:.1f},{to_y - bend:.1f} {to_x:.1f},{to_y:.1f}")
        x, y = to_x, to_y
    return " ".join(out)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return '"' + "\\n".join(map(_escaped, text.splitlines())) + '"'
