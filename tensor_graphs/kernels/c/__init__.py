"""c: kernels in C, compiled by the system's compiler at first use and cached by content hash: the fast backend on a CPU.

In: pointers, sizes and constants (a `NativeCall`).  Out: outputs written in place, by all threads of the process's one pool.
Read first: tg.h (signature of a kernel), backend.py (op -> symbol), library.py (building and loading), pool.c (the threads).
Words: wide = with f64 activations (wide_*.c); narrower weights keep their dtype in memory and are widened in registers."""
