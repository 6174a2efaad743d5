"""paths: the alternative ways to run a graph: kernels, their order, and the memory of each value.

In: a Graph, kernels that may be used, a cost for each.  Out: `Path`s (choices, serialisable) and, for one path, a `Plan`:
a flat list of instructions over a memory map.  Nothing here runs a kernel.
May import: language, meaning, devices, kernels, codegen, records, costs, rewrites.
Read first: kernels/signature.py (equal nodes share one choice), path.py (choices and their enumeration), lower.py (path →
instructions), memory.py (liveness and offsets).
Words: signature = one op with its attributes and types, names stripped; alternative = one way to compute it; arena = the one
block of transient memory of a device.
"""
