"""paths/memory.py: bytes of what is alive together never overlap, at any size, and the arena stays near the least possible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.language import dims as d
from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph
from tensor_graphs.paths.memory import ArenaLayout, Interval, _neighbours, aligned, place
from tests.plans import plan_of

N, M = tg.dim("n", 0, 4096), tg.dim("m", 1, 512)
SIZES = st.one_of(
    st.integers(0, 5000),
    st.builds(lambda a, b: a * N + b, st.integers(1, 64), st.integers(0, 300)),
    st.builds(lambda a, b: a * N * M + b, st.integers(1, 8), st.integers(0, 64)),
    st.builds(lambda a, b: d.dim_max(a * M, b), st.integers(1, 300), st.integers(0, 3000)),
    st.builds(lambda a: (N + a) // 2 * 4, st.integers(0, 9)))


@st.composite
def interval_lists(draw: st.DrawFn) -> list[Interval]:
    out = []
    for i in range(draw(st.integers(0, 24))):
        first = draw(st.integers(0, 30))
        out.append(Interval(first, first + draw(st.integers(0, 12)), draw(SIZES), f"v{i}"))
    return out


def clash(layout: ArenaLayout, at: dict[str, int]) -> str | None:
    """Two intervals that share an instruction and a byte, or one that leaves the arena; None when all is well."""
    offsets, totals = layout.offsets(at)
    total = totals.get(HOST.name, 0)
    places = [(o, o + d.evaluate(i.nbytes, at), i) for o, i in zip(offsets, layout.intervals, strict=True)]
    for k, (low, high, i) in enumerate(places):
        if low < 0 or high > total or low % HOST.alignment:
            return f"{i} lies at {low}..{high} of {total}"
        for low2, high2, j in places[:k]:
            if max(i.first, j.first) <= min(i.last, j.last) and max(low, low2) < min(high, high2):
                return f"{i} at {low}..{high} and {j} at {low2}..{high2}"
    return None


def crowded(intervals: list[Interval], at: dict[str, int]) -> int:
    """The most bytes alive at one instruction, counted instruction by instruction."""
    return max((sum(aligned(d.evaluate(i.nbytes, at)) for i in intervals if i.first <= t <= i.last) for t in range(64)), default=0)


@given(interval_lists(), st.integers(0, 4096), st.integers(1, 512))
@settings(max_examples=150)
def test_two_buffers_alive_together_never_share_bytes_at_any_size(intervals: list[Interval], n: int, m: int) -> None:
    layout = place(intervals, {"n": 600, "m": 128})
    for at in ({"n": 600, "m": 128}, {"n": n, "m": m}, {"n": 0, "m": 1}, {"n": 4096, "m": 512}):
        assert clash(layout, at) is None


@given(interval_lists(), st.integers(0, 4096), st.integers(1, 512))
@settings(max_examples=100)
def test_the_largest_live_set_is_the_most_crowded_instruction(intervals: list[Interval], n: int, m: int) -> None:
    at = {"n": n, "m": m}
    layout = place(intervals, at)
    size, members = layout.largest_live_set(at)
    assert size == crowded(intervals, at)
    assert size == sum(aligned(d.evaluate(i.nbytes, at)) for i in members)
    assert layout.offsets(at)[1].get(HOST.name, 0) >= size
    sizes = [d.evaluate(i.nbytes, at) for i in members]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=200)
@given(interval_lists())
def test_neighbours_are_the_intervals_alive_at_one_moment(intervals: list[Interval]) -> None:
    neighbours = _neighbours(intervals)
    assert neighbours == [[j for j, b in enumerate(intervals) if j != i and a.overlaps(b)] for i, a in enumerate(intervals)]


def test_a_clash_is_seen() -> None:
    a, b = Interval(0, 3, 100, "a"), Interval(3, 5, 100, "b")
    assert clash(ArenaLayout((a, b), (0, 1), ((), ())), {}) is not None
    assert clash(ArenaLayout((a, b), (0, 1), ((), (0,))), {}) is None
    assert clash(ArenaLayout((a, Interval(4, 5, 100, "b")), (0, 1), ((), ())), {}) is None


def test_an_empty_list_needs_no_arena() -> None:
    layout = place([], {})
    assert layout.offsets({}) == ([], {}) and layout.largest_live_set({}) == (0, [])


def chain_of_layers(rng: np.random.Generator) -> list[Interval]:
    """Intervals as a model makes them: a residual stream, a few short-lived values per layer, now and then a long-lived one."""
    out: list[Interval] = []
    t, hidden = 0, int(rng.integers(16, 200)) * 4
    for _ in range(int(rng.integers(2, 8))):
        start, steps = t, int(rng.integers(3, 12))
        for k in range(steps):
            reach = int(rng.integers(1, 4))
            out.append(Interval(t, min(t + reach, start + steps), int(hidden * rng.choice([1, 1, 2, 3, 4, 6])), f"l{k}"))
            t += 1
        out.append(Interval(start, t + 1, hidden, "residual"))
    out.append(Interval(0, t, int(rng.integers(1, 400)), "tables"))
    return out


@pytest.mark.parametrize("seed", range(40))
def test_programs_like_models_waste_less_than_a_quarter(seed: int) -> None:
    intervals = chain_of_layers(np.random.default_rng(seed))
    layout = place(intervals, {})
    assert clash(layout, {}) is None
    assert layout.offsets({})[1][HOST.name] <= 1.25 * layout.largest_live_set({})[0]


GEMMA = Gemma3Spec(vocabulary=2048, hidden=640, ffn=2048, heads=4, kv_heads=1, head_dim=256,
                   layers=("sliding",) * 5 + ("full",), window=512, eps=1e-6, scale=256 ** -0.5,
                   sliding_rope=Rope(1e4), full_rope=Rope(1e6))
MINILM = BertSpec(vocabulary=1000, hidden=384, ffn=1536, layers=6, heads=12, positions=1024, token_types=2,
                  eps=1e-12, normalise=True)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["gemma", "minilm"])
@pytest.mark.parametrize("backends", [("numpy",), ("c", "numpy")], ids="+".join)
def test_the_arena_of_a_model_stays_near_its_largest_live_set_at_every_length(name: str, backends: tuple[str, ...]) -> None:
    g = gemma3_graph(GEMMA, max_positions=1024) if name == "gemma" else bert_graph(MINILM)
    plan = plan_of(g, backends, largest=dict.fromkeys(g.dims, 600))
    layout = plan.variants[0].layout
    for n in (1, 128, 600):
        at = plan.binding(dict.fromkeys(g.dims, n))
        assert clash(layout, at) is None
        assert layout.offsets(at)[1].get(HOST.name, 0) <= 1.25 * layout.largest_live_set(at)[0]
        assert layout.largest_live_set(at)[0] == max(
            sum(aligned(d.evaluate(i.nbytes, at)) for i in layout.intervals if i.first <= t <= i.last)
            for t in range(len(plan.variants[0].program.instructions)))


@given(interval_lists(), st.integers(0, 4096), st.sampled_from([256, 4096]), st.sampled_from([0, 4]))
@settings(max_examples=50)
def test_buffers_may_lie_apart_and_off_their_alignment_by_as_much_as_is_asked(intervals: list[Interval], n: int, apart: int,
                                                                          shift: int) -> None:
    layout, at = place(intervals, {"n": 600, "m": 128}), {"n": n, "m": 128}
    offsets, totals = layout.offsets(at, apart, shift)
    places = [(o, o + d.evaluate(i.nbytes, at), i) for o, i in zip(offsets, layout.intervals, strict=True)]
    for k, (low, high, i) in enumerate(places):
        assert low >= apart and low % HOST.alignment == shift
        assert high + apart <= totals[HOST.name] + shift
        for low2, high2, j in places[:k]:
            if max(i.first, j.first) <= min(i.last, j.last):
                assert high + apart <= low2 + shift or high2 + apart <= low + shift
