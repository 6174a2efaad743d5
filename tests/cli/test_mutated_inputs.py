"""A sample of what benchmarks/mutated_inputs.py runs by the thousand: whatever a file holds, the command ends clearly and soon."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import mutated_inputs as mutated
from benchmarks.mutated_inputs import KINDS, Corpus, Mutant, Run, broken, mutant_of, of_json, of_text, run

SEED, EACH = 7, 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        mutated.load()
        yield Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_input_ends_clearly_and_soon(corpus: Corpus, kind: str, tmp_path: Path) -> None:
    faults = []
    for number in range(EACH):
        (folder := tmp_path / str(number)).mkdir()
        mutant = mutant_of(corpus, SEED, number, (kind,))
        fault = broken(run(mutant, folder), mutant.arguments[1:])
        if fault:
            faults.append(f"{mutant.kind} {number}: {' '.join(mutant.arguments)[:200]}: {fault}")
    assert not faults, "\n".join([*faults, f"again: benchmarks/mutated_inputs.py --seed {SEED} --kinds {kind} --only NUMBER"])


def test_what_is_not_mutated_is_accepted(corpus: Corpus, tmp_path: Path) -> None:
    """So the mutants are refused for what was changed. A prompt that is too long ends a run once all of its folder is read."""
    files = mutated._model(corpus, {}) | {"g.tg": corpus.texts[0].encode(), "g.json": json.dumps(corpus.graphs[0]).encode(),
                                          "d.db": corpus.database.read_bytes(), "e.jsonl.gz": corpus.export.read_bytes()}
    for place, (line, code) in enumerate([
            (("show", "{}/g.tg"), 0), (("!read_json", "{}/g.json"), 0), (mutated.READS, 1), (("db", "check", "--db", "{}/d.db"), 0),
            (("db", "import", "{}/e.jsonl.gz", "--db", "{}/n.db"), 0)]):
        (folder := tmp_path / str(place)).mkdir()
        done = run(Mutant("", 0, line, files), folder)
        assert (done.code, broken(done)) == (code, ""), (line, done.err)
        assert code == 0 or "the model has positions for 256" in done.err


def test_a_mutant_is_the_same_each_time_and_another_for_each_number(corpus: Corpus) -> None:
    assert mutant_of(corpus, 1, 3) == mutant_of(corpus, 1, 3)
    assert len({mutant_of(corpus, 1, n, ("json",)).files["g.json"] for n in range(20)}) > 15


def test_a_mutation_leaves_what_it_is_given_alone() -> None:
    document = {"a": [1, 2, {"b": None}], "c": "text"}
    before = json.dumps(document)
    assert any(of_json(random.Random(seed), document).decode("utf-8", "replace") != before for seed in range(5))
    assert json.dumps(document) == before and of_text(random.Random(1), "a 1") != ""


@pytest.mark.parametrize(("done", "said"), [
    (Run(1, "", "Traceback (most recent call last):\nKeyError: 'x'", 0, 0), "a traceback: KeyError: 'x'"),
    (Run(-11, "", "", 0, 0), "exit code -11"), (Run(3, "", "", 0, 0), "exit code 3"), (Run(0, "", "", 11, 11), "took 11.0 s"),
    (Run(1, "", "", 0, 0), "nothing was said"), (Run(1, "", "error: failed badly", 0, 0), "names nothing"),
    (Run(1, "", "error: 'x' is\n" * 50, 0, 0), "an error of 50 lines"),
    (Run(0, "y", "/a/b.py:3: RuntimeWarning: overflow", 0, 0), "a warning of Python")])
def test_a_run_that_breaks_a_rule_is_told_from_one_that_does_not(done: Run, said: str) -> None:
    assert said in broken(done)
    assert not broken(Run(1, "", "error: 'x' is no size\n  fix: 3", 1, 1))
    folder = Run(1, "", "error: . is a folder; a .tg file is needed here", 0, 0)
    assert not broken(folder, (".",)) and "names nothing" in broken(folder, ("x", "")) and "names nothing" in broken(folder)


def test_a_run_that_hangs_or_takes_all_memory_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(path: str) -> None:
        while Path(path).exists():
            time.sleep(0.01)

    monkeypatch.setattr(mutated, "WALL", 1.0)
    monkeypatch.setattr(mutated, "read_json", forever)
    (tmp_path / "a").mkdir()
    assert "was ended after 1 s" in broken(run(Mutant("", 0, ("!read_json", "{}/g"), {"g": b""}), tmp_path / "a"))
    monkeypatch.setattr(mutated, "WALL", 60.0)
    monkeypatch.setattr(mutated, "read_json", lambda path: bytearray(mutated.MEMORY * 2))
    (tmp_path / "b").mkdir()
    assert "MemoryError" in broken(run(Mutant("", 0, ("!read_json", "{}/g"), {"g": b""}), tmp_path / "b"))
