"""backend: the backend `triton` on `cuda:0`: built-in Triton kernels, and those registered by `@tg.kernel(op, backend="triton")`.

A kernel is a Python function on torch tensors that view device memory. It launches functions compiled by `@triton.jit` on torch's
current stream, which is then the default stream. Views, captures and copies are those of torchcuda."""

from __future__ import annotations

import importlib.metadata
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from os import environ
from pathlib import Path

from tensor_graphs.kernels.cuda.source_text import FROM_80
from tensor_graphs.kernels.kernel import HostCall, Kernel, Spec, source_of
from tensor_graphs.kernels.torch import backend_cuda
from tensor_graphs.kernels.torch.backend_cuda import ARITHMETIC
from tensor_graphs.kernels.torch.backend_cuda import build_copy as build_copy
from tensor_graphs.kernels.torch.backend_cuda import captured as captured
from tensor_graphs.kernels.torch.backend_cuda import in_order as in_order
from tensor_graphs.kernels.torch.backend_cuda import view as view
from tensor_graphs.kernels.torch.ops import Accepts, Function
from tensor_graphs.kernels.triton import attention, products, rows

NAME = "triton"
DEVICE = "cuda"
IMPORTS = ("torch", "triton")
ON_STREAM = True
"""True: functions registered for this backend must only launch work on torch's current stream, so that it may be captured"""

NOT_INSTALLED = "triton is not installed (it comes with torch's builds with CUDA; pip install 'tensor_graphs[triton]')"
NO_COMPILER = "triton builds what launches its kernels with a C compiler, and there is none (install gcc or clang, or set CC)"


def available() -> str | None:
    without = None
    if not _version():                                              # it takes long to import
        without = NOT_INSTALLED
    elif not environ.get("CC") and not any(map(shutil.which, ("gcc", "clang"))):
        without = NO_COMPILER
    elif not environ.get("CPATH") and not (header := Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")).is_file():
        without = f"triton builds what launches its kernels with {header}, and it is not there (install Python's headers)"
    return "; ".join(filter(None, (backend_cuda.available(), without))) or None


def versions() -> dict[str, str]:
    return {"triton": _version(), **backend_cuda.versions()}


def _version() -> str:
    """Return Triton's installed version, "" if none. A mere folder named triton does not count."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


TABLE: Mapping[str, tuple[str, Function, Accepts]] = {
    "softmax": ("softmax", rows.softmax, rows.rows_takes), "rms_norm": ("rms_norm", rows.rms_norm, rows.rows_takes),
    "layer_norm": ("layer_norm", rows.layer_norm, rows.rows_takes), "linear": ("linear", products.linear, products.linear_takes),
    "dot": ("dot", products.dot, products.dot_takes), "attention": ("attention", attention.attention, attention.attention_takes),
    "attention_near": ("attention", attention.attention_near, attention.attention_takes)}
"""kernel name without "triton." -> (op, function, `accepts`)"""


def kernels() -> list[Kernel]:
    toolchain = ", ".join(f"{name} {version}" for name, version in versions().items())
    return [Kernel(name=f"{NAME}.{name}", backend=NAME, op=op, accepts=accepts, build=partial(_call, function),
                   source=source_of(function), module=__name__, toolchain=toolchain, positive_strides=True,
                   arithmetic=ARITHMETIC.get(op), requirements={"arch": FROM_80})
            for name, (op, function, accepts) in TABLE.items()]


def _call(function: Callable[..., None], spec: Spec) -> HostCall:
    return HostCall(function, on_stream=True)


def copy_kernel() -> Kernel:
    return replace(backend_cuda.copy_kernel(), name=f"{NAME}.copy", backend=NAME)
