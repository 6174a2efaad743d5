"""measure: measures honestly. The judge decides what is right, the worker runs the candidate, the database remembers.

In: kernels and signatures.  Out: traces in the database: a verdict (compared with the float64 oracle) and a time.
The candidate runs in its own process, which never holds expected outputs and can be killed.
May import: language … runtime.  `choice` may ask for measurements, and reads results only from records.
Folders: points (a kernel's inputs), timing (how it is run and timed), isolation (what a candidate cannot fake or break), rates (the
device's own speed), queue (what to measure next), conformance (what a backend computes rightly).
Read first: judge.py (verdicts), comparison_pipeline.py (of many kernels at once), then queue/questions.py."""
