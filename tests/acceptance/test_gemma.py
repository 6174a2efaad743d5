"""Gemma 3 in small: 64 greedy tokens as transformers generates them, from one compiled plan, and exact logits.

Compiling a variant takes half a minute, so `make test` asks for less: tokens of a smaller one (cli/test_typer_app.py), its logits
against transformers (frontends/huggingface/test_load.py), chunks (models/test_gemma3.py), bf16 (test_families_bf16.py).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma3ForCausalLM

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.errors import SamplingError
from tensor_graphs.frontends.huggingface.folder import FULL, SLIDING, Gemma3TextConfig, write_gemma3_folder
from tensor_graphs.frontends.huggingface.load import LoadedModel, load_model
from tensor_graphs.language.dtypes import f32
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.serving.generate import generate
from tensor_graphs.serving.sampling import Sampling

pytestmark = pytest.mark.long
TOKENS, PROMPTS = 64, (1, 7, 40)
SMALL = Gemma3TextConfig(
    vocab_size=997,
    hidden_size=72,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=32,
    rms_norm_eps=1e-6,
    sliding_window=8,
    layer_types=(SLIDING, SLIDING, FULL),
    query_pre_attn_scalar=32,
    initializer_range=0.1,
    max_position_embeddings=128,
)
VARIANTS = {
    "one kv head": SMALL,
    "two kv heads, a large eps": dataclasses.replace(
        SMALL, num_attention_heads=6, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-3, query_pre_attn_scalar=24
    ),
    "as many kv heads as heads, a stretched rope": dataclasses.replace(
        SMALL,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=24,
        layer_types=(FULL, SLIDING),
        num_hidden_layers=2,
        rope_factor=8.0,
        rope_theta=50_000.0,
    ),
}


@dataclasses.dataclass
class Case:
    folder: Path
    model: LoadedModel
    compiled: CompiledGraph


@pytest.fixture(scope="module", params=VARIANTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A variant, written as a folder, loaded from it and compiled once."""
    folder = tmp_path_factory.mktemp("gemma")
    write_gemma3_folder(folder, VARIANTS[request.param], seed=3)
    model = load_model(folder)
    plan = compile_graph(model.graph, backends=("c", "gen", "numpy"), at={"n": 1, "m": 1, "p": 64})
    return Case(folder, model, bind(plan, model.weights))


@pytest.fixture(scope="module")
def greedy(case: Case) -> Plan:
    """The plan of the graph that returns the likeliest token."""
    return compile_graph(case.model.greedy_graph, backends=("c", "numpy"), at={"n": 1, "m": 1, "p": 64})


def prompt_of(length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(length).integers(3, SMALL.vocab_size, length)]


def transformers_logits(folder: Path, ids: list[int], dtype: torch.dtype = torch.float32) -> np.ndarray:
    """f32[len(ids), vocabulary], all positions at once."""
    model = Gemma3ForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        return np.asarray(model(torch.tensor([ids])).logits[0].float().numpy())


def ours(compiled: CompiledGraph, ids: list[int], chunks: tuple[int, ...]) -> np.ndarray:
    """Logits of all positions, computed in chunks on one session."""
    session, rows, past = compiled.session(), [], 0
    for size in chunks:
        part = np.array(ids[past : past + size], np.int32)
        rows.append(compiled.run({"ids": part}, dims={"p": past, "m": size}, session=session)["logits"].copy())
        past += size
    return np.concatenate(rows)


def oracle(model: LoadedModel, ids: list[int]) -> np.ndarray:
    states = {name: np.zeros(node.shape) for name, node in model.graph.states.items()}
    sizes = {"n": len(ids), "p": 0, "m": len(ids)}
    found = interpret(model.graph, {"ids": np.array(ids, np.int32)}, dict(model.weights), states, sizes)
    return np.asarray(found.outputs["logits"])


def test_all_of_it_runs_natively(case: Case) -> None:
    for variant in case.compiled.plan.variants:
        assert {i.kernel.partition(".")[0] for i in variant.program.instructions} == {"c", "gen"}


@pytest.mark.parametrize("length", PROMPTS)
def test_greedy_tokens_are_those_of_transformers(case: Case, length: int) -> None:
    """By induction: every one of our tokens is what transformers finds likeliest behind all that stand before it."""
    prompt = prompt_of(length)
    made = generate(case.compiled, prompt, TOKENS).ids
    assert len(made) == TOKENS and len(set(made)) > TOKENS // 3
    theirs = transformers_logits(case.folder, prompt + made[:-1])[length - 1 :]
    assert made == [int(i) for i in theirs.argmax(axis=-1)]


@pytest.mark.parametrize("length", PROMPTS)
def test_the_greedy_graph_gives_the_tokens_of_all_logits(case: Case, greedy: Plan, length: int) -> None:
    assert all(i.kernel == "c.linear_argmax" for v in greedy.variants for i in v.program.instructions if "argmax" in i.op)
    compiled, prompt = bind(greedy, case.model.weights), prompt_of(length)
    assert generate(compiled, prompt, TOKENS).ids == generate(case.compiled, prompt, TOKENS).ids
    with pytest.raises(SamplingError, match="gives the likeliest token only; draws, a repetition penalty"):
        generate(compiled, prompt, 1, sampling=Sampling(temperature=1.0))


def test_a_logit_that_is_no_number_is_no_token(case: Case, greedy: Plan) -> None:
    broken = {**case.model.weights, "model.norm.weight": np.full(SMALL.hidden_size, np.nan, np.float32)}
    compiled = bind(greedy, broken)
    with pytest.raises(SamplingError, match="the largest logit, of token 0, is nan"):
        generate(compiled, prompt_of(3), 1)


def test_the_logits_are_the_oracles_however_the_tokens_arrive(case: Case) -> None:
    ids = prompt_of(53)
    expected = oracle(case.model, ids)
    for chunks in ((53,), (40, *[1] * 13), (7, 20, 26)):
        error = measure(ours(case.compiled, ids, chunks), expected, f32).max_relative_error
        assert error <= 2e-5, (chunks, error)


def test_rounding_activations_to_bf16_costs_no_more_than_in_transformers(tmp_path: Path) -> None:
    write_gemma3_folder(tmp_path, SMALL, seed=3, dtype="bfloat16")
    ids, errors = prompt_of(53), {}
    for activations in ("float32", "bfloat16"):
        model = load_model(tmp_path, dtype="bfloat16", activations=activations)     # the weights are stored in bf16
        compiled = bind(compile_graph(model.graph, backends=("c", "numpy"), at={"n": 1, "m": 1, "p": 64}), model.weights)
        expected = oracle(model, ids)
        errors[activations] = measure(ours(compiled, ids, (40, *[1] * 13)), expected, f32).norm_error
    theirs = measure(transformers_logits(tmp_path, ids, torch.bfloat16), expected, f32).norm_error
    assert errors["float32"] <= 2e-5, errors
    assert errors["bfloat16"] <= min(theirs, 5e-2), (errors, theirs)
