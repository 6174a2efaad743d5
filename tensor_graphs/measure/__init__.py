"""measure: compares kernels with an oracle and times them. The judge decides, a worker runs kernels, the database has the results.

In: kernels and signatures.  Out: traces (rows of the database): a verdict (compared with the float64 oracle) and a time.
The candidate kernel runs in its own process, which never holds expected outputs and can be killed.
May import: language … runtime.  `choice` may request measurements, and reads results only from records.
Folders: points (a kernel's inputs), timing (how it is run and timed), isolation (what a candidate cannot fake or break), rates
(speed of a device), queue (what to measure next), conformance (which ops a backend computes correctly).
Read first: judge.py (verdicts), comparison_pipeline.py (verdicts on many kernels), then queue/next_measurements.py."""
