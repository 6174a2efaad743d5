"""true_shape: Gemma-3-270M with random weights (seed 0) decodes in a process whose memory is watched.

    python -m tests.acceptance.true_shape DATABASE

Prints one JSON document: the tokens, the bytes that the plan announced, and by how many bytes the resident set peaked
above what was resident before anything was bound. The operating system keeps that peak (VmHWM, which writing 5 to
/proc/self/clear_refs sets back to the present), so nothing is sampled. The weights are in memory before, so that the
growth is what the plan calls allocated: states, arena, outputs, constants. What Python had freed until then is given
back to the system first, or a part of the growth would hide in it. What the plan does not count, and the growth holds:
the scratch memory of native kernels (operands packed per thread), tables of the executor, pages of code.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path

import numpy as np

PROMPT, LOGITS = 600, 64
"""tokens of the prompt that is watched, and how many of its positions get logits"""


def status(field: str) -> int:
    """Bytes of one field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)


def main(database: str) -> None:
    from tensor_graphs.choice.compile import compile_graph
    from tensor_graphs.frontends.huggingface.load import load_model
    from tensor_graphs.runtime.compiled_graph import bind
    from tensor_graphs.serving.generate import generate

    model = load_model("gemma-3-270m", random_seed=0)
    plan = compile_graph(model.graph, database=database, at={"n": 1, "m": 1, "p": 256}, reuse_outputs=True)
    for name in model.weights:  # each is drawn when it is first asked for
        model.weights[name]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    compiled = bind(plan, model.weights)
    session = compiled.session()
    ids = np.random.default_rng(0).integers(3, 262_144, PROMPT)
    compiled.run({"ids": ids.astype(np.int32)}, dims={"p": 0, "m": LOGITS}, session=session)
    compiled.run({"ids": ids[:1].astype(np.int32)}, dims={"p": PROMPT, "m": 1}, session=session)
    peak = status("VmHWM")
    session.reset()
    made = generate(compiled, [2, 9259, 10], 64, session=session)
    use = plan.memory(n=PROMPT, p=0, m=LOGITS)
    sys.stdout.write(
        json.dumps(
            {
                "ids": made.ids,
                "announced": use.to_json(),
                "allocated": use.allocated,
                "grown": peak - before,
                "tokens_per_second": made.tokens_per_second,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
