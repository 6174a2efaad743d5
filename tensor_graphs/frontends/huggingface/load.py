"""load: converts a model folder, or a GGUF file, to a graph and its weights, ready to be compiled and bound.

    model = load_model("path/to/gemma-3-270m", dtype="bfloat16")
    model.graph          the computation; parameters have the checkpoint's names
    model.weights        name -> numpy array, read from the files at look-up

Name, shape and kind of dtype of every tensor that the graph needs are checked before anything is computed. A tensor
stored in the requested dtype is a view of the file; another float dtype is converted at each look-up (bf16 → f32
exactly, f32 → bf16 to nearest, ties to even). Blocks of a GGUF file are parameters of bytes, which the graph dequantises, or, where
a dtype is requested, become f32; codes of a quantised folder become f32. `load_model("gemma-3-270m", random_seed=0)` needs no
folder: it has the published shape and random weights.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.argument_checks import place
from tensor_graphs.devices.safetensors import Weights, WeightsError, open_weights
from tensor_graphs.errors import close_to, listed
from tensor_graphs.frontends.errors import ConfigError, FrontendError
from tensor_graphs.frontends.gguf.model import GgufModel, GgufWeights, is_gguf, open_gguf
from tensor_graphs.frontends.huggingface.config import FamilyConfig
from tensor_graphs.frontends.huggingface.folder import (
    GEMMA3_270M,
    Gemma3TextConfig,
    GenerationConfig,
    SentenceConfig,
    draw,
    gemma3_recipe,
    plain_recipe,
    read_config,
    read_generation,
    read_sentence,
)
from tensor_graphs.frontends.huggingface.names import TensorPlace, places, prefix_of, unexplained
from tensor_graphs.frontends.huggingface.quantised import QuantisedWeights
from tensor_graphs.frontends.text.tokenizer import Tokenizer, load_tokenizer, tokenizer_file
from tensor_graphs.language import leaves
from tensor_graphs.language.composites.blocks import FORMATS, dequantize, dequantized
from tensor_graphs.language.dtypes import DType, bf16, f32, parse_dtype, u8
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.models.transformer import Facts, Pool, TensorNames, decoder_graph, encoder_graph
from tensor_graphs.phase_times import phase

if TYPE_CHECKING:
    from tensor_graphs.frontends.huggingface.own_text import SampledText

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

DTYPES = (f32, bf16)
"""Dtypes of weights, and of activations and KV caches."""

BUILTIN: Mapping[str, Gemma3TextConfig] = {"gemma-3-270m": GEMMA3_270M}
"""Published shapes that need no folder when the weights are random."""

DEFAULT_POSITIONS = 4096
"""Default length of a KV cache: for gemma-3-270m it takes 151 MB, and 1.2 GB at that model's 32768 positions."""


@dataclass(frozen=True, repr=False)
class LoadedModel:
    """A model that is ready to be compiled.

    kind: its family. graph: see models/transformer.py for its inputs, dims, states and outputs. encoder: True for a sentence
    encoder, False for a decoder. weights: parameter name -> array of the graph's dtype and shape, read-only when it is a view of a
    file. config: the folder's configuration. facts, names: description that the graph was built from. folder: None for a built-in
    shape and a GGUF file. random_seed: None when the weights are the folder's. sentence: for a sentence-transformers folder, how
    texts are cut and prompted. gguf: the GGUF file that the model was read from. formats: parameter -> its format, of those that
    the graph has as blocks of bytes.
    """

    name: str
    kind: str
    encoder: bool
    graph: Graph
    weights: Mapping[str, Array]
    config: FamilyConfig
    facts: Facts
    names: TensorNames
    dtype: DType
    activations: DType
    max_positions: int
    folder: Path | None = None
    random_seed: int | None = None
    sentence: SentenceConfig | None = None
    gguf: GgufModel | None = None
    formats: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        drawn = "" if self.random_seed is None else f", drawn from seed {self.random_seed}"
        return f"<model {self.name} ({self.kind}): weights {self.dtype}{drawn}, {self.max_positions} positions, {self.graph!r}>"

    def begin(self) -> None:
        """Start drawing random weights in a background thread. Their memory is allocated from now on."""
        if isinstance(self.weights, _DrawnWeights):
            self.weights.ahead()

    @cached_property
    def greedy_graph(self) -> Graph:
        """A decoder's graph that outputs the likeliest token and its logit instead of all logits; an encoder's graph unchanged."""
        if self.encoder:
            return self.graph
        return _in_blocks(decoder_graph(self.facts, self.names, max_positions=self.max_positions, weight_dtype=self.dtype,
                                        activation_dtype=self.activations, output="token"), self.formats)

    def values(self, parameter: str) -> Array:
        """Return the numbers of a parameter, also of one that is kept in blocks."""
        array = self.weights[parameter]
        return dequantized(array, self.formats[parameter]) if parameter in self.formats else array

    def paged_graph(self, pool: Pool) -> Graph:
        """Return the decoder's step for many sequences, whose caches lie in a pool of pages."""
        return _in_blocks(decoder_graph(self.facts, self.names, max_positions=self.max_positions, weight_dtype=self.dtype,
                                        activation_dtype=self.activations, paged=pool), self.formats)

    def packed_graph(self, tokens: int) -> Graph:
        """Return the encoder of several sentences with `tokens` tokens in all (or as many as one sentence may have)."""
        return _in_blocks(encoder_graph(self.facts, self.names, max_positions=self.max_positions, weight_dtype=self.dtype,
                                        activation_dtype=self.activations, packed=tokens), self.formats)

    @cached_property
    def samples(self) -> SampledText | None:
        """Function from a seed to the model's own text, `inputs` for `tg.compile`; None for an encoder, which writes none."""
        from tensor_graphs.frontends.huggingface.own_text import SampledText  # a door: it compiles, and most callers load only

        return None if self.encoder else SampledText(self)

    @cached_property
    def generation(self) -> GenerationConfig:
        """The ids that end a text, and the authors' sampling; a built-in Gemma 3 ends at id 1. Raises ConfigError."""
        if self.gguf is not None:
            return self.gguf.generation
        if self.folder is None:
            return GenerationConfig(eos_token_ids=(1,), bos_token_id=2, pad_token_id=0)
        return read_generation(self.folder)

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Token ids that end an answer: from generation_config.json, else config.json, else the tokenizer's eos_token."""
        ids = self.generation.eos_token_ids or (() if self.tokenizer is None else self.tokenizer.end_ids)
        beyond = [i for i in ids if i >= self.facts.vocabulary]
        if beyond:
            log.warning("%s: eos_token_id %s is outside of the vocabulary, 0 to %d: no answer ends there", self.name,
                        ", ".join(map(str, beyond)), self.facts.vocabulary - 1)
        return ids

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The folder's tokenizer, loaded at first access; None without one. Raises TokenizerError."""
        positions = self.max_positions if self.encoder else None
        if self.gguf is not None:
            return self.gguf.tokenizer(positions)
        if self.folder is None or tokenizer_file(self.folder) is None:
            return None
        return load_tokenizer(self.folder, positions=positions)


@worded
@phase("read model")
def load_model(source: str | os.PathLike[str], *, dtype: str | DType | None = None, activations: str | DType | None = None,
               max_positions: int | None = None, random_seed: int | None = None) -> LoadedModel:
    """Return the graph and the weights of a model folder or GGUF file, or of a built-in shape with random weights.

    source: a folder in Hugging Face's layout (config.json, *.safetensors), a .gguf file, or, with random_seed, also a name in
    `BUILTIN`. dtype: dtype that the weights are kept in, "float32" or "bfloat16" (default: as the files store them, if that is one
    of the two, else float32; weights in blocks stay as they are). activations: dtype of the values between ops and of the KV
    cache (default: that of the weights). max_positions: number of tokens that fit (default: at most 4096 in a KV cache, and the
    model's positions in an encoder). random_seed: draw the weights instead of reading them, each at its first look-up (Gemma 3:
    `random_gemma3_weights`; other families: `plain_recipe`).
    Raises FolderError, ConfigError (unknown model type, unsupported setting, dtype or max_positions) and WeightsError (tensors that
    are missing or have another shape).
    """
    source = place("source", source, f"a model folder or a .gguf file, or with random_seed one of {', '.join(BUILTIN)}")
    folder, builtin = Path(source), _builtin(source)
    if builtin is not None and random_seed is None:
        raise FrontendError(f"{source} is a built-in shape without weights",
                            fix="random_seed=0 (tg run: --random-weights 0) draws some; published ones are read from a folder")
    if builtin is None and random_seed is not None and not folder.exists():
        near = close_to(str(source), BUILTIN)
        raise FrontendError(f"{str(source)!r} is neither a folder nor a built-in shape",
                            fix=f"did you mean {near[0]}?" if near else f"built-in shapes: {', '.join(BUILTIN)}")
    config, stored, file = _opened(folder, builtin, needed=random_seed is None)
    weight_dtype = _weight_dtype(dtype, stored)
    between = weight_dtype if activations is None else _supported(activations, "activations")
    unweighted = _assemble(config, folder, weight_dtype, between, max_positions, stored, file)
    weights: Mapping[str, Array]
    formats: Mapping[str, str] = {}
    if random_seed is None:
        assert stored is not None
        weights = _StoredWeights(stored, unweighted, weight_dtype, config.assumed, in_blocks=dtype is None)
        formats = weights.formats
        if not formats and (own := _dtype_of(stored)) != weight_dtype.name:
            log.warning("%s: the weights are stored as %s and kept as %s", folder, own, weight_dtype)
        if unweighted.encoder and weights.left_out:
            log.warning("%s: a head is left out, vectors are the encoder's: %s", folder, listed(weights.left_out))
    else:
        weights = _DrawnWeights(config, unweighted, random_seed, weight_dtype)
    log.info("%s: %s, %d parameters, weights in %s%s", source, unweighted.kind, len(unweighted.graph.parameters), weight_dtype,
             "" if random_seed is None else f", drawn from seed {random_seed}")
    return LoadedModel(
        name=str(source) if builtin is not None else folder.resolve().name, kind=unweighted.kind, encoder=unweighted.encoder,
        graph=_in_blocks(unweighted.graph, formats), weights=weights, config=config, facts=unweighted.facts, names=unweighted.names,
        dtype=weight_dtype, activations=between, max_positions=unweighted.max_positions,
        folder=None if builtin is not None or file is not None else folder, random_seed=random_seed,
        sentence=unweighted.sentence, gguf=file, formats=formats)


@phase("read model")
def model_graph(source: str | os.PathLike[str], *, dtype: str | DType | None = None, activations: str | DType | None = None,
                max_positions: int | None = None, greedy: bool = False) -> Graph:
    """Return only the graph of a model folder or file (of its weights only names and types are read), or of a name in `BUILTIN`.

    greedy: for a decoder, return `LoadedModel.greedy_graph`. The other arguments and the errors are those of `load_model`.
    """
    folder, builtin = Path(source), _builtin(source)
    config, stored, file = _opened(folder, builtin, needed=False)
    weight_dtype = _weight_dtype(dtype, stored)
    between = weight_dtype if activations is None else _supported(activations, "activations")
    unweighted = _assemble(config, folder, weight_dtype, between, max_positions, stored, file)
    graph = unweighted.graph
    if greedy and not unweighted.encoder:
        graph = decoder_graph(unweighted.facts, unweighted.names, max_positions=unweighted.max_positions,
                              weight_dtype=weight_dtype, activation_dtype=between, output="token")
    if file is None or dtype is not None:
        return graph
    return _in_blocks(graph, _StoredWeights(file.weights, unweighted, weight_dtype, config.assumed, in_blocks=True).formats)


def _in_blocks(graph: Graph, formats: Mapping[str, str]) -> Graph:
    """Return the graph whose parameters of these names are blocks of bytes in a format, dequantised where they are used."""
    if not formats:
        return graph

    def replaced(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        format = formats.get(node.attrs["name"], "") if node.op is leaves.PARAMETER else ""
        if not format:
            return None
        block, (*lead, last) = FORMATS[format], node.shape
        stored = leaves.parameter(node.attrs["name"], (*lead, last // block.values * block.nbytes), u8)
        out: Node = dequantize(stored, format=format)
        return out

    return graph.with_roots(rebuild(graph.roots, replaced))


def _builtin(source: str | os.PathLike[str]) -> Gemma3TextConfig | None:
    """Return the built-in shape of that name; None without one, and for a folder, which takes precedence."""
    return None if Path(source).is_dir() else BUILTIN.get(str(source))


def _opened(path: Path, builtin: Gemma3TextConfig | None, *, needed: bool) -> tuple[FamilyConfig, Weights | None, GgufModel | None]:
    """Return the configuration and the weights of a folder or file, and the model in a GGUF file. The weights are None for a
    built-in shape, and, unless needed, for a folder with none that can be read."""
    if builtin is not None:
        return builtin.read, None, None
    if is_gguf(path):
        file = open_gguf(path)
        return file.config, file.weights, file
    config = read_config(path)
    try:
        files = open_weights(path)
    except WeightsError:
        if needed:
            raise
        return config, None, None
    return config, files if config.layout is None else QuantisedWeights(files, config.layout), None


def _dtype_of(stored: Weights) -> str:
    """Return the name of the dtype that most bytes are stored in, as the files or this package spell it."""
    nbytes: Counter[str] = Counter()
    for name in stored.names():
        entry = stored.entry(name)
        nbytes[entry.stored if entry.dtype is None else entry.dtype.name] += entry.nbytes
    return nbytes.most_common(1)[0][0] if nbytes else f32.name


def _weight_dtype(dtype: str | DType | None, stored: Weights | None) -> DType:
    if dtype is None:
        return bf16 if stored is not None and _dtype_of(stored) == bf16.name else f32
    return _supported(dtype, "weights")


def _supported(dtype: str | DType, what: str) -> DType:
    """Return one of DTYPES. Raises ConfigError for another one."""
    parsed = parse_dtype(dtype)
    if parsed not in DTYPES:
        raise ConfigError(f"{what} cannot be kept in {parsed}", fix=" or ".join(t.numpy.name for t in DTYPES))
    return parsed


# --- from configurations to graphs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unweighted:
    """A model without weights."""

    kind: str
    encoder: bool
    graph: Graph
    facts: Facts
    names: TensorNames
    max_positions: int
    sentence: SentenceConfig | None = None


def _assemble(config: FamilyConfig, folder: Path, dtype: DType, activations: DType, max_positions: int | None,
              stored: Weights | None, file: GgufModel | None) -> _Unweighted:
    """Return the graph of a configuration, with a separate head where the files hold one. Raises ConfigError where the model has
    fewer than max_positions positions."""
    most, names, encoder = config.max_position_embeddings, config.names, config.family.encoder
    default = most if encoder else min(most, DEFAULT_POSITIONS)
    limit = default if max_positions is None else max_positions
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise ConfigError(f"max_positions is {limit!r}, and the model has positions for 1 to {most} tokens", file=folder,
                          fix=f"a whole number from 1 to {most}")
    sentence = None if not encoder else file.sentence if file is not None else read_sentence(folder)
    facts = config.facts
    if facts.tied and not encoder and stored is not None and _has_own_head(names, stored):
        facts = replace(facts, tied=False)
    if sentence is not None:                         # read_sentence refuses other kinds of pooling
        facts = replace(facts, pooling=sentence.pooling, normalise=sentence.normalize)  # type: ignore[arg-type]
    make = encoder_graph if encoder else decoder_graph
    g = make(facts, names, max_positions=limit, weight_dtype=dtype, activation_dtype=activations)
    return _Unweighted(config.family.name, encoder, g, facts, names, limit, sentence)


def _has_own_head(names: TensorNames, stored: Weights) -> bool:
    """Return True if the files hold a head that differs from the embedding; transformers then uses it, tied or not."""
    (head,), (table,) = (([n for n in stored.names() if f".{n}".endswith(f".{end}.weight")] + [""])[:1]
                         for end in (names.head, names.embed.removeprefix(names.root)))
    if not head or not table or stored.entry(head).shape != stored.entry(table).shape:
        return False
    if stored.entry(head).stored != stored.entry(table).stored:
        return True
    one, other = stored.array(head), stored.array(table)
    return not all(np.array_equal(_bits(one[i:i + ROWS]), _bits(other[i:i + ROWS])) for i in range(0, len(one), ROWS))


def _bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint8)


ROWS = 4096
"""Rows of a head and an embedding compared at a time: most pairs that differ do so in the first block."""


# --- weights -------------------------------------------------------------------------------------------------------


class _StoredWeights(Mapping[str, Array]):
    """Parameter name -> array, from files. All tensors are checked at construction; each is read and converted at look-up."""

    def __init__(self, files: Weights, unweighted: _Unweighted, dtype: DType, assumed: Mapping[str, int], *,
                 in_blocks: bool = False) -> None:
        self.files, self.dtype, self.in_blocks = files, dtype, in_blocks
        self.places: dict[str, TensorPlace] = {}
        missing, wrong, total = [], [], 0
        shapes: dict[str, Any] = {name: node.shape for name, node in unweighted.graph.parameters.items()}
        prefix = prefix_of(unweighted.names, unweighted.kind, files.names(), files.source)
        for parameter, candidates in places(unweighted.names, unweighted.facts, prefix, shapes).items():
            place = next((c for c in candidates if any(tensor in files for tensor in c.tensors)), candidates[0])
            absent = [tensor for tensor in place.tensors if tensor not in files]
            missing += absent
            for tensor in () if absent else place.tensors:
                entry = files.entry(tensor)
                if entry.shape != place.shape:
                    wrong.append(f"{tensor} has shape {list(entry.shape)}, and {list(place.shape)} is needed")
                elif entry.dtype is None or not entry.dtype.is_float:
                    wrong.append(f"{tensor} is stored as {entry.stored}, and a plain float dtype is needed")
            self.places[parameter] = place
            total += len(place.tensors)
        self.left_out: tuple[str, ...] = ()
        settings = "its metadata" if is_gguf(files.source) else "config.json"
        versions = f"take {settings} and the weights from one version of one model"
        used = {tensor for place in self.places.values() for tensor in place.tensors}
        assuming = ("" if not assumed else f"\n    {settings} does not say " +
                    ", ".join(f"{key} ({value} was assumed)" for key, value in assumed.items()))
        if missing:
            near = close_to(missing[0], set(files.names()) - used)
            raise WeightsError(
                f"{len(missing)} of {total} tensors are missing: {listed(missing)}{assuming}", file=files.source,
                fix=f"tensors that are there and unused have names like {' and '.join(near)}" if near else
                f"fetch all weights files of the model; {settings} and they belong to one version")
        if wrong:
            wrong = list(dict.fromkeys(wrong))
            shown = wrong if len(wrong) <= 8 else [*wrong[:8], f"… ({len(wrong) - 8} more)"]
            raise WeightsError("\n    ".join((f"{len(wrong)} of {total} tensors do not fit {settings}:", *shown)) + assuming,
                               file=files.source, fix=versions)
        extra = unexplained(unweighted.names, prefix, files, used)
        if extra:
            raise WeightsError(
                f"{len(extra)} tensors have no place in the model that {settings} describes: {listed(extra)}{assuming}",
                file=files.source, fix=versions)
        self.left_out = tuple(n for n in files.names() if n not in used and prefix and not n.startswith(prefix))

    @cached_property
    def formats(self) -> Mapping[str, str]:
        """Parameter -> its format, of those that are kept as the blocks of the file: rows of a single tensor, if `in_blocks`."""
        if not self.in_blocks or not isinstance(self.files, GgufWeights):
            return {}
        return {parameter: self.files.entry(place.tensor).stored for parameter, place in self.places.items()
                if self.files.is_in_blocks(place.tensor) and not (place.each or place.stack or place.groups or place.transposed)}

    def __getitem__(self, parameter: str) -> Array:
        place = self.places[parameter]
        if parameter in self.formats:
            assert isinstance(self.files, GgufWeights)
            return place.of([self.files.blocks(place.tensor)], np.uint8)
        return place.of([self.files.array(tensor) for tensor in place.tensors], self.dtype.numpy)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, parameter: object) -> bool:
        return parameter in self.places         # Mapping's default would read, and perhaps convert, the tensor


INITIALIZER_RANGE = 0.02
"""Standard deviation of random linear weights where config.json gives none."""


class _DrawnWeights(Mapping[str, Array]):
    """Parameter name -> random array, drawn at its first look-up. So faults in a prompt are found before any is drawn, and only one
    tensor at a time exists in two dtypes."""

    def __init__(self, config: FamilyConfig, unweighted: _Unweighted, seed: int, dtype: DType) -> None:
        self.shapes: dict[str, Any] = {name: node.shape for name, node in unweighted.graph.parameters.items()}
        self.gemma, self.seed, self.dtype, self.offset = unweighted.kind == "gemma3", seed, dtype, unweighted.facts.norm_offset
        self.spread = float(config.settings.get("initializer_range", INITIALIZER_RANGE))
        self._drawn: dict[str, Array] = {}
        self._pool = ThreadPoolExecutor(2)
        self._drawing = threading.Lock()

    def __getitem__(self, parameter: str) -> Array:
        with self._drawing:
            if parameter not in self._drawn:
                shape = self.shapes[parameter]
                recipe = (gemma3_recipe(parameter, self.spread) if self.gemma else
                          plain_recipe(parameter, shape, self.spread, self.offset))
                drawn = draw(*recipe, parameter, shape, self.seed, self._pool)
                self._drawn[parameter] = drawn.astype(self.dtype.numpy, copy=False)
            return self._drawn[parameter]

    def ahead(self) -> None:
        """Draw all weights in a thread, in the order in which a graph is bound. The process can end before the thread does."""
        def draw_all() -> None:
            with suppress(MemoryError, RuntimeError):               # a look-up raises the first again; the second: the process ends
                for parameter in self.shapes:
                    self[parameter]

        threading.Thread(target=draw_all, daemon=True).start()

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, parameter: object) -> bool:
        return parameter in self.shapes
