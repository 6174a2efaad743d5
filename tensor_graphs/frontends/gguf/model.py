"""model: a GGUF file as a model: its configuration, and its tensors under the names, and with the values, of the folder's.

Tensors in blocks are read as they are, or become f32 when they are looked up: a piece of rows at a time, in two threads. A tensor
of one dtype is a view of the file, as in safetensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices.gguf import PLAIN, GgufFile, read_gguf
from tensor_graphs.devices.safetensors import Entry, Weights, WeightsError
from tensor_graphs.errors import listed
from tensor_graphs.frontends.errors import ConfigError
from tensor_graphs.frontends.gguf.architectures import NORMS, ROPE_FACTORS, architecture_of, names_in_gguf, read_settings
from tensor_graphs.frontends.gguf.tokenizer import read_tokenizer
from tensor_graphs.frontends.huggingface.config import FamilyConfig
from tensor_graphs.frontends.huggingface.folder import GenerationConfig, SentenceConfig
from tensor_graphs.frontends.json_settings import Section
from tensor_graphs.frontends.text.tokenizer import Tokenizer
from tensor_graphs.language.composites.blocks import dequantized

Array = np.ndarray[Any, Any]

PIECE = 1 << 16
"""Numbers that are computed at a time, so that they and what they are computed from stay in a core's cache."""
POOLINGS = {1: "mean", 2: "cls"}
"""`pooling_type` -> its name in this package."""


def is_gguf(source: str | os.PathLike[str]) -> bool:
    """Return True for a path that ends in .gguf and is no folder."""
    return Path(source).suffix.lower() == ".gguf" and not Path(source).is_dir()


@dataclass(frozen=True)
class GgufModel:
    """The model in one file. Everything but its weights was read and checked by `open_gguf`."""

    file: GgufFile
    config: FamilyConfig
    weights: GgufWeights

    @cached_property
    def generation(self) -> GenerationConfig:
        """The ids that end a text: the end of a text, and of a turn or of a message."""
        keys = ("eos", "eot", "eom")
        ids = [self._id(key) for key in keys]
        return GenerationConfig(tuple(dict.fromkeys(i for i in ids if i is not None)), self._id("bos"), self._id("padding"))

    def _id(self, name: str) -> int | None:
        section = Section(dict(self.file.metadata), self.file.path)
        return section.optional_whole(f"tokenizer.ggml.{name}_token_id")

    @cached_property
    def sentence(self) -> SentenceConfig | None:
        """Pooling of an encoder, whose vectors llama.cpp scales to length 1; None for a decoder. Raises ConfigError."""
        if not self.config.family.encoder:
            return None
        key = f"{architecture_of(self.file)[0]}.pooling_type"
        kind = Section(dict(self.file.metadata), self.file.path).whole(key, 1, least=0)
        if kind not in POOLINGS:
            raise ConfigError(f"{key} is {kind}, which is not supported", file=self.file.path,
                              fix="supported: " + ", ".join(f"{number} ({name})" for number, name in POOLINGS.items()))
        return SentenceConfig(POOLINGS[kind], True, self.config.facts.hidden, self.config.max_position_embeddings, False, "")

    def tokenizer(self, positions: int | None = None) -> Tokenizer | None:
        """Return the tokenizer, which cuts texts at `positions` tokens; None for a file without one. Raises TokenizerError."""
        return read_tokenizer(self.file, end_ids=self.generation.eos_token_ids, positions=positions)


def open_gguf(path: str | os.PathLike[str]) -> GgufModel:
    """Return the model in a file. Raises WeightsError and ConfigError."""
    file = read_gguf(path)
    config = read_settings(file)
    return GgufModel(file, config, GgufWeights(file, config, turned=architecture_of(file)[1].turned))


class GgufWeights(Weights):
    """The tensors of a file by the names of the family's checkpoints, with the values that a checkpoint has: a norm's weight
    without the 1 that is added to it, rows of q and k in the order of its rotations."""

    def __init__(self, file: GgufFile, config: FamilyConfig, *, turned: bool) -> None:
        self.file, self.facts, self.turned = file, config.facts, turned
        self._names: dict[str, tuple[str, str]] = {}
        entries: dict[str, Entry] = {}
        for name, (own, part) in names_in_gguf(config.names, len(config.facts.layers)).items():
            for kind in (".weight", ".bias"):
                if (entry := file.entries.get(own + kind)) is not None:
                    entries[name + kind], self._names[name + kind] = replace(entry, name=name + kind), (own + kind, part)
        rest = sorted(file.entries.keys() - {own for own, _ in self._names.values()} - set(ROPE_FACTORS))
        if rest:
            raise WeightsError(f"{len(rest)} tensors have no place in a model of the family {config.family.name}: {listed(rest)}",
                               file=file.path, fix="the model's folder, or a file of another architecture")
        super().__init__(file.path, entries, {file.path: file.mapping})

    def array(self, name: str, shape: Sequence[int] | None = None) -> Array:
        """Return a tensor: a view of the file where the values are stored as they are, else an array of its own."""
        entry, (own, part) = self.entry(name), self._names[name]
        stored = self.file.stored(self.file.entries[own])
        values = stored if entry.stored in PLAIN else by_pieces(stored, np.empty(entry.shape, np.float32),
                                                                lambda rows: dequantized(rows, entry.stored))
        if part in NORMS and self.facts.norm_offset:
            values = (values - np.float32(self.facts.norm_offset)).astype(values.dtype)
        return self._in_order(values, part)

    def is_in_blocks(self, name: str) -> bool:
        """Return whether a tensor is stored in blocks of its values, and not, as a norm may be, of others."""
        return self.entry(name).stored not in PLAIN and not (self._names[name][1] in NORMS and self.facts.norm_offset)

    def blocks(self, name: str) -> Array:
        """Return a tensor in blocks as it is stored, u8[…, bytes of a row]."""
        own, part = self._names[name]
        return self._in_order(self.file.stored(self.file.entries[own]), part)

    def _in_order(self, rows: Array, part: str) -> Array:
        """Return the rows of a tensor in the order of the folder's."""
        if not self.turned or part not in ("q", "k"):
            return rows
        return by_halves(rows, self.facts.heads if part == "q" else self.facts.kv_heads)


def by_pieces(x: Array, out: Array, function: Callable[[Array], Array]) -> Array:
    """Return `out`, filled with a function of x's rows, some rows at a time in two threads."""
    rows, of = x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
    step = max(1, PIECE // max(x.shape[-1], out.shape[-1]))

    def fill(at: int) -> None:
        of[at:at + step] = function(rows[at:at + step])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill, range(0, len(rows), step)))             # raises what a thread raised
    return out


def by_halves(x: Array, heads: int) -> Array:
    """Return the rows of each head with channels 0, 2, 4, … first: for rotations of i with i + half, of rows for neighbours."""
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def by_neighbours(x: Array, heads: int) -> Array:
    """Return the rows in the order that `by_halves` takes."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)

