"""What admission puts into leaves: numbers that are written, their neighbours, all signs and sizes, in combination."""

from __future__ import annotations

import math

import numpy as np

import tensor_graphs as tg
from tensor_graphs.rewrites.admission_values import POINTS, grid, random_values, written


def test_the_numbers_of_a_rule_are_its_constants_and_attributes() -> None:
    x = tg.input("x", (3,), tg.f32)
    assert set(written([tg.where(tg.equals(x, 7.25), 12.5, x), tg.rms_norm(x, eps=0.25)])) >= {7.25, 12.5, 0.25}
    assert written([x.sum(0), x * 0.0 + 1.0]) == ()


def test_a_grid_has_all_combinations_of_the_numbers() -> None:
    leaves = [tg.input(n, (POINTS,), tg.u8) for n in "xyz"]
    made = grid(np.random.default_rng(0), leaves, (137, 201, 99, 1000), True, False)
    points = set(zip(*(made[leaf].tolist() for leaf in leaves), strict=True))
    assert {(a, b, c) for a in (137, 201, 99, 0, 1) for b in (137, 201, 99) for c in (137, 201, 99)} <= points


def test_a_grid_has_the_neighbours_of_a_number_and_what_is_between_two() -> None:
    for dtype in (tg.f16, tg.bf16, tg.f32, tg.f64):
        leaf = tg.input("x", (POINTS,), dtype)
        made = {float(v) for v in grid(np.random.default_rng(0), [leaf], (7.25, 8.25), False, True)[leaf]}
        one = np.array([7.25], dtype=dtype.numpy)
        near = [float(np.nextafter(one, np.array([end], dtype=dtype.numpy))[0]) for end in (np.inf, -np.inf)]
        assert {7.25, -7.25, 6.25, 14.5, 7.75, *near} <= made


def test_values_are_of_every_size_and_of_one_sign_too() -> None:
    x, y = tg.input("x", (8,), tg.f64), tg.input("y", (8,), tg.f64)
    drawn = [random_values(np.random.default_rng(i), [x, y], (), False, False) for i in range(200)]
    tops = [float(np.abs(d[x]).max()) for d in drawn]
    assert max(tops) > 1e20 and min(tops) < 1e-20 and all(math.isfinite(t) for t in tops)
    assert sum(bool((d[x] < 0).all() and (d[y] < 0).all()) for d in drawn) >= 3
    tame = [random_values(np.random.default_rng(i), [x], (), False, True) for i in range(200)]
    assert max(float(np.abs(d[x]).max()) for d in tame) < 10
