"""torch_models: models through torch.compile, by this package and by inductor: time per run and time to compile.

    python benchmarks/torch_models.py                         # the small ones, a few runs each
    python benchmarks/torch_models.py --true-shapes           # ResNet-50, ViT-S/16, BERT-base, GPT-2, Llama of 1 B, …: minutes
    python benchmarks/torch_models.py --only gpt2 --training
    python benchmarks/torch_models.py --check --true-shapes   # outputs and gradients against eager torch, at several sizes

Each line: milliseconds of a run in eager torch, by inductor and by tensor_graphs; the ratio to inductor; seconds to compile and
their ratio. With --check: the largest errors, and what was compiled for which sizes (`check`); exit status 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import copy
import resource
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

    def __init__(self, width: int = 8, steps: int = 5) -> None:
        super().__init__()
        self.cell, self.steps = nn.LSTMCell(width, width), steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[0], x.shape[2])
        for step in range(self.steps):
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
    "lstm": (lambda: Recurrent(512, 32), lambda n: (torch.randn(8 * n, 32, 512),), NONE),
    "graph network": (lambda: GraphLayer(64), lambda n: (torch.randn(1000 * n, 64), torch.randint(0, 1000, (2, 5000 * n))), NONE),
    "bert": (_transformer("BertModel", "BertConfig"), lambda n: _ids(n, 128), NONE),
    "gpt2": (_transformer("GPT2Model", "GPT2Config", use_cache=False), lambda n: _ids(n, 128), NONE),
    "llama": (_transformer("LlamaModel", "LlamaConfig", hidden_size=2048, num_hidden_layers=4, num_attention_heads=32,
                           num_key_value_heads=8, intermediate_size=8192, use_cache=False), lambda n: _ids(n, 128), NONE),
    "mixtral": (_transformer("MixtralModel", "MixtralConfig", vocab_size=1000, hidden_size=2048, num_hidden_layers=1,
                             num_attention_heads=16, num_key_value_heads=4, intermediate_size=7168, use_cache=False),
                lambda n: _ids(n, 32), EXPERTS),
    "t5 encoder": (_transformer("T5EncoderModel", "T5Config"), lambda n: _ids(n, 128), NONE),
    "whisper encoder": (_whisper(), lambda n: (torch.randn(n, 80, 3000),), NONE),
}
"""Models of true sizes. Of Llama 1 B there are 4 of 16 layers, and of Mixtral one block of half its width: more needs 12 GB."""

TOLERANCE = 1e-4
"""largest error of outputs and gradients: ‖ours − eager‖ ÷ ‖eager‖"""

NEGLIGIBLE = 1e-3
"""share of the root mean square of all gradients below which one is rounding alone (of a key's bias, the true one is 0)"""


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


def _tensors(out: Any) -> list[torch.Tensor]:
    """Return the tensors of a model's output: one, or those of a tuple or of an output of transformers."""
    if isinstance(out, torch.Tensor):
        return [out]
    return [t for part in (out.values() if hasattr(out, "values") else out) for t in _tensors(part)] if out is not None else []


def _results(model: nn.Module, run: Any, batch: tuple[Any, ...], training: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return (outputs, gradients of the parameters; none without training). Each output weighs by a cosine in the loss."""
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(training):
        outputs = _tensors(run(*batch))
        if training:
            sum((out * torch.cos(torch.arange(out.numel()).reshape(out.shape))).sum() for out in outputs).backward()
    return [out.detach() for out in outputs], [p.grad for p in model.parameters() if p.grad is not None]


def _error(ours: list[torch.Tensor], eager: list[torch.Tensor], negligible: float) -> float:
    """Return the largest relative error; infinite for another number of tensors, another shape or another dtype."""
    if [(t.shape, t.dtype) for t in ours] != [(t.shape, t.dtype) for t in eager]:
        return float("inf")
    numbers = sum(t.numel() for t in eager)
    mean = (sum(float(t.norm()) ** 2 for t in eager) / max(numbers, 1)) ** 0.5
    errors = [float((a - b).norm()) / max(float(b.norm()), negligible * mean * b.numel() ** 0.5, 1e-30)
              for a, b in zip(ours, eager, strict=True)]
    return max((float("inf") if error != error else error for error in errors), default=0.0)


def _mark_moving(batch: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Mark the axes that have other sizes in another batch as dynamic: of a picture, its number alone."""
    for tensor, more in zip(batch, other, strict=True):
        for axis, (size, larger) in enumerate(zip(tensor.shape, more.shape, strict=True)):
            if size != larger:
                torch._dynamo.maybe_mark_dynamic(tensor, axis)


def _errors(ours: tuple[list[torch.Tensor], ...], eager: tuple[list[torch.Tensor], ...]) -> tuple[float, float]:
    """Return the errors of the outputs and of the gradients."""
    return _error(ours[0], eager[0], 0.0), _error(ours[1], eager[1], NEGLIGIBLE)


def _wide(model: nn.Module, batch: tuple[Any, ...], training: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the results of eager torch in float64, as float32."""
    widened = tuple(t.double() if t.is_floating_point() else t for t in batch)
    model = copy.deepcopy(model).double()
    outputs, gradients = _results(model, model, widened, training)
    return [t.float() for t in outputs], [t.float() for t in gradients]


def check(case: Case, backend: Any, sizes: list[int]) -> tuple[bool, str]:
    """Return whether a model's outputs and gradients are eager torch's, and the errors as text.

    Sizes of the batch (and the length) from 2 on are run with gradients, and those after the first compile no further graph. Sizes
    1 and 0, which torch compiles apart, are run without; where eager torch raises an error at size 0, the size is left out. Results
    further from eager torch than TOLERANCE are compared with its results in float64, and may be twice as far from these as those of
    eager torch in float32 are: a relu whose operand is rounding alone, or a gradient that nearly cancels, moves both.
    """
    from torch._dynamo.utils import counters

    from tensor_graphs.frontends.torch.backend import compiled_modules

    make, inputs, expected = case
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()
    model = make().eval()
    fast = torch.compile(model, backend=backend)
    parts, compiled, right = [], [], True
    for size in sizes:
        batch, training = inputs(size), size > 1
        if training:
            _mark_moving(batch, inputs(size + 1))
        try:
            eager = _results(model, model, batch, training)
        except Exception as error:
            if size:
                raise
            parts.append(f"size 0: eager torch raises {type(error).__name__}")
            continue
        ours = _results(model, fast, batch, training)
        compiled.append(len(compiled_modules()))
        errors = _errors(ours, eager)
        limits, beyond = (TOLERANCE, TOLERANCE), ""
        if max(errors) > TOLERANCE:
            wide = _wide(model, batch, training)
            outputs, gradients = limits = _errors(eager, wide)
            beyond = f" ({max(errors):.1e} from eager torch, which is {outputs:.1e} and {gradients:.1e} from float64, ours:)"
            errors = _errors(ours, wide)
        right &= all(error <= max(2 * limit, TOLERANCE) for error, limit in zip(errors, limits, strict=True))
        parts.append(f"size {size}:{beyond} {errors[0]:.1e}" + (f", gradients {errors[1]:.1e}" if training else ""))
    opaque = {name for module in compiled_modules() for name in module.opaque}
    breaks = sum(counters["graph_break"].values())
    several = {count for count, size in zip(compiled, sizes, strict=False) if size > 1}
    right &= len(several) <= 1 and not breaks and opaque <= expected
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** 20
    return right, (f"{'; '.join(parts)}; modules compiled {compiled}, graph breaks {breaks}, run by torch "
                   f"{', '.join(sorted(opaque)) or 'nothing'}; peak {peak:.1f} GB")


def main() -> None:
    from tensor_graphs.frontends.torch.backend import tensor_graphs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--true-shapes", action="store_true")
    parser.add_argument("--training", action="store_true", help="a run is the forward and the backward pass")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--freeze", action="store_true", help="our backend binds parameters once; inductor.freezing is set, too")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--check", action="store_true", help="compare outputs and gradients with eager torch, without timing")
    parser.add_argument("--sizes", default="2,3,1,0", help="batch sizes of --check, separated by commas")
    options = parser.parse_args()
    wrong = False
    if options.freeze:
        torch._inductor.config.freezing = True
    for name, case in (TRUE if options.true_shapes else SMALL).items():
        if options.only and name not in options.only.split(","):
            continue
        if options.check:
            began = time.perf_counter()
            right, text = check(case, tensor_graphs, [int(size) for size in options.sizes.split(",")])
            print(f"{name:16} {'right' if right else 'WRONG'} in {time.perf_counter() - began:.0f} s: {text}", flush=True)
            wrong |= not right
            continue
        (eager, _), (inductor, theirs), (ours, own) = (
            measure(case, backend, options.runs, options.training, options.device, options.freeze)
            for backend in (None, "inductor", tensor_graphs))
        print(f"{name:16} eager {eager * 1e3:8.2f} ms  inductor {inductor * 1e3:8.2f} ms  ours {ours * 1e3:8.2f} ms  ÷ inductor "
              f"{ours / inductor:5.2f}   compile {theirs:6.1f} s, ours {own:6.1f} s, ÷ inductor {own / theirs:5.2f}", flush=True)
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
