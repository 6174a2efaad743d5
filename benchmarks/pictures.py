"""pictures: one step of a denoiser, and the decoder of pictures, by this package and by diffusers with torch.compile.

    python benchmarks/pictures.py                          # small models: a UNet, a transformer (SD3's), the decoder
    python benchmarks/pictures.py --only unet --side 32 --width 128
    python benchmarks/pictures.py --eager                  # against diffusers without torch.compile, which starts sooner

Each line: milliseconds of a step by diffusers and by tensor_graphs (the least of interleaved runs), their ratio, the seconds that
each took to compile, and the largest difference of the outputs, relative to the largest output. The plan of tensor_graphs serves
all sizes; that of diffusers is compiled for this one. Weights are random.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel, UNet2DConditionModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.arguments import at_least
from tensor_graphs.frontends.diffusers import read_sd3, read_unet, read_vae
from tensor_graphs.frontends.json_settings import Section
from tensor_graphs.models.diffusion.dit import dit
from tensor_graphs.models.diffusion.layers import Layers
from tensor_graphs.models.diffusion.unet import unet
from tensor_graphs.models.diffusion.vae import decoded

CASES = ("unet", "dit", "decoder")
TOKENS = 77


def settings(module: Any) -> Section:
    """The settings of a module, as its folder has them."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in module.config.items()}
    return Section(values, Path("config.json"))


def case(name: str, side: int, width: int) -> tuple[Any, Any, dict[str, np.ndarray], dict[str, int]]:
    """(a function that runs diffusers' module, the graph, its inputs, sizes of its dims) of one model; two texts at a time."""
    draw = np.random.default_rng(0)
    a, b = tg.dim("a", 1, 64), tg.dim("b", 1, 64)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    inputs: dict[str, np.ndarray] = {"x": normal(2, 4, side, side), "time": np.float32(501), "context": normal(2, TOKENS, width)}
    if name == "unet":
        module: Any = UNet2DConditionModel(
            block_out_channels=(width, 2 * width, 4 * width), layers_per_block=2, cross_attention_dim=width, attention_head_dim=8,
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D")).eval()
        facts = read_unet(settings(module))
        multiple = facts.multiple
        context = tg.input("context", (2, TOKENS, width))
        out = unet(facts, Layers(), tg.input("x", (2, 4, multiple * a, multiple * b)), tg.input("time", ()), context)
        return module, tg.graph({"out": out}), inputs, {"a": side // multiple, "b": side // multiple}
    if name == "dit":
        module = SD3Transformer2DModel(
            sample_size=side, patch_size=2, in_channels=4, out_channels=4, num_layers=4, attention_head_dim=64,
            num_attention_heads=width // 16, joint_attention_dim=width, caption_projection_dim=4 * width,
            pooled_projection_dim=width, pos_embed_max_size=96).eval()
        sd3 = read_sd3(settings(module))
        inputs["pooled"] = normal(2, width)
        out = dit(sd3, Layers(), tg.input("x", (2, 4, 2 * a, 2 * b)), tg.input("time", ()),
                  tg.input("context", (2, TOKENS, width)), tg.input("pooled", (2, width)))
        return module, tg.graph({"out": out}), inputs, {"a": side // 2, "b": side // 2}
    module = AutoencoderKL(block_out_channels=(width, 2 * width, 2 * width), layers_per_block=2, latent_channels=4,
                           down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
                           scaling_factor=1.0).eval()
    out = decoded(read_vae(settings(module)), Layers(), tg.input("x", (1, 4, a, b)))
    return module, tg.graph({"out": out}), {"x": inputs["x"][:1]}, {"a": side, "b": side}


def calls(name: str, module: Any, inputs: dict[str, np.ndarray], eager: bool) -> Any:
    """A function that runs diffusers' module on the inputs."""
    tensors = {key: torch.as_tensor(value) for key, value in inputs.items()}
    forward = module.decode if name == "decoder" else module
    compiled = forward if eager else torch.compile(forward)
    if name == "decoder":
        return lambda: compiled(tensors["x"]).sample
    more = {"timestep": tensors["time"].expand(2), "encoder_hidden_states": tensors["context"]}
    if name == "dit":
        more["pooled_projections"] = tensors["pooled"]
    return lambda: compiled(tensors["x"], **more).sample


@torch.no_grad()
def compare(name: str, side: int, width: int, runs: int, eager: bool) -> None:
    module, graph, inputs, dims = case(name, side, width)
    started = time.perf_counter()
    plan = tg.compile(graph, at=dims)
    mine_seconds = time.perf_counter() - started
    weights = {key: value.numpy() for key, value in module.state_dict().items() if key in graph.parameters}
    model = tg.bind(plan, weights)
    theirs = calls(name, module, inputs, eager)
    started = time.perf_counter()
    expected = theirs().numpy()
    their_seconds = time.perf_counter() - started
    out = model.run(inputs, dims=dims)["out"]
    difference = float(np.abs(out - expected).max() / np.abs(expected).max())
    best = [float("inf"), float("inf")]
    for _ in range(runs):
        for which, run in enumerate((theirs, lambda: model.run(inputs, dims=dims))):
            started = time.perf_counter()
            run()
            best[which] = min(best[which], time.perf_counter() - started)
    print(f"{name:8s} {best[0] * 1e3:9.2f} ms {best[1] * 1e3:9.2f} ms  ratio {best[1] / best[0]:5.2f}   "
          f"compile {their_seconds:6.1f} s {mine_seconds:6.1f} s   difference {difference:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--side", type=at_least(8), default=32, help="of the latent picture; a multiple of 8")
    parser.add_argument("--width", type=at_least(32), default=64, help="channels of the finest level")
    parser.add_argument("--runs", type=at_least(1), default=20)
    parser.add_argument("--eager", action="store_true", help="diffusers without torch.compile")
    options = parser.parse_args()
    print("         diffusers     tensor_graphs")
    for name in options.only or CASES:
        compare(name, options.side, options.width, options.runs, options.eager)


if __name__ == "__main__":
    main()
