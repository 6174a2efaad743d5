"""step: one step of a sampler as a graph: the denoiser, guidance by a text, and the lines of schedules.py.

The coefficients of the step are an input, and height and width are dims: all steps, all samplers and all sizes are one plan.
Source of guidance: Ho and Salimans 2022.
"""

from __future__ import annotations

from collections.abc import Callable

from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.leaves import input
from tensor_graphs.language.node import Node

Denoiser = Callable[[Node, Node], Node]
"""(noisy latent pictures [b, c, h, w], time[]) -> what the model predicts for them, of the same shape"""


def step_graph(denoiser: Denoiser, channels: int, height: Dim, width: Dim, *, guided: bool) -> Graph:
    """Return the graph of one step: `x`, `memory` f32[1, channels, height, width], `time` f32[], `row` f32[6] (`StepRow.array`) ->
    `x`, `memory`.

    guided: the denoiser sees two pictures, of which the first is that of the empty prompt; with `guidance` f32[], the prediction is
    first + guidance · (second − first).
    """
    shape = (1, channels, height, width)
    x, memory, row = input("x", shape), input("memory", shape), input("row", (6,))
    scale, of_x, of_e, of_memory, clean_x, clean_e = (row[i] for i in range(6))
    scaled = x * scale
    e = denoiser(concat(scaled, scaled, axis=0) if guided else scaled, input("time", ()))
    if guided:
        e = e[0:1] + input("guidance", ()) * (e[1:2] - e[0:1])
    return graph({"x": x * of_x + e * of_e + memory * of_memory, "memory": x * clean_x + e * clean_e})
