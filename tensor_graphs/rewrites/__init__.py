"""rewrites: what else says the same. A graph in, another graph of the same meaning out; nothing is chosen or priced here.

Every rewrite of a whole graph is a named function that leaves its argument alone, with its numeric class in its docstring; rules
are rows of tables (rules/), admitted by comparison.
May import: language, meaning, proof, devices, kernels, codegen, records, costs.
Read first: simplify.py and recipes.py (what is found), then egraph.py and saturate.py (how), rule.py and rules/ (by what);
recognise.py (composites in atomic ops) and widen.py (wider intermediates, narrow.py: narrower) are passes of their own.
"""
