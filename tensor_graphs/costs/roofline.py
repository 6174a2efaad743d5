"""roofline: an estimate of the time of a call: the larger of its arithmetic time and memory time, plus a fixed cost per call. It
also estimates copies between devices.

Source: roofline model, Williams, Waterman and Patterson, CACM 52(4), 2009. Floats: flop/s and byte/s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tensor_graphs.kernels.kernel import Kernel, Spec
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.composite import CompositeOp, looked_into
from tensor_graphs.language.node import Node, TensorType, walk

Shape = tuple[d.Dim, ...]


@dataclass(frozen=True)
class BackendRates:
    """Rates of one backend: seconds per call, the shares of the device's bandwidth and arithmetic that its kernels reach, and the
    factor `off` by which the resulting estimates err (geometric mean of cold time ÷ estimate, or of the inverse)."""

    call_seconds: float
    bandwidth_share: float
    flop_share: float
    off: float


@dataclass(frozen=True)
class DeviceRates:
    """Rates of one device: byte/s read, flop/s in f32, and the fixed seconds per run. The defaults are assumed rates of a small
    CPU. The first compile of a graph that takes milliseconds, or `tg profile`, replaces them by measured ones."""

    bandwidth: float = 20e9
    flops: float = 60e9
    run_seconds: float = 10e-6


@dataclass(frozen=True)
class LinkRates:
    """Rates of copies from one device to another: seconds per copy, and byte/s. The defaults are assumed rates of a bus."""

    latency: float = 10e-6
    bandwidth: float = 8e9

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


# Priors only: they order alternatives until rows exist. A fused loop touches each operand once; numpy makes temporaries. Generated
# loops make 46e9 of their steps (codegen/arithmetic_count.py) a second on one core of an EPYC: exp, silu, softmax down columns;
# half of that tanh and gelu. `off` is that of 275 (c) and 344 (numpy) cold times of the calls of a decoder of 1 to 600 rows;
# torch's: numpy's.
BACKEND_RATES: Mapping[str, BackendRates] = {"c": BackendRates(1.5e-6, 0.95, 0.7, 2.6), "gen": BackendRates(1.5e-6, 0.95, 0.7, 2.6),
                                             "cuda": BackendRates(3e-6, 0.7, 0.3, 3.0),
                                             "gencuda": BackendRates(3e-6, 0.7, 0.3, 3.0),
                                             "torchcuda": BackendRates(3e-6, 0.6, 0.7, 5.0),
                                             "numpy": BackendRates(6e-6, 0.35, 0.6, 5.0),
                                             "triton": BackendRates(3e-6, 0.6, 0.7, 5.0),
                                             "torch": BackendRates(8e-6, 0.7, 0.8, 5.0)}
UNKNOWN_RATES = BackendRates(10e-6, 0.3, 0.3, 10.0)


def estimate_seconds(signature: Signature, binding: Mapping[str, int], backend: str, device: DeviceRates | None = None,
                  traffic: float | None = None, arithmetic: float | None = None) -> float:
    """Return the estimated seconds of one call of this signature on one backend.

    traffic: bytes that the kernel declares to move (default: those of operands and outputs). arithmetic: operations that the kernel
    declares (default: those of the definition).
    """
    device = device or DeviceRates()
    rates = BACKEND_RATES.get(backend, UNKNOWN_RATES)
    moved, flops = work(signature, tuple(sorted((n, int(binding[n])) for n in signature.dim_names)))
    moved = moved if traffic is None else traffic
    flops = flops if arithmetic is None else arithmetic
    # The bandwidth of memory, not that of the cache that a call's bytes would fit in: over 69 measured calls of 1 to 256 rows
    # estimates with the latter were off by a factor of 2.6 rather than 1.9 (c, cold) and 9.0 rather than 4.6 (numpy, cold), and no
    # better where operands were hot (2.0 and 1.9, 8.1 and 4.6): what is slow about small calls is not their bytes.
    return rates.call_seconds + max(moved / (device.bandwidth * rates.bandwidth_share), flops / (device.flops * rates.flop_share))


def says_of(kernel: Kernel | None, spec: Spec, binding: Mapping[str, int]) -> tuple[float | None, float | None]:
    """Return (bytes that move, operations) of a call as the kernel declares them; None for what it does not declare."""
    says = (None, None) if kernel is None else (kernel.traffic, kernel.arithmetic)
    moved, steps = (None if formula is None else float(d.evaluate(formula(spec), binding)) for formula in says)
    return moved, steps


def uncertainty(backend: str) -> float:
    """Return the share, 0 to 1, of an estimated time for this backend that the call may not need: 1 - 1/`off`."""
    return 1.0 - 1.0 / BACKEND_RATES.get(backend, UNKNOWN_RATES).off


@lru_cache(maxsize=65536)
def work(signature: Signature, binding: tuple[tuple[str, int], ...]) -> tuple[float, float]:
    """Return (bytes that must move, flops) of one call at concrete sizes."""
    at = dict(binding)
    spec = signature.spec
    outs = sum(_nbytes(t, at) for t in spec.outputs)
    facts = spec.op.facts
    if facts.reads and facts.product:                       # each matrix that is chosen, once
        x, weight, index = spec.inputs[:3]
        share = min(1.0, float(d.evaluate(index.size(), at)) / max(1.0, float(d.evaluate(weight.shape[0], at))))
        stacks = _nbytes(weight, at) + sum(_nbytes(t, at) for t in spec.inputs[3:])
        traffic = outs + _nbytes(x, at) + _nbytes(index, at) + share * stacks
    elif facts.reads and facts.reads.at is not None:        # reads only the rows it is asked for
        traffic = 2.0 * outs + _nbytes(spec.inputs[facts.reads.at], at)
    elif facts.writes and facts.closed:                     # in place: only the rows written
        traffic = 2.0 * _nbytes(spec.inputs[1], at)
    elif facts.pages is not None:                           # the pages in the table, and not the pool
        (q, *pools), pages = spec.inputs[:facts.pages], spec.inputs[facts.pages]
        rows = _elements(pages.shape, at) * spec.attrs["page"]
        share = min(1.0, rows / max(1.0, float(d.evaluate(pools[0].shape[0], at))))
        traffic = outs + _nbytes(q, at) + _nbytes(pages, at) + share * sum(_nbytes(t, at) for t in pools)
    else:
        traffic = float(outs + sum(_nbytes(t, at) for t in spec.inputs))
    return traffic, sum(flops * _elements(shape, at) for shape, flops in _arithmetic(signature))


def _nbytes(t: TensorType, at: Mapping[str, int]) -> int:
    return _elements(t.shape, at) * t.dtype.itemsize


def _elements(shape: Shape, at: Mapping[str, int]) -> int:
    """Return the number of elements of a shape, size by size: evaluating their product as an expression takes ten times as long."""
    return math.prod(int(d.evaluate(s, at)) for s in shape)


@lru_cache(maxsize=16384)
def _arithmetic(signature: Signature) -> tuple[tuple[Shape, float], ...]:
    """Return for each shape that occurs in a call its flops per element, counted down to the atomic ops, at any sizes."""
    flops: dict[Shape, float] = {}
    _add_flops(signature.graph.nodes, flops)
    return tuple(flops.items())


def _add_flops(nodes: Iterable[Node], flops: dict[Shape, float], times: Shape = ()) -> None:
    """Add the flops of the nodes. times: the lengths of the loops around them, which multiply the count."""
    for node in nodes:
        if isinstance(node.op, AtomicOp):
            t = node.inputs[0].type if node.op.group == "reduce" else node.type
            flops[(*times, *t.shape)] = flops.get((*times, *t.shape), 0.0) + node.op.flops
        elif node.op.facts.running:
            flops[(*times, *node.type.shape)] = flops.get((*times, *node.type.shape), 0.0) + 1.0
        elif isinstance(node.op, CompositeOp):
            turns = node.op.turns([i.type for i in node.inputs], node.attrs)
            _add_flops(walk(looked_into(node).outputs), flops, times if turns == 1 else (*times, turns))
