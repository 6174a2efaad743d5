"""benchmarks/regret.py: its graphs say what they are to say, and its figures mean what they are to mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.regret import Deployed, cases, kendall, some_of
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.path import Path


def test_wordings_of_one_family_mean_the_same() -> None:
    seen: dict[str, np.ndarray] = {}
    assert len(cases()) == 30 == len({c.name for c in cases()})
    for case in cases():
        if case.family.startswith(("mlp", "qkv")):                  # one wording of each
            continue
        rng = np.random.default_rng(0)
        given = {n: rng.standard_normal(leaf.shape) * 0.1 for leaves in (case.graph.inputs, case.graph.parameters)
                 for n, leaf in sorted(leaves.items())}
        inputs, parameters = ({n: given[n].astype(np.float32) for n in leaves}
                              for leaves in (case.graph.inputs, case.graph.parameters))
        (found,) = interpret(case.graph, inputs, parameters).outputs.values()
        np.testing.assert_allclose(found, seen.setdefault(case.family, found), rtol=1e-5, atol=1e-6, err_msg=case.name)
    assert len(seen) == 12


def timed(*samples: Sequence[float]) -> list[Deployed]:
    made = [Deployed.__new__(Deployed) for _ in samples]
    for each, seconds in zip(made, samples, strict=True):
        each.samples = list(seconds)
    return made


def test_tau_counts_the_pairs_that_are_apart_only() -> None:
    one, two, three = [1.0, 1.1, 1.2], [2.0, 2.1, 2.2], [3.0, 3.1, 3.2]
    assert kendall(timed(one, two, three)) == (1.0, 3) and kendall(timed(three, two, one)) == (-1.0, 3)
    assert kendall(timed(one, three, two))[0] == 1 / 3
    assert kendall(timed(one, [1.05, 1.15, 2.0], three)) == (1.0, 2)
    assert math.isnan(kendall(timed(one, one))[0])


def test_each_way_of_each_part_is_timed_where_the_cap_lets_it() -> None:
    listed = [Path("", {"a": f"a{i % 3}", "b": f"b{i // 3}"}, float(i), True, None) for i in range(15)]
    taken = some_of(listed, 8)
    assert taken[:4] == [0, 1, 2, 3] and len(taken) == 8 and taken == sorted(set(taken))
    assert {p for i in taken for p in listed[i].choices.values()} == {"a0", "a1", "a2", "b0", "b1", "b2", "b3", "b4"}
    assert some_of(listed, 15) == list(range(15))
