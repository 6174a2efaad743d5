"""timing: runs and times a kernel or a path through an entire graph, and evaluates the times that a worker claims.

Read first: bench.py (in the worker), timed_batch.py and aggregate.py (several workers), clock.py, noise_reference.py (finds the
runs that no other process slowed), in_graph_steps.py (entire paths)."""
