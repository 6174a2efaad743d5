"""codegen: kernels nobody wrote. A part's definition becomes stages (loops over indexed loads), and stages become C.

In: the definition of an op or a part. Out: kernels of the backend `gen`. stages.py says what a stage is, lower.py makes them,
interpret.py runs them in numpy (the oracle of the renderer), render_c.py prints them.
"""
