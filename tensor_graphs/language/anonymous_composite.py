"""anonymous_composite: a piece of a graph as one node, a *part*: its definition is the piece, and its name lists the ops.

    fused = part_of(tg.graph(tg.linear(tg.rms_norm(x, g), w)))     # operands: the graph's inputs, in their order

A kernel that computes a part is registered for it as for any op; rewrites/find_parts.py finds where the part occurs in a graph. A
part may have recipes (other graphs that mean the same, see rewrites/find_recipes.py); each is an alternative to its kernels.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import Definition, definition_digest
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.errors import GraphError, written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, apply, walk
from tensor_graphs.language.subgraph import inputs_of

NAMED_STEPS = 3
"""number of steps up to which a part's name lists them; a longer part is called part_…"""

UNNAMED = "part_"
"""beginning of the names of longer parts"""

KEY_LENGTH, RECIPE_KEY = 6, 12

RECIPE = "recipe "
"""beginning of the names of recipes; no kernel's name begins so"""


@dataclass(frozen=True, eq=False)
class PartRecipe:
    """An alternative definition of a part. op: a part with the same operands and outputs. rules: names of the rules that derive it,
    in the order of first use. derivation: its steps as text, for people."""

    op: PartOp
    rules: tuple[str, ...]
    derivation: str
    numeric_class: str

    @property
    def name(self) -> str:
        """Name for people and paths: the most informative rules, and the beginning of the definition's digest."""
        telling = [r for r in self.rules if not r.startswith(("composite/", "move/"))] or list(self.rules)
        return f"{RECIPE}{' '.join(telling[:NAMED_STEPS])} {self.op.key[:RECIPE_KEY]}"


class PartOp(DefinedOp):
    """An anonymous composite for operands of the given dtypes and ranks, whose dims may have any size in their ranges.

    dims: the dims that do not occur in its operands' shapes; its calls name them (`attrs`). recipes: alternative definitions.
    bound: the operands that depend on parameters alone in the graph that contains the part; values that depend on those alone are
    computed once, when the graph is bound. alone: no node in it is also computed outside of it, so that costs add up.
    """

    def __init__(self, name: str, arguments: Sequence[Node], outputs: Sequence[Node], *, recipes: Sequence[PartRecipe] = (),
                 bound: Collection[int] = (), alone: bool = False) -> None:
        self.dims = other_dims(outputs, arguments)
        super().__init__(name, arguments, outputs, printed=bool(self.dims))
        self.recipes, self.bound, self.alone = tuple(recipes), frozenset(bound), alone
        self._attrs = self.attrs
        self.order: tuple[str, ...] = ()                # the operands' names in its graph; not part of its identity

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes of a call with the types of the definition."""
        return {"dims": self.dims} if self.dims else {}

    @property
    def key(self) -> str:
        """Digest of the definition's digest and all operand types; the former does not cover operands that are not read."""
        return hashlib.sha256("|".join([self.written.digest, *(str(a.type) for a in self.written.arguments)]).encode()).hexdigest()

    @cached_property
    def somebodys(self) -> bool:
        """True if kernels are registered for the part or for a part inside of it."""
        return not self.alone or self.holds_somebodys

    @cached_property
    def holds_somebodys(self) -> bool:
        return any(isinstance(n.op, PartOp) and n.op.somebodys for n in walk(self.written.outputs))

    @cached_property
    def of_kernels(self) -> PartRecipe | None:
        """The first recipe that contains parts with registered kernels; None if none does, or if `somebodys` is True."""
        return None if self.somebodys else next((r for r in self.recipes if r.op.holds_somebodys), None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the definition as a graph, which can be pickled; of an operand that is not read, only the type is kept."""
        types = tuple(a.type for a in self.written.arguments)
        graph = make_graph(over(self.written.outputs, self.written.arguments, inputs_of(types)))
        return _unpickled, (self.name, types, graph, self.recipes, self.bound, self.alone)


def _unpickled(name: str, types: Sequence[TensorType], graph: Graph, recipes: Sequence[PartRecipe], bound: Collection[int],
               alone: bool) -> PartOp:
    arguments = [leaves.argument(i, t) for i, t in enumerate(types)]
    outputs = over(list(graph.outputs.values()), inputs_of(types), arguments)
    return PartOp(name, arguments, outputs, recipes=recipes, bound=bound, alone=alone)


def part_of(graph: Graph) -> PartOp:
    """Return the graph as one op. Its operands are the graph's inputs and parameters, in order of first use.

    Raises GraphError for a graph with states, without operands, or with an output that is an operand or another output.
    """
    if graph.updates or graph.states:
        raise GraphError("a part has no states: it is a function of its operands", fix="make each state an input")
    operands = [*graph.inputs.values(), *graph.parameters.values()]
    if not operands:
        raise GraphError("a part has operands, and this graph has no inputs", fix="tg.input for what it reads")
    outputs = list(graph.outputs.values())
    for name, output in graph.outputs.items():
        if output in operands:
            raise GraphError(f"the output {name!r} of this graph only hands its input on, so there is nothing to compute")
        if outputs.count(output) > 1:
            raise GraphError(f"the output {name!r} of this graph is another output, too", fix="each value once")
    ordered = [n for n in graph.nodes if n in operands]
    part = part_between(outputs, ordered)
    part.order = tuple(n.attrs["name"] for n in ordered)
    return part


def part_between(outputs: Sequence[Node], operands: Sequence[Node], key: str = "", recipes: Sequence[PartRecipe] = (),
                 bound: Collection[int] = (), alone: bool = False) -> PartOp:
    """Return the piece between operands and outputs as one op. key: the digest in its name, by default that of its definition.
    recipes, bound, alone: as in PartOp.

    Raises GraphError if the piece contains an input, a parameter or a state that is no operand.
    """
    arguments = [leaves.argument(i, o.type) for i, o in enumerate(operands)]
    copies = over(outputs, operands, arguments)
    strange = next((n for n in walk(copies) if n.op in leaves.NAMED_LEAVES), None)
    if strange is not None:
        raise GraphError(f"the {strange.op.name} {strange.attrs['name']!r} is in the part, and no operand of it",
                         fix="make it an operand")
    return PartOp(name_of(copies, key or definition_digest(copies)), arguments, copies, recipes=recipes, bound=bound, alone=alone)


def other_dims(outputs: Sequence[Node], operands: Sequence[Node]) -> tuple[d.Expr, ...]:
    """Return the dims that occur in the piece between operands and outputs but not in its operands' shapes, sorted by name."""
    own = {str(s) for o in operands for t in o.types for s in d.symbols_in(t.shape)}
    dims = {str(s): s for n in between(outputs, operands) for value in (*(t.shape for t in n.types), *n.attrs.values())
             for s in d.symbols_in(value)}
    return tuple(dims[name] for name in sorted(dims.keys() - own))


def over(outputs: Sequence[Node], operands: Sequence[Node], others: Sequence[Node]) -> tuple[Node, ...]:
    """Return copies of `outputs` in which `others` replace `operands`. Raises what an op raises for types that it does not take."""
    copies = dict(zip(operands, others, strict=True))
    for node in between(outputs, operands):
        inputs = [copies[i] for i in node.inputs]
        with written_at(node.location):
            copies[node] = apply(node.op, inputs, node.attrs) if inputs else node
    return tuple(copies[o] for o in outputs)


def between(outputs: Sequence[Node], operands: Collection[Node]) -> list[Node]:
    """Return the nodes from outputs down to the operands, operands before users; the operands themselves are left out."""
    order: list[Node] = []
    seen = set(operands)
    stack = [(output, False) for output in reversed(outputs)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((i, False) for i in node.inputs)
    return order


_same: set[tuple[str, str]] = set()
"""pairs of digests of definitions that were proved to be the same function of their operands"""


def note_same(one: Definition, other: Definition) -> None:
    """Record that two definitions were proved to be the same (rewrites/find_parts.py), and what follows from earlier proofs."""
    _same.update([(one.digest, other.digest), *((first, other.digest) for first, second in _same if second == one.digest)])


def known_same(one: Definition, other: Definition) -> bool:
    return (one.digest, other.digest) in _same


def name_of(outputs: Sequence[Node], key: str) -> str:
    """Return a name that lists the steps, in their order, and ends in the beginning of a key: rms_norm_linear_1a2b3c."""
    steps = [n.op.name for n in walk(outputs) if n.op.kind in ("atomic", "composite")]
    words = "_".join([*steps, ""]) if len(steps) <= NAMED_STEPS else UNNAMED
    return f"{words}{key[:KEY_LENGTH]}"


def steps_said(part: PartOp) -> str:
    """Return the names of the ops in a part and in the parts inside of it, operands before users, for people. Views are left out;
    repeats are counted.

    >>> x = leaves.input("x", (3, 4))
    >>> steps_said(part_of(make_graph((x * x * x + 1.0) * x)))
    'mul × 2, add, mul'
    """
    runs = [(name, len(list(run))) for name, run in itertools.groupby(_op_names(part))]
    return ", ".join(name if count == 1 else f"{name} × {count}" for name, count in runs)


def _op_names(part: PartOp) -> Iterator[str]:
    for node in walk(part.written.outputs):
        if isinstance(node.op, PartOp):
            yield from _op_names(node.op)
        elif node.op.kind in ("atomic", "composite") and not node.op.facts.view:
            yield node.op.name


def known_when_bound(nodes: Sequence[Node], bound: Collection[Node] = ()) -> set[Node]:
    """Return the nodes that depend on parameters, constants and `bound` alone, and on no dim. nodes: operands before users."""
    constants: set[Node] = set()
    for n in nodes:
        if n in bound:
            constant = True
        elif n.op in (leaves.PARAMETER, leaves.CONSTANT):
            constant = not isinstance(n.attrs.get("value"), d.Expr)
        else:
            constant = bool(n.inputs) and all(i in constants for i in n.inputs)
        if constant and all(d.is_static(s) for t in n.types for s in t.shape) and not d.has_dims(n.attrs):
            constants.add(n)
    return constants
