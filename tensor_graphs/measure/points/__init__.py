"""points: what a kernel is fed when it is judged: sizes, values, layouts, and the rows that are compared.

Read first: inputs.py; extreme values are in extremes.py, real ones in descriptors.py, what a verdict has to cover in coverage.py. Of a
cache that was written to only rows are kept (changed_rows.py).
"""
