"""meaning: computes what a program means: the float64 interpreter (the oracle), and the measure of errors against it.

In: a Graph, arrays, sizes of dims.  Out: reference values; errors.  The oracle is never a candidate, and no backend calls it.
May import: language.
Read first: interpreter.py (a graph's value), algebra.py (one op's value), error_measure.py (how far off a result is),
running_error.py (how far rounding alone moves it), same_math.py (which error is too large), accuracy.py (what a caller asks for).
Words: real mode = floats are real numbers (float64, never rounded to their dtype); as written = rounded to the dtype at every node.
"""
