"""passes: rewrites of an entire graph that return a `PassResult` (result.py)."""
