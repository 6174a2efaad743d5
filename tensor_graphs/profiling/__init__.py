"""profiling: measuring honestly. The judge knows what is right, the worker runs the candidate, the database remembers.

In: kernels and signatures.  Out: traces in the database: a verdict (compared with the float64 oracle) and a time.
The candidate runs in its own process, which never holds expected outputs and can be killed.
May import: language … runtime.  The compiler may ask for measurements, and reads results only from records.
Four folders, each with a sign of its own: measure (run, compare, time), distrust (what a candidate cannot fake or break), queue
(what to measure next), conformance (what a whole backend computes rightly).
Read first: measure/judge.py, then queue/questions.py.
"""
