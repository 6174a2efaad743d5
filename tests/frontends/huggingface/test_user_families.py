"""frontends/huggingface/user_families.py: the row of docs/adding_a_model.md loads a model type that the package does
not know; a wrong row is
refused with what is wrong in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from family_cases import DECODERS

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.errors import ConfigError, FamilyRowError
from tensor_graphs.frontends.huggingface.families import LLAMA
from tensor_graphs.frontends.huggingface.known_models import known_models
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.frontends.huggingface.user_families import OWN, register_family
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.serving.generate import generate
from tests.cli.command import ROOT, assert_complains, document, tg

EXAMPLE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "adding_a_model.md").read_text(encoding="utf-8"), re.DOTALL)[0]
PROMPT = [5, 6, 7]


@pytest.fixture
def unregistered() -> Iterator[None]:
    """The rows that are registered in a test are gone after it."""
    before = dict(OWN)
    yield
    OWN.clear()
    OWN.update(before)


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A folder of the example's model type, with transformers' weights of Granite, and transformers' greedy tokens."""
    folder = tmp_path_factory.mktemp("own") / "scaled"
    theirs = next(case for case in DECODERS if case.id == "granite: multipliers").write(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "model_type": "scaled_llama"}))
    out = theirs.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=8, eos_token_id=config["eos_token_id"])
    return folder, [int(i) for i in out[0, len(PROMPT):]]


def test_the_example_of_the_page_loads_a_model_type_that_is_not_known(scaled: tuple[Path, list[int]], tmp_path: Path) -> None:
    folder, expected = scaled
    (tmp_path / "my_family.py").write_text(EXAMPLE)
    asked = ("run", folder, "--ids", ",".join(map(str, PROMPT)), "--tokens", 8, "--backends", "numpy")
    assert_complains(tg(*asked), "the model type 'scaled_llama' is not known", "a family of yours: --import FILE")
    assert document(tg(*asked, "--import", tmp_path / "my_family.py", "--json"))["ids"] == expected
    listed = document(tg("models", "--import", tmp_path / "my_family.py", "--json"))["models"]
    assert {"model_type": "scaled_llama", "like": "a model of ours"}.items() <= next(
        model for model in listed if model["model_type"] == "scaled_llama").items()


@pytest.mark.usefixtures("unregistered")
def test_a_registered_row_counts_in_python_and_a_second_one_replaces_it(scaled: tuple[Path, list[int]]) -> None:
    folder, expected = scaled
    with pytest.raises(ConfigError, match="the model type 'scaled_llama' is not known"):
        load_model(folder)
    register_family(LLAMA.but("scaled_llama"))
    plain = load_model(folder, max_positions=32)
    exec(EXAMPLE, {})
    model = load_model(folder, max_positions=32)
    assert model.kind == "scaled_llama" and model.facts.residual_scale == 0.4 != plain.facts.residual_scale
    compiled = bind(compile_graph(model.graph, backends=("numpy",), at={"n": 1, "m": 1, "p": 16}), model.weights)
    assert generate(compiled, PROMPT, 8, stop=model.end_ids).ids == expected
    assert "scaled_llama" in {known.kind for known in known_models()}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "fact": ({"facts": lambda s: {"fact": 1}}, "it fails on its defaults: TypeError: .*unexpected keyword argument 'fact'"),
    "setting": ({"facts": lambda s: {"scale": s.nothing}}, "it fails on its defaults: AttributeError: .*'nothing'"),
    "default": ({"settings": {"hidden_size": None}}, "the default of hidden_size is None\n  fix: .*Maybe.WHOLE"),
    "missing": ({"without": ("eps",)}, "the setting 'eps' is missing, .*\n  fix: a default for eps"),
    "key of nothing": ({"keys": {"epss": "rms_norm_eps"}}, "keys names 'epss', which is no setting\n  fix: did you mean eps?"),
    "key": ({"keys": {"eps": 3}}, r"keys\['eps'\] is 3\n  fix: the key of config.json"),
    "activation": ({"settings": {"hidden_act": "gelux"}}, "its defaults describe no model: hidden_act is 'gelux'"),
    "sizes": ({"settings": {"num_attention_heads": 7}}, "num_attention_heads is 7: the first is no multiple"),
    "names": ({"names": {"q": "query"}}, r"names is \{'q': 'query'\}\n  fix: TensorNames"),
    "name": ({"renamed": lambda s: {"query": "q"}}, "unexpected keyword argument 'query'"),
    "refused": ({"refused": {"use_bias": False}}, r"refused\['use_bias'\] is False\n  fix: a tuple"),
    "function": ({"facts": {}}, r"facts is \{\}\n  fix: a function of the settings"),
    "known": ({"types": {"llama": ""}}, "the model type 'llama' is one that the package knows\n  fix: another name"),
}


@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_row_is_refused_with_what_is_wrong_in_it(wrong: str) -> None:
    changes, complaint = WRONG[wrong]
    with pytest.raises(FamilyRowError, match=f"the row of the family 'mine': {complaint}" if wrong not in ("sizes", "name") else
                       complaint):
        register_family(LLAMA.but("mine", **changes))
    assert "mine" not in OWN


def test_what_is_no_row_is_refused() -> None:
    with pytest.raises(FamilyRowError, match=r"'llama' is no row of a family\n  fix: LLAMA\.but"):
        register_family("llama")


@pytest.mark.usefixtures("unregistered")
def test_a_function_that_fails_on_a_folder_is_named_with_its_config(scaled: tuple[Path, list[int]]) -> None:
    folder, _ = scaled
    register_family(LLAMA.but("scaled_llama", facts=lambda s: {"scale": 1 / (s.hidden_size - 32)}))
    with pytest.raises(FamilyRowError, match=r"'scaled_llama': it fails on .*config\.json: ZeroDivisionError"):
        load_model(folder)


def test_a_wrong_row_of_an_imported_file_ends_the_command_with_its_mistake(scaled: tuple[Path, list[int]], tmp_path: Path) -> None:
    (tmp_path / "wrong_family.py").write_text(EXAMPLE.replace("s.logits_scaling", "s.logit_scaling"))
    assert_complains(tg("run", scaled[0], "--ids", "5", "--import", tmp_path / "wrong_family.py"),
                     "the row of the family 'scaled_llama': it fails on its defaults: AttributeError", "'logit_scaling'")
