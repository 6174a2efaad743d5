"""timing: runs and times a kernel or a whole path, and interprets the claimed times.

Read first: bench.py (in the worker), timed_batch.py and aggregate.py (several workers), clock.py, reference_stream.py (which runs
count: those that no neighbour slowed), deployed.py (whole paths)."""
