"""captured_calls, replays: what is captured is what runs again unchanged; a size, an address, a mark or a refusal is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices.cuda import Cuda
from tensor_graphs.devices.free_memory import OutOfMemory
from tensor_graphs.kernels.kernel import HostCall
from tensor_graphs.kernels.registry import copy_kernels, kernel_named
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.lower import Program, lower
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.runtime.segments.captured_calls import OnDevice
from tensor_graphs.runtime.segments.launches import Launches
from tensor_graphs.runtime.segments.replays import MISSES, MOST, Replays
from tests.fake.device import Fake
from tests.plans import compiled_of, paths_of, plan_of, program_of

N = tg.dim("n", 1, 16)


class Recorded:
    """A replay that calls again what was called: the graphs here write over no operand, so that it may."""

    def __init__(self, work: Callable[[Any], None]) -> None:
        self.work, self.runs = work, 0
        work(1)

    def run(self) -> None:
        self.runs += 1
        self.work(1)


@pytest.fixture
def captured(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The fake backend's calls may be captured; what was."""
    made: list[Recorded] = []

    def capture(work: Callable[[Any], None]) -> Recorded:
        made.append(Recorded(work))
        return made[-1]

    monkeypatch.setattr("tests.fake.backend.captured", capture, raising=False)
    return made


def placed(graph: Graph) -> Program:
    """All on the fake device, by calls that may be captured."""
    program = lower(graph, graph.roots, lambda node: kernel_named(f"fake.{node.op.name}"), copy_kernels(("fake",)))
    for i, ins in enumerate(program.instructions):
        if isinstance(ins.call, HostCall) and ins.device == Fake.kind:
            program.instructions[i] = replace(ins, call=replace(ins.call, on_stream=True))
    return program


def made_of(graph: Graph) -> CompiledGraph:
    return compiled_of(graph, backends=("numpy", "fake"), program=placed(graph))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_second_equal_run_is_captured_and_the_third_is_a_replay(captured: list[Recorded]) -> None:
    x = tg.input("x", (4, 8))
    made = made_of(tg.graph(tg.sin(x.sum(0)) * 2.0))
    assert any(isinstance(s, OnDevice) for s in made.executors[0].segments)
    for turn in range(4):
        given = numbers(4, 8, seed=turn)
        np.testing.assert_allclose(made.run({"x": given})["out"], np.sin(given.sum(0)) * 2, rtol=1e-5)
    assert [each.runs for each in captured] == [2]


def test_another_size_is_no_replay_of_the_first(captured: list[Recorded]) -> None:
    x = tg.input("x", (N, 8))
    made = made_of(tg.graph(tg.exp2(x.sum(0))))
    for n in (3, 3, 3, 7, 7, 7, 3, 5):
        given = numbers(n, 8, seed=n)
        np.testing.assert_allclose(made.run({"x": given})["out"], np.exp2(given.sum(0)), rtol=1e-5)
    assert [each.runs for each in captured] == [2, 1]


def test_what_cannot_be_captured_is_called_each_time(monkeypatch: pytest.MonkeyPatch, captured: list[Recorded]) -> None:
    asked: list[object] = []
    monkeypatch.setattr("tests.fake.backend.captured", asked.append)    # which gives None
    x = tg.input("x", (4, 8))
    made = made_of(tg.graph(tg.sin(x)))
    for turn in range(5):
        given = numbers(4, 8, seed=turn)
        np.testing.assert_allclose(made.run({"x": given})["out"], np.sin(given), rtol=1e-6)
    assert len(asked) == 1


@pytest.mark.parametrize("times", [1, 4])
def test_each_call_is_made_in_what_its_backend_says_orders_it(captured: list[Recorded], monkeypatch: pytest.MonkeyPatch,
                                                             times: int) -> None:
    inside, asked = [0], list[str]()

    @contextmanager
    def in_order(device: str) -> Iterator[None]:
        asked.append(device)
        inside[0] += 1
        yield
        inside[0] -= 1

    monkeypatch.setattr("tests.fake.backend.in_order", in_order, raising=False)
    x = tg.input("x", (4, 8))
    program, seen = placed(tg.graph(tg.sin(x.sum(0)))), list[int]()

    def watched(call: HostCall) -> HostCall:
        def run(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
            seen.append(inside[0])
            call.run(outs, ins, attrs)

        return replace(call, run=run)

    calls = [i for i, ins in enumerate(program.instructions) if isinstance(ins.call, HostCall) and ins.device == Fake.kind]
    for i in calls:
        program.instructions[i] = replace(program.instructions[i], call=watched(program.instructions[i].call))
    made = compiled_of(tg.graph(tg.sin(x.sum(0))), backends=("numpy", "fake"), program=program)
    for turn in range(times):
        given = numbers(4, 8, seed=turn)
        np.testing.assert_allclose(made.run({"x": given})["out"], np.sin(given.sum(0)), rtol=1e-5)
    assert seen and set(seen) == {1} and set(asked) == {Fake.kind} and len(asked) == len(seen) >= len(calls) * times


def test_steps_are_timed_in_their_places(captured: list[Recorded]) -> None:
    x = tg.input("x", (4, 8))
    made = made_of(tg.graph(tg.exp2(x.sum(0))))
    given = numbers(4, 8)
    for _ in range(3):
        seconds = np.zeros(len(made.executors[0].program.instructions))
        out = made._run({"x": given}, {}, None, None, seconds=seconds)
        np.testing.assert_allclose(out["out"], np.exp2(given.sum(0)), rtol=1e-5)
        assert (seconds > 0).all()
    assert [each.runs for each in captured] == [2]


def test_a_key_is_captured_when_it_comes_again_soon() -> None:
    """Results that are new arrays at each run lie in two places by turns."""
    made: list[Recorded] = []

    def capture(work: Callable[[Any], None]) -> Recorded:
        made.append(Recorded(work))
        return made[-1]

    replays, ran = Replays(capture), list[str]()
    for key in (b"a", b"b", b"a", b"c", b"d", b"e", b"f", b"b", b"a"):
        if not replays.run(key):
            replays.note(key, lambda stream, key=key: ran.append(key.decode()))
    assert len(made) == 1
    assert made[0].runs == 1
    for i in range(2 * MOST):
        for _ in range(2):
            replays.note(str(i).encode(), lambda stream: None)
    assert len(replays.kept) == MOST


def test_marks_that_nobody_reads_are_given_up(fake: Fake) -> None:
    made: list[Recorded] = []

    def capture(work: Callable[[Any], None]) -> Recorded:
        made.append(Recorded(work))
        return made[-1]

    replays = Replays(capture)
    for i in range(3 * MISSES):
        assert replays.timed(str(i).encode(), fake) is None
        replays.mark(str(i).encode(), fake, [lambda stream: None])
    assert len(made) == MISSES


def test_what_cannot_be_captured_with_marks_is_tried_once(fake: Fake) -> None:
    asked = list[Any]()
    replays = Replays(asked.append)                                 # which gives None
    for _ in range(3):
        assert replays.timed(b"a", fake) is None
        replays.mark(b"a", fake, [lambda stream: None])
        replays.misses = 0                                          # as a replay of another key sets it
    assert len(asked) == 1


@pytest.fixture
def softmaxes(gpu_that_is_none: Cuda) -> CompiledGraph:
    """Two launches that need scratch."""
    x = tg.copy_to(tg.input("x", (2, tg.dim("n", 1, 1 << 20))), "cuda:0")
    g = tg.graph({"y": tg.copy_to(tg.softmax(tg.softmax(x) * 3.0), "cuda:0")})
    return tg.bind(plan_of(g, ("gencuda",), path=paths_of(g, ("gencuda",)).cheapest()), {})


def launches_of(made: CompiledGraph) -> Launches:
    (launches,) = [s for s in made.executors[0].segments if isinstance(s, Launches)]
    return launches


def check_softmaxes(made: CompiledGraph, size: int) -> None:
    given = numbers(2, size)
    found = made.run({"x": tg.device_array(given, "cuda:0")})["y"]
    np.testing.assert_allclose(np.asarray(found), tg.interpret(made.graph, {"x": given}).outputs["y"], rtol=1e-5)


def test_where_scratch_lies_is_in_the_key_under_which_others_capture_launches(softmaxes: CompiledGraph) -> None:
    """Scratch moves when it grows, and a replay of a smaller size would write to its old place."""
    launches = launches_of(softmaxes)
    keys, places = list[bytes](), list[int]()
    for size in (70, 50000, 70):
        check_softmaxes(softmaxes, size)
        (frame,) = softmaxes._frames[0]
        scratch = launches.ready(frame).scratch
        assert scratch is not None
        keys.append(launches.key(frame))
        places.append(scratch.address)
    assert all(key.endswith(place.to_bytes(8, "little")) for key, place in zip(keys, places, strict=True))


@pytest.mark.parametrize("error", [OutOfMemory("none is left"), KeyboardInterrupt()], ids=["memory", "ctrl-c"])
def test_a_run_that_ends_while_its_launches_are_made_leaves_nothing_that_runs(
        gpu_that_is_none: Cuda, softmaxes: CompiledGraph, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    launches, device = launches_of(softmaxes), type(gpu_that_is_none)
    check_softmaxes(softmaxes, 70)
    allocate = device.allocate

    def fails(self: Any, nbytes: int) -> Any:
        raise error

    def arenas_first(self: Any, nbytes: int) -> Any:
        monkeypatch.setattr(device, "allocate", fails)
        return allocate(self, nbytes)

    given = tg.device_array(numbers(2, 50000), "cuda:0")
    out = tg.device_array(np.zeros((2, 50000), np.float32), "cuda:0")
    monkeypatch.setattr(device, "allocate", arenas_first)
    with pytest.raises(type(error)):
        softmaxes.run({"x": given}, out={"y": out})
    monkeypatch.setattr(device, "allocate", allocate)
    (frame,) = softmaxes._frames[0]
    kept = frame.kept[id(launches)]
    assert kept.key == b"" and kept.scratch is None and not kept.replays.kept
    for size in (70, 50000, 70):
        check_softmaxes(softmaxes, size)


def test_sizes_whose_upload_was_interrupted_are_given_again(gpu_that_is_none: Cuda, softmaxes: CompiledGraph,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    device = type(gpu_that_is_none)
    check_softmaxes(softmaxes, 70)
    upload = device.upload
    given = tg.device_array(numbers(2, 60), "cuda:0")

    def interrupted(self: Any, source: Any, into: Any) -> None:
        upload(self, source, into)
        raise KeyboardInterrupt

    monkeypatch.setattr(device, "upload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        softmaxes.run({"x": given})
    monkeypatch.setattr(device, "upload", upload)
    check_softmaxes(softmaxes, 70)


@pytest.mark.usefixtures("gpu_that_is_none")
def test_an_operand_that_a_call_of_a_library_makes_is_not_read_before_that_has_ended() -> None:
    x, v = (tg.copy_to(tg.input(name, shape), "cuda:0") for name, shape in (("x", (2, 64)), ("v", (32, 64))))
    g = tg.graph({"y": tg.copy_to(tg.linear(x, tg.softmax(v)), "cuda:0")})
    program = program_of(g, ("gencuda",), path=paths_of(g, ("gencuda",)).cheapest())
    for i, ins in enumerate(program.instructions):
        if ins.label.startswith("softmax"):
            program.instructions[i] = replace(ins, call=HostCall(lambda outs, ins, attrs: None), backend="torchcuda")
    made = tg.bind(plan_of(g, ("gencuda",), program=program), {})
    (step,) = launches_of(made).steps
    early = {k for launch in step.forms[0].call.launches for k in launch.early}
    assert 1 in early and 1 in step.written and 0 not in step.written


def test_a_replay_for_which_there_is_no_memory_is_launched_step_by_step(fake: Fake) -> None:
    class Large(Recorded):
        def run(self) -> None:
            raise OutOfMemory("a replay has none")

    replays, begun = Replays(Large), list[Any]()
    for _ in range(3):
        if not replays.run(b"a"):
            begun.append(0)
            replays.note(b"a", begun.append)
    assert begun == [0, 0, 1, 0] and replays.kept == {b"a": None}
    replays.mark(b"b", fake, [begun.append])
    assert replays.timed(b"b", fake) is None and replays.marked == {b"b": None}


def test_what_lies_in_several_places_by_turns_is_timed_in_each(fake: Fake) -> None:
    """A run whose results are held during the next one has other addresses at every second run."""
    replays = Replays(Recorded)
    begun = list[str]()

    def step(key: bytes) -> Callable[[Any], None]:
        return lambda stream: begun.append(key.decode())

    for key in (b"a", b"b", b"c"):
        assert replays.timed(key, fake) is None
        replays.mark(key, fake, [step(key), step(key)])
    for key in (b"a", b"b", b"c", b"a"):
        taken = replays.timed(key, fake)
        assert taken is not None
        assert len(taken) == 2
    assert begun[-8:] == ["a", "a", "b", "b", "c", "c", "a", "a"]
    replays.clear()
    assert replays.timed(b"a", fake) is None
