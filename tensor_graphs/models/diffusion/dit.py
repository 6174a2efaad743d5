"""dit: the denoisers of Stable Diffusion 3 and FLUX, transformers over the tokens of a picture and of its text.

A joint block keeps weights of its own for the two kinds of tokens, which see each other; a single block has one set of weights for
both. Time and pooled text shift, scale and gate each block.
Sources: Peebles and Xie 2023 (DiT), Esser et al. 2024 (joint blocks), Black Forest Labs 2024 (FLUX: single blocks, rotations by row
and column).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.composites.batches import attention
from tensor_graphs.language.composites.elementary import cos, gelu, silu
from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.composites.normalisation import layer_norm
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32, i32
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import Node
from tensor_graphs.models.diffusion.layers import Layers, sinusoids, tokens

EPS = 1e-6
"""the eps of all norms of these transformers"""
SINUSOIDS = 256
"""numbers that a time step becomes before it is embedded"""


@dataclass(frozen=True, slots=True)
class DitFacts:
    """The facts of one transformer.

    channels: of a latent picture; a token is a square of patch × patch of its places. heads, width: of attention. joint, single:
    numbers of blocks. context, pooled: widths of the text's vectors and of its pooled vector. twice: joint blocks with a second
    attention, among the picture's tokens. head_norms: queries and keys are normalised. positions: side of the table of learnt
    positions, of which the middle is taken; 0: positions are rotations. rotated: channels of a head that turn by 0, by row and by
    column. guided: the strength of guidance is an input. packed: a token is stored channel by channel, not place by place.
    """

    channels: int
    heads: int
    width: int
    joint: int
    context: int
    pooled: int
    single: int = 0
    patch: int = 2
    twice: frozenset[int] = frozenset()
    head_norms: bool = False
    positions: int = 0
    rotated: tuple[int, ...] = ()
    guided: bool = False
    packed: bool = False

    @property
    def size(self) -> int:
        """Channels of a token."""
        return self.heads * self.width

    @property
    def multiple(self) -> int:
        """Height and width of a latent picture are multiples of this number."""
        return self.patch


@dataclass(frozen=True, slots=True)
class _Shared:
    """Values that all blocks read: the embedded time and text, silu applied, and the table of rotations, if any."""

    facts: DitFacts
    condition: Node
    rotations: tuple[Node, Node] | None

    def modulation(self, at: Layers, name: str, parts: int) -> list[Node]:
        """Return [b, 1, size] vectors by which a block shifts, scales and gates."""
        size = self.facts.size
        whole = at.linear(name, self.condition, parts * size)
        return [atomic.reshape(whole[:, i * size:(i + 1) * size], (whole.shape[0], 1, size)) for i in range(parts)]

    def rotated(self, x: Node) -> Node:
        """Return x[b, n, heads, width] with channels 2i and 2i + 1 of each token turned by its angles."""
        if self.rotations is None:
            return x
        pairs = atomic.reshape(x, (*x.shape[:-1], self.facts.width // 2, 2))
        even, odd = pairs[..., 0:1], pairs[..., 1:2]
        cosine, sine = (atomic.reshape(y, (1, x.shape[1], 1, self.facts.width // 2, 1)) for y in self.rotations)
        return atomic.reshape(concat(even * cosine - odd * sine, even * sine + odd * cosine, axis=-1), x.shape)


def dit(facts: DitFacts, at: Layers, x: Node, time: Node, context: Node, pooled: Node, guidance: Node | None = None) -> Node:
    """Return the prediction for noisy latent pictures x[b, c, h, w] at time[], with texts context[b, s, d] and pooled[b, e]."""
    within, size = at.at("time_text_embed"), facts.size
    condition = within.at("timestep_embedder").embedded(sinusoids(time, SINUSOIDS), size)
    if guidance is not None:
        condition = condition + within.at("guidance_embedder").embedded(sinusoids(guidance * 1000.0, SINUSOIDS), size)
    condition = condition + within.at("text_embedder").embedded(pooled, size)
    y, text = _embedded(facts, at, x), at.linear("context_embedder", context, size)
    rows, columns = (s // facts.patch for s in x.shape[2:])
    table = _rotations(facts, text.shape[1], rows, columns) if facts.rotated else None
    shared = _Shared(facts, silu(condition), table)
    for i in range(facts.joint):
        y, text = _joint(shared, at.at(f"transformer_blocks.{i}"), y, text, second=i in facts.twice,
                         last=not facts.single and i == facts.joint - 1)
    if facts.single:
        both = concat(text, y, axis=1)
        for i in range(facts.single):
            both = _single(shared, at.at(f"single_transformer_blocks.{i}"), both)
        y = both[:, text.shape[1]:]
    scale, shift = shared.modulation(at, "norm_out.linear", 2)
    y = at.linear("proj_out", _modulated(y, shift, scale), facts.patch ** 2 * facts.channels)
    return _pictures(facts, y, rows, columns)


def _modulated(x: Node, shift: Node, scale: Node) -> Node:
    return layer_norm(x, eps=EPS) * (scale + 1.0) + shift


def _embedded(facts: DitFacts, at: Layers, x: Node) -> Node:
    """Return x[b, c, h, w] as tokens [b, n, size], with their learnt positions."""
    p = facts.patch
    if facts.packed:
        b, c, h, w = x.shape
        squares = atomic.permute(atomic.reshape(x, (b, c, h // p, p, w // p, p)), (0, 2, 4, 1, 3, 5))
        return at.linear("x_embedder", atomic.reshape(squares, (b, (h // p) * (w // p), c * p * p)), facts.size)
    y = at.conv("pos_embed.proj", x, facts.size, p, stride=p, padding=0)
    side, (h, w) = facts.positions, y.shape[2:]
    top, left = (side - h) // 2, (side - w) // 2
    table = atomic.reshape(at.weight("pos_embed.pos_embed", 1, side * side, facts.size), (side, side, facts.size))
    return tokens(y) + atomic.reshape(table[top:top + h, left:left + w], (1, h * w, facts.size))


def _pictures(facts: DitFacts, y: Node, rows: Dim, columns: Dim) -> Node:
    """Return tokens [b, rows · columns, …] as pictures [b, c, h, w]."""
    b, p, c = y.shape[0], facts.patch, facts.channels
    inside, order = ((c, p, p), (0, 3, 1, 4, 2, 5)) if facts.packed else ((p, p, c), (0, 5, 1, 3, 2, 4))
    return atomic.reshape(atomic.permute(atomic.reshape(y, (b, rows, columns, *inside)), order), (b, c, rows * p, columns * p))


def _rotations(facts: DitFacts, texts: Dim, rows: Dim, columns: Dim) -> tuple[Node, Node]:
    """Return (cosines, sines)[texts + rows · columns, width / 2]; texts are not turned."""
    n = rows * columns
    place = atomic.iota((n,), 0, i32)
    row = place // atomic.dim_fill(columns, (n,), i32)
    at = (place * 0, row, place - row * atomic.dim_fill(columns, (n,), i32))
    angles = []
    for channels, positions in zip(facts.rotated, at, strict=True):
        rates = (10_000.0 ** (-np.arange(0, channels, 2) / channels)).astype(np.float32)
        angles.append(atomic.reshape(atomic.cast(positions, f32), (n, 1)) * atomic.reshape(constant(rates), (1, channels // 2)))
    whole = concat(atomic.fill(0.0, (texts, facts.width // 2), f32), concat(*angles, axis=1), axis=0)
    return cos(whole), atomic.sin(whole)


def _heads(shared: _Shared, at: Layers, x: Node, names: str, norms: str) -> tuple[Node, Node, Node]:
    """Return (queries, keys, values)[b, n, heads, width]. names, norms: patterns of the names of projections and of norms."""
    facts = shared.facts
    q, k, v = (at.heads(names.format(part), x, facts.heads, facts.width) for part in "qkv")
    if facts.head_norms:
        q, k = at.rms_norm(norms.format("q"), q, EPS), at.rms_norm(norms.format("k"), k, EPS)
    return q, k, v


def _seen(shared: _Shared, q: Node, k: Node, v: Node) -> Node:
    out = attention(shared.rotated(q), shared.rotated(k), v, scale=shared.facts.width ** -0.5)
    return atomic.reshape(out, (*out.shape[:2], shared.facts.size))


def _joint(shared: _Shared, at: Layers, x: Node, text: Node, *, second: bool, last: bool) -> tuple[Node, Node]:
    """Return (x, text) after a joint block. second: x also has an attention of its own; last: the text is not needed any more."""
    shift, scale, gate, shift_ffn, scale_ffn, gate_ffn, *more = shared.modulation(at, "norm1.linear", 9 if second else 6)
    inside = _modulated(x, shift, scale)
    if last:
        of_text = shared.modulation(at, "norm1_context.linear", 2)
        text_inside = _modulated(text, of_text[1], of_text[0])
    else:
        of_text = shared.modulation(at, "norm1_context.linear", 6)
        text_inside = _modulated(text, of_text[0], of_text[1])
    within, size = at.at("attn"), shared.facts.size
    of_x = _heads(shared, within, inside, "to_{}", "norm_{}")
    of_both = (concat(a, b, axis=1) for a, b in zip(
        _heads(shared, within, text_inside, "add_{}_proj", "norm_added_{}"), of_x, strict=True))
    seen, first = _seen(shared, *of_both), text.shape[1]
    y = x + gate * within.linear("to_out.0", seen[:, first:], size)
    if second:
        own = _heads(shared, at.at("attn2"), _modulated(x, more[0], more[1]), "to_{}", "norm_{}")
        y = y + more[2] * at.linear("attn2.to_out.0", _seen(shared, *own), size)
    y = y + gate_ffn * _feed_forward(at.at("ff"), _modulated(y, shift_ffn, scale_ffn), size)
    if last:
        return y, text
    text = text + of_text[2] * within.linear("to_add_out", seen[:, :first], size)
    return y, text + of_text[5] * _feed_forward(at.at("ff_context"), _modulated(text, of_text[3], of_text[4]), size)


def _single(shared: _Shared, at: Layers, x: Node) -> Node:
    """Return the tokens of text and picture after a single block: attention and feed-forward read the same x."""
    shift, scale, gate = shared.modulation(at, "norm.linear", 3)
    inside, size = _modulated(x, shift, scale), shared.facts.size
    seen = _seen(shared, *_heads(shared, at.at("attn"), inside, "to_{}", "norm_{}"))
    wide = gelu(at.linear("proj_mlp", inside, 4 * size), approximate="tanh")
    return x + gate * at.linear("proj_out", concat(seen, wide, axis=2), size)


def _feed_forward(at: Layers, x: Node, size: int) -> Node:
    return at.linear("net.2", gelu(at.linear("net.0.proj", x, 4 * size), approximate="tanh"), size)
