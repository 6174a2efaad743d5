"""passes: rewrites of a whole graph that all return one shape, a `PassResult` (result.py)."""
