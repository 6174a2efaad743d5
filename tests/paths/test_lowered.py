"""paths/lowered.py and the pickling of plans: what travels is the graph and its choices; the kernels are those of the process."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels import registry
from tensor_graphs.paths.plan import Plan, PlanError
from tests.paths.test_plan import step
from tests.plans import BACKENDS, compiled_of, paths_of, plan_of

ROOT = Path(__file__).parents[2]
N = tg.dim("n", 1, 64)


def attended() -> tg.Graph:
    """Several ops, a composite of several outputs, a state, a constant array, a weight in bf16."""
    x, w = tg.input("x", (N, 8)), tg.parameter("w", (8, 8), tg.bf16)
    cache = tg.state("cache", (64, 8))
    values, where = tg.topk(tg.softmax(tg.linear(x, w) + np.arange(8, dtype=np.float32)), k=3)
    return tg.graph({"values": values, "where": where}, {cache: cache.write(x, at=0)})


def same(a: Plan, b: Plan) -> bool:
    return (a.graph == b.graph and a.graph.structural_key == b.graph.structural_key and a.tolerance == b.tolerance
            and a.largest == b.largest and a.backends == b.backends
            and [(v.cell, v.path, v.at) for v in a.variants] == [(v.cell, v.path, v.at) for v in b.variants])


@pytest.mark.processes
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plan_read_back_is_the_same_and_computes_the_same(backend):
    plan = plan_of(attended(), (backend, "numpy"))
    again = pickle.loads(pickle.dumps(plan))
    assert same(plan, again) and again is not plan
    assert [(i.label, i.kernel, i.outs, i.ins, i.waits) for i in again.variants[0].program.instructions] == [
        (i.label, i.kernel, i.outs, i.ins, i.waits) for i in plan.variants[0].program.instructions]
    assert again.memory(n=5) == plan.memory(n=5)
    inputs = {"x": np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)}
    weights = {"w": np.eye(8, dtype=tg.bf16.numpy)}
    results = []
    for one in (plan, again):
        model = tg.bind(one, weights)
        session = model.session()
        results.append({**model.run(inputs, session=session), **session.snapshot()})
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name])


@pytest.mark.processes
def test_a_plan_is_read_in_another_process_and_runs_there(tmp_path):
    plan = plan_of(attended(), ("c", "numpy"))
    (tmp_path / "plan").write_bytes(pickle.dumps(plan))
    code = ("import pickle, sys, numpy as np, tensor_graphs as tg\n"
            "plan = pickle.load(open(sys.argv[1], 'rb'))\n"
            "model = tg.bind(plan, {'w': np.eye(8, dtype=tg.bf16.numpy)})\n"
            "found = model.run({'x': np.ones((2, 8), np.float32)}, session=model.session())\n"
            "print(plan.graph.structural_key, plan.variants[0].path.id, found['where'].tolist())")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "plan")], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=2) == [plan.graph.structural_key, plan.variants[0].path.id, "[[7, 6, 5], [7, 6, 5]]\n"]


@pytest.mark.processes
def test_a_plan_whose_kernel_is_missing_says_which_and_why(monkeypatch):
    @tg.kernel("exp2", name="numpy.exp2_of_mine")
    def mine(outs, ins, attrs):
        np.exp2(ins[0], out=outs[0])

    try:
        g = tg.graph(tg.exp2(tg.input("x", (4,))))
        path = next(p for p in paths_of(g, ("numpy",)) if "numpy.exp2_of_mine" in p.choices.values())
        stored = pickle.dumps(plan_of(g, path=path))
        assert same(pickle.loads(stored), plan_of(g, path=path))
    finally:
        registry.unregister("numpy.exp2_of_mine")
    with pytest.raises(PlanError) as caught:
        pickle.loads(stored)
    assert str(caught.value) == ("the plan runs the kernel numpy.exp2_of_mine, which is not in this process\n"
                                 "  fix: import the module that defines it first, or compile the graph again here")
    native = pickle.dumps(plan_of(attended(), ("c", "numpy")))
    monkeypatch.setattr("tensor_graphs.kernels.c.backend.available", lambda: "no C compiler")
    registry.reset("c")
    try:
        with pytest.raises(PlanError, match="the plan runs the kernel c.* which is not in this process: the backend c is missing: "
                                            "no C compiler\n  fix: make the backend available, or compile the graph again here"):
            pickle.loads(native)
    finally:
        monkeypatch.undo()
        registry.reset("c")


def test_a_plan_whose_kernel_has_other_code_is_refused():
    plan = plan_of(tg.graph(tg.exp2(tg.input("x", (4,)))))
    (v,) = plan.variants
    other = replace(plan, variants=(replace(v, path=replace(v.path, identities={"numpy.exp2": "0" * 64})),))
    with pytest.raises(PlanError, match=r"another numpy.exp2: 000000000000, here it is [0-9a-f]{12}: its code.*\n  fix: compile"):
        pickle.loads(pickle.dumps(other))


def test_a_plan_whose_kernel_requires_what_the_device_lacks_is_refused(monkeypatch):
    stored = pickle.dumps(plan_of(tg.graph(tg.exp2(tg.input("x", (4,))))))
    monkeypatch.setitem(vars(registry.kernel_named("numpy.exp2")), "requirements", {"arch": ["sm_90"]})
    with pytest.raises(PlanError, match=r"the plan runs the kernel numpy.exp2: it needs sm_90.*\n  fix: compile the graph again"):
        pickle.loads(stored)


def test_a_plan_of_an_op_that_is_defined_otherwise_is_refused():
    plan = plan_of(tg.graph(tg.exp2(tg.input("x", (4,)))))
    (v,) = plan.variants
    other = replace(plan, variants=(replace(v, path=replace(v.path, graph_key="0" * 64)),))
    with pytest.raises(PlanError, match="an op of it is defined otherwise"):
        pickle.loads(pickle.dumps(other))


def test_plans_graphs_and_models_are_copied():
    plan = plan_of(step())
    assert copy.deepcopy(plan) is plan and copy.copy(plan) is plan
    g = attended()
    assert copy.deepcopy({"g": [g]}) == {"g": [g]} and pickle.loads(pickle.dumps(g)) == g
    model = compiled_of(tg.graph(tg.linear(tg.input("x", (N, 2)), tg.parameter("w", (2, 2)))), {"w": np.eye(2, dtype=np.float32)})
    twin, there = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    model.rebind("w", np.zeros((2, 2), np.float32))
    x = {"x": np.array([[3.0, 4.0]], np.float32)}
    assert [m.run(x)["out"].tolist() for m in (model, twin, there)] == [[[0.0, 0.0]], [[3.0, 4.0]], [[3.0, 4.0]]]
