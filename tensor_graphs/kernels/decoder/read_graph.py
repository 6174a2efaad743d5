"""read_graph: recognizes a decoder in a graph and returns its steps for the one kernel of one_kernel.py.

    decoder = decoder_of(graph)         # names of weights and states, sizes, dims that must be 1; raises NotLowered with the reason
    OneKernel(decoder.kinds, decoder.sizes)

The graph is matched from its last step to its first: the likeliest row of an embedding; layers of two sums `x + norm(…)`, attention
of normed and rotated queries over a cache that the step writes into, and a gated feed-forward; the embedding of the token. Parts
(language/anonymous_composite.py) are expanded into their definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.devices import nvrtc
from tensor_graphs.kernels.decoder import one_kernel
from tensor_graphs.kernels.decoder.one_kernel import Attention, HeadRows, Kind, NormRows, OneKernel, PlainRows, require
from tensor_graphs.kernels.kernel import ALL_STEPS, Kernel, LaunchCall, NotLowered, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import defined, expand_all
from tensor_graphs.language.composites.positions import rope_table
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, f32, i32
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret

NAME = "gencuda"
"""name of the backend that has the kernel"""

BETWEEN: tuple[DType, ...] = (f32, bf16)
"""Dtypes of values between steps, which the kernel keeps in f32, and of the caches, which it reads and writes in that dtype."""


@dataclass(frozen=True)
class DecoderLayer:
    """The names of a layer's weights and states. window: of its attention; 0: none. rotation: index in `Decoder.rotations`."""

    norm: str
    q: str
    k: str
    v: str
    q_norm: str
    k_norm: str
    o: str
    o_norm: str
    ffn_norm: str
    gate: str
    up: str
    down: str
    down_norm: str
    keys: str
    values: str
    window: int
    rotation: int


@dataclass(frozen=True)
class Decoder:
    """A recognized decoder. ids, token, logit: names of input and outputs. table: name of the embedding, also the output matrix.
    layers: from first to last. ffn: width of the feed-forward. offset: added to the weights of norms. rotations: theta and scaling
    of each. ones: dims that must be 1 (new tokens, and tokens whose successor is computed). position: of the new token."""

    ids: str
    token: str
    logit: str
    table: str
    last_norm: str
    layers: tuple[DecoderLayer, ...]
    sizes: one_kernel.DecoderSizes
    ffn: int
    offset: float
    rotations: tuple[tuple[float, float], ...]
    ones: tuple[Dim, ...]
    position: Dim

    @property
    def kinds(self) -> list[Kind]:
        s, kinds = self.sizes, list[Kind]()
        for i, layer in enumerate(self.layers):
            kinds += [NormRows((s.heads + 2) * s.dim), Attention(i, layer.window, layer.rotation), HeadRows(s.hidden),
                      NormRows(2 * self.ffn, parts=s.heads, pairs=True), PlainRows(s.hidden)]
        return [*kinds, one_kernel.Likeliest()]

    @property
    def held_bytes(self) -> int:
        """Return the bytes that the one kernel keeps in addition to the bound weights: the weights again in another order, values
        that all blocks read, tables of rotations, and the words of the exchange between blocks."""
        kernel = OneKernel(self.kinds, self.sizes)
        return kernel.pack_bytes + kernel.common_bytes + 8 * self.sizes.room * self.sizes.dim + 8 * kernel.words

    def matrices(self, step: int) -> tuple[str, ...]:
        """Return the names of the matrices of a step, whose rows follow each other (of gate and up, alternate); none for attention
        and the last step."""
        if step == 5 * len(self.layers):
            return ()
        layer, place = self.layers[step // 5], step % 5
        return ((layer.q, layer.k, layer.v), (), (layer.o,), (layer.gate, layer.up), (layer.down,))[place]

    def norms(self, step: int) -> tuple[str, ...]:
        """Return the names of the norms' weights that all blocks read in a step, in order; "" where there is no such norm."""
        below = self.layers[step // 5 - 1].down_norm if step >= 5 else ""
        if step == 5 * len(self.layers):
            return below, self.last_norm
        layer, place = self.layers[step // 5], step % 5
        return ((below, layer.norm), (layer.q_norm, layer.k_norm), (), (layer.o_norm, layer.ffn_norm), ())[place]

    def rotation_tables(self) -> np.ndarray[Any, Any]:
        """Return f32[2, room, dim], a table for each rotation: cosines, then sines, of each position, computed in float64."""
        room, dim = self.sizes.room, self.sizes.dim
        tables = []
        for theta, scaling in self.rotations:
            cos, sin = rope_table(leaves.input("at", (room,), i32), head_dim=dim, theta=theta, scaling=scaling, dtype=f32)
            values = interpret(make_graph({"cos": cos, "sin": sin}), {"at": np.arange(room, dtype=np.int32)}).outputs
            tables.append(np.concatenate([values["cos"], values["sin"]], 1).astype(np.float32))
        return np.stack([tables[0], tables[-1]])


def all_steps() -> Kernel:
    """Return the kernel that runs all steps of a decoder for one token. All its blocks must be resident on the device together."""
    return Kernel(name=f"{NAME}.all_steps", backend=NAME, op=ALL_STEPS, build=_no_call, accepts=_of_no_step, module=__name__,
                  source="a decoder's steps, one after the other", sources=[one_kernel.TEXT.name, one_kernel.PACKING.name],
                  toolchain=f"nvrtc {nvrtc.version()}", whole=decoder_of,
                  requirements={"arch": "sm_90", "multiprocessors_min": one_kernel.MULTIPROCESSORS})


def _no_call(spec: Spec) -> LaunchCall:
    raise NotLowered(f"all steps are no call of {spec.op.name}")


def _of_no_step(spec: Spec) -> str | None:
    return "it runs all steps of a graph, and none alone"


def decoder_of(graph: Graph) -> Decoder:
    """Return the decoder that a graph computes. Raises NotLowered with the reason where the graph is no such decoder."""
    decoder = _ReadDecoder(graph).decoder()
    OneKernel(decoder.kinds, decoder.sizes)                             # which refuses other sizes
    return decoder


class _ReadDecoder:
    """A matcher of one graph. known: values that must be equal in all layers (eps and offset of norms, sizes), set by the first."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph.with_roots(expand_all(graph.roots, lambda node: not isinstance(node.op, DefinedOp), defined))
        self.known: dict[str, Any] = {}
        self.rotations: list[tuple[float, float]] = []
        self.table = ""

    def decoder(self) -> Decoder:
        outputs, ends = self.graph.outputs, {}
        for name, node in outputs.items():
            best = _op(node, "item").inputs[0]
            ends[node.attrs["index"]] = name, _op(best, "linear_argmax")
        require(sorted(ends) == [0, 1] and ends[0][1] is ends[1][1], "outputs other than the likeliest token and its logit")
        last, self.table = self._product(ends[0][1])
        x, last_norm = self._norm(last)
        asked = x.shape[0]
        if x.op.name == "slice":                                    # of several tokens the last ones; of one all
            require(all(step == 1 for _, _, step in x.attrs["bounds"]), "every other token")
            x = x.inputs[0]
        layers = []
        while x.op.name != "embedding":
            x, layer = self._layer(x)
            layers.append(layer)
        table, ids = x.inputs
        require(self._weight(table) == self.table and x.dtype in BETWEEN, "a head that is not the embedding")
        require(ids.op is leaves.INPUT and ids.dtype == i32, "tokens that are no input of i32")
        states = {name for layer in layers for name in (layer.keys, layer.values)}
        require(states == set(self.graph.updates) and len(states) == 2 * len(layers), "states beside caches of layers")
        require(bool(layers) and list(self.graph.inputs) == [ids.attrs["name"]], "inputs beside the tokens, or no layers")
        shared = self.known
        sizes = one_kernel.DecoderSizes(
            hidden=_number(x.shape[1]), heads=shared["heads"], dim=shared["dim"], room=shared["room"],
            vocabulary=_number(table.shape[0]), eps=shared["eps"], scale=shared["scale"], embedded=x.attrs["scale"],
            cached_bytes=shared["cached"].itemsize)
        return Decoder(ids.attrs["name"], ends[1][0], ends[0][0], self.table, last_norm, tuple(reversed(layers)), sizes,
                       shared["ffn"], shared["offset"], tuple(self.rotations), (shared["new tokens"], asked), shared["position"])

    # ---- a layer, from its end ----

    def _layer(self, x: Node) -> tuple[Node, DecoderLayer]:
        """Return the input of the layer, and the layer."""
        x, result, down_norm = self._sum(x)
        inner, down = self._product(result)
        gate, up = _op(inner, "gated", activation="gelu_tanh").inputs
        (one, gate_name), (other, up_name) = self._product(gate), self._product(up)
        normed, ffn_norm = self._norm(one)
        require(one is other and normed is x, "a feed-forward of something else than the sum before it")
        self._same("ffn", inner.shape[1], "columns of a feed-forward")
        require(inner.shape[1] == PlainRows.INNER, f"{inner.shape[1]} columns of a feed-forward")
        x, result, o_norm = self._sum(x)
        seen, o = self._product(result)
        attended = _op(_without_views(seen), "attention", causal=True, softcap=0.0)
        require("mask" in attended.attrs.get("absent", ()), "attention with a mask")
        q, keys, values = attended.inputs
        new, heads, dim = q.shape
        for what, value, called in (("new tokens", new, "numbers of tokens"), ("heads", heads, "numbers of heads"),
                                    ("dim", dim, "sizes of heads"), ("scale", attended.attrs["scale"], "scales"),
                                    ("position", attended.attrs["start"], "positions")):
            self._same(what, value, called)
        key_state, k = self._cache(keys)
        value_state, v = self._cache(values)
        (q, q_rotation), (k, k_rotation) = self._rotated(q), self._rotated(k)
        require(q_rotation == k_rotation, "queries and keys that are rotated by different angles")
        (q, q_norm), (k, k_norm) = self._norm(q), self._norm(k)
        made_of = [self._product(_without_views(node)) for node in (q, k, v)]
        require(len({node for node, _ in made_of}) == 1, "queries, keys and values of different things")
        normed_input, norm = self._norm(made_of[0][0])
        require(normed_input is x, "attention to something else than the sum before it")
        (_, q_name), (_, k_name), (_, v_name) = made_of
        return x, DecoderLayer(norm, q_name, k_name, v_name, q_norm, k_norm, o, o_norm, ffn_norm, gate_name, up_name, down,
                               down_norm, key_state, value_state, attended.attrs["window"], q_rotation)

    def _sum(self, node: Node) -> tuple[Node, Node, str]:
        """Return x, o and the name of the norm's weight, of a node x + norm(o) where o is a matrix product."""
        for x, other in (_op(node, "add").inputs, reversed(_op(node, "add").inputs)):
            if other.op.name == "rms_norm" and other.inputs[0].op.name == "linear":
                return (x, *self._norm(other))
        raise NotLowered(f"one kernel for all steps is not made for a sum of {', '.join(i.op.name for i in node.inputs)}")

    def _cache(self, node: Node) -> tuple[str, Node]:
        """Return (name of the state whose slice is attended to, rows that are written into it)."""
        written = _op(_op(node, "slice").inputs[0], "write_rows", axis=0)
        state, value = written.inputs
        require(state.op is leaves.STATE and state.dtype in BETWEEN and self.graph.updates.get(state.attrs["name"]) is written,
                "a cache that is no state of f32 or bf16")
        self._same("cached", state.dtype, "dtypes of caches")
        start = written.attrs["start"]
        self._same("position", start, "positions")
        self._same("room", state.shape[0], "lengths of caches")
        self._same("dim", state.shape[2], "sizes of heads")
        rows, *rest = node.attrs["bounds"]
        require(state.shape[1] == 1 and rows == (0, start + value.shape[0], 1), "attention to other rows than those so far")
        require(tuple(rest) == tuple((0, s, 1) for s in state.shape[1:]), "attention to a part of the rows")
        return state.attrs["name"], value

    def _rotated(self, node: Node) -> tuple[Node, int]:
        """Return the node that is rotated, and the index of its rotation in `rotations`."""
        x, cos, sin = _op(node, "rope").inputs
        table = _op(_op(cos, "item", index=0).inputs[0], "rope_table", head_dim=x.shape[-1])
        require(_op(sin, "item", index=1).inputs[0] is table, "cosines and sines of different angles")
        places, begin = _op(table.inputs[0], "add").inputs
        begin = _without_views(begin)
        _op(places, "iota", axis=0)
        require(begin.op is leaves.CONSTANT, "angles of other positions")
        self._same("position", begin.attrs["value"], "positions")
        which = float(table.attrs["theta"]), float(table.attrs["scaling"])
        if which not in self.rotations:
            require(len(self.rotations) < 2, "more than two kinds of rotations")
            self.rotations.append(which)
        return x, self.rotations.index(which)

    def _norm(self, node: Node) -> tuple[Node, str]:
        x, weight = _op(node, "rms_norm").inputs
        self._same("eps", float(node.attrs["eps"]), "eps of norms")
        self._same("offset", float(node.attrs["offset"]), "offsets of norms")
        require(node.dtype in BETWEEN, "norms that are neither f32 nor bf16")
        return x, self._weight(weight)

    def _product(self, node: Node) -> tuple[Node, str]:
        """Return the left operand and the name of the weight of a linear or of the final linear_argmax."""
        if node.op.name != "linear_argmax":
            require("bias" in _op(node, "linear").attrs.get("absent", ()), "a bias")
        x, weight = node.inputs
        x = x.inputs[0] if x.op.name == "cast" else x               # of logits that are wider than what goes into them
        require(node.types[0].dtype in BETWEEN and x.dtype in BETWEEN, "products that are neither f32 nor bf16")
        return x, self._weight(weight)

    def _weight(self, node: Node) -> str:
        require(node.op is leaves.PARAMETER and node.dtype == bf16, f"a weight that is a {node.op.name} of {node.dtype}")
        name: str = node.attrs["name"]
        return name

    def _same(self, what: str, value: Any, called: str) -> None:
        require(self.known.setdefault(what, value) == value, f"different {called}")


def _op(node: Node, name: str, **attrs: Any) -> Node:
    """Return the node. Raises NotLowered unless it is of the op `name` with these attributes."""
    require(node.op.name == name, f"{node.op.name} where {name} is expected")
    for key, value in attrs.items():
        require(node.attrs.get(key) == value, f"{name} with {key} {node.attrs.get(key)!r}")
    return node


def _number(size: Dim) -> int:
    require(isinstance(size, int), f"a size {size}")
    return int(d.evaluate(size, {}))


def _without_views(node: Node) -> Node:
    """Return the node below reshapes and expands."""
    while node.op.name in ("reshape", "expand"):
        node = node.inputs[0]
    return node

