"""views: shows plans, lists of paths and kernels to people as text, tables and pictures. Nothing is decided here.

In: a plan, a graph, rows.  Out: text, JSON, SVG, Graphviz.  May import: every room above (language … choice).
Read first: explain.py (reasons for a plan's choices), summary.py (the most expensive steps), charts.py (axes of all pictures),
layout.py (places of boxes).
"""
