"""compiler: choosing. A graph and a tolerance in, a plan out, with the reason for every choice.

May import: every room above (language … tuning).  It reads measurements from records only; it may ask profiling to make some.
Read first: prepare.py (the graph that is compiled), choose.py (prices and eligibility), compile.py (what is on file), search.py
(the walk), finalists.py (what whole paths decide), plan_file.py (plans that are kept), explain.py (what is said about it). On
refusals: no_path.py (nothing can run it), reach.py (no kernel is so accurate), room.py (too little memory), doubts.py (rows of a
busy machine).
"""
