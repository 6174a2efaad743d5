"""blas_thread_sleep: makes the threads of numpy's BLAS sleep between matrix products, as our own do (docs/decisions/0010).

OpenBLAS reads how long an idle thread spins before it sleeps when it is loaded, so the setting must precede the import of numpy.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
TICKS = "17"
"""Time to spin, as a power of two: 2^17 clock ticks are some 50 µs, as in this package's threads. OpenBLAS's 2^26 are 27 ms."""

LATE = "numpy" in sys.modules and VARIABLE not in os.environ
"""True if numpy was imported first: its threads then spin after each product and take a core from the code that runs next."""

os.environ.setdefault(VARIABLE, TICKS)                              # for processes that this one starts, too
