"""decoder: one CUDA kernel that runs all steps of a decoder for one token.

In: the graph of a decoder.  Out: the source of a kernel for its sizes, or the error NotLowered with the reason why there is none.
Read first: read_graph.py (finds the steps of a graph), then one_kernel.py (generates the source and the table of steps)."""
