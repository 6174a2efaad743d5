"""backend: the kernels of the numpy backend and the specs that each accepts."""

from __future__ import annotations

from functools import partial

import numpy as np

from tensor_graphs.kernels.kernel import HostCall, Kernel, Spec, source_of
from tensor_graphs.kernels.numpy import atomics, composites, scan
from tensor_graphs.kernels.numpy.atomics import Function

NAME = "numpy"


def available() -> str | None:
    return None


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


def kernels() -> list[Kernel]:
    """Return one kernel per function of atomics.py, composites.py and scan.py. Each takes all dtypes that its op allows, unless
    ACCEPTS of its module restricts it."""
    accepts = composites.ACCEPTS | scan.ACCEPTS
    return [Kernel(name=f"numpy.{op}", backend=NAME, op=op, accepts=accepts.get(op, _any), build=partial(_call, function),
                   source=source_of(function), module=module.__name__, toolchain=f"numpy {np.__version__}",
                   in_place=((0, 0),) if in_place else ())
            for module in (atomics, composites, scan) for op, (function, in_place) in module.TABLE.items()]


def _call(function: Function, spec: Spec) -> HostCall:
    return HostCall(function)


def _any(spec: Spec) -> str | None:
    return None
