"""paths/run_order.py: an order under a memory limit computes the same bits in fewer bytes, and is part of the stored plan."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import tensor_graphs as tg

ROWS, WIDTH, LAYERS = 256, 8, 6
NUMPY = {"backends": ("numpy",)}
LIMITS = (0.9, 0.75, 0.6, 0.5)


def gradients() -> tg.Graph:
    """Layers whose results are all read again for the gradients; each weight is a state that one step updates."""
    y, states = tg.input("x", (ROWS, WIDTH)), [tg.state(f"w{n}", (WIDTH, WIDTH)) for n in range(LAYERS)]
    for state in states:
        y = tg.tanh(tg.linear(y, state.read()))
    loss = tg.mean(tg.square(y))
    slopes = tg.grad(loss, [state.node for state in states])
    return tg.graph({"loss": loss}, {s: s.read() - slope * 0.1 for s, slope in zip(states, slopes, strict=True)})


def results(plan: tg.Plan) -> list[bytes]:
    rng = np.random.default_rng(0)
    model = tg.bind(plan, {})
    session = model.session()
    session.restore({name: rng.normal(0, 0.4, (WIDTH, WIDTH)).astype(np.float32) for name in sorted(session.types)})
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    losses = [model.run({"x": x}, session=session)["loss"].tobytes() for _ in range(2)]
    return losses + [array.tobytes() for _, array in sorted(session.snapshot().items())]


@pytest.mark.processes
def test_each_limit_has_the_same_bits_and_costs_more_the_lower_it_is() -> None:
    free = tg.compile(gradients(), **NUMPY)
    use, expected = free.memory(), results(free)
    assert free.variants[0].smaller is None
    seconds = []
    for share in LIMITS:
        limit = use.most - round(use.arena * (1 - share))
        plan = tg.compile(gradients(), memory_limit=limit, **NUMPY)
        (variant,) = plan.variants
        assert plan.memory().most <= limit and results(plan) == expected
        assert variant.smaller is not None and variant.smaller.before == use.arena
        assert len(variant.program.instructions) == len(free.variants[0].program.instructions) + variant.smaller.calls
        seconds.append(variant.smaller.seconds)
        again = pickle.loads(pickle.dumps(plan))
        assert again.variants[0].smaller == variant.smaller and again.memory() == plan.memory()
        assert [i.label for i in again.variants[0].program.instructions] == [i.label for i in variant.program.instructions]
    assert seconds == sorted(seconds) and seconds[-1] > 0


@pytest.mark.processes
def test_what_cannot_fit_says_how_small_the_arena_becomes() -> None:
    use = tg.compile(gradients(), **NUMPY).memory()
    with pytest.raises(tg.TensorGraphsError, match=r"may use .*arena \d+\.\d kB") as refused:
        tg.compile(gradients(), memory_limit=use.most - use.arena + 100, **NUMPY)
    smallest = float(re.findall(r"arena (\d+\.\d) kB", str(refused.value))[0]) * 1000
    assert smallest < use.arena * 0.6
