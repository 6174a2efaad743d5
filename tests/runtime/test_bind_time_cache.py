"""Values made of a weight in a file are mapped by the next process; other bytes, another file; rebinding makes them again."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices import checksummed_files
from tensor_graphs.devices.safetensors import open_weights, write_weights
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan, with_parameters
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime import bind_time_cache
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tests.plans import plan_of

ROWS, INNER = 300, 64
X = np.random.default_rng(0).standard_normal((3, INNER)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of this test, where even small values are kept."""
    monkeypatch.setattr(bind_time_cache, "LEAST_BYTES", 1)
    monkeypatch.setattr(checksummed_files, "user_folder", lambda kind: tmp_path / "cache" / kind)
    return tmp_path / "cache" / "bound"


@pytest.fixture(scope="module")
def plan() -> Plan:
    x, w = tg.input("x", (tg.dim("m", 1, 9), INNER), tg.f32), tg.input("w", (ROWS, INNER), tg.f32)
    graph = signature_of(tg.linear_argmax(x, w)[0].inputs[0]).graph
    return single_kernel_plan(with_parameters(graph, ["x1"]), kernel_named("c.linear_argmax"))


def _write(file: Path, seed: int) -> np.ndarray:
    weight = np.random.default_rng(seed).standard_normal((ROWS, INNER)).astype(np.float32)
    write_weights(file, {"w": (tg.f32, (ROWS, INNER))}, lambda name: weight)
    return weight


def _bound(plan: Plan, file: Path) -> CompiledGraph:
    return bind(plan, {"x1": open_weights(file).array("w")})


def _mapped(model: CompiledGraph) -> int:
    return sum(m.device.is_host and not m.owner.flags.writeable and b not in e.parameter_bases.values()
               for e in model.executors for b, m in e.fixed.items() if m.nbytes > 64)


def _is_right(model: CompiledGraph, weight: np.ndarray) -> bool:
    return bool((model.run({"x0": X})["y1"] == (X.astype(np.float64) @ weight.astype(np.float64).T).argmax(axis=1)).all())


def test_what_one_process_has_made_of_a_file_the_next_one_maps(plan: Plan, folder: Path, tmp_path: Path) -> None:
    weight = _write(tmp_path / "a.safetensors", 1)
    first = _bound(plan, tmp_path / "a.safetensors")
    assert _is_right(first, weight) and not _mapped(first)
    (kept,) = folder.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    again = _bound(plan, tmp_path / "a.safetensors")
    assert _is_right(again, weight) and _mapped(again) == 4
    os.chmod(kept, 0o622)                                           # anyone may have written to it
    assert not _mapped(_bound(plan, tmp_path / "a.safetensors"))


def test_another_file_or_the_same_one_with_other_bytes_is_made_anew(plan: Plan, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    _write(file, 1)
    _bound(plan, file)
    for name, seed in (("b.safetensors", 2), ("a.safetensors", 3)):
        weight = _write(tmp_path / name, seed)
        assert _is_right(model := _bound(plan, tmp_path / name), weight) and not _mapped(model)
    held = open_weights(file).array("w")
    with open(file, "r+b") as opened:                               # while it is mapped
        opened.seek(-4, os.SEEK_END)
        opened.write(np.float32(77.0).tobytes())
    assert _is_right(model := bind(plan, {"x1": held}), held) and not _mapped(model)


def test_rebinding_makes_what_was_mapped_anew_and_leaves_the_file(plan: Plan, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    weight = _write(file, 1)
    _bound(plan, file)
    model = _bound(plan, file)
    assert _mapped(model) == 4
    other = -weight
    model.rebind("x1", other)
    assert _is_right(model, other) and not _mapped(model)
    assert _is_right(_bound(plan, file), weight)


def test_a_weight_in_memory_a_short_file_and_a_small_value_are_not_taken(plan: Plan, folder: Path, tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    weight = _write(tmp_path / "a.safetensors", 1)
    assert _is_right(bind(plan, {"x1": weight}), weight) and not folder.exists()
    _bound(plan, tmp_path / "a.safetensors")
    (kept,) = folder.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert _is_right(model := _bound(plan, tmp_path / "a.safetensors"), weight) and not _mapped(model)
    monkeypatch.setattr(bind_time_cache, "LEAST_BYTES", 16 << 20)
    assert not _mapped(_bound(plan, tmp_path / "a.safetensors"))


def test_of_values_that_are_made_of_each_other_the_last_is_kept_and_mapped_and_the_others_are_not_made(folder: Path,
                                                                                                     tmp_path: Path) -> None:
    """The weight in the file is turned, and the turned one prepared: a run reads both, and not what is doubled before."""
    x, w = tg.input("x", (3, INNER), tg.f32), tg.parameter("w", (INNER, ROWS), tg.f32)
    plan = plan_of(tg.graph({"y": tg.linear_argmax(x, (w + w).T)[1]}), ("c", "numpy"))
    weight = np.random.default_rng(1).standard_normal((INNER, ROWS)).astype(np.float32)
    write_weights(tmp_path / "a.safetensors", {"w": (tg.f32, weight.shape)}, lambda name: weight)
    want = (X.astype(np.float64) @ weight).argmax(axis=1)
    for number in range(2):
        model = bind(plan, {"w": open_weights(tmp_path / "a.safetensors").array("w")})
        assert model.run({"x": X})["y"].tolist() == want.tolist()
        (executor,) = model.executors
        kept = {executor.lookup.first + home for home in executor.bind_time.kept}
        assert kept < {b for b, m in executor.fixed.items()} and _mapped(model) == number * len(kept)
        assert len(list(folder.iterdir())) == len(executor.bind_time.steps(executor.bind_time.kept)) - 1   # all but the sum
    model.rebind("w", -weight)
    assert model.run({"x": X})["y"].tolist() == (X.astype(np.float64) @ -weight).argmax(axis=1).tolist() and not _mapped(model)


def test_a_quantised_weight_is_mapped_by_the_next_process(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind_time_cache, "LEAST_OF_HOST", 1)
    x, w = tg.input("x", (3, INNER), tg.f32), tg.parameter("w", (ROWS, INNER), tg.f32)
    plan = plan_of(tg.graph({"y": tg.block_linear(x, tg.quantize(w, format="Q8_0"), format="Q8_0")}), ("c", "numpy"))
    weight = _write(tmp_path / "a.safetensors", 1)
    results = []
    for number in range(2):
        model = bind(plan, {"w": open_weights(tmp_path / "a.safetensors").array("w")})
        results.append(model.run({"x": X})["y"])
        (executor,) = model.executors
        assert len(list(folder.iterdir())) == len(executor.bind_time.kept) == 1       # the packed blocks
        assert _mapped(model) == number
    assert np.array_equal(*results) and np.allclose(results[0], X @ weight.T, atol=0.5)
    monkeypatch.setattr(bind_time_cache, "_python_digest", lambda: "other code")
    assert not _mapped(bind(plan, {"w": open_weights(tmp_path / "a.safetensors").array("w")}))


@pytest.mark.parametrize("place", [3, 1000, -1])
def test_bytes_that_changed_where_they_are_kept_are_made_again(plan: Plan, folder: Path, tmp_path: Path, place: int) -> None:
    weight = _write(tmp_path / "a.safetensors", 1)
    _bound(plan, tmp_path / "a.safetensors")
    (kept,) = folder.iterdir()
    with open(kept, "r+b") as file:
        file.seek(place, os.SEEK_SET if place >= 0 else os.SEEK_END)
        (old,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old ^ 0x40]))
    assert _is_right(model := _bound(plan, tmp_path / "a.safetensors"), weight) and not _mapped(model)
    assert _is_right(model := _bound(plan, tmp_path / "a.safetensors"), weight) and _mapped(model) == 4


def test_what_was_not_used_for_the_longest_time_goes(plan: Plan, folder: Path, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        _write(tmp_path / f"{number}.safetensors", number)
        _bound(plan, tmp_path / f"{number}.safetensors")
        for path in folder.iterdir():
            os.utime(path, ns=(number, number))
    monkeypatch.setattr(bind_time_cache, "MOST_BYTES", 1)
    _write(tmp_path / "3.safetensors", 3)
    _bound(plan, tmp_path / "3.safetensors")
    assert len(list(folder.iterdir())) == 1
