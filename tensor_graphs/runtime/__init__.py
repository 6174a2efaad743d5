"""runtime: execution of one plan. Parameters are bound once; a run walks a flat list, without allocation or look-ups per step.

In: a Plan, parameters, inputs.  Out: outputs, and updated states.
May import: language, meaning, devices, kernels, codegen, records, costs, rewrites, paths.
Read first: compiled_graph.py (the user's object), session.py (states), executor.py (the walk), segments/ (the engines),
dim_tables.py (the tables), bind_time_cache.py (prepared weights in the cache folder); threads wait for work in kernels/c/pool.c.
Words: base = number of a block of memory (arena, a parameter, an output, …); frame = tables and arenas, used by one run at a
time; segment = consecutive instructions that one engine executes in one call."""
