"""rewrites: what else says the same. A graph in, another graph of the same meaning out; nothing is chosen or priced here.

Every rewrite is a named function from graph to graph that leaves its argument alone, with its numeric class in its docstring.
May import: language, meaning, devices, kernels, codegen, records, costs.
Read first: widen.py (the same graph with wider intermediates).
"""
