"""training/optim.py: twenty steps of each optimiser, in all the settings of torch's own tests, end where torch's end."""

from __future__ import annotations

import sys
import types
import unittest
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.training import optim
from tensor_graphs.training.step import COUNT, step_graphs

SHAPES = {"w": (3, 5), "v": (6, 4), "b": (4,)}
NAMES = {"lr": "rate", "betas": "decays", "alpha": "decay", "eps": "epsilon", "lr_decay": "rate_decay", "ns_steps": "iterations",
         "initial_accumulator_value": "initial", "ns_coefficients": "coefficients"}
OURS = {"SGD": tg.optim.SGD, "Adam": tg.optim.Adam, "AdamW": tg.optim.AdamW, "RMSprop": tg.optim.RMSprop,
        "Adagrad": tg.optim.Adagrad, "Muon": tg.optim.Muon}


def problem(sign: float = 1.0) -> tg.Graph:
    """A loss that is no square, so that slopes change in size and sign; sign: −1 for a loss that torch makes large."""
    terms = [tg.sum(tg.exp(w * 0.5) - w * tg.input(f"{name}.t", shape))
             for name, shape in SHAPES.items() for w in [tg.parameter(name, shape)]]
    return tg.graph({"loss": (terms[0] + terms[1] + terms[2]) * sign})


def start(matrices: bool = False) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    return weights, {f"{name}.t": rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def stepped(graph: tg.Graph, optimiser: Any, steps: int = 20, **options: Any) -> dict[str, np.ndarray]:
    """Return the parameters after some steps of the interpreter."""
    weights, inputs = start()
    graphs = step_graphs(graph, optimiser, **options)
    states: dict[str, Any] = {n: np.zeros(tuple(s.shape), s.dtype.numpy) for n, s in graphs.update.states.items()}
    states |= {n: np.full_like(states[n], first) for n, first in graphs.initial.items()}
    states |= {n: w for n, w in weights.items() if n in states}
    frozen = {n: weights[n] for n in graphs.frozen}
    for _ in range(steps):
        states |= tg.interpret(graphs.update, inputs, frozen, states).updates
    assert states[COUNT] == steps
    return {n: states.get(n, weights[n]) for n in SHAPES}


def torch_stepped(make: Any, names: list[str], steps: int = 20, schedule: Any = None, clip: Any = None) -> dict[str, np.ndarray]:
    weights, inputs = start()
    tensors = {n: torch.tensor(w, requires_grad=n in names) for n, w in weights.items()}
    optimiser = make([tensors[n] for n in names])
    scheduler = None if schedule is None else schedule(optimiser)
    for _ in range(steps):
        optimiser.zero_grad()
        sum((torch.exp(w * 0.5) - w * torch.tensor(inputs[f"{n}.t"])).sum() for n, w in tensors.items()).backward()
        if clip is not None:
            clip([tensors[n] for n in names])
        optimiser.step()
        if scheduler is not None:
            scheduler.step()
    return {n: w.detach().numpy() for n, w in tensors.items()}


def optimiser_infos() -> Any:
    """torch's table of optimisers with the settings that its tests use. It imports expecttest for a base class."""
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", stand_in)
    from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}


@pytest.mark.parametrize("name", OURS)
def test_twenty_steps_end_where_those_of_torch_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)      # torch's Muon rounds; ours does not
    info = optimiser_infos()[name]
    names = ["w", "v"] if name == "Muon" else list(SHAPES)
    inputs = info.optim_inputs_func(device="cpu")
    assert len(inputs) >= 5
    for case in inputs:
        settings = {NAMES.get(k, k): float(v) if isinstance(v, torch.Tensor) else v for k, v in case.kwargs.items()}
        maximize = settings.pop("maximize", False)
        ours = stepped(problem(-1.0 if maximize else 1.0), {n: OURS[name](**settings) for n in names} | {"*": None})
        theirs = torch_stepped(lambda params, case=case: info.optim_cls(params, **case.kwargs), names)
        for n in SHAPES:
            np.testing.assert_allclose(ours[n], theirs[n], rtol=0, atol=1e-5, err_msg=f"{case.desc} {n}")
        assert np.abs(ours["w"] - start()[0]["w"]).max() > 1e-5, case.desc


def lion(w: np.ndarray, g: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return w - 0.01 * (np.sign(0.9 * m + 0.1 * g) + 0.2 * w), 0.99 * m + 0.01 * g


@pytest.mark.parametrize("name", optim.OPTIMISERS)
def test_parameters_of_f64_are_updated_in_f64(name: str) -> None:
    """All of a step is f64: the rate of a schedule and the corrections of bias too."""
    w = tg.parameter("w", (4, 3), tg.f64)
    program = tg.graph({"loss": tg.sum(tg.exp(w))})
    step = step_graphs(program, optim.OPTIMISERS[name](tg.optim.cosine(0.1, 20)), clip_norm=1.0, batches=2).update
    assert {node.dtype for node in step.nodes if node.dtype.is_float} == {tg.f64}


def test_lion_follows_the_sign_of_an_average() -> None:
    weights, inputs = start()
    moments = {n: np.zeros(s) for n, s in SHAPES.items()}
    for _ in range(20):
        for n in SHAPES:
            weights[n], moments[n] = lion(weights[n], 0.5 * np.exp(weights[n] * 0.5) - inputs[f"{n}.t"], moments[n])
    ours = stepped(problem(), tg.optim.Lion(rate=0.01, weight_decay=0.2))
    for n in SHAPES:
        np.testing.assert_allclose(ours[n], weights[n], rtol=0, atol=1e-5)


def test_lamb_steps_by_the_parameters_own_norm() -> None:
    weights, inputs = start()
    first, second = ({n: np.zeros(s) for n, s in SHAPES.items()} for _ in range(2))
    for t in range(1, 21):
        for n in SHAPES:
            g = 0.5 * np.exp(weights[n] * 0.5) - inputs[f"{n}.t"]
            first[n], second[n] = 0.9 * first[n] + 0.1 * g, 0.999 * second[n] + 0.001 * g * g
            step = first[n] / (1 - 0.9**t) / (np.sqrt(second[n] / (1 - 0.999**t)) + 1e-6) + 0.01 * weights[n]
            weights[n] = weights[n] - 0.01 * np.linalg.norm(weights[n]) / np.linalg.norm(step) * step
    ours = stepped(problem(), tg.optim.Lamb(rate=0.01))
    for n in SHAPES:
        np.testing.assert_allclose(ours[n], weights[n], rtol=0, atol=1e-5)


def test_lamb_moves_a_parameter_of_zeros() -> None:
    graph = tg.graph({"loss": tg.sum(tg.parameter("w", (4,)) * 2.0)})
    graphs = step_graphs(graph, tg.optim.Lamb(rate=0.5))
    states = {n: np.zeros(tuple(s.shape), s.dtype.numpy) for n, s in graphs.update.states.items()}
    np.testing.assert_allclose(tg.interpret(graphs.update, {}, {}, states).updates["w"], -0.5, atol=1e-5)


@pytest.mark.parametrize("kind", ["norm", "value"])
def test_clipping_is_that_of_torch(kind: str) -> None:
    def clip(params: Any) -> None:
        (torch.nn.utils.clip_grad_norm_ if kind == "norm" else torch.nn.utils.clip_grad_value_)(params, 0.7)

    ours = stepped(problem(), tg.optim.SGD(rate=0.1), **{f"clip_{kind}": 0.7})
    theirs = torch_stepped(lambda params: torch.optim.SGD(params, lr=0.1), list(SHAPES), clip=clip)
    for n in SHAPES:
        np.testing.assert_allclose(ours[n], theirs[n], rtol=0, atol=1e-5)


def test_parameters_have_the_optimiser_of_the_first_pattern_that_fits() -> None:
    ours = stepped(problem(), {"b": tg.optim.SGD(rate=0.1), "w": None, "*": tg.optim.SGD(rate=0.1, weight_decay=0.5)})
    theirs = torch_stepped(lambda params: torch.optim.SGD([{"params": params[:1], "weight_decay": 0.5}, {"params": params[1:]}],
                                                          lr=0.1), ["v", "b"])
    for n in SHAPES:
        np.testing.assert_allclose(ours[n], theirs[n], rtol=0, atol=1e-5)
    with pytest.raises(tg.TensorGraphsError, match=r"no pattern of the optimisers fits the parameter 'w'"):
        step_graphs(problem(), {"b": tg.optim.SGD()})


LR = torch.optim.lr_scheduler
SCHEDULES: dict[str, tuple[Any, Any]] = {
    "linear": (tg.optim.linear(0.05, 0.1, 12), lambda o: LR.LinearLR(o, 0.5, 1.0, 12)),
    "cosine": (tg.optim.cosine(0.1, 40, 0.01), lambda o: LR.CosineAnnealingLR(o, 40, 0.01)),
    "polynomial": (tg.optim.polynomial(0.1, 30, 2.0), lambda o: LR.PolynomialLR(o, 30, 2.0)),
    "exponential": (tg.optim.exponential(0.1, 0.9), lambda o: LR.ExponentialLR(o, 0.9)),
    "step": (tg.optim.exponential(0.1, 0.5, every=7), lambda o: LR.StepLR(o, 7, 0.5)),
    "milestones": (tg.optim.milestones(0.1, 0.3, (5, 20)), lambda o: LR.MultiStepLR(o, [5, 20], 0.3)),
    "one cycle": (tg.optim.one_cycle(0.1, 40), lambda o: LR.OneCycleLR(o, 0.1, 40, cycle_momentum=False)),
    "warm-up": (tg.optim.warmup(tg.optim.cosine(0.1, 30), 10, 0.2),
                lambda o: LR.SequentialLR(o, [LR.LinearLR(o, 0.2, 1.0, 10), LR.CosineAnnealingLR(o, 30)], [10])),
    "warm-up of a constant": (tg.optim.warmup(0.1, 10, 0.1), lambda o: LR.LinearLR(o, 0.1, 1.0, 10)),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore")                                       # torch's, of an optimiser that took no step
def test_a_schedule_has_the_rates_of_torch(name: str) -> None:
    ours, theirs = SCHEDULES[name]
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    scheduler = theirs(optimiser)
    rates = tg.graph(ours(tg.input("step", (), tg.f32)))
    for step in range(40):
        rate = tg.interpret(rates, {"step": np.float32(step)}).outputs["out"]
        np.testing.assert_allclose(rate, optimiser.param_groups[0]["lr"], rtol=1e-5, atol=1e-9, err_msg=str(step))
        scheduler.step()


def test_a_schedule_moves_parameters_as_that_of_torch() -> None:
    ours = stepped(problem(), tg.optim.AdamW(rate=tg.optim.warmup(tg.optim.cosine(0.1, 30), 5, 0.2)))
    theirs = torch_stepped(lambda params: torch.optim.AdamW(params, lr=0.1), list(SHAPES), schedule=lambda o: LR.SequentialLR(
        o, [LR.LinearLR(o, 0.2, 1.0, 5), LR.CosineAnnealingLR(o, 30)], [5]))
    for n in SHAPES:
        np.testing.assert_allclose(ours[n], theirs[n], rtol=0, atol=1e-5)
