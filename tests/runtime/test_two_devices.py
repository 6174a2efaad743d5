"""A graph on two devices gives what it gives on one, whichever parts are where; copies go one way, memory is as planned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices.cpu import CPU, array_view
from tensor_graphs.devices.device import DeviceError, UnknownDevice
from tensor_graphs.devices.device_registry import device_named, devices
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.frontends.huggingface.load import model_graph
from tensor_graphs.kernels.kernel import Kernel, Transfer
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS, kernel_named
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph
from tensor_graphs.paths.lower import Program, lower
from tensor_graphs.paths.plan import PlanError
from tensor_graphs.runtime.compiled_graph import bind
from tests.fake.device import Fake
from tests.plans import check, compiled_of, paths_of, plan_of, poison, program_of, random_path

N = tg.dim("n", 1, 16)
GEMMA = Gemma3Spec(vocabulary=67, hidden=32, ffn=48, heads=4, kv_heads=1, head_dim=16, layers=("sliding", "full"), window=8,
                   eps=1e-6, scale=16 ** -0.5, sliding_rope=Rope(1e4), full_rope=Rope(1e6))
BERT = BertSpec(vocabulary=53, hidden=24, ffn=40, layers=2, heads=3, positions=16, token_types=2, eps=1e-3)
LLAMA = {"model_type": "llama", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
         "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": False}


@pytest.fixture(autouse=True)
def fake() -> Iterator[Fake]:
    from tests.fake import backend

    yield backend.make_known()
    backend.forget()


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def transfers(program: Program) -> list[tuple[str, str]]:
    """(source, target) of each copy between devices in a run."""
    return [(i.call.source, i.call.target) for i in program.instructions if isinstance(i.call, Transfer)]


def placed(g: Graph, on_fake: Callable[[Node], bool]) -> Program:
    """The graph with every op by its numpy function, some of them on the fake device."""
    def choose(node: Node) -> Kernel:
        return kernel_named(f"{'fake' if on_fake(node) else 'numpy'}.{node.op.name}")

    return lower(g, g.roots, choose, program_copiers())


def program_copiers() -> tuple[Kernel, ...]:
    from tensor_graphs.kernels.registry import copy_kernels

    return copy_kernels(("numpy", "fake"))


def ops(*names: str) -> Callable[[Node], bool]:
    return lambda node: node.op.name in names


X, Y = tg.input("x", (N, 8)), tg.input("y", (N, 8))


@pytest.mark.parametrize(("graph", "on_fake", "wanted"), [
    (tg.graph(tg.sin(X) * Y), ops("sin", "mul"), [("cpu", "fake"), ("cpu", "fake"), ("fake", "cpu")]),
    (tg.graph({"a": tg.sin(X), "b": tg.exp2(X), "c": tg.sqrt(X)}), ops("sin", "exp2"),
     [("cpu", "fake"), ("fake", "cpu"), ("fake", "cpu")]),
    # x is on the cpu and on the device; what is made of both is nowhere copied back
    (tg.graph(tg.sin(tg.copy_to(X, "fake")) + tg.exp2(X)), ops(), [("cpu", "fake")]),
    (tg.graph(tg.exp2(tg.copy_to(tg.copy_to(X, "fake"), "cpu")) + tg.sin(X)), ops("sin"), [("cpu", "fake"), ("fake", "cpu")]),
    (tg.graph(tg.copy_to(tg.sin(X)[:, ::2], "fake") * tg.sin(X)[:, 1::2]), ops(), [("cpu", "fake")]),
    # one copy of what three views show; a cut is copied as it is
    (tg.graph(tg.sin(tg.permute(X, (1, 0))) + tg.exp2(tg.reshape(X, (8, N))) + tg.reshape(tg.exp2(X), (8, N))),
     ops("sin", "exp2"), [("cpu", "fake"), ("fake", "cpu"), ("fake", "cpu"), ("fake", "cpu")]),
    (tg.graph(tg.sin(X[:, 2:5])), ops("sin"), [("cpu", "fake"), ("fake", "cpu")]),
], ids=range(7))
def test_each_value_is_copied_to_a_device_once_and_never_back(graph: Graph, on_fake: Callable[[Node], bool],
                                                             wanted: list[tuple[str, str]]) -> None:
    program = placed(graph, on_fake)
    assert transfers(program) == wanted
    made = compiled_of(graph, backends=("numpy", "fake"), program=program)
    poison(made)
    plain = compiled_of(graph)
    for n in (1, 5, 16):
        given = {"x": np.abs(numbers(n, 8)), "y": numbers(n, 8, seed=1)}
        given = {name: given[name] for name in graph.inputs}
        for name, right in plain.run(given).items():
            np.testing.assert_array_equal(made.run(given)[name], right)


def test_a_cut_costs_its_own_bytes_and_a_broadcast_those_of_what_it_shows(fake: Fake) -> None:
    row = tg.input("row", (1, 8))
    for graph, given, nbytes in ((tg.graph(tg.sin(X[:, 2:5])), {"x": numbers(4, 8)}, 4 * 3 * 4),
                                 (tg.graph(tg.sin(tg.expand(row, (N, 8)))), {"row": numbers(1, 8)}, 32)):
        made = compiled_of(graph, backends=("numpy", "fake"), program=placed(graph, ops("sin")))
        fake.copies.clear()
        made.run(given, dims={"n": 4})
        assert [(way, size) for way, size in fake.copies if way == "up"] == [("up", nbytes)]


def test_parameters_and_constants_go_to_a_device_when_they_are_bound_and_at_no_run(fake: Fake) -> None:
    w = tg.parameter("w", (8, 8))
    g = tg.graph(tg.linear(X, tg.sin(w)) + tg.constant(np.arange(8, dtype=np.float32)))
    made = compiled_of(g, {"w": numbers(8, 8)}, backends=("numpy", "fake"), program=placed(g, lambda node: True))
    fake.copies.clear()
    given = {"x": numbers(3, 8)}
    for factor in (1, 2):
        made.rebind("w", factor * numbers(8, 8))
        fake.copies.clear()
        right = compiled_of(g, {"w": factor * numbers(8, 8)}).run(given)["out"]
        np.testing.assert_array_equal(made.run(given)["out"], right)
        assert fake.copies == [("up", 3 * 8 * 4), ("down", 3 * 8 * 4)]


def test_a_dim_that_changes_is_read_on_the_device_too() -> None:
    g = tg.graph(X * tg.cast(tg.constant(3 * N), tg.f32))
    made = compiled_of(g, backends=("numpy", "fake"), program=placed(g, ops("mul", "cast")))
    for n in (2, 7, 2):
        np.testing.assert_array_equal(made.run({"x": numbers(n, 8)})["out"], numbers(n, 8) * np.float32(3 * n))


def test_a_state_lives_where_it_is_made_and_a_session_is_read_from_anywhere(fake: Fake) -> None:
    s, x = tg.state("s", (3,)), tg.input("x", (3,))
    g = tg.graph({"y": s.read() * 2.0}, {s: s.read() + x})
    there = compiled_of(g, backends=("numpy", "fake"), program=placed(g, ops("add")))
    here = compiled_of(g)
    session = there.session()
    assert session.memory["s"].device is fake and not session.arrays                        # nothing has to be moved
    session["s"] = [10.0, 20.0, 30.0]
    for run, want in ((there, 11), (there, 12), (here, 13), (here, 14), (there, 15)):       # the plans of one session take turns
        out = run.run({"x": [1.0, 1.0, 1.0]}, session=session)["y"]
        assert out[0] == 2 * (want - 1) and session["s"].tolist() == [want, want + 10, want + 20]
    fake.copies.clear()
    there.run({"x": [1.0, 1.0, 1.0]}, session=session)
    assert fake.copies == [("down", 12), ("up", 12)]              # the old state for y, and x: the state itself stays
    session.restore({"s": [1.0, 2.0, 3.0]})
    assert session.snapshot()["s"].tolist() == [1, 2, 3]
    session.reset()
    assert session["s"].tolist() == [0, 0, 0]


def models(tmp_path: Path) -> dict[str, Graph]:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return {"gemma": gemma3_graph(GEMMA, max_positions=24), "bert": bert_graph(BERT),
            "llama": model_graph(tmp_path, max_positions=24)}


def weights_of(g: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {n: (rng.standard_normal([int(s) for s in p.shape]) * 0.3).astype(np.float32) for n, p in g.parameters.items()}


def inputs_of(g: Graph, n: int) -> Mapping[str, Any]:
    rng = np.random.default_rng(n)
    return {name: rng.integers(0, 2 if "type" in name else 50, [n] * node.rank).astype(node.dtype.numpy)
            for name, node in g.inputs.items()}


def the_same_on_two_devices(g: Graph, backends: tuple[str, ...], seed: int, steps: tuple[int, ...] = (5, 1, 3)) -> None:
    """A model along a random path, parts of it on the fake device, gives the bits of the same choices on one: every kernel of that
    device is numpy's function."""
    weights, paths = weights_of(g), paths_of(g, backends)
    path = random_path(paths, np.random.default_rng(seed))
    one = replace(path, choices={k: name.replace("fake.", "numpy.") for k, name in path.choices.items()}, identities={})
    mixed = bind(plan_of(g, backends, path=path, largest=dict.fromkeys(g.dims, 8)), weights)
    alone = bind(plan_of(g, backends, path=one, largest=dict.fromkeys(g.dims, 8)), weights)
    assert transfers(mixed.executors[0].program) and not transfers(alone.executors[0].program)
    poison(mixed)
    sessions, past = [mixed.session(), alone.session()], 0
    for n in steps:
        dims = {"m": n, "p": past} if g.states else {}
        ran = zip((mixed, alone), sessions, strict=True)
        outs = [each.run(inputs_of(g, n), dims=dims, session=session) for each, session in ran]
        for name in outs[0]:
            np.testing.assert_array_equal(outs[0][name], outs[1][name])
            assert np.isfinite(outs[0][name]).all()
        past += n
    for name, value in sessions[0].snapshot().items():
        np.testing.assert_array_equal(value, sessions[1].snapshot()[name])


@pytest.mark.parametrize("family", ["gemma", "bert", "llama"])
@pytest.mark.parametrize("backends", [("fake", "numpy"), ("c", "fake", "numpy")], ids="+".join)
def test_a_model_with_parts_on_another_device_says_the_same(family: str, backends: tuple[str, ...], tmp_path: Path) -> None:
    for seed in range(3):
        the_same_on_two_devices(models(tmp_path)[family], backends, seed)



def test_memory_on_each_device_is_as_it_was_planned(fake: Fake) -> None:
    g = bert_graph(BERT)
    path = random_path(paths_of(g, ("fake", "numpy")), np.random.default_rng(1))
    plan = plan_of(g, ("fake", "numpy"), path=path, largest={"n": 16})
    weights = weights_of(g)
    made = bind(plan, weights)
    made.run(inputs_of(g, 16))
    (use,) = plan.memory(n=16).elsewhere
    assert use.device == "fake" and plan.memory(n=16).device == "cpu"
    assert abs(fake.peak - use.total) <= 0.05 * use.total
    assert use.bound > 0 and use.arena > 0 and use.parameters == 0


def test_a_plan_that_needs_more_than_a_device_has_is_refused_and_names_it(fake: Fake) -> None:
    g = tg.graph(tg.sin(X) * Y)
    made = compiled_of(g, backends=("numpy", "fake"), program=placed(g, ops("sin", "mul")))
    fake.size = 1000
    made.run({"x": numbers(2, 8), "y": numbers(2, 8)})
    with pytest.raises(PlanError, match=r"device fake may use 1\.0 kB, the plan needs 1\.0 kB at n=16: .*arena 1\.0 kB"):
        made.run({"x": numbers(16, 8), "y": numbers(16, 8)})


def test_what_is_inside_can_be_looked_at_wherever_it_is() -> None:
    g = tg.graph(tg.exp2(tg.sin(X)))
    made = compiled_of(g, backends=("numpy", "fake"), program=placed(g, ops("sin")))
    x = numbers(3, 8)
    np.testing.assert_array_equal(made.tap("sin.0", {"x": x})["sin.0"], np.sin(x))
    assert [label for label, _, _ in made.profile({"x": x})] == ["copy_to.0", "sin.0", "copy_to.1", "exp2.0"]
    with made.no_op():
        assert made.run({"x": x})["out"].shape == (3, 8)
    assert made.first_nan({"x": np.full((3, 8), np.inf, np.float32)}).startswith("sin.0 (fake.sin)")  # type: ignore[union-attr]


def test_an_unknown_device_is_refused_and_those_that_exist_are_named() -> None:
    with pytest.raises(PlanError, match=r"copy_to\('cuda:7'\) at .*no device is named 'cuda:7'; this machine has 'cpu', 'fake'"):
        program_of(tg.graph(tg.sin(tg.copy_to(X, "cuda:7"))))
    with pytest.raises(UnknownDevice, match="this machine has 'cpu', 'fake'"):
        device_named("gpu")
    assert [d.name for d in devices()] == ["cpu", "fake"]


def test_memory_of_a_device_cannot_be_read_on_another(fake: Fake) -> None:
    memory = fake.allocate(64)
    with pytest.raises(DeviceError, match="memory of fake cannot be read on cpu"):
        array_view(memory, 0, (4,), (1,), tg.f32)
    with pytest.raises(TypeError):
        np.frombuffer(memory.owner, np.uint8)
    from tests.fake.device import view

    with pytest.raises(TensorGraphsError, match="memory of cpu cannot be read on a fake device"):
        view(CPU.allocate(64), 0, (4,), (1,), tg.f32)
    assert memory.address >= 1 << 62


def test_the_same_graph_is_right_on_the_device_alone() -> None:
    g = tg.graph({"y": tg.softmax(X @ tg.permute(Y, (1, 0))), "z": tg.sum(X, 0)})
    made = check(g, {"x": numbers(4, 8), "y": numbers(4, 8, seed=3)}, backends=("fake",))
    assert {i.device for i in made.executors[0].program.instructions if not isinstance(i.call, Transfer)} == {"fake"}
    assert "fake" not in DEFAULT_BACKENDS


def test_the_room_for_a_graph_of_one_size_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tg.copy_to(tg.input("x", (4, 8)), "fake")
    compiled = bind(tg.compile(tg.graph({"y": tg.copy_to(tg.tanh(x), "fake")}), backends=("fake", "numpy")), {})
    looked: list[object] = []
    original = type(compiled.plan).over_capacity
    monkeypatch.setattr(type(compiled.plan), "over_capacity",
                        lambda plan, *sizes: looked.append(sizes) or original(plan, *sizes))
    for _ in range(3):
        compiled.run({"x": numbers(4, 8)})
    assert len(looked) == 1
