"""queue: what to measure next, within a budget, and what is left when it is spent. Every row is stored as soon as it is known.

In: questions (a kernel, a signature, sizes).  Out: traces; a report.
Read first: questions.py (asking and answering), requests.py (what plans have left to be measured), report.py (what was done).
"""
