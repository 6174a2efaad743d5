"""vae: the autoencoder that turns pictures into latent pictures, and back.

Sources: Kingma and Welling 2014; Esser et al. 2021 (its blocks); Rombach et al. 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensor_graphs.language.composites.elementary import silu
from tensor_graphs.language.composites.resizing import resize
from tensor_graphs.language.node import Node
from tensor_graphs.models.diffusion.layers import Layers, picture, tokens

EPS = 1e-6
"""the eps of all norms of an autoencoder"""


@dataclass(frozen=True, slots=True)
class VaeFacts:
    """The facts of one autoencoder. channels: per level, from the finest. layers: residual blocks of a level of the encoder; the
    decoder has one more. latent: channels of a latent picture. A latent picture is (mean − shift) · scale. before, after: the
    latent picture passes a convolution of 1 × 1 on its way in, and on its way out. attends: the middle has an attention."""

    channels: tuple[int, ...]
    layers: int
    latent: int
    colours: int = 3
    groups: int = 32
    scale: float = 1.0
    shift: float = 0.0
    before: bool = True
    after: bool = True
    attends: bool = True

    @property
    def multiple(self) -> int:
        """Pixels along each axis that one place of a latent picture stands for."""
        return int(2 ** (len(self.channels) - 1))


def decoded(facts: VaeFacts, at: Layers, z: Node) -> Node:
    """Return pictures [b, colours, multiple · h, multiple · w], mostly within ±1, of the latent pictures z[b, latent, h, w]."""
    z = z * (1 / facts.scale) + facts.shift
    if facts.before:
        z = at.conv("post_quant_conv", z, facts.latent, 1)
    at = at.at("decoder")
    x = _middle(facts, at, at.conv("conv_in", z, facts.channels[-1]))
    for level, size in enumerate(facts.channels[::-1]):
        below = at.at(f"up_blocks.{level}")
        for i in range(facts.layers + 1):
            x = below.at(f"resnets.{i}").residual(x, size, facts.groups, EPS)
        if level < len(facts.channels) - 1:
            x = below.conv("upsamplers.0.conv", resize(x, scale=(2, 2)), size)
    return at.conv("conv_out", silu(at.group_norm("conv_norm_out", x, facts.groups, EPS)), facts.colours)


def encoded(facts: VaeFacts, at: Layers, x: Node) -> Node:
    """Return the means of the latent pictures of x[b, colours, h, w], whose values are within ±1."""
    whole, at = at, at.at("encoder")
    x = at.conv("conv_in", x, facts.channels[0])
    for level, size in enumerate(facts.channels):
        below = at.at(f"down_blocks.{level}")
        for i in range(facts.layers):
            x = below.at(f"resnets.{i}").residual(x, size, facts.groups, EPS)
        if level < len(facts.channels) - 1:
            x = below.conv("downsamplers.0.conv", x, size, stride=2, padding=((0, 1), (0, 1)))
    x = silu(at.group_norm("conv_norm_out", _middle(facts, at, x), facts.groups, EPS))
    x = at.conv("conv_out", x, 2 * facts.latent)
    if facts.after:
        x = whole.conv("quant_conv", x, 2 * facts.latent, 1)
    return (x[:, :facts.latent] - facts.shift) * facts.scale


def _middle(facts: VaeFacts, at: Layers, x: Node) -> Node:
    """Return x[b, c, h, w] after two residual blocks, with an attention of one head between them."""
    at, size = at.at("mid_block"), facts.channels[-1]
    x = at.at("resnets.0").residual(x, size, facts.groups, EPS)
    if facts.attends:
        within, (h, w) = at.at("attentions.0"), x.shape[2:]
        inside = tokens(within.group_norm("group_norm", x, facts.groups, EPS))
        x = x + picture(within.attention(inside, inside, 1, size, bias=True), h, w)
    return at.at("resnets.1").residual(x, size, facts.groups, EPS)
