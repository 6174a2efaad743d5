"""conformance: tests which ops a backend computes correctly, op by op and dtype by dtype.

In: the name of a backend.  Out: a table with an error or a reason in each cell.
Read first: cases.py (instances of every op), backend.py (judges kernels on them), table.py (the table as JSON and Markdown)."""
