"""The benchmark of searches: shares leave no kernel out, their files make one table, and a slow winner ends it with 1."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import search
from benchmarks.search import HELD_OUT, LONG, SearchRun, gathered, printed, share, table, written


def run(kernel: str, strategy: str, seed: int, score: float) -> SearchRun:
    return SearchRun(kernel, strategy, seed, 1.0, 1.1, score, 7, () if score == 1.0 else ("Grain 64 (nest 0)",))


RUNS = [run("gelu", LONG, 1000, 0.8), run("gelu", "descent", 0, 0.8), run("gelu", "descent", 1, 0.84),
        run("gelu", "random", 0, 1.0), run("tanh", LONG, 1000, 1.0), run("tanh", "descent", 0, 1.0), run("tanh", "descent", 1, 1.0),
        run("tanh", "random", 0, 0.9)]


def test_shares_have_each_kernel_once() -> None:
    names = list(HELD_OUT)
    shares = [names[i - 1::n] for i, n in (share(f"{k}/5") for k in range(1, 6))]
    assert sorted(name for each in shares for name in each) == sorted(names)
    with pytest.raises(argparse.ArgumentTypeError):
        share("6/5")


def test_a_line_is_over_all_searches_of_a_strategy() -> None:
    lines = {line.strategy: line for line in table(RUNS)}
    ours = lines["descent"]
    assert (ours.searches, ours.median, ours.nine_of_ten, ours.faster) == (4, 1.0, pytest.approx(1.05), 2)
    assert ours.to_best == pytest.approx((1.0 * 1.05 * (1 / 0.9) ** 2) ** 0.25)     # tanh has been 0.9
    assert lines["random"].median == pytest.approx((1.25 + 0.9) / 2)


def test_files_of_shares_make_one_table(tmp_path: Path) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file, kernel in zip(files, ("gelu", "tanh"), strict=True):
        written(file, [r for r in RUNS if r.kernel == kernel])
    assert table(gathered(files)) == table(RUNS)
    files[0].write_text(json.dumps({**json.loads(files[0].read_text()), "environment": "another"}))
    with pytest.raises(ValueError, match="different machines"):
        gathered(files)


def test_a_winner_that_is_slower_or_a_default_far_from_the_best_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(RUNS) == 0
    assert printed([*RUNS, run("gelu", "random", 1, 1.03)]) == 1 and "worse than its seed: gelu, random" in capsys.readouterr().out
    assert printed([*RUNS, *(run("gelu", "descent", 2 + i, 1.0) for i in range(4))]) == 1


def test_both_sets_are_of_kernels_that_differ() -> None:
    made = [search.signature_of(make()).key for names in search.SETS.values() for make in names.values()]
    assert len(set(made)) == len(made) == len(search.KERNELS) and len(HELD_OUT) >= 20
