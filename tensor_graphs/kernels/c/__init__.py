"""c: kernels in C, compiled by the system's compiler at first use and cached by content hash. The fast path on a CPU.

In: pointers, sizes and constants (a `NativeCall`).  Out: outputs written in place, by all threads of the one pool.
Read first: tg.h (the shape of a kernel), backend.py (op -> symbol), library.py (building and loading), pool.c (the threads).
Words: wide = with f64 activations (wide_*.c); weights stay as narrow as they are and are widened in registers."""
