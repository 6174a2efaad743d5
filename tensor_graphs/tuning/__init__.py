"""tuning: which schedule of a generated kernel is best on this machine?

In: a signature, its sizes, seconds, a strategy. Out: a kernel with a schedule (codegen/actions.py) that was measured to be faster
than the one that the rules make, or none. space.py has what is walked and its scores, timing.py how they are measured,
strategies.py ways to walk, tune.py has the winner judged and all stored. Loaded only where somebody tunes.
Words: seed = the rules' schedule; score = a schedule's time ÷ the seed's, measured in turns with it.
"""
