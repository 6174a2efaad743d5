"""runtime: running one plan. Parameters are bound once; a run is a walk over a flat list, without allocation or look-ups per step.

In: a Plan, parameters, inputs.  Out: outputs, and states that moved on.
May import: language, meaning, devices, kernels, codegen, records, costs, rewrites, paths.
Read first: compiled_graph.py (what a user holds), session.py (states), executor.py (the walk), segments/ (who runs what),
dim_tables.py (the tables), bind_time_cache.py (prepared weights in the cache folder); threads wait for work in kernels/c/pool.c.
Words: base = a block of memory (arena, a parameter, an output, …); frame = the tables and the arenas of one run at a
time; segment = a run of instructions that one engine executes in one go.
"""
