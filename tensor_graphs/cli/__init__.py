"""cli: the command `tg`. One module per verb; the only room that prints.

May import: everything.  Read first: main.py (the verbs, and how errors are shown), options.py (what the verbs share).
"""
