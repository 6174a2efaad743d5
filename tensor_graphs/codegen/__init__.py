"""codegen: kernels generated from definitions. The definition of an op becomes stages (loops over indexed loads); stages become C.

In: the definition of an op or of a part of a graph. Out: kernels of the backend `gen`. loop_ir.py defines stages, lower.py builds
them, pipelines.py lists the passes that they go through; print/c_source.py and print/cuda_source.py print them (numbers.h,
numbers.cuh: scalar functions of printed code). interpret.py runs stages in numpy, and interpret_loops.py what they are mapped to
(loop_program.py): the oracles of passes, mappers and printers. refusals.py: what is not lowered.
"""
