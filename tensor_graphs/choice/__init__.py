"""choice: which path runs. A graph and a tolerance in, a plan out, with the reason for every choice.

May import: every room above (language … tuning).  It reads measurements from records only; it may ask `measure` to make some.
Read first: prepare.py (the graph that is compiled), cost_table.py (prices and eligibility), compile.py (what is on file), search.py
(the walk), finalists.py (what whole paths decide), plan_file.py (plans that are kept). On refusals: refusals.py (nothing can run
it), tolerance_floor.py (no kernel is so accurate), memory_limit.py (too little memory), outliers.py (rows of a busy machine).
"""
