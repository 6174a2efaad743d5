"""onnx_models: models as files that torch.onnx.export(dynamo=True) writes, run by onnxruntime and by this package.

    pip install onnxruntime onnxscript                     # not dependencies of the package
    python benchmarks/onnx_models.py                       # as the database knows the kernels now
    python benchmarks/onnx_models.py --profile 60          # tg.profile of each graph before, for 60 seconds
    python benchmarks/onnx_models.py --only bert,gpt2 --explain

The weights are random, the sizes those of benchmarks/torch_models.py or smaller ones of the same form. Each line: whether our
outputs are those of onnxruntime and of eager torch (1e-4 of the largest element), milliseconds of a run by each with 2 threads,
interleaved in this process (in_turns.py; nothing is flushed), and their ratio: of medians, and of tenth percentiles, which say
more on a machine that others use. The last line has the geometric means. Exits with 1 where outputs differ.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from torch import nn

import tensor_graphs as tg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.in_turns import Timed, in_turns
from benchmarks.torch_models import LLAMA, NONE, TRUE, Case, _ids, _transformer

THREADS = 2
WITHIN = 1e-4


LEAST_ROUNDS, MOST_ROUNDS, LONGEST = 4, 100, 4
"""rounds of a model, whatever they take, and at most; by which factor they may take longer than --seconds"""


class Ratios(NamedTuple):
    """Our time divided by onnxruntime's."""

    median: float
    low: float


class Layers(nn.Module):
    """Two layers of nn.LSTM, its outputs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(128, 256, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)[0]
        return out


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    # the one form of its experts that torch exports
    config = MixtralConfig(hidden_size=512, intermediate_size=1024, num_local_experts=8, experts_implementation="batched_mm")
    block = MixtralSparseMoeBlock(config)
    for weight in block.parameters():                              # made without values, as a model fills them
        nn.init.normal_(weight, std=0.02)
    return block


MODELS: dict[str, Case] = TRUE | {
    "llama": (_transformer("LlamaModel", "LlamaConfig", **LLAMA | {
        "vocab_size": 8192, "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 2816}), lambda n: _ids(n, 128), NONE),
    "t5 encoder": (_transformer("T5EncoderModel", "T5Config", attn_implementation="eager"), lambda n: _ids(n, 128), NONE),
    "mixtral": (_mixtral, lambda n: (torch.randn(n, 16, 512),), NONE),
    "lstm": (Layers, lambda n: (torch.randn(n, 50, 128),), NONE),
}


def exported(name: str, folder: Path) -> tuple[Path, list[np.ndarray], list[np.ndarray]]:
    """Return a model's file, arrays of its inputs in the order of the file, and eager torch's outputs."""
    make, inputs, _ = MODELS[name]
    torch.manual_seed(0)
    model, batch = make().eval(), inputs(1)
    path = folder / f"{name.replace(' ', '_')}.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, batch, path, dynamo=True, verbose=False)
        out = model(*batch)
    outputs = [out] if isinstance(out, torch.Tensor) else list(out if isinstance(out, tuple) else out.values())
    return path, [x.numpy() for x in batch], [x.numpy() for x in outputs]


def error(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Return the largest difference of elements, by the largest element of each output; NaN where shapes differ."""
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return math.nan
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in zip(ours, theirs, strict=True))


def session_of(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def measured(name: str, folder: Path, options: argparse.Namespace) -> Ratios | None:
    """Print a model's line and return the ratios of the times; None where outputs differ."""
    path, arrays, eager = exported(name, folder)
    theirs = session_of(path)
    feeds: Mapping[str, np.ndarray] = dict(zip((i.name for i in theirs.get_inputs()), arrays, strict=True))
    began = time.perf_counter()
    imported = tg.from_onnx(path)
    asked: dict[str, Any] = {"database": options.database, "threads": THREADS}
    if options.profile:
        tg.profile(imported.graph, budget=options.profile, **asked)
    plan = tg.compile(imported.graph, **asked)
    bound = tg.bind(plan, imported.weights)
    prepared = time.perf_counter() - began
    inputs = {imported.inputs[k]: x for k, x in feeds.items() if k in imported.inputs}
    if options.explain:
        print(tg.explain(plan, rows=40))
    results = bound.run(inputs)
    ours, expected = [results[imported.outputs[o.name]] for o in theirs.get_outputs()], theirs.run(None, feeds)
    errors = error(ours, expected), error(ours, eager)
    runs = [Timed(run, run) for run in (lambda: bound.run(inputs), lambda: theirs.run(None, feeds))]
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < options.seconds or len(runs[0].hot) < LEAST_ROUNDS:
        in_turns(runs, 2, np.zeros(1, np.float32))
        if len(runs[0].hot) > MOST_ROUNDS or spent > LONGEST * options.seconds:
            break
    for run in runs:
        run.samples += run.hot
    own, other = runs
    ratios = Ratios(own.median / other.median, own.low / other.low)
    equal = all(e <= WITHIN for e in errors)
    print(f"{name:16} {'equal' if equal else 'DIFFERS'} ({errors[0]:.0e}, eager {errors[1]:.0e})  onnxruntime "
          f"{other.median * 1e3:8.3f} ms  ours {own.median * 1e3:8.3f} ms  ÷ {ratios.median:5.2f}  "
          f"low {other.low * 1e3:8.3f}, {own.low * 1e3:8.3f}  ÷ {ratios.low:5.2f}   prepared in {prepared:5.1f} s", flush=True)
    return ratios if equal else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--profile", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--seconds", type=float, default=5.0, help="for the runs of a model")
    parser.add_argument("--database", help="where measurements are read and written (default: that of tg)")
    parser.add_argument("--explain", action="store_true", help="print each plan")
    options = parser.parse_args()
    logging.disable(logging.WARNING)                               # the exporter's
    onnxruntime.set_default_logger_severity(3)
    ratios = []
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            ratios.append(measured(name, Path(folder), options))
    equal = [ratio for ratio in ratios if ratio is not None]
    if equal:
        mean, low = (math.exp(math.fsum(map(math.log, column)) / len(equal)) for column in zip(*equal, strict=True))
        print(f"geometric mean of {len(equal)}: {mean:.2f}, largest {max(r.median for r in equal):.2f}; "
              f"low: {low:.2f}, {max(r.low for r in equal):.2f}")
    sys.exit(len(equal) < len(ratios))


if __name__ == "__main__":
    main()
