"""backend: the kernels of the torch backend and the dtypes that they accept. torch is imported when a kernel first runs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Collection, Mapping
from functools import partial

from tensor_graphs.kernels.kernel import HostCall, Kernel, Spec, source_of
from tensor_graphs.kernels.torch import ops
from tensor_graphs.language.dims import Dim

NAME = "torch"
IMPORTS = ("torch",)
DTYPES = frozenset({"f32", "f64", "bf16", "f16", "i8", "i16", "i32", "i64", "u8", "bool"})
"""torch's CPU operators are complete for these; u16, u32 and u64 lack most of them"""

ONLY_READ = frozenset({"f8e4m3", "f8e5m2"})
"""dtypes that torch's operators convert but do not compute in. They are accepted for operands only: torch's casts (2.13, CPU) give
448 for numbers out of range of f8e4m3 and for infinities, where the dtype has NaN"""


def available() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (pip install 'tensor_graphs[torch]')"
    return None


def versions() -> dict[str, str]:
    return {"torch": importlib.metadata.version("torch")}


def kernels() -> list[Kernel]:
    return kernels_of(NAME, ops.TABLE, ops.__name__, reads=DTYPES | ONLY_READ)


def kernels_of(name: str, table: Mapping[str, tuple[ops.Function, ops.Accepts]], module: str,
               on_stream: bool = False, arithmetic: Mapping[str, Callable[[Spec], Dim]] = {},
               reads: Collection[str] = DTYPES) -> list[Kernel]:
    """Return the kernels of a torch backend, from a table of functions. on_stream: as in HostCall. arithmetic: op -> as in Kernel.
    reads: accepted dtypes of operands."""
    return [Kernel(name=f"{name}.{op}", backend=name, op=op, accepts=partial(_accepts, extra, reads),
                   build=partial(_call, function, on_stream), source=source_of(function), module=module,
                   toolchain=f"torch {versions()['torch']}", positive_strides=True,
                   arithmetic=arithmetic.get(op))
            for op, (function, extra) in table.items()]


def _call(function: ops.Function, on_stream: bool, spec: Spec) -> HostCall:
    return HostCall(function, on_stream)


def _accepts(extra: ops.Accepts, reads: Collection[str], spec: Spec) -> str | None:
    lacking = [t for t in spec.inputs if t.dtype.name not in reads] + [t for t in spec.outputs if t.dtype.name not in DTYPES]
    return f"torch lacks operators for {lacking[0].dtype.name}" if lacking else extra(spec)
