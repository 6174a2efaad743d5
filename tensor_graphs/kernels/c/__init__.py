"""c: kernels in C, compiled by the system's compiler at first use and kept by content hash. The fast path on a CPU.

In: pointers, sizes and constants (a `NativeCall`).  Out: outputs written in place, by all threads of the one pool.
Read first: tg.h (the shape of a kernel), backend.py (which op becomes which symbol), library.py (how it is built and loaded),
pool.c (the threads), vec.h and wide.h (exp, tanh, … of vectors, which generated kernels call too).
Words: wide = with f64 activations (wide_*.c); weights stay as narrow as they are and are widened in registers.
"""
