"""rewrites: other graphs of the same meaning. Nothing is chosen or costed in this package. Rules are rows of tables (rules/), each
admitted after a comparison of its sides.

May import: language, meaning, proof, devices, kernels, codegen, records, costs. Read first: recipes.py, then egraph.py and
saturate.py, rule.py and rules/; passes/ for rewrites of entire graphs.
"""
