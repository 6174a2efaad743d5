"""Every text that is generated for an op is the one that was looked at last, by its digest: moving code about changes none.

The texts themselves are compared with the oracle by test_generated.py; a few are kept whole, as snapshots of test_c_loops.py and
test_cuda_loops.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.codegen.print.cuda_loops import printed
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language.composite import Definition
from tests.codegen.test_generated import drawn
from tests.conftest import Snapshot
from tests.kernels.cases import CASES

TEXTS: dict[str, Callable[[Definition], str]] = {
    "c": lambda definition: c_loops.rendered(arranged(lower(definition))),
    "cuda": lambda definition: printed(map_loops(program_of(definition))).text,
}


def digests(dtype: str) -> Iterator[str]:
    for op in CASES:
        instance = drawn(op, dtype, 0)
        if instance is None:
            continue
        marks = []
        for target, text in TEXTS.items():
            try:
                marks.append(f"{target} {hashlib.sha256(text(instance[1]).encode()).hexdigest()[:16]}")
            except NotLowered:
                marks.append(f"{target} -")
        yield f"{op} {dtype}: {', '.join(marks)}"


def test_the_texts_of_all_ops_are_those_looked_at_last(snapshot: Snapshot) -> None:
    snapshot.check("texts.txt", "\n".join(line for dtype in ("f32", "bf16", "i32") for line in digests(dtype)) + "\n")
