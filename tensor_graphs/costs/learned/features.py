"""features: features of a call for the learned cost model: numbers that describe its sizes, its ops, its kernel and its backend."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tensor_graphs.costs.loop_features import shapes_of
from tensor_graphs.costs.roofline import work
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d


def features_of(signature: Signature, binding: Mapping[str, int], backend: str, kernel: str, roofline: float,
                moved: float | None = None, arithmetic: float | None = None) -> dict[str, float]:
    """Return the features of a call, by name.

    kernel: the name of the kernel. roofline: seconds by `estimate_seconds`. moved, arithmetic: bytes and operations that the kernel
    declares. A size s is given as log2(s + 1).
    """
    at = {n: int(binding[n]) for n in signature.dim_names}
    nbytes, flops = work(signature, tuple(sorted(at.items())))
    spec = signature.spec
    outs, ins = ([[int(d.evaluate(s, at)) for s in t.shape] for t in types] for types in (spec.outputs, spec.inputs))
    elements, operands = [math.prod(s) for s in outs], [math.prod(s) for s in ins]
    largest = max(ins, key=math.prod, default=[])
    first = outs[0] if outs else []
    return shapes_of(signature).at(at) | {
        "roofline": math.log2(roofline * 1e9),
        "bytes": _log(nbytes if moved is None else moved), "flops": _log(flops if arithmetic is None else arithmetic),
        "bytes of outputs": _log(sum(n * t.dtype.itemsize for n, t in zip(elements, spec.outputs, strict=True))),
        "bytes of the largest operand": _log(
            max((n * t.dtype.itemsize for n, t in zip(operands, spec.inputs, strict=True)), default=0)),
        "operands": float(len(operands)), "outputs": float(len(elements)),
        "itemsize": float(max((t.dtype.itemsize for t in spec.outputs), default=0)),
        "itemsize of operands": float(max((t.dtype.itemsize for t in spec.inputs), default=0)),
        "float": float(any(t.dtype.is_float for t in spec.outputs)),
        "last axis of the output": _log(first[-1] if first else 1), "rows of the output": _log(math.prod(first[:-1])),
        "last axis of the largest operand": _log(largest[-1] if largest else 1), "rank": float(len(largest)),
        "elements read for each that is written": _log(sum(operands) / max(1, sum(elements))),
        "product": float(spec.op.facts.product), "rows are read": float(spec.op.facts.reads is not None),
        f"backend {backend}": 1.0, f"kernel {kernel}": 1.0,
    }


def _log(x: float) -> float:
    return math.log2(x + 1.0)
