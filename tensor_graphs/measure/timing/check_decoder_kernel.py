"""check_decoder_kernel: compares a kernel that runs all steps of a graph (kernels/kernel.py, `Kernel.whole`) with the oracle.

Such a kernel has no signature and is no candidate for a single node, so the judge does not compare it. It is run as deployed, bound
and with states, and compared with the oracle on the entire graph: outputs, and the rows of states up to the newest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensor_graphs.kernels.decoder.read_graph import Decoder
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DType
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.path import kernel_of_all_steps
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import bind

STARTS, RUNS, SPREAD = (0.15, 0.0), 2, 0.5
"""shares of the caches that are full when runs begin; runs from each share, as each run leaves state for the next; standard
deviation of the numbers in caches"""


def error_at_once(plan: Plan, weights: Mapping[str, np.ndarray]) -> float:
    """Return the largest relative error of runs of one token each; inf where an integer differs."""
    variant = plan.variants[0]
    kernel = kernel_of_all_steps(variant.path)
    assert kernel.whole is not None
    decoder: Decoder = kernel.whole(plan.graph)
    compiled = bind(plan, weights)
    rng, worst = np.random.default_rng(0), 0.0
    for share in STARTS:
        begin = int(share * decoder.sizes.room)
        session, states = compiled.session(), dict[str, np.ndarray]()
        for name, node in plan.graph.states.items():
            states[name] = np.full([int(s) for s in node.shape], np.nan, node.dtype.numpy)    # what nobody has written is not read
            states[name][:begin] = rng.standard_normal(states[name][:begin].shape) * SPREAD
        session.restore(states)
        for at in range(begin, begin + RUNS):
            inputs = {decoder.ids: rng.integers(0, decoder.sizes.vocabulary, 1).astype(np.int32)}
            dims = {str(s): at for s in d.symbols(decoder.position)} | {str(s): 1 for one in decoder.ones for s in d.symbols(one)}
            right = interpret(plan.graph, inputs, weights, states, dims)
            outputs = compiled.run(inputs, dims=dims, session=session)
            for name, node in plan.graph.outputs.items():
                worst = max(worst, _error(np.asarray(outputs[name]), right.outputs[name], node.dtype))
            for name, value in right.updates.items():
                states[name] = np.array(session[name])
                worst = max(worst, _error(states[name][:at + 1], value[:at + 1], plan.graph.states[name].dtype))
    return worst


def _error(output: np.ndarray, right: np.ndarray, dtype: DType) -> float:
    report = measure(output, right, dtype)
    return float("inf") if report.mismatch is not None else report.max_relative_error
