"""blas_sleep: numpy's BLAS goes to sleep between products, as our own threads do (docs/decisions/0010).

OpenBLAS reads how long its threads wait for the next product when it is loaded, so this has to be known before numpy is.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
TICKS = "17"
"""as a power of two: 2^17 clock ticks are some 50 µs, what our own threads wait. OpenBLAS's own choice is 2^26: 27 ms"""

LATE = "numpy" in sys.modules and VARIABLE not in os.environ
"""whether numpy was there first: its threads then spin behind each product, and take a core from whatever runs next"""

os.environ.setdefault(VARIABLE, TICKS)                              # for processes that this one starts, too
