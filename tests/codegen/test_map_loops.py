"""The loops of a kernel compute what the stages do, on a tiny target where tails, parts and several blocks occur, without races."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret_loops
from tensor_graphs.codegen.loop_program import Compute, Load, Loop, Prefetch, statements
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.devices.target import HOPPER, TINY, Target
from tensor_graphs.kernels.kernel import NotLowered
from tests.codegen.print.test_cuda_loops import TEXTS, definition_of
from tests.fuzzing.stage_runs import FORMS, Case, calls, formed

SEEDS = 12
"""seeds of the fast run; benchmarks/fuzz_stages.py goes on"""


def why_wrong(case: Case, target: Target) -> str | None:
    """Return how the loops of a random program differ from its stages; None where they agree, or where there are none."""
    made, _ = formed(case)
    if any(s.held for s in made.program.stages):
        return None
    for aligned in (True, False):
        try:
            loops = map_loops(made.program, target, aligned)
        except NotLowered:
            assert any(s.scan is not None for s in made.program.stages)
            return None
        for call in calls(case, made):
            why = call.why_wrong(interpret_loops.run(loops, call.operands, call.binding, target.warp))
            if why is not None:
                return f"{case}, aligned {aligned}: {why}\n{loops}"
    return None


@pytest.mark.parametrize("seed", [*range(SEEDS), 60])              # 60: an axis without elements
def test_random_programs_are_what_their_stages_are_and_have_no_races(seed: int) -> None:
    for form in FORMS:
        assert (why := why_wrong(Case(seed, form), TINY)) is None, why


@pytest.mark.long
@pytest.mark.parametrize("target", [TINY, HOPPER], ids=["tiny", "hopper"])
@pytest.mark.parametrize("seed", range(SEEDS, 250))
def test_many_random_programs_are_what_their_stages_are(seed: int, target: Target) -> None:
    for form in FORMS:
        assert (why := why_wrong(Case(seed, form), target)) is None, why


def loops_of(name: str, aligned: bool = True) -> tuple[Loop | Load | Compute | Prefetch, ...]:
    program = map_loops(program_of(definition_of(*TEXTS[name])), aligned=aligned)
    return tuple(s for kernel in program.kernels for s in statements(kernel.body))     # type: ignore[misc]


def test_a_quotient_of_a_row_is_a_product_by_its_divisor() -> None:
    computed = [s.value.op for s in loops_of("softmax") if isinstance(s, Compute)]
    assert computed == ["mul", "divisor"], "minus the maximum, and one over the sum"


@pytest.mark.parametrize("name", TEXTS)
def test_operands_that_are_not_aligned_are_loaded_one_by_one(name: str) -> None:
    assert not any(isinstance(s, Load) and s.lanes > 1 for s in loops_of(name, aligned=False))
    assert any(isinstance(s, Load) and s.lanes == 8 for s in loops_of(name))


def test_a_program_of_any_size_has_one_text_of_loops() -> None:
    n = tg.dim("n", 1, 4096)
    program = program_of(definition_of(tg.softmax(tg.input("x", (n, 24)))))
    (kernel,) = map_loops(program).kernels
    assert str(kernel.grid) == "(n + 15) // 16" and kernel.threads == 128


SPREAD = """
from tensor_graphs.codegen.backend_cuda import call_of
from tests.codegen.test_generated import drawn
print(call_of(drawn("upsample", "f32", 0)[1]).text)
"""


def test_a_text_does_not_depend_on_the_order_of_sets() -> None:
    def text(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run([sys.executable, "-c", SPREAD], env=environment, capture_output=True, text=True, check=True).stdout

    texts = {text(seed) for seed in "123"}
    assert len(texts) == 1 and "nest0" in texts.pop()
