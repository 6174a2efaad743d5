"""views: plans, lists of paths and kernels for people: texts, tables, pictures. Nothing is decided here.

In: a plan, a graph, rows.  Out: text, JSON, SVG, Graphviz.  May import: every room above (language … choice).
Read first: explain.py (why a plan is as it is), summary.py (the few dearest steps), charts.py (axes that pictures share).
"""
