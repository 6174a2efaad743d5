"""training: a GPT over characters, trained by this package and by torch from the same weights on the same batches.

    python benchmarks/training.py                                    # 6 layers of width 384, 300 steps; torch eager and compiled
    python benchmarks/training.py --profile 600                      # measure kernels of the step first
    python benchmarks/training.py --steps 20 --layers 2 --no-compile # sooner

Steps are interleaved: one of each per batch. Printed: the median milliseconds of a step with its quartiles, processor milliseconds,
the ratio to eager torch as the median of the ratios of one batch, and the largest distance of the losses from eager torch's and
from those of torch in float64 (--float64). Two runs in f32 part with their roundings; each one's distance from float64 says how far
that is. The first steps, in which torch compiles, are not timed. --json writes all losses and seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.arguments import at_least, new_file
from tensor_graphs.training.step import step_graphs

WARM, CLIP, UNTIMED = 10, 1.0, 3
TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. how vexingly quick zebras jump. " * 40


@dataclass(frozen=True)
class Gpt:
    """A decoder over `count` characters, with learned positions. rate: of AdamW, after WARM steps."""

    layers: int = 6
    width: int = 384
    head: int = 64
    length: int = 64
    batch: int = 8
    count: int = 65
    rate: float = 1e-3

    @property
    def optimiser(self) -> tg.optim.AdamW:
        return tg.optim.AdamW(tg.optim.warmup(self.rate, WARM, 0.1))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        w = self.width
        shapes: dict[str, tuple[int, ...]] = {"tokens": (self.count, w), "places": (self.length, w), "norm": (w,)}
        shapes["head"] = (self.count, w)
        for n in range(self.layers):
            shapes |= {f"{n}.norm1": (w,), f"{n}.norm2": (w,), f"{n}.up": (4 * w, w), f"{n}.down": (w, 4 * w),
                       **{f"{n}.{name}": (w, w) for name in ("q", "k", "v", "out")}}
        return shapes

    def weights(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {name: (np.ones(shape) if len(shape) == 1 else rng.normal(0, 0.08, shape)).astype(np.float32)
                for name, shape in self.shapes.items()}

    def graph(self, dtype: Any = tg.f32) -> tg.Graph:
        """The mean cross entropy of the next character."""
        b, n, c = self.batch, self.length, self.width
        ids, target = (tg.input(name, (b, n), tg.i32) for name in ("ids", "target"))
        w = {name: tg.parameter(name, shape, dtype) for name, shape in self.shapes.items()}
        x = tg.embedding(w["tokens"], ids, dtype=dtype) + w["places"]
        for layer in range(self.layers):
            h = tg.layer_norm(x, w[f"{layer}.norm1"])
            q, k, v = (tg.linear(h, w[f"{layer}.{name}"]).reshape(b, n, c // self.head, self.head) for name in "qkv")
            seen = tg.attention(q, k, v, scale=self.head**-0.5, causal=True).reshape(b, n, c)
            x = x + tg.linear(seen, w[f"{layer}.out"])
            h = tg.layer_norm(x, w[f"{layer}.norm2"])
            x = x + tg.linear(tg.gelu(tg.linear(h, w[f"{layer}.up"])), w[f"{layer}.down"])
        logits = tg.linear(tg.layer_norm(x, w["norm"]), w["head"])
        return tg.graph({"loss": tg.losses.cross_entropy(logits.reshape(b * n, self.count), target.reshape(b * n))})

    def torch_loss(self, p: dict[str, Any], ids: Any, target: Any) -> Any:
        """The same in torch."""
        F = torch.nn.functional
        x = F.embedding(ids, p["tokens"]) + p["places"]
        for layer in range(self.layers):
            h = F.layer_norm(x, (self.width,), p[f"{layer}.norm1"])
            q, k, v = (F.linear(h, p[f"{layer}.{name}"]).view(*ids.shape, -1, self.head).transpose(1, 2) for name in "qkv")
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
            x = x + F.linear(seen, p[f"{layer}.out"])
            h = F.layer_norm(x, (self.width,), p[f"{layer}.norm2"])
            x = x + F.linear(F.gelu(F.linear(h, p[f"{layer}.up"])), p[f"{layer}.down"])
        return F.cross_entropy(F.linear(F.layer_norm(x, (self.width,), p["norm"]), p["head"]).flatten(0, 1), target.flatten())


Step = Callable[[np.ndarray, np.ndarray], float]
"""Function from ids and targets [batch, length] to the loss before the update."""


def ours(gpt: Gpt, weights: dict[str, np.ndarray], dtype: Any = tg.f32, **options: Any) -> tuple[Step, tg.Trainer]:
    first = {name: array.astype(dtype.numpy) for name, array in weights.items()}
    trainer = tg.Trainer(gpt.graph(dtype), gpt.optimiser, first, clip_norm=CLIP, **options)

    def step(ids: np.ndarray, target: np.ndarray) -> float:
        return float(trainer.step({"ids": ids.astype(np.int32), "target": target.astype(np.int32)})["loss"])

    return step, trainer


def of_torch(gpt: Gpt, weights: dict[str, np.ndarray], dtype: Any = torch.float32, compiled: bool = False,
             bf16: bool = False) -> Step:
    """Return a step of torch; compiled: forward and backward by torch.compile. bf16: under autocast."""
    p = {name: torch.tensor(array, dtype=dtype, requires_grad=True) for name, array in weights.items()}
    optimiser = torch.optim.AdamW(p.values(), lr=gpt.rate, fused=dtype is torch.float32)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 0.1, 1.0, WARM)
    loss_of = torch.compile(gpt.torch_loss) if compiled else gpt.torch_loss

    def step(ids: np.ndarray, target: np.ndarray) -> float:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = loss_of(p, torch.from_numpy(ids), torch.from_numpy(target))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), CLIP)
        optimiser.step()
        schedule.step()
        return float(loss.detach())

    return step


def characters() -> np.ndarray:
    """Return TEXT as ids."""
    return np.unique(list(TEXT), return_inverse=True)[1].astype(np.int64)


def batches(gpt: Gpt, text: np.ndarray, steps: int, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ids and targets [batch, length] for each step, from random places of a text of ids."""
    starts = rng.integers(0, len(text) - gpt.length - 1, (steps, gpt.batch, 1)) + np.arange(gpt.length)
    return [(text[rows], text[rows + 1]) for rows in starts]


def run(ways: dict[str, Step], data: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[str, list[float]]]:
    """Return losses, seconds and processor seconds of each step of each way, one after the other on each batch."""
    results: dict[str, dict[str, list[float]]] = {name: {"losses": [], "seconds": [], "processor": []} for name in ways}
    for number, (ids, target) in enumerate(data):
        order = list(ways.items())
        for name, step in order[number % len(order):] + order[:number % len(order)]:
            began, used = time.perf_counter(), time.process_time()
            results[name]["losses"].append(step(ids, target))
            results[name]["processor"].append(time.process_time() - used)
            results[name]["seconds"].append(time.perf_counter() - began)
    return results


def report(results: dict[str, dict[str, list[float]]], exact: str) -> None:
    """Print a row for each way."""
    peer = next(name for name in results if name.startswith("torch"))
    print(f"{'':23s}a step [ms]  quartiles        processor  ratio to eager   losses: last, distance from eager, f64")
    for name, of in results.items():
        low, middle, high = np.quantile(of["seconds"][UNTIMED:], [0.25, 0.5, 0.75]) * 1e3
        ratio = np.median(np.divide(of["seconds"], results[peer]["seconds"])[UNTIMED:])
        apart = [f"{np.abs(np.subtract(of['losses'], results[other]['losses'])).max():.1e}" if other in results else "-"
                 for other in (peer, exact)]
        processor = np.median(of["processor"][UNTIMED:]) * 1e3
        print(f"{name:22s} {middle:12.1f}  {low:6.1f}..{high:<7.1f} {processor:9.1f} {ratio:14.3f}   "
              f"{of['losses'][-1]:.5f} {apart[0]:>9s} {apart[1]:>9s}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "width", "head", "length", "batch"):
        parser.add_argument(f"--{name}", type=at_least(1), default=getattr(Gpt, name))
    parser.add_argument("--steps", type=at_least(UNTIMED + 1), default=300)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--profile", type=at_least(0), default=0, help="seconds for measuring the step's kernels first")
    parser.add_argument("--precision", help="of our step, as bf16; torch runs under autocast then")
    parser.add_argument("--memory-limit", type=at_least(1), help="bytes for our step in all")
    parser.add_argument("--backends", help="ours, as c,numpy")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--float64", action="store_true", help="both also in float64, untimed")
    parser.add_argument("--json", type=new_file)
    options = parser.parse_args()
    gpt = Gpt(*(getattr(options, name) for name in ("layers", "width", "head", "length", "batch")))
    rng = np.random.default_rng(options.seed)
    weights, data = gpt.weights(rng), batches(gpt, characters(), options.steps, rng)
    backends = None if options.backends is None else tuple(options.backends.split(","))
    if options.profile:
        tg.profile(step_graphs(gpt.graph(), gpt.optimiser, clip_norm=CLIP).update, budget=options.profile, backends=backends)
    began = time.perf_counter()
    step, trainer = ours(gpt, weights, backends=backends, precision=options.precision, memory_limit=options.memory_limit)
    print(f"compiled in {time.perf_counter() - began:.1f} s: {trainer.plan}", flush=True)
    bf16 = options.precision == "bf16"
    ways = {"tensor_graphs": step, "torch eager": of_torch(gpt, weights, bf16=bf16)}
    if not options.no_compile:
        ways["torch.compile"] = of_torch(gpt, weights, compiled=True, bf16=bf16)
    results = run(ways, data)
    exact = "torch float64"
    if options.float64:
        results |= run({exact: of_torch(gpt, weights, torch.float64),
                        "tensor_graphs float64": ours(gpt, weights, tg.f64, backends=("numpy",))[0]}, data)
    report(results, exact)
    if options.json is not None:
        options.json.write_text(json.dumps({"settings": {**vars(options), "json": str(options.json)}, **results}))


if __name__ == "__main__":
    main()
