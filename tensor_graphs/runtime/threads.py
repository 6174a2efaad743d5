"""threads: sets the number of threads, one setting per process, of the native thread pool and of torch."""

from __future__ import annotations

import sys

from tensor_graphs.kernels.registry import native_library, why_missing


def set_threads(count: int) -> None:
    """Use `count` threads in native kernels, and in torch when it is loaded. Raises ValueError for a count below 1."""
    if count < 1:
        raise ValueError(f"{count} threads: at least one is needed")
    if why_missing("c") is None:
        native_library().set_threads(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
