"""Scans as loop programs: carries in shared memory, slices copied ahead, thread loops after each other; and their faults."""

from __future__ import annotations

import numpy as np
import pytest

from tensor_graphs.codegen.evaluate import StageError
from tensor_graphs.codegen.interpret_loops import run
from tensor_graphs.codegen.loop_program import Barrier, CopiesWait, LoopProgram, Wait
from tensor_graphs.codegen.mapping.scans import map_scan
from tensor_graphs.codegen.print.scan_cuda import _turns_of
from tensor_graphs.codegen.spec_to_loops import asked
from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.kernel import Spec
from tests.codegen.print.test_scan_cuda import IDS, LOOPS, Loop, drawn, loop_of, oracle, rnn
from tests.codegen.test_interpret_loops import Edit, but, no


def compared(loop: Loop, n: int, aligned: bool, edit: Edit = lambda loops: loops) -> None:
    """Run a scan as loops. Raises AssertionError where it differs from its definition at float64."""
    node = loop_of(loop())
    loops: LoopProgram = edit(map_scan(_turns_of(asked(Spec.of(node))), aligned, HOPPER))
    dims = {"n": n, "b": 2}
    arrays = drawn(node, dims)
    outs = run(loops, arrays, {str(s): dims[str(s)] for s in loops.source.dims}, HOPPER.warp)
    for out, expected in zip(outs, oracle(node, arrays, dims), strict=True):
        np.testing.assert_allclose(out, expected.reshape(-1).astype(out.dtype), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("loop", LOOPS, ids=IDS)
def test_a_scan_of_loops_is_its_definition(loop: Loop, aligned: bool) -> None:
    for n in (0, 1, 5):
        compared(loop, n, aligned)


FAULTS: dict[str, tuple[Edit, str]] = {
    "no wait": (no(Wait), "is read before the wait"),
    "no barrier before the first iteration": (no(Barrier), "is read by"),
    "no barrier between iterations": (no(Barrier, 1), "is read by|is written by"),
    "no wait for the copies": (no(CopiesWait, 1), "is read before it is written"),
    "a wait that leaves a copy too many": (but(CopiesWait, 1, left=3), "is read before it is written"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_of_a_scan_is_reported(name: str) -> None:
    edit, why = FAULTS[name]
    with pytest.raises(StageError, match=why):
        compared(rnn, 5, True, edit)
