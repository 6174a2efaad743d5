"""torch_models: models through torch.compile, by this package and by inductor: time per run and time to compile.

    python benchmarks/torch_models.py                         # the small ones, a few runs each
    python benchmarks/torch_models.py --true-shapes           # ResNet-50, ViT-S/16, BERT-base, GPT-2, Llama of 1 B, …: minutes
    python benchmarks/torch_models.py --only gpt2 --training

Each line: milliseconds of a run in eager torch, by inductor and by tensor_graphs; the ratio to inductor; seconds to compile and
their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

Case = tuple[Callable[[], nn.Module], Callable[[int], tuple[Any, ...]], frozenset[str]]
"""(module, batch size -> inputs, ops that torch is expected to run)"""


class UNetBlock(nn.Module):
    """A level of a UNet: downsampling, group norm, and two ways up whose results are added, a transposed convolution and nearest
    neighbours."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm, self.up = nn.GroupNorm(4, 2 * width), nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.last = nn.Conv2d(2 * width, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = torch.relu(self.first(x))
        low = nn.functional.silu(self.norm(self.down(high)))
        nearest = nn.functional.interpolate(low, scale_factor=2, mode="nearest").mean(1, keepdim=True)
        return self.last(torch.cat([high, self.up(low)], 1)) + nearest


class GraphLayer(nn.Module):
    """Messages along edges, averaged over each node's incoming ones."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        messages = self.linear(x)[edges[0]]
        total = torch.zeros_like(x).index_add(0, edges[1], messages)
        count = torch.zeros(x.shape[0]).scatter_add(0, edges[1], torch.ones(edges.shape[1]))
        return total / count.clamp(min=1)[:, None] + x


class Recurrent(nn.Module):
    """An LSTM whose cells are written out, as Dynamo leaves nn.LSTM to eager torch."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[0], x.shape[2])
        for step in range(5):
            h, c = self.cell(x[:, step], (h, c))
        return h


def _ids(batch: int, length: int = 7) -> tuple[torch.Tensor]:
    return (torch.randint(0, 90, (batch, length + batch)),)


def _image(size: int, channels: int = 3) -> Callable[[int], tuple[Any, ...]]:
    return lambda batch: (torch.randn(batch, channels, size, size),)


def _transformer(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        return getattr(transformers, kind)(getattr(transformers, config)(**options))  # type: ignore[no-any-return]

    return make


def _whisper(**options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        return WhisperEncoder(transformers.WhisperConfig(**options))  # type: ignore[no-any-return]

    return make


NONE: frozenset[str] = frozenset()
LLAMA = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 64, "use_cache": False}
EXPERTS = frozenset({"aten.sort.default", "aten.histc.default", "transformers.grouped_mm_fallback.default",
                     "transformers.grouped_mm_fallback_backward.default"})

SMALL: dict[str, Case] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)), lambda n: (torch.randn(n, 16),), NONE),
    "unet block": (UNetBlock, _image(8, 4), NONE),
    "lstm": (Recurrent, lambda n: (torch.randn(n, 5, 8),), NONE),
    "graph network": (GraphLayer, lambda n: (torch.randn(4 + n, 8), torch.randint(0, 4, (2, 9 + n))), NONE),
    "bert": (_transformer("BertModel", "BertConfig", vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                          intermediate_size=64), _ids, NONE),
    "gpt2": (_transformer("GPT2Model", "GPT2Config", vocab_size=100, n_embd=32, n_layer=2, n_head=2, use_cache=False), _ids, NONE),
    "llama": (_transformer("LlamaModel", "LlamaConfig", **LLAMA), _ids, NONE),
    "mixtral": (_transformer("MixtralModel", "MixtralConfig", **LLAMA, num_local_experts=4), _ids, EXPERTS),
    "t5 encoder": (_transformer("T5EncoderModel", "T5Config", vocab_size=100, d_model=32, d_kv=8, num_heads=4, num_layers=2,
                                d_ff=64), _ids, NONE),
    "whisper encoder": (_whisper(vocab_size=100, d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64,
                                 max_source_positions=20, num_mel_bins=16, pad_token_id=0),
                        lambda n: (torch.randn(n, 16, 40),), NONE),
}
"""Models of true form and small sizes."""

TRUE: dict[str, Case] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(784, 2048), nn.GELU(), nn.Linear(2048, 10)),
            lambda n: (torch.randn(32 * n, 784),), NONE),
    "resnet18": (_transformer("ResNetModel", "ResNetConfig", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512],
                              layer_type="basic"), _image(224), NONE),
    "resnet50": (_transformer("ResNetModel", "ResNetConfig"), _image(224), NONE),
    "convnext": (_transformer("ConvNextModel", "ConvNextConfig"), _image(224), frozenset({"aten.as_strided_scatter.default"})),
    "vit": (_transformer("ViTModel", "ViTConfig", hidden_size=384, num_attention_heads=6, intermediate_size=1536), _image(224),
            NONE),
    "unet block": (lambda: UNetBlock(64), _image(64, 4), NONE),
    "graph network": (lambda: GraphLayer(64), lambda n: (torch.randn(1000 * n, 64), torch.randint(0, 1000, (2, 5000 * n))), NONE),
    "bert": (_transformer("BertModel", "BertConfig"), lambda n: _ids(n, 128), NONE),
    "gpt2": (_transformer("GPT2Model", "GPT2Config", use_cache=False), lambda n: _ids(n, 128), NONE),
    "llama": (_transformer("LlamaModel", "LlamaConfig", hidden_size=2048, num_hidden_layers=16, num_attention_heads=32,
                           num_key_value_heads=8, intermediate_size=8192, use_cache=False), lambda n: _ids(n, 128), NONE),
    "t5 encoder": (_transformer("T5EncoderModel", "T5Config"), lambda n: _ids(n, 128), NONE),
    "whisper encoder": (_whisper(), lambda n: (torch.randn(n, 80, 3000),), NONE),
}
"""Models of true sizes."""


def measure(case: Case, backend: Any, runs: int, training: bool, device: str, freeze: bool = False) -> tuple[float, float]:
    """Return (seconds of a run, the median; seconds until the first one ended). On a GPU inductor searches (max-autotune)."""
    make, inputs, _ = case
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, batch = make().eval().to(device), tuple(x.to(device) for x in inputs(1))
    mode = "max-autotune" if device != "cpu" and backend == "inductor" else None
    options = {"freeze": True} if freeze and callable(backend) else None
    fast = model if backend is None else torch.compile(model, backend=backend, mode=mode, options=options)

    def run() -> None:
        with torch.set_grad_enabled(training):
            out = fast(*batch)
            out = out if isinstance(out, torch.Tensor) else next(iter(out.values()))
            if training:
                out.sum().backward()
        if device != "cpu":
            torch.cuda.synchronize()

    began = time.perf_counter()
    run()
    first = time.perf_counter() - began
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times), first


def main() -> None:
    from tensor_graphs.frontends.torch.backend import tensor_graphs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--true-shapes", action="store_true")
    parser.add_argument("--training", action="store_true", help="a run is the forward and the backward pass")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--freeze", action="store_true", help="our backend binds parameters once; inductor.freezing is set, too")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    if options.freeze:
        torch._inductor.config.freezing = True
    for name, case in (TRUE if options.true_shapes else SMALL).items():
        if options.only and name not in options.only.split(","):
            continue
        (eager, _), (inductor, theirs), (ours, own) = (
            measure(case, backend, options.runs, options.training, options.device, options.freeze)
            for backend in (None, "inductor", tensor_graphs))
        print(f"{name:16} eager {eager * 1e3:8.2f} ms  inductor {inductor * 1e3:8.2f} ms  ours {ours * 1e3:8.2f} ms  ÷ inductor "
              f"{ours / inductor:5.2f}   compile {theirs:6.1f} s, ours {own:6.1f} s, ÷ inductor {own / theirs:5.2f}", flush=True)


if __name__ == "__main__":
    main()
