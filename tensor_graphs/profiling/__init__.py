"""profiling: measuring honestly. The judge knows what is right, the worker runs the candidate, the database remembers.

In: kernels and signatures.  Out: traces in the database: a verdict (compared with the float64 oracle) and a time.
The candidate runs in its own process, which never holds expected outputs and can be killed.
May import: language … runtime.  The compiler may ask for measurements, and reads results only from records.
Read first: inputs.py (what kernels are fed; extreme values are extremes.py's, real ones descriptors.py's), bench.py (how a kernel
is run and timed), worker.py, supervisor.py and worker_process.py (the three processes), blocks.py (whether a claimed time can be
true), weighing.py (what such blocks say), judge.py (verdicts), profile.py (what to measure next), report.py (what
was), speeds.py (how fast the device itself is).
"""
