"""queue: decides what to measure next within a budget, and what is left when it is spent. Every row is stored as soon as known.

In: questions (a kernel, a signature, sizes).  Out: traces; a report.
Read first: next_measurements.py (chooses and answers questions), requests.py (what plans request), profile_report.py (results)."""
