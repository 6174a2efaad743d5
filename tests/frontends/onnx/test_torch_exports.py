"""Models that torch exports compute what torch computes: perceptrons, convolutions, ViT, BERT and GPT-2 with random weights."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import tensor_graphs as tg

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                                        torch.nn.MaxPool2d(3, 2, 1))
        self.block = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                                         torch.nn.Conv2d(8, 8, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(8))
        self.head = torch.nn.Linear(8, 10)
        for module in self.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        h = torch.nn.functional.interpolate(torch.relu(h + self.block(h)), scale_factor=2.0, mode="bilinear")
        return self.head(torch.nn.functional.adaptive_avg_pool2d(h, 1).flatten(1))


class First(torch.nn.Module):
    """The first output of a model of transformers, whose inputs have these names."""

    def __init__(self, model: torch.nn.Module, *names: str, **more: Any) -> None:
        super().__init__()
        self.model, self.names, self.more = model, names, more

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)), **self.more)[0]


def perceptron() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8),
                               torch.nn.Softmax(-1)), [torch.randn(3, 16)]


def residual() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    return Residual(), [torch.randn(2, 3, 32, 32)]


def recurrent() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = torch.nn.LSTM(6, 8, bidirectional=True, batch_first=True), torch.nn.GRU(16, 5, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gru(self.lstm(x)[0])[0]
    return Last(), [torch.randn(2, 7, 6)]


def vit() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    model = transformers.ViTModel(transformers.ViTConfig(**SMALL, image_size=32, patch_size=8))
    return First(model, "pixel_values"), [torch.randn(2, 3, 32, 32)]


def bert() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    model = transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=100, max_position_embeddings=64))
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, 7:] = 0
    return First(model, "input_ids", "attention_mask"), [torch.randint(0, 100, (2, 11)), mask]


def gpt2() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    config = transformers.GPT2Config(vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    mask = torch.ones(2, 9, dtype=torch.long)
    return First(transformers.GPT2LMHeadModel(config), "input_ids", "attention_mask", use_cache=False), [
        torch.randint(0, 100, (2, 9)), mask]


def exported(model: torch.nn.Module, inputs: Sequence[torch.Tensor], dynamic: bool, file: Path) -> None:
    names = [f"in{i}" for i in range(len(inputs))]
    axes = {name: {0: "batch"} | ({1: "length"} if inputs[0].dtype is torch.long else {}) for name in names} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        into = io.BytesIO()
        torch.onnx.export(model, tuple(inputs), into, dynamo=False, input_names=names, output_names=["y"],  # type: ignore[arg-type]
                          dynamic_axes=axes)
        file.write_bytes(into.getvalue())


@pytest.mark.parametrize(("build", "dynamic"), [
    (perceptron, False), (perceptron, True), (residual, False), (residual, True), (recurrent, False), (vit, False), (bert, False),
    (bert, True), (gpt2, False)])
def test_an_exported_model_computes_what_torch_does(build: Callable[[], tuple[torch.nn.Module, list[torch.Tensor]]], dynamic: bool,
                                                    tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = build()
    model.eval()
    with torch.no_grad():
        expected = model(*inputs).numpy()
    exported(model, inputs, dynamic, tmp_path / "model.onnx")
    imported = tg.from_onnx(tmp_path / "model.onnx")
    assert bool(imported.graph.dims) == dynamic
    arrays = {imported.inputs[f"in{i}"]: x.numpy() for i, x in enumerate(inputs)}
    outputs = tg.interpret(imported.graph, arrays, imported.weights, mode="as_written").outputs
    assert np.abs(outputs["y"] - expected).max() < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("build", [residual, vit, bert, gpt2])
def test_its_compiled_plan_does_too(build: Callable[[], tuple[torch.nn.Module, list[torch.Tensor]]], tmp_path: Path) -> None:
    model, inputs = build()
    model.eval()
    exported(model, inputs, False, tmp_path / "model.onnx")
    imported = tg.from_onnx(tmp_path / "model.onnx")
    bound = tg.bind(tg.compile(imported.graph), imported.weights)
    outputs = bound.run({imported.inputs[f"in{i}"]: x.numpy() for i, x in enumerate(inputs)})
    with torch.no_grad():
        assert np.abs(outputs["y"] - model(*inputs).numpy()).max() < 1e-4
