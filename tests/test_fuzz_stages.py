"""Random stage programs, which may be more than any definition is lowered to: what is rendered computes what the interpreter says.

`make fuzz` runs thousands, in every form. A failing program is printed small, with its seed.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tensor_graphs.codegen.loop_ir import Value, values_in
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.language.dtypes import bool_
from tests.fuzzing.stage_programs import stage_program
from tests.fuzzing.stage_runs import FORMS, Case, calls, drawn, failures, form_of, formed, sanitized_failures, shrunk, told

SEEDS, BLOCK = 200, 25


def cases(first: int, count: int) -> list[Case]:
    return [Case(seed, form_of(seed)) for seed in range(first, first + count)]


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_random_stage_programs_compute_what_the_interpreter_says(first: int) -> None:
    for case, why in failures(cases(first, BLOCK)):
        pytest.fail(told(shrunk(case, lambda c: bool(sanitized_failures([c]))), why), pytrace=False)


def test_memory_is_left_alone_outside_of_arrays_and_nothing_is_undefined() -> None:
    for case, why in sanitized_failures(cases(0, 12)):
        pytest.fail(told(case, why), pytrace=False)


def test_the_programs_hold_every_kind_of_stage_in_every_form() -> None:
    """So that the tests above compare more than nothing."""
    seen = Counter[str]()
    for seed in range(SEEDS):
        made = stage_program(seed)
        seen["rows apart"] += any(str(s).startswith("_s") for s in made.program.dims)
        seen["nan"] += made.special
        seen["gathered"] += bool(made.program.gathered)
        for nest in made.program.nests:
            for s in nest.stages:
                seen[s.note] += 1
                seen["started"] += s.scan is not None and s.scan.start is not None
                seen["several levels"] += s.level < max(x.level for x in nest.stages)
                seen["guarded"] += any(v.op == "load" and bool(v.args) for v in values_in(s.value))
    parts = Counter[str]()
    for seed in range(120):
        for form in FORMS:
            nests = formed(Case(seed, form))[0].program.nests
            parts[form] += any("parts" in s.note for n in nests for s in n.stages)
            parts["tiles"] += any(n.tile is not None for n in nests)
    assert min(seen.values()) >= 2 and len(seen) == 13, seen
    assert min(parts[f] for f in (*list(FORMS)[2:], "tiles")) >= 1, parts


# ---- mistakes ----------------------------------------------------------------------------------------------------------------


def test_a_planted_mistake_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is read where the condition of a load does not hold."""
    expression = c_loops._CPrinter.expression

    def bold(self: c_loops._CPrinter, v: Value) -> str:
        text = expression(self, v)
        return text.partition(" ? ")[2].removesuffix(" : 0") if v.op == "load" and v.args else text

    monkeypatch.setattr(c_loops._CPrinter, "expression", bold)
    assert any("AddressSanitizer" in why for _, why in sanitized_failures(cases(0, 16)))


def test_what_fails_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    expression = c_loops._CPrinter.expression

    def wrong(self: c_loops._CPrinter, v: Value) -> str:
        return f"({expression(self, v)}) + 1" if v.op == "floor" else expression(self, v)

    monkeypatch.setattr(c_loops._CPrinter, "expression", wrong)
    case, why = next(found for first in range(0, SEEDS, BLOCK) for found in failures(cases(first, BLOCK)))
    small = shrunk(case, lambda c: bool(failures([c])), 20)
    assert "floor" in told(small, why) and f"--seeds {case.seed}" in told(small, why)
    assert len(str(drawn(small).program)) <= len(str(drawn(case).program))
    monkeypatch.undo()
    assert not failures([small])


def test_a_form_that_means_something_else_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(0, "as drawn")
    made, _ = formed(case)
    v = made.program.values
    made.program = made.program.mapped(lambda s: [replace(s, value=v.make(
        "where", s.value.dtype, v.constant(False, bool_), s.value, v.constant(1, s.value.dtype)))])
    with pytest.raises(AssertionError, match="the interpreter gives something else"):
        calls(case, made)


def test_the_benchmark_says_how_many_ran() -> None:
    command = [sys.executable, Path(__file__).parents[1] / "benchmarks" / "fuzz_stages.py", "--seeds", "0..2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, f"{2 * len(FORMS)} programs: 0 failures\n"), done.stderr
