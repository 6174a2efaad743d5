"""runtime: running one plan. Parameters are bound once; a run is a walk over a flat list, without allocation or look-ups per step.

In: a Plan, parameters, inputs.  Out: outputs, and states that moved on.
May import: language, meaning, devices, kernels, codegen, records, costs, rewrites, paths.
Read first: compiled_graph.py (what a user holds), session.py (states), executor.py (the walk).
Words: base = a block of memory (arena, a parameter, an output, …); frame = the tables and the arena of one run at a time.
"""
