"""egraph: classes of equal values (e-classes), hash-consed and kept congruent, with the reason for every union.

    e = EGraph()
    roots = [e.add(output) for output in graph.outputs.values()]
    e.union(a, b, "some rule")
    e.rebuild()

E-classes contain values without devices or layouts: a copy equals its source. Operands of commutative ops are sorted, so
commutation needs no rule. Each class has one type, and a union never joins two types. Every application of an op, as it was
written, is a numbered term; a union is an edge between two terms, from which proofs are read back (provenance.py). `rebuild`
restores congruence, to a fixpoint, as in egg (Willsey et al., POPL 2021). Nothing depends on addresses or on sets' order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.dims import Expr, has_dims, is_static
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import ArrayValue, Node, Op, TensorType, apply, encode_attribute
from tensor_graphs.rewrites.enode import ENode, Key, attribute_key, is_commutative
from tensor_graphs.rewrites.errors import RewriteError, UnionError

CLASS = leaves.Leaf("e_class")
"""Op of a placeholder: a leaf that represents an e-class while a replacement is written in the language."""

CONGRUENCE = "congruence"


@dataclass(slots=True)
class EClass:
    """A class of equal values. `parents`: terms with a child in this class. `splat`: the number that all elements are, if known.

    `touched`: the round in which the class was created, joined, or changed. `bound`: it depends on no input or state, so it is
    computed once, when a graph receives its parameters. `ops`: the names of the ops of its e-nodes.
    """

    type: TensorType
    nodes: list[ENode]
    parents: list[int] = field(default_factory=list)
    splat: Any = None
    bound: bool = False
    touched: int = 0
    ops: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Edge:
    """A union of two terms with its reason: the name of a rule, or congruence. known: the terms were in one class already, so the
    edge joined nothing; it can make proofs shorter."""

    left: int
    right: int
    reason: str
    known: bool = False


@dataclass(frozen=True)
class View:
    """A snapshot of the e-classes: what an extraction may choose from."""

    classes: Mapping[int, tuple[ENode, ...]]
    types: Mapping[int, TensorType]
    bound: Mapping[int, bool]
    parent: tuple[int, ...]

    def find(self, term: int) -> int:
        return self.parent[term]


class EGraph:
    """An e-graph, as the module's docstring explains. `terms`, `edges` and `classes` may be read from outside. The caller of `add`
    sets `generation`: 0 for the original graph, one more for the result of each rule; it bounds how many rules are chained."""

    def __init__(self) -> None:
        self.terms: list[ENode] = []
        self.types: list[TensorType] = []
        self.edges: list[Edge] = []
        self.edges_of: list[list[int]] = []
        self.classes: dict[int, EClass] = {}
        self.changes = 0
        self.generations: list[int] = []
        self.generation = 0
        self.round = 0
        self._parent: list[int] = []
        self._exact: dict[Key, int] = {}
        self._hashcons: dict[Key, int] = {}
        self._pending: list[int] = []
        self._by_node: dict[Node, tuple[int, ...]] = {}
        self._placeholders: dict[int, Node] = {}

    # ---- reading -----------------------------------------------------------------------------------------------------

    def find(self, term: int) -> int:
        """Return the number of a term's class."""
        parent = self._parent
        root = term
        while parent[root] != root:
            root = parent[root]
        while parent[term] != root:
            parent[term], term = root, parent[term]
        return root

    def of(self, term: int) -> EClass:
        return self.classes[self.find(term)]

    def lookup(self, key: Key) -> int | None:
        """Return the term of a canonical e-node, or None."""
        return self._hashcons.get(key)

    @property
    def size(self) -> int:
        """Return the number of e-nodes."""
        return sum(len(c.nodes) for c in self.classes.values())

    def placeholder(self, term: int) -> Node:
        """Return a leaf of the language that represents the class of a term; `add` maps it back to the class."""
        root = self.find(term)
        node = self._placeholders.get(root)
        if node is None:
            t = self.classes[root].type
            node = self._placeholders[root] = apply(CLASS, (), {"index": root, "shape": t.shape, "dtype": t.dtype})
        return node

    def view(self) -> View:
        """Return a snapshot of the classes. Call `rebuild` first."""
        assert not self._pending, "rebuild before a snapshot"
        return View({i: tuple(c.nodes) for i, c in self.classes.items()}, {i: c.type for i, c in self.classes.items()},
                    {i: c.bound for i, c in self.classes.items()}, tuple(self.find(t) for t in range(len(self.terms))))

    # ---- adding ------------------------------------------------------------------------------------------------------

    def add(self, root: Node) -> int:
        """Return the term of a node with one output; add the node and its operands. Nodes that have a term are not revisited."""
        todo = [root]
        while todo:
            node = todo[-1]
            missing = [i for i in node.inputs if i not in self._by_node]
            if missing:
                todo += reversed(missing)                           # terms are numbered operands first, in their order
            else:
                todo.pop()
                if node not in self._by_node:
                    self._by_node[node] = self._terms_of(node)
        (term,) = self._by_node[root]
        return term

    def _terms_of(self, node: Node) -> tuple[int, ...]:
        if node.op is CLASS:
            return (int(node.attrs["index"]),)
        if node.op is leaves.ITEM:
            return (self._by_node[node.inputs[0]][node.attrs["index"]],)
        if node.op is leaves.COPY_TO:
            raise RewriteError("a copy to a device is no value of its own", fix="rewrite the graph before devices are chosen")
        children = tuple(self._by_node[i][0] for i in node.inputs)
        return tuple(self.add_term(node.op, node.attrs, children, k, t) for k, t in enumerate(node.types))

    def add_term(self, op: Op, attrs: Mapping[str, Any], children: Sequence[int], output: int, type: TensorType) -> int:
        """Return the term for one output of an op on terms, new or existing. Its class is found by its e-node."""
        key = attribute_key(attrs)
        exact = tuple(sorted(children)) if is_commutative(op) else tuple(children)
        number_of_term = self._exact.get((op, key, exact, output))
        if number_of_term is not None:
            return number_of_term
        number = len(self.terms)
        term = ENode(op, attrs, key, exact, output, number)
        self._exact[term.key] = number
        self.terms.append(term)
        self.types.append(type)
        self.generations.append(self.generation)
        self._parent.append(number)
        self.edges_of.append([])
        node = self._canonical(term)
        twin = self._hashcons.get(node.key)
        if twin is not None:
            self._parent[number] = self.find(twin)
            self._edge(number, twin, CONGRUENCE)
            return number
        self._hashcons[node.key] = number
        eclass = EClass(type, [node], touched=self.round, ops={op.name})
        self.classes[number] = eclass
        eclass.splat, eclass.bound = self._analyse(node, type)
        for child in dict.fromkeys(node.children):
            self.classes[child].parents.append(number)
        self.changes += 1
        return number

    def instance(self, node: ENode) -> int:
        """Return the term of an e-node over its classes as they are now. A replacement over their placeholders equals this term."""
        return self.add_term(node.op, node.attrs, [self.find(c) for c in node.children], node.output, self.types[node.term])

    def _canonical(self, node: ENode) -> ENode:
        children = tuple(self.find(c) for c in node.children)
        if is_commutative(node.op):
            children = tuple(sorted(children))
        return node if children == node.children else ENode(
            node.op, node.attrs, node.attrs_key, children, node.output, node.term)

    def _analyse(self, node: ENode, type: TensorType) -> tuple[Any, bool]:
        """Return (the number that all elements of a value are, or None; whether the value is known once parameters are bound)."""
        name = node.op.name
        children = [self.classes[self.find(c)] for c in node.children]
        splat = None
        if name == "constant" and not type.shape:
            splat = None if isinstance(node.attrs["value"], ArrayValue) else node.attrs["value"]
        elif node.op.facts.view:
            splat = children[0].splat
        if node.op.kind == "leaf":
            return splat, name in ("parameter", "constant") and not isinstance(node.attrs.get("value"), Expr)
        return splat, all(c.bound for c in children) and all(is_static(s) for s in type.shape) and not has_dims(node.attrs)

    # ---- unions ------------------------------------------------------------------------------------------------------

    def _edge(self, left: int, right: int, reason: str, redundant: bool = False) -> None:
        self.edges_of[left].append(len(self.edges))
        self.edges_of[right].append(len(self.edges))
        self.edges.append(Edge(left, right, reason, redundant))

    def union(self, left: int, right: int, reason: str) -> bool:
        """Record that two terms are equal. Return False if that was known. Raises UnionError for values of different types."""
        a, b = self.find(left), self.find(right)
        if a == b:
            if left != right:
                self._edge(left, right, reason, redundant=True)
            return False
        one, other = self.classes[a], self.classes[b]
        if not same_type(one.type, other.type):
            raise UnionError(f"{reason} says that a value of {one.type} is one of {other.type}",
                             fix="a replacement has the type of what it replaces")
        if len(one.parents) < len(other.parents):
            a, b, one, other = b, a, other, one
        self._edge(left, right, reason)
        self._parent[b] = a
        one.nodes += other.nodes
        one.parents += other.parents
        one.ops |= other.ops
        del self.classes[b]
        if one.splat is None:
            one.splat = other.splat
        one.bound = one.bound or other.bound
        one.touched = self.round
        self._pending.append(a)
        self.changes += 1
        return True

    def rebuild(self) -> None:
        """Restore congruence and the analyses (splat, bound), to a fixpoint. Afterwards `check_invariants` holds."""
        if not self._pending:
            return
        while self._pending:
            todo = list(dict.fromkeys(self.find(c) for c in self._pending))
            self._pending = []
            for number in todo:
                if number not in self.classes:              # joined with another one meanwhile, which is pending
                    continue
                for parent in list(dict.fromkeys(self.classes[number].parents)):
                    node = self._canonical(self.terms[parent])
                    other = self._hashcons.setdefault(node.key, parent)
                    if self.find(other) != self.find(parent):
                        self.union(parent, other, CONGRUENCE)
                    home = self.find(parent)
                    owner = self.classes[home]
                    splat, bound = self._analyse(node, owner.type)
                    if (owner.splat is None and splat is not None) or (bound and not owner.bound):
                        owner.splat = splat if owner.splat is None else owner.splat
                        owner.bound = owner.bound or bound
                        owner.touched = self.round
                        self._pending.append(home)
        self._hashcons = {}
        for eclass in self.classes.values():
            unique: dict[Key, ENode] = {}
            for node in map(self._canonical, eclass.nodes):
                unique.setdefault(node.key, node)
            eclass.nodes = list(unique.values())
            eclass.parents = list(dict.fromkeys(eclass.parents))
            for key, node in unique.items():
                self._hashcons[key] = node.term

    def check_invariants(self) -> None:
        """Raise AssertionError unless the e-graph is hash-consed, congruent, typed and connected by its edges."""
        assert not self._pending, "not rebuilt"
        seen: dict[Key, int] = {}
        for number, eclass in self.classes.items():
            assert self.find(number) == number and eclass.nodes, f"class {number} is not canonical, or empty"
            for node in eclass.nodes:
                assert self._canonical(node).key == node.key, f"a stale e-node in class {number}"
                assert node.key not in seen, f"congruent e-nodes in the classes {seen[node.key]} and {number}"
                seen[node.key] = number
                assert self.find(self._hashcons[node.key]) == number, "the hash-cons names another class"
                assert same_type(self.types[node.term], eclass.type), "an e-node of another type than its class"
                for child in node.children:
                    assert any(self.find(p) == number for p in self.classes[child].parents), "a child does not know its parent"
        assert self._hashcons.keys() == seen.keys(), "the hash-cons knows e-nodes that no class has"
        joined = list(range(len(self.terms)))

        def root(x: int) -> int:
            while joined[x] != x:
                x = joined[x]
            return x

        for edge in self.edges:
            a, b = root(edge.left), root(edge.right)
            assert (a == b) is edge.known, "the proofs without what was known are no forest"
            joined[a] = b
        classes: dict[int, int] = {}
        for term in range(len(self.terms)):
            assert classes.setdefault(root(term), self.find(term)) == self.find(term), "an edge between two classes"
            assert same_type(self.types[term], self.of(term).type), "a term of another type than its class"
        assert len(classes) == len(self.classes), "a union without an edge"


def same_type(a: TensorType, b: TensorType) -> bool:
    return a == b or (a.dtype == b.dtype and len(a.shape) == len(b.shape) and all(map(same_dim, a.shape, b.shape)))


def rounded(value: Any, dtype: DType) -> Any:
    """Return a constant's number as its dtype stores it. Dims are returned unchanged; for arrays None is returned."""
    if isinstance(value, ArrayValue):
        return None
    if isinstance(value, float) and dtype.kind == "float":
        with np.errstate(all="ignore"):
            return float(np.asarray(value, dtype=np.float64).astype(dtype.numpy))
    return value


def same_number(a: Any, b: Any) -> bool:
    """Return whether two splats are the same number; 0.0 and −0.0 are different numbers, NaN equals itself."""
    return a is not None and b is not None and encode_attribute(a) == encode_attribute(b)


def uses(view: Iterable[ENode]) -> dict[str, list[ENode]]:
    """Return the e-nodes by the name of their op, in their order."""
    readers: dict[str, list[ENode]] = {}
    for node in view:
        readers.setdefault(node.op.name, []).append(node)
    return readers
