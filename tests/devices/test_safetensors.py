"""devices/safetensors.py against the published library, and against files damaged in every way that has a message."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.devices.safetensors import WeightsError, open_weights, write_weights
from tensor_graphs.language.dtypes import DTYPES, bf16, bool_, f8e4m3, f8e5m2, f32, f64, i8


def write(path: Path, header: Any, data: bytes = b"", pad: bool = True) -> Path:
    """A .safetensors file of this header (anything JSON, or bytes) and these bytes, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t is not bf16], ids=str)
@settings(derandomize=True, max_examples=15, deadline=None)
@given(shape=st.lists(st.integers(0, 5), max_size=4), seed=st.integers(0, 1000))
def test_every_dtype_reads_as_the_library_wrote_it(
    dtype: Any, shape: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("every") / "w.safetensors"
    raw = np.random.default_rng(seed).integers(0, 2 if dtype is bool_ else 256, (*shape, dtype.itemsize), np.uint8)
    array = np.ascontiguousarray(raw).view(dtype.numpy).reshape(shape)
    safetensors.numpy.save_file({"one": array, "two": np.arange(3, dtype=np.int8)}, path)
    read = open_weights(path)
    assert read.info("one") == (dtype.name, tuple(shape))
    assert read.array("one").dtype == dtype.numpy
    assert bits(read.array("one", shape)) == bits(array)
    assert read.nbytes == array.nbytes + 3 and read.names() == ("one", "two")


def test_bfloat16_comes_out_as_the_bits_that_torch_wrote(tmp_path: Path) -> None:
    values = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    safetensors.torch.save_file({"w": values}, tmp_path / "w.safetensors")
    read = open_weights(tmp_path).array("w")
    assert read.dtype == ml_dtypes.bfloat16
    assert np.array_equal(read.astype(np.float32), values.float().numpy())


@pytest.mark.parametrize("stored, dtype, kind", [("F8_E4M3", f8e4m3, torch.float8_e4m3fn), ("F8_E5M2", f8e5m2, torch.float8_e5m2)])
def test_all_floats_of_eight_bits_come_out_as_the_bits_that_torch_wrote(stored: str, dtype: Any, kind: Any, tmp_path: Path) -> None:
    bits = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    safetensors.torch.save_file({"w": bits.view(kind)}, tmp_path / "w.safetensors")
    read = open_weights(tmp_path)
    assert read.entry("w").stored == stored and read.info("w") == (dtype.name, (256,))
    assert read.array("w").view(np.uint8).tolist() == list(range(256))
    np.testing.assert_array_equal(read.array("w").astype(np.float32), bits.view(kind).float().numpy())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_the_library_reads_what_is_written_here(dtype: Any, tmp_path: Path) -> None:
    arrays = {"a": np.arange(6).reshape(2, 3), "scalar": np.array(1), "empty": np.zeros((0, 4)), "odd": np.array([1])}
    typed = {name: a.astype(i8.numpy if name == "odd" else dtype.numpy) for name, a in arrays.items()}
    path = tmp_path / "w.safetensors"
    write_weights(
        path, {n: (i8 if n == "odd" else dtype, a.shape) for n, a in typed.items()}, typed.__getitem__, {"format": "pt"}
    )
    back = safetensors.torch.load_file(path)
    assert back.keys() == typed.keys()
    for name, array in typed.items():
        assert tuple(back[name].shape) == array.shape
        assert np.array_equal(back[name].double().numpy(), array.astype(np.float64))
    assert all(bits(open_weights(path).array(name)) == bits(a) for name, a in typed.items())
    assert open_weights(path).copied == ()


def test_an_array_is_a_read_only_view_of_the_file_and_only_touched_pages_become_resident(tmp_path: Path) -> None:
    size = 256 << 20
    path = write(tmp_path / "big.safetensors", {"w": entry("F32", [size // 4], 0, size)})
    os.truncate(path, path.stat().st_size + size)  # a hole in the file: 256 MB that take no disk

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    array = open_weights(path).array("w")
    assert array.shape == (size // 4,) and array[12345] == 0
    assert resident() - before < 16 << 20
    assert not array.flags.owndata
    with pytest.raises(ValueError):
        array[0] = 1
    assert float(array.sum()) == 0
    assert resident() - before > 128 << 20  # the measure itself can tell


def test_an_array_outlives_its_weights(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.safetensors", {"w": (f32, (3,))}, lambda _: np.arange(3, dtype=np.float32))
    array = open_weights(tmp_path).array("w")
    (tmp_path / "w.safetensors").unlink()
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("shift", range(8))
def test_a_tensor_that_is_not_aligned_is_copied_and_noted(shift: int, tmp_path: Path) -> None:
    values = np.array([1.5, -2.0, 3.25])
    header = {"bytes": entry("U8", [shift], 0, shift), "w": entry("F64", [3], shift, shift + 24)}
    path = write(tmp_path / "w.safetensors", header, bytes(shift) + values.tobytes())
    read = open_weights(path)
    array = read.array("w")
    assert array.tolist() == values.tolist() and array.flags.aligned and not array.flags.writeable
    assert read.copied == (("w",) if shift else ())
    assert array.flags.owndata is False or shift


def test_missing_names_suggest_those_spelt_alike(tmp_path: Path) -> None:
    names = ["model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight"]
    write_weights(tmp_path / "w.safetensors", dict.fromkeys(names, (f32, (1,))), lambda _: np.zeros(1, np.float32))
    read = open_weights(tmp_path)
    with pytest.raises(WeightsError, match=r"no tensor 'norm.weight'\n.*\n  fix: did you mean model.norm.weight\?"):
        read.array("norm.weight")
    with pytest.raises(WeightsError, match=r"did you mean model.layers.0.mlp.up_proj.weight"):
        read.info("model.layers.0.mlp.up_proj.weihgt")
    with pytest.raises(WeightsError, match=r"fix: it holds model.layers.0.mlp.down_proj.weight, model"):
        read.array("zzz")
    assert "model.norm.weight" in read and "norm.weight" not in read and len(read) == 3


def test_a_wrong_shape_names_both(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.safetensors", {"w": (f64, (2, 3))}, lambda _: np.zeros((2, 3)))
    with pytest.raises(WeightsError, match=r"tensor 'w' has shape \[2, 3\], and \[3, 2\] is needed"):
        open_weights(tmp_path).array("w", (3, 2))


@pytest.mark.parametrize("dtype", ["F8_E8M0", "F8_E4M3FNUZ", "F4", "C64"])
def test_an_unsupported_dtype_is_listed_and_refused_by_name(dtype: str, tmp_path: Path) -> None:
    size = {"F4": 1, "C64": 16}.get(dtype, 2)
    header = {"w": entry(dtype, [2], 0, size), "ok": entry("U8", [1], size, size + 1)}
    path = write(tmp_path / "w.safetensors", header, bytes(size + 1))
    read = open_weights(path)
    assert read.info("w") == (dtype, (2,)) and read.array("ok").tolist() == [0]
    with pytest.raises(WeightsError, match=f"tensor 'w' has the unsupported dtype {dtype}\n  file: .*w.safetensors"):
        read.array("w")


GOOD = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 8, 16)}
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty file": (lambda p: p.write_bytes(b""), "truncated: the file has 0 bytes"),
    "seven bytes": (lambda p: p.write_bytes(b"1234567"), "truncated: the file has 7 bytes"),
    "only a length": (lambda p: p.write_bytes(struct.pack("<Q", 9)), "a header of 9 bytes is announced, and 0 follow"),
    "header longer than file": (
        lambda p: p.write_bytes(struct.pack("<Q", 1 << 40) + b"{}"),
        "a header of 1099511627776 bytes is announced, and 2 follow",
    ),
    "cut in the data": (lambda p: write(p, GOOD, bytes(11)), "truncated or out of range: tensor 'b' ends at byte"),
    "cut before the data": (lambda p: write(p, GOOD), "truncated or out of range: tensor 'a' ends at byte"),
    "overlap": (lambda p: write(p, {**GOOD, "b": entry("F32", [2], 4, 12)}, bytes(12)), "tensors 'a' and 'b' overlap"),
    "same bytes twice": (
        lambda p: write(p, {**GOOD, "b": entry("F32", [2], 0, 8)}, bytes(8)),
        "tensors 'a' and 'b' overlap",
    ),
    "gap": (
        lambda p: write(p, {**GOOD, "b": entry("F32", [2], 12, 20)}, bytes(20)),
        "4 bytes before tensor 'b' belong to no tensor",
    ),
    "bytes at the end": (lambda p: write(p, GOOD, bytes(19)), "3 bytes at the end belong to no tensor"),
    "size and shape": (
        lambda p: write(p, {"a": entry("F32", [3], 0, 8)}, bytes(8)),
        r"tensor 'a': F32\[3\] takes 12 bytes, its offsets span 8",
    ),
    "offsets backwards": (
        lambda p: write(p, {"a": entry("F32", [2], 8, 0)}, bytes(8)),
        "takes 8 bytes, its offsets span -8",
    ),
    "negative offset": (lambda p: write(p, {"a": entry("F32", [2], -8, 0)}, bytes(8)), "header's entry for 'a' is not"),
    "negative size": (lambda p: write(p, {"a": entry("F32", [-2], 0, 8)}, bytes(8)), "header's entry for 'a' is not"),
    "size is a bool": (lambda p: write(p, {"a": entry("U8", [True], 0, 1)}, b"1"), "header's entry for 'a' is not"),
    "entry is a number": (lambda p: write(p, {"a": 3}), "header's entry for 'a' is not"),
    "entry without offsets": (lambda p: write(p, {"a": {"dtype": "F32", "shape": [1]}}), "entry for 'a' is not"),
    "unknown dtype": (
        lambda p: write(p, {"a": entry("Q4", [2], 0, 8)}, bytes(8)),
        "tensor 'a' has the unknown dtype 'Q4'",
    ),
    "our spelling of a dtype": (lambda p: write(p, {"a": entry("f32", [2], 0, 8)}, bytes(8)), "unknown dtype 'f32'"),
    "header is no JSON": (lambda p: write(p, b"{'a': 1}"), "the header is not JSON"),
    "header is no text": (lambda p: write(p, b'{"\xff": 1}'), "the header is not JSON"),
    "header nested without end": (lambda p: write(p, b"[" * 200_000), "the header is not JSON"),
    "header is a list": (lambda p: write(p, []), "the header is not a JSON object"),
    "name twice": (lambda p: write(p, b'{"a": {}, "b": {}, "a": {}}'), "the header says 'a' twice"),
    "Git LFS pointer": (
        lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
        "this is a Git LFS pointer",
    ),
    "GGUF": (lambda p: p.write_bytes(b"GGUF" + bytes(40)), "this is a GGUF file under the name"),
    "PyTorch": (lambda p: torch.save({"a": torch.zeros(3)}, p), "this is a PyTorch file under the name"),
}


def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    """640 = 0x0280 bytes of header, so that the file starts like a pickle of protocol 2."""
    names = [f"{i:074d}" for i in range(5)]
    write_weights(tmp_path / "w.safetensors", dict.fromkeys(names, (f32, (1,))), lambda name: np.ones(1, np.float32))
    assert (tmp_path / "w.safetensors").read_bytes()[:2] == b"\x80\x02"
    assert len(open_weights(tmp_path / "w.safetensors")) == 5


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_has_a_message_of_its_own(case: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    damage, message = DAMAGE[case]
    damage(path)
    with pytest.raises(WeightsError, match=message) as raised:
        open_weights(path)
    assert str(path) in str(raised.value)


def test_the_undamaged_file_of_those_cases_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "w.safetensors", {**GOOD, "__metadata__": {"format": "pt"}}, np.arange(4, dtype="<f4").tobytes()
    )
    assert [open_weights(path).array(n).tolist() for n in "ab"] == [[0, 1], [2, 3]]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data())
def test_a_file_with_one_byte_changed_or_cut_never_crashes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("byte") / "w.safetensors", GOOD, bytes(16))
    whole = bytearray(path.read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        read = open_weights(path)
        for name in read.names():
            read.array(name)
    except WeightsError:
        pass


def test_a_bool_that_is_neither_0_nor_1_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", {"m": entry("BOOL", [3], 0, 3)}, b"\0\1\2")
    with pytest.raises(WeightsError, match="'m' is BOOL and holds a byte that is neither 0 nor 1"):
        open_weights(path).array("m")


def sharded(folder: Path) -> dict[str, str]:
    for i in (1, 2):
        write_weights(
            folder / f"model-0000{i}-of-00002.safetensors",
            {f"w{i}": (f32, (2,)), f"v{i}": (f32, ())},
            lambda name: np.full(2 if name[0] == "w" else (), int(name[1]), np.float32),
        )
    shards = {f"{kind}{i}": f"model-0000{i}-of-00002.safetensors" for i in (1, 2) for kind in "wv"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return shards


def test_a_sharded_set_reads_as_one(tmp_path: Path) -> None:
    sharded(tmp_path)
    for source in (tmp_path, tmp_path / "model.safetensors.index.json"):
        read = open_weights(source)
        assert read.names() == ("v1", "v2", "w1", "w2") and len(read.files) == 2 and read.nbytes == 24
        assert read.array("w2", (2,)).tolist() == [2, 2] and read.array("v1").item() == 1
    assert read.entry("w2").file.name == "model-00002-of-00002.safetensors"


def test_one_file_is_taken_before_a_set(tmp_path: Path) -> None:
    sharded(tmp_path)
    write_weights(tmp_path / "model.safetensors", {"whole": (f32, (1,))}, lambda _: np.ones(1, np.float32))
    assert open_weights(tmp_path).names() == ("whole",)


def test_damage_to_a_set_has_messages_of_its_own(tmp_path: Path) -> None:
    shards = sharded(tmp_path)
    index = tmp_path / "model.safetensors.index.json"

    def fails(message: str) -> None:
        with pytest.raises(WeightsError, match=message):
            open_weights(tmp_path)

    index.write_text(json.dumps({"weight_map": {**shards, "w3": shards["w1"]}}))
    fails("the index says that tensor 'w3' is in model-00001-of-00002.safetensors, and it is not there")
    index.write_text(json.dumps({"weight_map": {**shards, "w1": "../elsewhere.safetensors"}}))
    fails("the index names '../elsewhere.safetensors', which lies outside of its folder")
    index.write_text(json.dumps({"weight_map": []}))
    fails("the index has no weight_map")
    index.write_text("{")
    fails("the index is not JSON")
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    fails("model-00002-of-00002.safetensors of the set is missing; it holds 2 of 4 tensors")


def test_a_folder_without_weights_says_what_it_found(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="there is no such file or folder"):
        open_weights(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="there is no model.safetensors\n"):
        open_weights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        WeightsError, match=r"there is no model.safetensors, only pytorch_model.bin\n.*\n  fix: .*convert"
    ):
        open_weights(tmp_path)
    with pytest.raises(WeightsError, match=r"weights are read from .safetensors files"):
        open_weights(tmp_path / "pytorch_model.bin")
    for name in "ab":
        write_weights(tmp_path / f"{name}.safetensors", {}, lambda _: np.zeros(0))
    with pytest.raises(
        WeightsError, match=r"several weights files and no model.safetensors.index.json: a.saf.*, b.saf"
    ):
        open_weights(tmp_path)


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"tensor 'w' was declared f32\[2\], and is float64\[2\]"):
        write_weights(tmp_path / "w.safetensors", {"w": (f32, (2,))}, lambda _: np.zeros(2))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WeightsError, match="cannot write the weights: No such file"):
        write_weights(tmp_path / "no" / "w.safetensors", {}, lambda _: np.zeros(2))
