"""all_steps: a decoder's run of one token as one kernel beside its launches and beside the oracle, on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.kernels.registry import whole_kernels
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.timing.check_decoder_kernel import error_at_once
from tensor_graphs.models.gemma3 import Gemma3Spec, gemma3_graph
from tensor_graphs.models.rope import Rope
from tensor_graphs.paths.pin_file import Pin
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.runtime.segments.decoder_kernel import AllSteps
from tensor_graphs.runtime.session import Session
from tensor_graphs.views.explain import explain

pytestmark = pytest.mark.gpu
THERE = ("cuda", "gencuda")
SPEC = Gemma3Spec(vocabulary=24000, hidden=640, ffn=2048, heads=4, kv_heads=1, head_dim=256, layers=("sliding", "full"), window=512,
                  eps=1e-6, scale=1 / 16, sliding_rope=Rope(1e4), full_rope=Rope(1e6))
AT, LARGEST = {"n": 1, "m": 1, "p": 64}, {"n": 8, "m": 1, "p": 1000}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return gemma3_graph(SPEC, max_positions=1024, weight_dtype=tg.bf16, output="token")


def weights_of(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {n: (draw.standard_normal([int(s) for s in p.shape]) * 0.05).astype(p.dtype.numpy) for n, p in graph.parameters.items()}


@pytest.fixture(scope="module")
def plans(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Plan]:
    """By launches, and at once."""
    database = tmp_path_factory.mktemp("plans") / "b.db"
    launched = compile_graph(graph, backends=THERE, database=database, at=AT, largest=LARGEST)
    (kernel,) = whole_kernels(THERE)
    path = launched.variant(AT).path.at_once(kernel)
    return launched, compile_graph(graph, backends=THERE, database=database, at=AT, largest=LARGEST, path=path)


@pytest.fixture(scope="module")
def both(graph: Graph, plans: tuple[Plan, Plan]) -> tuple[CompiledGraph, CompiledGraph]:
    weights = weights_of(graph, 1)
    launched, at_once = (bind(plan, weights) for plan in plans)
    assert any(isinstance(s, AllSteps) for e in at_once.executors for s in e.segments)
    return launched, at_once


def steps(made: CompiledGraph, session: Session, prompt: list[int], count: int, at: int = 0) -> list[int]:
    """The tokens that follow a prompt, each fed next."""
    ids, found = prompt, list[int]()
    for _ in range(count):
        out = made.run({"ids": np.array(ids, np.int32)}, dims={"p": at, "m": 1}, session=session)
        at += len(ids)
        ids = [int(out["token"][0])]
        found.append(ids[0])
    return found


def filled(made: CompiledGraph, rows: int, seed: int) -> Session:
    session, draw = made.session(), np.random.default_rng(seed)
    states: dict[str, np.ndarray] = {}
    for name, node in made.graph.states.items():
        states[name] = np.zeros([int(s) for s in node.shape], node.dtype.numpy)
        states[name][:rows] = draw.standard_normal(states[name][:rows].shape) * 0.5
    session.restore(states)
    return session


def caches(session: Session, names: Mapping[str, object], rows: int) -> np.ndarray:
    return np.stack([session[name][:rows] for name in names])


@pytest.mark.parametrize("begin", [0, 1, 505, 990])
def test_tokens_and_caches_are_those_of_the_launches(both: tuple[CompiledGraph, CompiledGraph], begin: int) -> None:
    one, other = (filled(made, begin, 7) for made in both)
    assert steps(both[0], one, [17], 12, begin) == steps(both[1], other, [17], 12, begin)
    names, rows = both[0].graph.states, begin + 12
    np.testing.assert_allclose(caches(one, names, rows), caches(other, names, rows), atol=2e-4)


def test_several_tokens_are_launches_and_one_goes_on_from_them(both: tuple[CompiledGraph, CompiledGraph]) -> None:
    sessions = [made.session() for made in both]
    found = [steps(made, session, [5, 900, 23, 7, 11], 10) for made, session in zip(both, sessions, strict=True)]
    assert found[0] == found[1]
    rows = [caches(session, both[0].graph.states, 14) for session in sessions]
    np.testing.assert_allclose(*rows, atol=2e-4)
    assert np.abs(rows[0]).max(axis=(0, 2, 3)).all()


def test_sessions_take_turns(both: tuple[CompiledGraph, CompiledGraph]) -> None:
    made = both[1]
    alone = [steps(made, made.session(), [first], 6) for first in (3, 4)]
    sessions, ids, found = [made.session(), made.session()], [3, 4], [list[int](), list[int]()]
    for at in range(6):
        for i, session in enumerate(sessions):
            (ids[i],) = steps(made, session, [ids[i]], 1, at)
            found[i].append(ids[i])
    assert found == alone


def test_an_id_outside_of_the_embedding_is_zeros(both: tuple[CompiledGraph, CompiledGraph]) -> None:
    for wrong in (-1, SPEC.vocabulary, 1 << 30):
        found = [steps(made, made.session(), [wrong], 2) for made in both]
        assert found[0] == found[1]


def test_other_weights_are_packed_anew(graph: Graph, plans: tuple[Plan, Plan]) -> None:
    weights, others = weights_of(graph, 1), weights_of(graph, 2)
    made = bind(plans[1], weights)
    steps(made, made.session(), [17], 3)
    for name, value in others.items():
        made.rebind(name, value)
    fresh = bind(plans[0], others)
    assert steps(made, made.session(), [17], 8) == steps(fresh, fresh.session(), [17], 8)


def test_it_is_near_the_oracle(graph: Graph, plans: tuple[Plan, Plan]) -> None:
    assert error_at_once(plans[1], weights_of(graph, 3)) < 1e-3


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Plan]:
    """The decoder with activations and caches of bf16: by launches, and as one kernel."""
    graph = gemma3_graph(SPEC, max_positions=1024, weight_dtype=tg.bf16, activation_dtype=tg.bf16, output="token")
    database = tmp_path_factory.mktemp("narrow") / "b.db"
    launched = compile_graph(graph, backends=THERE, database=database, at=AT, largest=LARGEST)
    (kernel,) = whole_kernels(THERE)
    path = launched.variant(AT).path.at_once(kernel)
    return launched, compile_graph(graph, backends=THERE, database=database, at=AT, largest=LARGEST, path=path)


def test_with_caches_of_bf16_it_is_near_the_oracle(narrow: tuple[Plan, Plan]) -> None:
    assert error_at_once(narrow[1], weights_of(narrow[1].graph, 3)) <= 2.0**-8 * 1.01      # rows of the caches are rounded once


@pytest.mark.parametrize("begin", [0, 505, 990])
def test_with_caches_of_bf16_it_writes_what_the_launches_write(narrow: tuple[Plan, Plan], begin: int) -> None:
    weights = weights_of(narrow[0].graph, 1)
    rows = []
    for plan in narrow:
        made = bind(plan, weights)
        session = filled(made, begin, 7)
        for at in range(begin, begin + 4):                          # the same tokens: what is drawn next may differ by a rounding
            steps(made, session, [17 + at % 5], 1, at)
        rows.append(caches(session, made.graph.states, begin + 4).astype(np.float32))
    assert rows[0].shape == rows[1].shape and np.abs(rows[0] - rows[1]).max() < 0.05
    assert np.sqrt(np.mean((rows[0][:, -4:] - rows[1][:, -4:]) ** 2)) < 0.01 * np.sqrt(np.mean(rows[0][:, -4:] ** 2))


def test_a_plan_says_that_it_runs_at_once_and_what_that_keeps(plans: tuple[Plan, Plan]) -> None:
    at_once = plans[1]
    assert "one kernel in place of all launches" in explain(at_once)
    assert "gencuda.all_steps" in str(at_once)
    here, there = (plan.memory(**AT).devices[-1] for plan in plans)
    assert there.bound - here.bound > 20 << 20


def test_a_saved_path_runs_it_again(graph: Graph, plans: tuple[Plan, Plan], tmp_path: Path) -> None:
    (pinned,) = Pin.from_json(plans[1].pin.to_json()).variants
    again = compile_graph(graph, backends=THERE, database=tmp_path / "b.db", at=AT, largest=LARGEST, path=pinned.path)
    assert again.variant(AT).path.all_steps == "gencuda.all_steps"
    assert again.variant(AT).path.id == plans[1].variant(AT).path.id
