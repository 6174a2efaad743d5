"""timing: how a kernel, or a whole path, is run and timed, and what the claimed times say.

Read first: bench.py (in the worker), timed_batch.py and aggregate.py (several workers), clock.py (which clock), reference_stream.py
(which runs count: those that no neighbour slowed), deployed.py (whole paths).
"""
