"""One kernel for all steps of Gemma 3 270M's decode step (kernels/decoder/one_kernel.py): right or not, and how long it takes.

    python benchmarks/whole_step_cuda.py [--seed 0] [--keys 64,512,2000] [--launches 40]

Weights of true shape are drawn (bf16; activations and caches f32). Steps from an empty cache, over the border of a window and over
more keys than the ring holds are compared with the same in float64 by torch: what each layer hands on (worst error, norm of the
difference over norm), rows of the caches, and the tokens. Rows behind the newest are NaN before. Then launches at some numbers of
keys: the median of their microseconds by events, and of one of many in a row. Needs a GPU of compute capability 9.0 with
132 multiprocessors, and torch.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.cuda import HEADERS
from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.decoder import one_kernel
from tensor_graphs.kernels.decoder.one_kernel import (
    SPLITS,
    Attention,
    DecoderSizes,
    HeadRows,
    Kind,
    Likeliest,
    NormRows,
    OneKernel,
    PlainRows,
)

LAYERS, WINDOW = 18, 512
SIZES = DecoderSizes(hidden=640, heads=4, dim=256, room=2048, vocabulary=262144, eps=1e-6, scale=1 / 16, embedded=25.25)
RUNS = ((500, 17, 24), (0, 5, 24), (1500, 99, 8))
"""keys that are there, first token, steps"""


def is_full(layer: int) -> bool:
    return layer % 6 == 5


def decoder() -> list[Kind]:
    kinds: list[Kind] = []
    for layer in range(LAYERS):
        full = is_full(layer)
        kinds += [NormRows(1536), Attention(layer, 0 if full else WINDOW, int(full)), HeadRows(640),
                  NormRows(4096, parts=4, pairs=True), PlainRows(640)]
    return [*kinds, Likeliest()]


class Weights:
    """Drawn as random_gemma3_weights does, on the device."""

    def __init__(self) -> None:
        def draw(*shape: int, spread: float, mean: float = 0.0) -> torch.Tensor:
            return (torch.randn(*shape, device="cuda") * spread + mean).bfloat16()

        self.embedding = draw(SIZES.vocabulary, 640, spread=0.002)
        self.last_norm = draw(640, spread=0.3)
        self.layers = [{
            "qkv": draw(1536, 640, spread=0.02), "o": draw(640, 1024, spread=0.02), "pairs": draw(4096, 640, spread=0.02),
            "down": draw(640, 2048, spread=0.02),
            "q_norm": draw(256, spread=0.3, mean=1.0), "k_norm": draw(256, spread=0.3, mean=1.0),
            **{name: draw(640, spread=0.3) for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")},
        } for _ in range(LAYERS)]

    def commons(self, layer: int, kind: Kind, place: int) -> list[torch.Tensor]:
        """What all blocks read of a step: place 0 is before attention, 3 behind it."""
        if isinstance(kind, Attention):
            return [self.layers[layer]["q_norm"], self.layers[layer]["k_norm"]]
        if isinstance(kind, Likeliest):
            return [self.layers[-1]["post_feedforward"], self.last_norm]
        if not isinstance(kind, NormRows):
            return []
        if place:
            return [self.layers[layer]["post_attention"], self.layers[layer]["pre_feedforward"]]
        before = self.layers[layer - 1]["post_feedforward"] if layer else torch.zeros_like(self.last_norm)
        return [before, self.layers[layer]["input"]]


class Model(ctypes.Structure):
    """The struct of one_kernel.cu."""

    _fields_ = (*((name, ctypes.c_uint64) for name in one_kernel.MODEL), ("caches", ctypes.c_uint64 * (2 * LAYERS)),
                ("position", ctypes.c_int), ("set", ctypes.c_int))


class Ours:
    def __init__(self, weights: Weights) -> None:
        from cuda.bindings import driver

        self.driver, self.made = driver, OneKernel(decoder(), SIZES)
        packs = torch.zeros(self.made.pack_bytes, dtype=torch.uint8, device="cuda")
        commons = torch.zeros(self.made.common_bytes // 4, device="cuda")
        for step, kind in enumerate(self.made.kinds):
            row, (layer, place) = self.made.loading(step), divmod(step, 5)
            both = weights.commons(layer, kind, place)
            if both:
                commons[row.common_at // 4:(row.common_at + row.common_bytes) // 4] = 1 + torch.cat(both).float()
            if isinstance(kind, NormRows | HeadRows | PlainRows):
                name = ("qkv", "", "o", "pairs", "down")[place]
                array = weights.layers[layer][name].view(torch.int16).cpu().numpy()
                laid = torch.from_numpy(self.made.packed(step, array)).cuda().view(torch.uint8)
                packs[row.pack_at:row.pack_at + laid.numel()] = laid
        self.keys = torch.zeros(LAYERS, SIZES.room, SIZES.dim, device="cuda")
        self.values = torch.zeros_like(self.keys)
        self.exchange = torch.full((2 * self.made.words,), -1, dtype=torch.int32, device="cuda")
        self.token, self.top = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.zeros(1, device="cuda")
        rotations = torch.stack([torch.cat([a.cos(), a.sin()], 1) for a in angles()]).float().contiguous()
        table = torch.from_numpy(np.frombuffer(self.made.table(), np.uint8).copy()).cuda()
        self.held = [table, packs, commons, self.exchange, weights.embedding, rotations, self.token, self.token, self.top]
        caches = [each[layer].data_ptr() for layer in range(LAYERS) for each in (self.keys, self.values)]
        self.model = Model(*[each.data_ptr() for each in self.held], (ctypes.c_uint64 * len(caches))(*caches), 0, 0)
        cubin = nvrtc.compiled(self.made.text(), "sm_90a", HEADERS)
        self.kernel = self._checked(driver.cuModuleGetFunction(self._checked(driver.cuModuleLoadData(cubin)), b"whole"))
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._checked(driver.cuFuncSetAttribute(self.kernel, most, HOPPER.shared_alone))

    def _checked(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise RuntimeError(result[0].name)
        return result[1] if len(result) > 1 else None

    def launch(self) -> None:
        """A step; the next one is fed its token."""
        given = (ctypes.c_void_p * 1)(ctypes.addressof(self.model))
        self._checked(self.driver.cuLaunchKernel(self.kernel, self.made.grid, 1, 1, self.made.threads, 1, 1, HOPPER.shared_alone,
                                                 torch.cuda.current_stream().cuda_stream, ctypes.addressof(given), 0))
        self.model.position += 1
        self.model.set = 1 - self.model.set

    def feed(self, token: torch.Tensor, position: int) -> None:
        self.token.copy_(token)
        self.model.position = position

    def begin(self, keys: int, token: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random rows of the caches, NaN behind them; both in float64."""
        self.keys.fill_(float("nan"))
        self.values.fill_(float("nan"))
        self.keys[:, :keys] = torch.randn(LAYERS, keys, SIZES.dim, device="cuda") * 1.5
        self.values[:, :keys] = torch.randn(LAYERS, keys, SIZES.dim, device="cuda") * 0.4
        self.feed(torch.tensor([token]), keys)
        return self.keys.double(), self.values.double()

    def made_by_layers(self) -> list[dict[str, torch.Tensor]]:
        """What the last launch handed on, of each layer."""
        number = 1 - self.model.set
        words = self.exchange[number * self.made.words:(number + 1) * self.made.words].view(torch.float32)
        found = []
        for layer in range(LAYERS):
            qkv, parts, o, pairs, down = (self._words_of(words, 5 * layer + place) for place in range(5))
            heads = SIZES.heads * SPLITS
            sums = parts[:heads * SIZES.dim].view(SIZES.heads, SPLITS, SIZES.dim).double()
            top, total = parts[heads * SIZES.dim:heads * (SIZES.dim + 2)].view(SIZES.heads, SPLITS, 2).double().unbind(-1)
            share = torch.exp(top - top.max(1, keepdim=True).values)
            attended = ((sums * share[..., None]).sum(1) / (share * total).sum(1)[:, None]).reshape(-1)
            o = o.view(SIZES.heads, 640).double().sum(0)
            found.append({"qkv": qkv, "attended": attended, "o": o, "pairs": pairs, "down": down})
        return found

    def _words_of(self, words: torch.Tensor, step: int) -> torch.Tensor:
        row = next(s for s in self.made.steps if s.step == step and not s.early)
        return words[row.writes:row.writes + self.made.kinds[step].words(SIZES)]


def angles() -> list[torch.Tensor]:
    at = torch.arange(SIZES.room, device="cuda", dtype=torch.float64)[:, None]
    return [at / base ** (torch.arange(128, device="cuda", dtype=torch.float64) / 128) for base in (1e4, 1e6)]


class Float64:
    """The same step by torch."""

    def __init__(self, weights: Weights) -> None:
        self.layers = [{name: w.double() for name, w in layer.items()} for layer in weights.layers]
        self.embedding, self.last_norm, self.angles = weights.embedding.double(), weights.last_norm.double(), angles()

    def step(self, token: int, at: int, keys: torch.Tensor,
             values: torch.Tensor) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
        """Logits, and what each layer hands on; its rows of the caches are written."""
        x, found = self.embedding[token] * SIZES.embedded, []
        for i, w in enumerate(self.layers):
            qkv = w["qkv"] @ normed(x, w["input"])
            q = self._turned(normed(qkv[:1024].view(4, 256), w["q_norm"]), i, at)
            keys[i, at], values[i, at] = self._turned(normed(qkv[1024:1280], w["k_norm"]), i, at), qkv[1280:]
            low = 0 if is_full(i) else max(0, at + 1 - WINDOW)
            attended = (torch.softmax(q @ keys[i, low:at + 1].T * SIZES.scale, -1) @ values[i, low:at + 1]).reshape(-1)
            o = w["o"] @ attended
            x = x + normed(o, w["post_attention"])
            both = (w["pairs"] @ normed(x, w["pre_feedforward"])).view(-1, 2)
            pairs = torch.nn.functional.gelu(both[:, 0], approximate="tanh") * both[:, 1]
            down = w["down"] @ pairs
            x = x + normed(down, w["post_feedforward"])
            found.append({"qkv": qkv, "attended": attended, "o": o, "pairs": pairs, "down": down})
        return self.embedding @ normed(x, self.last_norm), found

    def _turned(self, x: torch.Tensor, layer: int, at: int) -> torch.Tensor:
        angle = self.angles[int(is_full(layer))][at]
        a, b = x[..., :128], x[..., 128:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + SIZES.eps) * (1 + weight)


def error(out: torch.Tensor, right: torch.Tensor) -> float:
    return float((out.double() - right).norm() / right.norm())


def compared(ours: Ours, right: Float64, there: int, token: int, steps: int) -> bool:
    keys, values = ours.begin(there, token)
    worst: dict[str, float] = {}
    equal, wanted = 0, token
    for at in range(there, there + steps):
        ours.launch()
        logits, layers = right.step(wanted, at, keys, values)
        wanted = int(logits.argmax())
        equal += int(ours.token) == wanted
        for found, expected in zip(ours.made_by_layers(), layers, strict=True):
            for name, each in found.items():
                worst[name] = max(worst.get(name, 0.0), error(each, expected[name]))
    rows = slice(there, there + steps)
    worst["caches"] = max(error(ours.keys[:, rows], keys[:, rows]), error(ours.values[:, rows], values[:, rows]))
    said = ", ".join(f"{name} {e:.1e}" for name, e in worst.items())
    print(f"from {there} keys on: {equal} of {steps} tokens are those of float64; worst errors: {said}", flush=True)
    return equal == steps and all(e < 1e-3 for e in worst.values())


def timed(ours: Ours, keys: int, launches: int) -> tuple[float, float]:
    """Microseconds of a launch, and of one of many in a row."""
    first = torch.tensor([17], dtype=torch.int32, device="cuda")
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(launches)]
    for begun, ended in marks:
        ours.feed(first, keys)
        begun.record()
        ours.launch()
        ended.record()
    torch.cuda.synchronize()
    one = statistics.median(begun.elapsed_time(ended) for begun, ended in marks[5:])
    ours.feed(first, keys)
    begun, ended = marks[0]
    begun.record()
    for _ in range(launches):
        ours.launch()
    ended.record()
    torch.cuda.synchronize()
    return one * 1e3, begun.elapsed_time(ended) / launches * 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    doc = __doc__ or ""
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0], epilog=doc.split("\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keys", default="64,512,2000", help="numbers of keys at which launches are timed; up to 2000")
    parser.add_argument("--launches", type=int, default=40)
    args = parser.parse_args(arguments)
    torch.manual_seed(args.seed)
    weights = Weights()
    ours, right = Ours(weights), Float64(weights)
    print(f"{torch.cuda.get_device_name()}: {len(ours.made.steps)} steps, {one_kernel.MULTIPROCESSORS} blocks", flush=True)
    good = [compared(ours, right, *run) for run in RUNS]
    ours.begin(SIZES.room, 17)
    for keys in map(int, args.keys.split(",")):
        one, in_a_row = timed(ours, keys, args.launches)
        print(f"{keys} keys: {one:.1f} µs a launch, {in_a_row:.1f} in a row", flush=True)
    return int(not all(good))


if __name__ == "__main__":
    raise SystemExit(main())
