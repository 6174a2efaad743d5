"""unet: the denoiser of Stable Diffusion 1 and 2, a U-shaped stack of residual blocks with attention to the text.

Sources: Ronneberger et al. 2015 (the U), Ho et al. 2020 (its use), Rombach et al. 2022 (attention to the text).
"""

from __future__ import annotations

from dataclasses import dataclass

from tensor_graphs.language import atomic
from tensor_graphs.language.composites.elementary import gelu, silu
from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.composites.resizing import resize
from tensor_graphs.language.node import Node
from tensor_graphs.models.diffusion.layers import Layers, picture, sinusoids, tokens


@dataclass(frozen=True, slots=True)
class UNetFacts:
    """The facts of one UNet. in_channels, out_channels: of the latent picture. channels, heads, down, up: per level, from the
    finest (up: from the coarsest); heads: of attention; down, up: True if the level attends to the text. layers: residual blocks of
    a level. context: width of the text's vectors. depth: transformer blocks of one attention. as_tokens: the projections around an
    attention are linear layers, not convolutions. cosines_first, shift: of the time step's sinusoids."""

    in_channels: int
    out_channels: int
    channels: tuple[int, ...]
    heads: tuple[int, ...]
    down: tuple[bool, ...]
    up: tuple[bool, ...]
    layers: int
    context: int
    groups: int = 32
    eps: float = 1e-5
    depth: int = 1
    as_tokens: bool = False
    cosines_first: bool = True
    shift: float = 0.0

    @property
    def multiple(self) -> int:
        """Height and width of a latent picture are multiples of this number: each level but one halves them."""
        return int(2 ** (len(self.channels) - 1))


def unet(facts: UNetFacts, at: Layers, x: Node, time: Node, context: Node) -> Node:
    """Return the prediction for noisy latent pictures x[b, in, h, w] at time[], with texts context[b, s, d]."""
    width = facts.channels[0]
    time = at.at("time_embedding").embedded(sinusoids(time, width, cosines_first=facts.cosines_first, shift=facts.shift), 4 * width)

    def block(at: Layers, i: int, x: Node, size: int, heads: int) -> Node:
        """Return x after residual block i of a level, and after its attention unless heads is 0."""
        x = at.at(f"resnets.{i}").residual(x, size, facts.groups, facts.eps, time)
        return attended(facts, at.at(f"attentions.{i}"), x, context, heads) if heads else x

    x = at.conv("conv_in", x, width)
    skipped = [x]
    for level, size in enumerate(facts.channels):
        below = at.at(f"down_blocks.{level}")
        for i in range(facts.layers):
            x = block(below, i, x, size, facts.heads[level] if facts.down[level] else 0)
            skipped.append(x)
        if level < len(facts.channels) - 1:
            x = below.conv("downsamplers.0.conv", x, size, stride=2)
            skipped.append(x)
    middle, size = at.at("mid_block"), facts.channels[-1]
    x = block(middle, 0, x, size, facts.heads[-1])
    x = block(middle, 1, x, size, 0)
    for level, (size, heads) in enumerate(zip(facts.channels[::-1], facts.heads[::-1], strict=True)):
        below = at.at(f"up_blocks.{level}")
        for i in range(facts.layers + 1):
            x = block(below, i, concat(x, skipped.pop(), axis=1), size, heads if facts.up[level] else 0)
        if level < len(facts.channels) - 1:
            x = below.conv("upsamplers.0.conv", resize(x, scale=(2, 2)), size)
    return at.conv("conv_out", silu(at.group_norm("conv_norm_out", x, facts.groups, facts.eps)), facts.out_channels)


def attended(facts: UNetFacts, at: Layers, x: Node, context: Node, heads: int) -> Node:
    """Return x[b, c, h, w] after transformer blocks over its places, which see each other and the text."""
    size, (h, w) = x.shape[1], x.shape[2:]
    assert isinstance(size, int)
    y = at.group_norm("norm", x, facts.groups, 1e-6)
    y = at.linear("proj_in", tokens(y), size) if facts.as_tokens else tokens(at.conv("proj_in", y, size, 1))
    for i in range(facts.depth):
        block = at.at(f"transformer_blocks.{i}")
        inside = block.layer_norm("norm1", y)
        y = y + block.at("attn1").attention(inside, inside, heads, size // heads)
        y = y + block.at("attn2").attention(block.layer_norm("norm2", y), context, heads, size // heads)
        both = block.linear("ff.net.0.proj", block.layer_norm("norm3", y), 8 * size)
        y = y + block.linear("ff.net.2", both[..., :4 * size] * gelu(both[..., 4 * size:]), size)
    y = picture(at.linear("proj_out", y, size), h, w) if facts.as_tokens else at.conv("proj_out", picture(y, h, w), size, 1)
    return atomic.add(y, x)
