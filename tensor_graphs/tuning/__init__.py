"""tuning: search for the best schedule of a generated kernel on this machine.

In: a signature, its sizes, seconds, a strategy, a generator (generators.py: C loops, GPU loops, tiles). Out: a kernel with a
schedule (codegen/schedule_actions.py) that measured faster than the rules' schedule, or none. Read first: space.py, timing.py,
strategies.py, tune.py. Terms: seed = the rules' schedule; score = a schedule's time ÷ the seed's, from interleaved measurements.
"""
