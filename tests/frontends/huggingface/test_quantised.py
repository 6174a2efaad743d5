"""Folders whose weights are codes with scales load as the plain folder of their values."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from tensor_graphs.devices.safetensors import WeightsError, open_weights, write_weights
from tensor_graphs.frontends.errors import ConfigError
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.frontends.huggingface.quantised import unpacked
from tensor_graphs.language.dtypes import f32, parse_dtype
from tests.models.family_cases import DECODERS, Case

Tensors = dict[str, np.ndarray]
Quantise = Callable[[np.random.Generator, tuple[int, int]], tuple[Tensors, np.ndarray]]
"""Function of a shape [out, in] that draws the tensors of a layer, by the ends of their names, and gives their values."""



def case_of(family: str) -> Case:
    """A small model whose channels are whole blocks of 32."""
    case = next(case for case in DECODERS if case.family == family and "shards" not in case.name)
    return replace(case, settings={**case.settings, "intermediate_size": 64})


LLAMA, GPT_OSS = case_of("llama"), case_of("gpt_oss")


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [rows, n] as 32-bit words, one bit at a time: code i takes the bits from i · bits on."""
    rows, count = codes.shape
    words = np.zeros((rows, -(-count * bits // 32)), np.uint32)
    for i in range(count):
        for b in range(bits):
            words[:, (i * bits + b) // 32] |= ((codes[:, i].astype(np.uint32) >> b) & 1) << np.uint32((i * bits + b) % 32)
    return words.view(np.int32)


# ---- one function per method: draws codes and scales, and multiplies them out in plain steps ----------------------------


def gptq(bits: int, group: int, *, ordered: bool = False, less: int = 1) -> Quantise:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
        outs, ins = shape
        codes, scales = rng.integers(0, 1 << bits, (ins, outs)), rng.normal(0, 0.02, (ins // group, outs)).astype(np.float16)
        stored_zeros = rng.integers(0, 1 << bits, (ins // group, outs))
        groups = rng.permutation(ins) // group if ordered else np.arange(ins) // group
        values = np.empty(shape, np.float32)
        for i, g in enumerate(groups):
            values[:, i] = (codes[i] - (stored_zeros[g] + less)).astype(np.float32) * scales[g].astype(np.float32)
        tensors = {"qweight": np.ascontiguousarray(packed(codes.T, bits).T), "qzeros": packed(stored_zeros, bits), "scales": scales,
                   "g_idx": groups.astype(np.int32)}
        return tensors, values
    return draw


def awq(group: int) -> Quantise:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
        outs, ins = shape
        order = [0, 2, 4, 6, 1, 3, 5, 7]                            # position in a word -> channel
        codes, zeros = rng.integers(0, 16, (ins, outs)), rng.integers(0, 16, (ins // group, outs))
        scales = rng.normal(0, 0.02, (ins // group, outs)).astype(np.float16)
        values = np.empty(shape, np.float32)
        for i in range(ins):
            values[:, i] = (codes[i] - zeros[i // group]).astype(np.float32) * scales[i // group].astype(np.float32)
        turned = [x.reshape(len(x), -1, 8)[..., order].reshape(x.shape) for x in (codes, zeros)]
        return {"qweight": packed(turned[0], 4), "qzeros": packed(turned[1], 4), "scales": scales}, values
    return draw


def fp8(block: tuple[int, int] | None) -> Quantise:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
        weight = rng.normal(0, 10, shape).astype(ml_dtypes.float8_e4m3fn)
        if block is None:
            scale = rng.uniform(0.001, 0.01, (shape[0], 1)).astype(np.float32)
            return {"weight": weight, "weight_scale": scale}, weight.astype(np.float32) * scale
        scale = rng.uniform(0.001, 0.01, [-(-n // b) for n, b in zip(shape, block, strict=True)]).astype(np.float32)
        values = np.array([[np.float32(weight[i, j]) * scale[i // block[0], j // block[1]] for j in range(shape[1])]
                           for i in range(shape[0])], np.float32)
        return {"weight": weight, "weight_scale_inv": scale}, values
    return draw


def compressed(kind: str, **arguments: Any) -> Quantise:
    """By the package's own compressor and decompressor, with scales in f32 so that it rounds once, as we do."""
    args = QuantizationArgs(**arguments)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Tensors, np.ndarray]:
        outs, ins = shape
        block = args.block_structure or (1, 1)
        sizes = {"tensor": (1,), "channel": (outs, 1), "group": (outs, ins // (args.group_size or 1)),
                 "block": (-(-outs // block[0]), -(-ins // block[1]))}[str(args.strategy)]
        state = {"weight": torch.from_numpy(rng.normal(0, 0.05, shape).astype(np.float32)),
                 "weight_scale": torch.from_numpy(rng.uniform(0.005, 0.02, sizes).astype(np.float32))}
        if not args.symmetric:
            state["weight_zero_point"] = torch.from_numpy(rng.integers(-3, 3, sizes).astype(np.int8))
        if args.actorder == "group":
            state["weight_g_idx"] = torch.from_numpy((rng.permutation(ins) // (args.group_size or 1)).astype(np.int32))
        scheme, compressor = QuantizationScheme(targets=["Linear"], weights=args), BaseCompressor.get_value_from_registry(kind)
        small = compressor.compress(state, scheme)
        values = compressor.decompress(dict(small), scheme)["weight"]
        return {end: _numpy(tensor) for end, tensor in small.items()}, values.float().numpy()
    return draw


def _numpy(x: torch.Tensor) -> np.ndarray:
    return x.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn) if x.dtype == torch.float8_e4m3fn else x.numpy()


def of_package(kind: str, **arguments: Any) -> tuple[dict[str, Any], Quantise]:
    weights = {key: value for key, value in arguments.items() if value is not None}
    config = {"quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"],
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    return config, compressed(kind, **weights)


METHODS: dict[str, tuple[dict[str, Any], Quantise]] = {
    **{f"gptq, {bits} bits": ({"quant_method": "gptq", "bits": bits, "group_size": 16}, gptq(bits, 16)) for bits in (2, 3, 4, 8)},
    "gptq, in the order of activations": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, gptq(4, 8, ordered=True)),
    "gptq, second format": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, gptq(4, 16, less=0)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}, awq(16)),
    "fp8, blocks": ({"quant_method": "fp8", "weight_block_size": [24, 20], "activation_scheme": "dynamic"}, fp8((24, 20))),
    "fp8, channels": ({"quant_method": "fbgemm_fp8"}, fp8(None)),
    **{f"packed, {bits} bits, groups": of_package("pack-quantized", num_bits=bits, strategy="group", group_size=16)
       for bits in (2, 3, 4, 5, 8)},
    "packed, zeros": of_package("pack-quantized", num_bits=4, strategy="group", group_size=8, symmetric=False),
    "packed, channels": of_package("pack-quantized", num_bits=4, strategy="channel"),
    "integers, channels": of_package("int-quantized", num_bits=8, strategy="channel"),
    "integers, zeros": of_package("int-quantized", num_bits=8, strategy="channel", symmetric=False),
    "floats, channels": of_package("float-quantized", num_bits=8, type="float", strategy="channel"),
    "floats, tensor": of_package("float-quantized", num_bits=8, type="float", strategy="tensor"),
    "floats, blocks": of_package("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[16, 16]),
}


@dataclass(frozen=True)
class Folders:
    codes: Path
    plain: Path


def write(folder: Path, tensors: Tensors) -> None:
    write_weights(folder / "model.safetensors", {n: (parse_dtype(a.dtype), a.shape) for n, a in tensors.items()},
                  lambda name: tensors[name])


def configure(folder: Path, quantisation: dict[str, Any]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": quantisation}))


def folders(method: str, at: Path) -> Folders:
    """A folder with codes in place of its projections, and the plain folder of their values."""
    config, draw = METHODS[method]
    both = Folders(at / "codes", at / "plain")
    for folder in (both.codes, both.plain):
        LLAMA.write(folder)
    files, rng = open_weights(both.plain), np.random.default_rng(7)
    values: Tensors = {name: np.array(files.array(name)) for name in files.names()}
    codes = dict(values)
    for name in [n for n in values if "_proj.weight" in n]:
        tensors, values[name] = draw(rng, values[name].shape)       # type: ignore[arg-type]
        del codes[name]
        codes |= {name.removesuffix("weight") + end: array for end, array in tensors.items()}
    write(both.codes, codes)
    write(both.plain, values)
    configure(both.codes, config)
    return both


@pytest.mark.parametrize("method", METHODS)
def test_a_folder_of_codes_is_the_plain_folder_of_their_values(method: str, tmp_path: Path) -> None:
    both = folders(method, tmp_path)
    codes, plain = (load_model(folder, max_positions=64) for folder in (both.codes, both.plain))
    assert codes.dtype is f32 and codes.weights.keys() == plain.weights.keys()
    for name in plain.weights:
        assert np.array_equal(codes.weights[name], plain.weights[name]), name


def test_the_experts_of_gpt_oss_in_four_bits_are_those_that_transformers_unpacks(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    GPT_OSS.write(tmp_path)
    files, rng = open_weights(tmp_path), np.random.default_rng(7)
    codes: Tensors = {name: np.array(files.array(name)) for name in files.names()}
    values: Tensors = {}
    for name in [n for n in codes if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, ins, outs = codes.pop(name).shape
        blocks = rng.integers(0, 256, (experts, outs, ins // 32, 16), np.uint8)
        exponents = rng.integers(110, 125, (experts, outs, ins // 32), np.uint8)
        codes |= {f"{name}_blocks": blocks, f"{name}_scales": exponents}
        whole = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(exponents), dtype=torch.float32)
        values[name] = whole.numpy()
    assert values
    write(tmp_path, codes)
    configure(tmp_path, {"quant_method": "mxfp4"})
    model = load_model(tmp_path, max_positions=64)
    stored = model.weights.files                                    # type: ignore[attr-defined]
    for name, expected in values.items():
        assert np.array_equal(stored.array(name), expected), name


def test_a_block_with_the_exponent_that_means_no_number_has_none(tmp_path: Path) -> None:
    GPT_OSS.write(tmp_path)
    files = open_weights(tmp_path)
    codes: Tensors = {name: np.array(files.array(name)) for name in files.names()}
    name = next(n for n in codes if n.endswith("experts.down_proj"))
    for full in [n for n in codes if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, ins, outs = codes.pop(full).shape
        codes |= {f"{full}_blocks": np.full((experts, outs, ins // 32, 16), 0x21, np.uint8),
                  f"{full}_scales": np.full((experts, outs, ins // 32), 255 if full == name else 127, np.uint8)}
    write(tmp_path, codes)
    configure(tmp_path, {"quant_method": "mxfp4"})
    stored = load_model(tmp_path, max_positions=64).weights.files   # type: ignore[attr-defined]
    assert np.isnan(stored.array(name)).all()
    other = stored.array(name.replace("down_proj", "gate_up_proj"))
    assert np.array_equal(other[0, :4, 0], [0.5, 1.0, 0.5, 1.0])    # the low four bits first


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_of_any_number_of_bits_are_unpacked_as_they_were_packed(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 41))
    assert np.array_equal(unpacked(packed(codes, bits), bits, 41), codes)
    with pytest.raises(ValueError, match="hold no 97 codes"):
        unpacked(packed(codes, bits), bits, 97)


DAMAGE: dict[str, tuple[str, Callable[[Tensors], Tensors], str]] = {
    "no scales": ("gptq, 4 bits", lambda t: {n: a for n, a in t.items() if not n.endswith("0.mlp.up_proj.scales")},
                  "0.mlp.up_proj.qweight has codes, and .*up_proj.scales is missing"),
    "fewer zeros": ("gptq, 4 bits", lambda t: {n: a[:1] if n.endswith("qzeros") else a for n, a in t.items()},
                    "codes of 4 bits, scales and zeros do not fit each other: .*qzeros I32"),
    "a group beyond": ("gptq, in the order of activations",
                       lambda t: {n: a + 900 if n.endswith("g_idx") else a for n, a in t.items()}, "a group is"),
    "other bits": ("packed, 4 bits, groups", lambda t: {n: a[:, :1] if n.endswith("packed") else a for n, a in t.items()},
                   "codes in 1 words have none of the 4 bits"),
    "a shape that is none": ("packed, 4 bits, groups", lambda t: {n: -a if n.endswith("weight_shape") else a for n, a in t.items()},
                             r"do not fit the shape \[-"),
    "a scale less": ("fp8, blocks", lambda t: {n: a[1:] if n.endswith("scale_inv") else a for n, a in t.items()},
                     "scales do not fit the codes"),
    "no scale of floats": ("fp8, blocks", lambda t: {n: a for n, a in t.items() if "1.mlp.down_proj.weight_s" not in n},
                           "1.mlp.down_proj.weight has codes, and .* is missing"),
    "words of floats": ("awq", lambda t: {n: a.view(np.float32) if n.endswith("qweight") else a for n, a in t.items()},
                        "is no matrix of I32"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_codes_that_do_not_fit_are_one_clear_error(damage: str, tmp_path: Path) -> None:
    method, change, message = DAMAGE[damage]
    folder = folders(method, tmp_path).codes
    files = open_weights(folder)
    write(folder, change({name: np.array(files.array(name)) for name in files.names()}))
    with pytest.raises(WeightsError, match=message):
        model = load_model(folder, max_positions=64)
        for name in model.weights:
            model.weights[name]


@pytest.mark.parametrize(("config", "message"), [
    ({"quant_method": "bitsandbytes", "load_in_4bit": True},
     "quant_method is 'bitsandbytes', which is not read[^$]*fix: read: compressed"),
    ({"bits": 4}, "quant_method is missing"),
    ({"quant_method": "gptq", "bits": 5}, "bits is 5"),
    ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv', which is not read"),
    ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"g": {"weights": {"num_bits": 4}}}},
     "format is 'nvfp4-pack-quantized', which is not read"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "config_groups has no group with weights"),
])
def test_what_is_not_read_is_refused_by_name(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    LLAMA.write(tmp_path)
    configure(tmp_path, config)
    with pytest.raises(ConfigError, match=message):
        load_model(tmp_path)
