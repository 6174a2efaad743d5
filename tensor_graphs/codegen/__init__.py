"""codegen: kernels generated from definitions. The definition of an op becomes stages (loops over indexed loads); stages become C.

In: the definition of an op or of a part of a graph. Out: kernels of the backend `gen`. loop_ir.py defines stages, lower.py builds
them, pipelines.py lists the passes that they go through; interpret.py runs stages in numpy (the oracle of the printers),
print/c_source.py and print/cuda_source.py print them (numbers.h, numbers.cuh: scalar functions of printed code). refusals.py: what
is not lowered.
"""
