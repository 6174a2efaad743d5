"""conformance: what a backend computes rightly, op by op and dtype by dtype.

In: the name of a backend.  Out: a table with an error or a reason in each cell.
Read first: cases.py (an instance of every op), backend.py (judging them), table.py (the table as JSON and Markdown)."""
