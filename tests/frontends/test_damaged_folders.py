"""Damaged and unusual folders of every family: what can be loaded is, and everything else ends in one clear screen, soon.

The folders are made of the rows themselves, so that a new row is tested without a line here; no process starts.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.devices.safetensors import WEIGHTS_FILE, write_weights
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.frontends.huggingface.families import FAMILIES, Family
from tensor_graphs.frontends.huggingface.folder import read_config
from tensor_graphs.frontends.huggingface.load import load_model, model_graph
from tensor_graphs.frontends.huggingface.names import places
from tensor_graphs.language.dtypes import parse_dtype
from tests.cli.command import SCREEN

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "moe_intermediate_size": 24,
         "shared_expert_intermediate_size": 40, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9}
Tensors = dict[str, np.ndarray]


def key_of(row: Family, setting: str) -> str:
    return row.keys.get(setting, setting).split("|")[0]


def config_of(row: Family, **changes: Any) -> dict[str, Any]:
    """A small config.json; changes: by the names that rows give to settings."""
    given = {name: value for name, value in SIZES.items() if name in row.settings} | changes
    return {"model_type": next(iter(row.types), row.name), **{key_of(row, name): value for name, value in given.items()}}


def tensors_of(row: Family, folder: Path) -> Tensors:
    """What a checkpoint of the folder's config.json holds, as it is published: fused where the family fuses, experts one by one."""
    graph, config = model_graph(folder), read_config(folder)
    shapes: dict[str, Any] = {name: node.shape for name, node in graph.parameters.items()}
    found: Tensors = {}
    for candidates in places(config.names, config.facts, config.names.root, shapes).values():
        place = next((c for c in candidates if c.each), None) or next((c for c in candidates if c.rows), candidates[0])
        found |= {name: np.full(place.shape, 0.5, np.float32) for name in place.tensors}
    return found


def written(row: Family, folder: Path, change: Callable[[Tensors], Tensors] = lambda tensors: tensors, **settings: Any) -> Path:
    """A folder whose weights are those of the small model, and whose settings say something else."""
    (folder / "config.json").write_text(json.dumps(config_of(row)))
    tensors = change(tensors_of(row, folder))
    (folder / "config.json").write_text(json.dumps(config_of(row, **settings)))
    types = {name: (parse_dtype(a.dtype), a.shape) for name, a in tensors.items()}
    write_weights(folder / WEIGHTS_FILE, types, lambda name: tensors[name])
    return folder


@dataclass(frozen=True)
class Damage:
    """change: of the tensors; settings: of config.json; said: what the message names. fits: whether a row has a place for it."""

    name: str
    said: str
    change: Callable[[Tensors], Tensors] = lambda tensors: tensors
    settings: Mapping[str, Any] | None = None
    fits: Callable[[Family], bool] = lambda row: True


def has(*settings: str) -> Callable[[Family], bool]:
    return lambda row: all(name in row.settings for name in settings)


def a_matrix(tensors: Tensors) -> str:
    return next(name for name, a in sorted(tensors.items()) if a.ndim == 2 and ".0." in name)


def sized(name: str, value: Any, said: str = "", **more: Any) -> Damage:
    return Damage(f"{name} = {value}", said or name, settings={name: value, **more}, fits=has(name))


DAMAGES = (
    Damage("a missing tensor", "tensors are missing: ", lambda t: {n: a for n, a in t.items() if n != a_matrix(t)}),
    Damage("an extra tensor", "have no place in the model", lambda t: {**t, a_matrix(t) + ".more": t[a_matrix(t)]}),
    Damage("a wrong shape", "has shape", lambda t: {**t, a_matrix(t): t[a_matrix(t)][:-1]}),
    Damage("an axis too many", "has shape", lambda t: {**t, a_matrix(t): t[a_matrix(t)][None]}),
    Damage("integers", "is stored as", lambda t: {**t, a_matrix(t): t[a_matrix(t)].astype(np.int32)}),
    Damage("no tensors", "tensors are named", lambda t: {"x": np.zeros(1, np.float32)}),
    Damage("another vocabulary", "has shape", settings={"vocab_size": 98}),
    Damage("one layer fewer than stored", "have no place in the model", settings={"num_hidden_layers": 1}),
    Damage("an unknown rotation", "rope_type is 'axial'", settings={"rope_scaling": {"rope_type": "axial"}},
           fits=has("rope_theta")),
    Damage("a rotation without a factor", "factor is missing", settings={"rope_scaling": {"rope_type": "linear"}},
           fits=has("rope_theta")),
    Damage("quantised", "quant_method is missing", settings={"quantization_config": {"bits": 4}}),
    *(sized(name, value) for name in ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "num_attention_heads",
                                      "max_position_embeddings") for value in (-32, 0, 1 << 40, 1e308, "32", [32], True)),
    *(sized(name, value) for name in ("head_dim", "num_key_value_heads", "num_local_experts", "moe_intermediate_size")
      for value in (-1, 0, 1 << 40)),
    *(Damage(f"{n} heads", "num_attention_heads", settings={"num_attention_heads": n}, fits=lambda row: (
        "head_dim" not in row.settings or "num_key_value_heads" in row.settings)) for n in (3, 5)),
    sized("head_dim", 7, "rotated"),
    sized("num_key_value_heads", 3), sized("num_experts_per_tok", 5),
    Damage("as many layers as may be", "tensors are missing: ", settings={"num_hidden_layers": 512},
           fits=lambda row: row.name == "qwen2"),
    sized("num_local_experts", 4096, "layers of 4096 experts", num_hidden_layers=64), sized("num_experts_per_tok", 0),
    sized("hidden_act", "mish"), sized("eps", 0, "eps"), sized("eps", "small", "eps"),
    sized("sliding_window", -1), sized("layer_types", ["full_attention"], "layer_types lists 1 layers"),
    sized("layer_types", ["chunked"] * 2, "'chunked'"),
    Damage("a window of 0", "sliding_window", settings={"sliding_window": 0},
           fits=lambda row: "sliding_window" in row.settings and "use_sliding_window" not in row.settings),
)
SAMPLE = ("a missing tensor", "an extra tensor", "a wrong shape", "another vocabulary", "num_hidden_layers = 1099511627776",
          "num_attention_heads = 0", "3 heads")
"""what each family has in every run; the others are `long`"""


def cases() -> list[Any]:
    return [pytest.param(row, damage, id=f"{row.name}: {damage.name}", marks=() if damage.name in SAMPLE else pytest.mark.long)
            for row in FAMILIES.values() for damage in DAMAGES if damage.fits(row)]


@pytest.mark.parametrize(("row", "damage"), cases())
def test_a_damaged_folder_ends_in_one_clear_screen(row: Family, damage: Damage, tmp_path: Path) -> None:
    named = [key_of(row, name) if name == damage.said else "" for name in damage.settings or ()]
    written(row, tmp_path, damage.change, **(damage.settings or {}))
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TensorGraphsError) as raised:
        load_model(tmp_path)
    said = str(raised.value)
    assert next(filter(None, named), damage.said) in said and "\n  fix: " in said and "<string>" not in said, said
    assert str(tmp_path) in said and len(said.splitlines()) <= SCREEN and max(map(len, said.splitlines())) <= 800, said
    assert time.process_time() - start < 10 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 << 20   # KiB


@pytest.mark.parametrize("row", FAMILIES.values(), ids=lambda row: row.name)
def test_a_folder_without_damage_loads_and_so_does_one_of_mixed_dtypes(row: Family, tmp_path: Path) -> None:
    """Otherwise the cases above would prove nothing."""
    kinds = (np.float32, np.float16, parse_dtype("bf16").numpy)
    written(row, tmp_path, lambda tensors: {name: a.astype(kinds[i % 3]) for i, (name, a) in enumerate(tensors.items())})
    model = load_model(tmp_path)
    assert all(model.weights[name].dtype == np.float32 and (model.weights[name] == 0.5).all() for name in model.weights)
