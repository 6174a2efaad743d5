"""op_pages: writes a page per op for docs/ops, from its row: shapes, attributes, dtypes, errors, definition, gradient, example.

In: the op table, the library of composites, and the tables of docs/conformance.  Out: file name -> Markdown. Every example is run
when its page is written. `make docs` writes the pages; a test compares them.
Read first: `page`.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.composite import LIBRARY, CompositeOp, expand
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.dtypes import DTYPES, PYTHON_NAMES, DType
from tensor_graphs.language.errors import DTypeError, LanguageError
from tensor_graphs.language.node import Node, Op, apply
from tensor_graphs.language.subgraph import NAME, Body
from tensor_graphs.language.text_writer import print_graph
from tensor_graphs.meaning.same_math import licensed_unit, same_math_limit
from tensor_graphs.measure.conformance.cases import MORE, STANDS_FOR, VARIANTS, CaseDraw, instance, op_named, ops

FUNCTION = {"max": "maximum", "and": "bit_and", "xor": "bit_xor", "idiv": "floor_div", "min": "minimum"}
"""op -> the function of `tg` for it, where the names differ"""

OPERATOR = {"add": "x + y", "mul": "x * y", "and": "x & y", "xor": "x ^ y", "less": "x < y", "idiv": "x // y", "sub": "x - y",
            "div": "x / y", "floor_div": "x // y", "mod": "x % y", "pow": "x ** y", "less_equal": "x <= y", "bit_or": "x | y",
            "neg": "-x", "dot": "x @ y", "slice": "x[a:b]", "gather": "x[index]"}
"""op -> its operator notation"""

ROLES = {"gather": ("x", "index"), "scatter": ("base", "index", "updates"), "where": ("condition", "x", "y")}
"""atomic op with other operands than x and y -> names of its operands"""

GROUPS = {"source": "Sources", "unary": "Elementwise, one operand", "binary": "Elementwise, two operands", "ternary": "Choice",
          "reduce": "Reductions", "move": "Views and padding", "index": "Gather and scatter"}
"""group in the op table -> title in the index"""

SUBJECTS = {"arithmetic": "Arithmetic, comparisons, reductions", "elementary": "Elementary functions and activations",
            "trigonometry": "Inverse trigonometric and hyperbolic functions", "special": "Special functions",
            "normalisation": "Softmax, means, norms", "products": "Products and attention", "gated": "Gated layers",
            "batches": "Products and attention", "paged": "Attention over pages",
            "positions": "Rotary positions", "indexing": "Indexing, order, running sums", "windows": "Windows and pooling",
            "convolution": "Convolution", "upsampling": "Upsampling", "resizing": "Resizing",
            "writes": "Writing into a tensor", "random": "Random numbers", "rounded": "Rounding to formats that are no dtype",
            "blocks": "Values in blocks of bytes", "quantise": "Values in blocks of bytes",
            "scan": "Loops"}
"""module of composites -> title in the index"""

CALLS = {"scan": "tg.scan(lambda h, x: ((y := tg.sigmoid(x[0]) * h + x[1]), y), operand0, (operand1, operand2))"}
"""op -> the call in its example, where the function of `tg` takes other arguments than the op"""

LONGEST = 40
"""limit on the lines of a definition or a gradient that are shown"""

PRINTED: dict[str, Any] = {"precision": 4, "separator": ", ", "suppress_small": True, "threshold": 30, "edgeitems": 2}

NUMBERED = tuple(t.name for t in DTYPES.values() if t.is_float)
GENERATED = "<!-- written by `make docs` from the op's row; do not edit -->"


CHOICES = {"rms_norm": 1, "layer_norm": 2, "cast": 2}
"""op -> index of the choices that its example takes, where the first ones show too little"""

RANKS = {"bitcast": 0, "linear": 1, "linear_argmax": 1, "layer_norm": 1}
"""op -> number of axes in its example, where any number is allowed and two do not fit"""


class Small(CaseDraw):
    """A CaseDraw for examples: static sizes, a fixed index into all choices, and `rank` axes where any number is allowed."""

    def __init__(self, dtype: DType, number: int = 0, rank: int = 2) -> None:
        super().__init__(0, dtype)
        self.number, self.rank = number, rank
        self.made: dict[Node, Mapping[str, Any]] = {}
        self._sizes = [2, 4, 3]

    def pick(self, *choices: Any) -> Any:
        return choices[self.number % len(choices)]

    def size(self, least: int = 0) -> Dim:
        return self._sizes.pop(0) if self._sizes else 2

    def shape(self, low: int = 0, high: int = 3, least: int = 0) -> tuple[Dim, ...]:
        return tuple(self.size(least) for _ in range(min(max(self.rank, low), high)))

    def tensor(self, shape: tuple[Dim, ...], dtype: DType | None = None, **how: Any) -> Node:
        node = super().tensor(shape, dtype)
        self.made[node] = how
        return node


def pages(conformance: Path) -> dict[str, str]:
    """Return file name -> text, for each op, the functions built from ops, and the index. conformance: the folder of its tables."""
    documents = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted(conformance.glob("*.json"))}
    tables = {name: document["cells"] for name, document in documents.items() if "cells" in document}     # those of backends
    texts = {f"{name}.md": page(name, tables) for name in ops()}
    return {**texts, "functions.md": functions_page(), "README.md": index()}


def public(name: str) -> Callable[..., Any]:
    """Return the function of `tg` for an op."""
    function: Callable[..., Any] = getattr(tg, FUNCTION.get(name, name))
    return function


def page(name: str, tables: Mapping[str, Mapping[str, Any]]) -> str:
    op = op_named(name)
    function = FUNCTION.get(name, name)
    what = f"composite, {_subject(op)[1]}" if isinstance(op, CompositeOp) else f"atomic op, {GROUPS[atomic.ATOMIC[name].group]}"
    short = f"; short: `{OPERATOR[name]}`" if name in OPERATOR else ""
    about = f"{what[0].upper()}{what[1:].lower()}{short}."
    taken = _dtypes(name)
    out = [f"# {name}", GENERATED, f"```python\ntg.{function}{_signature(public(name))}\n```", about,
           _prose(inspect.getdoc(public(name)) or ""),
           "## Shapes", _shapes(name, taken),
           "## Attributes", _attributes(op),
           "## Dtypes", _listed(taken, STANDS_FOR.get(name, "the first operand")),
           "## Errors of kernels", _error(name, op, tables),
           "## Definition", _definition(name, op, taken),
           "## Gradient", _gradient(name, op, taken),
           "## Example", _example(name, op, taken)]
    return "\n\n".join(out) + "\n"


def _subject(op: CompositeOp) -> tuple[str, str]:
    module = op.build.__module__.rpartition(".")[2]
    return module, SUBJECTS[module]


def _signature(function: Callable[..., Any]) -> str:
    """Return a function's signature as written, without quotes around annotations."""
    return str(inspect.signature(function)).replace("'", "") if callable(function) else ""


def _prose(doc: str) -> str:
    """Return a docstring as Markdown, with * and < escaped."""
    return doc.replace("*", "\\*").replace("<", "&lt;")


def _dtypes(name: str) -> list[DType]:
    rows = []
    for dtype in DTYPES.values():
        try:
            instance(name, CaseDraw(0, dtype))
        except DTypeError:
            continue
        rows.append(dtype)
    return rows


def _listed(dtypes: list[DType], whose: str) -> str:
    if len(dtypes) == len(DTYPES):
        return f"All (of {whose})."
    return f"{', '.join(f'`{d.name}`' for d in dtypes)} (of {whose}). For others it raises `DTypeError`."


def _favourite(taken: list[DType]) -> DType:
    return next((d for d in (tg.f32, tg.i32, tg.u32) if d in taken), taken[0])


def _attribute_text(value: Any) -> str:
    if isinstance(value, DType):
        return f"tg.{PYTHON_NAMES.get(value.name, value.name)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_attribute_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Body):
        return NAME
    return repr(value) if isinstance(value, (str, float, bool, int)) or value is None else format_dim(value)


def _shown_attributes(node: Node) -> str:
    return ", ".join(f"{k}={_attribute_text(v)}" for k, v in node.attrs.items() if k != "absent")


def _shapes(name: str, taken: list[DType]) -> str:
    dtype, lines = _favourite(taken), []
    for variant in range(MORE.get(name, VARIANTS)):
        node = instance(name, CaseDraw(variant, dtype))
        operands = ", ".join(map(str, (i.type for i in node.inputs))) or "()"
        attrs = _shown_attributes(node)
        lines.append(f"{operands}{'; ' + attrs if attrs else ''} -> {', '.join(map(str, node.types))}")
    return "```text\n" + "\n".join(dict.fromkeys(lines)) + "\n```"


def _attributes(op: Op) -> str:
    names = op.attributes if isinstance(op, (AtomicOp, CompositeOp)) else ()
    if not names:
        return "None."
    parameters = inspect.signature(public(op.name)).parameters
    rows = ["| attribute | default | in nodes and files |", "|---|---|---|"]
    for stored in names:
        typed = "axis" if stored == "axes" else stored
        if typed not in parameters:                      # integer_power(exponent) is made by x ** 3, and so on
            typed = stored
        p = parameters.get(typed)
        default = "" if p is None or p.default is inspect.Parameter.empty else f"`{_attribute_text(p.default)}`"
        rows.append(f"| `{typed}` | {default or 'needed'} | `{stored}` |")
    return "\n".join(rows)


def _error(name: str, op: Op, tables: Mapping[str, Mapping[str, Any]]) -> str:
    cases = [instance(name, CaseDraw(0, dtype)) for dtype in _dtypes(name)]
    outputs = {t.dtype.name: t for node in cases for t in node.types}
    floats = [n for n in NUMBERED if n in outputs]
    unit = licensed_unit(cases)
    lines = []
    if floats:
        lines.append("A kernel computes this op, and is never chosen otherwise, if its largest relative error against the float64 "
                     f"oracle is at most {', '.join(f'{same_math_limit([outputs[n]], unit):.2g} ({n})' for n in floats)}"
                     + ("; integers and booleans exactly." if outputs.keys() - set(floats) else "."))
    else:
        lines.append("A kernel computes this op only if its results are exactly the oracle's.")
    measured: dict[str, float] = {}
    for table in tables.values():
        for dtype, cell in table.get(name, {}).items():
            if cell.get("status") == "pass" and dtype in floats:
                measured[dtype] = max(measured.get(dtype, 0.0), float(cell["error"]))
    if not measured:
        view = any(cell.get("status") == "view" for table in tables.values() for cell in table.get(name, {}).values())
        by_definition = isinstance(op, CompositeOp) and floats
        lines.append("Class: a view, which copies nothing." if view else "Class: exact." if not by_definition else
                     "Class: as its definition; no kernel has it, so it runs as the ops below.")
    elif not any(measured.get(n) for n in ("f32", "f64")):
        lines.append("Class: exact but for the one rounding to a narrower dtype.")
    else:
        worst = ", ".join(f"{f'{measured[n]:.0e}' if measured[n] else 'none'} ({n})" for n in floats if n in measured)
        lines.append(f"Class: rounds. The largest error of a kernel in [docs/conformance](../conformance): {worst}.")
    return "\n\n".join(lines)


def _example_node(name: str, taken: list[DType]) -> tuple[Node, Mapping[Node, Mapping[str, Any]]]:
    """Return the op's node on small operands that have the op's names for them, and hints for the values of each operand."""
    draw = Small(_favourite(taken), CHOICES.get(name, 0), RANKS.get(name, 2))
    node = instance(name, draw)
    hints = {}
    xs = []
    for i, (role, x) in enumerate(zip(_roles(node), node.inputs, strict=True)):
        twin = leaves.input(role, x.shape, x.dtype)
        hints[twin] = {**draw.made.get(x, {}), "number": i}
        xs.append(twin)
    return apply(node.op, xs, node.attrs), hints


def _roles(node: Node) -> list[str]:
    if not isinstance(node.op, CompositeOp):
        return list(ROLES.get(node.op.name, ("x", "y")[:len(node.inputs)]))
    out: list[str] = []
    for role, at in node.op.by_role(range(len(node.inputs)), node.attrs).items():
        out += [f"{role.removesuffix('s')}{i}" for i in range(len(at))] if isinstance(at, list) else [role]
    return out


def _text(outputs: Mapping[str, Node]) -> str:
    lines = print_graph(tg.graph(outputs)).splitlines()
    more = len(lines) - LONGEST
    shown = lines if more <= 0 else [*lines[:LONGEST], f"# … {more} lines more"]
    return "```text\n" + "\n".join(shown) + "\n```"


def _named_outputs(nodes: tuple[Node, ...], stem: str = "out") -> dict[str, Node]:
    return {stem: nodes[0]} if len(nodes) == 1 else {f"{stem}{i}": n for i, n in enumerate(nodes)}


def items(node: Node) -> tuple[Node, ...]:
    return tuple(leaves.item(node, i) for i in range(len(node.types)))


def _definition(name: str, op: Op, taken: list[DType]) -> str:
    if not isinstance(op, CompositeOp):
        return ("One of the 27 ops that everything is made of. Its meaning is a row of "
                "[language/atomic.py](../../tensor_graphs/language/atomic.py).")
    if op.opaque:
        if op.loop:
            node, _ = _example_node(name, taken)
            text = _text(_named_outputs(items(node)))
            return f"An op of its own, which is never expanded: its definition is the step. As text:\n\n{text}"
        return "Opaque: it is never expanded."
    node, _ = _example_node(name, taken)
    head = f"For `{name}({', '.join(str(i.type) for i in node.inputs)}{'; ' if node.attrs else ''}{_shown_attributes(node)})`:"
    direct = "" if op.direct is None else (
        "\n\nOver the real numbers, where the oracle evaluates it, nothing is rounded." if op.facts.licence else
        "\n\nThe oracle evaluates the same in float64 by a function of its own (`direct`); a test holds it to the definition.")
    return f"{head}\n\n{_text(_named_outputs(expand(node)))}{direct}"


def _gradient(name: str, op: Op, taken: list[DType]) -> str:
    floats = [d for d in taken if d.kind == "float"]
    if not floats:
        return "None: it takes no floats."
    node, _ = _example_node(name, floats)
    wanted = [x for x in node.inputs if x.dtype.kind == "float"]
    outputs = [leaves.item(node, i) for i, t in enumerate(node.types) if t.dtype.kind == "float"]
    if not wanted or not outputs:
        return "None: nothing flows back through integers and booleans."
    seeds = [leaves.input(f"g{i}" if len(outputs) > 1 else "g", o.shape, o.dtype) for i, o in enumerate(outputs)]
    try:
        gradients = tg.vjp(outputs, seeds, wanted)
    except LanguageError as e:
        return f"None: {str(e).splitlines()[0]}"
    if isinstance(op, CompositeOp) and op.gradient_rule is None:
        return "The derivative of its definition, made op by op."
    what = ("Its row." if not isinstance(op, CompositeOp) else "That of the identity." if op.facts.licence else
            "Its own rule, which a test holds to the derivative of the definition.")
    return f"{what} g is the gradient of the result.\n\n" + _text(
        {f"to_{x.attrs['name']}": g for x, g in zip(wanted, gradients, strict=True)})


def _values(x: Node, how: Mapping[str, Any]) -> list[Any]:
    """Return plain numbers of the operand's shape; they differ for each operand."""
    count = int(np.prod([int(s) for s in x.shape], dtype=int))
    i = np.arange(count) + int(how.get("number", 0))
    values: np.ndarray
    if x.dtype.kind == "bool":
        values = i % 3 != 1
    elif x.dtype.kind == "float":
        values = (i * 7 % 11 + 1) * 0.25 if how.get("positive") else (i * 7 % 11 - 5) * 0.5
    else:
        low, high = how.get("low"), how.get("high")
        low = max(0, -9 if low is None else int(low))
        span = 9 if high is None else max(1, int(high) - low)
        values = low + (np.arange(count) if how.get("distinct") else i * (3 if span % 3 else 5) % span)
    numbers: list[Any] = values.reshape([int(s) for s in x.shape]).tolist()
    return numbers


def _call(node: Node) -> str:
    """Return the call of `tg` for this node, with its operands' names in the example."""
    op, names = node.op, [str(i.attrs["name"]) for i in node.inputs]
    if op.name in CALLS:
        return CALLS[op.name]
    function = FUNCTION.get(op.name, op.name)
    parameters = inspect.signature(public(op.name)).parameters
    absent = node.attrs.get("absent", ())
    parts = []
    if isinstance(op, CompositeOp):
        left = list(names)
        for role in op.operands:
            if role not in absent:
                parts.append(left.pop(0))
            elif any(r not in absent for r in op.operands[op.operands.index(role) + 1:]):
                parts.append("None")
        parts += left
    else:
        parts += names
    for stored, value in node.attrs.items():
        typed = "axis" if stored == "axes" and "axis" in parameters else stored
        if stored == "absent" or (typed in parameters and parameters[typed].default == value):
            continue
        if typed == "axis" and isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        parts.append(f"{typed}={_attribute_text(value)}")
    return f"tg.{function}({', '.join(parts)})"


def _example(name: str, op: Op, taken: list[DType]) -> str:
    node, hints = _example_node(name, taken)
    lines = ["import tensor_graphs as tg", ""]
    feeds = {}
    for x in node.inputs:
        text = "" if x.dtype == tg.f32 else f", {_attribute_text(x.dtype)}"
        lines.append(f"{x.attrs['name']} = tg.input(\"{x.attrs['name']}\", {_attribute_text(x.shape)}{text})")
        feeds[str(x.attrs["name"])] = _values(x, hints[x])
    names = ["value"] if len(node.types) == 1 else [f"value{i}" for i in range(len(node.types))]
    lines.append(f"{', '.join(names)} = {_call(node)}")
    outputs = "value" if len(names) == 1 else "{" + ", ".join(f'"{n}": {n}' for n in names) + "}"
    lines.append(f"outputs = tg.interpret(tg.graph({outputs}), {{")
    lines += [f'    "{k}": {json.dumps(v).replace("true", "True").replace("false", "False")},' for k, v in feeds.items()]
    lines.append("}).outputs")
    code = "\n".join(lines)
    scope: dict[str, Any] = {}
    exec(compile(code, f"example of {name}", "exec"), scope)
    value = scope[names[0]]
    value = value.inputs[0] if value.op is leaves.ITEM else value
    assert value is node or value.op is not op, (name, code)
    printed = [f"{n} = {np.array2string(np.asarray(v), **PRINTED)}" for n, v in scope["outputs"].items()]
    return f"```python\n{code}\n```\n\n```text\n" + "\n".join(printed) + "\n```"


# ---- what is no op of its own ----------------------------------------------------------------------------------------


def sugar() -> list[str]:
    """Return the functions of `tg` that build tensors from tensors and are not the function of an op: operators, shorthands."""
    own = {id(public(name)) for name in ops()}
    homes = ("tensor_graphs.language.composites.", "tensor_graphs.language.atomic")
    return [n for n in tg.__all__ if isinstance(f := getattr(tg, n), types.FunctionType) and f.__module__.startswith(homes)
            and id(f) not in own]


def functions_page() -> str:
    about = ("They broadcast, put numbers into tensors, or make a few ops at once; what they leave in the graph are the "
             "[ops](README.md).")
    out = ["# Functions that are no op of their own", GENERATED, about]
    for name in sugar():
        out += [f"## {name}", f"```python\ntg.{name}{_signature(getattr(tg, name))}\n```",
                _prose(inspect.getdoc(getattr(tg, name)) or "")]
    aliases = {n: f for n in tg.__all__ if isinstance(f := getattr(tg, n), types.FunctionType) and f.__name__ != n
               and f.__module__.startswith("tensor_graphs.language")}
    out += ["## Other names", "\n".join(f"- `tg.{n}` is `tg.{f.__name__}`" for n, f in aliases.items())]
    return "\n\n".join(out) + "\n"


def index() -> str:
    groups: dict[str, list[str]] = {}
    for row in atomic.ROWS:
        groups.setdefault(f"Atomic: {GROUPS[row.group].lower()}", []).append(row.name)
    for name in sorted(LIBRARY):
        groups.setdefault(_subject(LIBRARY[name])[1], []).append(name)
    about = (f"{len(atomic.ROWS)} atomic ops and {len(LIBRARY)} composites, each a graph of other ops. An op with axes takes "
             "`axis`: an int, negative ones count from the back; a tuple, or None for all, where several make sense. "
             "[Functions that are no op](functions.md): broadcasting, shorthands.")
    out = ["# The ops", GENERATED, about]
    for title, names in groups.items():
        rows = "\n".join(f"| [{n}]({n}.md) | `{_shape_of_call(n)}` | {_first_sentence(n)} |" for n in names)
        out += [f"## {title}", "| op | call | what it computes |\n|---|---|---|\n" + rows]
    return "\n\n".join(out) + "\n"


def _shape_of_call(name: str) -> str:
    parameters = inspect.signature(public(name)).parameters.values()
    return f"tg.{FUNCTION.get(name, name)}({', '.join(('*' if p.kind is p.VAR_POSITIONAL else '') + p.name for p in parameters)})"


def _first_sentence(name: str) -> str:
    text = " ".join((inspect.getdoc(public(name)) or "").split("\n\n")[0].split())
    return _prose(text).replace("|", "\\|")


def write(docs: Path) -> list[Path]:
    """Write docs/ops, delete the pages of ops that no longer exist, and return the files."""
    folder = docs / "ops"
    folder.mkdir(exist_ok=True)
    texts = pages(docs / "conformance")
    for old in folder.glob("*.md"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
