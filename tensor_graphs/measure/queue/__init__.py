"""queue: decides what to measure next within a budget, and what is left when it is spent. Every row is stored as soon as known.

In: questions (a kernel, a signature, sizes).  Out: traces; a report.
Read first: questions.py (choosing and answering them), requests.py (measurements that plans request), report.py (results)."""
