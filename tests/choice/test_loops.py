"""Loops where no kernel runs them: compiled as their turns, chosen by price where both can be, and as they were elsewhere.

The fake device has numpy's functions, and no loop (tests/fake/backend.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice import storing
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.plan_file import Images
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.choice.requested_path import form_of
from tensor_graphs.devices import cuda
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS, all_kernels, by_op
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.paths.path import Cost, NoPathError, Path, Paths
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites.passes import unroll
from tensor_graphs.views.explain import explain
from tests.plans import check
from tests.rewrites.passes.test_unroll import drawn, loops, rnn, selective

FAKE = ("fake",)


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    from tests.fake import backend

    backend.make_known()
    yield
    backend.forget()


def kernels(plan: Plan) -> Counter[str]:
    (variant,) = plan.variants
    return Counter(i.kernel for i in variant.program.instructions)


def assert_runs(plan: Plan, graph: tg.Graph) -> None:
    values = drawn(graph)
    found, wanted = tg.bind(plan, {}).run(values), tg.interpret(graph, values).outputs
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5)


# ---- on a device without loops --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 9])
def test_a_recurrence_runs_as_its_turns_and_gives_what_numpys_loop_gives(store: Database, length: int) -> None:
    graph = rnn(length)
    plan, loop = (compile_graph(graph, backends=(name,), database=store) for name in ("fake", "numpy"))
    assert (kernels(plan)["fake.tanh"], kernels(loop)["numpy.scan"]) == (length, 1)
    assert_runs(plan, graph)
    values = drawn(graph)
    found, wanted = (tg.bind(each, {}).run(values) for each in (plan, loop))
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6, atol=1e-7)


def test_what_is_cut_in_turns_is_copied_to_its_device_once(store: Database) -> None:
    plan = compile_graph(rnn(9), backends=FAKE, database=store)
    assert kernels(plan)["cpu -> fake"] == 4                        # x, h, w and u


def test_a_plan_says_what_was_done(store: Database) -> None:
    plan = compile_graph(rnn(9), backends=FAKE, database=store)
    assert plan.prepared.startswith("loops: 1 scan_") and ": recipe scan/turns " in plan.prepared
    assert "scan/turns: 9 turns, one after another" in str(explain(plan))


def test_gradients_run_as_turns_too(store: Database) -> None:
    graph = selective(3)
    loss = (graph.outputs["ys"] * graph.outputs["ys"]).sum()
    whole = tg.graph([loss, *tg.grad(loss, list(graph.inputs.values()))])
    assert_runs(compile_graph(whole, backends=FAKE, database=store), whole)


def test_a_loop_in_a_step_is_written_out_with_it(store: Database) -> None:
    def outer(total: tg.Node, row: tg.Node) -> tuple[tg.Node, tg.Node]:
        inner, _ = tg.scan(lambda h, v: (h * 0.5 + v * total, None), total, row)
        return inner, inner

    graph = tg.graph(tg.scan(outer, tg.constant(1.0), tg.input("x", (3, 2)))[0])
    assert_runs(compile_graph(graph, backends=FAKE, database=store), graph)


def test_wider_values_end_at_a_loop_as_elsewhere(store: Database) -> None:
    last = rnn(3).outputs["last"]
    graph = tg.graph(tg.softmax(last))
    plan = compile_graph(graph, backends=FAKE, database=store, precision="f64")
    done = [(i.op, str(i.outs[0].dtype)) for i in plan.variants[0].program.instructions if i.op in ("tanh", "softmax")]
    assert done == [("tanh", "f32")] * 3 + [("softmax", "f64")]
    assert_runs(plan, graph)


def test_a_graph_that_is_not_simplified_has_its_loops_written_out_as_they_are(store: Database) -> None:
    graph = rnn(3)
    plan = compile_graph(graph, backends=FAKE, database=store, simplify=False)
    assert kernels(plan)["fake.tanh"] == 3 and plan.prepared.startswith("loops:")
    assert compile_graph(graph, path=plan.pin, simplify=False, database=store).pin == plan.pin


def test_a_path_and_a_pin_of_turns_run_again(store: Database, tmp_path: File) -> None:
    graph = rnn(4)
    plan = compile_graph(graph, backends=FAKE, database=store)
    plan.pin.save(tmp_path / "a.pin")
    for given, more in ((plan.pin, {}), (tmp_path / "a.pin", {}), (plan.variants[0].path, {"backends": FAKE})):
        again = compile_graph(graph, path=given, database=store, **more)
        assert again.pin == plan.pin
    assert_runs(again, graph)


def test_a_pin_of_turns_is_of_the_form_as_it_was_prepared(store: Database) -> None:
    """Also where steps are joined anew in a graph of wider values, of which a loop has none."""
    graph = rnn(4)
    request = Request(graph, backends=("fake", "gen"), database=store)
    prepared = prepare(graph, recipes=store, backends=request.here)
    form, decided = form_of(request, Path(prepared.graph.structural_key, {}, 0.0, False, None), store)
    assert form == prepared and form.note.startswith("loops:") and not decided.words


def test_values_after_a_loop_and_of_it_are_found_in_the_plan(store: Database) -> None:
    ys, last = rnn(4).outputs["ys"], rnn(4).outputs["last"]
    graph = tg.graph({"out": tg.tanh(ys) + last})
    for wide in ("written", "f64"):
        model = tg.bind(compile_graph(graph, backends=FAKE, database=store, precision=wide), {})
        for node in (ys, last, tg.tanh(ys)):
            wanted = tg.interpret(tg.graph(node), drawn(graph)).outputs["out"]
            np.testing.assert_allclose(model.tap(node, drawn(graph))[node], wanted, rtol=1e-5, atol=1e-6)


def test_a_plan_on_file_knows_what_became_of_a_loop(store: Database, tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(storing.VARIABLE, "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = tg.graph({"out": tg.tanh(rnn(4).outputs["ys"])})
    compile_graph(graph, backends=FAKE, database=store)
    again = compile_graph(graph, backends=FAKE, database=store)
    assert isinstance(again.images, Images)
    ys = rnn(4).outputs["ys"]
    wanted = tg.interpret(tg.graph(ys), drawn(graph)).outputs["out"]
    np.testing.assert_allclose(tg.bind(again, {}).tap(ys, drawn(graph))[ys], wanted, rtol=1e-5, atol=1e-6)


# ---- where there is a choice, and where there is none ---------------------------------------------------------------------------


def test_where_the_backends_run_loops_nothing_is_written_out() -> None:
    graph = rnn(9)
    for backends in (("numpy",), ("c", "numpy"), DEFAULT_BACKENDS):
        assert loops(prepare(graph, backends=backends).graph) and not parts(prepare(graph, backends=backends).graph)


def parts(graph: tg.Graph) -> list[tg.Node]:
    return [n for n in graph.nodes if isinstance(n.op, PartOp) and n.op.recipes]


@pytest.mark.parametrize("loop", [1.0, 1000.0])
def test_a_loop_of_one_device_or_its_turns_on_another_is_chosen_by_price(loop: float) -> None:
    backends = ("fake", "numpy")
    graph = prepare(rnn(9), backends=backends).graph
    (part,) = parts(graph)

    def cost(kernel: Kernel, signature: Signature) -> Cost:
        return Cost((loop if kernel.op == "scan" else 1.0 if kernel.backend == "fake" else 2.0) * 1e-6)

    path = Paths(graph, by_op(all_kernels(backends)), cost, link=lambda *way: 1e-6).cheapest()
    chosen = set(path.choices.values())
    assert ("numpy.scan" in chosen) == (loop == 1.0) and (part.op.recipes[0].name in chosen) == (loop != 1.0)


def refused(graph: tg.Graph, **more: Any) -> str:
    with pytest.raises(NoPathError) as caught:
        compile_graph(graph, backends=FAKE, **more)
    return str(caught.value)


def test_a_loop_that_is_too_long_says_so_with_what_would_do(store: Database) -> None:
    reason = refused(rnn(3000), database=store)
    assert reason.startswith("no kernel that may be used computes scan f32[2, 4] f32[3000, 2, 3]")
    assert "; its 3000 turns of 12 nodes are not written out; up to 682 such turns are\n" in reason
    assert "\n  fix: for a loop a length that is a number and not too large, or a backend that runs it as it is, like num" in reason


def test_a_loop_of_a_dim_says_so(store: Database) -> None:
    last, _ = tg.scan(lambda h, x: (h + x, None), tg.input("h", (3,)), tg.input("x", (tg.dim("n", 1, 8), 3)))
    assert "; its turns are not written out, as their number is n\n" in refused(tg.graph(last), database=store)


def test_many_loops_say_so(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "MOST_IN_ALL", 30)
    reason = refused(rnn(7), database=store)                         # of a length that no other test has: what is prepared is kept
    assert f"; {unroll.IN_ALL}\n" in reason


def test_a_step_that_nothing_computes_is_named(store: Database) -> None:
    closed = tg.composite(lambda x: x * 2.0, name="closed", opaque=True)
    last, _ = tg.scan(lambda h, x: (closed(h) + x, None), tg.input("h", (3,)), tg.input("x", (4, 3)))
    assert " → closed f32[3]\n" in refused(tg.graph(last), database=store)


def test_a_tolerance_that_turns_do_not_reach_is_answered_with_one_that_they_do(store: Database) -> None:
    reason = refused(rnn(4), database=store, tolerance=2e-10, precision="written")
    assert reason.startswith("no path is within the tolerance 2e-10\n  scan_") and "fix: a tolerance of " in reason
    most = float(reason.rpartition("fix: a tolerance of ")[2].split()[0])
    assert most < 1e-6
    compile_graph(rnn(4), backends=FAKE, database=store, tolerance=1e-3, precision="written")


# ---- on a GPU that is none ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(cuda.why_missing() is None, reason="the emulated GPU would take the place of the one that is there, on which "
                    "runtime/test_models_on_cuda.py runs loops")
@pytest.mark.usefixtures("gpu_that_is_none")
@pytest.mark.parametrize("name", ["rnn", "selective", pytest.param("gradient", marks=pytest.mark.long)])
def test_kernels_for_gpus_compute_a_recurrence(name: str) -> None:
    graph, backends = selective(3) if name == "selective" else rnn(9 if name == "rnn" else 2), ("cuda", "gencuda")
    if name == "gradient":
        loss = (graph.outputs["ys"] * graph.outputs["ys"]).sum()
        graph = tg.graph([loss, *tg.grad(loss, list(graph.inputs.values()))])
    made = check(prepare(graph, backends=backends).graph, drawn(graph), backends=backends)
    assert {i.kernel for i in made.executors[0].program.instructions if i.backend == "numpy"} <= {"numpy.copy"}     # of inputs
