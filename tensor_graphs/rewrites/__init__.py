"""rewrites: other graphs of the same meaning; nothing is chosen or costed here. Rules are rows of tables (rules/), admitted by
comparison.

May import: language, meaning, proof, devices, kernels, codegen, records, costs. Read first: recipes.py, then egraph.py and
saturate.py, rule.py and rules/; passes/ for whole-graph rewrites.
"""
