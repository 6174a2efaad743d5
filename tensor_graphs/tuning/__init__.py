"""tuning: the best schedule of a generated kernel on this machine.

In: a signature, its sizes, seconds, a strategy. Out: a kernel with a schedule (codegen/actions.py) that was measured to be faster
than the rules' one, or none. Read first: space.py, timing.py, strategies.py, tune.py.
Words: seed = the rules' schedule; score = a schedule's time ÷ the seed's, measured interleaved with it.
"""
