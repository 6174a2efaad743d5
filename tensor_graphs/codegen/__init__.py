"""codegen: kernels nobody wrote. A part's definition becomes stages (loops over indexed loads), and stages become C.

In: the definition of an op or a part. Out: kernels of the backend `gen`. stages.py says what a stage is, lower.py makes them,
one_pass.py makes reductions that depend on each other one pass; interpret.py runs stages in numpy (the oracle of the renderer),
c_source.py and cuda_source.py print them (numbers.h and numbers.cuh: scalar functions of what is printed).
"""
