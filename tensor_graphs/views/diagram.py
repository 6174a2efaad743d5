"""diagram: draws a graph or a plan as boxes and arrows in Graphviz's language; equal layers are drawn once, with their number.

    text = of_graph(graph, "softmax.tg")            # the language DOT
    text = of_plan(plan, {"n": 1}, "softmax.tg")    # the steps of the variant for these sizes
    svg = laid_out(text)                            # by Graphviz's program `dot`

A box is an op that is no view, or an instruction. Views are part of the arrows. Parameters and states are lines in the boxes that
read them. In a plan the colour of a box shows its backend and the border its device; height and border width show its share of
the time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Transfer
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, is_step
from tensor_graphs.paths.fit_terminal import duration
from tensor_graphs.paths.lower import Operand, Program
from tensor_graphs.paths.plan import Plan
from tensor_graphs.views.fold_repeats import Item, folded, shown_for, stands_for

COLOURS = ("#cfe3f7", "#fbe0c3", "#d6efd0", "#f6d3dc", "#e3d9f2", "#f5efb8", "#d0eeec", "#e6dfd5")
"""Colours of backends, in the order of their names."""

BORDERS = ("#555555", "#c0392b", "#1f6fb2", "#2e8b57", "#8e44ad")
"""Border colours of devices, the host first."""

LEAF = "#ffffff"

HEIGHT, TALLER = 0.6, 3.0
"""Height in inches of a box without a time; inches added for a box with all of the time."""

THICKER = 7.0
"""Points added to the border of a box with all of the time."""

MOST_LINES, LONGEST = 6, 80
"""Most lines on the operands of a box, and most characters of one line."""

LAYOUT_SECONDS = 120


class DiagramError(TensorGraphsError):
    """A diagram that cannot be laid out: Graphviz is missing, or it failed."""


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


@dataclass
class Boxes:
    """All boxes of a picture, operands first. grouped: meaning of `Box.group`, for the legend."""

    grouped: str
    made: list[Box] = field(default_factory=list)

    def add(self, box: Box) -> int:
        self.made.append(box)
        return len(self.made) - 1


# ---- a graph ---------------------------------------------------------------------------------------------------------

def of_graph(graph: Graph, title: str) -> str:
    """Return a drawing of a graph's ops as they are written, in DOT. title: of the picture."""
    boxes, at = Boxes("op"), dict[Node, int]()
    updated: dict[Node, list[str]] = {}
    for name, node in graph.updates.items():
        updated.setdefault(_made_by(node), []).append(name)
    for name, node in graph.inputs.items():
        at[node] = boxes.add(Box(name, ("input", name), lines=(str(node.type),), leaf=True))
    for node in graph.nodes:
        if not is_step(node):
            continue
        sources = [_made_by(x) for x in node.inputs]
        named = [f"{x.op.name} {x.attrs['name']} {x.type}" for x in sources if x.op in (leaves.PARAMETER, leaves.STATE)]
        lines = (" ".join(map(str, node.types)), *named, *(f"updates {name}" for name in updated.get(node, ())))
        at[node] = boxes.add(Box(node.op.name, signature_of(node).key, tuple(dict.fromkeys(at[x] for x in sources if x in at)),
                                 lines, node.op.kind))
    for name, node in graph.outputs.items():
        source = _made_by(node)
        boxes.add(Box(name, ("output", name), (at[source],) if source in at else (), (str(node.type),), leaf=True))
    return _text(boxes, title)


def _made_by(node: Node) -> Node:
    """Return the node that a chain of views starts from."""
    while node.op.facts.view:
        node = node.inputs[0]
    return node


# ---- a plan ----------------------------------------------------------------------------------------------------------

def of_plan(plan: Plan, sizes: Mapping[str, int], title: str) -> str:
    """Return a drawing, in DOT, of the instructions of the variant that serves these sizes (default: those it was costed at)."""
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
                               "copy" if moved else ins.backend, ins.device, seconds, e is not None and e.measured))
        for o in ins.outs:
            writers[o.buffer] = writers[program.home(o.buffer)] = number
    for name, o in program.outputs.items():
        writer = _writer(program, writers, o)
        boxes.add(Box(name, ("output", name), () if writer is None else (writer,), leaf=True))
    at = f" at {costed}" if costed else ""
    return _text(boxes, f"{title}{serves}{more}\n{duration(v.predicted)} predicted{at}, {v.measured_share:.0%} of it measured · "
                        f"path {v.path.id}")


NAMED = {"parameter": "parameter", "state": "state", "bound": "made of parameters:"}
"""Kinds of buffers that a box names -> the words for them."""


def _type_of(program: Program, name: str) -> str:
    return str(program.graph.inputs[name].type) if name in program.graph.inputs else ""


def _writer(program: Program, writers: Mapping[int, int], operand: Operand) -> int | None:
    """Return the box that wrote a value, or else the box that wrote the memory that the value is in."""
    return writers.get(operand.buffer, writers.get(program.home(operand.buffer)))


# ---- text ------------------------------------------------------------------------------------------------------------

def _text(boxes: Boxes, title: str) -> str:
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
    out = ["digraph {", f"  label={_quoted(title)}; labelloc=t; fontsize=16; fontname=Helvetica; ranksep=0.3; nodesep=0.25;",
           "  node [shape=box, style=filled, fontname=Helvetica, fontsize=10, margin=\"0.12,0.05\", height=0.3];",
           "  edge [arrowsize=0.6, color=\"#777777\"];"]
    out += _clusters(items, lambda i: _box(i, alike[i], many[i], total, colours, borders), 1, [0])
    arrows: dict[tuple[int, int], bool] = {}                        # True: to the next of several equal layers
    for k, b in enumerate(ordered):
        for read in b.reads:
            ends = shown[read], shown[k]
            arrows[ends] = arrows.get(ends, True) and ends[0] >= ends[1]
    out += [f"  b{a} -> b{b}" + (" [style=dashed, constraint=false];" if back else ";") for (a, b), back in arrows.items()]
    estimated = any(b.seconds and not b.measured for b in ordered)
    out.append(_legend(boxes.grouped, colours, borders, any(arrows.values()), total > 0, estimated))
    return "\n".join([*out, "}", ""])


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


def _box(number: int, alike: Sequence[Box], many: int, total: float, colours: Mapping[str, str], borders: Mapping[str, str]) -> str:
    """Return one line of DOT for a box. alike: all boxes that it is drawn for; many: their number."""
    b = alike[0]
    lines = [in_common([box.lines[i] for box in alike if i < len(box.lines)])[:LONGEST] for i in range(len(b.lines))]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES - 1], f"… {len(lines) - MOST_LINES + 1} more"]
    lines_shown = [in_common([box.title for box in alike]), *lines]
    times = [box.seconds for box in alike if box.seconds is not None]
    share = sum(times) / total if total else 0.0
    if times:
        source = "" if all(box.measured for box in alike) else " (estimate)"
        lines_shown.append(f"{duration(sum(times) / len(times))}{f' × {many}' if many > 1 else ''}{source} · {share:.1%}")
    label = "\\n".join(map(_escaped, lines_shown))
    if b.leaf:
        return f'b{number} [label="{label}", shape=oval, fillcolor="{LEAF}"];'
    look = f'fillcolor="{colours[b.group]}", color="{borders.get(b.device, BORDERS[0])}"'
    if total:
        look += f", height={HEIGHT + TALLER * share:.2f}, penwidth={1 + THICKER * share:.1f}"
        look += "" if all(box.measured for box in alike) else ', style="filled,dashed"'
    return f'b{number} [label="{label}", {look}];'


def in_common(names: Sequence[str]) -> str:
    """Return names that differ in numbers only as one name, with a star for each such number; else the first name and an ellipsis.

    >>> in_common(["layers.0.w f32[8]", "layers.1.w f32[8]"]), in_common(["a", "b"])
    ('layers.*.w f32[8]', 'a, …')
    """
    pieces = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(p[::2]) for p in pieces}) != 1:
        return f"{names[0]}, …"
    return "".join(same[0] if len(set(same)) == 1 else "*" for same in zip(*pieces, strict=True))


def _legend(grouped: str, colours: Mapping[str, str], borders: Mapping[str, str], back: bool, timed: bool, estimated: bool) -> str:
    """Return a table that explains colours, borders and lines, in DOT."""
    rows = [f'<tr><td bgcolor="{colour}">{grouped} {escape(name)}</td></tr>' for name, colour in colours.items()]
    if len(borders) > 1:
        rows += [f'<tr><td border="3" color="{colour}">on {escape(name)}</td></tr>' for name, colour in borders.items()]
    rows += ["<tr><td>taller, thicker border: more of the time</td></tr>"] if timed else []
    rows += ["<tr><td>dashed border: an estimate, or no time</td></tr>"] if timed and estimated else []
    rows += ["<tr><td>dashed frame × N: N times in a row</td></tr>",
             "<tr><td>dashed arrow: to the next of these</td></tr>"] if back else []
    return (f'  legend [shape=plain, fillcolor="white", label=<<table border="0" cellborder="1" cellspacing="2">'
            f'{"".join(rows)}</table>>];')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return '"' + "\\n".join(map(_escaped, text.splitlines())) + '"'


# ---- placing ---------------------------------------------------------------------------------------------------------

def placer() -> str:
    """Return the path of Graphviz's program `dot`. Raises DiagramError."""
    program = shutil.which("dot")
    if program is None:
        raise DiagramError("a diagram as SVG is placed by the program dot of Graphviz, which is not on the PATH\n"
                           "  fix: install Graphviz (apt install graphviz, dnf install graphviz, brew install graphviz), or --dot "
                           "FILE, which writes its text without it")
    return program


def laid_out(text: str) -> str:
    """Return the diagram in a DOT text, laid out as an SVG document. Raises DiagramError."""
    try:
        done = subprocess.run([placer(), "-Tsvg"], input=text, capture_output=True, encoding="utf-8", timeout=LAYOUT_SECONDS,
                              check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise DiagramError(f"the program dot of Graphviz did not place the diagram: {e}\n"
                           "  fix: --dot FILE writes its text") from None
    if done.returncode or "<svg" not in done.stdout:
        reason = (done.stderr.strip().splitlines() or ["it wrote no SVG"])[0]
        raise DiagramError(f"the program dot of Graphviz did not place the diagram (exit code {done.returncode}): {reason[:200]}\n"
                           "  fix: --dot FILE writes its text, for another version of Graphviz")
    return done.stdout
