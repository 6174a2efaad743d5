"""cli: the command `tg`, with one module per verb; no other package prints.

May import: everything.  Read first: main.py (the verbs, and how errors are shown), options.py (what the verbs share).
"""
