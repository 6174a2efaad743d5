"""huggingface: a model folder as a graph and its weights, ready to be compiled and bound.

    model = load_model("path/to/gemma-3-270m", dtype="bfloat16")
    model.graph          what it computes; parameters carry the checkpoint's names
    model.weights        those names -> numpy arrays, read from the files when asked for

Every tensor that the graph needs is looked up, by name, shape and kind of dtype, before anything is computed. A tensor
stored in the asked dtype is a view of the file; another float dtype is converted anew at each look-up (bf16 → f32
exactly, f32 → bf16 to nearest, ties to even). Without any folder, `load_model("gemma-3-270m", random_seed=0)` is the
published shape with random weights.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tensor_graphs.devices.safetensors import Weights, WeightsError, open_weights
from tensor_graphs.errors import close_to, listed
from tensor_graphs.frontends.errors import ConfigError, FrontendError
from tensor_graphs.frontends.huggingface_folder import (
    GEMMA3_270M,
    SLIDING,
    BertConfig,
    Gemma3TextConfig,
    GenerationConfig,
    SentenceConfig,
    bert_prefix,
    gemma3_prefix,
    random_gemma3_weights,
    read_config,
    read_generation,
    read_sentence,
)
from tensor_graphs.frontends.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from tensor_graphs.language.dtypes import DType, bf16, f32, parse_dtype
from tensor_graphs.language.graph import Graph
from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, LayerKind, Rope, gemma3_graph

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Config = Gemma3TextConfig | BertConfig

DTYPES = (f32, bf16)
"""What weights can be kept in. Activations are f32 with both."""

BUILTIN: Mapping[str, Gemma3TextConfig] = {"gemma-3-270m": GEMMA3_270M}
"""Published shapes that need no folder when the weights are random."""

DEFAULT_POSITIONS = 4096
"""How long a KV cache is when nobody says: those of gemma-3-270m take 151 MB then, and 1.2 GB at its own 32768."""

_ACTIVATIONS: Mapping[str, Any] = {
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu", "silu": "silu", "relu": "relu"}
"""transformers' name -> ours."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to be compiled.

    kind: which of the models. graph: see models/gemma3.py and models/bert.py for its inputs, dims, states and outputs.
    weights: parameter name -> array of the graph's dtype and shape, read-only when it is a view of a file. config: what
    the folder says; spec: what the graph was made of. folder: None for a built-in shape. random_seed: None when the
    weights are the folder's. sentence: for a sentence-transformers folder, how texts are cut and prompted.
    """

    name: str
    kind: Literal["gemma3", "bert"]
    graph: Graph
    weights: Mapping[str, Array] = field(repr=False)
    config: Config
    spec: Gemma3Spec | BertSpec
    dtype: DType
    max_positions: int
    folder: Path | None = None
    random_seed: int | None = None
    sentence: SentenceConfig | None = None

    @cached_property
    def greedy_graph(self) -> Graph:
        """A decoder's graph with the likeliest token and its logit as outputs instead of all logits; an encoder's as it is."""
        if not isinstance(self.spec, Gemma3Spec):
            return self.graph
        return gemma3_graph(self.spec, max_positions=self.max_positions, weight_dtype=self.dtype, output="token")

    @cached_property
    def generation(self) -> GenerationConfig:
        """Which ids end a text, and how the authors sample; a built-in Gemma 3 ends at id 1. Raises ConfigError."""
        if self.folder is None:
            return GenerationConfig(eos_token_ids=(1,), bos_token_id=2, pad_token_id=0)
        return read_generation(self.folder)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The folder's tokenizer, loaded when first asked for; None without a tokenizer.json. Raises TokenizerError."""
        if self.folder is None or not (self.folder / TOKENIZER_FILE).is_file():
            return None
        return load_tokenizer(self.folder)


def load_model(source: str | os.PathLike[str], *, dtype: str | DType = "float32", max_positions: int | None = None,
               random_seed: int | None = None) -> LoadedModel:
    """The graph and the weights of a model folder, or of a built-in shape with random weights.

    source: a folder in Hugging Face's layout (config.json, *.safetensors), or, with random_seed, also a name in
    `BUILTIN`. dtype: what the weights are kept in, "float32" or "bfloat16". max_positions: tokens that fit (of a KV
    cache: at most 4096 unless said; of an encoder: as many as the model has). random_seed: draw the weights by
    `random_gemma3_weights` instead of reading them; all are drawn at once, in f32 (1.1 GB for gemma-3-270m).
    Raises FolderError, ConfigError (unknown model type, unsupported setting, dtype or max_positions) and WeightsError
    (tensors that are missing or have another shape).
    """
    weight_dtype, folder, builtin = _weight_dtype(dtype), Path(source), _builtin(source)
    if builtin is not None and random_seed is None:
        raise FrontendError(f"{source} is a built-in shape without weights",
                            fix="random_seed=0 (tg run: --random-weights 0) draws some; published ones are read from a folder")
    if builtin is None and random_seed is not None and not folder.exists():
        near = close_to(str(source), BUILTIN)
        raise FrontendError(f"{str(source)!r} is neither a folder nor a built-in shape",
                            fix=f"did you mean {near[0]}?" if near else f"built-in shapes: {', '.join(BUILTIN)}")
    config: Config = builtin if builtin is not None else read_config(folder)
    made = _ASSEMBLE[type(config)](config, folder, weight_dtype, max_positions)
    weights: Mapping[str, Array]
    if random_seed is None:
        stored = open_weights(folder)
        weights = _StoredWeights(stored, made.graph, made.file_name(stored), weight_dtype)
    else:
        weights = _random_weights(config, random_seed, weight_dtype, source)
    log.info("%s: %s, %d parameters, weights in %s%s", source, made.kind, len(made.graph.parameters), weight_dtype,
             "" if random_seed is None else f", drawn from seed {random_seed}")
    return LoadedModel(
        name=str(source) if builtin is not None else folder.resolve().name, kind=made.kind, graph=made.graph,
        weights=weights, config=config, spec=made.spec, dtype=weight_dtype, max_positions=made.max_positions,
        folder=None if builtin is not None else folder, random_seed=random_seed, sentence=made.sentence)


def model_graph(source: str | os.PathLike[str], *, dtype: str | DType = "float32",
                max_positions: int | None = None, greedy: bool = False) -> Graph:
    """The graph alone, of a model folder (its weights are not opened) or of a name in `BUILTIN`.

    greedy: of a decoder, the graph of `LoadedModel.greedy_graph`. dtype, max_positions and what is raised: as in `load_model`.
    """
    folder, builtin, weight_dtype = Path(source), _builtin(source), _weight_dtype(dtype)
    config: Config = builtin if builtin is not None else read_config(folder)
    made = _ASSEMBLE[type(config)](config, folder, weight_dtype, max_positions)
    if greedy and isinstance(made.spec, Gemma3Spec):
        return gemma3_graph(made.spec, max_positions=made.max_positions, weight_dtype=weight_dtype, output="token")
    return made.graph


def _builtin(source: str | os.PathLike[str]) -> Gemma3TextConfig | None:
    """The built-in shape of that name; a folder of the same name goes before it."""
    return None if Path(source).is_dir() else BUILTIN.get(str(source))


def _weight_dtype(dtype: str | DType) -> DType:
    found = parse_dtype(dtype)
    if found not in DTYPES:
        raise ConfigError(f"weights cannot be kept in {found}", fix=" or ".join(t.numpy.name for t in DTYPES))
    return found


# --- from configurations to graphs ---------------------------------------------------------------------------------


def gemma3_spec(config: Gemma3TextConfig) -> Gemma3Spec:
    """What the math of a Gemma 3 needs, of its configuration.

    A cap on attention scores is honoured as Gemma 2 defines it; transformers 5 reads it for Gemma 3 and ignores it (the
    published models have none).
    """
    if config.attn_logit_softcapping:
        log.warning("attention scores are capped at %g; transformers ignores this setting for Gemma 3",
                    config.attn_logit_softcapping)
    kinds: tuple[LayerKind, ...] = tuple("sliding" if kind == SLIDING else "full" for kind in config.layer_types)
    return Gemma3Spec(
        vocabulary=config.vocab_size, hidden=config.hidden_size, ffn=config.intermediate_size,
        heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, head_dim=config.head_dim, layers=kinds,
        window=config.sliding_window or 0,
        eps=config.rms_norm_eps, scale=config.query_pre_attn_scalar ** -0.5,
        sliding_rope=Rope(float(config.rope_local_theta), float(config.rope_local_factor)),
        full_rope=Rope(float(config.rope_theta), float(config.rope_factor)),
        attention_softcap=config.attn_logit_softcapping or 0.0, final_softcap=config.final_logit_softcapping or 0.0,
        activation=_ACTIVATIONS[config.hidden_activation], tied=config.tie_word_embeddings,
        attention_bias=config.attention_bias)


def bert_spec(config: BertConfig, sentence: SentenceConfig | None = None) -> BertSpec:
    """What the math of a BERT needs. Without sentence-transformers' files: the mean of the tokens, not normalised."""
    return BertSpec(
        vocabulary=config.vocab_size, hidden=config.hidden_size, ffn=config.intermediate_size,
        layers=config.num_hidden_layers, heads=config.num_attention_heads, positions=config.max_position_embeddings,
        token_types=config.type_vocab_size,
        eps=config.layer_norm_eps, activation=_ACTIVATIONS[config.hidden_act],
        # read_sentence lets no other kind of pooling through
        pooling=sentence.pooling if sentence else "mean",  # type: ignore[arg-type]
        normalise=sentence.normalize if sentence else False)


@dataclass(frozen=True)
class _Made:
    """A model without weights. file_name: given the files, parameter name -> what its tensor may be called in them."""

    kind: Literal["gemma3", "bert"]
    graph: Graph
    spec: Gemma3Spec | BertSpec
    max_positions: int
    file_name: Callable[[Weights], Callable[[str], tuple[str, ...]]]
    sentence: SentenceConfig | None = None


def _positions(asked: int | None, default: int, most: int, folder: Path) -> int:
    limit = default if asked is None else asked
    if not 1 <= limit <= most:
        raise ConfigError(f"max_positions is {limit}, and the model has positions for 1 to {most} tokens", file=folder)
    return limit


def _gemma3(config: Gemma3TextConfig, folder: Path, dtype: DType, max_positions: int | None) -> _Made:
    most = config.max_position_embeddings
    limit = _positions(max_positions, min(most, DEFAULT_POSITIONS), most, folder)
    spec = gemma3_spec(config)

    def names(files: Weights) -> Callable[[str], tuple[str, ...]]:
        prefix = gemma3_prefix(files.names())

        def candidates(parameter: str) -> tuple[str, ...]:
            if parameter.startswith("model."):
                return (prefix + parameter.removeprefix("model."),)
            return tuple(dict.fromkeys((prefix.removesuffix("model.") + parameter, parameter)))     # lm_head.weight

        return candidates

    return _Made("gemma3", gemma3_graph(spec, max_positions=limit, weight_dtype=dtype), spec, limit, names)


def _bert(config: BertConfig, folder: Path, dtype: DType, max_positions: int | None) -> _Made:
    most = config.max_position_embeddings
    limit = _positions(max_positions, most, most, folder)
    sentence = read_sentence(folder)
    spec = bert_spec(config, sentence)

    def names(files: Weights) -> Callable[[str], tuple[str, ...]]:
        prefix = bert_prefix(files.names())

        def candidates(parameter: str) -> tuple[str, ...]:
            # checkpoints converted from TensorFlow call the two vectors of a norm gamma and beta
            old = parameter.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            return tuple(dict.fromkeys((prefix + parameter, prefix + old)))

        return candidates

    return _Made("bert", bert_graph(spec, max_positions=limit, weight_dtype=dtype), spec, limit, names, sentence)


_ASSEMBLE: Mapping[type, Callable[[Any, Path, DType, int | None], _Made]] = {
    Gemma3TextConfig: _gemma3, BertConfig: _bert}
"""What a config.json was read as -> who makes the graph of it."""


# --- weights -------------------------------------------------------------------------------------------------------


class _StoredWeights(Mapping[str, Array]):
    """Parameter name -> array, from files. All are checked when it is made; one is read and converted at look-up."""

    def __init__(self, files: Weights, graph: Graph, candidates: Callable[[str], tuple[str, ...]],
                 dtype: DType) -> None:
        self.files, self.dtype = files, dtype
        self.names: dict[str, str] = {}
        missing, wrong = [], []
        for parameter, node in graph.parameters.items():
            name = next((n for n in candidates(parameter) if n in files), None)
            if name is None:
                missing.append(candidates(parameter)[0])
                continue
            entry = files.entry(name)
            if entry.shape != node.shape:
                wrong.append(f"{name} has shape {list(entry.shape)}, and {list(node.shape)} is needed")
            elif entry.dtype is None or not entry.dtype.is_float:
                wrong.append(f"{name} is stored as {entry.stored}, and a plain float dtype is needed")
            self.names[parameter] = name
        total = len(graph.parameters)
        if missing:
            unused = set(files.names()) - set(self.names.values())
            near = close_to(missing[0], unused)
            raise WeightsError(
                f"{len(missing)} of {total} tensors are missing: {listed(missing)}", file=files.source,
                fix=f"tensors that are there and unused have names like {' and '.join(near)}" if near else
                "fetch all weights files of the model; config.json and they belong to one version")
        if wrong:
            shown = wrong if len(wrong) <= 8 else [*wrong[:8], f"… ({len(wrong) - 8} more)"]
            raise WeightsError("\n    ".join((f"{len(wrong)} of {total} tensors do not fit config.json:", *shown)),
                               file=files.source, fix="take config.json and the weights from one version of one model")

    def __getitem__(self, parameter: str) -> Array:
        array = self.files.array(self.names[parameter])
        return array if array.dtype == self.dtype.numpy else array.astype(self.dtype.numpy)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, parameter: object) -> bool:
        return parameter in self.names         # Mapping's own would read, and perhaps convert, the tensor to find out


def _random_weights(config: Config, seed: int, dtype: DType, source: str | os.PathLike[str]) -> Mapping[str, Array]:
    if not isinstance(config, Gemma3TextConfig):
        raise ConfigError("random weights are drawn for Gemma 3 only", file=Path(source),
                          fix="leave random_seed out to read the folder's weights")
    weights = random_gemma3_weights(config, seed)
    if dtype != f32:
        for name in weights:                   # one by one, so that only one tensor is alive in both dtypes
            weights[name] = weights[name].astype(dtype.numpy)
    return weights
