"""pictures: draws a picture with an opened pipeline: encode the prompt, run the steps, decode the latent picture.

    painter = Painter(open_pipeline(folder), compiler)
    picture = painter.draw("a red house", steps=20, seed=0, height=512, width=512)      # u8[h, w, 3]

Three graphs are compiled, each once: the text encoders', the step's and the decoder's (and the encoder's, for a picture to start
from). Height and width are dims of theirs, so that another size compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.argument_checks import number, whole
from tensor_graphs.frontends.diffusers import DIT, FLUX, UNET, Pipeline, TextEncoder, refused_sampler
from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.language.dims import dim
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.leaves import input
from tensor_graphs.language.node import Node
from tensor_graphs.models.diffusion.dit import DitFacts, dit
from tensor_graphs.models.diffusion.layers import Layers
from tensor_graphs.models.diffusion.schedules import Sampler, StepRow, initial_noise, table
from tensor_graphs.models.diffusion.step import step_graph
from tensor_graphs.models.diffusion.text import ClipFacts, clip_graph, t5_graph
from tensor_graphs.models.diffusion.unet import UNetFacts, unet
from tensor_graphs.models.diffusion.vae import decoded, encoded

Array = np.ndarray
Runs = Callable[..., Mapping[str, Array]]
"""`CompiledGraph.run`"""
Compiler = Callable[[str, Graph, Mapping[str, Any]], Runs]
"""(name of the graph, graph, its weights) -> its run function"""
LARGEST = 2048
"""pixels along a side, at most"""


@dataclass(frozen=True)
class PictureRequest:
    """One picture. prompt, negative: guidance leads from the second to the first. init: picture u8[h, w, 3] to start from.
    strength: the share of the steps that change it."""

    prompt: str
    steps: int
    seed: int
    height: int
    width: int
    guidance: float
    negative: str = ""
    sampler: Sampler | None = None
    init: Array | None = None
    strength: float = 0.8


class Painter:
    """A pipeline whose graphs are compiled at their first use, each once."""

    def __init__(self, pipeline: Pipeline, compiler: Compiler) -> None:
        self.pipeline, self.compiler = pipeline, compiler
        self._ready: dict[str, Runs] = {}

    def draw(self, request: PictureRequest, progress: Callable[[int], None] = lambda step: None) -> Array:
        """Return the picture u8[height, width, 3]. Raises FrontendError for a size, a sampler or a strength that does not fit."""
        *_, latent = self.steps(request, progress)
        return to_bytes(self.run("decoder", {"z": latent}, request)["out"])

    def steps(self, request: PictureRequest, progress: Callable[[int], None] = lambda step: None, noise: Array | None = None
              ) -> Iterator[Array]:
        """Yield the latent picture after each step. noise: in place of that drawn from the seed."""
        pipeline, sampler = self.pipeline, request.sampler or self.pipeline.sampler
        rows = self._rows(request, sampler)
        shape = (1, pipeline.vae.latent, request.height // pipeline.vae.multiple, request.width // pipeline.vae.multiple)
        if noise is None:
            noise = np.random.Generator(np.random.Philox(request.seed)).standard_normal(shape, np.float32)
        x = noise * np.float32(initial_noise(sampler, pipeline.noise, rows))
        if request.init is not None:
            clean = self.run("encoder", {"x": to_floats(request.init)}, request)["out"]
            x = clean * np.float32(rows[0].with_clean) + noise * np.float32(rows[0].with_noise)
        inputs = self.conditions(request)
        name = "guided step" if "guidance" in inputs else "step"
        memory = np.zeros(shape, np.float32)
        for i, row in enumerate(rows):
            progress(i)
            outputs = self.run(name, {"x": x, "memory": memory, "time": np.asarray(row.time, np.float32),
                                     "row": row.array, **inputs}, request)
            x, memory = outputs["x"].copy(), outputs["memory"].copy()
            yield x

    def run(self, name: str, inputs: Mapping[str, Array], request: PictureRequest) -> Mapping[str, Array]:
        """Return the outputs of one of the graphs, which is compiled if this is its first run."""
        if name not in self._ready:
            folder, unbound = self.graph(name)
            self._ready[name] = self.compiler(name, unbound, self.pipeline.weights(folder, unbound))
        multiple = self.pipeline.multiple
        sizes = {} if "ids" in inputs else {"a": request.height // multiple, "b": request.width // multiple}
        return self._ready[name](inputs, dims=sizes)

    def graph(self, name: str) -> tuple[str, Graph]:
        """Return (sub-folder of its weights, graph) of "decoder", "encoder", "step", "guided step" or a text encoder's name."""
        pipeline, vae = self.pipeline, self.pipeline.vae
        most = LARGEST // pipeline.multiple
        facts = pipeline.denoiser
        if isinstance(facts, DitFacts) and facts.positions:
            most = min(most, facts.positions)
        a, b = (dim(name, 1, most) * facts.multiple for name in "ab")
        if name == "decoder":
            return "vae", graph({"out": decoded(vae, Layers(), input("z", (1, vae.latent, a, b)))})
        if name == "encoder":
            return "vae", graph({"out": encoded(vae, Layers(), input("x", (1, 3, vae.multiple * a, vae.multiple * b)))})
        if name in ("step", "guided step"):
            return pipeline.denoiser_folder, step_graph(self._denoiser, vae.latent, a, b, guided=name != "step")
        encoder = next(e for e in pipeline.encoders if e.name == name)
        return name, (clip_graph(encoder.facts, Layers(), 1) if isinstance(encoder.facts, ClipFacts) else
                      t5_graph(encoder.facts, Layers(), 1, encoder.tokens))

    def _denoiser(self, x: Node, time: Node) -> Node:
        facts, texts = self.pipeline.denoiser, x.shape[0]
        context = input("context", (texts, self._tokens, facts.context))
        if isinstance(facts, UNetFacts):
            return unet(facts, Layers(), x, time, context)
        pooled = input("pooled", (texts, facts.pooled))
        return dit(facts, Layers(), x, time, context, pooled, input("distilled", ()) if facts.guided else None)

    @property
    def _tokens(self) -> int:
        """Number of the text's vectors that the denoiser sees."""
        clip, *others = self.pipeline.encoders
        if self.pipeline.kind == DIT:
            t5 = [e for e in others if not isinstance(e.facts, ClipFacts)]
            return clip.tokens + (t5[0].tokens if t5 else T5_ABSENT)
        return others[0].tokens if self.pipeline.kind == FLUX else clip.tokens

    def conditions(self, request: PictureRequest) -> dict[str, Array]:
        """Return the inputs of a step that depend on the texts only."""
        facts, guidance = self.pipeline.denoiser, np.asarray(request.guidance, np.float32)
        guided = self.pipeline.kind != FLUX and request.guidance > 1
        texts = [self._encoded(text, request) for text in ([request.negative] if guided else []) + [request.prompt]]
        inputs = {name: np.concatenate([text[name] for text in texts]) for name in texts[0]}
        if guided:
            inputs["guidance"] = guidance
        if isinstance(facts, DitFacts) and facts.guided:
            inputs["distilled"] = guidance
        return inputs

    def _encoded(self, text: str, request: PictureRequest) -> dict[str, Array]:
        """Return `context` and `pooled` of one text."""
        def run(encoder: TextEncoder) -> Mapping[str, Array]:
            ids, last = encoder.ids(text)
            inputs = {"ids": ids[None]} | ({"last": np.array([last], np.int32)} if isinstance(encoder.facts, ClipFacts) else {})
            return {name: value.copy() for name, value in self.run(encoder.name, inputs, request).items()}

        clips = [run(e) for e in self.pipeline.encoders if isinstance(e.facts, ClipFacts)]
        others = [run(e)["hidden"] for e in self.pipeline.encoders if not isinstance(e.facts, ClipFacts)]
        if self.pipeline.kind == UNET:
            return {"context": clips[0]["hidden"]}
        pooled = np.concatenate([clip["pooled"] for clip in clips], axis=1)
        if self.pipeline.kind == FLUX:
            return {"context": others[0], "pooled": pooled}
        both, width = np.concatenate([clip["hidden"] for clip in clips], axis=2), self.pipeline.denoiser.context
        both = np.pad(both, ((0, 0), (0, 0), (0, width - both.shape[2])))
        rest = others[0] if others else np.zeros((1, T5_ABSENT, width), np.float32)
        return {"context": np.concatenate([both, rest], axis=1), "pooled": pooled}

    def _rows(self, request: PictureRequest, sampler: Sampler) -> tuple[StepRow, ...]:
        """Return the rows of the steps. Raises FrontendError."""
        pipeline, multiple = self.pipeline, self.pipeline.multiple
        whole("steps", request.steps, 1, pipeline.noise.steps)
        number("guidance", request.guidance, "0 or more; 1 = without guidance")
        for name, size in (("height", request.height), ("width", request.width)):
            if size < multiple or size % multiple or size > LARGEST:
                raise FrontendError(f"the {name} is {size} pixels", fix=f"a multiple of {multiple}, at most {LARGEST}")
        if fault := refused_sampler(pipeline, sampler):
            raise FrontendError(fault, fix=f"the folder's own: {pipeline.sampler}")
        first = 0
        if request.init is not None:
            if request.init.shape != (request.height, request.width, 3):
                raise FrontendError(f"the picture to start from has {request.init.shape[0]} × {request.init.shape[1]} pixels",
                                    fix=f"one of {request.height} × {request.width}")
            changed = min(request.steps * number("strength", request.strength, "above 0, at most 1"), request.steps)
            first = int(request.steps - changed) if sampler == "flow" else request.steps - int(changed)
            if first >= request.steps:
                raise FrontendError(f"strength {request.strength} of {request.steps} steps is no step", fix="more of either")
        places = request.height * request.width // (pipeline.vae.multiple * pipeline.denoiser.multiple) ** 2
        return table(sampler, pipeline.noise, request.steps, first=first, tokens=places)


T5_ABSENT = 256
"""vectors of zeros that stand for an absent T5 encoder's"""


def to_bytes(picture: Array) -> Array:
    """Return f32[1, 3, h, w] within ±1 as u8[h, w, 3]."""
    levels: Array = np.rint(np.clip(picture[0].transpose(1, 2, 0) / 2 + 0.5, 0, 1) * 255)
    return levels.astype(np.uint8)


def to_floats(picture: Array) -> Array:
    """Return u8[h, w, 3] as f32[1, 3, h, w] within ±1."""
    return np.ascontiguousarray((picture.astype(np.float32) / np.float32(127.5) - 1).transpose(2, 0, 1)[None])
