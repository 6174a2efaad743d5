"""trainer: the class Trainer: a compiled training step with its states, and checkpoints from which it goes on bit by bit.

    trainer = tg.Trainer(graph, tg.optim.AdamW(1e-3), weights, clip_norm=1.0)
    for batch in batches:
        loss = trainer.step(batch)["loss"]
    trainer.save("checkpoint.safetensors")
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.argument_checks import ArgumentError, whole
from tensor_graphs.choice.checked_bind import bind
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.request import Precision
from tensor_graphs.devices.safetensors import open_weights, write_weights
from tensor_graphs.errors import FileError, counted, listed
from tensor_graphs.language.dtypes import u8
from tensor_graphs.language.graph import Graph
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.training.step import COUNT, SEED, Optimisers, in_precision, over_states, step_graphs

DIGEST = "train.sha256"
"""tensor u8[32] of a checkpoint: the hash of all others"""


class CheckpointError(FileError):
    """A checkpoint that is damaged, or belongs to another graph or optimiser."""


class Trainer:
    """A training step that is compiled once, and its states: parameters, moments, the seed and the number of batches.

    graph: a scalar output `loss`, any others; its parameters are trained, or those that `optimiser` has a pattern for. weights:
    first values of all parameters. batches: batches for each step. seed: of `dropout`. precision: "bf16" computes products of
    bf16, forward and backward, with bf16 results; or words of sites as for `tg.compile`. States stay f32 and are updated in f32.
    options: those of `tg.compile` (at, tolerance, backends, memory_limit, …). Raises ArgumentError, what `tg.grad` raises for an op
    without a gradient, and what `tg.compile` raises.
    """

    def __init__(self, graph: Graph, optimiser: Optimisers, weights: Mapping[str, Any], *, loss: str = "loss",
                 clip_norm: float | None = None, clip_value: float | None = None, batches: int = 1, seed: int = 0,
                 precision: Precision = None, **options: Any) -> None:
        missing = [name for name in graph.parameters if name not in weights]
        if missing:
            raise ArgumentError(f"weights has no {listed(missing)}\n  fix: an array for each parameter of the graph")
        self.graph, self._options, self._precision = graph, options, precision
        self._graphs = step_graphs(graph, optimiser, loss=loss, clip_norm=clip_norm, clip_value=clip_value,
                                   batches=whole("batches", batches, 1), precision=precision)
        self._frozen = {name: weights[name] for name in self._graphs.frozen}
        self._update = self._bound(self._graphs.update)
        self._gather = None if self._graphs.gather is None else self._bound(self._graphs.gather)
        self.session = self._update.session()
        key = np.array([whole("seed", seed, 0, 2**32 - 1), 0], np.uint32)
        first: dict[str, Any] = {SEED: key} if SEED in self.session.types else {}
        for name, t in self.session.types.items():
            if name in self._graphs.trained:
                first[name] = np.asarray(weights[name]).astype(t.dtype.numpy, copy=False)
            elif name in self._graphs.initial:
                first[name] = np.full(tuple(map(int, t.shape)), self._graphs.initial[name], t.dtype.numpy)
        self.session.restore(first)

    def _bound(self, graph: Graph) -> CompiledGraph:
        return bind(compile_graph(graph, **self._options), {name: self._frozen[name] for name in graph.parameters})

    def __repr__(self) -> str:
        return f"<trainer of {counted(len(self._graphs.trained), 'parameter')}, {counted(self.steps, 'step')}>"

    @property
    def plan(self) -> Any:
        """The plan of a step."""
        return self._update.plan

    @property
    def seen(self) -> int:
        """Batches so far."""
        return int(self.session[COUNT])

    @property
    def steps(self) -> int:
        """Steps so far: updates of the parameters."""
        return self.seen // self._graphs.batches

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Copies of all parameters, with the dtypes of the graph: the trained ones of now, and the frozen ones."""
        trained = {name: np.array(self.session[name]).astype(t.dtype.numpy, copy=False)
                   for name, t in self._graphs.trained.items()}
        return {name: trained[name] if name in trained else np.asarray(self._frozen[name]) for name in self.graph.parameters}

    def step(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Follow the gradient of one batch, and return the outputs of the graph before the update.

        With several batches for each step, parameters change at the last one. Raises RunError.
        """
        last = self._gather is None or self.seen % self._graphs.batches == self._graphs.batches - 1
        model = self._update if last else self._gather
        assert model is not None
        return model.run(inputs, dims=dims, session=self.session)

    def evaluator(self, graph: Graph) -> CompiledGraph:
        """Compile another graph of the same parameters, which reads their values of now: `run(inputs, session=trainer.session)`.

        Raises what `tg.compile` raises."""
        return self._bound(in_precision(over_states(graph, self._graphs.trained), self._precision))

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write all states to a .safetensors file, which appears complete or not at all. Raises WeightsError."""
        arrays = self.session.snapshot()
        tensors = {name: (t.dtype, tuple(map(int, t.shape))) for name, t in self.session.types.items()}
        arrays[DIGEST] = _digest(arrays)
        write_weights(file, {**tensors, DIGEST: (u8, (32,))}, arrays.__getitem__, {"format": "tensor_graphs.training"})

    def load(self, file: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint: later steps have the bits that they would have had without the break.

        Raises WeightsError for a file that is no whole .safetensors file, CheckpointError where its content was changed or it is of
        another graph or optimiser; the states are then as before.
        """
        stored = open_weights(file)
        types = {name: (t.dtype.name, tuple(map(int, t.shape))) for name, t in self.session.types.items()}
        other = sorted({*types, DIGEST} ^ {*stored.names()}) or [n for n, t in types.items() if stored.info(n) != t]
        if other:
            raise CheckpointError(f"it is of another graph or optimiser: {listed(other)}", file=Path(file),
                                  fix="train with the settings of the run that wrote it, or without it")
        arrays = {name: stored.array(name) for name in types}
        if bytes(stored.array(DIGEST)) != bytes(_digest(arrays)):
            raise CheckpointError("damaged: its bytes are not those that were written", file=Path(file),
                                  fix="take an earlier checkpoint, or begin again without it")
        self.session.restore(arrays)


def _digest(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the sha256 of names and bytes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + b"\0")
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return np.frombuffer(digest.digest(), np.uint8)
