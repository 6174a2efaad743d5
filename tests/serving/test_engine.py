"""serving/engine.py: many requests at once get the tokens that each gets alone, whatever joins, leaves or makes room."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.frontends.huggingface.load import LoadedModel, load_model
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.serving.engine import PagedEngine, pool_pages, start_engine
from tensor_graphs.serving.generate import generate
from tensor_graphs.serving.requests import GenerationRequest, NewToken, QueueFullError
from tensor_graphs.serving.sampling import Sampling, log_probability
from tensor_graphs.serving.scheduler import TokenSequence
from tensor_graphs.serving.step import BatchStep

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from family_cases import DECODERS, POSITIONS, VOCABULARY

LLAMA = "llama: untied"
LONG = tuple(pytest.param(family, marks=pytest.mark.long) for family in (
    "gemma3: tied", "qwen3: windows by layer, tied", "mistral: window", "gpt_oss: sinks", "phi3: longrope, tied",
    "llama: dynamic, head_dim, mlp biases", "mixtral: two of four"))
"""families of which models/test_paged.py compares the step itself; a step of each takes half a minute to compile"""
HOW: dict[str, Any] = {"sequences": 16, "tokens": 32, "page": 4, "pages": 60, "invariant": True}


EngineOf = Callable[[str], tuple[LoadedModel, PagedEngine]]


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory: Any) -> Iterator[EngineOf]:
    """A function from a family to its model and engine, which is started once."""
    engines: dict[str, tuple[LoadedModel, PagedEngine]] = {}

    def start(family: str) -> tuple[LoadedModel, PagedEngine]:
        if family not in engines:
            folder = tmp_path_factory.mktemp("model")
            next(case for case in DECODERS if case.id == family).write(folder)
            model = load_model(folder, dtype="float32", max_positions=POSITIONS)
            engines[family] = model, start_engine(model, **HOW)
        return engines[family]

    yield start
    for _, engine in engines.values():
        engine.close()


@pytest.fixture(scope="module", params=(LLAMA, *LONG))
def served(request: Any, engine_of: EngineOf) -> tuple[LoadedModel, PagedEngine]:
    return engine_of(request.param)


@pytest.fixture(scope="module")
def llama(engine_of: EngineOf) -> tuple[LoadedModel, PagedEngine]:
    return engine_of(LLAMA)


@pytest.fixture(scope="module", params=(LLAMA, *LONG))
def free(request: Any, tmp_path_factory: Any) -> Iterator[PagedEngine]:
    """An engine whose kernels may depend on the number of rows."""
    folder = tmp_path_factory.mktemp("free")
    next(case for case in DECODERS if case.id == request.param).write(folder)
    engine = start_engine(load_model(folder, dtype="float32", max_positions=POSITIONS), **{**HOW, "invariant": False})
    yield engine
    engine.close()


def requests(count: int, seed: int = 0) -> list[GenerationRequest]:
    """Half of them greedy, half of them drawn; each fourth begins as another one does."""
    draw = np.random.default_rng(seed)
    prompts = [tuple(draw.integers(3, VOCABULARY, int(n)).tolist()) for n in draw.integers(1, 40, count)]
    for i in range(0, count - 1, 4):
        prompts[i + 1] = (*prompts[i][:17], *prompts[i + 1][:20])
    return [GenerationRequest(prompt, int(draw.integers(1, 35)), Sampling(temperature=0.9 * (i % 2), seed=i))
            for i, prompt in enumerate(prompts)]


def ids(tokens: Any) -> list[int]:
    return [token.id for token in tokens]


def another(engine: PagedEngine, invariant: bool = True, **how: Any) -> PagedEngine:
    """An engine with an empty pool, on the same plan."""
    step = BatchStep(engine.compiled, engine._step.pool, invariant=invariant, lengths=engine._step.lengths)
    return PagedEngine(step, max_positions=POSITIONS, **{"sequences": 16, **how})


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 21))])
def test_each_of_32_requests_gets_the_tokens_of_its_solo_run_bit_by_bit(served: tuple[LoadedModel, PagedEngine], seed: int) -> None:
    _, engine = served
    several = requests(32, seed)
    together = [ids(generation) for generation in [engine.submit(request) for request in several]]
    status = engine.status()
    assert seed or (status.preemptions > 0 and status.shared_tokens > 0), "the pool was too large to show anything"
    assert (status.running, status.waiting, status.free_pages) == (0, 0, 60)
    for request, tokens in zip(several, together, strict=True):
        alone = another(engine)
        assert ids(alone.submit(request)) == tokens and len(tokens) == request.tokens
        alone.close()


def test_tokens_are_those_of_generate(llama: tuple[LoadedModel, PagedEngine]) -> None:
    model, engine = llama
    compiled = bind(compile_graph(model.graph, backends=("c", "gen")), model.weights)
    several = requests(12, 1)
    for request, generation in [(request, engine.submit(request)) for request in several]:
        assert ids(generation) == generate(compiled, request.prompt, request.tokens or 0, sampling=request.sampling).ids
        assert generation.finish == "length"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 21))])
def test_without_invariance_tokens_differ_only_where_two_are_as_likely_up_to_rounding(free: PagedEngine, seed: int) -> None:
    several = [replace(request, sampling=Sampling(), log_probabilities=5) for request in requests(32, seed)]
    together = [ids(generation) for generation in [free.submit(request) for request in several]]
    for request, tokens in zip(several, together, strict=True):
        alone = another(free, invariant=False)
        expected = list(alone.submit(request))
        alone.close()
        for token, other in zip(expected, tokens, strict=True):
            if token.id != other:
                logs = dict(token.likeliest)
                assert logs[token.id] - logs[other] <= 1e-4
                break


def test_a_shared_prefix_is_computed_once(llama: tuple[LoadedModel, PagedEngine]) -> None:
    engine = another(llama[1])
    prompt = tuple(range(3, 33))
    first = engine.submit(GenerationRequest(prompt, 2))
    list(first)
    second = engine.submit(GenerationRequest((*prompt[:25], 50), 2))
    list(second)
    assert (first.cached_tokens, second.cached_tokens) == (0, 24)
    assert engine.status().shared_tokens == 24 and engine.status().prompt_tokens == 56
    engine.close()


def test_a_stop_id_ends_a_text_and_is_not_yielded(llama: tuple[LoadedModel, PagedEngine]) -> None:
    engine = llama[1]
    tokens = ids(engine.submit(GenerationRequest((5, 6, 7), 20)))
    last = next(i for i in range(1, 20) if tokens[i] not in tokens[:i])
    generation = engine.submit(GenerationRequest((5, 6, 7), 20, stop_ids=frozenset({tokens[last]})))
    assert ids(generation) == tokens[:last] and generation.finish == "stop"


def test_without_a_number_of_tokens_it_goes_on_to_the_last_position(llama: tuple[LoadedModel, PagedEngine]) -> None:
    generation = llama[1].submit(GenerationRequest((5, 6, 7)))
    assert len(ids(generation)) == POSITIONS - 3 + 1 and generation.finish == "length"
    assert ids(llama[1].submit(GenerationRequest((5, 6), 0))) == []


def test_a_cancelled_request_ends_and_its_pages_are_free(llama: tuple[LoadedModel, PagedEngine]) -> None:
    engine = llama[1]
    generation = engine.submit(GenerationRequest((9, 8, 7), 70))
    reader = iter(generation)
    next(reader)
    generation.cancel()
    assert len(list(reader)) < 69 and generation.finish == "cancelled"
    assert engine.status().free_pages == 60


def test_log_probabilities_and_masks_are_of_the_model_and_of_the_request(llama: tuple[LoadedModel, PagedEngine]) -> None:
    model, engine = llama
    compiled = bind(compile_graph(model.graph, backends=("c", "gen")), model.weights)
    logits = compiled.run({"ids": np.array([5, 6, 7], np.int32)}, dims={"p": 0, "m": 1}, session=compiled.session())["logits"][0]
    request = GenerationRequest((5, 6, 7), 1, log_probabilities=3)
    token, = engine.submit(request)
    assert token.log_probability == pytest.approx(log_probability(logits, token.id), abs=1e-4)
    assert [i for i, _ in token.likeliest] == np.argsort(-logits)[:3].tolist()

    def only(new: Any) -> np.ndarray:
        return np.arange(VOCABULARY) == 11 + len(new)
    assert ids(engine.submit(replace(request, tokens=3, allowed=only))) == [11, 12, 13]
    assert NewToken(1) == next(iter(engine.submit(GenerationRequest((4,), 1, allowed=lambda new: np.arange(VOCABULARY) == 1))))


def test_an_error_of_a_mask_reaches_its_reader_and_nobody_else(llama: tuple[LoadedModel, PagedEngine]) -> None:
    engine = llama[1]

    def broken(new: Any) -> None:
        raise RuntimeError("no grammar")
    good, bad = engine.submit(GenerationRequest((5,), 9)), engine.submit(GenerationRequest((6,), 9, allowed=broken))
    with pytest.raises(RuntimeError, match="no grammar"):
        list(bad)
    assert len(list(good)) == 9 and engine.status().running == 0


def test_what_cannot_run_is_refused_at_once(llama: tuple[LoadedModel, PagedEngine]) -> None:
    engine = another(llama[1], waiting=0)
    for prompt, tokens in (((), 3), ((VOCABULARY,), 3), ((1,) * POSITIONS, 3)):
        with pytest.raises(FrontendError):
            engine.submit(GenerationRequest(prompt, tokens))
    with pytest.raises(QueueFullError):
        engine.submit(GenerationRequest((1,), 3))
    engine.close()
    with pytest.raises(FrontendError, match="closed"):
        engine.submit(GenerationRequest((1,), 3))


def test_closing_cancels_what_runs(llama: tuple[LoadedModel, PagedEngine]) -> None:
    engine = another(llama[1])
    generation = engine.submit(GenerationRequest((5, 6), 70))
    next(iter(generation))
    engine.close()
    assert len(list(generation)) < 70 and generation.finish == "cancelled"


def test_a_model_whose_kernels_compute_rows_by_their_company_is_refused_for_it(tmp_path: Path) -> None:
    next(case for case in DECODERS if case.family == "mixtral").write(tmp_path)
    model = load_model(tmp_path, dtype="float32", max_positions=POSITIONS)
    engine = start_engine(model, **{**HOW, "pages": 200, "invariant": False})
    with pytest.raises(FrontendError, match="differently in different batches"):
        BatchStep(engine.compiled, engine._step.pool, invariant=True)
    engine.close()


def test_a_prefix_is_shared_only_by_texts_whose_rotations_are_of_one_length() -> None:
    short, long, other = (TokenSequence(list(range(n)), (20, 21)) for n in (18, 30, 40))
    assert short.names(0, 4) != long.names(0, 4) == other.names(0, 4)
    assert long.ends(0, 30).tolist() == [21] * 30 and short.ends(0, 22).tolist() == [20] * 20 + [21] * 2


def test_the_pool_is_as_large_as_memory_allows(llama: tuple[LoadedModel, PagedEngine]) -> None:
    model = llama[0]
    weights = sum(array.nbytes for array in model.weights.values())
    page = 2 * 2 * 2 * 8 * 4 * 4                                    # k and v; 2 layers, 2 heads of 8 channels, 4 tokens of f32
    assert pool_pages(model, [POSITIONS] * 2, 4, None) == 2 * POSITIONS // 4
    assert pool_pages(model, [POSITIONS] * 100, 4, weights + 33 * page) == 33
    with pytest.raises(FrontendError, match="one sequence may take 20"):
        pool_pages(model, [POSITIONS], 4, weights + 19 * page)
