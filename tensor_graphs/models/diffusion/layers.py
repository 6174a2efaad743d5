"""layers: the layers that diffusion models share, each under the name of its weights in the files of diffusers.

Pictures are x[b, c, h, w]; tokens are x[b, n, c]. b is a number; h, w and n may be dims.
Sources: Ho et al. 2020 (residual blocks, sinusoids of the time step), Rombach et al. 2022 (attention to the text).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.composites.batches import attention
from tensor_graphs.language.composites.convolution import conv
from tensor_graphs.language.composites.elementary import cos, silu
from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.composites.normalisation import group_norm, layer_norm, rms_norm
from tensor_graphs.language.composites.products import linear
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, f32
from tensor_graphs.language.leaves import constant, parameter
from tensor_graphs.language.node import Node


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers below one name. dtype: of the weights; values between ops are f32."""

    dtype: DType = f32
    prefix: str = ""

    def at(self, name: str) -> Layers:
        """Return the layers below `name`, which lies below these."""
        return Layers(self.dtype, f"{self.prefix}{name}.")

    def weight(self, name: str, *shape: Dim) -> Node:
        return parameter(self.prefix + name, shape, self.dtype)

    def linear(self, name: str, x: Node, size: int, bias: bool = True) -> Node:
        out: Node = linear(x, self.weight(f"{name}.weight", size, x.shape[-1]), self.weight(f"{name}.bias", size) if bias else None)
        return out

    def conv(self, name: str, x: Node, size: int, kernel: int = 3, stride: int = 1,
             padding: int | tuple[tuple[int, int], ...] | None = None) -> Node:
        """Return a convolution of `size` channels. padding: by default so that stride 1 keeps the size."""
        weight, bias = self.weight(f"{name}.weight", size, x.shape[1], kernel, kernel), self.weight(f"{name}.bias", size)
        return conv(x, weight, bias, stride=stride, padding=kernel // 2 if padding is None else padding)

    def group_norm(self, name: str, x: Node, groups: int, eps: float) -> Node:
        size = x.shape[1]
        out: Node = group_norm(x, self.weight(f"{name}.weight", size), self.weight(f"{name}.bias", size), groups=groups, eps=eps)
        return out

    def layer_norm(self, name: str, x: Node, eps: float = 1e-5) -> Node:
        size = x.shape[-1]
        out: Node = layer_norm(x, self.weight(f"{name}.weight", size), self.weight(f"{name}.bias", size), eps=eps)
        return out

    def rms_norm(self, name: str, x: Node, eps: float) -> Node:
        out: Node = rms_norm(x, self.weight(f"{name}.weight", x.shape[-1]), eps=eps)
        return out

    def heads(self, name: str, x: Node, heads: int, width: int, bias: bool = True) -> Node:
        """Return a projection of the tokens x[b, n, c] as [b, n, heads, width]."""
        return atomic.reshape(self.linear(name, x, heads * width, bias), (*x.shape[:2], heads, width))

    def attention(self, x: Node, seen: Node, heads: int, width: int, bias: bool = False) -> Node:
        """Return the attention of the tokens x[b, n, c] to the tokens seen[b, s, d], projected to x's channels. bias: of the
        projections to queries, keys and values."""
        q, k, v = (self.heads(name, y, heads, width, bias) for name, y in (("to_q", x), ("to_k", seen), ("to_v", seen)))
        out = atomic.reshape(attention(q, k, v, scale=width ** -0.5), (*x.shape[:2], heads * width))
        return self.linear("to_out.0", out, _size(x, -1))

    def residual(self, x: Node, size: int, groups: int, eps: float, time: Node | None = None) -> Node:
        """Return x[b, c, h, w] -> [b, size, h, w] after a residual block of two convolutions; time[1, d] is added between them."""
        h = self.conv("conv1", silu(self.group_norm("norm1", x, groups, eps)), size)
        if time is not None:
            h = h + atomic.reshape(self.linear("time_emb_proj", silu(time), size), (1, size, 1, 1))
        h = self.conv("conv2", silu(self.group_norm("norm2", h, groups, eps)), size)
        return h + (self.conv("conv_shortcut", x, size, 1) if x.shape[1] != size else x)

    def embedded(self, x: Node, size: int) -> Node:
        """Return linear_2(silu(linear_1 x)), as time steps and pooled texts are embedded."""
        return self.linear("linear_2", silu(self.linear("linear_1", x, size)), size)


def sinusoids(time: Node, size: int, *, cosines_first: bool = True, shift: float = 0.0) -> Node:
    """Return [1, size]: cosines and sines of time[] · 10000^(−i / (size/2 − shift)). Source: Ho et al. 2020."""
    half = size // 2
    rates = np.exp(np.float32(-math.log(10_000)) * np.arange(half, dtype=np.float32) / np.float32(half - shift))
    angles = atomic.reshape(time, (1, 1)) * atomic.reshape(constant(rates), (1, half))
    parts = (cos(angles), atomic.sin(angles))
    return concat(*(parts if cosines_first else parts[::-1]), axis=1)


def tokens(x: Node) -> Node:
    """Return x[b, c, h, w] as tokens [b, h · w, c]."""
    b, c, h, w = x.shape
    return atomic.permute(atomic.reshape(x, (b, c, h * w)), (0, 2, 1))


def picture(x: Node, h: Dim, w: Dim) -> Node:
    """Return tokens x[b, h · w, c] as [b, c, h, w]."""
    b, _, c = x.shape
    return atomic.reshape(atomic.permute(x, (0, 2, 1)), (b, c, h, w))


def _size(x: Node, axis: int) -> int:
    size = x.shape[axis]
    assert isinstance(size, int)
    return size
