"""choice: the choice of a path. A graph and a tolerance in, a plan out, with the reason for every choice.

May import: every room above (language … tuning).  It reads measurements from records only; it may ask `measure` to make some. Read
first: prepare.py, cost_table.py (costs and eligibility), compile.py, search.py, finalists.py. Refusals: refusals.py,
tolerance_floor.py, memory_limit.py, disturbed_times.py.
"""
