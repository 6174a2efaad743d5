"""codegen: kernels generated from definitions. The definition of an op becomes stages (loops over indexed loads); stages become C.

In: the definition of an op or of a part of a graph. Out: kernels of the backend `gen`. loop_ir.py defines stages, lower.py builds
them, pipelines.py lists the passes that they go through; interpret.py runs stages in numpy (the oracle of the printers).
map_cpu.py and map_loops.py (for GPUs) map them to loop programs (loop_program.py, mapping/), which interpret_loops.py runs in numpy
and print/c_loops.py and print/cuda_loops.py print. numbers.h, numbers.cuh: scalar functions of printed code.
refusals.py: what is not lowered.
"""
