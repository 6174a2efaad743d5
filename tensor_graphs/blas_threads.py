"""blas_threads: numpy's BLAS goes to sleep between products, as our own threads do (docs/decisions/0010).

OpenBLAS reads how long its threads wait for the next product when it is loaded, so this has to be known before numpy is.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
TICKS = "17"
"""as a power of two: 2^17 clock ticks are some 50 µs, what our own threads wait. OpenBLAS's own choice is 2^26: 27 ms"""

LATE = "numpy" in sys.modules and VARIABLE not in os.environ
"""whether numpy was there first: its threads then spin behind each product, and take a core from whatever runs next"""

os.environ.setdefault(VARIABLE, TICKS)                              # for processes that this one starts, too

PREFIXES, SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")
"""of the names of its functions: numpy's own copy has others than one of the system"""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Inside, numpy's products use no other thread of this process: where the other processors have work of their own, threads that
    wait for each other take many times what they share. Nothing changes where numpy has another BLAS."""
    found = _functions()
    if found is None:
        yield
        return
    get, put = found
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@functools.cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What reads and sets OpenBLAS's number of threads; None where there is none, or not in a file that this system lists."""
    with contextlib.suppress(OSError):
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            files = {line.split(maxsplit=5)[-1].strip() for line in lines if "openblas" in line}
        for library in map(ctypes.CDLL, sorted(files)):
            for prefix, suffix in ((p, s) for p in PREFIXES for s in SUFFIXES):
                with contextlib.suppress(AttributeError):
                    return (getattr(library, f"{prefix}_get_num_threads{suffix}"),
                            getattr(library, f"{prefix}_set_num_threads{suffix}"))
    return None
