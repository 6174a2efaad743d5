"""decoder: one CUDA kernel that runs a decoder's whole step of one token.

In: the graph of a decoder.  Out: the text of a kernel for its sizes, or NotLowered, which says why there is none.
Read first: read_graph.py (which steps a graph consists of), then one_kernel.py (the text and the table of steps).
"""
