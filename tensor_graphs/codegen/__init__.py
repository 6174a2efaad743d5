"""codegen: kernels generated from definitions. The definition of an op becomes stages (loops over indexed loads); stages become C.

In: the definition of an op or of a part of a graph. Out: kernels of the backend `gen`. stages.py defines stages, lower.py builds
them, one_pass.py fuses reductions that depend on each other into one pass; interpret.py runs stages in numpy (the oracle of the
renderers), c_source.py and cuda_source.py print them (numbers.h and numbers.cuh: the scalar functions that printed code calls).
"""
