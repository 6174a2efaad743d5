"""one_thread: limits numpy's matrix products to one thread for a while, where other processes use the other processors.

threadpoolctl does that for more libraries, and is no dependency: numpy's OpenBLAS needs two calls; with another BLAS the judge
takes longer and decides the same. blas_thread_sleep.py sets, before numpy is loaded, how long its threads spin."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

PREFIXES, SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")
"""prefixes and suffixes of the names of OpenBLAS's functions: those of numpy's copy differ from those of a system library"""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Context manager: numpy's matrix products use only one thread of this process, as threads that wait for each other take many
    times as long as the work they share. Nothing changes where numpy has another BLAS."""
    functions = _functions()
    if functions is None:
        yield
        return
    get, put = functions
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@functools.cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return the functions that read and set OpenBLAS's number of threads; None without it."""
    with contextlib.suppress(OSError):
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            files = {line.split(maxsplit=5)[-1].strip() for line in lines if "openblas" in line}
        for library in map(ctypes.CDLL, sorted(files)):
            for prefix, suffix in ((p, s) for p in PREFIXES for s in SUFFIXES):
                with contextlib.suppress(AttributeError):
                    return (getattr(library, f"{prefix}_get_num_threads{suffix}"),
                            getattr(library, f"{prefix}_set_num_threads{suffix}"))
    return None
