"""quantised: the weights of folders that store them as codes with scales, as float32 tensors under the names of plain folders.

Read, by `quantization_config` of config.json: compressed-tensors (packed integers of 1 to 8 bits, plain integers, floats of eight
bits; scales of tensors, channels, groups or blocks; any order of inputs), GPTQ (2, 3, 4 and 8 bits, any order of inputs), AWQ (its
layout "gemm"), fp8 with scales of blocks, fbgemm_fp8, and mxfp4 (gpt-oss). Sources of the layouts and formulas: the packages
compressed-tensors, AutoGPTQ and AutoAWQ, and transformers' integrations of them. A value is (code − zero) · scale, computed in f32
when the tensor is looked up; it is exact for integers with scales of 16 bits. Rounding of activations is not applied.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensor_graphs.devices.safetensors import Entry, Weights, WeightsError
from tensor_graphs.errors import listed
from tensor_graphs.frontends.json_settings import Section
from tensor_graphs.language.dtypes import f32

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Read = Callable[[str], Array]

FLOATS = ("F32", "F16", "BF16")
"""dtypes of scales"""
CODES = ("F8_E4M3", "F8_E5M2", "I8", "U8", "I32")
"""dtypes of codes"""
FOUR_BIT_FLOATS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""code of f4e2m1 -> value"""
PIECE = 1 << 16
"""Numbers that are computed at a time, so that they stay in a core's cache."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""channel of eight -> position of its code in a word"""
OF_ACTIVATIONS = (".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point", ".activation_scale", ".k_scale",
                  ".v_scale", ".q_scale", ".input_global_scale")
"""ends of names of tensors by which activations or caches would be rounded"""


@dataclass(frozen=True)
class Codes:
    """One quantised tensor. parts: end of a name in `Layout.parts` -> its entry."""

    name: str
    shape: Shape
    parts: Mapping[str, Entry]


@dataclass(frozen=True)
class Layout:
    """A method's way to store a tensor: `stem + end` is its first part, `stem + plain` the name in a plain folder. parts: ends of
    the names of its parts. shape: of the plain tensor, from the parts' entries and a function that reads one; it raises ValueError
    for parts that do not fit. values: of the parts' arrays."""

    plain: str
    parts: tuple[str, ...]
    optional: tuple[str, ...]
    shape: Callable[[Mapping[str, Entry], Read], Shape]
    values: Callable[[Mapping[str, Array], Shape], Array]


class QuantisedWeights(Weights):
    """The tensors of a folder, those with codes as float32. Raises WeightsError for codes without their scales, or of other
    shapes."""

    def __init__(self, files: Weights, layout: Layout) -> None:
        self.layout, self._codes, used = layout, dict[str, Codes](), set[str]()
        first, *others = layout.parts
        entries = {name: files.entry(name) for name in files.names()}
        for name, entry in list(entries.items()):
            stem = name.removesuffix(first)
            if stem == name or (first == layout.plain and entry.stored not in CODES):
                continue
            lacking = [stem + end for end in others if end not in layout.optional and stem + end not in entries]
            if lacking:
                raise WeightsError(f"{name} has codes, and {listed(lacking)} is missing", file=files.source,
                                   fix="fetch all weights files of the model; they and config.json belong to one version")
            parts = {end: entries[stem + end] for end in layout.parts if stem + end in entries}
            try:
                shape = layout.shape(parts, lambda end, parts=parts: files.array(parts[end].name))  # type: ignore[misc]
            except ValueError as error:
                sizes = ", ".join(f"{stem + end} {part.stored}{list(part.shape)}" for end, part in parts.items())
                raise WeightsError(f"{error}: {sizes}", file=entry.file,
                                   fix="config.json and the weights have to belong to one version of one model") from error
            used |= {stem + end for end in parts}
            plain = stem + layout.plain
            self._codes[plain] = Codes(plain, shape, parts)
        plain_entries = {name: entry for name, entry in entries.items() if name not in used and not name.endswith(OF_ACTIVATIONS)}
        for plain, codes in self._codes.items():
            stored = codes.parts[first]
            plain_entries[plain] = replace(stored, name=plain, dtype=f32, shape=codes.shape, nbytes=4 * math.prod(codes.shape))
        super().__init__(files.source, plain_entries, files._maps)
        self._files = files

    def array(self, name: str, shape: Any = None) -> Array:
        """Return a tensor: a view of the file if it has no codes, else an array of its own."""
        codes = self._codes.get(name)
        if codes is None:
            return super().array(name, shape)
        arrays = {end: self._files.array(part.name) for end, part in codes.parts.items()}
        try:
            return self.layout.values(arrays, codes.shape)
        except ValueError as error:
            raise WeightsError(f"the codes of {name}: {error}", file=self.source, fix="fetch the file again") from error


def layout_of(config: Section) -> Layout | None:
    """Return how `quantization_config` says that weights are stored; None without one. Raises ConfigError for what is not read."""
    if not config.has("quantization_config") or config.values["quantization_config"] == {}:
        return None
    c = config.section("quantization_config")
    method = c.text("quant_method", "")
    if method not in METHODS:
        raise c.error(f"quant_method is {method!r}, which is not read" if method else "quant_method is missing",
                      fix=f"read: {', '.join(METHODS)}; a checkpoint of the model in float32, bfloat16 or float16; or a GGUF file")
    return METHODS[method](c)


# --- codes ----------------------------------------------------------------------------------------------------------


def unpacked(words: Array, bits: int, count: int) -> Array:
    """Return the first `count` codes, u8, of each row of 32-bit words. Code i takes the bits from i · bits on, the lowest first."""
    if words.shape[-1] * 32 < count * bits:
        raise ValueError(f"{words.shape[-1]} words hold no {count} codes of {bits} bits")
    octets = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        codes = (octets[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
        return codes.reshape(*words.shape[:-1], -1)[..., :count]
    single = np.unpackbits(octets, axis=-1, bitorder="little")[..., :count * bits].reshape(*words.shape[:-1], count, bits)
    return np.packbits(single, axis=-1, bitorder="little")[..., 0]


def scaled(codes: Array, scale: Array, zero: Array, groups: Array | None, size: int) -> Array:
    """Return (codes − zero) · scale, f32[out, in]. scale, zero: [out, groups] or [1, groups]. groups: the group of each input
    (None: `size` inputs each)."""
    if groups is not None and groups.size and not (groups.min() >= 0 and groups.max() < scale.shape[1]):
        raise ValueError(f"a group is {groups.min()} or {groups.max()}, and there are {scale.shape[1]}")
    values = np.empty(codes.shape, np.float32)
    step = max(1, PIECE // max(1, codes.shape[1]))

    def fill(at: int) -> None:
        rows = slice(at, at + step)
        of, out = slice(None) if len(scale) == 1 else rows, values[rows]
        out[:] = codes[rows]
        factor, less = scale[of].astype(np.float32), zero[of].astype(np.float32)
        if groups is not None:
            out -= less[:, groups]
            out *= factor[:, groups]
        else:
            grid = out.reshape(len(out), -1, size)
            grid -= less[..., None]
            grid *= factor[..., None]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill, range(0, len(values), step)))           # raises what a thread raised
    return values


def _expect(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)


def _matrix(entry: Entry, stored: tuple[str, ...]) -> Shape:
    _expect(len(entry.shape) == 2 and entry.stored in stored, f"{entry.name} is no matrix of {' or '.join(stored)}")
    return entry.shape


# --- compressed-tensors, fp8 ------------------------------------------------------------------------------------------


def _compressed(c: Section) -> Layout:
    """Return the layout of a `quantization_config` of the package compressed-tensors."""
    kind = c.text("format")
    schemes = [c.section("config_groups").section(group).section("weights") for group in c.section("config_groups").values]
    bits = sorted({scheme.whole("num_bits", most=8) for scheme in schemes})
    blocks = {tuple(b) for scheme in schemes if isinstance(b := scheme.values.get("block_structure"), list) and len(b) == 2
              and all(type(n) is int and n > 0 for n in b)}
    if not schemes:
        raise c.error("config_groups has no group with weights", fix="the config.json that belongs to the weights")
    if len(blocks) > 1:
        raise c.error(f"block_structure differs between groups: {sorted(blocks)}", fix="one structure")
    if any(isinstance(g.get("input_activations"), dict) for g in c.section("config_groups").values.values()):
        log.info("%s: activations are not rounded to %s bits, as the scheme would", c.path, " or ".join(map(str, bits)))
    block = next(iter(blocks), None)
    if kind == "pack-quantized":
        return _packed(tuple(bits))
    if kind in ("int-quantized", "float-quantized", "naive-quantized"):
        return _by_scales(".weight_scale", ".weight_zero_point", block)
    raise c.error(f"format is {kind!r}, which is not read",
                  fix="read: pack-quantized, int-quantized, float-quantized, naive-quantized")


def _packed(allowed: tuple[int, ...]) -> Layout:
    def bits_of(words: int, count: int) -> int:
        fitting = [b for b in allowed if math.ceil(count * b / 32) == words]
        _expect(len(fitting) == 1, f"{count} codes in {words} words have none of the {' or '.join(map(str, allowed))} bits that "
                                   "config.json names" if not fitting else f"{fitting} bits would fit")
        return fitting[0]

    def shape(parts: Mapping[str, Entry], read: Read) -> Shape:
        rows, words = _matrix(parts[".weight_packed"], ("I32",))
        scale, own = _matrix(parts[".weight_scale"], FLOATS), parts[".weight_shape"]
        _expect(own.shape == (2,) and own.stored in ("I64", "I32"), f"{own.name} is no pair of sizes")
        sizes = tuple(map(int, read(".weight_shape")))
        _expect(sizes[0] == rows and sizes[1] > 0 and scale[0] in (1, rows) and 0 < scale[1] <= sizes[1]
                and sizes[1] % scale[1] == 0, f"codes and scales do not fit the shape {list(sizes)}")
        bits_of(words, sizes[1])
        return sizes

    def values(arrays: Mapping[str, Array], shape: Shape) -> Array:
        bits, scale = bits_of(arrays[".weight_packed"].shape[1], shape[1]), arrays[".weight_scale"]
        zero, groups = arrays.get(".weight_zero_point"), arrays.get(".weight_g_idx")
        if zero is None:
            zero = np.full(scale.shape, 1 << (bits - 1), np.uint8)
        elif zero.dtype == np.int32:                                # packed along the outputs
            zero = unpacked(zero.T, bits, scale.shape[0]).T
        else:
            zero = zero.astype(np.int16) + (1 << (bits - 1))
        _expect(zero.shape == scale.shape, f"zeros {list(zero.shape)} for scales {list(scale.shape)}")
        ordered = groups is not None and bool((groups != -1).any())
        return scaled(unpacked(arrays[".weight_packed"], bits, shape[1]), scale, zero, groups if ordered else None,
                      shape[1] // scale.shape[1])

    return Layout(".weight", (".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx"),
                  (".weight_zero_point", ".weight_g_idx"), shape, values)


def _by_scales(scale_end: str, zero_end: str, block: tuple[int, ...] | None) -> Layout:
    """Return the layout of integers or floats of eight bits with a scale of the tensor, of each output, of groups of inputs, or of
    blocks of these sizes."""
    def spread(x: Array, shape: Shape) -> Array:
        rows, columns = (1, 1) if x.ndim < 2 else x.shape[-2:]
        x = x.astype(np.float32).reshape(*(x.shape[:-2] if x.ndim > 2 else ()), rows, columns)
        if rows == columns == 1:
            return x
        high, wide = block or (shape[-2] // rows, shape[-1] // columns)
        return x.repeat(high, -2)[..., :shape[-2], :].repeat(wide, -1)[..., :shape[-1]]

    def fits(own: Shape, shape: Shape) -> bool:
        if math.prod(own) == 1:
            return True
        if len(own) != len(shape) or own[:-2] != shape[:-2]:
            return False
        if block is not None:
            return own[-2:] == (-(-shape[-2] // block[0]), -(-shape[-1] // block[1]))
        return own[-2] in (1, shape[-2]) and own[-1] > 0 and shape[-1] % own[-1] == 0

    def shape(parts: Mapping[str, Entry], _read: Read) -> Shape:
        codes, scale = parts[".weight"], parts[scale_end]
        _expect(len(codes.shape) >= 2 and scale.stored in FLOATS and fits(scale.shape, codes.shape), "scales do not fit the codes")
        return codes.shape

    def values(arrays: Mapping[str, Array], shape: Shape) -> Array:
        out = arrays[".weight"].astype(np.float32)
        if zero_end in arrays:
            _expect(fits(arrays[zero_end].shape, shape), "zeros do not fit the codes")
            out -= spread(arrays[zero_end], shape)
        out *= spread(arrays[scale_end], shape)
        return out

    return Layout(".weight", (".weight", scale_end, zero_end), (zero_end,), shape, values)


def _fp8(c: Section) -> Layout:
    block = c.get("weight_block_size", "a list of two sizes", lambda v: isinstance(v, list) and len(v) == 2
                  and all(type(n) is int and n > 0 for n in v), None)
    return _by_scales(".weight_scale_inv", ".weight_zero_point", None if block is None else tuple(block))


# --- GPTQ, AWQ, mxfp4 -------------------------------------------------------------------------------------------------


def _gptq(c: Section) -> Layout:
    """Return the layout of AutoGPTQ: codes are packed along the inputs, zeros along the outputs, and zeros of its first format are
    one less than what is subtracted."""
    bits = c.whole("bits")
    if bits not in (2, 3, 4, 8):
        raise c.error(f"bits is {bits}", fix="2, 3, 4 or 8")
    less = 0 if c.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq") == "gptq_v2" else 1

    def shape(parts: Mapping[str, Entry], _read: Read) -> Shape:
        words, outs = _matrix(parts[".qweight"], ("I32",))
        groups, of_zeros = _matrix(parts[".qzeros"], ("I32",))
        ins = words * 32 // bits
        _expect(_matrix(parts[".scales"], FLOATS) == (groups, outs) and of_zeros == -(-outs * bits // 32) and 0 < groups <= ins
                and ins * bits == words * 32 and (".g_idx" in parts or ins % groups == 0),
                f"codes of {bits} bits, scales and zeros do not fit each other")
        _expect(".g_idx" not in parts or (parts[".g_idx"].shape == (ins,) and parts[".g_idx"].stored in ("I32", "I64")),
                f"g_idx is not the group of each of {ins} inputs")
        return outs, ins

    def values(arrays: Mapping[str, Array], shape: Shape) -> Array:
        scale = arrays[".scales"]
        zero = unpacked(arrays[".qzeros"], bits, shape[0]).astype(np.int16) + less
        return scaled(unpacked(arrays[".qweight"].T, bits, shape[1]), scale.T, zero.T, arrays.get(".g_idx"),
                      shape[1] // scale.shape[0])

    return Layout(".weight", (".qweight", ".qzeros", ".scales", ".g_idx"), (".g_idx",), shape, values)


def _awq(c: Section) -> Layout:
    """Return the layout "gemm" of AutoAWQ: codes and zeros are packed along the outputs, in an order of its own."""
    bits = c.whole("bits", 4) if c.has("bits") or not c.has("w_bit") else c.whole("w_bit")
    if bits != 4:
        raise c.error(f"bits is {bits}", fix="4")
    key = "version" if c.has("version") else "format"
    if c.text(key, "gemm").lower() != "gemm":
        raise c.error(f"{key} is {c.text(key)!r}, which is not read", fix='the version "gemm"')

    def shape(parts: Mapping[str, Entry], _read: Read) -> Shape:
        ins, words = _matrix(parts[".qweight"], ("I32",))
        groups = parts[".scales"].shape[0] if parts[".scales"].shape else 0
        _expect(_matrix(parts[".scales"], FLOATS) == (groups, words * 8) and 0 < groups and ins % groups == 0
                and (".qzeros" not in parts or _matrix(parts[".qzeros"], ("I32",)) == (groups, words)),
                "codes, scales and zeros do not fit each other")
        return words * 8, ins

    def channels(words: Array) -> Array:
        codes = unpacked(words, 4, words.shape[1] * 8)
        return codes.reshape(len(codes), -1, 8)[..., AWQ_ORDER].reshape(codes.shape)

    def values(arrays: Mapping[str, Array], shape: Shape) -> Array:
        scale = arrays[".scales"]
        zero = channels(arrays[".qzeros"]) if ".qzeros" in arrays else np.full(scale.shape, 8, np.uint8)
        return scaled(np.ascontiguousarray(channels(arrays[".qweight"]).T), scale.T, zero.T, None, shape[1] // scale.shape[0])

    return Layout(".weight", (".qweight", ".scales", ".qzeros"), (".qzeros",), shape, values)


def _mxfp4(c: Section) -> Layout:
    """Return the layout of gpt-oss: experts as blocks of 32 codes along the inputs, each with an exponent. In a plain folder the
    same tensor is [experts, inputs, outputs]."""
    def shape(parts: Mapping[str, Entry], _read: Read) -> Shape:
        blocks, scales = parts["_blocks"], parts["_scales"]
        _expect(len(blocks.shape) == 4 and blocks.shape[3] == 16 and scales.shape == blocks.shape[:3]
                and blocks.stored == scales.stored == "U8", "blocks and scales do not fit each other")
        experts, outs, count, _ = blocks.shape
        return experts, 32 * count, outs

    def values(arrays: Mapping[str, Array], shape: Shape) -> Array:
        experts, ins, outs = shape
        out = np.empty((experts, outs, ins), np.float32)
        for e in range(experts):                                    # codes as indices take as much as the values
            codes, exponents = arrays["_blocks"][e], arrays["_scales"][e].astype(np.int32) - 127
            pairs = np.stack((codes & 15, codes >> 4), -1).reshape(outs, -1, 32)
            with np.errstate(over="ignore"):                        # 255 means no number
                out[e] = np.ldexp(FOUR_BIT_FLOATS[pairs], exponents[..., None]).reshape(outs, ins)
            out[e].reshape(outs, -1, 32)[arrays["_scales"][e] == 255] = np.nan
        return out.swapaxes(1, 2)

    return Layout("", ("_blocks", "_scales"), (), shape, values)


METHODS: Mapping[str, Callable[[Section], Layout]] = {
    "compressed-tensors": _compressed, "gptq": _gptq, "awq": _awq, "fp8": _fp8,
    "fbgemm_fp8": lambda c: _by_scales(".weight_scale", ".weight_zero_point", None), "mxfp4": _mxfp4,
}
"""`quant_method` -> layout of its section of config.json."""
