"""frontends/huggingface/families.py: every row against transformers' own model: 32 greedy tokens and all logits of one plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from family_cases import DECODERS, VOCABULARY, Case

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.costs.roofline import work
from tensor_graphs.frontends.huggingface.families import FAMILIES
from tensor_graphs.frontends.huggingface.load import LoadedModel, load_model, model_graph
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.dtypes import DType, bf16, f32, i32
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.transformer import Facts, TensorNames, decoder_graph
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.serving.generate import generate

TOKENS, PROMPTS, DIFFERENT = 32, (3, 30), 5
"""the longer prompt is longer than every window, and than what a rotation was stretched from; fewer different tokens show little"""
TOLERANCE = 1e-5


def relative_error(out: np.ndarray, expected: np.ndarray) -> float:
    return measure(out, expected, f32).max_relative_error


def prompt_of(length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(length).integers(3, VOCABULARY, length)]


def varied_seed(case: Case) -> int | None:
    """The first seed (None: none of 100) with which transformers' greedy tokens vary after every prompt."""
    for seed in range(100):
        with TemporaryDirectory() as folder:
            theirs = dataclasses.replace(case, seed=seed).write(Path(folder))
        made = [theirs.generate(torch.tensor([prompt_of(length)]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
                for length in PROMPTS]
        if all(len(set(ids[0, -TOKENS:].tolist())) >= DIFFERENT for ids in made):
            return seed
    return None


def stepped(model: Any, prompt: list[int], after: list[int]) -> np.ndarray:
    """transformers' logits in double precision: of all positions of the prompt, then token by token on its cache."""
    rows, cache = [], None
    with torch.no_grad():
        model(torch.tensor([[1]]))                   # dynamic rotations remember the longest text until there is a short one
        for part in (prompt, *([token] for token in after)):
            out = model(torch.tensor([part]), past_key_values=cache, use_cache=True)
            rows.append(out.logits[0].double().numpy())
            cache = out.past_key_values
    return np.concatenate(rows)


def ours(compiled: CompiledGraph, prompt: list[int], after: list[int]) -> np.ndarray:
    session, rows, past = compiled.session(), [], 0
    for part in (prompt, *([token] for token in after)):
        ids = np.array(part, np.int32)
        rows.append(compiled.run({"ids": ids}, dims={"p": past, "m": len(part)}, session=session)["logits"].copy())
        past += len(part)
    return np.concatenate(rows)


def first_of_families(cases: list[Case]) -> dict[str, Case]:
    return {case.family: case for case in reversed(cases)}


def marked(cases: list[Case]) -> list[Any]:
    """The first case of each family always runs, the others are `long`."""
    first = first_of_families(cases)
    return [pytest.param(case, id=case.id, marks=() if first[case.family] is case else pytest.mark.long) for case in cases]


def graph_in_bf16(case: Case, folder: Path, **more: Any) -> Graph:
    getattr(transformers, case.config + "Config")(**case.settings).save_pretrained(folder)
    return model_graph(folder, dtype="bfloat16", **more)


def stored_in(graph: Graph) -> set[DType]:
    """Dtypes of the results of the composites that every family has some of."""
    return {node.dtype for node in graph.nodes if node.op.name in ("embedding", "attention", "rms_norm", "layer_norm", "rope")}


@pytest.mark.parametrize("case", marked(DECODERS))
def test_tokens_and_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    theirs = case.write(tmp_path)
    model = load_model(tmp_path, max_positions=64)
    assert model.kind == case.family
    compiled = bind(compile_graph(model.graph, backends=("c", "numpy"), at={"n": 1, "m": 1, "p": 32}, simplify=False),
                    model.weights)
    for length in PROMPTS:
        prompt = prompt_of(length)
        made = generate(compiled, prompt, TOKENS).ids
        assert len(set(made)) >= DIFFERENT, f"{made}: hardly varies; SEEDS needs {case.id!r}: {varied_seed(case)}"
        expected = stepped(theirs, prompt, made[:-1])
        assert made == [int(i) for i in expected[length - 1:].argmax(axis=-1)]
        assert relative_error(ours(compiled, prompt, made[:-1]), expected) <= TOLERANCE


@pytest.mark.parametrize("case", first_of_families(DECODERS).values(), ids=lambda case: case.family)
def test_a_decoder_in_bf16_has_caches_of_bf16_and_logits_of_float32(case: Case, tmp_path: Path) -> None:
    for greedy, outputs in ((False, {"logits": f32}), (True, {"token": i32, "logit": f32})):
        g = graph_in_bf16(case, tmp_path, greedy=greedy)
        assert {name: node.dtype for name, node in g.outputs.items()} == outputs
        assert {node.dtype for node in (*g.states.values(), *g.parameters.values())} == stored_in(g) == {bf16}
        wide = graph_in_bf16(case, tmp_path, greedy=greedy, activations="float32")
        assert {node.dtype for node in wide.states.values()} == stored_in(wide) == {f32}


# ---- the comparison refuses another model ----------------------------------------------------------------------------

Change = Callable[[Facts, TensorNames], tuple[Facts, TensorNames] | None]
"""One mistake in a row; None where the row has no place for it."""


def layers(change: Callable[[Any], Any]) -> Change:
    """A mistake in every layer that it changes."""
    def made(facts: Facts, names: TensorNames) -> tuple[Facts, TensorNames] | None:
        new = tuple(change(layer) for layer in facts.layers)
        return None if new == facts.layers else (dataclasses.replace(facts, layers=new), names)
    return made


def turned(**change: Any) -> Change:
    """A mistake in every rotation."""
    def one(layer: Any) -> Any:
        rope = layer.rope
        return layer if rope is None else dataclasses.replace(layer, rope=dataclasses.replace(
            rope, **{k: v(rope) for k, v in change.items()}))
    return layers(one)


def window(by: int) -> Change:
    return layers(lambda layer: dataclasses.replace(layer, window=layer.window + by) if layer.window else layer)


def fact(name: str, change: Callable[[Any], Any]) -> Change:
    def made(facts: Facts, names: TensorNames) -> tuple[Facts, TensorNames] | None:
        new = change(getattr(facts, name))
        return None if new == getattr(facts, name) else (dataclasses.replace(facts, **{name: new}), names)
    return made


def moved(before: str, behind: str) -> Change:
    """A norm before a block stands behind it instead, or the other way round."""
    def made(facts: Facts, names: TensorNames) -> tuple[Facts, TensorNames] | None:
        a, b = getattr(names, before), getattr(names, behind)
        return (facts, dataclasses.replace(names, **{before: b, behind: a})) if a != b else None
    return made


def without(part: str) -> Change:
    return fact("biases", lambda biases: biases - {part})


ROW_MUTANTS: dict[str, Change] = {
    "scale of scores": layers(lambda layer: dataclasses.replace(layer, scale=1.02 * layer.scale)),
    "eps": fact("eps", lambda eps: max(10 * eps, 1e-3)),
    "window + 1": window(1), "window - 1": window(-1),
    "rope base x 2": turned(theta=lambda rope: 2 * rope.theta),
    "rope scaling x 2": turned(scaling=lambda rope: rope.scaling * (2 if rope.scaling != 1 and rope.kind != "longrope" else 1)),
    "rope factors of short texts": turned(long=lambda rope: rope.short),
    "rope border": turned(low=lambda rope: rope.low * (1.1 if rope.kind == "llama3" else 1)),
    "rope magnitude": turned(magnitude=lambda rope: 1.02 * rope.magnitude),
    "rope pairs": turned(neighbours=lambda rope: not rope.neighbours),
    "no rope": layers(lambda layer: dataclasses.replace(layer, rope=None)),
    "norm of attention moved": moved("attention_in", "attention_out"),
    "norm of feed-forward moved": moved("ffn_in", "ffn_out"),
    "norm offset": fact("norm_offset", lambda offset: 0.0),
    "no norm of q": lambda facts, names: (facts, dataclasses.replace(names, q_norm="")) if names.q_norm else None,
    "norms of q and k exchanged": lambda facts, names: None if facts.heads != facts.kv_heads or not names.q_norm else (
        facts, dataclasses.replace(names, q_norm=names.k_norm, k_norm=names.q_norm)),
    **{f"no bias of {part}": without(part) for part in ("q", "v", "o", "gate", "up", "down", "norm")},
    "blocks one after the other": fact("parallel", lambda parallel: False),
    "activation": lambda facts, names: None if all(layer.experts and layer.experts.limit for layer in facts.layers) else fact(
        "activation", lambda name: {"silu": "gelu_tanh", "gelu": "gelu_tanh", "gelu_tanh": "gelu"}[name])(facts, names),
    "scores not capped": fact("attention_softcap", lambda cap: 0.0), "logits not capped": fact("final_softcap", lambda cap: 0.0),
    "embedding scale": fact("embedding_scale", lambda scale: 1.0), "residual scale": fact("residual_scale", lambda scale: 1.0),
    "logit scale": fact("logit_scale", lambda scale: 1.0),
    "no sinks": lambda facts, names: (facts, dataclasses.replace(names, sinks="")) if names.sinks else None,
    "no bias of the router": without("router"), "no bias of experts": without("expert"),
    "middle of experts": layers(lambda layer: dataclasses.replace(layer, experts=dataclasses.replace(
        layer.experts, limit=1.1 * layer.experts.limit, gain=0.9)) if layer.experts and layer.experts.limit else layer),
    "positions": lambda facts, names: (dataclasses.replace(facts,
        first_position=1), names) if facts.positions else None,
}
"""A bias of k adds one number to all scores of a query, so nothing shows that it is missing where nothing turns or caps scores."""


@cache
def reference(case: Case) -> tuple[LoadedModel, dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """(the model, its weights, ids, transformers' logits of all of them at once)."""
    ids = prompt_of(30)
    with TemporaryDirectory() as folder:
        theirs = case.write(Path(folder))
        model = load_model(folder, max_positions=64)
        return model, {k: np.array(v) for k, v in model.weights.items()}, np.array(ids, np.int32), stepped(theirs, ids, [])


def logits(facts: Facts, names: TensorNames, case: Case) -> np.ndarray:
    _, weights, ids, _ = reference(case)
    g = decoder_graph(facts, names, max_positions=32)
    states = {name: np.zeros(node.shape) for name, node in g.states.items()}
    return interpret(g, {"ids": ids}, weights, states, {"n": len(ids), "p": 0, "m": len(ids)}).outputs["logits"]


REFUSING = [case for case in DECODERS if case.name in (
    "llama3, tied, biases", "yarn", "windows above layer 1", "windows by layer, tied", "window", "tied", "caps", "multipliers",
    "longrope, tied", "untied", "parallel", "two of four", "as they are", "a shared expert", "sinks") or "biases" in case.name]


@pytest.mark.parametrize("case", REFUSING, ids=lambda case: case.id)
def test_a_row_with_a_mistake_is_refused(case: Case) -> None:
    """Every mistake that the row of this model has a place for; the row itself passes."""
    model, _, _, expected = reference(case)
    assert relative_error(logits(model.facts, model.names, case), expected) <= TOLERANCE
    refused = 0
    for name, change in ROW_MUTANTS.items():
        wrong = change(model.facts, model.names)
        if wrong is None:
            continue
        assert not relative_error(logits(*wrong, case), expected) <= 2 * TOLERANCE, name
        refused += 1
    assert refused >= 6


@pytest.mark.parametrize("name", ["mixtral: two of four", "qwen3_moe: as they are", "qwen2_moe: a shared expert"])
def test_experts_that_no_token_chose_are_neither_read_nor_computed(name: str) -> None:
    """Stacks of experts go to gather_linear alone (tests/kernels/c/test_gather_linear.py: it reads what is chosen); what its calls
    move and compute is that of the chosen ones."""
    model = reference(next(case for case in DECODERS if case.id == name))[0]
    stacks = {node: node.shape for node in model.graph.parameters.values() if len(node.shape) == 3}
    readers = [node for node in model.graph.nodes if any(i in stacks for i in node.inputs)]
    assert len(readers) == len(stacks) == 3 * len(model.facts.layers) and {node.op.name for node in readers} == {"gather_linear"}
    for n in (1, 2, 64):
        for node in readers:
            count, out, inner = stacks[node.inputs[1]]
            moved, flops = work(signature_of(node), (("n", n),))
            chosen = n * model.facts.layers[0].experts.chosen
            activations = 4 * (math.prod(node.inputs[0].type.at({"n": n}).shape) + chosen * (out + 1))
            assert moved == 4 * min(chosen, count) * out * inner + activations
            assert flops <= 3.5 * chosen * out * inner                     # a product and a sum for each element, and copies


@pytest.mark.parametrize("name", ["cohere2: tied", "granite: multipliers", "gemma2: caps", "qwen3_moe: as they are"])
def test_the_greedy_graph_gives_the_likeliest_token_and_its_logit(name: str) -> None:
    model, weights, ids, expected = reference(next(case for case in DECODERS if case.id == name))
    states = {n: np.zeros(node.shape) for n, node in model.greedy_graph.states.items()}
    out = interpret(model.greedy_graph, {"ids": ids}, weights, states, {"n": len(ids), "p": 0, "m": len(ids)}).outputs
    assert out["token"].tolist() == expected.argmax(axis=-1).tolist()
    assert np.allclose(out["logit"], expected.max(axis=-1), rtol=1e-4, atol=1e-6)


def test_each_mistake_has_a_row_that_it_would_break() -> None:
    for name, change in ROW_MUTANTS.items():
        assert any(change(reference(case)[0].facts, reference(case)[0].names) is not None for case in REFUSING), name


def test_every_family_has_three_cases_and_every_case_a_family() -> None:
    decoders = {row.name for row in FAMILIES.values() if not row.encoder}
    counted = [case.family for case in DECODERS]
    assert set(counted) == decoders and all(counted.count(name) >= 3 for name in decoders)
    assert {case.family for case in REFUSING} == decoders
